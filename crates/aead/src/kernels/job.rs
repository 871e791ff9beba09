//! One packet in either direction.

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use super::lanes;
use crate::{Key, TAG_LEN};

/// One packet in either direction.
pub(crate) struct Job<'a> {
    pub(crate) key: &'a Key,
    pub(crate) nonce: [u8; 12],
    pub(crate) aad: &'a [u8],
    /// The number of bytes of the input that stand in `out` already; the rest follows in `src`.
    pub(crate) in_place: usize,
    pub(crate) src: &'a [u8],
    pub(crate) out: &'a mut [u8],
}

impl Job<'_> {
    pub(super) fn nonce_words(&self) -> [u32; 3] {
        let words = self.nonce.as_chunks().0;
        core::array::from_fn(|i| u32::from_le_bytes(words[i]))
    }

    /// Puts the whole plaintext into `out` for sealing, and returns its length.
    pub(crate) fn gather(&mut self) -> usize {
        let len = self.out.len() - TAG_LEN;
        if self.in_place < len {
            let (copied, zeros) = self.out[self.in_place..len].split_at_mut(self.src.len());
            copied.copy_from_slice(self.src);
            zeros.fill(0);
        }
        len
    }

    /// The ciphertext and the tag, for opening.
    pub(super) fn sealed(&self) -> &[u8] {
        if self.in_place == 0 {
            self.src
        } else {
            self.out
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
impl Job<'_> {
    /// Whether they differ only in nonce, text and additional data.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        core::ptr::eq(self.key, other.key)
            && self.out.len() == other.out.len()
            && self.src.len() == other.src.len()
            && self.in_place == other.in_place
    }

    pub(super) fn sealing(&mut self) -> lanes::Packet {
        let len = self.out.len() - TAG_LEN;
        // A block of which only the beginning stands in `out` is put together there.
        let end = self.in_place.next_multiple_of(64).min(len);
        if self.in_place < end {
            let missing = end - self.in_place;
            let (now, later) = self.src.split_at(missing.min(self.src.len()));
            let (copied, zeros) = self.out[self.in_place..end].split_at_mut(now.len());
            copied.copy_from_slice(now);
            zeros.fill(0);
            self.src = later;
            self.in_place = end;
        }
        lanes::Packet {
            key: self.key.bytes(),
            row: lanes::row(0, self.nonce_words()),
            src: self.src.as_ptr().wrapping_sub(self.in_place),
            src_end: self.in_place + self.src.len(),
            in_place: self.in_place,
            dst: self.out.as_mut_ptr(),
            len,
        }
    }

    /// The packet to open. Nothing of a job that is shorter than a tag is opened.
    pub(super) fn opening(&mut self) -> lanes::Packet {
        let len = self.sealed().len().saturating_sub(TAG_LEN);
        lanes::Packet {
            key: self.key.bytes(),
            row: lanes::row(0, self.nonce_words()),
            src: self.src.as_ptr(),
            src_end: len,
            in_place: self.in_place,
            dst: self.out.as_mut_ptr(),
            len,
        }
    }
}
