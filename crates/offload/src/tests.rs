//! Packets to test with, made by the most naive code there is, and the oracle of the round trip.
#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers here are known"
)]

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// The Internet checksum's sum, one byte after the other.
pub(super) fn naive_sum(parts: &[&[u8]]) -> u16 {
    let all = parts.concat();
    let mut sum = 0u64;
    for (i, byte) in all.iter().enumerate() {
        sum += if i % 2 == 0 {
            u64::from(*byte) << 8
        } else {
            u64::from(*byte)
        };
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A packet described by its fields.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) v6: bool,
    pub(super) tcp: bool,
    pub(super) host: u8,
    pub(super) ports: [u16; 2],
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) label: u8,
    pub(super) id: u16,
    pub(super) df: bool,
    pub(super) ip_options: Vec<u8>,
    /// IPv6 extension headers: type and bytes, the first byte of which is overwritten with the next
    /// type.
    pub(super) extensions: Vec<(u8, Vec<u8>)>,
    pub(super) sequence: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) urgent: u16,
    pub(super) options: Vec<u8>,
    pub(super) unsummed: bool,
    pub(super) payload: Vec<u8>,
}

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const PSH: u8 = 8;
pub(super) const ACK: u8 = 16;
pub(super) const URG: u8 = 32;
pub(super) const ECE: u8 = 64;
pub(super) const CWR: u8 = 128;

/// `len` bytes that differ from place to place.
pub(super) fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| {
            (i as u8)
                .wrapping_mul(31)
                .wrapping_add(seed)
                .rotate_left((i >> 8) as u32)
        })
        .collect()
}

impl Packet {
    pub(super) fn tcp(v6: bool, payload: usize) -> Packet {
        Packet {
            v6,
            tcp: true,
            host: 1,
            ports: [40_000, 443],
            tos: 0,
            ttl: 64,
            label: 7,
            id: 100,
            df: true,
            ip_options: vec![],
            extensions: vec![],
            sequence: 1_000_000,
            ack: 77,
            flags: ACK,
            window: 501,
            urgent: 0,
            options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            unsummed: false,
            payload: bytes(payload, 3),
        }
    }

    pub(super) fn udp(v6: bool, payload: usize) -> Packet {
        Packet {
            tcp: false,
            ..Packet::tcp(v6, payload)
        }
    }

    /// The packet that follows in the flow, with as much payload.
    pub(super) fn next(&self) -> Packet {
        let mut next = self.clone();
        next.id = next.id.wrapping_add(1);
        next.sequence = next.sequence.wrapping_add(self.payload.len() as u32);
        next.payload = bytes(self.payload.len(), next.id as u8);
        next
    }

    pub(super) fn with(&self, change: impl FnOnce(&mut Packet)) -> Packet {
        let mut packet = self.clone();
        change(&mut packet);
        packet
    }

    fn protocol(&self) -> u8 {
        if self.tcp { 6 } else { 17 }
    }

    fn addresses(&self) -> [Vec<u8>; 2] {
        if self.v6 {
            let address =
                |last| [0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xee, 0, last].to_vec();
            [address(self.host), address(200)]
        } else {
            [vec![10, 255, 254, self.host], vec![192, 168, 77, 200]]
        }
    }

    pub(super) fn transport(&self) -> usize {
        if self.v6 {
            40 + self
                .extensions
                .iter()
                .map(|(_, bytes)| bytes.len())
                .sum::<usize>()
        } else {
            20 + self.ip_options.len()
        }
    }

    pub(super) fn headers(&self) -> usize {
        self.transport() + if self.tcp { 20 + self.options.len() } else { 8 }
    }

    fn pseudo(&self, length: usize) -> Vec<u8> {
        let mut pseudo = self.addresses().concat();
        pseudo.extend([0, self.protocol()]);
        pseudo.extend((length as u32).to_be_bytes());
        pseudo
    }

    fn ip(&self, length: usize) -> Vec<u8> {
        let [source, destination] = self.addresses();
        let total = self.transport() + length;
        if self.v6 {
            let mut ip = vec![0x60 | self.tos >> 4, self.tos << 4, 0, self.label];
            ip.extend(((total - 40) as u16).to_be_bytes());
            ip.extend([
                self.extensions.first().map_or(self.protocol(), |e| e.0),
                self.ttl,
            ]);
            ip.extend(source);
            ip.extend(destination);
            for (i, (_, bytes)) in self.extensions.iter().enumerate() {
                ip.push(self.extensions.get(i + 1).map_or(self.protocol(), |e| e.0));
                ip.extend(&bytes[1..]);
            }
            return ip;
        }
        let mut ip = vec![0x45 + (self.ip_options.len() / 4) as u8, self.tos];
        ip.extend((total as u16).to_be_bytes());
        ip.extend(self.id.to_be_bytes());
        ip.extend([
            if self.df { 0x40 } else { 0 },
            0,
            self.ttl,
            self.protocol(),
            0,
            0,
        ]);
        ip.extend(source);
        ip.extend(destination);
        ip.extend(&self.ip_options);
        let sum = !naive_sum(&[&ip]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip
    }

    fn layer4(&self) -> (Vec<u8>, usize) {
        let [source, destination] = self.ports.map(u16::to_be_bytes);
        let mut l4 = [source, destination].concat();
        if self.tcp {
            l4.extend(self.sequence.to_be_bytes());
            l4.extend(self.ack.to_be_bytes());
            l4.extend([0x50 + ((self.options.len() as u8 / 4) << 4), self.flags]);
            l4.extend(self.window.to_be_bytes());
            l4.extend([0, 0]);
            l4.extend(self.urgent.to_be_bytes());
            l4.extend(&self.options);
        } else {
            l4.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            l4.extend([0, 0]);
        }
        l4.extend(&self.payload);
        (l4, if self.tcp { 16 } else { 6 })
    }

    /// The packet as it stands on the wire.
    pub(super) fn wire(&self) -> Vec<u8> {
        let (mut l4, field) = self.layer4();
        if !self.unsummed {
            let mut sum = !naive_sum(&[&self.pseudo(l4.len()), &l4]);
            if sum == 0 && !self.tcp {
                sum = 0xffff;
            }
            l4[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        }
        [self.ip(l4.len()), l4].concat()
    }

    /// The packet as the kernel hands it over: the checksum is only the pseudo-header's sum.
    pub(super) fn partial(&self) -> Vec<u8> {
        let (mut l4, field) = self.layer4();
        let sum = naive_sum(&[&self.pseudo(l4.len())]);
        l4[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        [self.ip(l4.len()), l4].concat()
    }

    /// A virtio header that tells the truth, but for `hdr_len`.
    pub(super) fn vnet(&self, size: u16) -> VnetHdr {
        let kind = match (self.tcp, self.v6) {
            (true, false) => GSO_TCPV4,
            (true, true) => GSO_TCPV6,
            (false, _) => GSO_UDP_L4,
        };
        let ecn = if self.tcp && self.flags & CWR != 0 {
            GSO_ECN
        } else {
            0
        };
        VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: kind | ecn,
            hdr_len: 9999,
            gso_size: size,
            csum_start: self.transport() as u16,
            csum_offset: if self.tcp { 16 } else { 6 },
            ..VnetHdr::default()
        }
    }

    /// The GSO packet as the TUN hands it over.
    pub(super) fn frame(&self, size: u16) -> Vec<u8> {
        [self.vnet(size).write().to_vec(), self.partial()].concat()
    }

    /// What the kernel's GSO would make of the GSO packet.
    pub(super) fn split(&self, size: usize) -> Vec<Packet> {
        let chunks: Vec<&[u8]> = if self.payload.is_empty() {
            vec![&[]]
        } else {
            self.payload.chunks(size).collect()
        };
        let last = chunks.len() - 1;
        let mut at = 0;
        let segments = chunks.iter().enumerate().map(|(i, chunk)| {
            let mut segment = self.clone();
            segment.payload = chunk.to_vec();
            segment.id = self.id.wrapping_add(i as u16);
            segment.sequence = self.sequence.wrapping_add(at);
            at += chunk.len() as u32;
            if i > 0 {
                segment.flags &= !CWR;
            }
            if i < last {
                segment.flags &= !(FIN | PSH);
            }
            segment
        });
        segments.collect()
    }
}

/// All packets of a frame, as the engine would append them.
pub(super) fn segments_of(frame: &Frame<'_>) -> Vec<Vec<u8>> {
    (0..frame.segments())
        .map(|i| {
            let mut packet = vec![0xaa; frame.header_len()];
            frame.write_header(i, &mut packet);
            packet.extend(frame.payload(i));
            assert_eq!(packet.len(), frame.segment_len(i));
            assert!(i + 1 == frame.segments() || packet.len() == frame.segment_len(0));
            packet
        })
        .collect()
}

/// Pushes packets of one peer and returns the frames that come out.
pub(super) fn coalesce(coalescer: &mut Coalescer, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let packets: Vec<_> = packets.iter().map(|packet| (7, packet.clone())).collect();
    coalesce_of_peers(coalescer, &packets)
}

/// Pushes packets, each of a peer, and returns the frames that come out.
pub(super) fn coalesce_of_peers(
    coalescer: &mut Coalescer,
    packets: &[(u32, Vec<u8>)],
) -> Vec<Vec<u8>> {
    let mut slab = Vec::new();
    for (i, (peer, packet)) in packets.iter().enumerate() {
        let start = slab.len() as u32;
        slab.extend(packet);
        let at = Span {
            buffer: i as u32 % 3,
            start,
            len: packet.len() as u32,
        };
        coalescer.push(*peer, packet, at, |_| true).unwrap();
    }
    let mut frames = Vec::new();
    coalescer.drain(|head, spans| {
        assert!(spans.len() <= 256);
        let mut frame = head.to_vec();
        for span in spans {
            frame.extend(&slab[span.start as usize..][..span.len as usize]);
        }
        frames.push(frame);
    });
    frames
}

/// Splits frames into the packets that the kernel would make of them.
fn split(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames
        .iter()
        .flat_map(|frame| {
            if frame[1] == GSO_NONE {
                vec![frame[VNET_HDR_LEN..].to_vec()]
            } else {
                segments_of(&Frame::parse(frame).unwrap())
            }
        })
        .collect()
}

/// A packet without what a trip as part of a GSO packet may change: the sum of its transport
/// header, and an identification that means nothing.
fn essence(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let Some(ip) = ip::Ip::parse(&packet) else {
        return packet;
    };
    if !ip.v6 && packet[6] & 0x40 != 0 {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
    }
    let field = match ip.transport(&packet) {
        Some((6, at)) => at + 16,
        Some((17, at)) => at + 6,
        _ => return packet,
    };
    if let Some(sum) = packet.get_mut(field..field + 2) {
        sum.fill(0);
    }
    packet
}

/// Packets by flow; fragments and everything odd are in every flow's way, but a flow to themselves
/// here.
fn by_flow(packets: &[Vec<u8>]) -> HashMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut flows: HashMap<Vec<u8>, Vec<Vec<u8>>> = HashMap::new();
    for packet in packets {
        let key = match ip::Ip::parse(packet) {
            Some(ip) => {
                let addresses = if ip.v6 {
                    &packet[8..40]
                } else {
                    &packet[12..20]
                };
                let ports = match ip.transport(packet) {
                    Some((protocol @ (6 | 17), at)) if packet.len() >= at + 4 => {
                        [&[protocol], &packet[at..at + 4]].concat()
                    }
                    _ => vec![],
                };
                [addresses, &ports].concat()
            }
            None => vec![],
        };
        flows.entry(key).or_default().push(essence(packet));
    }
    flows
}

/// All packets that arrived leave, and each flow keeps its order.
fn assert_delivered(arrived: &[Vec<u8>], frames: &[Vec<u8>]) {
    let left = split(frames);
    assert_eq!(arrived.len(), left.len());
    assert_eq!(by_flow(arrived), by_flow(&left));
}

/// A stream of packets as a network might deliver it.
fn stream() -> impl Strategy<Value = Vec<Packet>> {
    let step = (0usize..6, 0u8..40, 1usize..1400, any::<u8>());
    proptest::collection::vec(step, 1..120).prop_map(|steps| {
        let mut flows: Vec<Packet> = vec![
            Packet::tcp(false, 1000),
            Packet::tcp(true, 1000).with(|p| p.sequence = u32::MAX - 1500),
            Packet::udp(false, 700),
            Packet::udp(true, 301),
            Packet::udp(false, 64).with(|p| (p.unsummed, p.host) = (true, 9)),
            Packet::tcp(false, 99).with(|p| (p.df, p.id) = (false, 65_530)),
        ];
        let mut packets = Vec::new();
        for (flow, quirk, len, byte) in steps {
            let mut packet = flows[flow].clone();
            match quirk {
                0 => packet.payload.truncate(len),
                1 => packet.payload = bytes(len, byte),
                2 => packet.payload.clear(),
                3 => packet.flags = byte,
                4 => packet.flags |= PSH,
                5 => packet.flags |= CWR,
                6 => packet.tos = byte,
                7 => packet.ttl = byte.max(1),
                8 => packet.id = packet.id.wrapping_add(u16::from(byte)),
                9 => packet.ack += 1,
                10 => packet.sequence = packet.sequence.wrapping_add(u32::from(byte)),
                11 => packet.ip_options = vec![1, 1, 1, 0],
                12 => packet.extensions = vec![(60, vec![0, 0, 1, 4, 0, 0, 0, 0])],
                13 => packet.df = !packet.df,
                14 => packet.window ^= 1,
                15 => packet.options.clear(),
                _ => {}
            }
            let next = packet
                .with(|p| (p.ip_options, p.extensions) = (vec![], vec![]))
                .next();
            flows[flow] = next.with(|p| {
                p.flags = ACK;
                p.payload = bytes(flows[flow].payload.len().max(1), byte);
            });
            packets.push(packet);
        }
        packets
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_stream_leaves_as_it_came(packets in stream(), tcp: bool, udp: bool) {
        let arrived: Vec<_> = packets.iter().map(Packet::wire).collect();
        let frames = coalesce(&mut Coalescer::new(tcp, udp), &arrived);
        assert_delivered(&arrived, &frames);
        // Not only in essence: sums made anew are the ones that the sender made, where he made any.
        let mut left = split(&frames);
        for (packet, wire) in packets.iter().zip(&arrived) {
            if let Some(at) = left.iter().position(|l| l == wire) {
                left.remove(at);
            } else {
                prop_assert!(packet.unsummed || (packet.df && !packet.v6), "{packet:?}");
            }
        }
    }

    #[test]
    fn damaged_streams_leave_as_they_came(
        packets in stream(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..80, any::<u8>()), 0..40),
        cut in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..80), 0..5),
    ) {
        let mut arrived: Vec<_> = packets.iter().map(Packet::wire).collect();
        for (which, at, value) in damage {
            let packet = which.get_mut(&mut arrived);
            let at = at % packet.len();
            packet[at] = value;
        }
        for (which, len) in cut {
            which.get_mut(&mut arrived).truncate(len);
        }
        let frames = coalesce(&mut Coalescer::new(true, true), &arrived);
        assert_delivered(&arrived, &frames);
    }

    #[test]
    fn a_gso_packet_comes_back_from_its_segments(
        v6: bool, tcp: bool, size in 1u16..3000, payload in 1usize..65_000, flags in prop::sample::select(vec![
            ACK, ACK | PSH, ACK | FIN, ACK | ECE, ACK | CWR, ACK | CWR | ECE | PSH | FIN,
        ]), id: u16, sequence: u32, tos: u8,
    ) {
        // As many as one frame can take back.
        let most = if tcp { 256 } else { 64 };
        let payload = payload.min(usize::from(size) * most).max(usize::from(size) + 1);
        let whole = Packet { tcp, ..Packet::tcp(v6, payload) }
            .with(|p| (p.flags, p.id, p.sequence, p.tos) = (flags, id, sequence, tos));
        let whole = if tcp { whole } else { whole.with(|p| p.options.clear()) };
        let bytes = whole.frame(size);
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert_eq!(frame.ecn(), tos & 3);
        let segments = segments_of(&frame);
        let frames = coalesce(&mut Coalescer::new(true, true), &segments);
        let mut expected = bytes.clone();
        let mut vnet = whole.vnet(size);
        vnet.hdr_len = whole.headers() as u16;
        expected[..VNET_HDR_LEN].copy_from_slice(&vnet.write());
        prop_assert_eq!(frames.len(), 1);
        prop_assert_eq!(&frames[0], &expected);
    }
}
