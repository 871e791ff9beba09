//! A network that loses, repeats and forges, peers that lie, and calls that make no sense.

use std::net::SocketAddr;
use std::time::Duration;

use adit::sans_io::{Device, Inbox, Now, Outbox, PacketRef};
use adit::{Event, Gso, GsoKind};
use adit_proto::{NotSealed, Output, Tai64N, Time};
use proptest::prelude::*;

use crate::packets::{self, bytes, udp};
use crate::pair::{A, B, Datagram, Host, Pair, addr, device, fill, key, now, random, secs};

#[test]
fn loss_repetition_and_reordering_cost_only_what_was_lost() {
    for seed in 0..8 {
        let mut pair = Pair::new();
        let mut draw = random(seed);
        pair.network = Box::new(move |_, datagrams| {
            let mut arrives = Vec::new();
            for datagram in datagrams {
                let is_data = datagram.bytes[0] == 4;
                match draw() % 10 {
                    0 | 1 => {}
                    2 | 3 if is_data => arrives.extend([datagram.clone(), datagram]),
                    4 | 5 if is_data => arrives.insert(0, datagram),
                    _ => arrives.push(datagram),
                }
            }
            arrives
        });
        let mut sent = Vec::new();
        for n in 0..400_usize {
            let packet = udp(false, 1, 2, &n.to_be_bytes());
            pair.seal(A, std::slice::from_ref(&packet));
            sent.push(packet);
            if n % 20 == 0 {
                pair.pass(secs(7));
            }
        }
        pair.network = Box::new(|_, datagrams| datagrams);
        pair.pass(secs(20));
        let mut got = pair.hosts[B].got.clone();
        assert!(got.len() > 200, "seed {seed}: {}", got.len());
        got.sort();
        assert!(
            got.windows(2).all(|two| two[0] != two[1]),
            "seed {seed}: twice"
        );
        assert!(
            got.iter().all(|packet| sent.contains(packet)),
            "seed {seed}"
        );
        assert!(pair.hosts[B].device.stats().unopened.replayed > 0);
    }
}

#[test]
fn a_replay_is_refused_whenever_it_comes() {
    let mut pair = Pair::up();
    pair.seal(A, &[udp(false, 1, 2, b"once")]);
    let sent = pair.hosts[A].sends();
    let now = pair.now();
    let twice = [sent.clone(), sent.clone()].concat();
    pair.hosts[B].receives(now, &twice);
    pair.hosts[B].receives(now, &sent);
    assert_eq!(pair.hosts[B].got.len(), 1);
    assert_eq!(pair.hosts[B].device.stats().unopened.replayed, 2);
    pair.hosts[B].balances();
}

#[test]
fn what_is_not_authentic_changes_nothing() {
    let mut pair = Pair::up();
    pair.seal(A, &[udp(false, 1, 2, &bytes(100, 1))]);
    let sent = pair.hosts[A].sends().remove(0);
    let before = pair.hosts[B].device.status();
    let now = pair.now();
    let forged: Vec<Datagram> = (0..sent.bytes.len())
        .map(|at| {
            let mut forged = sent.clone();
            forged.bytes[at] ^= 1 << (at % 8);
            forged.from = addr(66);
            forged
        })
        .collect();
    pair.hosts[B].receives(now, &forged);
    assert_eq!(pair.hosts[B].device.status(), before);
    assert!(pair.hosts[B].got.is_empty() && pair.hosts[B].outbox.is_empty());
    let dropped = pair.hosts[B].device.stats().unopened;
    assert_eq!((dropped.malformed, dropped.unknown_session), (4, 4));
    // One has the counter of the packet before.
    assert_eq!(dropped.replayed, 1);
    assert_eq!(dropped.not_authentic, sent.bytes.len() as u64 - 9);
    // It was not taken for a replay of those.
    pair.hosts[B].receives(now, &[sent]);
    assert_eq!(pair.hosts[B].got.len(), 1);
}

#[test]
fn a_peer_that_moves_is_followed() {
    let mut pair = Pair::up();
    pair.events(B);
    pair.hosts[A].addr = addr(40);
    pair.seal(A, &[udp(false, 1, 2, b"from elsewhere")]);
    pair.run();
    pair.seal(B, &[udp(false, 2, 1, b"there")]);
    let train = pair.hosts[B].outbox.front().map(|train| train.to);
    assert_eq!(train, Some(addr(40)));
    let peer = key(0).public_key();
    let (from, to) = (addr(0), addr(40));
    assert_eq!(pair.events(B), [Event::Roamed { peer, from, to }]);
}

#[test]
fn a_source_that_is_not_the_peers_is_refused() {
    let mut pair = Pair::up();
    let good = udp(false, 1, 2, b"mine");
    pair.seal(
        A,
        &[
            udp(false, 9, 2, b"not mine"),
            good.clone(),
            udp(true, 2, 2, b"yours"),
        ],
    );
    pair.run();
    assert_eq!(pair.hosts[B].got, [good]);
    assert_eq!(pair.hosts[B].device.stats().unopened.wrong_source, 2);
    // Nobody has these destinations.
    pair.seal(
        A,
        &[
            udp(false, 1, 9, b"?"),
            udp(true, 1, 7, b"?"),
            vec![],
            vec![0x45; 10],
        ],
    );
    let dropped = pair.hosts[A].device.stats().unsealed;
    assert_eq!((dropped.no_route, dropped.malformed), (2, 2));
    pair.hosts[A].balances();
}

#[test]
fn marks_of_congestion_pass_through() {
    let mut pair = Pair::up();
    // ECT(0) inside, and the sum of the header with it.
    let mut capable = udp(false, 1, 2, b"capable");
    (capable[1], capable[11]) = (2, capable[11].wrapping_sub(2));
    pair.seal(A, &[capable.clone(), udp(false, 1, 2, b"not")]);
    let mut sent = pair.hosts[A].sends();
    assert_eq!((sent[0].ecn, sent[1].ecn), (2, 0));
    sent.iter_mut().for_each(|datagram| datagram.ecn = 3);
    let now = pair.now();
    pair.hosts[B].receives(now, &sent);
    (capable[1], capable[11]) = (3, capable[11].wrapping_sub(1));
    assert_eq!(pair.hosts[B].got, [capable]);
    assert_eq!(pair.hosts[B].device.stats().unopened.ecn, 1);
}

/// An initiation for host B of a device that B does not know.
fn stranger(n: u8, now: Now) -> Vec<u8> {
    let (mut device, mut outbox) = (device(n, &[1]), Outbox::new());
    assert!(device.probe(now, key(1).public_key()));
    device.handle_timeout(now, &mut outbox);
    outbox.pop().unwrap().bytes.to_vec()
}

#[test]
fn a_flood_of_initiations_costs_a_bounded_time_and_locks_no_peer_out() {
    let mut pair = Pair::new();
    let flood: Vec<Datagram> = (0..150_u8)
        .map(|n| Datagram {
            from: SocketAddr::from(([198, 51, 100, n], 1000)),
            ecn: 0,
            bytes: stranger(50 + n % 100, pair.now()),
        })
        .collect();
    let flood = vec![flood; 6].concat();
    pair.seal(A, &[udp(false, 1, 2, b"hello")]);
    let mut sent = 0;
    while pair.hosts[B].got.is_empty() {
        // The flood is there before the peer.
        let now = pair.now();
        let b = &mut pair.hosts[B];
        b.receives(now, &flood);
        sent += flood.len();
        assert!(b.sends().len() <= flood.len());
        pair.pass(secs(1));
        assert!(pair.elapsed < secs(30), "the peer got no session");
    }
    let stats = pair.hosts[B].device.stats();
    assert!(stats.cookies > 100, "{stats:?}");
    // Those that were computed are of no peer.
    assert!(sent > 1000 && stats.refused < 200, "{stats:?}");
    pair.hosts[B].balances();
}

#[test]
fn one_call_computes_a_bounded_number_of_handshakes() {
    let now = now(Duration::ZERO);
    let mut host = Host::new(1, device(1, &[]));
    let flood: Vec<Vec<u8>> = (0..60).map(|n| stranger(50 + n, now)).collect();
    for datagram in &flood {
        host.inbox.push(addr(3), datagram).unwrap();
    }
    host.device.open(now, &mut host.inbox, &mut host.outbox);
    assert_eq!(host.device.stats().refused, 32);
    assert_eq!(host.device.next_deadline(now), Some(Duration::ZERO));
    host.device.handle_timeout(now, &mut host.outbox);
    assert_eq!(host.device.stats().refused, 60);
    assert_eq!(host.device.stats().handshake_messages, 60);
    host.balances();
}

#[test]
fn a_device_of_one_packet_at_a_time_understands_it() {
    let mut host = Host::new(0, device(0, &[1]));
    let mut other = adit_proto::Device::new(Box::new(fill(9)));
    let change = adit_proto::config::DeviceChange {
        private_key: Some(adit_proto::config::Secret::new(key(1).as_bytes())),
        peers: vec![{
            let public = adit_proto::config::PublicKey(*key(0).public_key().as_bytes());
            let mut peer = adit_proto::config::PeerChange::new(public);
            let block = adit_proto::config::Cidr::new("10.0.0.1".parse().unwrap(), 32).unwrap();
            peer.allowed_ips = vec![adit_proto::config::AllowedIpChange::Add(block)];
            peer
        }],
        ..Default::default()
    };
    let (time, wall) = (Time(1), Tai64N::from_unix(secs(1_800_000_000)));
    other.apply(time, &change).unwrap();
    let now = now(Duration::ZERO);
    let packets: Vec<_> = (0..70)
        .map(|n| udp(false, 1, 2, &bytes(n * 20, n)))
        .collect();
    let answer = udp(false, 2, 1, b"answer");
    assert_eq!(host.device.seal(now, &packets, &mut host.outbox), 70);
    let mut got = Vec::new();
    for _ in 0..4 {
        host.device.handle_timeout(now, &mut host.outbox);
        for mut datagram in host.sends() {
            match datagram.bytes[0] {
                4 => {
                    let opened = other.open(time, wall, addr(0).into(), &mut datagram.bytes);
                    got.extend(opened.map(<[u8]>::to_vec));
                }
                _ => {
                    other.handle_handshake(time, wall, addr(0).into(), &datagram.bytes, false);
                }
            }
        }
        let mut sent = Vec::new();
        while let Some(output) = other.poll_output() {
            if let Output::Handshake { datagram, .. } = output {
                sent.push(datagram.to_vec());
            }
        }
        let mut datagram = [0; 1500];
        match other.seal(time, wall, &answer, 1420, &mut datagram) {
            Ok((_, len)) => sent.push(datagram[..len].to_vec()),
            Err(error) => assert!(matches!(error, NotSealed::NoSession(_))),
        }
        let datagrams = sent.into_iter().map(|bytes| Datagram {
            from: addr(1),
            ecn: 0,
            bytes,
        });
        host.receives(now, &datagrams.collect::<Vec<_>>());
    }
    assert_eq!(got, packets);
    assert!(host.got.len() > 1 && host.got.iter().all(|packet| *packet == answer));
}

#[test]
fn time_that_goes_back_stands_still() {
    let mut pair = Pair::up();
    let back = Now::new(secs(1), secs(5));
    let host = &mut pair.hosts[A];
    let packet = [udp(false, 1, 2, b"late")];
    assert_eq!(host.device.seal(back, &packet, &mut host.outbox), 1);
    host.device.handle_timeout(back, &mut host.outbox);
    host.device.next_deadline(back);
    let far = Now::new(Duration::MAX, Duration::MAX);
    pair.run();
    assert_eq!(pair.hosts[B].got, packet);
    // A session that has ended stays so.
    let later = now(pair.elapsed + secs(200));
    let host = &mut pair.hosts[A];
    host.device.handle_timeout(later, &mut host.outbox);
    assert_eq!(host.device.seal(back, &packet, &mut host.outbox), 1);
    assert_eq!(host.device.stats().waiting_packets, 1);
    // The end of time.
    let host = &mut pair.hosts[A];
    assert_eq!(host.device.seal(far, &packet, &mut host.outbox), 1);
    host.device.handle_timeout(far, &mut host.outbox);
    host.device.next_deadline(far);
    host.balances();
}

/// A datagram: any bytes, or one of ours with a few bytes changed.
fn datagram() -> impl Strategy<Value = (u8, Vec<u8>, Option<(usize, u8)>)> {
    let any_bytes = proptest::collection::vec(any::<u8>(), 0..200);
    let change = proptest::option::of((0..2000_usize, any::<u8>()));
    (any::<u8>(), any_bytes, change)
}

fn gso() -> impl Strategy<Value = Option<Gso>> {
    let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp];
    let gso = (0..3_usize, any::<u16>()).prop_map(move |(kind, segment)| Gso {
        kind: kinds[kind],
        segment,
    });
    proptest::option::of(gso)
}

/// A packet of any bytes, that is cut in any way.
fn stray() -> impl Strategy<Value = (Vec<u8>, Option<Gso>)> {
    (proptest::collection::vec(any::<u8>(), 0..100), gso())
}

fn few_cases() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    }
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn no_bytes_and_no_times_make_it_panic(
        datagrams in proptest::collection::vec(datagram(), 0..40),
        strays in proptest::collection::vec(stray(), 0..20),
        times in proptest::collection::vec(any::<u64>(), 4),
        stride in 0..300_usize,
    ) {
        let mut pair = Pair::up();
        let (packet, gso) = packets::gso(GsoKind::Tcp4, 1, 2, 1380);
        // 1. Packets of any bytes, and a real one that is cut as nobody should.
        let mut sent: Vec<PacketRef<'_>> = strays
            .iter()
            .map(|(bytes, gso)| PacketRef { bytes, gso: *gso })
            .collect();
        sent.push(PacketRef::with_gso(&packet, gso));
        sent.extend(strays.iter().map(|(_, gso)| PacketRef { bytes: &packet, gso: *gso }));
        let now = pair.now();
        let host = &mut pair.hosts[A];
        let mut taken = 0;
        let mut ours = Vec::new();
        while taken < sent.len() {
            taken += host.device.seal(now, &sent[taken..], &mut host.outbox);
            ours.extend(host.sends().into_iter().map(|sent| sent.bytes));
        }
        host.balances();
        // 2. Datagrams of any bytes, and ours, changed.
        let host = &mut pair.hosts[B];
        for (n, mut bytes, change) in datagrams {
            if let Some((at, byte)) = change {
                bytes = ours[at % ours.len()].clone();
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            let mut arrival = adit::sans_io::Arrival::from(addr(n));
            arrival.stride = stride;
            arrival.ecn = n;
            let _ = host.inbox.push(arrival, &bytes);
        }
        let mut opened = host.device.open(now, &mut host.inbox, &mut host.outbox);
        let all: usize = opened.packets().map(|(_, packet)| packet.len()).sum();
        prop_assert!(opened.merged().map(|frame| frame.len()).sum::<usize>() <= all);
        host.balances();
        // 3. Any times.
        for nanos in times {
            let now = Now::new(Duration::from_nanos(nanos), Duration::from_nanos(!nanos));
            for host in &mut pair.hosts {
                host.device.handle_timeout(now, &mut host.outbox);
                host.device.next_deadline(now);
                host.device.open(now, &mut host.inbox, &mut host.outbox);
            }
        }
    }
}

#[test]
fn buffers_that_are_full_say_so_and_stay_as_they_are() {
    let mut inbox = Inbox::with_capacity(0);
    assert!(inbox.push(addr(1), &[4; 65_535]).is_ok());
    assert!(inbox.is_full());
    assert!(inbox.push(addr(1), &[4]).is_err());
    // No room: what `receive` says that it wrote is cut off.
    let read = inbox.receive(|room| Ok::<_, ()>((room.len() + 9, addr(1).into())));
    assert_eq!((read, inbox.len()), (Ok(()), 2));
    let mut device = device(1, &[0]);
    let mut outbox = Outbox::new();
    assert!(
        device
            .open(now(secs(1)), &mut inbox, &mut outbox)
            .is_empty()
    );
    assert_eq!(device.stats().unopened.malformed, 2);
    // Once it is opened there is room again, and nothing is opened twice.
    assert!(inbox.is_empty() && !inbox.is_full());
    assert!(
        device
            .open(now(secs(1)), &mut inbox, &mut outbox)
            .is_empty()
    );
    assert_eq!(device.stats().datagrams, 2);
    let mut small = Inbox::new();
    for _ in 0..4096 {
        small.push(addr(1), &[4]).unwrap();
    }
    assert!(small.is_full() && small.push(addr(1), &[4]).is_err());
    fn is_send<T: Send>() {}
    is_send::<(Device, Inbox, Outbox)>();
}
