//! AVX2: fewer than four packets are worked on one by one. In batches lanes are packed across packets as for AVX-512, sixteen at a time; Poly1305 runs in the
//! integer unit at the same time, a packet or two behind when sealing, and ahead when opening.

mod alone;
mod chacha;
mod feed;

use super::keystream::{COUNTERS, KeystreamBlocks};
use super::lanes::{Lanes, Text};
use crate::kernels::avx2::feed::SLOTS;
use crate::kernels::batch::differs;
use crate::{OpenJob, SealJob, TAG_LEN};
use chacha::Scratch;
use core::arch::x86_64::_mm256_zeroall;
use core::hint::black_box;
use feed::Feed;

/// The number of packets for which keys are made when opening, from the one to be decrypted on: one
/// run of lanes.
const AHEAD: usize = chacha::WIDTH;

/// Fewer packets than this, each no longer than [`LONGEST`], are worked on one by one.
const FEW: usize = 4;
/// In bytes of text.
const LONGEST: usize = alone::LONGEST;

cpufeatures::new!(features, "avx2", "bmi2");

pub(super) fn available() -> bool {
    features::get()
}

pub(super) fn seal(jobs: &mut [SealJob<'_>]) {
    if few_and_short(jobs.iter().map(|job| job.0.out.len())) {
        for job in jobs {
            // SAFETY: this module is entered only if `available`.
            unsafe { alone::seal(&mut job.0) };
        }
    } else {
        Batch::new().seal(jobs);
    }
}

pub(super) fn open(jobs: &mut [OpenJob<'_>]) {
    if few_and_short(jobs.iter().map(|job| job.0.sealed().len())) {
        for job in jobs {
            // SAFETY: this module is entered only if `available`.
            job.1 = unsafe { alone::open(&mut job.0) };
        }
    } else {
        Batch::new().open(jobs);
    }
}

/// Whether the library is faster for packets of these lengths, with their tags. The thresholds are
/// measured.
#[cfg(feature = "ring")]
pub(super) fn leaves_to_library(lens: impl ExactSizeIterator<Item = usize> + Clone) -> bool {
    let some_short = |most| lens.clone().any(|len| len <= most + TAG_LEN);
    let some_long = |most| lens.clone().any(|len| len > most + TAG_LEN);
    lens.len() < FEW && (some_short(512) || some_long(LONGEST))
        || lens.len() == FEW && !some_long(256)
}

/// Whether packets of these lengths, with their tags, are worked on one by one.
fn few_and_short(mut lens: impl ExactSizeIterator<Item = usize>) -> bool {
    lens.len() < FEW && lens.all(|len| len <= LONGEST + TAG_LEN)
}

/// Makes the first two blocks of each counter from `first` on.
pub(super) fn blocks_ahead(key: &[u8; 32], first: u64, to: &mut [KeystreamBlocks; COUNTERS]) {
    // SAFETY: only AVX-512 and this kernel make blocks ahead, and both are there only if this is
    // `available`.
    unsafe { alone::blocks_ahead(key, first, to) };
}

/// A batch at work.
struct Batch {
    lanes: Lanes,
    cipher: Cipher,
    keys: [[u8; 32]; SLOTS],
}

struct Cipher {
    scratch: Scratch,
    feed: Feed,
}

impl Cipher {
    /// Runs the lanes and clears them.
    fn run(&mut self, lanes: &mut Lanes) {
        if lanes.len() > 0 {
            // SAFETY: the lanes were pushed under the promises of `Lanes`, the packets made ready
            // under those of `Feed`; this module is entered only if `available`.
            unsafe { chacha::sixteen(lanes, &mut self.scratch, &mut self.feed) };
        }
    }

    /// Finishes the tags of the packets before `end`, which are ready.
    fn finish(&mut self, end: usize) {
        // SAFETY: the packets were made ready under the promises of `Feed`; this module is entered
        // only if `available`.
        unsafe { self.feed.finish(end) };
    }
}

impl Batch {
    fn new() -> Self {
        Self {
            lanes: Lanes::of(chacha::WIDTH),
            cipher: Cipher {
                // SAFETY: this module is entered only if `available`.
                scratch: unsafe { Scratch::new() },
                feed: Feed::new(),
            },
            keys: [[0; 32]; SLOTS],
        }
    }

    fn seal(&mut self, jobs: &mut [SealJob<'_>]) {
        let Self {
            lanes,
            cipher,
            keys,
        } = self;
        // From here on, keys are written and read through pointers only.
        let keys = keys.as_mut_ptr();
        cipher.feed.keys = keys;
        let count = jobs.len();
        for (i, job) in jobs.iter_mut().enumerate() {
            // The packet that had the slot has been encrypted, as fewer than SLOTS have lanes.
            cipher.finish((i + 1).saturating_sub(SLOTS));
            let packet = job.0.sealing();
            let slot = i % SLOTS;
            cipher.feed.texts[slot] = Text::new(packet.dst, packet.len, job.0.aad);
            cipher.feed.tags[slot] = packet.dst.wrapping_add(packet.len).cast();
            let key = keys.wrapping_add(slot);
            let flush = &mut |lanes: &mut Lanes| {
                cipher.run(lanes);
                cipher.feed.ready = i;
            };
            lanes.push_key(&packet, key, flush);
            lanes.push_text(&packet, flush);
        }
        cipher.run(lanes);
        cipher.feed.ready = count;
        cipher.finish(count);
    }

    fn open(&mut self, jobs: &mut [OpenJob<'_>]) {
        let Self {
            lanes,
            cipher,
            keys,
        } = self;
        // As when sealing.
        let keys = keys.as_mut_ptr();
        cipher.feed.keys = keys;
        let mut tags = [[0; TAG_LEN]; SLOTS];
        let tags = tags.as_mut_ptr();
        let mut keyed = 0;
        for i in 0..jobs.len() {
            // 1. The keys of packets to come share lanes with text.
            let end = jobs.len().min(i + AHEAD);
            for job in &mut jobs[keyed..end] {
                let slot = keyed % SLOTS;
                let packet = job.0.opening();
                let sealed = job.0.sealed();
                let len = sealed.len().saturating_sub(TAG_LEN);
                cipher.feed.texts[slot] = Text::new(sealed.as_ptr(), len, job.0.aad);
                cipher.feed.tags[slot] = tags.wrapping_add(slot);
                keyed += 1;
                lanes.push_key(
                    &packet,
                    keys.wrapping_add(slot),
                    &mut |lanes: &mut Lanes| {
                        cipher.run(lanes);
                        cipher.feed.ready = keyed;
                    },
                );
            }
            // 2. The tag of this one, most often made by now.
            if cipher.feed.ready <= i {
                cipher.run(lanes);
                cipher.feed.ready = keyed;
            }
            cipher.finish(i + 1);
            // SAFETY: the tag is there, and nothing else works on it now.
            let tag = unsafe { &*tags.wrapping_add(i % SLOTS) };
            let job = &mut jobs[i];
            let expected = job.0.sealed().last_chunk();
            job.1 = expected.is_some_and(|expected| !differs(expected, tag));
            // 3. Only what is authentic is decrypted.
            if job.1 {
                lanes.push_text(&job.0.opening(), &mut |lanes: &mut Lanes| {
                    cipher.run(lanes);
                    cipher.feed.ready = keyed;
                });
            }
        }
        cipher.run(lanes);
    }
}

impl Drop for Batch {
    /// Zeroizes what is secret: the Poly1305 keys and states, the ChaCha20 states, and the
    /// registers.
    fn drop(&mut self) {
        self.keys = [[0; 32]; SLOTS];
        self.cipher.feed.zeroize();
        // SAFETY: this module is entered only if `available`.
        self.cipher.scratch = unsafe { Scratch::new() };
        // The memory must hold zeros when it is next read: the compiler cannot leave the stores
        // out.
        black_box(self);
        // SAFETY: this module is entered only if `available`; the compiler keeps nothing in vector
        // registers across the instruction.
        unsafe { _mm256_zeroall() };
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_processor_has_what_the_standard_library_says() {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2");
        assert_eq!(super::available(), avx2);
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512ifma");
        assert_eq!(crate::kernels::avx512::available(), avx512);
    }
}
