//! A gateway that takes the place of another one, whose peers it calls: it has the key of that one, and none of its
//! sessions.

mod common;

use std::net::{IpAddr, SocketAddr};

use adit_proto::{LastSeen, PeerCall, Time};
use common::*;

/// A is connected to B, whose place another gateway takes: the second value is A's endpoint.
fn taken_over(seed: u64) -> (Net, SocketAddr) {
    let mut net = Net::pair(seed);
    net.connect();
    let at = net.status(B, A).endpoint.expect("it is known");
    net.hosts[B].device = device(77);
    let mut change = peer(A, |peer| peer.allowed_ips = vec![add("10.0.0.1/32")]);
    change.private_key = Some(private_key(B));
    net.apply(B, &change);
    (net, at)
}

fn call(net: &mut Net, at: Option<SocketAddr>, from: Option<IpAddr>) -> PeerCall {
    let last = LastSeen {
        at,
        ..LastSeen::default()
    };
    call_as(net, last, from)
}

fn call_as(net: &mut Net, last: LastSeen, from: Option<IpAddr>) -> PeerCall {
    let called = net.hosts[B]
        .device
        .call(net.now, &public_key(A), last, from);
    net.drain(B);
    called
}

fn has_session(net: &Net) -> bool {
    net.peer(B, A).current().is_some()
}

#[test]
fn a_peer_that_is_called_is_there_at_once_and_one_that_is_not_only_when_it_misses_an_answer() {
    let (mut net, at) = taken_over(50);
    net.send(A, B, b"to the one before");
    net.run_for(secs(10));
    assert!(!has_session(&net));
    assert_eq!(call(&mut net, Some(at), None), PeerCall::Due);
    net.run_for(millis(200));
    assert!(has_session(&net));
    net.send(A, B, b"to this one");
    net.run_for(millis(200));
    let came = &net.hosts[B].delivered;
    assert!(came.iter().any(|text| text == b"to this one"), "{came:?}");
}

#[test]
fn a_call_leaves_from_the_address_that_moved() {
    let (mut net, at) = taken_over(51);
    let moved: IpAddr = "192.0.2.100".parse().expect("an address");
    let src = |net: &Net| net.peer(B, A).endpoint().and_then(|to| to.src);
    // It is of the other family.
    call(
        &mut net,
        Some(at),
        Some("2001:db8::1".parse().expect("an address")),
    );
    assert_eq!(src(&net), None);
    assert_eq!(call(&mut net, Some(at), Some(moved)), PeerCall::Due);
    assert_eq!(src(&net).map(|src| src.ip), Some(moved));
    // The response is lost.
    net.hosts[A].running = Running::Asleep;
    net.run_for(secs(6));
    assert_eq!(src(&net).map(|src| src.ip), Some(moved));
}

#[test]
fn a_call_to_another_place_does_not_wait_for_the_one_before() {
    let (mut net, at) = taken_over(52);
    let start = net.now;
    let initiations = |net: &Net, since: Time| {
        let sent = net.sent(B, "initiation", since).into_iter();
        sent.map(|datagram| datagram.to).collect::<Vec<_>>()
    };
    let elsewhere = "203.0.113.5:5".parse().expect("an address");
    call(&mut net, Some(elsewhere), None);
    net.run_for(millis(50));
    // The same one again: the protocol allows one initiation in five seconds.
    call(&mut net, None, None);
    net.run_for(millis(50));
    assert_eq!(initiations(&net, start), [elsewhere]);
    let again = net.now;
    call(&mut net, Some(at), None);
    net.run_for(millis(200));
    assert_eq!(initiations(&net, again), [at]);
    assert!(has_session(&net));
}

#[test]
fn peers_that_are_here_and_those_that_nobody_knows_are_not_called() {
    let (mut net, at) = taken_over(53);
    let nobody = net.hosts[B]
        .device
        .call(net.now, &public_key(7), LastSeen::at(at), None);
    assert_eq!(nobody, PeerCall::IsNoPeer);
    assert_eq!(call(&mut net, None, None), PeerCall::HasNoEndpoint);
    call(&mut net, Some(at), None);
    net.run_for(millis(200));
    net.send(A, B, b"here");
    net.run_for(millis(200));
    let (start, elsewhere) = (net.now, "203.0.113.5:5".parse().expect("an address"));
    assert_eq!(call(&mut net, Some(elsewhere), None), PeerCall::IsHere);
    net.run_for(secs(10));
    assert_eq!(net.sent(B, "initiation", start), []);
    assert_eq!(net.status(B, A).endpoint, Some(at));
}

#[test]
fn a_session_that_is_older_than_one_elsewhere_does_not_keep_a_call_away() {
    let mut net = Net::pair(54);
    net.connect();
    // Another gateway has it for six seconds, and its list is not of today.
    net.run_for(secs(6));
    let (before, at) = (net.session(B, A).local_index(), net.status(B, A).endpoint);
    let elsewhere = "203.0.113.5:5".parse().expect("an address");
    assert_eq!(call(&mut net, Some(elsewhere), None), PeerCall::Due);
    net.run_for(millis(200));
    assert_ne!(net.session(B, A).local_index(), before);
    assert_eq!(net.status(B, A).endpoint, at);
}

#[test]
fn a_peer_that_is_called_often_waits_for_one_call() {
    let (mut net, at) = taken_over(55);
    net.hosts[B].device.went_down();
    for _ in 0..100 {
        call(&mut net, Some(at), None);
    }
    let start = net.now;
    net.hosts[B].device.came_up(net.now);
    net.drain(B);
    net.run_for(secs(4));
    assert_eq!(net.sent(B, "initiation", start).len(), 1);
}

/// The other gateway's clock is 30 s ahead of that of the one that calls.
#[test]
fn a_slow_clock_keeps_a_call_from_those_alone_whom_the_other_gateway_had_just_called() {
    let slow = |net: &mut Net, knows_timestamps: bool| {
        net.hosts[B].skew = -30;
        let mut last = LastSeen {
            at: net.status(B, A).endpoint,
            ..LastSeen::default()
        };
        if knows_timestamps {
            last = net.told[&B];
        }
        net.hosts[B].device = device(77);
        let mut change = peer(A, |peer| peer.allowed_ips = vec![add("10.0.0.1/32")]);
        change.private_key = Some(private_key(B));
        net.apply(B, &change);
        assert_eq!(call_as(net, last, None), PeerCall::Due);
        net.run_for(secs(12));
    };
    let called_before = |seed: u64| {
        let mut net = Net::pair(seed);
        net.connect();
        net.run_for(secs(6));
        let before = net.session(A, B).local_index();
        assert_eq!(call(&mut net, None, None), PeerCall::Due);
        net.run_for(secs(1));
        assert_ne!(net.session(A, B).local_index(), before);
        net
    };
    // The peer began its session itself.
    let mut net = Net::pair(56);
    net.connect();
    slow(&mut net, false);
    assert!(has_session(&net));

    // Both calls are refused: the peer has seen a later time. It comes by itself.
    let mut net = called_before(57);
    slow(&mut net, false);
    assert!(!has_session(&net));
    net.send(A, B, b"to the one before");
    net.run_for(secs(20));
    assert!(has_session(&net));

    // Half a minute after that handshake, the time of the call is later.
    let mut net = called_before(58);
    net.run_for(secs(30));
    slow(&mut net, false);
    assert!(has_session(&net));

    // It is told what the other gateway sent last.
    let mut net = called_before(59);
    slow(&mut net, true);
    assert!(has_session(&net));
}

/// An attacker sends a recorded initiation to this gateway, which has not seen the first one.
#[test]
fn a_copy_of_an_initiation_to_the_other_gateway_is_refused() {
    for knows_timestamps in [true, false] {
        let mut net = Net::pair(60);
        net.connect();
        let copy = net.sent(A, "initiation", Time(0));
        let copy = copy.last().expect("it was sent").clone();
        net.hosts[B].device = device(77);
        let mut change = peer(A, |peer| peer.allowed_ips = vec![add("10.0.0.1/32")]);
        change.private_key = Some(private_key(B));
        net.apply(B, &change);
        let mut last = LastSeen::default();
        if knows_timestamps {
            last.received = net.told[&B].received;
        }
        assert_eq!(call_as(&mut net, last, None), PeerCall::HasNoEndpoint);
        let start = net.now;
        net.replay(copy);
        net.run_for(secs(1));
        let answers = net.sent(B, "response", start).len();
        assert_eq!(answers, usize::from(!knows_timestamps));
    }
}
