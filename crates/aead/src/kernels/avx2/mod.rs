//! AVX2: lanes are packed across packets as for AVX-512, sixteen at a time; Poly1305 runs in the integer unit at the
//! same time, one chunk of packets behind when sealing and one ahead when opening.

mod chacha;
mod feed;

use super::lanes::{Lanes, Packet, Text};
use super::{chunk, differs};
use crate::{OpenJob, SealJob, TAG_LEN};
use core::arch::x86_64::{__m256i, _mm256_setzero_si256, _mm256_zeroall};
use core::hint::black_box;
use feed::Feed;

/// The most packets that are worked on together.
const CHUNK: usize = 16;

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2")
}

pub(super) fn seal(jobs: &mut [SealJob<'_>]) {
    Batch::new().seal(jobs);
}

pub(super) fn open(jobs: &mut [OpenJob<'_>]) {
    Batch::new().open(jobs);
}

/// A batch at work, in chunks.
struct Batch {
    lanes: Lanes,
    cipher: Cipher,
    keys: [[u8; 32]; CHUNK],
    texts: [Text; CHUNK],
}

struct Cipher {
    start: [[__m256i; 16]; 2],
    feed: Feed,
}

impl Cipher {
    /// Runs the lanes and clears them.
    fn run(&mut self, lanes: &mut Lanes) {
        let len = lanes.len();
        lanes.idle(len.next_multiple_of(chacha::WIDTH));
        for from in (0..len).step_by(chacha::WIDTH) {
            // SAFETY: the lanes were pushed under the promises of `Lanes`, the feed started under those of `Feed`;
            // this module is entered only if `available`.
            unsafe {
                chacha::sixteen(lanes, from, &mut self.start, &mut self.feed);
            }
        }
        lanes.clear();
    }
}

impl Batch {
    fn new() -> Self {
        Self {
            lanes: Lanes::new(),
            cipher: Cipher {
                // SAFETY: this module is entered only if `available`.
                start: [[unsafe { _mm256_setzero_si256() }; 16]; 2],
                feed: Feed::new(),
            },
            keys: [[0; 32]; CHUNK],
            texts: [Text::NONE; CHUNK],
        }
    }

    fn push_key(&mut self, i: usize, packet: &Packet) {
        let Self {
            lanes,
            cipher,
            keys,
            ..
        } = self;
        lanes.push_key(packet, &mut keys[i], &mut |lanes| cipher.run(lanes));
    }

    fn push_text(&mut self, packet: &Packet) {
        let Self { lanes, cipher, .. } = self;
        lanes.push_text(packet, &mut |lanes| cipher.run(lanes));
    }

    /// Runs what is in the lanes and finishes the chunk that is being fed.
    fn run(&mut self) {
        self.cipher.run(&mut self.lanes);
        // SAFETY: as in `Cipher::run`.
        unsafe { self.cipher.feed.finish() };
    }

    fn seal(&mut self, jobs: &mut [SealJob<'_>]) {
        let (mut now, mut next) = (0..0, 0);
        while next < jobs.len() || !now.is_empty() {
            // 1. ChaCha20 of the next chunk, beside Poly1305 of this one.
            let count = chunk(CHUNK, jobs[next..].iter().map(|job| job.0.out.len()));
            for (i, job) in jobs[next..][..count].iter_mut().enumerate() {
                let packet = job.0.sealing();
                self.texts[i] = Text::new(packet.dst, packet.len, job.0.aad);
                self.push_key(i, &packet);
                self.push_text(&packet);
            }
            self.run();
            // 2. The tags of this one.
            for (job, tag) in jobs[now].iter_mut().zip(&self.cipher.feed.tags) {
                let at = job.0.out.len() - TAG_LEN;
                job.0.out[at..].copy_from_slice(tag);
            }
            // 3. The next is this one now.
            // SAFETY: the texts are those of jobs, which are not touched until they are finished.
            unsafe {
                self.cipher
                    .feed
                    .start(&self.texts[..count], &self.keys[..count]);
            }
            now = next..next + count;
            next += count;
        }
    }

    fn open(&mut self, jobs: &mut [OpenJob<'_>]) {
        // 1. The keys and the tags of the first chunk.
        let mut count = self.keys(jobs);
        self.run();
        self.verify_next(&jobs[..count]);
        let mut rest = jobs;
        while !rest.is_empty() {
            self.run();
            let (now, later) = rest.split_at_mut(count);
            for (job, tag) in now.iter_mut().zip(&self.cipher.feed.tags) {
                let expected = job.0.sealed().last_chunk();
                job.1 = expected.is_some_and(|expected| !differs(expected, tag));
            }
            // 2. The keys of the next chunk, whose Poly1305 then runs beside ChaCha20 of this one.
            count = self.keys(later);
            self.run();
            self.verify_next(&later[..count]);
            for job in now.iter_mut().filter(|job| job.1) {
                self.push_text(&job.0.opening());
            }
            rest = later;
        }
        self.run();
    }

    /// Fills lanes with the keys of the next chunk; returns how many packets it has.
    fn keys(&mut self, jobs: &mut [OpenJob<'_>]) -> usize {
        let count = chunk(CHUNK, jobs.iter().map(|job| job.0.sealed().len()));
        for (i, job) in jobs[..count].iter_mut().enumerate() {
            self.push_key(i, &job.0.opening());
        }
        count
    }

    fn verify_next(&mut self, jobs: &[OpenJob<'_>]) {
        for (job, text) in jobs.iter().zip(&mut self.texts) {
            let sealed = job.0.sealed();
            let len = sealed.len().saturating_sub(TAG_LEN);
            *text = Text::new(sealed.as_ptr(), len, job.0.aad);
        }
        let count = jobs.len();
        // SAFETY: the texts are those of jobs, which are not touched until they are finished.
        unsafe {
            self.cipher
                .feed
                .start(&self.texts[..count], &self.keys[..count]);
        }
    }
}

impl Drop for Batch {
    /// Wipes what is secret: the Poly1305 keys and states, the ChaCha20 states, and the registers.
    fn drop(&mut self) {
        self.keys = [[0; 32]; CHUNK];
        self.cipher.feed.wipe();
        // SAFETY: this module is entered only if `available`.
        self.cipher.start = [[unsafe { _mm256_setzero_si256() }; 16]; 2];
        // Whoever might read it now must find it wiped: the compiler cannot leave the stores out.
        black_box(self);
        // SAFETY: as above; the compiler keeps nothing in vector registers across the instruction.
        unsafe { _mm256_zeroall() };
    }
}
