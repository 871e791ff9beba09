//! Frames that wait for a session.

use std::collections::{HashMap, VecDeque};

use adit_io::offload::Frame;
use zeroize::Zeroizing;

/// Frames that one peer may have waiting. The oldest goes first: what a user wants by now is newer.
const MAX_FRAMES: usize = 128;
/// Bytes that all peers of one shard may have waiting.
const MAX_BYTES: usize = 4 << 20;

/// Frames as they were read from the TUN, by the number of the tunnel that they wait for.
#[derive(Default)]
pub(crate) struct Staged {
    queues: HashMap<u32, VecDeque<Zeroizing<Box<[u8]>>>>,
    bytes: usize,
}

impl Staged {
    /// Whether frames wait for this tunnel.
    pub(crate) fn holds(&self, tunnel: u32) -> bool {
        self.bytes > 0 && self.queues.contains_key(&tunnel)
    }

    /// Puts a frame last in its tunnel's queue; returns how many packets had to go for it (its own perhaps).
    pub(crate) fn push(&mut self, tunnel: u32, frame: &[u8]) -> u64 {
        let mut dropped = 0;
        let queue = self.queues.entry(tunnel).or_default();
        while queue.len() >= MAX_FRAMES || self.bytes + frame.len() > MAX_BYTES {
            let Some(old) = queue.pop_front() else {
                break;
            };
            self.bytes -= old.len();
            dropped += packets(&old);
        }
        if self.bytes + frame.len() > MAX_BYTES {
            dropped += packets(frame);
        } else {
            self.bytes += frame.len();
            queue.push_back(Zeroizing::new(frame.into()));
        }
        if queue.is_empty() {
            self.queues.remove(&tunnel);
        }
        dropped
    }

    /// Takes all frames that wait for a tunnel, oldest first.
    pub(crate) fn take(&mut self, tunnel: u32) -> VecDeque<Zeroizing<Box<[u8]>>> {
        let queue = self.queues.remove(&tunnel).unwrap_or_default();
        self.bytes -= queue.iter().map(|frame| frame.len()).sum::<usize>();
        queue
    }

    /// Drops all frames that wait for a tunnel; returns how many packets they were.
    pub(crate) fn drop_all(&mut self, tunnel: u32) -> u64 {
        self.take(tunnel).iter().map(|frame| packets(frame)).sum()
    }
}

/// How many packets a frame is: a super-frame is several.
fn packets(frame: &[u8]) -> u64 {
    Frame::parse(frame).map_or(1, |frame| frame.segments() as u64)
}

#[cfg(test)]
#[path = "staged_tests.rs"]
mod tests;
