//! The mailbox of the control thread: bounded by the number of peers, by a constant, or by the
//! callers that block.
//!
//! While handshake messages come faster than the control thread handles them, shards look at each
//! first ([`Admission`]): those whose senders have a cookie have a queue of their own, and a shard
//! answers the others.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_io::Offloads;
use adit_proto::config::{DeviceChange, DeviceStatus, PublicKey};
use adit_proto::{
    Admission, Allowance, Endpoint, HandshakeOutcome, HandshakeStats, LastSeen, Peer, PeerCall,
    Room, Screened, Shared, Time, wire,
};
use arrayvec::ArrayVec;
use zeroize::Zeroizing;

use crate::shared::error::CommandError;
use crate::shared::state::InterfaceState;
use crate::thread::lock::lock;
use crate::thread::wake::Waker;

/// Handshake messages that may wait in each of the two queues; the kernel's implementation allows
/// as many in its one.
const MAX_HANDSHAKES: usize = 2048;
/// Waiting handshake messages beyond which senders must prove their address (whitepaper 5.3).
const LOADED_QUEUE: usize = 512;
/// Waiting handshake messages beyond which a shard checks mac1 before it adds one.
const CHECKED_QUEUE: usize = 32;
/// Answers to packets of this host that wait.
const MAX_ANSWERS: usize = 64;
/// Cookie replies that leave at once.
const MAX_REPLIES: usize = 256;

/// A handshake message as it arrived.
pub(crate) struct HandshakeMessage {
    pub(crate) from: Endpoint,
    pub(crate) datagram: ArrayVec<u8, { wire::INITIATION_LEN }>,
    /// Its sender has proven that it receives at its address.
    pub(crate) proven: bool,
}

/// A cookie reply that waits for the end of a receive batch.
pub(crate) struct Reply {
    pub(crate) to: Endpoint,
    pub(crate) datagram: [u8; wire::COOKIE_REPLY_LEN],
}

/// The outcome of a change. The change comes back with it, because the caller has time to free it.
pub(crate) type LookAnswer = Result<(DeviceStatus, usize), CommandError>;
pub(crate) type SetAnswer = (Result<(), CommandError>, DeviceChange);

/// A peer, and the addresses of its name; see [`Device::set_candidates`](adit_proto::Device).
pub type PeerCandidates = (PublicKey, Option<Vec<SocketAddr>>);

/// The control thread's contribution to a report.
#[derive(Default)]
pub(crate) struct OfControl {
    pub(crate) handshakes: HandshakeStats,
    pub(crate) offloads: Offloads,
    /// See [`Device::rx_queue_loads`](adit_proto::Device::rx_queue_loads).
    pub(crate) rx_queue_loads: Vec<u64>,
}

/// What a peer may do from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenAllowance {
    /// The peer.
    pub peer: PublicKey,
    /// All that it may do.
    pub allowance: Allowance,
    /// Its quota counts from now; otherwise what it has used stays.
    pub anew: bool,
}

/// A peer that may do other things than before: what it might, and what it may now.
pub type AllowanceChange = (PublicKey, Allowance, Allowance);

/// A caller's request; the caller waits for the answer.
pub(crate) enum ControlCommand {
    Set(DeviceChange, SyncSender<SetAnswer>),
    Get(SyncSender<Result<DeviceStatus, CommandError>>),
    /// Only peers of these keys, and how many peers there are.
    Look(Vec<PublicKey>, SyncSender<LookAnswer>),
    Report(SyncSender<OfControl>),
    Probe(PublicKey, SyncSender<Option<Duration>>),
    /// Nobody waits for an answer.
    Candidates(Vec<PeerCandidates>),
    Allow(Vec<GivenAllowance>, bool, SyncSender<Vec<AllowanceChange>>),
    /// Call peers that were there, from this address.
    Call(
        Vec<(PublicKey, LastSeen)>,
        Option<IpAddr>,
        SyncSender<Vec<PeerCall>>,
    ),
    /// Hand the interface over, whose queues pause: nothing more happens until it resumes.
    Export(SyncSender<Exported>),
    Resume(Resume, SyncSender<()>),
}

/// A piece of what another process needs to go on with an interface.
pub(crate) enum Exported {
    Records(Vec<Zeroizing<Vec<u8>>>),
    /// The last one.
    State(Box<InterfaceState>),
}

/// How an interface goes on after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Nobody else has sealed with its sessions.
    AsItWas,
    /// Another process may have: no session seals any more, and handshakes follow.
    WithoutSessions,
}

/// Many producers, one consumer: the control thread, which the first message of several wakes.
pub(crate) struct Mailbox {
    waiting: Mutex<Posted>,
    /// Bounded by MAX_REPLIES.
    replies: Mutex<Vec<Reply>>,
    /// Whether there are any: most batches end without, and take no lock.
    has_replies: AtomicBool,
    pub(crate) waker: Waker,
}

#[derive(Default)]
pub(crate) struct Posted {
    /// Messages from senders that have shown a cookie, and others. Bounded: a flood of initiations
    /// costs no memory beyond it.
    proven: VecDeque<HandshakeMessage>,
    others: VecDeque<HandshakeMessage>,
    /// The two have turns.
    others_next: bool,
    /// Bounded by the number of peers: a peer with an event raises no second one.
    pub(crate) events: Vec<Arc<Peer>>,
    pub(crate) commands: Vec<ControlCommand>,
    /// The TUN of a shard is behind.
    pub(crate) behind: bool,
    /// Packets for this host, that say why one of its own was dropped. Bounded by MAX_ANSWERS.
    answers: Vec<Vec<u8>>,
    /// The control thread has ended: what is posted from now on is dropped, which answers callers.
    closed: bool,
}

impl Posted {
    /// Room for another message whose sender has shown a cookie.
    fn room(&self) -> Room {
        match self.proven.len() * 4 / MAX_HANDSHAKES {
            0 => Room::Ample,
            1 => Room::Some,
            _ => Room::Little,
        }
    }

    fn is_empty(&self) -> bool {
        self.proven.is_empty()
            && self.others.is_empty()
            && self.events.is_empty()
            && self.commands.is_empty()
            && !self.behind
            && self.answers.is_empty()
    }
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::default(),
            replies: Mutex::default(),
            has_replies: AtomicBool::new(false),
            waker: Waker::new()?,
        })
    }

    /// A shard has something to tell of this peer.
    pub(crate) fn event(&self, peer: &Arc<Peer>) {
        self.post(|waiting| waiting.events.push(Arc::clone(peer)));
    }

    /// Posts a command, and wakes the thread though something else waits: while the interface pauses,
    /// commands alone are taken.
    pub(crate) fn command(&self, command: ControlCommand) {
        self.post(|waiting| waiting.commands.push(command));
        self.waker.wake();
    }

    /// A handshake message arrived. What it returns says why it goes no further, if it does not.
    pub(crate) fn handshake(
        &self,
        shared: &Shared,
        now: Time,
        from: Endpoint,
        datagram: &[u8],
    ) -> Result<(), NotQueued> {
        let admission = shared.admission();
        let (waiting, room) = {
            let waiting = lock(&self.waiting);
            (waiting.others.len(), waiting.room())
        };
        let mut proven = false;
        if waiting >= LOADED_QUEUE {
            admission.load(now);
        }
        if waiting >= CHECKED_QUEUE || admission.is_loaded(now) {
            match shared.screen(now, from.addr, datagram, room) {
                Screened::Proven => proven = true,
                Screened::Passed => {}
                Screened::Refused(outcome) => return Err(NotQueued::Refused(outcome)),
                Screened::Exhausted(outcome) => return Err(NotQueued::Exhausted(outcome)),
                Screened::Reply(reply, outcome) => {
                    return Err(self.post_reply(admission, from, reply, outcome));
                }
            }
        }
        let datagram = ArrayVec::try_from(datagram).map_err(|_| NotQueued::Full)?;
        self.post(|waiting| {
            let queue = match proven {
                true => &mut waiting.proven,
                false => &mut waiting.others,
            };
            if queue.len() >= MAX_HANDSHAKES {
                return Err(NotQueued::Full);
            }
            queue.push_back(HandshakeMessage {
                from,
                datagram,
                proven,
            });
            Ok(())
        })
    }

    fn post_reply(
        &self,
        admission: &Admission,
        to: Endpoint,
        datagram: [u8; wire::COOKIE_REPLY_LEN],
        outcome: HandshakeOutcome,
    ) -> NotQueued {
        let mut replies = lock(&self.replies);
        if replies.len() < MAX_REPLIES {
            replies.push(Reply { to, datagram });
            self.has_replies.store(true, Ordering::Release);
        } else {
            admission.replied(0, 1);
        }
        NotQueued::Refused(outcome)
    }

    /// The cookie replies that wait, if there are any.
    pub(crate) fn take_replies(&self) -> Option<Vec<Reply>> {
        // Other threads read it, too: it is written only if there is something.
        let has_replies = self.has_replies.load(Ordering::Acquire);
        let has_replies = has_replies && self.has_replies.swap(false, Ordering::AcqRel);
        has_replies.then(|| std::mem::take(&mut *lock(&self.replies)))
    }

    /// How many handshake messages wait.
    pub(crate) fn handshakes(&self) -> usize {
        let waiting = lock(&self.waiting);
        waiting.proven.len() + waiting.others.len()
    }

    /// A shard's TUN has held more than leaves for a while.
    pub(crate) fn tun_is_behind(&self) {
        self.post(|waiting| waiting.behind = true);
    }

    /// An answer to a packet that came out of the TUN. One that does not fit is lost: the next packet
    /// leads to another.
    pub(crate) fn post_answer(&self, packet: Vec<u8>) {
        self.post(|waiting| {
            if waiting.answers.len() < MAX_ANSWERS {
                waiting.answers.push(packet);
            }
        });
    }

    pub(crate) fn take_answers(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut lock(&self.waiting).answers)
    }

    /// All but the handshakes, at once.
    pub(crate) fn take_all(&self) -> (Vec<Arc<Peer>>, Vec<ControlCommand>, bool) {
        let mut waiting = lock(&self.waiting);
        (
            std::mem::take(&mut waiting.events),
            std::mem::take(&mut waiting.commands),
            std::mem::take(&mut waiting.behind),
        )
    }

    /// The commands alone.
    pub(crate) fn take_commands(&self) -> Vec<ControlCommand> {
        std::mem::take(&mut lock(&self.waiting).commands)
    }

    /// Whether handshake messages or events of peers wait.
    pub(crate) fn has_messages(&self) -> bool {
        let waiting = lock(&self.waiting);
        !(waiting.proven.is_empty() && waiting.others.is_empty() && waiting.events.is_empty())
    }

    /// Whether anything waits. To be asked before sleeping: only what finds nothing waiting wakes
    /// the thread, and handshakes may have waited until now.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    /// The next handshake message.
    pub(crate) fn next_handshake(&self) -> Option<HandshakeMessage> {
        let waiting = &mut *lock(&self.waiting);
        let mut order = [&mut waiting.proven, &mut waiting.others];
        if waiting.others_next {
            order.reverse();
        }
        let message = order.into_iter().find_map(VecDeque::pop_front)?;
        waiting.others_next = message.proven;
        Some(message)
    }

    /// The queue is not read any more.
    pub(crate) fn close(&self) {
        self.post(|waiting| waiting.closed = true);
    }

    fn post<R>(&self, add: impl FnOnce(&mut Posted) -> R) -> R {
        let mut waiting = lock(&self.waiting);
        let was_empty = waiting.is_empty();
        let result = add(&mut waiting);
        if waiting.closed {
            waiting.commands.clear();
            waiting.events.clear();
            waiting.proven.clear();
            waiting.others.clear();
            waiting.answers.clear();
        }
        drop(waiting);
        if was_empty {
            self.waker.wake();
        }
        result
    }
}

/// Why a handshake message does not wait for the control thread.
pub(crate) enum NotQueued {
    /// The queue is full.
    Full,
    /// Admission has refused and counted it.
    Refused(HandshakeOutcome),
    /// And would do that with others of its source.
    Exhausted(HandshakeOutcome),
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
