//! What the data path promises, on two engines joined in memory.

mod common;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use adit_io::testing::fault::{Faults, Faulty};
use adit_io::{FrameBatch, Offloads, RecvBatch, SendReport, Transmit, TunQueue, UdpSocket};
use adit_offload::{Merged, VNET_HDR_LEN};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey};
use common::{A, B, EnginePair, Options, inner_ip, segments, tcp_frame, udp_frame};
use rustix::io::Errno;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from((i * 31 + seed * 17) % 251).expect("below 251"))
        .collect()
}

fn datagram(from: usize, ports: (u16, u16), number: usize, len: usize) -> Vec<u8> {
    let id = u16::try_from(number % 65_536).expect("16 bits");
    udp_frame(
        inner_ip(from),
        inner_ip(1 - from),
        ports,
        id,
        &pattern(len, number),
    )
}

/// Injects frames at one side and expects exactly their packets at the other, in order.
fn expect_delivery(pair: &EnginePair, from: usize, frames: &[Vec<u8>]) {
    let expected: Vec<Vec<u8>> = frames.iter().flat_map(|frame| segments(frame)).collect();
    for frame in frames {
        pair.inject(from, frame.clone());
    }
    let delivered = pair.delivered(1 - from, expected.len());
    assert_eq!(delivered.len(), expected.len(), "packets delivered");
    for (i, (got, want)) in delivered.iter().zip(&expected).enumerate() {
        assert!(got == want, "packet {i} is not what was sent");
    }
}

/// Up to 128 frames may wait for the handshake; a test with more begins after it.
fn established(options: Options) -> EnginePair {
    let pair = EnginePair::new(options);
    expect_delivery(&pair, A, &[datagram(A, (1, 2), 0, 10)]);
    pair
}

#[test]
fn packets_of_every_length_arrive_unchanged_both_ways() {
    let pair = established(Options::default());
    for (round, from) in [A, B, A].into_iter().enumerate() {
        let frames: Vec<_> = (0..300)
            .map(|n| datagram(from, (1, 2), n, (n * 37 + round) % 1393))
            .collect();
        expect_delivery(&pair, from, &frames);
    }
}

#[test]
fn gso_packets_arrive_as_the_segments_they_stand_for() {
    let pair = EnginePair::new(Options::default());
    let mut seq = 1;
    for (n, len) in [1, 1380, 1381, 5 * 1380, 45 * 1380, 47 * 1380 + 5, 3]
        .into_iter()
        .enumerate()
    {
        let frame = tcp_frame(inner_ip(A), inner_ip(B), seq, 1380, &pattern(len, n));
        seq += u32::try_from(len).expect("short");
        expect_delivery(&pair, A, &[frame]);
    }
}

/// Invariant 8: turning any offload off changes speed, never bytes.
#[test]
fn bytes_are_the_same_with_each_offload_off() {
    let mut settings = vec![Offloads::ALL, Offloads::NONE];
    for name in Offloads::NAMES {
        let mut offloads = Offloads::ALL;
        offloads.disable(name).expect("a known name");
        settings.push(offloads);
    }
    for offloads in settings {
        for gso in [true, false] {
            let pair = EnginePair::new(Options {
                offloads,
                gso,
                ..Options::default()
            });
            let mut frames: Vec<_> = (0..60).map(|n| datagram(A, (1, 2), n, 500)).collect();
            frames.push(tcp_frame(
                inner_ip(A),
                inner_ip(B),
                1,
                1380,
                &pattern(30_000, 1),
            ));
            frames.extend((0..60).map(|n| datagram(A, (3, 4), n, n)));
            let mut expected: Vec<_> = frames.iter().flat_map(|frame| segments(frame)).collect();
            for frame in frames {
                pair.inject(A, frame);
            }
            let mut delivered = pair.delivered(B, expected.len());
            // Flows may pass each other.
            expected.sort();
            delivered.sort();
            assert!(
                delivered == expected,
                "{offloads:?}, trains {gso}: {} packets",
                delivered.len()
            );
        }
    }
}

/// A datagram that merging would change: without checksum, its identification fixed under DF.
fn plain(number: usize, len: usize) -> Vec<u8> {
    let mut frame = datagram(A, (1, 2), number, len);
    let packet = &mut frame[VNET_HDR_LEN..];
    packet[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
    packet[10..12].fill(0);
    let sum = common::checksum(0, &packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[26..28].fill(0);
    frame
}

/// Invariant 8, where the kernel takes GSO packets of no kind.
#[test]
fn gro_packets_that_the_tun_refuses_arrive_packet_by_packet() {
    let refusing = |fails| {
        let faults = Faults {
            refusal: 1.0,
            error: f64::from(u8::from(fails)),
            ..Faults::default()
        };
        let faults = [Faults::default(), faults];
        let wrap_tun = move |side: usize, tun| Faulty::new(tun, faults[side]);
        EnginePair::with(Options::default(), wrap_tun, |_, socket| socket)
    };
    // As many as may wait for the session, then as one batch.
    let mut frames: Vec<_> = (0..100).map(|n| plain(n, 700)).collect();
    frames.push(tcp_frame(
        inner_ip(A),
        inner_ip(B),
        1,
        1380,
        &pattern(30_000, 1),
    ));
    let pair = refusing(false);
    let merges = || pair.sides[B].interface.report().offloads.tun_gro_udp;
    assert!(merges());
    expect_delivery(&pair, A, &frames);
    assert!(!merges(), "nothing was refused");
    expect_delivery(&pair, A, &frames);
    assert_eq!(pair.drops(B, "deliver_failed"), 0);

    let pair = refusing(true);
    for frame in &frames {
        pair.inject(A, frame.clone());
    }
    // Each packet counts.
    pair.wait_for_drops(B, "deliver_failed", 100 + 22);
    assert_eq!(pair.drops(B, "deliver_failed"), 100 + 22);
}

/// Takes GSO packets of TCP only.
struct WithoutUdp<T>(T);

impl<T: TunQueue> TunQueue for WithoutUdp<T> {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        self.0.read_batch(batch)
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        if Merged::of(&frame[0]) == Some(Merged::Udp) {
            return Err(Errno::INVAL.into());
        }
        self.0.write(frame)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

#[test]
fn a_tun_that_refuses_merged_udp_still_gets_merged_tcp() {
    let wrap_tun = |_: usize, tun| WithoutUdp(tun);
    let pair = EnginePair::with(Options::default(), wrap_tun, |_, socket| socket);
    let datagrams: Vec<_> = (0..100).map(|n| plain(n, 700)).collect();
    expect_delivery(&pair, A, &datagrams);
    let offloads = pair.sides[B].interface.report().offloads;
    assert!(!offloads.tun_gro_udp, "nothing was refused");
    assert!(offloads.tun_gro_tcp && offloads.tun_gro_tunnel);

    let stream = tcp_frame(inner_ip(A), inner_ip(B), 1, 1380, &pattern(30_000, 1));
    pair.inject(A, stream.clone());
    let start = Instant::now();
    let frame = loop {
        if let Some(frame) = pair.delivered_now(B).pop() {
            break frame;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(Merged::of(&frame), Some(Merged::Tcp));
    assert_eq!(segments(&frame), segments(&stream));
}

/// Invariants 2 and 3, on a network that loses, doubles and cuts, and on one that delays, too.
#[test]
fn on_a_bad_network_no_packet_is_doubled_or_reordered_by_us() {
    for reordering in [0.0, 0.1] {
        let faults = Faults {
            // The handshake gets through.
            seed: 1,
            loss: 0.05,
            duplication: 0.1,
            split: 0.2,
            reordering,
            ..Faults::default()
        };
        let bad = move |_, socket| Faulty::new(socket, faults);
        let pair = EnginePair::with_sockets(Options::default(), bad);
        expect_delivery(&pair, A, &[datagram(A, (1, 2), 0, 10)]);
        let count = 1000;
        for n in 0..count {
            pair.inject(A, datagram(A, (1, 2), n, 100 + n % 3));
        }
        let delivered = pair.delivered(B, count * 4 / 5);
        assert!(delivered.len() >= count * 4 / 5, "{}", delivered.len());
        let number = |packet: &Vec<u8>| u16::from_be_bytes([packet[4], packet[5]]);
        let mut numbers: Vec<_> = delivered.iter().map(number).collect();
        for (packet, n) in delivered.iter().zip(&numbers) {
            let n = usize::from(*n);
            assert_eq!(*packet, datagram(A, (1, 2), n, 100 + n % 3)[VNET_HDR_LEN..]);
        }
        if reordering > 0.0 {
            assert!(!numbers.is_sorted());
            numbers.sort_unstable();
        }
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        assert!(pair.drops(B, "replayed") > 0);
        assert_eq!(pair.drops(B, "not_authentic"), 0);
    }
}

/// Invariant 2.
#[test]
fn flows_keep_their_order_whatever_the_sizes() {
    let pair = established(Options::default());
    let flows = 7;
    let count = 700;
    for n in 0..count {
        let port = u16::try_from(n % flows).expect("few flows");
        pair.inject(A, datagram(A, (100 + port, 9), n / flows, (n * 211) % 1300));
    }
    let delivered = pair.delivered(B, count);
    assert_eq!(delivered.len(), count);
    let mut next = vec![0u16; flows];
    for packet in delivered {
        let flow = usize::from(u16::from_be_bytes([packet[20], packet[21]])) - 100;
        assert_eq!(
            u16::from_be_bytes([packet[4], packet[5]]),
            next[flow],
            "flow {flow}"
        );
        next[flow] += 1;
    }
}

#[test]
fn what_was_sent_before_the_handshake_arrives_after_it_in_order() {
    let pair = EnginePair::new(Options::default());
    // The first frame starts the handshake; all are read before it can be over.
    let frames: Vec<_> = (0..100).map(|n| datagram(A, (1, 2), n, 100 + n)).collect();
    expect_delivery(&pair, A, &frames);
    assert_eq!(pair.drops(A, "staged"), 0);
}

/// Invariant 5: what waits for a handshake is bounded, and the newest is what stays.
#[test]
fn frames_for_a_silent_peer_are_bounded_and_counted() {
    let pair = EnginePair::new(Options::default());
    pair.sides[B].interface.stop();
    // Until its threads have ended it may still answer.
    pair.sides[B].interface.wait();
    for n in 0..1000 {
        pair.inject(A, datagram(A, (1, 2), n, 1000));
    }
    pair.wait_for_drops(A, "staged", 1000 - 128);
    assert_eq!(pair.drops(A, "staged"), 1000 - 128);

    // A GSO packet is as many as it has segments: the datagrams go first, then 72 of these.
    for n in 0..200 {
        let payload = pattern(3000, n);
        pair.inject(A, tcp_frame(inner_ip(A), inner_ip(B), 1, 1000, &payload));
    }
    pair.wait_for_drops(A, "staged", 1000 + 3 * 72);
    assert_eq!(pair.drops(A, "staged"), 1000 + 3 * 72);
}

/// Invariant 5: nor do many silent peers together hold more than 4 MiB, as SPEC.md says.
#[test]
fn frames_for_many_silent_peers_are_bounded_and_counted() {
    let pair = EnginePair::new(Options::default());
    let silent = |n: u8| [10, 0, 1, n].into();
    let peers = (1..=8).map(|n| PeerChange {
        endpoint: Some(SocketAddr::from(([192, 0, 2, 100 + n], 51820))),
        allowed_ips: vec![AllowedIpChange::Add(
            Cidr::new(silent(n), 32).expect("a right prefix"),
        )],
        ..PeerChange::new(PublicKey([n; 32]))
    });
    let change = DeviceChange {
        peers: peers.collect(),
        ..DeviceChange::default()
    };
    let interface = &pair.sides[A].interface;
    interface.set(change).expect("a right configuration");
    let (rounds, peers) = (20, 8);
    let mut len = 0;
    for round in 0..rounds {
        for n in 1..=peers {
            let frame = udp_frame(inner_ip(A), silent(n), (1, 2), round, &[n; 60_000]);
            len = frame.len();
            pair.inject(A, frame);
        }
    }
    let excess = u64::from(rounds) * u64::from(peers) - (4 << 20) / len as u64;
    pair.wait_for_drops(A, "staged", excess);
    assert_eq!(pair.drops(A, "staged"), excess);
}

/// Invariant 4: nothing reaches the TUN from outside its peer's allowed IPs.
#[test]
fn a_source_outside_the_allowed_ips_is_dropped() {
    let pair = EnginePair::new(Options::default());
    expect_delivery(&pair, A, &[datagram(A, (1, 2), 0, 10)]);
    let spoofed: IpAddr = [10, 0, 0, 99].into();
    pair.inject(A, udp_frame(spoofed, inner_ip(B), (1, 2), 1, b"spoofed"));
    // Mixed into a train with right ones, only the wrong one is missing.
    pair.inject(A, datagram(A, (1, 2), 2, 7));
    let delivered = pair.delivered(B, 1);
    assert_eq!(delivered, segments(&datagram(A, (1, 2), 2, 7)));
    pair.wait_for_drops(B, "wrong_source", 1);
}

/// Invariant 6: a shard's note wakes the control thread, and so does its first repeat.
#[test]
fn what_a_shard_notes_is_told_without_waiting_for_a_timer() {
    let pair = established(Options {
        verbose: true,
        ..Options::default()
    });
    let spoofed: IpAddr = [10, 0, 0, 99].into();
    let spoof = || pair.inject(A, udp_frame(spoofed, inner_ip(B), (1, 2), 1, b"spoofed"));
    spoof();
    let from = pair.sides[A].addr.to_string();
    let peer = common::public(A).to_string();
    pair.wait_for_line(
        B,
        &[&peer, &from, "its inner source 10.0.0.99 is not among"],
    );
    for _ in 0..5 {
        spoof();
    }
    pair.wait_for_line(B, &["inner source 10.0.0.99", "times)"]);
}

#[test]
fn a_destination_that_no_peer_owns_is_dropped_and_counted() {
    let pair = EnginePair::new(Options::default());
    pair.inject(
        A,
        udp_frame(inner_ip(A), [10, 9, 9, 9].into(), (1, 2), 1, b"whither"),
    );
    pair.wait_for_drops(A, "no_route", 1);
    pair.inject(A, vec![0; VNET_HDR_LEN + 3]);
    pair.wait_for_drops(A, "malformed_frame", 1);
}

/// Invariant 10: each drop counts once, and packets that were meant for no peer are no drops.
#[test]
fn multicast_that_no_peer_takes_is_ignored_and_no_drop() {
    let pair = EnginePair::new(Options::default());
    let unrouted = [
        "224.0.0.251",
        "255.255.255.255",
        "169.254.1.1",
        "10.0.0.99",
        "10.0.0.98",
    ];
    for to in unrouted {
        let to = to.parse().expect("an address");
        pair.inject(
            A,
            udp_frame(inner_ip(A), to, (5353, 5353), 1, b"who is there?"),
        );
    }
    pair.wait_for_drops(A, "no_route", 2);
    let report = pair.sides[A].interface.report();
    assert_eq!(report.ignored, [("multicast", 2), ("link_local", 1)]);
    let dropped: u64 = report.drops.iter().map(|(_, count)| count).sum();
    assert_eq!(dropped, 2);
}

#[test]
fn our_own_datagrams_are_not_sealed_again() {
    let pair = EnginePair::new(Options::default());
    expect_delivery(&pair, A, &[datagram(A, (1, 2), 0, 10)]);
    let block = Cidr::new(pair.sides[B].addr.ip(), 32).expect("a right prefix");
    let mut change = pair.configuration(A);
    change.peers[0]
        .allowed_ips
        .push(AllowedIpChange::Add(block));
    pair.sides[A]
        .interface
        .set(change)
        .expect("a right configuration");
    let ports = (51820, 51820);
    pair.inject(
        A,
        udp_frame(
            pair.sides[A].addr.ip(),
            pair.sides[B].addr.ip(),
            ports,
            1,
            b"sealed",
        ),
    );
    pair.wait_for_drops(A, "routing_loop", 1);
}

/// Invariant 7, and that garbage is counted.
#[test]
fn garbage_datagrams_neither_stop_nor_fool_the_tunnel() {
    let pair = EnginePair::new(Options::default());
    expect_delivery(&pair, A, &[datagram(A, (1, 2), 0, 10)]);
    let attacker = pair
        .network
        .bind(SocketAddr::from(([192, 0, 2, 66], 6666)), true)
        .expect("a free address");
    let mut report = SendReport::default();
    let before = pair.sides[B].interface.get().unwrap().peers[0].endpoint;
    for n in 0..2000usize {
        let mut bytes = pattern(n % 300, n);
        if let (Some(kind), true) = (bytes.first_mut(), n % 2 == 0) {
            *kind = u8::try_from(1 + n / 2 % 4).expect("1 to 4");
            let zeros = bytes.len().min(4);
            bytes[1.min(zeros)..zeros].fill(0);
        }
        let stride = (n % 97).max(1);
        attacker.send(
            &[Transmit {
                to: pair.sides[B].addr.into(),
                ecn: 0,
                stride,
                bytes: &bytes,
            }],
            &mut report,
        );
        if n % 100 == 0 {
            expect_delivery(&pair, A, &[datagram(A, (1, 2), n, 100)]);
        }
    }
    assert!(pair.drops(B, "malformed_datagram") > 0);
    assert!(pair.drops(B, "unknown_session") > 0);
    assert_eq!(
        pair.sides[B].interface.get().unwrap().peers[0].endpoint,
        before,
        "an endpoint moved without authentication"
    );
    expect_delivery(&pair, B, &[datagram(B, (1, 2), 0, 10)]);
}

/// Sees everything that one side receives, and can send it again.
struct Tap<U> {
    socket: U,
    seen: std::sync::Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
}

impl<U: UdpSocket> UdpSocket for Tap<U> {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let mut seen = self.seen.lock().expect("no panic while locked");
        seen.extend(
            trains
                .iter()
                .flat_map(|train| train.bytes.chunks(train.stride).map(<[u8]>::to_vec)),
        );
        self.socket.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> std::io::Result<()> {
        self.socket.recv(batch)
    }

    fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.fd()
    }
}

/// Invariants 1 and 4 as seen on the wire, and that what was captured opens nothing twice.
#[test]
fn the_wire_shows_no_plaintext_and_no_counter_twice() {
    let seen = std::sync::Arc::<std::sync::Mutex<Vec<Vec<u8>>>>::default();
    let tap = std::sync::Arc::clone(&seen);
    let pair = EnginePair::with_sockets(Options::default(), move |_, socket| Tap {
        socket,
        seen: tap.clone(),
    });
    let marker = b"attack at dawn, attack at dawn";
    let frames: Vec<_> = (0..200)
        .map(|n| udp_frame(inner_ip(A), inner_ip(B), (1, 2), n, marker))
        .collect();
    expect_delivery(&pair, A, &[datagram(A, (1, 2), 0, 10)]);
    expect_delivery(&pair, A, &frames);

    let captured = seen.lock().expect("no panic while locked").clone();
    assert!(
        captured
            .iter()
            .all(|bytes| !bytes.windows(8).any(|part| part == &marker[..8]))
    );
    let data: Vec<_> = captured.iter().filter(|bytes| bytes[0] == 4).collect();
    assert!(data.len() >= 200);
    let mut nonces: Vec<_> = data.iter().map(|bytes| bytes[4..16].to_vec()).collect();
    nonces.sort();
    nonces.dedup();
    assert_eq!(nonces.len(), data.len(), "a counter was used twice");

    let attacker = pair
        .network
        .bind(SocketAddr::from(([192, 0, 2, 66], 6666)), true)
        .expect("a free address");
    let mut report = SendReport::default();
    let mut send = |bytes: &[u8]| {
        let train = Transmit {
            to: pair.sides[B].addr.into(),
            ecn: 0,
            stride: bytes.len(),
            bytes,
        };
        attacker.send(&[train], &mut report);
    };
    for bytes in &data {
        send(bytes);
        // The window knows the counter: nobody decrypts it to find that the tag is wrong.
        let mut tampered = bytes.to_vec();
        tampered[20] ^= 1;
        send(&tampered);
    }
    pair.wait_for_drops(B, "replayed", 400);
    assert_eq!(pair.drops(B, "not_authentic"), 0);
    assert!(
        pair.delivered_now(B).is_empty(),
        "a replayed packet was delivered"
    );
    let endpoint = pair.sides[B].interface.get().unwrap().peers[0].endpoint;
    assert_eq!(
        endpoint,
        Some(pair.sides[A].addr),
        "a replayed packet moved the endpoint"
    );
}

#[test]
fn a_tampered_packet_is_dropped_and_its_neighbours_are_not() {
    struct Flip<U>(U);
    impl<U: UdpSocket> UdpSocket for Flip<U> {
        fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
            for train in trains {
                let mut bytes = train.bytes.to_vec();
                for (n, datagram) in bytes.chunks_mut(train.stride).enumerate() {
                    if datagram[0] == 4 && train.bytes.len() > train.stride && n % 3 == 1 {
                        datagram[20] ^= 1;
                    }
                }
                self.0.send(
                    &[Transmit {
                        bytes: &bytes,
                        ..*train
                    }],
                    report,
                );
            }
            trains.len()
        }
        fn recv(&self, batch: &mut RecvBatch) -> std::io::Result<()> {
            self.0.recv(batch)
        }
        fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.0.fd()
        }
    }
    let pair = EnginePair::with_sockets(Options::default(), |_, socket| Flip(socket));
    let frame = tcp_frame(inner_ip(A), inner_ip(B), 1, 1000, &pattern(9000, 1));
    let sent = segments(&frame);
    pair.inject(A, frame);
    let delivered = pair.delivered(B, 6);
    let expected: Vec<_> = sent
        .into_iter()
        .enumerate()
        .filter(|(n, _)| n % 3 != 1)
        .map(|(_, packet)| packet)
        .collect();
    assert!(delivered == expected);
    assert_eq!(pair.drops(B, "not_authentic"), 3);
}

#[test]
fn a_failing_or_identical_set_disturbs_nothing() {
    let pair = EnginePair::new(Options::default());
    expect_delivery(&pair, A, &[datagram(A, (1, 2), 0, 10)]);
    let before = pair.sides[A].interface.get().unwrap();
    // Another process has the port.
    let taken = SocketAddr::new(pair.sides[A].addr.ip(), 7777);
    let _holder = pair.network.bind(taken, true).expect("a free address");
    let change = DeviceChange {
        listen_port: Some(7777),
        replace_peers: true,
        ..DeviceChange::default()
    };
    let error = pair.sides[A]
        .interface
        .set(change)
        .expect_err("the port is taken");
    assert_eq!(error.errno(), Errno::ADDRINUSE);
    assert_eq!(pair.sides[A].interface.get().unwrap(), before);

    let handshakes =
        |side: usize| pair.sides[side].interface.get().unwrap().peers[0].last_handshake;
    let established = handshakes(A);
    for n in 0..50 {
        let mut change = pair.configuration(A);
        change.replace_peers = true;
        change.peers[0].replace_allowed_ips = true;
        pair.sides[A]
            .interface
            .set(change)
            .expect("the same configuration");
        expect_delivery(&pair, A, &[datagram(A, (1, 2), n, 100)]);
        expect_delivery(&pair, B, &[datagram(B, (1, 2), n, 100)]);
    }
    assert_eq!(handshakes(A), established, "the session was lost");
}

#[test]
fn stopping_answers_callers_and_ends_all_threads() {
    let pair = EnginePair::new(Options::default());
    let interface = &pair.sides[A].interface;
    interface.stop();
    assert!(matches!(interface.wait(), adit_engine::StopReason::Asked));
    assert!(interface.set(DeviceChange::default()).is_err());
    assert_eq!(interface.get().unwrap_err().errno(), Errno::IO);
}

#[test]
fn our_own_datagrams_are_no_cargo_beside_other_packets_either() {
    let pair = EnginePair::new(Options::default());
    let to_itself = AllowedIpChange::Add(Cidr::new(pair.sides[B].addr.ip(), 32).expect("a block"));
    let change = DeviceChange {
        peers: vec![PeerChange {
            allowed_ips: vec![to_itself],
            ..PeerChange::new(common::public(B))
        }],
        ..DeviceChange::default()
    };
    pair.sides[A].interface.set(change).expect("valid");
    let other = udp_frame(inner_ip(A), inner_ip(B), (1, 2), 1, &[9; 1300]);
    pair.inject(A, other.clone());
    assert_eq!(pair.delivered(B, 1).len(), 1);
    let (from, to) = (pair.sides[A].addr, pair.sides[B].addr);
    let own = udp_frame(from.ip(), to.ip(), (from.port(), to.port()), 1, &[4; 300]);
    for _ in 0..100 {
        pair.inject(A, other.clone());
        pair.inject(A, own.clone());
    }
    assert_eq!(pair.delivered(B, 100).len(), 100);
    assert_eq!(pair.drops(A, "routing_loop"), 100);
    assert_eq!(pair.drops(B, "wrong_source"), 0);
}
