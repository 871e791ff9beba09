//! The end of a peer's access: by its time or its quota, and how it comes back.

mod common;

use std::time::Duration;

use adit_proto::{Access, Allowance, DropReason, Liveness, Output};
use common::*;

/// Host A lets B do this much from now on.
fn allow(net: &mut Net, allowance: Allowance, anew: bool) {
    let (now, wall) = (net.now, net.wall(A));
    let device = &mut net.hosts[A].device;
    assert!(
        device
            .set_allowance(now, wall, (&public_key(B), &allowance, anew))
            .is_some()
    );
    net.drain(A);
}

fn access(net: &Net) -> Option<Access> {
    net.status(A, B).allowance.map(|it| it.access)
}

/// How many datagrams A sent to B since then.
fn sent_by_a(net: &Net, since: adit_proto::Time) -> usize {
    let kinds = ["initiation", "response", "data", "keepalive"];
    kinds
        .iter()
        .map(|kind| net.sent(A, kind, since).len())
        .sum()
}

/// Neither side gets anything to the other for a while, and A says nothing at all.
#[track_caller]
fn assert_silence(net: &mut Net) {
    let since = net.now;
    let (a, b) = (net.hosts[A].delivered.len(), net.hosts[B].delivered.len());
    for _ in 0..20 {
        net.send(A, B, b"from A");
        net.send(B, A, b"from B");
        net.run_for(secs(6));
    }
    assert_eq!(sent_by_a(net, since), 0);
    assert_eq!(
        (net.hosts[A].delivered.len(), net.hosts[B].delivered.len()),
        (a, b)
    );
}

#[track_caller]
fn assert_connects(net: &mut Net) {
    let (a, b) = (net.hosts[A].delivered.len(), net.hosts[B].delivered.len());
    net.send(B, A, b"from B");
    net.run_for(secs(20));
    net.send(A, B, b"from A");
    net.run_for(secs(20));
    assert!(net.hosts[A].delivered.len() > a && net.hosts[B].delivered.len() > b);
}

#[test]
fn an_expired_peer_is_silent_within_a_second_and_its_session_is_gone() {
    let mut net = Net::pair(1);
    net.connect();
    let expires = Some(net.wall(A).to_unix() + secs(100));
    allow(
        &mut net,
        Allowance {
            expires,
            ..Allowance::default()
        },
        false,
    );
    net.run_for(secs(98));
    assert_connects_without_waiting(&mut net);
    net.run_for(secs(3));
    assert_eq!(access(&net), Some(Access::Expired));
    assert!(net.peer(A, B).is_barred() && net.peer(A, B).current().is_none());
    let state = net.status(A, B).handshakes.map(|it| it.state);
    assert_eq!(state, Some(Liveness::Gone));
    assert_silence(&mut net);
    assert!(net.stats(A).no_access > 0);
    // It is given more time, and comes back by itself.
    let expires = Some(net.wall(A).to_unix() + secs(10_000));
    allow(
        &mut net,
        Allowance {
            expires,
            ..Allowance::default()
        },
        false,
    );
    assert_connects(&mut net);
    assert_eq!(access(&net), Some(Access::Open));
}

/// Data passes in the session that there is.
#[track_caller]
fn assert_connects_without_waiting(net: &mut Net) {
    let b = net.hosts[B].delivered.len();
    net.send(A, B, b"still here");
    net.run_for(millis(200));
    assert_eq!(net.hosts[B].delivered.len(), b + 1);
}

#[test]
fn who_has_expired_before_gets_no_session() {
    let mut net = Net::pair(2);
    allow(
        &mut net,
        Allowance {
            expires: Some(secs(1)),
            ..Allowance::default()
        },
        false,
    );
    assert_silence(&mut net);
}

#[test]
fn a_quota_ends_access_and_a_new_one_counts_from_then() {
    let mut net = Net::pair(3);
    net.connect();
    let went = |net: &Net| net.status(A, B).rx_bytes + net.status(A, B).tx_bytes;
    let quota = Some(went(&net) + 20_000);
    allow(
        &mut net,
        Allowance {
            quota,
            ..Allowance::default()
        },
        false,
    );
    assert_eq!(
        net.status(A, B).allowance.map(|it| it.used),
        Some(went(&net))
    );
    for _ in 0..10 {
        net.send(A, B, &[1; 1000]);
        net.run_for(millis(300));
    }
    assert_eq!(access(&net), Some(Access::Open));
    for _ in 0..15 {
        net.send(A, B, &[1; 1000]);
        net.run_for(millis(300));
    }
    assert_eq!(access(&net), Some(Access::OverQuota));
    assert_silence(&mut net);
    // Said again, as a file that is read again says it, it changes nothing.
    allow(
        &mut net,
        Allowance {
            quota,
            ..Allowance::default()
        },
        false,
    );
    assert_silence(&mut net);
    allow(
        &mut net,
        Allowance {
            quota: Some(10_000),
            ..Allowance::default()
        },
        true,
    );
    assert_eq!(net.status(A, B).allowance.map(|it| it.used), Some(0));
    assert_connects(&mut net);
}

#[test]
fn what_earlier_processes_counted_of_a_quota_counts() {
    let mut net = Net::pair(7);
    net.connect();
    let quota = |bytes| Allowance {
        quota: Some(bytes),
        ..Allowance::default()
    };
    let used = |net: &Net| net.status(A, B).allowance.map(|it| it.used);
    let device = &mut net.hosts[A].device;
    assert_eq!(device.used(), []);
    device.remember_used([(public_key(B), 30_000), (public_key(7), 5)]);
    // Who has no quota yet is kept for one more process.
    let mut kept = device.used();
    kept.sort();
    let mut both = [(public_key(B), 30_000), (public_key(7), 5)];
    both.sort();
    assert_eq!(kept, both);
    let went = net.status(A, B).rx_bytes + net.status(A, B).tx_bytes;
    allow(&mut net, quota(50_000), false);
    assert_eq!(used(&net), Some(30_000 + went));
    let device = &mut net.hosts[A].device;
    device.forget_used();
    assert_eq!(device.used(), [(public_key(B), 30_000 + went)]);
    for _ in 0..25 {
        net.send(A, B, &[1; 1000]);
        net.run_for(millis(300));
    }
    assert_eq!(access(&net), Some(Access::OverQuota));
    // A new quota counts from then, and what no quota is left of is not kept.
    allow(&mut net, quota(10_000), true);
    assert_eq!(used(&net), Some(0));
    allow(&mut net, Allowance::default(), false);
    assert_eq!(net.hosts[A].device.used(), []);
    // One that was counted before, and is given anew, counts from then, too, also the greatest number.
    let device = &mut net.hosts[A].device;
    device.remember_used([(public_key(B), u64::MAX)]);
    allow(&mut net, quota(10_000), true);
    assert_eq!(used(&net), Some(0));
    allow(&mut net, Allowance::default(), false);
    net.hosts[A]
        .device
        .remember_used([(public_key(B), u64::MAX)]);
    allow(&mut net, quota(10_000), false);
    assert_eq!(used(&net), Some(u64::MAX));
    assert_eq!(access(&net), Some(Access::OverQuota));
}

#[test]
fn the_end_is_told_once_and_staged_packets_are_dropped() {
    let mut net = Net::pair(4);
    net.weather.loss = 100;
    net.send(A, B, b"waits for a session");
    let drops = net.hosts[A].staged_drops;
    allow(
        &mut net,
        Allowance {
            expires: Some(secs(1)),
            ..Allowance::default()
        },
        false,
    );
    assert_eq!(net.hosts[A].staged_drops, drops + 1);
    net.run_for(secs(300));
    let told = net.news.iter().filter(|news| **news == (A, "expired"));
    assert_eq!(told.count(), 1);
    allow(&mut net, Allowance::default(), false);
    assert_eq!(
        net.news.iter().filter(|news| **news == (A, "open")).count(),
        1
    );
    assert_eq!(net.status(A, B).allowance, None);
}

#[test]
fn limits_are_told_to_the_threads_that_process_packets() {
    let mut net = Net::pair(5);
    assert!(net.peer(A, B).limits().is_none());
    let to_peer = Some(1_000_000);
    allow(
        &mut net,
        Allowance {
            to_peer,
            ..Allowance::default()
        },
        false,
    );
    let peer = net.peer(A, B);
    let limits = peer.limits().expect("limits");
    assert!(limits.to_peer.is_set() && !limits.from_peer.is_set());
    allow(&mut net, Allowance::default(), false);
    assert!(!limits.to_peer.is_set());
    // No timer runs for that.
    let device = &mut net.hosts[A].device;
    assert!(device.next_deadline().is_none());
    assert!(!matches!(
        device.poll_output(),
        Some(Output::Handshake { .. })
    ));
    assert!(DropReason::ALL.contains(&DropReason::LimitToPeer));
}

#[test]
fn an_unknown_peer_is_told() {
    let mut net = Net::pair(6);
    let (now, wall) = (net.now, net.wall(A));
    let allowance = Allowance {
        expires: Some(Duration::ZERO),
        ..Allowance::default()
    };
    let device = &mut net.hosts[A].device;
    assert!(
        device
            .set_allowance(now, wall, (&public_key(7), &allowance, false))
            .is_none()
    );
}
