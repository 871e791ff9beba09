//! The Internet checksum (RFC 1071).
//!
//! Sums are kept in machine byte order and in 64 bits: 2^64 - 1 is a multiple of 2^16 - 1, so that
//! a sum folds to the same 16 bits whatever the width it was made in, and byte order does not
//! matter until it is folded (RFC 1071 §2).

mod lanes;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod simd;
#[cfg(test)]
mod tests;

use core::hint::black_box;
use core::ops::Add;

use crate::lab::{self, Idea};
use lanes::lanes;

/// A one's complement sum of 16-bit words, not yet folded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of `bytes`, the first of which stands at an even offset. An odd last byte counts as
    /// if a zero followed.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        if lab::without(Idea::VectorChecksum) {
            return Sum(two_bytes_at_a_time(bytes));
        }
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if bytes.len() >= simd::WORTH {
            return Sum(simd::sum(bytes));
        }
        Sum(lanes::<8>(bytes))
    }

    /// The sum of one field, given as the number it stands for.
    #[inline]
    pub fn word(field: u16) -> Sum {
        Sum(u64::from(field.to_be()))
    }

    /// The sum of one 32-bit field at an even offset, given as the number it stands for.
    #[inline]
    pub fn wide(field: u32) -> Sum {
        Sum(u64::from(field.to_be()))
    }

    /// The sum in 16 bits: what a header carries that someone else completes (a pseudo-header's
    /// partial sum).
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the sum has been brought below 2^16"
    )]
    pub fn fold(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        u16::from_be(sum as u16)
    }

    /// The complement of the sum: what a header carries.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }
}

impl Add for Sum {
    type Output = Sum;

    #[inline]
    fn add(self, other: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Sum(sum + u64::from(carry))
    }
}

/// The sum as "Surpassing 10Gb/s over Tailscale" (2023) found it in wireguard-go, for the lab only.
fn two_bytes_at_a_time(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<2>();
    let last = |&byte| u64::from(u16::from_ne_bytes([byte, 0]));
    let mut sum = tail.first().map_or(0, last);
    for word in words {
        sum += u64::from(u16::from_ne_bytes(*word));
        // Keeps LLVM from making vectors of the loop; costs no instruction.
        black_box(());
    }
    sum
}
