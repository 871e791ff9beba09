//! The command line: `--help`, the man page and the completions all come from these definitions.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use adit_ctl::config::Endpoint;
use adit_ctl::status::Field;
use adit_proto::config::{Cidr, PublicKey};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::failure::{Context, Result};
use crate::threads::{PolicyArg, ThreadArgs};
use crate::view::Sort;
pub(crate) use peers::{
    OutputArgs, PeerArgs, PeerCommand, PeerSort, PeersArgs, RenameArgs, ShowPeerArgs,
};

mod peers;

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
  LOG_LEVEL              verbose (or debug: why peers do not connect), error, silent; error if unset
  ADIT_DISABLE_OFFLOADS  like --disable-offload, names separated by commas
  ADIT_STATUS_GROUP      like --status-group
  ADIT_AEAD              avx512, avx2, portable or ring, instead of the fastest for this processor
  WG_TUN_FD              use this open TUN file descriptor, with IFF_VNET_HDR
  WG_UAPI_FD             use this listening UNIX socket as the control socket
  WG_PROCESS_FOREGROUND  1 is like --foreground

Exit status: 0 success, 1 failure.";

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
    /// Write a running tunnel's configuration back to its file
    Save(FileArgs),
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
    Sync(FileArgs),
    /// Make keys and a free address for a new peer, add it to the file and to the running interface,
    /// and print the peer's own file
    ///
    /// The printed file has the peer's private key, which is stored nowhere else.
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
    /// Show, rename, disable, enable or remove one peer
    ///
    /// Each changes the file and the running interface at once, or neither.
    #[command(subcommand, disable_help_subcommand = true)]
    Peer(PeerCommand),
    /// Edit a configuration file, check it, and apply it if the interface is up
    ///
    /// The editor is that of VISUAL or EDITOR, or else editor(1) or vi(1). It has a copy of the file.
    /// A copy with mistakes is not taken: edit it again, or throw it away. If another command changed
    /// the file meanwhile, it stays as it is, and so does the copy.
    Edit(FileArgs),
    /// Say what is wrong or unusual in a configuration file, without any rights
    ///
    /// Exits with 1 if `adit up` would refuse the file.
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

#[derive(Args, Clone)]
pub(crate) struct ConfArgs {
    /// A file NAME.conf, or the NAME of an interface with its file in /etc/wireguard
    #[arg(value_name = "CONF|INTERFACE")]
    pub(crate) conf: String,
}

#[derive(Args)]
pub(crate) struct FileArgs {
    #[command(flatten)]
    pub(crate) conf: ConfArgs,
    /// Read the private key and preshared keys from this file, which has the form of a configuration
    /// file and nothing but keys; by default from the systemd credential INTERFACE.keys, if there is
    /// one
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct TuneArgs {
    /// An interface of the process
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) change: ThreadChange,
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
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Only unblock the traffic of a tunnel whose process was killed: for the unit
    #[arg(long, hide = true)]
    pub(crate) blocked: bool,
    /// End the process of this interface, whatever file or network namespace it has: for the package
    #[arg(long, hide = true, conflicts_with = "blocked")]
    pub(crate) process: bool,
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
}

#[derive(Args)]
pub(crate) struct NewPeerArgs {
    #[command(flatten)]
    pub(crate) conf: ConfArgs,
    /// A name for a comment in the peer's section; no other peer may have it
    #[arg(long, value_parser = one_line)]
    pub(crate) name: Option<String>,
    /// Where the peer finds this host; by default what the file's comment `# PublicEndpoint` says, or
    /// its address towards the Internet
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) endpoint: Option<Endpoint>,
    /// What the peer sends through the tunnel; by default the networks of the interface's addresses
    /// and, by the file's comment `# Forward`, this host's private networks or everything
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = block)]
    pub(crate) allowed_ips: Vec<Cidr>,
    /// Name servers for the peer; by default those of this host for one that sends everything through
    /// the tunnel
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) dns: Vec<IpAddr>,
    /// Print the file as a QR code, too, which WireGuard's apps for telephones read
    #[arg(long)]
    pub(crate) qr: bool,
}

#[derive(Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) conf: ConfArgs,
    /// The peer's public key
    #[arg(value_name = "PUBLIC-KEY", value_parser = public_key)]
    pub(crate) peer: PublicKey,
    /// A name for a comment in the peer's section; no other peer may have it
    #[arg(long, value_parser = one_line)]
    pub(crate) name: Option<String>,
    /// The peer's addresses; by default a free one of each network of the interface
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = block)]
    pub(crate) allowed_ips: Vec<Cidr>,
    /// Where the peer is
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) endpoint: Option<Endpoint>,
    /// Seconds between keepalives
    #[arg(long, value_name = "SECONDS")]
    pub(crate) persistent_keepalive: Option<u16>,
}

#[derive(Args)]
pub(crate) struct InitArgs {
    /// The new interface, whose file is made in /etc/wireguard, or another file, NAME.conf
    #[arg(value_name = "NAME", default_value = "wg0")]
    pub(crate) conf: String,
    /// A private network for the tunnel; with a comma, one of IPv4 and one of IPv6. By default, ones
    /// that this host has no route to, of IPv6 only if this host has it
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = block)]
    pub(crate) subnet: Vec<Cidr>,
    /// The UDP port; by default 51820, or the next one that is free
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Where peers find this host, a name or an address; by default its address towards the Internet
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) endpoint: Option<String>,
    /// What peers may reach through this host; by default the Internet
    #[arg(long, value_name = "WHAT")]
    pub(crate) reach: Option<Reach>,
    /// Ask nothing: take the defaults
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// What peers may reach through a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reach {
    /// This host alone
    Host,
    /// Each other, too
    Peers,
    /// The private networks behind this host, too
    Lan,
    /// Everything
    Internet,
}

#[derive(Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Change nothing: print what would be done, as a script of `ip`, `wg` and `nft`
    #[arg(long, conflicts_with_all = ["foreground", "join"])]
    pub(crate) dry_run: bool,
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
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,
    /// Keep all rights, for a debugger or where the sandbox is in the way: see SECURITY.md
    #[arg(long, env = "ADIT_NO_SANDBOX", hide_env_values = true,
          value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_sandbox: bool,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// An interface; `all` of them, as without it; or `interfaces`, to print their names
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: Option<String>,
    /// Print only this, byte for byte as `wg show` does: public-key, private-key, listen-port,
    /// fwmark, peers, preshared-keys, endpoints, allowed-ips, latest-handshakes, transfer,
    /// persistent-keepalive or dump
    #[arg(value_name = "FIELD", value_parser = field, requires = "interface", conflicts_with = "json")]
    pub(crate) field: Option<Field>,
    /// Print JSON; `errors` names the interfaces that could not be asked
    #[arg(long)]
    pub(crate) json: bool,
    /// Only peers whose name has this in it, whose key begins with it, or whose endpoint or allowed
    /// IPs are meant by this address
    #[arg(long, value_name = "NAME|KEY|ADDRESS")]
    pub(crate) peer: Option<String>,
    /// The order of peers that have a line each
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: Sort,
    /// A block of lines for each peer, as `wg show`, or one line; `auto` is lines for more than 16
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layout: Layout,
    /// Print again and again, every so many seconds (2 if not said), with rates
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          require_equals = true, value_parser = seconds, conflicts_with_all = ["json", "field"])]
    pub(crate) watch: Option<f64>,
}

/// How `adit show` prints peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// Lines where there are many peers
    #[default]
    Auto,
    /// A block for each peer
    Blocks,
    /// A line for each peer
    Lines,
}

#[derive(Args)]
pub(crate) struct WhyArgs {
    /// The interface
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: String,
    /// Only peers whose name has this in it, whose key begins with it, or whose endpoint or allowed
    /// IPs are meant by this address; without it all, or eight, those without a session first
    #[arg(value_name = "NAME|KEY|ADDRESS")]
    pub(crate) peer: Option<String>,
    /// An address behind the peer to try; by default one that the allowed IPs name alone, or the first
    /// one of the interface's network
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) inside: Option<IpAddr>,
    /// Seconds to wait for an answer; a second handshake message leaves after five
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=90))]
    pub(crate) wait: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct TopArgs {
    /// Only this interface
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: Option<String>,
    /// The order of peers
    #[arg(long, value_enum, default_value_t = Sort::Rx)]
    pub(crate) sort: Sort,
    /// Only peers whose name has this in it, whose key begins with it, or whose endpoint or allowed
    /// IPs are meant by this address
    #[arg(long, value_name = "NAME|KEY|ADDRESS")]
    pub(crate) peer: Option<String>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) interval: f64,
}

#[derive(Args)]
pub(crate) struct MetricsArgs {
    /// Serve /metrics over HTTP at this address and port, as 127.0.0.1:9586, or at a UNIX socket,
    /// as unix:/run/adit-metrics.sock
    #[arg(long, value_name = "ADDRESS|unix:PATH")]
    pub(crate) listen: Option<String>,
    /// A name that clients know this host by, besides its own and localhost; repeatable. Requests to
    /// other names than these are refused (DNS rebinding), those to addresses are answered
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(crate) host: Vec<String>,
}

#[derive(Args)]
pub(crate) struct EventsArgs {
    /// Only this interface; without it all, those that come later included
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: Option<String>,
    /// Print each event as a line of JSON
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

/// Words that people guess, and the command that does what they expect. None of them makes an
/// interface, unless by `adit run` or for wg-quick.
const GUESSED: &[(&str, &str)] = &[
    (
        "help",
        "usage manual commands info about helpme docs examples",
    ),
    ("--version", "version ver"),
    (
        "show",
        "status list ls get view stat stats state display dump print ip ps interfaces interface tunnels \
         showconf describe inspect",
    ),
    (
        "up",
        "start connect enable activate begin launch on load boot join daemon serve setconf restart",
    ),
    (
        "down",
        "stop disconnect disable deactivate close kill end off halt shutdown unload destroy exit quit leave",
    ),
    (
        "init",
        "setup initialize wizard new create make generate gen",
    ),
    (
        "edit",
        "configure config conf configs settings set import install change",
    ),
    ("sync", "reload refresh apply syncconf addconf reconfigure"),
    ("upgrade", "update replace"),
    (
        "new-peer",
        "newpeer addpeer invite adduser register qr qrcode export share",
    ),
    (
        "remove",
        "rm del delete revoke uninstall purge unset drop delpeer",
    ),
    ("peer", "rename"),
    ("peers", "list-peers show-peers"),
    ("events", "log logs journal history audit follow tail"),
    ("top", "watch monitor live htop traffic bandwidth dashboard"),
    (
        "why",
        "debug diagnose doctor trace ping troubleshoot fix health probe",
    ),
    ("check", "test verify validate lint checkconf"),
    ("metrics", "prometheus exporter statistics"),
    ("genkey", "key keys keygen keypair privkey private-key"),
    ("genpsk", "psk preshared-key"),
    ("pubkey", "public-key pub"),
    ("demo", "bench benchmark speedtest speed perf"),
    ("completions", "completion bash zsh fish"),
    ("tune", "optimize threads"),
];

/// What follows a verb behind a hyphen where a command is guessed, and no name of an interface.
const OBJECTS: &str = "me peer peers key keys psk interface interfaces config conf all status tunnel tunnels log logs \
                       client clients user users file qr";

/// The command that was probably meant by a word that no command has: one that people guess, or
/// one typing mistake away from either, perhaps with more words behind a hyphen.
pub(crate) fn command_near(word: &str) -> Option<String> {
    let command = Cli::command();
    let names: Vec<&str> = (command.get_subcommands().map(clap::Command::get_name))
        .chain(["help"])
        .collect();
    if names.contains(&word) {
        return None;
    }
    let lower = word.to_ascii_lowercase();
    let guessed = || {
        let of = |(meant, words): &(&'static str, &'static str)| {
            let meant = *meant;
            words.split_whitespace().map(move |word| (word, meant))
        };
        GUESSED.iter().flat_map(of)
    };
    let exact = |word: &str| {
        let named = names.iter().copied().find(|name| *name == word);
        named.or_else(|| guessed().find(|(other, _)| *other == word).map(|it| it.1))
    };
    let slip = |word: &str| {
        let near = |other: &str| strsim::osa_distance(other, word) == 1;
        let named = names.iter().copied().find(|name| near(name));
        // Shorter ones are near to names of interfaces, such as `server`.
        let mut long = guessed().filter(|(other, _)| other.len() > 5);
        named.or_else(|| long.find(|(other, _)| near(other)).map(|it| it.1))
    };
    let verb = || {
        let (verb, object) = lower.split_once(['-', '_', '.', '='])?;
        let is_object = OBJECTS.split_whitespace().any(|it| it == object);
        exact(verb).filter(|_| is_object)
    };
    let meant = exact(&lower).or_else(|| slip(&lower)).or_else(verb);
    meant.map(str::to_owned)
}

/// The command that was probably meant by the name of an interface that nothing else says is one.
///
/// Names of interfaces often have a digit. Commands of three letters and less are one letter away
/// from common names (tun, wan, us): for those only a doubled letter or two swapped ones count.
pub(crate) fn misspelt(interface: &str) -> Option<String> {
    let meant = command_near(interface)?;
    let letters = |word: &str| word.bytes().collect::<BTreeSet<u8>>();
    let is_slip = strsim::osa_distance(&meant, interface) == 1;
    let slip = !is_slip || meant.len() > 3 || letters(&meant) == letters(interface);
    let digit = interface.bytes().any(|byte| byte.is_ascii_digit());
    (slip && !digit).then_some(meant)
}

/// Whether `word` is a command.
pub(crate) fn is_command(word: &str) -> bool {
    Cli::command().find_subcommand(word).is_some()
}

fn field(name: &str) -> std::result::Result<Field, String> {
    let field = Field::ALL.into_iter().find(|field| field.name() == name);
    field.ok_or_else(|| format!("expected {}", Field::ALL.map(Field::name).join(", ")))
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, at least 0.1".into())
}

fn interface_name(name: &str) -> std::result::Result<String, String> {
    adit_ctl::config::check_name(name).map(|()| name.to_owned())
}

fn one_line(text: &str) -> std::result::Result<String, String> {
    match text.chars().any(char::is_control) || text.trim().is_empty() {
        true => Err("expected one line of text".into()),
        false => Ok(text.trim().to_owned()),
    }
}

fn public_key(text: &str) -> std::result::Result<PublicKey, String> {
    let key = adit_ctl::keys::public_from_base64(text);
    key.ok_or_else(|| "expected 44 characters of base64, as `adit pubkey` prints them".into())
}

/// An address stands for itself.
pub(crate) fn block(text: &str) -> std::result::Result<Cidr, String> {
    let (ip, len) = match text.split_once('/') {
        Some((ip, len)) => (ip, len.parse().ok()),
        None => (text, Some(if text.contains(':') { 128 } else { 32 })),
    };
    let block = ip
        .parse()
        .ok()
        .zip(len)
        .and_then(|(ip, len)| Cidr::new(ip, len));
    block.ok_or_else(|| "expected an address and a prefix length, such as 10.0.0.0/8".into())
}

/// Prints text to standard output. A reader that has closed the pipe has seen enough.
pub(crate) fn print(text: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context(|| "cannot write to standard output".into()),
    }
}
