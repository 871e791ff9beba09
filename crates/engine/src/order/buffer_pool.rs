//! Buffer pools: buffers that are kept for the next batch or train.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use crate::thread::lock::lock;

/// Buffers that all threads of a process share: what one has too many of, another takes.
pub(crate) type SharedPool<B> = Arc<Mutex<Vec<B>>>;

/// The pool of one kind of buffer as one thread has it. It takes what it gave back last, which is
/// most likely in a cache, without a lock. Where one thread takes and another gives back, they exchange
/// several at a time.
/// Buffers are made when first needed: light traffic touches few.
pub(crate) struct BufferPool<B> {
    own: RefCell<Vec<B>>,
    shared: SharedPool<B>,
    /// How many are exchanged at a time. A thread keeps up to twice as many.
    piece: usize,
    /// How many are shared at most. The others are freed.
    max_shared: usize,
    make: fn() -> B,
}

impl<B> BufferPool<B> {
    pub(crate) fn new(
        shared: &SharedPool<B>,
        (piece, max_shared): (usize, usize),
        make: fn() -> B,
    ) -> Self {
        Self {
            own: RefCell::default(),
            shared: Arc::clone(shared),
            piece,
            max_shared,
            make,
        }
    }

    pub(crate) fn take(&self) -> B {
        let mut own = self.own.borrow_mut();
        if own.is_empty() {
            let mut shared = lock(&self.shared);
            let rest = shared.len().saturating_sub(self.piece);
            own.extend(shared.drain(rest..));
        }
        own.pop().unwrap_or_else(self.make)
    }

    pub(crate) fn give_back(&self, buffer: B) {
        let mut own = self.own.borrow_mut();
        own.push(buffer);
        if own.len() > 2 * self.piece {
            // Those that were given back first. Any beyond the bound are freed after the lock.
            let mut first = own.drain(..self.piece);
            let mut shared = lock(&self.shared);
            let room = self.max_shared.saturating_sub(shared.len());
            shared.extend(first.by_ref().take(room));
            drop(shared);
        }
    }

    /// Whether the thread keeps any.
    pub(crate) fn keeps_some(&self) -> bool {
        !self.own.borrow().is_empty()
    }

    /// Frees what the thread keeps, and what all share: a thread that needs some makes them.
    pub(crate) fn free(&self) {
        self.own.take();
        let shared = std::mem::take(&mut *lock(&self.shared));
        drop(shared);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PIECE: usize = 4;
    const MAX_SHARED: usize = 10;

    fn make() -> Box<u8> {
        Box::default()
    }

    fn of_thread(shared: &SharedPool<Box<u8>>) -> BufferPool<Box<u8>> {
        BufferPool::new(shared, (PIECE, MAX_SHARED), make)
    }

    fn address(buffer: &u8) -> usize {
        std::ptr::from_ref(buffer).addr()
    }

    #[test]
    fn a_thread_takes_what_it_gave_back_last_and_shares_nothing() {
        let shared = SharedPool::default();
        let pool = of_thread(&shared);
        // No lock is needed for any of it: this one would never be released.
        let _held = lock(&shared);
        for _ in 0..2 * PIECE {
            pool.own.borrow_mut().push(make());
        }
        for taken in 1..=2 * PIECE {
            let buffers: Vec<_> = (0..taken).map(|_| pool.take()).collect();
            let last = buffers.last().map(|last| address(last));
            buffers.into_iter().for_each(|it| pool.give_back(it));
            let next = pool.own.borrow().last().map(|next| address(next));
            assert_eq!(next, last);
        }
    }

    #[test]
    fn what_one_thread_gives_back_another_takes_a_piece_at_a_time() {
        let shared = SharedPool::default();
        let (takes, gives) = (of_thread(&shared), of_thread(&shared));
        let mut seen = HashSet::new();
        let mut exchanged = HashSet::new();
        for _ in 0..100 {
            let buffer = takes.take();
            seen.insert(address(&buffer));
            gives.give_back(buffer);
            exchanged.insert(lock(&shared).len());
        }
        // Those that both threads keep, and a piece on its way.
        assert!(seen.len() <= 3 * PIECE + 1, "{} were made", seen.len());
        let expected: HashSet<_> = [0, PIECE].into();
        assert_eq!(exchanged, expected);
    }

    #[test]
    fn no_more_are_shared_than_may_be_and_none_after_a_rest() {
        let shared = SharedPool::default();
        let pool = of_thread(&shared);
        for _ in 0..10 * MAX_SHARED {
            pool.give_back(make());
        }
        assert_eq!(lock(&shared).len(), MAX_SHARED);
        assert!(pool.own.borrow().len() <= 2 * PIECE);
        assert!(pool.keeps_some());
        pool.free();
        assert!(lock(&shared).is_empty());
        assert!(!pool.keeps_some());
    }
}
