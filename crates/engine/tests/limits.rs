//! Peers with limits and without access: what is dropped for that is counted, and everything else passes.
//! A TUN whose frames can wait is the kernel's: `io/tun/fair_queues_tests.rs` and e2e `allowances`.

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::time::{Duration, Instant};

use adit_engine::{GivenAllowance, Policy};
use adit_proto::Allowance;
use adit_proto::config::{DeviceChange, PeerChange, PublicKey};
use common::{A, B, EnginePair, Options, inner_ip, public, udp_frame};

/// A lets B do this much from now on.
fn allow(pair: &EnginePair, allowance: Allowance) -> usize {
    let given = GivenAllowance {
        peer: public(B),
        allowance,
        anew: false,
    };
    let changed = pair.sides[A].interface.allow(vec![given], true);
    changed.expect("it runs").len()
}

/// Sends so many packets of 1,000 bytes, and returns how many arrive.
fn send(pair: &EnginePair, from: usize, count: u16) -> usize {
    let mut arrived = 0;
    for n in 0..count {
        let (own, other) = (inner_ip(from), inner_ip(1 - from));
        pair.inject(from, udp_frame(own, other, (n, 9), n, &[7; 972]));
        if n % 16 == 15 {
            // The ring has room for some hundreds.
            std::thread::sleep(Duration::from_millis(5));
            arrived += pair.delivered_now(1 - from).len();
        }
    }
    arrived + rest(pair, 1 - from)
}

/// What arrives until nothing does for a while.
fn rest(pair: &EnginePair, side: usize) -> usize {
    let mut arrived = 0;
    loop {
        let now = pair.delivered_now(side).len();
        arrived += now;
        if now == 0 {
            std::thread::sleep(Duration::from_millis(100));
            let later = pair.delivered_now(side).len();
            arrived += later;
            if later == 0 {
                return arrived;
            }
        }
    }
}

fn connect(pair: &EnginePair) {
    pair.inject(A, udp_frame(inner_ip(A), inner_ip(B), (1, 9), 0, b"hello"));
    assert_eq!(pair.delivered(B, 1).len(), 1);
}

#[test]
fn more_than_the_limit_is_dropped_in_each_direction_and_counted() {
    for policy in [Policy::Inline, Policy::Pipeline] {
        let pair = EnginePair::new(Options {
            shards: 2,
            policy,
            ..Options::default()
        });
        connect(&pair);
        // Some 20 packets a second: what is sent in less time than that is far too much.
        let rate = Some(20_000);
        let limits = Allowance {
            to_peer: rate,
            from_peer: rate,
            ..Allowance::default()
        };
        assert_eq!(allow(&pair, limits), 1);
        assert_eq!(allow(&pair, limits), 0, "it is what it was");
        for (from, reason) in [(A, "limit_to_peer"), (B, "limit_from_peer")] {
            let arrived = send(&pair, from, 400) as u64;
            pair.wait_for_drops(A, reason, 1);
            assert_eq!(arrived + pair.drops(A, reason), 400, "{reason}");
            assert!(arrived < 300, "{arrived}");
        }
        // Without limits everything passes.
        assert_eq!(allow(&pair, Allowance::default()), 1);
        assert_eq!(send(&pair, A, 160), 160);
        assert_eq!(send(&pair, B, 160), 160);
    }
}

#[test]
fn nothing_goes_to_a_peer_without_access() {
    let pair = EnginePair::new(Options::default());
    connect(&pair);
    let over = Allowance {
        expires: Some(Duration::from_secs(1)),
        ..Allowance::default()
    };
    assert_eq!(allow(&pair, over), 1);
    assert_eq!(send(&pair, A, 10), 0);
    pair.wait_for_drops(A, "no_access", 10);
    // Its session is gone with it.
    assert_eq!(send(&pair, B, 10), 0);
    pair.wait_for_drops(A, "unknown_session", 1);
    allow(&pair, Allowance::default());
    // The last initiation to it may be less than five seconds ago.
    pair.inject(A, udp_frame(inner_ip(A), inner_ip(B), (1, 9), 0, b"again"));
    let start = Instant::now();
    while pair.delivered_now(B).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "no session");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn thousands_of_peers_are_allowed_in_pieces_and_one_request_is_for_all() {
    const PEERS: u32 = 3_000;
    let pair = EnginePair::new(Options::default());
    let key = |n: u32| {
        let mut key = [9; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        PublicKey(key)
    };
    let peers = (0..PEERS).map(|n| PeerChange::new(key(n)));
    let interface = &pair.sides[A].interface;
    let peers = DeviceChange {
        peers: peers.collect(),
        ..DeviceChange::default()
    };
    interface.set(peers).expect("few peers");
    let given = |peers: std::ops::Range<u32>, rate: u64| -> Vec<GivenAllowance> {
        let given = peers.map(|n| GivenAllowance {
            peer: key(n),
            allowance: Allowance {
                to_peer: Some(rate),
                ..Allowance::default()
            },
            anew: false,
        });
        given.collect()
    };
    let limited = || {
        let status = interface.get().expect("it runs");
        status
            .peers
            .iter()
            .filter(|peer| peer.allowance.is_some())
            .count()
    };
    let allow = |given| interface.allow(given, true).expect("it runs").len();
    assert_eq!(allow(given(0..PEERS, 1_000)), PEERS as usize);
    assert_eq!(limited(), PEERS as usize);
    // Nothing that stays is touched.
    assert_eq!(allow(given(0..PEERS, 1_000)), 0);
    assert_eq!(allow(given(0..10, 1_000)), PEERS as usize - 10);
    assert_eq!(limited(), 10);
    assert_eq!(allow(Vec::new()), 10);
    assert_eq!(limited(), 0);
}
