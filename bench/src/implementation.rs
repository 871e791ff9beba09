//! The subjects of measurements: the bare link, the other implementations, IPsec, Adit, and Adit
//! without its AEAD.

use std::path::PathBuf;

use adit_testbed::framing::{Family, esp_wire, plain_wire, tunnel_wire};
use adit_testbed::stats::to_f64;
use clap::ValueEnum;
use serde::Serialize;

use crate::ipsec;

/// One line of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Implementation {
    /// The link between the hosts, without a tunnel.
    Direct,
    /// The kernel's own WireGuard, where the kernel has it.
    Kernel,
    /// WireGuard/wireguard-go.
    WireguardGo,
    /// Tailscale's fork of wireguard-go.
    Tailscale,
    /// cloudflare/boringtun.
    Boringtun,
    /// mullvad/gotatun.
    Gotatun,
    /// This project.
    Adit,
    /// Adit built without its AEAD: what is left is the path that packets take.
    Ceiling,
    /// ESP of strongSwan in userspace, which is no WireGuard. `adit-lab reproduce pfsense` measures it.
    #[value(skip)]
    Ipsec,
}

impl Implementation {
    /// The userspace implementations that Adit is measured against.
    pub(crate) const PEERS: [Self; 4] = [
        Self::WireguardGo,
        Self::Tailscale,
        Self::Boringtun,
        Self::Gotatun,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Kernel => "kernel",
            Self::WireguardGo => "wireguard-go",
            Self::Tailscale => "tailscale",
            Self::Boringtun => "boringtun",
            Self::Gotatun => "gotatun",
            Self::Adit => "adit",
            Self::Ceiling => "ceiling",
            Self::Ipsec => "ipsec",
        }
    }

    /// Octets of the longest packet that its interface takes.
    pub(crate) const fn longest(self) -> usize {
        match self {
            Self::Ipsec => ipsec::MTU,
            _ => usize::MAX,
        }
    }

    /// What its framing over IPv4 leaves of the packets of `len` octets that the same link takes
    /// without a tunnel.
    pub(crate) fn share_of_direct(self, len: usize, mtu: usize) -> f64 {
        let wire = match self {
            Self::Direct => plain_wire(len),
            Self::Ipsec => esp_wire(len, Family::V4),
            _ => tunnel_wire(len, mtu, Family::V4),
        };
        to_f64(plain_wire(len)) / to_f64(wire)
    }

    /// How its daemon is started in the foreground, after the path of the binary.
    pub(crate) fn arguments(self, interface: &str) -> Vec<String> {
        let words: &[&str] = match self {
            // Dropping privileges would also drop the right to set a socket mark.
            Self::Boringtun | Self::Gotatun => &["-f", "--disable-drop-privileges"],
            _ => &["-f"],
        };
        let words = words.iter().map(|&word| word.to_owned());
        words.chain([interface.to_owned()]).collect()
    }
}

impl Serialize for Implementation {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

/// An implementation that is there.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    #[serde(rename = "name")]
    pub(crate) who: Implementation,
    pub(crate) version: String,
    /// None for the direct path and the kernel.
    #[serde(skip)]
    pub(crate) binary: Option<PathBuf>,
    /// What its daemon finds in its environment besides the usual.
    #[serde(skip)]
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Entry {
    /// One without a daemon.
    pub(crate) fn plain(who: Implementation, version: &str) -> Self {
        Self {
            who,
            version: version.to_owned(),
            binary: None,
            environment: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framing_leaves_a_little_less_than_all() {
        // 1458 octets on the wire, and 1518 in WireGuard over IPv4.
        let share = Implementation::Adit.share_of_direct(1420, 1420);
        assert!((share - 1458.0 / 1518.0).abs() < 1e-9);
        // 102 octets on the wire, and 166 in ESP in UDP over IPv4.
        let share = Implementation::Ipsec.share_of_direct(64, 1400);
        assert!((share - 102.0 / 166.0).abs() < 1e-9);
        assert!((Implementation::Direct.share_of_direct(64, 1500) - 1.0).abs() < 1e-9);
    }
}
