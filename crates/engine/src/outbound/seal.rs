//! Stages 2 to 4 of a batch before it is its turn: it is sealed whole, or split between flow shards.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use adit_io::UdpSocket;
use adit_offload::Frame;
use adit_proto::{DropReason, Drops, PassedKind, Peer};
use arrayvec::ArrayVec;
use zeroize::Zeroizing;

use crate::order::flow_shards::flow_shard_between;
use crate::outbound::batch::{OutboundBatch, Rest};
use crate::outbound::context::OutboundContext;
use crate::outbound::forward::{NotAppended, OpenTrains, admit};
use crate::outbound::sender::MAX_READY;
use crate::outbound::train::SealedTrain;

/// Flow shards of an interface at most: a power of two.
pub(crate) const FLOW_SHARDS: usize = 8;

impl OutboundBatch {
    /// Stages 2 to 4 before it is this batch's turn: for frames from the first on, as long as each
    /// has a session and there are not too many trains. Returns how many packets that were.
    pub(super) fn seal<U: UdpSocket>(&mut self, context: OutboundContext<'_, U>) -> usize {
        let drops = &context.common.queues.drops;
        let routes = context.common.proto.routes();
        let mut trains = OpenTrains::default();
        let mut sealed = Sealed {
            trains: std::slice::from_mut(&mut self.sealed),
            count: 0,
            drops,
        };
        let mut processed = 0;
        while sealed.count < MAX_READY
            && let Some(read) = self.frames.peek()
        {
            // What fails here is counted when it is this batch's turn.
            let Ok(frame) = Frame::parse(read.bytes) else {
                break;
            };
            let Some(found) = routes.lookup(frame.destination()) else {
                break;
            };
            if found.session(context.now).is_none() || found.endpoint().is_none() {
                break;
            }
            read.peer.set(Some(found.id()));
            self.frames.next_frame();
            processed += frame.segments();
            context.saw(&frame);
            if !admit(context.now, &read, &frame, found) {
                let packets = frame.segments() as u64;
                found.count_dropped(drops, DropReason::LimitToPeer, packets);
                continue;
            }
            sealed.append(&mut trains, context, (found, 0), &frame);
        }
        trains.close_all(context);
        sealed.take(&mut trains);
        drops.count_passed(PassedKind::FromTun, processed as u64);
        processed
    }

    /// Stages 2 to 4 for each flow shard: the trains that are for it, and the frames that come after
    /// these when it is this batch's turn. Returns how many packets were processed, too.
    pub(super) fn split<U: UdpSocket>(
        &mut self,
        context: OutboundContext<'_, U>,
        flow_shards: usize,
    ) -> (ArrayVec<(VecDeque<SealedTrain>, Rest), FLOW_SHARDS>, usize) {
        let drops = &context.common.queues.drops;
        let routes = context.common.proto.routes();
        let mut trains = OpenTrains::default();
        let mut by_flow_shard: [VecDeque<SealedTrain>; FLOW_SHARDS] = Default::default();
        let mut sealed = Sealed {
            trains: &mut by_flow_shard,
            count: 0,
            drops,
        };
        let mut rest: [Rest; FLOW_SHARDS] = Default::default();
        // Peers that have frames among the rest.
        let mut left: HashSet<u32> = HashSet::new();
        let mut processed = 0;
        while let Some(read) = self.frames.next_frame() {
            let Ok(frame) = Frame::parse(read.bytes) else {
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
            read.peer.set(Some(id));
            if !admit(context.now, &read, &frame, found) {
                processed += packets;
                context.saw(&frame);
                found.count_dropped(drops, DropReason::LimitToPeer, packets as u64);
                continue;
            }
            let flow_shard = flow_shard_of(&frame, flow_shards);
            if left.contains(&id)
                || found.session(context.now).is_none()
                || found.endpoint().is_none()
                || sealed.count >= MAX_READY
            {
                left.insert(id);
                rest[flow_shard].push_back(Zeroizing::new(read.bytes.into()));
                continue;
            }
            processed += packets;
            context.saw(&frame);
            sealed.append(&mut trains, context, (found, flow_shard), &frame);
        }
        trains.close_all(context);
        sealed.take(&mut trains);
        drops.count_passed(PassedKind::FromTun, processed as u64);
        let split = by_flow_shard.into_iter().zip(rest);
        (split.collect(), processed)
    }
}

/// The flow shard of a frame, of so many: that of its flow.
pub(crate) fn flow_shard_of(frame: &Frame<'_>, flow_shards: usize) -> usize {
    match flow_shards {
        1 => 0,
        _ => flow_shard_between(frame.destination(), frame.source(), flow_shards),
    }
}

/// Trains that are sent later, by their flow shards.
struct Sealed<'a> {
    trains: &'a mut [VecDeque<SealedTrain>],
    /// How many there are.
    count: usize,
    drops: &'a Drops,
}

impl Sealed<'_> {
    /// Stages 3 and 4 for one frame.
    fn append<'b, U>(
        &mut self,
        trains: &mut OpenTrains<'b>,
        context: OutboundContext<'_, U>,
        (peer, flow_shard): (&Arc<Peer>, usize),
        frame: &Frame<'b>,
    ) {
        let appended = trains.append(context, (peer, flow_shard), frame);
        self.take(trains);
        let (reason, packets) = match appended {
            Ok(()) => return,
            // The session ended just now.
            Err(NotAppended::NoSession) => (DropReason::SessionEnded, frame.segments()),
            Err(NotAppended::Dropped(reason, packets)) => (reason, packets),
        };
        peer.count_dropped(self.drops, reason, packets as u64);
    }

    /// Takes the trains that are sealed.
    fn take(&mut self, trains: &mut OpenTrains<'_>) {
        for train in trains.sealed.drain(..) {
            self.count += 1;
            self.trains[train.flow_shard].push_back(train);
        }
    }
}
