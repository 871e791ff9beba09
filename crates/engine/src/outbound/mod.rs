//! TUN to UDP: read → route → append → seal → send, each once a frame or a train.
//!
//! 1. `read`: frames of the TUN queue until none waits or the arena is full;
//! 2. `route`: a frame's destination chooses the peer, and its session; without one the frame is
//!    staged;
//! 3. `append`: each segment goes into a slot of the peer's open train, headers finished;
//! 4. `seal`: a train that is full takes its counters and is sealed; trains that no frame waits to
//!    join are sealed together;
//! 5. `send`: sealed trains leave in the order in which they were closed (`sender`, `transmit`).
//!
//! While several threads help, they send at the same time: a batch is split by the addresses of its
//! packets, and each flow shard has a commit lock, and so a sender, of its own. A flow is in one of them.

pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod context;
pub(crate) mod forward;
pub(crate) mod seal;
pub(crate) mod sender;
pub(crate) mod slow_paths;
pub(crate) mod staged;
pub(crate) mod train;
pub(crate) mod transmit;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_io::{TunQueue, UdpSocket};
use adit_offload::Frame;
use adit_proto::{DropReason, Drops, PassedKind, Peer, Time};
use arrayvec::ArrayVec;

use crate::order::flow_shards::SplitBatch;
use crate::order::ordered_queue::{Commit, OrderedQueue, SequenceNumber, Taken};
use crate::outbound::batch::{OutboundBatch, Rest};
use crate::outbound::context::OutboundContext;
use crate::outbound::forward::{Forwarder, WaitingShare};
use crate::outbound::seal::{FLOW_SHARDS, flow_shard_of};
use crate::outbound::sender::Sender;
use crate::outbound::slow_paths::SlowPaths;
use crate::outbound::staged::Staged;
use crate::outbound::train::SealedTrain;
use crate::shared::counters::Waiting;
use crate::thread::lock::lock;
use crate::thread::poll::Polled;
#[cfg(debug_assertions)]
use crate::thread::progress;

/// Polls in a row that find more in the TUN than they can take, before its queue counts as
/// standing: 4 MB.
const STANDING: u32 = 16;
/// How often the control thread hears of that.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// A batch, or what one flow shard has of it.
pub(crate) enum OutboundFlowShard {
    Whole(Box<OutboundBatch>),
    /// The packets of a batch that are in this flow shard.
    Split {
        sealed: VecDeque<SealedTrain>,
        /// Frames that come after these: what waits for a session, and what did not fit.
        rest: Rest,
        of: Arc<SplitBatch<Mutex<Option<Box<OutboundBatch>>>>>,
    },
}

impl OutboundFlowShard {
    /// Ends a flow shard that has been transmitted. Returns the batch, if all of its flow shards have.
    fn end(self) -> Option<Box<OutboundBatch>> {
        match self {
            Self::Whole(batch) => Some(batch),
            Self::Split { of, .. } => of.commit_one().then(|| lock(&of.batch).take()).flatten(),
        }
    }
}

/// The outbound path of one interface: its TUN is read under the take lock, and its sockets are
/// written behind the second ones.
pub(crate) struct Outbound<U> {
    pub(crate) queue: OrderedQueue<Standing, OutboundFlowShard, Forwarder<U>, FLOW_SHARDS>,
    /// The address family that the trains of each flow shard wait for, as [`Sender::waits_for`] has it: 0 if
    /// none do.
    blocked: [AtomicU8; FLOW_SHARDS],
    /// The peers' own sockets.
    paths: Arc<SlowPaths<U>>,
    waiting: Arc<Waiting>,
}

/// Whether the TUN's queue stands.
#[derive(Default)]
pub(crate) struct Standing {
    /// Polls since the TUN was last read empty.
    behind: u32,
    /// When the control thread last heard that the TUN is behind.
    told: Time,
}

impl<U: UdpSocket> Outbound<U> {
    /// # Errors
    ///
    /// The kernel's, when it makes no further epoll descriptor.
    pub(crate) fn new(drops: &Arc<Drops>, waiting: Arc<Waiting>) -> io::Result<Self> {
        let paths = Arc::new(SlowPaths::new()?);
        let forwarder = || Forwarder {
            sender: Sender::new(Arc::clone(drops), Arc::clone(&paths)),
            staged: Staged::default(),
            processed: 0,
            is_paused: false,
            noted: WaitingShare::default(),
        };
        Ok(Self {
            queue: OrderedQueue::new(Standing::default(), std::array::from_fn(|_| forwarder())),
            blocked: Default::default(),
            paths,
            waiting,
        })
    }

    /// Takes what waits in the TUN queue, which so many threads poll, split into so many flow shards:
    /// a power of two. `awaits` says that the calling thread is the one that is woken if it has to wait for others.
    /// Errors are the TUN's.
    pub(crate) fn take(
        &self,
        context: OutboundContext<'_, U>,
        tun: &impl TunQueue,
        (awaits, threads): (bool, usize),
        flow_shards: usize,
    ) -> io::Result<Taken<Box<OutboundBatch>>> {
        let change = |all: &mut [&mut Forwarder<U>]| self.change_flow_shards(all, flow_shards);
        let read = |standing: &mut Standing| standing.read(context, tun);
        self.queue
            .take((awaits, threads), (flow_shards, change), read)
    }

    /// Whether trains that wait for a socket allow another number of flow shards; frames that wait for a
    /// session change flow shards.
    fn change_flow_shards(&self, forwarders: &mut [&mut Forwarder<U>], flow_shards: usize) -> bool {
        if forwarders.iter().any(|it| it.sender.waits_for().is_some()) {
            return false;
        }
        let mut waiting = Vec::new();
        for it in forwarders.iter_mut() {
            waiting.append(&mut it.staged.take_all());
            it.set_share(flow_shards);
        }
        for (peer, bytes) in waiting {
            // Frames were parsed before they were staged.
            let flow_shard =
                Frame::parse(&bytes).map_or(0, |frame| flow_shard_of(&frame, flow_shards));
            forwarders[flow_shard].stage_again(&peer, &bytes);
        }
        for (flow_shard, it) in forwarders.iter_mut().enumerate() {
            self.note_state(flow_shard, it);
        }
        true
    }

    /// Does the work for a batch, unless it is its turn, and files it.
    pub(crate) fn finish(
        &self,
        context: OutboundContext<'_, U>,
        tun: &impl TunQueue,
        (sequence, batch): (SequenceNumber, Box<OutboundBatch>),
    ) -> Polled {
        let more = batch.more;
        let mut processed = 0;
        if self.queue.in_use() == 1 && self.queue.is_head(&sequence) {
            self.queue.file(sequence, OutboundFlowShard::Whole(batch));
        } else {
            processed = self.work(context, (sequence, batch));
        }
        processed += self.proceed(context, tun);
        match self.waits_for() {
            Some(_) => Polled::Blocked,
            None => Polled::packets(processed, more),
        }
    }

    /// Does the work for a batch, and files it. Returns how many packets that were.
    pub(crate) fn work(
        &self,
        context: OutboundContext<'_, U>,
        (sequence, mut batch): (SequenceNumber, Box<OutboundBatch>),
    ) -> usize {
        let flow_shards = self.queue.in_use();
        if flow_shards == 1 {
            let processed = batch.seal(context);
            self.queue.file(sequence, OutboundFlowShard::Whole(batch));
            return processed;
        }
        let (mut split, processed) = batch.split(context, flow_shards);
        #[cfg(debug_assertions)]
        progress::count_split(false);
        let of = SplitBatch::new(Mutex::new(Some(batch)), flow_shards);
        let split = split
            .drain(..flow_shards)
            .map(|(sealed, rest)| OutboundFlowShard::Split {
                sealed,
                rest,
                of: Arc::clone(&of),
            });
        self.queue.file_split(sequence, split);
        processed
    }

    /// Transmits what is ready, unless other threads do. Returns how many packets were processed that
    /// were not before.
    pub(crate) fn proceed(&self, context: OutboundContext<'_, U>, tun: &impl TunQueue) -> usize {
        let mut processed = 0;
        let transmit = |flow_shard, forwarder: &mut Forwarder<U>, shard: &mut OutboundFlowShard| {
            let (result, packets) = match shard {
                OutboundFlowShard::Whole(batch) => {
                    self.transmit_whole(context, flow_shard, forwarder, batch)
                }
                OutboundFlowShard::Split { sealed, rest, .. } => {
                    self.transmit(context, flow_shard, forwarder, sealed, |it| {
                        it.forward_rest(context, rest);
                        rest.is_empty()
                    })
                }
            };
            processed += packets;
            result
        };
        self.queue.proceed_all(transmit, |shard| {
            if let Some(batch) = shard.end() {
                self.has_transmitted(context, tun, batch);
            }
            if self.queue.was_awaited() {
                context.common.queues.wake();
            }
        });
        processed
    }

    /// Stages 2 to 5 for what is left of a batch. Returns how many packets were processed, too.
    pub(crate) fn transmit_whole(
        &self,
        context: OutboundContext<'_, U>,
        flow_shard: usize,
        forwarder: &mut Forwarder<U>,
        batch: &mut OutboundBatch,
    ) -> (Commit, usize) {
        let OutboundBatch { sealed, frames, .. } = batch;
        self.transmit(context, flow_shard, forwarder, sealed, |it| {
            it.forward_all(context, frames);
            frames.is_empty()
        })
    }

    /// Sends a batch or a flow shard of one, as [`Forwarder::transmit`] does. Returns how many packets were
    /// processed, too.
    fn transmit(
        &self,
        context: OutboundContext<'_, U>,
        flow_shard: usize,
        forwarder: &mut Forwarder<U>,
        sealed: &mut VecDeque<SealedTrain>,
        forward: impl FnMut(&mut Forwarder<U>) -> bool,
    ) -> (Commit, usize) {
        forwarder.processed = 0;
        let result = forwarder.transmit(context, sealed, forward);
        let passed = forwarder.processed as u64;
        (forwarder.sender.drops()).count_passed(PassedKind::FromTun, passed);
        self.note_state(flow_shard, forwarder);
        (result, forwarder.processed)
    }

    /// A batch has been sent, or waits for sessions.
    pub(crate) fn has_transmitted(
        &self,
        context: OutboundContext<'_, U>,
        tun: &impl TunQueue,
        batch: Box<OutboundBatch>,
    ) {
        tun.processed(&batch.frames);
        context.buffers.batches.give_back(batch);
    }

    /// Goes on where a full socket stopped it. False if it is still full.
    pub(crate) fn resume(&self, context: OutboundContext<'_, U>, tun: &impl TunQueue) -> bool {
        if self.waits_for().is_some() {
            self.change(context, tun, |forwarder| forwarder.sender.flush(context));
        }
        self.waits_for().is_none()
    }

    /// Looks at what is under each commit lock that is in use.
    fn look<R>(&self, look: impl Fn(&Forwarder<U>) -> R) -> ArrayVec<R, FLOW_SHARDS> {
        self.queue.each(|_, forwarder| look(forwarder))
    }

    /// Changes what is under each commit lock that is in use. Then a batch that a full socket stopped
    /// may go on, and nothing else wakes a thread for it: so all flow shards proceed (invariant 6).
    fn change<R>(
        &self,
        context: OutboundContext<'_, U>,
        tun: &impl TunQueue,
        mut change: impl FnMut(&mut Forwarder<U>) -> R,
    ) -> ArrayVec<R, FLOW_SHARDS> {
        let changed = self.queue.each(|flow_shard, forwarder| {
            let result = change(forwarder);
            self.note_state(flow_shard, forwarder);
            result
        });
        self.proceed(context, tun);
        changed
    }

    fn note_state(&self, flow_shard: usize, forwarder: &mut Forwarder<U>) {
        let blocked = match forwarder.sender.waits_for() {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        // Other flow shards have the same cache line.
        if self.blocked[flow_shard].load(Ordering::Relaxed) != blocked {
            self.blocked[flow_shard].store(blocked, Ordering::Release);
        }
        forwarder.note_waiting(&self.waiting);
    }

    /// The address family of the first train that waits for a socket: true for IPv6.
    pub(crate) fn waits_for(&self) -> Option<bool> {
        let blocked = |flow_shard: &AtomicU8| flow_shard.load(Ordering::Acquire);
        let families = self.blocked.iter().map(blocked);
        let family = families.into_iter().find(|family| *family != 0);
        family.map(|family| family == 2)
    }

    /// How many trains the shared sockets have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.look(|forwarder| forwarder.sender.taken()).iter().sum()
    }

    /// A session exists now: sends what waited for it. False if the path pauses.
    pub(crate) fn send_staged(
        &self,
        context: OutboundContext<'_, U>,
        tun: &impl TunQueue,
        peer: &Arc<Peer>,
    ) -> bool {
        let sent = self.change(context, tun, |forwarder| {
            if !forwarder.is_paused {
                forwarder.send_staged(context, peer);
            }
            !forwarder.is_paused
        });
        sent.iter().all(|sent| *sent)
    }

    /// Reads and seals nothing any more but what was read before: until [`Self::is_drained`], and
    /// then nothing at all.
    pub(crate) fn pause(&self, pauses: bool) {
        self.queue.set_closed(pauses);
        for flow_shard in 0..FLOW_SHARDS {
            self.queue
                .with(flow_shard, |forwarder| forwarder.is_paused = pauses);
        }
    }

    /// Whether all that was read has left, or waits for a session.
    pub(crate) fn is_drained(&self) -> bool {
        let waits = |forwarder: &Forwarder<U>| forwarder.sender.waits_for().is_some();
        self.queue.is_drained() && !self.look(waits).contains(&true)
    }

    /// Packets that wait for sessions.
    pub(crate) fn staged_packets(&self) -> u64 {
        self.look(|forwarder| forwarder.staged.packets())
            .iter()
            .sum()
    }

    /// No session will come: drops what waited for it.
    pub(crate) fn drop_staged(
        &self,
        context: OutboundContext<'_, U>,
        tun: &impl TunQueue,
        peer: &Peer,
    ) {
        self.change(context, tun, |Forwarder { sender, staged, .. }| {
            let dropped = staged.drop_all(peer.id());
            sender.drop_packets(peer, DropReason::Staged, dropped);
        });
    }

    /// The socket that peers share has been full for long: peers that may be the reason get sockets
    /// of their own, and their trains no longer wait. False if that changed nothing.
    pub(crate) fn isolate(&self, context: OutboundContext<'_, U>, tun: &impl TunQueue) -> bool {
        let Some(v6) = self.waits_for() else {
            return false;
        };
        let recent = (self.queue).each(|_, forwarder| forwarder.sender.take_recent());
        let isolated = self
            .paths
            .isolate(context, v6, recent.into_iter().flatten());
        self.change(context, tun, |forwarder| {
            forwarder.sender.leave_shared(context);
        });
        isolated
    }

    /// A descriptor that is readable when [`Self::handle_path_events`] has something to do.
    pub(crate) fn paths_fd(&self) -> BorrowedFd<'_> {
        self.paths.fd()
    }

    /// Takes what happened to the peers' own sockets.
    pub(crate) fn handle_path_events(&self, context: OutboundContext<'_, U>) {
        self.paths.handle_events(context);
    }

    /// Whether [`Self::tidy`] is to be called now and then.
    pub(crate) fn is_untidy(&self) -> bool {
        self.paths.is_untidy()
    }

    /// Closes the peers' own sockets that are no longer needed.
    pub(crate) fn tidy(&self, context: OutboundContext<'_, U>) {
        self.paths.tidy(context);
    }

    /// Closes all sockets that peers have of their own: the shared ones changed.
    pub(crate) fn clear_paths(&self) {
        (self.queue).each(|_, forwarder| drop(forwarder.sender.take_recent()));
        self.paths.clear();
    }
}

impl Standing {
    /// Stage 1: `None` if nothing waits in the TUN queue.
    pub(crate) fn read<U>(
        &mut self,
        context: OutboundContext<'_, U>,
        tun: &impl TunQueue,
    ) -> io::Result<Option<Box<OutboundBatch>>> {
        let mut batch = context.buffers.batches.take();
        let read = tun.read_batch(&mut batch.frames);
        if let Ok(emptied) = read {
            self.note(context, emptied);
            batch.more = !emptied;
            if !batch.frames.is_empty() {
                return Ok(Some(batch));
            }
        }
        context.buffers.batches.give_back(batch);
        read.map(|_| None)
    }

    /// Tells the control thread, now and then, that the TUN holds more than leaves.
    fn note<U>(
        &mut self,
        OutboundContext { common, now, .. }: OutboundContext<'_, U>,
        emptied: bool,
    ) {
        self.behind = if emptied {
            0
        } else {
            self.behind.saturating_add(1)
        };
        if self.behind >= STANDING && now.since(self.told) >= TELL_EVERY {
            self.told = now;
            common.control.tun_is_behind();
        }
    }
}

#[cfg(test)]
#[path = "outbound_tests.rs"]
pub(crate) mod tests;
