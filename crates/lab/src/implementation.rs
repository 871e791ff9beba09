//! The subjects of measurements: the bare link, the other implementations, Adit, and Adit without
//! its AEAD.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

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
}

impl Implementation {
    /// In the order of the tables.
    pub(crate) const ALL: [Self; 8] = [
        Self::Direct,
        Self::Kernel,
        Self::WireguardGo,
        Self::Tailscale,
        Self::Boringtun,
        Self::Gotatun,
        Self::Adit,
        Self::Ceiling,
    ];

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
        }
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
