//! The two ordered gates of a queue, by which several threads process it without changing its
//! order.
//!
//! A poll of a queue has three parts:
//!
//! ```text
//! take    in order, behind the first gate     reads a batch and draws a sequence number
//! work    unordered, no lock                  opens or seals it
//! put     in the order of sequence numbers,   commits and delivers it, or sends it
//!         behind the second gate
//! ```
//!
//! One thread alone [passes](Gates::pass) both gates at once: it takes, works and puts in a line,
//! without a sequence number. Of several, none waits for another: a batch is filed under its sequence
//! number, and the thread at the second gate puts all that are ready.
//!
//! ```text
//!             head            next
//!   put …… |  ready  |  taken  |  ready  |  free  |       slots by sequence number
//! ```
//!
//! `filed` counts what was filed since the thread at the second gate last looked. The thread that
//! raises it from zero goes there, and leaves when it is back at zero: so nothing that was filed
//! lies there without a thread that is going to look at it (invariant 6).
//!
//! There may be several second gates, so that several threads put at the same time. Then a batch is
//! split, and each gate has a part of every batch: the order holds among the parts of one gate. How
//! many are in use changes only while no batch is on its way.

use arrayvec::ArrayVec;

#[cfg(debug_assertions)]
use crate::thread::progress;
use crate::thread::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, lock, try_lock,
};

/// Batches of one queue that are taken and not put, at most.
pub(crate) const DEPTH: usize = 16;
/// The same where one or two threads poll it.
const LEAST_DEPTH: usize = 4;
/// The same while several second gates are in use: more would only grow cold, because any thread puts.
const SPLIT_DEPTH: usize = 8;

/// Batches that are taken and not put at most, where so many threads poll a queue and so many second gates
/// are in use: while each thread works on one, one of each may wait for its turn.
pub(crate) fn depth(threads: usize, gates: usize) -> usize {
    match gates {
        1 => (2 * threads).clamp(LEAST_DEPTH, DEPTH),
        _ => SPLIT_DEPTH,
    }
}

/// A queue's gates. `S` is what taking needs, `P` what putting needs; a batch, or a part of one, is a
/// `B`. There are up to `N` second gates.
pub(crate) struct Gates<S, B, P, const N: usize = 1> {
    first: Mutex<First<S>>,
    seconds: [Second<B, P>; N],
    /// So many second gates are in use. Written behind all gates, while no batch is taken and not put.
    in_use: AtomicUsize,
    /// A thread wants to know when fewer are taken.
    is_awaited: AtomicBool,
}

/// A second gate. No cache line is of two.
#[repr(align(128))]
struct Second<B, P> {
    /// Filed batches: a sequence number has the slot that is its remainder. As many as may be taken while this gate
    /// is in use.
    slots: Box<[Mutex<Option<B>>]>,
    /// What was filed since the thread at the gate looked.
    filed: AtomicUsize,
    state: Mutex<P>,
    /// The sequence number to be put next. Written behind the gate.
    head: AtomicU64,
}

struct First<S> {
    next: u64,
    /// Nothing is taken.
    is_closed: bool,
    state: S,
}

/// The right to put a batch when its turn comes, and the duty to [`file`](Gates::file) it.
#[derive(Debug)]
#[must_use = "the batches behind it wait"]
pub(crate) struct SequenceNumber(u64);

/// In debug builds a thread that has a sequence number may not sleep.
impl SequenceNumber {
    fn draw(number: u64) -> Self {
        Self(number).take_over()
    }

    /// The calling thread leaves it to another one, which then [takes it over](Self::take_over).
    pub(crate) fn leave(self) -> Self {
        #[cfg(debug_assertions)]
        progress::lets_go(self.0);
        self
    }

    /// The calling thread has it now.
    pub(crate) fn take_over(self) -> Self {
        #[cfg(debug_assertions)]
        progress::takes(self.0);
        self
    }
}

/// What came of trying to take a batch.
#[derive(Debug)]
pub(crate) enum Taken<B> {
    Batch(SequenceNumber, B),
    /// There is nothing to take.
    Nothing,
    /// Another thread is taking.
    Busy,
    /// As many batches are taken as may be, or the gates are closed. A thread that asked to be told is told when this changes.
    Full,
}

/// What became of a batch at the second gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Done,
    /// It cannot go on now. It stays the head until [`Gates::proceed_all`] is called.
    Blocked,
}

impl<S, B, P, const N: usize> Gates<S, B, P, N> {
    /// Gates of which one second gate is in use.
    pub(crate) fn new(taking: S, putting: [P; N]) -> Self {
        // The first gate alone is ever the only one.
        let mut slots = std::iter::once(DEPTH);
        Self {
            first: Mutex::new(First {
                next: 0,
                is_closed: false,
                state: taking,
            }),
            seconds: putting.map(|state| Second {
                slots: (0..slots.next().unwrap_or(SPLIT_DEPTH))
                    .map(|_| Mutex::new(None))
                    .collect(),
                filed: AtomicUsize::new(0),
                state: Mutex::new(state),
                head: AtomicU64::new(0),
            }),
            in_use: AtomicUsize::new(1),
            is_awaited: AtomicBool::new(false),
        }
    }

    /// Takes a batch for so many second gates, if the first gate is open and no more are taken and not put
    /// than so many threads [may have](depth). If others were in use, every
    /// batch is put before, and then `change` gets what all the gates have; they stay as they are if it
    /// returns false. With `awaits`, [`Self::was_awaited`] is true after the next batch that is put, if
    /// as many are taken now as may be.
    ///
    /// # Errors
    ///
    /// Those of `take`.
    pub(crate) fn take<T, E>(
        &self,
        (awaits, threads): (bool, usize),
        (gates, change): (usize, impl FnOnce(&mut [&mut P]) -> bool),
        take: impl FnOnce(&mut S) -> Result<Option<T>, E>,
    ) -> Result<Taken<T>, E> {
        let Some(mut first) = try_lock(&self.first) else {
            return Ok(Taken::Busy);
        };
        if first.is_closed {
            return Ok(Taken::Full);
        }
        let changes = gates != self.in_use();
        let most = if changes { 1 } else { depth(threads, gates) };
        if self.holds(most, first.next) {
            if !awaits {
                return Ok(Taken::Full);
            }
            self.is_awaited.store(true, Ordering::Relaxed);
            // A batch that was put meanwhile did not see that. Either this thread sees that it was,
            // or the one that put it sees that it is awaited.
            fence(Ordering::SeqCst);
            if self.holds(most, first.next) {
                return Ok(Taken::Full);
            }
            self.is_awaited.store(false, Ordering::Relaxed);
        }
        if changes {
            let mut states = self.seconds.each_ref().map(|second| lock(&second.state));
            if change(&mut states.each_mut().map(|state| &mut **state)) {
                for second in &self.seconds {
                    second.head.store(first.next, Ordering::Release);
                }
                self.in_use.store(gates, Ordering::Release);
            }
        }
        Ok(match take(&mut first.state)? {
            None => Taken::Nothing,
            Some(batch) => {
                let sequence = SequenceNumber::draw(first.next);
                first.next += 1;
                Taken::Batch(sequence, batch)
            }
        })
    }

    /// Takes and puts in a line, without a sequence number, where nothing is taken and not put and one second gate is
    /// in use: `work` has what both gates have. What it returns besides its result is a batch that cannot
    /// go on now: that is filed as the head, until [`Self::proceed_all`] is called.
    ///
    /// `None`, and nothing done, if that is not so, or another thread is taking.
    pub(crate) fn pass<R>(&self, work: impl FnOnce(&mut S, &mut P) -> (R, Option<B>)) -> Option<R> {
        let mut first = try_lock(&self.first)?;
        if first.is_closed || self.in_use() != 1 || !self.is_put_before(first.next) {
            return None;
        }
        let only = &self.seconds[0];
        // No other thread takes meanwhile, so that whatever it finds here comes after this.
        let mut state = lock(&only.state);
        let (result, left) = work(&mut first.state, &mut state);
        if left.is_some() {
            *lock(only.slot(first.next)) = left;
            first.next += 1;
        }
        Some(result)
    }

    /// How many second gates are in use. It stays so while the caller has a sequence number.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    /// Has nothing taken any more, or lets batches in again. When this returns, every batch that any
    /// thread took has its sequence number; whoever opens the gates wakes the owner.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        lock(&self.first).is_closed = is_closed;
    }

    /// Whether every batch that was taken has been put.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_put_before(self.next())
    }

    /// The sequence number that the next batch gets.
    pub(crate) fn next(&self) -> u64 {
        lock(&self.first).next
    }

    /// Whether every batch whose sequence number is before this one has been put.
    pub(crate) fn is_put_before(&self, sequence: u64) -> bool {
        let gates = self.seconds.iter().take(self.in_use());
        let mut heads = gates.map(|second| second.head.load(Ordering::Acquire));
        heads.all(|head| head >= sequence)
    }

    /// Has the state behind the first gate for a moment. A thread that takes is waited for.
    pub(crate) fn with_taking<R>(&self, use_state: impl FnOnce(&mut S) -> R) -> R {
        use_state(&mut lock(&self.first).state)
    }

    /// Whether so many batches are taken and not put, if the next sequence number is this one.
    fn holds(&self, batches: usize, next: u64) -> bool {
        let last = next.checked_sub(batches as u64);
        last.is_some_and(|last| !self.is_put_before(last + 1))
    }

    /// Whether the batch with this sequence number is the next to be put: then its thread may as well do the
    /// work behind the second gate, piece by piece.
    pub(crate) fn is_head(&self, sequence: &SequenceNumber) -> bool {
        self.is_put_before(sequence.0)
    }

    /// Files a batch whose work is done, or which is the head, at the only second gate in use. Then
    /// [`Self::proceed_all`] is to be called, by this thread or by one that it wakes.
    pub(crate) fn file(&self, sequence: SequenceNumber, batch: B) {
        self.file_parts(sequence, [batch]);
    }

    /// Files the parts of a batch: the first at the first gate, and so on, one for each that is in use.
    /// Then [`Self::proceed_all`] is to be called.
    pub(crate) fn file_parts(&self, sequence: SequenceNumber, parts: impl IntoIterator<Item = B>) {
        for (second, part) in self.seconds.iter().zip(parts) {
            *lock(second.slot(sequence.0)) = Some(part);
        }
        drop(sequence.leave());
    }

    /// Puts what is ready at each second gate in use, the first one first. `put` is told at which.
    ///
    /// How many these are is asked again behind each. A batch may have been split since this thread came:
    /// the thread that split it finds this one at the first gate and leaves it to this one, which then goes on
    /// to the gates behind (invariant 6).
    pub(crate) fn proceed_all(
        &self,
        mut put: impl FnMut(usize, &mut P, &mut B) -> Put,
        mut done: impl FnMut(B),
    ) {
        let mut gate = 0;
        while gate < self.in_use() {
            self.proceed(gate, |state, batch| put(gate, state, batch), &mut done);
            gate += 1;
        }
    }

    /// Puts what is ready at this second gate, if no other thread is there; if one is, it looks
    /// again. `done` gets each batch that was put.
    pub(crate) fn proceed(
        &self,
        gate: usize,
        mut put: impl FnMut(&mut P, &mut B) -> Put,
        mut done: impl FnMut(B),
    ) {
        let second = &self.seconds[gate];
        if second.filed.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            let mut state = lock(&second.state);
            let mut head = second.head.load(Ordering::Relaxed);
            loop {
                let mut slot = lock(second.slot(head));
                let Some(batch) = &mut *slot else { break };
                if put(&mut state, batch) == Put::Blocked {
                    break;
                }
                let batch = slot.take();
                drop(slot);
                head += 1;
                second.head.store(head, Ordering::Release);
                fence(Ordering::SeqCst);
                batch.into_iter().for_each(&mut done);
            }
            drop(state);
            match second
                .filed
                .compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }

    /// Whether a thread asked to be told that a batch was put; it is told once.
    pub(crate) fn was_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed)
    }

    /// Has the states behind all second gates that are in use, one after the other. Nothing is taken
    /// meanwhile, so that their number stays, and with it what each gate has.
    pub(crate) fn each<R>(&self, mut use_state: impl FnMut(usize, &mut P) -> R) -> ArrayVec<R, N> {
        let _first = lock(&self.first);
        let gates = 0..self.in_use();
        gates
            .map(|gate| self.with(gate, |state| use_state(gate, state)))
            .collect()
    }

    /// Has the state behind a second gate for a moment. A thread that puts is waited for.
    pub(crate) fn with<R>(&self, gate: usize, use_state: impl FnOnce(&mut P) -> R) -> R {
        use_state(&mut lock(&self.seconds[gate].state))
    }
}

impl<B, P> Second<B, P> {
    fn slot(&self, sequence: u64) -> &Mutex<Option<B>> {
        let slot = usize::try_from(sequence % self.slots.len() as u64);
        &self.slots[slot.unwrap_or_default()]
    }
}

#[cfg(all(test, not(loom)))]
#[path = "gates_tests.rs"]
mod tests;
