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
Adit is a userspace WireGuard for Linux. `adit INTERFACE` creates the interface and returns when it exists and its \
control socket answers; `wg` configures it then as it would the kernel's. `adit up` and `adit down` read wg-quick \
configuration files and need neither `wg` nor `wg-quick`.";

const AFTER_HELP: &str = "\
An interface that has the name of a subcommand, or one that is a slip away from it, is made with `adit run NAME` or \
`adit -f NAME`.

Environment of the daemon:
  LOG_LEVEL              verbose (or debug: why peers do not connect), error, silent; error if unset
  ADIT_DISABLE_OFFLOADS  like --disable-offload, names separated by commas
  ADIT_AEAD              avx512, avx2, portable or ring, instead of the fastest for this processor
  WG_TUN_FD              use this open TUN file descriptor, with IFF_VNET_HDR
  WG_UAPI_FD             use this listening UNIX socket as the control socket
  WG_PROCESS_FOREGROUND  1 is like --foreground

Exit status: 0 success, 1 failure.";

const AFTER_UP_HELP: &str = "\
With --foreground, and as PID 1 of a container, `adit up` stays. It tells systemd that it is ready (sd_notify) when the \
tunnel is up, PostUp hooks included. On SIGTERM and SIGINT it does what `adit down` does; on SIGHUP, what `adit sync` \
does, unless it runs in a terminal, whose end it is then. It exits with 0 after that, and when somebody else took the \
tunnel down. When the tunnel's process fails or is killed, it runs the PreDown and PostDown hooks and exits with 1; the \
routing rules and the firewall of a default route, and DNS, stay until `adit down` or the next `adit up`, to keep packets \
from leaving in clear.

Hooks run with INTERFACE and CONFIG_FILE in their environment, and LC_ALL=C, as wg-quick's do.

When the process or the interface of a tunnel with a default route (AllowedIPs = 0.0.0.0/0 or ::/0, no Table) is gone, what \
would go through it stays blocked, where wg-quick lets it leave in clear. `adit up NAME` brings the tunnel back without a \
gap, and `adit down NAME` goes back to the clear network.

Environment:
  WG_ENDPOINT_RESOLUTION_RETRIES  how often to look up an endpoint's name again, or infinity; 15 if unset
  NOTIFY_SOCKET                   where systemd wants to be told

The daemon's environment (see `adit --help`) is passed on to it.";

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
    /// Run an interface: the same as `adit INTERFACE`, whatever the interface's name is
    Run(RunArgs),
    /// Bring up a tunnel from a wg-quick configuration file
    #[command(after_help = AFTER_UP_HELP)]
    Up(UpArgs),
    /// Take down a tunnel that `adit up` brought up, or unblock what its killed process left
    /// blocked
    Down(ConfArgs),
    /// Write a running tunnel's configuration back to its file
    Save(ConfArgs),
    /// Apply a changed file to a running tunnel; peers that stay as they are notice nothing
    ///
    /// Applies keys, peers, port and mark as `wg syncconf` does, then MTU, addresses and routes:
    /// AllowedIPs get the routes that are missing (with hooks in the file, only those that are new
    /// do; a default route that is new, its policy routing too), those that are gone lose them, and
    /// routes that others made stay. A PrivateKey, ListenPort, FwMark or MTU that the file does not
    /// state any more stays as it is, and so do the addresses of a file without Address.
    ///
    /// Prints a line for each address and MTU that it changes, and for what it leaves: DNS, hooks,
    /// another Table, addresses that a hook may have set, and the addresses, MTU and routes of an
    /// interface that was renamed or moved. `adit down` and `adit up` apply those.
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
    /// Measure a tunnel between two hosts made for the purpose, next to the bare cable, in 15
    /// seconds
    Demo(DemoArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print a manual page, or write all of them to a directory
    Man {
        /// The command whose page to print instead of adit(1): `show` for adit-show(1)
        #[arg(value_name = "COMMAND", conflicts_with = "dir")]
        command: Option<String>,
        /// Write one page per command there instead of printing one
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RunArgs {
    /// Name of the interface to create
    #[arg(value_name = "INTERFACE", required = true, value_parser = interface_name)]
    pub(crate) interface: String,
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Never use this offload: tun-tso, tun-uso, tun-tunnel, tun-gro-tcp, tun-gro-udp,
    /// tun-gro-tunnel, udp-gso or udp-gro; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) disable_offload: Vec<String>,
    /// More than one is refused: see [`one_shard`]
    #[arg(long, hide = true, value_name = "N", value_parser = one_shard)]
    pub(crate) shards: Option<u16>,
    /// Report readiness on standard output and leave the terminal then: what the background process
    /// is started with
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// End when this process, which must be the parent, ends
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) die_with: Option<i32>,
    /// Put the sockets there instead of below /var/run, and remove the directory in the end
    #[arg(long, hide = true, value_name = "DIR")]
    pub(crate) control_dir: Option<PathBuf>,
}

impl RunArgs {
    pub(crate) fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
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
    /// Stay with the tunnel: end when it ends, and take it down on SIGTERM and SIGINT
    #[arg(short, long)]
    pub(crate) foreground: bool,
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

/// The command that is meant by what looks like the name of an interface and is one slip away from
/// it.
///
/// Names of interfaces often have a digit. Commands of three letters and less are a letter away
/// from names that people do use (tun, wan, us): of those only a letter that is doubled or two that
/// changed places count.
pub(crate) fn misspelt(interface: &str) -> Option<String> {
    let meant = command_near(interface)?;
    let letters = |word: &str| word.bytes().collect::<BTreeSet<u8>>();
    let slip = meant.len() > 3 || letters(&meant) == letters(interface);
    let digit = interface.bytes().any(|byte| byte.is_ascii_digit());
    (slip && !digit).then_some(meant)
}

/// The command that is one slip away from `word`.
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
/// that flow (`tun_flow_update`). With a socket each, the answers of a peer move its flows to
/// another queue and shard, where they overtake what waits. It takes a steering program to prevent
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
