//! What a tunnel is to be: its keys, its peers, and changes of both.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use adit_proto::config as proto;
use adit_proto::config::{AllowedIpChange, DeviceChange, PeerChange};
use adit_proto::limits::MAX_PEERS;

use crate::keys::{PresharedKey, PrivateKey, PublicKey};

/// A block of addresses: an address and how many of its leading bits count.
///
/// ```
/// let block: adit::IpBlock = "10.0.0.7/24".parse()?;
/// assert_eq!(block.to_string(), "10.0.0.0/24");
/// let host: adit::IpBlock = "2001:db8::1".parse()?;
/// assert_eq!(host.to_string(), "2001:db8::1/128");
/// # Ok::<(), adit::BlockError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpBlock(pub(crate) proto::Cidr);

/// What is no block of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockError {
    /// Before the slash there is no IPv4 or IPv6 address.
    Address,
    /// Behind it there is no number of bits that such an address has.
    Length,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "no IPv4 or IPv6 address stands before the slash",
            Self::Length => {
                "behind the slash is no number of bits: 0 to 32 of IPv4, 0 to 128 of IPv6"
            }
        })
    }
}

impl std::error::Error for BlockError {}

impl IpBlock {
    /// The block of all addresses that share so many leading bits with `addr`.
    ///
    /// # Errors
    ///
    /// [`BlockError::Length`] if the address has fewer bits.
    pub fn new(addr: IpAddr, prefix_len: u8) -> Result<Self, BlockError> {
        proto::Cidr::new(addr, prefix_len)
            .map(Self)
            .ok_or(BlockError::Length)
    }

    /// Its lowest address.
    pub fn addr(&self) -> IpAddr {
        self.0.addr()
    }

    /// How many leading bits all its addresses share.
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }
}

impl From<IpAddr> for IpBlock {
    fn from(addr: IpAddr) -> Self {
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        Self(proto::Cidr::new(addr, bits).expect("as many bits as an address has"))
    }
}

impl FromStr for IpBlock {
    type Err = BlockError;

    fn from_str(text: &str) -> Result<Self, BlockError> {
        let (addr, bits) = match text.split_once('/') {
            None => (text, None),
            Some((addr, bits)) => (addr, Some(bits)),
        };
        let addr: IpAddr = addr.parse().map_err(|_| BlockError::Address)?;
        let Some(bits) = bits else {
            return Ok(addr.into());
        };
        let is_number = !bits.is_empty() && bits.bytes().all(|digit| digit.is_ascii_digit());
        let bits = bits.parse().ok().filter(|_| is_number);
        Self::new(addr, bits.ok_or(BlockError::Length)?)
    }
}

impl fmt::Display for IpBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A peer of a tunnel.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let peer = adit::Peer::new("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=".parse()?)
///     .endpoint("192.0.2.1:51820".parse()?)
///     .allowed_ip("10.0.0.0/24".parse()?)
///     .keepalive(25);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its key, which names it.
    pub public_key: PublicKey,
    /// A key that both ends have besides.
    pub preshared_key: Option<PresharedKey>,
    /// Where it is, until it is heard from elsewhere.
    pub endpoint: Option<SocketAddr>,
    /// The addresses behind it: what is sent to them goes to this peer, and only what is from them may
    /// come from it.
    pub allowed_ips: Vec<IpBlock>,
    /// A packet is sent to it when none was for so many seconds, to keep paths through NAT open; 0 is
    /// never.
    pub keepalive: u16,
}

impl Peer {
    /// A peer with this key, and nothing else.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: None,
            endpoint: None,
            allowed_ips: Vec::new(),
            keepalive: 0,
        }
    }

    /// Sets where it is.
    #[must_use]
    pub fn endpoint(mut self, endpoint: SocketAddr) -> Self {
        self.endpoint = Some(endpoint);
        self
    }

    /// Adds addresses that are behind it.
    #[must_use]
    pub fn allowed_ip(mut self, block: IpBlock) -> Self {
        self.allowed_ips.push(block);
        self
    }

    /// Sets the key that both ends have besides.
    #[must_use]
    pub fn preshared_key(mut self, key: PresharedKey) -> Self {
        self.preshared_key = Some(key);
        self
    }

    /// Sets after how many seconds of silence a packet is sent to it; 0 is never.
    #[must_use]
    pub fn keepalive(mut self, seconds: u16) -> Self {
        self.keepalive = seconds;
        self
    }

    /// The change that makes a peer this one, whatever it was.
    fn to_change(&self) -> PeerChange {
        let mut change = PeerChange::new(self.public_key.to_proto());
        let preshared = self.preshared_key.as_ref();
        change.preshared_key =
            Some(preshared.map_or_else(proto::Secret::zero, |key| key.0.clone()));
        change.endpoint = self.endpoint;
        change.persistent_keepalive = Some(self.keepalive);
        change.replace_allowed_ips = true;
        change.allowed_ips = self
            .allowed_ips
            .iter()
            .map(|block| AllowedIpChange::Add(block.0))
            .collect();
        change
    }
}

/// What a tunnel is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Its private key.
    pub private_key: PrivateKey,
    /// The UDP port that it listens on; 0 for any. Without effect on a device without I/O.
    pub listen_port: u16,
    /// Its peers.
    pub peers: Vec<Peer>,
}

impl Config {
    /// A tunnel with this key and no peers, on any port.
    pub fn new(private_key: PrivateKey) -> Self {
        Self {
            private_key,
            listen_port: 0,
            peers: Vec::new(),
        }
    }

    /// Sets the port that it listens on.
    #[must_use]
    pub fn listen_port(mut self, port: u16) -> Self {
        self.listen_port = port;
        self
    }

    /// Adds a peer.
    #[must_use]
    pub fn peer(mut self, peer: Peer) -> Self {
        self.peers.push(peer);
        self
    }

    /// Whether a tunnel can be so.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] says what is wrong with it.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.peers.len() > MAX_PEERS {
            return Err(ConfigError::TooManyPeers);
        }
        let mut owners = BTreeMap::new();
        let mut keys = BTreeMap::new();
        let own = self.private_key.public_key();
        for peer in &self.peers {
            if keys.insert(peer.public_key, ()).is_some() {
                return Err(ConfigError::PeerTwice(peer.public_key));
            }
            if peer.public_key == own {
                return Err(ConfigError::OwnKey);
            }
            for block in &peer.allowed_ips {
                match owners.insert(*block, peer.public_key) {
                    Some(first) if first != peer.public_key => {
                        return Err(ConfigError::BlockTwice {
                            block: *block,
                            peers: [first, peer.public_key],
                        });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The change that makes a device this one, whatever it was. It is to be checked before.
    pub(crate) fn to_change(&self) -> DeviceChange {
        DeviceChange {
            private_key: Some(self.private_key.0.clone()),
            listen_port: Some(self.listen_port),
            replace_peers: true,
            peers: self.peers.iter().map(Peer::to_change).collect(),
            ..DeviceChange::default()
        }
    }
}

/// A change of a tunnel that runs. All of it happens, or nothing.
///
/// A peer that is as it was keeps its session; a block of addresses that another peer had moves to the
/// one that is given it last.
#[derive(Clone, Debug, Default)]
pub struct Change(DeviceChange);

impl Change {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// All is to be as in `config`, and peers that it does not have go.
    ///
    /// # Errors
    ///
    /// Those of [`Config::check`].
    pub fn to(config: &Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self(config.to_change()))
    }

    /// Adds a peer, or makes the one with its key this.
    #[must_use]
    pub fn peer(mut self, peer: &Peer) -> Self {
        self.0.peers.push(peer.to_change());
        self
    }

    /// Removes a peer, if there is one with this key.
    #[must_use]
    pub fn remove(mut self, peer: PublicKey) -> Self {
        let mut change = PeerChange::new(peer.to_proto());
        change.remove = true;
        self.0.peers.push(change);
        self
    }

    /// A peer, if there is one with this key, is here from now on.
    #[must_use]
    pub fn endpoint(mut self, peer: PublicKey, endpoint: SocketAddr) -> Self {
        let mut change = PeerChange::new(peer.to_proto());
        change.update_only = true;
        change.endpoint = Some(endpoint);
        self.0.peers.push(change);
        self
    }

    /// Sets the private key: all sessions end.
    #[must_use]
    pub fn private_key(mut self, key: &PrivateKey) -> Self {
        self.0.private_key = Some(key.0.clone());
        self
    }

    /// Sets the port; 0 for any. Without effect on a device without I/O.
    #[must_use]
    pub fn listen_port(mut self, port: u16) -> Self {
        self.0.listen_port = Some(port);
        self
    }

    pub(crate) fn as_proto(&self) -> &DeviceChange {
        &self.0
    }

    #[cfg(feature = "engine")]
    pub(crate) fn into_proto(self) -> DeviceChange {
        self.0
    }
}

/// What is wrong with a configuration; it is the caller's, and nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// There would be more than 2²⁰ peers.
    TooManyPeers,
    /// Two peers have this key.
    PeerTwice(PublicKey),
    /// Two peers have the same addresses.
    BlockTwice {
        /// The addresses.
        block: IpBlock,
        /// The peers.
        peers: [PublicKey; 2],
    },
    /// A peer has the tunnel's own public key.
    OwnKey,
    /// The public key of a peer is a secret: the tunnel's private key, or that peer's preshared key.
    SecretAsPublicKey,
    /// The MTU is not from 576 to 65,535 - 80.
    Mtu(usize),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyPeers => write!(f, "a tunnel has at most {MAX_PEERS} peers"),
            Self::PeerTwice(key) => write!(f, "two peers have the public key {key}"),
            Self::BlockTwice { block, peers } => {
                let [first, second] = peers;
                write!(f, "both {first} and {second} have the allowed IPs {block}")
            }
            Self::OwnKey => f.write_str("a peer has the public key of this tunnel"),
            Self::SecretAsPublicKey => f.write_str(
                "the public key of a peer is a secret: this tunnel's private key, or that peer's preshared key",
            ),
            Self::Mtu(mtu) => write!(f, "the MTU {mtu} is not from {MIN_MTU} to {MAX_MTU}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// The least MTU of a tunnel.
pub(crate) const MIN_MTU: usize = 576;
/// The largest: with the headers of IPv6, UDP and WireGuard a packet has 65,535 bytes.
pub(crate) const MAX_MTU: usize = 65_535 - 80;

/// Whether a tunnel can have this MTU.
pub(crate) fn check_mtu(mtu: usize) -> Result<usize, ConfigError> {
    match mtu {
        MIN_MTU..=MAX_MTU => Ok(mtu),
        _ => Err(ConfigError::Mtu(mtu)),
    }
}

impl ConfigError {
    pub(crate) fn of(error: adit_proto::ConfigError) -> Self {
        match error {
            adit_proto::ConfigError::TooManyPeers => Self::TooManyPeers,
            adit_proto::ConfigError::SecretAsPublicKey => Self::SecretAsPublicKey,
        }
    }
}

/// How a tunnel is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Its public key.
    pub public_key: Option<PublicKey>,
    /// The UDP port that it has; 0 while it has none.
    pub listen_port: u16,
    /// Its peers, in the order in which they were added.
    pub peers: Vec<PeerStatus>,
}

/// How a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its key.
    pub public_key: PublicKey,
    /// Where it is reached now.
    pub endpoint: Option<SocketAddr>,
    /// When the last handshake with it was, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// Bytes of UDP payload that came from it and were authentic.
    pub rx_bytes: u64,
    /// Bytes of UDP payload that were sent to it.
    pub tx_bytes: u64,
    /// Seconds of silence after which a packet is sent to it; 0 is never.
    pub keepalive: u16,
    /// The addresses behind it, sorted.
    pub allowed_ips: Vec<IpBlock>,
}

impl Status {
    pub(crate) fn of(status: proto::DeviceStatus) -> Self {
        Self {
            public_key: status.public_key.map(PublicKey::of),
            listen_port: status.listen_port,
            peers: status.peers.into_iter().map(PeerStatus::of).collect(),
        }
    }
}

impl PeerStatus {
    fn of(peer: proto::PeerStatus) -> Self {
        Self {
            public_key: PublicKey::of(peer.public_key),
            endpoint: peer.endpoint,
            last_handshake: peer.last_handshake,
            rx_bytes: peer.rx_bytes,
            tx_bytes: peer.tx_bytes,
            keepalive: peer.persistent_keepalive,
            allowed_ips: peer.allowed_ips.into_iter().map(IpBlock).collect(),
        }
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
