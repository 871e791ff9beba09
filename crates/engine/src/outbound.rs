//! TUN to UDP: read → route → append → seal → send, each once a frame or a train.
//!
//! 1. `read`: frames of the TUN queue until none waits or the arena is full;
//! 2. `route`: a frame's destination chooses the peer, and its session; without one the frame is
//!    staged;
//! 3. `append`: each segment goes into a slot of the peer's open train, headers finished;
//! 4. `seal`: a train that is full takes its counters and is sealed; trains that no frame waits to
//!    join are sealed together;
//! 5. `send`: sealed trains leave in the order in which they were closed (`sender`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use adit_io::{BatchFrame, FrameBatch, TunQueue, UdpSocket};
use adit_offload::Frame;
use adit_proto::{DropReason, Drops, Endpoint, PassedKind, Peer, Time};
use arrayvec::ArrayVec;

use crate::common::{Context, ShardCommand};
use crate::gates::{Gates, Put, Taken, Ticket};
use crate::load::Waiting;
use crate::poll::Polled;
use crate::sender::{MAX_READY, Pool, Sender};
use crate::spares::Spares;
use crate::staged::{Staged, packets};
use crate::train::{OpenTrain, SealedTrain, datagram_len, max_bytes, seal_all};

/// Trains of different peers (or ECN marks) that are open at once.
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

/// The outbound path of one interface: its TUN is read behind the first gate, and its sockets are
/// written behind the second.
pub(crate) struct Outbound<U> {
    gates: Gates<Standing, Box<OutboundBatch>, Forwarder<U>>,
    /// The address family that trains wait for, as [`Sender::waits_for`] has it: 0 if none do.
    blocked: AtomicU8,
    /// [`Self::tidy`] is to be called now and then.
    is_untidy: AtomicBool,
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
    pub(crate) fn new(drops: Arc<Drops>, waiting: Arc<Waiting>) -> io::Result<Self> {
        let forwarder = Forwarder {
            sender: Sender::new(drops)?,
            staged: Staged::default(),
            processed: 0,
            is_paused: false,
        };
        Ok(Self {
            gates: Gates::new(Standing::default(), forwarder),
            blocked: AtomicU8::new(0),
            is_untidy: AtomicBool::new(false),
            waiting,
        })
    }

    /// Takes what waits in the TUN queue. `awaits` says that the calling thread is the one that is
    /// woken if it has to wait for others. Errors are the TUN's.
    pub(crate) fn take(
        &self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        spares: &Spares<OutboundBatch>,
        awaits: bool,
    ) -> io::Result<Taken<Box<OutboundBatch>>> {
        self.gates.take(awaits, |standing| {
            let mut batch = spares.take();
            let read = tun.read_batch(&mut batch.frames);
            if let Ok(emptied) = read {
                standing.note(context, emptied);
                batch.more = !emptied;
                if !batch.frames.is_empty() {
                    return Ok(Some(batch));
                }
            }
            spares.put(batch);
            read.map(|_| None)
        })
    }

    /// Does the work for a batch, unless it is its turn, and files it.
    pub(crate) fn finish(
        &self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        spares: &Spares<OutboundBatch>,
        (ticket, mut batch): (Ticket, Box<OutboundBatch>),
    ) -> Polled {
        let more = batch.more;
        let mut processed = match self.gates.is_head(&ticket) {
            true => 0,
            false => batch.seal(context),
        };
        self.gates.file(ticket, batch);
        processed += self.proceed(context, tun, spares);
        match self.waits_for() {
            Some(_) => Polled::Blocked,
            None => Polled::packets(processed, more),
        }
    }

    /// Does the work for a batch that the owner puts.
    pub(crate) fn work(
        &self,
        context: Context<'_, U>,
        (ticket, mut batch): (Ticket, Box<OutboundBatch>),
    ) {
        batch.seal(context);
        self.gates.file(ticket, batch);
    }

    /// Puts what is ready, unless another thread does. Returns how many packets were processed that
    /// were not before.
    pub(crate) fn proceed(
        &self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        spares: &Spares<OutboundBatch>,
    ) -> usize {
        let mut processed = 0;
        let put = |forwarder: &mut Forwarder<U>, batch: &mut Box<OutboundBatch>| {
            forwarder.processed = 0;
            let put = forwarder.put(context, batch);
            processed += forwarder.processed;
            let passed = forwarder.processed as u64;
            (forwarder.sender.drops()).count_passed(PassedKind::FromTun, passed);
            if put == Put::Done {
                tun.processed(&batch.frames);
            }
            self.note_state(forwarder);
            put
        };
        self.gates.proceed(put, |batch| {
            spares.put(batch);
            if self.gates.was_awaited() {
                context.common.queues.wake();
            }
        });
        processed
    }

    /// Goes on where a full socket stopped it. False if it is still full.
    pub(crate) fn resume(
        &self,
        context: Context<'_, U>,
        tun: &impl TunQueue,
        spares: &Spares<OutboundBatch>,
    ) -> bool {
        if self.waits_for().is_some() {
            self.with(|forwarder| forwarder.sender.flush(context));
            self.proceed(context, tun, spares);
        }
        self.waits_for().is_none()
    }

    /// Has what is behind the second gate for a moment.
    fn with<R>(&self, method: impl FnOnce(&mut Forwarder<U>) -> R) -> R {
        self.gates.with(|forwarder| {
            let result = method(forwarder);
            self.note_state(forwarder);
            result
        })
    }

    fn note_state(&self, forwarder: &Forwarder<U>) {
        let blocked = match forwarder.sender.waits_for() {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        self.blocked.store(blocked, Ordering::Release);
        let is_untidy = forwarder.sender.paths.is_untidy();
        self.is_untidy.store(is_untidy, Ordering::Release);
        let (trains, frames) = (forwarder.sender.waiting(), forwarder.staged.frames());
        self.waiting.sealed_trains.store(trains, Ordering::Relaxed);
        self.waiting.staged_frames.store(frames, Ordering::Relaxed);
        let packets = forwarder.staged.packets();
        self.waiting
            .staged_packets
            .store(packets, Ordering::Relaxed);
    }

    /// The address family of the first train that waits for a socket: true for IPv6.
    pub(crate) fn waits_for(&self) -> Option<bool> {
        match self.blocked.load(Ordering::Acquire) {
            0 => None,
            family => Some(family == 2),
        }
    }

    /// How many trains the shared sockets have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.with(|forwarder| forwarder.sender.taken())
    }

    /// A session exists now: sends what waited for it. False if the path pauses.
    pub(crate) fn send_staged(&self, context: Context<'_, U>, peer: &Arc<Peer>) -> bool {
        self.with(|forwarder| {
            if !forwarder.is_paused {
                forwarder.send_staged(context, peer);
            }
            !forwarder.is_paused
        })
    }

    /// Reads and seals nothing any more but what was read before: until [`Self::is_drained`], and
    /// then nothing at all.
    pub(crate) fn pause(&self, pauses: bool) {
        self.gates.set_closed(pauses);
        self.with(|forwarder| forwarder.is_paused = pauses);
    }

    /// Whether all that was read has left, or waits for a session.
    pub(crate) fn is_drained(&self) -> bool {
        self.gates.is_drained() && self.with(|forwarder| forwarder.sender.waits_for().is_none())
    }

    /// Packets that wait for sessions.
    pub(crate) fn staged_packets(&self) -> u64 {
        self.with(|forwarder| forwarder.staged.packets())
    }

    /// No session will come: drops what waited for it.
    pub(crate) fn drop_staged(&self, peer: &Peer) {
        self.with(|Forwarder { sender, staged, .. }| {
            let dropped = staged.drop_all(peer.id());
            sender.drop_packets(peer, DropReason::Staged, dropped);
        });
    }

    /// The socket that peers share has been full for long: peers that may be the reason get sockets
    /// of their own. False if that changed nothing.
    pub(crate) fn isolate(&self, context: Context<'_, U>) -> bool {
        self.with(|forwarder| forwarder.sender.isolate(context))
    }

    /// Calls `use_fd` with what is readable when [`Self::handle_path_events`] has something to do.
    pub(crate) fn with_paths_fd<R>(&self, use_fd: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        self.with(|forwarder| use_fd(forwarder.sender.paths.fd()))
    }

    /// Takes what happened to the peers' own sockets.
    pub(crate) fn handle_path_events(&self, context: Context<'_, U>) {
        self.with(|forwarder| forwarder.sender.paths.handle_events(context));
    }

    /// Whether [`Self::tidy`] is to be called now and then.
    pub(crate) fn is_untidy(&self) -> bool {
        self.is_untidy.load(Ordering::Acquire)
    }

    /// Closes the peers' own sockets that are no longer needed.
    pub(crate) fn tidy(&self, context: Context<'_, U>) {
        self.with(|forwarder| forwarder.sender.paths.tidy(context));
    }

    /// Closes all sockets that peers have of their own: the shared ones changed.
    pub(crate) fn clear_paths(&self) {
        self.with(|forwarder| forwarder.sender.paths.clear());
    }
}

impl Standing {
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
            trains: &mut self.sealed,
            drops,
        };
        let mut processed = 0;
        while sealed.trains.len() < MAX_READY
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
            match trains.append(&mut sealed, context, found, &frame) {
                Ok(()) => {}
                // The session ended just now.
                Err(NotAppended::NoSession) => {
                    let packets = frame.segments() as u64;
                    found.count_dropped(drops, DropReason::SessionEnded, packets);
                }
                Err(NotAppended::Dropped(reason, packets)) => {
                    found.count_dropped(drops, reason, packets as u64);
                }
            }
        }
        trains.close_all(&mut sealed, context);
        drops.count_passed(PassedKind::FromTun, processed as u64);
        processed
    }
}

/// What takes trains when they are closed.
trait Closed<U> {
    /// A buffer for a train; `None` while too many exist.
    fn buffer(&mut self, pool: &Pool) -> Option<Box<[u8]>>;

    /// Takes a train that is sealed, or one whose session may not be used any more.
    fn take(&mut self, context: Context<'_, U>, train: Result<SealedTrain, OpenTrain<'_>>);
}

/// Trains that are sent later.
struct Sealed<'a> {
    trains: &'a mut VecDeque<SealedTrain>,
    drops: &'a Drops,
}

impl<U> Closed<U> for Sealed<'_> {
    fn buffer(&mut self, pool: &Pool) -> Option<Box<[u8]>> {
        Some(pool.take())
    }

    fn take(&mut self, context: Context<'_, U>, train: Result<SealedTrain, OpenTrain<'_>>) {
        match train {
            Ok(sealed) => self.trains.push_back(sealed),
            Err(train) => {
                let packets = train.packets() as u64;
                let reason = DropReason::SessionEnded;
                train.peer.count_dropped(self.drops, reason, packets);
                context.pool.put(train.into_buffer());
            }
        }
    }
}

impl<U: UdpSocket> Closed<U> for Sender<U> {
    fn buffer(&mut self, pool: &Pool) -> Option<Box<[u8]>> {
        Sender::buffer(self, pool)
    }

    fn take(&mut self, context: Context<'_, U>, train: Result<SealedTrain, OpenTrain<'_>>) {
        Sender::take(self, context, train);
    }
}

/// Stages 2 to 5.
struct Forwarder<U> {
    sender: Sender<U>,
    staged: Staged<Arc<Peer>>,
    /// Packets that the last poll processed.
    processed: usize,
    /// What waits for sessions stays: see [`Outbound::pause`].
    is_paused: bool,
}

impl<U: UdpSocket> Forwarder<U> {
    /// Sends a batch: its trains that are sealed, then what becomes of its other frames.
    fn put(&mut self, context: Context<'_, U>, batch: &mut OutboundBatch) -> Put {
        if !self.sender.flush(context) {
            return Put::Blocked;
        }
        loop {
            while self.sender.has_room(context)
                && let Some(train) = batch.sealed.pop_front()
            {
                // A session that comes after staged frames has to wait for them.
                if self.staged.holds(train.peer.id()) {
                    self.send_staged(context, &train.peer);
                }
                self.sender.adopt(context, train);
            }
            if batch.sealed.is_empty() {
                self.forward_all(context, &batch.frames);
            }
            let is_flushed = self.sender.flush(context);
            if batch.sealed.is_empty() && batch.frames.is_empty() {
                return Put::Done;
            }
            // A socket that was full may have space by now. Then nothing wakes anybody for the
            // frames that are left, so they are sent at once (invariant 6).
            if !is_flushed {
                return Put::Blocked;
            }
        }
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
                return self.stage(context, peer, bytes);
            }
            self.send_staged(context, peer);
        }
        if self.sender.paths.is_full(peer.id()) {
            let sender = &self.sender;
            return sender.drop_packets(peer, DropReason::SlowPath, packets as u64);
        }
        match trains.append(&mut self.sender, context, peer, &frame) {
            Ok(()) => {}
            Err(NotAppended::NoSession) => self.stage(context, peer, bytes),
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
                trains.append(&mut self.sender, context, peer, &frame)
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
    fn stage(&mut self, context: Context<'_, U>, peer: &Arc<Peer>, bytes: &[u8]) {
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

/// The trains that frames of one poll are appended to. A peer has at most one of them: its packets
/// stay in order.
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
        peer: &Arc<Peer>,
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
                .position(|train| train.peer.id() == peer.id());
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
                        .buffer(context.pool)
                        .ok_or(rest(DropReason::SendFailed))?;
                    self.open
                        .push(OpenTrain::new(Arc::clone(peer), session, to, ecn, buffer));
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
    let payload = frame.payload(0);
    packet.extend(&payload[..payload.len().min(128)]);
    // What anybody may fragment arrives as it is.
    let is_whole = frame.destination().is_ipv6()
        || packet
            .get(6)
            .is_some_and(|flags| flags & DONT_FRAGMENT != 0);
    if !(loses || is_whole && peer.tells_limit(now)) {
        return false;
    }
    if let Some(told) = adit_offload::too_big(&packet, limit) {
        common.control.leave_answer(told);
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
