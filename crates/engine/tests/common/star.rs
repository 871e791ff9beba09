//! A gateway, host 0, and leaves around it: the addresses, keys and configuration of each.

use std::net::{IpAddr, SocketAddr};

use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};

pub(crate) fn address(host: u8) -> SocketAddr {
    ([192, 0, 2, 1 + host], 51_820).into()
}

pub(crate) fn inner(host: u8) -> IpAddr {
    [10, 0, 0, 1 + host].into()
}

pub(crate) fn public(host: u8) -> PublicKey {
    Secret::new(&[1 + host; 32]).public_key()
}

/// The configuration of host 0, the gateway, or of a leaf.
pub(crate) fn configuration(host: u8, peers: impl Iterator<Item = u8>) -> DeviceChange {
    let peer = |peer| PeerChange {
        endpoint: Some(address(peer)),
        allowed_ips: vec![AllowedIpChange::Add(
            Cidr::new(inner(peer), 32).expect("a right prefix"),
        )],
        ..PeerChange::new(public(peer))
    };
    DeviceChange {
        private_key: Some(Secret::new(&[1 + host; 32])),
        peers: peers.map(peer).collect(),
        ..DeviceChange::default()
    }
}
