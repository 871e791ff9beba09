//! What all checks use: findings, and what they look at in a file.

use std::net::SocketAddr;

use adit_ctl::config::{Config, PeerSection, Remark};
use adit_proto::config::{AllowedIpChange, Cidr, PublicKey};

/// How bad a finding is. The texts are what a line begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// `adit up`, or `adit proxy`, refuses the file.
    Error,
    /// It will hardly do what was meant.
    Warning,
    /// It may be meant so.
    Hint,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Hint => "hint",
        }
    }
}

pub(super) type CheckFinding = (Severity, String);

/// Remarks about lines as findings.
pub(super) fn of_lines(kind: Severity, remarks: &[Remark]) -> Vec<CheckFinding> {
    remarks.iter().map(|it| (kind, it.to_string())).collect()
}

/// By its key, if that is no secret.
pub(super) fn name(config: &Config, key: &PublicKey) -> String {
    match config.can_show(key) {
        true => format!("peer {key}"),
        false => "the peer whose PublicKey is no public key".into(),
    }
}

pub(super) fn blocks(peer: &PeerSection) -> impl Iterator<Item = Cidr> + '_ {
    peer.allowed_ips.iter().filter_map(|change| match change {
        AllowedIpChange::Add(block) => Some(*block),
        AllowedIpChange::Remove(_) => None,
    })
}

pub(super) fn all_blocks(config: &Config) -> impl Iterator<Item = Cidr> + '_ {
    config.peers.iter().flat_map(blocks)
}

pub(super) fn endpoint(peer: &PeerSection) -> Option<SocketAddr> {
    peer.endpoint.as_ref()?.numeric()
}
