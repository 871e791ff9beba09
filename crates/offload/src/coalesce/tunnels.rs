//! Packets inside UDP tunnels.

use crate::coalesce::run::{Class, FIN, HeaderOffsets, PSH, PacketLayout, RST, SYN, URG, VXLAN};
use crate::ip::{ICMP, ICMPV6, Ip, TCP, UDP};
use crate::{read16, read32};

/// Whether a UDP datagram looks like that of a tunnel, and carries a packet that does not tell its
/// flow by plain headers.
pub(super) fn carries_any_flow(datagram: &[u8]) -> bool {
    let Some(payload) = datagram.get(8..) else {
        return false;
    };
    // Behind so many options.
    let geneve = |options: u8| payload.get(8 + 4 * usize::from(options & 0x3f)..);
    let frame = match *payload {
        // VXLAN (RFC 7348 §5), also with a group policy (draft-smith-vxlan-group-policy) or with a
        // protocol (draft-ietf-nvo3-vxlan-gpe)
        [8, 0, 0, 0, _, _, _, 0, ..]
        | [0x88, _, _, _, _, _, _, 0, ..]
        | [0x0c, 0, 0, 3, _, _, _, 0, ..] => payload.get(8..),
        // Geneve (RFC 8926 §3.4)
        [options, _, 0x65, 0x58, ..] if options >> 6 == 0 => geneve(options),
        _ => None,
    };
    let packet = match (frame, payload) {
        (Some(frame), _) => in_ethernet(frame),
        // GUE (draft-ietf-intarea-gue) with IP in it
        (None, &[head, 4 | 41, ..]) if head >> 5 == 0 => {
            payload.get(4 + 4 * usize::from(head & 0x1f)..)
        }
        // VXLAN and Geneve with IP in them
        (None, &[0x0c, 0, 0, 1 | 2, _, _, _, 0, ..]) => payload.get(8..),
        (None, &([options, _, 8, 0, ..] | [options, _, 0x86, 0xdd, ..])) if options >> 6 == 0 => {
            geneve(options)
        }
        // FOU: an IP packet
        (None, _) => Some(payload),
    };
    let Some((packet, ip)) = packet.and_then(|packet| Some((packet, Ip::parse(packet)?))) else {
        return false;
    };
    // Ethernet fills short frames up.
    if ip.len != packet.len() && frame.is_none() {
        return false;
    }
    let packet = &packet[..ip.len];
    match ip.transport(packet) {
        Some((UDP, at)) if at == ip.header => carries_any_flow(&packet[at..]),
        Some((TCP | ICMP | ICMPV6, at)) => at != ip.header,
        _ => true,
    }
}

/// The IP packet in an Ethernet frame, behind tags of VLANs.
fn in_ethernet(frame: &[u8]) -> Option<&[u8]> {
    let mut at = 12;
    while let [0x81, 0x00] | [0x88, 0xa8] = frame.get(at..at + 2)? {
        at += 4;
    }
    match read16(frame.get(at..at + 2)?, 0) {
        0x0800 | 0x86dd => frame.get(at + 2..),
        _ => None,
    }
}

/// A TCP packet in VXLAN (RFC 7348 §5) whose headers are the plainest possible. `ip` is what stands
/// around it.
pub(super) fn in_vxlan(packet: &[u8], ip: Ip) -> Option<Class> {
    let udp = packet.get(ip.header..)?;
    let at = ip.header + VXLAN;
    let inner = Ip::parse(packet.get(at..)?)?;
    let ether_type = if inner.v6 { 0x86dd } else { 0x0800 };
    let plain = usize::from(read16(udp, 4)) == udp.len()
        && read32(udp, 8) == 0x0800_0000
        && udp[15] == 0
        && read16(udp, VXLAN - 2) == ether_type
        && at + inner.len == packet.len()
        && (inner.v6 || inner.header == 20)
        && inner.transport(&packet[at..]) == Some((TCP, inner.header));
    let transport = at + inner.header;
    let tcp = packet
        .get(transport..)
        .filter(|tcp| plain && tcp.len() >= 20)?;
    let length = usize::from(tcp[12] >> 4) * 4;
    if length < 20 || tcp.len() <= length || tcp[13] & (SYN | RST | URG) != 0 {
        return None;
    }
    let flow = HeaderOffsets {
        at: 0,
        v6: ip.v6,
        tcp: false,
        transport: ip.header,
    };
    let merged = HeaderOffsets {
        at,
        v6: inner.v6,
        tcp: true,
        transport,
    };
    let sound = flow.is_sound(packet) && merged.is_sound(packet);
    Some(Class::Flow {
        layout: PacketLayout {
            flow,
            merged,
            headers: transport + length,
        },
        merges: sound,
        leads: sound && tcp[13] & (FIN | PSH) == 0,
    })
}
