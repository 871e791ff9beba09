//! Devices without I/O, joined by function calls on a virtual clock.

mod hostile;
mod packets;
mod pair;
mod udp;

use std::time::Duration;

use adit::sans_io::PacketRef;
use adit::{Change, ConfigError, Event, GsoKind};
use packets::{bytes, headers, is_right, payload, tcp, udp};
use pair::{A, B, Pair, addr, key, peer, secs};

#[test]
fn packets_of_all_sizes_pass_both_ways() {
    let mut pair = Pair::up();
    for (n, from, to) in [(A, 1, 2), (B, 2, 1)] {
        let sizes = [
            0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 1000, 1392, 1400, 9000, 65_400,
        ];
        let sent: Vec<Vec<u8>> = sizes
            .iter()
            .flat_map(|size| [false, true].map(|v6| udp(v6, from, to, &bytes(*size, *size))))
            .chain([tcp(false, from, to, &bytes(500, 1))])
            .collect();
        pair.seal(n, &sent);
        pair.run();
        assert_eq!(pair.hosts[1 - n].got, sent);
        let sender = key(u8::try_from(n).unwrap()).public_key();
        assert!(pair.hosts[1 - n].senders.ends_with(&[sender; 31]));
        // Bytes behind a packet are no part of it.
        pair.hosts[1 - n].got.clear();
        let longer = [sent[3].clone(), vec![9; 100]].concat();
        pair.seal(n, &[longer]);
        pair.run();
        assert_eq!(pair.hosts[1 - n].got, sent[3..4]);
    }
}

#[test]
fn gso_packets_of_64_kb_are_cut_and_merged_again() {
    let mut pair = Pair::up();
    for (kind, segment) in [
        (GsoKind::Tcp4, 1380),
        (GsoKind::Tcp4, 536),
        (GsoKind::Tcp6, 1360),
        (GsoKind::Udp, 1000),
    ] {
        let (packet, gso) = packets::gso(kind, 1, 2, segment);
        pair.seal(A, &[PacketRef::with_gso(&packet, gso)]);
        let now = pair.now();
        let [a, b] = &mut pair.hosts;
        for datagram in a.sends() {
            b.inbox.push(datagram.from, &datagram.bytes).unwrap();
        }
        let mut opened = b.device.open(now, &mut b.inbox, &mut b.outbox);
        // 1. one by one
        let segments: Vec<&[u8]> = opened.packets().map(|(_, packet)| packet).collect();
        let expected = payload(&packet).len().div_ceil(segment.into());
        assert_eq!(segments.len(), expected);
        assert!(segments.iter().all(|segment| is_right(segment)));
        let payloads: Vec<&[u8]> = segments.iter().map(|segment| payload(segment)).collect();
        assert_eq!(payloads.concat(), payload(&packet));
        // 2. merged, by the kernel's rules: at most 64 datagrams of UDP, 256 segments of TCP
        for _ in 0..2 {
            let frames: Vec<_> = opened.merged().collect();
            let mut whole = Vec::new();
            frames[0].gather(&mut whole);
            assert_eq!((frames.len(), frames[0].gso()), (1, Some(gso)));
            assert_eq!(whole.len(), frames[0].len());
            assert_eq!(payload(&whole), payload(&packet));
            // Headers but for checksums: IPv4's is at 10, TCP's and UDP's at the end.
            let end = headers(&packet) - if kind == GsoKind::Udp { 2 } else { 4 };
            assert_eq!(
                (&whole[..10], &whole[12..end]),
                (&packet[..10], &packet[12..end])
            );
        }
    }
    pair.hosts.iter().for_each(pair::Host::balances);
}

#[test]
fn trains_that_the_system_merged_are_opened() {
    let mut pair = Pair::up();
    let (packet, gso) = packets::gso(GsoKind::Tcp4, 1, 2, 1380);
    pair.seal(A, &[PacketRef::with_gso(&packet, gso)]);
    let now = pair.now();
    let [a, b] = &mut pair.hosts;
    let mut trains = 0;
    for train in a.outbox.drain() {
        let mut arrival = adit::sans_io::Arrival::from(a.addr);
        arrival.stride = train.stride;
        b.inbox.push(arrival, train.bytes).unwrap();
        trains += 1;
    }
    assert_eq!(b.device.open(now, &mut b.inbox, &mut b.outbox).len(), 48);
    // 48 datagrams of 1,452 bytes are more than 65,507.
    assert_eq!(trains, 2);
}

#[test]
fn packets_wait_for_a_session_and_leave_in_their_order() {
    let mut pair = Pair::new();
    let sent: Vec<_> = (0..100).map(|n| udp(false, 1, 2, &bytes(100, n))).collect();
    pair.seal(A, &sent[..60]);
    assert_eq!(pair.hosts[A].device.stats().waiting_packets, 60);
    assert!(pair.hosts[A].outbox.is_empty());
    // The initiation is lost.
    pair.network = Box::new(|_, _| Vec::new());
    pair.run();
    pair.network = Box::new(|_, datagrams| datagrams);
    pair.seal(A, &sent[60..90]);
    pair.pass(secs(6));
    pair.seal(A, &sent[90..]);
    pair.run();
    assert_eq!(pair.hosts[B].got, sent);
    assert_eq!(pair.hosts[A].device.stats().waiting_packets, 0);
    // The responder needs no keepalive to know that it is used.
    assert_eq!(pair.hosts[B].device.stats().keepalives, 0);
    let [a, b] = [A, B].map(|n| key(u8::try_from(n).unwrap()).public_key());
    let endpoint = Some(addr(0));
    assert!(
        pair.events(B)
            .contains(&Event::Session { peer: a, endpoint })
    );
    assert!(pair.events(A).contains(&Event::Reachable { peer: b }));
}

#[test]
fn what_waits_is_bounded_and_dropped_with_the_handshake() {
    let mut pair = Pair::new();
    pair.network = Box::new(|_, _| Vec::new());
    let sent: Vec<_> = (0..200).map(|n| udp(false, 1, 2, &bytes(100, n))).collect();
    pair.seal(A, &sent);
    let stats = pair.hosts[A].device.stats();
    assert_eq!((stats.waiting_packets, stats.unsealed.waited), (128, 72));
    pair.pass(secs(100));
    let stats = pair.hosts[A].device.stats();
    assert_eq!((stats.waiting_packets, stats.unsealed.waited), (0, 200));
    assert_eq!(stats.given_up, 1);
    let given_up = |event: &Event| {
        matches!(
            event,
            Event::GivenUp {
                initiations: 15..,
                ..
            }
        )
    };
    assert!(pair.events(A).iter().any(given_up));
    // A GSO packet counts as what it is cut to.
    let (packet, gso) = packets::gso(GsoKind::Tcp4, 1, 2, 1380);
    pair.seal(A, &[PacketRef::with_gso(&packet, gso)]);
    assert_eq!(pair.hosts[A].device.stats().waiting_packets, 48);
    let change = Change::new().remove(key(1).public_key());
    let now = pair.now();
    pair.hosts[A].device.set(now, &change).unwrap();
    pair.run();
    assert_eq!(pair.hosts[A].device.stats().unsealed.waited, 248);
}

#[test]
fn an_outbox_that_is_full_loses_nothing() {
    let mut pair = Pair::up();
    let (packet, gso) = packets::gso(GsoKind::Tcp4, 1, 2, 1380);
    let packets = vec![PacketRef::with_gso(&packet, gso); 40];
    let (mut sealed, mut calls) = (0, 0);
    while sealed < packets.len() {
        let now = pair.now();
        let a = &mut pair.hosts[A];
        let taken = a.device.seal(now, &packets[sealed..], &mut a.outbox);
        sealed += taken;
        calls += 1;
        assert!(taken > 0);
        // Some stay, and the next batch comes behind them.
        let mut sent = Vec::new();
        for _ in 0..a.outbox.len() - a.outbox.len() / 4 {
            let train = a.outbox.pop().unwrap();
            sent.extend(train.datagrams().map(|bytes| pair::Datagram {
                from: addr(0),
                ecn: 0,
                bytes: bytes.to_vec(),
            }));
        }
        pair.hosts[B].receives(now, &sent);
    }
    pair.run();
    assert!(calls > 2);
    let got: Vec<&[u8]> = pair.hosts[B].got.iter().map(|got| payload(got)).collect();
    assert_eq!(got.concat(), payload(&packet).repeat(40));
}

#[test]
fn what_waits_and_does_not_fit_the_outbox_leaves_later() {
    let mut pair = Pair::new();
    pair.hosts[A].outbox = adit::sans_io::Outbox::with_capacity(0);
    let (packet, gso) = packets::gso(GsoKind::Tcp4, 1, 2, 1380);
    let now = pair.now();
    let sent = vec![PacketRef::with_gso(&packet, gso); 12];
    pair.seal(A, &sent);
    let [a, b] = &mut pair.hosts;
    a.device.handle_timeout(now, &mut a.outbox);
    b.receives(now, &a.sends());
    a.receives(now, &b.sends());
    // Nothing is taken that would have to wait behind it.
    assert_eq!(a.device.stats().waiting_packets, 9 * 48);
    assert_eq!(a.device.next_deadline(now), Some(Duration::ZERO));
    assert_eq!(a.device.seal(now, &sent, &mut a.outbox), 0);
    pair.run();
    assert_eq!(pair.hosts[B].device.stats().opened_packets, 12 * 48);
    let due = pair.hosts[A].device.next_deadline(now);
    assert!(due.is_none_or(|due| due > secs(1)));
    let got: Vec<&[u8]> = pair.hosts[B].got.iter().map(|got| payload(got)).collect();
    assert_eq!(got.concat(), payload(&packet).repeat(12));
}

#[test]
fn sessions_are_renewed_while_packets_pass() {
    let mut pair = Pair::up();
    let sessions = |pair: &Pair| pair.hosts[A].device.stats().handshakes;
    assert_eq!(sessions(&pair), 1);
    for n in 0..1000 {
        let (from, to) = if n % 2 == A { (1, 2) } else { (2, 1) };
        pair.seal(n % 2, &[udp(false, from, to, &bytes(9, n))]);
        pair.pass(secs(1));
    }
    assert_eq!(pair.hosts[A].got.len() + pair.hosts[B].got.len(), 1000);
    // One each 120 s.
    assert_eq!(sessions(&pair), 9);
}

#[test]
fn a_keepalive_answers_and_a_configured_one_keeps_the_path_open() {
    let mut pair = Pair::up();
    pair.pass(secs(30));
    // B has answered what A sent, 10 s later.
    assert_eq!(pair.hosts[A].device.stats().keepalives, 1);
    let now = pair.now();
    let change = Change::new().peer(&peer(1).keepalive(25));
    pair.hosts[A].device.set(now, &change).unwrap();
    pair.pass(secs(80));
    assert_eq!(pair.hosts[B].device.stats().keepalives, 4);
}

#[test]
fn changes_take_effect_or_nothing_happens() {
    let mut pair = Pair::up();
    let now = pair.now();
    let device = &mut pair.hosts[A].device;
    let before = device.status();
    assert_eq!(before.peers[0].endpoint, Some(addr(1)));
    let mtu = device.set_mtu(100);
    assert_eq!(mtu, Err(ConfigError::Mtu(100)));
    let secret = adit::PublicKey::from_bytes(*key(0).as_bytes());
    let wrong = Change::new()
        .remove(key(1).public_key())
        .peer(&adit::Peer::new(secret));
    assert_eq!(device.set(now, &wrong), Err(ConfigError::SecretAsPublicKey));
    assert_eq!(device.status(), before);
    assert!(!device.probe(now, key(7).public_key()));
    let change = Change::new()
        .peer(&peer(7))
        .endpoint(key(1).public_key(), addr(9));
    device.set(now, &change).unwrap();
    let status = device.status();
    let endpoints: Vec<_> = status.peers.iter().map(|peer| peer.endpoint).collect();
    assert_eq!(endpoints, [Some(addr(9)), Some(addr(7))]);
    // A probe begins a handshake with the one that was never heard of.
    assert!(device.probe(now, key(7).public_key()));
    let host = &mut pair.hosts[A];
    host.device.handle_timeout(now, &mut host.outbox);
    let train = host.outbox.pop().unwrap();
    assert_eq!((train.to, train.bytes.len()), (addr(7), 148));
}

#[test]
fn a_peer_that_falls_silent_and_comes_back_is_told_of() {
    let mut pair = Pair::up();
    pair.events(A);
    pair.network = Box::new(|_, _| Vec::new());
    pair.seal(A, &[udp(false, 1, 2, b"anybody there?")]);
    pair.pass(secs(20));
    let peer = key(1).public_key();
    assert_eq!(pair.events(A), [Event::Unreachable { peer }]);
    pair.network = Box::new(|_, datagrams| datagrams);
    pair.pass(secs(6));
    assert!(pair.events(A).contains(&Event::Reachable { peer }));
}

#[test]
fn events_are_bounded_and_those_that_were_missed_counted() {
    let mut pair = Pair::new();
    for n in 0..200 {
        pair.seal(A, &[udp(false, 1, 2, &bytes(9, n))]);
        pair.pass(secs(300));
        let (now, host) = (pair.now(), &mut pair.hosts[A]);
        let change = Change::new().remove(key(1).public_key());
        host.device.set(now, &change).unwrap();
        host.device.set(now, &Change::new().peer(&peer(1))).unwrap();
    }
    let missed = pair.hosts[A].device.stats().missed_events;
    assert!(missed > 0);
    let events = pair.events(A);
    assert_eq!(events.len(), 257);
    assert_eq!(events[256], Event::Missed { count: missed });
    assert_eq!(pair.events(A), []);
    assert_eq!(pair.hosts[A].device.stats().missed_events, missed);
}
