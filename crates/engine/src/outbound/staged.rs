//! Frames that wait for a session.

use std::collections::{BTreeSet, HashMap, VecDeque};

use adit_offload::Frame;
use zeroize::Zeroizing;

/// Frames that one peer may have waiting. The oldest goes first: what a user wants by now is newer.
const MAX_FRAMES: usize = 128;
/// Bytes that all peers of one interface may have waiting.
const MAX_BYTES: usize = 4 << 20;

/// Frames as they were read from the TUN, by the number of the peer that they wait for. `P` is a
/// handle of a peer.
pub(crate) struct Staged<P> {
    queues: HashMap<u32, PeerQueue<P>>,
    /// The bytes of each queue and whose it is: the longest is last.
    by_bytes: BTreeSet<(usize, u32)>,
    bytes: usize,
    max_bytes: usize,
    frames: usize,
    /// A GSO frame is several.
    packets: u64,
}

/// The frames that wait for one peer, oldest first.
struct PeerQueue<P> {
    peer: P,
    frames: VecDeque<Zeroizing<Box<[u8]>>>,
    bytes: usize,
}

impl<P> Default for Staged<P> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            by_bytes: BTreeSet::new(),
            bytes: 0,
            max_bytes: MAX_BYTES,
            frames: 0,
            packets: 0,
        }
    }
}

impl<P: Clone> Staged<P> {
    /// Sets its share of the bytes: it is one of so many.
    pub(crate) fn set_share(&mut self, of: usize) {
        self.max_bytes = MAX_BYTES / of;
    }

    /// Takes all frames, those of a peer in their order, each with its peer.
    pub(crate) fn take_all(&mut self) -> Vec<(P, Zeroizing<Box<[u8]>>)> {
        let ids: Vec<u32> = self.queues.keys().copied().collect();
        let mut all = Vec::with_capacity(self.frames);
        for id in ids {
            let Some(peer) = self.queues.get(&id).map(|queue| queue.peer.clone()) else {
                continue;
            };
            let frames = self.take(id).into_iter();
            all.extend(frames.map(|frame| (peer.clone(), frame)));
        }
        all
    }

    /// How many frames wait.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Whether frames wait for this peer.
    pub(crate) fn holds(&self, peer: u32) -> bool {
        self.bytes > 0 && self.queues.contains_key(&peer)
    }

    /// How many packets wait, for all peers.
    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }

    /// Puts a frame last in the queue of peer number `id`. When a queue or all of them together are
    /// full, `dropped` is told which peer lost how many packets.
    ///
    /// When all are full, the longest queue drops its oldest frame: a peer that cannot be reached
    /// takes no space from those that can.
    pub(crate) fn push(
        &mut self,
        id: u32,
        peer: &P,
        frame: &[u8],
        mut dropped: impl FnMut(&P, u64),
    ) {
        let queue = self.queues.get(&id);
        if queue.is_some_and(|queue| queue.frames.len() >= MAX_FRAMES) {
            dropped(peer, self.drop_oldest(id));
        }
        while self.bytes + frame.len() > self.max_bytes {
            let Some(&(_, longest)) = self.by_bytes.last() else {
                break;
            };
            let Some(loser) = self.queues.get(&longest).map(|queue| queue.peer.clone()) else {
                break;
            };
            dropped(&loser, self.drop_oldest(longest));
        }
        let queue = self.queues.entry(id).or_insert_with(|| PeerQueue {
            peer: peer.clone(),
            frames: VecDeque::new(),
            bytes: 0,
        });
        self.by_bytes.remove(&(queue.bytes, id));
        queue.frames.push_back(Zeroizing::new(frame.into()));
        queue.bytes += frame.len();
        self.bytes += frame.len();
        self.frames += 1;
        self.packets += packets(frame);
        self.by_bytes.insert((queue.bytes, id));
    }

    /// Drops the oldest frame of a queue, and the queue with its last; returns how many packets it
    /// was.
    fn drop_oldest(&mut self, peer: u32) -> u64 {
        let Some(queue) = self.queues.get_mut(&peer) else {
            return 0;
        };
        self.by_bytes.remove(&(queue.bytes, peer));
        let oldest = queue.frames.pop_front().unwrap_or_default();
        self.frames -= 1;
        queue.bytes -= oldest.len();
        self.bytes -= oldest.len();
        if queue.frames.is_empty() {
            self.queues.remove(&peer);
        } else {
            self.by_bytes.insert((queue.bytes, peer));
        }
        let lost = packets(&oldest);
        self.packets -= lost;
        lost
    }

    /// Takes all frames that wait for a peer, oldest first.
    pub(crate) fn take(&mut self, peer: u32) -> VecDeque<Zeroizing<Box<[u8]>>> {
        let Some(queue) = self.queues.remove(&peer) else {
            return VecDeque::new();
        };
        self.by_bytes.remove(&(queue.bytes, peer));
        self.bytes -= queue.bytes;
        self.frames -= queue.frames.len();
        self.packets -= queue.frames.iter().map(|it| packets(it)).sum::<u64>();
        queue.frames
    }

    /// Drops all frames that wait for a peer; returns how many packets they were.
    pub(crate) fn drop_all(&mut self, peer: u32) -> u64 {
        self.take(peer).iter().map(|frame| packets(frame)).sum()
    }
}

/// How many packets a frame is: a GSO packet is several.
pub(crate) fn packets(frame: &[u8]) -> u64 {
    Frame::parse(frame).map_or(1, |frame| frame.segments() as u64)
}

#[cfg(test)]
#[path = "staged_tests.rs"]
mod tests;
