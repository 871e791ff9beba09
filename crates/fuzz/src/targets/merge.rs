//! Merging: what is segmented again must be what arrived, in the order of each flow.

use std::collections::HashMap;

use adit_offload::{Coalescer, Frame, GSO_NONE, Merged, Span, VNET_HDR_LEN};

use super::naive::{parts, pseudo, sum, word};
use crate::source::InputBytes;

const TCP: u8 = 6;
const UDP: u8 = 17;

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let kinds = source.u8();
    let mut coalescer = Coalescer::new(true, true);
    coalescer.merge_only(|kind| match kind {
        Merged::Tcp => kinds & 1 == 0,
        Merged::Udp => kinds & 2 == 0,
        Merged::Tunnel => kinds & 4 == 0,
    });
    // One coalescer serves one batch after another.
    for _ in 0..2 {
        let arrived = stream(&mut source);
        let mut slab = Vec::new();
        for (i, (peer, packet)) in arrived.iter().enumerate() {
            let [buffer, start, len] =
                [i % 3, slab.len(), packet.len()].map(|n| u32::try_from(n).unwrap_or(0));
            slab.extend(packet);
            let span = Span { buffer, start, len };
            coalescer
                .push(*peer, packet, span, |_| kinds & 8 == 0)
                .expect("it takes so many");
        }
        let mut left = Vec::new();
        coalescer.drain(|head, spans| {
            assert!(spans.len() <= 256);
            let mut frame = head.to_vec();
            for span in spans {
                let from = usize::try_from(span.start).unwrap_or(0);
                frame.extend(&slab[from..][..usize::try_from(span.len).unwrap_or(0)]);
            }
            let peers: Vec<u32> = spans.iter().map(|span| peer_of(&arrived, *span)).collect();
            assert!(
                peers.iter().all(|peer| *peer == peers[0]),
                "peers are not mixed"
            );
            left.extend(split(&frame).into_iter().map(|packet| (peers[0], packet)));
        });
        assert_eq!(arrived.len(), left.len(), "packets");
        let (arrived, left) = (by_flow(&arrived), by_flow(&left));
        for (flow, packets) in &arrived {
            assert_eq!(Some(packets), left.get(flow), "flow {flow:?}");
        }
    }
}

/// Who sent the bytes at `span` of all packets together.
fn peer_of(arrived: &[(u32, Vec<u8>)], span: Span) -> u32 {
    let at = usize::try_from(span.start).unwrap_or(0);
    let ends = arrived.iter().scan(0, |end, (peer, packet)| {
        *end += packet.len();
        Some((*end, *peer))
    });
    let mut behind = ends.skip_while(|(end, _)| *end <= at);
    behind.next().map_or(u32::MAX, |(_, peer)| peer)
}

/// The packets that the kernel makes of a frame.
fn split(frame: &[u8]) -> Vec<Vec<u8>> {
    if frame[1] == GSO_NONE {
        assert_eq!(
            frame[..VNET_HDR_LEN],
            [0; VNET_HDR_LEN],
            "nothing is left to do"
        );
        return vec![frame[VNET_HDR_LEN..].to_vec()];
    }
    let parsed = Frame::parse(frame).expect("a frame that was merged");
    assert!(parsed.segments() > 1);
    (0..parsed.segments())
        .map(|i| {
            let mut packet = vec![0; parsed.header_len()];
            parsed.write_header(i, &mut packet);
            packet.extend(parsed.payload(i));
            packet
        })
        .collect()
}

/// What must come out in this order: packets by peer, addresses, protocol and ports.
fn by_flow(packets: &[(u32, Vec<u8>)]) -> HashMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut flows: HashMap<Vec<u8>, Vec<Vec<u8>>> = HashMap::new();
    for (peer, packet) in packets {
        let mut key = peer.to_le_bytes().to_vec();
        if let Some(found) = parts(packet) {
            key.extend(if found.v6 {
                &packet[8..40]
            } else {
                &packet[12..20]
            });
            if let Some((protocol @ (TCP | UDP), at)) = found.transport
                && let Some(ports) = packet.get(at..at + 4)
            {
                key.push(protocol);
                key.extend(ports);
            }
        }
        flows.entry(key).or_default().push(essence(packet, 0));
    }
    flows
}

/// A packet without what a trip as part of a GSO packet may change: a transport checksum, which
/// nobody verified, and an identification that means nothing.
fn essence(packet: &[u8], depth: u8) -> Vec<u8> {
    let mut essence = packet.to_vec();
    let Some(found) = parts(packet) else {
        return essence;
    };
    if !found.v6 && packet[6] & 0x40 != 0 {
        essence[4..6].fill(0);
        essence[10..12].fill(0);
    }
    let Some((protocol, at)) = found.transport else {
        return essence;
    };
    let field = match protocol {
        TCP => at + 16,
        UDP => at + 6,
        _ => return essence,
    };
    if let Some(sum) = essence.get_mut(field..field + 2) {
        sum.fill(0);
    }
    // VXLAN: UDP, VXLAN and Ethernet headers.
    let inside = at + 8 + 8 + 14;
    if protocol == UDP && depth == 0 && packet.len() > inside {
        let inner = self::essence(&packet[inside..], 1);
        essence.splice(inside.., inner);
    }
    essence
}

/// Packets of a few flows, which follow each other but for what the input changes.
fn stream(source: &mut InputBytes<'_>) -> Vec<(u32, Vec<u8>)> {
    let mut flows: Vec<FlowModel> = (0..8).map(FlowModel::new).collect();
    let mut packets = Vec::new();
    for _ in 0..source.u8() {
        if source.is_empty() {
            break;
        }
        let choice = source.u8();
        let flow = &mut flows[usize::from(choice % 8)];
        let peer = u32::from(choice >> 6 & 1);
        let quirk = source.u8();
        let mut packet = flow.next(source, quirk);
        if quirk >= 0xc0 {
            for _ in 0..=quirk % 4 {
                let (at, value) = (usize::from(source.u8()), source.u8());
                if let Some(byte) = packet.get_mut(at) {
                    *byte = value;
                }
            }
            if quirk >= 0xf0 {
                packet.truncate(usize::from(source.u8()));
            }
        }
        // Of no bytes, nobody could tell whose they are.
        if !packet.is_empty() {
            packets.push((peer, packet));
        }
    }
    if source.bool() {
        packets.push((0, [&[0x45], source.take(200)].concat()));
    }
    packets
}

struct FlowModel {
    v6: bool,
    tcp: bool,
    vxlan: bool,
    sequence: u32,
    id: u16,
    size: usize,
    port: u8,
}

impl FlowModel {
    fn new(number: u8) -> Self {
        Self {
            v6: number & 1 == 1,
            tcp: number & 2 == 2,
            vxlan: number >= 6,
            sequence: u32::MAX - 2000,
            id: 65_530,
            size: 100 + 7 * usize::from(number),
            port: number,
        }
    }

    fn next(&mut self, source: &mut InputBytes<'_>, quirk: u8) -> Vec<u8> {
        let mut flags = 0x10;
        let mut payload = self.size;
        match quirk & 0x3f {
            0 => payload = usize::from(source.u8()),
            1 => payload = usize::from(source.u16()) % 3000,
            2 => payload = 0,
            3 => flags = source.u8(),
            4 => flags |= 8,
            5 => flags |= 0x80,
            6 => self.id = self.id.wrapping_add(u16::from(source.u8())),
            7 => self.sequence = self.sequence.wrapping_add(u32::from(source.u8())),
            8 => self.size = 1 + usize::from(source.u8()),
            _ => {}
        }
        let body: Vec<u8> = (0..payload)
            .map(|i| i.to_le_bytes()[0] ^ self.port)
            .collect();
        let tcp = self.tcp || self.vxlan;
        let mut packet = self.packet(self.v6, tcp, flags, &body);
        if self.vxlan {
            let kind = if self.v6 { [0x86, 0xdd] } else { [8, 0] };
            let body = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &[2; 12], &kind, &packet].concat();
            packet = self.packet(self.v6, false, 0, &body);
        }
        self.sequence = self
            .sequence
            .wrapping_add(u32::try_from(payload).unwrap_or(0));
        self.id = self.id.wrapping_add(1);
        packet
    }

    fn packet(&self, v6: bool, tcp: bool, flags: u8, body: &[u8]) -> Vec<u8> {
        let field = |len: usize| u16::try_from(len).unwrap_or(0).to_be_bytes();
        let mut l4 = vec![0x90, self.port, 0x12, 0xb5];
        if tcp {
            l4.extend(self.sequence.to_be_bytes());
            l4.extend([0, 0, 0, 9, 0x80, flags, 1, 0, 0, 0, 0, 0]);
            l4.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        } else {
            l4.extend(field(8 + body.len()));
            l4.extend([0, 0]);
        }
        l4.extend(body);
        let protocol = if tcp { TCP } else { UDP };
        let mut packet = if v6 {
            let mut header = vec![0x60, 0, 0, 7];
            header.extend(field(l4.len()));
            header.extend([protocol, 64]);
            header.extend([0xfd; 16]);
            header.extend([0xfc; 16]);
            header
        } else {
            let mut header = vec![0x45, 0];
            header.extend(field(20 + l4.len()));
            header.extend(self.id.to_be_bytes());
            header.extend([
                if self.port & 4 == 0 { 0x40 } else { 0 },
                0,
                64,
                protocol,
                0,
                0,
            ]);
            header.extend([10, 1, 2, 3, 10, 4, 5, 6]);
            let checksum = !sum(&[&header]);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            header
        };
        let checksum = !sum(&[&pseudo(&packet, v6, protocol, l4.len()), &l4]);
        let at = if tcp { 16 } else { 6 };
        l4[at..at + 2].copy_from_slice(&checksum.max(1).to_be_bytes());
        packet.extend(l4);
        debug_assert!(word(&packet, 2) > 0 || v6);
        packet
    }
}
