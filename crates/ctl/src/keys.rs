//! Keys as text: base64 in files and on the command line, hexadecimal on the UAPI socket.
//!
//! Encoding and decoding take the same time for every key, and buffers that held a key are
//! zeroized.

use adit_proto::config::{PublicKey, Secret};
use base64ct::{Base64, Encoding};
use curve25519_dalek::MontgomeryPoint;
use zeroize::Zeroizing;

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;

/// Length of a key in base64: 43 digits and one `=`.
pub const BASE64_LEN: usize = 44;

/// `key` in base64.
pub fn to_base64(key: &[u8; 32]) -> Zeroizing<String> {
    let mut text = Zeroizing::new([0; BASE64_LEN]);
    let text = Base64::encode(key, &mut *text).unwrap_or_default();
    Zeroizing::new(text.to_owned())
}

/// A key from 44 base64 digits; `None` unless they are exactly 32 bytes in the canonical form.
pub fn from_base64(text: &str) -> Option<Secret> {
    let mut key = Secret::zero();
    let is_whole = text.len() == BASE64_LEN
        && Base64::decode(text, key.bytes_mut()).is_ok_and(|bytes| bytes.len() == 32);
    is_whole.then_some(key)
}

/// A public key from base64; `None` as of [`from_base64`].
pub fn public_from_base64(text: &str) -> Option<PublicKey> {
    from_base64(text).map(|key| PublicKey(*key.bytes()))
}

/// `key` as 64 lower-case hexadecimal digits.
pub fn to_hex(key: &[u8; 32]) -> Zeroizing<String> {
    let mut text = Zeroizing::new([0; 64]);
    let text = base16ct::lower::encode_str(key, &mut *text).unwrap_or_default();
    Zeroizing::new(text.to_owned())
}

/// A key from 64 hexadecimal digits of either case; `None` of anything else.
pub fn from_hex(text: &[u8]) -> Option<Secret> {
    let mut key = Secret::zero();
    let is_whole = text.len() == 64
        && base16ct::mixed::decode(text, key.bytes_mut()).is_ok_and(|bytes| bytes.len() == 32);
    is_whole.then_some(key)
}

/// Whether a private key could have this public one: such are points of Curve25519's group of prime
/// order (RFC 7748, section 4.1). One in sixteen of other keys is as well.
pub fn is_public(key: &PublicKey) -> bool {
    let point = MontgomeryPoint(key.0).to_edwards(0);
    point.is_some_and(|point| point.is_torsion_free())
}

/// Whether a key has the form that `wg genkey` gives private ones. So has one in sixteen of public
/// ones.
pub fn is_clamped(key: &[u8; 32]) -> bool {
    key[0] & 7 == 0 && key[31] & 0xc0 == 0x40
}

/// A private key from the 32 random bytes that `fill` writes, clamped as `wg genkey` clamps it.
pub fn generate_private(fill: impl FnOnce(&mut [u8])) -> Secret {
    let mut key = generate_preshared(fill);
    clamp(&mut key);
    key
}

/// A preshared key: the 32 random bytes that `fill` writes.
pub fn generate_preshared(fill: impl FnOnce(&mut [u8])) -> Secret {
    let mut key = Secret::zero();
    fill(key.bytes_mut());
    key
}

/// Makes `key` a valid X25519 scalar (RFC 7748, section 5); an all-zero key, which means "none",
/// stays zero.
pub(crate) fn clamp(key: &mut Secret) {
    if !key.is_zero() {
        let bytes = key.bytes_mut();
        bytes[0] &= 248;
        bytes[31] = (bytes[31] & 127) | 64;
    }
}
