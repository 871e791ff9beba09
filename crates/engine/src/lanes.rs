//! The lanes of one interface, and how their number changes without a loss and without reordering.
//!
//! A lane is a socket of each family with gates of its own, so that threads take and put at the same
//! time. The receiver index says in which lane a datagram arrives, and all data of a peer is in one.
//! There are 1, 2, 4 or 8 lanes: when their number is doubled, peers move only to the new ones, and
//! when it is halved, only from those that are given up.
//!
//! ```text
//! 1. the lanes that peers move to are held: nothing is taken from their sockets
//! 2. the kernel delivers by the new number
//! 3. no datagram is on its way by the old one any more
//! 4. from the lanes that peers leave all is taken that had arrived by then
//! 5. all of that is put
//! 6. the lanes that were held go on
//! ```
//!
//! Whoever polls takes and puts as ever. The owner alone looks how far a change has come, so that
//! nothing is added to what is done for a packet. There is one change at a time.

use std::ops::Range;

use adit_io::Grace;
use adit_io::udp::MAX_RECEIVE_BUFFER;

use crate::gates::Gates;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Lanes at most.
pub(crate) const LANES: usize = 8;
/// A socket has no more bytes waiting than this: the kernel doubles the longest buffer.
const MOST_WAITING: u64 = 2 * MAX_RECEIVE_BUFFER as u64;

/// The lanes of one interface. `S` is what taking from one of them needs, `B` a batch.
pub(crate) struct Lanes<S, B> {
    all: [Lane<S, B>; LANES],
    state: Mutex<State>,
    /// A change is under way.
    is_changing: AtomicBool,
}

/// The gates of one lane. No cache line is of two.
#[repr(align(128))]
struct Lane<S, B>(Gates<Taking<S>, B, ()>);

/// What taking from a lane needs.
pub(crate) struct Taking<S> {
    pub(crate) state: S,
    /// While peers leave it, in the sockets for IPv4 and IPv6: bytes that may have arrived before
    /// that. They are gone at the latest when a socket is empty.
    before: [u64; 2],
}

impl<S> Taking<S> {
    /// So many bytes were taken, if more may wait.
    pub(crate) fn took(&mut self, v6: bool, bytes: Option<u64>) {
        let before = &mut self.before[usize::from(v6)];
        *before = bytes.map_or(0, |bytes| before.saturating_sub(bytes));
    }
}

#[derive(Default)]
struct State {
    /// Nothing is taken from any lane.
    is_closed: bool,
    change: Option<Change>,
}

/// A change of the number of lanes.
struct Change {
    /// The lanes that peers leave, and those that they move to.
    left: Range<usize>,
    held: Range<usize>,
    /// Until these are over, datagrams may be on their way to the lanes that peers leave.
    graces: Vec<Grace>,
    /// They are over, and what had arrived is marked in the lanes that peers leave.
    is_marked: bool,
    /// Of each lane that peers leave: the ticket before which all of that is to be put, once that is
    /// known.
    tickets: [Option<u64>; LANES],
    /// How many lanes are in use afterwards.
    lanes: usize,
}

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// These lanes are to be polled, though they may seem empty.
    Waits([bool; LANES]),
    /// So many lanes are in use from now on.
    Over(usize),
}

impl<S, B> Lanes<S, B> {
    pub(crate) fn new(state: impl Fn() -> S) -> Self {
        let taking = || Taking {
            state: state(),
            before: [0; 2],
        };
        Self {
            all: std::array::from_fn(|_| Lane(Gates::new(taking(), ()))),
            state: Mutex::new(State::default()),
            is_changing: AtomicBool::new(false),
        }
    }

    /// Lanes of a process that has more of them share gates.
    pub(crate) fn gates(&self, lane: usize) -> &Gates<Taking<S>, B, ()> {
        &self.all[lane % LANES].0
    }

    fn set_held(&self, lanes: Range<usize>, is_held: bool) {
        lanes.for_each(|lane| self.gates(lane).set_closed(is_held));
    }

    /// Has nothing taken any more, or lets all go on. False if a change is under way: that has to
    /// come to its end first, because whoever goes on may know nothing of it.
    pub(crate) fn set_closed(&self, is_closed: bool) -> bool {
        let mut state = lock(&self.state);
        if state.change.is_some() {
            return false;
        }
        state.is_closed = is_closed;
        self.set_held(0..LANES, is_closed);
        true
    }

    /// Whether all that was taken has been put.
    pub(crate) fn is_drained(&self) -> bool {
        self.all.iter().all(|lane| lane.0.is_drained())
    }

    /// Begins a change. `spread` has the kernel deliver by the new number, and returns when that is so
    /// for all that arrives, and how many lanes are then in use; nothing if the kernel refuses.
    /// False if there is no change.
    pub(crate) fn change(
        &self,
        before: usize,
        lanes: usize,
        spread: impl FnOnce() -> Option<(Vec<Grace>, usize)>,
    ) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed || state.change.is_some() || lanes == before {
            return false;
        }
        let (left, held) = match lanes > before {
            true => (0..before, before..lanes),
            false => (lanes..before, 0..lanes),
        };
        self.set_held(held.clone(), true);
        let Some((graces, lanes)) = spread() else {
            self.set_held(held, false);
            return false;
        };
        self.is_changing.store(true, Ordering::Relaxed);
        state.change = Some(Change {
            left,
            held,
            graces,
            is_marked: false,
            tickets: [None; LANES],
            lanes,
        });
        true
    }

    /// Whether a change is under way. The owner then looks how far it has come, often.
    pub(crate) fn is_changing(&self) -> bool {
        self.is_changing.load(Ordering::Relaxed)
    }

    /// How far the change has come, on sockets of these families. When it is over, the owner is to be
    /// woken, because it waits for other events of lanes that were held.
    pub(crate) fn progress(&self, families: [bool; 2]) -> Option<Progress> {
        let mut state = lock(&self.state);
        let change = state.change.as_mut()?;
        if !change.is_marked {
            change.graces.retain(|grace| !grace.is_over());
            if !change.graces.is_empty() {
                return Some(Progress::Waits([false; LANES]));
            }
            let before = families.map(|is_there| if is_there { MOST_WAITING } else { 0 });
            for lane in change.left.clone() {
                let gates = self.gates(lane);
                gates.with_taking(|taking| taking.before = before);
            }
            change.is_marked = true;
        }
        for lane in change.left.clone() {
            let ticket = &mut change.tickets[lane];
            let gates = self.gates(lane);
            if ticket.is_none() && gates.with_taking(|taking| taking.before == [0; 2]) {
                *ticket = Some(gates.next());
            }
        }
        let is_put = |lane: usize| {
            let ticket = change.tickets[lane];
            ticket.is_some_and(|ticket| self.gates(lane).is_put_before(ticket))
        };
        if !change.left.clone().all(is_put) {
            let waits = |lane| change.left.contains(&lane) && change.tickets[lane].is_none();
            return Some(Progress::Waits(std::array::from_fn(waits)));
        }
        let (held, lanes) = (change.held.clone(), change.lanes);
        self.end(&mut state, held);
        Some(Progress::Over(lanes))
    }

    /// The sockets are others than before: nothing waits in them, and no change is under way.
    pub(crate) fn replaced(&self) {
        let mut state = lock(&self.state);
        let held = match state.is_closed {
            true => 0..0,
            false => 0..LANES,
        };
        self.end(&mut state, held);
    }

    fn end(&self, state: &mut State, held: Range<usize>) {
        state.change = None;
        self.is_changing.store(false, Ordering::Relaxed);
        self.set_held(held, false);
    }
}
