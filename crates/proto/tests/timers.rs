//! Every timer of the whitepaper's section 6, on the virtual clock.

mod common;

use std::sync::Arc;

use adit_proto::Output;
use adit_proto::config::{DeviceChange, PeerChange};
use common::*;

#[test]
fn the_first_packet_starts_a_handshake_and_arrives_after_it() {
    let mut net = Net::pair(1);
    net.send(A, B, b"hello");
    net.run_for(millis(50));
    assert_eq!(net.hosts[B].delivered, [b"hello"]);
    let kinds: Vec<_> = net.log.iter().map(Datagram::kind).collect();
    assert_eq!(
        kinds,
        ["initiation", "response", "data"],
        "and no keepalive"
    );
    assert_eq!(net.status(A, B).tx_bytes, 148 + 37);
    assert_eq!(net.status(A, B).rx_bytes, 92);
    assert_eq!(net.status(B, A).rx_bytes, 148 + 37);
    assert_eq!(net.status(B, A).tx_bytes, 92);
    let of = |host, peer| net.status(host, peer).last_handshake.unwrap();
    assert_eq!(
        (of(A, B).as_secs(), of(B, A).as_secs()),
        (1_800_000_000, 1_800_000_000)
    );
}

#[test]
fn an_initiator_with_nothing_to_send_confirms_with_a_keepalive() {
    let mut net = Net::pair(1);
    let to = net.hosts[B].addr;
    net.apply(
        A,
        &peer(B, |peer| {
            peer.endpoint = Some(to);
            peer.persistent_keepalive = Some(1000);
        }),
    );
    net.run_for(millis(50));
    let kinds: Vec<_> = net.log.iter().map(Datagram::kind).collect();
    assert_eq!(kinds, ["initiation", "response", "keepalive"]);
    assert!(net.peer(B, A).current().is_some());
}

#[test]
fn an_expired_session_sends_nothing_and_a_handshake_starts() {
    let mut net = Net::pair(1);
    net.send(A, B, b"x");
    net.run_for(millis(50));
    let offered = |net: &Net| net.peer(A, B).session(net.now).is_some();
    assert!(offered(&net));
    net.run_for(secs(181));
    assert!(net.peer(A, B).current().is_some(), "its keys live on");
    assert!(!offered(&net), "but it sends nothing");
    net.send(A, B, b"y");
    net.run_for(millis(50));
    assert_eq!(net.hosts[B].delivered, [b"x", b"y"]);
    assert!(offered(&net));
}

#[test]
fn the_responder_sends_nothing_before_the_initiator_confirmed() {
    let mut net = Net::pair(1);
    net.send(A, B, b"x");
    net.run_for(millis(5));
    assert_eq!(net.stats(B).responses_sent, 1);
    assert!(net.peer(B, A).current().is_none());
    net.send(B, A, b"staged");
    net.run_for(millis(4));
    assert!(net.sent(B, "data", START).is_empty());
    net.run_for(millis(20));
    assert_eq!(net.hosts[A].delivered, [b"staged"]);
    assert_eq!(net.stats(B).initiations_sent, 0);
    assert_eq!(net.stats(B).confirmed, 1);
}

#[test]
fn initiations_are_repeated_after_5_seconds_and_up_to_333_ms() {
    let mut net = Net::pair(2);
    net.weather.loss = 100;
    net.send(A, B, b"x");
    net.run_for(secs(80));
    let times: Vec<_> = net
        .sent(A, "initiation", START)
        .iter()
        .map(|sent| sent.at)
        .collect();
    assert!(times.len() >= 15);
    let pauses: Vec<_> = times
        .windows(2)
        .map(|pair| pair[1].since(pair[0]))
        .collect();
    assert!(
        pauses
            .iter()
            .all(|pause| (5000..=5333).contains(&pause.as_millis()))
    );
    assert!(pauses.windows(2).any(|pair| pair[0] != pair[1]), "jitter");
}

#[test]
fn hosts_that_start_together_do_not_stay_in_phase() {
    let retries = |seed| {
        let mut net = Net::pair(seed);
        net.weather.loss = 100;
        net.send(A, B, b"x");
        net.run_for(secs(80));
        let sent = net.sent(A, "initiation", START);
        sent.iter().map(|sent| sent.at).collect::<Vec<_>>()
    };
    let (one, other) = (retries(2), retries(3));
    let same = one.iter().zip(&other).filter(|(one, other)| one == other);
    assert_eq!(same.count(), 1, "only the first leaves at the same time");
}

#[test]
fn a_handshake_and_its_staged_packets_are_given_up_after_90_s() {
    let mut net = Net::pair(3);
    net.weather.loss = 100;
    net.send(A, B, b"x");
    net.run_for(secs(89));
    assert_eq!((net.hosts[A].staged_drops, net.stats(A).given_up), (0, 0));
    net.run_for(secs(7));
    assert_eq!((net.hosts[A].staged_drops, net.stats(A).given_up), (1, 1));
    let given_up = net.now;
    net.run_for(secs(1000));
    assert!(net.sent(A, "initiation", given_up).is_empty());
    assert_eq!(
        net.hosts[A].device.next_deadline(),
        None,
        "nothing left to wake up for"
    );
    // The next packet starts over.
    net.weather = Weather::FAIR;
    net.send(A, B, b"again");
    net.run_for(secs(1));
    assert_eq!(net.hosts[B].delivered, [b"again"]);
}

#[test]
fn a_packet_that_asks_for_a_session_resets_the_90_seconds() {
    let mut net = Net::pair(4);
    net.weather.loss = 100;
    for _ in 0..4 {
        net.send(A, B, b"x");
        net.run_for(secs(60));
    }
    assert_eq!(net.stats(A).given_up, 0);
    net.run_for(secs(40));
    assert_eq!(net.stats(A).given_up, 1);
}

#[test]
fn a_silent_receiver_sends_one_keepalive_after_10_seconds() {
    let mut net = Net::pair(5);
    net.connect();
    let start = net.now;
    net.send(A, B, b"data");
    net.run_for(secs(9));
    assert!(net.sent(B, "keepalive", start).is_empty());
    net.run_for(secs(2));
    assert_eq!(net.sent(B, "keepalive", start).len(), 1);
    net.run_for(secs(60));
    assert_eq!(
        net.sent(B, "keepalive", start).len(),
        1,
        "keepalives do not answer each other"
    );
    assert!(net.sent(A, "keepalive", start).is_empty());
    assert!(net.sent(A, "initiation", start).is_empty());
}

#[test]
fn who_answers_with_data_sends_no_keepalive() {
    let mut net = Net::pair(5);
    net.connect();
    let start = net.now;
    for _ in 0..100 {
        net.send(A, B, b"ping");
        net.run_for(millis(20));
        net.send(B, A, b"pong");
        net.run_for(millis(300));
    }
    net.run_for(secs(8));
    assert!(
        net.sent(A, "keepalive", start).is_empty() && net.sent(B, "keepalive", start).is_empty()
    );
}

#[test]
fn data_without_an_answer_for_15_seconds_starts_a_handshake() {
    let mut net = Net::pair(6);
    net.connect();
    net.run_for(secs(20));
    let start = net.now;
    net.weather.loss = 100;
    net.send(A, B, b"lost");
    net.run_for(millis(14_900));
    assert!(net.sent(A, "initiation", start).is_empty());
    net.run_for(millis(500));
    assert_eq!(net.sent(A, "initiation", start).len(), 1);
}

#[test]
fn only_the_initiator_rekeys_when_it_sends_after_120_seconds() {
    let mut net = Net::pair(7);
    net.connect();
    let first = net.session(A, B).local_index();
    for second in 0..130 {
        let before = net.stats(A).initiations_sent;
        net.send(A, B, b"x");
        net.run_for(millis(500));
        net.send(B, A, b"y");
        net.run_for(millis(500));
        assert!(second >= 119 || before == 1);
    }
    assert_eq!(net.stats(A).initiations_sent, 2);
    assert_eq!(net.stats(B).initiations_sent, 0);
    assert_ne!(net.session(A, B).local_index(), first);
    assert_eq!(net.hosts[B].delivered.len(), 130, "no packet is lost");
    assert_eq!(net.hosts[A].delivered.len(), 130);
}

#[test]
fn the_initiator_rekeys_when_it_receives_after_165_seconds() {
    let mut net = Net::pair(8);
    net.connect();
    // A sends nothing, or it would rekey after 120 s.
    net.run_for(secs(163));
    let start = net.now;
    net.send(B, A, b"early");
    net.run_for(secs(1));
    assert!(net.sent(A, "initiation", start).is_empty());
    net.run_for(secs(2));
    net.send(B, A, b"late");
    net.run_for(millis(100));
    assert_eq!(net.sent(A, "initiation", start).len(), 1);
    assert_eq!(net.sent(B, "initiation", START).len(), 0);
}

#[test]
fn nothing_is_sent_or_received_on_a_session_of_180_seconds() {
    let mut net = Net::pair(9);
    net.connect();
    let (old, peer) = (net.session(B, A), net.peer(B, A));
    net.run_for(secs(170));
    let (_, late) = seal(&peer, net.now, b"late").unwrap();
    net.run_for(secs(10));
    assert!(old.reserve(net.now, 1).is_err());
    let from = net.hosts[B].addr;
    net.deliver(A, from, &late);
    assert!(net.hosts[A].delivered.is_empty());
    // A packet of either side makes a new one.
    net.send(B, A, b"fresh");
    net.run_for(secs(1));
    assert_eq!(net.hosts[A].delivered, [b"fresh"]);
    assert_eq!(net.stats(B).initiations_sent, 1);
}

#[test]
fn keys_are_zeroized_after_540_seconds_without_a_new_session() {
    let mut net = Net::pair(10);
    net.connect();
    let index = net.session(A, B).local_index();
    let watch = std::sync::Arc::downgrade(&net.session(A, B));
    net.run_for(secs(539));
    assert!(net.hosts[A].device.shared().session(index).is_some());
    net.run_for(secs(1));
    assert!(net.hosts[A].device.shared().session(index).is_none());
    assert!(net.peer(A, B).current().is_none());
    assert!(watch.upgrade().is_none(), "nobody holds the keys any more");
    assert_eq!(net.hosts[A].device.next_deadline(), None);
    assert_eq!(net.hosts[B].device.next_deadline(), None);
}

#[test]
fn an_idle_tunnel_is_silent() {
    let mut net = Net::pair(11);
    net.connect();
    net.run_for(secs(11));
    let start = net.now;
    net.run_for(secs(1000));
    assert!(net.log.iter().all(|sent| sent.at < start));
}

#[test]
fn persistent_keepalive_starts_at_once_and_zero_stops_it() {
    let mut net = Net::pair(12);
    net.connect();
    net.run_for(secs(30));
    let start = net.now;
    net.apply(A, &peer(B, |peer| peer.persistent_keepalive = Some(25)));
    assert_eq!(net.sent(A, "keepalive", start).len(), 1);
    net.apply(A, &peer(B, |peer| peer.persistent_keepalive = Some(25)));
    assert_eq!(net.sent(A, "keepalive", start).len(), 1, "it is on already");
    net.run_for(secs(76));
    assert_eq!(net.sent(A, "keepalive", start).len(), 4);
    net.apply(A, &peer(B, |peer| peer.persistent_keepalive = Some(0)));
    net.run_for(secs(400));
    assert_eq!(net.sent(A, "keepalive", start).len(), 4);
}

#[test]
fn nothing_is_sent_while_down_and_staged_packets_once_up() {
    let mut net = Net::pair(12);
    let to = net.hosts[B].addr;
    let keepalive = |peer: &mut PeerChange| {
        peer.endpoint = Some(to);
        peer.persistent_keepalive = Some(25);
    };
    net.hosts[A].device.went_down();
    net.apply(A, &peer(B, keepalive));
    net.run_for(secs(300));
    assert!(net.log.is_empty());
    assert_eq!(net.hosts[A].device.handshake_stats().initiations_sent, 0);
    let come_up = |net: &mut Net| {
        let start = net.now;
        net.hosts[A].device.came_up(start);
        net.drain(A);
        net.run_for(millis(100));
        start
    };
    let start = come_up(&mut net);
    assert_eq!(net.sent(A, "initiation", start).len(), 1);
    assert!(net.peer(A, B).current().is_some());
    // With a session it is a keepalive, for the peer may have forgotten the path.
    net.run_for(secs(5));
    let start = come_up(&mut net);
    assert_eq!(net.sent(A, "initiation", start).len(), 0);
    assert_eq!(net.sent(A, "keepalive", start).len(), 1);
    net.hosts[A].device.went_down();
    let start = net.now;
    net.run_for(secs(100));
    assert!(net.sent(A, "keepalive", start).is_empty());
    come_up(&mut net);
    // A peer without keepalive and without staged packets sends nothing.
    net.apply(A, &peer(B, |peer| peer.persistent_keepalive = Some(0)));
    net.run_for(secs(30));
    let start = come_up(&mut net);
    assert!(net.log.iter().all(|sent| sent.at < start));
}

/// That many peers that never answer, each with a persistent keepalive or none.
fn strangers(count: u64, persistent_keepalive: Option<u16>) -> DeviceChange {
    let sections = (0..count).map(|n| {
        let mut secret = private_key(100);
        secret.bytes_mut()[1..9].copy_from_slice(&n.to_le_bytes());
        let mut section = PeerChange::new(public_of(&secret));
        section.endpoint = Some("192.0.2.9:9".parse().unwrap());
        section.persistent_keepalive = persistent_keepalive;
        section
    });
    DeviceChange {
        peers: sections.collect(),
        ..DeviceChange::default()
    }
}

#[test]
fn many_peers_that_are_due_at_once_take_turns_with_the_rest() {
    let mut net = Net::of(1, 11);
    let change = strangers(1000, Some(25));
    let (now, wall) = (net.now, net.wall(A));
    let device = &mut net.hosts[A].device;
    device.apply(now, &change).unwrap();
    device.came_up(now);
    assert!(
        device.poll_output().is_none(),
        "a change of configuration sends nothing"
    );
    // A peer with staged frames comes first, though it asked last.
    let last = Arc::clone(device.peers().last().unwrap());
    assert!(last.want_session());
    device.handle_event(now, wall, &last);
    device.handle_timeout(now, wall);
    let outputs: Vec<_> = std::iter::from_fn(|| device.poll_output()).collect();
    assert_eq!(outputs.len(), 32);
    let Some(Output::Handshake { peer, .. }) = outputs.first() else {
        panic!("an initiation")
    };
    assert_eq!(peer.as_ref().unwrap().id(), last.id());
    let mut sent = 32;
    let mut turns = 1;
    while device.next_deadline().unwrap() <= now {
        device.handle_timeout(now, wall);
        let more = std::iter::from_fn(|| device.poll_output()).count();
        assert!((1..=32).contains(&more));
        sent += more;
        turns += 1;
    }
    assert_eq!((sent, turns), (1000, 1000_u32.div_ceil(32)));
}

#[test]
fn peers_that_frames_wait_for_hold_up_no_other_timer() {
    let mut net = Net::pair(14);
    net.connect();
    net.apply(A, &peer(B, |peer| peer.persistent_keepalive = Some(25)));
    net.run_for(secs(60));
    net.apply(A, &strangers(200, None));
    let mut peers: Vec<_> = net.hosts[A].device.peers().cloned().collect();
    peers.retain(|peer| peer.public_key() != public_key(B));
    let wall = net.wall(A);
    let device = &mut net.hosts[A].device;
    let now = device.next_deadline().expect("the keepalive's");
    for peer in &peers {
        assert!(peer.want_session());
        device.handle_event(now, wall, peer);
    }
    device.handle_timeout(now, wall);
    let first: Vec<_> = std::iter::from_fn(|| device.poll_output()).collect();
    let keepalive = |output: &Output| matches!(output, Output::Keepalive { .. });
    assert!(first.iter().any(keepalive), "the live peer's leaves");
    assert_eq!(first.len(), 32, "and the others take the other turns");
    // Peers that wait longer come first, also if others are wanted again and again.
    let waiting = &peers[31..];
    for peer in &peers[..31] {
        peer.want_session();
        device.handle_event(now + secs(6), wall, peer);
    }
    device.handle_timeout(now + secs(6), wall);
    let second = std::iter::from_fn(|| device.poll_output()).filter_map(|output| match output {
        Output::Handshake { peer, .. } => peer,
        _ => None,
    });
    let second = second.filter(|peer| waiting.iter().any(|other| Arc::ptr_eq(peer, other)));
    assert!(second.count() >= 16, "they have at least half of the turns");
}

#[test]
fn persistent_keepalive_counts_from_the_last_packet_either_way() {
    let mut net = Net::pair(12);
    net.connect();
    net.apply(A, &peer(B, |peer| peer.persistent_keepalive = Some(5)));
    let start = net.now + millis(1);
    for _ in 0..20 {
        net.run_for(secs(2));
        net.send(A, B, b"x");
        net.run_for(secs(2));
        net.send(B, A, b"x");
    }
    assert!(net.sent(A, "keepalive", start).is_empty());
}

#[test]
fn persistent_keepalive_keeps_sessions_alive_for_hours() {
    let mut net = Net::pair(13);
    net.apply(A, &peer(B, |peer| peer.persistent_keepalive = Some(25)));
    net.run_for(secs(3600));
    net.send(B, A, b"in");
    net.run_for(millis(50));
    assert_eq!(net.hosts[A].delivered, [b"in"]);
    net.weather.loss = 100;
    net.run_for(secs(1000));
    net.weather.loss = 0;
    net.run_for(secs(30));
    net.send(B, A, b"in");
    net.run_for(millis(50));
    assert_eq!(net.hosts[A].delivered.len(), 2);
}

#[test]
fn traffic_wakes_the_control_thread_a_few_times_in_10_seconds() {
    let mut net = Net::pair(14);
    net.connect();
    let peer = net.peer(A, B);
    let mut events = 0;
    let mut timeouts = 0;
    for _ in 0..100_000 {
        net.now = net.now + millis(1);
        let session = peer.current().unwrap();
        for told in [
            peer.data_sent(net.now, &session, 100),
            peer.received(net.now, &session, 100, true),
        ] {
            if told {
                events += 1;
                net.event(A, &peer);
            }
        }
        let (now, wall) = (net.now, net.wall(A));
        let device = &mut net.hosts[A].device;
        if device
            .next_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            timeouts += 1;
            device.handle_timeout(now, wall);
        }
    }
    // 100 seconds: each timer at most once per its 10 or 15 seconds.
    assert!(
        events + timeouts <= 35,
        "{events} events, {timeouts} timeouts"
    );
}

/// As on a router without a battery.
#[test]
fn what_happened_is_told_by_the_clock_as_it_is_set_now() {
    let mut net = Net::pair(1);
    for host in [A, B] {
        net.hosts[host].skew = -1_799_999_000;
    }
    net.connect();
    let before = net.status(A, B);
    assert_eq!(before.last_handshake.unwrap().as_secs(), 1000);
    for host in [A, B] {
        net.hosts[host].skew = 3600;
    }
    net.run_for(secs(7));
    for host in [A, B] {
        let (now, wall) = (net.now, net.wall(host));
        net.hosts[host].device.set_clock(now, wall);
        let status = net.status(host, 1 - host);
        let ago = wall.to_unix() - status.last_handshake.unwrap();
        assert_eq!(ago.as_secs(), 7);
        if host == A {
            let attempt = status.handshakes.unwrap().last_attempt.unwrap();
            assert_eq!((wall.to_unix() - attempt).as_secs(), 7);
        }
    }
}
