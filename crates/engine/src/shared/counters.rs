//! Counters of what passes through the queues of an interface, for its status.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use adit_proto::PerThread;

use crate::order::rx_queues::RX_QUEUES;
use crate::thread::poll::{PollRole, Polled};

/// The counters of one interface, which are written once a batch or train.
#[derive(Default)]
pub(crate) struct LoadCounters {
    counters: PerThread<Counters>,
    pub(crate) waiting: Arc<Waiting>,
}

/// Counters of one thread, or of several.
#[derive(Default)]
pub(crate) struct Counters {
    /// From the TUN.
    pub(crate) outbound: Batches,
    /// From the sockets.
    pub(crate) inbound: Batches,
    /// Data messages from them by receive queue.
    pub(crate) rx_queues: [AtomicU64; RX_QUEUES],
    /// Trains that were given to the kernel.
    pub(crate) sent: Trains,
    /// Messages that it gave, each with datagrams that it had merged.
    pub(crate) received: Trains,
}

/// The values of counters so far.
#[derive(Default)]
pub(crate) struct CounterValues {
    pub(crate) outbound: BatchCounters,
    pub(crate) inbound: BatchCounters,
    pub(crate) rx_queues: [u64; RX_QUEUES],
    pub(crate) sent: TrainCounters,
    pub(crate) received: TrainCounters,
}

impl LoadCounters {
    /// The counters of the calling thread.
    pub(crate) fn own(&self) -> &Counters {
        self.counters.own()
    }

    /// The sum of all threads' counters.
    pub(crate) fn read(&self) -> CounterValues {
        let mut all = CounterValues::default();
        for of in self.counters.all() {
            of.outbound.add_to(&mut all.outbound);
            of.inbound.add_to(&mut all.inbound);
            for (rx_queue, count) in all.rx_queues.iter_mut().zip(&of.rx_queues) {
                *rx_queue += count.load(Ordering::Relaxed);
            }
            of.sent.add_to(&mut all.sent);
            of.received.add_to(&mut all.received);
        }
        all
    }
}

/// Frames and trains that wait on the outbound path at the moment.
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
    pub(crate) fn took(&self, polled: Polled, role: PollRole) {
        let Polled::Packets {
            count: contents @ 1..,
            ..
        } = polled
        else {
            return;
        };
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.contents.fetch_add(contents as u64, Ordering::Relaxed);
        if role == PollRole::Worker {
            self.helped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Goes on from those of another process.
    pub(crate) fn go_on_from(&self, counters: &BatchCounters) {
        let each = [&self.batches, &self.contents, &self.helped];
        let known = [counters.batches, counters.contents, counters.helped];
        for (counter, known) in each.into_iter().zip(known) {
            counter.fetch_add(known, Ordering::Relaxed);
        }
    }

    fn add_to(&self, sum: &mut BatchCounters) {
        sum.batches += self.batches.load(Ordering::Relaxed);
        sum.contents += self.contents.load(Ordering::Relaxed);
        sum.helped += self.helped.load(Ordering::Relaxed);
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
    pub(crate) fn go_on_from(&self, counters: &TrainCounters) {
        for (count, known) in self.counts.iter().zip(counters.counts) {
            count.fetch_add(known, Ordering::Relaxed);
        }
        self.datagrams
            .fetch_add(counters.datagrams, Ordering::Relaxed);
    }

    fn add_to(&self, sum: &mut TrainCounters) {
        for (sum, count) in sum.counts.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
        sum.datagrams += self.datagrams.load(Ordering::Relaxed);
    }
}

/// Batches that threads took from the queues of an interface, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounters {
    /// Batches that were not empty.
    pub batches: u64,
    /// Contents of these: frames of the TUN, or data messages of the sockets.
    pub contents: u64,
    /// Batches that a thread took which does not own the queues.
    pub helped: u64,
}

/// Trains by their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainCounters {
    /// Trains of one datagram, of up to 2, 4, 8, 16, 32 and 64, and of more.
    pub counts: [u64; TRAIN_LENGTHS],
    /// Datagrams in all of these.
    pub datagrams: u64,
}

/// Packets and messages in the queues of an interface at a moment.
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
        let mut read = TrainCounters::default();
        trains.add_to(&mut read);
        assert_eq!(read.counts, [1, 1, 2, 1, 0, 0, 1, 2]);
        assert_eq!(read.datagrams, 1144);
    }

    #[test]
    fn what_all_threads_count_is_read() {
        let load = LoadCounters::default();
        let known = BatchCounters {
            batches: 1,
            contents: 10,
            helped: 1,
        };
        load.own().inbound.go_on_from(&known);
        let count = || {
            let (own, polled) = (load.own(), Polled::packets(5, false));
            own.outbound.took(polled, PollRole::Owner);
            own.inbound.took(polled, PollRole::Worker);
            own.rx_queues[1].fetch_add(5, Ordering::Relaxed);
            own.sent.count([64].into_iter());
            own.received.count([1, 3].into_iter());
        };
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(count);
            }
        });
        let CounterValues {
            outbound,
            inbound,
            rx_queues,
            sent,
            received,
        } = load.read();
        let batches = |of: BatchCounters| (of.batches, of.contents, of.helped);
        assert_eq!(batches(outbound), (20, 100, 0));
        assert_eq!(batches(inbound), (21, 110, 21));
        assert_eq!((rx_queues[0], rx_queues[1]), (0, 100));
        assert_eq!((sent.datagrams, received.datagrams), (20 * 64, 20 * 4));
    }
}
