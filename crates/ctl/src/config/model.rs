//! A configuration file as a model.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use adit_proto::Allowance;
use adit_proto::config::{AllowedIpChange, DeviceChange, PeerChange, PublicKey, Secret};

use crate::keys;
use crate::names::HostPort;

/// A configuration file, understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The interface to bring up.
    pub interface: InterfaceSection,
    /// In the order of the file. A public key may stand twice: the later section changes the
    /// earlier.
    pub peers: Vec<PeerSection>,
    /// Peers that [`disable`](crate::config::disable) made comments of, in the order of the file.
    pub disabled: Vec<PeerSection>,
    /// Warnings: settings that are allowed but probably not meant.
    pub warnings: Vec<Remark>,
}

impl Config {
    /// Whether this can be shown as the public key of a peer. What is none may be a secret in the wrong
    /// place, and so is what the file has as a secret: one in sixteen private or preshared keys looks
    /// like a public one.
    pub fn can_show(&self, key: &PublicKey) -> bool {
        let peers = self.peers.iter().chain(&self.disabled);
        let preshared = peers.filter_map(|it| it.preshared_key.as_ref());
        let mut secrets = preshared.chain(&self.interface.private_key);
        keys::is_public(key) && secrets.all(|secret| *secret != Secret::new(&key.0))
    }

    /// What the file calls its enabled peers; of a peer's sections, the last one with a name counts.
    pub fn names(&self) -> HashMap<PublicKey, &str> {
        let peers = self.peers.iter();
        peers
            .filter_map(|peer| Some((peer.public_key, peer.name.as_deref()?)))
            .collect()
    }

    /// The transaction that brings a device to this configuration: peers that the file does not
    /// name go, and each peer has the file's allowed IPs afterwards. What the file says nothing
    /// about stays, but for the preshared key and keepalive of a peer.
    ///
    /// `endpoints[i]` is the resolved endpoint of `peers[i]`; a peer without one keeps the one it
    /// has.
    pub fn to_change(&self, endpoints: &[Option<SocketAddr>]) -> DeviceChange {
        let peer = |(i, peer): (usize, &PeerSection)| PeerChange {
            preshared_key: peer.preshared_key.clone(),
            endpoint: endpoints.get(i).copied().flatten(),
            persistent_keepalive: peer.persistent_keepalive,
            replace_allowed_ips: !peer.incremental,
            allowed_ips: peer.allowed_ips.clone(),
            ..PeerChange::new(peer.public_key)
        };
        DeviceChange {
            private_key: self.interface.private_key.clone(),
            listen_port: self.interface.listen_port,
            fwmark: self.interface.fwmark,
            replace_peers: true,
            peers: self.peers.iter().enumerate().map(peer).collect(),
        }
    }
}

/// The `[InterfaceSection]` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSection {
    /// `None` if the file has none.
    pub private_key: Option<Secret>,
    /// A UDP port; 0 lets the system choose.
    pub listen_port: Option<u16>,
    /// 0 for `off`.
    pub fwmark: Option<u32>,
    /// In the order of the file.
    pub addresses: Vec<InterfaceAddress>,
    /// Addresses, perhaps with `%scope`.
    pub dns: Vec<String>,
    /// Search domains, from `DNS`.
    pub dns_search: Vec<String>,
    /// Bytes; `None` is for `up` to find out.
    pub mtu: Option<u16>,
    /// Where the routes to the allowed IPs go.
    pub table: Table,
    /// Shell commands, `%i` standing for the interface; see [`hook`](crate::config::hook).
    pub pre_up: Vec<String>,
    /// The same, run when everything is up.
    pub post_up: Vec<String>,
    /// The same, run before anything is taken down.
    pub pre_down: Vec<String>,
    /// The same, run when everything is down.
    pub post_down: Vec<String>,
    /// Whether `down` writes the interface's state to the file: see [`save`](crate::config::save).
    pub save_config: bool,
    /// What peers may reach through this host, from the comment `# Forward = …`.
    pub forward: Option<Forward>,
    /// Where peers find this host, from the comment `# PublicEndpoint = …`.
    pub public_endpoint: Option<HostPort>,
}

impl InterfaceSection {
    /// Whether the file says anything to the resolver.
    pub fn has_dns(&self) -> bool {
        !self.dns.is_empty() || !self.dns_search.is_empty()
    }
}

/// An address of the interface, host bits included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceAddress {
    /// The interface's own address.
    pub ip: IpAddr,
    /// How many leading bits its network has: 0 to 32, or 128 of IPv6.
    pub prefix_len: u8,
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)
    }
}

/// Which routing table the routes to the peers go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Table {
    /// The main one, and policy routing for default routes.
    #[default]
    Auto,
    /// No routes.
    Off,
    /// The table of this number.
    Number(u32),
    /// To be looked up in `/etc/iproute2/rt_tables`.
    Name(String),
}

/// What peers may reach through this host, besides this host itself. Each includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forward {
    /// Each other.
    Peers,
    /// The private networks behind this host.
    Lan,
    /// Everything.
    Internet,
}

impl Forward {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Peers, Self::Lan, Self::Internet];

    /// The word of the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peers => "peers",
            Self::Lan => "lan",
            Self::Internet => "internet",
        }
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|it| it.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| "expected peers, lan or internet".to_owned())
    }
}

/// A `[PeerSection]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSection {
    /// Names the peer.
    pub public_key: PublicKey,
    /// What a comment beside `[PeerSection]` calls it, for people.
    pub name: Option<String>,
    /// `None` if the file has none.
    pub preshared_key: Option<Secret>,
    /// Where the peer is at first; a name is not resolved here.
    pub endpoint: Option<HostPort>,
    /// In the order of the file.
    pub allowed_ips: Vec<AllowedIpChange>,
    /// A `+` or `-` stood before an allowed IP: they change those that the peer has instead of
    /// replacing them.
    pub incremental: bool,
    /// Seconds; 0 for `off`.
    pub persistent_keepalive: Option<u16>,
    /// What it may do, from comments: `# Limit = …`, `# Quota = …` and `# Expires = …`.
    pub allowance: Allowance,
}

/// Something about one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The file that it is about, as it was named.
    pub file: String,
    /// From 1; 0 for the file as a whole.
    pub line: usize,
    /// One line for people.
    pub text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.text),
            line => write!(f, "{}:{line}: {}", self.file, self.text),
        }
    }
}

/// Everything that is wrong with a file, one line each. Never contains a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Remark>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Remark::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Errors {}
