//! Runs of packets that leave as one frame: what joins them, and their headers.

use core::ops::Range;

use crate::VNET_HDR_LEN;
use crate::checksum::Sum;
use crate::frame::pseudo_header;
use crate::ip::{TCP, UDP};
use crate::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_TUNNEL_V4, GSO_TUNNEL_V6, GSO_UDP_L4};
use crate::{NEEDS_CSUM, TUNNEL_CSUM, VnetHdr};
use crate::{low16, low32, read16, read32, write16};

/// Most packets in a TCP GRO packet: each is one element of a `writev`, which takes 1024.
pub(super) const MAX_SEGMENTS: u32 = 256;
/// Most packets in a UDP GRO packet (the kernel's `UDP_MAX_SEGMENTS`, before it was raised to 128).
pub(super) const MAX_DATAGRAMS: u32 = 64;
/// Longest IP packet.
pub(super) const MAX_PACKET: usize = 65_535;
/// The headers that VXLAN puts before an IP packet: UDP, VXLAN and Ethernet.
pub(super) const VXLAN: usize = 8 + 8 + 14;
/// Longest headers that are merged: VXLAN over IPv6, in it IPv6 and TCP with all options.
pub(super) const MAX_HEADERS: usize = 40 + VXLAN + 40 + 60;
pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const URG: u8 = 0x20;
pub(super) const CWR: u8 = 0x80;

/// Packets that leave as one frame.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) peer: u32,
    /// Whether more may join, unless its peer sent something that must not be passed.
    pub(super) open: bool,
    /// Room for the virtio header, then the headers of the first packet.
    pub(super) head: [u8; VNET_HDR_LEN + MAX_HEADERS],
    pub(super) layout: PacketLayout,
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) count: u32,
    /// Payload of the first packet, which no other may exceed.
    pub(super) size: usize,
    /// Payload of all packets.
    pub(super) payload: usize,
    /// The IPv4 identification does not count up: that of what is merged, and that of the tunnel
    /// around it.
    pub(super) fixed_id: [bool; 2],
}

/// Offsets in a TCP or UDP packet whose headers are the plainest possible.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketLayout {
    /// Offsets of the flow: outside a tunnel.
    pub(super) flow: HeaderOffsets,
    /// Offsets of what is merged: the same, or TCP inside VXLAN.
    pub(super) merged: HeaderOffsets,
    /// Length of all headers.
    pub(super) headers: usize,
}

/// An IP header without options or extensions, and the transport header behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeaderOffsets {
    /// The beginning of the IP header.
    pub(super) at: usize,
    pub(super) v6: bool,
    pub(super) tcp: bool,
    /// The beginning of the transport header.
    pub(super) transport: usize,
}

/// The meaning of a packet for the runs that are open.
pub(super) enum Class {
    /// A packet of no flow that merges: it may pass and be passed.
    Alone,
    /// A packet that might belong to any flow of its peer: none of them may pass it.
    Fence,
    /// A packet of a flow.
    Flow {
        layout: PacketLayout,
        merges: bool,
        leads: bool,
    },
}

impl Run {
    pub(super) fn headers(&self) -> &[u8] {
        &self.head[VNET_HDR_LEN..VNET_HDR_LEN + self.layout.headers]
    }

    /// Same addresses, protocol and ports.
    pub(super) fn same_flow(&self, packet: &[u8], layout: PacketLayout) -> bool {
        self.layout.flow == layout.flow && layout.flow.same_ends(&self.head[VNET_HDR_LEN..], packet)
    }

    /// Whether a packet of the same flow, of a kind that merges, may follow those that the run has.
    pub(super) fn accepts(&mut self, packet: &[u8], layout: PacketLayout) -> bool {
        let head = self.headers();
        let payload = packet.len() - layout.headers;
        let HeaderOffsets {
            tcp, transport: l4, ..
        } = layout.merged;
        if payload > self.size
            || head.len() != layout.headers
            || head.len() + self.payload + payload > MAX_PACKET
        {
            return false;
        }
        let transport = if tcp {
            let (flags, ours) = (read16(packet, l4 + 12), read16(head, l4 + 12));
            let may_differ = u16::from(CWR | FIN | PSH);
            // CWR begins a run: the segments after the first lose it when the kernel segments
            // again. Since Linux 6.15 GRO wants it equal within a run; ours is the older rule, and
            // the bytes are the same.
            packet[l4 + 13] & CWR == 0
                && (flags ^ ours) & !may_differ == 0
                && read32(packet, l4 + 4) == read32(head, l4 + 4).wrapping_add(low32(self.payload))
                && packet[l4 + 8..l4 + 12] == head[l4 + 8..l4 + 12] // acknowledgement
                && packet[l4 + 14..l4 + 16] == head[l4 + 14..l4 + 16] // window
                && packet[l4 + 18..layout.headers] == head[l4 + 18..] // urgent pointer, options
        } else {
            (read16(packet, l4 + 6) == 0) == (read16(head, l4 + 6) == 0)
        };
        let PacketLayout { flow, merged, .. } = layout;
        if merged.at > 0 {
            // The tunnel's headers but for its UDP header's length and checksum, of which there is
            // one or none.
            let udp = flow.transport;
            return transport
                && merged.same_ends(head, packet)
                && packet[udp + 8..merged.at] == head[udp + 8..merged.at]
                && (read16(packet, udp + 6) == 0) == (read16(head, udp + 6) == 0)
                && self.accepts_ip(flow, packet)
                && self.accepts_ip(merged, packet);
        }
        transport && self.accepts_ip(flow, packet)
    }

    fn accepts_ip(&mut self, offsets: HeaderOffsets, packet: &[u8]) -> bool {
        let (head, packet) = (
            &self.head[VNET_HDR_LEN + offsets.at..],
            &packet[offsets.at..],
        );
        let fixed_id = &mut self.fixed_id[usize::from(offsets.at > 0)];
        if offsets.v6 {
            // Traffic class, flow label, hop limit.
            return packet[..4] == head[..4] && packet[7] == head[7];
        }
        // Type of service, flags and fragment offset, time to live.
        if packet[1] != head[1] || packet[6..8] != head[6..8] || packet[8] != head[8] {
            return false;
        }
        // The identification counts up, or, where it means nothing, stays: the second packet
        // decides.
        let distance = read16(packet, 4).wrapping_sub(read16(head, 4));
        if self.count == 1 && distance == 0 && head[6] & 0x40 != 0 {
            *fixed_id = true;
        }
        u32::from(distance) == if *fixed_id { 0 } else { self.count }
    }

    /// Adds a packet that was accepted, and returns the one before it.
    pub(super) fn append(&mut self, item: u32, packet: &[u8]) -> u32 {
        self.count += 1;
        self.payload += packet.len() - self.layout.headers;
        if self.layout.merged.tcp {
            let flags = self.layout.merged.transport + 13;
            self.head[VNET_HDR_LEN + flags] |= packet[flags] & (FIN | PSH);
        }
        core::mem::replace(&mut self.last, item)
    }

    /// Whether nothing may follow the packet that was appended.
    pub(super) fn ends(&self, packet: &[u8], layout: PacketLayout) -> bool {
        let HeaderOffsets { tcp, transport, .. } = layout.merged;
        let most = if tcp { MAX_SEGMENTS } else { MAX_DATAGRAMS };
        packet.len() - layout.headers < self.size
            || self.count == most
            || (tcp && packet[transport + 13] & (FIN | PSH) != 0)
    }

    /// Turns the first packet's headers into those of the GRO packet: virtio header, lengths,
    /// partial checksum.
    pub(super) fn finish(&mut self) -> &[u8] {
        let PacketLayout {
            flow,
            merged,
            headers,
        } = self.layout;
        let HeaderOffsets {
            v6, tcp, transport, ..
        } = merged;
        let (vnet, head) = self.head.split_at_mut(VNET_HDR_LEN);
        let total = headers + self.payload;
        // 1. Lengths, and the sum of the IPv4 header; the pseudo-header's sum where the checksum
        //    belongs.
        let csum_offset = if tcp { 16 } else { 6 };
        merged.finish(head, total);
        let mut flags = NEEDS_CSUM;
        let mut gso_type = GSO_UDP_L4;
        if tcp {
            gso_type = if v6 { GSO_TCPV6 } else { GSO_TCPV4 };
            if head[transport + 13] & CWR != 0 {
                gso_type |= GSO_ECN;
            }
        }
        // 2. The same for a tunnel.
        let mut outer_transport = 0;
        if merged.at > 0 {
            gso_type |= if flow.v6 {
                GSO_TUNNEL_V6
            } else {
                GSO_TUNNEL_V4
            };
            let summed = read16(head, flow.transport + 6) != 0;
            flow.finish(head, total);
            if summed {
                flags |= TUNNEL_CSUM;
            } else {
                write16(head, flow.transport + 6, 0);
            }
            // Linux checks this as if an Ethernet header came first, and finds out itself where the
            // header is.
            outer_transport = low16(14 + flow.transport);
        }
        // 3. What the kernel has to do.
        vnet.copy_from_slice(
            &VnetHdr {
                flags,
                gso_type,
                hdr_len: low16(headers),
                gso_size: low16(self.size),
                csum_start: low16(transport),
                csum_offset,
                outer_transport,
                inner_network: low16(merged.at),
            }
            .write(),
        );
        &self.head[..VNET_HDR_LEN + headers]
    }
}

impl HeaderOffsets {
    pub(super) fn addresses(&self) -> Range<usize> {
        if self.v6 {
            self.at + 8..self.at + 40
        } else {
            self.at + 12..self.at + 20
        }
    }

    /// Same addresses and ports.
    pub(super) fn same_ends(&self, head: &[u8], packet: &[u8]) -> bool {
        let ports = self.transport..self.transport + 4;
        head[self.addresses()] == packet[self.addresses()] && head[ports.clone()] == packet[ports]
    }

    /// A wrong IPv4 checksum would leave as a right one. A header with a right one sums to all
    /// ones.
    pub(super) fn is_sound(&self, packet: &[u8]) -> bool {
        self.v6 || Sum::of(&packet[self.at..self.at + 20]).fold() == 0xffff
    }

    /// Sets the lengths for a packet that ends at `end`, the IPv4 header's sum, and the
    /// pseudo-header's sum in place of the checksum.
    pub(super) fn finish(&self, head: &mut [u8], end: usize) {
        let length = low16(end - self.transport);
        let ip = &mut head[self.at..];
        if self.v6 {
            write16(ip, 4, length);
        } else {
            write16(ip, 2, low16(end - self.at));
            write16(ip, 10, 0);
            let sum = Sum::of(&ip[..20]);
            write16(ip, 10, sum.checksum());
        }
        let protocol = if self.tcp { TCP } else { UDP };
        let partial = (pseudo_header(ip, self.v6, protocol) + Sum::word(length)).fold();
        let field = if self.tcp { 16 } else { 6 };
        if !self.tcp {
            write16(head, self.transport + 4, length);
        }
        write16(head, self.transport + field, partial);
    }
}
