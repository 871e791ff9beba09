#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers here are known"
)]

use proptest::prelude::*;

use super::tests::*;
use super::*;

fn assert_segments(whole: &Packet, size: u16) {
    let bytes = whole.frame(size);
    let frame = Frame::parse(&bytes).unwrap();
    let expected: Vec<_> = whole
        .split(usize::from(size))
        .iter()
        .map(Packet::wire)
        .collect();
    assert_eq!(frame.segments(), expected.len());
    for (i, (segments, expected)) in segments_of(&frame).iter().zip(&expected).enumerate() {
        assert_eq!(segments, expected, "segment {i} of {whole:?}");
    }
}

fn parse_error(vnet: VnetHdr, packet: &[u8]) -> Malformed {
    Frame::parse(&[&vnet.write()[..], packet].concat()).unwrap_err()
}

#[test]
fn segments_are_those_of_the_kernel() {
    for v6 in [false, true] {
        for (payload, size) in [
            (1, 1),
            (10, 3),
            (2600, 1300),
            (2601, 1300),
            (64_000, 1368),
            (7, 1300),
            (0, 1300),
        ] {
            assert_segments(&Packet::tcp(v6, payload), size);
            assert_segments(&Packet::tcp(v6, payload).with(|p| p.options.clear()), size);
            assert_segments(&Packet::tcp(v6, payload).with(|p| p.flags = 0xff), size);
            assert_segments(&Packet::udp(v6, payload), size);
        }
    }
}

#[test]
fn sequence_and_identification_wrap() {
    assert_segments(
        &Packet::tcp(false, 5000).with(|p| (p.sequence, p.id) = (u32::MAX - 1200, 65_534)),
        1000,
    );
    assert_segments(&Packet::udp(false, 5000).with(|p| p.id = 65_534), 1000);
}

/// Of a datagram that left in fragments, the ports are in the first.
#[test]
fn ports_are_found_in_whole_datagrams_and_first_fragments_only() {
    let ports = |packet: &[u8]| {
        let bytes = [&[0; VNET_HDR_LEN], packet].concat();
        Frame::parse(&bytes).unwrap().udp_ports()
    };
    for v6 in [false, true] {
        let whole = Packet::udp(v6, 100).wire();
        let at = if v6 { 40 } else { 20 };
        let expected = Some((read16(&whole, at), read16(&whole, at + 2)));
        assert_eq!(ports(&whole), expected);
        assert_eq!(ports(&Packet::tcp(v6, 100).wire()), None);

        // More fragments follow; and one that lies 8 bytes further.
        for (offset_and_flags, found) in [(0x2000, true), (0x2001, false), (1, false)] {
            let mut fragment = whole.clone();
            if v6 {
                let offset_and_more = (offset_and_flags & 0x1fff) << 3 | offset_and_flags >> 13;
                let header = [[17, 0], u16::to_be_bytes(offset_and_more), [0; 2], [7; 2]];
                fragment.splice(40..40, header.concat());
                fragment[6] = 44;
                write16(&mut fragment, 4, read16(&whole, 4) + 8);
            } else {
                write16(&mut fragment, 6, offset_and_flags);
            }
            assert_eq!(ports(&fragment), expected.filter(|_| found));
        }
        // A header that ends before the ports, or before it has ended itself.
        let mut short = whole[..at + 3].to_vec();
        let (field, len) = if v6 { (4, 3) } else { (2, 23) };
        write16(&mut short, field, len);
        assert_eq!(ports(&short), None);
    }
    let mut short = Packet::udp(true, 100).wire()[..44].to_vec();
    short[6] = 44;
    write16(&mut short, 4, 4);
    assert_eq!(ports(&short), None);
}

#[test]
fn ip_options_and_extensions_are_repeated_in_every_segment() {
    let options = Packet::tcp(false, 3000).with(|p| p.ip_options = vec![148, 4, 0, 0, 1, 1, 1, 0]);
    assert_segments(&options, 1000);
    let extensions = vec![
        (0, vec![0, 0, 5, 2, 0, 0, 1, 0]),
        (60, vec![0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (51, vec![0, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    ];
    for tcp in [true, false] {
        assert_segments(
            &Packet {
                tcp,
                ..Packet::tcp(true, 3000).with(|p| p.extensions = extensions.clone())
            },
            999,
        );
    }
}

#[test]
fn behind_a_routing_header_the_partial_sum_of_the_kernel_counts() {
    // The destination in the IP header is a stop on the way; TCP sums the last one.
    let route = vec![(
        43,
        vec![
            0, 2, 0, 1, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
        ],
    )];
    let whole = Packet::tcp(true, 2500).with(|p| p.extensions = route);
    let mut bytes = whole.frame(1000);
    bytes[VNET_HDR_LEN + 24..VNET_HDR_LEN + 40].copy_from_slice(&[0x42; 16]);
    let segments = segments_of(&Frame::parse(&bytes).unwrap());
    for (segment, expected) in segments.iter().zip(whole.split(1000)) {
        let mut expected = expected.wire();
        expected[24..40].copy_from_slice(&[0x42; 16]);
        assert_eq!(segment, &expected);
    }
}

#[test]
fn header_length_of_the_virtio_header_is_not_believed() {
    let whole = Packet::tcp(false, 3000);
    for hdr_len in [0, 10, 65_535] {
        let vnet = VnetHdr {
            hdr_len,
            ..whole.vnet(1000)
        };
        let bytes = [&vnet.write()[..], &whole.partial()].concat();
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(frame.header_len(), whole.headers());
        assert_eq!(
            segments_of(&frame),
            whole
                .split(1000)
                .iter()
                .map(Packet::wire)
                .collect::<Vec<_>>()
        );
    }
}

#[test]
fn longest_frames_are_segmented() {
    for v6 in [false, true] {
        for tcp in [false, true] {
            let empty = Packet {
                tcp,
                ..Packet::tcp(v6, 0)
            };
            let whole = empty.with(|p| p.payload = bytes(65_535 - empty.headers(), 9));
            assert_eq!(whole.wire().len(), 65_535);
            assert_segments(&whole, 1368);
            assert_segments(&whole, 65_535);
            let bytes = whole.frame(1);
            assert_eq!(
                Frame::parse(&bytes).unwrap().segments(),
                whole.payload.len()
            );
        }
    }
    // An IPv6 packet could be 40 bytes longer, but no TUN queue hands one over.
    let mut bytes = Packet::udp(true, 65_535 - 8).wire();
    assert_eq!(bytes.len(), 65_575);
    assert_eq!(parse_error(VnetHdr::default(), &bytes), Malformed::Ip);
    // Its length field does not wrap when the header is added.
    bytes.truncate(60);
    assert_eq!(parse_error(VnetHdr::default(), &bytes), Malformed::Ip);
}

#[test]
fn a_computed_udp_checksum_of_zero_is_sent_as_all_ones() {
    for v6 in [false, true] {
        // Two segments; the last word of the first is what makes its sum come out as zero.
        let mut whole = Packet::udp(v6, 16);
        whole.payload[6..8].fill(0);
        let sum = whole.split(8)[0].with(|p| p.unsummed = false).wire();
        let missing = u16::from_be_bytes([sum[whole.transport() + 6], sum[whole.transport() + 7]]);
        whole.payload[6..8].copy_from_slice(&missing.to_be_bytes());
        let bytes = whole.frame(8);
        let segments = segments_of(&Frame::parse(&bytes).unwrap());
        let field = whole.transport() + 6;
        assert_eq!(segments[0][field..field + 2], [0xff, 0xff]);
        // The same datagram alone, its sum left to us.
        let alone = whole.split(8)[0].clone();
        let vnet = VnetHdr {
            gso_type: GSO_NONE,
            gso_size: 0,
            ..alone.vnet(0)
        };
        let bytes = [&vnet.write()[..], &alone.partial()].concat();
        assert_eq!(segments_of(&Frame::parse(&bytes).unwrap())[0], segments[0]);
    }
}

#[test]
fn datagrams_that_came_without_checksum_go_without() {
    let whole = Packet::udp(false, 3000).with(|p| p.unsummed = true);
    let vnet = VnetHdr {
        flags: 0,
        csum_start: 0,
        csum_offset: 0,
        ..whole.vnet(1000)
    };
    let bytes = [&vnet.write()[..], &whole.wire()].concat();
    let expected: Vec<_> = whole.split(1000).iter().map(Packet::wire).collect();
    assert_eq!(segments_of(&Frame::parse(&bytes).unwrap()), expected);
    // Where the kernel asks for a sum, it gets one.
    assert_segments(&whole.with(|p| p.unsummed = false), 1000);
}

#[test]
fn gso_packets_without_needs_csum_are_summed_as_well() {
    for whole in [Packet::tcp(false, 3000), Packet::udp(true, 3000)] {
        let vnet = VnetHdr {
            flags: 0,
            csum_start: 0,
            csum_offset: 0,
            ..whole.vnet(1000)
        };
        let bytes = [&vnet.write()[..], &whole.wire()].concat();
        let expected: Vec<_> = whole.split(1000).iter().map(Packet::wire).collect();
        assert_eq!(segments_of(&Frame::parse(&bytes).unwrap()), expected);
    }
}

#[test]
fn single_packets_pass_untouched_or_get_their_checksum() {
    for v6 in [false, true] {
        for packet in [
            Packet::tcp(v6, 1001),
            Packet::udp(v6, 33),
            Packet::udp(v6, 0),
            Packet::tcp(v6, 0),
        ] {
            let bytes = [&[0; VNET_HDR_LEN][..], &packet.wire()].concat();
            let frame = Frame::parse(&bytes).unwrap();
            assert_eq!(
                (frame.segments(), frame.header_len(), frame.segment_len(0)),
                (1, 0, packet.wire().len())
            );
            assert_eq!(segments_of(&frame), [packet.wire()]);
            let vnet = VnetHdr {
                gso_type: GSO_NONE,
                gso_size: 0,
                ..packet.vnet(0)
            };
            let bytes = [&vnet.write()[..], &packet.partial()].concat();
            assert_eq!(segments_of(&Frame::parse(&bytes).unwrap()), [packet.wire()]);
        }
    }
}

#[test]
fn bytes_behind_the_packet_are_cut_off() {
    let packet = Packet::udp(false, 100);
    let bytes = [&[0; VNET_HDR_LEN][..], &packet.wire(), &[7; 9]].concat();
    assert_eq!(segments_of(&Frame::parse(&bytes).unwrap()), [packet.wire()]);
}

#[test]
fn hostile_virtio_headers_are_malformed() {
    let tcp = Packet::tcp(false, 3000);
    let udp = Packet::udp(true, 3000);
    let (good, good_udp) = (tcp.vnet(1000), udp.vnet(1000));
    let (packet, datagram) = (tcp.partial(), udp.partial());
    let table = [
        (
            VnetHdr {
                gso_size: 0,
                ..good
            },
            Malformed::Segmentation,
        ),
        (
            VnetHdr {
                gso_type: 2,
                ..good
            },
            Malformed::Segmentation,
        ),
        (
            VnetHdr {
                gso_type: 3,
                ..good
            },
            Malformed::Segmentation,
        ),
        (
            VnetHdr {
                gso_type: GSO_ECN,
                ..good
            },
            Malformed::Segmentation,
        ),
        (
            VnetHdr {
                gso_type: 0x20 | GSO_TCPV4,
                ..good
            },
            Malformed::Segmentation,
        ),
        (
            VnetHdr {
                gso_type: GSO_TCPV6,
                ..good
            },
            Malformed::Segmentation,
        ),
        (
            VnetHdr {
                gso_type: GSO_UDP_L4,
                ..good
            },
            Malformed::Segmentation,
        ),
        (
            VnetHdr {
                csum_start: 0,
                ..good
            },
            Malformed::Checksum,
        ),
        (
            VnetHdr {
                csum_start: 22,
                ..good
            },
            Malformed::Checksum,
        ),
        (
            VnetHdr {
                csum_start: 65_535,
                ..good
            },
            Malformed::Checksum,
        ),
        (
            VnetHdr {
                csum_offset: 6,
                ..good
            },
            Malformed::Checksum,
        ),
        (
            VnetHdr {
                csum_offset: 65_535,
                ..good
            },
            Malformed::Checksum,
        ),
        (
            VnetHdr {
                gso_type: GSO_NONE,
                csum_start: 19,
                ..good
            },
            Malformed::Checksum,
        ),
        (
            VnetHdr {
                gso_type: GSO_NONE,
                csum_start: 3051,
                csum_offset: 0,
                ..good
            },
            Malformed::Checksum,
        ),
        (
            VnetHdr {
                gso_type: GSO_NONE,
                csum_start: 65_535,
                csum_offset: 65_535,
                ..good
            },
            Malformed::Checksum,
        ),
    ];
    for (vnet, error) in table {
        assert_eq!(parse_error(vnet, &packet), error, "{vnet:?}");
    }
    assert_eq!(
        parse_error(
            VnetHdr {
                csum_start: 20,
                ..good_udp
            },
            &datagram
        ),
        Malformed::Checksum
    );
    assert_eq!(
        parse_error(
            VnetHdr {
                gso_type: GSO_TCPV6,
                ..good_udp
            },
            &datagram
        ),
        Malformed::Segmentation
    );
}

#[test]
fn broken_packets_are_malformed() {
    let tcp = Packet::tcp(false, 3000);
    let good = tcp.partial();
    let damaged = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        parse_error(tcp.vnet(1000), &packet)
    };
    assert_eq!(damaged(0, 0x44), Malformed::Ip, "header shorter than 20");
    assert_eq!(damaged(0, 0x55), Malformed::Ip, "version 5");
    assert_eq!(damaged(2, 0xff), Malformed::Ip, "longer than the frame");
    assert_eq!(damaged(6, 0x20), Malformed::Segmentation, "a fragment");
    assert_eq!(
        damaged(7, 0x01),
        Malformed::Segmentation,
        "a later fragment"
    );
    assert_eq!(
        damaged(32, 0x40),
        Malformed::Transport,
        "TCP header shorter than 20"
    );
    for len in 0..good.len() {
        assert_eq!(parse_error(tcp.vnet(1000), &good[..len]), Malformed::Ip);
    }
    for len in 0..VNET_HDR_LEN {
        assert_eq!(
            Frame::parse(&[0; VNET_HDR_LEN][..len]).unwrap_err(),
            Malformed::Short
        );
    }
    // Complete by the IP header, too short for what is above it.
    for packet in [
        Packet::tcp(false, 0),
        Packet::tcp(true, 0),
        Packet::udp(false, 0),
        Packet::udp(true, 0),
    ] {
        for len in packet.transport()..packet.headers() {
            let mut bytes = packet.partial();
            bytes.truncate(len);
            let (at, field) = if packet.v6 { (4, len - 40) } else { (2, len) };
            write16(&mut bytes, at, field as u16);
            assert_eq!(
                parse_error(packet.vnet(1000), &bytes),
                Malformed::Transport,
                "{len} of {packet:?}"
            );
        }
    }
    // A chain of extensions that leaves the packet.
    let extended =
        Packet::tcp(true, 10).with(|p| p.extensions = vec![(0, vec![0, 255, 1, 4, 0, 0, 0, 0])]);
    assert_eq!(
        parse_error(extended.vnet(5), &extended.partial()),
        Malformed::Segmentation
    );
    let fragment =
        Packet::udp(true, 10).with(|p| p.extensions = vec![(44, vec![0, 0, 0, 1, 0, 0, 0, 0])]);
    assert_eq!(
        parse_error(fragment.vnet(5), &fragment.partial()),
        Malformed::Segmentation
    );
}

#[test]
fn addresses_and_ecn_are_read_from_the_header() {
    let bytes = Packet::tcp(false, 3000).with(|p| p.tos = 0xbb).frame(1000);
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(
        (frame.source().to_string(), frame.destination().to_string()),
        ("10.255.254.1".into(), "192.168.77.200".into())
    );
    assert_eq!(frame.ecn(), 3);
    let bytes = Packet::tcp(true, 3000).with(|p| p.tos = 0xb9).frame(1000);
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(
        (frame.source().to_string(), frame.destination().to_string()),
        ("fd00:9::ffee:1".into(), "fd00:9::ffee:c8".into())
    );
    assert_eq!(frame.ecn(), 1);
}

#[test]
fn virtio_header_is_in_machine_order() {
    let mut bytes = [0; VNET_HDR_LEN];
    bytes[..10].copy_from_slice(&[1, 5, 1, 2, 3, 4, 5, 6, 7, 8]);
    bytes[20..].copy_from_slice(&[9, 10, 11, 12]);
    let vnet = VnetHdr::parse(&bytes);
    assert_eq!(vnet.gso_size, u16::from_ne_bytes([3, 4]));
    // But for what tunnels added.
    assert_eq!(vnet.outer_transport, 0x0a09);
    assert_eq!(vnet.inner_network, 0x0c0b);
    assert_eq!(vnet.write(), bytes);
}

/// Uses everything that a frame offers.
pub(super) fn exercise(bytes: &[u8]) {
    if let Ok(frame) = Frame::parse(bytes) {
        let mut out = vec![0; frame.header_len()];
        let mut total = 0;
        for i in 0..frame.segments() {
            frame.write_header(i, &mut out);
            assert!(frame.segment_len(i) <= frame.segment_len(0));
            total += frame.payload(i).len();
        }
        assert!(total + frame.header_len() <= bytes.len() - VNET_HDR_LEN);
        let _ = (
            frame.source(),
            frame.destination(),
            frame.ecn(),
            frame.payload(usize::MAX),
        );
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        exercise(&bytes);
    }

    #[test]
    fn damaged_frames_never_panic(
        v6: bool, tcp: bool, payload in 0usize..3000, size: u16,
        damage in proptest::collection::vec((0usize..120, any::<u8>()), 0..6), cut in 0usize..4000,
    ) {
        let whole = Packet { tcp, ..Packet::tcp(v6, payload) };
        let mut bytes = whole.frame(size);
        for (at, value) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut.max(60));
        exercise(&bytes);
    }

    #[test]
    fn segments_are_those_of_the_reference(
        v6: bool, tcp: bool, payload in 0usize..20_000, size in 1u16..2000, flags: u8, id: u16, sequence: u32,
        tos: u8, options in 0usize..=10, ack: u32, window: u16, urgent: u16,
    ) {
        let whole = Packet { tcp, ..Packet::tcp(v6, payload) }.with(|p| {
            (p.flags, p.id, p.sequence, p.tos, p.ack, p.window, p.urgent) = (flags, id, sequence, tos, ack, window, urgent);
            p.options = bytes(options * 4, 1);
        });
        assert_segments(&whole, size.max(1 + (payload / 300) as u16));
    }
}
