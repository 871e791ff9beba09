use adit_proto::config::{AllowedIpChange, Cidr, PeerChange};

use super::changes::*;
use crate::origin::{Caller, Origin};
use adit_proto::config::{DeviceChange, DeviceStatus, PeerStatus, PublicKey, Secret};

fn peer(n: u8, blocks: &[u8]) -> PeerStatus {
    let block = |n: &u8| Cidr::new([10, 0, 0, *n].into(), 32).unwrap();
    PeerStatus {
        allowed_ips: blocks.iter().map(block).collect(),
        ..PeerStatus::new(PublicKey([n; 32]))
    }
}

fn device(fwmark: u32, peers: Vec<PeerStatus>) -> DeviceStatus {
    DeviceStatus {
        fwmark,
        peers,
        ..DeviceStatus::default()
    }
}

/// A transaction that names these peers.
fn naming(keys: impl IntoIterator<Item = u8>, replace_peers: bool) -> DeviceChange {
    let peers = keys.into_iter().map(|n| PeerChange {
        endpoint: Some("192.0.2.1:7".parse().unwrap()),
        ..PeerChange::new(PublicKey([n; 32]))
    });
    DeviceChange {
        replace_peers,
        peers: peers.collect(),
        ..DeviceChange::default()
    }
}

fn compare(change: &DeviceChange, before: &DeviceStatus, after: &DeviceStatus) -> Changed {
    let plan = ChangePlan::of(change, before.peers.len());
    let name = |key: &PublicKey| (key.0[0] == 1).then(|| "phone".to_owned());
    plan.compare(before, after, change.peers.len(), &name)
}

#[test]
fn a_change_is_told_with_names_old_and_new_values_and_no_secret() {
    let old = device(0, vec![peer(1, &[1]), peer(2, &[2]), peer(3, &[3])]);
    let secret = Secret::new(&[77; 32]);
    let mut moved = peer(1, &[1, 9]);
    moved.endpoint = Some("192.0.2.1:7".parse().unwrap());
    moved.preshared_key = Some(secret.clone());
    let mut new = device(7, vec![moved, peer(2, &[2]), peer(4, &[])]);
    new.private_key = Some(secret.clone());
    new.public_key = Some(secret.public_key());
    let changed = compare(&naming([1, 2, 4], true), &old, &new);
    let key = |n| PublicKey([n; 32]);
    assert_eq!(
        changed.text,
        format!(
            "changed public_key from none to {}, fwmark from 0 to 7; added the peer {} with the allowed IPs none; \
             removed the peer {}; changed the peer {} (phone): endpoint from none to 192.0.2.1:7, allowed_ips from \
             10.0.0.1/32 to 10.0.0.1/32, 10.0.0.9/32, preshared_key",
            secret.public_key(),
            key(4),
            key(3),
            key(1),
        )
    );
    assert_eq!(changed.peers, 3);
    let debug = format!("{changed:?}");
    for text in [
        &crate::keys::to_base64(&[77; 32]),
        &crate::keys::to_hex(&[77; 32]),
    ] {
        assert!(!debug.contains(&**text), "{debug}");
    }
    let by = Caller {
        origin: Origin { pid: 7, uid: 0 },
        login: Some(1000),
        command: Some("wg".into()),
    };
    let line = Configured { by, changed }.to_string();
    assert!(
        line.starts_with("wg (pid 7, uid 0, for uid 1000) changed public_key"),
        "{line}"
    );
}

#[test]
fn what_changes_nothing_is_worth_no_line() {
    let old = device(7, vec![peer(1, &[1])]);
    // An authentic packet came from elsewhere meanwhile.
    let mut roamed = old.clone();
    roamed.peers[0].endpoint = Some("192.0.2.9:9".parse().unwrap());
    let mut change = naming([1], true);
    change.peers[0].endpoint = None;
    change.peers[0].allowed_ips = vec![AllowedIpChange::Add(
        Cidr::new([10, 0, 0, 1].into(), 32).unwrap(),
    )];
    assert!(compare(&change, &old, &roamed).is_nothing());
    assert!(compare(&naming([5], false), &old, &old).is_nothing());
    assert!(compare(&naming([1], false), &old, &old).is_nothing());
}

#[test]
fn a_line_about_many_peers_is_short_and_very_many_are_counted() {
    let all: Vec<PeerStatus> = (0..200).map(|n| peer(n, &[n])).collect();
    let changed = compare(
        &naming(0..200, false),
        &device(0, Vec::new()),
        &device(0, all),
    );
    assert!(
        changed.text.starts_with("added 200 peers: "),
        "{}",
        changed.text
    );
    assert!(changed.text.ends_with("; and 197 more"), "{}", changed.text);
    assert!(changed.text.len() < 400, "{}", changed.text);
    assert_eq!((changed.peers, changed.items.len()), (200, 16));

    let many = DeviceChange {
        peers: vec![PeerChange::new(PublicKey([1; 32])); 5000],
        ..DeviceChange::default()
    };
    let plan = ChangePlan::of(&many, 0);
    assert_eq!(plan.keys(), Some(&[][..]));
    let same = device(0, Vec::new());
    assert_eq!(compare(&many, &same, &same).text, "set 5000 peers");
    let replacing = naming([1], true);
    assert!(
        ChangePlan::of(&replacing, 5000)
            .keys()
            .is_some_and(<[_]>::is_empty)
    );
}

#[test]
fn names_are_told_as_old_and_new() {
    let key = PublicKey([1; 32]);
    let name = |name: &str| Some(name.to_owned());
    let changed = Changed::of_names(vec![(key, name("phone"), name("tablet"))]);
    assert_eq!(
        changed.text,
        format!("changed the peer {key} (tablet): name from phone to tablet")
    );
    assert_eq!(changed.peer(), Some(&(key, name("tablet"))));
    assert!(Changed::of_names(Vec::new()).is_nothing());
}
