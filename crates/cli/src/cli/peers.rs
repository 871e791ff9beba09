//! The arguments of `adit peers` and `adit peer`.

use clap::{Args, Subcommand, ValueEnum};

use super::agent::RecordSourceArgs;
use super::files::{ConfArgs, DeviceArgs, OutputArgs};
use super::values::{Quota, When, one_line, quota, when};

#[derive(Args)]
pub(crate) struct PeersArgs {
    #[command(flatten)]
    pub(crate) conf: ConfArgs,
    /// Only peers whose name has this in it, whose key begins with it, or whose endpoint or addresses
    /// are meant by this address
    #[arg(value_name = "NAME|KEY|ADDRESS")]
    pub(crate) peer: Option<String>,
    /// The order of peers
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: PeerSort,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The order of the peers of a file and its interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerSort {
    /// By name, then those without one by key
    #[default]
    Name,
    /// The latest handshake first
    Handshake,
    /// Most bytes first, received and sent
    Traffic,
    /// By the first inner address
    Address,
}

#[derive(Subcommand)]
pub(crate) enum PeerCommand {
    /// Show one peer, of the file and of the running interface
    Show(ShowPeerArgs),
    /// Give a peer another name, in the file and in the running interface
    ///
    /// Changes the comment that has the name, whichever program wrote it. A peer without a name gets
    /// a comment `# friendly_name`.
    Rename(RenameArgs),
    /// Take a peer's access away until `adit peer enable`, and keep its keys and its addresses
    ///
    /// Its lines stay in the file as comments, which wg-quick and wg pass over, and it leaves the
    /// running interface at once.
    Disable(PeerArgs),
    /// Give a disabled peer its access back, in the file and in the running interface
    Enable(PeerArgs),
    /// Limit how fast a peer sends and is sent to
    ///
    /// The rate is of what packets carry behind their IP headers. Local TCP to the peer slows down and
    /// loses nothing; what comes from the peer, and what this host forwards, is dropped above the limit.
    Limit(LimitArgs),
    /// Let a peer send and get so many bytes in all, from now on
    ///
    /// What counts is the transfer that `adit show` prints. When it is used up, the peer has no access,
    /// within a second.
    Quota(QuotaArgs),
    /// Say when a peer's access ends
    ///
    /// Then no session with it goes on, and none begins, within a second. It stays in the file.
    Expire(ExpireArgs),
    /// Give a peer new keys, and print the file for its device
    ///
    /// For a device that was lost or whose file was seen: who has the old keys has no access from then on.
    /// Its name, its addresses and what it may do stay.
    Rekey(RekeyArgs),
    /// Remove a peer from the file and from the running interface, as `adit remove` does
    Remove(PeerArgs),
}

/// A peer of a file and its interface.
#[derive(Args)]
pub(crate) struct ConfPeerArgs {
    #[command(flatten)]
    pub(crate) conf: ConfArgs,
    /// The peer's name, its public key or a beginning of it that no other has, or an address of it
    #[arg(value_name = "PEER")]
    pub(crate) peer: String,
}

/// A peer that a command changes.
#[derive(Args)]
pub(crate) struct PeerArgs {
    #[command(flatten)]
    pub(crate) of: ConfPeerArgs,
    #[command(flatten)]
    pub(crate) source: RecordSourceArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct LimitArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// Bits a second, such as 20M, or 50M/10M for those to the peer and those from it; or none
    #[arg(value_name = "RATE", value_parser = adit_ctl::config::limit)]
    pub(crate) limit: (Option<u64>, Option<u64>),
}

#[derive(Args)]
pub(crate) struct QuotaArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// Bytes, such as 100G or 500MiB, of both directions together; or none
    #[arg(value_name = "BYTES", value_parser = quota)]
    pub(crate) quota: Quota,
}

#[derive(Args)]
pub(crate) struct ExpireArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// A time from now, such as 7d or 12h; a day, such as 2027-01-31, at whose end it is; a time of UTC,
    /// such as 2027-01-31T12:00:00Z; now; or never
    #[arg(value_name = "WHEN", value_parser = when)]
    pub(crate) when: When,
}

#[derive(Args)]
pub(crate) struct RekeyArgs {
    #[command(flatten)]
    pub(crate) of: ConfPeerArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Args)]
pub(crate) struct RenameArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// The new name, which no other peer may have
    #[arg(value_name = "NAME", value_parser = one_line)]
    pub(crate) name: String,
}

#[derive(Args)]
pub(crate) struct ShowPeerArgs {
    #[command(flatten)]
    pub(crate) of: ConfPeerArgs,
    /// Print JSON, as `adit peers --json` does of all
    #[arg(long)]
    pub(crate) json: bool,
}
