//! The queues of one interface, a TUN queue and the sockets, and what a thread needs to poll them.
//!
//! Any thread may poll any queues: ordered queues keep packets in order.
//!
//! The sockets of an interface that gets help are split into [receive queues](crate::order::rx_queues),
//! each with an ordered queue of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use adit_io::{Offloads, TunQueue, UdpSocket};
use adit_proto::Time;
use rustix::event::epoll::EventFlags;

use crate::inbound::shares::Shares;
use crate::inbound::{self, InboundBatch, InboundFlowShard};
use crate::order::ordered_queue::{Commit, SequenceNumber, Taken};
use crate::order::rx_queues::{RX_QUEUES, RxQueues, Taking};
use crate::outbound::batch::OutboundBatch;
use crate::outbound::buffers;
use crate::outbound::seal::FLOW_SHARDS;
use crate::outbound::{Outbound, context};
use crate::shards::help::Need;
use crate::shards::thread_state::{ThreadBuffers, ThreadState};
use crate::shared::common::{Common, EndGuard};
use crate::shared::handles::QueuesHandle;
use crate::shared::sockets::{RxQueueSocket, Sockets};
use crate::thread::lock::lock;
use crate::thread::poll::{PollRole, Polled};
#[cfg(debug_assertions)]
use crate::thread::progress;

/// As many threads deliver what arrives in a receive queue at the same time at most, each at a second
/// commit lock, behind one where it is committed.
const DELIVERIES: usize = 4;

/// A batch that its owner took, for another thread to work on.
enum WorkerJob {
    Outbound(SequenceNumber, Box<OutboundBatch>),
    Inbound(usize, SequenceNumber, Box<InboundBatch>),
}

/// The queues of one interface.
pub(crate) struct Queues<T, U> {
    pub(crate) tun: T,
    pub(crate) common: Arc<Common<U>>,
    offloads: Offloads,
    /// What taking needs are the shares of both families, IPv4 and IPv6.
    pub(super) inbound: RxQueues<[Shares; 2], InboundFlowShard, { 1 + DELIVERIES }>,
    pub(crate) outbound: Outbound<U>,
    /// How many threads poll them: their owner, and those that help it.
    threads: AtomicUsize,
    /// How many threads commit at the same time.
    committing: AtomicUsize,
    pub(crate) need: Mutex<Need>,
    /// Batches that wait for a worker: no more than the ordered queue lets in.
    jobs: Mutex<VecDeque<WorkerJob>>,
    /// The last to go: the interface has ended when its TUN is closed.
    _end_guard: EndGuard<U>,
}

impl<T, U> Queues<T, U> {
    pub(crate) fn handle(&self) -> &QueuesHandle<U> {
        &self.common.queues
    }

    /// Has nothing read, sealed or opened any more, or lets all go on. What was read before is
    /// processed: [`Self::is_drained`] says when that is done. The owner is to be woken afterwards: it
    /// waits for other events then. False, and nothing done, while the number of receive queues changes.
    pub(crate) fn pause(&self, pauses: bool) -> bool
    where
        U: UdpSocket,
    {
        let can = self.inbound.set_closed(pauses);
        if can {
            self.handle().set_paused(pauses);
            self.outbound.pause(pauses);
        }
        can
    }

    /// Whether all that was read before has been processed.
    pub(crate) fn is_drained(&self) -> bool
    where
        U: UdpSocket,
    {
        self.inbound.is_drained() && self.outbound.is_drained()
    }

    /// The owner is about to sleep: a worker for the batches that wait for it is there, or the
    /// owner is woken at once.
    #[cfg(debug_assertions)]
    pub(crate) fn check_progress(&self) {
        let need = lock(&self.need);
        let jobs = self.jobs();
        assert!(
            jobs == 0
                || need.workers() > 0
                || self.handle().ownership.is_due()
                || self.common.is_stopping(),
            "{} goes to sleep while {jobs} batches wait for a thread that works on them",
            std::thread::current().name().unwrap_or("the owner")
        );
    }

    /// How many threads help their owner.
    pub(crate) fn workers(&self) -> usize {
        lock(&self.need).workers()
    }

    /// Sets how many threads help from now on.
    ///
    /// They commit at the same time, at as many commit locks as there are threads, if that is worth a
    /// split of every batch: with two, one works while the other commits. Every change has to wait until all
    /// that was taken has been committed, so that there are fewer only when nobody helps any more.
    pub(crate) fn set_workers(&self, workers: usize) {
        self.threads.store(1 + workers, Ordering::Relaxed);
        match workers {
            0 => self.committing.store(1, Ordering::Relaxed),
            1 => {}
            _ => {
                let threads = (1 + workers).next_power_of_two();
                self.committing.fetch_max(threads, Ordering::Relaxed);
            }
        }
    }

    /// How many threads are to commit what a thread of this role takes.
    fn committing(&self, role: PollRole) -> usize {
        let threads = match role {
            PollRole::OwnerOfPipeline => 1,
            PollRole::Owner | PollRole::Worker => self.committing.load(Ordering::Relaxed),
        };
        #[cfg(debug_assertions)]
        let threads = progress::commit_by().unwrap_or(threads);
        threads
    }

    /// How many batches wait for a thread that works on them.
    pub(crate) fn jobs(&self) -> usize {
        lock(&self.jobs).len()
    }
}

impl<T: TunQueue, U: UdpSocket> Queues<T, U> {
    /// # Errors
    ///
    /// The kernel's, when it makes no further epoll descriptor.
    pub(crate) fn new(tun: T, common: Arc<Common<U>>, offloads: Offloads) -> io::Result<Self> {
        Ok(Self {
            tun,
            offloads,
            inbound: RxQueues::new(Default::default),
            outbound: Outbound::new(&common.queues.drops, Arc::clone(&common.load.waiting))?,
            threads: AtomicUsize::new(1),
            committing: AtomicUsize::new(1),
            need: Mutex::default(),
            jobs: Mutex::default(),
            _end_guard: EndGuard::new(&common),
            common,
        })
    }

    /// The context of a poll of the outbound path.
    pub(crate) fn context<'a>(
        &'a self,
        buffers: &'a buffers::OutboundBuffers,
        sockets: &'a Sockets<U>,
        now: Time,
    ) -> context::OutboundContext<'a, U> {
        context::OutboundContext {
            common: &self.common,
            sockets,
            buffers,
            now,
        }
    }

    /// Reads what waits in the TUN queue, up to a batch, and sends it. Errors are the TUN's.
    pub(crate) fn poll_tun(
        &self,
        thread: &ThreadState,
        sockets: &Sockets<U>,
        now: Time,
        role: PollRole,
    ) -> io::Result<Polled> {
        let context = self.context(&thread.buffers.outbound, sockets, now);
        let (outbound, tun) = (&self.outbound, &self.tun);
        if !outbound.resume(context, tun) {
            return Ok(Polled::Blocked);
        }
        let flow_shards = self.committing(role).min(FLOW_SHARDS);
        let threads = self.threads.load(Ordering::Relaxed);
        let is_alone = (flow_shards, threads) == (1, 1) && role != PollRole::OwnerOfPipeline;
        if is_alone && let Some(polled) = self.send_alone(context, role) {
            return polled;
        }
        let taken = outbound.take(
            context,
            tun,
            (role != PollRole::Worker, threads),
            flow_shards,
        )?;
        if let Taken::Batch(_, batch) = &taken {
            self.has_read(batch, role);
        }
        Ok(match taken {
            Taken::Batch(sequence, batch) if role == PollRole::OwnerOfPipeline => {
                let polled = batch.polled();
                lock(&self.jobs).push_back(WorkerJob::Outbound(sequence.leave(), batch));
                polled
            }
            Taken::Batch(sequence, batch) => outbound.finish(context, tun, (sequence, batch)),
            Taken::Nothing => Polled::packets(0, false),
            Taken::Busy => Polled::Busy,
            Taken::Full => Polled::Full,
        })
    }

    /// Handles an event of a socket: processes what waits in it, up to a batch. Errors are the
    /// TUN's.
    pub(crate) fn poll_socket(
        &self,
        thread: &mut ThreadState,
        RxQueueSocket {
            rx_queue,
            v6,
            socket,
        }: RxQueueSocket<'_, U>,
        flags: EventFlags,
        now: Time,
        role: PollRole,
    ) -> io::Result<Polled> {
        if flags.contains(EventFlags::ERR) {
            self.common.take_errors(socket, now);
        }
        // Of a receive queue, so many threads deliver at the same time, behind one that commits.
        let rx_queues = self.handle().sockets.load().in_use();
        let commit_locks = match self.committing(role).div_ceil(rx_queues).min(DELIVERIES) {
            1 => 1,
            deliveries => 1 + deliveries,
        };
        let threads = self.threads.load(Ordering::Relaxed).div_ceil(rx_queues);
        let of = RxQueueSocket {
            rx_queue,
            v6,
            socket,
        };
        let is_alone = (commit_locks, threads) == (1, 1) && role != PollRole::OwnerOfPipeline;
        if is_alone && let Some(polled) = self.receive_alone(thread, &of, (now, role)) {
            return polled;
        }
        let queue = self.inbound.queue(rx_queue);
        let taken = queue.take(
            (role != PollRole::Worker, threads),
            (commit_locks, |_: &mut [&mut ()]| true),
            |taking| Ok::<_, io::Error>(self.receive(&thread.buffers, taking, &of, (now, role))),
        )?;
        let (sequence, mut batch) = match taken {
            Taken::Batch(sequence, batch) => (sequence, batch),
            Taken::Nothing => return Ok(Polled::packets(0, false)),
            Taken::Busy => return Ok(Polled::Busy),
            Taken::Full => return Ok(Polled::Full),
        };
        let polled = batch.polled();
        #[cfg(debug_assertions)]
        progress::pause();
        if role == PollRole::OwnerOfPipeline {
            lock(&self.jobs).push_back(WorkerJob::Inbound(rx_queue, sequence.leave(), batch));
            return Ok(polled);
        }
        if queue.in_use() > 1 || !queue.is_head(&sequence) {
            batch.open(self.deliveries(rx_queue));
        }
        self.file_inbound(rx_queue, (sequence, batch));
        self.commit_inbound(thread, rx_queue, now).map(|()| polled)
    }

    /// Frames were read from the TUN.
    pub(super) fn has_read(&self, batch: &OutboundBatch, role: PollRole) {
        let load = self.common.load.own();
        load.outbound.took(batch.polled(), role);
        #[cfg(debug_assertions)]
        progress::pause();
    }

    /// Receives what waits in a socket, up to a batch: stages 1 to 3. `None` if nothing waits.
    pub(super) fn receive(
        &self,
        buffers: &ThreadBuffers,
        taking: &mut Taking<[Shares; 2]>,
        RxQueueSocket {
            rx_queue,
            v6,
            socket,
        }: &RxQueueSocket<'_, U>,
        (now, role): (Time, PollRole),
    ) -> Option<Box<InboundBatch>> {
        let (rx_queue, v6) = (*rx_queue, *v6);
        let context = self.inbound_context(rx_queue, now);
        let mut batch = buffers.inbound.take();
        let took = batch.take(context, *socket, &mut taking.state[usize::from(v6)]);
        let lens = took.then(|| batch.lens_before_more()).flatten();
        taking.took(v6, lens);
        if !took {
            buffers.inbound.give_back(batch);
            return None;
        }
        self.count_received(rx_queue, batch.polled(), role);
        Some(batch)
    }

    fn count_received(&self, rx_queue: usize, polled: Polled, role: PollRole) {
        let load = self.common.load.own();
        load.inbound.took(polled, role);
        if let Polled::Packets { count, .. } = polled {
            load.rx_queues[rx_queue % RX_QUEUES].fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    /// How many flow shards a batch of this receive queue is delivered in.
    fn deliveries(&self, rx_queue: usize) -> usize {
        match self.inbound.queue(rx_queue).in_use() {
            1 => 1,
            commit_locks => commit_locks - 1,
        }
    }

    fn file_inbound(
        &self,
        rx_queue: usize,
        (sequence, batch): (SequenceNumber, Box<InboundBatch>),
    ) {
        let queue = self.inbound.queue(rx_queue);
        let commit_locks = queue.in_use();
        if commit_locks == 1 {
            return queue.file(sequence, InboundFlowShard::Whole(batch));
        }
        #[cfg(debug_assertions)]
        progress::count_split(true);
        queue.file_split(sequence, InboundFlowShard::split(batch, commit_locks));
    }

    pub(super) fn inbound_context(
        &self,
        rx_queue: usize,
        now: Time,
    ) -> inbound::InboundContext<'_, T, U> {
        inbound::InboundContext {
            common: &self.common,
            rx_queue,
            drops: &self.handle().drops,
            tun: &self.tun,
            offloads: self.offloads,
            now,
        }
    }

    /// Commits what was received and is ready, unless another thread does. Errors are the TUN's.
    pub(super) fn commit_inbound(
        &self,
        ThreadState {
            buffers, delivery, ..
        }: &mut ThreadState,
        rx_queue: usize,
        now: Time,
    ) -> io::Result<()> {
        let queue = self.inbound.queue(rx_queue);
        let context = self.inbound_context(rx_queue, now);
        let mut result = Ok(());
        let commit_at = |at, (): &mut (), shard: &mut InboundFlowShard| {
            let commit = |batch: &mut InboundBatch| batch.commit(context);
            let deliver = |batch: &InboundBatch, flow_shard| {
                if let Err(error) = delivery.deliver_batch(context, batch, flow_shard) {
                    result = Err(error);
                }
            };
            match shard.commit_at(at, commit, deliver) {
                true => Commit::Done,
                false => Commit::Blocked,
            }
        };
        queue.proceed_all(commit_at, |shard| {
            let Some(batch) = shard.end() else { return };
            buffers.inbound.give_back(batch);
            if queue.was_awaited() {
                self.handle().wake();
            }
        });
        result
    }

    /// Commits what others have worked on. Errors are the TUN's.
    pub(crate) fn proceed(
        &self,
        thread: &mut ThreadState,
        sockets: &Sockets<U>,
        now: Time,
    ) -> io::Result<()> {
        let context = self.context(&thread.buffers.outbound, sockets, now);
        self.outbound.proceed(context, &self.tun);
        // Also what came from a socket that is gone.
        (0..RX_QUEUES).try_for_each(|rx_queue| self.commit_inbound(thread, rx_queue, now))
    }

    fn take_over(&self, sequence: SequenceNumber) -> SequenceNumber {
        let sequence = sequence.take_over();
        #[cfg(debug_assertions)]
        progress::pause();
        sequence
    }

    /// Works on a batch that the owner took, and wakes it. False if there is none.
    pub(crate) fn do_job(&self, thread: &ThreadState, sockets: &Sockets<U>, now: Time) -> bool {
        let job = lock(&self.jobs).pop_front();
        match job {
            None => return false,
            Some(WorkerJob::Outbound(sequence, batch)) => {
                let sequence = self.take_over(sequence);
                let context = self.context(&thread.buffers.outbound, sockets, now);
                self.outbound.work(context, (sequence, batch));
            }
            Some(WorkerJob::Inbound(rx_queue, sequence, mut batch)) => {
                let sequence = self.take_over(sequence);
                batch.open(self.deliveries(rx_queue));
                self.file_inbound(rx_queue, (sequence, batch));
            }
        }
        self.handle().wake();
        true
    }
}
