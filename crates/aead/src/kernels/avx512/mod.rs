//! AVX-512: the batch is the unit of work.
//!
//! Of a batch, trains (many packets that differ only in nonce and text) go side by side, `train`
//! says how; what is between them goes block by block.
//!
//! Stages of sealing a chunk of packets: **fill** lanes with key blocks and text blocks → **XOR**
//! 32 at a time → **authenticate** eight packets at a time → **write tags**. Of opening: **keys**
//! of the next chunk go through the lanes together with the text of this one → **authenticate** →
//! **compare** → **XOR** the authentic packets only.

mod alone;
mod chacha;
mod poly;
mod registers;
mod train;

use super::avx2;
use super::job::Job;
use super::lanes::{Lanes, MAX_LANES, Packet, Text};
use crate::kernels::avx512::poly::{SCALAR_BELOW, tag};
use crate::kernels::avx512::registers::zeroize_registers;
use crate::kernels::batch::{chunk, differs};
use crate::{OpenJob, SealJob, TAG_LEN};
use chacha::States;
use core::hint::black_box;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::{ptr, slice};
use train::Train;

/// The most packets that are worked on together.
const CHUNK: usize = 32;
/// Batches with no more lanes than this are opened at once, into scratch memory.
const FEW_LANES: usize = 24;

cpufeatures::new!(features, "avx512f", "avx512bw", "avx512vl", "avx512ifma");

pub(super) fn available() -> bool {
    avx2::available() && features::get()
}

pub(super) fn seal(jobs: &mut [SealJob<'_>]) {
    if let [job] = jobs
        && seal_or_open_alone(&mut job.0, true).is_some()
    {
        // Sealed.
    } else if jobs.len() <= 8 {
        Batch::<8>::new().work().seal(jobs);
    } else {
        Batch::<CHUNK>::new().work().seal(jobs);
    }
}

pub(super) fn open(jobs: &mut [OpenJob<'_>]) {
    if let [job] = jobs
        && let Some(authentic) = seal_or_open_alone(&mut job.0, false)
    {
        job.1 = authentic;
    } else if jobs.len() > 8 {
        Batch::<CHUNK>::new().work().open(jobs);
    } else if jobs
        .iter()
        .map(|job| 1 + job.0.sealed().len() / 64)
        .sum::<usize>()
        <= FEW_LANES
    {
        Batch::<8>::new().work().open_few(jobs);
    } else {
        Batch::<8>::new().work().open(jobs);
    }
}

/// Works on a single packet if it is small enough to do without a batch; returns whether it is
/// authentic.
fn seal_or_open_alone(job: &mut Job<'_>, sealing: bool) -> Option<bool> {
    let bytes = if sealing { &*job.out } else { job.sealed() };
    // SAFETY: this module is entered only if `available`.
    unsafe {
        match bytes.len().saturating_sub(TAG_LEN) {
            0..=256 => Some(alone::work::<1>(job, sealing)),
            257..=512 => Some(alone::work::<2>(job, sealing)),
            _ => None,
        }
    }
}

/// A batch in chunks of up to `N` packets, a multiple of eight.
#[repr(C, align(64))]
struct Batch<const N: usize> {
    keys: [[u8; 32]; N],
    work: Work<N>,
}

/// A batch at work. Lanes keep pointers to its keys, so that it has no more than a pointer to them
/// itself: a reference to all of it would end those.
#[repr(C, align(64))]
struct Work<const N: usize> {
    lanes: Lanes,
    cipher: Cipher,
    /// A pointer to `N` keys, by which alone they are written and read.
    keys: *mut [u8; 32],
    texts: [Text; N],
    tags: [[u8; TAG_LEN]; N],
}

/// The states of 32 lanes between and in the groups of a batch.
struct Cipher {
    states: MaybeUninit<States>,
    /// Whose states they are: null before the first, [`MIXED`] if they have several keys.
    states_of: *const [u8; 32],
}

/// The address of no key.
const MIXED: *const [u8; 32] = ptr::without_provenance(1);

impl Cipher {
    /// Makes these blocks of the packets of a train.
    fn run_train(&mut self, train: &Train, blocks: Range<u32>) {
        self.states_of = MIXED;
        // SAFETY: the packets and keys are those of a batch, borrowed until it is done; this module
        // is entered only if `available`.
        unsafe { train.run(blocks, &mut self.states) };
    }

    /// Runs the lanes and clears them.
    fn run(&mut self, lanes: &mut Lanes) {
        let len = lanes.len();
        lanes.idle(
            len.next_multiple_of(4)
                .max(if len > FEW_LANES { MAX_LANES } else { 0 }),
        );
        // SAFETY: the lanes were pushed under the promises of `Lanes`; this module is entered only
        // if `available`. The states belong to the key in `states_of`: only here are they written,
        // and keys outlive the batch.
        unsafe {
            match len.div_ceil(4) {
                0 => {}
                1 => chacha::few::<1>(lanes),
                2 => chacha::few::<2>(lanes),
                3 => chacha::few::<3>(lanes),
                4 => chacha::few::<4>(lanes),
                5 => chacha::few::<5>(lanes),
                6 => chacha::few::<6>(lanes),
                _ => {
                    let ready = !lanes.mixed() && self.states_of == lanes.keys[0];
                    chacha::many(lanes, &mut self.states, ready);
                    self.states_of = if lanes.mixed() { MIXED } else { lanes.keys[0] };
                }
            }
        }
        lanes.clear();
    }
}

impl<const N: usize> Batch<N> {
    fn new() -> Self {
        Self {
            keys: [[0; 32]; N],
            work: Work {
                lanes: Lanes::new(),
                cipher: Cipher {
                    states: MaybeUninit::uninit(),
                    states_of: ptr::null(),
                },
                keys: ptr::null_mut(),
                texts: [Text::NONE; N],
                tags: [[0; TAG_LEN]; N],
            },
        }
    }

    fn work(&mut self) -> &mut Work<N> {
        self.work.keys = self.keys.as_mut_ptr();
        &mut self.work
    }
}

impl<const N: usize> Work<N> {
    fn push_key(&mut self, i: usize, packet: &Packet) {
        assert!(i < N, "a chunk has more packets than keys");
        let Self {
            lanes,
            cipher,
            keys,
            ..
        } = self;
        lanes.push_key(packet, keys.wrapping_add(i), &mut |lanes| cipher.run(lanes));
    }

    fn push_text(&mut self, packet: &Packet) {
        let Self { lanes, cipher, .. } = self;
        lanes.push_text(packet, &mut |lanes| cipher.run(lanes));
    }

    fn run(&mut self) {
        self.cipher.run(&mut self.lanes);
    }

    /// Seals trains and what is between them.
    fn seal(&mut self, jobs: &mut [SealJob<'_>]) {
        let mut rest = jobs;
        while !rest.is_empty() {
            let (count, is_train) = train::next(rest.iter().map(|job| &job.0), N);
            let (now, later) = rest.split_at_mut(count);
            if is_train {
                self.seal_train(now);
            } else {
                self.seal_apart(now);
            }
            rest = later;
        }
    }

    fn seal_train(&mut self, jobs: &mut [SealJob<'_>]) {
        let packets = jobs.iter_mut().map(|job| job.0.sealing());
        let train = Train::new(packets, self.keys);
        self.cipher.run_train(&train, 0..train.blocks());
        for (text, job) in self.texts.iter_mut().zip(&*jobs) {
            *text = Text::new(job.0.out.as_ptr(), job.0.out.len() - TAG_LEN, job.0.aad);
        }
        self.write_tags(jobs);
    }

    fn seal_apart(&mut self, jobs: &mut [SealJob<'_>]) {
        let mut rest = jobs;
        while !rest.is_empty() {
            let count = chunk(N, rest.iter().map(|job| job.0.out.len()));
            let (now, later) = rest.split_at_mut(count);
            for (i, job) in now.iter_mut().enumerate() {
                let packet = job.0.sealing();
                self.texts[i] = Text::new(packet.dst, packet.len, job.0.aad);
                self.push_key(i, &packet);
                self.push_text(&packet);
            }
            self.run();
            self.write_tags(now);
            rest = later;
        }
    }

    /// Makes the tags of a chunk.
    fn write_tags(&mut self, jobs: &mut [SealJob<'_>]) {
        self.authenticate(jobs.len());
        for (job, tag) in jobs.iter_mut().zip(&self.tags) {
            let at = job.0.out.len() - TAG_LEN;
            job.0.out[at..].copy_from_slice(tag);
        }
    }

    /// Opens trains and what is between them.
    fn open(&mut self, jobs: &mut [OpenJob<'_>]) {
        let mut rest = jobs;
        while !rest.is_empty() {
            let (count, is_train) = train::next(rest.iter().map(|job| &job.0), N);
            let (now, later) = rest.split_at_mut(count);
            if is_train {
                self.open_train(now);
            } else {
                self.open_apart(now);
            }
            rest = later;
        }
    }

    fn open_train(&mut self, jobs: &mut [OpenJob<'_>]) {
        let packets = jobs.iter_mut().map(|job| job.0.opening());
        let train = Train::new(packets, self.keys);
        self.cipher.run_train(&train, 0..1);
        self.verify(jobs);
        if jobs.iter().all(|job| job.1) {
            self.cipher.run_train(&train, 1..train.blocks());
        } else {
            for job in jobs.iter_mut().filter(|job| job.1) {
                self.push_text(&job.0.opening());
            }
            self.run();
        }
    }

    fn open_apart(&mut self, jobs: &mut [OpenJob<'_>]) {
        let mut rest = jobs;
        let mut count = self.keys(rest);
        while !rest.is_empty() {
            self.run();
            let (now, later) = rest.split_at_mut(count);
            self.verify(now);
            for job in now.iter_mut().filter(|job| job.1) {
                self.push_text(&job.0.opening());
            }
            count = self.keys(later);
            rest = later;
        }
        self.run();
    }

    /// Fills lanes with the keys of the next chunk; returns how many packets it has.
    fn keys(&mut self, jobs: &mut [OpenJob<'_>]) -> usize {
        let count = chunk(N, jobs.iter().map(|job| job.0.sealed().len()));
        for (i, job) in jobs[..count].iter_mut().enumerate() {
            self.push_key(i, &job.0.opening());
        }
        count
    }

    /// Opens packets that fit [`FEW_LANES`]: keys and text go through the lanes in one pass, the
    /// text into scratch memory from which only what is authentic gets out.
    fn open_few(&mut self, jobs: &mut [OpenJob<'_>]) {
        let mut scratch = [0; FEW_LANES * 64];
        let mut free = &mut scratch[..];
        let mut used = 0;
        for (i, job) in jobs.iter_mut().enumerate() {
            let mut packet = job.0.opening();
            if packet.in_place > 0 {
                packet.src = packet.dst;
                packet.src_end = packet.len;
                packet.in_place = 0;
            }
            let (text, rest) = free.split_at_mut(packet.len);
            packet.dst = text.as_mut_ptr();
            self.push_key(i, &packet);
            self.push_text(&packet);
            used += packet.len;
            free = rest;
        }
        self.run();
        self.verify(jobs);
        let mut texts = &scratch[..];
        for job in jobs {
            let len = job.0.sealed().len().saturating_sub(TAG_LEN);
            let (text, rest) = texts.split_at(len);
            if job.1 {
                job.0.out[..len].copy_from_slice(text);
            }
            texts = rest;
        }
        scratch[..used].fill(0);
        black_box(&mut scratch);
    }

    /// Compares the tags of a chunk.
    fn verify(&mut self, jobs: &mut [OpenJob<'_>]) {
        for (job, text) in jobs.iter().zip(&mut self.texts) {
            let sealed = job.0.sealed();
            let len = sealed.len().saturating_sub(TAG_LEN);
            *text = Text::new(sealed.as_ptr(), len, job.0.aad);
        }
        self.authenticate(jobs.len());
        for (job, tag) in jobs.iter_mut().zip(&self.tags) {
            let expected = job.0.sealed().last_chunk();
            job.1 = expected.is_some_and(|expected| !differs(expected, tag));
        }
    }

    /// Makes the tags of the first `count` texts.
    fn authenticate(&mut self, count: usize) {
        let mut at = 0;
        while at < count {
            at += match count - at {
                // Up to three beyond eight cost less by themselves than a second group.
                0..=11 => self.together::<1>(at, count),
                25.. if self.texts[at].len <= 256 => self.together::<4>(at, count),
                _ => self.together::<2>(at, count),
            };
        }
    }

    /// The tags of up to 8 * `G` packets from `at` on, side by side if they are alike enough;
    /// returns their number.
    fn together<const G: usize>(&mut self, at: usize, count: usize) -> usize {
        let n = (count - at).min(8 * G);
        let texts = &mut self.texts[at..at + 8 * G];
        // SAFETY: there are as many keys as texts, and nobody writes to them while this reads them.
        let keys = unsafe { slice::from_raw_parts(self.keys.wrapping_add(at), 8 * G) };
        let tags = &mut self.tags[at..at + 8 * G];
        let (mut alone, mut longest, mut plain) = (0, 0, true);
        for text in &texts[..n] {
            alone += cost_alone(text.blocks());
            longest = longest.max(text.blocks());
            plain &= text.aad.is_null();
        }
        // SAFETY: the texts are those of jobs, borrowed until the batch is done; this module is
        // entered only if `available`.
        unsafe {
            if plain && alone > G * cost_together(longest) {
                // Idle lanes repeat the first packet.
                let first = texts[0];
                texts[n..].fill(first);
                let (texts, _) = texts.as_chunks().0.as_chunks();
                let (keys, _) = keys.as_chunks().0.as_chunks();
                let (tags, _) = tags.as_chunks_mut().0.as_chunks_mut();
                poly::packets::<G>(&texts[0], &keys[0], &mut tags[0]);
                return n;
            }
            for ((text, key), tag) in texts[..n].iter().zip(keys).zip(tags) {
                *tag = self::tag(text, key);
            }
        }
        n
    }
}

impl<const N: usize> Drop for Batch<N> {
    /// Zeroizes what is secret: the Poly1305 keys, the ChaCha20 states if there were any, and the
    /// registers.
    fn drop(&mut self) {
        self.keys = [[0; 32]; N];
        let cipher = &mut self.work.cipher;
        if !cipher.states_of.is_null() {
            // SAFETY: the memory is exclusive, and nobody reads it as states again.
            unsafe { cipher.states.as_mut_ptr().write_bytes(0, 1) };
        }
        // The memory must hold zeros when it is next read: the compiler cannot leave the stores
        // out.
        black_box(self);
        // SAFETY: this module is entered only if `available`.
        unsafe { zeroize_registers() };
    }
}

/// Zeroizes all vector registers, where this kernel is the one that is used.
pub(super) fn zeroize_all_registers() {
    // SAFETY: this module is entered only if `available`.
    unsafe { zeroize_registers() };
}

/// Cycles for the tag of a packet by itself, measured.
fn cost_alone(blocks: usize) -> usize {
    if blocks < SCALAR_BELOW {
        20 + 14 * blocks
    } else {
        150 + 3 * blocks
    }
}

/// Cycles for the tags of eight packets, the longest with this number of blocks, measured.
fn cost_together(blocks: usize) -> usize {
    250 + 14 * blocks
}
