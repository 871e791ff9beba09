//! The parts of the IP header that both directions need.

use core::net::IpAddr;

use super::{read16, write16};
use crate::checksum::Sum;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;

/// Length of an IPv6 header, and where the payload length that it carries begins to count.
pub(super) const V6_HEADER: usize = 40;

/// IPv6 extension headers that may precede TCP or UDP: hop-by-hop, routing, authentication,
/// destination options.
const EXTENSIONS: [u8; 4] = [0, 43, 51, 60];

/// An IP packet of which nothing but the lengths has been looked at.
#[derive(Clone, Copy)]
pub(super) struct Ip {
    pub(super) v6: bool,
    /// Length of the IPv4 header with its options, or of the fixed IPv6 header.
    pub(super) header: usize,
    /// Length of the packet by its own account: at least `header`, at most the bytes that there
    /// are.
    pub(super) len: usize,
}

impl Ip {
    pub(super) fn parse(bytes: &[u8]) -> Option<Ip> {
        let ip = match *bytes.first()? >> 4 {
            4 if bytes.len() >= 20 => {
                let header = usize::from(bytes[0] & 15) * 4;
                Ip {
                    v6: false,
                    header,
                    len: usize::from(read16(bytes, 2)),
                }
            }
            6 if bytes.len() >= V6_HEADER => Ip {
                v6: true,
                header: V6_HEADER,
                len: V6_HEADER + usize::from(read16(bytes, 4)),
            },
            _ => return None,
        };
        (ip.header >= 20 && ip.header <= ip.len && ip.len <= bytes.len()).then_some(ip)
    }

    /// The protocol above IP and where its header begins. None for a fragment and for a broken
    /// chain of extensions.
    pub(super) fn transport(self, packet: &[u8]) -> Option<(u8, usize)> {
        if !self.v6 {
            let whole = read16(packet, 6) & 0x3fff == 0;
            return whole.then_some((packet[9], self.header));
        }
        let (mut next, mut at) = (packet[6], V6_HEADER);
        while EXTENSIONS.contains(&next) {
            let [following, length] = *packet.get(at..at + 2)? else {
                return None;
            };
            at += if next == 51 {
                (usize::from(length) + 2) * 4
            } else {
                (usize::from(length) + 1) * 8
            };
            next = following;
        }
        // 44 is the fragment header.
        (next != 44 && at <= packet.len()).then_some((next, at))
    }

    /// The same, of a first fragment too.
    pub(super) fn first_transport(self, packet: &[u8]) -> Option<(u8, usize)> {
        if !self.v6 {
            return (read16(packet, 6) & 0x1fff == 0).then_some((packet[9], self.header));
        }
        // As the kernel makes them: nothing before the fragment header.
        let first = packet[6] == 44 && packet.len() >= 48 && read16(packet, 42) & 0xfff8 == 0;
        if first {
            Some((packet[40], 48))
        } else {
            self.transport(packet)
        }
    }

    pub(super) fn source(self, packet: &[u8]) -> IpAddr {
        if self.v6 {
            address16(packet, 8)
        } else {
            address4(packet, 12)
        }
    }

    pub(super) fn destination(self, packet: &[u8]) -> IpAddr {
        if self.v6 {
            address16(packet, 24)
        } else {
            address4(packet, 16)
        }
    }
}

fn address4(packet: &[u8], at: usize) -> IpAddr {
    let mut octets = [0; 4];
    octets.copy_from_slice(&packet[at..at + 4]);
    octets.into()
}

fn address16(packet: &[u8], at: usize) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&packet[at..at + 16]);
    octets.into()
}

/// The two ECN bits of an IP packet.
pub(super) fn ecn(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 6 {
        packet[1] >> 4 & 3
    } else {
        packet[1] & 3
    }
}

/// An IP packet found in the plaintext of a data message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// The source: to be checked against the allowed IPs of the peer.
    pub source: IpAddr,
    /// The destination.
    pub destination: IpAddr,
    /// Length by the IP header. The rest is padding.
    pub len: usize,
}

/// Finds the IP packet in a plaintext that may have padding behind it. None when there is no IPv4
/// or IPv6 header, or when it speaks of more bytes than there are.
pub fn inner_packet(plaintext: &[u8]) -> Option<Inner> {
    let ip = Ip::parse(plaintext)?;
    Some(Inner {
        source: ip.source(plaintext),
        destination: ip.destination(plaintext),
        len: ip.len,
    })
}

/// Whether an IP packet is a UDP datagram, by the protocol behind its IP header.
pub fn is_udp(packet: &[u8]) -> bool {
    let at = match packet.first() {
        Some(first) if first >> 4 == 4 => 9,
        _ => 6,
    };
    packet.get(at) == Some(&UDP)
}

/// Congestion was marked on the outer header of a packet whose transport does not understand marks:
/// RFC 6040 §4.2 has it dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped;

/// Carries the ECN bits of the outer header over to the inner packet, as RFC 6040 §4.2, figure 4,
/// says:
///
/// | inner \ outer | Not-ECT | ECT(0) | ECT(1) | CE |
/// |---|---|---|---|---|
/// | Not-ECT | Not-ECT | Not-ECT | Not-ECT | dropped |
/// | ECT(0) | ECT(0) | ECT(0) | ECT(1) | CE |
/// | ECT(1) | ECT(1) | ECT(1) | ECT(1) | CE |
/// | CE | CE | CE | CE | CE |
///
/// Does nothing to bytes that are too short for an IP header.
///
/// # Errors
///
/// [`Dropped`] if the packet cannot carry the mark: the caller drops it.
pub fn decap_ecn(outer: u8, packet: &mut [u8]) -> Result<(), Dropped> {
    const ECT1: u8 = 1;
    const ECT0: u8 = 2;
    const CE: u8 = 3;
    if packet.len() < 20 {
        return Ok(());
    }
    let inner = ecn(packet);
    let merged = match (inner, outer & 3) {
        (0, CE) => return Err(Dropped),
        (ECT0 | ECT1, CE) => CE,
        (ECT0, ECT1) => ECT1,
        _ => return Ok(()),
    };
    let changed = inner ^ merged;
    if packet[0] >> 4 == 6 {
        packet[1] ^= changed << 4;
        return Ok(());
    }
    // RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
    let before = read16(packet, 0);
    packet[1] ^= changed;
    let sum = Sum::word(!read16(packet, 10)) + Sum::word(!before) + Sum::word(read16(packet, 0));
    write16(packet, 10, sum.checksum());
    Ok(())
}
