//! The receive queues of sessions, and the peers that move to another one.
//!
//! An interface may receive with several sockets, its receive queues. The last byte of a receiver index, modulo
//! their number, is the receive queue in which data for the index arrives: so the choice of an index chooses
//! which receive queue has the work. A peer moves when a new session gets an index in another receive queue than the
//! session before it. Its flows keep their order:
//!
//! ```text
//! 1. the control thread chooses the index: the move begins
//! 2. data of the new session is authentic: it waits, and its receive queue commits nothing meanwhile
//! 3. what has arrived in the receive queue of the session before it is committed
//! 4. the move is over, and the new session's receive queue goes on
//! ```
//!
//! No peer moves to a receive queue that another one leaves: so no receive queue waits for one that waits itself. The
//! number of receive queues changes only while no peer moves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Time;
use crate::limits::REJECT_AFTER_TIME;

/// Receive queues of an interface at most.
pub const MAX_RX_QUEUES: usize = 8;
/// Peers that move at a time, at most.
const MAX_MOVES: usize = 64;
/// Time after which all that was received on a session before it expired has been committed.
const COMMITTED: Duration = Duration::from_secs(1);
/// A peer that has used a session sends nothing more on the one before. What it had sent arrives
/// within this time.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// Time without a move after the number of receive queues could not change because of one.
const CHANGE_WAITS: Duration = Duration::from_secs(1);
/// A packet of 64 bytes costs about as much to process as one of 1,420: so much work is a packet, and
/// one is each byte.
const WORK_OF_PACKET: u64 = 2000;

/// The work that so many packets of so many bytes are.
pub fn work(packets: u64, bytes: u64) -> u64 {
    packets * WORK_OF_PACKET + bytes
}

/// The receive queues of an interface, as the control thread and the shards see them.
pub struct RxQueueTable {
    /// The work that was done for each, in units of [`work`].
    done: [DoneCounter; MAX_RX_QUEUES],
    state: Mutex<RxQueueState>,
}

/// Of one receive queue. Only the thread that commits there writes it, so it has a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct DoneCounter(AtomicU64);

pub(crate) struct RxQueueState {
    count: usize,
    /// Since when, and since when the work that was done is counted.
    since: Time,
    /// The number of receive queues is about to change.
    changes: bool,
    /// The number could not change lately: no move begins before this.
    waits_until: Time,
    /// The moves that are not over, by index. A peer has several when handshakes follow each other.
    moves: Vec<Move>,
}

/// A session that is in another receive queue than the one before it, or a handshake that leads to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) index: u32,
    pub(crate) peer: u32,
    /// The receive queue of the index before it, of MAX_RX_QUEUES.
    pub(crate) from: u8,
    /// When all has been committed that was received on the sessions before it; not known before there is
    /// a session.
    pub(crate) until: Option<Time>,
    /// The work a second that was expected of the peer.
    pub(crate) work: u64,
}

/// A session whose data has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moving {
    /// Until what arrived in this receive queue has been committed.
    pub from: usize,
    /// If it arrived in this receive queue: the kernel may have merged it behind data of the session before
    /// it, and then it is in order.
    pub to: usize,
}

impl RxQueueTable {
    pub(crate) fn new() -> Self {
        Self {
            done: Default::default(),
            state: Mutex::new(RxQueueState {
                count: 1,
                since: Time::default(),
                changes: false,
                waits_until: Time::default(),
                moves: Vec::new(),
            }),
        }
    }

    /// Counts [`work`] with authentic data that was done in a receive queue.
    pub fn worked(&self, rx_queue: usize, work: u64) {
        self.done[rx_queue % MAX_RX_QUEUES]
            .0
            .fetch_add(work, Ordering::Relaxed);
    }

    /// The work that was done in a receive queue since there are so many.
    pub(crate) fn done(&self, rx_queue: usize) -> u64 {
        self.done[rx_queue % MAX_RX_QUEUES]
            .0
            .load(Ordering::Relaxed)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().count
    }

    /// Their number is about to change: no peer moves until it is [set](Self::set_count). False if
    /// one moves now.
    pub fn begin_change(&self, now: Time) -> bool {
        let mut state = self.lock();
        state.forget_old(now);
        state.changes = state.moves.is_empty();
        state.waits_until = now + CHANGE_WAITS;
        state.changes
    }

    /// There are so many from now on.
    pub fn set_count(&self, count: usize, now: Time) {
        let mut state = self.lock();
        state.changes = false;
        let before = std::mem::replace(&mut state.count, count.clamp(1, MAX_RX_QUEUES));
        if state.count != before {
            state.since = now;
            let done = self.done.iter();
            done.for_each(|done| done.0.store(0, Ordering::Relaxed));
        }
        // Of those that another process left, none may wait for one that waits itself.
        for it in std::mem::take(&mut state.moves) {
            let moving = it.moving(state.count);
            if moving.is_some_and(|it| state.may_lead(it.from, it.to)) {
                state.moves.push(it);
            }
        }
    }

    /// Whether data of the session with this index has to wait, and for what.
    pub fn moving(&self, index: u32, now: Time) -> Option<Moving> {
        let mut state = self.lock();
        state.forget_old(now);
        let count = state.count;
        state
            .moves
            .iter()
            .find(|it| it.index == index)?
            .moving(count)
    }

    /// The peer uses the session with this index, but has sent no data yet.
    pub fn heard(&self, index: u32, now: Time) {
        let mut state = self.lock();
        if let Some(it) = state.moves.iter_mut().find(|it| it.index == index) {
            let arrived = now + UNDER_WAY;
            it.until = Some(it.until.map_or(arrived, |until| until.min(arrived)));
        }
    }

    /// Data of the session with this index need not wait any more, nor that of others which the peer
    /// may have in its receive queue.
    pub fn moved(&self, index: u32) {
        let mut state = self.lock();
        if let Some(Move { peer, .. }) = state.end(index) {
            state.moves.retain(|it| it.peer != peer);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RxQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RxQueueState {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn since(&self) -> Time {
        self.since
    }

    /// The move of a peer that is under way.
    pub(crate) fn of_peer(&self, peer: u32) -> Option<Move> {
        self.moves.iter().find(|it| it.peer == peer).copied()
    }

    /// Whether another peer may begin to move.
    pub(crate) fn may_begin(&mut self, now: Time) -> bool {
        self.forget_old(now);
        !self.changes && now >= self.waits_until && self.moves.len() < MAX_MOVES
    }

    /// Whether peers may move between these receive queues while others do.
    pub(crate) fn may_lead(&self, from: usize, to: usize) -> bool {
        let moves = self.moves.iter().filter_map(|it| it.moving(self.count));
        from != to && !moves.into_iter().any(|it| it.from == to || it.to == from)
    }

    pub(crate) fn begin(&mut self, it: Move) {
        self.moves.push(it);
    }

    /// There is a session with this index now. Whether it moves: there are sessions in another receive queue, the
    /// last of which began then.
    pub(crate) fn has_session(&mut self, index: u32, born_before: Option<Time>) -> bool {
        let Some(it) = self.moves.iter_mut().find(|it| it.index == index) else {
            return false;
        };
        let until = born_before.map(|born| born + REJECT_AFTER_TIME + COMMITTED);
        it.until = it.until.max(until);
        let moves = it.until.is_some();
        if !moves {
            self.end(index);
        }
        moves
    }

    /// The index is in use no more, or the move is over. Returns the move if it was not.
    pub(crate) fn end(&mut self, index: u32) -> Option<Move> {
        let at = self.moves.iter().position(|it| it.index == index)?;
        Some(self.moves.swap_remove(at))
    }

    /// Sessions before have expired, and what was received on them has been committed.
    fn forget_old(&mut self, now: Time) {
        self.moves
            .retain(|it| it.until.is_none_or(|until| now < until));
    }
}

impl Move {
    fn moving(&self, count: usize) -> Option<Moving> {
        let from = usize::from(self.from) % count;
        let to = usize::from(rx_queue(self.index)) % count;
        (from != to).then_some(Moving { from, to })
    }
}

/// The receive queue of an index, if there are MAX_RX_QUEUES of them. Modulo a smaller number, which divides that,
/// it is the receive queue if there are so many.
pub(crate) fn rx_queue(index: u32) -> u8 {
    index.to_le_bytes()[3] & RX_QUEUE_BITS
}

pub(crate) const RX_QUEUE_BITS: u8 = 7;
const _: () = assert!(MAX_RX_QUEUES == 1 + RX_QUEUE_BITS as usize);

/// An index in a receive queue, with all other bits as they are: two sessions of a peer have no more in common
/// than their receive queue.
pub(crate) fn in_rx_queue(index: u32, rx_queue: u8) -> u32 {
    let mut bytes = index.to_le_bytes();
    bytes[3] = bytes[3] & !RX_QUEUE_BITS | rx_queue & RX_QUEUE_BITS;
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
#[path = "rx_queues_tests.rs"]
mod tests;
