//! The status: the JSON of `adit show --json`, the text of `adit show`, and the socket that it
//! comes from.
//!
//! All names in the JSON are snake_case; keys are base64, counters are bytes or events, times are
//! seconds since the Unix epoch. Fields may be added under the same `schema`; their removal or a
//! change of their meaning makes it 2.

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

/// Defines the structures of the document. The manual page shows the documentation of their fields.
macro_rules! documented {
    ($(
        $(#[doc = $doc:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $name:ident {$(
            $(#[doc = $field_doc:literal])+
            $(#[serde($($serde:tt)+)])?
            pub $field:ident: $type:ty,
        )+}
    )+) => {$(
        $(#[doc = $doc])+
        $(#[derive($($derive),+)])?
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {$(
            $(#[doc = $field_doc])+
            $(#[serde($($serde)+)])?
            pub $field: $type,
        )+}

        impl $name {
            /// The name of every field, and its documentation.
            const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), concat!($($field_doc),+).trim_ascii()),)+];
        }
    )+};
}

documented! {
    /// The document that `adit show --json` prints and that the status socket sends.
    pub struct StatusReport {
        /// Version of the document. Fields may be added under the same version.
        pub schema: u32,
        /// Every userspace WireGuard interface, or the one that was asked for.
        pub interfaces: Vec<Interface>,
        /// Interfaces that should be among these but could not be asked.
        #[serde(default)]
        pub errors: Vec<NoAnswer>,
    }

    /// An interface that could not be asked.
    pub struct NoAnswer {
        /// Its name.
        pub interface: String,
        /// Why, in words for people.
        pub error: String,
    }

    /// One WireGuard interface.
    #[derive(Default)]
    pub struct Interface {
        /// Its name.
        pub name: String,
        /// Its public key, in base64. Absent while it has no private key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub public_key: Option<String>,
        /// Its private key, in base64. Never on the status socket, and so never in `adit show`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub private_key: Option<String>,
        /// UDP port that it listens on; 0 while no socket is bound.
        pub listen_port: u16,
        /// Firewall mark of what it sends; 0 is none.
        pub fwmark: u32,
        /// What only Adit tells. Absent for other implementations.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub engine: Option<Engine>,
        /// Its peers, in the order in which they were added.
        pub peers: Vec<Peer>,
    }

    /// The data path of one interface.
    #[derive(Default)]
    pub struct Engine {
        /// Version of the program that runs the interface.
        pub version: String,
        /// Implementation of ChaCha20-Poly1305 that seals and opens packets: `avx512`, `avx2`,
        /// `portable` or `ring`.
        pub aead: String,
        /// Threads that carry packets in both directions.
        pub shards: u32,
        /// Offloads, by the name of their switch: true for those in force.
        pub offloads: BTreeMap<String, bool>,
        /// Whether the devices that lead to the peers cut UDP trains in hardware; `null` when that
        /// is not known.
        pub tx_udp_segmentation: Option<bool>,
        /// What the kernel refused to the program, which makes it slower, or lose more, under load:
        /// `priority` is nice -10 for the threads that carry packets (it takes CAP_SYS_NICE or
        /// RLIMIT_NICE), `receive_buffer` and `send_buffer` are 7 MiB for each socket
        /// (CAP_NET_ADMIN, or the sysctls net.core.rmem_max and net.core.wmem_max).
        #[serde(default)]
        pub refused: Vec<String>,
        /// Packets dropped, by reason. Each dropped packet counts under one.
        pub drops: BTreeMap<String, u64>,
        /// Packets that are no drops though no peer got them, by what they are: what the kernel
        /// sends through any interface of its own accord. Each counts once, here or among the
        /// drops.
        #[serde(default)]
        pub ignored: BTreeMap<String, u64>,
        /// ICMP errors that came back for what was sent, by what they say. They may be forged, and
        /// nothing follows from them.
        #[serde(default)]
        pub icmp_errors: BTreeMap<String, u64>,
        /// Handshake messages, by what came of them.
        pub handshakes: BTreeMap<String, u64>,
    }

    /// One peer.
    #[derive(Default)]
    pub struct Peer {
        /// Its public key, in base64.
        pub public_key: String,
        /// Whether a preshared key is set.
        pub has_preshared_key: bool,
        /// Its preshared key, in base64. Never on the status socket, and so never in `adit show`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub preshared_key: Option<String>,
        /// Address and port that it is reached at now; `null` while that is not known.
        pub endpoint: Option<String>,
        /// Blocks of addresses that are routed to it and that it may send from.
        pub allowed_ips: Vec<String>,
        /// Seconds since the Unix epoch; `null` before the first.
        pub latest_handshake: Option<u64>,
        /// Bytes of UDP payload received and found authentic, handshakes included.
        pub transfer_rx: u64,
        /// Bytes of UDP payload sent, handshakes included.
        pub transfer_tx: u64,
        /// Packets to and from this peer that were dropped, by reason; only reasons that occurred.
        /// Each also counts among the drops of the interface.
        #[serde(default)]
        pub drops: BTreeMap<String, u64>,
        /// Seconds between two persistent keepalives; 0 is off.
        pub persistent_keepalive: u16,
    }
}

impl StatusReport {
    /// A document of this version without errors.
    pub fn new(interfaces: Vec<Interface>) -> Self {
        Self {
            schema: SCHEMA,
            interfaces,
            errors: Vec::new(),
        }
    }
}

/// Every field of the document, as a path with `[]` for the elements of an array, and its
/// documentation.
pub fn fields() -> impl Iterator<Item = (String, &'static str)> {
    [
        ("", StatusReport::FIELDS),
        ("interfaces[].", Interface::FIELDS),
        ("interfaces[].engine.", Engine::FIELDS),
        ("interfaces[].peers[].", Peer::FIELDS),
        ("errors[].", NoAnswer::FIELDS),
    ]
    .into_iter()
    .flat_map(|(prefix, fields)| {
        let path = move |(name, text): &(&str, &'static str)| (format!("{prefix}{name}"), *text);
        fields.iter().map(path)
    })
}

impl Interface {
    /// What the UAPI tells. `reveal` also puts the private and preshared keys in.
    pub fn new(name: &str, status: &DeviceStatus, reveal: bool) -> Self {
        let private_key = status.private_key.as_ref().filter(|_| reveal);
        Self {
            name: name.to_owned(),
            public_key: (status.public_key).map(|key| keys::to_base64(&key.0).to_string()),
            private_key: private_key.map(|key| keys::to_base64(key.bytes()).to_string()),
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
                .map(|key| keys::to_base64(key.bytes()).to_string()),
            endpoint: peer.endpoint.map(|addr| addr.to_string()),
            allowed_ips: peer.allowed_ips.iter().map(|ip| ip.to_string()).collect(),
            latest_handshake: peer.last_handshake.map(|at| at.as_secs()),
            transfer_rx: peer.rx_bytes,
            transfer_tx: peer.tx_bytes,
            drops: (peer.drops.iter())
                .map(|(reason, packets)| (reason.name().to_owned(), *packets))
                .collect(),
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
