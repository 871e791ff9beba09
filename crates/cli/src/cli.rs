//! The command line: `--help`, the man page and the completions all come from these definitions.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::failure::{Context, Result};
use crate::threads::{PolicyArg, ThreadArgs};
pub(crate) use agent::{
    AGENT_DIR, AgentArgs, AgentCommand, AgentSource, AgentStatusArgs, EtcdTlsArgs,
    RecordSourceArgs, ServeAgentArgs,
};
pub(crate) use files::{
    AddArgs, ChangeArgs, ConfArgs, DeviceArgs, DownArgs, EditArgs, FileArgs, InitArgs, NewPeerArgs,
    OutputArgs, QuietArgs, Reach, UpArgs,
};
pub(crate) use gateway::GatewayArgs;
pub(crate) use guess::{command_near, misspelt};
pub(crate) use peers::{
    ExpireArgs, LimitArgs, PeerArgs, PeerCommand, PeerSort, PeersArgs, QuotaArgs, RekeyArgs,
    RenameArgs, ShowPeerArgs,
};
pub(crate) use proxy::{ProxyArgs, StackArg};
pub(crate) use since::Since;
pub(crate) use steer::{GatewayArg, SteerArgs};
use values::interface_name;
pub(crate) use values::{When, block};
pub(crate) use watch::{EventsArgs, MetricsArgs, PeerLayout, ShowArgs, TopArgs, WhyArgs};

mod agent;
mod files;
mod gateway;
mod guess;
mod peers;
mod proxy;
mod since;
mod steer;
mod values;
mod watch;

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;

const LONG_ABOUT: &str = "\
Adit is a userspace WireGuard for Linux. `adit INTERFACE` creates an interface, and returns when its control socket \
answers. `wg` then configures it like an interface of the kernel. `adit up` and `adit down` read wg-quick configuration \
files and need neither `wg` nor `wg-quick`.";

const AFTER_HELP: &str = "\
If an interface has the name of a subcommand, nearly that name, or that of a word that people take for one (`status`, \
`start`), use `adit run NAME` or `adit -f NAME`.

Environment of the daemon:
  LOG_LEVEL              verbose (or debug: why peers do not connect), error (and who changed what), silent; if unset,
                         error, and in the background to the system's log
  ADIT_DISABLE_OFFLOADS  like --disable-offload, names separated by commas
  ADIT_STATUS_GROUP      like --status-group
  ADIT_AEAD              avx512, avx2, portable or ring, instead of the fastest for this processor
  WG_TUN_FD              use this open TUN file descriptor, with IFF_VNET_HDR
  WG_UAPI_FD             use this listening UNIX socket as the control socket
  WG_PROCESS_FOREGROUND  1 is like --foreground

Exit status: 0 success, 1 failure, 2 wrong usage of a command.";

const AFTER_INIT_HELP: &str = "\
Two comments of the file are settings, which wg-quick passes over: `# Forward = internet` (or lan, or peers), see adit-up(8), \
and `# PublicEndpoint = HOST:PORT`, which `adit new-peer` writes into the files of peers.

Exit status: 0 success, 1 failure, 2 wrong usage.";

const AFTER_UP_HELP: &str = "\
With --foreground, and as PID 1 of a container, `adit up` stays until the tunnel ends. When the tunnel is up and the PostUp \
hooks have run, it reports to systemd that it is ready (sd_notify). On SIGTERM and SIGINT it takes the tunnel down, like \
`adit down`. On SIGHUP it applies the changed file, like `adit sync`; in a terminal, SIGHUP takes the tunnel down. On \
SIGUSR2, which `adit upgrade` sends, it has the program that stands at the path where it was started from go on in \
place of the tunnel's process, and becomes that program itself. Its \
exit status is 0 when it took the tunnel down, or `adit down` did. When the tunnel's process fails or is \
killed, it runs the PreDown and PostDown hooks and exits with 1. The routing rules and the firewall of a default route, \
and DNS, then stay until `adit down` or the next `adit up`, so that no packet leaves in clear.

Hooks run with INTERFACE and CONFIG_FILE in their environment, and LC_ALL=C, as those of wg-quick. If `adit up` fails, it \
leaves what it found. Then, unlike wg-quick, it runs the PreDown hooks if a PostUp hook was begun, and the PostDown hooks \
if any hook was. `adit down` goes on when a hook fails or the file cannot be saved, and exits with 1.

A tunnel has a default route if its AllowedIPs contain 0.0.0.0/0 or ::/0, or blocks that are the same together \
(0.0.0.0/1, 128.0.0.0/1), and it has no Table. When the process or the \
interface of such a tunnel is gone, its traffic stays blocked; with wg-quick it leaves in clear. `adit up NAME` brings \
the tunnel back without a gap, and `adit down NAME` returns to the clear network.

The comment `# Forward = WHAT` below [Interface] has this host forward for its peers, from before the interface is up until \
`adit down`: `peers` to each other; `lan` also to private networks (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7); \
`internet` to everything but 169.254.0.0/16. Behind this host, connections that peers begin come from its own address \
(masquerade, for sources in the networks of Address); none can be begun from there. The rules are in the tables \
adit-forward-NAME and adit-forward of nftables, and `adit up --dry-run` prints them. Where forwarding was off, it is switched \
on for the interfaces that are there, what is none of a tunnel's stays blocked, and the last such tunnel switches it off again; \
for an interface that comes later, `adit sync` does it. A program that flushes all of nftables' rules takes these along: \
`adit sync` sets them again.

An endpoint whose name cannot be looked up keeps no other peer from coming up: `adit up` warns of it, and the process \
looks it up again. If no peer could work without it, `adit up` tries again and fails in the end.

Endpoints that are names are looked up again by the tunnel's process when a handshake is not answered, and when the time \
that the answer holds (TTL) has passed, but not more often than every 30 seconds; after 5 minutes if no server tells. A \
peer that answers stays where it is, wherever its name leads. If a name has several addresses, the initiation goes to the \
next every 250 ms, and the first that answers is used. `wg set PEER endpoint` ends this for a peer, unless its name leads \
to that address.

Environment:
  WG_ENDPOINT_RESOLUTION_RETRIES  how often to look up an endpoint's name again, or infinity; 15 if unset
  NOTIFY_SOCKET                   systemd's socket for readiness reports

`adit up` passes the daemon's environment on (see `adit --help`).";

const AFTER_TOP_HELP: &str = "\
Keys: ? shows all; q ends; s sorts by the next column, whose heading gets an arrow; / filters by name, beginning of a key or address, and Esc removes the filter; p \
pauses; arrows and pages scroll. Where the output is no terminal, one page is printed as plain text.

Bits are those of UDP payload from and to peers. Packets of an interface are those that the kernel counts, where a GSO \
packet is one. Threads serve all interfaces of their process.";

const AFTER_WHY_HELP: &str = "\
The handshake is what a packet to the peer would cause: one begins unless one is under way, at most every five seconds. \
Where there is a session, the peer is asked inside the tunnel, by a short and a long UDP datagram to a port that nobody \
uses; where there is none, the host at the endpoint is asked so. Without --inside, an address is tried that the allowed \
IPs name alone, or the first one of the interface's network. Whether the peer forwards is asked by UDP datagrams whose hop \
limit ends at the peer, or one router behind it.

Exit status: 0 it works, 1 something is wrong, 2 wrong usage, or it could not be looked at.";

const AFTER_PROXY_HELP: &str = "\
`alias wireproxy='adit proxy'` works with wireproxy's files and flags. A port without a password is open to programs of \
this host alone.

Environment:
  LOG_LEVEL        verbose: what happens to peers, and why clients were refused; error; silent is like --silent
  XDG_RUNTIME_DIR  where `adit show` finds the proxy of a user who may not write to /run/adit

Exit status: 0 it was asked to end, 1 failure, 2 wrong usage.";

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
    /// Make the configuration file of a new tunnel, which peers then join
    ///
    /// Asks a few questions on a terminal, where Enter takes the default; flags answer them for
    /// scripts. Chooses a network that collides with nothing, a free port, and new keys. Overwrites
    /// nothing and starts nothing.
    #[command(after_help = AFTER_INIT_HELP)]
    Init(InitArgs),
    /// Bring up a tunnel from a wg-quick configuration file
    #[command(after_help = AFTER_UP_HELP)]
    Up(UpArgs),
    /// Take down a tunnel that `adit up` brought up, and unblock the traffic of one whose process was
    /// killed
    Down(DownArgs),
    /// Have this program go on in place of running processes, without a handshake and without a gap
    ///
    /// After an update of the program, running tunnels keep the old one until then. The new process
    /// takes over devices, sockets, sessions, counters and configuration. If it fails, the old one
    /// goes on. `systemctl reload` does this, too, when the program was replaced. A tunnel of
    /// `adit up --foreground`, as the unit's, gets the program that stands where that one was started
    /// from: a package replaces it there. The process of an `adit run --foreground` cannot be
    /// replaced: who started it would take it for ended.
    Upgrade(UpgradeArgs),
    /// Change which threads of a running process process packets
    ///
    /// Holds for all interfaces of the process, until it ends; an upgrade keeps it. No packet is lost
    /// or overtakes another one of its flow. `adit show` shows what is in force.
    Tune(TuneArgs),
    /// Take over the peers of a gateway whose place this host takes
    ///
    /// A peer that gets no answer waits for 15 seconds before it begins a new handshake. The gateway that takes
    /// the place of another one has the same key and peers, and none of its sessions. This begins a handshake
    /// with each peer, in the order of the list, up to 5,000 a second. A peer whose handshake was in the last 5
    /// seconds is not called again.
    Call(CallArgs),
    /// Forward datagrams that reach the wrong one of several gateways to the one that has the session
    ///
    /// For gateways that have one key and one address at the same time, between which routers choose (ECMP,
    /// anycast). Each has a number (--gateway-id), which stands in what its peers send. Rules of nftables read it
    /// and forward; the process of the interface has no part in it. Handshakes that peers begin stay where they
    /// arrive, and so peers move. The rules take the place of earlier ones in one step, and stay until --off.
    Steer(SteerArgs),
    /// Write a running tunnel's configuration back to its file
    Save(ChangeArgs),
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
    Sync(ChangeArgs),
    /// Make keys and a free address for a new peer, add it to the file and to the running interface,
    /// and print the peer's own file
    ///
    /// That file has the peer's private key, which is stored nowhere else. With --qr a code is printed
    /// in its place, with --output it is written to a file.
    NewPeer(NewPeerArgs),
    /// Add a peer that has keys to the file and to the running interface
    ///
    /// Refuses addresses that another peer has, in the file or in the running interface.
    Add(AddArgs),
    /// Remove a peer from the file and from the running interface
    ///
    /// Takes its section and the comments that are its own. Every other line of the file stays as it
    /// is.
    Remove(PeerArgs),
    /// List the peers of the file and of the running interface
    ///
    /// Also says which are in only one of them, and which are disabled.
    Peers(PeersArgs),
    /// Show, rename, disable, enable, limit or remove one peer
    ///
    /// Each changes the file and the running interface at once, or neither.
    #[command(subcommand, disable_help_subcommand = true)]
    Peer(PeerCommand),
    /// Edit a configuration file, check it, and apply it if the interface is up
    ///
    /// The editor is that of VISUAL or EDITOR, or else editor(1) or vi(1). It has a copy of the file.
    /// A copy with mistakes is not taken: edit it again, or throw it away. If another command changed
    /// the file meanwhile, it stays as it is, and so does the copy.
    Edit(EditArgs),
    /// Say what is wrong or unusual in a configuration file, without any rights
    ///
    /// Looks at this host, too: at networks that collide, IPv6 that is disabled, an endpoint that is this
    /// host itself; but not for the file of a peer of this host. Exits with 1 if `adit up` would refuse
    /// the file. A file of a proxy is read as `adit proxy -n` does.
    Check(ConfArgs),
    /// Print a configuration file without the keys that only `adit up` and wg-quick understand
    Strip(ConfArgs),
    /// Show interfaces: peers, transfer, offloads in force, drops by reason
    Show(ShowArgs),
    /// Say why a peer does not connect, or why nothing goes through, and what to type next
    ///
    /// Looks at the interface, routes, firewall, clock and allowed IPs, has the process begin one
    /// handshake, as the protocol allows it, and tells what came back and what that means.
    #[command(after_help = AFTER_WHY_HELP)]
    Why(WhyArgs),
    /// Watch interfaces and peers live: rates, handshakes, drops by reason, threads
    #[command(after_help = AFTER_TOP_HELP)]
    Top(TopArgs),
    /// Print the status in Prometheus's format, or serve it over HTTP
    Metrics(MetricsArgs),
    /// Print what happens to interfaces and peers, as it happens
    Events(EventsArgs),
    /// Have an interface's peers be those of a source, as it changes
    ///
    /// A record is the section of a peer with the comments that Adit heeds, and never has a secret: a preshared key
    /// is the name of a file in another folder. Only peers that an agent brought are changed and removed, and
    /// nothing is removed before the source was read whole. A record that is wrong, or claims what another has,
    /// is refused, and its peer stays as it was. It stays in the foreground, and the interface may come later.
    Agent(AgentArgs),
    /// Offer what is inside a tunnel by SOCKS, HTTP and forwarded ports, without a device and without root
    ///
    /// Reads the files of wireproxy and of wg-quick. Takes no right, makes no device, and changes nothing of
    /// the host: other programs go on as before. It stays in the foreground.
    #[command(after_help = AFTER_PROXY_HELP)]
    Proxy(ProxyArgs),
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
        #[arg(required_unless_present = "peers")]
        shell: Option<Shell>,
        /// Print the names of an interface's peers instead, and keys where there is no name: for
        /// the scripts
        #[arg(
            long,
            hide = true,
            value_name = "CONF|INTERFACE",
            conflicts_with = "shell"
        )]
        peers: Option<String>,
    },
    /// Print a manual page, or write all of them to a directory
    Man {
        /// The command of the page to print: `show` for adit-show(8); adit(8) by default
        #[arg(value_name = "COMMAND", conflicts_with = "dir")]
        command: Option<String>,
        /// Write one page per command there instead of printing one
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

// Clap leaves a group empty that has arguments of another struct: then it would never be there.
#[derive(Args, Clone, Debug, Default)]
#[group(args = ["interfaces"])]
pub(crate) struct RunArgs {
    /// Name of the interface to create; `adit run` takes several, and one process serves them all
    #[arg(value_name = "INTERFACE", required = true, value_parser = interface_name)]
    pub(crate) interfaces: Vec<String>,
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Start no process: have the one that serves this interface serve the new ones, too
    #[arg(long, value_name = "INTERFACE", value_parser = interface_name,
          conflicts_with_all = ["foreground", "disable_offload", "background", "die_with", "control_dir",
                                "status_group"])]
    pub(crate) join: Option<String>,
    /// Never use this offload: tun-tso, tun-uso, tun-tunnel, tun-gro-tcp, tun-gro-udp,
    /// tun-gro-tunnel, udp-gso or udp-gro; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) disable_offload: Vec<String>,
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Let the members of this group, a name or a number, read the status, which has no keys:
    /// for `adit show`, `metrics`, `events` and `top` without root
    #[arg(long, value_name = "GROUP")]
    pub(crate) status_group: Option<String>,
    /// Keep all rights, for a debugger or where the sandbox is in the way: see SECURITY.md
    #[arg(long, env = "ADIT_NO_SANDBOX", hide_env_values = true,
          value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_sandbox: bool,
    /// Look the names of endpoints up again while the tunnel runs, as `adit up` has it: in a process of
    /// its own
    #[arg(long, conflicts_with = "join")]
    pub(crate) names: bool,
    /// Report readiness on standard output, then leave the terminal: for the background process
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// End when the parent process, which must have this PID, ends
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) die_with: Option<i32>,
    /// Go on with the interfaces of the process with this PID
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) take_over: Option<i32>,
    #[command(flatten)]
    pub(crate) said: QuietArgs,
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
pub(crate) struct TuneArgs {
    /// An interface of the process
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) change: ThreadChange,
    #[command(flatten)]
    pub(crate) said: OutputArgs,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub(crate) struct ThreadChange {
    /// Threads that process packets, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) shards: Option<u16>,
    /// Which of them process an interface
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<PolicyArg>,
}

#[derive(Args)]
pub(crate) struct CallArgs {
    /// The interface, whose process runs
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: String,
    /// A list of peers and their endpoints, as --list and `wg show INTERFACE endpoints` print it; - is
    /// standard input. Without it, all peers are called whose endpoints this interface knows
    #[arg(long, value_name = "FILE")]
    pub(crate) endpoints: Option<PathBuf>,
    /// Call only the peers that this gateway has, as a list of `adit agent --write-back` says
    #[arg(long, value_name = "GATEWAY", requires = "endpoints")]
    pub(crate) of: Option<String>,
    /// The address that handshakes leave from: the one that moved to this host
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) from: Option<IpAddr>,
    /// Call nobody, and print the list for the gateway that may take the place of this one: the peers
    /// with the latest handshakes come first
    #[arg(long, conflicts_with_all = ["endpoints", "from", "quiet", "json"])]
    pub(crate) list: bool,
    /// Wait for the address of --from, and call the peers each time it comes to this host, until this
    /// program is ended. FILE is read each time. If the address is here at the start, only peers are
    /// called that had no handshake yet
    #[arg(long, requires = "from")]
    pub(crate) when_present: bool,
    #[command(flatten)]
    pub(crate) said: OutputArgs,
}

#[derive(Args)]
pub(crate) struct UpgradeArgs {
    /// Replace the processes of these interfaces; without any, all processes of this user
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interfaces: Vec<String>,
    /// Leave those alone that run this very program
    #[arg(long)]
    pub(crate) if_replaced: bool,
    /// Have the new processes keep all rights, as those may that are replaced: see SECURITY.md
    #[arg(long, env = "ADIT_NO_SANDBOX", hide_env_values = true,
          value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_sandbox: bool,
    #[command(flatten)]
    pub(crate) said: OutputArgs,
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

/// Whether `word` is a command.
pub(crate) fn is_command(word: &str) -> bool {
    Cli::command().find_subcommand(word).is_some()
}

/// Prints text to standard output. A reader that has closed the pipe has seen enough.
pub(crate) fn print(text: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context(|| "cannot write to standard output".into()),
    }
}
