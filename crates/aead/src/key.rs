//! Keys, and the length of tags.

#[cfg(target_arch = "x86_64")]
use std::sync::Mutex;
use std::sync::OnceLock;

use ring::aead::LessSafeKey;
use zeroize::Zeroizing;

#[cfg(target_arch = "x86_64")]
use crate::kernels::keystream::Ahead;
use crate::kernels::library_key::LibraryKey;

/// The length of the tag that follows every ciphertext.
pub const TAG_LEN: usize = 16;

/// A key of 32 bytes; zeroized when dropped.
// In this order, so that tests that search the memory for keys know them.
#[repr(C)]
pub struct Key {
    bytes: Zeroizing<[u8; 32]>,
    /// Made when first needed: most processors never need it.
    pub(crate) library: OnceLock<LibraryKey>,
    /// Made when a short packet is first sealed or opened by itself.
    #[cfg(target_arch = "x86_64")]
    pub(crate) ahead: Mutex<Option<Box<Ahead>>>,
}

impl Key {
    /// The key in the form that the kernels and the library use. `bytes` are copied; the caller
    /// zeroizes its own.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self {
            bytes: Zeroizing::new(*bytes),
            library: OnceLock::new(),
            #[cfg(target_arch = "x86_64")]
            ahead: Mutex::new(None),
        }
    }

    /// The key itself: for the process that goes on with it. Callers zeroize their copies.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The same for the library.
    pub(crate) fn library(&self) -> &LessSafeKey {
        &self.library.get_or_init(|| LibraryKey::new(&self.bytes)).0
    }
}
