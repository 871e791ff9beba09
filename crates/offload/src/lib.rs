//! Segmentation and coalescing of packets as pure functions on bytes.
//!
//! Outbound, a GSO packet from the TUN becomes a [`Frame`], which hands out finished segments.
//! Inbound, opened packets pass a [`Coalescer`], which hands out GSO packets for the TUN. Nothing
//! here trusts a byte of what it is given.
//!
//! A UDP GSO packet of two datagrams is cut into segments, and these are merged again:
//!
//! ```
//! use adit_offload::{Coalescer, Frame, GSO_UDP_L4, NEEDS_CSUM, Span, VNET_HDR_LEN, VnetHdr};
//!
//! // An IPv4 header (20 bytes), a UDP header (8) and twice 100 bytes of payload, as a TUN hands them
//! // over: the checksum of UDP holds the sum of the pseudo-header only.
//! let mut packet = vec![0; 228];
//! packet[..20].copy_from_slice(&[
//!     0x45, 0, 0, 228, 0, 0, 0x40, 0, 64, 17, 0xb9, 0xfb, 192, 0, 2, 1, 192, 0, 2, 2,
//! ]);
//! packet[20..26].copy_from_slice(&[0, 7, 0, 9, 0, 208]);
//! let header = VnetHdr {
//!     flags: NEEDS_CSUM,
//!     gso_type: GSO_UDP_L4,
//!     gso_size: 100,
//!     csum_start: 20,
//!     csum_offset: 6,
//!     ..VnetHdr::default()
//! };
//! let bytes = [&header.write()[..], &packet].concat();
//! let frame = Frame::parse(&bytes).unwrap();
//! assert_eq!(frame.segments(), 2);
//!
//! // 1. Segments: headers that are finished, and the payload where it is.
//! let segments: Vec<Vec<u8>> = (0..2)
//!     .map(|i| {
//!         let mut segment = vec![0; frame.header_len()];
//!         frame.write_header(i, &mut segment);
//!         segment.extend(frame.payload(i));
//!         segment
//!     })
//!     .collect();
//! assert_eq!(segments[0].len(), 128);
//!
//! // 2. Merged again, as packets of peer 1.
//! let mut coalescer = Coalescer::new(true, true);
//! for (i, segment) in (0..).zip(&segments) {
//!     let span = Span { buffer: i, start: 0, len: 128 };
//!     coalescer.push(1, segment, span, |_| false).unwrap();
//! }
//! let mut merged = Vec::new();
//! coalescer.drain(|head, spans| merged.push((head.to_vec(), spans.len())));
//! let (head, spans) = &merged[0];
//! let header = VnetHdr::parse(head[..VNET_HDR_LEN].try_into().unwrap());
//! assert_eq!((header.gso_type, header.gso_size, *spans), (GSO_UDP_L4, 100, 2));
//! ```

#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(any(feature = "std", adit_lab_steps))]
extern crate std;

pub mod checksum;
mod coalesce;
#[cfg(test)]
mod coalesce_tests;
#[cfg(target_has_atomic = "64")]
mod ends;
mod frame;
#[cfg(test)]
mod frame_tests;
mod icmp;
mod ip;
#[cfg(test)]
mod ip_tests;
pub mod lab;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tunnel_tests;

pub use coalesce::{Coalescer, Full, Span};
#[cfg(target_has_atomic = "64")]
pub use ends::TunnelEnds;
pub use frame::{Frame, Malformed};
pub use icmp::{echo, echo_answer, too_big};
pub use ip::{Dropped, Inner, decap_ecn, inner_packet, is_udp};

/// Bytes of `struct virtio_net_hdr_v1_hash_tunnel`, which precedes every frame read from and
/// written to a TUN queue. Kernels that know only the first 10 bytes of it leave the others alone.
pub const VNET_HDR_LEN: usize = 24;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum at `csum_start + csum_offset` holds only the
/// pseudo-header's sum.
pub const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_F_UDP_TUNNEL_CSUM`: the tunnel's UDP headers have checksums.
pub const TUNNEL_CSUM: u8 = 8;
/// `VIRTIO_NET_HDR_GSO_NONE`: not a GSO packet.
pub const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: datagrams of equal length, the last of which may be shorter.
pub const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_UDP_TUNNEL_IPV4`: what is segmented stands in a UDP tunnel over IPv4, like
/// VXLAN.
pub const GSO_TUNNEL_V4: u8 = 0x20;
/// `VIRTIO_NET_HDR_GSO_UDP_TUNNEL_IPV6`.
pub const GSO_TUNNEL_V6: u8 = 0x40;
/// `VIRTIO_NET_HDR_GSO_ECN`: the first TCP segment carries CWR, the others do not.
pub const GSO_ECN: u8 = 0x80;

/// The kind of packets that a frame was merged of. A kernel may take some kinds and refuse others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// TCP segments.
    Tcp,
    /// UDP datagrams.
    Udp,
    /// TCP segments in a UDP tunnel.
    Tunnel,
}

impl Merged {
    /// The number of kinds.
    pub const COUNT: usize = 3;

    /// Reads the kind from the virtio header that leads the frame; `None` if it was not merged.
    pub fn of(head: &[u8]) -> Option<Self> {
        match *head.get(1)? {
            GSO_NONE => None,
            GSO_UDP_L4 => Some(Self::Udp),
            kind if kind & (GSO_TUNNEL_V4 | GSO_TUNNEL_V6) != 0 => Some(Self::Tunnel),
            _ => Some(Self::Tcp),
        }
    }
}

/// `struct virtio_net_hdr_v1_hash_tunnel`: in machine byte order, but for what tunnels added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHdr {
    /// [`NEEDS_CSUM`], with [`TUNNEL_CSUM`] perhaps, or nothing.
    pub flags: u8,
    /// One of the `GSO_` values, with [`GSO_ECN`] and a tunnel's perhaps.
    pub gso_type: u8,
    /// Length of all headers. The kernel gives the length of its linear buffer here: never trust
    /// it.
    pub hdr_len: u16,
    /// Payload bytes of every segment but the last.
    pub gso_size: u16,
    /// The beginning of the summed bytes.
    pub csum_start: u16,
    /// The offset of the checksum from `csum_start`.
    pub csum_offset: u16,
    /// The beginning of a tunnel's UDP header. The kernel means it for devices with Ethernet
    /// headers: never trust it.
    pub outer_transport: u16,
    /// The beginning of the IP header inside a tunnel.
    pub inner_network: u16,
}

impl VnetHdr {
    /// Reads the header. Every pattern of bits is one; [`Frame::parse`] says which make sense.
    pub fn parse(bytes: &[u8; VNET_HDR_LEN]) -> VnetHdr {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VnetHdr {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            // 10..20 are the number of buffers and what a hash would need.
            outer_transport: u16::from_le_bytes([bytes[20], bytes[21]]),
            inner_network: u16::from_le_bytes([bytes[22], bytes[23]]),
        }
    }

    /// The header as the TUN takes it.
    pub fn write(&self) -> [u8; VNET_HDR_LEN] {
        let mut bytes = [0; VNET_HDR_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        for (at, word) in [
            (2, self.hdr_len),
            (4, self.gso_size),
            (6, self.csum_start),
            (8, self.csum_offset),
        ] {
            bytes[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[20..22].copy_from_slice(&self.outer_transport.to_le_bytes());
        bytes[22..24].copy_from_slice(&self.inner_network.to_le_bytes());
        bytes
    }
}

/// The low 16 bits: of a length, which has no others, or of a number that wraps.
#[expect(clippy::cast_possible_truncation, reason = "what this is for")]
fn low16(number: usize) -> u16 {
    number as u16
}

/// The low 32 bits: of an index, which has no others, or of a number that wraps.
#[expect(clippy::cast_possible_truncation, reason = "what this is for")]
fn low32(number: usize) -> u32 {
    number as u32
}

/// The 16-bit field at `at`.
fn read16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The 32-bit field at `at`.
fn read32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes the 16-bit field at `at`.
fn write16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
