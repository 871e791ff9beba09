//! Packets as they pass between a tunnel and its caller: alone, or several of one flow as one.

use std::io::IoSlice;

use adit_offload::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Span, VNET_HDR_LEN, VnetHdr};

/// What the packets of a train are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GsoKind {
    /// Segments of TCP over IPv4.
    Tcp4,
    /// Segments of TCP over IPv6.
    Tcp6,
    /// Datagrams of UDP, over either.
    Udp,
}

/// How a packet that stands for several of one flow, a train, is cut: as the kernel's GSO does it.
///
/// The transport header's checksum is whatever it is: those of the packets that it is cut into are
/// made anew. Only a zero in UDP over IPv4 says that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// What they are.
    pub kind: GsoKind,
    /// Bytes of payload in each of them but the last, which may have fewer; above 0.
    pub segment: u16,
}

impl Gso {
    /// The header that says this before a packet.
    pub(crate) fn header(gso: Option<Self>) -> [u8; VNET_HDR_LEN] {
        let Some(Self { kind, segment }) = gso else {
            return [0; VNET_HDR_LEN];
        };
        let gso_type = match kind {
            GsoKind::Tcp4 => GSO_TCPV4,
            GsoKind::Tcp6 => GSO_TCPV6,
            GsoKind::Udp => GSO_UDP_L4,
        };
        let header = VnetHdr {
            gso_type,
            gso_size: segment,
            ..VnetHdr::default()
        };
        header.write()
    }

    /// What such a header says.
    pub(crate) fn of_header(header: &[u8; VNET_HDR_LEN]) -> Option<Self> {
        let header = VnetHdr::parse(header);
        let kind = match header.gso_type & !adit_offload::GSO_ECN {
            GSO_TCPV4 => GsoKind::Tcp4,
            GSO_TCPV6 => GsoKind::Tcp6,
            GSO_UDP_L4 => GsoKind::Udp,
            _ => return None,
        };
        Some(Self {
            kind,
            segment: header.gso_size,
        })
    }
}

/// A packet that came out of a tunnel, or several of one flow as one. It is borrowed from the
/// buffers into which it was received.
///
/// The transport checksum of one that stands for several is only the sum of its pseudo-header, as
/// the kernel has it where a device computes checksums. Single packets are as their sender made
/// them.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    gso: Option<Gso>,
    head: &'a [u8],
    tail: Tail<'a>,
}

/// What follows the head.
#[derive(Clone, Copy, Debug)]
enum Tail<'a> {
    #[cfg_attr(
        not(feature = "engine"),
        allow(dead_code, reason = "the engine has such")
    )]
    Slices(&'a [IoSlice<'a>]),
    /// Parts of one buffer.
    Spans(&'a [u8], &'a [Span]),
}

impl<'a> Frame<'a> {
    /// Of a header that says how it was merged and the beginning of the packet, and what follows.
    /// `None` if there is no header.
    #[cfg(any(feature = "engine", test))]
    pub(crate) fn of_pieces(pieces: &'a [IoSlice<'a>]) -> Option<Self> {
        let (first, tail) = pieces.split_first()?;
        let (header, head) = first.split_first_chunk::<VNET_HDR_LEN>()?;
        Some(Self {
            gso: Gso::of_header(header),
            head,
            tail: Tail::Slices(tail),
        })
    }

    /// Of headers, and parts of `bytes` behind them.
    pub(crate) fn of_spans(
        gso: Option<Gso>,
        head: &'a [u8],
        bytes: &'a [u8],
        spans: &'a [Span],
    ) -> Self {
        let tail = Tail::Spans(bytes, spans);
        Self { gso, head, tail }
    }

    /// How it was merged, if it stands for several packets.
    pub fn gso(&self) -> Option<Gso> {
        self.gso
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.pieces().map(<[u8]>::len).sum()
    }

    /// Whether it has no bytes, which does not occur.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes, in pieces that follow each other. The headers are in the first that is not empty.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (slices, bytes, spans): (&[IoSlice<'_>], &[u8], &[Span]) = match self.tail {
            Tail::Slices(slices) => (slices, &[], &[]),
            Tail::Spans(bytes, spans) => (&[], bytes, spans),
        };
        let slices = slices.iter().map(|piece| &**piece);
        let spans = spans.iter().map(move |span| {
            let (start, len) = (span.start as usize, span.len as usize);
            bytes.get(start..start + len).unwrap_or_default()
        });
        std::iter::once(self.head).chain(slices).chain(spans)
    }

    /// Appends a copy of its bytes.
    pub fn gather(&self, to: &mut Vec<u8>) {
        to.reserve(self.len());
        self.pieces().for_each(|piece| to.extend_from_slice(piece));
    }

    /// Copies its bytes to the beginning of `to`, as far as they fit, and returns how many there
    /// are.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut at = 0;
        for piece in self.pieces() {
            let room = to.get_mut(at..).unwrap_or_default();
            let len = piece.len().min(room.len());
            room[..len].copy_from_slice(&piece[..len]);
            at += piece.len();
        }
        at
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
