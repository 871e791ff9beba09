//! Buffers that are kept for the next batch or train.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use crate::thread::lock::lock;

/// Buffers that all threads of a process share: what one has too many of, another takes.
pub(crate) type Shared<B> = Arc<Mutex<Vec<B>>>;

/// Buffers of one kind as one thread has them. It takes what it put last, which is most likely in a
/// cache, without a lock. Where one thread takes and another puts, they exchange several at a time.
/// Buffers are made when first needed: light traffic touches few.
pub(crate) struct Spares<B> {
    own: RefCell<Vec<B>>,
    shared: Shared<B>,
    /// So many are exchanged at a time. A thread keeps up to twice as many.
    piece: usize,
    /// So many are shared at most. The others are freed.
    max_shared: usize,
    make: fn() -> B,
}

impl<B> Spares<B> {
    pub(crate) fn new(
        shared: &Shared<B>,
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

    pub(crate) fn put(&self, buffer: B) {
        let mut own = self.own.borrow_mut();
        own.push(buffer);
        if own.len() > 2 * self.piece {
            // Those that were put first. Any beyond the bound are freed after the lock.
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

    /// Frees what the thread keeps, and what all share: whoever needs some makes them.
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

    fn of_thread(shared: &Shared<Box<u8>>) -> Spares<Box<u8>> {
        Spares::new(shared, (PIECE, MAX_SHARED), make)
    }

    fn address(buffer: &u8) -> usize {
        std::ptr::from_ref(buffer).addr()
    }

    #[test]
    fn a_thread_takes_what_it_put_last_and_shares_nothing() {
        let shared = Shared::default();
        let spares = of_thread(&shared);
        // No lock is needed for any of it: this one would never be released.
        let _held = lock(&shared);
        for _ in 0..2 * PIECE {
            spares.own.borrow_mut().push(make());
        }
        for taken in 1..=2 * PIECE {
            let buffers: Vec<_> = (0..taken).map(|_| spares.take()).collect();
            let last = buffers.last().map(|last| address(last));
            buffers.into_iter().for_each(|it| spares.put(it));
            let next = spares.own.borrow().last().map(|next| address(next));
            assert_eq!(next, last);
        }
    }

    #[test]
    fn what_one_thread_puts_another_takes_a_piece_at_a_time() {
        let shared = Shared::default();
        let (takes, puts) = (of_thread(&shared), of_thread(&shared));
        let mut seen = HashSet::new();
        let mut exchanged = HashSet::new();
        for _ in 0..100 {
            let buffer = takes.take();
            seen.insert(address(&buffer));
            puts.put(buffer);
            exchanged.insert(lock(&shared).len());
        }
        // Those that both threads keep, and a piece on its way.
        assert!(seen.len() <= 3 * PIECE + 1, "{} were made", seen.len());
        let expected: HashSet<_> = [0, PIECE].into();
        assert_eq!(exchanged, expected);
    }

    #[test]
    fn no_more_are_shared_than_may_be_and_none_after_a_rest() {
        let shared = Shared::default();
        let spares = of_thread(&shared);
        for _ in 0..10 * MAX_SHARED {
            spares.put(make());
        }
        assert_eq!(lock(&shared).len(), MAX_SHARED);
        assert!(spares.own.borrow().len() <= 2 * PIECE);
        assert!(spares.keeps_some());
        spares.free();
        assert!(lock(&shared).is_empty());
        assert!(!spares.keeps_some());
    }
}
