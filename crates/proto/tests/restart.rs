//! A process that starts anew calls the peers that the one before it had sessions with.

mod common;

use std::collections::HashSet;
use std::net::SocketAddr;

use adit_proto::config::{DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::wire::DataHeader;
use common::*;

/// B starts anew, with what the process before it has left and the configuration that it had.
fn restart(net: &mut Net, left: Vec<(PublicKey, SocketAddr)>, endpoint: Option<SocketAddr>) {
    net.hosts[B].device = device(77);
    net.hosts[B].device.remember(left);
    let mut change = peer(A, |peer| {
        peer.allowed_ips = vec![add("10.0.0.1/32")];
        peer.endpoint = endpoint;
    });
    change.private_key = Some(private_key(B));
    net.apply(B, &change);
}

/// Connected, and A is where only roaming has told B.
fn roamed(seed: u64) -> (Net, SocketAddr) {
    let mut net = Net::pair(seed);
    net.connect();
    assert!(net.hosts[B].device.poll_endpoints_changed());
    let elsewhere = "198.51.100.7:7".parse().unwrap();
    net.hosts[A].addr = elsewhere;
    net.send(A, B, b"from elsewhere");
    net.run_for(millis(100));
    net.send(B, A, b"an answer");
    net.run_for(millis(100));
    assert!(net.hosts[B].device.poll_endpoints_changed());
    assert!(!net.hosts[B].device.poll_endpoints_changed());
    (net, elsewhere)
}

#[test]
fn a_peer_that_only_roaming_located_is_called_at_once() {
    let (mut net, elsewhere) = roamed(40);
    let left = net.hosts[B].device.active_endpoints();
    assert_eq!(left, [(public_key(A), elsewhere)]);
    let before = net.session(B, A).local_index();
    restart(&mut net, left, None);
    net.send(B, A, b"to elsewhere");
    net.run_for(millis(500));
    assert!(
        net.hosts[A]
            .delivered
            .iter()
            .any(|text| text == b"to elsewhere")
    );

    // Invariant 1: the sessions, and so the keys, are other ones. What was sealed for the process
    // that ended opens nowhere.
    assert_ne!(net.session(B, A).local_index(), before);
    assert!(net.hosts[B].device.shared().session(before).is_none());
    let sealed: Vec<_> = net
        .log
        .iter()
        .filter(|datagram| datagram.from == net.hosts[B].addr)
        .filter_map(|datagram| DataHeader::parse(&datagram.bytes))
        .map(|header| (header.receiver, header.counter))
        .collect();
    let unique: HashSet<_> = sealed.iter().collect();
    assert!(
        sealed.len() >= 2 && unique.len() == sealed.len(),
        "{sealed:?}"
    );
}

#[test]
fn a_configured_endpoint_is_newer_than_a_remembered_one() {
    let (mut net, elsewhere) = roamed(41);
    let left = net.hosts[B].device.active_endpoints();
    let configured: SocketAddr = "203.0.113.5:5".parse().unwrap();
    let start = net.now;
    restart(&mut net, left, Some(configured));
    net.run_for(millis(500));
    let called = net.sent(B, "initiation", start);
    assert_eq!(called.len(), 1);
    assert_eq!(called[0].to, configured);
    assert_ne!(called[0].to, elsewhere);
}

#[test]
fn peers_without_a_session_are_neither_remembered_nor_called() {
    let mut net = Net::pair(42);
    net.send(A, B, b"x");
    assert_eq!(net.hosts[A].device.active_endpoints(), []);
    net.connect();
    net.run_for(secs(600));
    assert_eq!(net.hosts[A].device.active_endpoints(), []);
    let start = net.now;
    restart(&mut net, Vec::new(), Some("203.0.113.5:5".parse().unwrap()));
    net.run_for(secs(10));
    assert_eq!(net.sent(B, "initiation", start), []);
}

#[test]
fn calls_are_five_thousand_a_second_and_two_for_a_silent_peer() {
    const PEERS: u16 = 6_000;
    let mut net = Net::of(2, 43);
    let key = |n: u16| {
        let mut bytes = [9; 32];
        bytes[1..3].copy_from_slice(&n.to_le_bytes());
        public_of(&Secret::new(&bytes))
    };
    let keys: Vec<_> = (0..PEERS).map(key).collect();
    let endpoint = |n| SocketAddr::from(([203, 0, 113, 5], 10_000 + n));
    let left: Vec<_> = keys.iter().copied().zip((0..PEERS).map(endpoint)).collect();
    net.hosts[B].device = device(78);
    net.hosts[B].device.remember(left.clone());
    let change = DeviceChange {
        private_key: Some(private_key(B)),
        peers: keys.into_iter().rev().map(PeerChange::new).collect(),
        ..DeviceChange::default()
    };
    let start = net.now;
    // Nothing can be sent, so nothing is: the calls wait.
    net.hosts[B].device.went_down();
    net.apply(B, &change);
    net.run_for(secs(3));
    assert_eq!(net.sent(B, "initiation", start), []);
    net.hosts[B].device.came_up(net.now);
    let up = net.now;
    net.drain(B);
    net.run_for(secs(1));
    let called: Vec<_> = (net.sent(B, "initiation", up).iter())
        .map(|datagram| datagram.to)
        .collect();
    let first = called.len();
    assert!((5000..=5040).contains(&first), "{first} in a second");
    // In the order in which they were left, whatever that of the configuration is, but for those that are
    // due at once.
    let mut late = called
        .iter()
        .zip(0_usize..)
        .map(|(to, n)| usize::from(to.port() - 10_000).abs_diff(n));
    assert!(late.all(|places| places <= 32), "{called:?}");
    // A process that ends now leaves the others to the next one.
    assert_eq!(net.hosts[B].device.active_endpoints(), left[first..]);
    net.run_for(secs(60));
    let all = net.sent(B, "initiation", up).len();
    assert_eq!(all, 2 * usize::from(PEERS));
}

#[test]
fn peers_are_left_to_the_next_process_latest_handshake_first() {
    const C: usize = 2;
    let mut net = Net::of(3, 44);
    for (from, inner) in [(A, "10.0.0.1/32"), (C, "10.0.0.3/32")] {
        net.apply(B, &peer(from, |peer| peer.allowed_ips = vec![add(inner)]));
        let at = net.hosts[B].addr;
        net.apply(
            from,
            &peer(B, |peer| {
                peer.allowed_ips = vec![add("10.0.0.2/32")];
                peer.endpoint = Some(at);
            }),
        );
        net.send(from, B, b"x");
        net.run_for(secs(1));
    }
    let order = |net: &Net| {
        let left = net.hosts[B].device.active_endpoints().into_iter();
        left.map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(order(&net), [C, A].map(public_key));
    net.run_for(secs(121));
    net.send(A, B, b"on a session that is old");
    net.run_for(secs(1));
    assert_eq!(order(&net), [A, C].map(public_key));
}

#[test]
fn all_peers_are_remembered_until_their_sessions_would_have_ended() {
    let key = |n: u32| {
        let mut key = [9; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        PublicKey(key)
    };
    for (waits, called) in [(179, 1), (181, 0)] {
        let (mut net, elsewhere) = roamed(45);
        let mut left = net.hosts[B].device.active_endpoints();
        left.extend((0..20_000).map(|n| (key(n), elsewhere)));
        net.hosts[B].device = device(77);
        net.hosts[B].device.went_down();
        net.hosts[B].device.remember(left.clone());
        net.run_for(secs(600));
        assert_eq!(net.hosts[B].device.active_endpoints(), left);
        net.hosts[B].device.came_up(net.now);
        net.drain(B);
        net.run_for(secs(waits));
        let start = net.now;
        let mut change = peer(A, |peer| peer.allowed_ips = vec![add("10.0.0.1/32")]);
        change.private_key = Some(private_key(B));
        net.apply(B, &change);
        net.run_for(secs(2));
        assert_eq!(net.sent(B, "initiation", start).len(), called);
        let left = net.hosts[B].device.active_endpoints().len();
        assert_eq!(left, if called == 0 { 0 } else { 1 });
        assert!(net.hosts[B].device.poll_endpoints_changed());
    }
}
