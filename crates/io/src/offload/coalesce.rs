//! Coalescing: opened packets become super-frames for the TUN again, by the rules of the kernel's GRO
//! (`net/core/gro.c`, `net/ipv4/{af_inet,tcp_offload,udp_offload}.c`, `tools/testing/selftests/net/gro.c`).
//!
//! Push: classify the packet → find its flow → merge it into the flow's open run, or close that and begin another.
//! Drain: per run, finish the headers → hand out head and payload spans.
//!
//! A flow has at most one open run, and whatever of a flow does not fit its open run closes it: later packets never
//! get before it (invariant 2). Packets that could belong to any flow, such as fragments, close all runs.
//!
//! Checksums of TCP and UDP are not verified: the tag has authenticated the packet, and a super-frame carries
//! NEEDS_CSUM, so that the kernel takes them as right and makes new ones if it has to segment again. So a segment that
//! its sender already got wrong leaves with a right checksum, a datagram without checksum leaves with one, and fixed
//! IPv4 identifications under DF (which mean nothing, RFC 6864 §4.1) count up.

use super::frame::{mix, pseudo_header};
use super::ip::{Ip, TCP, UDP};
use super::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHdr};
use super::{low16, low32, read16, read32, write16};
use crate::VNET_HDR_LEN;
use crate::checksum::Sum;

/// Packets that a coalescer takes between two drains.
const CAPACITY: usize = 4096;
/// Slots for flows with an open run; two flows that fall into one close each other's runs.
const SLOTS: usize = 1 << 10;
/// Most packets in a TCP super-frame: each is one element of a `writev`, which takes 1024.
const MAX_SEGMENTS: u32 = 256;
/// Most packets in a UDP super-frame (the kernel's `UDP_MAX_SEGMENTS`, before it was raised to 128).
const MAX_DATAGRAMS: u32 = 64;
/// Longest IP packet.
const MAX_PACKET: usize = 65_535;
/// Longest headers that are merged: IPv6 and TCP with all options.
const MAX_HEADERS: usize = 40 + 60;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;

/// Where bytes stand in the caller's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which buffer.
    pub buffer: u32,
    /// The first byte.
    pub start: u32,
    /// How many bytes.
    pub len: u32,
}

/// The coalescer holds as many packets as it can: drain it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Merges opened packets into super-frames for the TUN.
///
/// Owns no packet bytes: it remembers where they stand. Takes 4096 packets between two drains; allocates nothing after
/// [`new`](Self::new).
#[derive(Debug)]
pub struct Coalescer {
    tcp: bool,
    udp: bool,
    items: Vec<Item>,
    runs: Vec<Run>,
    slots: Box<[Slot]>,
    /// Slots of older generations are closed.
    generation: u64,
    /// The slot of the last packet that had a flow.
    recent: usize,
    spans: Vec<Span>,
}

/// A packet and the next one of its run.
#[derive(Clone, Copy, Debug)]
struct Item {
    span: Span,
    next: u32,
}

/// The open run of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    generation: u64,
    run: u32,
}

/// Packets that leave as one frame.
#[derive(Debug)]
struct Run {
    /// Room for the virtio header, then the headers of the first packet.
    head: [u8; VNET_HDR_LEN + MAX_HEADERS],
    layout: Layout,
    first: u32,
    last: u32,
    count: u32,
    /// Payload of the first packet, which no other may exceed.
    size: usize,
    /// Payload of all packets.
    payload: usize,
    /// The IPv4 identification does not count up.
    fixed_id: bool,
}

/// Where things are in a TCP or UDP packet whose headers are the plainest possible.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    v6: bool,
    tcp: bool,
    /// Where the transport header begins.
    transport: usize,
    /// Length of all headers.
    headers: usize,
}

/// What a packet means for the runs that are open.
enum Class {
    /// No flow of ours: it may pass and be passed.
    Alone,
    /// Might belong to any flow: nothing may pass it.
    Fence,
    /// Belongs to a flow.
    Flow {
        layout: Layout,
        merges: bool,
        leads: bool,
    },
}

impl Coalescer {
    /// A coalescer that merges TCP and UDP as asked and hands out everything else as it came.
    pub fn new(tcp: bool, udp: bool) -> Self {
        Coalescer {
            tcp,
            udp,
            items: Vec::with_capacity(CAPACITY),
            runs: Vec::with_capacity(CAPACITY),
            slots: vec![Slot::default(); SLOTS].into_boxed_slice(),
            generation: 1,
            recent: 0,
            spans: Vec::with_capacity(MAX_SEGMENTS as usize),
        }
    }

    /// Nothing waits to be drained.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes a complete IP packet, cut to its own length, that stands at `at` in the caller's buffers.
    ///
    /// # Errors
    /// [`Full`] after 4096 packets: nothing is taken until [`drain`](Self::drain).
    pub fn push(&mut self, packet: &[u8], at: Span) -> Result<(), Full> {
        if self.items.len() == CAPACITY {
            return Err(Full);
        }
        let item = low32(self.items.len());
        self.items.push(Item {
            span: at,
            next: item,
        });
        match self.classify(packet) {
            Class::Alone => self.begin(item, Layout::default(), packet),
            Class::Fence => {
                self.generation += 1;
                self.begin(item, Layout::default(), packet);
            }
            Class::Flow {
                layout,
                merges,
                leads,
            } => {
                let slot = self.slot(packet, layout);
                let open = self.open(slot, packet, layout);
                if let Some(run) = open
                    && merges
                    && self.runs[run].accepts(packet, layout)
                {
                    let last = self.runs[run].append(item, packet);
                    self.items[last as usize].next = item;
                    if self.runs[run].ends(packet, layout) {
                        self.slots[slot].generation = 0;
                    }
                    return Ok(());
                }
                if leads {
                    self.slots[slot] = Slot {
                        generation: self.generation,
                        run: low32(self.runs.len()),
                    };
                } else if open.is_some() {
                    self.slots[slot].generation = 0;
                }
                self.begin(item, layout, packet);
            }
        }
        Ok(())
    }

    /// Hands out everything, in the order in which the first packet of each frame arrived.
    ///
    /// `emit` gets what leads the frame (the virtio header, and for a super-frame its headers) and the spans that follow
    /// it: at most 256. A packet that was not merged is one span, whole.
    pub fn drain(&mut self, mut emit: impl FnMut(&[u8], &[Span])) {
        for run in &mut self.runs {
            let mut item = self.items[run.first as usize];
            if run.count == 1 {
                emit(&[0; VNET_HDR_LEN], &[item.span]);
                continue;
            }
            self.spans.clear();
            for _ in 0..run.count {
                let Span { buffer, start, len } = item.span;
                let headers = low32(run.layout.headers);
                self.spans.push(Span {
                    buffer,
                    start: start + headers,
                    len: len - headers,
                });
                item = self.items[item.next as usize];
            }
            emit(run.finish(), &self.spans);
        }
        self.runs.clear();
        self.items.clear();
        self.generation += 1;
    }

    fn classify(&self, packet: &[u8]) -> Class {
        let Some(ip) = Ip::parse(packet) else {
            return Class::Fence;
        };
        if ip.len != packet.len() || ip.len > MAX_PACKET || (!ip.v6 && ip.header != 20) {
            return Class::Fence;
        }
        // An IPv4 fragment has no protocol here, an IPv6 extension is none of these.
        let protocol = match ip.transport(packet) {
            Some((protocol, at)) if at == ip.header => protocol,
            _ => return Class::Fence,
        };
        let l4 = &packet[ip.header..];
        let (tcp, length) = match protocol {
            TCP if !self.tcp => return Class::Alone,
            UDP if !self.udp => return Class::Alone,
            TCP if l4.len() >= 20 => (true, usize::from(l4[12] >> 4) * 4),
            UDP if l4.len() >= 8 => (false, 8),
            TCP | UDP => return Class::Fence,
            _ => return Class::Alone,
        };
        let layout = Layout {
            v6: ip.v6,
            tcp,
            transport: ip.header,
            headers: ip.header + length,
        };
        // A wrong IPv4 checksum would leave as a right one. A header with a right one sums to all ones.
        let sound = ip.v6 || Sum::of(&packet[..20]).fold() == 0xffff;
        let (merges, leads) = if tcp {
            let flags = l4[13];
            let merges = length >= 20 && l4.len() > length && flags & (SYN | RST | URG) == 0;
            (merges, flags & (FIN | PSH) == 0)
        } else {
            // IPv6 does not know datagrams without checksum (RFC 8200 §8.1).
            let merges = l4.len() > 8
                && usize::from(read16(l4, 4)) == l4.len()
                && !(ip.v6 && read16(l4, 6) == 0);
            (merges, true)
        };
        Class::Flow {
            layout,
            merges: sound && merges,
            leads: sound && merges && leads,
        }
    }

    /// The slot of the packet's flow.
    fn slot(&mut self, packet: &[u8], layout: Layout) -> usize {
        if self.open(self.recent, packet, layout).is_none() {
            let addresses = if layout.v6 {
                &packet[8..40]
            } else {
                &packet[12..20]
            };
            let ports = u64::from(read32(packet, layout.transport));
            let mut hash = mix(0, ports << 1 | u64::from(layout.tcp));
            for word in addresses.chunks_exact(8) {
                hash = mix(
                    hash,
                    u64::from(read32(word, 0)) << 32 | u64::from(read32(word, 4)),
                );
            }
            let [a, b, ..] = hash.to_be_bytes();
            self.recent = usize::from(u16::from_be_bytes([a, b])) % SLOTS;
        }
        self.recent
    }

    /// The open run in `slot`, if it is one of the packet's flow.
    fn open(&self, slot: usize, packet: &[u8], layout: Layout) -> Option<usize> {
        let Slot { generation, run } = self.slots[slot];
        let run = run as usize;
        (generation == self.generation && self.runs[run].same_flow(packet, layout)).then_some(run)
    }

    /// Begins a run with a packet. Nothing but its flow's slot can make others join it.
    fn begin(&mut self, item: u32, layout: Layout, packet: &[u8]) {
        let mut run = Run {
            head: [0; VNET_HDR_LEN + MAX_HEADERS],
            layout,
            first: item,
            last: item,
            count: 1,
            size: packet.len() - layout.headers.min(packet.len()),
            payload: packet.len() - layout.headers.min(packet.len()),
            fixed_id: false,
        };
        if let Some(headers) = packet.get(..layout.headers) {
            run.head[VNET_HDR_LEN..VNET_HDR_LEN + headers.len()].copy_from_slice(headers);
        }
        self.runs.push(run);
    }
}

impl Run {
    fn headers(&self) -> &[u8] {
        &self.head[VNET_HDR_LEN..VNET_HDR_LEN + self.layout.headers]
    }

    /// Same addresses, protocol and ports.
    fn same_flow(&self, packet: &[u8], layout: Layout) -> bool {
        let head = &self.head[VNET_HDR_LEN..];
        let addresses = if layout.v6 { 8..40 } else { 12..20 };
        let ports = layout.transport..layout.transport + 4;
        (self.layout.v6, self.layout.tcp) == (layout.v6, layout.tcp)
            && head[addresses.clone()] == packet[addresses]
            && head[ports.clone()] == packet[ports]
    }

    /// Whether a packet of the same flow, of a kind that merges, may follow those that the run has.
    fn accepts(&mut self, packet: &[u8], layout: Layout) -> bool {
        let head = self.headers();
        let payload = packet.len() - layout.headers;
        let l4 = layout.transport;
        if payload > self.size
            || head.len() != layout.headers
            || head.len() + self.payload + payload > MAX_PACKET
        {
            return false;
        }
        let transport = if layout.tcp {
            let (flags, ours) = (read16(packet, l4 + 12), read16(head, l4 + 12));
            let may_differ = u16::from(CWR | FIN | PSH);
            // CWR begins a run: the segments after the first lose it when the kernel segments again.
            packet[l4 + 13] & CWR == 0
                && (flags ^ ours) & !may_differ == 0
                && read32(packet, l4 + 4) == read32(head, l4 + 4).wrapping_add(low32(self.payload))
                && packet[l4 + 8..l4 + 12] == head[l4 + 8..l4 + 12] // acknowledgement
                && packet[l4 + 14..l4 + 16] == head[l4 + 14..l4 + 16] // window
                && packet[l4 + 18..layout.headers] == head[l4 + 18..] // urgent pointer, options
        } else {
            (read16(packet, l4 + 6) == 0) == (read16(head, l4 + 6) == 0)
        };
        transport && self.accepts_ip(packet)
    }

    fn accepts_ip(&mut self, packet: &[u8]) -> bool {
        let head = &self.head[VNET_HDR_LEN..];
        if self.layout.v6 {
            // Traffic class, flow label, hop limit.
            return packet[..4] == head[..4] && packet[7] == head[7];
        }
        // Type of service, flags and fragment offset, time to live.
        if packet[1] != head[1] || packet[6..8] != head[6..8] || packet[8] != head[8] {
            return false;
        }
        // The identification counts up, or, where it means nothing, stays: the second packet decides.
        let distance = read16(packet, 4).wrapping_sub(read16(head, 4));
        if self.count == 1 && distance == 0 && head[6] & 0x40 != 0 {
            self.fixed_id = true;
        }
        u32::from(distance) == if self.fixed_id { 0 } else { self.count }
    }

    /// Adds a packet that was accepted, and returns the one before it.
    fn append(&mut self, item: u32, packet: &[u8]) -> u32 {
        self.count += 1;
        self.payload += packet.len() - self.layout.headers;
        if self.layout.tcp {
            let flags = self.layout.transport + 13;
            self.head[VNET_HDR_LEN + flags] |= packet[flags] & (FIN | PSH);
        }
        std::mem::replace(&mut self.last, item)
    }

    /// Whether nothing may follow the packet that was appended.
    fn ends(&self, packet: &[u8], layout: Layout) -> bool {
        let most = if layout.tcp {
            MAX_SEGMENTS
        } else {
            MAX_DATAGRAMS
        };
        packet.len() - layout.headers < self.size
            || self.count == most
            || (layout.tcp && packet[layout.transport + 13] & (FIN | PSH) != 0)
    }

    /// Turns the first packet's headers into those of the super-frame: virtio header, lengths, partial checksum.
    fn finish(&mut self) -> &[u8] {
        let Layout {
            v6,
            tcp,
            transport,
            headers,
        } = self.layout;
        let (vnet, head) = self.head.split_at_mut(VNET_HDR_LEN);
        let total = headers + self.payload;
        // 1. Lengths, and the sum of the IPv4 header.
        if v6 {
            write16(head, 4, low16(total - transport));
        } else {
            write16(head, 2, low16(total));
            write16(head, 10, 0);
            let sum = Sum::of(&head[..20]);
            write16(head, 10, sum.checksum());
        }
        let length = low16(total - transport);
        // 2. The pseudo-header's sum where the checksum belongs.
        let protocol = if tcp { TCP } else { UDP };
        let partial = (pseudo_header(head, v6, protocol) + Sum::word(length)).fold();
        let mut gso_type = GSO_UDP_L4;
        if tcp {
            gso_type = if v6 { GSO_TCPV6 } else { GSO_TCPV4 };
            if head[transport + 13] & CWR != 0 {
                gso_type |= GSO_ECN;
            }
        } else {
            write16(head, transport + 4, length);
        }
        let csum_offset = if tcp { 16 } else { 6 };
        write16(head, transport + csum_offset, partial);
        // 3. What the kernel has to do.
        vnet.copy_from_slice(
            &VnetHdr {
                flags: NEEDS_CSUM,
                gso_type,
                hdr_len: low16(headers),
                gso_size: low16(self.size),
                csum_start: low16(transport),
                csum_offset: low16(csum_offset),
                ..VnetHdr::default()
            }
            .write(),
        );
        &self.head[..VNET_HDR_LEN + headers]
    }
}
