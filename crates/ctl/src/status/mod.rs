//! What `adit show` prints: the JSON of `adit show --json`, the text for people, and the socket it comes from.
//!
//! All names in the JSON are snake_case; keys are base64, counters are bytes or events, times are seconds since the
//! Unix epoch. Fields may be added under the same `schema`; their removal or a change of their meaning makes it 2.

mod render;
mod server;

#[cfg(test)]
mod tests;

pub use render::{Colour, render};
pub use server::{DIR, Server, fetch, fetch_in};

use std::collections::BTreeMap;

use adit_proto::config::{DeviceStatus, PeerStatus};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use crate::keys;

/// Version of the JSON.
pub const SCHEMA: u32 = 1;

/// The document that `adit show --json` prints and that the status socket sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    pub interfaces: Vec<Interface>,
    /// Those that should be above but could not be asked: without these, not allowed to ask looks like nothing there.
    #[serde(default)]
    pub errors: Vec<NoAnswer>,
}

impl Report {
    pub fn new(interfaces: Vec<Interface>) -> Self {
        Self {
            schema: SCHEMA,
            interfaces,
            errors: Vec::new(),
        }
    }
}

/// An interface that could not be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoAnswer {
    pub interface: String,
    /// For people.
    pub error: String,
}

/// One WireGuard interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    /// Absent while there is no private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// Only when asked for; never on the status socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_key: Option<String>,
    /// 0 while no socket is bound.
    pub listen_port: u16,
    /// 0 is none.
    pub fwmark: u32,
    /// What only Adit tells; absent for other implementations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    pub peers: Vec<Peer>,
}

/// The data path of one interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Of the program that runs the interface.
    pub version: String,
    /// Implementation that seals and opens packets.
    pub aead: String,
    pub shards: u32,
    /// Offloads in force, by the name of their switch (`tun-tso`, `udp-gso`, …).
    pub offloads: BTreeMap<String, bool>,
    /// Whether the egress device cuts UDP super-datagrams in hardware; `null` when that is not known.
    pub tx_udp_segmentation: Option<bool>,
    /// Packets dropped, by reason. Reasons that never occurred may be missing.
    pub drops: BTreeMap<String, u64>,
    /// Handshake messages, by outcome.
    pub handshakes: BTreeMap<String, u64>,
}

/// One peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    pub public_key: String,
    pub has_preshared_key: bool,
    /// Only when asked for; never on the status socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preshared_key: Option<String>,
    pub endpoint: Option<String>,
    pub allowed_ips: Vec<String>,
    /// Seconds since the Unix epoch; `null` before the first.
    pub latest_handshake: Option<u64>,
    pub transfer_rx: u64,
    pub transfer_tx: u64,
    /// Seconds; 0 is off.
    pub persistent_keepalive: u16,
}

impl Interface {
    /// What the UAPI tells. `reveal` also puts the private and preshared keys in.
    pub fn new(name: &str, status: &DeviceStatus, reveal: bool) -> Self {
        let private_key = status.private_key.as_ref().filter(|_| reveal);
        Self {
            name: name.to_owned(),
            public_key: (status.public_key).map(|key| keys::to_base64(&key.0).to_string()),
            private_key: private_key.map(|key| keys::to_base64(&key.0).to_string()),
            listen_port: status.listen_port,
            fwmark: status.fwmark,
            engine: None,
            peers: (status.peers.iter())
                .map(|peer| Peer::new(peer, reveal))
                .collect(),
        }
    }
}

impl Peer {
    fn new(peer: &PeerStatus, reveal: bool) -> Self {
        let preshared = peer.preshared_key.as_ref().filter(|key| !key.is_zero());
        Self {
            public_key: keys::to_base64(&peer.public_key.0).to_string(),
            has_preshared_key: preshared.is_some(),
            preshared_key: (preshared.filter(|_| reveal))
                .map(|key| keys::to_base64(&key.0).to_string()),
            endpoint: peer.endpoint.map(|addr| addr.to_string()),
            allowed_ips: peer.allowed_ips.iter().map(|ip| ip.to_string()).collect(),
            latest_handshake: peer.last_handshake.map(|at| at.as_secs()),
            transfer_rx: peer.rx_bytes,
            transfer_tx: peer.tx_bytes,
            persistent_keepalive: peer.persistent_keepalive,
        }
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.private_key.zeroize();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.preshared_key.zeroize();
    }
}
