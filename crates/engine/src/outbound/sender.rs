//! The end of the outbound path: sends trains in the order in which they were closed.
//!
//! All peers share one socket for each address family. While it is full, the TUN is left alone, and
//! the local TCP stacks slow down. A path that keeps the socket full would stop all peers that way:
//! its peer then gets a socket of its own (`slow_paths`), at which its trains are dropped when they do
//! not fit.

use std::collections::VecDeque;
use std::sync::Arc;

use adit_io::UdpSocket;
use adit_proto::{DropReason, Drops, Peer};

use crate::outbound::buffers::MAX_TRAINS;
use crate::outbound::context::OutboundContext;
use crate::outbound::slow_paths::{RecentTrains, SlowPaths};
use crate::outbound::train::SealedTrain;
use crate::outbound::transmit::{MAX_SEND, send};

/// Trains that may wait for the socket before those of one more frame.
pub(crate) const MAX_READY: usize = MAX_TRAINS / 2;
/// A train of this length is worth a system call of its own, while its bytes are in the cache.
const SEND_AT_ONCE: usize = 16 << 10;

/// Stage 5 of the outbound path of one interface, of one flow shard.
pub(crate) struct Sender<U> {
    ready: VecDeque<SealedTrain>,
    /// Trains that may be ready before those of one more frame.
    max_ready: usize,
    /// Trains that the shared sockets have taken.
    taken: u64,
    /// The peers whose trains these were.
    recent: RecentTrains,
    pub(crate) paths: Arc<SlowPaths<U>>,
    drops: Arc<Drops>,
}

impl<U: UdpSocket> Sender<U> {
    pub(crate) fn new(drops: Arc<Drops>, paths: Arc<SlowPaths<U>>) -> Self {
        Self {
            ready: VecDeque::new(),
            max_ready: MAX_READY,
            taken: 0,
            recent: RecentTrains::default(),
            paths,
            drops,
        }
    }

    /// Sets its share: it is one of so many.
    pub(crate) fn set_share(&mut self, flow_shards: usize) {
        self.max_ready = MAX_READY / flow_shards;
    }

    /// Counts packets to a peer that are dropped.
    pub(crate) fn drop_packets(&self, peer: &Peer, reason: DropReason, packets: u64) {
        peer.count_dropped(&self.drops, reason, packets);
    }

    pub(crate) fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Whether the trains of one more frame find buffers.
    pub(crate) fn has_room(&mut self, context: OutboundContext<'_, U>) -> bool {
        self.ready.len() < self.max_ready || self.flush(context)
    }

    /// Whether sealed trains wait for a socket, and the address family of the first: true for IPv6.
    pub(crate) fn waits_for(&self) -> Option<bool> {
        self.ready.front().map(|train| train.to.addr.is_ipv6())
    }

    /// How many sealed trains wait for a socket.
    pub(crate) fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// How many trains the shared sockets have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes a train that is sealed, and sends what is worth a system call.
    pub(crate) fn take(&mut self, context: OutboundContext<'_, U>, mut train: SealedTrain) {
        if self.paths.has(train.peer.id()) {
            // What was sealed before the peer got its socket leaves first.
            self.leave_shared(context);
            if self.paths.send(context, &mut train, &self.drops) {
                return context.buffers.trains.give_back(train.buffer);
            }
        }
        let at_once = train.len >= SEND_AT_ONCE;
        self.ready.push_back(train);
        if at_once || self.ready.len() >= MAX_SEND {
            self.flush(context);
        }
    }

    /// Stage 5: sends what is ready, in order. False if the socket is full.
    pub(crate) fn flush(&mut self, context: OutboundContext<'_, U>) -> bool {
        while !self.ready.is_empty() {
            self.renew(context);
            let Some(v6) = self.waits_for() else {
                break;
            };
            let is_same_family = |train: &&SealedTrain| train.to.addr.is_ipv6() == v6;
            let batch = self.ready.iter().take_while(is_same_family);
            let batch = batch.take(MAX_SEND).count();
            let trains = &mut self.ready.make_contiguous()[..batch];
            let socket = context.sockets.family(v6);
            let taken = send(context, socket, trains, &self.drops);
            self.taken += taken as u64;
            for train in self.ready.drain(..taken) {
                self.recent.sent(train.peer.id(), train.len);
                context.buffers.trains.give_back(train.buffer);
            }
            if taken == 0 {
                return false;
            }
        }
        true
    }

    /// Which peers sent how many bytes to the shared sockets lately; it is forgotten.
    pub(crate) fn take_recent(&mut self) -> Vec<(u32, usize)> {
        self.recent.take()
    }

    /// The trains of peers that have sockets of their own wait no longer for the shared one.
    pub(crate) fn leave_shared(&mut self, context: OutboundContext<'_, U>) {
        for _ in 0..self.ready.len() {
            let Some(mut train) = self.ready.pop_front() else {
                break;
            };
            if self.paths.has(train.peer.id()) && self.paths.send(context, &mut train, &self.drops)
            {
                context.buffers.trains.give_back(train.buffer);
            } else {
                self.ready.push_back(train);
            }
        }
    }

    /// No train of the next batch leaves with counters that the peer may take for replays.
    fn renew(&mut self, OutboundContext { now, buffers, .. }: OutboundContext<'_, U>) {
        let mut index = 0;
        while let Some(train) = self.ready.get_mut(index).filter(|_| index < MAX_SEND) {
            match train.renew(now) {
                Ok(()) => index += 1,
                Err(packets) => {
                    let (peer, packets) = (&train.peer, packets as u64);
                    peer.count_dropped(&self.drops, DropReason::SessionEnded, packets);
                    if let Some(train) = self.ready.remove(index) {
                        buffers.trains.give_back(train.buffer);
                    }
                }
            }
        }
    }
}
