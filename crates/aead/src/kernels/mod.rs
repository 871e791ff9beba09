//! The implementations, and the choice between them. All unsafe code of the crate is in this
//! module.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod ahead;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod avx2;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod avx512;
mod batch;
pub(crate) mod job;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) mod keystream;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod lanes;
#[cfg(feature = "ring")]
mod library;
#[cfg(feature = "ring")]
pub(crate) mod library_key;
pub(crate) mod portable;
pub(crate) mod scalar;
#[cfg(all(test, target_arch = "x86_64", target_feature = "sse2"))]
mod zeroized_tests;

use crate::kernels::job::Job;
use crate::{Key, OpenJob, SealJob};
use core::sync::atomic::{AtomicU8, Ordering};

/// Clears the vector registers that the compiler may use for plain Rust.
pub(crate) fn zeroize_baseline_registers() {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
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
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
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
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Avx2,
    #[cfg(feature = "ring")]
    Library,
    Portable,
}

/// All of them, the fastest first.
const CHOICES: &[Choice] = &[
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Choice::Avx512,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Choice::Avx2,
    #[cfg(feature = "ring")]
    Choice::Library,
    Choice::Portable,
];

impl Choice {
    fn is_available(self) -> bool {
        match self {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx512 => avx512::available(),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx2 => avx2::available(),
            #[cfg(feature = "ring")]
            Self::Library => true,
            Self::Portable => true,
        }
    }
}

/// The place of the one in use in [`CHOICES`], once it was chosen, or else [`NONE`].
static ACTIVE: AtomicU8 = AtomicU8::new(NONE);
const NONE: u8 = u8::MAX;

/// Makes this place of [`CHOICES`] the one in use, unless one is; returns that.
fn activate(choice: usize) -> usize {
    let (relaxed, number) = (Ordering::Relaxed, u8::try_from(choice).unwrap_or(NONE));
    let before = ACTIVE.compare_exchange(NONE, number, relaxed, relaxed);
    before.map_or_else(usize::from, |_| choice)
}

impl Kernel {
    /// All that this processor can run, the fastest first. `avx2` leaves batches that are too small
    /// to what does them faster, the library.
    pub fn available() -> impl Iterator<Item = Self> {
        let here = CHOICES.iter().filter(|choice| choice.is_available());
        here.map(|choice| Self::of(*choice))
    }

    fn of(choice: Choice) -> Self {
        Self {
            choice,
            mixed: true,
        }
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
    #[inline]
    pub fn active() -> Self {
        let active = usize::from(ACTIVE.load(Ordering::Relaxed));
        CHOICES
            .get(active)
            .map_or_else(Self::choose_active, |choice| Self::of(*choice))
    }

    #[cold]
    fn choose_active() -> Self {
        let fastest = CHOICES.iter().position(|choice| choice.is_available());
        // The portable kernel, the last, runs on every processor.
        let active = activate(fastest.unwrap_or(CHOICES.len() - 1));
        Self::of(CHOICES[active])
    }

    /// See [`prefer`](crate::prefer).
    pub(crate) fn prefer(name: &str) {
        let is_it = |choice: &Choice| choice.is_available() && Self::of(*choice).name() == name;
        if let Some(preferred) = CHOICES.iter().position(is_it) {
            activate(preferred);
        }
    }

    /// The name that [`prefer`](crate::prefer) knows.
    pub fn name(self) -> &'static str {
        match self.choice {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Choice::Avx512 => "avx512",
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Choice::Avx2 => "avx2",
            #[cfg(feature = "ring")]
            Choice::Library => "ring",
            Choice::Portable => "portable",
        }
    }

    /// The kernel for a batch whose packets, with their tags, have these lengths.
    fn choose(self, lens: impl ExactSizeIterator<Item = usize> + Clone) -> Choice {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2", feature = "ring"))]
        if self.choice == Choice::Avx2 && self.mixed && avx2::leaves_to_library(lens) {
            return Choice::Library;
        }
        #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", feature = "ring")))]
        let _ = lens;
        self.choice
    }

    /// Seals as [`seal_one`](crate::seal_one) does.
    pub fn seal_one(self, key: &Key, counter: u64, out: &mut [u8]) {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if matches!(self.choice, Choice::Avx2 | Choice::Avx512) && ahead::seal(key, counter, out) {
            return self.zeroize_after_one();
        }
        self.seal(&mut [SealJob::in_place(key, counter, out)]);
    }

    /// Opens as [`open_one`](crate::open_one) does.
    pub fn open_one(self, key: &Key, counter: u64, text: &mut [u8]) -> bool {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if matches!(self.choice, Choice::Avx2 | Choice::Avx512)
            && let Some(authentic) = ahead::open(key, counter, text)
        {
            self.zeroize_after_one();
            return authentic;
        }
        let mut job = [OpenJob::in_place(key, counter, text)];
        self.open(&mut job);
        job[0].is_authentic()
    }

    /// Zeroizes the registers. What the library of C copies keys with may be the upper sixteen of AVX-512.
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    fn zeroize_after_one(self) {
        match self.choice {
            Choice::Avx512 => avx512::zeroize_all_registers(),
            _ => zeroize_baseline_registers(),
        }
    }

    /// Seals as [`seal`](crate::seal) does.
    pub fn seal(self, jobs: &mut [SealJob<'_>]) {
        match self.choose(jobs.iter().map(|job| job.0.out.len())) {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Choice::Avx512 => avx512::seal(jobs),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Choice::Avx2 => avx2::seal(jobs),
            Choice::Portable => {
                jobs.iter_mut().for_each(|job| portable::seal(&mut job.0));
                zeroize_baseline_registers();
            }
            #[cfg(feature = "ring")]
            Choice::Library => jobs.iter_mut().for_each(|job| library::seal(&mut job.0)),
        }
    }

    /// Opens as [`open`](crate::open) does.
    pub fn open(self, jobs: &mut [OpenJob<'_>]) {
        let each = |jobs: &mut [OpenJob<'_>], open: fn(&mut Job<'_>) -> bool| {
            jobs.iter_mut().for_each(|job| job.1 = open(&mut job.0));
        };
        match self.choose(jobs.iter().map(|job| job.0.sealed().len())) {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Choice::Avx512 => avx512::open(jobs),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Choice::Avx2 => avx2::open(jobs),
            Choice::Portable => {
                each(jobs, portable::open);
                zeroize_baseline_registers();
            }
            #[cfg(feature = "ring")]
            Choice::Library => each(jobs, library::open),
        }
    }
}
