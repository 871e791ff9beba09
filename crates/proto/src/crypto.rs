//! The functions that the whitepaper names in 5.4.

use adit_aead::TAG_LEN;
use zeroize::Zeroizing;

use crate::blake2s::{BLOCK, Blake2s};
use crate::secret::{PublicKey, Secret};

/// 32 bytes that are zeroized when dropped: for values that live as long as one call of
/// [`zeroizing_stack`], which also zeroizes the copies that a move leaves. A secret that lives
/// longer is a [`Secret`].
pub(crate) type Zeroized32 = Zeroizing<[u8; 32]>;

/// HASH: BLAKE2s with 32 bytes of output.
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    finish(Blake2s::new(), parts)
}

/// MAC: *keyed* BLAKE2s with 16 bytes of output, and a key of at most 32. Not an HMAC.
pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    finish(Blake2s::with_key(key), parts)
}

fn finish<const OUT: usize>(mut hash: Blake2s<OUT>, parts: &[&[u8]]) -> [u8; OUT] {
    for part in parts {
        hash.update(part);
    }
    hash.finish()
}

/// HMAC: BLAKE2s in RFC 2104's construction. Not keyed BLAKE2s.
fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Zeroized32 {
    let mut pad = Zeroizing::new([0x36; BLOCK]);
    for (byte, key) in pad.iter_mut().zip(key) {
        *byte ^= key;
    }
    let mut inner = Blake2s::new();
    inner.update(&*pad);
    for byte in pad.iter_mut() {
        *byte ^= 0x36 ^ 0x5c;
    }
    let inner: Zeroized32 = Zeroizing::new(finish(inner, parts));
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
    use curve25519_dalek::MontgomeryPoint;
    use curve25519_dalek::traits::IsIdentity;

    pub(super) fn public_key(secret: &[u8; 32]) -> [u8; 32] {
        MontgomeryPoint::mul_base_clamped(*secret).to_bytes()
    }

    pub(super) fn dh(secret: &[u8; 32], public: &[u8; 32]) -> Option<Zeroized32> {
        let shared = Zeroizing::new(MontgomeryPoint(*public).mul_clamped(*secret));
        (!shared.is_identity()).then(|| Zeroizing::new(shared.to_bytes()))
    }
}

/// AEAD with counter 0, in place: `message` ends with the room for its tag.
pub(crate) fn seal(key: &[u8; 32], message: &mut [u8], aad: &[u8]) {
    adit_aead::seal_message(key, &[0; 12], aad, message);
}

/// Undoes [`seal`]: `None` if the tag is wrong, or else the text.
pub(crate) fn open<'a>(key: &[u8; 32], message: &'a mut [u8], aad: &[u8]) -> Option<&'a [u8]> {
    let authentic = adit_aead::open_message(key, &[0; 12], aad, message);
    text(authentic, message)
}

/// XAEAD, as [`seal`].
pub(crate) fn xseal(key: &[u8; 32], nonce: &[u8; 24], message: &mut [u8], aad: &[u8]) {
    adit_aead::seal_message_extended(key, nonce, aad, message);
}

/// Undoes [`xseal`], as [`open`].
pub(crate) fn xopen<'a>(
    key: &[u8; 32],
    nonce: &[u8; 24],
    message: &'a mut [u8],
    aad: &[u8],
) -> Option<&'a [u8]> {
    let authentic = adit_aead::open_message_extended(key, nonce, aad, message);
    text(authentic, message)
}

fn text(authentic: bool, message: &[u8]) -> Option<&[u8]> {
    authentic.then(|| &message[..message.len() - TAG_LEN])
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
