//! AVX-512: the batch is the unit of work.
//!
//! Stages of sealing a chunk of packets: **fill** lanes with key blocks and text blocks → **XOR** 32 at a time →
//! **authenticate** eight packets at a time → **write tags**. Of opening: **keys** of the next chunk go through the
//! lanes together with the text of this one → **authenticate** → **compare** → **XOR** the authentic packets only.

mod chacha;
mod poly;

use super::lanes::{Lanes, MAX_LANES};
use super::scalar::Poly;
use super::{Job, differs};
use crate::{OpenJob, SealJob, TAG_LEN};
use chacha::States;
use core::arch::x86_64::_mm256_zeroall;
use core::hint::black_box;
use core::mem::MaybeUninit;
use core::{ptr, slice};
use poly::Text;

/// The most packets that are worked on together.
const CHUNK: usize = 32;
/// Chunks of more than eight packets stay below this number of bytes, for the first-level cache.
const CHUNK_BYTES: usize = 12 << 10;

/// What a batch leaves behind that must be wiped.
#[repr(C, align(64))]
struct Secrets {
    keys: [[u8; 32]; CHUNK],
    states: MaybeUninit<States>,
    /// Whose states they are: null before the first.
    states_of: *const [u8; 32],
}

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512ifma")
        && is_x86_feature_detected!("bmi2")
}

/// How many of the jobs, whose texts have these lengths, make the next chunk.
fn chunk(lens: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let mut count = 0;
    for len in lens.take(CHUNK) {
        bytes += len;
        if count >= 8 && bytes > CHUNK_BYTES {
            return count & !7;
        }
        count += 1;
    }
    count
}

/// Runs the lanes and clears them.
fn run(lanes: &mut Lanes, states: &mut MaybeUninit<States>, states_of: &mut *const [u8; 32]) {
    let len = lanes.len();
    lanes.idle(len.next_multiple_of(4).max(if len > 24 { MAX_LANES } else { 0 }));
    // SAFETY: the lanes were pushed under the promises of `Lanes`; this module is entered only if `available`. The
    // states belong to the key in `states_of`: only here are they written, and a batch's keys live until its end.
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
                let ready = !lanes.mixed() && *states_of == lanes.keys[0];
                chacha::many(lanes, states, ready);
                *states_of = if lanes.mixed() { MIXED } else { lanes.keys[0] };
            }
        }
    }
    lanes.clear();
}

/// Marks states of several keys; the address of none.
const MIXED: *const [u8; 32] = ptr::without_provenance(1);

pub(super) fn seal(jobs: &mut [SealJob<'_>]) {
    let mut lanes = Lanes::new();
    let mut secrets = Secrets {
        keys: [[0; 32]; CHUNK],
        states: MaybeUninit::uninit(),
        states_of: ptr::null(),
    };
    let mut run = |lanes: &mut Lanes| run(lanes, &mut secrets.states, &mut secrets.states_of);
    let mut tags = [[0; TAG_LEN]; CHUNK];
    let mut rest = jobs;
    while !rest.is_empty() {
        let count = chunk(rest.iter().map(|job| job.0.out.len()));
        let (now, later) = rest.split_at_mut(count);
        for (job, key) in now.iter_mut().zip(&mut secrets.keys) {
            let packet = job.0.to_seal();
            lanes.push_key(&packet, key, &mut run);
            lanes.push_text(&packet, &mut run);
        }
        run(&mut lanes);
        let text = |i: usize| {
            let job: &Job<'_> = &now[i].0;
            (&job.out[..job.out.len() - TAG_LEN], job.aad)
        };
        authenticate(count, text, &secrets.keys, &mut tags);
        for (job, tag) in now.iter_mut().zip(&tags) {
            let at = job.0.out.len() - TAG_LEN;
            job.0.out[at..].copy_from_slice(tag);
        }
        rest = later;
    }
    wipe(&mut secrets);
}

pub(super) fn open(jobs: &mut [OpenJob<'_>]) {
    let mut lanes = Lanes::new();
    let mut secrets = Secrets {
        keys: [[0; 32]; CHUNK],
        states: MaybeUninit::uninit(),
        states_of: ptr::null(),
    };
    let mut run = |lanes: &mut Lanes| run(lanes, &mut secrets.states, &mut secrets.states_of);
    let mut tags = [[0; TAG_LEN]; CHUNK];
    let count_of = |jobs: &[OpenJob<'_>]| chunk(jobs.iter().map(|job| job.0.sealed().len()));
    let mut rest = jobs;
    let mut count = count_of(rest);
    for (job, key) in rest[..count].iter_mut().zip(&mut secrets.keys) {
        lanes.push_key(&job.0.to_open(), key, &mut run);
    }
    while !rest.is_empty() {
        run(&mut lanes);
        let (now, later) = rest.split_at_mut(count);
        let text = |i: usize| {
            let sealed = now[i].0.sealed();
            (
                &sealed[..sealed.len().saturating_sub(TAG_LEN)],
                now[i].0.aad,
            )
        };
        authenticate(count, text, &secrets.keys, &mut tags);
        for (job, tag) in now.iter_mut().zip(&tags) {
            let expected = job.0.sealed().last_chunk::<TAG_LEN>();
            job.1 = expected.is_some_and(|expected| !differs(expected, tag));
            if job.1 {
                lanes.push_text(&job.0.to_open(), &mut run);
            }
        }
        count = count_of(later);
        for (job, key) in later[..count].iter_mut().zip(&mut secrets.keys) {
            lanes.push_key(&job.0.to_open(), key, &mut run);
        }
        rest = later;
    }
    run(&mut lanes);
    wipe(&mut secrets);
}

/// The tags of a chunk of packets: `text` gives a packet's ciphertext and additional data.
fn authenticate<'t>(
    count: usize,
    text: impl Fn(usize) -> (&'t [u8], &'t [u8]),
    keys: &[[u8; 32]; CHUNK],
    tags: &mut [[u8; TAG_LEN]; CHUNK],
) {
    let mut at = 0;
    while at < count {
        at += if count - at > 8 {
            together::<2>(at, count, &text, keys, tags)
        } else {
            together::<1>(at, count, &text, keys, tags)
        };
    }
    for (i, tag) in tags[..count].iter_mut().enumerate() {
        let (text, aad) = text(i);
        if !aad.is_empty() {
            *tag = scalar(text, aad, &keys[i]);
        }
    }
}

/// The tags of up to 8 * `G` packets from `at` on; returns how many. Those with additional data get none.
fn together<'t, const G: usize>(
    at: usize,
    count: usize,
    text: impl Fn(usize) -> (&'t [u8], &'t [u8]),
    keys: &[[u8; 32]; CHUNK],
    tags: &mut [[u8; TAG_LEN]; CHUNK],
) -> usize {
    let n = (count - at).min(8 * G);
    // Idle lanes repeat the first packet.
    let describe = |i: usize| {
        let (text, aad) = text(at + if i < n { i } else { 0 });
        Text {
            text: text.as_ptr(),
            len: if aad.is_empty() { text.len() } else { 0 },
        }
    };
    let texts: [[Text; 8]; G] =
        core::array::from_fn(|g| core::array::from_fn(|i| describe(8 * g + i)));
    let keys = &keys[at..at + 8 * G];
    let tags = &mut tags[at..at + 8 * G];
    let all = &texts.as_flattened()[..n];
    let longest = all.iter().map(Text::blocks).max().unwrap_or(0);
    let alone: usize = all.iter().map(|text| cost_alone(text.blocks())).sum();
    // SAFETY: the texts are borrowed until after the calls; this module is entered only if `available`.
    unsafe {
        if alone > G * cost_together(longest) {
            let (keys, _) = keys.as_chunks().0.as_chunks();
            let (tags, _) = tags.as_chunks_mut().0.as_chunks_mut();
            poly::packets::<G>(&texts, &keys[0], &mut tags[0]);
        } else {
            for ((text, key), tag) in all.iter().zip(keys).zip(tags) {
                *tag = if text.blocks() < SCALAR_BELOW {
                    scalar(slice::from_raw_parts(text.text, text.len), &[], key)
                } else {
                    poly::blocks(text, key)
                };
            }
        }
    }
    n
}

/// Below this number of blocks the integer unit is faster than the preparation of eight powers.
const SCALAR_BELOW: usize = 10;

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

fn scalar(text: &[u8], aad: &[u8], key: &[u8; 32]) -> [u8; TAG_LEN] {
    let mut poly = Poly::new(key);
    poly.padded(aad);
    poly.padded(text);
    poly.finish(aad.len(), text.len())
}

/// Wipes what is secret: the Poly1305 keys, the ChaCha20 states if there were any, and the registers.
fn wipe(secrets: &mut Secrets) {
    secrets.keys = [[0; 32]; CHUNK];
    if !secrets.states_of.is_null() {
        // SAFETY: the memory is exclusive, and nobody reads it as states again.
        unsafe { secrets.states.as_mut_ptr().write_bytes(0, 1) };
    }
    // Whoever might read it now must find it wiped: the compiler cannot leave the stores out.
    black_box(secrets);
    // SAFETY: AVX is there if AVX-512 is; the compiler keeps nothing in vector registers across the instruction.
    unsafe { _mm256_zeroall() };
}
