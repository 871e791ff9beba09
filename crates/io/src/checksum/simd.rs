//! The same sum compiled for wider vectors than every x86-64 processor has.
#![allow(unsafe_code)]

use super::lanes;

/// From this many bytes on, choosing among vector widths pays for itself.
pub(super) const WORTH: usize = 128;

/// Sums with the widest vectors that this processor has.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the line above has just found AVX2 on this processor; the function needs nothing else.
        return unsafe { avx2(bytes) };
    }
    lanes::<8>(bytes)
}

#[target_feature(enable = "avx2")]
fn avx2(bytes: &[u8]) -> u64 {
    lanes::<16>(bytes)
}
