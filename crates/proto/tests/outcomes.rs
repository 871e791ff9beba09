//! What the device tells of handshake messages: what came of each, and how many left.

mod common;

use adit_proto::config::{DeviceChange, PublicKey, Secret};
use adit_proto::{FailureReason, HandshakeKind, HandshakeOutcome, Liveness, Output, Refusal};
use common::*;

/// The outcome of a datagram that arrives now.
fn outcome(net: &mut Net, host: usize, datagram: &Datagram) -> HandshakeOutcome {
    let (now, wall, load) = (net.now, net.wall(host), net.under_load);
    let device = &mut net.hosts[host].device;
    let outcome = device.handle_handshake(now, wall, datagram.from.into(), &datagram.bytes, load);
    net.drain(host);
    outcome
}

/// A message of A to B, or of B to A, which has not arrived.
fn message(net: &mut Net, from: usize, kind: &str) -> Datagram {
    net.weather.loss = 100;
    net.send(A, B, b"x");
    let mut messages = net.sent(A, "initiation", START);
    if from == B {
        let initiation = messages.pop().unwrap();
        net.deliver(B, initiation.from, &initiation.bytes);
        messages = net.sent(B, kind, START);
    }
    messages.pop().unwrap()
}

#[track_caller]
fn assert_refused(
    outcome: HandshakeOutcome,
    datagram: &Datagram,
    refusal: Refusal,
    peer: Option<PublicKey>,
    line: &str,
) {
    assert_eq!(
        (outcome.refusal, outcome.peer, outcome.from),
        (Some(refusal), peer, datagram.from)
    );
    let told = outcome.to_string();
    assert!(told.contains(line), "{told}");
    assert!(told.contains(&datagram.from.to_string()), "{told}");
}

#[test]
fn an_accepted_message_names_its_peer() {
    let mut net = Net::pair(1);
    let response = message(&mut net, B, "response");
    let told = outcome(&mut net, A, &response);
    let expected = HandshakeOutcome {
        kind: Some(HandshakeKind::Response),
        from: response.from,
        peer: Some(public_key(B)),
        refusal: None,
    };
    assert_eq!(told, expected);
}

#[test]
fn a_wrong_public_key_of_ours_is_told() {
    let mut net = Net::of(3, 2);
    let mut change = peer(B, |peer| {
        peer.endpoint = Some("192.0.2.9:9".parse().unwrap())
    });
    change.peers[0].persistent_keepalive = Some(9);
    net.apply(A, &change);
    let initiation = net.sent(A, "initiation", START).pop().unwrap();
    let told = outcome(&mut net, 2, &initiation);
    let line = "the sender has another public key for this interface";
    assert_refused(told, &initiation, Refusal::BadMac1, None, line);
}

#[test]
fn the_key_of_an_unknown_peer_is_told() {
    let mut net = Net::pair(3);
    let initiation = message(&mut net, A, "initiation");
    net.apply(B, &peer(A, |peer| peer.remove = true));
    let told = outcome(&mut net, B, &initiation);
    let key = public_key(A);
    let line = format!("its static key {key} is no peer of this interface");
    assert_refused(told, &initiation, Refusal::UnknownPeer, Some(key), &line);
}

#[test]
fn a_preshared_key_that_differs_is_told() {
    let mut net = Net::pair(4);
    net.apply(
        B,
        &peer(A, |peer| peer.preshared_key = Some(Secret::new(&[9; 32]))),
    );
    let response = message(&mut net, B, "response");
    let told = outcome(&mut net, A, &response);
    let line = "the peer's preshared key differs from ours";
    assert_refused(
        told,
        &response,
        Refusal::NotAuthentic,
        Some(public_key(B)),
        line,
    );
}

#[test]
fn a_replayed_or_older_timestamp_is_told() {
    let mut net = Net::pair(5);
    let initiation = message(&mut net, A, "initiation");
    assert_eq!(outcome(&mut net, B, &initiation).refusal, None);
    let told = outcome(&mut net, B, &initiation);
    let line = "its timestamp is not newer";
    assert_refused(
        told,
        &initiation,
        Refusal::ReplayedTimestamp,
        Some(public_key(A)),
        line,
    );
}

#[test]
fn a_response_that_comes_twice_is_told() {
    let mut net = Net::pair(6);
    let response = message(&mut net, B, "response");
    assert_eq!(outcome(&mut net, A, &response).refusal, None);
    let told = outcome(&mut net, A, &response);
    let line = "no handshake waits for it";
    assert_refused(
        told,
        &response,
        Refusal::Unexpected,
        Some(public_key(B)),
        line,
    );
}

#[test]
fn a_missing_private_key_and_garbage_are_told() {
    let mut net = Net::pair(7);
    let mut initiation = message(&mut net, A, "initiation");
    let no_key = DeviceChange {
        private_key: Some(Secret::zero()),
        ..DeviceChange::default()
    };
    net.apply(B, &no_key);
    let told = outcome(&mut net, B, &initiation);
    let line = "this interface has no private key";
    assert_refused(told, &initiation, Refusal::NoPrivateKey, None, line);
    initiation.bytes.pop();
    let told = outcome(&mut net, B, &initiation);
    assert_eq!(told.kind, None);
    assert_refused(
        told,
        &initiation,
        Refusal::Invalid,
        None,
        "neither type nor length",
    );
    assert_eq!(net.stats(B).invalid, 2);
}

#[test]
fn a_cookie_that_is_asked_for_is_told() {
    let mut net = Net::pair(8);
    let initiation = message(&mut net, A, "initiation");
    net.under_load = true;
    let told = outcome(&mut net, B, &initiation);
    let line = "asks the sender to prove its address";
    assert_refused(told, &initiation, Refusal::CookieRequired, None, line);
    assert_eq!(net.stats(B).cookies_sent, 1);
}

/// Handshake messages that a host wants sent: of each its datagram and how many before it were in
/// vain. They leave, or cannot.
fn send_all(net: &mut Net, host: usize, left: bool) -> Vec<(Vec<u8>, u32)> {
    let device = &mut net.hosts[host].device;
    let mut sent = Vec::new();
    while let Some(output) = device.poll_output() {
        if let Output::Handshake {
            datagram,
            peer,
            in_vain,
            ..
        } = output
        {
            device.handle_sent(&datagram, peer.as_ref(), left);
            sent.push((datagram.to_vec(), in_vain));
        }
    }
    sent
}

/// The next initiation of A to B.
fn initiate(net: &mut Net, left: bool) -> (Vec<u8>, u32) {
    net.now = net.now + secs(6);
    let (now, wall) = (net.now, net.wall(A));
    let peer = net.peer(A, B);
    peer.want_session();
    net.hosts[A].device.handle_event(now, wall, &peer);
    net.hosts[A].device.handle_timeout(now, wall);
    send_all(net, A, left).pop().unwrap()
}

/// B's answer to an initiation.
fn respond(net: &mut Net, initiation: &[u8], under_load: bool, left: bool) -> (Vec<u8>, u32) {
    let (now, wall, from) = (net.now, net.wall(B), net.hosts[A].addr);
    let device = &mut net.hosts[B].device;
    device.handle_handshake(now, wall, from.into(), initiation, under_load);
    send_all(net, B, left).pop().unwrap()
}

#[test]
fn only_messages_that_left_are_counted_as_sent() {
    let mut net = Net::pair(9);
    for left in [false, true] {
        let (initiation, _) = initiate(&mut net, left);
        respond(&mut net, &initiation, false, left);
        net.now = net.now + secs(6);
        let (initiation, _) = initiate(&mut net, left);
        respond(&mut net, &initiation, true, left);
        net.now = net.now + secs(6);
        let (a, b, sent) = (net.stats(A), net.stats(B), u64::from(left));
        assert_eq!((a.initiations_sent, a.send_failed), (2 * sent, 2));
        assert_eq!((b.responses_sent, b.cookies_sent), (sent, sent));
        assert_eq!(b.send_failed, 2);
        let bytes = (net.status(A, B).tx_bytes, net.status(B, A).tx_bytes);
        assert_eq!(bytes, (2 * sent * 148, sent * 92));
    }
}

#[test]
fn messages_tell_how_many_before_them_were_in_vain() {
    let mut net = Net::pair(10);
    net.apply(
        B,
        &peer(A, |peer| peer.preshared_key = Some(Secret::new(&[9; 32]))),
    );
    // An initiation that could not leave was not in vain.
    for (left, in_vain) in [(true, 0), (false, 1), (true, 1), (true, 2)] {
        let (initiation, of_initiation) = initiate(&mut net, left);
        let (_, of_response) = respond(&mut net, &initiation, false, left);
        assert_eq!((of_initiation, of_response), (in_vain, in_vain));
    }
    // A session that works begins to count anew.
    net.apply(
        B,
        &peer(A, |peer| peer.preshared_key = Some(Secret::zero())),
    );
    net.now = net.now + secs(6);
    net.connect();
    net.now = net.now + secs(200);
    let (initiation, in_vain) = initiate(&mut net, true);
    assert_eq!(
        (in_vain, respond(&mut net, &initiation, false, true).1),
        (0, 0)
    );
}

#[test]
fn a_handshake_given_up_says_how_many_initiations_it_sent() {
    let mut net = Net::pair(11);
    for _ in 0..3 {
        initiate(&mut net, true);
    }
    let mut ends = Vec::new();
    for _ in 0..100 {
        net.now = net.now + secs(1);
        let (now, wall) = (net.now, net.wall(A));
        let device = &mut net.hosts[A].device;
        device.handle_timeout(now, wall);
        while let Some(output) = device.poll_output() {
            match output {
                Output::Handshake { datagram, peer, .. } => {
                    device.handle_sent(&datagram, peer.as_ref(), false);
                }
                Output::DropStaged { given_up_after, .. } => ends.push(given_up_after),
                _ => {}
            }
        }
    }
    assert_eq!(ends, [Some(3)]);
}

#[test]
fn every_counter_has_a_name_a_value_and_an_explanation() {
    let mut net = Net::pair(12);
    net.connect();
    let stats = net.stats(A);
    let named: Vec<_> = stats.counters().collect();
    assert!(named.contains(&(
        "initiations_sent",
        1,
        "Initiations that left, retries included."
    )));
    assert!(
        named
            .iter()
            .all(|(name, _, text)| !name.is_empty() && text.ends_with('.'))
    );
    for refusal in Refusal::ALL {
        assert!(refusal.explanation().ends_with('.'), "{refusal:?}");
    }
}

#[test]
fn a_peer_is_told_up_silent_gone_and_up_again() {
    let mut net = Net::pair(21);
    net.connect();
    assert_eq!(net.news, [(A, "up"), (B, "up")]);
    // Nothing that A sends arrives from now on.
    let handshakes = |net: &Net| net.hosts[A].device.status().peers[0].handshakes.unwrap();
    assert!(handshakes(&net).latency.is_some() && handshakes(&net).last_failure.is_none());
    net.weather.loss = 100;
    net.send(A, B, b"data");
    net.run_for(secs(16));
    assert_eq!(net.news[2..], [(A, "silent")]);
    assert!(handshakes(&net).unanswered > 0);
    net.run_for(secs(120));
    assert_eq!(net.news[3..], [(A, "gone")]);
    let failure = handshakes(&net).last_failure.map(|failure| failure.reason);
    assert_eq!(failure, Some(FailureReason::NoAnswer));
    net.weather = Weather::FAIR;
    net.send(A, B, b"data");
    net.run_for(secs(2));
    assert!(net.news[4..].contains(&(A, "up")), "{:?}", net.news);
    assert_eq!(handshakes(&net).state, Liveness::Up);
}

#[test]
fn a_peer_that_moves_is_told_once_however_it_shows() {
    let mut net = Net::pair(22);
    net.connect();
    net.news.clear();
    // With data.
    net.hosts[A].addr = "198.51.100.7:7".parse().unwrap();
    net.send(A, B, b"data");
    net.send(A, B, b"data");
    net.run_for(secs(1));
    assert_eq!(net.news, [(B, "roamed")]);
    // With a handshake.
    net.hosts[A].addr = "198.51.100.8:8".parse().unwrap();
    net.now = net.now + secs(200);
    net.send(A, B, b"data");
    net.run_for(secs(1));
    let roamed = net.news.iter().filter(|news| **news == (B, "roamed"));
    assert_eq!(roamed.count(), 2, "{:?}", net.news);
}

#[test]
fn a_probe_begins_a_handshake_within_the_limits() {
    let mut net = Net::pair(23);
    net.connect();
    let sessions = net.sessions;
    let probe = |net: &mut Net| {
        let now = net.now;
        let due = net.hosts[A].device.probe(now, &public_key(B)).unwrap();
        due.since(now)
    };
    // The last one has just been: the next may come five seconds later, and no probe changes that.
    let due = probe(&mut net);
    assert!(due > secs(4) && due <= secs(5), "{due:?}");
    net.run_for(secs(2));
    assert_eq!((probe(&mut net), net.sessions), (due - secs(2), sessions));
    net.run_for(secs(4));
    assert_eq!(net.sessions, sessions + 2, "one at each end");
    let now = net.now;
    assert_eq!(net.hosts[A].device.probe(now, &public_key(A)), None);
}
