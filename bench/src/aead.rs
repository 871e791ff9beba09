//! `adit-lab aead`: how fast ChaCha20-Poly1305 is, in every implementation, in one run.
//!
//! Stages: seal the packets once → for each cell of the table, rounds in which the implementations
//! take turns → the fastest run of each → table or JSON.

use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use adit_aead::{Kernel, Key, OpenJob, SealJob, TAG_LEN};
use aws_lc_rs::aead as aws;
use chacha20poly1305::aead::KeyInit;
use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{AeadInOut, ChaCha20Poly1305};
use clap::Args;
use ring::aead as ring_aead;
use serde::Serialize;

use crate::goals::{self, GoalResult, Limit};
use crate::output;

const LENS: [usize; 8] = [64, 128, 256, 512, 1024, 1420, 8920, 16384];
const BATCHES: [usize; 5] = [1, 8, 16, 45, 64];
const KEY: [u8; 32] = [0x42; 32];

/// Measures ChaCha20-Poly1305: every kernel of adit-aead that this processor can run, ring,
/// aws-lc-rs and RustCrypto.
///
/// Seals and opens batches of packets in place with one key and consecutive counters. In every cell
/// the implementations take turns, and the fastest of their short runs counts, so that other work
/// on the machine disturbs as little as possible. Cycles are those of the core while it measures:
/// its frequency is measured before each cell with a chain of dependent multiplications and
/// additions, 4 cycles a link.
#[derive(Args, Clone, Debug)]
pub(crate) struct AeadArgs {
    /// Print JSON instead of a table.
    ///
    /// One object with `schema`, `command`, `cpu`, `adit` (the kernel that Adit uses here) and
    /// `results`: one for each `impl`, `op` (seal or open), `len` (bytes) and `batch` (packets),
    /// with `gbytes_per_s` (10^9 bytes), `ns_per_packet` and `cycles_per_byte` (null without a
    /// byte). Each of the `goals` has `name`, `value` (times as fast as ring), `goal` and `met`.
    /// Fields are only ever added under the same schema number.
    #[arg(long)]
    json: bool,
    /// A first impression in seconds: fewer rounds.
    #[arg(long)]
    quick: bool,
    /// Measure only packets of these lengths.
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=65535))]
    len: Vec<u32>,
    /// Measure only batches of this many packets.
    #[arg(long, value_delimiter = ',', value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: Vec<u32>,
    /// Measure only these implementations, as the table names them.
    #[arg(long = "impl", value_delimiter = ',', value_name = "NAME")]
    implementations: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Seal,
    Open,
}

enum Implementation {
    Adit(Kernel),
    Ring(Box<ring_aead::LessSafeKey>),
    AwsLc(Box<aws::LessSafeKey>),
    RustCrypto(ChaCha20Poly1305),
}

#[derive(Serialize)]
struct Table {
    schema: u32,
    command: &'static str,
    cpu: String,
    /// The kernel that adit-aead chooses by itself on this processor.
    adit: &'static str,
    results: Vec<Cell>,
    goals: Vec<GoalResult>,
}

#[derive(Serialize)]
struct Cell {
    #[serde(rename = "impl")]
    implementation: String,
    op: Op,
    len: usize,
    batch: usize,
    gbytes_per_s: f64,
    ns_per_packet: f64,
    /// None for packets without a byte.
    cycles_per_byte: Option<f64>,
}

pub(crate) fn run(args: AeadArgs) -> Result<(), Box<dyn Error>> {
    let chosen = |asked: &[u32], all: &[usize]| -> Result<Vec<usize>, std::num::TryFromIntError> {
        if asked.is_empty() {
            return Ok(all.to_vec());
        }
        asked.iter().map(|n| usize::try_from(*n)).collect()
    };
    let lens = chosen(&args.len, &LENS)?;
    let batches = chosen(&args.batch, &BATCHES)?;
    let mut implementations = implementations()?;
    if !args.implementations.is_empty() {
        for name in &args.implementations {
            if !implementations.iter().any(|(known, _)| known == name) {
                return Err(format!("there is no implementation {name} here").into());
            }
        }
        implementations.retain(|(name, _)| args.implementations.contains(name));
    }
    let mut table = Table {
        schema: 1,
        command: "aead",
        cpu: cpu(),
        adit: adit_aead::implementation(),
        results: Vec::new(),
        goals: Vec::new(),
    };
    for op in [Op::Seal, Op::Open] {
        for &len in &lens {
            for &batch in &batches {
                eprint!("\r{} {len} bytes, batches of {batch}    ", name(op));
                let rounds = if args.quick { 8 } else { 20 };
                table
                    .results
                    .extend(measure(op, len, batch, rounds, &implementations)?);
            }
        }
    }
    eprintln!("\r{:40}", "");
    table.goals = goals(&table);
    let text = if args.json {
        serde_json::to_string(&table)? + "\n"
    } else {
        text(&table)
    };
    Ok(output::print(&text)?)
}

/// How many times as fast as ring a kernel is to be: its name or, where there is none, the one in
/// use; length and batch; and at least so many times.
const GOALS: [(Option<&str>, usize, usize, f64); 6] = [
    (Some("avx512"), 1420, 45, 3.5),
    (Some("avx512"), 64, 64, 5.0),
    (Some("avx512"), 1420, 1, 1.2),
    (Some("avx512"), 16384, 1, 1.5),
    (Some("avx2"), 1420, 45, 1.3),
    (None, 64, 1, 1.0),
];

/// Those that the cells of the table tell something about.
fn goals(table: &Table) -> Vec<GoalResult> {
    let speed = |name: &str, op, len, batch| {
        let of_both = |cell: &&Cell| (cell.op, cell.len, cell.batch) == (op, len, batch);
        let mut cells = table.results.iter().filter(of_both);
        let cell = cells.find(|cell| cell.implementation == name)?;
        Some(1.0 / cell.ns_per_packet)
    };
    let judged = GOALS.iter().flat_map(|&(kernel, len, batch, times)| {
        [Op::Seal, Op::Open].into_iter().filter_map(move |op| {
            let kernel = format!("adit-{}", kernel.unwrap_or(table.adit));
            let ratio = speed(&kernel, op, len, batch)? / speed("ring", op, len, batch)?;
            let name = format!("{} {len} bytes, batch {batch}, {kernel} of ring", name(op));
            Some(GoalResult::new(name, ratio, Limit::AtLeast(times), " ×"))
        })
    });
    judged.collect()
}

fn name(op: Op) -> &'static str {
    match op {
        Op::Seal => "seal",
        Op::Open => "open",
    }
}

fn implementations() -> Result<Vec<(String, Implementation)>, Box<dyn Error>> {
    let mut all: Vec<_> = Kernel::available()
        .filter(|kernel| kernel.name() != "ring")
        .map(|kernel| {
            (
                format!("adit-{}", kernel.name()),
                Implementation::Adit(kernel),
            )
        })
        .collect();
    let key = ring_aead::UnboundKey::new(&ring_aead::CHACHA20_POLY1305, &KEY)
        .map_err(|_| "ring refuses the key")?;
    let key = Box::new(ring_aead::LessSafeKey::new(key));
    all.push(("ring".into(), Implementation::Ring(key)));
    let key = aws::UnboundKey::new(&aws::CHACHA20_POLY1305, &KEY)?;
    let key = Box::new(aws::LessSafeKey::new(key));
    all.push(("aws-lc-rs".into(), Implementation::AwsLc(key)));
    let key = ChaCha20Poly1305::new(&KEY.into());
    all.push(("rustcrypto".into(), Implementation::RustCrypto(key)));
    Ok(all)
}

fn nonce(counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

/// A failure to seal or to open: the measurement would be worth nothing.
const BROKEN: &str = "an implementation does not open what it should";

impl Implementation {
    /// Seals or opens `packets`, which stand `stride` bytes apart in `memory` with room for the
    /// tag.
    fn work(
        &self,
        op: Op,
        key: &Key,
        len: usize,
        stride: usize,
        memory: &mut [u8],
    ) -> Result<(), &'static str> {
        let alone = memory.len() == stride;
        let mut packets = (0_u64..).zip(
            memory
                .chunks_exact_mut(stride)
                .map(|slot| &mut slot[..len + TAG_LEN]),
        );
        match (self, op) {
            (Self::Adit(kernel), Op::Seal) if alone => {
                for (counter, packet) in packets {
                    kernel.seal(&mut [SealJob::in_place(key, counter, packet)]);
                }
            }
            (Self::Adit(kernel), Op::Seal) => {
                let mut jobs: Vec<_> = packets
                    .map(|(counter, packet)| SealJob::in_place(key, counter, packet))
                    .collect();
                kernel.seal(&mut jobs);
            }
            (Self::Adit(kernel), Op::Open) if alone => {
                for (counter, packet) in packets {
                    let mut jobs = [OpenJob::in_place(key, counter, packet)];
                    kernel.open(&mut jobs);
                    if !jobs[0].is_authentic() {
                        return Err(BROKEN);
                    }
                }
            }
            (Self::Adit(kernel), Op::Open) => {
                let mut jobs: Vec<_> = packets
                    .map(|(counter, packet)| OpenJob::in_place(key, counter, packet))
                    .collect();
                kernel.open(&mut jobs);
                if !jobs.iter().all(OpenJob::is_authentic) {
                    return Err(BROKEN);
                }
            }
            (Self::Ring(key), Op::Seal) => {
                for (counter, packet) in packets {
                    let (text, tag) = packet.split_at_mut(len);
                    let nonce = ring_aead::Nonce::assume_unique_for_key(nonce(counter));
                    let sealed =
                        key.seal_in_place_separate_tag(nonce, ring_aead::Aad::empty(), text);
                    tag.copy_from_slice(sealed.map_err(|_| BROKEN)?.as_ref());
                }
            }
            (Self::Ring(key), Op::Open) => {
                for (counter, packet) in packets {
                    let nonce = ring_aead::Nonce::assume_unique_for_key(nonce(counter));
                    key.open_in_place(nonce, ring_aead::Aad::empty(), packet)
                        .map_err(|_| BROKEN)?;
                }
            }
            (Self::AwsLc(key), Op::Seal) => {
                for (counter, packet) in packets {
                    let (text, tag) = packet.split_at_mut(len);
                    let nonce = aws::Nonce::assume_unique_for_key(nonce(counter));
                    let sealed = key.seal_in_place_separate_tag(nonce, aws::Aad::empty(), text);
                    tag.copy_from_slice(sealed.map_err(|_| BROKEN)?.as_ref());
                }
            }
            (Self::AwsLc(key), Op::Open) => {
                for (counter, packet) in packets {
                    let nonce = aws::Nonce::assume_unique_for_key(nonce(counter));
                    key.open_in_place(nonce, aws::Aad::empty(), packet)
                        .map_err(|_| BROKEN)?;
                }
            }
            (Self::RustCrypto(key), Op::Seal) => {
                for (counter, packet) in packets {
                    let (text, tag) = packet.split_at_mut(len);
                    let sealed =
                        key.encrypt_inout_detached(&nonce(counter).into(), &[], text.into());
                    tag.copy_from_slice(&sealed.map_err(|_| BROKEN)?);
                }
            }
            (Self::RustCrypto(key), Op::Open) => packets.try_for_each(|(counter, packet)| {
                let (text, tag) = packet.split_at_mut(len);
                let tag: [u8; TAG_LEN] = tag.as_ref().try_into().map_err(|_| BROKEN)?;
                let text = InOutBuf::from(text);
                key.decrypt_inout_detached(&nonce(counter).into(), &[], text, &tag.into())
                    .map_err(|_| BROKEN)
            })?,
        }
        Ok(())
    }
}

/// One cell of the table for all implementations.
fn measure(
    op: Op,
    len: usize,
    batch: usize,
    rounds: u32,
    implementations: &[(String, Implementation)],
) -> Result<Vec<Cell>, Box<dyn Error>> {
    // Every packet begins a cache line, as in the buffer of a careful caller.
    let stride = (len + TAG_LEN).next_multiple_of(64);
    let size = stride * batch;
    // A run is many batches, each in memory of its own (opening in place consumes it), that
    // together fit the second-level cache: that is where a tunnel finds its packets.
    let copies = (128_usize << 10).div_ceil(size).min(256);
    let key = Key::new(&KEY);
    let mut memory = vec![0x5a_u8; (size * copies) + 64];
    let skew = memory.as_ptr().align_offset(64);
    let memory = &mut memory[skew..][..size * copies];
    let mut fresh = memory.to_vec();
    if op == Op::Open {
        let reference = &implementations[0].1;
        for copy in fresh.chunks_exact_mut(size) {
            reference.work(Op::Seal, &key, len, stride, copy)?;
        }
    }
    let mut best = vec![Duration::MAX; implementations.len()];
    let mut cycle = f64::MAX;
    for _ in 0..rounds {
        cycle = cycle.min(cycle_ns());
        for ((_, implementation), best) in implementations.iter().zip(&mut best) {
            // The first run of a turn is for the caches and branch predictors, which the others
            // left cold.
            for _ in 0..3 {
                memory.copy_from_slice(&fresh);
                let start = Instant::now();
                for copy in memory.chunks_exact_mut(size) {
                    implementation.work(op, &key, len, stride, black_box(copy))?;
                }
                *best = (*best).min(start.elapsed());
            }
        }
    }
    let packets = to_f64(copies * batch);
    Ok(implementations
        .iter()
        .zip(best)
        .map(|((name, _), time)| {
            let ns = time.as_secs_f64() * 1e9 / packets;
            Cell {
                implementation: name.clone(),
                op,
                len,
                batch,
                gbytes_per_s: rounded(to_f64(len) / ns),
                ns_per_packet: rounded(ns),
                cycles_per_byte: (len > 0).then(|| rounded(ns / cycle / to_f64(len))),
            }
        })
        .collect())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a count of packets or bytes, far below 2^52"
)]
fn to_f64(n: usize) -> f64 {
    n as f64
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The length of a cycle of this core, now: 3,000 multiplications (3 cycles) and additions (1
/// cycle), each needing the result of the one before, take 12,000 cycles on every x86-64 core of
/// the last ten years.
fn cycle_ns() -> f64 {
    let mut x = black_box(3_u64);
    let odd = black_box(0x9e37_79b9_7f4a_7c15_u64);
    let start = Instant::now();
    for _ in 0..3000 {
        x = x.wrapping_mul(x).wrapping_add(odd);
    }
    black_box(x);
    start.elapsed().as_secs_f64() * 1e9 / 12000.0
}

/// The processor's name.
pub(crate) fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| std::env::consts::ARCH.into(), |(_, model)| model.into())
}

/// The cells of one operation and batch, by length.
struct Block<'a> {
    op: Op,
    batch: usize,
    columns: Vec<&'a [Cell]>,
}

/// For each operation and batch a block: a line for each implementation, a column for each length.
fn text(table: &Table) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}; adit uses {} here. GB/s (ns per packet; cycles per byte)",
        table.cpu, table.adit
    );
    let mut rest = &table.results[..];
    // Cells come by operation, length, batch, implementation; blocks are by operation and batch.
    let mut blocks: Vec<Block<'_>> = Vec::new();
    while let Some(first) = rest.first() {
        let n = rest
            .iter()
            .take_while(|c| (c.op, c.len, c.batch) == (first.op, first.len, first.batch))
            .count();
        let (cells, later) = rest.split_at(n);
        rest = later;
        let (op, batch) = (first.op, first.batch);
        let of_both = |block: &&mut Block<'_>| (block.op, block.batch) == (op, batch);
        match blocks.iter_mut().find(of_both) {
            Some(block) => block.columns.push(cells),
            None => blocks.push(Block {
                op,
                batch,
                columns: vec![cells],
            }),
        }
    }
    for Block { op, batch, columns } in blocks {
        let _ = write!(out, "\n{:16}", format!("{}, batch {batch}", name(op)));
        for cells in &columns {
            let _ = write!(out, "{:>22}", format!("{} B", cells[0].len));
        }
        out.push('\n');
        for (row, first) in columns[0].iter().enumerate() {
            let _ = write!(out, "{:16}", first.implementation);
            for cells in &columns {
                let c = &cells[row];
                let cycles = c.cycles_per_byte;
                let cycles = cycles.map_or_else(|| "–".to_owned(), |c| format!("{c:.2}"));
                let cell = format!("{:.2} ({:.0}; {cycles})", c.gbytes_per_s, c.ns_per_packet);
                let _ = write!(out, "{cell:>22}");
            }
            out.push('\n');
        }
    }
    if !table.goals.is_empty() {
        out.push('\n');
        out += &goals::table(&table.goals);
    }
    out
}

#[cfg(test)]
#[path = "aead_tests.rs"]
mod tests;
