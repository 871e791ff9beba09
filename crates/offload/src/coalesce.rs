//! Coalescing: opened packets become GRO packets for the TUN again, by the rules of the kernel's
//! GRO (`net/core/gro.c`, `net/ipv4/{af_inet,tcp_offload,udp_offload}.c`,
//! `tools/testing/selftests/net/gro.c`).
//!
//! Push: classify the packet → find its flow → merge it into the flow's open run, or close that and
//! begin another. Drain: per run, finish the headers → hand out head and payload spans.
//!
//! TCP in VXLAN is merged where a tunnel's device takes it (`ends.rs`), and is the flow of its
//! tunnel's datagrams.
//!
//! A flow has at most one open run, and whatever of a flow does not fit its open run closes it:
//! later packets never get before it (invariant 2). Packets that could belong to any flow, such as
//! fragments, close all runs of their peer. So do the datagrams of a UDP tunnel that carry such: the
//! tunnel's device has chosen another port for them than for the rest of their flow. What one peer sends closes no run of another: a flow is
//! one of one peer, every flow has an entry of its own, and no peer can foresee in which bucket of
//! the hash table that is.
//!
//! Checksums of TCP and UDP are not verified: the tag has authenticated the packet, and a GRO
//! packet carries NEEDS_CSUM, so that the kernel takes them as right and makes new ones if it has
//! to segment again. So a segment that its sender already got wrong leaves with a right checksum, a
//! datagram without checksum leaves with one, and fixed IPv4 identifications under DF (which mean
//! nothing, RFC 6864 §4.1) count up.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::ops::Range;

use super::frame::{mix, pseudo_header};
use super::ip::{ICMP, ICMPV6, Ip, TCP, UDP};
use super::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_TUNNEL_V4, GSO_TUNNEL_V6, GSO_UDP_L4};
use super::{Merged, NEEDS_CSUM, TUNNEL_CSUM, VnetHdr};
use super::{low16, low32, read16, read32, write16};
use crate::VNET_HDR_LEN;
use crate::checksum::Sum;

/// Packets that a coalescer takes between two drains.
const CAPACITY: usize = 4096;
/// Buckets of the hash table of flows.
const BUCKETS: usize = 1 << 10;
/// Flows of a bucket that are looked at: with as many flows as packets, a bucket has four on
/// average.
const LONGEST_CHAIN: usize = 32;
/// No flow follows in its bucket.
const NONE: u32 = u32::MAX;
/// Most packets in a TCP GRO packet: each is one element of a `writev`, which takes 1024.
const MAX_SEGMENTS: u32 = 256;
/// Most packets in a UDP GRO packet (the kernel's `UDP_MAX_SEGMENTS`, before it was raised to 128).
const MAX_DATAGRAMS: u32 = 64;
/// Longest IP packet.
const MAX_PACKET: usize = 65_535;
/// The headers that VXLAN puts before an IP packet: UDP, VXLAN and Ethernet.
const VXLAN: usize = 8 + 8 + 14;
/// Longest headers that are merged: VXLAN over IPv6, in it IPv6 and TCP with all options.
const MAX_HEADERS: usize = 40 + VXLAN + 40 + 60;

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

/// Merges opened packets into GRO packets for the TUN.
///
/// Owns no packet bytes: it remembers where they stand. Takes 4096 packets between two drains;
/// allocates nothing after [`new`](Self::new).
#[derive(Debug)]
pub struct Coalescer {
    tcp: bool,
    udp: bool,
    tunnels: bool,
    items: Vec<Item>,
    runs: Vec<Run>,
    flows: Vec<Flow>,
    buckets: Box<[Bucket]>,
    /// Buckets of older generations are empty.
    generation: u64,
    /// Makes the hash one that no outsider can predict.
    seed: u64,
    /// The flow of the last packet that had one.
    recent: usize,
    /// Peers that sent a packet which might belong to any of their flows: how many runs there were
    /// before the last such.
    fences: HashMap<u32, u32>,
    /// The peer of the last packet, and what `fences` says of it.
    peer: u32,
    fence: u32,
    spans: Vec<Span>,
}

/// A packet and the next one of its run.
#[derive(Clone, Copy, Debug)]
struct Item {
    span: Span,
    next: u32,
}

/// A flow, which is that of its last run, and the next one of its bucket.
#[derive(Clone, Copy, Debug)]
struct Flow {
    run: u32,
    next: u32,
}

/// Flows of equal hash.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    generation: u64,
    first: u32,
}

/// Packets that leave as one frame.
#[derive(Debug)]
struct Run {
    peer: u32,
    /// More may join, unless its peer sent something that must not be passed.
    open: bool,
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
    /// The IPv4 identification does not count up: that of what is merged, and that of the tunnel
    /// around it.
    fixed_id: [bool; 2],
}

/// Where things are in a TCP or UDP packet whose headers are the plainest possible.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// Of the flow: outside a tunnel.
    flow: HeaderOffsets,
    /// Of what is merged: the same, or TCP inside VXLAN.
    merged: HeaderOffsets,
    /// Length of all headers.
    headers: usize,
}

/// An IP header without options or extensions, and the transport header behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeaderOffsets {
    /// Where the IP header begins.
    at: usize,
    v6: bool,
    tcp: bool,
    /// Where the transport header begins.
    transport: usize,
}

/// What a packet means for the runs that are open.
enum Class {
    /// No flow of ours: it may pass and be passed.
    Alone,
    /// Might belong to any flow of its peer: none of them may pass it.
    Fence,
    /// Belongs to a flow.
    Flow {
        layout: Layout,
        merges: bool,
        leads: bool,
    },
}

impl Coalescer {
    /// A coalescer that merges TCP, also in tunnels, and UDP as asked, and hands out everything
    /// else as it came.
    pub fn new(tcp: bool, udp: bool) -> Self {
        Coalescer {
            tcp,
            udp,
            tunnels: tcp,
            items: Vec::with_capacity(CAPACITY),
            runs: Vec::with_capacity(CAPACITY),
            flows: Vec::with_capacity(CAPACITY),
            buckets: vec![Bucket::default(); BUCKETS].into_boxed_slice(),
            generation: 1,
            seed: RandomState::new().build_hasher().finish(),
            recent: 0,
            fences: HashMap::with_capacity(CAPACITY),
            peer: 0,
            fence: 0,
            spans: Vec::with_capacity(MAX_SEGMENTS as usize),
        }
    }

    /// Of what is pushed from now on, merges packets of the kinds that `takes` names.
    pub fn merge_only(&mut self, takes: impl Fn(Merged) -> bool) {
        self.tcp = takes(Merged::Tcp);
        self.udp = takes(Merged::Udp);
        self.tunnels = takes(Merged::Tunnel);
    }

    /// Takes a complete IP packet from `peer`, cut to its own length, that stands at `at` in the
    /// caller's buffers. `is_end` says whether the device of a UDP tunnel listens at an address and
    /// port.
    ///
    /// # Errors
    /// [`Full`] after 4096 packets: nothing is taken until [`drain`](Self::drain).
    pub fn push(
        &mut self,
        peer: u32,
        packet: &[u8],
        at: Span,
        is_end: impl Fn((IpAddr, u16)) -> bool,
    ) -> Result<(), Full> {
        if self.items.len() == CAPACITY {
            return Err(Full);
        }
        let item = low32(self.items.len());
        self.items.push(Item {
            span: at,
            next: item,
        });
        if peer != self.peer {
            self.peer = peer;
            self.fence = self.fences.get(&peer).copied().unwrap_or(0);
        }
        match self.classify(packet, is_end) {
            Class::Alone => self.begin(item, Layout::default(), packet, false),
            Class::Fence => {
                self.fence = low32(self.runs.len());
                self.fences.insert(peer, self.fence);
                self.begin(item, Layout::default(), packet, false);
            }
            Class::Flow {
                layout,
                merges,
                leads,
            } => {
                let flow = self.find(packet, layout);
                if let Some(run) = flow.ok().and_then(|flow| self.open(flow))
                    && merges
                    && self.runs[run].accepts(packet, layout)
                {
                    let last = self.runs[run].append(item, packet);
                    self.items[last as usize].next = item;
                    self.runs[run].open = !self.runs[run].ends(packet, layout);
                    return Ok(());
                }
                let run = low32(self.runs.len());
                match flow {
                    Ok(flow) => self.flows[flow].run = run,
                    Err(bucket) => self.add(bucket, run),
                }
                self.begin(item, layout, packet, leads);
            }
        }
        Ok(())
    }

    /// Hands out everything, in the order in which the first packet of each frame arrived.
    ///
    /// `emit` gets what leads the frame (the virtio header, and for a GRO packet its headers) and
    /// the spans that follow it: at most 256. A packet that was not merged is one span, whole.
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
        self.flows.clear();
        self.generation += 1;
        self.fences.clear();
        self.fence = 0;
    }

    fn classify(&self, packet: &[u8], is_end: impl Fn((IpAddr, u16)) -> bool) -> Class {
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
        if self.tunnels
            && protocol == UDP
            && let Some(class) = in_vxlan(packet, ip)
            && is_end((ip.destination(packet), read16(packet, ip.header + 2)))
        {
            return class;
        }
        if protocol == UDP && (self.udp || self.tunnels) && carries_any_flow(l4) {
            return Class::Fence;
        }
        let (tcp, length) = match protocol {
            TCP if !self.tcp => return Class::Alone,
            // What is in a tunnel may belong to what was merged of it.
            UDP if !self.udp && !self.tunnels => return Class::Alone,
            TCP if l4.len() >= 20 => (true, usize::from(l4[12] >> 4) * 4),
            UDP if l4.len() >= 8 => (false, 8),
            TCP | UDP => return Class::Fence,
            _ => return Class::Alone,
        };
        let offsets = HeaderOffsets {
            at: 0,
            v6: ip.v6,
            tcp,
            transport: ip.header,
        };
        let layout = Layout {
            flow: offsets,
            merged: offsets,
            headers: ip.header + length,
        };
        let sound = offsets.is_sound(packet);
        let (merges, leads) = if tcp {
            let flags = l4[13];
            let merges = length >= 20 && l4.len() > length && flags & (SYN | RST | URG) == 0;
            (merges, flags & (FIN | PSH) == 0)
        } else {
            // IPv6 does not know datagrams without checksum (RFC 8200 §8.1).
            let merges = self.udp
                && l4.len() > 8
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

    /// The flow of the packet, or else the bucket in which it would be.
    fn find(&mut self, packet: &[u8], layout: Layout) -> Result<usize, usize> {
        if self.is_of(self.recent, packet, layout) {
            return Ok(self.recent);
        }
        let ends = u64::from(self.peer) << 32 | u64::from(read32(packet, layout.flow.transport));
        let mut hash = mix(self.seed ^ u64::from(layout.flow.tcp), ends);
        for word in packet[layout.flow.addresses()].chunks_exact(8) {
            hash = mix(
                hash,
                u64::from(read32(word, 0)) << 32 | u64::from(read32(word, 4)),
            );
        }
        let [a, b, ..] = hash.to_be_bytes();
        let bucket = usize::from(u16::from_be_bytes([a, b])) % BUCKETS;
        let mut next = self.first(bucket);
        for _ in 0..LONGEST_CHAIN {
            let Some(flow) = self.flows.get(next as usize) else {
                break;
            };
            if self.is_of(next as usize, packet, layout) {
                self.recent = next as usize;
                return Ok(self.recent);
            }
            next = flow.next;
        }
        Err(bucket)
    }

    /// The first flow of a bucket.
    fn first(&self, bucket: usize) -> u32 {
        let Bucket { generation, first } = self.buckets[bucket];
        if generation == self.generation {
            first
        } else {
            NONE
        }
    }

    /// Adds the flow of `run` to a bucket, in front of any older run of the same flow, which is not
    /// found any more.
    fn add(&mut self, bucket: usize, run: u32) {
        let next = self.first(bucket);
        self.recent = self.flows.len();
        self.buckets[bucket] = Bucket {
            generation: self.generation,
            first: low32(self.flows.len()),
        };
        self.flows.push(Flow { run, next });
    }

    /// Whether the packet, of the present peer, is one of the flow.
    fn is_of(&self, flow: usize, packet: &[u8], layout: Layout) -> bool {
        self.flows.get(flow).is_some_and(|flow| {
            let run = &self.runs[flow.run as usize];
            run.peer == self.peer && run.same_flow(packet, layout)
        })
    }

    /// The open run of a flow of the present peer.
    fn open(&self, flow: usize) -> Option<usize> {
        let run = self.flows[flow].run;
        (run >= self.fence && self.runs[run as usize].open).then_some(run as usize)
    }

    /// Begins a run with a packet of the present peer. Nothing but its flow can make others join
    /// it.
    fn begin(&mut self, item: u32, layout: Layout, packet: &[u8], open: bool) {
        let mut run = Run {
            peer: self.peer,
            open,
            head: [0; VNET_HDR_LEN + MAX_HEADERS],
            layout,
            first: item,
            last: item,
            count: 1,
            size: packet.len() - layout.headers.min(packet.len()),
            payload: packet.len() - layout.headers.min(packet.len()),
            fixed_id: [false; 2],
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
        self.layout.flow == layout.flow && layout.flow.same_ends(&self.head[VNET_HDR_LEN..], packet)
    }

    /// Whether a packet of the same flow, of a kind that merges, may follow those that the run has.
    fn accepts(&mut self, packet: &[u8], layout: Layout) -> bool {
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
        let Layout { flow, merged, .. } = layout;
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
    fn append(&mut self, item: u32, packet: &[u8]) -> u32 {
        self.count += 1;
        self.payload += packet.len() - self.layout.headers;
        if self.layout.merged.tcp {
            let flags = self.layout.merged.transport + 13;
            self.head[VNET_HDR_LEN + flags] |= packet[flags] & (FIN | PSH);
        }
        std::mem::replace(&mut self.last, item)
    }

    /// Whether nothing may follow the packet that was appended.
    fn ends(&self, packet: &[u8], layout: Layout) -> bool {
        let HeaderOffsets { tcp, transport, .. } = layout.merged;
        let most = if tcp { MAX_SEGMENTS } else { MAX_DATAGRAMS };
        packet.len() - layout.headers < self.size
            || self.count == most
            || (tcp && packet[transport + 13] & (FIN | PSH) != 0)
    }

    /// Turns the first packet's headers into those of the GRO packet: virtio header, lengths,
    /// partial checksum.
    fn finish(&mut self) -> &[u8] {
        let Layout {
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
    fn addresses(&self) -> Range<usize> {
        if self.v6 {
            self.at + 8..self.at + 40
        } else {
            self.at + 12..self.at + 20
        }
    }

    /// Same addresses and ports.
    fn same_ends(&self, head: &[u8], packet: &[u8]) -> bool {
        let ports = self.transport..self.transport + 4;
        head[self.addresses()] == packet[self.addresses()] && head[ports.clone()] == packet[ports]
    }

    /// A wrong IPv4 checksum would leave as a right one. A header with a right one sums to all
    /// ones.
    fn is_sound(&self, packet: &[u8]) -> bool {
        self.v6 || Sum::of(&packet[self.at..self.at + 20]).fold() == 0xffff
    }

    /// Sets the lengths for a packet that ends at `end`, the IPv4 header's sum, and the
    /// pseudo-header's sum in place of the checksum.
    fn finish(&self, head: &mut [u8], end: usize) {
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

/// Whether a UDP datagram looks like that of a tunnel, and carries a packet that does not tell its
/// flow by plain headers.
fn carries_any_flow(datagram: &[u8]) -> bool {
    let Some(payload) = datagram.get(8..) else {
        return false;
    };
    // Behind so many options.
    let geneve = |options: u8| payload.get(8 + 4 * usize::from(options & 0x3f)..);
    let frame = match *payload {
        // VXLAN (RFC 7348 §5), also with a group policy (draft-smith-vxlan-group-policy) or with a
        // protocol (draft-ietf-nvo3-vxlan-gpe)
        [8, 0, 0, 0, _, _, _, 0, ..]
        | [0x88, _, _, _, _, _, _, 0, ..]
        | [0x0c, 0, 0, 3, _, _, _, 0, ..] => payload.get(8..),
        // Geneve (RFC 8926 §3.4)
        [options, _, 0x65, 0x58, ..] if options >> 6 == 0 => geneve(options),
        _ => None,
    };
    let packet = match (frame, payload) {
        (Some(frame), _) => in_ethernet(frame),
        // GUE (draft-ietf-intarea-gue) with IP in it
        (None, &[head, 4 | 41, ..]) if head >> 5 == 0 => {
            payload.get(4 + 4 * usize::from(head & 0x1f)..)
        }
        // VXLAN and Geneve with IP in them
        (None, &[0x0c, 0, 0, 1 | 2, _, _, _, 0, ..]) => payload.get(8..),
        (None, &([options, _, 8, 0, ..] | [options, _, 0x86, 0xdd, ..])) if options >> 6 == 0 => {
            geneve(options)
        }
        // FOU: an IP packet
        (None, _) => Some(payload),
    };
    let Some((packet, ip)) = packet.and_then(|packet| Some((packet, Ip::parse(packet)?))) else {
        return false;
    };
    // Ethernet fills short frames up.
    if ip.len != packet.len() && frame.is_none() {
        return false;
    }
    let packet = &packet[..ip.len];
    match ip.transport(packet) {
        Some((UDP, at)) if at == ip.header => carries_any_flow(&packet[at..]),
        Some((TCP | ICMP | ICMPV6, at)) => at != ip.header,
        _ => true,
    }
}

/// The IP packet in an Ethernet frame, behind tags of VLANs.
fn in_ethernet(frame: &[u8]) -> Option<&[u8]> {
    let mut at = 12;
    while let [0x81, 0x00] | [0x88, 0xa8] = frame.get(at..at + 2)? {
        at += 4;
    }
    match read16(frame.get(at..at + 2)?, 0) {
        0x0800 | 0x86dd => frame.get(at + 2..),
        _ => None,
    }
}

/// A TCP packet in VXLAN (RFC 7348 §5) whose headers are the plainest possible. `ip` is what stands
/// around it.
fn in_vxlan(packet: &[u8], ip: Ip) -> Option<Class> {
    let udp = packet.get(ip.header..)?;
    let at = ip.header + VXLAN;
    let inner = Ip::parse(packet.get(at..)?)?;
    let ether_type = if inner.v6 { 0x86dd } else { 0x0800 };
    let plain = usize::from(read16(udp, 4)) == udp.len()
        && read32(udp, 8) == 0x0800_0000
        && udp[15] == 0
        && read16(udp, VXLAN - 2) == ether_type
        && at + inner.len == packet.len()
        && (inner.v6 || inner.header == 20)
        && inner.transport(&packet[at..]) == Some((TCP, inner.header));
    let transport = at + inner.header;
    let tcp = packet
        .get(transport..)
        .filter(|tcp| plain && tcp.len() >= 20)?;
    let length = usize::from(tcp[12] >> 4) * 4;
    if length < 20 || tcp.len() <= length || tcp[13] & (SYN | RST | URG) != 0 {
        return None;
    }
    let flow = HeaderOffsets {
        at: 0,
        v6: ip.v6,
        tcp: false,
        transport: ip.header,
    };
    let merged = HeaderOffsets {
        at,
        v6: inner.v6,
        tcp: true,
        transport,
    };
    let sound = flow.is_sound(packet) && merged.is_sound(packet);
    Some(Class::Flow {
        layout: Layout {
            flow,
            merged,
            headers: transport + length,
        },
        merges: sound,
        leads: sound && tcp[13] & (FIN | PSH) == 0,
    })
}
