//! Poly1305 in 512-bit registers with the 52-bit multiply-add (IFMA), in two arrangements:
//! [`packets`] has a packet in each 64-bit lane, [`blocks`] the blocks of one packet.
//!
//! Numbers are three limbs of 44, 44 and 42 bits. A product's limb is the sum of the low 52 bits of
//! its partial products, plus the sum of the high bits of the limb below, moved up by 52 - 44 = 8.
//! Bits that leave the top come back five-fold, since 2^130 = 5; at limb 3, 2^132 = 20.

use super::super::lanes::{Text, first};
use super::super::scalar;
use super::chacha::transpose_parts;
use crate::TAG_LEN;
use core::arch::x86_64::*;

type V = __m512i;

const MASK44: u64 = (1 << 44) - 1;
const MASK42: u64 = (1 << 42) - 1;
/// 2^128, which is added to every block, in the third limb.
const PAD: i64 = 1 << 40;

/// A multiplier: three limbs, and limbs 1 and 2 times 20.
#[derive(Clone, Copy)]
struct Power {
    r: [V; 3],
    s: [V; 2],
}

/// The partial products of limbs 0 to 2, in low and high halves.
#[derive(Clone, Copy)]
struct Product {
    low: [V; 3],
    high: [V; 3],
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn power(r: [V; 3]) -> Power {
    let twenty = |v| {
        let four = _mm512_slli_epi64::<2>(v);
        _mm512_slli_epi64::<2>(_mm512_add_epi64(four, v))
    };
    Power {
        r,
        s: [twenty(r[1]), twenty(r[2])],
    }
}

/// Adds a * p.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn multiply_add(sum: &mut Product, a: [V; 3], p: &Power) {
    let rows = [
        [p.r[0], p.r[1], p.r[2]],
        [p.s[1], p.r[0], p.r[1]],
        [p.s[0], p.s[1], p.r[0]],
    ];
    for (a, row) in a.into_iter().zip(rows) {
        for (i, factor) in row.into_iter().enumerate() {
            sum.low[i] = _mm512_madd52lo_epu64(sum.low[i], a, factor);
            sum.high[i] = _mm512_madd52hi_epu64(sum.high[i], a, factor);
        }
    }
}

/// Brings sums of up to 16 products back to limbs of 44, 44 and 42 bits and a little.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn carry(p: &Product) -> [V; 3] {
    let mask44 = _mm512_set1_epi64(MASK44.cast_signed());
    let mask42 = _mm512_set1_epi64(MASK42.cast_signed());
    // high[2] stands at 52 + 88 = 130 + 10 bits: 5 * 2^10 = 2^12 + 2^10.
    let d0 = _mm512_add_epi64(
        _mm512_add_epi64(p.low[0], _mm512_slli_epi64::<12>(p.high[2])),
        _mm512_slli_epi64::<10>(p.high[2]),
    );
    let d1 = _mm512_add_epi64(p.low[1], _mm512_slli_epi64::<8>(p.high[0]));
    let d2 = _mm512_add_epi64(p.low[2], _mm512_slli_epi64::<8>(p.high[1]));
    let (c0, c1) = (_mm512_srli_epi64::<44>(d0), _mm512_srli_epi64::<44>(d1));
    let c2 = _mm512_srli_epi64::<42>(d2);
    let c2 = _mm512_add_epi64(c2, _mm512_slli_epi64::<2>(c2));
    [
        _mm512_add_epi64(_mm512_and_si512(d0, mask44), c2),
        _mm512_add_epi64(_mm512_and_si512(d1, mask44), c0),
        _mm512_add_epi64(_mm512_and_si512(d2, mask42), c1),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn zero() -> Product {
    let zero = _mm512_setzero_si512();
    Product {
        low: [zero; 3],
        high: [zero; 3],
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn multiply(a: [V; 3], p: &Power) -> [V; 3] {
    let mut product = zero();
    multiply_add(&mut product, a, p);
    carry(&product)
}

/// The limbs of 128-bit numbers that are given as low and high words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn limbs(low: V, high: V) -> [V; 3] {
    let mask44 = _mm512_set1_epi64(MASK44.cast_signed());
    let middle = _mm512_or_si512(_mm512_srli_epi64::<44>(low), _mm512_slli_epi64::<20>(high));
    [
        _mm512_and_si512(low, mask44),
        _mm512_and_si512(middle, mask44),
        _mm512_srli_epi64::<24>(high),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn add(a: [V; 3], b: [V; 3]) -> [V; 3] {
    [
        _mm512_add_epi64(a[0], b[0]),
        _mm512_add_epi64(a[1], b[1]),
        _mm512_add_epi64(a[2], b[2]),
    ]
}

/// r^1 to r^4 of eight packets.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn powers(keys: &[[u8; 32]; 8]) -> [Power; 4] {
    let keys = keys.as_ptr().cast::<V>();
    // The first and the second words of eight keys of four words.
    let word = |i: i64| {
        let index = _mm512_setr_epi64(i, i + 4, i + 8, i + 12, 0, 0, 0, 0);
        // SAFETY: the keys are four times 64 bytes.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(keys), _mm512_loadu_si512(keys.add(1)));
            let (c, d) = (
                _mm512_loadu_si512(keys.add(2)),
                _mm512_loadu_si512(keys.add(3)),
            );
            let first = _mm512_permutex2var_epi64(a, index, b);
            let last = _mm512_permutex2var_epi64(c, index, d);
            _mm512_inserti64x4::<1>(first, _mm512_castsi512_si256(last))
        }
    };
    let [clamp_low, clamp_high] = scalar::words(scalar::CLAMP);
    let low = _mm512_and_si512(word(0), _mm512_set1_epi64(clamp_low.cast_signed()));
    let high = _mm512_and_si512(word(1), _mm512_set1_epi64(clamp_high.cast_signed()));
    let p1 = power(limbs(low, high));
    let p2 = power(multiply(p1.r, &p1));
    let p3 = power(multiply(p2.r, &p1));
    [p1, p2, p3, power(multiply(p2.r, &p2))]
}

/// The limbs of four blocks of each packet.
type Blocks = [[V; 3]; 4];

/// Eight packets, one in each lane.
struct Eight<'a> {
    texts: &'a [Text; 8],
    /// The place where the last block of each, that of the lengths, would end behind its text.
    ends: [*const u8; 8],
    /// Whether all have the same length.
    alike: bool,
}

impl<'a> Eight<'a> {
    fn new(texts: &'a [Text; 8]) -> Self {
        Self {
            texts,
            ends: texts.map(|text| text.text.wrapping_add(text.blocks() * 16)),
            alike: texts.iter().all(|text| text.len == texts[0].len),
        }
    }

    /// The limbs of 4 blocks of each packet, given as 64 bytes of each.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
    fn arrange(text: [V; 8], pads: [V; 4], lengths: V) -> Blocks {
        // Words to low and high halves of blocks: first within pairs of packets, then across the
        // four pairs.
        let pair = |i: usize| _mm512_unpacklo_epi64(text[i], text[i + 1]);
        let low = transpose_parts([pair(0), pair(2), pair(4), pair(6)]);
        let pair = |i: usize| _mm512_unpackhi_epi64(text[i], text[i + 1]);
        let mut high = transpose_parts([pair(0), pair(2), pair(4), pair(6)]);
        high[3] = _mm512_or_si512(high[3], lengths);
        core::array::from_fn(|i| {
            let [m0, m1, m2] = limbs(low[i], high[i]);
            [m0, m1, _mm512_or_si512(m2, pads[i])]
        })
    }

    /// Absorbs 4 blocks of each packet, `now`, and arranges the 4 after them, all text: without
    /// that, the multiplications of one step would be done before those of the next could begin.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
    fn absorb(h: [V; 3], powers: &[Power; 4], now: Blocks, next: [V; 8]) -> ([V; 3], Blocks) {
        // h = (h + m0) r^4 + m1 r^3 + m2 r^2 + m3 r, with one carry; two sums, for shorter chains
        // of additions.
        let (mut even, mut odd) = (zero(), zero());
        let pads = [_mm512_set1_epi64(PAD); 4];
        let next = Self::arrange(next, pads, _mm512_setzero_si512());
        multiply_add(&mut odd, now[1], &powers[2]);
        multiply_add(&mut even, now[2], &powers[1]);
        multiply_add(&mut odd, now[3], &powers[0]);
        multiply_add(&mut even, add(now[0], h), &powers[3]);
        let h = carry(&Product {
            low: add(even.low, odd.low),
            high: add(even.high, odd.high),
        });
        (h, next)
    }

    /// The 64 bytes of each packet that begin `left` steps before the end: all of them text.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
    unsafe fn load(&self, left: usize) -> [V; 8] {
        let mut text = [_mm512_setzero_si512(); 8];
        for (v, end) in text.iter_mut().zip(self.ends) {
            // SAFETY: the caller says that these 64 bytes are within the text.
            *v = unsafe { _mm512_loadu_si512(end.wrapping_sub(64 * left).cast()) };
        }
        text
    }

    /// The limbs of the next 64 bytes at the ends: before its first block a packet has nothing to
    /// add (h is still 0 and stays so), and the very last block is that of the lengths.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
    unsafe fn arrange_ends(&self, left: usize) -> Blocks {
        let mut text = [_mm512_setzero_si512(); 8];
        let (missing, lengths) = if self.alike {
            let (mask, _, missing) = window(&self.texts[0], 64 * left);
            for (v, end) in text.iter_mut().zip(self.ends) {
                // SAFETY: the mask has only bytes of the text.
                *v = unsafe { _mm512_maskz_loadu_epi8(mask, end.wrapping_sub(64 * left).cast()) };
            }
            (
                _mm512_set1_epi64(missing.cast_signed() as i64),
                _mm512_set1_epi64(self.texts[0].len.cast_signed() as i64),
            )
        } else {
            let mut missings = [0_u64; 8];
            let mut lengths = [0_u64; 8];
            for (lane, packet) in self.texts.iter().enumerate() {
                let (mask, at, missing) = window(packet, 64 * left);
                // SAFETY: the mask has only bytes of the text.
                text[lane] = unsafe { _mm512_maskz_loadu_epi8(mask, at.cast()) };
                missings[lane] = missing as u64;
                lengths[lane] = packet.len as u64;
            }
            // SAFETY: both are arrays of 64 bytes.
            unsafe {
                (
                    _mm512_loadu_si512(missings.as_ptr().cast()),
                    _mm512_loadu_si512(lengths.as_ptr().cast()),
                )
            }
        };
        let pad = |i: i64| {
            let there = _mm512_cmple_epu64_mask(missing, _mm512_set1_epi64(16 * i));
            _mm512_maskz_set1_epi64(there, PAD)
        };
        let last = if left == 1 { 0xff } else { 0 };
        let lengths = _mm512_maskz_mov_epi64(last, lengths);
        let pads = [pad(0), pad(1), pad(2), pad(3)];
        Self::arrange(text, pads, lengths)
    }
}

/// The tags of 8 * `G` packets, whose lengths are best alike. They are aligned at their ends, so
/// that all are complete after the same step.
///
/// # Safety
/// The texts are what [`Text`] says, and the processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
pub(super) unsafe fn packets<const G: usize>(
    texts: &[[Text; 8]; G],
    keys: &[[[u8; 32]; 8]; G],
    tags: &mut [[[u8; 16]; 8]; G],
) {
    let all = || texts.as_flattened().iter().map(Text::blocks);
    let steps = all().max().unwrap_or(0).div_ceil(4);
    // From this many steps before the end on, no packet has blocks missing.
    let whole = all().min().unwrap_or(0) / 4;
    // SAFETY: the texts are readable. `load` is given 2 to `whole` steps: with `whole` or fewer no
    // packet begins after these 64 bytes, and with 2 or more none ends before theirs.
    // `arrange_ends` masks what is not text.
    unsafe {
        let groups: [Eight<'_>; G] = core::array::from_fn(|g| Eight::new(&texts[g]));
        let zero = _mm512_setzero_si512();
        let all_powers: [[Power; 4]; G] = core::array::from_fn(|g| powers(&keys[g]));
        let mut h = [[zero; 3]; G];
        let pads = [_mm512_set1_epi64(PAD); 4];
        let mut left = steps;
        while left > 0 {
            if left <= whole && left > 1 {
                let mut now = Eight::arrange(groups[0].load(left), pads, zero);
                while left > 1 {
                    for g in 0..G {
                        // After the last come the last once more, in vain.
                        let next = if g + 1 < G {
                            groups[g + 1].load(left)
                        } else {
                            groups[0].load(2.max(left - 1))
                        };
                        (h[g], now) = Eight::absorb(h[g], &all_powers[g], now, next);
                    }
                    left -= 1;
                }
            } else {
                for g in 0..G {
                    let now = groups[g].arrange_ends(left);
                    (h[g], _) = Eight::absorb(h[g], &all_powers[g], now, [zero; 8]);
                }
                left -= 1;
            }
        }
        for g in 0..G {
            let mut words = [[0_u64; 8]; 3];
            for (words, limb) in words.iter_mut().zip(h[g]) {
                _mm512_storeu_si512(words.as_mut_ptr().cast(), limb);
            }
            for lane in 0..8 {
                let (_, s) = scalar::halves(&keys[g][lane]);
                tags[g][lane] = tag_of(words.map(|words| words[lane]), s);
            }
        }
    }
}

/// Makes the tag of limbs of 44, 44 and 42 bits and a little.
#[inline(always)]
fn tag_of(h: [u64; 3], s: u128) -> [u8; 16] {
    let low = u128::from(h[0]).wrapping_add(u128::from(h[1]) << 44);
    // All but the low 40 bits of the third limb are beyond bit 128.
    let (low, carry) = low.overflowing_add(u128::from(h[2]) << 88);
    let [h0, h1] = scalar::words(low);
    scalar::reduce([h0, h1, (h[2] >> 40).wrapping_add(u64::from(carry))], s)
}

/// Bytes `missing..reach` of the 64 that begin `before` bytes ahead of the end of the text's last
/// block (that of the lengths) are text: the mask of them, where they are, and the number missing.
#[inline(always)]
fn window(text: &Text, before: usize) -> (u64, *const u8, usize) {
    let end = text.blocks() * 16;
    let missing = before.saturating_sub(end).min(64);
    let reach = (text.len + before).saturating_sub(end);
    let mask = first(reach) & !first(missing);
    (
        mask,
        text.text.wrapping_add(end).wrapping_sub(before),
        missing,
    )
}

/// The tag of one packet. Lanes have its blocks 0, 4, 1, 5, 2, 6, 3, 7: as two registers' words
/// come apart.
///
/// # Safety
/// As for [`packets`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
pub(super) unsafe fn blocks(text: &Text, key: &[u8; 32]) -> [u8; 16] {
    // SAFETY: all loads are within the masks of `window`, or, between the first and the last
    // step, of 128 bytes of which none is missing and none behind the text.
    unsafe {
        let (r, s) = scalar::halves(key);
        let [low, high] = scalar::words(r).map(|word| _mm512_set1_epi64(word.cast_signed()));
        // r^1 in all lanes, then by one, two and four more where the lane's exponent (8 for block
        // 0, 1 for block 7), less one, has that bit.
        let p1 = power(limbs(low, high));
        let p2 = power(multiply(p1.r, &p1));
        let powers = blend(0x33, p1.r, p2.r);
        let p4 = power(multiply(p2.r, &p2));
        let powers = blend(0x0f, powers, multiply(powers, &p2));
        let p8 = power(multiply(p4.r, &p4));
        let powers = power(blend(0x55, powers, multiply(powers, &p4)));

        let at_ends = |left: usize| {
            let (mask_a, a, missing_a) = window(text, 128 * left);
            let (mask_b, b, missing_b) = window(text, 128 * left - 64);
            let a = _mm512_maskz_loadu_epi8(mask_a, a.cast());
            let b = _mm512_maskz_loadu_epi8(mask_b, b.cast());
            let number = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
            let missing = ((missing_a + missing_b) / 16).cast_signed() as i64;
            let there = _mm512_cmpge_epi64_mask(number, _mm512_set1_epi64(missing));
            let length = _mm512_set1_epi64((text.len as u64).cast_signed());
            let last = if left == 1 { 0x80 } else { 0 };
            let high = _mm512_unpackhi_epi64(a, b);
            let high = _mm512_mask_mov_epi64(high, last, length);
            let mut m = limbs(_mm512_unpacklo_epi64(a, b), high);
            m[2] = _mm512_or_si512(m[2], _mm512_maskz_set1_epi64(there, PAD));
            m
        };
        let whole = |left: usize| {
            let at = text.text.add(text.blocks() * 16 - 128 * left);
            let (a, b) = (
                _mm512_loadu_si512(at.cast()),
                _mm512_loadu_si512(at.add(64).cast()),
            );
            let mut m = limbs(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
            m[2] = _mm512_or_si512(m[2], _mm512_set1_epi64(PAD));
            m
        };

        let mut left = text.blocks().div_ceil(8);
        let mut h = at_ends(left);
        left -= 1;
        if left > 2 {
            let p16 = power(multiply(p8.r, &p8));
            while left > 2 {
                let mut sum = zero();
                multiply_add(&mut sum, whole(left), &p8);
                multiply_add(&mut sum, h, &p16);
                h = add(carry(&sum), whole(left - 1));
                left -= 2;
            }
        }
        while left > 0 {
            let m = if left > 1 { whole(left) } else { at_ends(1) };
            h = add(multiply(h, &p8), m);
            left -= 1;
        }
        let h = multiply(h, &powers).map(|limb| _mm512_reduce_add_epi64(limb).cast_unsigned());
        // Eight limbs together may have three bits more.
        let h1 = h[1].wrapping_add(h[0] >> 44);
        let h2 = h[2].wrapping_add(h1 >> 44);
        let h0 = (h[0] & MASK44).wrapping_add((h2 >> 42).wrapping_mul(5));
        tag_of([h0, h1 & MASK44, h2 & MASK42], s)
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512ifma,bmi2")]
fn blend(mask: __mmask8, a: [V; 3], b: [V; 3]) -> [V; 3] {
    [
        _mm512_mask_blend_epi64(mask, a[0], b[0]),
        _mm512_mask_blend_epi64(mask, a[1], b[1]),
        _mm512_mask_blend_epi64(mask, a[2], b[2]),
    ]
}

/// The tag of a packet by itself.
///
/// # Safety
/// The text is what [`Text`] says, and the processor has the features.
pub(super) unsafe fn tag(text: &Text, key: &[u8; 32]) -> [u8; TAG_LEN] {
    // SAFETY: passed on.
    unsafe {
        if text.aad.is_null() && text.blocks() >= SCALAR_BELOW {
            blocks(text, key)
        } else {
            text.scalar(key)
        }
    }
}

/// The number of blocks below which the integer unit is faster than to prepare eight powers.
pub(super) const SCALAR_BELOW: usize = 15;
