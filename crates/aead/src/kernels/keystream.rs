//! Keystream of some counters that follow each other, before packets have them.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::hint::black_box;
use core::panic::RefUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};

/// How many counters have their blocks made together.
pub(super) const COUNTERS: usize = 4;
/// The longest text.
pub(super) const LONGEST: usize = 64;

/// The first two blocks of a counter: the first 32 bytes are the Poly1305 key, those from
/// [`LONGEST`] on are for the text.
pub(super) type KeystreamBlocks = [u8; 2 * LONGEST];

/// KeystreamBlocks of some counters, zeroized when they were used or are dropped.
pub(crate) struct Ahead {
    first: u64,
    /// Which of them have not been used: bit n is that of counter `first + n`.
    left: u8,
    blocks: [KeystreamBlocks; COUNTERS],
}

impl Ahead {
    pub(super) fn new() -> Self {
        Self {
            first: 0,
            left: 0,
            blocks: [[0; 2 * LONGEST]; COUNTERS],
        }
    }

    /// The number of a counter's blocks: unless they are there, `make` makes those from this counter
    /// on.
    pub(super) fn find(
        &mut self,
        counter: u64,
        make: impl FnOnce(u64, &mut [KeystreamBlocks; COUNTERS]),
    ) -> usize {
        let there = counter.checked_sub(self.first);
        if let Some(n) = there.and_then(|n| usize::try_from(n).ok())
            && n < COUNTERS
            && self.left & 1 << n != 0
        {
            return n;
        }
        self.first = counter;
        self.left = (1 << COUNTERS) - 1;
        make(counter, &mut self.blocks);
        0
    }

    pub(super) fn blocks(&self, n: usize) -> &KeystreamBlocks {
        &self.blocks[n]
    }

    /// No packet has this counter again.
    pub(super) fn used(&mut self, n: usize) {
        self.left &= !(1 << n);
        self.blocks[n] = [0; 2 * LONGEST];
        black_box(&mut self.blocks[n]);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.blocks = [[0; 2 * LONGEST]; COUNTERS];
        black_box(&mut self.blocks);
    }
}

/// The keystream that is kept with a key, made when first needed.
#[derive(Default)]
pub(crate) struct KeptAhead {
    /// A thread works with it.
    busy: AtomicBool,
    ahead: UnsafeCell<Option<Box<Ahead>>>,
}

// SAFETY: only the thread that set `busy` looks into the cell, and what is there may go from thread to
// thread.
unsafe impl Sync for KeptAhead {}

/// What a panic left half done stays `busy`, and nobody sees it again.
impl RefUnwindSafe for KeptAhead {}

/// Keystream that this thread alone works with, until it is put back.
pub(super) struct TakenAhead<'a> {
    pub(super) ahead: &'a mut Ahead,
    busy: &'a AtomicBool,
}

impl KeptAhead {
    /// The keystream, unless another thread has taken it: nobody waits.
    pub(super) fn take(&self) -> Option<TakenAhead<'_>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: this thread has set `busy`, so that no other has a reference before this one is given
        // up by `put_back`.
        let ahead = unsafe { &mut *self.ahead.get() };
        Some(TakenAhead {
            ahead: ahead.get_or_insert_with(|| Box::new(Ahead::new())),
            busy: &self.busy,
        })
    }
}

impl TakenAhead<'_> {
    pub(super) fn put_back(self) {
        self.busy.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_does_without_what_another_one_has_taken() {
        let kept = KeptAhead::default();
        let taken = kept.take().unwrap();
        assert!(kept.take().is_none());
        taken.put_back();
        assert!(kept.take().is_some());
    }

    #[test]
    fn what_a_panic_interrupted_is_not_seen_again() {
        let kept = KeptAhead::default();
        let panics = std::panic::catch_unwind(|| {
            let _taken = kept.take().unwrap();
            panic!("as a test does");
        });
        assert!(panics.is_err());
        assert!(kept.take().is_none());
    }
}
