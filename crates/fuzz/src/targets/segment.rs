//! Virtio frames into segments: each must be the packet that the kernel's GSO would have made.

use adit_offload::checksum::Sum;
use adit_offload::{
    Frame, GSO_ECN, GSO_NONE, GSO_TUNNEL_V4, GSO_TUNNEL_V6, NEEDS_CSUM, TUNNEL_CSUM, VNET_HDR_LEN,
    VnetHdr,
};

use super::naive::{parts, pseudo, sum, word};
use crate::source::InputBytes;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Segments that are looked at: the first ones and the last one.
const LOOKED_AT: usize = 8;

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let bytes = match source.u8() % 4 {
        0 => source.rest().to_vec(),
        how => structured(&mut source, how == 3),
    };
    assert_eq!(Sum::of(&bytes).fold(), sum(&[&bytes]), "a sum");
    let Ok(frame) = Frame::parse(&bytes) else {
        return;
    };
    let vnet = VnetHdr::parse(bytes.first_chunk().expect("it was parsed"));
    let packet = &bytes[VNET_HDR_LEN..];
    let found = parts(packet).expect("it was parsed");
    let packet = &packet[..found.len];
    _ = (
        frame.source(),
        frame.destination(),
        frame.ecn(),
        frame.udp_ports(),
        frame.tunnel_end(),
    );
    assert!(frame.segments() >= 1);
    if vnet.gso_type == GSO_NONE {
        assert_eq!(frame.segments(), 1);
        let whole = segment(&frame, 0);
        if vnet.flags & NEEDS_CSUM == 0 {
            assert_eq!(whole, packet);
        } else {
            one_checksum(vnet, packet, &whole);
        }
        return;
    }
    let inner = if vnet.gso_type & (GSO_TUNNEL_V4 | GSO_TUNNEL_V6) == 0 {
        0
    } else {
        usize::from(vnet.inner_network)
    };
    let last = frame.segments() - 1;
    let mut at = 0;
    for i in (0..frame.segments()).filter(|i| *i < LOOKED_AT || *i == last) {
        let made = segment(&frame, i);
        let payload = frame.payload(i);
        // 1. The payload goes on where it left off, and none is left out.
        if i < LOOKED_AT {
            assert_eq!(
                payload,
                &packet[frame.header_len()..][at..at + payload.len()]
            );
            at += payload.len();
        }
        let size = usize::from(vnet.gso_size);
        assert!(
            payload.len() == size || i == last && payload.len() <= size,
            "a payload's length"
        );
        if i == last {
            let before = last * size;
            assert_eq!(before + payload.len(), packet.len() - frame.header_len());
        }
        check(vnet, packet, &made, inner, (i, last));
    }
}

fn segment(frame: &Frame<'_>, i: usize) -> Vec<u8> {
    let mut made = vec![0xaa; frame.header_len()];
    frame.write_header(i, &mut made);
    made.extend(frame.payload(i));
    assert_eq!(made.len(), frame.segment_len(i));
    made
}

/// A packet of which only one checksum was left to do.
fn one_checksum(vnet: VnetHdr, packet: &[u8], whole: &[u8]) {
    let (start, offset) = (usize::from(vnet.csum_start), usize::from(vnet.csum_offset));
    let field = start + offset;
    let mut expected = packet.to_vec();
    let checksum = !sum(&[&packet[start..]]);
    let checksum = if checksum == 0 && offset == 6 {
        0xffff
    } else {
        checksum
    };
    expected[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(whole, expected);
}

/// Headers of segment `i` of so many.
fn check(vnet: VnetHdr, packet: &[u8], made: &[u8], inner: usize, (i, last): (usize, usize)) {
    // 1. IP, inside a tunnel and outside.
    for at in if inner == 0 { vec![0] } else { vec![0, inner] } {
        let (before, after) = (&packet[at..], &made[at..]);
        let (was, is) = (
            parts(before).expect("parsed"),
            parts(after).expect("a packet"),
        );
        assert_eq!(is.len, after.len());
        if !is.v6 {
            let header = usize::from(after[0] & 15) * 4;
            assert_eq!(sum(&[&after[..header]]), 0xffff, "the header's checksum");
            let id = word(before, 4).wrapping_add(i) & 0xffff;
            assert_eq!(word(after, 4), id, "the identification");
            assert_eq!(after[12..header], before[12..header]);
        }
        let (protocol, transport) = is.transport.expect("no fragment");
        assert_eq!(was.transport, is.transport);
        // 2. Transport. Behind a source route or a home address, other addresses are summed.
        let plain = transport == if is.v6 { 40 } else { 20 };
        let l4 = &after[transport..];
        let valid = || sum(&[&pseudo(after, is.v6, protocol, l4.len()), l4]) == 0xffff;
        let outside = at == 0 && inner > 0;
        if protocol == UDP {
            assert_eq!(word(l4, 4), l4.len(), "the datagram's length");
            let summed = if outside {
                vnet.flags & TUNNEL_CSUM != 0
            } else {
                // Without a checksum it stays so, where that is allowed.
                vnet.flags & NEEDS_CSUM != 0 || is.v6 || word(before, transport + 6) != 0
            };
            if !summed {
                assert_eq!(l4[6..8], before[transport + 6..transport + 8]);
            } else {
                assert!(l4[6..8] != [0, 0], "a zero says that there is no checksum");
                assert!(
                    !plain || (outside && !inner_plain(made, inner)) || valid(),
                    "UDP's checksum"
                );
            }
        } else {
            assert_eq!(protocol, TCP);
            let was = &before[transport..];
            let read32 = |l4: &[u8]| u32::from_be_bytes(l4[4..8].try_into().expect("4 bytes"));
            let moved = u32::try_from(i * usize::from(vnet.gso_size)).unwrap_or(0);
            assert_eq!(
                read32(l4),
                read32(was).wrapping_add(moved),
                "the sequence number"
            );
            let mut flags = was[13];
            if i > 0 {
                flags &= !0x80;
            }
            if i < last {
                flags &= !0x09;
            }
            assert_eq!(l4[13], flags, "flags");
            assert!(!plain || valid(), "TCP's checksum");
        }
    }
}

/// Whether the packet inside of a tunnel has a checksum that can be known.
fn inner_plain(made: &[u8], inner: usize) -> bool {
    let inside = parts(&made[inner..]).and_then(|is| Some((is.v6, is.transport?.1)));
    matches!(inside, Some((true, 40) | (false, 20)))
}

/// A frame whose headers fit together, but for what the input changes.
fn structured(source: &mut InputBytes<'_>, tunnel: bool) -> Vec<u8> {
    let payload = usize::from(source.u16()) % 9000;
    let mut size = source.u16() % 2000;
    if size == 0 {
        size = 1;
    }
    let (outer_v6, v6, tcp) = (source.bool(), source.bool(), source.bool());
    let kind = match (tcp, v6) {
        (true, false) => 1,
        (true, true) => 4,
        (false, _) => 5,
    };
    let seed = source.u8();
    let body: Vec<u8> = (0..payload)
        .map(|i| i.to_le_bytes()[0].wrapping_mul(31) ^ seed)
        .collect();
    let l4 = transport(source, tcp, &body);
    let inside = ip(source, v6, if tcp { TCP } else { UDP }, &l4);
    let mut header = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type: kind,
        gso_size: size,
        csum_start: if v6 { 40 } else { 20 },
        csum_offset: if tcp { 16 } else { 6 },
        ..VnetHdr::default()
    };
    let flags = source.u8();
    if flags & 1 != 0 && tcp {
        header.gso_type |= GSO_ECN;
    }
    let mut packet = inside;
    if tunnel {
        let before = if outer_v6 { 40 } else { 20 } + 8 + 22;
        let body = [&[8, 0, 0, 0, 1, 2, 3, 0][..], &[0xee; 14], &packet].concat();
        let l4 = transport(source, false, &body);
        packet = ip(source, outer_v6, UDP, &l4);
        header.gso_type |= if outer_v6 {
            GSO_TUNNEL_V6
        } else {
            GSO_TUNNEL_V4
        };
        header.inner_network = before;
        header.csum_start += before;
        if flags & 2 != 0 {
            header.flags |= TUNNEL_CSUM;
        }
    }
    if flags & 4 != 0 {
        header.gso_type = GSO_NONE;
    }
    if flags & 8 != 0 {
        header.flags = 0;
    }
    let mut bytes = [&header.write()[..], &packet].concat();
    // Changes to what is there: where and what.
    while !source.is_empty() {
        let at = usize::from(source.u8());
        let value = source.u8();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
    }
    bytes
}

fn transport(source: &mut InputBytes<'_>, tcp: bool, body: &[u8]) -> Vec<u8> {
    let ports = source.array::<4>();
    let mut l4 = ports.to_vec();
    if tcp {
        let options = usize::from(source.u8() % 11);
        l4.extend(source.array::<8>());
        l4.push(u8::try_from(5 + options).unwrap_or(5) << 4);
        l4.extend(source.array::<7>());
        l4.extend(vec![1; 4 * options]);
    } else {
        l4.extend(u16::try_from(8 + body.len()).unwrap_or(0).to_be_bytes());
        l4.extend([0, 0]);
    }
    l4.extend(body);
    l4
}

fn ip(source: &mut InputBytes<'_>, v6: bool, protocol: u8, l4: &[u8]) -> Vec<u8> {
    let field = |len: usize| u16::try_from(len).unwrap_or(0).to_be_bytes();
    let mut packet = if v6 {
        let [tos, label, hops] = source.array();
        let length = field(l4.len());
        let mut header = vec![
            0x60 | tos >> 4,
            tos << 4,
            0,
            label,
            length[0],
            length[1],
            protocol,
            hops,
        ];
        header.extend(source.array::<4>().repeat(8));
        header
    } else {
        let [tos, id, flags, ttl] = source.array();
        let length = field(20 + l4.len());
        let mut header = vec![
            0x45,
            tos,
            length[0],
            length[1],
            0xff,
            id,
            flags & 0x40,
            0,
            ttl,
            protocol,
            0,
            0,
        ];
        header.extend(source.array::<8>());
        header
    };
    packet.extend(l4);
    packet
}
