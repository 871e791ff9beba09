//! The headers of inner packets: read once, before anything else sees a packet, and written for answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adit_offload::checksum::Sum;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;

pub(super) const TCP_HEADER: usize = 20;
pub(super) const UDP_HEADER: usize = 8;
const ICMP_HEADER: usize = 8;
/// The hop limit of what is sent.
const HOPS: u8 = 64;
/// The longest packet with an ICMP error: what any host takes whole (RFC 1812 §4.3.2.3, RFC 4443 §2.4).
const MAX_ERROR_V4: usize = 576;
const MAX_ERROR_V6: usize = 1280;

/// Two ends of a flow, as this end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// What a packet is, and where its payload stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    /// Where the transport header begins, and where the packet ends.
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Why a packet is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    Malformed,
    Fragment,
}

/// A field of two bytes; 0 where there is none.
pub(super) fn word(bytes: &[u8], at: usize) -> u16 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>());
    field.map_or(0, |field| u16::from_be_bytes(*field))
}

/// A field of four bytes; 0 where there is none.
pub(super) fn wide(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    field.map_or(0, |field| u32::from_be_bytes(*field))
}

impl Headers {
    /// Reads the IP header and checks the lengths of both headers. Bytes behind the packet do not count.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Unusable> {
        let headers = match bytes.first().map(|first| first >> 4) {
            Some(4) => Self::parse_v4(bytes),
            Some(6) => Self::parse_v6(bytes),
            _ => Err(Unusable::Malformed),
        }?;
        let payload = &bytes[headers.start..headers.end];
        let least = match headers.protocol {
            TCP => {
                let header = payload.get(12).map(|offset| usize::from(offset >> 4) * 4);
                let header = header.filter(|header| *header >= TCP_HEADER);
                header.ok_or(Unusable::Malformed)?
            }
            UDP | ICMP | ICMPV6 => 8,
            _ => 0,
        };
        let is_whole = payload.len() >= least;
        let is_unicast = |address: IpAddr| !address.is_multicast() && !address.is_unspecified();
        if !is_whole || !is_unicast(headers.source) || !is_unicast(headers.destination) {
            return Err(Unusable::Malformed);
        }
        Ok(headers)
    }

    fn parse_v4(bytes: &[u8]) -> Result<Self, Unusable> {
        let header = bytes.first_chunk::<20>().ok_or(Unusable::Malformed)?;
        let start = usize::from(header[0] & 15) * 4;
        let end = usize::from(word(header, 2));
        if start < 20 || end < start || bytes.len() < end {
            return Err(Unusable::Malformed);
        }
        if Sum::of(&bytes[..start]).fold() != 0xffff {
            return Err(Unusable::Malformed);
        }
        // More fragments follow, or some were before.
        if word(header, 6) & 0x3fff != 0 {
            return Err(Unusable::Fragment);
        }
        let address = |at: usize| IpAddr::V4(Ipv4Addr::from(wide(header, at)));
        Ok(Self {
            source: address(12),
            destination: address(16),
            protocol: header[9],
            start,
            end,
        })
    }

    fn parse_v6(bytes: &[u8]) -> Result<Self, Unusable> {
        let header = bytes.first_chunk::<40>().ok_or(Unusable::Malformed)?;
        let end = 40 + usize::from(word(header, 4));
        if bytes.len() < end {
            return Err(Unusable::Malformed);
        }
        if header[6] == 44 {
            return Err(Unusable::Fragment);
        }
        let address = |at: usize| {
            let octets = header[at..].first_chunk::<16>().copied();
            IpAddr::V6(Ipv6Addr::from(octets.unwrap_or_default()))
        };
        Ok(Self {
            source: address(8),
            destination: address(24),
            protocol: header[6],
            start: 40,
            end,
        })
    }

    /// The flow of a packet of TCP or UDP that was received.
    pub(super) fn flow(&self, bytes: &[u8]) -> Flow {
        let port = |at| word(bytes, self.start + at);
        Flow {
            local: SocketAddr::new(self.destination, port(2)),
            remote: SocketAddr::new(self.source, port(0)),
        }
    }

    /// Whether its transport checksum is right. UDP over IPv4 need not have one.
    pub(super) fn checksum_is_right(&self, bytes: &[u8]) -> bool {
        let payload = &bytes[self.start..self.end];
        let sum = Sum::of(payload);
        match self.protocol {
            UDP if self.source.is_ipv4() && word(payload, 6) == 0 => true,
            ICMP => sum.fold() == 0xffff,
            TCP | UDP | ICMPV6 => {
                let pseudo = pseudo(self.source, self.destination, self.protocol, payload.len());
                (pseudo + sum).fold() == 0xffff
            }
            _ => true,
        }
    }
}

/// The sum over the pseudo-header of TCP, UDP and ICMPv6.
fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> Sum {
    let of = |address: IpAddr| match address {
        IpAddr::V4(address) => Sum::wide(address.to_bits()),
        IpAddr::V6(address) => Sum::of(&address.octets()),
    };
    let len = Sum::wide(u32::try_from(len).unwrap_or(u32::MAX));
    of(source) + of(destination) + Sum::word(u16::from(protocol)) + len
}

/// Writes the checksum of a packet of TCP, UDP or ICMP, whose field stands at `field` of its transport
/// header.
pub(super) fn write_checksum(packet: &mut [u8], headers: &Headers, field: usize) {
    let at = headers.start + field;
    packet[at..at + 2].fill(0);
    let payload = &packet[headers.start..headers.end];
    let mut sum = Sum::of(payload);
    if headers.protocol != ICMP {
        let (source, destination) = (headers.source, headers.destination);
        sum = sum + pseudo(source, destination, headers.protocol, payload.len());
    }
    let checksum = match sum.checksum() {
        // For UDP zero says that there is none.
        0 if headers.protocol == UDP => 0xffff,
        checksum => checksum,
    };
    packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// The length of an IP header of this family.
pub(super) fn ip_header(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    }
}

/// Writes the IP header of a packet that fills the buffer.
fn write_ip(packet: &mut [u8], source: IpAddr, destination: IpAddr, protocol: u8) -> Headers {
    let end = packet.len();
    let total = u16::try_from(end).unwrap_or(u16::MAX);
    let start = ip_header(source);
    let header = &mut packet[..start];
    header.fill(0);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            header[0] = 0x45;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            // Not to be fragmented.
            header[6] = 0x40;
            header[8] = HOPS;
            header[9] = protocol;
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
            let checksum = Sum::of(header).checksum();
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            header[0] = 0x60;
            header[4..6].copy_from_slice(&total.saturating_sub(40).to_be_bytes());
            header[6] = protocol;
            header[7] = HOPS;
            header[8..24].copy_from_slice(&source.octets());
            header[24..40].copy_from_slice(&destination.octets());
        }
        _ => {}
    }
    Headers {
        source,
        destination,
        protocol,
        start,
        end,
    }
}

/// The length of a segment without options and payload.
pub(super) fn bare_segment_len(flow: &Flow) -> usize {
    ip_header(flow.local.ip()) + TCP_HEADER
}

/// Writes an acknowledgement as the other end of a flow sends it, for smoltcp, which looks at no
/// checksum.
pub(super) fn write_acknowledgement(
    packet: &mut [u8],
    flow: &Flow,
    numbers: [u32; 2],
    window: u16,
) {
    let back = Flow {
        local: flow.remote,
        remote: flow.local,
    };
    write_bare_segment(packet, &back, ACK, numbers, window);
}

/// Writes a segment without options, payload and checksum.
pub(super) fn write_bare_segment(
    packet: &mut [u8],
    flow: &Flow,
    flags: u8,
    [seq, ack]: [u32; 2],
    window: u16,
) -> Headers {
    let headers = write_ip(packet, flow.local.ip(), flow.remote.ip(), TCP);
    let segment = &mut packet[headers.start..];
    segment.fill(0);
    segment[0..2].copy_from_slice(&flow.local.port().to_be_bytes());
    segment[2..4].copy_from_slice(&flow.remote.port().to_be_bytes());
    segment[4..8].copy_from_slice(&seq.to_be_bytes());
    segment[8..12].copy_from_slice(&ack.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = flags;
    segment[14..16].copy_from_slice(&window.to_be_bytes());
    headers
}

/// Writes a datagram; the buffer is as long as [`datagram_len`] says.
pub(super) fn write_datagram(packet: &mut [u8], flow: &Flow, payload: &[u8]) {
    let headers = write_ip(packet, flow.local.ip(), flow.remote.ip(), UDP);
    let datagram = &mut packet[headers.start..];
    let len = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
    datagram[0..2].copy_from_slice(&flow.local.port().to_be_bytes());
    datagram[2..4].copy_from_slice(&flow.remote.port().to_be_bytes());
    datagram[4..6].copy_from_slice(&len.to_be_bytes());
    datagram[UDP_HEADER..].copy_from_slice(payload);
    write_checksum(packet, &headers, 6);
}

/// The length of the packet of a datagram.
pub(super) fn datagram_len(address: IpAddr, payload: usize) -> usize {
    ip_header(address) + UDP_HEADER + payload
}

/// The length of the packet that says that the port of a received packet is unreachable.
pub(super) fn unreachable_len(received: &Headers) -> usize {
    let most = match received.source {
        IpAddr::V4(_) => MAX_ERROR_V4,
        IpAddr::V6(_) => MAX_ERROR_V6,
    };
    let header = ip_header(received.source) + ICMP_HEADER;
    (header + received.end).min(most)
}

/// Writes that the port of a received packet is unreachable (RFC 792, RFC 4443 §3.1).
pub(super) fn write_unreachable(packet: &mut [u8], received: &Headers, original: &[u8]) {
    let (protocol, kind, code) = match received.source {
        IpAddr::V4(_) => (ICMP, 3, 3),
        IpAddr::V6(_) => (ICMPV6, 1, 4),
    };
    let headers = write_ip(packet, received.destination, received.source, protocol);
    let error = &mut packet[headers.start..];
    error[..ICMP_HEADER].copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    let quoted = &mut error[ICMP_HEADER..];
    let len = quoted.len();
    quoted.copy_from_slice(&original[..len]);
    write_checksum(packet, &headers, 2);
}

/// Writes the answer to an echo request, which is as long as that.
pub(super) fn write_echo_reply(packet: &mut [u8], received: &Headers, original: &[u8]) {
    let headers = write_ip(
        packet,
        received.destination,
        received.source,
        received.protocol,
    );
    let reply = &mut packet[headers.start..];
    reply.copy_from_slice(&original[received.start..received.end]);
    reply[0] = if received.protocol == ICMP { 0 } else { 129 };
    write_checksum(packet, &headers, 2);
}

/// The numbers by which an answer is told to be that to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) identifier: u16,
    pub(super) sequence: u16,
}

impl Echo {
    /// Those of an echo message.
    pub(super) fn read(message: &[u8]) -> Self {
        Self {
            identifier: word(message, 4),
            sequence: word(message, 6),
        }
    }
}

/// The length of the packet of an echo request.
pub(super) fn echo_len(to: IpAddr) -> usize {
    ip_header(to) + ICMP_HEADER
}

/// Writes an echo request without payload.
pub(super) fn write_echo_request(packet: &mut [u8], source: IpAddr, to: IpAddr, echo: Echo) {
    let (protocol, kind) = match to {
        IpAddr::V4(_) => (ICMP, 8),
        IpAddr::V6(_) => (ICMPV6, 128),
    };
    let headers = write_ip(packet, source, to, protocol);
    let message = &mut packet[headers.start..];
    message.fill(0);
    message[0] = kind;
    message[4..6].copy_from_slice(&echo.identifier.to_be_bytes());
    message[6..8].copy_from_slice(&echo.sequence.to_be_bytes());
    write_checksum(packet, &headers, 2);
}

/// Where the value of an option of a SYN stands in the packet, if it has that, with this length.
pub(super) fn syn_option(packet: &[u8], headers: &Headers, kind: u8, len: u8) -> Option<usize> {
    let segment = &packet[headers.start..headers.end];
    let end = (usize::from(segment.get(12)? >> 4) * 4).min(segment.len());
    let mut at = TCP_HEADER;
    while at < end {
        match segment[at] {
            0 => return None,
            1 => at += 1,
            found => {
                let has = *segment.get(at + 1)?;
                if has < 2 || at + usize::from(has) > end {
                    return None;
                }
                if found == kind && has == len {
                    return Some(headers.start + at + 2);
                }
                at += usize::from(has);
            }
        }
    }
    None
}

/// What an ICMP error is about: the flow that the quoted packet is of. An echo request has its identifier
/// where others have the local port, and its sequence number as the remote one.
pub(super) struct Complaint {
    pub(super) flow: Flow,
    pub(super) protocol: u8,
    /// The MTU, if the packet was too big.
    pub(super) mtu: Option<u32>,
    /// Whether the packet cannot get there.
    pub(super) is_unreachable: bool,
}

impl Complaint {
    /// Reads an ICMP error; `None` if it is another message, or quotes too little.
    pub(super) fn parse(headers: &Headers, packet: &[u8]) -> Option<Self> {
        let message = &packet[headers.start..headers.end];
        let (kind, code) = (*message.first()?, *message.get(1)?);
        let (is_unreachable, mtu) = match (headers.protocol, kind, code) {
            (ICMP, 3, 4) => (false, Some(u32::from(word(message, 6)))),
            (ICMPV6, 2, _) => (false, Some(wide(message, 4))),
            (ICMP, 3, _) | (ICMPV6, 1, _) => (true, None),
            _ => return None,
        };
        let quoted = message.get(ICMP_HEADER..)?;
        let (source, destination, protocol, start) = match headers.protocol {
            ICMP => {
                let header = quoted.first_chunk::<20>()?;
                let address = |at| IpAddr::V4(Ipv4Addr::from(wide(header, at)));
                let start = usize::from(header[0] & 15) * 4;
                (address(12), address(16), header[9], start)
            }
            _ => {
                let header = quoted.first_chunk::<40>()?;
                let address = |at: usize| {
                    let octets = header[at..].first_chunk::<16>().copied();
                    IpAddr::V6(Ipv6Addr::from(octets.unwrap_or_default()))
                };
                (address(8), address(24), header[6], 40)
            }
        };
        let start = match protocol {
            ICMP | ICMPV6 => start + 4,
            _ => start,
        };
        let ports = quoted.get(start..start + 4)?;
        Some(Self {
            flow: Flow {
                local: SocketAddr::new(source, word(ports, 0)),
                remote: SocketAddr::new(destination, word(ports, 2)),
            },
            protocol,
            mtu,
            is_unreachable,
        })
    }
}
