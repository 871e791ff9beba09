//! Segmentation: a frame from the TUN, and the packets that stand in it.
//!
//! Parse: virtio header → IP header and extensions, a tunnel's first → transport header → sums of
//! what all segments share. Append, per segment: copy the headers → patch lengths, IP
//! identification, sequence, flags → add the payload's sum → patch a tunnel's IP and UDP headers.

use core::net::IpAddr;

use super::ip::{self, Ip, TCP, UDP, V6_HEADER};
use super::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_TUNNEL_V4, GSO_TUNNEL_V6, GSO_UDP_L4};
use super::{NEEDS_CSUM, TUNNEL_CSUM, VnetHdr};
use super::{low16, low32, read16, read32, write16};
use crate::VNET_HDR_LEN;
use crate::checksum::Sum;

/// Longest IP packet that a TUN queue hands over.
const MAX_PACKET: usize = 65_535;
/// TCP flags that only the last segment of a GSO packet carries: FIN and PSH.
const LAST_ONLY: u16 = 0x0009;
/// The TCP flag that only the first segment of a GSO packet carries: CWR.
const FIRST_ONLY: u16 = 0x0080;

/// The reason why a frame makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than a virtio header.
    Short,
    /// No IPv4 or IPv6 header, or one whose lengths do not fit the bytes.
    Ip,
    /// The virtio header asks for an unknown kind of segmentation, or for one that does not fit the
    /// packet.
    Segmentation,
    /// A GSO packet whose TCP or UDP header is broken.
    Transport,
    /// The virtio header points to a checksum where none can be.
    Checksum,
}

/// The work that is to be done on the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderWork {
    /// No work: the packet is complete.
    Whole,
    /// One packet, whose checksum at `field` covers everything from `start` and is still only the
    /// pseudo-header's.
    Partial { start: usize, field: usize },
    /// TCP segments.
    Tcp,
    /// UDP datagrams, `summed` unless they go without checksum as they came.
    Udp { summed: bool },
}

/// An IP header, and what of it all segments share.
#[derive(Clone, Copy, Debug)]
struct IpHeader {
    /// The beginning of the header.
    at: usize,
    v6: bool,
    /// The beginning of the transport header.
    transport: usize,
    /// Sum of an IPv4 header without the fields that differ between segments.
    sum: Sum,
}

/// The headers that a UDP tunnel puts before every segment. All but IP and UDP are repeated as they
/// are.
#[derive(Clone, Copy, Debug)]
struct Tunnel {
    network: IpHeader,
    /// The pseudo-headers' sums without lengths, outside and inside, if the UDP headers have
    /// checksums.
    summed: Option<(Sum, Sum)>,
}

/// A frame read from the TUN, validated once; nothing after that can panic.
///
/// `hdr_len` is recomputed from the packet. The kernel's GSO is imitated: IPv4 identifications
/// count up from the GSO packet's, FIN and PSH stand only on the last segment, CWR only on the
/// first.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    packet: &'a [u8],
    kind: HeaderWork,
    /// The IP header before the payload, inside a tunnel if there is one.
    network: IpHeader,
    tunnel: Option<Tunnel>,
    /// Length of the headers that every segment repeats.
    header: usize,
    /// Payload bytes of every segment but the last.
    size: usize,
    segments: usize,
    /// Sum of pseudo-header and transport header without the fields that differ between segments.
    base: Sum,
}

impl<'a> Frame<'a> {
    /// Validates `bytes`: a virtio header and an IP packet. Bytes beyond the packet's own length
    /// are cut off.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if the packet is no IPv4 or IPv6 packet, or if the virtio header contradicts
    /// it.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let (vnet, packet) = bytes
            .split_first_chunk::<VNET_HDR_LEN>()
            .ok_or(Malformed::Short)?;
        Self::with_header(VnetHdr::parse(vnet), packet)
    }

    /// The same, where the virtio header is not in front of the packet.
    ///
    /// # Errors
    ///
    /// As of [`parse`](Self::parse), but for [`Malformed::Short`].
    pub fn with_header(vnet: VnetHdr, packet: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let ip = Ip::parse(packet)
            .filter(|ip| ip.len <= MAX_PACKET)
            .ok_or(Malformed::Ip)?;
        let packet = &packet[..ip.len];
        if vnet.gso_type != GSO_NONE {
            return Frame::parse_gso(vnet, ip, packet);
        }
        let mut frame = Frame {
            packet,
            kind: HeaderWork::Whole,
            network: IpHeader::new(packet, 0, ip, ip.header),
            tunnel: None,
            header: 0,
            size: packet.len(),
            segments: 1,
            base: Sum::default(),
        };
        if vnet.flags & NEEDS_CSUM != 0 {
            let start = usize::from(vnet.csum_start);
            let field = start + usize::from(vnet.csum_offset);
            if start < ip.header || field + 2 > packet.len() {
                return Err(Malformed::Checksum);
            }
            frame.kind = HeaderWork::Partial { start, field };
            frame.header = field + 2;
            frame.size = packet.len() - frame.header;
        }
        Ok(frame)
    }

    fn parse_gso(vnet: VnetHdr, ip: Ip, packet: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let partial = vnet.flags & NEEDS_CSUM != 0;
        // 1. Inside a UDP tunnel stands another packet, to the end.
        let outer = vnet.gso_type & (GSO_TUNNEL_V4 | GSO_TUNNEL_V6);
        let (at, inner, tunnel) = if outer == 0 {
            (0, ip, None)
        } else {
            let at = usize::from(vnet.inner_network);
            let kind = if ip.v6 { GSO_TUNNEL_V6 } else { GSO_TUNNEL_V4 };
            let udp = match ip.transport(packet) {
                // What is between UDP and the inner packet is of even length in every tunnel there
                // is.
                Some((UDP, udp)) if outer == kind && at >= udp + 8 && (at - udp) % 2 == 0 => udp,
                _ => return Err(Malformed::Segmentation),
            };
            let inner = packet.get(at..).and_then(Ip::parse);
            let inner = inner.filter(|inner| at + inner.len == packet.len());
            (at, inner.ok_or(Malformed::Ip)?, Some(udp))
        };
        // 2. The kind of segmentation must fit the packet, which must not be a fragment.
        let (protocol, transport) = inner
            .transport(&packet[at..])
            .map(|(protocol, transport)| (protocol, at + transport))
            .ok_or(Malformed::Segmentation)?;
        let field = match (vnet.gso_type & !(GSO_ECN | outer), inner.v6, protocol) {
            (GSO_TCPV4, false, TCP) | (GSO_TCPV6, true, TCP) => 16,
            (GSO_UDP_L4, _, UDP) => 6,
            _ => return Err(Malformed::Segmentation),
        };
        // 3. The transport header must be there, and the checksum where it has its own.
        let l4 = &packet[transport..];
        let length = match protocol {
            TCP if l4.len() >= 20 => usize::from(l4[12] >> 4) * 4,
            UDP => 8,
            _ => return Err(Malformed::Transport),
        };
        if length < 8 || (protocol == TCP && length < 20) || length > l4.len() {
            return Err(Malformed::Transport);
        }
        let right = (usize::from(vnet.csum_start), vnet.csum_offset) == (transport, field);
        // The sum of a tunnel's UDP header is made of the one inside, which must be one.
        if if partial { !right } else { tunnel.is_some() } {
            return Err(Malformed::Checksum);
        }
        let size = usize::from(vnet.gso_size);
        if size == 0 {
            return Err(Malformed::Segmentation);
        }
        // 4. Sum once what all segments share.
        let kind = match protocol {
            TCP => HeaderWork::Tcp,
            _ => HeaderWork::Udp {
                summed: partial || inner.v6 || read16(l4, 6) != 0,
            },
        };
        let shared = match kind {
            // Without sequence (4..8), flags (12..14) and checksum (16..18).
            HeaderWork::Tcp => {
                Sum::of(&l4[..4])
                    + Sum::of(&l4[8..12])
                    + Sum::of(&l4[14..16])
                    + Sum::of(&l4[18..length])
            }
            // Without length and checksum.
            _ => Sum::of(&l4[..4]),
        };
        let network = IpHeader::new(packet, at, inner, transport);
        let pseudo = network.pseudo_header(packet, protocol, partial.then_some(field));
        let tunnel = tunnel.map(|udp| {
            let network = IpHeader::new(packet, 0, ip, udp);
            let summed = vnet.flags & TUNNEL_CSUM != 0;
            Tunnel {
                network,
                summed: summed.then(|| (network.pseudo_header(packet, UDP, Some(6)), pseudo)),
            }
        });
        let header = transport + length;
        Ok(Frame {
            packet,
            kind,
            network,
            tunnel,
            header,
            size,
            segments: (packet.len() - header).div_ceil(size).max(1),
            base: pseudo + shared,
        })
    }

    /// The source address of the packet or of every segment.
    pub fn source(&self) -> IpAddr {
        self.ip().source(self.packet)
    }

    /// The destination address of the packet or of every segment.
    pub fn destination(&self) -> IpAddr {
        self.ip().destination(self.packet)
    }

    /// The two ECN bits of the IP header.
    pub fn ecn(&self) -> u8 {
        ip::ecn(self.packet)
    }

    /// Source and destination port of a UDP datagram, or of its first fragment; None for anything
    /// else.
    pub fn udp_ports(&self) -> Option<(u16, u16)> {
        let (protocol, at) = self.ip().first_transport(self.packet)?;
        let ports = self.packet.get(at..at + 4).filter(|_| protocol == UDP)?;
        Some((read16(ports, 0), read16(ports, 2)))
    }

    /// The address where the device of a UDP tunnel on this side listens, if this is its packet:
    /// nothing else leaves to us what has to be done to a packet inside a datagram.
    pub fn tunnel_end(&self) -> Option<(IpAddr, u16)> {
        let inside = match self.kind {
            HeaderWork::Partial { start, .. } => start,
            _ => self.network.transport,
        };
        let (protocol, udp) = self.ip().transport(self.packet)?;
        // An IP header, at least, is between the tunnel's UDP header and the inner transport
        // header.
        (protocol == UDP && inside >= udp + 8 + 20)
            .then(|| (self.source(), read16(self.packet, udp + 2)))
    }

    /// The number of packets in the frame: 1 unless it is a GSO packet, at most 65,535.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Length of packet `i`.
    pub fn segment_len(&self, i: usize) -> usize {
        self.header + self.payload(i).len()
    }

    /// The number of bytes that [`write_header`](Self::write_header) writes. 0 for a packet that
    /// needs nothing done to it.
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// The bytes of packet `i` behind its headers.
    pub fn payload(&self, i: usize) -> &'a [u8] {
        let all = &self.packet[self.header..];
        let start = i.saturating_mul(self.size).min(all.len());
        let end = start.saturating_add(self.size).min(all.len());
        &all[start..end]
    }

    /// Writes the finished headers of packet `i` to `out[..header_len()]`, checksums included.
    ///
    /// # Panics
    /// When `out` is shorter than that: a mistake of the caller, whatever the frame.
    pub fn write_header(&self, i: usize, out: &mut [u8]) {
        let out = &mut out[..self.header];
        out.copy_from_slice(&self.packet[..self.header]);
        match self.kind {
            HeaderWork::Whole => {}
            HeaderWork::Partial { start, field } => {
                let sum = Sum::of(&self.packet[start..]).checksum();
                // In UDP, a zero says that there is no checksum (RFC 768).
                let udp = field - start == 6;
                write16(out, field, if udp && sum == 0 { 0xffff } else { sum });
            }
            HeaderWork::Tcp => self.write_tcp(i, out),
            HeaderWork::Udp { summed } => self.write_udp(i, out, summed),
        }
        if let Some(tunnel) = &self.tunnel {
            self.write_tunnel(tunnel, i, out);
        }
    }

    fn write_tcp(&self, i: usize, out: &mut [u8]) {
        // All headers are of even length, so that the payload begins at an even offset.
        let payload = self.payload(i);
        let length = self.write_ip(&self.network, i, out);
        let tcp = &mut out[self.network.transport..];
        let sequence = read32(tcp, 4).wrapping_add(low32(i.wrapping_mul(self.size)));
        let mut flags = read16(tcp, 12);
        if i > 0 {
            flags &= !FIRST_ONLY;
        }
        if i + 1 < self.segments {
            flags &= !LAST_ONLY;
        }
        let sum = self.base
            + Sum::wide(sequence)
            + Sum::word(flags)
            + Sum::word(length)
            + Sum::of(payload);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        write16(tcp, 12, flags);
        write16(tcp, 16, sum.checksum());
    }

    fn write_udp(&self, i: usize, out: &mut [u8], summed: bool) {
        let payload = self.payload(i);
        let length = self.write_ip(&self.network, i, out);
        let udp = &mut out[self.network.transport..];
        write16(udp, 4, length);
        if summed {
            // The length counts twice: in the header and in the pseudo-header.
            let sum = self.base + Sum::word(length) + Sum::word(length) + Sum::of(payload);
            // RFC 768: "If the computed checksum is zero, it is transmitted as all ones".
            let checksum = sum.checksum();
            write16(udp, 6, if checksum == 0 { 0xffff } else { checksum });
        }
    }

    /// Patches the headers of a tunnel around the finished packet `i`.
    fn write_tunnel(&self, tunnel: &Tunnel, i: usize, out: &mut [u8]) {
        let length = self.write_ip(&tunnel.network, i, out);
        let (udp, inside) = (tunnel.network.transport, self.network.transport);
        write16(out, udp + 4, length);
        if let Some((pseudo, inner)) = tunnel.summed {
            // With its pseudo-header, what has a right checksum sums to all ones: without it, to
            // its complement.
            let rest = inner + Sum::word(low16(self.segment_len(i) - inside));
            write16(out, udp + 6, 0);
            let sum = pseudo + Sum::word(length) + Sum::of(&out[udp..inside]);
            let checksum = (sum + Sum::word(rest.checksum())).checksum();
            write16(out, udp + 6, if checksum == 0 { 0xffff } else { checksum });
        }
    }

    /// Patches an IP header of packet `i` and returns the length of what it carries from the
    /// transport header on.
    fn write_ip(&self, network: &IpHeader, i: usize, out: &mut [u8]) -> u16 {
        let end = self.segment_len(i);
        let out = &mut out[network.at..];
        let total = low16(end - network.at);
        if network.v6 {
            write16(out, 4, low16(end - network.at - V6_HEADER));
        } else {
            let id = read16(out, 4).wrapping_add(low16(i));
            write16(out, 2, total);
            write16(out, 4, id);
            write16(
                out,
                10,
                (network.sum + Sum::word(total) + Sum::word(id)).checksum(),
            );
        }
        low16(end - network.transport)
    }

    fn ip(&self) -> Ip {
        let v6 = self.packet[0] >> 4 == 6;
        let header = if v6 {
            V6_HEADER
        } else {
            usize::from(self.packet[0] & 15) * 4
        };
        Ip {
            v6,
            header,
            len: self.packet.len(),
        }
    }
}

impl IpHeader {
    /// The header of `ip`, which stands at `at` and is followed by a transport header at
    /// `transport`.
    fn new(packet: &[u8], at: usize, ip: Ip, transport: usize) -> IpHeader {
        let header = &packet[at..at + ip.header];
        let sum = if ip.v6 {
            Sum::default()
        } else {
            // Without total length and identification (2..6) and checksum (10..12).
            Sum::of(&header[..2]) + Sum::of(&header[6..10]) + Sum::of(&header[12..])
        };
        IpHeader {
            at,
            v6: ip.v6,
            transport,
            sum,
        }
    }

    /// The pseudo-header's sum without length. `partial` says where in the transport header the
    /// kernel has put its own: a source route or a home address changes the addresses that are
    /// summed, and there the right ones are. It counts the whole GSO packet's length, which comes
    /// off again.
    fn pseudo_header(&self, packet: &[u8], protocol: u8, partial: Option<u16>) -> Sum {
        let plain = self.at + if self.v6 { V6_HEADER } else { 20 };
        match partial {
            Some(field) if self.transport != plain => {
                let l4 = &packet[self.transport..];
                Sum::word(read16(l4, usize::from(field))) + Sum::word(!low16(l4.len()))
            }
            _ => pseudo_header(&packet[self.at..], self.v6, protocol),
        }
    }
}

/// The sum of addresses and protocol, as TCP and UDP have it in their checksums. The length is left
/// to the caller.
pub(super) fn pseudo_header(packet: &[u8], v6: bool, protocol: u8) -> Sum {
    let addresses = if v6 { &packet[8..40] } else { &packet[12..20] };
    Sum::of(addresses) + Sum::word(u16::from(protocol))
}

/// One step of a multiplicative hash.
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64
}
