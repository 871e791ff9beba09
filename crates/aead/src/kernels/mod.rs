//! The implementations, and the choice between them. All unsafe code of the crate is in this
//! module.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod library;
mod portable;
mod scalar;
#[cfg(all(test, target_arch = "x86_64"))]
mod zeroized_tests;

use crate::{Key, OpenJob, SealJob, TAG_LEN};
pub(crate) use library::LibraryKey;
use std::sync::OnceLock;

/// One packet in either direction.
pub(crate) struct Job<'a> {
    pub(crate) key: &'a Key,
    pub(crate) nonce: [u8; 12],
    pub(crate) aad: &'a [u8],
    /// This many bytes of the input stand in `out` already; the rest follows in `src`.
    pub(crate) in_place: usize,
    pub(crate) src: &'a [u8],
    pub(crate) out: &'a mut [u8],
}

impl Job<'_> {
    fn nonce_words(&self) -> [u32; 3] {
        let words = self.nonce.as_chunks().0;
        core::array::from_fn(|i| u32::from_le_bytes(words[i]))
    }

    /// For sealing: puts the whole plaintext into `out` and returns its length.
    pub(crate) fn gather(&mut self) -> usize {
        let len = self.out.len() - TAG_LEN;
        let (copied, zeros) = self.out[self.in_place..len].split_at_mut(self.src.len());
        copied.copy_from_slice(self.src);
        zeros.fill(0);
        len
    }

    /// For opening: ciphertext and tag.
    fn sealed(&self) -> &[u8] {
        if self.in_place == 0 {
            self.src
        } else {
            self.out
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Job<'_> {
    /// Whether they differ only in nonce, text and additional data.
    fn is_like(&self, other: &Self) -> bool {
        core::ptr::eq(self.key, other.key)
            && self.out.len() == other.out.len()
            && self.src.len() == other.src.len()
            && self.in_place == other.in_place
    }

    fn sealing(&mut self) -> lanes::Packet {
        let len = self.out.len() - TAG_LEN;
        // A block of which only the beginning stands in `out` is put together there.
        let end = self.in_place.next_multiple_of(64).min(len);
        if self.in_place < end {
            let missing = end - self.in_place;
            let (now, later) = self.src.split_at(missing.min(self.src.len()));
            let (copied, zeros) = self.out[self.in_place..end].split_at_mut(now.len());
            copied.copy_from_slice(now);
            zeros.fill(0);
            self.src = later;
            self.in_place = end;
        }
        lanes::Packet {
            key: self.key.bytes(),
            row: lanes::row(0, self.nonce_words()),
            src: self.src.as_ptr().wrapping_sub(self.in_place),
            src_end: self.in_place + self.src.len(),
            in_place: self.in_place,
            dst: self.out.as_mut_ptr(),
            len,
        }
    }

    /// Of a job that is shorter than a tag, nothing is opened.
    fn opening(&mut self) -> lanes::Packet {
        let len = self.sealed().len().saturating_sub(TAG_LEN);
        lanes::Packet {
            key: self.key.bytes(),
            row: lanes::row(0, self.nonce_words()),
            src: self.src.as_ptr(),
            src_end: len,
            in_place: self.in_place,
            dst: self.out.as_mut_ptr(),
            len,
        }
    }
}

/// Chunks of more than eight packets stay below this number of bytes, for the first-level cache.
#[cfg(target_arch = "x86_64")]
const CHUNK_BYTES: usize = 12 << 10;

/// How many of the jobs, whose texts have these lengths, make the next chunk.
#[cfg(target_arch = "x86_64")]
fn chunk(most: usize, lens: impl Iterator<Item = usize>) -> usize {
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
fn differs(a: &[u8; TAG_LEN], b: &[u8; TAG_LEN]) -> bool {
    let difference = u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b);
    core::hint::black_box(difference) != 0
}

/// Clears the vector registers that the compiler may use for plain Rust.
fn zeroize_baseline_registers() {
    #[cfg(target_arch = "x86_64")]
    macro_rules! clear {
        ($($register:tt)+) => {
            // SAFETY: every x86-64 has these registers; nothing else changes, and the compiler is
            // told of them.
            unsafe {
                core::arch::asm!(
                    $(concat!("pxor ", $register, ", ", $register),)+
                    $(out($register) _,)+
                    options(nomem, nostack, preserves_flags),
                );
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    clear!("xmm0" "xmm1" "xmm2" "xmm3" "xmm4" "xmm5" "xmm6" "xmm7"
           "xmm8" "xmm9" "xmm10" "xmm11" "xmm12" "xmm13" "xmm14" "xmm15");
}

/// An implementation that this processor can run, to compare it with others: [`seal`](crate::seal)
/// and [`open`](crate::open) choose by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernel {
    choice: Choice,
    /// Leaves to others what they do faster.
    mixed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
    Library,
}

impl Kernel {
    /// All that this processor can run, the fastest first. `avx2` leaves batches that are too small
    /// to what does them faster: the library, or `portable` for a single packet of up to 64 bytes.
    pub fn available() -> impl Iterator<Item = Self> {
        let all = [
            #[cfg(target_arch = "x86_64")]
            (Choice::Avx512, avx512::available()),
            #[cfg(target_arch = "x86_64")]
            (Choice::Avx2, avx2::available()),
            (Choice::Library, true),
            (Choice::Portable, true),
        ];
        all.into_iter()
            .filter(|(_, here)| *here)
            .map(|(choice, _)| Self {
                choice,
                mixed: true,
            })
    }

    /// The same, leaving nothing to others, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn unmixed(self) -> Self {
        Self {
            mixed: false,
            ..self
        }
    }

    /// The one in use: what `ADIT_AEAD` names if this processor can run it, or else the fastest.
    #[expect(
        clippy::missing_panics_doc,
        reason = "the portable kernel runs on every processor"
    )]
    pub fn active() -> Self {
        static ACTIVE: OnceLock<Kernel> = OnceLock::new();
        *ACTIVE.get_or_init(|| {
            let wanted = std::env::var("ADIT_AEAD").unwrap_or_default();
            Self::available()
                .find(|kernel| kernel.name() == wanted)
                .or_else(|| Self::available().next())
                .expect("some run everywhere")
        })
    }

    /// The name that `ADIT_AEAD` knows.
    pub fn name(self) -> &'static str {
        match self.choice {
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 => "avx2",
            Choice::Library => "ring",
            Choice::Portable => "portable",
        }
    }

    /// The kernel for a batch whose packets, with their tags, have these lengths. The thresholds
    /// are measured.
    fn choose(self, lens: impl ExactSizeIterator<Item = usize> + Clone) -> Choice {
        #[cfg(target_arch = "x86_64")]
        let short = |most| lens.clone().all(|len| len <= most + TAG_LEN);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = lens;
        match self.choice {
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 if self.mixed && lens.len() == 1 && short(64) => Choice::Portable,
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 if self.mixed && (lens.len() < 4 || lens.len() == 4 && short(256)) => {
                Choice::Library
            }
            choice => choice,
        }
    }

    /// As [`seal`](crate::seal).
    pub fn seal(self, jobs: &mut [SealJob<'_>]) {
        match self.choose(jobs.iter().map(|job| job.0.out.len())) {
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512 => avx512::seal(jobs),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 => avx2::seal(jobs),
            Choice::Portable => {
                jobs.iter_mut().for_each(|job| portable::seal(&mut job.0));
                zeroize_baseline_registers();
            }
            Choice::Library => jobs.iter_mut().for_each(|job| library::seal(&mut job.0)),
        }
    }

    /// As [`open`](crate::open).
    pub fn open(self, jobs: &mut [OpenJob<'_>]) {
        let each = |jobs: &mut [OpenJob<'_>], open: fn(&mut Job<'_>) -> bool| {
            jobs.iter_mut().for_each(|job| job.1 = open(&mut job.0));
        };
        match self.choose(jobs.iter().map(|job| job.0.sealed().len())) {
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512 => avx512::open(jobs),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 => avx2::open(jobs),
            Choice::Portable => {
                each(jobs, portable::open);
                zeroize_baseline_registers();
            }
            Choice::Library => each(jobs, library::open),
        }
    }
}
