#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers here are known"
)]

use proptest::prelude::*;

use super::tests::*;
use super::*;

/// How many packets stand in each frame that leaves.
fn counts(packets: &[Packet]) -> Vec<usize> {
    let wire: Vec<_> = packets.iter().map(Packet::wire).collect();
    frame_counts(&coalesce(&mut Coalescer::new(true, true), &wire))
}

fn frame_counts(frames: &[Vec<u8>]) -> Vec<usize> {
    frames
        .iter()
        .map(|frame| Frame::parse(frame).unwrap().segments())
        .collect()
}

/// A packet, the one that follows it with a change, and the one that follows that.
fn three(first: &Packet, change: impl FnOnce(&mut Packet)) -> Vec<usize> {
    let second = first.next().with(change);
    let third = second.next().with(|p| {
        p.flags = first.flags & !(PSH | FIN | CWR);
        p.payload = bytes(first.payload.len(), 5);
    });
    counts(&[first.clone(), second, third])
}

#[test]
fn segments_of_one_flow_merge() {
    for v6 in [false, true] {
        assert_eq!(three(&Packet::tcp(v6, 1000), |_| {}), [3]);
        assert_eq!(three(&Packet::udp(v6, 1000), |_| {}), [3]);
    }
}

#[test]
fn tcp_flags_follow_the_rules_of_the_kernel() {
    for v6 in [false, true] {
        let first = Packet::tcp(v6, 1000);
        for (flag, expected) in [
            (PSH, vec![2, 1]),
            (FIN, vec![2, 1]),
            (PSH | FIN, vec![2, 1]),
            (SYN, vec![1, 1, 1]),
            (RST, vec![1, 1, 1]),
            (URG, vec![1, 1, 1]),
            (ECE, vec![1, 1, 1]),
        ] {
            assert_eq!(
                three(&first, |p| p.flags |= flag),
                expected,
                "second with {flag:#x}"
            );
        }
        // CWR begins a run, which may go on without it.
        assert_eq!(three(&first, |p| p.flags |= CWR), [1, 2]);
        for (flag, expected) in [
            (PSH, vec![1, 2]),
            (FIN, vec![1, 2]),
            (SYN, vec![1, 2]),
            (RST, vec![1, 2]),
            (URG, vec![1, 2]),
            (ECE, vec![1, 2]),
            (CWR, vec![3]),
        ] {
            let packets = [
                first.with(|p| p.flags |= flag),
                first.next(),
                first.next().next(),
            ];
            assert_eq!(counts(&packets), expected, "first with {flag:#x}");
        }
        assert_eq!(
            three(&first.with(|p| p.flags |= ECE), |_| {}),
            [3],
            "ECE on all"
        );
    }
}

#[test]
fn tcp_headers_must_agree() {
    for v6 in [false, true] {
        let first = Packet::tcp(v6, 1000);
        assert_eq!(three(&first, |p| p.ack += 1), [1, 2], "acknowledgement");
        assert_eq!(three(&first, |p| p.window += 1), [1, 2], "window");
        assert_eq!(three(&first, |p| p.urgent = 1), [1, 2], "urgent pointer");
        assert_eq!(three(&first, |p| p.options[7] ^= 1), [1, 2], "time stamp");
        assert_eq!(
            three(&first, |p| p.options.clear()),
            [1, 2],
            "length of the options"
        );
        assert_eq!(
            three(&first, |p| p.options.extend([1; 28])),
            [1, 2],
            "longest options"
        );
        assert_eq!(three(&first, |p| p.sequence += 1), [1, 2], "a gap");
        assert_eq!(three(&first, |p| p.sequence -= 1000), [1, 2], "a duplicate");
        assert_eq!(
            three(&first.with(|p| p.sequence = u32::MAX - 999), |_| {}),
            [3],
            "sequence wraps"
        );
        assert_eq!(
            three(&first.with(|p| p.options = vec![1; 40]), |_| {}),
            [3],
            "longest options on all"
        );
    }
}

#[test]
fn sizes_decide_where_a_run_ends() {
    for v6 in [false, true] {
        for first in [Packet::tcp(v6, 1000), Packet::udp(v6, 1000)] {
            assert_eq!(
                three(&first, |p| p.payload.truncate(999)),
                [2, 1],
                "a shorter one is the last"
            );
            assert_eq!(
                three(&first, |p| p.payload.truncate(0)),
                [1, 1, 1],
                "an empty one stands alone"
            );
            assert_eq!(
                three(&first, |p| p.payload.push(0)),
                [1, 2],
                "a longer one begins a run"
            );
        }
        assert_eq!(
            three(&Packet::tcp(v6, 0), |_| {}),
            [1, 1, 1],
            "pure acknowledgements"
        );
        assert_eq!(
            three(&Packet::udp(v6, 0), |_| {}),
            [1, 1, 1],
            "empty datagrams"
        );
        assert_eq!(three(&Packet::udp(v6, 1), |_| {}), [3]);
        assert_eq!(three(&Packet::tcp(v6, 1), |_| {}), [3]);
    }
}

#[test]
fn ip_headers_must_agree() {
    for tcp in [false, true] {
        let v4 = Packet {
            tcp,
            ..Packet::tcp(false, 500)
        };
        assert_eq!(three(&v4, |p| p.ttl -= 1), [1, 2], "time to live");
        assert_eq!(three(&v4, |p| p.tos = 0xb8), [1, 2], "DSCP");
        assert_eq!(three(&v4.with(|p| p.tos = 2), |p| p.tos = 3), [1, 2], "CE");
        assert_eq!(three(&v4.with(|p| p.tos = 3), |_| {}), [3], "CE on all");
        assert_eq!(three(&v4, |p| p.df = false), [1, 2], "DF");
        let v6 = Packet {
            tcp,
            ..Packet::tcp(true, 500)
        };
        assert_eq!(three(&v6, |p| p.ttl -= 1), [1, 2], "hop limit");
        assert_eq!(three(&v6, |p| p.tos = 0xb8), [1, 2], "traffic class");
        assert_eq!(three(&v6.with(|p| p.tos = 2), |p| p.tos = 3), [1, 2], "CE");
        assert_eq!(three(&v6, |p| p.label = 1), [1, 2], "flow label");
        assert_eq!(three(&v6, |p| p.id = 9), [3], "IPv6 has no identification");
    }
}

#[test]
fn identifications_count_up_or_mean_nothing() {
    let ids = |df: bool, ids: [u16; 4]| {
        let mut packet = Packet::udp(false, 100);
        let packets: Vec<_> = ids
            .iter()
            .map(|id| {
                packet = packet.next().with(|p| (p.id, p.df) = (*id, df));
                packet.clone()
            })
            .collect();
        counts(&packets)
    };
    assert_eq!(ids(true, [1, 2, 3, 4]), [4]);
    assert_eq!(ids(false, [1, 2, 3, 4]), [4]);
    assert_eq!(ids(false, [65_534, 65_535, 0, 1]), [4]);
    assert_eq!(ids(true, [9, 9, 9, 9]), [4], "atomic datagrams, RFC 6864");
    assert_eq!(ids(true, [0, 0, 0, 0]), [4]);
    assert_eq!(
        ids(false, [9, 9, 9, 9]),
        [1, 1, 1, 1],
        "could be duplicates"
    );
    assert_eq!(ids(true, [9, 9, 10, 10]), [2, 2], "fixed stays fixed");
    assert_eq!(
        ids(true, [9, 10, 10, 11]),
        [2, 2],
        "counting keeps counting"
    );
    assert_eq!(ids(true, [1, 3, 4, 6]), [1, 2, 1]);
    assert_eq!(ids(true, [4, 3, 2, 1]), [1, 1, 1, 1]);
}

#[test]
fn zero_udp_checksums_merge_with_zero_only() {
    let unsummed = Packet::udp(false, 500).with(|p| p.unsummed = true);
    assert_eq!(three(&unsummed, |_| {}), [3]);
    assert_eq!(three(&unsummed, |p| p.unsummed = false), [1, 2]);
    assert_eq!(
        three(&Packet::udp(false, 500), |p| p.unsummed = true),
        [1, 2]
    );
    assert_eq!(
        three(&Packet::udp(true, 500).with(|p| p.unsummed = true), |_| {}),
        [1, 1, 1],
        "not in IPv6"
    );
}

#[test]
fn a_wrong_ipv4_header_checksum_is_not_mended() {
    let first = Packet::tcp(false, 500);
    let mut wire: Vec<_> = [first.clone(), first.next(), first.next().next()]
        .iter()
        .map(Packet::wire)
        .collect();
    wire[1][10] ^= 1;
    let frames = coalesce(&mut Coalescer::new(true, true), &wire);
    assert_eq!(frames.len(), 3);
    assert_eq!(frames[1][VNET_HDR_LEN..], wire[1]);
}

#[test]
fn options_extensions_and_fragments_are_never_merged_nor_passed() {
    let v4 = Packet::tcp(false, 500);
    assert_eq!(three(&v4, |p| p.ip_options = vec![1, 1, 1, 0]), [1, 1, 1]);
    let v6 = Packet::tcp(true, 500);
    assert_eq!(
        three(&v6, |p| p.extensions =
            vec![(60, vec![0, 0, 1, 4, 0, 0, 0, 0])]),
        [1, 1, 1]
    );
    assert_eq!(
        three(&v6, |p| p.extensions =
            vec![(44, vec![0, 0, 0, 1, 0, 0, 0, 9])]),
        [1, 1, 1]
    );
    for (at, value) in [(6, 0x20), (7, 1)] {
        // The fragment has no ports where others have them: it could be of any flow.
        let fragment = {
            let mut bytes = v4.with(|p| p.ports = [1, 2]).wire();
            bytes[at] = value;
            bytes
        };
        let wire = [v4.wire(), fragment, v4.next().wire()];
        let frames = coalesce(&mut Coalescer::new(true, true), &wire);
        let packets: Vec<_> = frames
            .iter()
            .map(|frame| frame[VNET_HDR_LEN..].to_vec())
            .collect();
        assert_eq!(packets, wire);
    }
}

#[test]
fn other_flows_do_not_end_a_run() {
    let (a, b) = (Packet::tcp(false, 500), Packet::udp(true, 300));
    let c = a.with(|p| p.ports = [443, 40_000]);
    let others = [
        a.with(|p| p.host = 2),
        a.with(|p| p.ports[0] = 1),
        Packet::udp(false, 500),
    ];
    let mut packets = vec![a.clone(), b.clone(), c.clone()];
    packets.extend(others);
    packets.extend([
        a.next(),
        c.next(),
        b.next(),
        b.next().next(),
        a.next().next(),
    ]);
    assert_eq!(counts(&packets), [3, 3, 2, 1, 1, 1]);
    // ICMP passes and is passed.
    let mut icmp = Packet::udp(false, 500).wire();
    icmp[9] = 1;
    write16(&mut icmp, 10, 0);
    let sum = !naive_sum(&[&icmp[..20]]);
    write16(&mut icmp, 10, sum);
    let frames = coalesce(
        &mut Coalescer::new(true, true),
        &[a.wire(), icmp.clone(), a.next().wire()],
    );
    assert_eq!(frame_counts(&frames), [2, 1]);
    assert_eq!(frames[1][VNET_HDR_LEN..], icmp);
}

#[test]
fn a_closed_run_stays_closed() {
    let a = Packet::udp(false, 500);
    let short = a.next().with(|p| p.payload.truncate(100));
    // By its size and identification, the packet behind the short one could go in front of it.
    let late = short.next().with(|p| p.payload = bytes(500, 1));
    assert_eq!(counts(&[a, short, late]), [2, 1]);
}

#[test]
fn gso_packets_stay_within_the_limits() {
    let flow = |first: Packet, n: usize| {
        let mut packets = vec![first];
        for _ in 1..n {
            packets.push(packets[packets.len() - 1].next());
        }
        counts(&packets)
    };
    assert_eq!(flow(Packet::udp(false, 100), 130), [64, 64, 2]);
    assert_eq!(flow(Packet::tcp(false, 100), 300), [256, 44]);
    // 20 + 32 + 45 * 1455 = 65,527; 40 + 8 + 47 * 1393 = 65,519.
    assert_eq!(flow(Packet::tcp(false, 1455), 46), [45, 1]);
    assert_eq!(flow(Packet::udp(true, 1393), 50), [47, 3]);
    // To the byte: 28 + 2 * 32,753 = 65,534, and 28 + 65,507 = 65,535 with the last one byte
    // longer.
    assert_eq!(flow(Packet::udp(false, 32_753), 2), [2]);
    assert_eq!(flow(Packet::udp(false, 32_754), 2), [1, 1]);
    assert_eq!(flow(Packet::udp(false, 65_507), 2), [1, 1]);
}

#[test]
fn datagrams_whose_length_is_not_the_packets_stand_alone() {
    let first = Packet::udp(false, 500);
    for wrong in [0, 7, 8, 507, 509, 65_535] {
        let mut wire: Vec<_> = [first.clone(), first.next(), first.next().next()]
            .iter()
            .map(Packet::wire)
            .collect();
        write16(&mut wire[1], 24, wrong);
        let frames = coalesce(&mut Coalescer::new(true, true), &wire);
        assert_eq!(
            frames
                .iter()
                .map(|f| f[VNET_HDR_LEN..].to_vec())
                .collect::<Vec<_>>(),
            wire
        );
    }
}

#[test]
fn switched_off_protocols_pass_as_they_came() {
    for v6 in [false, true] {
        let (tcp, udp) = (Packet::tcp(v6, 500), Packet::udp(v6, 500));
        let wire = [tcp.wire(), udp.wire(), tcp.next().wire(), udp.next().wire()];
        for (on, expected) in [
            ((true, true), vec![2, 2]),
            ((true, false), vec![2, 1, 1]),
            ((false, true), vec![1, 2, 1]),
            ((false, false), vec![1, 1, 1, 1]),
        ] {
            let frames = coalesce(&mut Coalescer::new(on.0, on.1), &wire);
            assert_eq!(frame_counts(&frames), expected);
        }
    }
}

#[test]
fn merged_frames_say_what_the_kernel_has_to_know() {
    for v6 in [false, true] {
        for tcp in [false, true] {
            let first = Packet {
                tcp,
                ..Packet::tcp(v6, 700)
            };
            let second = first.next().with(|p| p.payload.truncate(300));
            let frames = coalesce(
                &mut Coalescer::new(true, true),
                &[first.wire(), second.wire()],
            );
            let whole = first.with(|p| p.payload.extend(&second.payload));
            let vnet = VnetHdr {
                hdr_len: whole.headers() as u16,
                ..whole.vnet(700)
            };
            assert_eq!(frames, [[&vnet.write()[..], &whole.partial()].concat()]);
        }
    }
    let first = Packet::tcp(false, 700).with(|p| p.flags |= CWR);
    let last = first.next().with(|p| p.flags = ACK | PSH | FIN);
    let frames = coalesce(
        &mut Coalescer::new(true, true),
        &[first.wire(), last.wire()],
    );
    assert_eq!(frames[0][1], GSO_TCPV4 | GSO_ECN);
    assert_eq!(frames[0][VNET_HDR_LEN + 33], ACK | CWR | PSH | FIN);
}

#[test]
fn a_full_coalescer_takes_nothing_until_it_is_drained() {
    let mut coalescer = Coalescer::new(true, true);
    let mut packet = Packet::udp(false, 10);
    let at = Span {
        buffer: 0,
        start: 0,
        len: 38,
    };
    for _ in 0..4096 {
        assert_eq!(coalescer.push(0, &packet.wire(), at, |_| true), Ok(()));
        packet = packet.next();
    }
    assert_eq!(coalescer.push(0, &packet.wire(), at, |_| true), Err(Full));
    let mut frames = 0;
    coalescer.drain(|_, spans| {
        assert_eq!(spans.len(), 64);
        frames += 1;
    });
    assert_eq!(frames, 64);
    coalescer.drain(|_, _| panic!("nothing is left"));
    // Nothing joins a run that has left.
    assert_eq!(coalescer.push(0, &packet.wire(), at, |_| true), Ok(()));
    coalescer.drain(|head, spans| assert_eq!((head, spans), (&[0; VNET_HDR_LEN][..], &[at][..])));
}

#[test]
fn flows_merge_however_many_there_are() {
    let firsts: Vec<_> = (0..2000u16)
        .map(|i| Packet::udp(i % 2 == 0, 50).with(|p| p.ports[0] = i))
        .collect();
    let packets: Vec<_> = firsts
        .iter()
        .cloned()
        .chain(firsts.iter().map(Packet::next))
        .collect();
    assert_eq!(counts(&packets), [2; 2000]);
}

const X: u32 = 1;
const Y: u32 = 2;

/// How many packets stand in the frames of Y's flow of 64 segments, when X sends `between` any two
/// of them.
fn with_x_between(between: impl Fn(u16) -> Vec<Vec<u8>>) -> Vec<usize> {
    let mut segment = Packet::tcp(false, 100);
    let mut packets = Vec::new();
    for i in 0..64 {
        packets.push((Y, segment.wire()));
        packets.extend(between(i).into_iter().map(|packet| (X, packet)));
        segment = segment.next();
    }
    let frames = coalesce_of_peers(&mut Coalescer::new(true, true), &packets);
    let of_y = |frame: &&Vec<u8>| frame[VNET_HDR_LEN..][..20][15] == 1;
    let of_y: Vec<_> = frames.iter().filter(of_y).cloned().collect();
    assert!(frames.len() > of_y.len());
    frame_counts(&of_y)
}

#[test]
fn what_a_peer_sends_ends_no_run_of_another() {
    let tcp = |v6| Packet::tcp(v6, 100).with(|p| p.host = 9);
    let mut fragment = tcp(false).wire();
    fragment[6] = 0x20;
    let options = tcp(false).with(|p| p.ip_options = vec![1, 1, 1, 0]);
    let extension = tcp(true).with(|p| p.extensions = vec![(60, vec![0, 0, 1, 4, 0, 0, 0, 0])]);
    for packet in [fragment, options.wire(), extension.wire(), vec![0x45; 20]] {
        assert_eq!(with_x_between(|_| vec![packet.clone()]), [64]);
    }
}

#[test]
fn flows_of_a_peer_end_no_run_of_another() {
    let flow = |port| Packet::tcp(false, 100).with(|p| (p.host, p.ports[0]) = (9, port));
    let sixty = |i: u16| (0..60).map(|j| flow(i * 60 + j).wire()).collect();
    assert_eq!(with_x_between(sixty), [64]);
    // Two peers have no flow in common.
    let first = Packet::tcp(false, 100);
    let packets = [(X, first.wire()), (Y, first.next().wire())];
    let frames = coalesce_of_peers(&mut Coalescer::new(true, true), &packets);
    assert_eq!(frame_counts(&frames), [1, 1]);
}

#[test]
fn a_fragment_ends_the_runs_of_its_peer_only() {
    let segment = Packet::tcp(false, 100);
    let mut fragment = segment.with(|p| p.host = 9).wire();
    fragment[6] = 0x20;
    let other = segment.with(|p| p.host = 2);
    let packets = [
        (X, segment.wire()),
        (Y, other.wire()),
        (X, fragment),
        (Y, other.next().wire()),
        (X, segment.next().wire()),
        (X, segment.next().next().wire()),
    ];
    let frames = coalesce_of_peers(&mut Coalescer::new(true, true), &packets);
    assert_eq!(frame_counts(&frames), [1, 2, 1, 2]);
}

#[test]
fn fragments_of_hundreds_of_peers_end_the_runs_of_each_of_these() {
    let segment = Packet::tcp(false, 10);
    let mut fragment = segment.wire();
    fragment[6] = 0x20;
    let mut coalescer = Coalescer::new(true, true);
    // Twice, since nothing may be left of the first time.
    for kind in [0, 1] {
        let fenced = |peer: &u32| peer % 2 == kind;
        let first = (0..1000).map(|peer| (peer, segment.wire()));
        let fragments = (0..1000)
            .filter(fenced)
            .map(|peer| (peer, fragment.clone()));
        let second = (0..1000).map(|peer| (peer, segment.next().wire()));
        let packets: Vec<_> = first.chain(fragments).chain(second).collect();
        let counts = frame_counts(&coalesce_of_peers(&mut coalescer, &packets));
        let expected = (0..1000).map(|peer| if fenced(&peer) { 1 } else { 2 });
        assert_eq!(counts[..1000], expected.collect::<Vec<_>>());
        assert_eq!(counts[1000..], [1; 1000]);
    }
}

proptest! {
    #[test]
    fn random_bytes_neither_panic_nor_get_lost(
        packets in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..120)), 0..40),
        v4: bool,
    ) {
        let mut packets = packets;
        for (merges, packet) in &mut packets {
            let len = packet.len();
            if !v4 || len < 28 {
                continue;
            }
            // Something that looks like IP, with its right length and sum, and perhaps like any
            // other datagram.
            packet[0] = 0x45;
            write16(packet, 2, len as u16);
            packet[6..8].fill(0);
            packet[9] = if packet[9] & 1 == 0 { 6 } else { 17 };
            if *merges {
                packet[1] = 0;
                packet[4..10].copy_from_slice(&[0, 0, 0x40, 0, 64, 17]);
                packet[12..24].fill(1);
                write16(packet, 24, len as u16 - 20);
            }
            write16(packet, 10, 0);
            let sum = naive_sum(&[&packet[..20]]);
            write16(packet, 10, !sum);
        }
        let packets: Vec<_> = packets.into_iter().map(|(_, packet)| packet).collect();
        let frames = coalesce(&mut Coalescer::new(true, true), &packets);
        let left = frames.iter().flat_map(|frame| match frame[1] {
            GSO_NONE => vec![frame.len() - VNET_HDR_LEN],
            _ => segments_of(&Frame::parse(frame).unwrap()).iter().map(Vec::len).collect(),
        });
        let mut lengths = [left.collect(), packets.iter().map(Vec::len).collect::<Vec<_>>()];
        lengths.iter_mut().for_each(|lengths| lengths.sort_unstable());
        prop_assert_eq!(&lengths[0], &lengths[1]);
    }
}
