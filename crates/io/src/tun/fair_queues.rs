//! The queues of a TUN device that peers share fairly.
//!
//! [`Egress`] puts packets of sparse flows into the first queue, all others into one of many that
//! their destination chooses. What a peer has waiting in its queues delays no other one: the queues
//! are read by deficit round robin, and a sender whose queue is full slows down.
//!
//! A peer with a limit has its queues rest while it is in advance of it. A queue that others have
//! packets in, too, does not rest: then the limit drops.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use adit_offload::VNET_HDR_LEN;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use super::egress::{Egress, Reading};
use super::schedule::{Processed, Schedule, bits};
use crate::FrameBatch;
use crate::programs::egress::{QUEUES, queue_of};

/// When to look again whether a thread that reads has had a queue go on.
const AGAIN: Duration = Duration::from_millis(1);

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
    /// When the first queue that rests goes on, in nanoseconds since `made`; 0 if none rests.
    goes_on: AtomicU64,
    has_begun_to_rest: AtomicBool,
    made: Instant,
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
            goes_on: AtomicU64::new(0),
            has_begun_to_rest: AtomicBool::new(false),
            made: Instant::now(),
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

    /// Goes on in place of another process, which told the program that queues are in debt.
    pub(super) fn take_over(&self, egress: &Egress) {
        lock(&self.schedule).told = egress.reading().in_debt();
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
        self.go_on(&mut schedule);
        schedule.batch_begins();
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
        schedule.tell_debts(&mut reading);
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
        for (queue, frame) in batch.queues() {
            processed.frames[queue] += 1;
            let Some(peer) = frame.peer.get() else {
                continue;
            };
            let of_first = || queue_of(frame.bytes.get(VNET_HDR_LEN..).unwrap_or_default());
            let queue = queue.checked_sub(1).unwrap_or_else(of_first);
            let before = processed.peers[queue].replace(peer);
            let bit = 1 << queue;
            if before.is_some_and(|before| before != peer) {
                processed.mixed |= bit;
            }
            processed.limited &= !bit;
            if let Some(rest) = frame.rest.get() {
                processed.limited |= bit;
                let until = Instant::now() + rest;
                processed.rest[queue] = processed.rest[queue].max(Some(until));
            }
        }
        drop(processed);
        self.settle(egress);
    }

    /// Has queues rest: nothing is read from them until they go on.
    fn rest(&self, schedule: &mut Schedule, queues: u64) {
        for queue in bits(queues) {
            self.listen(queue, EventFlags::empty());
        }
        schedule.resting |= queues;
        schedule.ready &= !queues;
        self.note_next(schedule);
        self.has_begun_to_rest.store(true, Relaxed);
    }

    /// Has the queues go on that have rested.
    fn go_on(&self, schedule: &mut Schedule) {
        if schedule.resting == 0 {
            return;
        }
        let rested = schedule.rested(Instant::now());
        for queue in bits(rested) {
            self.listen(queue, EventFlags::IN);
        }
        schedule.resting &= !rested;
        schedule.far &= !rested;
        self.note_next(schedule);
    }

    fn note_next(&self, schedule: &Schedule) {
        let next = bits(schedule.resting).filter_map(|queue| schedule.rest[queue]);
        let next = next.min().map_or(0, |at| self.nanos(at).max(1));
        self.goes_on.store(next, Relaxed);
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.made).as_nanos()).unwrap_or(u64::MAX)
    }

    fn listen(&self, queue: usize, events: EventFlags) {
        if let Some(fd) = self.bulk.get().and_then(|bulk| bulk.get(queue)) {
            // Fails for none that was added.
            let _ = epoll::modify(
                &self.epoll,
                fd,
                EventData::new_u64(1 + queue as u64),
                events,
            );
        }
    }

    /// As of [`crate::TunQueue::rests_for`].
    pub(super) fn rests_for(&self, egress: &Egress) -> Option<Duration> {
        let next = || Some(self.goes_on.load(Relaxed)).filter(|next| *next != 0);
        let left =
            |next: u64| Duration::from_nanos(next.saturating_sub(self.nanos(Instant::now())));
        let rests = left(next()?);
        if !rests.is_zero() {
            return Some(rests);
        }
        let Ok(mut schedule) = self.schedule.try_lock() else {
            return Some(AGAIN);
        };
        self.go_on(&mut schedule);
        schedule.tell_debts(&mut egress.reading());
        next().map(left)
    }

    pub(super) fn has_begun_to_rest(&self) -> bool {
        self.has_begun_to_rest.load(Relaxed) && self.has_begun_to_rest.swap(false, Relaxed)
    }

    /// Takes note of what was processed, unless another thread reads: that one does it afterwards.
    fn settle(&self, egress: &Egress) {
        while lock(&self.processed).any {
            let Ok(mut schedule) = self.schedule.try_lock() else {
                return;
            };
            let processed = std::mem::replace(&mut *lock(&self.processed), Processed::NONE);
            let rests = schedule.note(&processed);
            let mut reading = egress.reading();
            for (queue, frames) in processed.frames.into_iter().enumerate() {
                if frames > 0 {
                    reading.processed(queue, frames);
                }
            }
            if rests != 0 {
                self.rest(&mut schedule, rests);
                schedule.tell_debts(&mut reading);
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
                let of_first = || queue_of(packet);
                if schedule.can_wait(queue.checked_sub(1).unwrap_or_else(of_first)) {
                    batch.set_can_wait();
                }
                let packet = batch.last_frame().get(VNET_HDR_LEN..).unwrap_or_default();
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

#[cfg(test)]
#[path = "fair_queues_tests.rs"]
pub(super) mod tests;
