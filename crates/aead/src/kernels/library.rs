//! The library: ring.

use super::Job;
use crate::{TAG_LEN, zeroizing_stack};
use core::mem::ManuallyDrop;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::hint::black_box;

/// A key in the library's form, zeroized at the end: the library leaves its keys in memory. Making
/// it costs a tenth of sealing a small packet, so it is kept. It is boxed, because it holds the
/// schedules of other ciphers, too.
pub(crate) struct LibraryKey(pub(crate) Box<ManuallyDrop<LessSafeKey>>);

impl LibraryKey {
    pub(crate) fn new(bytes: &[u8; 32]) -> Self {
        // On its way to the box it leaves itself on the stack.
        zeroizing_stack::<{ 8 << 10 }, _>(|| {
            let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).expect("32 bytes");
            Self(Box::new(ManuallyDrop::new(LessSafeKey::new(key))))
        })
    }
}

impl Drop for LibraryKey {
    fn drop(&mut self) {
        let at: *mut LessSafeKey = &mut **self.0;
        // SAFETY: the bytes are those of the key, which is neither used nor dropped any more.
        unsafe { core::ptr::write_bytes(at.cast::<u8>(), 0, size_of::<LessSafeKey>()) };
        black_box(at);
    }
}

pub(super) fn seal(job: &mut Job<'_>) {
    let len = job.gather();
    let nonce = Nonce::assume_unique_for_key(job.nonce);
    let (text, tag) = job.out.split_at_mut(len);
    let sealed = job
        .key
        .library()
        .seal_in_place_separate_tag(nonce, Aad::from(job.aad), text);
    tag.copy_from_slice(sealed.expect("shorter than 256 GiB").as_ref());
}

pub(super) fn open(job: &mut Job<'_>) -> bool {
    let nonce = Nonce::assume_unique_for_key(job.nonce);
    let aad = Aad::from(job.aad);
    if job.in_place > 0 {
        return job.key.library().open_in_place(nonce, aad, job.out).is_ok();
    }
    let Some((ciphertext, tag)) = job.src.split_last_chunk::<TAG_LEN>() else {
        return false;
    };
    let text = &mut job.out[..ciphertext.len()];
    text.copy_from_slice(ciphertext);
    let tag = ring::aead::Tag::from(*tag);
    job.key
        .library()
        .open_in_place_separate_tag(nonce, aad, tag, text, 0..)
        .is_ok()
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
