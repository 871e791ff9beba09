//! The receive queues of one interface, and how their number changes without a loss and without reordering.
//!
//! A receive queue is a socket of each family with an ordered queue of its own, so that threads take and
//! commit at the same time. The receiver index says in which receive queue a datagram arrives, and all data
//! of a peer is in one ([`RxQueueTable`](adit_proto::RxQueueTable)). There are 1, 2, 4 or 8 receive queues: when
//! their number is doubled, peers move only to the new ones, and when it is halved, only from those that are
//! given up.
//!
//! ```text
//! 1. the receive queues that peers move to are held: nothing is taken from their sockets
//! 2. the kernel delivers by the new number
//! 3. no datagram is on its way by the old one any more
//! 4. from the receive queues that peers leave all is taken that had arrived by then
//! 5. all of that is committed
//! 6. the receive queues that were held go on
//! ```
//!
//! A thread that polls takes and commits as ever. The owner alone looks how far a change has come, so that
//! nothing is added to what is done for a packet. There is one change at a time.

use std::ops::Range;

use adit_io::Grace;
use adit_io::udp::MAX_RECEIVE_BUFFER;

use crate::order::ordered_queue::OrderedQueue;
use crate::thread::sync::{AtomicBool, Mutex, Ordering, lock};

/// Receive queues at most.
pub(crate) const RX_QUEUES: usize = adit_proto::MAX_RX_QUEUES;
/// A socket has no more bytes waiting than this: the kernel doubles the longest buffer.
const MOST_WAITING: u64 = 2 * MAX_RECEIVE_BUFFER as u64;
/// The kernel counts at least so many bytes for a message, however short it is: a `struct sk_buff`,
/// and the shortest buffer with its `struct skb_shared_info`.
const LEAST_COUNTED: u64 = 768;

/// The receive queues of one interface. `S` is what taking from one of them needs, `B` a batch, or a
/// flow shard of one. Each has up to `N` commit locks.
pub(crate) struct RxQueues<S, B, const N: usize = 1> {
    all: [RxQueue<S, B, N>; RX_QUEUES],
    state: Mutex<OrderState>,
    /// A change is under way.
    is_changing: AtomicBool,
}

/// The ordered queue of one receive queue. No cache line is of two.
#[repr(align(128))]
struct RxQueue<S, B, const N: usize>(OrderedQueue<Taking<S>, B, (), N>);

/// State of taking from a receive queue, under its take lock.
pub(crate) struct Taking<S> {
    pub(crate) state: S,
    /// While peers leave it, in the sockets for IPv4 and IPv6: bytes, as the kernel counts them, that
    /// may have arrived before that. They are gone at the latest when a socket is empty.
    before: [u64; 2],
}

impl<S> Taking<S> {
    /// Messages of these lengths were taken, if more may wait.
    pub(crate) fn took(&mut self, v6: bool, lens: Option<impl Iterator<Item = usize>>) {
        let before = &mut self.before[usize::from(v6)];
        let counted = |lens| Iterator::map(lens, |len: usize| LEAST_COUNTED.max(len as u64)).sum();
        *before = lens.map_or(0, |lens| before.saturating_sub(counted(lens)));
    }
}

#[derive(Default)]
struct OrderState {
    /// Nothing is taken from any receive queue. Then there is no change.
    is_closed: bool,
    change: Option<RxQueueChange>,
}

/// A change of the number of receive queues.
struct RxQueueChange {
    /// The receive queues that peers leave, and those that they move to.
    left: Range<usize>,
    held: Range<usize>,
    /// Until these are over, datagrams may be on their way to the receive queues that peers leave.
    graces: Vec<Grace>,
    /// They are over, and what had arrived is marked in the receive queues that peers leave.
    is_marked: bool,
    /// Of each receive queue that peers leave: the sequence number before which all of that is to be
    /// committed, once that is known.
    sequences: [Option<u64>; RX_QUEUES],
    /// So many are in use when it is over.
    rx_queues: usize,
}

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeProgress {
    /// These receive queues are to be polled, though they may seem empty.
    Waits([bool; RX_QUEUES]),
    /// So many receive queues are in use from now on.
    Over(usize),
}

impl<S, B, const N: usize> RxQueues<S, B, N> {
    pub(crate) fn new(state: impl Fn() -> S) -> Self {
        let taking = || Taking {
            state: state(),
            before: [0; 2],
        };
        Self {
            all: std::array::from_fn(|_| RxQueue(OrderedQueue::new(taking(), [(); N]))),
            state: Mutex::new(OrderState::default()),
            is_changing: AtomicBool::new(false),
        }
    }

    /// Receive queues of a process that has more of them share ordered queues.
    pub(crate) fn queue(&self, rx_queue: usize) -> &OrderedQueue<Taking<S>, B, (), N> {
        &self.all[rx_queue % RX_QUEUES].0
    }

    fn set_held(&self, rx_queues: Range<usize>, is_held: bool) {
        rx_queues.for_each(|rx_queue| self.queue(rx_queue).set_closed(is_held));
    }

    /// Has nothing taken any more, or lets all go on. It is not closed, and false returned, if a change
    /// is under way: that has to come to its end first, because a process that goes on may know nothing of it.
    pub(crate) fn set_closed(&self, is_closed: bool) -> bool {
        let mut state = lock(&self.state);
        if is_closed && state.change.is_some() {
            return false;
        }
        if is_closed != state.is_closed {
            state.is_closed = is_closed;
            self.set_held(0..RX_QUEUES, is_closed);
        }
        true
    }

    /// Whether all that was taken has been committed, while nothing is taken.
    pub(crate) fn is_drained(&self) -> bool {
        // None begins meanwhile.
        let state = lock(&self.state);
        state.change.is_none() && self.all.iter().all(|rx_queue| rx_queue.0.is_drained())
    }

    /// Begins a change. `spread` has the kernel deliver by the new number, and returns when that is so
    /// for all that arrives, and how many receive queues are then in use; nothing if the kernel refuses.
    /// False if there is no change.
    pub(crate) fn change(
        &self,
        before: usize,
        rx_queues: usize,
        spread: impl FnOnce() -> Option<(Vec<Grace>, usize)>,
    ) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed || state.change.is_some() || rx_queues == before {
            return false;
        }
        let (left, held) = match rx_queues > before {
            true => (0..before, before..rx_queues),
            false => (rx_queues..before, 0..rx_queues),
        };
        self.set_held(held.clone(), true);
        let Some((graces, rx_queues)) = spread() else {
            self.set_held(held, false);
            return false;
        };
        self.is_changing.store(true, Ordering::Relaxed);
        state.change = Some(RxQueueChange {
            left,
            held,
            graces,
            is_marked: false,
            sequences: [None; RX_QUEUES],
            rx_queues,
        });
        true
    }

    /// Whether a change is under way. The owner then looks how far it has come, often.
    pub(crate) fn is_changing(&self) -> bool {
        self.is_changing.load(Ordering::Relaxed)
    }

    /// How far the change has come; each receive queue has sockets of these families. When it is over,
    /// the owner is to be woken, because it waits for other events of receive queues that were held.
    pub(crate) fn progress(&self, families: impl Fn(usize) -> [bool; 2]) -> Option<ChangeProgress> {
        let mut state = lock(&self.state);
        let change = state.change.as_mut()?;
        if !change.is_marked {
            change.graces.retain(|grace| !grace.is_over());
            if !change.graces.is_empty() {
                return Some(ChangeProgress::Waits([false; RX_QUEUES]));
            }
            for rx_queue in change.left.clone() {
                let waiting = |is_there| if is_there { MOST_WAITING } else { 0 };
                let before = families(rx_queue).map(waiting);
                let queue = self.queue(rx_queue);
                queue.with_taking(|taking| taking.before = before);
            }
            change.is_marked = true;
        }
        for rx_queue in change.left.clone() {
            let sequence = &mut change.sequences[rx_queue];
            let queue = self.queue(rx_queue);
            if sequence.is_none() && queue.with_taking(|taking| taking.before == [0; 2]) {
                *sequence = Some(queue.next());
            }
        }
        let is_done = |rx_queue: usize| {
            let sequence = change.sequences[rx_queue];
            sequence.is_some_and(|sequence| self.queue(rx_queue).is_committed_before(sequence))
        };
        if !change.left.clone().all(is_done) {
            let waits =
                |rx_queue| change.left.contains(&rx_queue) && change.sequences[rx_queue].is_none();
            return Some(ChangeProgress::Waits(std::array::from_fn(waits)));
        }
        let (held, rx_queues) = (change.held.clone(), change.rx_queues);
        self.set_held(held, false);
        self.end_change(&mut state);
        Some(ChangeProgress::Over(rx_queues))
    }

    /// The sockets are others than before: nothing waits in them, and no change is under way.
    pub(crate) fn replaced(&self) {
        let mut state = lock(&self.state);
        self.end_change(&mut state);
        self.set_held(0..RX_QUEUES, state.is_closed);
    }

    fn end_change(&self, state: &mut OrderState) {
        state.change = None;
        self.is_changing.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "rx_queues_tests.rs"]
mod tests;
