//! A peer whose endpoint is a name with several addresses, some of which lead nowhere.

mod common;

use std::net::SocketAddr;

use adit_proto::limits::{MAX_CANDIDATES, REKEY_TIMEOUT, STAGGER};
use common::*;

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const V6: &str = "[2001:db8::2]:51820";
const V4: &str = "192.0.2.2:51820";
const NEW: &str = "198.51.100.7:51820";

/// A knows B at an IPv6 address, and by a name with these addresses.
fn named(candidates: &[SocketAddr]) -> Net {
    let mut net = Net::pair(1);
    net.hosts[B].aliases = vec![addr(V6), addr(NEW)];
    net.apply(A, &peer(B, |peer| peer.endpoint = Some(addr(V6))));
    name(&mut net, candidates);
    net
}

fn name(net: &mut Net, candidates: &[SocketAddr]) {
    let now = net.now;
    let device = &mut net.hosts[A].device;
    device.set_candidates(now, &public_key(B), Some(candidates));
    net.drain(A);
}

fn endpoint(net: &Net) -> SocketAddr {
    net.peer(A, B).endpoint().unwrap().addr
}

/// Where A's initiations went since then.
fn initiations(net: &Net, since: adit_proto::Time) -> Vec<SocketAddr> {
    let sent = net.sent(A, "initiation", since);
    sent.iter().map(|datagram| datagram.to).collect()
}

#[test]
fn a_lost_family_costs_a_quarter_of_a_second() {
    let mut net = named(&[addr(V6), addr(V4)]);
    net.black_holes.push(|datagram| datagram.to.is_ipv6());
    net.send(A, B, b"first");
    net.run_for(STAGGER + millis(30));
    assert_eq!(net.hosts[B].delivered, [b"first"]);
    assert_eq!(endpoint(&net), addr(V4));
    // The same message, since a responder takes one in 20 ms and a newer one each time.
    let sent = net.sent(A, "initiation", START);
    assert_eq!(sent[0].bytes, sent[1].bytes);
    assert_eq!(initiations(&net, START), [addr(V6), addr(V4)]);
}

#[test]
fn a_name_that_comes_behind_an_initiation_sends_no_empty_copies() {
    let mut net = Net::pair(1);
    net.apply(A, &peer(B, |peer| peer.endpoint = Some(addr(V6))));
    net.black_holes.push(|datagram| datagram.to.is_ipv6());
    net.hosts[B].aliases = vec![addr(V6)];
    net.send(A, B, b"first");
    name(&mut net, &[addr(V6), addr(V4)]);
    net.run_for(REKEY_TIMEOUT + STAGGER * 3);
    assert!(net.log.iter().all(|datagram| !datagram.bytes.is_empty()));
    assert_eq!(net.hosts[B].delivered, [b"first"]);
}

#[test]
fn an_endpoint_that_answers_gets_the_only_copy() {
    let mut net = named(&[addr(V4), addr(V6)]);
    net.connect();
    net.run_for(secs(2));
    assert_eq!(initiations(&net, START), [addr(V6)]);
    assert_eq!(endpoint(&net), addr(V6));
}

#[test]
fn a_path_that_loses_only_responses_wins_no_second_race() {
    let mut net = named(&[addr(V6), addr(V4)]);
    net.black_holes
        .push(|datagram| datagram.from == addr(V6) && datagram.kind() == "response");
    net.send(A, B, b"first");
    net.run_for(REKEY_TIMEOUT * 3);
    assert_eq!(net.hosts[B].delivered, [b"first"]);
    assert_eq!(endpoint(&net), addr(V4));
}

#[test]
fn a_name_that_moves_disturbs_no_session_that_works() {
    let mut net = named(&[addr(V6)]);
    net.connect();
    name(&mut net, &[addr(NEW)]);
    for _ in 0..150 {
        net.send(A, B, b"data");
        net.send(B, A, b"data");
        net.run_for(secs(1));
    }
    assert_eq!(endpoint(&net), addr(V6));
    // The rekeying went to the old address, too.
    let sent = initiations(&net, START);
    assert!(sent.len() >= 2 && sent.iter().all(|to| *to == addr(V6)));
}

#[test]
fn a_name_that_moved_is_followed_when_the_peer_is_silent() {
    let mut net = named(&[addr(V6)]);
    net.connect();
    // B's keepalive.
    net.run_for(secs(15));
    net.news.clear();
    net.black_holes.push(|datagram| datagram.to == addr(V6));
    let lost = net.now;
    // The first initiation after 15 s, and the second when nothing answers that one.
    while !net.news.contains(&(A, "unanswered")) {
        assert!(net.now.since(lost) < secs(23));
        net.send(A, B, b"data");
        net.run_for(secs(1));
    }
    let told = net.now;
    name(&mut net, &[addr(NEW)]);
    net.run_for(STAGGER + millis(30));
    assert_eq!(endpoint(&net), addr(NEW), "after {:?}", net.now.since(told));
}

#[test]
fn a_roamed_endpoint_comes_before_those_of_the_name() {
    let mut net = named(&[addr(V6)]);
    net.connect();
    net.run_for(secs(15));
    // B moves to an address that the name does not have, and is heard from there.
    let keepalive = {
        let peer = net.peer(B, A);
        seal(&peer, net.now, &[]).unwrap().1
    };
    net.deliver(A, addr(NEW), &keepalive);
    assert_eq!(endpoint(&net), addr(NEW));
    name(&mut net, &[addr(V6), addr(V4)]);
    assert_eq!(endpoint(&net), addr(NEW));
    net.run_for(secs(200));
    let since = net.now;
    net.send(A, B, b"again");
    net.run_for(millis(100));
    assert_eq!(initiations(&net, since), [addr(NEW)]);
}

#[test]
fn a_silent_peer_is_moved_where_its_name_leads() {
    let mut net = named(&[addr(V6)]);
    net.connect();
    name(&mut net, &[addr(NEW)]);
    assert_eq!(endpoint(&net), addr(V6));
    net.run_for(secs(190));
    name(&mut net, &[addr(V4)]);
    // The present one is not of the last answer; the next is.
    name(&mut net, &[addr(V6)]);
    net.run_for(secs(1));
    name(&mut net, &[addr(NEW)]);
    assert_eq!(endpoint(&net), addr(NEW));
}

#[test]
fn copies_that_cannot_leave_cost_no_time() {
    let mut net = named(&[addr(V6), addr(V4)]);
    net.send(A, B, b"first");
    let now = net.now;
    let peer = net.peer(A, B);
    // As if there were no route to the first: the engine says that it was not sent.
    let message = net.sent(A, "initiation", START).remove(0).bytes;
    net.black_holes.push(|datagram| datagram.to.is_ipv6());
    net.hosts[A]
        .device
        .handle_sent(&message, Some(&peer), false);
    net.drain(A);
    assert_eq!(net.now, now);
    assert_eq!(initiations(&net, START), [addr(V6), addr(V4)]);
    assert_eq!(net.status(A, B).handshakes.unwrap().last_failure, None);
}

#[test]
fn a_race_is_bounded_and_alternates_families() {
    let of = |n: u8, v6| match v6 {
        true => addr(&format!("[2001:db8:1::{n}]:1")),
        false => addr(&format!("203.0.113.{n}:1")),
    };
    let mut many: Vec<SocketAddr> = (0..20).map(|n| of(n, true)).collect();
    many.extend((0..20).map(|n| of(n, false)));
    many.push(many[0]);
    let mut net = named(&many);
    net.black_holes
        .push(|datagram| datagram.kind() == "initiation");
    net.send(A, B, b"first");
    net.run_for(REKEY_TIMEOUT - millis(1));
    let sent = initiations(&net, START);
    assert_eq!(sent.len(), MAX_CANDIDATES);
    for (at, to) in sent.iter().enumerate() {
        assert_eq!(*to, of(u8::try_from(at / 2).unwrap(), at % 2 == 0));
    }
}

#[test]
fn an_endpoint_that_is_set_by_hand_ends_the_name() {
    let mut net = named(&[addr(V6), addr(V4)]);
    net.apply(A, &peer(B, |peer| peer.endpoint = Some(addr(NEW))));
    net.black_holes.push(|_| true);
    net.send(A, B, b"first");
    net.run_for(REKEY_TIMEOUT * 3);
    assert!(initiations(&net, START).iter().all(|to| *to == addr(NEW)));
    assert!(!net.news.contains(&(A, "unanswered")));
}
