//! ICMP and ICMPv6 for the search of a path's MTU: the echo that probes, its answer, and what tells
//! the sender of a packet that it is too long.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::checksum::Sum;
use crate::ip::{Ip, V6_HEADER};
use crate::{low16, read16, write16};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Identifier and sequence number stand behind type, code and checksum.
const ECHO_HEADER: usize = 8;
/// Bytes of a packet that an error about it quotes: its headers. RFC 792 asks for 8 behind the IP
/// header.
const QUOTED: usize = 128;

/// An echo request of `len` bytes that the next hop answers: it goes no further (its TTL is 1), so
/// a router says that, and a host answers. `None` for addresses of two families, or for a length
/// that holds no such packet.
pub fn echo(from: IpAddr, to: IpAddr, len: usize, id: u16, sequence: u16) -> Option<Vec<u8>> {
    let (mut packet, at) = match (from, to) {
        (IpAddr::V4(_), IpAddr::V4(_)) => (v4(from, to, ICMP, 1, len)?, 20),
        _ => (v6(from, to, 1, len)?, V6_HEADER),
    };
    packet[at] = if at == 20 { 8 } else { 128 };
    write16(&mut packet, at + 4, id);
    write16(&mut packet, at + 6, sequence);
    finish(&mut packet, at);
    Some(packet)
}

/// The identifier and the sequence number of the echo request that this packet answers, or that it
/// says was not forwarded.
pub fn echo_answer(packet: &[u8]) -> Option<(u16, u16)> {
    let (reply, expired, request) = types(packet)?;
    let at = message(packet)?;
    let kind = *packet.get(at)?;
    if kind == reply {
        return id_and_sequence(packet, at);
    }
    if kind != expired {
        return None;
    }
    // The quoted packet may be cut short.
    let quoted = packet.get(at + 8..)?;
    let inner = match *quoted.first()? >> 4 {
        4 if quoted.get(9) == Some(&ICMP) => usize::from(quoted[0] & 15) * 4,
        6 if quoted.get(6) == Some(&ICMPV6) => V6_HEADER,
        _ => return None,
    };
    (*quoted.get(inner)? == request).then(|| id_and_sequence(quoted, inner))?
}

/// The message of a router to the sender of `packet`, of which the beginning is enough, about a
/// link with this MTU. `None` if it may not be told: of an ICMP error, of a multicast, of a fragment.
pub fn too_big(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let is_v6 = *packet.first()? >> 4 == 6;
    let (header, protocol) = match is_v6 {
        false if packet.len() >= 20 => (usize::from(packet[0] & 15) * 4, packet[9]),
        true if packet.len() >= V6_HEADER => (V6_HEADER, packet[6]),
        _ => return None,
    };
    let is_error = match (protocol, packet.get(header)) {
        (ICMP, Some(kind)) => !matches!(kind, 0 | 8),
        (ICMPV6, Some(kind)) => *kind < 128,
        _ => false,
    };
    // Its lengths speak of bytes that are not here.
    let ip = Ip {
        v6: is_v6,
        header,
        len: packet.len(),
    };
    let (from, to) = (ip.source(packet), ip.destination(packet));
    let is_later_fragment = !is_v6 && read16(packet, 6) & 0x1fff != 0;
    if is_error || is_later_fragment || to.is_multicast() || from.is_unspecified() {
        return None;
    }
    let quoted = &packet[..packet.len().min(QUOTED)];
    let at = if is_v6 { V6_HEADER } else { 20 };
    let len = at + 8 + quoted.len();
    // From where it was sent to: that is where such a message would come from.
    let mut answer = match is_v6 {
        false => v4(to, from, ICMP, 64, len)?,
        true => v6(to, from, 64, len)?,
    };
    let (kind, code) = if is_v6 { (2, 0) } else { (3, 4) };
    (answer[at], answer[at + 1]) = (kind, code);
    write16(&mut answer, at + 6, mtu);
    answer[at + 8..].copy_from_slice(quoted);
    finish(&mut answer, at);
    Some(answer)
}

/// The types of an echo reply, of an expired packet and of an echo request.
fn types(packet: &[u8]) -> Option<(u8, u8, u8)> {
    match *packet.first()? >> 4 {
        4 => Some((0, 11, 8)),
        6 => Some((129, 3, 128)),
        _ => None,
    }
}

/// The beginning of its ICMP message, if it has one: in a first fragment, too, because a host that
/// was told of a limit answers in fragments.
fn message(packet: &[u8]) -> Option<usize> {
    let ip = Ip::parse(packet)?;
    let (protocol, at) = ip.first_transport(packet)?;
    let expected = if ip.v6 { ICMPV6 } else { ICMP };
    (protocol == expected && packet.len() >= at + ECHO_HEADER).then_some(at)
}

fn id_and_sequence(packet: &[u8], at: usize) -> Option<(u16, u16)> {
    (packet.len() >= at + ECHO_HEADER).then(|| (read16(packet, at + 4), read16(packet, at + 6)))
}

fn v4(from: IpAddr, to: IpAddr, protocol: u8, ttl: u8, len: usize) -> Option<Vec<u8>> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else {
        return None;
    };
    if !(20 + ECHO_HEADER..=0xffff).contains(&len) {
        return None;
    }
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    write16(&mut packet, 2, low16(len));
    // DF: it is to arrive whole or not at all.
    write16(&mut packet, 6, 0x4000);
    (packet[8], packet[9]) = (ttl, protocol);
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    let sum = Sum::of(&packet[..20]).checksum();
    write16(&mut packet, 10, sum);
    Some(packet)
}

fn v6(from: IpAddr, to: IpAddr, hops: u8, len: usize) -> Option<Vec<u8>> {
    let (IpAddr::V6(from), IpAddr::V6(to)) = (from, to) else {
        return None;
    };
    if !(V6_HEADER + ECHO_HEADER..=0xffff).contains(&len) {
        return None;
    }
    let mut packet = vec![0; len];
    packet[0] = 0x60;
    write16(&mut packet, 4, low16(len - V6_HEADER));
    (packet[6], packet[7]) = (ICMPV6, hops);
    packet[8..24].copy_from_slice(&from.octets());
    packet[24..40].copy_from_slice(&to.octets());
    Some(packet)
}

/// The checksum of the message.
fn finish(packet: &mut [u8], at: usize) {
    let mut sum = Sum::of(&packet[at..]);
    if at == V6_HEADER {
        let len = low16(packet.len() - at);
        sum = sum + Sum::of(&packet[8..40]) + Sum::word(len) + Sum::word(ICMPV6.into());
    }
    write16(packet, at + 2, sum.checksum());
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
    const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_right(packet: &[u8]) -> bool {
        let v6 = packet[0] >> 4 == 6;
        let at = if v6 { 40 } else { 20 };
        let mut sum = Sum::of(&packet[at..]);
        if v6 {
            let len = low16(packet.len() - at);
            sum = sum + Sum::of(&packet[8..40]) + Sum::word(len) + Sum::word(58);
        }
        sum.fold() == 0xffff && (v6 || Sum::of(&packet[..20]).fold() == 0xffff)
    }

    #[test]
    fn an_echo_is_answered_by_a_host_and_by_a_router() {
        for [from, to] in [V4, V6] {
            let echo = echo(ip(from), ip(to), 1301, 7, 9).unwrap();
            assert!(is_right(&echo) && echo.len() == 1301);
            assert_eq!(echo_answer(&echo), None, "a request is no answer");
            let at = if from == V4[0] { 20 } else { 40 };
            let mut reply = echo.clone();
            reply[at] = if at == 20 { 0 } else { 129 };
            assert_eq!(echo_answer(&reply), Some((7, 9)));
            // As an error that quotes it.
            let mut expired = too_big(&echo, 0).unwrap_or_default();
            assert!(is_right(&expired));
            assert_eq!(echo_answer(&expired), None, "it is too big, not expired");
            expired[at] = if at == 20 { 11 } else { 3 };
            assert_eq!(echo_answer(&expired), Some((7, 9)));
            for len in 0..expired.len() {
                assert_eq!(echo_answer(&expired[..len]), None);
            }
        }
        assert_eq!(echo(ip(V4[0]), ip(V6[0]), 100, 0, 0), None);
        assert_eq!(echo(ip(V4[0]), ip(V4[1]), 20, 0, 0), None);
    }

    #[test]
    fn the_first_fragment_of_an_answer_is_one() {
        for (offset, found) in [(0, Some((7, 9))), (8, None), (800, None)] {
            let mut reply = echo(ip(V4[0]), ip(V4[1]), 1000, 7, 9).unwrap();
            reply[20] = 0;
            // More fragments follow.
            write16(&mut reply, 6, 0x2000 + offset / 8);
            assert_eq!(echo_answer(&reply), found, "{offset}");
            let mut reply = echo(ip(V6[0]), ip(V6[1]), 1000, 7, 9).unwrap();
            reply[40] = 129;
            reply.splice(40..40, [ICMPV6, 0, 0, 0, 0, 0, 0, 1]);
            write16(&mut reply, 42, offset | 1);
            reply[6] = 44;
            assert_eq!(echo_answer(&reply), found, "{offset}");
        }
    }

    #[test]
    fn a_sender_is_told_the_mtu_but_not_of_its_errors() {
        for [from, to] in [V4, V6] {
            let packet = echo(ip(from), ip(to), 1400, 7, 9).unwrap();
            // The headers are enough.
            let told = too_big(&packet[..60], 1232).unwrap();
            assert!(is_right(&told));
            let ip_of = Ip::parse(&told).unwrap();
            assert_eq!(ip_of.source(&told), ip(to));
            assert_eq!(ip_of.destination(&told), ip(from));
            let at = ip_of.header;
            let expected = if at == 20 { (3, 4) } else { (2, 0) };
            assert_eq!((told[at], told[at + 1]), expected);
            assert_eq!(read16(&told, at + 6), 1232);
            assert_eq!(&told[at + 8..], &packet[..60]);
            assert_eq!(too_big(&told, 1232), None);
        }
        for len in 0..20 {
            assert_eq!(too_big(&vec![0x45; len], 1232), None);
        }
    }
}
