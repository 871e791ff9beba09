//! ChaCha20 in 256-bit registers: eight lanes, one row of the state a vector, twice. Two groups do
//! not fit 16 registers, so rows stand in memory: waiting for results would cost more than the
//! loads and stores. Beside it, Poly1305 of other packets runs in the integer unit, which has
//! nothing else to do.

use super::super::lanes::Lanes;
use super::super::scalar::CONSTANTS;
use super::feed::Feed;
use core::arch::{asm, x86_64::*};
use core::{mem, ptr};

type V = __m256i;

/// The lanes that are worked on together.
pub(super) const WIDTH: usize = 16;

/// Memory to work in, zeroized at the end.
pub(super) struct Scratch {
    /// The key in `start`, if it is only one. Never read through: a key does not move or change
    /// while a batch is at work.
    key: *const [u8; 32],
    /// The states before and after the rounds.
    start: [[V; 16]; 2],
    end: [[V; 16]; 2],
    /// The texts of lanes that are not whole.
    odd: [[V; 2]; WIDTH],
}

impl Scratch {
    #[target_feature(enable = "avx2,bmi2")]
    pub(super) fn new() -> Self {
        let zero = _mm256_setzero_si256();
        Self {
            key: ptr::null(),
            start: [[zero; 16]; 2],
            end: [[zero; 16]; 2],
            odd: [[zero; 2]; WIDTH],
        }
    }
}

/// Two quarter rounds of the 16 rows at `x`. Eight rows are in registers at a time, and most loads
/// are part of another instruction. The compiler knows better and does worse: it spills rows to
/// keep others, and makes two or three shuffles of the one that rotates by whole bytes.
macro_rules! quarter_rounds {
    ($x:ident $by16:ident $by8:ident; ($a0:literal $b0:literal $c0:literal $d0:literal) ($a1:literal $b1:literal $c1:literal $d1:literal)) => {
        // SAFETY: this reads and writes the 16 rows at `x`, those of a group in `Scratch::end`
        // (vectors, so aligned, and borrowed by `sixteen`), and registers that the compiler knows
        // of.
        asm!(
            "vmovdqa {b0}, [{x} + 32 * {B0}]",
            "vmovdqa {b1}, [{x} + 32 * {B1}]",
            "vpaddd {a0}, {b0}, [{x} + 32 * {A0}]",
            "vpaddd {a1}, {b1}, [{x} + 32 * {A1}]",
            "vpxor {d0}, {a0}, [{x} + 32 * {D0}]",
            "vpxor {d1}, {a1}, [{x} + 32 * {D1}]",
            "vpshufb {d0}, {d0}, {by16}",
            "vpshufb {d1}, {d1}, {by16}",
            "vpaddd {c0}, {d0}, [{x} + 32 * {C0}]",
            "vpaddd {c1}, {d1}, [{x} + 32 * {C1}]",
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
            "vmovdqa [{x} + 32 * {A0}], {a0}",
            "vmovdqa [{x} + 32 * {A1}], {a1}",
            "vpxor {d0}, {d0}, {a0}",
            "vpxor {d1}, {d1}, {a1}",
            "vpshufb {d0}, {d0}, {by8}",
            "vpshufb {d1}, {d1}, {by8}",
            "vmovdqa [{x} + 32 * {D0}], {d0}",
            "vmovdqa [{x} + 32 * {D1}], {d1}",
            "vpaddd {c0}, {c0}, {d0}",
            "vpaddd {c1}, {c1}, {d1}",
            "vmovdqa [{x} + 32 * {C0}], {c0}",
            "vmovdqa [{x} + 32 * {C1}], {c1}",
            "vpxor {b0}, {b0}, {c0}",
            "vpxor {b1}, {b1}, {c1}",
            "vpslld {t0}, {b0}, 7",
            "vpslld {t1}, {b1}, 7",
            "vpsrld {b0}, {b0}, 25",
            "vpsrld {b1}, {b1}, 25",
            "vpor {b0}, {b0}, {t0}",
            "vpor {b1}, {b1}, {t1}",
            "vmovdqa [{x} + 32 * {B0}], {b0}",
            "vmovdqa [{x} + 32 * {B1}], {b1}",
            x = in(reg) $x, by16 = in(ymm_reg) $by16, by8 = in(ymm_reg) $by8,
            A0 = const $a0, B0 = const $b0, C0 = const $c0, D0 = const $d0,
            A1 = const $a1, B1 = const $b1, C1 = const $c1, D1 = const $d1,
            a0 = out(ymm_reg) _, b0 = out(ymm_reg) _, c0 = out(ymm_reg) _, d0 = out(ymm_reg) _, t0 = out(ymm_reg) _,
            a1 = out(ymm_reg) _, b1 = out(ymm_reg) _, c1 = out(ymm_reg) _, d1 = out(ymm_reg) _, t1 = out(ymm_reg) _,
            options(nostack, preserves_flags),
        );
    };
}

/// XORs the keystream into sixteen lanes and clears them, and meanwhile feeds Poly1305.
///
/// # Safety
/// The lanes keep the promises of [`Lanes`], the feed those of [`Feed`], and the processor has the
/// features.
#[target_feature(enable = "avx2,bmi2")]
pub(super) unsafe fn sixteen(lanes: &mut Lanes, scratch: &mut Scratch, feed: &mut Feed) {
    let Scratch {
        key,
        start,
        end,
        odd,
    } = scratch;
    let mut odd_dst = [ptr::null_mut(); WIDTH];
    let bytes = |high, low| _mm256_broadcastsi128_si256(_mm_set_epi64x(high, low));
    let by16 = bytes(0x0d0c_0f0e_0908_0b0a, 0x0504_0706_0100_0302);
    let by8 = bytes(0x0e0d_0c0f_0a09_080b, 0x0605_0407_0201_0003);
    lanes.idle(WIDTH);
    // SAFETY: the caller's promises are passed on; all lanes are below 16. The memory that a lane
    // which is not whole gets instead of its own has 64 bytes.
    unsafe {
        // 1. Lanes that are not whole go through memory that is, long before it is read and after
        //    it was written.
        for lane in ones(lanes.partial()) {
            odd[lane] = [_mm256_setzero_si256(); 2];
            let text = odd[lane].as_mut_ptr().cast();
            let src = mem::replace(&mut lanes.src[lane], text);
            odd_dst[lane] = mem::replace(&mut lanes.dst[lane], text);
            copy(src, text, lanes.load[lane]);
        }
        // 2. The rounds. Six blocks of Poly1305 take as long as a double round: more would be
        //    waited for.
        let kept = !lanes.mixed() && lanes.keys[0] == *key;
        *key = if lanes.mixed() {
            ptr::null()
        } else {
            lanes.keys[0]
        };
        initial(lanes, 0, kept, &mut start[0]);
        initial(lanes, 8, kept, &mut start[1]);
        *end = *start;
        let [x, y] = end.each_mut().map(|rows| rows.as_mut_ptr());
        let mut hot = feed.hot();
        for _ in 0..10 {
            if hot.left == 0 {
                feed.cold(&hot);
                feed.turn();
                hot = feed.hot();
            }
            quarter_rounds!(x by16 by8; (0 4 8 12) (1 5 9 13));
            hot.step();
            quarter_rounds!(x by16 by8; (2 6 10 14) (3 7 11 15));
            hot.step();
            quarter_rounds!(y by16 by8; (0 4 8 12) (1 5 9 13));
            hot.step();
            quarter_rounds!(y by16 by8; (2 6 10 14) (3 7 11 15));
            quarter_rounds!(x by16 by8; (0 5 10 15) (1 6 11 12));
            hot.step();
            quarter_rounds!(x by16 by8; (2 7 8 13) (3 4 9 14));
            hot.step();
            quarter_rounds!(y by16 by8; (0 5 10 15) (1 6 11 12));
            hot.step();
            quarter_rounds!(y by16 by8; (2 7 8 13) (3 4 9 14));
        }
        feed.cold(&hot);
        // 3. The texts.
        finish(lanes, 0, &start[0], &end[0]);
        finish(lanes, 8, &start[1], &end[1]);
        for lane in ones(lanes.partial()) {
            copy(odd[lane].as_ptr().cast(), odd_dst[lane], lanes.store[lane]);
        }
    }
    lanes.clear();
}

/// Adds the initial state, turns rows into blocks and XORs them into eight lanes.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn finish(lanes: &Lanes, from: usize, start: &[V; 16], end: &[V; 16]) {
    let x = |i: usize| _mm256_add_epi32(start[i], end[i]);
    let square = |i: usize| transpose_words([x(i), x(i + 1), x(i + 2), x(i + 3)]);
    let (q0, q1, q2, q3) = (square(0), square(4), square(8), square(12));
    for j in 0..4 {
        let (a, b, c, d) = (q0[j], q1[j], q2[j], q3[j]);
        let first = _mm256_permute2x128_si256::<0x20>(a, b);
        let second = _mm256_permute2x128_si256::<0x20>(c, d);
        // SAFETY: the caller promises what `xor` asks for; `from` is 0 or 8, so the lane is below
        // 16.
        unsafe { xor(lanes, from + 2 * j, [first, second]) };
        let first = _mm256_permute2x128_si256::<0x31>(a, b);
        let second = _mm256_permute2x128_si256::<0x31>(c, d);
        // SAFETY: the caller promises what `xor` asks for; `from` is 0 or 8, so the lane is below
        // 16.
        unsafe { xor(lanes, from + 2 * j + 1, [first, second]) };
    }
}

/// The initial states of eight lanes, one row a register. Column 4i + j belongs to lane 2j + i: the
/// order in which the transposition of 4x4 squares leaves them. The first twelve rows may be kept
/// from the lanes before.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn initial(lanes: &Lanes, from: usize, kept: bool, rows: &mut [V; 16]) {
    if !kept {
        for i in 0..4 {
            rows[i] = _mm256_set1_epi32(CONSTANTS[i].cast_signed());
        }
    }
    // SAFETY: `from` is at most 8 and the loads end within 8 elements from there; every key pointer
    // of the lanes is that of a live key.
    unsafe {
        if lanes.mixed() {
            for half in 0..2 {
                let part =
                    |i: usize| _mm_loadu_si128(lanes.keys[from + i].cast::<__m128i>().add(half));
                let two = |i: usize| _mm256_set_m128i(part(i + 1), part(i));
                let words = transpose_words([two(0), two(2), two(4), two(6)]);
                rows[4 + 4 * half..8 + 4 * half].copy_from_slice(&words);
            }
        } else if !kept {
            let key = lanes.keys[0].cast::<i32>();
            for i in 0..8 {
                rows[4 + i] = _mm256_set1_epi32(key.add(i).read_unaligned());
            }
        }
        let two = |i: usize| _mm256_loadu_si256(lanes.rows.as_ptr().add(from + i).cast());
        rows[12..].copy_from_slice(&transpose_words([two(0), two(2), two(4), two(6)]));
    }
}

/// Transposes 4x4 squares of words: in each half, result `i` has word `i` of the four inputs.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
pub(super) fn transpose_words([a, b, c, d]: [V; 4]) -> [V; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ef, gh) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ef, gh),
        _mm256_unpackhi_epi64(ef, gh),
    ]
}

/// XORs a block of keystream into a lane.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn xor(lanes: &Lanes, lane: usize, block: [V; 2]) {
    let (src, dst) = (lanes.src[lane], lanes.dst[lane]);
    for (i, block) in block.into_iter().enumerate() {
        // SAFETY: `Lanes` promises 64 bytes to read and to write if the lane is whole, or else it
        // has memory of its own.
        unsafe {
            let text = _mm256_loadu_si256(src.cast::<V>().add(i));
            _mm256_storeu_si256(dst.cast::<V>().add(i), _mm256_xor_si256(text, block));
        }
    }
}

/// The numbers of the bits that are set, of the first [`WIDTH`].
#[inline]
fn ones(mut bits: u32) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let i = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (i < WIDTH).then_some(i)
    })
}

/// Copies the first bytes of a block, those of the mask `bytes`, without the call that the library
/// would make of it.
///
/// # Safety
/// The bytes can be read and written, and do not overlap.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn copy(src: *const u8, dst: *mut u8, bytes: u64) {
    let len = bytes.count_ones() as usize;
    let mut at = 0;
    macro_rules! part {
        ($t:ty) => {
            if len - at >= size_of::<$t>() {
                // SAFETY: the caller promises `len` bytes at both ends, which do not overlap; the
                // condition leaves as many as this type has behind `at`.
                unsafe {
                    let part = src.add(at).cast::<$t>().read_unaligned();
                    dst.add(at).cast::<$t>().write_unaligned(part);
                }
                at += size_of::<$t>();
            }
        };
    }
    part!([V; 2]);
    part!(V);
    part!(u128);
    part!(u64);
    part!(u32);
    part!(u16);
    part!(u8);
    debug_assert_eq!(at, len);
}
