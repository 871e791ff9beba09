//! The document, from what a device tells.

use adit_proto::config::{DeviceStatus, PeerAllowance, PeerStatus};

use super::{AllowanceJson, FailureJson, InterfaceJson, PeerJson};
use crate::keys;

impl InterfaceJson {
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
                .map(|peer| PeerJson::new(peer, reveal))
                .collect(),
        }
    }
}

impl AllowanceJson {
    /// From what the device tells.
    pub fn of(of: &PeerAllowance) -> Self {
        let bits = |bytes: Option<u64>| bytes.map(|bytes| bytes.saturating_mul(8));
        Self {
            to_peer_bits: bits(of.allowance.to_peer),
            from_peer_bits: bits(of.allowance.from_peer),
            quota_bytes: of.allowance.quota,
            used_bytes: of.used,
            expires: of.allowance.expires.map(|at| at.as_secs()),
            access: of.access.name().to_owned(),
        }
    }
}

impl PeerJson {
    /// What the UAPI tells, and more where the peer is Adit's. `reveal` also puts the preshared key
    /// in.
    pub fn new(peer: &PeerStatus, reveal: bool) -> Self {
        let preshared = peer.preshared_key.as_ref().filter(|key| !key.is_zero());
        Self {
            public_key: keys::to_base64(&peer.public_key.0).to_string(),
            has_preshared_key: preshared.is_some(),
            preshared_key: (preshared.filter(|_| reveal))
                .map(|key| keys::to_base64(key.bytes()).to_string()),
            endpoint: peer.endpoint.map(|addr| addr.to_string()),
            allowed_ips: peer.allowed_ips.iter().map(|ip| ip.to_string()).collect(),
            latest_handshake: peer.last_handshake.map(|at| at.as_secs()),
            path_mtu: peer.path_mtu,
            lane: peer.rx_queue,
            allowance: peer.allowance.as_ref().map(AllowanceJson::of),
            transfer_rx: peer.rx_bytes,
            transfer_tx: peer.tx_bytes,
            drops: (peer.drops.iter())
                .map(|(reason, packets)| (reason.name().to_owned(), *packets))
                .collect(),
            persistent_keepalive: peer.persistent_keepalive,
            name: None,
            state: (peer.handshakes).map(|handshakes| handshakes.state.name().to_owned()),
            last_attempt: (peer.handshakes)
                .and_then(|handshakes| handshakes.last_attempt)
                .map(|at| at.as_secs()),
            unanswered: peer.handshakes.map(|handshakes| handshakes.unanswered),
            last_failure: (peer.handshakes)
                .and_then(|handshakes| handshakes.last_failure)
                .map(|failure| FailureJson {
                    at: failure.at.as_secs(),
                    reason: failure.reason.name().to_owned(),
                }),
            handshake_microseconds: (peer.handshakes)
                .and_then(|handshakes| handshakes.latency)
                .map(|latency| u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}
