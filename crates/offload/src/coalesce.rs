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
//! tunnel's device has chosen another port for them than for the rest of their flow. What one peer
//! sends closes no run of another: each flow is of one peer, every flow has an entry of its own, and
//! no peer can foresee in which bucket of the hash table that is.
//!
//! Checksums of TCP and UDP are not verified: the tag has authenticated the packet, and a GRO
//! packet carries NEEDS_CSUM, so that the kernel takes them as right and makes new ones if it has
//! to segment again. So a segment that its sender already got wrong leaves with a right checksum, a
//! datagram without checksum leaves with one, and fixed IPv4 identifications under DF (which mean
//! nothing, RFC 6864 §4.1) count up.

mod run;
mod tunnels;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::Merged;
use super::frame::mix;
use super::ip::{Ip, TCP, UDP};
use super::{low32, read16, read32};
use crate::VNET_HDR_LEN;
use run::{
    Class, FIN, HeaderOffsets, MAX_HEADERS, MAX_PACKET, MAX_SEGMENTS, PSH, PacketLayout, RST, Run,
    SYN, URG,
};
use tunnels::{carries_any_flow, in_vxlan};

/// Packets that a coalescer takes between two drains.
const CAPACITY: usize = 4096;
/// Buckets of the hash tables of flows and of fences.
const BUCKETS: usize = 1 << 10;
/// Flows of a bucket that are looked at: with as many flows as packets, a bucket has four on
/// average.
const LONGEST_CHAIN: usize = 32;
/// No flow follows in its bucket.
const NONE: u32 = u32::MAX;

/// A range of bytes in the caller's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The number of the buffer.
    pub buffer: u32,
    /// The first byte.
    pub start: u32,
    /// The number of bytes.
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
    items: Vec<RunPacket>,
    runs: Vec<Run>,
    flows: Vec<Flow>,
    buckets: Box<[Bucket]>,
    /// Buckets of older generations are empty.
    generation: u64,
    /// Makes the hash one that no outsider can predict.
    seed: u64,
    /// The flow of the last packet that had one.
    recent: usize,
    fences: Vec<Fence>,
    /// The peer of the last packet, and the number of runs before its fence.
    peer: u32,
    fence: u32,
    spans: Vec<Span>,
}

/// A packet and the next one of its run.
#[derive(Clone, Copy, Debug)]
struct RunPacket {
    span: Span,
    next: u32,
}

/// A flow, which is that of its last run, and the next one of its bucket.
#[derive(Clone, Copy, Debug)]
struct Flow {
    run: u32,
    next: u32,
}

/// A peer that sent a packet which might belong to any of its flows, how many runs there were before
/// the last such, and the next one of its bucket.
#[derive(Clone, Copy, Debug)]
struct Fence {
    peer: u32,
    runs: u32,
    next: u32,
}

/// The first of the flows, and of the fences, of equal hash.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    generation: u64,
    flow: u32,
    fence: u32,
}

impl Coalescer {
    /// A coalescer that merges TCP, also in tunnels, and UDP as asked, and hands out everything
    /// else as it came.
    #[cfg(feature = "std")]
    pub fn new(tcp: bool, udp: bool) -> Self {
        use std::hash::{BuildHasher, Hasher, RandomState};
        Self::with_seed(tcp, udp, RandomState::new().build_hasher().finish())
    }

    /// The same with a seed of random bits. Who knows the seed can choose packets that take longer
    /// to find the flows of.
    pub fn with_seed(tcp: bool, udp: bool, seed: u64) -> Self {
        Coalescer {
            tcp,
            udp,
            tunnels: tcp,
            items: Vec::with_capacity(CAPACITY),
            runs: Vec::with_capacity(CAPACITY),
            flows: Vec::with_capacity(CAPACITY),
            buckets: vec![Bucket::default(); BUCKETS].into_boxed_slice(),
            generation: 1,
            seed,
            recent: 0,
            fences: Vec::with_capacity(CAPACITY),
            peer: 0,
            fence: 0,
            spans: Vec::with_capacity(MAX_SEGMENTS as usize),
        }
    }

    /// Merges, of what is pushed from now on, packets of the kinds that `takes` names.
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
        self.items.push(RunPacket {
            span: at,
            next: item,
        });
        if peer != self.peer {
            self.peer = peer;
            self.fence = match self.find_fence() {
                Ok(fence) => self.fences[fence].runs,
                Err(_) => 0,
            };
        }
        match self.classify(packet, is_end) {
            Class::Alone => self.begin(item, PacketLayout::default(), packet, false),
            Class::Fence => {
                self.fence = low32(self.runs.len());
                self.set_fence();
                self.begin(item, PacketLayout::default(), packet, false);
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
        let layout = PacketLayout {
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
    fn find(&mut self, packet: &[u8], layout: PacketLayout) -> Result<usize, usize> {
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
        let bucket = bucket_of(hash);
        let mut next = self.bucket(bucket).flow;
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

    /// A bucket as it is in this generation.
    fn bucket(&self, bucket: usize) -> Bucket {
        let found = self.buckets[bucket];
        if found.generation == self.generation {
            found
        } else {
            Bucket {
                generation: self.generation,
                flow: NONE,
                fence: NONE,
            }
        }
    }

    /// Adds the flow of `run` to a bucket, in front of any older run of the same flow, which is not
    /// found any more.
    fn add(&mut self, bucket: usize, run: u32) {
        let found = self.bucket(bucket);
        self.recent = self.flows.len();
        self.buckets[bucket] = Bucket {
            flow: low32(self.flows.len()),
            ..found
        };
        let next = found.flow;
        self.flows.push(Flow { run, next });
    }

    /// The fence of the present peer, or else the bucket in which it would be.
    fn find_fence(&self) -> Result<usize, usize> {
        let bucket = bucket_of(mix(self.seed, u64::from(self.peer)));
        let mut next = self.bucket(bucket).fence;
        // To the end: numbers of peers are not chosen by peers.
        while let Some(fence) = self.fences.get(next as usize) {
            if fence.peer == self.peer {
                return Ok(next as usize);
            }
            next = fence.next;
        }
        Err(bucket)
    }

    /// The fence of the present peer stands behind all runs.
    fn set_fence(&mut self) {
        match self.find_fence() {
            Ok(fence) => self.fences[fence].runs = self.fence,
            Err(bucket) => {
                let found = self.bucket(bucket);
                self.buckets[bucket] = Bucket {
                    fence: low32(self.fences.len()),
                    ..found
                };
                self.fences.push(Fence {
                    peer: self.peer,
                    runs: self.fence,
                    next: found.fence,
                });
            }
        }
    }

    /// Whether the packet, of the present peer, is one of the flow.
    fn is_of(&self, flow: usize, packet: &[u8], layout: PacketLayout) -> bool {
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
    fn begin(&mut self, item: u32, layout: PacketLayout, packet: &[u8], open: bool) {
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

fn bucket_of(hash: u64) -> usize {
    let [a, b, ..] = hash.to_be_bytes();
    usize::from(u16::from_be_bytes([a, b])) % BUCKETS
}
