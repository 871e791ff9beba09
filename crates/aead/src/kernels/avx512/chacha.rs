//! ChaCha20 in 512-bit registers, over lanes that may be any block of any packet.
//!
//! Two shapes. [`many`] keeps one row of the state of 16 lanes in a register ("vertical"), twice:
//! 32 blocks in all 32 registers, because a single group of 16 leaves half the issue slots waiting
//! for results. [`few`] keeps one row of 4 lanes in a register ("horizontal"): more instructions a
//! block, but 4 to 24 blocks take hardly longer than one.

use super::super::lanes::Lanes;
use super::super::scalar::{self, CONSTANTS};
use core::arch::x86_64::*;
use core::hint::black_box;
use core::mem::MaybeUninit;

type V = __m512i;

/// Half a double round on both groups: quarter rounds over columns or diagonals, one operation
/// across all four of a group at a time, the groups in turns (the order that measured best).
macro_rules! quarter_rounds {
    ($($x:ident)+; $(($a:literal $b:literal $c:literal $d:literal))+) => {
        quarter_rounds!(@both 16 [$($x)+] [$(($a $b $d))+]);
        quarter_rounds!(@both 12 [$($x)+] [$(($c $d $b))+]);
        quarter_rounds!(@both 8 [$($x)+] [$(($a $b $d))+]);
        quarter_rounds!(@both 7 [$($x)+] [$(($c $d $b))+]);
    };
    (@both $n:literal [$($x:ident)+] $quarters:tt) => {
        $(quarter_rounds!(@one $n $x $quarters);)+
    };
    (@one $n:literal $x:ident [$(($to:literal $from:literal $mix:literal))+]) => {
        $($x[$to] = _mm512_add_epi32($x[$to], $x[$from]);)+
        $($x[$mix] = _mm512_xor_si512($x[$mix], $x[$to]);)+
        $($x[$mix] = _mm512_rol_epi32::<$n>($x[$mix]);)+
    };
}

pub(super) use quarter_rounds;

/// Adds the initial state, turns rows into blocks and XORs them into 16 lanes.
macro_rules! finish {
    ($lanes:ident, $from:literal, $start:expr, $end:expr) => {
        let x = |i: usize| _mm512_add_epi32($start.add(i).read(), $end(i));
        let q0 = transpose_words([x(0), x(1), x(2), x(3)]);
        let q1 = transpose_words([x(4), x(5), x(6), x(7)]);
        let q2 = transpose_words([x(8), x(9), x(10), x(11)]);
        let q3 = transpose_words([x(12), x(13), x(14), x(15)]);
        for j in 0..4 {
            let blocks = transpose_parts([q0[j], q1[j], q2[j], q3[j]]);
            for (i, block) in blocks.into_iter().enumerate() {
                xor($lanes, $from + 4 * j + i, block);
            }
        }
    };
}

/// A double round on `Q` groups of four blocks, one row of the state in each 128-bit part.
/// Diagonals are put in columns by moving the rows a, c and d: nothing waits for them, while b is
/// what every next step waits for.
macro_rules! double_round {
    ($groups:ident; $a:ident $b:ident $c:ident $d:ident) => {
        double_round!(@round $groups $a $b $c $d);
        double_round!(@shuffle $groups; 0x93 $a, 0x39 $c, 0x4e $d);
        double_round!(@round $groups $a $b $c $d);
        double_round!(@shuffle $groups; 0x39 $a, 0x93 $c, 0x4e $d);
    };
    (@round $groups:ident $a:ident $b:ident $c:ident $d:ident) => {
        double_round!(@step 16 $groups $a $b $d);
        double_round!(@step 12 $groups $c $d $b);
        double_round!(@step 8 $groups $a $b $d);
        double_round!(@step 7 $groups $c $d $b);
    };
    (@step $n:literal $groups:ident $to:ident $from:ident $mix:ident) => {
        for q in 0..$groups {
            $to[q] = _mm512_add_epi32($to[q], $from[q]);
        }
        for q in 0..$groups {
            $mix[q] = _mm512_xor_si512($mix[q], $to[q]);
        }
        for q in 0..$groups {
            $mix[q] = _mm512_rol_epi32::<$n>($mix[q]);
        }
    };
    (@shuffle $groups:ident; $($places:literal $x:ident),+) => {
        $(for q in 0..$groups {
            $x[q] = _mm512_shuffle_epi32::<$places>($x[q]);
        })+
    };
}

/// The states of 32 lanes while no register has them; the owner zeroizes them.
#[repr(C, align(64))]
pub(super) struct States {
    start: [V; 32],
    end: [V; 32],
}

/// XORs the keystream into 32 lanes.
///
/// # Safety
/// The lanes keep the promises of [`Lanes`], and the processor has the features. If `ready`, the
/// last call with the same `states` had the same single key.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
pub(super) unsafe fn many(lanes: &Lanes, states: &mut MaybeUninit<States>, ready: bool) {
    let states = states.as_mut_ptr();
    // SAFETY: the caller's promises are passed on. `states` is exclusive; of its elements, `start`
    // is written by `initial` before it is read, and `end` by the loops before `finish` reads it.
    unsafe {
        let start = (&raw mut (*states).start).cast::<V>();
        let end = (&raw mut (*states).end).cast::<V>();
        initial(lanes, ready, 0, start);
        initial(lanes, ready, 16, start.add(16));
        let mut x: [V; 16] = core::array::from_fn(|i| start.add(i).read());
        let mut y: [V; 16] = core::array::from_fn(|i| start.add(16 + i).read());
        for _ in 0..10 {
            quarter_rounds!(x y; (0 4 8 12) (1 5 9 13) (2 6 10 14) (3 7 11 15));
            quarter_rounds!(x y; (0 5 10 15) (1 6 11 12) (2 7 8 13) (3 4 9 14));
        }
        // Compilers know that the initial states are unchanged and would rather copy half of them
        // to the stack, before the rounds, than read them again here.
        let start = black_box(start);
        for (i, row) in y.into_iter().enumerate() {
            end.add(16 + i).write(row);
        }
        finish!(lanes, 0, start, |i: usize| x[i]);
        finish!(lanes, 16, start.add(16), |i: usize| end.add(16 + i).read());
    }
}

/// The initial states of 16 lanes, one row a register. Column 4i + j belongs to lane 4j + i: the
/// order in which the transposition of four 4x4 squares leaves them, and in which `finish` finds
/// them again. If `ready`, only the last four rows are new.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
unsafe fn initial(lanes: &Lanes, ready: bool, from: usize, rows: *mut V) {
    // SAFETY: `from` is 0 or 16 and the loads end within 16 elements from there; every key pointer
    // of the lanes is that of a live key; `rows` points to 16 rows, which are all written if not
    // written before.
    unsafe {
        if !ready {
            for (i, constant) in CONSTANTS.into_iter().enumerate() {
                rows.add(i).write(_mm512_set1_epi32(constant.cast_signed()));
            }
        }
        if lanes.mixed() {
            for half in 0..2 {
                let square = |i: usize| four_keys(lanes, from + 4 * i, half);
                let words = transpose_words([square(0), square(1), square(2), square(3)]);
                rows.add(4 + 4 * half).cast::<[V; 4]>().write(words);
            }
        } else if !ready {
            let key = lanes.keys[0].cast::<i32>();
            for i in 0..8 {
                let word = key.add(i).read_unaligned();
                rows.add(4 + i).write(_mm512_set1_epi32(word));
            }
        }
        let square = |i: usize| _mm512_loadu_si512(lanes.rows.as_ptr().add(from + 4 * i).cast());
        let words = transpose_words([square(0), square(1), square(2), square(3)]);
        rows.add(12).cast::<[V; 4]>().write(words);
    }
}

/// The first or second 16 bytes of the keys of four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
unsafe fn four_keys(lanes: &Lanes, from: usize, half: usize) -> V {
    // SAFETY: every key pointer of the lanes is that of a live key of 32 bytes.
    unsafe {
        let part = |i: usize| _mm_loadu_si128(lanes.keys[from + i].cast::<__m128i>().add(half));
        let v = _mm512_castsi128_si512(part(0));
        let v = _mm512_inserti32x4::<1>(v, part(1));
        let v = _mm512_inserti32x4::<2>(v, part(2));
        _mm512_inserti32x4::<3>(v, part(3))
    }
}

/// Transposes 4x4 squares of words: in every 128-bit part, result `i` has word `i` of the four
/// inputs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
pub(super) fn transpose_words([a, b, c, d]: [V; 4]) -> [V; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ef, gh) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ef, gh),
        _mm512_unpackhi_epi64(ef, gh),
    ]
}

/// Transposes 4x4 squares of 128-bit parts: result `i` has part `i` of the four inputs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
pub(super) fn transpose_parts([a, b, c, d]: [V; 4]) -> [V; 4] {
    let ab_low = _mm512_shuffle_i32x4::<0x44>(a, b);
    let cd_low = _mm512_shuffle_i32x4::<0x44>(c, d);
    let ab_high = _mm512_shuffle_i32x4::<0xee>(a, b);
    let cd_high = _mm512_shuffle_i32x4::<0xee>(c, d);
    [
        _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
        _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
    ]
}

/// XORs a block of keystream into a lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
unsafe fn xor(lanes: &Lanes, lane: usize, block: V) {
    // SAFETY: `Lanes` promises that the bytes of `src` in the mask `load` can be read, and those of
    // `dst` in the mask `store` written; masked bytes are not touched.
    unsafe {
        let text = _mm512_maskz_loadu_epi8(lanes.load[lane], lanes.src[lane].cast());
        let text = _mm512_xor_si512(text, block);
        _mm512_mask_storeu_epi8(lanes.dst[lane].cast(), lanes.store[lane], text);
    }
}

/// XORs the keystream into the first 4 * `Q` lanes.
///
/// # Safety
/// As for [`many`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
pub(super) unsafe fn few<const Q: usize>(lanes: &Lanes) {
    // SAFETY: Q is at most 8, so that all accesses stay within the arrays of `lanes`; the rest is
    // passed on.
    unsafe {
        let constants = _mm512_broadcast_i32x4(_mm_loadu_si128(CONSTANTS.as_ptr().cast()));
        let key = |q: usize, half: usize| {
            if lanes.mixed() {
                four_keys(lanes, 4 * q, half)
            } else {
                let key = lanes.keys[0].cast::<__m128i>().add(half);
                _mm512_broadcast_i32x4(_mm_loadu_si128(key))
            }
        };
        let row = |q: usize| _mm512_loadu_si512(lanes.rows.as_ptr().add(4 * q).cast());

        let mut a = [constants; Q];
        let mut b: [V; Q] = core::array::from_fn(|q| key(q, 0));
        let mut c: [V; Q] = core::array::from_fn(|q| key(q, 1));
        let mut d: [V; Q] = core::array::from_fn(row);
        for _ in 0..10 {
            double_round!(Q; a b c d);
        }
        for q in 0..Q {
            let blocks = transpose_parts([
                _mm512_add_epi32(a[q], constants),
                _mm512_add_epi32(b[q], key(q, 0)),
                _mm512_add_epi32(c[q], key(q, 1)),
                _mm512_add_epi32(d[q], row(q)),
            ]);
            for (i, block) in blocks.into_iter().enumerate() {
                xor(lanes, 4 * q + i, block);
            }
        }
    }
}

/// Makes the keystream of the first 4 * `Q` blocks of a packet's text, in the vector unit, and at
/// the same time its Poly1305 key, in the integer unit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
pub(super) fn alone<const Q: usize>(key: &[u8; 32], nonce: [u32; 3]) -> ([u8; 32], [[V; 4]; Q]) {
    let [n0, n1, n2] = nonce;
    let initial = scalar::initial(key, [0, n0, n1, n2]);
    // Read again, or compilers would take words that they have in vectors apart.
    let words = scalar::initial(black_box(key), [0, n0, n1, n2]);
    let row = |i: usize| {
        let word = |j: usize| initial[4 * i + j].cast_signed();
        _mm512_broadcast_i32x4(_mm_setr_epi32(word(0), word(1), word(2), word(3)))
    };
    let starts: [[V; 4]; Q] = core::array::from_fn(|q| {
        let n = 4 * i64::try_from(q).expect("small");
        let counters = _mm512_setr_epi64(n + 1, 0, n + 2, 0, n + 3, 0, n + 4, 0);
        [row(0), row(1), row(2), _mm512_add_epi32(row(3), counters)]
    });
    let mut state = words;
    let [mut a, mut b, mut c, mut d] = core::array::from_fn(|i| starts.map(|start| start[i]));
    for _ in 0..5 {
        // One in vectors takes as long as two in words.
        double_round!(Q; a b c d);
        scalar::double_round(&mut state);
        scalar::double_round(&mut state);
    }
    for _ in 0..5 {
        double_round!(Q; a b c d);
    }
    let word = |i: usize| u128::from(state[i].wrapping_add(words[i]));
    let half = |i: usize| {
        let half = word(i) | word(i + 1) << 32 | word(i + 2) << 64 | word(i + 3) << 96;
        half.to_le_bytes()
    };
    let mut key = [0; 32];
    key[..16].copy_from_slice(&half(0));
    key[16..].copy_from_slice(&half(4));
    let stream = core::array::from_fn(|q| {
        let end = |x: V, i: usize| _mm512_add_epi32(x, starts[q][i]);
        transpose_parts([end(a[q], 0), end(b[q], 1), end(c[q], 2), end(d[q], 3)])
    });
    (key, stream)
}
