//! The library's form of a key.

use core::mem::ManuallyDrop;
use std::hint::black_box;

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};

use crate::zeroizing_stack;

/// A key in the library's form, zeroized at the end: the library leaves its keys in memory. Making
/// it costs a tenth of sealing a small packet, so it is kept. It is boxed, because it holds the
/// schedules of other ciphers, too.
pub(crate) struct LibraryKey(pub(crate) Box<ManuallyDrop<LessSafeKey>>);

impl LibraryKey {
    pub(crate) fn new(bytes: &[u8; 32]) -> Self {
        // On its way to the box it leaves itself on the stack.
        zeroizing_stack::<{ 8 << 10 }, _>(|| {
            let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).expect("32 bytes");
            Self(Box::new(ManuallyDrop::new(LessSafeKey::new(key))))
        })
    }
}

impl Drop for LibraryKey {
    fn drop(&mut self) {
        let at: *mut LessSafeKey = &mut **self.0;
        // SAFETY: the bytes are those of the key, which is neither used nor dropped any more.
        unsafe { core::ptr::write_bytes(at.cast::<u8>(), 0, size_of::<LessSafeKey>()) };
        black_box(at);
    }
}
