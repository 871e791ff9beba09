//! Packets to send, and a look at those that came.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of this"
)]

use adit::{Gso, GsoKind};

/// The sum of RFC 1071, as slowly as it can be computed.
fn sum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([word[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// Where the transport header begins.
fn header(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { 20 } else { 40 }
}

fn protocol(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 4 {
        packet[9]
    } else {
        packet[6]
    }
}

/// How long the headers are.
pub fn headers(packet: &[u8]) -> usize {
    header(packet) + if protocol(packet) == 6 { 20 } else { 8 }
}

pub fn payload(packet: &[u8]) -> &[u8] {
    &packet[headers(packet)..]
}

/// Whether lengths and checksums of an IP packet with TCP or UDP are right.
pub fn is_right(packet: &[u8]) -> bool {
    let at = header(packet);
    let v4 = at == 20;
    let len = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let is_whole = match v4 {
        true => len(2) == packet.len() && sum(&[&packet[..20]]) == 0xffff,
        false => len(4) + 40 == packet.len(),
    };
    let addresses = if v4 { &packet[12..20] } else { &packet[8..40] };
    let of = u16::try_from(packet.len() - at).unwrap().to_be_bytes();
    let pseudo = [addresses, &[0, protocol(packet)], &of[..]].concat();
    let udp = protocol(packet) != 17 || len(at + 4) == packet.len() - at;
    is_whole && udp && sum(&[&pseudo, &packet[at..]]) == 0xffff
}

/// Bytes that differ from place to place.
pub fn bytes(len: usize, seed: usize) -> Vec<u8> {
    let byte = |i: usize| u8::try_from((i * 31 + i / 256 * 7 + seed * 13) % 251).unwrap();
    (0..len).map(byte).collect()
}

/// Addresses of host number `n`: 10.0.0.n and fd00::n.
fn ip(v6: bool, from: u8, to: u8, protocol: u8, inner: &[u8]) -> Vec<u8> {
    let len = |extra: usize| u16::try_from(inner.len() + extra).unwrap().to_be_bytes();
    let mut packet = match v6 {
        true => {
            let mut packet = vec![0; 40];
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&len(0));
            (packet[6], packet[7]) = (protocol, 64);
            (packet[8], packet[23], packet[24], packet[39]) = (0xfd, from, 0xfd, to);
            packet
        }
        false => {
            let mut packet = vec![0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, protocol, 0, 0];
            packet[2..4].copy_from_slice(&len(20));
            packet.extend([10, 0, 0, from, 10, 0, 0, to]);
            let checksum = !sum(&[&packet]);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            packet
        }
    };
    packet.extend(inner);
    packet
}

fn finish(mut packet: Vec<u8>, field: usize) -> Vec<u8> {
    let at = header(&packet);
    let addresses = if at == 20 { 12..20 } else { 8..40 };
    let of = u16::try_from(packet.len() - at).unwrap_or(0).to_be_bytes();
    let pseudo = [&packet[addresses], &[0, protocol(&packet)], &of[..]].concat();
    let checksum = !sum(&[&pseudo, &packet[at..]]);
    packet[at + field..at + field + 2].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// A UDP datagram with `payload`, between these hosts.
pub fn udp(v6: bool, from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len() + 8).unwrap().to_be_bytes();
    let header = [&[0, 7, 0, 9][..], &len, &[0, 0]].concat();
    finish(ip(v6, from, to, 17, &[&header, payload].concat()), 6)
}

/// A TCP segment with `payload`.
pub fn tcp(v6: bool, from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0, 7, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x10, 1, 0];
    header.extend([0; 4]);
    finish(ip(v6, from, to, 6, &[&header, payload].concat()), 16)
}

/// A GSO packet of this kind, as long as it can be.
pub fn gso(kind: GsoKind, from: u8, to: u8, segment: u16) -> (Vec<u8>, Gso) {
    let packet = match kind {
        GsoKind::Tcp4 => tcp(false, from, to, &bytes(65_535 - 40, 3)),
        GsoKind::Tcp6 => tcp(true, from, to, &bytes(65_535 - 60, 4)),
        // The kernel merges up to 64 datagrams.
        _ => udp(false, from, to, &bytes(64 * usize::from(segment), 5)),
    };
    (packet, Gso { kind, segment })
}
