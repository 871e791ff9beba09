//! BLAKE2s (RFC 7693), with and without a key, in plain Rust.
//!
//! Only additions, rotations and XOR of words: its time depends on the lengths alone.

use std::hint::black_box;

/// The bytes that are compressed at a time.
pub(crate) const BLOCK: usize = 64;
/// The longest key, and the longest hash.
const LONGEST: usize = 32;

/// RFC 7693, section 2.6.
const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The order of message words in each round: RFC 7693, section 2.7.
const SIGMA: [[usize; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// A hash of `OUT` bytes that is being made. Zeroized when dropped; what the compiler keeps of it on
/// the stack is the caller's to overwrite.
pub(crate) struct Blake2s<const OUT: usize> {
    state: [u32; 8],
    /// The bytes that were compressed.
    count: u64,
    block: [u8; BLOCK],
    /// The bytes that wait in `block`.
    len: usize,
}

impl<const OUT: usize> Blake2s<OUT> {
    pub(crate) fn new() -> Self {
        Self::with_key(&[])
    }

    /// The keyed hash.
    ///
    /// # Panics
    /// If the key is longer than 32 bytes.
    #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
    pub(crate) fn with_key(key: &[u8]) -> Self {
        const { assert!(OUT > 0 && OUT <= LONGEST) };
        assert!(key.len() <= LONGEST, "a key of at most 32 bytes");
        let mut state = IV;
        // The lengths of hash and key, fanout 1 and depth 1: section 2.5.
        state[0] ^= 0x0101_0000 | (key.len() as u32) << 8 | OUT as u32;
        let mut block = [0; BLOCK];
        block[..key.len()].copy_from_slice(key);
        Self {
            state,
            count: 0,
            block,
            len: if key.is_empty() { 0 } else { BLOCK },
        }
    }

    #[inline]
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // A full block waits until more comes, since the last one is compressed as such.
            if self.len == BLOCK {
                self.count += BLOCK as u64;
                self.compress(0);
                self.len = 0;
            }
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.len));
            self.block[self.len..self.len + now.len()].copy_from_slice(now);
            self.len += now.len();
            bytes = later;
        }
    }

    pub(crate) fn finish(mut self) -> [u8; OUT] {
        self.count += self.len as u64;
        self.block[self.len..].fill(0);
        self.compress(u32::MAX);
        let mut hash = [0; OUT];
        for (bytes, word) in hash.chunks_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        hash
    }

    /// F of section 3.2; `last` is all ones for the last block.
    fn compress(&mut self, last: u32) {
        compress(&mut self.state, &self.block, self.count, last);
    }
}

impl<const OUT: usize> Blake2s<OUT> {
    fn zeroize(&mut self) {
        self.state = [0; 8];
        self.block = [0; BLOCK];
        // The memory must hold zeros when it is next read: the compiler cannot leave the stores out.
        black_box(self);
    }
}

impl<const OUT: usize> Drop for Blake2s<OUT> {
    fn drop(&mut self) {
        self.zeroize();
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves of the count"
)]
fn compress(state: &mut [u32; 8], block: &[u8; BLOCK], count: u64, last: u32) {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let (a, b) = StateRow::pair(state);
    let (c, d) = StateRow::pair(&IV);
    let counts = StateRow(count as u32, (count >> 32) as u32, last, 0);
    let mut rows = [a, b, c, d.xor(counts)];
    round::<0>(&mut rows, &words);
    round::<1>(&mut rows, &words);
    round::<2>(&mut rows, &words);
    round::<3>(&mut rows, &words);
    round::<4>(&mut rows, &words);
    round::<5>(&mut rows, &words);
    round::<6>(&mut rows, &words);
    round::<7>(&mut rows, &words);
    round::<8>(&mut rows, &words);
    round::<9>(&mut rows, &words);
    let a = a.xor(rows[0]).xor(rows[2]);
    let b = b.xor(rows[1]).xor(rows[3]);
    *state = [a.0, a.1, a.2, a.3, b.0, b.1, b.2, b.3];
}

/// Four words of the state. Each step is written for four at a time, none of which waits for
/// another: in the order of the specification, a block takes a tenth longer on a Zen 3.
#[derive(Clone, Copy)]
struct StateRow(u32, u32, u32, u32);

impl StateRow {
    #[inline(always)]
    fn pair(&[a, b, c, d, e, f, g, h]: &[u32; 8]) -> (Self, Self) {
        (Self(a, b, c, d), Self(e, f, g, h))
    }

    /// Every other word of a round's order from `first` on.
    #[inline(always)]
    fn words<const N: usize>(words: &[u32; 16], first: usize) -> Self {
        let word = |i: usize| words[SIGMA[N][first + 2 * i]];
        Self(word(0), word(1), word(2), word(3))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(
            self.0.wrapping_add(other.0),
            self.1.wrapping_add(other.1),
            self.2.wrapping_add(other.2),
            self.3.wrapping_add(other.3),
        )
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(
            self.0 ^ other.0,
            self.1 ^ other.1,
            self.2 ^ other.2,
            self.3 ^ other.3,
        )
    }

    #[inline(always)]
    fn rotate(self, bits: u32) -> Self {
        Self(
            self.0.rotate_right(bits),
            self.1.rotate_right(bits),
            self.2.rotate_right(bits),
            self.3.rotate_right(bits),
        )
    }
}

/// Columns, then diagonals.
#[inline(always)]
fn round<const N: usize>(rows: &mut [StateRow; 4], words: &[u32; 16]) {
    mix(
        rows,
        StateRow::words::<N>(words, 0),
        StateRow::words::<N>(words, 1),
    );
    let [a, b, c, d] = *rows;
    *rows = [
        a,
        StateRow(b.1, b.2, b.3, b.0),
        StateRow(c.2, c.3, c.0, c.1),
        StateRow(d.3, d.0, d.1, d.2),
    ];
    mix(
        rows,
        StateRow::words::<N>(words, 8),
        StateRow::words::<N>(words, 9),
    );
    let [a, b, c, d] = *rows;
    *rows = [
        a,
        StateRow(b.3, b.0, b.1, b.2),
        StateRow(c.2, c.3, c.0, c.1),
        StateRow(d.1, d.2, d.3, d.0),
    ];
}

/// G of section 3.1.
#[inline(always)]
fn mix([a, b, c, d]: &mut [StateRow; 4], x: StateRow, y: StateRow) {
    *a = a.add(*b).add(x);
    *d = d.xor(*a).rotate(16);
    *c = c.add(*d);
    *b = b.xor(*c).rotate(12);
    *a = a.add(*b).add(y);
    *d = d.xor(*a).rotate(8);
    *c = c.add(*d);
    *b = b.xor(*c).rotate(7);
}

#[cfg(test)]
#[path = "blake2s_tests.rs"]
mod tests;
