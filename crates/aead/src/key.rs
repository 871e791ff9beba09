//! Keys, and the length of tags.

use zeroize::Zeroizing;

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use crate::kernels::keystream::KeptAhead;
#[cfg(feature = "ring")]
use crate::kernels::library_key::LibraryKey;

/// The length of the tag that follows every ciphertext.
pub const TAG_LEN: usize = 16;

/// A key of 32 bytes; zeroized when dropped.
// In this order, so that tests that search the memory for keys know them.
#[repr(C)]
pub struct Key {
    bytes: Zeroizing<[u8; 32]>,
    /// Made when first needed: most processors never need it.
    #[cfg(feature = "ring")]
    pub(crate) library: LibraryKey,
    /// Made when a short packet is first sealed or opened by itself.
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    pub(crate) ahead: KeptAhead,
}

impl Key {
    /// The key in the form that the kernels and the library use. `bytes` are copied; the caller
    /// zeroizes its own.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self {
            bytes: Zeroizing::new(*bytes),
            #[cfg(feature = "ring")]
            library: LibraryKey::default(),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            ahead: KeptAhead::default(),
        }
    }

    /// The key itself: for the process that goes on with it. Callers zeroize their copies.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}
