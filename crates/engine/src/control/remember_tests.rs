use adit_proto::config::{DeviceChange, PeerChange};

use super::*;

fn device() -> Device {
    Device::new(Box::new(|bytes| bytes.fill(7)))
}

fn key(n: u32) -> PublicKey {
    let mut key = [7; 32];
    key[..4].copy_from_slice(&n.to_le_bytes());
    PublicKey(key)
}

/// Has a device with nothing but what is left of the process before it keep it anew.
fn change(device: &mut Device) {
    for remove in [false, true] {
        let mut peer = PeerChange::new(key(u32::MAX));
        peer.remove = remove;
        let peers = vec![peer];
        let change = DeviceChange {
            peers,
            ..Default::default()
        };
        device.apply(Time::default(), &change).expect("few peers");
    }
}

/// Goes on until nothing is to be done at once.
fn keep(
    remember: &mut Remember,
    now: Time,
    device: &mut Device,
    mut store: impl FnMut(&RememberedPeers, bool) -> bool,
) {
    loop {
        remember.keep(now, device, &mut store);
        if !remember.is_busy() {
            return;
        }
        assert_eq!(remember.deadline(), None);
    }
}

#[test]
fn many_lines_are_kept_in_parts_and_less_often() {
    const PEERS: u32 = 30_000;
    let mut device = device();
    let endpoint = "192.0.2.1:7".parse().expect("an endpoint");
    device.remember((0..PEERS).map(|n| (key(n), endpoint)));
    let mut remember = Remember::default();
    change(&mut device);
    let now = Time::default() + Duration::from_secs(100);
    let (mut kept, mut parts, mut is_whole) = (Vec::new(), 0, false);
    keep(&mut remember, now, &mut device, |some, is_last| {
        assert!(some.endpoints.len() <= WRITTEN_AT_ONCE && !is_whole);
        kept.extend(some.endpoints.iter().map(|(key, _)| *key));
        (parts, is_whole) = (parts + 1, is_last);
        true
    });
    assert!(is_whole && parts == PEERS.div_ceil(1024));
    assert!(kept.iter().copied().eq((0..PEERS).map(key)));
    assert_eq!(remember.deadline(), None);
    // 150 µs for each line.
    change(&mut device);
    remember.keep(now, &mut device, |_, _| unreachable!("it is not time"));
    assert_eq!(remember.deadline(), Some(now + Duration::from_millis(4500)));
}

#[test]
fn what_could_not_be_kept_is_kept_a_minute_later() {
    let mut device = device();
    let mut remember = Remember::default();
    change(&mut device);
    let now = Time::default() + Duration::from_secs(100);
    keep(&mut remember, now, &mut device, |_, _| false);
    assert_eq!(remember.deadline(), Some(now + REMEMBER_AGAIN));
    let mut parts = Vec::new();
    keep(
        &mut remember,
        now + REMEMBER_AGAIN,
        &mut device,
        |_, is_last| {
            parts.push(is_last);
            true
        },
    );
    assert_eq!((parts, remember.deadline()), (vec![true], None));
}
