//! The library: ring.

use super::job::Job;
use crate::Key;
use crate::TAG_LEN;
use ring::aead::{Aad, LessSafeKey, Nonce};

fn library(key: &Key) -> &LessSafeKey {
    key.library.get(key.bytes())
}

pub(super) fn seal(job: &mut Job<'_>) {
    let len = job.gather();
    let nonce = Nonce::assume_unique_for_key(job.nonce);
    let (text, tag) = job.out.split_at_mut(len);
    let sealed = library(job.key).seal_in_place_separate_tag(nonce, Aad::from(job.aad), text);
    tag.copy_from_slice(sealed.expect("shorter than 256 GiB").as_ref());
}

pub(super) fn open(job: &mut Job<'_>) -> bool {
    let nonce = Nonce::assume_unique_for_key(job.nonce);
    let aad = Aad::from(job.aad);
    if job.in_place > 0 {
        return library(job.key).open_in_place(nonce, aad, job.out).is_ok();
    }
    let Some((ciphertext, tag)) = job.src.split_last_chunk::<TAG_LEN>() else {
        return false;
    };
    let text = &mut job.out[..ciphertext.len()];
    text.copy_from_slice(ciphertext);
    let tag = ring::aead::Tag::from(*tag);
    library(job.key)
        .open_in_place_separate_tag(nonce, aad, tag, text, 0..)
        .is_ok()
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
