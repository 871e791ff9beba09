//! What passes through the queues of an interface, for whoever watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::lanes::LANES;
use crate::poll::Polled;
use crate::queues::Role;

/// The counters of one interface. They are written once a batch or train, by the thread that has it,
/// and so have a cache line of their own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Load {
    /// From the TUN.
    pub(crate) outbound: Batches,
    /// From the sockets.
    pub(crate) inbound: Batches,
    /// Data messages from them by lane.
    pub(crate) lanes: [AtomicU64; LANES],
    /// Trains that were given to the kernel.
    pub(crate) sent: Trains,
    /// Messages that it gave, each with datagrams that it had merged.
    pub(crate) received: Trains,
    pub(crate) waiting: Arc<Waiting>,
}

/// What waits on the outbound path at the moment.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// For a full socket.
    pub(crate) sealed_trains: AtomicUsize,
    /// For sessions.
    pub(crate) staged_frames: AtomicUsize,
    pub(crate) staged_packets: AtomicU64,
}

impl Waiting {
    /// At the moment.
    pub(crate) fn read(&self) -> WaitingCounters {
        WaitingCounters {
            handshake_messages: 0,
            sealed_trains: self.sealed_trains.load(Ordering::Relaxed) as u64,
            staged_frames: self.staged_frames.load(Ordering::Relaxed) as u64,
            staged_packets: self.staged_packets.load(Ordering::Relaxed),
        }
    }
}

/// Batches of one direction.
#[derive(Default)]
pub(crate) struct Batches {
    batches: AtomicU64,
    contents: AtomicU64,
    helped: AtomicU64,
}

impl Batches {
    /// A thread took a batch.
    pub(crate) fn took(&self, polled: Polled, role: Role) {
        let Polled::Packets {
            count: contents @ 1..,
            ..
        } = polled
        else {
            return;
        };
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.contents.fetch_add(contents as u64, Ordering::Relaxed);
        if role == Role::Helper {
            self.helped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Goes on from those of another process.
    pub(crate) fn set(&self, counters: &BatchCounters) {
        self.batches.store(counters.batches, Ordering::Relaxed);
        self.contents.store(counters.contents, Ordering::Relaxed);
        self.helped.store(counters.helped, Ordering::Relaxed);
    }

    /// So far.
    pub(crate) fn read(&self) -> BatchCounters {
        BatchCounters {
            batches: self.batches.load(Ordering::Relaxed),
            contents: self.contents.load(Ordering::Relaxed),
            helped: self.helped.load(Ordering::Relaxed),
        }
    }
}

/// Trains by how many datagrams they have.
#[derive(Default)]
pub(crate) struct Trains {
    counts: [AtomicU64; TRAIN_LENGTHS],
    datagrams: AtomicU64,
}

/// Lengths are told apart up to 1, 2, 4, 8, 16, 32, 64 datagrams, and above.
const TRAIN_LENGTHS: usize = 8;

impl Trains {
    /// Trains of so many datagrams each. Other threads see them at once, which costs as much for
    /// many as for one.
    pub(crate) fn count(&self, trains: impl Iterator<Item = usize>) {
        let mut more = TrainCounters::default();
        for datagrams in trains {
            let length = datagrams.max(1).next_power_of_two().ilog2() as usize;
            more.counts[length.min(TRAIN_LENGTHS - 1)] += 1;
            more.datagrams += datagrams as u64;
        }
        for (count, more) in self.counts.iter().zip(more.counts) {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
        self.datagrams.fetch_add(more.datagrams, Ordering::Relaxed);
    }

    /// Goes on from those of another process.
    pub(crate) fn set(&self, counters: &TrainCounters) {
        for (count, known) in self.counts.iter().zip(counters.counts) {
            count.store(known, Ordering::Relaxed);
        }
        self.datagrams.store(counters.datagrams, Ordering::Relaxed);
    }

    /// So far.
    pub(crate) fn read(&self) -> TrainCounters {
        TrainCounters {
            counts: std::array::from_fn(|length| self.counts[length].load(Ordering::Relaxed)),
            datagrams: self.datagrams.load(Ordering::Relaxed),
        }
    }
}

/// Batches that threads took from the queues of an interface, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounters {
    /// Batches that were not empty.
    pub batches: u64,
    /// What these had: frames of the TUN, or data messages of the sockets.
    pub contents: u64,
    /// Batches that a thread took which does not own the queues.
    pub helped: u64,
}

/// Trains by their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainCounters {
    /// Trains of one datagram, of up to 2, 4, 8, 16, 32 and 64, and of more.
    pub counts: [u64; TRAIN_LENGTHS],
    /// What they had together.
    pub datagrams: u64,
}

/// What waits in the queues of an interface at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingCounters {
    /// Handshake messages, for the control thread.
    pub handshake_messages: u64,
    /// Sealed trains, for a full socket.
    pub sealed_trains: u64,
    /// Frames, for a session.
    pub staged_frames: u64,
    /// Packets in these frames.
    pub staged_packets: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains_are_counted_by_length() {
        let trains = Trains::default();
        trains.count([1, 2, 3, 4].into_iter());
        trains.count([5, 64, 65, 1000].into_iter());
        let read = trains.read();
        assert_eq!(read.counts, [1, 1, 2, 1, 0, 0, 1, 2]);
        assert_eq!(read.datagrams, 1144);
    }
}
