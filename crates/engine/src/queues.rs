//! The queues of one interface, a TUN queue and the sockets, and what a thread needs to poll them.
//!
//! Any thread may poll any queues: the gates keep their order.
//!
//! The sockets of an interface that gets help are split into lanes, each with gates of its own, so
//! that threads take and put at the same time. All data of a peer is in one lane. What had arrived
//! before the split is in the first, and further lanes are closed until it is put.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};

use adit_io::udp::MAX_RECEIVE_BUFFER;
use adit_io::{Offloads, TunQueue, UdpSocket};
use adit_proto::Time;
use rustix::event::epoll::EventFlags;

use crate::common::{self, Common, LaneSocket, Part, QueuesHandle, Sockets};
use crate::crew::Need;
use crate::gates::{Gates, Put, Taken, Ticket};
use crate::inbound::{self, Delivery, InboundBatch};
use crate::lock::lock;
use crate::outbound::{Outbound, OutboundBatch};
use crate::poll::Polled;
#[cfg(debug_assertions)]
use crate::progress;
use crate::sender::Pool;
use crate::shares::Shares;
use crate::spares::Spares;

/// Lanes at most.
pub(crate) const LANES: usize = 8;
/// A socket has no more bytes waiting than this: the kernel doubles the longest buffer.
const MOST_WAITING: u64 = 2 * MAX_RECEIVE_BUFFER as u64;

/// Buffers that all threads share.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) outbound: Spares<OutboundBatch>,
    inbound: Spares<InboundBatch>,
    pub(crate) trains: Pool,
}

/// What a thread needs to poll queues, of whatever interface.
pub(crate) struct Worker {
    pub(crate) buffers: Arc<Buffers>,
    delivery: Delivery,
}

impl Worker {
    pub(crate) fn new(buffers: Arc<Buffers>) -> Self {
        Self {
            buffers,
            delivery: Delivery::new(),
        }
    }
}

/// What a thread is to the queues that it polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It waits for their events, and [`QueuesHandle::wake`] wakes it.
    Owner,
    /// An owner that leaves the work to others.
    OwnerOfPipeline,
    /// Any other.
    Helper,
}

/// A batch that its owner took, for another thread to work on.
enum Job {
    Outbound(Ticket, Box<OutboundBatch>),
    Inbound(usize, Ticket, Box<InboundBatch>),
}

/// The gates of one lane. No cache line is of two.
#[repr(align(128))]
struct Lane(Gates<Taking, Box<InboundBatch>, ()>);

/// What taking from a lane needs.
#[derive(Default)]
struct Taking {
    shares: Shares,
    /// Of the first lane, in the sockets for IPv4 and IPv6: bytes that may wait since before the
    /// split. They are gone at the latest when a socket is empty.
    before: [u64; 2],
}

impl Taking {
    /// So many bytes were taken, if more wait. Whether all from before the split has been taken now.
    fn took(&mut self, v6: bool, bytes: Option<u64>) -> bool {
        let before = &mut self.before[usize::from(v6)];
        if *before == 0 {
            return false;
        }
        *before = bytes.map_or(0, |bytes| before.saturating_sub(bytes));
        self.before == [0; 2]
    }
}

/// The queues of one interface.
pub(crate) struct Queues<T, U> {
    pub(crate) tun: T,
    pub(crate) common: Arc<Common<U>>,
    offloads: Offloads,
    inbound: [Lane; LANES],
    /// While further lanes are closed since the split: the ticket of the first lane before which all
    /// is to be put, if it is known. Held by whoever opens or closes lanes.
    split: Mutex<Option<u64>>,
    /// They are closed for that.
    is_settling: AtomicBool,
    pub(crate) outbound: Outbound<U>,
    pub(crate) need: Mutex<Need>,
    /// As many as the gates let in.
    jobs: Mutex<VecDeque<Job>>,
    /// The last to go: the interface has ended when its TUN is closed.
    _part: Part<U>,
}

impl<T, U> Queues<T, U> {
    pub(crate) fn handle(&self) -> &QueuesHandle<U> {
        &self.common.queues
    }

    /// Has nothing read, sealed or opened any more, or lets all go on. What was read before is
    /// processed: [`Self::is_drained`] says when that is done. The owner is to be woken afterwards: it
    /// waits for other events then.
    pub(crate) fn pause(&self, pauses: bool)
    where
        U: UdpSocket,
    {
        let mut split = lock(&self.split);
        self.handle().set_paused(pauses);
        let sockets = self.handle().sockets.load();
        if !pauses && sockets.lanes() > 1 {
            // Perhaps in another process than before the pause.
            self.settle(&mut split, &sockets);
        } else {
            self.further_lanes().for_each(|it| it.set_closed(pauses));
        }
        self.lane(0).set_closed(pauses);
        self.outbound.pause(pauses);
    }

    /// Whether all that was read before has been processed.
    pub(crate) fn is_drained(&self) -> bool
    where
        U: UdpSocket,
    {
        self.inbound.iter().all(|it| it.0.is_drained()) && self.outbound.is_drained()
    }

    /// Lanes of a process that has more of them share gates.
    fn lane(&self, lane: usize) -> &Gates<Taking, Box<InboundBatch>, ()> {
        &self.inbound[lane % LANES].0
    }

    fn further_lanes(&self) -> impl Iterator<Item = &Gates<Taking, Box<InboundBatch>, ()>> {
        self.inbound[1..].iter().map(|lane| &lane.0)
    }

    /// Splits the sockets into so many lanes. False if they stay as they are.
    pub(crate) fn split(&self, sockets: &Sockets<U>, lanes: usize) -> bool
    where
        U: UdpSocket,
    {
        // A pause waits for it: who takes the interface over has to know all sockets.
        let mut split = lock(&self.split);
        if self.handle().is_paused() {
            return false;
        }
        self.further_lanes().for_each(|it| it.set_closed(true));
        let is_split = sockets.split(lanes);
        if is_split {
            self.settle(&mut split, sockets);
        }
        is_split
    }

    /// The sockets are others than before.
    pub(crate) fn replaced(&self, sockets: &Sockets<U>) {
        let mut split = lock(&self.split);
        if sockets.lanes() > 1 {
            self.settle(&mut split, sockets);
        } else {
            *split = None;
            self.is_settling.store(false, Ordering::Relaxed);
            let is_paused = self.handle().is_paused();
            self.further_lanes().for_each(|it| it.set_closed(is_paused));
        }
    }

    /// Further lanes wait until all that has arrived in the first is put.
    fn settle(&self, split: &mut Option<u64>, sockets: &Sockets<U>) {
        *split = None;
        self.is_settling.store(true, Ordering::Relaxed);
        self.further_lanes().for_each(|it| it.set_closed(true));
        self.lane(0).with_taking(|taking| {
            taking.before = [false, true].map(|v6| match sockets.family(v6) {
                Some(_) => MOST_WAITING,
                None => 0,
            });
        });
    }

    /// Whether further lanes wait for the first one. Its sockets are to be polled even if they seem
    /// to be empty.
    pub(crate) fn is_settling(&self) -> bool {
        self.is_settling.load(Ordering::Relaxed) && !self.handle().is_paused()
    }

    /// Opens further lanes if all is put that they wait for.
    fn open_lanes(&self) {
        let mut split = lock(&self.split);
        // Whoever puts a batch that is not seen here sees that lanes wait.
        fence(Ordering::SeqCst);
        let is_put = split.is_some_and(|ticket| self.lane(0).is_put_before(ticket));
        if !is_put || self.handle().is_paused() {
            return;
        }
        *split = None;
        self.is_settling.store(false, Ordering::Relaxed);
        self.further_lanes().for_each(|it| it.set_closed(false));
        drop(split);
        self.handle().wake();
    }

    /// The owner is about to sleep: whoever works on the batches that wait for it is there, or the
    /// owner is woken at once.
    #[cfg(debug_assertions)]
    pub(crate) fn check_progress(&self) {
        let need = lock(&self.need);
        let jobs = self.jobs();
        assert!(
            jobs == 0
                || need.helpers() > 0
                || self.handle().ownership.is_due()
                || self.common.is_stopping(),
            "{} goes to sleep while {jobs} batches wait for a thread that works on them",
            std::thread::current().name().unwrap_or("the owner")
        );
    }

    /// How many threads help their owner.
    pub(crate) fn helpers(&self) -> usize {
        lock(&self.need).helpers()
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
            inbound: std::array::from_fn(|_| Lane(Gates::new(Taking::default(), ()))),
            split: Mutex::default(),
            is_settling: AtomicBool::new(false),
            outbound: Outbound::new(
                Arc::clone(&common.queues.drops),
                Arc::clone(&common.load.waiting),
            )?,
            need: Mutex::default(),
            jobs: Mutex::default(),
            _part: Part::new(&common),
            common,
        })
    }

    /// What a poll of the outbound path runs with.
    pub(crate) fn context<'a>(
        &'a self,
        buffers: &'a Buffers,
        sockets: &'a Sockets<U>,
        now: Time,
    ) -> common::Context<'a, U> {
        common::Context {
            common: &self.common,
            sockets,
            pool: &buffers.trains,
            now,
        }
    }

    /// Reads what waits in the TUN queue, up to a batch, and sends it. Errors are the TUN's.
    pub(crate) fn poll_tun(
        &self,
        worker: &Worker,
        sockets: &Sockets<U>,
        now: Time,
        role: Role,
    ) -> io::Result<Polled> {
        let buffers = &*worker.buffers;
        let context = self.context(buffers, sockets, now);
        let (outbound, tun, spares) = (&self.outbound, &self.tun, &buffers.outbound);
        if !outbound.resume(context, tun, spares) {
            return Ok(Polled::Blocked);
        }
        let taken = outbound.take(context, tun, spares, role != Role::Helper)?;
        if let Taken::Batch(_, batch) = &taken {
            self.common.load.outbound.took(batch.polled(), role);
            #[cfg(debug_assertions)]
            progress::pause();
        }
        Ok(match taken {
            Taken::Batch(ticket, batch) if role == Role::OwnerOfPipeline => {
                let polled = batch.polled();
                lock(&self.jobs).push_back(Job::Outbound(ticket.leave(), batch));
                polled
            }
            Taken::Batch(ticket, batch) => outbound.finish(context, tun, spares, (ticket, batch)),
            Taken::Nothing => Polled::packets(0, false),
            Taken::Busy => Polled::Busy,
            Taken::Full => Polled::Full,
        })
    }

    /// Handles an event of a socket: processes what waits in it, up to a batch. Errors are the
    /// TUN's.
    pub(crate) fn poll_socket(
        &self,
        worker: &mut Worker,
        LaneSocket { lane, v6, socket }: LaneSocket<'_, U>,
        flags: EventFlags,
        now: Time,
        role: Role,
    ) -> io::Result<Polled> {
        if flags.contains(EventFlags::ERR) {
            self.common.take_errors(socket, now);
        }
        let context = self.inbound_context(now);
        let spares = &worker.buffers.inbound;
        let gates = self.lane(lane);
        let mut has_settled = false;
        let taken = gates.take(role != Role::Helper, |taking| {
            let mut batch = spares.take();
            let took = batch.take(context, socket, &mut taking.shares);
            let left = took.then(|| batch.bytes_before_more()).flatten();
            has_settled = lane == 0 && taking.took(v6, left);
            if took {
                return Ok(Some(batch));
            }
            spares.put(batch);
            Ok::<_, io::Error>(None)
        })?;
        if has_settled {
            *lock(&self.split) = Some(gates.next());
            self.open_lanes();
        }
        let (ticket, mut batch) = match taken {
            Taken::Batch(ticket, batch) => (ticket, batch),
            Taken::Nothing => return Ok(Polled::packets(0, false)),
            Taken::Busy => return Ok(Polled::Busy),
            Taken::Full => return Ok(Polled::Full),
        };
        let polled = batch.polled();
        self.common.load.inbound.took(polled, role);
        if let Polled::Packets { count, .. } = polled {
            let of_lane = &self.common.load.lanes[lane % LANES];
            of_lane.fetch_add(count as u64, Ordering::Relaxed);
        }
        #[cfg(debug_assertions)]
        progress::pause();
        if role == Role::OwnerOfPipeline {
            lock(&self.jobs).push_back(Job::Inbound(lane, ticket.leave(), batch));
            return Ok(polled);
        }
        if !gates.is_head(&ticket) {
            batch.open();
        }
        gates.file(ticket, batch);
        self.put_inbound(worker, lane, now).map(|()| polled)
    }

    fn inbound_context(&self, now: Time) -> inbound::Context<'_, T, U> {
        inbound::Context {
            common: &self.common,
            drops: &self.handle().drops,
            tun: &self.tun,
            offloads: self.offloads,
            now,
        }
    }

    /// Puts what was received and is ready, unless another thread does. Errors are the TUN's.
    fn put_inbound(
        &self,
        Worker { buffers, delivery }: &mut Worker,
        lane: usize,
        now: Time,
    ) -> io::Result<()> {
        let gates = self.lane(lane);
        let context = self.inbound_context(now);
        let mut result = Ok(());
        let put = |(): &mut (), batch: &mut Box<InboundBatch>| {
            if let Err(error) = delivery.put(context, batch) {
                result = Err(error);
            }
            Put::Done
        };
        gates.proceed(put, |batch| {
            buffers.inbound.put(batch);
            if gates.was_awaited() {
                self.handle().wake();
            }
        });
        if self.is_settling.load(Ordering::Relaxed) {
            self.open_lanes();
        }
        result
    }

    /// Puts what others have worked on. Errors are the TUN's.
    pub(crate) fn proceed(
        &self,
        worker: &mut Worker,
        sockets: &Sockets<U>,
        now: Time,
    ) -> io::Result<()> {
        let buffers = &*worker.buffers;
        let context = self.context(buffers, sockets, now);
        self.outbound.proceed(context, &self.tun, &buffers.outbound);
        (0..sockets.lanes()).try_for_each(|lane| self.put_inbound(worker, lane, now))
    }

    fn take_over(&self, ticket: Ticket) -> Ticket {
        let ticket = ticket.take_over();
        #[cfg(debug_assertions)]
        progress::pause();
        ticket
    }

    /// Works on a batch that the owner took, and wakes it. False if there is none.
    pub(crate) fn do_job(&self, worker: &Worker, sockets: &Sockets<U>, now: Time) -> bool {
        let job = lock(&self.jobs).pop_front();
        match job {
            None => return false,
            Some(Job::Outbound(ticket, batch)) => {
                let ticket = self.take_over(ticket);
                let context = self.context(&worker.buffers, sockets, now);
                self.outbound.work(context, (ticket, batch));
            }
            Some(Job::Inbound(lane, ticket, mut batch)) => {
                let ticket = self.take_over(ticket);
                batch.open();
                self.lane(lane).file(ticket, batch);
            }
        }
        self.handle().wake();
        true
    }
}
