use super::*;
use crate::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange};
use crate::secret::Secret;

const NOW: Time = Time(1_000_000_000);

fn wall() -> Tai64N {
    Tai64N::from_unix(Duration::from_secs(1_800_000_000))
}

/// A device with one peer, to which a packet wants to go.
fn device() -> Device {
    let mut next = 0_u8;
    let mut device = Device::new(Box::new(move |buffer| {
        next += 1;
        buffer.fill(next);
    }));
    let mut peer = PeerChange::new(Secret::new(&[2; 32]).public_key());
    peer.endpoint = Some("192.0.2.2:51820".parse().unwrap());
    let block = Cidr::new([10, 0, 0, 2].into(), 32).unwrap();
    peer.allowed_ips = vec![AllowedIpChange::Add(block)];
    let change = DeviceChange {
        private_key: Some(Secret::new(&[1; 32])),
        peers: vec![peer],
        ..DeviceChange::default()
    };
    device.apply(NOW, &change).unwrap();
    let mut packet = [0; 20];
    (packet[0], packet[3]) = (0x45, 20);
    packet[16..].copy_from_slice(&[10, 0, 0, 2]);
    assert!(
        device
            .seal(NOW, wall(), &packet, 1420, &mut [0; 64])
            .is_err()
    );
    device.handle_timeout(NOW, wall());
    device
}

#[test]
fn a_peer_removed_in_a_handshake_leaves_no_index() {
    let mut device = device();
    assert_eq!(device.core.indices.len(), 1, "an initiation left");
    let remove = DeviceChange {
        replace_peers: true,
        ..DeviceChange::default()
    };
    device.apply(NOW, &remove).unwrap();
    assert!(device.core.indices.len() == 0);
}
