//! The longest packet that the path to a peer takes, found by probes inside the tunnel.

mod common;

use std::net::IpAddr;

use common::*;

const MTU: u16 = 1420;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A packet of this length leaves A.
fn send(net: &mut Net, len: usize) {
    let peer = net.peer(A, B);
    if peer.path_concerns(|| len) && peer.sample(len, ip("10.0.0.1"), ip("10.0.0.2")) {
        net.event(A, &peer);
    }
}

/// The answers of a path that takes `limit` bytes, until no more probes are sent.
fn answer(net: &mut Net, limit: usize) {
    let peer = net.peer(A, B);
    for _ in 0..20 {
        let probes = std::mem::take(&mut net.probes);
        if probes.is_empty() {
            return;
        }
        for (len, id, sequence) in probes {
            assert_eq!(peer.probe_answered(id ^ 1, sequence), None, "of another");
            if len <= limit && peer.probe_answered(id, sequence) == Some(true) {
                net.event(A, &peer);
            }
        }
        net.run_for(secs(1));
    }
    panic!("the search does not end");
}

fn probing(seed: u64) -> Net {
    let mut net = Net::pair(seed);
    net.hosts[A].device.probe_paths(Some(MTU));
    net.connect();
    net
}

#[test]
fn a_long_packet_begins_one_search_for_each_session() {
    let mut net = probing(1);
    let peer = net.peer(A, B);
    assert!(!peer.path_concerns(|| 1000), "a short packet");
    send(&mut net, 1400);
    assert_eq!(net.probes.len(), 2);
    assert!(peer.is_probing());
    answer(&mut net, MTU.into());
    assert_eq!(peer.path_limit(), None);
    assert!(!peer.is_probing() && !peer.path_concerns(|| 1400));
    // With the next session, the path has become narrower.
    net.run_for(secs(130));
    net.send(A, B, b"rekey");
    net.run_for(secs(1));
    send(&mut net, 1400);
    answer(&mut net, 1300);
    let limit = usize::from(peer.path_limit().expect("a limit"));
    assert!((1285..=1300).contains(&limit), "{limit}");
    assert!(peer.path_concerns(|| limit + 1) && !peer.path_concerns(|| limit));
    assert!(net.news.contains(&(A, "path")));
    // And wider again.
    net.run_for(secs(130));
    net.send(A, B, b"rekey");
    net.run_for(secs(1));
    send(&mut net, 1400);
    answer(&mut net, MTU.into());
    assert_eq!(peer.path_limit(), None);
}

#[test]
fn a_peer_that_answers_no_probe_gets_no_limit() {
    let mut net = probing(1);
    send(&mut net, 1400);
    answer(&mut net, 0);
    assert_eq!(net.peer(A, B).path_limit(), None);
    assert!(!net.peer(A, B).is_probing());
}

#[test]
fn nothing_is_probed_unless_the_embedder_asks() {
    let mut net = Net::pair(1);
    net.connect();
    send(&mut net, 1400);
    assert!(net.probes.is_empty());
}
