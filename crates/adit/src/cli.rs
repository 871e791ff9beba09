//! The command line: `--help`, the man page and the completions all come from these definitions.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::failure::{Context, Result};

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;

const LONG_ABOUT: &str = "\
Adit is a userspace WireGuard for Linux. `adit INTERFACE` creates an interface, and returns when its control socket \
answers. `wg` then configures it like an interface of the kernel. `adit up` and `adit down` read wg-quick configuration \
files and need neither `wg` nor `wg-quick`.";

const AFTER_HELP: &str = "\
If an interface has the name of a subcommand, or nearly that name, use `adit run NAME` or `adit -f NAME`.

Environment of the daemon:
  LOG_LEVEL              verbose (or debug: why peers do not connect), error, silent; error if unset
  ADIT_DISABLE_OFFLOADS  like --disable-offload, names separated by commas
  ADIT_AEAD              avx512, avx2, portable or ring, instead of the fastest for this processor
  WG_TUN_FD              use this open TUN file descriptor, with IFF_VNET_HDR
  WG_UAPI_FD             use this listening UNIX socket as the control socket
  WG_PROCESS_FOREGROUND  1 is like --foreground

Exit status: 0 success, 1 failure.";

const AFTER_UP_HELP: &str = "\
With --foreground, and as PID 1 of a container, `adit up` stays until the tunnel ends. When the tunnel is up and the PostUp \
hooks have run, it reports to systemd that it is ready (sd_notify). On SIGTERM and SIGINT it takes the tunnel down, like \
`adit down`. On SIGHUP it applies the changed file, like `adit sync`; in a terminal, SIGHUP takes the tunnel down. Its \
exit status is 0 when it took the tunnel down, or `adit down` did. When the tunnel's process fails or is \
killed, it runs the PreDown and PostDown hooks and exits with 1. The routing rules and the firewall of a default route, \
and DNS, then stay until `adit down` or the next `adit up`, so that no packet leaves in clear.

Hooks run with INTERFACE and CONFIG_FILE in their environment, and LC_ALL=C, as those of wg-quick.

A tunnel has a default route if its AllowedIPs contain 0.0.0.0/0 or ::/0 and it has no Table. When the process or the \
interface of such a tunnel is gone, its traffic stays blocked; with wg-quick it leaves in clear. `adit up NAME` brings \
the tunnel back without a gap, and `adit down NAME` returns to the clear network.

Environment:
  WG_ENDPOINT_RESOLUTION_RETRIES  how often to look up an endpoint's name again, or infinity; 15 if unset
  NOTIFY_SOCKET                   systemd's socket for readiness reports

`adit up` passes the daemon's environment on (see `adit --help`).";

#[derive(Parser)]
#[command(
    name = "adit",
    version,
    about = "A userspace WireGuard for Linux that moves more bits for less CPU",
    long_about = LONG_ABOUT,
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) run: Option<RunArgs>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run interfaces in one process; with one, the same as `adit INTERFACE`, of any name
    Run(RunArgs),
    /// Bring up a tunnel from a wg-quick configuration file
    #[command(after_help = AFTER_UP_HELP)]
    Up(UpArgs),
    /// Take down a tunnel that `adit up` brought up, and unblock the traffic of one whose process was
    /// killed
    Down(ConfArgs),
    /// Write a running tunnel's configuration back to its file
    Save(ConfArgs),
    /// Apply a changed file to a running tunnel, without disturbing peers that did not change
    ///
    /// Applies keys, peers, port and mark as `wg syncconf` does, then MTU, addresses and routes. Adds
    /// missing routes for AllowedIPs; with hooks in the file, only routes for new AllowedIPs. Adds
    /// policy routing for a new default route. Removes the routes of AllowedIPs that are gone, and
    /// keeps routes that it did not add. If the file no longer states PrivateKey, ListenPort, FwMark
    /// or MTU, that setting stays; without any Address, the addresses stay.
    ///
    /// Prints a line for each address and MTU that it changes, and for each change that it does not
    /// apply: DNS, hooks, another Table, addresses that a hook may have set, and the addresses, MTU
    /// and routes of an interface that was renamed or moved. `adit down` and `adit up` apply those.
    Sync(ConfArgs),
    /// Print a configuration file without the keys that only `adit up` and wg-quick understand
    Strip(ConfArgs),
    /// Show interfaces: peers, transfer, offloads in force, drops by reason
    Show(ShowArgs),
    /// Print a new private key
    Genkey,
    /// Print a new preshared key
    Genpsk,
    /// Read a private key from standard input and print its public key
    Pubkey,
    /// Measure a tunnel between two hosts in network namespaces, and the link below it, in 15
    /// seconds
    Demo(DemoArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print a manual page, or write all of them to a directory
    Man {
        /// The command of the page to print: `show` for adit-show(1); adit(1) by default
        #[arg(value_name = "COMMAND", conflicts_with = "dir")]
        command: Option<String>,
        /// Write one page per command there instead of printing one
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RunArgs {
    /// Name of the interface to create; `adit run` takes several, and one process serves them all
    #[arg(value_name = "INTERFACE", required = true, value_parser = interface_name)]
    pub(crate) interfaces: Vec<String>,
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Start no process: have the one that serves this interface serve the new ones, too
    #[arg(long, value_name = "INTERFACE", value_parser = interface_name,
          conflicts_with_all = ["foreground", "disable_offload", "background", "die_with", "control_dir"])]
    pub(crate) join: Option<String>,
    /// Never use this offload: tun-tso, tun-uso, tun-tunnel, tun-gro-tcp, tun-gro-udp,
    /// tun-gro-tunnel, udp-gso or udp-gro; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) disable_offload: Vec<String>,
    /// More than one is refused: see [`one_shard`]
    #[arg(long, hide = true, value_name = "N", value_parser = one_shard)]
    pub(crate) shards: Option<u16>,
    /// Report readiness on standard output, then leave the terminal: for the background process
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// End when the parent process, which must have this PID, ends
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) die_with: Option<i32>,
    /// Put the sockets there instead of below /var/run, and remove the directory at the end
    #[arg(long, hide = true, value_name = "DIR")]
    pub(crate) control_dir: Option<PathBuf>,
}

impl RunArgs {
    pub(crate) fn new(interface: &str) -> Self {
        Self {
            interfaces: vec![interface.to_owned()],
            ..Self::default()
        }
    }
}

#[derive(Args)]
pub(crate) struct ConfArgs {
    /// A file NAME.conf, or the NAME of an interface with its file in /etc/wireguard
    #[arg(value_name = "CONF|INTERFACE")]
    pub(crate) conf: String,
}

#[derive(Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) conf: ConfArgs,
    /// Stay until the tunnel ends, and take it down on SIGTERM and SIGINT
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Start no process: have the one that serves this interface serve the new one, too
    #[arg(long, value_name = "INTERFACE", value_parser = interface_name,
          conflicts_with_all = ["foreground", "disable_offload"])]
    pub(crate) join: Option<String>,
    /// Never use this offload (see `adit --help`); repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) disable_offload: Vec<String>,
    /// More than one is refused: see [`one_shard`]
    #[arg(long, hide = true, value_name = "N", value_parser = one_shard)]
    pub(crate) shards: Option<u16>,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// Only this interface
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: Option<String>,
    /// Print JSON; `errors` names the interfaces that could not be asked
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds of TCP through each path
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub(crate) seconds: u16,
}

/// The command that was probably meant by the name of an interface that is one typing mistake away
/// from it.
///
/// Names of interfaces often have a digit. Commands of three letters and less are one letter away
/// from common names (tun, wan, us): for those only a doubled letter or two swapped ones count.
pub(crate) fn misspelt(interface: &str) -> Option<String> {
    let meant = command_near(interface)?;
    let letters = |word: &str| word.bytes().collect::<BTreeSet<u8>>();
    let slip = meant.len() > 3 || letters(&meant) == letters(interface);
    let digit = interface.bytes().any(|byte| byte.is_ascii_digit());
    (slip && !digit).then_some(meant)
}

/// Whether `word` is a command.
pub(crate) fn is_command(word: &str) -> bool {
    Cli::command().find_subcommand(word).is_some()
}

/// The command that is one typing mistake away from `word`.
pub(crate) fn command_near(word: &str) -> Option<String> {
    let command = Cli::command();
    let mut names = (command.get_subcommands().map(clap::Command::get_name)).chain(["help"]);
    let meant = names.find(|name| strsim::osa_distance(name, word) == 1)?;
    Some(meant.to_owned())
}

fn interface_name(name: &str) -> std::result::Result<String, String> {
    adit_ctl::config::check_name(name).map(|()| name.to_owned())
}

/// A TUN with several queues sends a flow to the queue on which userspace last wrote a packet of
/// that flow (`tun_flow_update`). With a socket for each shard, the answers of a peer move its flows
/// to another queue and shard, where they overtake waiting packets. Only a steering program prevents
/// that, and there is none yet.
fn one_shard(number: &str) -> std::result::Result<u16, String> {
    match number.parse() {
        Ok(1) => Ok(1),
        Ok(0) | Err(_) => Err("expected 1".into()),
        Ok(_) => Err("several shards reorder packets, because the kernel moves flows between the queues of a TUN: \
                      only 1 is possible"
            .into()),
    }
}

/// Prints text to standard output. A reader that has closed the pipe has seen enough.
pub(crate) fn print(text: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context(|| "cannot write to standard output".into()),
    }
}

pub(crate) fn print_completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "adit", &mut script);
    print(&script)
}
