//! Steps on a batch that several implementations share.

use crate::TAG_LEN;

/// Chunks of more than eight packets stay below this number of bytes, for the first-level cache.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
const CHUNK_BYTES: usize = 12 << 10;

/// The number of jobs, whose texts have these lengths, that make the next chunk.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(super) fn chunk(most: usize, lens: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let mut count = 0;
    for len in lens.take(most) {
        bytes += len;
        if count >= 8 && bytes > CHUNK_BYTES {
            return count & !7;
        }
        count += 1;
    }
    count
}

/// Whether two tags differ, in a time that does not depend on where.
pub(super) fn differs(a: &[u8; TAG_LEN], b: &[u8; TAG_LEN]) -> bool {
    let difference = u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b);
    core::hint::black_box(difference) != 0
}
