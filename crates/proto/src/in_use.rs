//! Which receiver indices are in use, for a filter that drops the datagrams that have others.
//!
//! The last byte of an index says its [receive queue](crate::rx_queues), modulo MAX_RX_QUEUES. Where several sockets
//! receive, it says which of them gets the data.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::rx_queues::{MAX_RX_QUEUES, RX_QUEUE_BITS, rx_queue};

/// Buckets of receiver indices: an index that nobody has is in a bucket with one that somebody has
/// as rarely as there are few of these.
pub const INDEX_BUCKETS: usize = 1 << BITS;
const BITS: u32 = 15;

/// A listener that learns which receiver indices are in use, by buckets: the lower bits of an index are its
/// bucket.
pub trait InUse: Send + Sync {
    /// Whether an index of this bucket is in use now.
    fn set(&self, bucket: usize, is_used: bool);

    /// Whether all that are in use are told. Until then, and when it learns no more, any may be.
    fn set_complete(&self, is_complete: bool);
}

/// Peers by every index that was given out, of handshakes and of sessions.
#[derive(Default)]
pub(crate) struct Indices {
    /// By [`key`], so that those of a bucket stand together.
    peers: BTreeMap<u32, u32>,
    /// How many indices are of each receive queue.
    of_rx_queues: [u32; MAX_RX_QUEUES],
    told: Option<Arc<dyn InUse>>,
}

/// The index with its bucket in front.
fn key(index: u32) -> u32 {
    index.rotate_right(BITS)
}

fn bucket(index: u32) -> usize {
    index as usize % INDEX_BUCKETS
}

impl Indices {
    /// From now on this one learns what is in use, and the one before learns no more.
    pub(crate) fn tell(&mut self, whom: Option<Arc<dyn InUse>>) {
        if let Some(before) = self.told.take() {
            before.set_complete(false);
        }
        if let Some(told) = &whom {
            for key in self.peers.keys() {
                told.set(bucket(key.rotate_left(BITS)), true);
            }
            told.set_complete(true);
        }
        self.told = whom;
    }

    /// False if the index is in use.
    pub(crate) fn insert(&mut self, index: u32, peer: u32) -> bool {
        let Entry::Vacant(entry) = self.peers.entry(key(index)) else {
            return false;
        };
        entry.insert(peer);
        self.of_rx_queues[usize::from(rx_queue(index))] += 1;
        if let Some(told) = &self.told {
            told.set(bucket(index), true);
        }
        true
    }

    pub(crate) fn remove(&mut self, index: u32) {
        if self.peers.remove(&key(index)).is_none() {
            return;
        }
        self.of_rx_queues[usize::from(rx_queue(index))] -= 1;
        if let Some(told) = &self.told {
            let last = key(index) | u32::MAX >> BITS;
            let mut others = self.peers.range(last & !(u32::MAX >> BITS)..=last);
            if others.next().is_none() {
                told.set(bucket(index), false);
            }
        }
    }

    /// Of the receive queues that are this one modulo `count`: that of the fewest indices.
    pub(crate) fn emptiest_rx_queue(&self, modulo: usize, count: usize) -> u8 {
        let rx_queues = (0..=RX_QUEUE_BITS).zip(&self.of_rx_queues);
        let rx_queues = rx_queues.filter(|(rx_queue, _)| usize::from(*rx_queue) % count == modulo);
        let emptiest = rx_queues.min_by_key(|(_, indices)| **indices);
        emptiest.map_or(0, |(rx_queue, _)| rx_queue)
    }

    /// The peer that has an index.
    pub(crate) fn peer(&self, index: u32) -> Option<u32> {
        self.peers.get(&key(index)).copied()
    }

    /// The peers of all indices, each with a number by which to go on after it, from such a number
    /// on.
    pub(crate) fn peers_from(&self, number: u32) -> impl Iterator<Item = (u32, u32)> {
        let peers = self.peers.range(number..);
        peers.map(|(number, peer)| (*number, *peer))
    }

    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }
}

#[cfg(test)]
#[path = "in_use_tests.rs"]
mod tests;
