//! The same sum in wider vectors than every x86-64 processor has.
//!
//! Unsafe for speed; `adit-lab checksum` measures it again. On a Zen 5, in ns:
//!
//! | bytes | 64 | 256 | 1368 | 9001 |
//! |---|---|---|---|---|
//! | `lanes`, compiled for every x86-64 | 3.6 | 6.4 | 26.3 | 177 |
//! | `avx2`: `lanes`, compiled for AVX2 | 3.4 | 4.2 | 14.2 | 93 |
//! | `avx512` | 2.1 | 2.6 | 7.8 | 44 |
//!
//! What LLVM makes of `lanes` for AVX-512 is slower than for AVX2 (70 ns for 1368 bytes), hence the
//! intrinsics; those of AVX2 gain nothing over LLVM.
#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_loadu_si512, _mm512_maskz_loadu_epi8,
    _mm512_reduce_add_epi64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_srli_epi64,
};

use super::lanes::lanes;

/// Bytes from which on choosing among vector widths pays for itself.
pub(super) const WORTH: usize = 64;

cpufeatures::new!(has_avx512, "avx512f", "avx512bw");
cpufeatures::new!(has_avx2, "avx2");

/// Sums with the widest vectors that this processor has.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    if has_avx512::get() {
        // SAFETY: the line above has just found on this processor all that the function is compiled
        // for.
        return unsafe { avx512(bytes) };
    }
    if has_avx2::get() {
        // SAFETY: the line above has just found on this processor all that the function is compiled
        // for.
        return unsafe { avx2(bytes) };
    }
    lanes::<8>(bytes)
}

/// Sums `bytes` as [`lanes`] does, with AVX2.
#[target_feature(enable = "avx2")]
pub(super) fn avx2(bytes: &[u8]) -> u64 {
    lanes::<16>(bytes)
}

/// Adds the low and the high halves of 64-bit words apart, so that no carry is lost before 16 GiB.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn avx512(bytes: &[u8]) -> u64 {
    let low = _mm512_set1_epi64(0xffff_ffff);
    let add = |[lows, highs]: &mut [__m512i; 2], words| {
        *lows = _mm512_add_epi64(*lows, _mm512_and_si512(words, low));
        *highs = _mm512_add_epi64(*highs, _mm512_srli_epi64::<32>(words));
    };
    let load = |vector: &[u8; 64]| {
        // SAFETY: reads the 64 bytes that the reference is to; any alignment is allowed.
        unsafe { _mm512_loadu_si512(vector.as_ptr().cast()) }
    };
    let mut even = [_mm512_setzero_si512(); 2];
    let mut odd = even;
    let (vectors, rest) = bytes.as_chunks::<64>();
    let (pairs, single) = vectors.as_chunks::<2>();
    for [first, second] in pairs {
        add(&mut even, load(first));
        add(&mut odd, load(second));
    }
    for vector in single {
        add(&mut even, load(vector));
    }
    // 0 to 63 bytes: what is masked out is not read and counts as zero.
    let mask = (1 << rest.len()) - 1;
    // SAFETY: the mask has as many bits as `rest` has bytes, and only those are read.
    add(&mut odd, unsafe {
        _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast())
    });
    let [a, b] = even;
    let [c, d] = odd;
    _mm512_reduce_add_epi64(_mm512_add_epi64(
        _mm512_add_epi64(a, b),
        _mm512_add_epi64(c, d),
    ))
    .cast_unsigned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_processor_has_what_the_standard_library_says() {
        assert_eq!(super::has_avx2::get(), is_x86_feature_detected!("avx2"));
        let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        assert_eq!(super::has_avx512::get(), avx512);
    }
}
