//! The implementations, and the choice between them. All unsafe code of the crate is in this
//! module.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod batch;
pub(crate) mod job;
#[cfg(target_arch = "x86_64")]
pub(crate) mod keystream;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod library;
pub(crate) mod library_key;
pub(crate) mod portable;
pub(crate) mod scalar;
#[cfg(all(test, target_arch = "x86_64"))]
mod zeroized_tests;

use crate::kernels::job::Job;
use crate::{Key, OpenJob, SealJob};
use std::sync::OnceLock;

/// Clears the vector registers that the compiler may use for plain Rust.
pub(crate) fn zeroize_baseline_registers() {
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

/// The one in use, once it was chosen.
static ACTIVE: OnceLock<Kernel> = OnceLock::new();

impl Kernel {
    /// All that this processor can run, the fastest first. `avx2` leaves batches that are too small
    /// to what does them faster, the library.
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

    /// The one in use: what [`prefer`](crate::prefer) named first, or else the fastest.
    #[expect(
        clippy::missing_panics_doc,
        reason = "the portable kernel runs on every processor"
    )]
    pub fn active() -> Self {
        *ACTIVE.get_or_init(|| Self::available().next().expect("some run everywhere"))
    }

    /// See [`prefer`](crate::prefer).
    pub(crate) fn prefer(name: &str) {
        if let Some(kernel) = Self::available().find(|kernel| kernel.name() == name) {
            let _ = ACTIVE.set(kernel);
        }
    }

    /// The name that [`prefer`](crate::prefer) knows.
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
        let some_short = |most| lens.clone().any(|len| len <= most + crate::TAG_LEN);
        #[cfg(target_arch = "x86_64")]
        let some_long = |most| lens.clone().any(|len| len > most + crate::TAG_LEN);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = lens;
        match self.choice {
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2
                if self.mixed
                    && (lens.len() < avx2::FEW
                        && (some_short(512) || some_long(avx2::LONGEST))
                        || lens.len() == avx2::FEW && !some_long(256)) =>
            {
                Choice::Library
            }
            choice => choice,
        }
    }

    /// Seals as [`seal_one`](crate::seal_one) does.
    pub fn seal_one(self, key: &Key, counter: u64, out: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.choice, Choice::Avx2 | Choice::Avx512) && ahead::seal(key, counter, out) {
            return zeroize_baseline_registers();
        }
        self.seal(&mut [SealJob::in_place(key, counter, out)]);
    }

    /// Opens as [`open_one`](crate::open_one) does.
    pub fn open_one(self, key: &Key, counter: u64, text: &mut [u8]) -> bool {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.choice, Choice::Avx2 | Choice::Avx512)
            && let Some(authentic) = ahead::open(key, counter, text)
        {
            zeroize_baseline_registers();
            return authentic;
        }
        let mut job = [OpenJob::in_place(key, counter, text)];
        self.open(&mut job);
        job[0].is_authentic()
    }

    /// Seals as [`seal`](crate::seal) does.
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

    /// Opens as [`open`](crate::open) does.
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
