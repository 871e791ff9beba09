//! A statistical timing test in the manner of dudect (Reparaz, Balasch, Verbauwhede: "Dude, is my
//! code constant time?", DATE 2017): seals with a fixed key and text and with random ones, in
//! random order, and compares the two distributions of times with Welch's t-test. |t| above 4.5
//! would be evidence of a leak.
//!
//! `cargo run --release -p adit-aead --example dudect [measurements]`

use std::hint::black_box;
use std::time::Instant;

use adit_aead::{Kernel, Key, OpenJob, SealJob, TAG_LEN};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// One measurement: nanoseconds to seal, or to refuse to open, a batch of equal packets.
fn measure(kernel: Kernel, key: &Key, open: bool, packets: &mut [Vec<u8>]) -> f64 {
    let numbered = (0..).zip(packets);
    if open {
        let mut jobs: Vec<_> = numbered
            .map(|(i, p)| OpenJob::in_place(key, i, p))
            .collect();
        let start = Instant::now();
        kernel.open(&mut jobs);
        start.elapsed().as_secs_f64() * 1e9
    } else {
        let mut jobs: Vec<_> = numbered
            .map(|(i, p)| SealJob::in_place(key, i, p))
            .collect();
        let start = Instant::now();
        kernel.seal(&mut jobs);
        start.elapsed().as_secs_f64() * 1e9
    }
}

fn t_value(a: &[f64], b: &[f64]) -> f64 {
    let statistics = |times: &[f64]| {
        let n = times.len() as f64;
        let mean = times.iter().sum::<f64>() / n;
        let variance = times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, variance / n)
    };
    let ((mean_a, a), (mean_b, b)) = (statistics(a), statistics(b));
    (mean_a - mean_b) / (a + b).sqrt()
}

fn main() {
    let measurements = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(100_000);
    let mut random = Random(1);
    for kernel in Kernel::available()
        .filter(|kernel| kernel.name() != "ring")
        .map(Kernel::unmixed)
    {
        for (len, batch) in [(64, 1), (1420, 1), (1420, 16)] {
            for open in [false, true] {
                let measurements = if kernel.name() == "portable" {
                    measurements / 8
                } else {
                    measurements
                };
                let mut times = [Vec::new(), Vec::new()];
                for _ in 0..measurements {
                    let class = (random.next() & 1) as usize;
                    let (mut key, mut text) = ([0; 32], vec![0; len + TAG_LEN]);
                    // Both classes draw, and clear or keep with the same stores: what one of them
                    // did more would be measured, as it leaves another state of the caches behind.
                    random.fill(&mut key);
                    random.fill(&mut text);
                    let keep = black_box([0, 0xff][class]);
                    for byte in key.iter_mut().chain(&mut text) {
                        *byte &= keep;
                    }
                    let key = Key::new(&key);
                    let mut packets = vec![text; batch];
                    times[class].push(measure(kernel, &key, open, &mut packets));
                }
                // Interrupts are no leak: the slowest tenth of all is left out, at one threshold
                // for both classes.
                let mut all = times.concat();
                all.sort_by(f64::total_cmp);
                let most = all[all.len() * 9 / 10];
                times
                    .iter_mut()
                    .for_each(|times| times.retain(|t| *t <= most));
                println!(
                    "{:8} {} {len:5} B x {batch:2}: t = {:+.2}",
                    kernel.name(),
                    if open { "open" } else { "seal" },
                    t_value(&times[0], &times[1]),
                );
            }
        }
    }
}
