//! One packet by itself: eight blocks at a time, a row of their states a register ("vertical").
//! Twelve rows and two of the third quarter stay in registers, the other two of that in memory, and
//! Poly1305 of the packet runs in the integer unit between the rounds.
//!
//! Sealing: keystream → XOR → beside the next keystream, Poly1305 of what was written. Opening:
//! the keystream of all of it, from the second run on with Poly1305 of the text beside →
//! compare → XOR.

use super::super::job::Job;
use super::super::keystream::{COUNTERS, KeystreamBlocks};
use super::super::scalar::{CONSTANTS, Poly, absorb, words};
use super::chacha::transpose_words;
use crate::TAG_LEN;
use crate::kernels::batch::differs;
use core::arch::{asm, x86_64::*};
use core::hint::black_box;
use core::mem::MaybeUninit;

type V = __m256i;

/// Bytes of keystream that a run makes.
const RUN: usize = 8 * 64;
/// Runs for the longest packet.
const RUNS: usize = 4;
/// The longest text: the first block of the keystream is for the Poly1305 key.
pub(super) const LONGEST: usize = RUNS * RUN - 64;

/// Keystream, a row of which is the block of a lane.
#[repr(C, align(64))]
struct Keystream([u8; RUN]);

impl Keystream {
    /// With the key that the first block of a packet is.
    fn poly(&self) -> Poly {
        Poly::new(self.0.first_chunk().expect("a run is longer"))
    }
}

/// The compiler cannot leave the stores out.
fn zeroize(keystream: &mut MaybeUninit<Keystream>) {
    // SAFETY: the memory is exclusive.
    unsafe { keystream.as_mut_ptr().write_bytes(0, 1) };
    black_box(keystream);
}

/// What the rounds read and write besides registers.
#[repr(C, align(64))]
struct PacketMemory {
    /// The bytes of words rotated left by 16 and by 8.
    rotations: [V; 2],
    /// The two rows that are not in registers, and the two that are, in turns.
    rows: [V; 4],
    /// The states before the rounds.
    start: [V; 16],
}

/// Two quarter rounds. Written out, because the compiler makes two or three shuffles of the one
/// that rotates by whole bytes.
macro_rules! quarter_rounds {
    ($memory:ident; $a0:ident $b0:ident $c0:ident $d0:ident; $a1:ident $b1:ident $c1:ident $d1:ident) => {
        // SAFETY: this reads the rotations of `PacketMemory`, and writes registers that the compiler
        // knows of.
        asm!(
            "vpaddd {a0}, {a0}, {b0}",
            "vpaddd {a1}, {a1}, {b1}",
            "vpxor {d0}, {d0}, {a0}",
            "vpxor {d1}, {d1}, {a1}",
            "vpshufb {d0}, {d0}, [{m}]",
            "vpshufb {d1}, {d1}, [{m}]",
            "vpaddd {c0}, {c0}, {d0}",
            "vpaddd {c1}, {c1}, {d1}",
            "vpxor {b0}, {b0}, {c0}",
            "vpxor {b1}, {b1}, {c1}",
            "vpslld {t0}, {b0}, 12",
            "vpslld {t1}, {b1}, 12",
            "vpsrld {b0}, {b0}, 20",
            "vpsrld {b1}, {b1}, 20",
            "vpor {b0}, {b0}, {t0}",
            "vpor {b1}, {b1}, {t1}",
            "vpaddd {a0}, {a0}, {b0}",
            "vpaddd {a1}, {a1}, {b1}",
            "vpxor {d0}, {d0}, {a0}",
            "vpxor {d1}, {d1}, {a1}",
            "vpshufb {d0}, {d0}, [{m} + 32]",
            "vpshufb {d1}, {d1}, [{m} + 32]",
            "vpaddd {c0}, {c0}, {d0}",
            "vpaddd {c1}, {c1}, {d1}",
            "vpxor {b0}, {b0}, {c0}",
            "vpxor {b1}, {b1}, {c1}",
            "vpslld {t0}, {b0}, 7",
            "vpslld {t1}, {b1}, 7",
            "vpsrld {b0}, {b0}, 25",
            "vpsrld {b1}, {b1}, 25",
            "vpor {b0}, {b0}, {t0}",
            "vpor {b1}, {b1}, {t1}",
            m = in(reg) $memory,
            a0 = inout(ymm_reg) $a0, b0 = inout(ymm_reg) $b0, c0 = inout(ymm_reg) $c0, d0 = inout(ymm_reg) $d0,
            a1 = inout(ymm_reg) $a1, b1 = inout(ymm_reg) $b1, c1 = inout(ymm_reg) $c1, d1 = inout(ymm_reg) $d1,
            t0 = out(ymm_reg) _, t1 = out(ymm_reg) _,
            options(nostack, preserves_flags, readonly),
        );
    };
}

/// Puts the two rows at hand into memory at `$to`, and takes those at `$from`.
macro_rules! exchange {
    ($memory:ident; $c0:ident $c1:ident; $to:literal $from:literal) => {
        // SAFETY: this reads and writes the rows of `PacketMemory`.
        asm!(
            "vmovdqa [{m} + 64 + 32 * {TO}], {c0}",
            "vmovdqa [{m} + 96 + 32 * {TO}], {c1}",
            "vmovdqa {c0}, [{m} + 64 + 32 * {FROM}]",
            "vmovdqa {c1}, [{m} + 96 + 32 * {FROM}]",
            m = in(reg) $memory, c0 = inout(ymm_reg) $c0, c1 = inout(ymm_reg) $c1,
            TO = const $to, FROM = const $from,
            options(nostack, preserves_flags),
        );
    };
}

impl PacketMemory {
    /// Of the first eight blocks of a packet.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn new(key: &[u8; 32], nonce: [u32; 3]) -> Self {
        let zero = _mm256_setzero_si256();
        let bytes = |high, low| _mm256_broadcastsi128_si256(_mm_set_epi64x(high, low));
        let mut start = [zero; 16];
        for (row, word) in start.iter_mut().zip(CONSTANTS) {
            *row = _mm256_set1_epi32(word.cast_signed());
        }
        for (row, word) in start[4..12].iter_mut().zip(key.as_chunks().0) {
            *row = _mm256_set1_epi32(i32::from_le_bytes(*word));
        }
        start[12] = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        for (row, word) in start[13..].iter_mut().zip(nonce) {
            *row = _mm256_set1_epi32(word.cast_signed());
        }
        Self {
            rotations: [
                bytes(0x0d0c_0f0e_0908_0b0a, 0x0504_0706_0100_0302),
                bytes(0x0e0d_0c0f_0a09_080b, 0x0605_0407_0201_0003),
            ],
            rows: [zero; 4],
            start,
        }
    }

    /// Goes on to the next eight blocks.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn advance(&mut self) {
        self.start[12] = _mm256_add_epi32(self.start[12], _mm256_set1_epi32(8));
    }

    /// Makes the keystream, and meanwhile authenticates blocks of text; returns how many.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn run<'a>(
        &mut self,
        keystream: &'a mut MaybeUninit<Keystream>,
        poly: &mut Poly,
        text: &[[u8; 16]],
    ) -> (&'a Keystream, usize) {
        let [
            mut x0,
            mut x1,
            mut x2,
            mut x3,
            mut x4,
            mut x5,
            mut x6,
            mut x7,
            ..,
        ] = self.start;
        let [.., mut x12, mut x13, mut x14, mut x15] = self.start;
        let [mut c0, mut c1] = [self.start[8], self.start[9]];
        self.rows[2..].copy_from_slice(&self.start[10..12]);
        let mut blocks = text.iter();
        let (mut h, r) = (poly.h, poly.r);
        macro_rules! step {
            () => {
                if let Some(block) = blocks.next() {
                    let [low, high] = words(u128::from_le_bytes(*block));
                    h = absorb(h, r, low, high);
                }
            };
        }
        let memory: *mut Self = self;
        for _ in 0..10 {
            // SAFETY: `memory` is exclusive.
            unsafe {
                quarter_rounds!(memory; x0 x4 c0 x12; x1 x5 c1 x13);
                step!();
                exchange!(memory; c0 c1; 0 2);
                quarter_rounds!(memory; x2 x6 c0 x14; x3 x7 c1 x15);
                step!();
                quarter_rounds!(memory; x0 x5 c0 x15; x1 x6 c1 x12);
                step!();
                exchange!(memory; c0 c1; 2 0);
                quarter_rounds!(memory; x2 x7 c0 x13; x3 x4 c1 x14);
                step!();
            }
        }
        let done = text.len() - blocks.len();
        poly.h = h;
        let [c2, c3] = [self.rows[2], self.rows[3]];
        let end = [
            x0, x1, x2, x3, x4, x5, x6, x7, c0, c1, c2, c3, x12, x13, x14, x15,
        ];
        (self.finish(&end, keystream), done)
    }

    /// Adds the states before the rounds, and turns rows into blocks.
    #[inline]
    #[target_feature(enable = "avx2,bmi2")]
    fn finish<'a>(
        &self,
        end: &[V; 16],
        keystream: &'a mut MaybeUninit<Keystream>,
    ) -> &'a Keystream {
        let x = |i: usize| _mm256_add_epi32(self.start[i], end[i]);
        let square = |i: usize| transpose_words([x(i), x(i + 1), x(i + 2), x(i + 3)]);
        let to = keystream.as_mut_ptr().cast::<V>();
        // Half of the words of all blocks at a time, so that they fit the registers.
        for half in 0..2 {
            let (q0, q1) = (square(8 * half), square(8 * half + 4));
            for j in 0..4 {
                let low = _mm256_permute2x128_si256::<0x20>(q0[j], q1[j]);
                let high = _mm256_permute2x128_si256::<0x31>(q0[j], q1[j]);
                // SAFETY: the keystream has 16 of these, and is aligned to 64 bytes.
                unsafe {
                    to.add(2 * j + half).write(low);
                    to.add(2 * (j + 4) + half).write(high);
                }
            }
        }
        // SAFETY: all of it was written.
        unsafe { keystream.assume_init_ref() }
    }
}

impl Drop for PacketMemory {
    /// Zeroizes what is secret: the key, and rows of states.
    fn drop(&mut self) {
        // SAFETY: this module is entered only if AVX2 is available.
        let zero = unsafe { _mm256_setzero_si256() };
        self.rows = [zero; 4];
        self.start[4..12].fill(zero);
        black_box(self);
    }
}

/// XORs keystream into text, which is no longer.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn xor(text: &mut [u8], keystream: &[u8]) {
    let (chunks, rest) = text.as_chunks_mut::<32>();
    let (stream, _) = keystream.as_chunks::<32>();
    for (chunk, stream) in chunks.iter_mut().zip(stream) {
        for (byte, stream) in chunk.iter_mut().zip(stream) {
            *byte ^= stream;
        }
    }
    let at = 32 * chunks.len();
    for (byte, stream) in rest.iter_mut().zip(&keystream[at..]) {
        *byte ^= stream;
    }
}

/// Makes the first two blocks of each counter from `first` on.
#[target_feature(enable = "avx2,bmi2")]
pub(super) fn blocks_ahead(key: &[u8; 32], first: u64, to: &mut [KeystreamBlocks; COUNTERS]) {
    let counters: [u64; COUNTERS] = core::array::from_fn(|n| first.wrapping_add(n as u64));
    let word = |n: usize| {
        let [a, b, c, d] = counters.map(|counter| {
            let words = counter.to_le_bytes();
            i32::from_le_bytes(words.as_chunks().0[n])
        });
        _mm256_setr_epi32(a, a, b, b, c, c, d, d)
    };
    let mut memory = PacketMemory::new(key, [0; 3]);
    memory.start[12] = _mm256_setr_epi32(0, 1, 0, 1, 0, 1, 0, 1);
    [memory.start[14], memory.start[15]] = [word(0), word(1)];
    let mut place = MaybeUninit::uninit();
    let keystream = memory.run(&mut place, &mut Poly::new(&[0; 32]), &[]).0;
    to.as_flattened_mut().copy_from_slice(&keystream.0);
    zeroize(&mut place);
    drop(memory);
    _mm256_zeroall();
}

/// Seals a packet of up to [`LONGEST`] bytes.
#[target_feature(enable = "avx2,bmi2")]
pub(super) fn seal(job: &mut Job<'_>) {
    let len = job.gather();
    let mut memory = PacketMemory::new(job.key.bytes(), job.nonce_words());
    let (text, tag) = job.out.split_at_mut(len);
    let mut place = MaybeUninit::uninit();
    let keystream = memory.run(&mut place, &mut Poly::new(&[0; 32]), &[]).0;
    let mut poly = keystream.poly();
    poly.padded(job.aad);
    let mut end = len.min(RUN - 64);
    xor(&mut text[..end], &keystream.0[64..]);
    let mut done = 0;
    while end < len {
        memory.advance();
        let (sealed, rest) = text.split_at_mut(end);
        let blocks = sealed[done..].as_chunks().0;
        let keystream = memory.run(&mut place, &mut poly, blocks).0;
        done = end;
        end = len.min(end + RUN);
        xor(&mut rest[..end - done], &keystream.0);
    }
    poly.padded(&text[done..]);
    tag.copy_from_slice(&poly.finish(job.aad.len(), len));
    zeroize(&mut place);
    drop(memory);
    _mm256_zeroall();
}

/// Opens a packet of up to [`LONGEST`] bytes; returns whether it is authentic.
#[target_feature(enable = "avx2,bmi2")]
pub(super) fn open(job: &mut Job<'_>) -> bool {
    let Some((text, expected)) = job.sealed().split_last_chunk::<TAG_LEN>() else {
        return false;
    };
    let len = text.len();
    let runs = (64 + len).div_ceil(RUN);
    let mut memory = PacketMemory::new(job.key.bytes(), job.nonce_words());
    let mut places = [const { MaybeUninit::uninit() }; RUNS];
    let mut keystreams: [&Keystream; RUNS] = [&Keystream([0; RUN]); RUNS];
    let [first, rest @ ..] = &mut places[..runs] else {
        return false;
    };
    keystreams[0] = memory.run(first, &mut Poly::new(&[0; 32]), &[]).0;
    let mut poly = keystreams[0].poly();
    poly.padded(job.aad);
    let mut left = text;
    for (place, keystream) in rest.iter_mut().zip(&mut keystreams[1..]) {
        memory.advance();
        let done;
        (*keystream, done) = memory.run(place, &mut poly, left.as_chunks().0);
        left = &left[16 * done..];
    }
    poly.padded(left);
    let authentic = !differs(&poly.finish(job.aad.len(), len), expected);
    if authentic {
        if job.in_place == 0 {
            job.out[..len].copy_from_slice(&job.src[..len]);
        }
        let (first, mut out) = job.out[..len].split_at_mut(len.min(RUN - 64));
        xor(first, &keystreams[0].0[64..]);
        for keystream in &keystreams[1..] {
            let (chunk, later) = out.split_at_mut(out.len().min(RUN));
            xor(chunk, &keystream.0);
            out = later;
        }
    }
    places[..runs].iter_mut().for_each(zeroize);
    drop(memory);
    _mm256_zeroall();
    authentic
}
