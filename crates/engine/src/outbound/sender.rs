//! The end of the outbound path: seals trains and sends them, in the order in which they were
//! closed.
//!
//! All peers share one socket for each address family. While it is full, the TUN is left alone, and
//! the local TCP stacks slow down. A path that keeps the socket full would stop all peers that way:
//! its peer then gets a socket of its own (`slow_paths`), at which its trains are dropped when they do
//! not fit.

use std::collections::VecDeque;
use std::sync::Arc;

use adit_io::UdpSocket;
use adit_proto::{DropReason, Drops, Peer};

use crate::outbound::buffers::{Buffers, MAX_TRAINS};
use crate::outbound::context::Context;
use crate::outbound::slow_paths::{Paths, Recent};
use crate::outbound::train::{OpenTrain, SealedTrain};
use crate::outbound::transmit::{MAX_SEND, send};

/// Trains that may wait for the socket before those of one more frame.
pub(crate) const MAX_READY: usize = MAX_TRAINS / 2;
/// A train of this length is worth a system call of its own, while its bytes are in the cache.
const SEND_AT_ONCE: usize = 16 << 10;

/// Stages 4 and 5 of the outbound path of one interface, at one second gate.
pub(crate) struct Sender<U> {
    /// Buffers that are in use.
    buffers: usize,
    ready: VecDeque<SealedTrain>,
    /// Trains that may be ready before those of one more frame.
    max_ready: usize,
    /// Trains that the shared sockets have taken.
    taken: u64,
    /// Whose these were.
    recent: Recent,
    pub(crate) paths: Arc<Paths<U>>,
    drops: Arc<Drops>,
}

impl<U: UdpSocket> Sender<U> {
    pub(crate) fn new(drops: Arc<Drops>, paths: Arc<Paths<U>>) -> Self {
        Self {
            buffers: 0,
            ready: VecDeque::new(),
            max_ready: MAX_READY,
            taken: 0,
            recent: Recent::default(),
            paths,
            drops,
        }
    }

    /// It is one of so many.
    pub(crate) fn set_share(&mut self, gates: usize) {
        self.max_ready = MAX_READY / gates;
    }

    /// Counts packets to a peer that are dropped.
    pub(crate) fn drop_packets(&self, peer: &Peer, reason: DropReason, packets: u64) {
        peer.count_dropped(&self.drops, reason, packets);
    }

    pub(crate) fn drops(&self) -> &Drops {
        &self.drops
    }

    /// A buffer for a train; `None` while [`MAX_TRAINS`] exist.
    pub(crate) fn buffer(&mut self, buffers: &Buffers) -> Option<Box<[u8]>> {
        (self.buffers < MAX_TRAINS).then(|| {
            self.buffers += 1;
            buffers.trains.take()
        })
    }

    fn release(&mut self, buffer: Box<[u8]>, buffers: &Buffers) {
        self.buffers -= 1;
        buffers.trains.put(buffer);
    }

    /// Whether the trains of one more frame find buffers.
    pub(crate) fn has_room(&mut self, context: Context<'_, U>) -> bool {
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

    /// Takes a train that is sealed, or one whose session may not be used any more.
    pub(crate) fn take(
        &mut self,
        context: Context<'_, U>,
        train: Result<SealedTrain, OpenTrain<'_>>,
    ) {
        match train {
            Ok(mut sealed) => {
                if self.paths.has(sealed.peer.id()) {
                    // What was sealed before the peer got its socket leaves first.
                    self.leave_shared(context);
                    if self.paths.send(context, &mut sealed, &self.drops) {
                        return self.release(sealed.buffer, context.buffers);
                    }
                }
                let at_once = sealed.len >= SEND_AT_ONCE;
                self.ready.push_back(sealed);
                if at_once || self.ready.len() >= MAX_SEND {
                    self.flush(context);
                }
            }
            Err(train) => {
                let (reason, packets) = (DropReason::SessionEnded, train.packets() as u64);
                self.drop_packets(&train.peer, reason, packets);
                self.release(train.into_buffer(), context.buffers);
            }
        }
    }

    /// Takes a train that was sealed elsewhere.
    pub(crate) fn adopt(&mut self, context: Context<'_, U>, train: SealedTrain) {
        self.buffers += 1;
        self.take(context, Ok(train));
    }

    /// Stage 5: sends what is ready, in order. False if the socket is full.
    pub(crate) fn flush(&mut self, context: Context<'_, U>) -> bool {
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
            self.buffers -= taken;
            for train in self.ready.drain(..taken) {
                self.recent.sent(train.peer.id(), train.len);
                context.buffers.trains.put(train.buffer);
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
    pub(crate) fn leave_shared(&mut self, context: Context<'_, U>) {
        for _ in 0..self.ready.len() {
            let Some(mut train) = self.ready.pop_front() else {
                break;
            };
            if self.paths.has(train.peer.id()) && self.paths.send(context, &mut train, &self.drops)
            {
                self.release(train.buffer, context.buffers);
            } else {
                self.ready.push_back(train);
            }
        }
    }

    /// No train of the next batch leaves with counters that the peer may take for replays.
    fn renew(&mut self, Context { now, buffers, .. }: Context<'_, U>) {
        let mut index = 0;
        while let Some(train) = self.ready.get_mut(index).filter(|_| index < MAX_SEND) {
            match train.renew(now) {
                Ok(()) => index += 1,
                Err(packets) => {
                    let (peer, packets) = (&train.peer, packets as u64);
                    peer.count_dropped(&self.drops, DropReason::SessionEnded, packets);
                    if let Some(train) = self.ready.remove(index) {
                        self.release(train.buffer, buffers);
                    }
                }
            }
        }
    }
}
