//! The reference: RFC 8439 as it is written, one packet at a time.

use super::job::Job;
use super::scalar::{Poly, chacha20_block, chacha20_xor, zeroize};
use crate::TAG_LEN;
use crate::kernels::batch::differs;

fn poly(job: &Job<'_>) -> Poly {
    let [n0, n1, n2] = job.nonce_words();
    let mut block = chacha20_block(job.key.bytes(), [0, n0, n1, n2]);
    let poly = Poly::new(block.first_chunk().expect("a block is longer"));
    zeroize(&mut block);
    poly
}

fn tag(job: &Job<'_>, ciphertext: &[u8]) -> [u8; TAG_LEN] {
    poly(job).tag(job.aad, ciphertext)
}

pub(crate) fn seal(job: &mut Job<'_>) {
    let len = job.gather();
    chacha20_xor(job.key.bytes(), job.nonce_words(), &mut job.out[..len]);
    let tag = tag(job, &job.out[..len]);
    job.out[len..].copy_from_slice(&tag);
}

pub(crate) fn open(job: &mut Job<'_>) -> bool {
    let Some((ciphertext, expected)) = job.sealed().split_last_chunk() else {
        return false;
    };
    if differs(&tag(job, ciphertext), expected) {
        return false;
    }
    let len = ciphertext.len();
    if job.in_place == 0 {
        job.out[..len].copy_from_slice(&job.src[..len]);
    }
    chacha20_xor(job.key.bytes(), job.nonce_words(), &mut job.out[..len]);
    true
}
