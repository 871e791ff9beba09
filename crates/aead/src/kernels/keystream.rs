//! Keystream of some counters that follow each other, before packets have them.

use core::hint::black_box;

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
