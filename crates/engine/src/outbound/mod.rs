//! TUN to UDP: read → route → append → seal → send, each once a frame or a train.
//!
//! 1. `read`: frames of the TUN queue until none waits or the arena is full;
//! 2. `route`: a frame's destination chooses the peer, and its session; without one the frame is
//!    staged;
//! 3. `append`: each segment goes into a slot of the peer's open train, headers finished;
//! 4. `seal`: a train that is full takes its counters and is sealed; trains that no frame waits to
//!    join are sealed together;
//! 5. `send`: sealed trains leave in the order in which they were closed (`sender`).
//!
//! While several threads help, they send at the same time: a batch is split by the addresses of its
//! packets, and each part has a second gate, and so a sender, of its own. A flow is in one part.

pub(crate) mod sender;
pub(crate) mod slow_paths;
pub(crate) mod staged;
pub(crate) mod train;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_io::{BatchFrame, FrameBatch, TunQueue, UdpSocket};
use adit_offload::Frame;
use adit_proto::{DropReason, Drops, Endpoint, PassedKind, Peer, Time};
use arrayvec::ArrayVec;
use zeroize::Zeroizing;

use crate::order::gates::{Gates, Put, Taken, Ticket};
use crate::order::parts::{Parts, part_of};
use crate::outbound::sender::{MAX_READY, Sender};
use crate::outbound::slow_paths::Paths;
use crate::outbound::staged::{Staged, packets};
use crate::outbound::train::{OpenTrain, SealedTrain, datagram_len, max_bytes, seal_all};
use crate::shards::queues::Buffers;
use crate::shared::common::{Context, ShardCommand};
use crate::shared::counters::Waiting;
use crate::thread::lock::lock;
use crate::thread::poll::Polled;
#[cfg(debug_assertions)]
use crate::thread::progress;

/// Second gates of an interface at most: a power of two.
pub(crate) const SEND_GATES: usize = 8;

/// Trains of different peers (or ECN marks, or gates) that are open at once.
const MAX_OPEN: usize = 16;

/// So many polls in a row find more in the TUN than they can take, before its queue counts as
/// standing: 4 MB.
const STANDING: u32 = 16;
/// How often the control thread hears of that.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// Frames that were read from the TUN, on their way to the socket.
#[derive(Default)]
pub(crate) struct OutboundBatch {
    frames: FrameBatch,
    /// More may wait.
    more: bool,
    /// The trains that the first of them became, when another batch was to be put before.
    sealed: VecDeque<SealedTrain>,
}

/// What is at a second gate.
enum Part {
    Whole(Box<OutboundBatch>),
    /// What of a batch is for this gate.
    Split {
        sealed: VecDeque<SealedTrain>,
        /// Frames that come after these: what waits for a session, and what did not fit.
        rest: Rest,
        of: Arc<Parts<Mutex<Option<Box<OutboundBatch>>>>>,
    },
}

impl Part {
    /// It has been put: the batch, if that is true of all its parts.
    fn put(self) -> Option<Box<OutboundBatch>> {
        match self {
            Self::Whole(batch) => Some(batch),
            Self::Split { of, .. } => of.put().then(|| lock(&of.batch).take()).flatten(),
        }
    }
}

/// The second gate of a frame, of so many: that of its flow.
fn gate_of(frame: &Frame<'_>, gates: usize) -> usize {
    match gates {
        1 => 0,
        _ => part_of(frame.destination(), frame.source(), gates),
    }
}

/// The outbound path of one interface: its TUN is read behind the first gate, and its sockets are
/// written behind the second ones.
pub(crate) struct Outbound<U> {
    gates: Gates<Standing, Part, Forwarder<U>, SEND_GATES>,
    /// The address family that the trains of each gate wait for, as [`Sender::waits_for`] has it: 0 if
    /// none do.
    blocked: [AtomicU8; SEND_GATES],
    /// The peers' own sockets.
    paths: Arc<Paths<U>>,
    waiting: Arc<Waiting>,
}

/// Whether the TUN's queue stands.
#[derive(Default)]
struct Standing {
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
        let paths = Arc::new(Paths::new()?);
        let forwarder = || Forwarder {
            sender: Sender::new(Arc::clone(drops), Arc::clone(&paths)),
            staged: Staged::default(),
            processed: 0,
            is_paused: false,
            noted: Noted::default(),
        };
        Ok(Self {
            gates: Gates::new(Standing::default(), std::array::from_fn(|_| forwarder())),
            blocked: Default::default(),
            paths,
            waiting,
        })
    }

    /// Takes what waits in the TUN queue, which so many threads poll, to be sent through so many second gates:
    /// a power of two. `awaits` says that the calling thread is the one that is woken if it has to wait for others.
    /// Errors are the TUN's.
    pub(crate) fn take(
        &self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        (awaits, threads): (bool, usize),
        gates: usize,
    ) -> io::Result<Taken<Box<OutboundBatch>>> {
        let change = |all: &mut [&mut Forwarder<U>]| self.change_gates(all, gates);
        let read = |standing: &mut Standing| standing.read(context, tun);
        self.gates.take((awaits, threads), (gates, change), read)
    }

    /// Reads what waits in the TUN queue, and sends it at once: what [`Self::take`] and [`Self::finish`] do, where
    /// no other thread has a part of it. `None` where one may have. Errors are the TUN's.
    pub(crate) fn pass(
        &self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        took: impl FnOnce(&OutboundBatch),
    ) -> Option<io::Result<Polled>> {
        self.gates.pass(|standing, forwarder| {
            let mut batch = match standing.read(context, tun) {
                Ok(Some(batch)) => batch,
                Ok(None) => return (Ok(Polled::packets(0, false)), None),
                Err(error) => return (Err(error), None),
            };
            took(&batch);
            let more = batch.more;
            let (put, processed) = self.put_whole(context, 0, forwarder, &mut batch);
            if put == Put::Blocked {
                return (Ok(Polled::Blocked), Some(Part::Whole(batch)));
            }
            self.has_put(context, tun, batch);
            let polled = match forwarder.sender.waits_for() {
                Some(_) => Polled::Blocked,
                None => Polled::packets(processed, more),
            };
            (Ok(polled), None)
        })
    }

    /// Whether trains that wait for a socket allow another number of gates; frames that wait for a
    /// session change gates.
    fn change_gates(&self, forwarders: &mut [&mut Forwarder<U>], gates: usize) -> bool {
        if forwarders.iter().any(|it| it.sender.waits_for().is_some()) {
            return false;
        }
        let mut waiting = Vec::new();
        for it in forwarders.iter_mut() {
            waiting.append(&mut it.staged.take_all());
            it.set_share(gates);
        }
        for (peer, bytes) in waiting {
            // Frames were parsed before they were staged.
            let gate = Frame::parse(&bytes).map_or(0, |frame| gate_of(&frame, gates));
            forwarders[gate].stage_again(&peer, &bytes);
        }
        for (gate, it) in forwarders.iter_mut().enumerate() {
            self.note_state(gate, it);
        }
        true
    }

    /// Does the work for a batch, unless it is its turn, and files it.
    pub(crate) fn finish(
        &self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        (ticket, batch): (Ticket, Box<OutboundBatch>),
    ) -> Polled {
        let more = batch.more;
        let mut processed = 0;
        if self.gates.in_use() == 1 && self.gates.is_head(&ticket) {
            self.gates.file(ticket, Part::Whole(batch));
        } else {
            processed = self.work(context, (ticket, batch));
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
        context: Context<'_, U>,
        (ticket, mut batch): (Ticket, Box<OutboundBatch>),
    ) -> usize {
        let gates = self.gates.in_use();
        if gates == 1 {
            let processed = batch.seal(context);
            self.gates.file(ticket, Part::Whole(batch));
            return processed;
        }
        let (mut parts, processed) = batch.split(context, gates);
        #[cfg(debug_assertions)]
        progress::count_split(false);
        let of = Parts::new(Mutex::new(Some(batch)), gates);
        let parts = parts.drain(..gates).map(|(sealed, rest)| Part::Split {
            sealed,
            rest,
            of: Arc::clone(&of),
        });
        self.gates.file_parts(ticket, parts);
        processed
    }

    /// Puts what is ready, unless other threads do. Returns how many packets were processed that
    /// were not before.
    pub(crate) fn proceed(&self, context: Context<'_, U>, tun: &impl TunQueue) -> usize {
        let mut processed = 0;
        let put = |gate, forwarder: &mut Forwarder<U>, part: &mut Part| {
            let (put, packets) = match part {
                Part::Whole(batch) => self.put_whole(context, gate, forwarder, batch),
                Part::Split { sealed, rest, .. } => {
                    self.put(context, gate, forwarder, sealed, |it| {
                        it.forward_rest(context, rest);
                        rest.is_empty()
                    })
                }
            };
            processed += packets;
            put
        };
        self.gates.proceed_all(put, |part| {
            if let Some(batch) = part.put() {
                self.has_put(context, tun, batch);
            }
            if self.gates.was_awaited() {
                context.common.queues.wake();
            }
        });
        processed
    }

    fn put_whole(
        &self,
        context: Context<'_, U>,
        gate: usize,
        forwarder: &mut Forwarder<U>,
        batch: &mut OutboundBatch,
    ) -> (Put, usize) {
        let OutboundBatch { sealed, frames, .. } = batch;
        self.put(context, gate, forwarder, sealed, |it| {
            it.forward_all(context, frames);
            frames.is_empty()
        })
    }

    /// Sends a batch or a part of one, as [`Forwarder::put`] does. Returns how many packets were processed, too.
    fn put(
        &self,
        context: Context<'_, U>,
        gate: usize,
        forwarder: &mut Forwarder<U>,
        sealed: &mut VecDeque<SealedTrain>,
        forward: impl FnMut(&mut Forwarder<U>) -> bool,
    ) -> (Put, usize) {
        forwarder.processed = 0;
        let put = forwarder.put(context, sealed, forward);
        let passed = forwarder.processed as u64;
        (forwarder.sender.drops()).count_passed(PassedKind::FromTun, passed);
        self.note_state(gate, forwarder);
        (put, forwarder.processed)
    }

    /// A batch has been sent, or waits for sessions.
    fn has_put(&self, context: Context<'_, U>, tun: &impl TunQueue, batch: Box<OutboundBatch>) {
        tun.processed(&batch.frames);
        context.buffers.outbound.put(batch);
    }

    /// Goes on where a full socket stopped it. False if it is still full.
    pub(crate) fn resume(&self, context: Context<'_, U>, tun: &impl TunQueue) -> bool {
        if self.waits_for().is_some() {
            self.change(context, tun, |forwarder| forwarder.sender.flush(context));
        }
        self.waits_for().is_none()
    }

    /// Looks at what is behind each second gate that is in use.
    fn look<R>(&self, look: impl Fn(&Forwarder<U>) -> R) -> ArrayVec<R, SEND_GATES> {
        self.gates.each(|_, forwarder| look(forwarder))
    }

    /// Changes what is behind each second gate that is in use. Then a batch that a full socket stopped
    /// may go on, and nothing else wakes a thread for it: so all gates proceed (invariant 6).
    fn change<R>(
        &self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        mut change: impl FnMut(&mut Forwarder<U>) -> R,
    ) -> ArrayVec<R, SEND_GATES> {
        let changed = self.gates.each(|gate, forwarder| {
            let result = change(forwarder);
            self.note_state(gate, forwarder);
            result
        });
        self.proceed(context, tun);
        changed
    }

    fn note_state(&self, gate: usize, forwarder: &mut Forwarder<U>) {
        let blocked = match forwarder.sender.waits_for() {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        // Other gates have the same cache line.
        if self.blocked[gate].load(Ordering::Relaxed) != blocked {
            self.blocked[gate].store(blocked, Ordering::Release);
        }
        forwarder.note_waiting(&self.waiting);
    }

    /// The address family of the first train that waits for a socket: true for IPv6.
    pub(crate) fn waits_for(&self) -> Option<bool> {
        let blocked = |gate: &AtomicU8| gate.load(Ordering::Acquire);
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
        context: Context<'_, U>,
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
        self.gates.set_closed(pauses);
        for gate in 0..SEND_GATES {
            self.gates
                .with(gate, |forwarder| forwarder.is_paused = pauses);
        }
    }

    /// Whether all that was read has left, or waits for a session.
    pub(crate) fn is_drained(&self) -> bool {
        let waits = |forwarder: &Forwarder<U>| forwarder.sender.waits_for().is_some();
        self.gates.is_drained() && !self.look(waits).contains(&true)
    }

    /// Packets that wait for sessions.
    pub(crate) fn staged_packets(&self) -> u64 {
        self.look(|forwarder| forwarder.staged.packets())
            .iter()
            .sum()
    }

    /// No session will come: drops what waited for it.
    pub(crate) fn drop_staged(&self, context: Context<'_, U>, tun: &impl TunQueue, peer: &Peer) {
        self.change(context, tun, |Forwarder { sender, staged, .. }| {
            let dropped = staged.drop_all(peer.id());
            sender.drop_packets(peer, DropReason::Staged, dropped);
        });
    }

    /// The socket that peers share has been full for long: peers that may be the reason get sockets
    /// of their own, and their trains no longer wait. False if that changed nothing.
    pub(crate) fn isolate(&self, context: Context<'_, U>, tun: &impl TunQueue) -> bool {
        let Some(v6) = self.waits_for() else {
            return false;
        };
        let recent = (self.gates).each(|_, forwarder| forwarder.sender.take_recent());
        let isolated = self
            .paths
            .isolate(context, v6, recent.into_iter().flatten());
        self.change(context, tun, |forwarder| {
            forwarder.sender.leave_shared(context);
        });
        isolated
    }

    /// What is readable when [`Self::handle_path_events`] has something to do.
    pub(crate) fn paths_fd(&self) -> BorrowedFd<'_> {
        self.paths.fd()
    }

    /// Takes what happened to the peers' own sockets.
    pub(crate) fn handle_path_events(&self, context: Context<'_, U>) {
        self.paths.handle_events(context);
    }

    /// Whether [`Self::tidy`] is to be called now and then.
    pub(crate) fn is_untidy(&self) -> bool {
        self.paths.is_untidy()
    }

    /// Closes the peers' own sockets that are no longer needed.
    pub(crate) fn tidy(&self, context: Context<'_, U>) {
        self.paths.tidy(context);
    }

    /// Closes all sockets that peers have of their own: the shared ones changed.
    pub(crate) fn clear_paths(&self) {
        (self.gates).each(|_, forwarder| drop(forwarder.sender.take_recent()));
        self.paths.clear();
    }
}

impl Standing {
    /// Stage 1: `None` if nothing waits in the TUN queue.
    fn read<U>(
        &mut self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
    ) -> io::Result<Option<Box<OutboundBatch>>> {
        let mut batch = context.buffers.outbound.take();
        let read = tun.read_batch(&mut batch.frames);
        if let Ok(emptied) = read {
            self.note(context, emptied);
            batch.more = !emptied;
            if !batch.frames.is_empty() {
                return Ok(Some(batch));
            }
        }
        context.buffers.outbound.put(batch);
        read.map(|_| None)
    }

    /// Tells the control thread, now and then, that the TUN holds more than leaves.
    fn note<U>(&mut self, Context { common, now, .. }: Context<'_, U>, emptied: bool) {
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

impl OutboundBatch {
    /// How many frames it has, and whether more may wait.
    pub(crate) fn polled(&self) -> Polled {
        Polled::packets(self.frames.len(), self.more)
    }

    /// Stages 2 to 4 before it is this batch's turn: for frames from the first on, as long as each
    /// has a session and there are not too many trains. Returns how many packets that were.
    fn seal<U: UdpSocket>(&mut self, context: Context<'_, U>) -> usize {
        let drops = &context.common.queues.drops;
        let routes = context.common.proto.routes();
        let mut trains = Trains::default();
        let mut sealed = Sealed {
            trains: std::slice::from_mut(&mut self.sealed),
            count: 0,
            drops,
        };
        let mut processed = 0;
        while sealed.count < MAX_READY
            && let Some(BatchFrame { bytes, peer }) = self.frames.peek()
        {
            // What fails here is counted when it is this batch's turn.
            let Ok(frame) = Frame::parse(bytes) else {
                break;
            };
            let Some(found) = routes.lookup(frame.destination()) else {
                break;
            };
            if found.session(context.now).is_none() || found.endpoint().is_none() {
                break;
            }
            peer.set(Some(found.id()));
            self.frames.next_frame();
            processed += frame.segments();
            context.saw(&frame);
            sealed.append(&mut trains, context, (found, 0), &frame);
        }
        trains.close_all(&mut sealed, context);
        drops.count_passed(PassedKind::FromTun, processed as u64);
        processed
    }

    /// Stages 2 to 4 for each second gate: the trains that are for it, and the frames that come after
    /// these when it is this batch's turn. Returns how many packets were processed, too.
    fn split<U: UdpSocket>(
        &mut self,
        context: Context<'_, U>,
        gates: usize,
    ) -> (ArrayVec<(VecDeque<SealedTrain>, Rest), SEND_GATES>, usize) {
        let drops = &context.common.queues.drops;
        let routes = context.common.proto.routes();
        let mut trains = Trains::default();
        let mut by_gate: [VecDeque<SealedTrain>; SEND_GATES] = Default::default();
        let mut sealed = Sealed {
            trains: &mut by_gate,
            count: 0,
            drops,
        };
        let mut rest: [Rest; SEND_GATES] = Default::default();
        // Peers that have frames among the rest.
        let mut left: HashSet<u32> = HashSet::new();
        let mut processed = 0;
        while let Some(BatchFrame { bytes, peer }) = self.frames.next_frame() {
            let Ok(frame) = Frame::parse(bytes) else {
                processed += 1;
                drops.count(DropReason::MalformedFrame, 1);
                continue;
            };
            let packets = frame.segments();
            let Some(found) = routes.lookup(frame.destination()) else {
                processed += packets;
                context.saw(&frame);
                drops.count_unrouted(frame.destination(), packets as u64);
                continue;
            };
            let id = found.id();
            peer.set(Some(id));
            let gate = gate_of(&frame, gates);
            if left.contains(&id)
                || found.session(context.now).is_none()
                || found.endpoint().is_none()
                || sealed.count >= MAX_READY
            {
                left.insert(id);
                rest[gate].push_back(Zeroizing::new(bytes.into()));
                continue;
            }
            processed += packets;
            context.saw(&frame);
            sealed.append(&mut trains, context, (found, gate), &frame);
        }
        trains.close_all(&mut sealed, context);
        drops.count_passed(PassedKind::FromTun, processed as u64);
        let parts = by_gate.into_iter().zip(rest);
        (parts.collect(), processed)
    }
}

/// Frames that were copied from a batch.
type Rest = VecDeque<Zeroizing<Box<[u8]>>>;

/// What takes trains when they are closed.
trait Closed<U> {
    /// A buffer for a train; `None` while too many exist.
    fn buffer(&mut self, buffers: &Buffers) -> Option<Box<[u8]>>;

    /// Takes a train that is sealed, or one whose session may not be used any more.
    fn take(&mut self, context: Context<'_, U>, train: Result<SealedTrain, OpenTrain<'_>>);
}

/// Trains that are sent later, by their gates.
struct Sealed<'a> {
    trains: &'a mut [VecDeque<SealedTrain>],
    /// How many there are.
    count: usize,
    drops: &'a Drops,
}

impl Sealed<'_> {
    /// Stages 3 and 4 for one frame.
    fn append<'b, U: UdpSocket>(
        &mut self,
        trains: &mut Trains<'b>,
        context: Context<'_, U>,
        (peer, gate): (&Arc<Peer>, usize),
        frame: &Frame<'b>,
    ) {
        let (reason, packets) = match trains.append(self, context, (peer, gate), frame) {
            Ok(()) => return,
            // The session ended just now.
            Err(NotAppended::NoSession) => (DropReason::SessionEnded, frame.segments()),
            Err(NotAppended::Dropped(reason, packets)) => (reason, packets),
        };
        peer.count_dropped(self.drops, reason, packets as u64);
    }
}

impl<U> Closed<U> for Sealed<'_> {
    fn buffer(&mut self, buffers: &Buffers) -> Option<Box<[u8]>> {
        Some(buffers.trains.take())
    }

    fn take(&mut self, context: Context<'_, U>, train: Result<SealedTrain, OpenTrain<'_>>) {
        match train {
            Ok(sealed) => {
                self.count += 1;
                self.trains[sealed.gate].push_back(sealed);
            }
            Err(train) => {
                let packets = train.packets() as u64;
                let reason = DropReason::SessionEnded;
                train.peer.count_dropped(self.drops, reason, packets);
                context.buffers.trains.put(train.into_buffer());
            }
        }
    }
}

impl<U: UdpSocket> Closed<U> for Sender<U> {
    fn buffer(&mut self, buffers: &Buffers) -> Option<Box<[u8]>> {
        Sender::buffer(self, buffers)
    }

    fn take(&mut self, context: Context<'_, U>, train: Result<SealedTrain, OpenTrain<'_>>) {
        Sender::take(self, context, train);
    }
}

/// Stages 2 to 5, at one second gate.
struct Forwarder<U> {
    sender: Sender<U>,
    staged: Staged<Arc<Peer>>,
    /// Packets that the last poll processed.
    processed: usize,
    /// What waits for sessions stays: see [`Outbound::pause`].
    is_paused: bool,
    noted: Noted,
}

/// What [`Waiting`] has of one second gate.
#[derive(Default)]
struct Noted {
    trains: usize,
    frames: usize,
    packets: u64,
}

impl<U: UdpSocket> Forwarder<U> {
    /// It is one of so many.
    fn set_share(&mut self, gates: usize) {
        self.sender.set_share(gates);
        self.staged.set_share(gates);
    }

    /// Keeps a frame that another gate kept before.
    fn stage_again(&mut self, peer: &Arc<Peer>, bytes: &[u8]) {
        let sender = &self.sender;
        self.staged.push(peer.id(), peer, bytes, |loser, packets| {
            sender.drop_packets(loser, DropReason::Staged, packets);
        });
    }

    /// Tells what waits here, by what it is more than before: other gates tell theirs.
    fn note_waiting(&mut self, waiting: &Waiting) {
        let now = Noted {
            trains: self.sender.waiting(),
            frames: self.staged.frames(),
            packets: self.staged.packets(),
        };
        let before = std::mem::replace(&mut self.noted, now);
        let Noted {
            trains,
            frames,
            packets,
        } = &self.noted;
        if *trains != before.trains {
            let more = trains.wrapping_sub(before.trains);
            waiting.sealed_trains.fetch_add(more, Ordering::Relaxed);
        }
        if *frames != before.frames {
            let more = frames.wrapping_sub(before.frames);
            waiting.staged_frames.fetch_add(more, Ordering::Relaxed);
        }
        if *packets != before.packets {
            let more = packets.wrapping_sub(before.packets);
            waiting.staged_packets.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Sends a batch or a part of one: its trains that are sealed, then what `forward` makes of its other
    /// frames. That returns whether none is left.
    fn put(
        &mut self,
        context: Context<'_, U>,
        sealed: &mut VecDeque<SealedTrain>,
        mut forward: impl FnMut(&mut Self) -> bool,
    ) -> Put {
        if !self.sender.flush(context) {
            return Put::Blocked;
        }
        loop {
            self.send_sealed(context, sealed);
            let is_done = sealed.is_empty() && forward(self);
            let is_flushed = self.sender.flush(context);
            if is_done {
                return Put::Done;
            }
            // A socket that was full may have space by now. Then nothing wakes anybody for the
            // frames that are left, so they are sent at once (invariant 6).
            if !is_flushed {
                return Put::Blocked;
            }
        }
    }

    /// Sends trains that are sealed, until none is left or the socket is full.
    fn send_sealed(&mut self, context: Context<'_, U>, sealed: &mut VecDeque<SealedTrain>) {
        while self.sender.has_room(context)
            && let Some(train) = sealed.pop_front()
        {
            // A session that comes after staged frames has to wait for them.
            if self.staged.holds(train.peer.id()) {
                self.send_staged(context, &train.peer);
            }
            self.sender.adopt(context, train);
        }
    }

    /// Stages 2 to 4 for frames of a part, as [`Self::forward_all`] does for those of a whole batch.
    fn forward_rest(&mut self, context: Context<'_, U>, rest: &mut Rest) {
        let mut trains = Trains::default();
        let routes = context.common.proto.routes();
        let mut forwarded = 0;
        for bytes in &*rest {
            if !self.sender.has_room(context) {
                break;
            }
            forwarded += 1;
            self.forward(&mut trains, context, bytes, |frame| {
                routes.lookup(frame.destination())
            });
        }
        trains.close_all(&mut self.sender, context);
        drop(trains);
        rest.drain(..forwarded);
    }

    /// Stages 2 to 4 for the frames that are left, until none is or a full socket leaves no buffer
    /// for the next.
    fn forward_all(&mut self, context: Context<'_, U>, frames: &FrameBatch) {
        let mut trains = Trains::default();
        let routes = context.common.proto.routes();
        while self.sender.has_room(context)
            && let Some(BatchFrame { bytes, peer }) = frames.next_frame()
        {
            let route = |frame: &Frame<'_>| {
                let found = routes.lookup(frame.destination());
                peer.set(found.map(|found| found.id()));
                found
            };
            self.forward(&mut trains, context, bytes, route);
        }
        trains.close_all(&mut self.sender, context);
    }

    /// Stages 2 to 4 for one frame.
    fn forward<'a, 'r>(
        &mut self,
        trains: &mut Trains<'a>,
        context: Context<'_, U>,
        bytes: &'a [u8],
        route: impl FnOnce(&Frame<'a>) -> Option<&'r Arc<Peer>>,
    ) {
        let Context { now, .. } = context;
        let Ok(frame) = Frame::parse(bytes) else {
            self.processed += 1;
            self.sender.drops().count(DropReason::MalformedFrame, 1);
            return;
        };
        let packets = frame.segments();
        self.processed += packets;
        context.saw(&frame);
        let Some(peer) = route(&frame) else {
            let drops = self.sender.drops();
            return drops.count_unrouted(frame.destination(), packets as u64);
        };
        if self.staged.holds(peer.id()) {
            // Asked once: a session that comes after this frame has to wait for it.
            if peer.session(now).is_none() {
                return self.stage(context, peer, (&frame, bytes));
            }
            self.send_staged(context, peer);
        }
        if self.sender.paths.is_full(peer.id()) {
            let sender = &self.sender;
            return sender.drop_packets(peer, DropReason::SlowPath, packets as u64);
        }
        match trains.append(&mut self.sender, context, (peer, 0), &frame) {
            Ok(()) => {}
            Err(NotAppended::NoSession) => self.stage(context, peer, (&frame, bytes)),
            Err(NotAppended::Dropped(reason, packets)) => {
                self.sender.drop_packets(peer, reason, packets as u64);
            }
        }
    }

    /// Sends the frames that waited for a session. A socket that is full now loses them.
    fn send_staged(&mut self, context: Context<'_, U>, peer: &Arc<Peer>) {
        let frames = self.staged.take(peer.id());
        let mut trains = Trains::default();
        for bytes in &frames {
            // Frames were parsed before they were staged.
            let Ok(frame) = Frame::parse(bytes) else {
                continue;
            };
            let appended = if self.sender.has_room(context) {
                trains.append(&mut self.sender, context, (peer, 0), &frame)
            } else {
                Err(NotAppended::Dropped(DropReason::Staged, frame.segments()))
            };
            let (reason, packets) = match appended {
                Ok(()) => continue,
                Err(NotAppended::NoSession) => (DropReason::Staged, frame.segments()),
                Err(NotAppended::Dropped(reason, packets)) => (reason, packets),
            };
            self.sender.drop_packets(peer, reason, packets as u64);
        }
        trains.close_all(&mut self.sender, context);
        self.sender.flush(context);
    }

    /// Keeps a frame until the peer has a session, and asks for one.
    fn stage(
        &mut self,
        context: Context<'_, U>,
        peer: &Arc<Peer>,
        (frame, bytes): (&Frame<'_>, &[u8]),
    ) {
        let Context { common, now, .. } = context;
        if peer.endpoint().is_none() {
            // No endpoint, no handshake. The peer's own first packet may bring both, and the frame
            // would be old by then.
            let sender = &self.sender;
            return sender.drop_packets(peer, DropReason::NoEndpoint, packets(bytes));
        }
        let handle = &common.queues;
        let is_first = !self.staged.holds(peer.id());
        let sender = &self.sender;
        self.staged.push(peer.id(), peer, bytes, |loser, packets| {
            sender.drop_packets(loser, DropReason::Staged, packets);
        });
        if is_first {
            handle.wait_for(peer.id());
            // A session that came earlier was not reported to this shard.
            if peer.session(now).is_some() {
                handle.tell(ShardCommand::SessionReady(Arc::clone(peer)));
            }
            // Nor was a removal of the peer: a thread may go on with routes of before that.
            let routes = common.proto.routes();
            let is_routed = |found: &Arc<Peer>| found.id() == peer.id();
            if !routes.lookup(frame.destination()).is_some_and(is_routed) {
                handle.tell(ShardCommand::DropStaged(Arc::clone(peer)));
            }
        }
        if peer.want_session() {
            common.control.event(peer);
        }
    }
}

/// In the seventh byte of an IPv4 header.
const DONT_FRAGMENT: u8 = 0x40;

/// Why a frame, or the rest of it, was not appended to a train.
enum NotAppended {
    /// The peer has no session to send with. Nothing of the frame was appended.
    NoSession,
    /// So many packets, the last ones of the frame, are dropped.
    Dropped(DropReason, usize),
}

/// The trains that frames of one poll are appended to. A peer has at most one of them for each second
/// gate: its flows stay in order.
#[derive(Default)]
struct Trains<'a> {
    open: ArrayVec<OpenTrain<'a>, MAX_OPEN>,
}

impl<'a> Trains<'a> {
    /// Stages 3 and 4 for one frame.
    fn append<U: UdpSocket>(
        &mut self,
        closed: &mut impl Closed<U>,
        context: Context<'_, U>,
        (peer, gate): (&Arc<Peer>, usize),
        frame: &Frame<'a>,
    ) -> Result<(), NotAppended> {
        let Context { common, now, .. } = context;
        let segments = frame.segments();
        if is_own_datagram(frame, peer, context.sockets.port) {
            return Err(NotAppended::Dropped(DropReason::RoutingLoop, segments));
        }
        if peer.path_concerns(|| frame.segment_len(0)) && is_too_long(context, peer, frame) {
            return Err(NotAppended::Dropped(DropReason::PathMtu, segments));
        }
        let mtu = common.mtu();
        let ecn = frame.ecn();
        for i in 0..segments {
            let rest = |reason| NotAppended::Dropped(reason, segments - i);
            let len = datagram_len(frame.segment_len(i), mtu);
            let open = self
                .open
                .iter()
                .position(|train| (train.peer.id(), train.gate) == (peer.id(), gate));
            let at = match open {
                Some(at) if self.open[at].ecn() == ecn && self.open[at].takes(len) => at,
                other => {
                    if let Some(at) = other {
                        self.close(at, closed, context);
                    } else if self.open.is_full() {
                        // Trains of many peers are short: sealed together, they fill the lanes.
                        self.close_all(closed, context);
                    }
                    let Some(session) = peer.session(now) else {
                        // Segments that were appended may have left, and a part of a frame cannot
                        // be staged.
                        return Err(match i {
                            0 => NotAppended::NoSession,
                            _ => rest(DropReason::SessionEnded),
                        });
                    };
                    let to = peer.endpoint().ok_or(rest(DropReason::NoEndpoint))?;
                    if len > max_bytes(&to) {
                        return Err(rest(DropReason::TooBig));
                    }
                    let buffer = closed
                        .buffer(context.buffers)
                        .ok_or(rest(DropReason::SendFailed))?;
                    let train = OpenTrain::new(Arc::clone(peer), session, to, ecn, buffer);
                    self.open.push(train.for_gate(gate));
                    self.open.len() - 1
                }
            };
            self.open[at].append(frame, i, len);
            if self.open[at].is_full() {
                self.close(at, closed, context);
            }
        }
        Ok(())
    }

    /// Seals one train.
    fn close<U>(&mut self, at: usize, closed: &mut impl Closed<U>, context: Context<'_, U>) {
        let mut train = ArrayVec::from([self.open.remove(at)]);
        seal_all(&mut train, context.now, |train| closed.take(context, train));
    }

    /// Seals all; their order stays.
    fn close_all<U>(&mut self, closed: &mut impl Closed<U>, context: Context<'_, U>) {
        seal_all(&mut self.open, context.now, |train| {
            closed.take(context, train)
        });
    }
}

/// What is known of the path to a peer says that a frame's segments do not arrive. Their sender is
/// told, also if they arrive in fragments. IPv6 has no shorter limit than 1280 bytes (RFC 8200, 5).
#[cold]
fn is_too_long<U>(context: Context<'_, U>, peer: &Arc<Peer>, frame: &Frame<'_>) -> bool {
    let Context { common, now, .. } = context;
    let len = frame.segment_len(0);
    if peer.sample(len, frame.source(), frame.destination()) {
        common.control.event(peer);
    }
    let Some(limit) = peer.path_limit() else {
        return false;
    };
    let limit = match frame.destination().is_ipv6() {
        true => limit.max(1280),
        false => limit,
    };
    if len <= limit.into() {
        return false;
    }
    let loses = peer.loses_longer();
    let mut packet = vec![0; frame.header_len()];
    frame.write_header(0, &mut packet);
    // What anybody may fragment arrives as it is.
    let is_whole = frame.destination().is_ipv6()
        || packet
            .get(6)
            .is_some_and(|flags| flags & DONT_FRAGMENT != 0);
    if (loses || is_whole) && peer.tells_limit(now) {
        let payload = frame.payload(0);
        packet.extend(&payload[..payload.len().min(128)]);
        if let Some(told) = adit_offload::too_big(&packet, limit) {
            common.control.leave_answer(told);
        }
    }
    loses
}

/// Whether a frame is a datagram that this device sent to the endpoint of this peer: sealing it
/// again would never end.
fn is_own_datagram(frame: &Frame<'_>, peer: &Peer, own_port: u16) -> bool {
    // The port first: it takes no lock.
    let Some((_, to)) = frame.udp_ports().filter(|(from, _)| *from == own_port) else {
        return false;
    };
    let is_to = |end: Endpoint| (frame.destination(), to) == (end.addr.ip(), end.addr.port());
    peer.endpoint().is_some_and(is_to)
}

#[cfg(test)]
#[path = "outbound_tests.rs"]
pub(crate) mod tests;
