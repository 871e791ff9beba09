//! Packets that wait for a session.

use std::collections::{BTreeSet, HashMap, VecDeque};

use zeroize::Zeroizing;

use super::packet::PacketRef;
use crate::frame::Gso;

/// Packets, or GSO packets, that wait for one peer. The oldest goes first: what a user wants by now
/// is newer.
pub(super) const MAX_PACKETS: usize = 128;
/// Bytes that wait for one peer.
pub(super) const MAX_PEER_BYTES: usize = 1 << 20;
/// Bytes that wait for all.
pub(super) const MAX_BYTES: usize = 4 << 20;

/// What waits, by the number of the peer that it is for.
#[derive(Default)]
pub(super) struct Waiting {
    queues: HashMap<u32, Queue>,
    /// The bytes of each queue and whose it is: the longest is last.
    by_bytes: BTreeSet<(usize, u32)>,
    bytes: usize,
    packets: u64,
}

/// What waits for one peer, oldest first.
#[derive(Default)]
pub(super) struct Queue {
    kept: VecDeque<Kept>,
    bytes: usize,
}

struct Kept {
    bytes: Zeroizing<Box<[u8]>>,
    gso: Option<Gso>,
    /// How many packets it is cut to.
    packets: u64,
}

impl Queue {
    pub(super) fn packets(&self) -> impl Iterator<Item = PacketRef<'_>> {
        self.kept.iter().map(|kept| PacketRef {
            bytes: &kept.bytes,
            gso: kept.gso,
        })
    }

    /// Drops so many of the oldest; how many packets these are.
    pub(super) fn drop_oldest(&mut self, count: usize) -> u64 {
        let oldest = self.kept.drain(..count.min(self.kept.len()));
        let (mut bytes, mut packets) = (0, 0);
        for kept in oldest {
            bytes += kept.bytes.len();
            packets += kept.packets;
        }
        self.bytes -= bytes;
        packets
    }

    fn count(&self) -> u64 {
        self.kept.iter().map(|kept| kept.packets).sum()
    }
}

impl Waiting {
    /// How many packets wait for all.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Whether packets wait for this peer.
    pub(super) fn holds(&self, peer: u32) -> bool {
        self.bytes > 0 && self.queues.contains_key(&peer)
    }

    /// Adds a packet that is cut to so many. Returns how many packets were dropped for it: of this
    /// peer's if it has too many, of the longest queue if all have: a peer that cannot be reached
    /// takes no room from those that can.
    pub(super) fn push(&mut self, peer: u32, packet: PacketRef<'_>, packets: u64) -> u64 {
        let len = packet.bytes.len();
        let mut dropped = 0;
        while let Some(queue) = self.queues.get(&peer)
            && (queue.kept.len() >= MAX_PACKETS || queue.bytes + len > MAX_PEER_BYTES)
        {
            dropped += self.drop_first(peer);
        }
        while self.bytes + len > MAX_BYTES
            && let Some(&(_, longest)) = self.by_bytes.last()
        {
            dropped += self.drop_first(longest);
        }
        let mut queue = self.take(peer);
        queue.kept.push_back(Kept {
            bytes: Zeroizing::new(packet.bytes.into()),
            gso: packet.gso,
            packets,
        });
        queue.bytes += len;
        self.put_back(peer, queue);
        dropped
    }

    fn drop_first(&mut self, peer: u32) -> u64 {
        let mut queue = self.take(peer);
        let dropped = queue.drop_oldest(1);
        self.put_back(peer, queue);
        dropped
    }

    /// Takes what waits for a peer.
    pub(super) fn take(&mut self, peer: u32) -> Queue {
        let queue = self.queues.remove(&peer).unwrap_or_default();
        self.by_bytes.remove(&(queue.bytes, peer));
        self.bytes -= queue.bytes;
        self.packets -= queue.count();
        queue
    }

    /// Puts back what was taken, or what is left of it.
    pub(super) fn put_back(&mut self, peer: u32, queue: Queue) {
        if queue.kept.is_empty() {
            return;
        }
        self.bytes += queue.bytes;
        self.packets += queue.count();
        self.by_bytes.insert((queue.bytes, peer));
        self.queues.insert(peer, queue);
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
