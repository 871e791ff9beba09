//! What the Internet checksum costs by size, before and after.
//!
//! The "before" and "after" of "Surpassing 10Gb/s over Tailscale" (April 2023) are a loop over
//! 16-bit words and one over 32-bit words, unrolled; both are here with the plain 32-bit loop
//! between them and a loop over single bytes before them, next to what Adit runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use adit_offload::checksum::Sum;

use crate::goals::{GoalResult, Limit};
use crate::sandbox::Failure;

/// From the smallest packet to a jumbo frame; 1368 is the payload of a TCP segment in the tunnel.
const SIZES: [usize; 12] = [
    64, 128, 256, 512, 768, 1024, 1368, 1500, 2048, 4096, 8192, 9001,
];
const ROUNDS: u16 = 15;
/// How long one measurement of one cell takes.
const SPAN: Duration = Duration::from_millis(2);

/// A way to sum.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    sum: fn(&[u8]) -> u16,
}

const WAYS: [Way; 5] = [
    Way {
        name: "byte loop",
        sum: byte_loop,
    },
    Way {
        name: "2-byte loop",
        sum: half_word_loop,
    },
    Way {
        name: "4-byte loop",
        sum: word_loop,
    },
    Way {
        name: "unrolled",
        sum: unrolled,
    },
    Way {
        name: "SIMD",
        sum: simd,
    },
];

/// What is summed.
fn bytes() -> Vec<u8> {
    let bytes = (0u8..=255).cycle().step_by(7);
    bytes.take(SIZES[SIZES.len() - 1] + 64).collect()
}

/// The names of the ways to sum.
pub(crate) fn ways() -> impl Iterator<Item = &'static str> {
    WAYS.iter().map(|way| way.name)
}

/// A size in octets, and the nanoseconds of a call for each way.
pub(crate) type Times = (usize, Vec<(&'static str, f64)>);

/// Measures every way at every size, with the goal of them.
///
/// Every round measures every cell once, so that a slow moment of the machine touches all ways alike; the least
/// counts, for whatever disturbs only adds.
pub(crate) fn times() -> Result<(Vec<Times>, GoalResult), Failure> {
    let bytes = bytes();
    agree(&bytes)?;
    let mut times = [[f64::INFINITY; WAYS.len()]; SIZES.len()];
    for _ in 0..ROUNDS {
        for (row, size) in times.iter_mut().zip(SIZES) {
            for (cell, way) in row.iter_mut().zip(WAYS) {
                *cell = cell.min(nanoseconds(way.sum, &bytes[..size]));
            }
        }
    }
    let row = |(size, times)| (size, ways().zip(times).collect());
    let rows = SIZES.into_iter().zip(times).map(row);
    Ok((rows.collect(), goal(&times)))
}

/// A fast sum that is wrong is worth nothing.
fn agree(bytes: &[u8]) -> Result<(), Failure> {
    for len in 0..=SIZES[SIZES.len() - 1] {
        let expected = byte_loop(&bytes[..len]);
        for way in WAYS {
            if (way.sum)(&bytes[..len]) != expected {
                return Err(format!("{} sums {len} bytes wrongly", way.name).into());
            }
        }
    }
    Ok(())
}

/// SIMD stands last. There is to be no size at which another way is faster.
fn goal(times: &[[f64; WAYS.len()]; SIZES.len()]) -> GoalResult {
    let worst = times
        .iter()
        .map(|[others @ .., simd]| others.iter().copied().fold(f64::INFINITY, f64::min) / simd);
    let worst = worst.fold(f64::INFINITY, f64::min);
    let name = "SIMD of the best other way, at the worst size";
    GoalResult::new(name.to_owned(), worst, Limit::AtLeast(1.0), " ×")
}

/// The time of one call, from as many as fit the span.
fn nanoseconds(sum: fn(&[u8]) -> u16, bytes: &[u8]) -> f64 {
    let start = Instant::now();
    let mut calls = 0u32;
    loop {
        for _ in 0..100 {
            black_box(sum(black_box(bytes)));
        }
        calls += 100;
        let elapsed = start.elapsed();
        if elapsed >= SPAN {
            return elapsed.as_secs_f64() * 1e9 / f64::from(calls);
        }
    }
}

/// One byte at a time; every other one is the high half of a word.
fn byte_loop(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    let (pairs, tail) = bytes.as_chunks::<2>();
    for [high, low] in pairs {
        sum += u64::from(*high) << 8;
        as_it_stands();
        sum += u64::from(*low);
        as_it_stands();
    }
    fold(sum + last(tail))
}

/// Two bytes at a time, as RFC 1071 §4.1 has it.
fn half_word_loop(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    let (pairs, tail) = bytes.as_chunks::<2>();
    for [high, low] in pairs {
        sum += u64::from(*high) << 8 | u64::from(*low);
        as_it_stands();
    }
    fold(sum + last(tail))
}

/// Four bytes at a time.
fn word_loop(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_be_bytes(*word));
        as_it_stands();
    }
    fold(sum + last(tail))
}

/// Four bytes at a time, and the loop is tested again only after sixteen times.
fn unrolled(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    let (words, tail) = bytes.as_chunks::<4>();
    let (rows, rest) = words.as_chunks::<16>();
    for row in rows {
        for word in row {
            sum += u64::from(u32::from_be_bytes(*word));
            as_it_stands();
        }
    }
    for word in rest {
        sum += u64::from(u32::from_be_bytes(*word));
        as_it_stands();
    }
    fold(sum + last(tail))
}

/// Keeps LLVM from making vectors of a loop: it is the loop that is measured. Costs no instruction.
#[inline(always)]
fn as_it_stands() {
    black_box(());
}

/// The implementation that Adit runs.
fn simd(bytes: &[u8]) -> u16 {
    Sum::of(bytes).fold()
}

/// Bytes that fill no word: zeros follow.
fn last(tail: &[u8]) -> u64 {
    let mut word = [0; 4];
    word[..tail.len()].copy_from_slice(tail);
    u64::from(u32::from_be_bytes(word))
}

fn fold(mut sum: u64) -> u16 {
    loop {
        if let Ok(folded) = u16::try_from(sum) {
            return folded;
        }
        sum = (sum >> 16) + (sum & 0xffff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_size_at_which_simd_is_slower_misses_the_goal() {
        let mut times = [[8.0, 6.0, 4.0, 2.0, 1.0]; SIZES.len()];
        assert!(goal(&times).met);
        times[3][3] = 0.9;
        let goal = goal(&times);
        assert!(!goal.met && goal.value == Some(0.9));
    }
}
