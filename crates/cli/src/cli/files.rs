//! The arguments of commands that read or change a configuration file.

use std::net::IpAddr;
use std::path::PathBuf;

use adit_ctl::config::HostPort;
use adit_proto::config::{Cidr, PublicKey};
use clap::{Args, ValueEnum};

use super::agent::RecordSourceArgs;
use super::gateway::GatewayArgs;
use super::values::{Quota, When, block, interface_name, one_line, public_key, quota, when};
use crate::threads::ThreadArgs;

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
    #[command(flatten)]
    pub(crate) said: OutputArgs,
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
    #[arg(long, conflicts_with_all = ["foreground", "join", "json"])]
    pub(crate) dry_run: bool,
    /// Stay until the tunnel ends, and take it down on SIGTERM and SIGINT
    #[arg(short, long, conflicts_with = "json")]
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
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Keep all rights, for a debugger or where the sandbox is in the way: see SECURITY.md
    #[arg(long, env = "ADIT_NO_SANDBOX", hide_env_values = true,
          value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_sandbox: bool,
    #[command(flatten)]
    pub(crate) said: OutputArgs,
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
    #[command(flatten)]
    pub(crate) said: OutputArgs,
}

#[derive(Args)]
pub(crate) struct NewPeerArgs {
    #[command(flatten)]
    pub(crate) conf: ConfArgs,
    /// A name for a comment in the peer's section; no other peer may have it
    #[arg(long, value_parser = one_line)]
    pub(crate) name: Option<String>,
    /// Limit how fast the peer sends and is sent to, as `adit peer limit` does
    #[arg(long, value_name = "RATE", value_parser = adit_ctl::config::limit)]
    pub(crate) limit: Option<(Option<u64>, Option<u64>)>,
    /// How much the peer may send and get in all, as `adit peer quota` has it
    #[arg(long, value_name = "BYTES", value_parser = quota)]
    pub(crate) quota: Option<Quota>,
    /// When the peer's access ends, as `adit peer expire` has it: 7d, 2027-01-31
    #[arg(long, value_name = "WHEN", value_parser = when)]
    pub(crate) expires: Option<When>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// What a device's file says, and where it goes.
#[derive(Args)]
pub(crate) struct DeviceArgs {
    /// Where the peer finds this host, with the port of the interface unless it says another; by
    /// default what the file's comment `# PublicEndpoint` says, or its address towards the Internet
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) endpoint: Option<String>,
    /// What the peer sends through the tunnel; by default the networks of the interface's addresses
    /// and, by the file's comment `# Forward`, this host's private networks or everything
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = block)]
    pub(crate) allowed_ips: Vec<Cidr>,
    /// Have the peer send everything through the tunnel, of IPv4 and IPv6 as far as the interface has
    /// addresses of them
    #[arg(long, conflicts_with = "allowed_ips")]
    pub(crate) full_tunnel: bool,
    /// Name servers for the peer; by default those of this host for one that sends everything through
    /// the tunnel
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) dns: Vec<IpAddr>,
    /// Print a QR code in place of the file, which WireGuard's apps for telephones scan
    #[arg(long, conflicts_with = "json")]
    pub(crate) qr: bool,
    /// Write the file there, for its owner only, instead of printing it; nothing may be there yet
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) said: OutputArgs,
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
    pub(crate) endpoint: Option<HostPort>,
    /// Seconds between keepalives
    #[arg(long, value_name = "SECONDS")]
    pub(crate) persistent_keepalive: Option<u16>,
    #[command(flatten)]
    pub(crate) source: RecordSourceArgs,
    #[command(flatten)]
    pub(crate) said: OutputArgs,
}

/// How a command says what it did.
#[derive(Args, Clone, Copy)]
pub(crate) struct OutputArgs {
    /// Say nothing, unless it fails
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Say what was done in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whether a command says what it did.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct QuietArgs {
    /// Say nothing, unless it fails
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl QuietArgs {
    /// What was done, and the next step: one line.
    pub(crate) fn say(self, what: impl std::fmt::Display) {
        if !self.quiet {
            crate::failure::say!("adit: {what}");
        }
    }
}

/// A command that changes something by a file.
#[derive(Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    #[command(flatten)]
    pub(crate) said: OutputArgs,
}

#[derive(Args)]
pub(crate) struct EditArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    #[command(flatten)]
    pub(crate) said: QuietArgs,
}
