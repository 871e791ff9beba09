//! A BPF program for what leaves through a TUN device: it holds back what would make a queue too
//! long, and chooses the queue where there are several.
//!
//! The kernel measures a queue in packets, which may be a thousand times as long as others.
//!
//! Of several queues the first is for packets of sparse flows, all others ([`QUEUES`]) are for the
//! rest: the destination chooses among them. A packet is of a sparse flow if it is no GSO packet
//! and nothing of its flow waits: all that was sent before has been processed. Flows keep their
//! order as long as the reader of the queues
//!
//! - processes what it read from the first queue before what it read from others before that, and
//! - reports as processed only what is ([`Reading::processed`]).
//!
//! Two packets of one flow must never count as two flows, so the program reads addresses, protocol
//! and ports itself. The kernel's hash of a packet tells too much apart: fragments have no ports,
//! and flow labels, sockets and tunnels change it within a flow.
//!
//! - Of UDP only the destination's port counts. VXLAN and its like choose the other one by the
//!   kernel's hash of what they carry.
//! - Of other protocols, such as GRE, no port counts: a tunnel between two hosts is one flow.
//! - A fragment, or a packet with IPv6 extension headers, may be of any flow. It is never sparse, and
//!   while it waits, nothing else is that has the same queue.
//!
//! Nor is anything while its queue is [in debt](Reading::set_in_debt): the first queue is no way
//! around the turns that peers have.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::programs::egress::{
    ALL_READ, CAPACITY, IN_DEBT, LIMIT, LONG, LONG_PASSED, LONG_READ, LOST, PASSED, PROCESSED,
    QUEUES, READ, STEERED, count_numbers, place,
};
use crate::sys::bpf::SharedMap;

/// Packets that are read from a queue before what was let through before them is taken for read,
/// too, or lost. No fewer than the queue has room for.
const AGE: u32 = 512;
/// For so long and so often it is observed how many packets an empty queue lost. Each time a packet
/// may be on its way into the queue: taken for lost, it is overtaken by the next one of its flow.
const OBSERVED: Duration = Duration::from_millis(100);
const OBSERVATIONS: u32 = 32;
/// When so many later ones were read from its queue, a packet was processed, or lost. Far more than
/// the queue has room for.
const SETTLED: u32 = 16_384;

/// Bytes that long packets have on average where the queue is long enough. TCP makes none longer
/// than a third of its window, so where many connections share the queue a short one costs them
/// more than it saves.
const MEAN: u64 = 48_000;
/// So many times the least limit is the most.
const RANGE: u64 = 8;

/// Drops long GSO packets that are sent through an interface while too many bytes of long packets
/// wait, as long as it lives.
///
/// TCP on this host keeps what is dropped here, and slows down. It tries again when an
/// acknowledgement comes; where none is to come, only after 200 ms or more. So a connection that
/// has nothing in flight passes. A packet that is no GSO packet passes, too: with an MTU of 4096 or
/// more a retransmission is as long as that. Of such packets the kernel's limit lets no more bytes
/// wait than the MTU times the number of packets.
///
/// One queue alone may have as many bytes as the limit says. Of several, each may have what all
/// leave of twice the limit, so that full ones have equal parts.
#[derive(Debug)]
pub(crate) struct Egress {
    numbers: SharedMap,
    map: OwnedFd,
    attached: OwnedFd,
    least: u64,
    reader: Mutex<QueueReader>,
}

/// The reader's view of the queues.
#[derive(Debug)]
struct QueueReader {
    queues: Vec<ReadQueue>,
    /// Packets read lately, and how many of them were long.
    packets: u32,
    long: u64,
    limit: u64,
}

#[derive(Clone, Copy, Debug)]
struct ReadQueue {
    /// Packets read since `PASSED` and `LONG_PASSED` were `marks`.
    packets: u32,
    marks: [u64; 2],
    /// What `PASSED` was when it was last looked at.
    seen: u64,
    /// What it was so many packets ago.
    settling: u64,
    read: u32,
    /// Packets that were read and not yet processed.
    unprocessed: u64,
    /// Bytes of long packets that were read lately.
    bytes: u64,
    /// The least number of packets that were missing when the queue was empty, how often it was, and
    /// since when. Some that are missing may yet come: the program has just let them through.
    missing: u64,
    observations: u32,
    since: Instant,
}

/// The right to note what is read; one thread at a time has it.
pub(crate) struct Reading<'a> {
    numbers: &'a [AtomicU64],
    least: u64,
    reader: MutexGuard<'a, QueueReader>,
}

impl Egress {
    /// Goes on with a program that [`attach`] attached, or another process, as [`Self::fds`] had it
    /// there. What that process read, it has processed. Its [`LAYOUT`] must be this one.
    ///
    /// [`attach`]: crate::programs::egress::attach
    /// [`LAYOUT`]: crate::programs::egress::LAYOUT
    pub(crate) fn take_over(
        [map, attached]: [OwnedFd; 2],
        least: u64,
        several: bool,
    ) -> io::Result<Self> {
        let numbers = SharedMap::of_other(&map, count_numbers(several))?;
        let queue = ReadQueue {
            packets: 0,
            marks: [0; 2],
            seen: 0,
            settling: 0,
            read: 0,
            unprocessed: 0,
            bytes: 0,
            missing: u64::MAX,
            observations: 0,
            since: Instant::now(),
        };
        let queues = match several {
            true => 1 + QUEUES,
            false => 1,
        };
        let limit = numbers.get()[LIMIT].load(Relaxed) / 2;
        let reader = QueueReader {
            queues: vec![queue; queues],
            packets: 0,
            long: 0,
            limit: limit.clamp(least, RANGE * least),
        };
        Ok(Self {
            numbers,
            map,
            attached,
            least,
            reader: Mutex::new(reader),
        })
    }

    /// The map and the program's place at the device, for [`Self::take_over`].
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.map.as_fd(), self.attached.as_fd()]
    }

    /// From now on the program chooses among all queues, which are open and have room for so many
    /// packets each.
    ///
    /// It lets no more through: what the kernel drops afterwards counts as not yet processed for a
    /// while, and so makes sparse flows seem not to be.
    pub(crate) fn steer(&self, room: u64) {
        let numbers = self.numbers.get();
        numbers[CAPACITY].store(room - room / 8, Relaxed);
        numbers[STEERED].store(1, Relaxed);
    }

    /// Packets dropped so far that no TCP of this host keeps: those in GSO packets that are
    /// forwarded, or UDP.
    pub(crate) fn lost(&self) -> u64 {
        self.numbers.get()[LOST].load(Relaxed)
    }

    pub(crate) fn reading(&self) -> Reading<'_> {
        let reader = self.reader.lock();
        Reading {
            numbers: self.numbers.get(),
            least: self.least,
            reader: reader.unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Reading<'_> {
    fn number(&self, queue: usize, which: usize) -> u64 {
        self.numbers[place(queue, which)].load(Relaxed)
    }

    /// Sets a number that only this process writes.
    fn set(&self, queue: usize, which: usize, number: u64) {
        self.numbers[place(queue, which)].store(number, Relaxed);
    }

    /// So many bytes of long packets were read from a queue so far.
    fn set_long_read(&self, queue: usize, bytes: u64) {
        let more = bytes.wrapping_sub(self.number(queue, LONG_READ));
        self.set(queue, LONG_READ, bytes);
        let all = self.numbers[ALL_READ].load(Relaxed);
        self.numbers[ALL_READ].store(all.wrapping_add(more), Relaxed);
    }

    /// So many packets that were read from a queue have been processed.
    pub(crate) fn processed(&mut self, queue: usize, packets: u64) {
        let known = &mut self.reader.queues[queue];
        known.unprocessed = known.unprocessed.saturating_sub(packets);
        self.set(queue, PROCESSED, self.number(queue, PROCESSED) + packets);
    }

    /// A queue was empty. What was let through to it before that, and is not there, was lost.
    ///
    /// Or it is on its way: then it is read later and counts no second time, because the program takes
    /// a queue of which more was read than let through for one that is full.
    pub(crate) fn was_empty(&mut self, queue: usize) {
        self.set_long_read(queue, self.number(queue, LONG_PASSED));
        if !self.has_several() {
            return;
        }
        let passed = self.number(queue, PASSED);
        let processed = self.number(queue, PROCESSED);
        let known = &mut self.reader.queues[queue];
        // Others may have come since, while this thread did not run.
        let before = std::mem::replace(&mut known.seen, passed);
        self.set(queue, READ, self.number(queue, READ).max(before));
        let known = &mut self.reader.queues[queue];
        let here = processed + known.unprocessed;
        let Some(missing) = passed.checked_sub(here) else {
            // Some came before the program.
            let processed = processed.saturating_sub(here - passed);
            return self.set(queue, PROCESSED, processed);
        };
        known.missing = known.missing.min(missing);
        known.observations += 1;
        if known.observations >= OBSERVATIONS && known.since.elapsed() >= OBSERVED {
            let missing = std::mem::replace(&mut known.missing, u64::MAX);
            (known.observations, known.since) = (0, Instant::now());
            self.set(queue, PROCESSED, processed + missing);
        }
    }

    /// A packet of so many bytes was read from a queue. `peers` says whom each further queue is for,
    /// as far as it is known.
    pub(crate) fn took(&mut self, queue: usize, bytes: usize, peers: &[Option<u32>]) {
        if bytes >= usize::from(LONG) {
            let bytes = bytes as u64;
            let read = self.number(queue, LONG_READ) + bytes;
            self.set_long_read(queue, read.min(self.number(queue, LONG_PASSED)));
            self.reader.queues[queue].bytes += bytes;
            self.reader.long += 1;
        }
        if self.has_several() {
            self.settle(queue);
        }
        let known = &mut self.reader.queues[queue];
        known.packets += 1;
        if known.packets == AGE {
            known.packets = 0;
            // What was let through may be lost where the queue is full of packets, and must not
            // count for ever.
            let passed = [PASSED, LONG_PASSED].map(|which| self.number(queue, which));
            let known = &mut self.reader.queues[queue];
            let [packets, long] = std::mem::replace(&mut known.marks, passed);
            self.set(queue, READ, self.number(queue, READ).max(packets));
            self.set_long_read(queue, self.number(queue, LONG_READ).max(long));
        }
        self.adapt(peers);
    }

    /// From now on packets of sparse flows wait like all others, or no longer, in the further queue
    /// of this number.
    pub(crate) fn set_in_debt(&self, queue: usize, is_in_debt: bool) {
        self.set(queue, IN_DEBT, is_in_debt.into());
    }

    /// A bit for each further queue that was last said to be in debt, perhaps by another process.
    pub(crate) fn in_debt(&self) -> u64 {
        let further = 1..self.reader.queues.len();
        let in_debt = further.filter(|queue| self.number(*queue, IN_DEBT) != 0);
        in_debt.fold(0, |bits, queue| bits | 1 << (queue - 1))
    }

    fn has_several(&self) -> bool {
        self.reader.queues.len() > 1
    }

    /// One more packet was read from a queue, and will be processed.
    fn settle(&mut self, queue: usize) {
        let passed = self.number(queue, PASSED);
        self.set(queue, READ, passed.min(self.number(queue, READ) + 1));
        let known = &mut self.reader.queues[queue];
        known.seen = passed;
        known.unprocessed += 1;
        known.read += 1;
        if known.read == SETTLED {
            known.read = 0;
            let settled = std::mem::replace(&mut known.settling, passed);
            let processed = self.number(queue, PROCESSED).max(settled);
            self.set(queue, PROCESSED, processed);
        }
    }

    /// The limit is higher while packets are short and nearly all are for one peer. Beside others,
    /// many connections would get more than one does: they would have more in flight.
    fn adapt(&mut self, peers: &[Option<u32>]) {
        let reader = &mut *self.reader;
        reader.packets += 1;
        if reader.packets < AGE {
            return;
        }
        reader.packets = 0;
        let bytes_of = reader
            .queues
            .iter_mut()
            .map(|queue| std::mem::take(&mut queue.bytes));
        // Of the first one nobody knows.
        let peers = std::iter::once(None).chain(peers.iter().copied());
        let read: Vec<_> = bytes_of.zip(peers).collect();
        let busiest = read.iter().max_by_key(|(bytes, _)| bytes);
        let peer = busiest.and_then(|(_, peer)| *peer);
        let (mut bytes, mut others) = (0, 0);
        for (of_queue, its_peer) in read {
            bytes += of_queue;
            if its_peer != peer {
                others += of_queue;
            }
        }
        let long = std::mem::take(&mut reader.long);
        if let Some(mean) = bytes.checked_div(long) {
            let step = reader.limit / 8;
            let after = if mean < MEAN && others <= bytes / 8 {
                reader.limit + step
            } else {
                reader.limit - step
            };
            reader.limit = after.clamp(self.least, RANGE * self.least);
            self.numbers[LIMIT].store(2 * reader.limit, Relaxed);
        }
    }
}
