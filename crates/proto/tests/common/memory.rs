//! Searches all writable memory of the process for secrets, which it knows by their complements
//! only, or it would find its own.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of this"
)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Set for the process of a test's own.
const ALONE: &str = "ADIT_MEMORY_ALONE";

/// Runs the test `name` in a process of its own, and there, `body`.
pub fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    print!("{text}");
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// What must not be found: half of it is as bad as all. The first and the last byte are left out:
/// they differ between a private key as it was drawn and as Curve25519 uses it.
#[derive(Clone)]
pub struct Needle {
    name: String,
    complements: [[u8; PIECE]; 2],
}

const PIECE: usize = 15;

#[derive(Clone, Default)]
pub struct Needles(Arc<Mutex<Vec<Needle>>>);

impl Needles {
    pub fn add(&self, name: &str, secret: &[u8]) {
        let piece = |from: usize| std::array::from_fn(|i| !secret[from + i]);
        let complements = [piece(1), piece(1 + PIECE)];
        self.0.lock().unwrap().push(Needle {
            name: name.to_owned(),
            complements,
        });
    }

    /// Those that were added until now.
    #[must_use]
    pub fn so_far(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().unwrap().clone())))
    }

    /// A secret that stands somewhere in memory: its bytes go to the needle one by one.
    pub fn add_at(&self, name: &str, at: u64) {
        let memory = memory();
        let byte = |i: usize| {
            let mut byte = [0];
            memory.read_exact_at(&mut byte, at + i as u64).unwrap();
            !byte[0]
        };
        let piece = |from: usize| std::array::from_fn(|i| byte(from + i));
        self.0.lock().unwrap().push(Needle {
            name: name.to_owned(),
            complements: [piece(1), piece(1 + PIECE)],
        });
    }

    /// The names of those that are somewhere in memory that can be written, and where.
    pub fn found(&self) -> Vec<String> {
        let needles = self.0.lock().unwrap();
        let complements: Vec<_> = needles
            .iter()
            .flat_map(|needle| {
                needle
                    .complements
                    .map(|complement| (complement, &needle.name))
            })
            .collect();
        let mut first = vec![Vec::new(); 1 << 16];
        for (i, (complement, _)) in complements.iter().enumerate() {
            first[usize::from(u16::from_ne_bytes([complement[0], complement[1]]))].push(i);
        }
        let mut found = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        let memory = memory();
        for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
            let mut words = line.split_whitespace();
            let range = words.next().unwrap();
            if !words.next().unwrap().starts_with("rw") {
                continue;
            }
            let what = words.nth(3).unwrap_or("anonymous");
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            let mut at = start;
            while at + (PIECE as u64) < end {
                let len = buffer.len().min(usize::try_from(end - at).unwrap());
                if memory.read_exact_at(&mut buffer[..len], at).is_err() {
                    break;
                }
                for (offset, window) in buffer[..len].windows(PIECE).enumerate() {
                    for &i in &first[usize::from(!u16::from_ne_bytes([window[0], window[1]]))] {
                        let (complement, name) = complements[i];
                        if window.iter().zip(complement).all(|(&byte, no)| byte == !no) {
                            let place = at - start + offset as u64;
                            found
                                .push(format!("{name}: {what} + {place:#x} of {:#x}", end - start));
                        }
                    }
                }
                buffer.fill(0);
                at += (len - PIECE + 1) as u64;
            }
        }
        found
    }

    #[track_caller]
    pub fn expect_none(&self, when: &str) {
        let found = self.found();
        assert!(found.is_empty(), "{when}:\n{}", found.join("\n"));
    }

    #[track_caller]
    pub fn expect(&self, name: &str) {
        let found = self.found();
        assert!(found.iter().any(|place| place.contains(name)), "{found:?}");
    }
}

pub fn memory() -> File {
    File::open("/proc/self/mem").unwrap()
}

/// What the test itself left on the stack.
#[inline(never)]
pub fn wipe_own_stack() {
    std::hint::black_box(&mut [0_u8; 256 << 10]);
}

/// Fills `bytes` at random, byte by byte: the generator's words are no part of a secret.
pub fn fill(bytes: &mut [u8], state: &mut u64) {
    for byte in bytes {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        *byte = state.to_be_bytes()[0];
    }
}
