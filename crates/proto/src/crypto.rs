//! The functions that the whitepaper names in 5.4, over libraries.

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac};
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{ChaCha20Poly1305, Tag, XChaCha20Poly1305};
use zeroize::Zeroizing;

use crate::secret::{PublicKey, Secret};

/// 32 bytes that are zeroized when dropped: for values that live as long as one call of
/// [`zeroizing_stack`], which also zeroizes the copies that a move leaves. A secret that lives
/// longer is a [`Secret`].
pub(crate) type Zeroized32 = Zeroizing<[u8; 32]>;

/// HASH: BLAKE2s with 32 bytes of output.
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Blake2s256::default();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize_fixed().into()
}

/// MAC: *keyed* BLAKE2s with 16 bytes of output. Not an HMAC.
pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let mut mac = Blake2sMac::<U16>::new_from_slice(key).expect("at most 32 bytes");
    for part in parts {
        Update::update(&mut mac, part);
    }
    mac.finalize_fixed().into()
}

/// HMAC: BLAKE2s in RFC 2104's construction. Not keyed BLAKE2s.
fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Zeroized32 {
    const BLOCK: usize = 64;
    let mut pad = Zeroizing::new([0x36; BLOCK]);
    for (byte, key) in pad.iter_mut().zip(key) {
        *byte ^= key;
    }
    let mut inner = Blake2s256::default();
    inner.update(&*pad);
    for part in parts {
        inner.update(part);
    }
    for byte in pad.iter_mut() {
        *byte ^= 0x36 ^ 0x5c;
    }
    let inner = Zeroizing::new(<[u8; 32]>::from(inner.finalize_fixed()));
    Zeroizing::new(hash(&[&*pad, &*inner]))
}

/// KDF_N: τ0 = HMAC(key, input), τ1 = HMAC(τ0, 1), τi = HMAC(τ0, τi-1 ‖ i).
pub(crate) fn kdf<const N: usize>(key: &[u8; 32], input: &[u8]) -> [Zeroized32; N] {
    let secret = hmac(key, &[input]);
    let mut before: Option<Zeroized32> = None;
    let mut number = 0;
    std::array::from_fn(|_| {
        number += 1;
        let output = match &before {
            None => hmac(&secret, &[&[number]]),
            Some(before) => hmac(&secret, &[&**before, &[number]]),
        };
        before = Some(output.clone());
        output
    })
}

/// Runs `work` on keys, then overwrites the stack that it used: BLAKE2s, ChaCha20-Poly1305 and
/// Curve25519 pass keys and what they make of them by value, so that copies stay in their frames.
/// `work` returns no key that does not stand on the heap.
pub(crate) fn zeroizing_stack<T>(work: impl FnOnce() -> T) -> T {
    adit_aead::zeroizing_stack::<STACK_DEPTH, T>(work)
}

/// The deepest of them uses 6 KiB as a release is built, and 50 without any optimization.
const STACK_DEPTH: usize = 16 << 10;

/// The public key of a private key.
pub(crate) fn public_key(secret: &[u8; 32]) -> [u8; 32] {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if graviola::util::is_cpu_supported() {
        return assembly::public_key(secret);
    }
    portable::public_key(secret)
}

/// DH, unless the result is all zero: then the public key has low order and the result no secret.
pub(crate) fn dh(secret: &Secret, public: &[u8; 32]) -> Option<Zeroized32> {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if graviola::util::is_cpu_supported() {
        return assembly::dh(secret.bytes(), public);
    }
    portable::dh(secret.bytes(), public)
}

/// Curve25519 in assembly that is proven to be right (s2n-bignum's): twice as fast. It needs ADX
/// and AVX2, or ARM's cryptographic extension.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod assembly {
    use super::{Zeroized32, Zeroizing};
    use graviola::key_agreement::x25519::{PublicKey, StaticPrivateKey};

    pub(super) fn public_key(secret: &[u8; 32]) -> [u8; 32] {
        let secret = StaticPrivateKey::from_array(secret);
        secret.public_key().as_bytes()
    }

    pub(super) fn dh(secret: &[u8; 32], public: &[u8; 32]) -> Option<Zeroized32> {
        let secret = StaticPrivateKey::from_array(secret);
        let shared = secret.diffie_hellman(&PublicKey::from_array(public));
        Some(Zeroizing::new(shared.ok()?.0))
    }
}

/// Curve25519 for every CPU.
mod portable {
    use super::{Zeroized32, Zeroizing};
    use x25519_dalek::{PublicKey, StaticSecret};

    pub(super) fn public_key(secret: &[u8; 32]) -> [u8; 32] {
        PublicKey::from(&StaticSecret::from(*secret)).to_bytes()
    }

    pub(super) fn dh(secret: &[u8; 32], public: &[u8; 32]) -> Option<Zeroized32> {
        let shared = StaticSecret::from(*secret).diffie_hellman(&(*public).into());
        shared
            .was_contributory()
            .then(|| Zeroizing::new(shared.to_bytes()))
    }
}

/// AEAD with counter 0, in place; returns the tag.
pub(crate) fn seal(key: &[u8; 32], text: &mut [u8], aad: &[u8]) -> [u8; 16] {
    ChaCha20Poly1305::new(&(*key).into())
        .encrypt_inout_detached(&[0; 12].into(), aad, text.into())
        .expect("short")
        .into()
}

/// Undoes [`seal`]; `None` if the tag is wrong.
pub(crate) fn open(key: &[u8; 32], text: &mut [u8], tag: &[u8; 16], aad: &[u8]) -> Option<()> {
    ChaCha20Poly1305::new(&(*key).into())
        .decrypt_inout_detached(&[0; 12].into(), aad, text.into(), &Tag::from(*tag))
        .ok()
}

/// XAEAD, in place; returns the tag.
pub(crate) fn xseal(key: &[u8; 32], nonce: &[u8; 24], text: &mut [u8], aad: &[u8]) -> [u8; 16] {
    XChaCha20Poly1305::new(&(*key).into())
        .encrypt_inout_detached(&(*nonce).into(), aad, text.into())
        .expect("short")
        .into()
}

/// Undoes [`xseal`]; `None` if the tag is wrong.
pub(crate) fn xopen(
    key: &[u8; 32],
    nonce: &[u8; 24],
    text: &mut [u8],
    tag: &[u8; 16],
    aad: &[u8],
) -> Option<()> {
    XChaCha20Poly1305::new(&(*key).into())
        .decrypt_inout_detached(&(*nonce).into(), aad, text.into(), &Tag::from(*tag))
        .ok()
}

impl Secret {
    /// The public key, if this is a private key.
    pub fn public_key(&self) -> PublicKey {
        zeroizing_stack(|| PublicKey(public_key(self.bytes())))
    }
}

#[cfg(test)]
#[path = "crypto_tests.rs"]
mod tests;
