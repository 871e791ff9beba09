//! The queues of a TUN device that peers share fairly.
//!
//! [`Egress`] puts packets of sparse flows into the first queue, all others into one of many that
//! their destination chooses. What a peer has waiting in its queues delays no other one: the queues
//! are read by deficit round robin, and a sender whose queue is full slows down.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use adit_offload::VNET_HDR_LEN;
use arrayvec::ArrayVec;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use super::egress::{Egress, Reading};
use crate::FrameBatch;
use crate::programs::egress::{QUEUES, queue_of};

/// Bytes that each peer may send in a round.
const QUANTUM: i64 = 64 << 10;

/// The queues of a device, besides the first.
pub(super) struct FairQueues {
    /// Readable when any queue has something, the first included, whose number is 0.
    epoll: OwnedFd,
    /// Queues 1 to [`QUEUES`]. Set once.
    bulk: OnceLock<Vec<OwnedFd>>,
    /// Held by the thread that reads.
    schedule: Mutex<Schedule>,
    /// Frames that were processed and that the schedule does not know of: the thread that reports
    /// them does not wait for one that reads.
    processed: Mutex<Processed>,
}

/// Frames that were processed lately.
#[derive(Clone, Copy)]
struct Processed {
    any: bool,
    /// How many of each queue, the first included.
    frames: [u64; 1 + QUEUES],
    /// Whom the last of each queue but the first was for.
    peers: [Option<u32>; QUEUES],
}

impl Processed {
    const NONE: Self = Self {
        any: false,
        frames: [0; 1 + QUEUES],
        peers: [None; QUEUES],
    };
}

impl FairQueues {
    /// Those of a device that has only this first queue yet.
    pub(super) fn new(first: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, first, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self {
            epoll,
            bulk: OnceLock::new(),
            schedule: Mutex::new(Schedule::new()),
            processed: Mutex::new(Processed::NONE),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether there are queues besides the first.
    pub(super) fn are_open(&self) -> bool {
        self.bulk.get().is_some()
    }

    /// All queues besides the first, as far as they are open, and nothing that was processed is left
    /// to be noted.
    pub(super) fn fds(&self, egress: Option<&Egress>) -> impl Iterator<Item = BorrowedFd<'_>> {
        if let Some(egress) = egress {
            self.settle(egress);
        }
        self.bulk.get().into_iter().flatten().map(AsFd::as_fd)
    }

    /// Adds the further queues, which `open` opens.
    pub(super) fn open(&self, mut open: impl FnMut() -> io::Result<OwnedFd>) -> io::Result<()> {
        let queues = (1..=QUEUES as u64).map(|number| {
            let queue = open()?;
            epoll::add(
                &self.epoll,
                &queue,
                EventData::new_u64(number),
                EventFlags::IN,
            )?;
            Ok(queue)
        });
        let queues = queues.collect::<io::Result<Vec<_>>>()?;
        let _ = self.bulk.set(queues);
        Ok(())
    }

    /// Reads frames until none waits (true) or the batch is full.
    pub(super) fn read(
        &self,
        first: &OwnedFd,
        egress: &Egress,
        batch: &mut FrameBatch,
    ) -> io::Result<bool> {
        let read = self.read_scheduled(first, egress, batch);
        self.settle(egress);
        read
    }

    fn read_scheduled(
        &self,
        first: &OwnedFd,
        egress: &Egress,
        batch: &mut FrameBatch,
    ) -> io::Result<bool> {
        let mut schedule = lock(&self.schedule);
        let bulk = self.bulk.get().map_or(&[][..], Vec::as_slice);
        let is_sparse = self.poll(&mut schedule)?;
        let mut reading = egress.reading();
        batch.clear();
        while batch.has_room() {
            let Some(queue) = schedule.next() else { break };
            match read(&bulk[queue], &mut reading, &schedule, 1 + queue, batch)? {
                Some(frame) => schedule.took(queue, frame.len()),
                None => schedule.was_empty(queue),
            }
        }
        // What a flow sent to the first queue came before what it sent to the others: all that is
        // there now is processed before what was just read.
        let bulk = batch.len();
        if is_sparse || bulk > 0 {
            // A flow has one packet there at most, so this ends.
            while let Some(frame) = read(first, &mut reading, &schedule, 0, batch)? {
                schedule.took_sparse(queue_of(frame), frame.len());
            }
            batch.put_first(bulk);
        }
        if schedule.ready == 0 {
            schedule.end_round();
        }
        let debts = schedule.debts();
        for queue in bits(debts ^ std::mem::replace(&mut schedule.told, debts)) {
            reading.set_in_debt(1 + queue, debts >> queue & 1 == 1);
        }
        Ok(schedule.ready == 0)
    }

    /// Notes which queues have something; true if the first has.
    fn poll(&self, schedule: &mut Schedule) -> io::Result<bool> {
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 1 + QUEUES];
        let count = match epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())) {
            Err(rustix::io::Errno::INTR) => 0,
            count => count?,
        };
        let mut is_sparse = false;
        for event in &events[..count] {
            match usize::try_from(event.data.u64())
                .unwrap_or(0)
                .checked_sub(1)
            {
                Some(queue) => schedule.has(queue),
                None => is_sparse = true,
            }
        }
        Ok(is_sparse)
    }

    /// Frames that were read have been processed.
    pub(super) fn processed(&self, egress: &Egress, batch: &FrameBatch) {
        let mut processed = lock(&self.processed);
        processed.any = true;
        for (queue, frame, peer) in batch.queues() {
            processed.frames[queue] += 1;
            if peer.is_some() {
                let of_first = || queue_of(frame.get(VNET_HDR_LEN..).unwrap_or_default());
                let queue = queue.checked_sub(1).unwrap_or_else(of_first);
                processed.peers[queue] = peer;
            }
        }
        drop(processed);
        self.settle(egress);
    }

    /// Takes note of what was processed, unless another thread reads: that one does it afterwards.
    fn settle(&self, egress: &Egress) {
        while lock(&self.processed).any {
            let Ok(mut schedule) = self.schedule.try_lock() else {
                return;
            };
            let Processed { frames, peers, .. } =
                std::mem::replace(&mut *lock(&self.processed), Processed::NONE);
            for (known, peer) in schedule.peers.iter_mut().zip(peers) {
                *known = peer.or(*known);
            }
            let mut reading = egress.reading();
            for (queue, frames) in frames.into_iter().enumerate() {
                if frames > 0 {
                    reading.processed(queue, frames);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one frame from a queue: its packet, or `None` if there is none.
fn read<'a>(
    fd: &OwnedFd,
    reading: &mut Reading<'_>,
    schedule: &Schedule,
    queue: usize,
    batch: &'a mut FrameBatch,
) -> io::Result<Option<&'a [u8]>> {
    use rustix::io::Errno;
    loop {
        match batch.append(queue, |buf| Ok(rustix::io::read(fd, buf)?)) {
            Ok(_) => {
                let packet = batch.last_frame().get(VNET_HDR_LEN..).unwrap_or_default();
                reading.took(queue, packet.len(), &schedule.peers);
                return Ok(Some(packet));
            }
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => {
                    reading.was_empty(queue);
                    return Ok(None);
                }
                Some(Errno::INTR) => {}
                // Frames that were read come first. The next read meets the same error.
                _ if !batch.is_empty() => return Ok(None),
                _ => return Err(error),
            },
        }
    }
}

/// Which queue is read next.
///
/// In each round a peer may send [`QUANTUM`] bytes, whatever the number of its queues. To whom a
/// frame goes shows when it has been read; it is taken for one of the peer that the queue's last
/// frame was for.
struct Schedule {
    /// A bit for each queue that may have something.
    ready: u64,
    /// The queue whose turn it is.
    turn: u32,
    /// Whom the last frame was for.
    peers: [Option<u32>; QUEUES],
    /// Bytes that may still be read in this round.
    deficits: [i64; QUEUES],
    /// Bytes that were read in this round from the first queue and not from these.
    sparse: [i64; QUEUES],
    /// A bit for each queue of which the program knows that it is in debt.
    told: u64,
}

impl Schedule {
    fn new() -> Self {
        Self {
            ready: 0,
            turn: 0,
            peers: [None; QUEUES],
            deficits: [QUANTUM; QUEUES],
            sparse: [0; QUEUES],
            told: 0,
        }
    }

    /// This queue has something.
    fn has(&mut self, queue: usize) {
        if self.ready & 1 << queue != 0 {
            return;
        }
        // Nor may the peer send more because it has one more queue.
        let siblings = self.siblings(queue);
        let deficits = siblings.iter().map(|other| self.deficits[*other]);
        if let Some(least) = deficits.min() {
            self.deficits[queue] = least;
        }
        self.ready |= 1 << queue;
    }

    /// The queue to read from, if any has something.
    fn next(&mut self) -> Option<usize> {
        while self.ready != 0 {
            let from_turn = u64::MAX.checked_shl(self.turn).unwrap_or(0);
            let queue = (self.ready & from_turn).trailing_zeros();
            if queue == u64::BITS {
                self.end_round();
            } else if self.deficits[queue as usize] > 0 {
                self.turn = queue;
                return Some(queue as usize);
            } else {
                self.turn = queue + 1;
            }
        }
        None
    }

    /// The next round begins.
    fn end_round(&mut self) {
        self.turn = 0;
        for deficit in &mut self.deficits {
            *deficit = (*deficit + QUANTUM).min(QUANTUM);
        }
        self.sparse = [0; QUEUES];
    }

    /// A bit for each queue of which the peer had so much read from the first one that the rest waits
    /// for the next round.
    fn debts(&self) -> u64 {
        if self.sparse.iter().sum::<i64>() < QUANTUM {
            return 0;
        }
        let is_in_debt = |queue: &usize| {
            let peer = self.peers[*queue];
            let all = self.sparse.iter().zip(self.peers).enumerate();
            let of_peer = all.filter(|(other, (_, its_peer))| {
                other == queue || peer.is_some() && *its_peer == peer
            });
            of_peer.map(|(_, (bytes, _))| bytes).sum::<i64>() >= QUANTUM
        };
        let queues = (0..QUEUES).filter(is_in_debt);
        queues.fold(0, |debts, queue| debts | 1 << queue)
    }

    /// A frame of so many bytes was read from the first queue, which would otherwise have been in
    /// this one.
    fn took_sparse(&mut self, queue: usize, len: usize) {
        self.took(queue, len);
        // However much that is, the next rounds are not spent.
        self.deficits[queue] = self.deficits[queue].max(-QUANTUM);
        self.sparse[queue] += i64::try_from(len).unwrap_or(QUANTUM);
    }

    /// A frame of so many bytes was read from a queue.
    fn took(&mut self, queue: usize, len: usize) {
        let len = i64::try_from(len).unwrap_or(QUANTUM);
        self.deficits[queue] -= len;
        for other in self.siblings(queue) {
            self.deficits[other] -= len;
        }
    }

    /// Nothing is left in a queue.
    fn was_empty(&mut self, queue: usize) {
        self.ready &= !(1 << queue);
    }

    /// The other queues with something for the same peer.
    fn siblings(&self, queue: usize) -> ArrayVec<usize, QUEUES> {
        let peer = self.peers[queue];
        let others = bits(self.ready & !(1 << queue));
        let of_peer = |other: &usize| peer.is_some() && self.peers[*other] == peer;
        others.filter(of_peer).collect()
    }
}

/// The numbers of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros();
        (lowest < u64::BITS).then(|| {
            set &= set - 1;
            lowest as usize
        })
    })
}

#[cfg(test)]
#[path = "fair_queues_tests.rs"]
pub(super) mod tests;
