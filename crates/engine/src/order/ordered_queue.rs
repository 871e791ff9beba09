//! The ordered queue: several threads process its batches, and these commit in the order in which they were
//! taken. It has a take lock, and a commit lock or several.
//!
//! A poll of a queue has three parts:
//!
//! ```text
//! take    in order, under the take lock       reads a batch and draws a sequence number
//! work    unordered, no lock                  opens or seals it
//! commit  in the order of sequence numbers,   commits and delivers it, or sends it
//!         under the commit lock
//! ```
//!
//! One thread alone [holds both locks](OrderedQueue::pass) at once: it takes, works and commits in a line,
//! without a sequence number. Of several, none waits for another: a batch is filed under its sequence
//! number, and the thread that has the commit lock commits all that are ready.
//!
//! ```text
//!                head            next
//!   commit …… |  ready  |  taken  |  ready  |  free  |       slots by sequence number
//! ```
//!
//! `filed` counts what was filed since the thread that has the commit lock last looked. The thread that
//! raises it from zero goes there, and leaves when it is back at zero: so nothing that was filed
//! lies there without a thread that is going to look at it (invariant 6).
//!
//! There may be several commit locks, so that several threads commit at the same time. Then a batch is
//! split, and each commit lock has a flow shard of every batch: the order holds among the flow shards of
//! one commit lock. How many are in use changes only while no batch is on its way.

use arrayvec::ArrayVec;

#[cfg(debug_assertions)]
use crate::thread::progress;
use crate::thread::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, lock, try_lock,
};

/// Batches of one queue that are taken and not committed, at most.
pub(crate) const DEPTH: usize = 16;
/// The same where one or two threads poll it.
const LEAST_DEPTH: usize = 4;
/// The same while several commit locks are in use: more would only grow cold, because any thread commits.
const SPLIT_DEPTH: usize = 8;

/// Batches that are taken and not committed at most, where so many threads poll a queue and so many commit locks
/// are in use: while each thread works on one, one of each may wait for its turn.
pub(crate) fn depth(threads: usize, commit_locks: usize) -> usize {
    match commit_locks {
        1 => (2 * threads).clamp(LEAST_DEPTH, DEPTH),
        _ => SPLIT_DEPTH,
    }
}

/// A queue that keeps order. `S` is what taking needs, `P` what committing needs; a batch, or a flow
/// shard of one, is a `B`. There are up to `N` commit locks.
pub(crate) struct OrderedQueue<S, B, P, const N: usize = 1> {
    take_lock: Mutex<Taker<S>>,
    commit_locks: [CommitLock<B, P>; N],
    /// How many commit locks are in use. Written under all locks, while no batch is taken and not committed.
    in_use: AtomicUsize,
    /// A thread wants to know when fewer are taken.
    is_awaited: AtomicBool,
}

/// A commit lock, and what was filed for it. No cache line is of two.
#[repr(align(128))]
struct CommitLock<B, P> {
    /// Filed batches: a sequence number has the slot that is its remainder. As many as may be taken while
    /// this commit lock is in use.
    slots: Box<[Mutex<Option<B>>]>,
    /// Batches that were filed since the thread that has the lock looked.
    filed: AtomicUsize,
    state: Mutex<P>,
    /// The sequence number to be committed next. Written under the lock.
    head: AtomicU64,
}

struct Taker<S> {
    next: u64,
    /// Nothing is taken.
    is_closed: bool,
    state: S,
}

/// The right to commit a batch when its turn comes, and the duty to [`file`](OrderedQueue::file) it.
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

/// The result of trying to take a batch.
#[derive(Debug)]
pub(crate) enum Taken<B> {
    Batch(SequenceNumber, B),
    /// There is nothing to take.
    Nothing,
    /// Another thread is taking.
    Busy,
    /// No more batches may be taken, or the queue is closed. A thread that asked to be told is
    /// told when this changes.
    Full,
}

/// The result of committing a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    Done,
    /// The batch cannot go on now. It stays the head until [`OrderedQueue::proceed_all`] is called.
    Blocked,
}

impl<S, B, P, const N: usize> OrderedQueue<S, B, P, N> {
    /// A queue of which one commit lock is in use.
    pub(crate) fn new(taking: S, committing: [P; N]) -> Self {
        // Only the first is ever the only one.
        let mut slots = std::iter::once(DEPTH);
        Self {
            take_lock: Mutex::new(Taker {
                next: 0,
                is_closed: false,
                state: taking,
            }),
            commit_locks: committing.map(|state| CommitLock {
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

    /// Takes a batch for so many commit locks, if the queue is open and no more are taken and not committed
    /// than so many threads [may have](depth). If others were in use, every
    /// batch is committed before, and then `change` gets what all of these have; they stay as they are if it
    /// returns false. With `awaits`, [`Self::was_awaited`] is true after the next batch that is committed, if
    /// as many are taken now as may be.
    ///
    /// # Errors
    ///
    /// Those of `take`.
    pub(crate) fn take<T, E>(
        &self,
        (awaits, threads): (bool, usize),
        (commit_locks, change): (usize, impl FnOnce(&mut [&mut P]) -> bool),
        take: impl FnOnce(&mut S) -> Result<Option<T>, E>,
    ) -> Result<Taken<T>, E> {
        let Some(mut taker) = try_lock(&self.take_lock) else {
            return Ok(Taken::Busy);
        };
        if taker.is_closed {
            return Ok(Taken::Full);
        }
        let changes = commit_locks != self.in_use();
        let most = if changes {
            1
        } else {
            depth(threads, commit_locks)
        };
        if self.holds(most, taker.next) {
            if !awaits {
                return Ok(Taken::Full);
            }
            self.is_awaited.store(true, Ordering::Relaxed);
            // A batch that was committed meanwhile did not see that. Either this thread sees that it was,
            // or the one that committed it sees that it is awaited.
            fence(Ordering::SeqCst);
            if self.holds(most, taker.next) {
                return Ok(Taken::Full);
            }
            self.is_awaited.store(false, Ordering::Relaxed);
        }
        if changes {
            let mut states = self
                .commit_locks
                .each_ref()
                .map(|commit_lock| lock(&commit_lock.state));
            if change(&mut states.each_mut().map(|state| &mut **state)) {
                for commit_lock in &self.commit_locks {
                    commit_lock.head.store(taker.next, Ordering::Release);
                }
                self.in_use.store(commit_locks, Ordering::Release);
            }
        }
        Ok(match take(&mut taker.state)? {
            None => Taken::Nothing,
            Some(batch) => {
                let sequence = SequenceNumber::draw(taker.next);
                taker.next += 1;
                Taken::Batch(sequence, batch)
            }
        })
    }

    /// Takes and commits in a line, without a sequence number, where nothing is taken and not committed
    /// and one commit lock is in use: `work` has what both locks guard. What it returns besides its
    /// result is a batch that cannot go on now: that is filed as the head, until [`Self::proceed_all`]
    /// is called.
    ///
    /// `None`, and nothing done, if that is not so, or another thread is taking.
    pub(crate) fn pass<R>(&self, work: impl FnOnce(&mut S, &mut P) -> (R, Option<B>)) -> Option<R> {
        let mut taker = try_lock(&self.take_lock)?;
        if taker.is_closed || self.in_use() != 1 || !self.is_committed_before(taker.next) {
            return None;
        }
        let only = &self.commit_locks[0];
        // No other thread takes meanwhile, so that whatever it finds here comes after this.
        let mut state = lock(&only.state);
        let (result, left) = work(&mut taker.state, &mut state);
        if left.is_some() {
            *lock(only.slot(taker.next)) = left;
            taker.next += 1;
        }
        Some(result)
    }

    /// How many commit locks are in use. It stays so while the caller has a sequence number.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    /// Has nothing taken any more, or lets batches in again. When this returns, every batch that any
    /// thread took has its sequence number; the thread that opens the queue wakes the owner.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        lock(&self.take_lock).is_closed = is_closed;
    }

    /// Whether every batch that was taken has been committed.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_committed_before(self.next())
    }

    /// The sequence number that the next batch gets.
    pub(crate) fn next(&self) -> u64 {
        lock(&self.take_lock).next
    }

    /// Whether every batch whose sequence number is before this one has been committed.
    pub(crate) fn is_committed_before(&self, sequence: u64) -> bool {
        let commit_locks = self.commit_locks.iter().take(self.in_use());
        let mut heads = commit_locks.map(|commit_lock| commit_lock.head.load(Ordering::Acquire));
        heads.all(|head| head >= sequence)
    }

    /// Has the state under the take lock for a moment. A thread that takes is waited for.
    pub(crate) fn with_taking<R>(&self, use_state: impl FnOnce(&mut S) -> R) -> R {
        use_state(&mut lock(&self.take_lock).state)
    }

    /// Whether so many batches are taken and not committed, if the next sequence number is this one.
    fn holds(&self, batches: usize, next: u64) -> bool {
        let last = next.checked_sub(batches as u64);
        last.is_some_and(|last| !self.is_committed_before(last + 1))
    }

    /// Whether the batch with this sequence number is the next to be committed: then its thread may as well do the
    /// work under the commit lock, piece by piece.
    pub(crate) fn is_head(&self, sequence: &SequenceNumber) -> bool {
        self.is_committed_before(sequence.0)
    }

    /// Files a batch whose work is done, or which is the head, at the only commit lock in use. Then
    /// [`Self::proceed_all`] is to be called, by this thread or by one that it wakes.
    pub(crate) fn file(&self, sequence: SequenceNumber, batch: B) {
        self.file_split(sequence, [batch]);
    }

    /// Files the flow shards of a batch: the first at the first commit lock, and so on, one for each that is in use.
    /// Then [`Self::proceed_all`] is to be called.
    pub(crate) fn file_split(&self, sequence: SequenceNumber, split: impl IntoIterator<Item = B>) {
        for (commit_lock, batch) in self.commit_locks.iter().zip(split) {
            *lock(commit_lock.slot(sequence.0)) = Some(batch);
        }
        drop(sequence.leave());
    }

    /// Commits what is ready at each commit lock in use, the first one first. `commit` is told at which.
    ///
    /// How many these are is asked again behind each. A batch may have been split since this thread came:
    /// the thread that split it finds this one at the first commit lock and leaves it to this one, which then goes on
    /// to the commit locks behind (invariant 6).
    pub(crate) fn proceed_all(
        &self,
        mut commit: impl FnMut(usize, &mut P, &mut B) -> Commit,
        mut done: impl FnMut(B),
    ) {
        let mut at = 0;
        while at < self.in_use() {
            self.proceed(at, |state, batch| commit(at, state, batch), &mut done);
            at += 1;
        }
    }

    /// Commits what is ready at this commit lock, if no other thread is there; if one is, it looks
    /// again. `done` gets each batch that was committed.
    pub(crate) fn proceed(
        &self,
        at: usize,
        mut commit: impl FnMut(&mut P, &mut B) -> Commit,
        mut done: impl FnMut(B),
    ) {
        let commit_lock = &self.commit_locks[at];
        if commit_lock.filed.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            let mut state = lock(&commit_lock.state);
            let mut head = commit_lock.head.load(Ordering::Relaxed);
            loop {
                let mut slot = lock(commit_lock.slot(head));
                let Some(batch) = &mut *slot else { break };
                if commit(&mut state, batch) == Commit::Blocked {
                    break;
                }
                let batch = slot.take();
                drop(slot);
                head += 1;
                commit_lock.head.store(head, Ordering::Release);
                fence(Ordering::SeqCst);
                batch.into_iter().for_each(&mut done);
            }
            drop(state);
            match commit_lock
                .filed
                .compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }

    /// Whether a thread asked to be told that a batch was committed; it is told once.
    pub(crate) fn was_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed)
    }

    /// Has the states under all commit locks that are in use, one after the other. Nothing is taken
    /// meanwhile, so that their number stays, and with it what each commit lock has.
    pub(crate) fn each<R>(&self, mut use_state: impl FnMut(usize, &mut P) -> R) -> ArrayVec<R, N> {
        let _taker = lock(&self.take_lock);
        let commit_locks = 0..self.in_use();
        commit_locks
            .map(|at| self.with(at, |state| use_state(at, state)))
            .collect()
    }

    /// Has the state under a commit lock for a moment. A thread that commits is waited for.
    pub(crate) fn with<R>(&self, at: usize, use_state: impl FnOnce(&mut P) -> R) -> R {
        use_state(&mut lock(&self.commit_locks[at].state))
    }
}

impl<B, P> CommitLock<B, P> {
    fn slot(&self, sequence: u64) -> &Mutex<Option<B>> {
        let slot = usize::try_from(sequence % self.slots.len() as u64);
        &self.slots[slot.unwrap_or_default()]
    }
}

#[cfg(all(test, not(loom)))]
#[path = "ordered_queue_tests.rs"]
mod tests;
