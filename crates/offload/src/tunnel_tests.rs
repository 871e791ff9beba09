//! GSO packets inside UDP tunnels.
#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers here are known"
)]

use proptest::prelude::*;

use super::frame_tests::exercise;
use super::tests::*;
use super::*;

/// A packet with a tunnel around it.
#[derive(Clone, Debug)]
struct Tunnelled {
    outer: Packet,
    /// What the tunnel puts behind its UDP header: VXLAN's and Ethernet's headers.
    between: Vec<u8>,
    inner: Packet,
}

impl Tunnelled {
    fn new(v6: bool, inner: Packet) -> Self {
        let mut between = vec![8, 0, 0, 0, 0, 0, 7, 0];
        between.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        between.extend(if inner.v6 { [0x86, 0xdd] } else { [8, 0] });
        Self {
            outer: Packet::udp(v6, 0).with(|p| (p.ports[1], p.df) = (4789, false)),
            between,
            inner,
        }
    }

    /// The tunnel around these bytes of an inner packet.
    fn around(&self, inner: &[u8]) -> Packet {
        let payload = [&self.between, inner].concat();
        self.outer.with(|p| p.payload = payload)
    }

    fn inner_at(&self) -> usize {
        self.outer.headers() + self.between.len()
    }

    /// A virtio header that tells the truth, but for `hdr_len` and `outer_transport`.
    fn vnet(&self, size: u16) -> VnetHdr {
        let inner = self.inner.vnet(size);
        let (kind, summed) = (
            if self.outer.v6 {
                GSO_TUNNEL_V6
            } else {
                GSO_TUNNEL_V4
            },
            if self.outer.unsummed { 0 } else { TUNNEL_CSUM },
        );
        VnetHdr {
            flags: NEEDS_CSUM | summed,
            gso_type: inner.gso_type | kind,
            csum_start: inner.csum_start + self.inner_at() as u16,
            outer_transport: 9999,
            inner_network: self.inner_at() as u16,
            ..inner
        }
    }

    /// The packet as the kernel hands it over.
    fn partial(&self) -> Vec<u8> {
        let whole = self.around(&self.inner.partial());
        if self.outer.unsummed {
            whole.wire()
        } else {
            whole.partial()
        }
    }

    fn frame(&self, size: u16) -> Vec<u8> {
        [&self.vnet(size).write()[..], &self.partial()].concat()
    }

    /// What the kernel's GSO would make of the GSO packet.
    fn split(&self, size: u16) -> Vec<Vec<u8>> {
        let inner = self.inner.split(size.into());
        let packets = inner.iter().zip(self.outer.id..).map(|(inner, id)| {
            let packet = self.around(&inner.wire()).with(|p| p.id = id);
            packet.wire()
        });
        packets.collect()
    }
}

fn tunnelled() -> impl Strategy<Value = Tunnelled> {
    let kind: (_, _, _, _) = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let numbers = (0u16..60_000, any::<u16>(), any::<u32>(), any::<u8>());
    (kind, numbers, 0usize..20_000, 0usize..20).prop_map(
        |((v6, inner_v6, tcp, unsummed), (outer_id, id, sequence, byte), payload, options)| {
            let inner = Packet::tcp(inner_v6, payload).with(|p| {
                (p.tcp, p.id, p.sequence, p.flags, p.tos) = (tcp, id, sequence, byte, byte);
            });
            let mut tunnelled = Tunnelled::new(v6, inner);
            let outer = &mut tunnelled.outer;
            (outer.id, outer.unsummed, outer.tos) = (outer_id, unsummed, byte);
            // Geneve's options, or a VLAN tag.
            tunnelled.between.extend(vec![byte; options * 2]);
            tunnelled
        },
    )
}

proptest! {
    #[test]
    fn segments_are_those_of_the_reference(whole in tunnelled(), size in 1u16..2000) {
        let size = size.max(1 + (whole.inner.payload.len() / 300) as u16);
        let bytes = whole.frame(size);
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert_eq!(segments_of(&frame), whole.split(size));
        prop_assert_eq!(frame.ecn(), whole.outer.tos & 3);
        prop_assert_eq!(frame.udp_ports(), Some((40_000, 4789)));
    }

    #[test]
    fn damaged_frames_never_panic(
        whole in tunnelled(), size: u16,
        damage in proptest::collection::vec((0usize..200, any::<u8>()), 0..6), cut in 60usize..20_000,
    ) {
        let mut bytes = whole.frame(size);
        for (at, value) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut);
        exercise(&bytes);
    }
}

/// Packets of two flows in one tunnel, as a network might deliver them: all of one flow outside, in
/// one order.
fn stream() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let whole = (tunnelled(), any::<bool>(), 20usize..1400, any::<bool>());
    let steps = proptest::collection::vec((any::<bool>(), 0u8..45, 1u8..255), 1..80);
    (whole, steps).prop_map(|((mut whole, nested, payload, df), steps)| {
        whole.between.truncate(22);
        whole.outer.df = df;
        let inner = &mut whole.inner;
        (inner.tcp, inner.flags, inner.payload) = (true, ACK, bytes(payload, 5));
        let mut flows = [inner.clone(), inner.with(|p| p.ports[0] += 1)];
        let mut packets = Vec::new();
        for (second, quirk, byte) in steps {
            let flow = &mut flows[usize::from(second && nested)];
            let mut packet = flow.clone();
            let mut around = whole.clone();
            match quirk {
                0 => packet.payload.truncate(byte.into()),
                1 => packet.flags = byte,
                2 => packet.flags |= PSH,
                3 => packet.flags |= CWR,
                4 => packet.tos ^= byte,
                5 => packet.ttl ^= byte,
                6 => packet.id = packet.id.wrapping_add(byte.into()),
                7 => packet.ack += 1,
                8 => packet.window ^= 1,
                9 => packet.options.clear(),
                10 => packet.tcp = false,
                11 => packet.payload.clear(),
                12 => packet.host ^= byte,
                13 => packet.ports[1] ^= 1,
                14 => around.outer.tos ^= byte,
                15 => around.outer.ttl ^= byte,
                16 => around.outer.id = around.outer.id.wrapping_add(byte.into()),
                17 => around.outer.unsummed ^= true,
                18 => around.outer.df ^= true,
                19 => around.between[usize::from(byte) % 22] ^= byte,
                20 => packet.ip_options = vec![1, 1, 1, 0],
                21 => packet.sequence ^= u32::from(byte),
                _ => {}
            }
            let mut wire = around.around(&packet.wire()).wire();
            match quirk {
                // A sum that the sender got wrong stays wrong; bytes that belong to nothing stay.
                22 if !around.outer.v6 => wire[10] ^= byte,
                23 if !packet.v6 => wire[whole.inner_at() + 10] ^= byte,
                24 => {
                    wire = around
                        .around(&[packet.wire(), vec![byte; 3]].concat())
                        .wire()
                }
                _ => {}
            }
            *flow = packet
                .with(|p| p.ip_options.clear())
                .next()
                .with(|p| (p.tcp, p.flags, p.payload) = (true, ACK, bytes(payload, byte)));
            whole.outer.id = around.outer.id.wrapping_add(1);
            packets.push(wire);
        }
        packets
    })
}

/// The packets that a receiver makes of GSO packets.
fn split(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let frames = frames.iter().map(|frame| Frame::parse(frame).unwrap());
    frames.flat_map(|frame| segments_of(&frame)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_stream_leaves_as_it_came(arrived in stream()) {
        let frames = coalesce(&mut Coalescer::new(true, false), &arrived);
        prop_assert_eq!(split(&frames), arrived.clone());
        // A datagram that is merged gets a checksum where it had none.
        let unsummed = |packets: &[Vec<u8>]| {
            let field = if arrived[0][0] >> 4 == 6 { 46 } else { 26 };
            let mut packets = packets.to_vec();
            packets.iter_mut().for_each(|packet| packet[field..field + 2].fill(0));
            packets
        };
        let frames = coalesce(&mut Coalescer::new(true, true), &arrived);
        prop_assert_eq!(unsummed(&split(&frames)), unsummed(&arrived));
    }

    #[test]
    fn damaged_streams_leave_in_order_and_as_long_as_they_came(
        mut arrived in stream(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..140, any::<u8>()), 0..20),
    ) {
        let (protocol, addresses, udp) = if arrived[0][0] >> 4 == 6 { (6, 8, 40) } else { (9, 12, 20) };
        let flow = |packet: &[u8]| (packet[0] >> 4, packet[protocol], packet[addresses..udp + 4].to_vec());
        let ours = flow(&arrived[0]);
        for (which, at, value) in damage {
            let packet = which.get_mut(&mut arrived);
            let at = at % packet.len();
            packet[at] = value;
        }
        let frames = coalesce(&mut Coalescer::new(true, true), &arrived);
        let lengths = |packets: &[Vec<u8>]| {
            let mut lengths: Vec<_> = packets.iter().map(Vec::len).collect();
            lengths.sort_unstable();
            lengths
        };
        let left: Vec<_> = frames
            .iter()
            .flat_map(|frame| match frame[1] {
                GSO_NONE => vec![frame[VNET_HDR_LEN..].to_vec()],
                _ => segments_of(&Frame::parse(frame).unwrap()),
            })
            .collect();
        prop_assert_eq!(lengths(&left), lengths(&arrived));
        // Those that are still of one flow, but for identifications and checksums, in a tunnel and
        // outside.
        let inner = udp + 30;
        let changes = [4, 10, udp + 6, inner + 4, inner + 10, inner + 20 + 16, inner + 40 + 16];
        let of_flow = |packets: &[Vec<u8>]| -> Vec<_> {
            let mut packets = packets.to_vec();
            packets.retain(|packet| flow(packet) == ours);
            for packet in &mut packets {
                for at in changes {
                    packet.iter_mut().skip(at).take(2).for_each(|byte| *byte = 0);
                }
            }
            packets
        };
        prop_assert_eq!(of_flow(&left), of_flow(&arrived));
    }

    #[test]
    fn a_gso_packet_comes_back_from_its_segments(
        mut whole in tunnelled(), size in 1u16..1400, payload in 1usize..60_000,
        flags in prop::sample::select(vec![ACK, ACK | PSH, ACK | FIN, ACK | CWR | PSH]),
    ) {
        whole.between.truncate(22);
        let payload = payload.min(usize::from(size) * 256).max(usize::from(size) + 1);
        (whole.inner.tcp, whole.inner.flags, whole.inner.payload) = (true, flags, bytes(payload, 3));
        let segments = whole.split(size);
        let frames = coalesce(&mut Coalescer::new(true, true), &segments);
        let mut expected = whole.frame(size);
        let vnet = VnetHdr {
            hdr_len: (whole.inner_at() + whole.inner.headers()) as u16,
            outer_transport: whole.outer.transport() as u16 + 14,
            ..whole.vnet(size)
        };
        expected[..VNET_HDR_LEN].copy_from_slice(&vnet.write());
        prop_assert_eq!(frames, [expected]);
        // Without merged TCP, or where an application may listen, no tunnel's GSO packet.
        for (tcp, is_end) in [(true, false), (false, true)] {
            let mut coalescer = Coalescer::new(tcp, true);
            for packet in &segments {
                let span = Span { buffer: 0, start: 0, len: packet.len() as u32 };
                coalescer.push(0, packet, span, |_| is_end).unwrap();
            }
            coalescer.drain(|head, _| assert!([GSO_NONE, GSO_UDP_L4].contains(&head[1])));
        }
    }
}

#[test]
fn what_is_no_plain_segment_in_vxlan_is_not_merged_as_one() {
    let first = Tunnelled::new(false, Packet::tcp(false, 1000));
    let merges = |first: &Tunnelled, change: fn(&mut Tunnelled, &mut Vec<u8>)| {
        let mut second = first.clone();
        second.inner = second.inner.next();
        second.outer.id += 1;
        let packets = [first.clone(), second].map(|mut packet| {
            let mut behind = Vec::new();
            change(&mut packet, &mut behind);
            let inner = [packet.inner.wire(), behind].concat();
            packet.around(&inner).wire()
        });
        let frames = coalesce(&mut Coalescer::new(true, false), &packets);
        assert_eq!(split(&frames), packets);
        frames.len() == 1
    };
    assert!(merges(&first, |_, _| {}));
    let table: [fn(&mut Tunnelled, &mut Vec<u8>); 12] = [
        |p, _| p.inner.flags |= SYN,
        |p, _| p.inner.flags |= RST,
        |p, _| p.inner.flags |= URG,
        |p, _| p.inner.payload.clear(),
        |p, _| p.inner.ip_options = vec![1, 1, 1, 0],
        |p, _| p.outer.ip_options = vec![1, 1, 1, 0],
        // other flags of VXLAN, of GPE, reserved bits
        |p, _| p.between[0] = 0x88,
        |p, _| p.between[0] = 0x0c,
        |p, _| p.between[7] = 1,
        // another type, a VLAN tag
        |p, _| p.between[21] = 6,
        |p, _| {
            p.between[20] = 0x81;
            p.between.extend([0, 9, 8, 0]);
        },
        // The datagram continues behind the packet, and so does the sequence.
        |p, behind| {
            behind.extend([7; 4]);
            p.inner.sequence += if p.inner.id == 101 { 4 } else { 0 };
        },
    ];
    for (i, change) in table.into_iter().enumerate() {
        assert!(!merges(&first, change), "{i}");
    }
}

/// The kernel chooses the source port of a UDP tunnel by what tells flows apart inside. Of a fragment
/// that is less than of a whole packet, so that one flow has two ports.
#[test]
fn a_fragment_in_a_tunnel_is_not_overtaken() {
    let vxlan = Tunnelled::new(false, Packet::tcp(false, 0)).between;
    let ethernet = |is_v6: bool| if is_v6 { [0x86, 0xdd] } else { [8, 0] };
    let geneve = [2, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    for (v6, inner_v6, tcp) in [
        (false, false, false),
        (false, true, false),
        (true, false, true),
        (true, true, true),
    ] {
        let frame = [&[2; 12][..], &ethernet(inner_v6)].concat();
        let tagged = [&[2; 12][..], &[0x81, 0, 0, 9], &ethernet(inner_v6)].concat();
        let gue = vec![1, if inner_v6 { 41 } else { 4 }, 0, 0, 9, 9, 9, 9];
        let inside_vxlan = {
            let outer = Packet::udp(inner_v6, 0).with(|p| p.ports = [7, 4789]);
            let mut headers = outer.wire();
            headers.truncate(outer.headers());
            [&vxlan[..8], &frame, &headers, &vxlan[..8], &frame].concat()
        };
        let geneve_of_ip = [&geneve[..2], &ethernet(inner_v6), &geneve[4..]].concat();
        let gpe_of_ip = vec![0x0c, 0, 0, if inner_v6 { 2 } else { 1 }, 0, 0, 7, 0];
        for (what, between) in [
            ("VXLAN", [&vxlan[..8], &frame].concat()),
            ("VXLAN with a VLAN", [&vxlan[..8], &tagged].concat()),
            (
                "VXLAN with a group policy",
                [&[0x88, 0, 2, 0, 0, 0, 7, 0], &frame[..]].concat(),
            ),
            (
                "VXLAN-GPE",
                [&[0x0c, 0, 0, 3, 0, 0, 7, 0], &frame[..]].concat(),
            ),
            ("VXLAN-GPE without Ethernet", gpe_of_ip),
            ("Geneve", [&geneve[..], &frame].concat()),
            ("Geneve without Ethernet", geneve_of_ip),
            ("GUE", gue),
            ("FOU", vec![]),
            ("VXLAN in VXLAN", inside_vxlan),
        ] {
            let inner = Packet::tcp(inner_v6, 500).with(|p| p.tcp = tcp);
            let fragment = match inner_v6 {
                true => {
                    let header = vec![0, 0, 0, 1, 0, 0, 0, 9];
                    inner.with(|p| p.extensions = vec![(44, header)]).wire()
                }
                false => {
                    let mut bytes = inner.wire();
                    bytes[6] = 0x20;
                    bytes
                }
            };
            let mut outer = Packet::udp(v6, 0).with(|p| (p.ports, p.df) = ([1, 5000], false));
            let mut datagram = |port: u16, bytes: &[u8]| {
                outer.ports[0] = port;
                outer.id += 1;
                let mut payload = [&between, bytes].concat();
                if what == "VXLAN in VXLAN" {
                    // The lengths of what is around the inner tunnel.
                    let at = vxlan.len();
                    let all = (payload.len() - at) as u16;
                    let (length, udp) = if inner_v6 { (4, 40) } else { (2, 20) };
                    let own = if inner_v6 { all - 40 } else { all };
                    payload[at + length..][..2].copy_from_slice(&own.to_be_bytes());
                    let udp_len = (all - udp).to_be_bytes();
                    payload[at + usize::from(udp) + 4..][..2].copy_from_slice(&udp_len);
                }
                outer.with(|p| p.payload = payload).wire()
            };
            let [second, third] = [inner.next(), inner.next().next()].map(|it| it.wire());
            let packets = [(1, &inner.wire()), (2, &fragment), (1, &second)];
            let packets = packets.map(|(port, bytes)| datagram(port, bytes));
            let leave = |packets: &[Vec<u8>]| coalesce(&mut Coalescer::new(true, true), packets);
            let frames = leave(&packets);
            assert_eq!(split(&frames), packets, "{what}, IPv6 inside: {inner_v6}");
            if between.ends_with(&frame[12..]) {
                // The last fragment may be short, and then Ethernet's padding is behind it.
                let padded = [&fragment[..], &[0; 6]].concat();
                let packets = [(1, &inner.wire()), (2, &padded), (1, &second)];
                let packets = packets.map(|(port, bytes)| datagram(port, bytes));
                let frames = leave(&packets);
                assert_eq!(split(&frames), packets, "{what}, padded");
            }
            // What is whole is merged.
            let whole = [&inner.wire(), &second, &third].map(|bytes| datagram(1, bytes));
            assert_eq!(leave(&whole).len(), 1, "{what}, IPv6 inside: {inner_v6}");
        }
    }
}

#[test]
fn a_tunnels_device_is_known_by_what_it_sends_and_not_for_long() {
    let ends = TunnelEnds::default();
    let second = |n: u64| std::time::Duration::from_nanos(n << 30);
    for v6 in [false, true] {
        let whole = Tunnelled::new(v6, Packet::tcp(false, 3000));
        let frame = whole.frame(1000);
        let end = Frame::parse(&frame).unwrap().tunnel_end().unwrap();
        let address = if v6 { "fd00:9::ffee:1" } else { "10.255.254.1" };
        assert_eq!(end, (address.parse().unwrap(), 4789));
        // A packet of a sparse flow, the inner checksum of which is left to us, is a device's, too.
        let lone = VnetHdr {
            gso_type: GSO_NONE,
            ..whole.vnet(0)
        };
        let lone = [&lone.write()[..], &whole.partial()].concat();
        assert_eq!(Frame::parse(&lone).unwrap().tunnel_end(), Some(end));

        assert!(!ends.know(end, second(100)));
        ends.saw(end, second(100));
        assert!(ends.know(end, second(100)) && ends.know(end, second(101)));
        assert!(!ends.know(end, second(102)) && !ends.know(end, second(99)));
        assert!(!ends.know((end.0, 8472), second(100)));
        assert!(!ends.know(("10.255.254.2".parse().unwrap(), 4789), second(100)));

        // An application's datagrams look the same but for that.
        let datagram = whole.around(&whole.inner.wire());
        for bytes in [
            [&[0; VNET_HDR_LEN][..], &datagram.wire()].concat(),
            datagram.frame(1000),
            [
                &VnetHdr {
                    gso_type: GSO_NONE,
                    ..datagram.vnet(0)
                }
                .write()[..],
                &datagram.partial(),
            ]
            .concat(),
            whole.inner.frame(1000),
        ] {
            assert_eq!(Frame::parse(&bytes).unwrap().tunnel_end(), None);
        }
    }
}

#[test]
fn hostile_tunnels_are_malformed() {
    let whole = Tunnelled::new(false, Packet::tcp(false, 3000));
    let good = whole.vnet(1000);
    let table = [
        (
            Malformed::Segmentation,
            good.gso_type ^ 0x60,
            good.inner_network,
            NEEDS_CSUM,
        ),
        (
            Malformed::Segmentation,
            good.gso_type | 0x60,
            good.inner_network,
            NEEDS_CSUM,
        ),
        (
            Malformed::Segmentation,
            GSO_TUNNEL_V4,
            good.inner_network,
            NEEDS_CSUM,
        ),
        (
            Malformed::Segmentation,
            GSO_TUNNEL_V4 | GSO_TCPV6,
            good.inner_network,
            NEEDS_CSUM,
        ),
        (
            Malformed::Segmentation,
            GSO_TUNNEL_V4 | GSO_UDP_L4,
            good.inner_network,
            NEEDS_CSUM,
        ),
        // no room for the outer headers, an odd place, not where the packet is, at the end, and
        // beyond it
        (Malformed::Segmentation, good.gso_type, 0, NEEDS_CSUM),
        (Malformed::Segmentation, good.gso_type, 26, NEEDS_CSUM),
        (Malformed::Segmentation, good.gso_type, 51, NEEDS_CSUM),
        (Malformed::Ip, good.gso_type, 52, NEEDS_CSUM),
        (
            Malformed::Ip,
            good.gso_type,
            whole.partial().len() as u16,
            NEEDS_CSUM,
        ),
        (Malformed::Ip, good.gso_type, 65_534, NEEDS_CSUM),
        // The sum inside is none.
        (Malformed::Checksum, good.gso_type, good.inner_network, 0),
        (
            Malformed::Checksum,
            good.gso_type,
            good.inner_network,
            TUNNEL_CSUM,
        ),
    ];
    for (error, gso_type, inner_network, flags) in table {
        let vnet = VnetHdr {
            flags,
            gso_type,
            inner_network,
            ..good
        };
        let bytes = [&vnet.write()[..], &whole.partial()].concat();
        assert_eq!(Frame::parse(&bytes).unwrap_err(), error, "{vnet:?}");
    }
    let vnet = VnetHdr {
        csum_start: 20,
        ..good
    };
    let bytes = [&vnet.write()[..], &whole.partial()].concat();
    assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::Checksum);
    // The inner packet ends before the outer one.
    let mut packet = whole.partial();
    packet[53] -= 1;
    let bytes = [&good.write()[..], &packet].concat();
    assert_eq!(Frame::parse(&bytes).unwrap_err(), Malformed::Ip);
}

#[test]
fn a_computed_checksum_of_zero_outside_is_sent_as_all_ones() {
    for v6 in [false, true] {
        let mut whole = Tunnelled::new(v6, Packet::tcp(false, 3000));
        let field = whole.outer.transport() + 6;
        // The source port that makes the sum of the first segment come out as zero.
        whole.outer.ports[0] = 0;
        let first = &whole.split(1000)[0];
        whole.outer.ports[0] = u16::from_be_bytes([first[field], first[field + 1]]);
        let bytes = whole.frame(1000);
        let segments = segments_of(&Frame::parse(&bytes).unwrap());
        assert_eq!(segments[0][field..field + 2], [0xff, 0xff]);
        assert_eq!(segments, whole.split(1000));
    }
}
