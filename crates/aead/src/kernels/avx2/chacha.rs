//! ChaCha20 in 256-bit registers: eight lanes, one row of the state a register, twice. Two groups do not fit 16
//! registers, but waiting for results would cost more than the loads and stores. Beside it, Poly1305 of other packets
//! runs in the integer unit, which has nothing else to do.

use super::super::lanes::Lanes;
use super::super::scalar::CONSTANTS;
use super::feed::Feed;
use core::arch::x86_64::*;

type V = __m256i;

/// The most lanes of a group.
pub(super) const WIDTH: usize = 16;

#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn rotate16(x: V) -> V {
    let bytes = _mm_set_epi64x(0x0d0c_0f0e_0908_0b0a, 0x0504_0706_0100_0302);
    _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(bytes))
}

#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn rotate8(x: V) -> V {
    let bytes = _mm_set_epi64x(0x0e0d_0c0f_0a09_080b, 0x0605_0407_0201_0003);
    _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(bytes))
}

#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn rotate12(x: V) -> V {
    _mm256_or_si256(_mm256_slli_epi32::<12>(x), _mm256_srli_epi32::<20>(x))
}

#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn rotate7(x: V) -> V {
    _mm256_or_si256(_mm256_slli_epi32::<7>(x), _mm256_srli_epi32::<25>(x))
}

/// Quarter rounds over columns or diagonals.
macro_rules! quarter_rounds {
    ($x:ident; $(($a:literal $b:literal $c:literal $d:literal))+) => {
        quarter_rounds!(@step rotate16 $x $(($a $b $d))+);
        quarter_rounds!(@step rotate12 $x $(($c $d $b))+);
        quarter_rounds!(@step rotate8 $x $(($a $b $d))+);
        quarter_rounds!(@step rotate7 $x $(($c $d $b))+);
    };
    (@step $rotate:ident $x:ident $(($to:literal $from:literal $mix:literal))+) => {
        $($x[$to] = _mm256_add_epi32($x[$to], $x[$from]);)+
        $($x[$mix] = $rotate(_mm256_xor_si256($x[$mix], $x[$to]));)+
    };
}

/// XORs the keystream into sixteen lanes, beginning with `from`, and meanwhile feeds Poly1305.
///
/// # Safety
/// The lanes keep the promises of [`Lanes`], the feed those of [`Feed`], and the processor has the features.
#[target_feature(enable = "avx2,bmi2")]
pub(super) unsafe fn sixteen(
    lanes: &Lanes,
    from: usize,
    start: &mut [[V; 16]; 2],
    feed: &mut Feed,
) {
    // SAFETY: the caller's promises are passed on; `from` is 0 or 16.
    unsafe {
        initial(lanes, from, &mut start[0]);
        initial(lanes, from + 8, &mut start[1]);
        let [mut x, mut y] = *start;
        for _ in 0..2 {
            feed.turn();
            let mut hot = feed.hot();
            for _ in 0..5 {
                quarter_rounds!(x; (0 4 8 12) (1 5 9 13));
                hot.step();
                quarter_rounds!(y; (0 4 8 12) (1 5 9 13));
                hot.step();
                quarter_rounds!(x; (2 6 10 14) (3 7 11 15));
                quarter_rounds!(y; (2 6 10 14) (3 7 11 15));
                hot.step();
                quarter_rounds!(x; (0 5 10 15) (1 6 11 12));
                hot.step();
                quarter_rounds!(y; (0 5 10 15) (1 6 11 12));
                hot.step();
                quarter_rounds!(x; (2 7 8 13) (3 4 9 14));
                quarter_rounds!(y; (2 7 8 13) (3 4 9 14));
                hot.step();
            }
            feed.cold(&hot);
        }
        finish(lanes, from, &start[0], &x);
        finish(lanes, from + 8, &start[1], &y);
    }
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
        // SAFETY: passed on; the index is below 32.
        unsafe { xor(lanes, from + 2 * j, [first, second]) };
        let first = _mm256_permute2x128_si256::<0x31>(a, b);
        let second = _mm256_permute2x128_si256::<0x31>(c, d);
        // SAFETY: as above.
        unsafe { xor(lanes, from + 2 * j + 1, [first, second]) };
    }
}

/// The initial states of eight lanes, one row a register. Column 4i + j belongs to lane 2j + i: the order in which
/// the transposition of 4x4 squares leaves them.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn initial(lanes: &Lanes, from: usize, rows: &mut [V; 16]) {
    for i in 0..4 {
        rows[i] = _mm256_set1_epi32(CONSTANTS[i].cast_signed());
    }
    // SAFETY: `from` is at most 24 and the loads end within 8 elements from there; every key pointer of the lanes is
    // that of a live key.
    unsafe {
        if lanes.mixed() {
            for half in 0..2 {
                let part =
                    |i: usize| _mm_loadu_si128(lanes.keys[from + i].cast::<__m128i>().add(half));
                let two = |i: usize| _mm256_set_m128i(part(i + 1), part(i));
                let words = transpose_words([two(0), two(2), two(4), two(6)]);
                rows[4 + 4 * half..8 + 4 * half].copy_from_slice(&words);
            }
        } else {
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
fn transpose_words([a, b, c, d]: [V; 4]) -> [V; 4] {
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
    // SAFETY: `Lanes` promises that the bytes of `src` in the mask `load` can be read, and those of `dst` in the mask
    // `store` written. A lane that is not whole goes through memory of its own.
    unsafe {
        if lanes.whole(lane) {
            for (i, block) in block.into_iter().enumerate() {
                let text = _mm256_loadu_si256(src.cast::<V>().add(i));
                _mm256_storeu_si256(dst.cast::<V>().add(i), _mm256_xor_si256(text, block));
            }
        } else {
            let mut text = [_mm256_setzero_si256(); 2];
            let bytes = text.as_mut_ptr().cast::<u8>();
            bytes.copy_from_nonoverlapping(src, lanes.load[lane].count_ones() as usize);
            text = [
                _mm256_xor_si256(text[0], block[0]),
                _mm256_xor_si256(text[1], block[1]),
            ];
            let bytes = text.as_ptr().cast::<u8>();
            dst.copy_from_nonoverlapping(bytes, lanes.store[lane].count_ones() as usize);
        }
    }
}
