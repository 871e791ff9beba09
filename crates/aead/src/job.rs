//! Packets to seal and to open.

use crate::kernels::job::Job;
use crate::key::{Key, TAG_LEN};

/// The nonce of WireGuard's data packets (whitepaper, section 5.4.6): four zero bytes, then the
/// counter.
fn nonce(counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

/// One packet to seal.
pub struct SealJob<'a>(pub(crate) Job<'a>);

impl<'a> SealJob<'a> {
    /// Seals the plaintext `out[..out.len() - TAG_LEN]` where it stands; the tag goes behind it.
    ///
    /// # Panics
    /// If `out` is shorter than a tag.
    pub fn in_place(key: &'a Key, counter: u64, out: &'a mut [u8]) -> Self {
        let in_place = out.len().checked_sub(TAG_LEN).expect("room for the tag");
        Self::gathered(key, counter, in_place, &[], out)
    }

    /// Seals a plaintext of `out.len() - TAG_LEN` bytes that is put together from three parts: the
    /// first `in_place` bytes already stand in `out`, `src` follows, and zero bytes (WireGuard's
    /// padding) fill the rest. Most of `src` is read only once, by the cipher: there is no copy to
    /// be saved before.
    ///
    /// `in_place` is fastest as a multiple of 64.
    ///
    /// # Panics
    /// If the parts and the tag do not fit `out`.
    pub fn gathered(
        key: &'a Key,
        counter: u64,
        in_place: usize,
        src: &'a [u8],
        out: &'a mut [u8],
    ) -> Self {
        let room = out.len().checked_sub(TAG_LEN);
        assert!(
            room.and_then(|room| room.checked_sub(in_place)) >= Some(src.len()),
            "the plaintext and its tag do not fit"
        );
        Self(Job {
            key,
            nonce: nonce(counter),
            aad: &[],
            in_place,
            src,
            out,
        })
    }

    /// With this nonce instead of WireGuard's counter.
    #[must_use]
    pub fn with_nonce(mut self, nonce: [u8; 12]) -> Self {
        self.0.nonce = nonce;
        self
    }

    /// With additional data that the tag covers. Its packets get no share in the speed of Poly1305
    /// across packets.
    #[must_use]
    pub fn with_aad(mut self, aad: &'a [u8]) -> Self {
        self.0.aad = aad;
        self
    }
}

/// One packet to open, and whether it was authentic.
pub struct OpenJob<'a>(pub(crate) Job<'a>, pub(crate) bool);

impl<'a> OpenJob<'a> {
    /// Opens ciphertext and tag where they stand: afterwards the plaintext is
    /// `text[..text.len() - TAG_LEN]`. A text shorter than a tag is never authentic.
    pub fn in_place(key: &'a Key, counter: u64, text: &'a mut [u8]) -> Self {
        let job = Job {
            key,
            nonce: nonce(counter),
            aad: &[],
            in_place: text.len(),
            src: &[],
            out: text,
        };
        Self(job, false)
    }

    /// Opens `src`, ciphertext and tag, to the beginning of `dst`.
    ///
    /// # Panics
    /// If `dst` is shorter than the plaintext.
    pub fn apart(key: &'a Key, counter: u64, src: &'a [u8], dst: &'a mut [u8]) -> Self {
        assert!(
            src.len().saturating_sub(TAG_LEN) <= dst.len(),
            "the plaintext does not fit"
        );
        let job = Job {
            key,
            nonce: nonce(counter),
            aad: &[],
            in_place: 0,
            src,
            out: dst,
        };
        Self(job, false)
    }

    /// With this nonce instead of WireGuard's counter.
    #[must_use]
    pub fn with_nonce(mut self, nonce: [u8; 12]) -> Self {
        self.0.nonce = nonce;
        self
    }

    /// With additional data that the tag covers.
    #[must_use]
    pub fn with_aad(mut self, aad: &'a [u8]) -> Self {
        self.0.aad = aad;
        self
    }

    /// Whether [`open`](crate::open) found the tag right. If not, nothing of the plaintext was written anywhere
    /// that the caller can see: what is in its memory then is what was there before, or zeros.
    pub fn is_authentic(&self) -> bool {
        self.1
    }
}
