//! Handshakes in bad weather, under attack and under load; roaming; changes of keys.

mod common;

use adit_proto::config::{DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::{Endpoint, Output, Refusal, Room, Screened, Source};
use common::*;

fn storm(seed: u64) -> Weather {
    Weather {
        loss: 10 + seed % 40,
        duplicates: 20,
        delay_min: 1,
        delay_max: 400,
    }
}

#[test]
fn on_a_bad_network_packets_arrive_once_and_unchanged() {
    for seed in 0..40 {
        let mut net = Net::pair(seed);
        net.weather = storm(seed);
        net.hosts[B].skew = i64::try_from(seed).unwrap() * 86_400 - 1_000_000;
        let mut sent = [0_u32; 2];
        for _ in 0..400 {
            let from = usize::from(net.random.chance(50));
            if net.peer(from, 1 - from).endpoint().is_some() {
                net.send(from, 1 - from, &sent[from].to_le_bytes());
                sent[from] += 1;
            }
            let pause = millis(net.random.below(3000));
            net.run_for(pause);
        }
        for (to, count) in [(A, sent[B]), (B, sent[A])] {
            let mut seen: Vec<_> = net.hosts[to]
                .delivered
                .iter()
                .map(|text| u32::from_le_bytes(text[..].try_into().unwrap()))
                .collect();
            seen.sort_unstable();
            assert!(
                seen.windows(2).all(|pair| pair[0] < pair[1]),
                "once, seed {seed}"
            );
            assert!(seen.iter().all(|number| *number < count));
            let arrived = seen.len() as u64 * 100 / u64::from(count);
            assert!(
                arrived + 15 > 100 - net.weather.loss,
                "{arrived} %, seed {seed}"
            );
        }
        net.weather = Weather::FAIR;
        net.run_for(secs(400));
        net.send(A, B, b"calm");
        net.run_for(secs(1));
        assert_eq!(
            net.hosts[B].delivered.last().unwrap(),
            b"calm",
            "seed {seed}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_packets() {
    let run = || {
        let mut net = Net::pair(77);
        net.weather = storm(7);
        for n in 0..100_u8 {
            net.send(A, B, &[n]);
            net.run_for(secs(3));
        }
        net.log
    };
    assert_eq!(run(), run());
}

#[test]
fn both_sides_may_start_at_once() {
    for seed in 0..20 {
        let mut net = Net::pair(seed);
        net.weather.delay_max = 30;
        let to = net.hosts[A].addr;
        net.apply(B, &peer(A, |peer| peer.endpoint = Some(to)));
        net.send(A, B, b"a");
        net.send(B, A, b"b");
        net.run_for(millis(300));
        assert_eq!(
            (&net.hosts[A].delivered[..], &net.hosts[B].delivered[..]),
            (&[b"b".to_vec()][..], &[b"a".to_vec()][..]),
            "seed {seed}"
        );
    }
}

#[test]
fn a_response_is_consumed_once_and_the_session_started_once() {
    let mut net = Net::pair(1);
    net.connect();
    let session = net.session(A, B);
    let response = net.sent(B, "response", START).pop().unwrap();
    session.reserve(net.now, 100).unwrap();
    net.deliver(A, response.from, &response.bytes);
    assert!(std::sync::Arc::ptr_eq(&session, &net.session(A, B)));
    assert_eq!(
        (net.stats(A).responses_accepted, net.stats(A).unexpected),
        (1, 1)
    );
}

#[test]
fn a_response_to_an_initiation_that_was_replaced_is_dropped() {
    let mut net = Net::pair(2);
    net.weather = Weather {
        delay_min: 6000,
        delay_max: 6000,
        ..Weather::FAIR
    };
    net.send(A, B, b"x");
    net.run_for(millis(20_000));
    assert!(net.stats(A).unexpected >= 1);
    assert_eq!(net.stats(A).responses_accepted, 0);
    assert!(net.peer(A, B).current().is_none());
}

#[test]
fn a_replayed_initiation_changes_nothing() {
    let mut net = Net::pair(3);
    net.connect();
    net.run_for(secs(1));
    let initiation = net.sent(A, "initiation", START).pop().unwrap();
    let before = net.acted_on(B);
    net.deliver(B, "203.0.113.9:9".parse().unwrap(), &initiation.bytes);
    assert_eq!(net.stats(B).replayed_timestamp, 1);
    assert_eq!(net.stats(B).responses_sent, 1);
    assert_eq!(net.acted_on(B), before);
    assert!(net.peer(B, A).current().is_some());
}

#[test]
fn initiations_of_one_peer_are_consumed_20_ms_apart() {
    // Two initiations that were lost on their way arrive one after the other.
    let mut net = Net::pair(4);
    net.weather.loss = 100;
    net.send(A, B, b"x");
    net.run_for(secs(12));
    let initiations = net.sent(A, "initiation", START);
    let from = net.hosts[A].addr;
    net.deliver(B, from, &initiations[0].bytes);
    net.run_for(millis(19));
    net.deliver(B, from, &initiations[1].bytes);
    assert_eq!(
        (net.stats(B).initiations_accepted, net.stats(B).flooded),
        (1, 1)
    );
    net.run_for(millis(1));
    net.deliver(B, from, &initiations[1].bytes);
    assert_eq!(net.stats(B).initiations_accepted, 2);
}

#[test]
fn a_clock_that_is_set_back_does_not_lock_us_out() {
    let mut net = Net::pair(5);
    net.connect();
    net.hosts[A].skew = -1_000_000;
    net.run_for(secs(200));
    net.send(A, B, b"later");
    net.run_for(secs(1));
    assert_eq!(net.hosts[B].delivered, [b"later"]);
}

#[test]
fn a_stranger_and_a_wrong_mac1_get_no_answer() {
    let mut net = Net::of(3, 6);
    let to = net.hosts[B].addr;
    net.apply(
        A,
        &peer(B, |peer| {
            peer.endpoint = Some(to);
            peer.persistent_keepalive = Some(60);
        }),
    );
    net.run_for(secs(1));
    assert_eq!(net.stats(B).unknown_peer, 1);
    assert!(net.log.iter().all(|sent| sent.kind() == "initiation"));
    // C is not the one that the message is for.
    let initiation = net.log[0].clone();
    net.deliver(2, initiation.from, &initiation.bytes);
    assert_eq!(net.stats(2).bad_mac1, 1);
}

#[test]
fn nothing_unauthenticated_changes_any_state() {
    let mut net = Net::pair(7);
    net.connect();
    net.send(A, B, b"data");
    net.run_for(secs(1));
    let templates: Vec<_> = net.log.clone();
    let evil = "203.0.113.9:9".parse().unwrap();
    for host in [A, B] {
        let before = (net.acted_on(host), net.hosts[host].device.next_deadline());
        let session = net.session(host, 1 - host);
        for datagram in &templates {
            for byte in 0..datagram.bytes.len() {
                for bit in [1, 0x80] {
                    let mut bytes = datagram.bytes.clone();
                    bytes[byte] ^= bit;
                    net.deliver(host, evil, &bytes);
                }
            }
            net.deliver(host, evil, &datagram.bytes);
        }
        let after = (net.acted_on(host), net.hosts[host].device.next_deadline());
        assert_eq!(before, after);
        assert!(std::sync::Arc::ptr_eq(
            &session,
            &net.session(host, 1 - host)
        ));
        // A forged counter far ahead has not moved the window.
        assert!(session.window().commit(100));
    }
    assert_eq!(net.hosts[B].delivered, [b"data"]);
}

#[test]
fn a_peer_roams_with_data_with_keepalives_and_with_handshakes() {
    let mut net = Net::pair(8);
    net.connect();
    let endpoint = |net: &Net| net.status(B, A).endpoint.unwrap();
    let roam = |net: &mut Net, addr: &str| net.hosts[A].addr = addr.parse().unwrap();

    roam(&mut net, "198.51.100.1:1");
    net.send(A, B, b"data");
    net.run_for(secs(1));
    assert_eq!(endpoint(&net), net.hosts[A].addr);
    net.send(B, A, b"back");
    net.run_for(secs(1));
    assert_eq!(net.hosts[A].delivered, [b"back"]);

    roam(&mut net, "[2001:db8::7]:2");
    net.send(B, A, b"lost");
    net.run_for(secs(1));
    let session = net.session(A, B);
    let peer = net.peer(A, B);
    let (_, keepalive) = seal(&peer, net.now, &[]).unwrap();
    net.deliver(B, "[2001:db8::7]:2".parse().unwrap(), &keepalive);
    assert_eq!(endpoint(&net), net.hosts[A].addr);
    drop(session);

    roam(&mut net, "198.51.100.3:3");
    net.run_for(secs(200));
    net.send(A, B, b"new session");
    net.run_for(millis(6));
    assert_eq!(endpoint(&net), net.hosts[A].addr);
}

#[test]
fn the_source_is_kept_with_the_endpoint_and_cleared_on_retries() {
    let mut net = Net::pair(9);
    net.connect();
    let peer = net.peer(A, B);
    let src = Some(Source {
        ip: "192.0.2.1".parse().unwrap(),
        ifindex: 3,
    });
    let with = Endpoint {
        addr: net.hosts[B].addr,
        src,
    };
    peer.roam(with);
    assert_eq!(peer.endpoint(), Some(with));
    peer.roam(net.hosts[B].addr.into());
    assert_eq!(
        peer.endpoint(),
        Some(with),
        "no source says nothing about the source"
    );
    net.weather.loss = 100;
    net.send(A, B, b"x");
    net.run_for(secs(16));
    assert_eq!(peer.endpoint(), Some(net.hosts[B].addr.into()));
}

#[test]
fn under_load_a_handshake_needs_a_cookie_and_then_succeeds() {
    let mut net = Net::pair(10);
    net.under_load = true;
    net.send(A, B, b"x");
    net.run_for(secs(1));
    assert_eq!(
        (net.stats(B).cookies_sent, net.stats(A).cookies_accepted),
        (1, 1)
    );
    assert_eq!(net.stats(B).responses_sent, 0);
    // The response needs none, though A is under load as well: only who saw the initiation can send it.
    net.run_for(secs(6));
    assert_eq!(net.hosts[B].delivered, [b"x"]);
    assert_eq!(net.stats(A).cookies_sent, 0);
}

#[test]
fn a_cookie_reply_moves_no_endpoint() {
    let mut net = Net::pair(11);
    net.under_load = true;
    net.send(A, B, b"x");
    net.run_for(millis(5));
    let reply = net.sent(B, "cookie", START).pop().unwrap();
    let before = net.status(A, B);
    net.deliver(A, "203.0.113.9:9".parse().unwrap(), &reply.bytes);
    assert_eq!(net.stats(A).cookies_accepted, 1);
    assert_eq!(net.status(A, B), before);
}

#[test]
fn under_load_a_source_is_limited_and_others_are_not() {
    // B is flooded by A's valid initiations, all with valid cookies; C comes in between.
    let mut net = Net::of(3, 12);
    net.under_load = true;
    let to = net.hosts[B].addr;
    let mut clients = Vec::new();
    for n in 0..40 {
        // Forty peers behind one address.
        let private = Secret::new(&[100 + n; 32]);
        let mut change = peer(B, |peer| {
            peer.endpoint = Some(to);
            peer.persistent_keepalive = Some(100);
        });
        change.private_key = Some(private.clone());
        let mut device = device(1000 + u64::from(n));
        net.apply(
            B,
            &DeviceChange {
                peers: vec![PeerChange::new(public_of(&private))],
                ..DeviceChange::default()
            },
        );
        device.apply(net.now, &change).unwrap();
        device.handle_timeout(net.now, net.wall(A));
        clients.push(device);
    }
    let from = net.hosts[A].addr;
    let wall = net.wall(A);
    let messages = |device: &mut adit_proto::Device| {
        let mut messages = Vec::new();
        while let Some(output) = device.poll_output() {
            if let adit_proto::Output::Handshake { datagram, .. } = output {
                messages.push(datagram.to_vec());
            }
        }
        messages
    };
    for device in &mut clients {
        for message in messages(device) {
            net.deliver(B, from, &message);
        }
    }
    assert_eq!(net.stats(B).cookies_sent, 40);
    assert_eq!(net.stats(B).rate_limited, 0);
    for device in &mut clients {
        for reply in net.sent(B, "cookie", START) {
            device.handle_handshake(net.now, wall, to.into(), &reply.bytes, false);
        }
    }
    net.run_for(secs(6));
    let wall = net.wall(A);
    for device in &mut clients {
        device.handle_timeout(net.now, wall);
        for message in messages(device) {
            net.deliver(B, from, &message);
        }
    }
    assert_eq!(net.stats(B).responses_sent, 5, "the burst");
    assert_eq!(net.stats(B).rate_limited, 35);
}

#[test]
fn under_load_a_peer_with_a_session_needs_no_cookie() {
    for host in [A, B] {
        let mut net = Net::pair(13);
        net.connect();
        net.run_for(secs(10));
        net.under_load = true;
        let sessions = net.sessions;
        let (now, key) = (net.now, public_key(1 - host));
        net.hosts[host].device.probe(now, &key);
        net.drain(host);
        net.run_for(millis(100));
        assert_eq!(net.sessions, sessions + 2, "a new one on each side");
        assert_eq!(net.stats(A).cookies_sent + net.stats(B).cookies_sent, 0);
        // Nor from where it has roamed to, or is said to be. From elsewhere it needs one.
        let cookies = |net: &mut Net, addr: &str| {
            net.hosts[A].addr = addr.parse().unwrap();
            let (now, before) = (net.now, net.stats(B).cookies_sent);
            net.hosts[A].device.probe(now, &public_key(B));
            net.drain(A);
            net.run_for(millis(100));
            net.stats(B).cookies_sent - before
        };
        net.run_for(secs(10));
        net.hosts[A].addr = "192.0.2.77:4000".parse().unwrap();
        net.send(A, B, b"roams");
        net.run_for(secs(2));
        assert_eq!(cookies(&mut net, "192.0.2.77:4000"), 0);
        net.run_for(secs(10));
        let to = "192.0.2.78:4000".parse().unwrap();
        net.apply(B, &peer(A, |peer| peer.endpoint = Some(to)));
        assert_eq!(cookies(&mut net, "192.0.2.78:4000"), 0);
        net.run_for(secs(10));
        assert_eq!(cookies(&mut net, "192.0.2.79:4000"), 1);
        // Once it is a peer no more, nobody is expected where it was.
        net.run_for(secs(10));
        let at = net.peer(B, A).endpoint().expect("an endpoint").addr;
        let initiation = net.log.iter().find(|it| it.kind() == "initiation");
        let initiation = initiation.expect("the first").bytes.clone();
        for is_peer in [true, false] {
            net.run_for(secs(10));
            if !is_peer {
                net.apply(B, &peer(A, |peer| peer.remove = true));
            }
            let shared = net.hosts[B].device.shared();
            shared.admission().load(net.now);
            let screened = shared.screen(net.now, at, &initiation, Room::Ample);
            assert_eq!(screened == Screened::Proven, is_peer, "{is_peer}");
        }
    }
}

#[test]
fn a_cookie_answers_either_of_two_messages_under_way() {
    let mut net = Net::pair(14);
    net.connect();
    net.run_for(secs(10));
    let to = net.hosts[A].addr;
    net.apply(B, &peer(A, |peer| peer.endpoint = Some(to)));
    // B sends an initiation and then a response; the load at A ends before the reply to the first comes.
    let now = net.now;
    for host in [A, B] {
        net.hosts[host].device.probe(now, &public_key(1 - host));
        net.drain(host);
    }
    let initiation = net.sent(B, "initiation", now).remove(0);
    net.run_for(millis(7));
    assert_eq!(net.sent(B, "response", now).len(), 1);
    let mut stranger = device(99);
    let change = DeviceChange {
        private_key: Some(private_key(A)),
        ..DeviceChange::default()
    };
    stranger.apply(net.now, &change).unwrap();
    let (at, wall, from) = (net.now, net.wall(A), Endpoint::from(initiation.from));
    stranger.handle_handshake(at, wall, from, &initiation.bytes, true);
    let Some(adit_proto::Output::Handshake { datagram, .. }) = stranger.poll_output() else {
        panic!("no reply")
    };
    let from = net.hosts[A].addr;
    net.deliver(B, from, &datagram);
    assert_eq!(net.stats(B).cookies_accepted, 1);
}

#[test]
fn only_cookie_replies_to_messages_of_ours_are_heard() {
    let mut net = Net::pair(15);
    net.under_load = true;
    net.send(A, B, b"x");
    net.run_for(millis(20));
    let reply = net.sent(B, "cookie", START).remove(0);
    let screened = |host: usize| {
        let shared = net.hosts[host].device.shared();
        shared.screen(net.now, reply.from, &reply.bytes, Room::Ample)
    };
    assert_eq!(screened(A), Screened::Passed);
    let Screened::Refused(outcome) = screened(B) else {
        panic!("B sent nothing that it answers")
    };
    assert_eq!(outcome.refusal, Some(Refusal::Unexpected));
    assert_eq!(
        (net.stats(B).cookies_received, net.stats(B).unexpected),
        (1, 1)
    );
    // The handshake is over, and so is, later, its session.
    let reply_is_heard = |net: &Net, index: [u8; 4]| {
        let mut bytes = reply.bytes.clone();
        bytes[4..8].copy_from_slice(&index);
        let shared = net.hosts[A].device.shared();
        let screened = shared.screen(net.now, reply.from, &bytes, Room::Ample);
        screened == Screened::Passed
    };
    let index_of = |reply: &[u8]| <[u8; 4]>::try_from(&reply[4..8]).unwrap();
    let first = index_of(&reply.bytes);
    assert!(reply_is_heard(&net, first));
    net.run_for(secs(10));
    let second = net.session(A, B).local_index().to_le_bytes();
    assert!(reply_is_heard(&net, second) && !reply_is_heard(&net, first));
    net.run_for(secs(1000));
    assert!(!reply_is_heard(&net, second));
}

/// A hub with many peers that are away starts anew: those that it spoke with must still hear it.
#[test]
fn initiations_to_many_peers_do_not_run_ahead_of_the_clock() {
    let mut net = Net::pair(15);
    let away: Vec<PeerChange> = (0..400u64)
        .map(|n| {
            let mut secret = private_key(100);
            secret.bytes_mut()[1..9].copy_from_slice(&n.to_le_bytes());
            let mut section = PeerChange::new(public_of(&secret));
            section.endpoint = Some("192.0.2.9:9".parse().unwrap());
            section.persistent_keepalive = Some(25);
            section
        })
        .collect();
    net.apply(
        A,
        &DeviceChange {
            peers: away,
            ..DeviceChange::default()
        },
    );
    net.run_for(secs(60));
    assert!(net.stats(A).initiations_sent >= 4000);
    net.connect();

    net.run_for(secs(1));
    let to = net.hosts[B].addr;
    net.hosts[A].device = device(77);
    let mut change = peer(B, |peer| {
        peer.endpoint = Some(to);
        peer.allowed_ips = vec![add("10.0.0.2/32")];
    });
    change.private_key = Some(private_key(A));
    net.apply(A, &change);
    net.connect();
    assert_eq!(net.stats(B).replayed_timestamp, 0);
}

#[test]
fn a_peer_that_is_removed_and_added_again_is_no_replay() {
    let mut net = Net::pair(16);
    net.connect();
    for _ in 0..3 {
        net.apply(A, &peer(B, |peer| peer.remove = true));
        let to = net.hosts[B].addr;
        let again = |peer: &mut PeerChange| {
            peer.endpoint = Some(to);
            peer.persistent_keepalive = Some(25);
        };
        net.apply(A, &peer(B, again));
    }
    net.run_for(millis(100));
    assert_eq!(net.stats(B).replayed_timestamp, 0);
}

/// The clock is a month ahead when A speaks with X, and right when it speaks with B.
#[test]
fn a_clock_that_was_wrong_for_one_peer_locks_out_no_other() {
    const X: usize = 2;
    let mut net = Net::of(3, 19);
    let [to_b, to_x] = [B, X].map(|n| net.hosts[n].addr);
    for n in [B, X] {
        net.apply(n, &peer(A, |_| {}));
    }
    let meet = |net: &mut Net, n, to| {
        net.apply(A, &peer(n, |peer| peer.endpoint = Some(to)));
        net.send(A, n, b"hello");
        net.run_for(secs(1));
        let peer = net.peer(A, n);
        assert!(peer.session(net.now).is_some(), "A reaches host {n}");
    };
    net.hosts[A].skew = 30 * 86_400;
    meet(&mut net, X, to_x);
    net.hosts[A].skew = 0;
    meet(&mut net, B, to_b);

    // A forgets nothing when its peers are removed and added again: X has seen the wrong clock.
    for (n, to) in [(B, to_b), (X, to_x)] {
        net.apply(A, &peer(n, |peer| peer.remove = true));
        meet(&mut net, n, to);
    }
    // A starts anew, and B has never seen the wrong clock.
    net.hosts[A].device = device(77);
    let change = DeviceChange {
        private_key: Some(private_key(A)),
        ..DeviceChange::default()
    };
    net.apply(A, &change);
    meet(&mut net, B, to_b);
    assert_eq!(net.stats(B).replayed_timestamp, 0);
}

#[test]
fn a_new_private_key_ends_sessions_and_new_ones_follow() {
    let mut net = Net::pair(13);
    net.connect();
    let old = net.session(A, B);
    let new = private_key(7);
    net.apply(
        A,
        &DeviceChange {
            private_key: Some(new.clone()),
            ..DeviceChange::default()
        },
    );
    assert!(net.peer(A, B).current().is_none());
    assert!(old.reserve(net.now, 1).is_err());
    let mut section = PeerChange::new(public_of(&new));
    section.allowed_ips = vec![add("10.0.0.1/32")];
    net.apply(
        B,
        &DeviceChange {
            peers: vec![section],
            ..DeviceChange::default()
        },
    );
    net.send(A, B, b"new");
    net.run_for(millis(100));
    assert_eq!(net.hosts[B].delivered, [b"new"]);
    assert_eq!(
        net.hosts[A].device.status().public_key,
        Some(public_of(&new))
    );
}

#[test]
fn a_new_private_key_restarts_a_handshake_in_progress() {
    let mut net = Net::pair(13);
    let new = private_key(7);
    net.apply(
        B,
        &DeviceChange {
            peers: vec![PeerChange::new(public_of(&new))],
            ..DeviceChange::default()
        },
    );
    net.send(A, B, b"x");
    net.apply(
        A,
        &DeviceChange {
            private_key: Some(new),
            ..DeviceChange::default()
        },
    );
    net.run_for(millis(100));
    assert_eq!(net.hosts[B].delivered, [b"x"]);
}

#[test]
fn a_cloned_machine_sends_with_new_sessions_only() {
    let mut net = Net::pair(20);
    net.connect();
    let old = net.session(A, B);
    let now = net.now;
    net.hosts[A].device.was_cloned(now);
    net.drain(A);
    let other_thread = std::thread::spawn(move || old.reserve(now, 1));
    assert!(other_thread.join().unwrap().is_err());

    // The message on its way to A arrives, and A's next packet makes a session.
    net.send(B, A, b"old");
    net.run_for(millis(10));
    assert_eq!(net.hosts[A].delivered.pop().unwrap(), b"old");
    let start = net.now;
    net.send(A, B, b"new");
    net.run_for(millis(100));
    assert_eq!(net.hosts[B].delivered, [b"new"]);
    assert_eq!(net.sent(A, "initiation", start).len(), 1);
}

#[test]
fn a_cloned_machine_forgets_handshakes_under_way() {
    let mut net = Net::pair(21);
    net.send(A, B, b"x");
    // As initiator: the response would give both copies the same session.
    net.run_for(millis(6));
    let response = net.sent(B, "response", START).remove(0);
    net.hosts[A].device.was_cloned(net.now);
    let from = net.hosts[B].addr;
    net.deliver(A, from, &response.bytes);
    assert_eq!(net.stats(A).unexpected, 1);
    assert_eq!(net.stats(A).responses_accepted, 0);
    // The new initiation comes too soon for B and is repeated.
    net.run_for(secs(6));
    assert_eq!(net.hosts[B].delivered, [b"x"]);
    // As responder: the initiator confirms a session that both copies made.
    net.run_for(secs(200));
    net.send(A, B, b"y");
    net.run_for(millis(6));
    let before = net.stats(B).confirmed;
    net.hosts[B].device.was_cloned(net.now);
    net.run_for(millis(50));
    assert_eq!(net.stats(B).confirmed, before);
    net.run_for(secs(20));
    net.send(A, B, b"z");
    net.run_for(secs(10));
    assert_eq!(net.hosts[B].delivered.last().unwrap(), b"z");
}

#[test]
fn without_a_private_key_nothing_is_sent_or_answered() {
    let mut net = Net::pair(14);
    net.connect();
    let start = net.now;
    net.apply(
        B,
        &DeviceChange {
            private_key: Some(Secret::zero()),
            ..DeviceChange::default()
        },
    );
    net.send(B, A, b"x");
    net.run_for(secs(300));
    assert!(
        net.log
            .iter()
            .all(|sent| sent.at < start || sent.from != net.hosts[B].addr)
    );
    assert_eq!(net.hosts[B].device.status().private_key, None);
}

#[test]
fn a_new_preshared_key_takes_effect_at_the_next_handshake() {
    let mut net = Net::pair(15);
    net.connect();
    let session = net.session(A, B);
    let psk =
        |key: u8| move |peer: &mut PeerChange| peer.preshared_key = Some(Secret::new(&[key; 32]));
    net.apply(A, &peer(B, psk(5)));
    net.send(A, B, b"still");
    net.run_for(millis(10));
    assert_eq!(net.hosts[B].delivered, [b"still"]);
    assert!(std::sync::Arc::ptr_eq(&session, &net.session(A, B)));
    net.run_for(secs(200));
    net.send(A, B, b"wait");
    net.run_for(secs(1));
    assert_eq!(
        net.hosts[B].delivered.len(),
        1,
        "the other side has no preshared key"
    );
    assert_eq!(net.stats(A).not_authentic, 1);
    net.apply(B, &peer(A, psk(5)));
    net.run_for(secs(6));
    assert_eq!(net.hosts[B].delivered[1], b"wait");
}

#[test]
fn a_peer_with_our_own_key_is_ignored_or_removed() {
    let mut net = Net::pair(16);
    net.apply(
        A,
        &peer(A, |peer| peer.allowed_ips = vec![add("10.9.0.0/16")]),
    );
    assert!(net.hosts[A].device.peer(&public_key(A)).is_none());
    // B takes the key of its peer A: that peer goes, with its routes.
    let routes = net.hosts[B].device.shared();
    assert!(
        routes
            .routes()
            .lookup("10.0.0.1".parse().unwrap())
            .is_some()
    );
    net.apply(
        B,
        &DeviceChange {
            private_key: Some(private_key(A)),
            ..DeviceChange::default()
        },
    );
    assert_eq!(net.hosts[B].device.peers().count(), 0);
    assert!(
        routes
            .routes()
            .lookup("10.0.0.1".parse().unwrap())
            .is_none()
    );
}

#[test]
fn peers_with_keys_of_low_order_get_nothing() {
    let mut net = Net::of(1, 17);
    let mut one = [0; 32];
    one[0] = 1;
    for key in [[0; 32], one] {
        let mut section = PeerChange::new(PublicKey(key));
        section.endpoint = Some("192.0.2.99:1".parse().unwrap());
        section.persistent_keepalive = Some(1);
        net.apply(
            A,
            &DeviceChange {
                peers: vec![section],
                ..DeviceChange::default()
            },
        );
    }
    net.run_for(secs(100));
    assert!(net.log.is_empty());
}

#[test]
fn indices_differ_and_are_given_back() {
    let mut net = Net::pair(18);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..30 {
        net.send(A, B, b"x");
        net.run_for(secs(130));
        assert!(seen.insert(net.session(A, B).local_index()));
    }
    let shared = net.hosts[A].device.shared();
    let alive = seen
        .iter()
        .filter(|index| shared.session(**index).is_some());
    assert!(alive.count() <= 3, "previous, current, next");
}

#[test]
fn a_response_that_takes_seconds_is_taken() {
    let mut net = Net::pair(19);
    (net.weather.delay_min, net.weather.delay_max) = (2400, 2400);
    net.send(A, B, b"far");
    net.run_for(secs(8));
    assert_eq!(net.sent(A, "initiation", START).len(), 1);
    assert_eq!(net.hosts[B].delivered, [b"far"]);
}

#[test]
fn a_peer_removed_in_a_handshake_leaves_no_timer() {
    for seed in 0..4 {
        let mut net = Net::pair(20 + seed);
        net.weather.loss = 100;
        net.send(A, B, b"x");
        net.run_for(secs(3 * seed));
        let gone = peer(B, |peer| peer.remove = true);
        net.apply(A, &gone);
        // What the shards still noted of it comes too late.
        net.run_for(secs(1));
        assert_eq!(net.hosts[A].device.next_deadline(), None);
        let before = net.log.len();
        net.run_for(secs(600));
        assert_eq!(net.log.len(), before, "nothing is sent to it");
    }
}

/// Where the responses to a peer leave from that writes to one address of ours again and again,
/// since no response arrives.
fn sources_of_responses(net: &mut Net, avoided: bool, count: usize) -> Vec<bool> {
    net.black_holes
        .push(|datagram| datagram.kind() == "initiation");
    let (to, from) = (net.hosts[B].addr, net.hosts[A].addr);
    net.apply(A, &peer(B, |peer| peer.endpoint = Some(to)));
    let here = Endpoint {
        addr: from,
        src: Some(Source {
            ip: "198.51.100.7".parse().unwrap(),
            ifindex: 3,
        }),
    };
    if avoided {
        net.peer(B, A).avoid_source(here);
    }
    net.send(A, B, b"hello");
    let mut sources = Vec::new();
    while sources.len() < count {
        net.run_for(secs(1));
        let Some(initiation) = net.log.pop().filter(|it| it.kind() == "initiation") else {
            continue;
        };
        let (now, wall) = (net.now, net.wall(B));
        let device = &mut net.hosts[B].device;
        let outcome = device.handle_handshake(now, wall, here, &initiation.bytes, false);
        assert_eq!(outcome.refusal, None);
        while let Some(output) = device.poll_output() {
            if let Output::Handshake {
                to, datagram, peer, ..
            } = output
            {
                device.handle_sent(&datagram, peer.as_ref(), true);
                assert_eq!(to.addr, from);
                sources.push(to.src.is_some());
            }
        }
    }
    sources
}

#[test]
fn unconfirmed_responses_leave_from_where_routing_says_too() {
    let mut net = Net::pair(1);
    let sources = sources_of_responses(&mut net, false, 5);
    assert_eq!(sources, [true, false, true, false, true]);
    // A source that no longer fits the routes comes second.
    let mut net = Net::pair(1);
    let sources = sources_of_responses(&mut net, true, 4);
    assert_eq!(sources, [false, true, false, true]);
}

#[test]
fn a_source_that_was_left_does_not_come_back_with_a_packet() {
    let mut net = Net::pair(1);
    net.connect();
    let peer = net.peer(A, B);
    let at = |ip: &str| Endpoint {
        addr: net.hosts[B].addr,
        src: Some(Source {
            ip: ip.parse().unwrap(),
            ifindex: 3,
        }),
    };
    let (old, new) = (at("198.51.100.1"), at("198.51.100.2"));
    peer.roam(old);
    assert_eq!(peer.endpoint(), Some(old));
    peer.avoid_source(old);
    for _ in 0..2 {
        assert_eq!(peer.endpoint(), Some(old.addr.into()));
        peer.roam(old);
    }
    peer.roam(new);
    assert_eq!(peer.endpoint(), Some(new));
    peer.roam(old);
    assert_eq!(peer.endpoint(), Some(new));
    // Until it fits again.
    peer.source_fits();
    peer.roam(old);
    assert_eq!(peer.endpoint(), Some(old));
}
