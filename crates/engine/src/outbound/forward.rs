//! Stages 2 to 5, at one second gate.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_io::{BatchFrame, FrameBatch, UdpSocket};
use adit_offload::Frame;
use adit_proto::{DropReason, Peer};

use crate::order::gates::Put;
use crate::outbound::append::{NotAppended, Trains};
use crate::outbound::batch::Rest;
use crate::outbound::context::Context;
use crate::outbound::sender::Sender;
use crate::outbound::staged::{Staged, packets};
use crate::outbound::train::SealedTrain;
use crate::shared::counters::Waiting;
use crate::shared::handles::ShardCommand;

/// Stages 2 to 5, at one second gate.
pub(crate) struct Forwarder<U> {
    pub(crate) sender: Sender<U>,
    pub(crate) staged: Staged<Arc<Peer>>,
    /// Packets that the last poll processed.
    pub(crate) processed: usize,
    /// What waits for sessions stays: see [`Outbound::pause`](crate::outbound::Outbound::pause).
    pub(crate) is_paused: bool,
    pub(crate) noted: Noted,
}

/// What [`Waiting`] has of one second gate.
#[derive(Default)]
pub(crate) struct Noted {
    trains: usize,
    frames: usize,
    packets: u64,
}

impl<U: UdpSocket> Forwarder<U> {
    /// It is one of so many.
    pub(crate) fn set_share(&mut self, gates: usize) {
        self.sender.set_share(gates);
        self.staged.set_share(gates);
    }

    /// Keeps a frame that another gate kept before.
    pub(crate) fn stage_again(&mut self, peer: &Arc<Peer>, bytes: &[u8]) {
        let sender = &self.sender;
        self.staged.push(peer.id(), peer, bytes, |loser, packets| {
            sender.drop_packets(loser, DropReason::Staged, packets);
        });
    }

    /// Tells what waits here, by what it is more than before: other gates tell theirs.
    pub(crate) fn note_waiting(&mut self, waiting: &Waiting) {
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
    pub(crate) fn put(
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
    pub(crate) fn forward_rest(&mut self, context: Context<'_, U>, rest: &mut Rest) {
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
    pub(crate) fn forward_all(&mut self, context: Context<'_, U>, frames: &FrameBatch) {
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
    pub(crate) fn send_staged(&mut self, context: Context<'_, U>, peer: &Arc<Peer>) {
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
