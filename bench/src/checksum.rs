//! `adit-lab checksum`: what the Internet checksum costs by size, before and after.
//!
//! The "before" and "after" of "Surpassing 10Gb/s over Tailscale" (April 2023) are a loop over
//! 16-bit words and one over 32-bit words, unrolled; both are here with the plain 32-bit loop
//! between them and a loop over single bytes before them, next to what Adit runs.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use adit_offload::checksum::Sum;
use serde::Serialize;

use crate::goals::{self, GoalResult, Limit};
use crate::output;
use crate::sandbox::Failure;

/// From the smallest packet to a jumbo frame; 1368 is the payload of a TCP segment in the tunnel.
const SIZES: [usize; 12] = [
    64, 128, 256, 512, 768, 1024, 1368, 1500, 2048, 4096, 8192, 9001,
];
const ROUNDS: u16 = 15;
/// How long one measurement of one cell takes.
const SPAN: Duration = Duration::from_millis(2);

/// The Internet checksum by size: byte loop, 2-byte loop, 4-byte loop, unrolled, SIMD.
#[derive(clap::Args)]
pub(crate) struct ChecksumArgs {
    /// Print one JSON object instead of a table.
    ///
    /// It has `schema`, `command`, `rounds`; `sizes`, each with its `bytes` and for each of the
    /// `ways` the `ns` of a call and `gib_per_s` (2^30 bytes); `geomean`, the same by geometric
    /// means over the sizes; and how many times as fast SIMD is (`faster_than_…`). Each of the
    /// `goals` has `name`, `value`, `goal` and `met`. Fields are only ever added under the same
    /// schema number; 1 called the 2-byte loop the byte loop.
    #[arg(long)]
    json: bool,
    /// How often every cell is measured; the least counts, for whatever disturbs only adds.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

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

/// The object that `--json` prints.
#[derive(Serialize)]
struct ComparisonReport {
    schema: u32,
    command: &'static str,
    rounds: u16,
    sizes: Vec<Row>,
    /// Geometric means over the sizes.
    geomean: Vec<Cell>,
    /// How many times as fast SIMD is as each of these, by the geometric means.
    faster_than_byte_loop: f64,
    faster_than_2_byte_loop: f64,
    faster_than_unrolled: f64,
    goals: Vec<GoalResult>,
}

#[derive(Serialize)]
struct Row {
    bytes: usize,
    ways: Vec<Cell>,
}

#[derive(Serialize)]
struct Cell {
    way: &'static str,
    ns: f64,
    gib_per_s: f64,
}

/// Measures and prints the table.
pub(crate) fn run(args: ChecksumArgs) -> Result<(), Failure> {
    let bytes = bytes();
    agree(&bytes)?;
    let report = measure(&bytes, args.rounds);
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        table(&report)?
    };
    Ok(output::print(&text)?)
}

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

/// The table, for another command, with its goals.
pub(crate) fn times() -> Result<(Vec<Times>, Vec<GoalResult>), Failure> {
    let bytes = bytes();
    agree(&bytes)?;
    let report = measure(&bytes, ROUNDS);
    let rows = report.sizes.into_iter().map(|row| {
        let cells = row.ways.into_iter().map(|cell| (cell.way, cell.ns));
        (row.bytes, cells.collect())
    });
    Ok((rows.collect(), report.goals))
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

/// Every round measures every cell once, so that a slow moment of the machine touches all ways
/// alike.
fn measure(bytes: &[u8], rounds: u16) -> ComparisonReport {
    let mut times = [[f64::INFINITY; WAYS.len()]; SIZES.len()];
    for _ in 0..rounds {
        for (row, size) in times.iter_mut().zip(SIZES) {
            for (cell, way) in row.iter_mut().zip(WAYS) {
                *cell = cell.min(nanoseconds(way.sum, &bytes[..size]));
            }
        }
    }
    let cells = |ns: [f64; WAYS.len()], bytes: f64| -> Vec<Cell> {
        let cell = |(way, ns): (Way, f64)| Cell {
            way: way.name,
            ns,
            gib_per_s: bytes / ns / 1.073_741_824,
        };
        WAYS.into_iter().zip(ns).map(cell).collect()
    };
    let mean: [f64; WAYS.len()] =
        std::array::from_fn(|way| geomean(times.iter().map(|row| row[way])));
    let [bytes, half_words, _, unrolled, simd] = mean;
    let mean_size = geomean(SIZES.into_iter().map(to_f64));
    ComparisonReport {
        schema: 2,
        command: "checksum",
        rounds,
        sizes: SIZES
            .into_iter()
            .zip(&times)
            .map(|(n, ns)| Row {
                bytes: n,
                ways: cells(*ns, to_f64(n)),
            })
            .collect(),
        geomean: cells(mean, mean_size),
        faster_than_byte_loop: bytes / simd,
        faster_than_2_byte_loop: half_words / simd,
        faster_than_unrolled: unrolled / simd,
        goals: goals(&times),
    }
}

/// SIMD stands last. There is to be no size at which another way is faster.
fn goals(times: &[[f64; WAYS.len()]; SIZES.len()]) -> Vec<GoalResult> {
    let worst = times
        .iter()
        .map(|[others @ .., simd]| others.iter().copied().fold(f64::INFINITY, f64::min) / simd);
    let worst = worst.fold(f64::INFINITY, f64::min);
    let name = "SIMD of the best other way, at the worst size";
    vec![GoalResult::new(
        name.to_owned(),
        worst,
        Limit::AtLeast(1.0),
        " ×",
    )]
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

fn geomean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut logarithms, mut n) = (0.0, 0.0);
    for value in values {
        logarithms += value.ln();
        n += 1.0;
    }
    (logarithms / n).exp()
}

fn to_f64(size: usize) -> f64 {
    u32::try_from(size).map_or(f64::NAN, f64::from)
}

fn table(report: &ComparisonReport) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    write!(out, "{:>8}", "bytes")?;
    for way in WAYS {
        write!(out, "  {:>12} {:>8}", format!("{}, ns", way.name), "GiB/s")?;
    }
    writeln!(out)?;
    let rows = report
        .sizes
        .iter()
        .map(|row| (row.bytes.to_string(), &row.ways));
    for (label, cells) in rows.chain([("geomean".to_owned(), &report.geomean)]) {
        write!(out, "{label:>8}")?;
        for (cell, way) in cells.iter().zip(WAYS) {
            let width = 4 + way.name.len().max(8);
            write!(
                out,
                "  {:>width$.1} {:>8.1}",
                cell.ns,
                cell.gib_per_s,
                width = width.max(12)
            )?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "\nSIMD is {:.1} times as fast as the byte loop, {:.1} times as the 2-byte loop, {:.1} times as the unrolled loop.",
        report.faster_than_byte_loop, report.faster_than_2_byte_loop, report.faster_than_unrolled
    )?;
    write!(out, "{}", goals::table(&report.goals))?;
    Ok(out)
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
        assert!(goals(&times)[0].met);
        times[3][3] = 0.9;
        let goals = goals(&times);
        assert!(!goals[0].met && goals[0].value == Some(0.9));
    }
}
