//! Configuration and status of a device, in the terms of the UAPI: what `set` changes and what
//! `get` reports.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::allowance::{Access, Allowance};
use crate::drops::DropReason;
use crate::{HandshakeFailure, Liveness};

pub use crate::secret::{PublicKey, Secret};

/// An address block, host bits zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    addr: IpAddr,
    len: u8,
}

impl Cidr {
    /// `addr/len` with the host bits cleared; `None` if `len` exceeds the address's bits.
    pub fn new(addr: IpAddr, len: u8) -> Option<Self> {
        let addr = match addr {
            IpAddr::V4(ip) if len <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                IpAddr::from((u32::from(ip) & mask).to_be_bytes())
            }
            IpAddr::V6(ip) if len <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::from((u128::from(ip) & mask).to_be_bytes())
            }
            _ => return None,
        };
        Some(Self { addr, len })
    }

    /// The lowest address of the block.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// How many leading bits all addresses of the block share.
    pub fn prefix_len(&self) -> u8 {
        self.len
    }

    /// Whether the address is in the block.
    pub fn contains(&self, ip: IpAddr) -> bool {
        Cidr::new(ip, self.len).is_some_and(|block| block == *self)
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// One `set` transaction: applied whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChange {
    /// All-zero removes the key.
    pub private_key: Option<Secret>,
    /// 0 lets the system choose.
    pub listen_port: Option<u16>,
    /// 0 removes the mark.
    pub fwmark: Option<u32>,
    /// Peers that `peers` does not name are removed.
    pub replace_peers: bool,
    /// In the order of the request: a public key may occur more than once.
    pub peers: Vec<PeerChange>,
}

/// A peer section of a `set` transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// Names the peer.
    pub public_key: PublicKey,
    /// Remove the peer; the rest of the section is ignored.
    pub remove: bool,
    /// Change the peer only if it exists.
    pub update_only: bool,
    /// All-zero means none.
    pub preshared_key: Option<Secret>,
    /// Where to send to until the peer is heard from elsewhere.
    pub endpoint: Option<SocketAddr>,
    /// Seconds; 0 turns it off.
    pub persistent_keepalive: Option<u16>,
    /// Blocks that `allowed_ips` does not add are given up.
    pub replace_allowed_ips: bool,
    /// In the order of the request.
    pub allowed_ips: Vec<AllowedIpChange>,
}

impl PeerChange {
    /// A section that names the peer and asks for nothing else.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            preshared_key: None,
            endpoint: None,
            persistent_keepalive: None,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }
}

/// `allowed_ip=ip/cidr` takes the block from its owner; `allowed_ip=-ip/cidr` gives it up if it is
/// this peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedIpChange {
    /// The block belongs to this peer now, whichever peer had it before.
    Add(Cidr),
    /// The block is taken from this peer. If another peer has it, nothing changes.
    Remove(Cidr),
}

impl AllowedIpChange {
    /// The block that the peer gets, if it gets one.
    pub fn added(&self) -> Option<Cidr> {
        match self {
            Self::Add(block) => Some(*block),
            Self::Remove(_) => None,
        }
    }
}

/// The report of `get` about the device.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceStatus {
    /// The private key as Curve25519 uses it (clamped).
    pub private_key: Option<Secret>,
    /// Derived from the private key.
    pub public_key: Option<PublicKey>,
    /// 0 while no socket is bound.
    pub listen_port: u16,
    /// 0 is none.
    pub fwmark: u32,
    /// In the order in which they were added.
    pub peers: Vec<PeerStatus>,
}

/// The report of `get` about one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Names the peer.
    pub public_key: PublicKey,
    /// `None` if there is none.
    pub preshared_key: Option<Secret>,
    /// Where it is reached now.
    pub endpoint: Option<SocketAddr>,
    /// Since the Unix epoch; `None` if there was no handshake yet.
    pub last_handshake: Option<Duration>,
    /// UDP payload received and found authentic.
    pub rx_bytes: u64,
    /// UDP payload sent.
    pub tx_bytes: u64,
    /// Packets dropped, by reason; only reasons that occurred.
    pub drops: Vec<(DropReason, u64)>,
    /// The longest packet that the path to it was found to take, if it is shorter than what the
    /// interface takes.
    pub path_mtu: Option<u16>,
    /// The receive queue in which its data arrives, if there are several.
    pub rx_queue: Option<u8>,
    /// Seconds; 0 is off.
    pub persistent_keepalive: u16,
    /// Sorted.
    pub allowed_ips: Vec<Cidr>,
    /// What it may do, if that is not everything; the UAPI does not tell.
    pub allowance: Option<PeerAllowance>,
    /// How handshakes with it went; the UAPI does not tell.
    pub handshakes: Option<PeerHandshakes>,
}

/// What a peer may do, and what it has of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAllowance {
    /// As it was set.
    pub allowance: Allowance,
    /// Bytes of the quota that are used.
    pub used: u64,
    /// Whether it has access now.
    pub access: Access,
}

/// How handshakes with one peer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHandshakes {
    /// Whether the peer is there.
    pub state: Liveness,
    /// When the last initiation to it was made, since the Unix epoch.
    pub last_attempt: Option<Duration>,
    /// Initiations that left and were not answered, since the last session or the last that was
    /// given up.
    pub unanswered: u32,
    /// The last one that failed.
    pub last_failure: Option<HandshakeFailure>,
    /// From the last initiation that was answered to its response.
    pub latency: Option<Duration>,
}

impl PeerStatus {
    /// The status of a peer of which nothing but its key is known.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: None,
            endpoint: None,
            last_handshake: None,
            rx_bytes: 0,
            tx_bytes: 0,
            drops: Vec::new(),
            path_mtu: None,
            rx_queue: None,
            persistent_keepalive: 0,
            allowed_ips: Vec::new(),
            allowance: None,
            handshakes: None,
        }
    }
}
