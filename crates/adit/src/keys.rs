//! Keys, and how they are written.

use std::fmt;
use std::str::FromStr;

use adit_proto::config as proto;
use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

/// Text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// A key in base64 has 44 characters, the last of which is `=`; this has not.
    Length,
    /// It has another character than base64 has, or bits where there may be none.
    Base64,
    /// A private key of zero bytes only is none.
    Zero,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "a key in base64 has 44 characters, the last of which is =",
            Self::Base64 => "the key is no base64",
            Self::Zero => "a private key of zero bytes only is none",
        })
    }
}

impl std::error::Error for KeyError {}

/// The 32 bytes of a key as base64 writes them; in time that does not depend on them.
fn decode(text: &str, bytes: &mut [u8; 32]) -> Result<(), KeyError> {
    if text.len() != 44 {
        return Err(KeyError::Length);
    }
    match Base64::decode(text, &mut bytes[..]) {
        Ok(decoded) if decoded.len() == 32 => Ok(()),
        _ => Err(KeyError::Base64),
    }
}

/// A private key of Curve25519. It is zeroized when dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(pub(crate) proto::Secret);

/// A key that both ends of a tunnel have besides their own (PresharedKey). It is zeroized when
/// dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(pub(crate) proto::Secret);

/// A public key of Curve25519.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub(crate) [u8; 32]);

impl PrivateKey {
    /// A new key, of the system's random bytes.
    ///
    /// # Errors
    ///
    /// The system has none, as early in its start.
    pub fn generate() -> Result<Self, RandomError> {
        let mut key = proto::Secret::zero();
        random(key.bytes_mut())?;
        Ok(Self(key))
    }

    /// The key of these bytes.
    ///
    /// # Errors
    ///
    /// [`KeyError::Zero`].
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        let key = proto::Secret::new(bytes);
        if key.is_zero() {
            return Err(KeyError::Zero);
        }
        Ok(Self(key))
    }

    /// Its public key.
    pub fn public_key(&self) -> PublicKey {
        PublicKey::of(self.0.public_key())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.bytes()
    }

    /// In base64, as `wg` writes it: the text is wiped when dropped.
    pub fn to_base64(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new([0; 44]);
        let written = Base64::encode(self.0.bytes(), &mut *text);
        Zeroizing::new(written.unwrap_or_default().to_owned())
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut key = proto::Secret::zero();
        decode(text, key.bytes_mut())?;
        if key.is_zero() {
            return Err(KeyError::Zero);
        }
        Ok(Self(key))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

impl PresharedKey {
    /// The key of these bytes. All zero is as none.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(proto::Secret::new(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.bytes()
    }
}

impl FromStr for PresharedKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut key = proto::Secret::zero();
        decode(text, key.bytes_mut())?;
        Ok(Self(key))
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

impl PublicKey {
    /// The key of these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn of(key: proto::PublicKey) -> Self {
        Self(key.0)
    }

    pub(crate) fn to_proto(self) -> proto::PublicKey {
        proto::PublicKey(self.0)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut bytes = [0; 32];
        decode(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

/// In base64, as `wg` writes it.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        proto::PublicKey(self.0).fmt(f)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// The system has no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomError;

impl fmt::Display for RandomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the system has no random bytes")
    }
}

impl std::error::Error for RandomError {}

/// Fills `bytes` with the system's random bytes.
///
/// # Errors
///
/// The system has none.
pub fn random(bytes: &mut [u8]) -> Result<(), RandomError> {
    getrandom::fill(bytes).map_err(|_| RandomError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_after_it_was_written_and_read() {
        let key = PrivateKey::generate().expect("random bytes");
        let text = key.to_base64();
        assert_eq!(text.len(), 44);
        assert_eq!(text.parse::<PrivateKey>().as_ref(), Ok(&key));
        let public = key.public_key();
        assert_eq!(public.to_string().parse(), Ok(public));
        assert_eq!(PublicKey::from_bytes(*public.as_bytes()), public);
    }

    #[test]
    fn what_is_no_key_is_told_apart() {
        let zero = "A".repeat(43) + "=";
        for (text, error) in [
            ("", KeyError::Length),
            (
                "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8D",
                KeyError::Length,
            ),
            (
                "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8D!=",
                KeyError::Base64,
            ),
            // Bits where there may be none.
            (
                "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dh=",
                KeyError::Base64,
            ),
            (&zero, KeyError::Zero),
        ] {
            assert_eq!(text.parse::<PrivateKey>(), Err(error), "{text}");
        }
        assert_eq!(PrivateKey::from_bytes(&[0; 32]), Err(KeyError::Zero));
    }

    #[test]
    fn no_secret_is_printed() {
        let private = PrivateKey::from_bytes(&[7; 32]).expect("a key");
        let preshared = PresharedKey::from_bytes(&[7; 32]);
        assert_eq!(
            format!("{private:?} {preshared:?}"),
            "PrivateKey(..) PresharedKey(..)"
        );
    }
}
