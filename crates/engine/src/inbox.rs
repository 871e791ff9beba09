//! The queue of the control thread: bounded by the number of peers, by a constant, or by the
//! callers that block.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use adit_io::Offloads;
use adit_proto::config::{DeviceChange, DeviceStatus};
use adit_proto::{Endpoint, HandshakeStats, Peer, wire};
use arrayvec::ArrayVec;

use crate::error::CommandError;
use crate::lock::lock;
use crate::wake::Waker;

/// Handshake messages that may wait; the kernel's implementation allows as many.
const MAX_HANDSHAKES: usize = 4096;

/// A handshake message as it arrived.
pub(crate) struct HandshakeMessage {
    pub(crate) from: Endpoint,
    pub(crate) datagram: ArrayVec<u8, { wire::INITIATION_LEN }>,
}

/// What became of a change. It comes back with it, because the caller has time to free it.
pub(crate) type SetAnswer = (Result<(), CommandError>, DeviceChange);

/// A caller's request; the caller waits for the answer.
pub(crate) enum Command {
    Set(DeviceChange, SyncSender<SetAnswer>),
    Get(SyncSender<DeviceStatus>),
    Report(SyncSender<(HandshakeStats, Offloads)>),
}

/// Many producers, one consumer: the control thread, which the first message of several wakes.
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    pub(crate) waker: Waker,
}

#[derive(Default)]
pub(crate) struct Waiting {
    /// Bounded: a flood of initiations costs no memory beyond it.
    pub(crate) handshakes: VecDeque<HandshakeMessage>,
    /// Bounded by the number of peers: a peer with an event raises no second one.
    pub(crate) events: Vec<Arc<Peer>>,
    pub(crate) commands: Vec<Command>,
    /// The TUN of a shard is behind.
    pub(crate) behind: bool,
    /// The control thread has ended: what is left from now on is dropped, which answers callers.
    closed: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.handshakes.is_empty()
            && self.events.is_empty()
            && self.commands.is_empty()
            && !self.behind
    }
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::default(),
            waker: Waker::new()?,
        })
    }

    /// A shard has something to tell of this peer.
    pub(crate) fn event(&self, peer: &Arc<Peer>) {
        self.leave(|waiting| waiting.events.push(Arc::clone(peer)));
    }

    pub(crate) fn command(&self, command: Command) {
        self.leave(|waiting| waiting.commands.push(command));
    }

    /// A handshake message arrived. False if the queue is full.
    pub(crate) fn handshake(&self, from: Endpoint, datagram: &[u8]) -> bool {
        let Ok(datagram) = ArrayVec::try_from(datagram) else {
            return false;
        };
        self.leave(|waiting| {
            let room = waiting.handshakes.len() < MAX_HANDSHAKES;
            if room {
                waiting
                    .handshakes
                    .push_back(HandshakeMessage { from, datagram });
            }
            room
        })
    }

    /// A shard's TUN has held more than leaves for a while.
    pub(crate) fn tun_is_behind(&self) {
        self.leave(|waiting| waiting.behind = true);
    }

    /// All but the handshakes, at once.
    pub(crate) fn take_all(&self) -> (Vec<Arc<Peer>>, Vec<Command>, bool) {
        let mut waiting = lock(&self.waiting);
        (
            std::mem::take(&mut waiting.events),
            std::mem::take(&mut waiting.commands),
            std::mem::take(&mut waiting.behind),
        )
    }

    /// Whether anything waits. To be asked before sleeping: only what finds nothing waiting wakes
    /// the thread, and handshakes may have waited until now.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    /// The oldest handshake message, and how many wait behind it.
    pub(crate) fn next_handshake(&self) -> Option<(HandshakeMessage, usize)> {
        let mut waiting = lock(&self.waiting);
        let message = waiting.handshakes.pop_front()?;
        Some((message, waiting.handshakes.len()))
    }

    /// The queue is not read any more.
    pub(crate) fn close(&self) {
        self.leave(|waiting| waiting.closed = true);
    }

    fn leave<R>(&self, put: impl FnOnce(&mut Waiting) -> R) -> R {
        let mut waiting = lock(&self.waiting);
        let was_empty = waiting.is_empty();
        let result = put(&mut waiting);
        if waiting.closed {
            waiting.commands.clear();
            waiting.events.clear();
            waiting.handshakes.clear();
        }
        drop(waiting);
        if was_empty {
            self.waker.wake();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant 6.
    #[test]
    fn what_comes_while_handshakes_wait_is_not_slept_over() {
        let inbox = Inbox::new().expect("an eventfd");
        let from = Endpoint::from(std::net::SocketAddr::from(([192, 0, 2, 1], 1)));
        assert!(inbox.is_empty());
        assert!(inbox.handshake(from, &[1]));
        inbox.take_all();
        // No wake-up: the control thread is at work on the handshake.
        inbox.tun_is_behind();
        assert!(inbox.next_handshake().is_some());
        assert!(inbox.next_handshake().is_none());
        assert!(!inbox.is_empty(), "the control thread would sleep now");
        assert!(inbox.take_all().2);
        assert!(inbox.is_empty());
    }
}
