//! ChaCha20 and Poly1305 in plain Rust, one block at a time: the oracle of the other kernels, which
//! also use it for remainders that are too short for a vector.

use core::hint::black_box;
use core::num::Wrapping;

use zeroize::Zeroize;

use crate::Key;

/// "expand 32-byte k" (RFC 8439, section 2.3).
pub(super) const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The bytes of the text that one ChaCha20 block covers.
pub(super) const BLOCK: usize = 64;

#[inline(always)]
fn quarter_round(state: &mut [u32; 16], a: usize, b: usize, c: usize, d: usize) {
    state[a] = state[a].wrapping_add(state[b]);
    state[d] = (state[d] ^ state[a]).rotate_left(16);
    state[c] = state[c].wrapping_add(state[d]);
    state[b] = (state[b] ^ state[c]).rotate_left(12);
    state[a] = state[a].wrapping_add(state[b]);
    state[d] = (state[d] ^ state[a]).rotate_left(8);
    state[c] = state[c].wrapping_add(state[d]);
    state[b] = (state[b] ^ state[c]).rotate_left(7);
}

/// The state before the first round.
#[inline(always)]
pub(super) fn initial(key: &[u8; 32], row: [u32; 4]) -> [u32; 16] {
    let mut initial = [0; 16];
    initial[..4].copy_from_slice(&CONSTANTS);
    for (word, bytes) in initial[4..12].iter_mut().zip(key.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    initial[12..].copy_from_slice(&row);
    initial
}

#[inline(always)]
pub(super) fn double_round(state: &mut [u32; 16]) {
    quarter_round(state, 0, 4, 8, 12);
    quarter_round(state, 1, 5, 9, 13);
    quarter_round(state, 2, 6, 10, 14);
    quarter_round(state, 3, 7, 11, 15);
    quarter_round(state, 0, 5, 10, 15);
    quarter_round(state, 1, 6, 11, 12);
    quarter_round(state, 2, 7, 8, 13);
    quarter_round(state, 3, 4, 9, 14);
}

/// The block function of RFC 8439, section 2.3; `row` is the block counter and the nonce.
#[inline(always)]
pub(super) fn chacha20_block(key: &[u8; 32], row: [u32; 4]) -> [u8; BLOCK] {
    let initial = initial(key, row);
    let mut state = initial;
    for _ in 0..10 {
        double_round(&mut state);
    }
    let mut block = [0; BLOCK];
    for ((bytes, word), start) in block.as_chunks_mut().0.iter_mut().zip(state).zip(initial) {
        *bytes = word.wrapping_add(start).to_le_bytes();
    }
    block
}

/// HChaCha20 (draft-irtf-cfrg-xchacha-03, section 2.2): the rounds alone make a key of another one
/// and 16 bytes.
pub(crate) fn hchacha20(key: &[u8; 32], row: [u32; 4]) -> Key {
    let mut state = initial(key, row);
    for _ in 0..10 {
        double_round(&mut state);
    }
    let mut made = [0; 32];
    let (first, last) = (&state[..4], &state[12..]);
    for (bytes, word) in made
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(first.iter().chain(last))
    {
        *bytes = word.to_le_bytes();
    }
    let key = Key::new(&made);
    made.zeroize();
    state.zeroize();
    key
}

/// Zeroizes a block of keystream: the compiler cannot leave the stores out.
#[inline(always)]
pub(super) fn zeroize(block: &mut [u8; BLOCK]) {
    *block = [0; BLOCK];
    black_box(block);
}

/// XORs the keystream from block 1 on into `text`.
pub(super) fn chacha20_xor(key: &[u8; 32], nonce: [u32; 3], text: &mut [u8]) {
    for (counter, chunk) in (1..).zip(text.chunks_mut(BLOCK)) {
        let mut block = chacha20_block(key, [counter, nonce[0], nonce[1], nonce[2]]);
        for (byte, stream) in chunk.iter_mut().zip(block) {
            *byte ^= stream;
        }
        zeroize(&mut block);
    }
}

/// Poly1305 (RFC 8439, section 2.5) over what the AEAD authenticates, in three 64-bit limbs.
pub(super) struct Poly {
    pub(super) h: [u64; 3],
    pub(super) r: [u64; 2],
    s: u128,
}

impl Zeroize for Poly {
    fn zeroize(&mut self) {
        let Self { h, r, s } = self;
        h.zeroize();
        r.zeroize();
        s.zeroize();
    }
}

impl Drop for Poly {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl Poly {
    /// The first half of the key, clamped, is the multiplier; the second half is added at the end.
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let (r, s) = halves(key);
        Self {
            h: [0; 3],
            r: [low(r), low(r >> 64)],
            s,
        }
    }

    /// Adds one full block and multiplies by r.
    #[inline(always)]
    fn block(&mut self, low_half: u64, high_half: u64) {
        self.h = absorb(self.h, self.r, low_half, high_half);
    }

    /// Adds the blocks of `bytes`, the last one filled up with zeros.
    #[inline(always)]
    pub(super) fn padded(&mut self, bytes: &[u8]) {
        for block in bytes.as_chunks().0 {
            let block = u128::from_le_bytes(*block);
            self.block(low(block), low(block >> 64));
        }
        self.rest(bytes);
    }

    /// Adds the block that `bytes` end with if it is not a whole one, filled up with zeros.
    pub(super) fn rest(&mut self, bytes: &[u8]) {
        let rest = bytes.len() % 16;
        if rest > 0 {
            let block = if let Some(last) = bytes.last_chunk() {
                u128::from_le_bytes(*last) >> (8 * (16 - rest))
            } else {
                let mut block = [0; 16];
                block[..rest].copy_from_slice(bytes);
                u128::from_le_bytes(block)
            };
            self.block(low(block), low(block >> 64));
        }
    }

    /// The tag of a packet.
    #[inline(always)]
    pub(super) fn tag(&mut self, aad: &[u8], text: &[u8]) -> [u8; 16] {
        self.padded(aad);
        self.padded(text);
        self.finish(aad.len(), text.len())
    }

    /// Adds the block of the two lengths and returns the tag.
    #[inline(always)]
    pub(super) fn finish(&mut self, aad: usize, text: usize) -> [u8; 16] {
        self.block(aad as u64, text as u64);
        reduce(self.h, self.s)
    }
}

/// (h + block + 2^128) * r, partly reduced: below 5 * 2^128.
#[inline(always)]
pub(super) fn absorb(h: [u64; 3], r: [u64; 2], low_half: u64, high_half: u64) -> [u64; 3] {
    // None of these sums and products wraps. `Wrapping` keeps the checks of debug builds out, which
    // would be branches.
    let [r0, r1] = r.map(wide);
    let [h0, h1, h2] = h.map(wide);
    // r1 is a multiple of 4, so that r1 * 2^128 = r1 * 5/4 (mod 2^130 - 5) is a whole number. It is
    // below 2^61, which the compiler is to know.
    let s1 = wide(low((r1 + (r1 >> 2)).0));
    let t0 = h0 + wide(low_half);
    let t1 = h1 + wide(high_half) + (t0 >> 64);
    let h2 = h2 + Wrapping(1) + (t1 >> 64);
    let (h0, h1) = (wide(low(t0.0)), wide(low(t1.0)));

    let d0 = h0 * r0 + h1 * s1;
    let d1 = h0 * r1 + h1 * r0 + wide(low(h2.0).wrapping_mul(low(s1.0)));
    let d2 = wide(low(h2.0).wrapping_mul(low(r0.0)));

    let d1 = d1 + (d0 >> 64);
    let d2 = low((d2 + (d1 >> 64)).0);
    // Bits 130 and up come back five-fold.
    let top = (d2 >> 2).wrapping_mul(5);
    let t0 = wide(low(d0.0)) + wide(top);
    let t1 = wide(low(d1.0)) + (t0 >> 64);
    [low(t0.0), low(t1.0), low((wide(d2 & 3) + (t1 >> 64)).0)]
}

#[inline(always)]
fn wide(x: u64) -> Wrapping<u128> {
    Wrapping(u128::from(x))
}

/// The bits of r that may be set (RFC 8439, section 2.5).
pub(super) const CLAMP: u128 = 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;

/// The multiplier, clamped, and the final summand of a one-time key.
pub(super) fn halves(key: &[u8; 32]) -> (u128, u128) {
    let (halves, _) = key.as_chunks();
    let r = u128::from_le_bytes(halves[0]) & CLAMP;
    (r, u128::from_le_bytes(halves[1]))
}

/// h mod 2^130 - 5, plus s, mod 2^128; h is below 2 * (2^130 - 5).
#[inline(always)]
pub(super) fn reduce(h: [u64; 3], s: u128) -> [u8; 16] {
    let value = u128::from(h[0]) | u128::from(h[1]) << 64;
    // The carry of h + 5 out of bit 130 says whether h is 2^130 - 5 or more.
    let (_, carry) = value.overflowing_add(5);
    let over = h[2].wrapping_add(u64::from(carry)) >> 2;
    // Branch-free: what is taken off is 0 or 1 times 2^130 - 5, whose low 128 bits are those of -5.
    value
        .wrapping_add(u128::from(over).wrapping_mul(5))
        .wrapping_add(s)
        .to_le_bytes()
}

/// The low and the high 64 bits.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[inline(always)]
pub(super) fn words(value: u128) -> [u64; 2] {
    [low(value), low(value >> 64)]
}

/// The low 64 bits.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "this is the point of it")]
fn low(value: u128) -> u64 {
    value as u64
}
