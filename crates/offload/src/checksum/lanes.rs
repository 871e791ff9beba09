//! The sum in lanes, which the compiler turns into vectors.

/// Sums with `LANES` accumulators of 64 bits, each fed 32 bits at a time: they cannot overflow
/// before 16 GiB.
#[inline(always)]
pub(super) fn lanes<const LANES: usize>(bytes: &[u8]) -> u64 {
    let mut accumulators = [0u64; LANES];
    let (words, tail) = bytes.as_chunks::<4>();
    let (rows, rest) = words.as_chunks::<LANES>();
    for row in rows {
        for (accumulator, word) in accumulators.iter_mut().zip(row) {
            *accumulator += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut sum: u64 = accumulators.iter().sum();
    for word in rest {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0; 4];
    last[..tail.len()].copy_from_slice(tail);
    sum + u64::from(u32::from_ne_bytes(last))
}
