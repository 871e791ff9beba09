//! The device behind a tunnel: one peer, which has every address and is somewhere.

use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::{Device, Endpoint};
use zeroize::Zeroizing;

use crate::x25519;

/// A device has an address for its peer. Where the peer really is the caller knows.
const SOMEWHERE: ([u8; 4], u16) = ([192, 0, 2, 1], 1);

/// A device whose receiver indices have this prefix, of which the lower 24 bits count.
///
/// # Panics
///
/// In handshakes, if the system has no random bytes.
pub(crate) fn device(index: u32) -> Device {
    let mut device = Device::new(Box::new(|bytes| {
        getrandom::fill(bytes).expect("the system has random bytes");
    }));
    device.set_index_prefix(index & 0x00ff_ffff);
    device
}

pub(crate) fn peer(public_key: PublicKey, preshared_key: Option<[u8; 32]>) -> PeerChange {
    let preshared_key = preshared_key.map(Zeroizing::new);
    let everything = ["0.0.0.0", "::"].into_iter().filter_map(|any| {
        let any = any.parse().ok()?;
        Cidr::new(any, 0).map(AllowedIpChange::Add)
    });
    PeerChange {
        preshared_key: preshared_key.map(|key| Secret::new(&key)),
        endpoint: Some(SOMEWHERE.into()),
        allowed_ips: everything.collect(),
        ..PeerChange::new(public_key)
    }
}

pub(crate) fn change(private_key: &x25519::StaticSecret, peer: Option<PeerChange>) -> DeviceChange {
    let private_key = Zeroizing::new(private_key.to_bytes());
    DeviceChange {
        private_key: Some(Secret::new(&private_key)),
        peers: peer.into_iter().collect(),
        ..DeviceChange::default()
    }
}

/// Where every datagram comes from.
pub(crate) fn somewhere() -> Endpoint {
    std::net::SocketAddr::from(SOMEWHERE).into()
}
