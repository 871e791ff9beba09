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
use core::arch::x86_64::_mm256_zeroall;
use core::slice;
use poly::Text;
use zeroize::Zeroize;

/// The most packets that are worked on together.
const CHUNK: usize = 32;
/// Chunks of more than eight packets stay below this number of bytes, for the first-level cache.
const CHUNK_BYTES: usize = 24 << 10;

/// What a batch leaves behind that must be wiped.
#[repr(C, align(64))]
struct Secrets {
    keys: [[u8; 32]; CHUNK],
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
#[inline]
fn run(lanes: &mut Lanes) {
    let len = lanes.len();
    lanes.idle(len.next_multiple_of(4).max(if len > 24 { MAX_LANES } else { 0 }));
    // SAFETY: the lanes were pushed under the promises of `Lanes`; this module is entered only if `available`.
    unsafe {
        match len.div_ceil(4) {
            0 => {}
            1 => chacha::few::<1>(lanes),
            2 => chacha::few::<2>(lanes),
            3 => chacha::few::<3>(lanes),
            4 => chacha::few::<4>(lanes),
            5 => chacha::few::<5>(lanes),
            6 => chacha::few::<6>(lanes),
            _ => chacha::many(lanes),
        }
    }
    lanes.clear();
}

pub(super) fn seal(jobs: &mut [SealJob<'_>]) {
    let mut lanes = Lanes::new();
    let mut secrets = Secrets {
        keys: [[0; 32]; CHUNK],
    };
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
        authenticate(text, &secrets.keys[..count], &mut tags[..count]);
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
    };
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
            (&sealed[..sealed.len().saturating_sub(TAG_LEN)], now[i].0.aad)
        };
        authenticate(text, &secrets.keys[..count], &mut tags[..count]);
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
    text: impl Fn(usize) -> (&'t [u8], &'t [u8]),
    keys: &[[u8; 32]],
    tags: &mut [[u8; TAG_LEN]],
) {
    let describe = |i: usize| {
        let (text, aad) = text(i);
        let len = if aad.is_empty() { text.len() } else { 0 };
        Text {
            text: text.as_ptr(),
            len,
            key: &keys[i],
        }
    };
    let mut at = 0;
    while at < keys.len() {
        let n = (keys.len() - at).min(8);
        // Idle lanes repeat the first packet.
        let eight: [Text; 8] = core::array::from_fn(|i| describe(if i < n { at + i } else { at }));
        let longest = eight.iter().map(Text::blocks).max().unwrap_or(0);
        let alone: usize = eight[..n].iter().map(|text| cost_alone(text.blocks())).sum();
        // SAFETY: the texts are borrowed until after the calls; this module is entered only if `available`.
        unsafe {
            if alone > cost_together(longest) {
                let mut eight_tags = [[[0; TAG_LEN]; 8]];
                poly::packets::<1>(&[eight], &mut eight_tags);
                tags[at..at + n].copy_from_slice(&eight_tags[0][..n]);
            } else {
                for (text, tag) in eight[..n].iter().zip(&mut tags[at..]) {
                    *tag = if text.blocks() < SCALAR_BELOW {
                        scalar(slice::from_raw_parts(text.text, text.len), &[], &*text.key)
                    } else {
                        poly::blocks(text)
                    };
                }
            }
        }
        for i in at..at + n {
            let (text, aad) = text(i);
            if !aad.is_empty() {
                tags[i] = scalar(text, aad, &keys[i]);
            }
        }
        at += n;
    }
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

fn wipe(secrets: &mut Secrets) {
    secrets.keys.zeroize();
    // SAFETY: AVX is there if AVX-512 is; the compiler keeps nothing in vector registers across the instruction.
    unsafe { _mm256_zeroall() };
}
