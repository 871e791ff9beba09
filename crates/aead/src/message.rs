//! Messages of a few blocks, such as those of handshakes, each with a key that is soon dropped: in
//! plain Rust, which begins at once, allocates nothing and takes little of the stack.

use crate::kernels::job::Job;
use crate::kernels::{portable, scalar, zeroize_baseline_registers};
use crate::{Key, TAG_LEN};

/// Seals the plaintext `out[..out.len() - TAG_LEN]` where it stands; the tag, which covers `aad` as
/// well, goes behind it. Never seal two different messages with the same key and nonce.
///
/// This is for messages of handshakes. For packets, [`seal`](crate::seal) is faster.
///
/// # Panics
/// If `out` is shorter than a tag.
pub fn seal_message(key: &[u8; 32], nonce: &[u8; 12], aad: &[u8], out: &mut [u8]) {
    assert!(out.len() >= TAG_LEN, "room for the tag");
    let key = Key::new(key);
    portable::seal(&mut job(&key, nonce, aad, out));
    zeroize_baseline_registers();
}

/// Opens ciphertext and tag where they stand; returns whether they are authentic. Then the plaintext
/// is `text[..text.len() - TAG_LEN]`, and otherwise nothing of it was written.
pub fn open_message(key: &[u8; 32], nonce: &[u8; 12], aad: &[u8], text: &mut [u8]) -> bool {
    let key = Key::new(key);
    let authentic = portable::open(&mut job(&key, nonce, aad, text));
    zeroize_baseline_registers();
    authentic
}

/// [`seal_message`] with a nonce that is long enough to be drawn at random: XChaCha20-Poly1305
/// (draft-irtf-cfrg-xchacha-03).
///
/// # Panics
/// If `out` is shorter than a tag.
pub fn seal_message_extended(key: &[u8; 32], nonce: &[u8; 24], aad: &[u8], out: &mut [u8]) {
    let (key, nonce) = of_extended_nonce(key, nonce);
    seal_message(key.bytes(), &nonce, aad, out);
}

/// [`open_message`] for what [`seal_message_extended`] sealed.
pub fn open_message_extended(
    key: &[u8; 32],
    nonce: &[u8; 24],
    aad: &[u8],
    text: &mut [u8],
) -> bool {
    let (key, nonce) = of_extended_nonce(key, nonce);
    open_message(key.bytes(), &nonce, aad, text)
}

/// The key that belongs to the first 16 bytes of the nonce, and the nonce that the others make: four
/// zero bytes, then these (section 2.3).
fn of_extended_nonce(key: &[u8; 32], nonce: &[u8; 24]) -> (Key, [u8; 12]) {
    let mut short = [0; 12];
    let (first, last) = nonce.split_at(16);
    short[4..].copy_from_slice(last);
    let mut row = [0; 4];
    for (word, bytes) in row.iter_mut().zip(first.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    (scalar::hchacha20(key, row), short)
}

fn job<'a>(key: &'a Key, nonce: &[u8; 12], aad: &'a [u8], out: &'a mut [u8]) -> Job<'a> {
    Job {
        key,
        nonce: *nonce,
        aad,
        in_place: out.len(),
        src: &[],
        out,
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
