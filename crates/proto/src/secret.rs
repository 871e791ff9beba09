//! Keys: secrets, and public ones.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// A secret of 32 bytes, zeroized when dropped and never printed.
///
/// It is made on the heap and stays there: a value that moves leaves a copy where it was, and no
/// destructor runs there.
#[derive(PartialEq, Eq)]
pub struct Secret(Box<[u8; 32]>);

impl Secret {
    /// 32 zero bytes, which the UAPI means by "no key", or to be filled in place.
    pub fn zero() -> Self {
        Self(Box::new([0; 32]))
    }

    /// A copy of `bytes`.
    pub fn new(bytes: &[u8; 32]) -> Self {
        let mut secret = Self::zero();
        secret.0.copy_from_slice(bytes);
        secret
    }

    /// The bytes, where they are.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The bytes, to be changed where they are.
    pub fn bytes_mut(&mut self) -> &mut [u8; 32] {
        &mut self.0
    }

    /// Whether this means "no key".
    pub fn is_zero(&self) -> bool {
        *self.0 == [0; 32]
    }
}

impl Clone for Secret {
    fn clone(&self) -> Self {
        Self::new(self.bytes())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl ZeroizeOnDrop for Secret {}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A Curve25519 public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

/// In base64, as WireGuard's tools write keys. Public as the key is, this takes no care of how long
/// it takes.
impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = [b'='; 44];
        for (three, four) in self.0.chunks(3).zip(text.chunks_mut(4)) {
            let mut bits = [0; 4];
            bits[1..=three.len()].copy_from_slice(three);
            let bits = u32::from_be_bytes(bits);
            for (place, digit) in four.iter_mut().take(three.len() + 1).enumerate() {
                *digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            }
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}
