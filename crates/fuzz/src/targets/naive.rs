//! References that care for nothing but being right.

use std::net::IpAddr;

use adit_proto::config::Cidr;

/// Blocks and their owners, searched from end to end.
#[derive(Clone)]
pub(crate) struct NaiveRoutes<T>(pub(crate) Vec<(Cidr, T)>);

impl<T> Default for NaiveRoutes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> NaiveRoutes<T> {
    pub(crate) fn insert(&mut self, block: Cidr, owner: T) -> Option<T> {
        let before = self.remove(block);
        self.0.push((block, owner));
        before
    }

    pub(crate) fn remove(&mut self, block: Cidr) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| *known == block)?;
        Some(self.0.swap_remove(at).1)
    }

    pub(crate) fn lookup(&self, ip: IpAddr) -> Option<T> {
        let containing = self.0.iter().filter(|(block, _)| holds(block, ip));
        let longest = containing.max_by_key(|(block, _)| block.prefix_len());
        longest.map(|(_, owner)| *owner)
    }
}

/// Whether the address is in the block, bit by bit.
fn holds(block: &Cidr, ip: IpAddr) -> bool {
    let bits = |ip: IpAddr| -> Vec<bool> {
        let octets = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let bit = |i: usize| octets[i / 8] >> (7 - i % 8) & 1 == 1;
        (0..octets.len() * 8).map(bit).collect()
    };
    let (ours, theirs) = (bits(block.addr()), bits(ip));
    let len = usize::from(block.prefix_len());
    ours.len() == theirs.len() && ours[..len] == theirs[..len]
}

/// The Internet checksum's sum of all parts together, byte by byte.
pub(crate) fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for (i, byte) in parts.concat().into_iter().enumerate() {
        sum += u64::from(byte) << if i % 2 == 0 { 8 } else { 0 };
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

/// The 16-bit field at `at`, 0 if it is not there.
pub(crate) fn word(bytes: &[u8], at: usize) -> usize {
    let field = bytes.get(at..at + 2).unwrap_or(&[0, 0]);
    usize::from(u16::from_be_bytes([field[0], field[1]]))
}

/// An IP packet with a transport header, taken apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketParts {
    pub(crate) v6: bool,
    /// Length by the IP header.
    pub(crate) len: usize,
    /// TCP, UDP or something else; `None` for a fragment and a broken chain of headers.
    pub(crate) transport: Option<(u8, usize)>,
}

/// `None` if `packet` is no whole IP packet.
pub(crate) fn parts(packet: &[u8]) -> Option<PacketParts> {
    let parts = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let len = word(packet, 2);
            if packet.len() < 20 || header < 20 || header > len {
                return None;
            }
            let whole = word(packet, 6) & 0x3fff == 0;
            PacketParts {
                v6: false,
                len,
                transport: whole.then_some((packet[9], header)),
            }
        }
        6 if packet.len() >= 40 => {
            let (mut next, mut at) = (packet[6], 40);
            let transport = loop {
                match (next, packet.get(at..at + 2)) {
                    (0 | 43 | 60, Some(field)) => {
                        at += 8 + usize::from(field[1]) * 8;
                        next = field[0];
                    }
                    (51, Some(field)) => {
                        at += 8 + usize::from(field[1]) * 4;
                        next = field[0];
                    }
                    (0 | 43 | 51 | 60 | 44, _) => break None,
                    _ => break (at <= packet.len()).then_some((next, at)),
                }
            };
            PacketParts {
                v6: true,
                len: 40 + word(packet, 4),
                transport,
            }
        }
        _ => return None,
    };
    (parts.len <= packet.len()).then_some(parts)
}

/// The pseudo-header of a transport checksum.
pub(crate) fn pseudo(packet: &[u8], v6: bool, protocol: u8, length: usize) -> Vec<u8> {
    let addresses = if v6 { &packet[8..40] } else { &packet[12..20] };
    let length = u32::try_from(length).unwrap_or(0).to_be_bytes();
    [addresses, &[0, protocol], &length].concat()
}

/// Source and length of the IP packet in a plaintext.
pub(crate) fn inner(text: &[u8]) -> Option<(IpAddr, usize)> {
    let (source, len) = match text.first()? >> 4 {
        4 if text.len() >= 20 => {
            let octets: [u8; 4] = text[12..16].try_into().expect("4 bytes");
            (octets.into(), Some(word(text, 2)).filter(|len| *len >= 20)?)
        }
        6 if text.len() >= 40 => {
            let octets: [u8; 16] = text[8..24].try_into().expect("16 bytes");
            (octets.into(), 40 + word(text, 4))
        }
        _ => return None,
    };
    (len <= text.len()).then_some((source, len))
}
