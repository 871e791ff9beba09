//! Stages 2 to 4, and what waits for sessions, of one flow shard.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_io::{BatchFrame, FrameBatch, UdpSocket};
use adit_offload::Frame;
use adit_proto::{DropReason, Endpoint, Peer, Time};
use arrayvec::ArrayVec;

use crate::order::ordered_queue::Commit;
use crate::outbound::batch::Rest;
use crate::outbound::buffers::MAX_TRAINS;
use crate::outbound::context::OutboundContext;
use crate::outbound::sender::{MAX_READY, Sender};
use crate::outbound::staged::{Staged, packets};
use crate::outbound::train::{OpenTrain, SealedTrain, datagram_len, max_bytes, seal_all};
use crate::shared::counters::Waiting;
use crate::shared::handles::ShardCommand;

/// Trains of different peers (or ECN marks, or flow shards) that are open at once.
pub(super) const MAX_OPEN: usize = 16;
/// Trains that are open, or sealed and not yet sent: those of one frame and those before it.
const MAX_SEALED: usize = MAX_TRAINS - MAX_READY;

/// In the seventh byte of an IPv4 header.
const DONT_FRAGMENT: u8 = 0x40;

/// Stages 2 to 5, of one flow shard.
pub(crate) struct Forwarder<U> {
    pub(crate) sender: Sender<U>,
    pub(crate) staged: Staged<Arc<Peer>>,
    /// Packets that the last poll processed.
    pub(crate) processed: usize,
    /// What waits for sessions stays: see [`Outbound::pause`](crate::outbound::Outbound::pause).
    pub(crate) is_paused: bool,
    pub(crate) noted: WaitingShare,
}

/// One flow shard's contribution to [`Waiting`].
#[derive(Default)]
pub(crate) struct WaitingShare {
    trains: usize,
    frames: usize,
    packets: u64,
}

impl<U: UdpSocket> Forwarder<U> {
    /// Sets its share: it is one of so many.
    pub(crate) fn set_share(&mut self, flow_shards: usize) {
        self.sender.set_share(flow_shards);
        self.staged.set_share(flow_shards);
    }

    /// Keeps a frame that another flow shard kept before.
    pub(crate) fn stage_again(&mut self, peer: &Arc<Peer>, bytes: &[u8]) {
        let sender = &self.sender;
        self.staged.push(peer.id(), peer, bytes, |loser, packets| {
            sender.drop_packets(loser, DropReason::Staged, packets);
        });
    }

    /// Tells what waits here, by what it is more than before: other flow shards tell theirs.
    pub(crate) fn note_waiting(&mut self, waiting: &Waiting) {
        let now = WaitingShare {
            trains: self.sender.waiting(),
            frames: self.staged.frames(),
            packets: self.staged.packets(),
        };
        let before = std::mem::replace(&mut self.noted, now);
        let WaitingShare {
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

    /// Sends a batch or a flow shard of one: its trains that are sealed, then what `forward` makes of its other
    /// frames. That returns whether none is left.
    pub(crate) fn transmit(
        &mut self,
        context: OutboundContext<'_, U>,
        sealed: &mut VecDeque<SealedTrain>,
        mut forward: impl FnMut(&mut Self) -> bool,
    ) -> Commit {
        if !self.sender.flush(context) {
            return Commit::Blocked;
        }
        loop {
            self.send_sealed(context, sealed);
            let is_done = sealed.is_empty() && forward(self);
            let is_flushed = self.sender.flush(context);
            if is_done {
                return Commit::Done;
            }
            // A socket that was full may have space by now. Then nothing wakes anybody for the
            // frames that are left, so they are sent at once (invariant 6).
            if !is_flushed {
                return Commit::Blocked;
            }
        }
    }

    /// Sends trains that are sealed, until none is left or the socket is full.
    fn send_sealed(&mut self, context: OutboundContext<'_, U>, sealed: &mut VecDeque<SealedTrain>) {
        while self.sender.has_room(context)
            && let Some(train) = sealed.pop_front()
        {
            // A session that comes after staged frames has to wait for them.
            if self.staged.holds(train.peer.id()) {
                self.send_staged(context, &train.peer);
            }
            self.sender.take(context, train);
        }
    }

    /// Stages 2 to 4 for frames of a flow shard, as [`Self::forward_all`] does for those of a whole batch.
    pub(crate) fn forward_rest(&mut self, context: OutboundContext<'_, U>, rest: &mut Rest) {
        let mut trains = OpenTrains::default();
        let routes = context.common.proto.routes();
        let mut forwarded = 0;
        for bytes in &*rest {
            if !self.sender.has_room(context) {
                break;
            }
            forwarded += 1;
            // Its limit has let it pass.
            self.forward(&mut trains, context, bytes, |frame| {
                Some((routes.lookup(frame.destination())?, true))
            });
        }
        self.send_all(context, &mut trains);
        drop(trains);
        rest.drain(..forwarded);
    }

    /// Stages 2 to 4 for the frames that are left, until none is or a full socket leaves no buffer
    /// for the next.
    pub(crate) fn forward_all(&mut self, context: OutboundContext<'_, U>, frames: &FrameBatch) {
        let mut trains = OpenTrains::default();
        let routes = context.common.proto.routes();
        while self.sender.has_room(context)
            && let Some(read) = frames.next_frame()
        {
            let route = |frame: &Frame<'_>| {
                let found = routes.lookup(frame.destination());
                read.peer.set(found.map(|found| found.id()));
                let found = found?;
                Some((found, admit(context.now, &read, frame, found)))
            };
            self.forward(&mut trains, context, read.bytes, route);
        }
        self.send_all(context, &mut trains);
    }

    /// Stages 2 to 4 for one frame.
    fn forward<'a, 'r>(
        &mut self,
        trains: &mut OpenTrains<'a>,
        context: OutboundContext<'_, U>,
        bytes: &'a [u8],
        route: impl FnOnce(&Frame<'a>) -> Option<(&'r Arc<Peer>, bool)>,
    ) {
        let OutboundContext { now, .. } = context;
        let Ok(frame) = Frame::parse(bytes) else {
            self.processed += 1;
            self.sender.drops().count(DropReason::MalformedFrame, 1);
            return;
        };
        let packets = frame.segments();
        self.processed += packets;
        context.saw(&frame);
        let Some((peer, is_admitted)) = route(&frame) else {
            let drops = self.sender.drops();
            return drops.count_unrouted(frame.destination(), packets as u64);
        };
        if !is_admitted {
            let (sender, packets) = (&self.sender, packets as u64);
            return sender.drop_packets(peer, DropReason::LimitToPeer, packets);
        }
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
        let appended = trains.append(context, (peer, 0), &frame);
        self.send(context, trains);
        match appended {
            Ok(()) => {}
            Err(NotAppended::NoSession) => self.stage(context, peer, (&frame, bytes)),
            Err(NotAppended::Dropped(reason, packets)) => {
                self.sender.drop_packets(peer, reason, packets as u64);
            }
        }
    }

    /// Hands the trains that are sealed to the sender.
    fn send(&mut self, context: OutboundContext<'_, U>, trains: &mut OpenTrains<'_>) {
        for train in trains.sealed.drain(..) {
            self.sender.take(context, train);
        }
    }

    /// Seals all trains and hands them to the sender.
    fn send_all(&mut self, context: OutboundContext<'_, U>, trains: &mut OpenTrains<'_>) {
        trains.close_all(context);
        self.send(context, trains);
    }

    /// Sends the frames that waited for a session. A socket that is full now loses them.
    pub(crate) fn send_staged(&mut self, context: OutboundContext<'_, U>, peer: &Arc<Peer>) {
        let frames = self.staged.take(peer.id());
        let mut trains = OpenTrains::default();
        for bytes in &frames {
            // Frames were parsed before they were staged.
            let Ok(frame) = Frame::parse(bytes) else {
                continue;
            };
            let appended = if self.sender.has_room(context) {
                trains.append(context, (peer, 0), &frame)
            } else {
                Err(NotAppended::Dropped(DropReason::Staged, frame.segments()))
            };
            self.send(context, &mut trains);
            let (reason, packets) = match appended {
                Ok(()) => continue,
                Err(NotAppended::NoSession) => (DropReason::Staged, frame.segments()),
                Err(NotAppended::Dropped(reason, packets)) => (reason, packets),
            };
            self.sender.drop_packets(peer, reason, packets as u64);
        }
        self.send_all(context, &mut trains);
        self.sender.flush(context);
    }

    /// Keeps a frame until the peer has a session, and asks for one.
    fn stage(
        &mut self,
        context: OutboundContext<'_, U>,
        peer: &Arc<Peer>,
        (frame, bytes): (&Frame<'_>, &[u8]),
    ) {
        let OutboundContext { common, now, .. } = context;
        if peer.is_barred() {
            let sender = &self.sender;
            return sender.drop_packets(peer, DropReason::NoAccess, packets(bytes));
        }
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

/// The trains that frames of one poll are appended to. A peer has at most one of them for each second
/// flow shard: its flows stay in order.
#[derive(Default)]
pub(crate) struct OpenTrains<'a> {
    open: ArrayVec<OpenTrain<'a>, MAX_OPEN>,
    /// Trains that are closed, in this order, to be sent.
    pub(super) sealed: ArrayVec<SealedTrain, MAX_SEALED>,
}

impl<'a> OpenTrains<'a> {
    /// Stages 3 and 4 for one frame.
    pub(super) fn append<U>(
        &mut self,
        context: OutboundContext<'_, U>,
        (peer, flow_shard): (&Arc<Peer>, usize),
        frame: &Frame<'a>,
    ) -> Result<(), NotAppended> {
        let OutboundContext { common, now, .. } = context;
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
                .position(|train| (train.peer.id(), train.flow_shard) == (peer.id(), flow_shard));
            let at = match open {
                Some(at) if self.open[at].ecn() == ecn && self.open[at].takes(len) => at,
                other => {
                    if let Some(at) = other {
                        self.close(at, context);
                    } else if self.open.is_full() {
                        // Trains of many peers are short: sealed together, they fill the lanes.
                        self.close_all(context);
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
                    if self.open.len() + self.sealed.len() >= self.sealed.capacity() {
                        return Err(rest(DropReason::SendFailed));
                    }
                    let buffer = context.buffers.trains.take();
                    let train = OpenTrain::new(Arc::clone(peer), session, to, ecn, buffer);
                    self.open.push(train.for_flow_shard(flow_shard));
                    self.open.len() - 1
                }
            };
            self.open[at].append(frame, i, len);
            if self.open[at].is_full() {
                self.close(at, context);
            }
        }
        Ok(())
    }

    /// Seals one train.
    fn close<U>(&mut self, at: usize, context: OutboundContext<'_, U>) {
        let mut train = ArrayVec::from([self.open.remove(at)]);
        seal_all(&mut train, context.now, |train| {
            keep(&mut self.sealed, context, train);
        });
    }

    /// Seals all; their order stays.
    pub(super) fn close_all<U>(&mut self, context: OutboundContext<'_, U>) {
        seal_all(&mut self.open, context.now, |train| {
            keep(&mut self.sealed, context, train);
        });
    }
}

/// Keeps a train that is sealed. One whose session may not be used any more is dropped.
fn keep<U>(
    sealed: &mut ArrayVec<SealedTrain, MAX_SEALED>,
    context: OutboundContext<'_, U>,
    train: Result<SealedTrain, OpenTrain<'_>>,
) {
    match train {
        Ok(train) => sealed.push(train),
        Err(train) => {
            let (reason, packets) = (DropReason::SessionEnded, train.packets() as u64);
            let drops = &context.common.queues.drops;
            train.peer.count_dropped(drops, reason, packets);
            context.buffers.trains.give_back(train.into_buffer());
        }
    }
}

/// Why a frame, or the rest of it, was not appended to a train.
pub(crate) enum NotAppended {
    /// The peer has no session to send with. Nothing of the frame was appended.
    NoSession,
    /// The last packets of the frame are dropped, so many.
    Dropped(DropReason, usize),
}

/// What is known of the path to a peer says that a frame's segments do not arrive. Their sender is
/// told, also if they arrive in fragments. IPv6 has no shorter limit than 1280 bytes (RFC 8200, 5).
#[cold]
fn is_too_long<U>(context: OutboundContext<'_, U>, peer: &Arc<Peer>, frame: &Frame<'_>) -> bool {
    let OutboundContext { common, now, .. } = context;
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
            common.control.post_answer(told);
        }
    }
    loses
}

/// Charges a frame to its peer, once, if the peer has a limit. Whether it may pass.
///
/// Where the frames that come after it can wait in the TUN, it does, and they are to: their senders
/// slow down and lose nothing. Elsewhere so much is dropped that the rest keeps to the limit.
#[inline]
pub(super) fn admit(now: Time, read: &BatchFrame<'_>, frame: &Frame<'_>, peer: &Peer) -> bool {
    let Some(limit) = peer.limits().map(|limits| &limits.to_peer) else {
        return true;
    };
    let is_ipv4 = frame.destination().is_ipv4();
    let counted = |i| adit_proto::counted(frame.segment_len(i), is_ipv4);
    let bytes = (0..frame.segments()).map(counted).sum();
    if read.can_wait {
        read.rest.set(limit.charge(now, bytes));
        return true;
    }
    limit.admit(now, bytes)
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
