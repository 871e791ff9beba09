//! The library's form of a key.

use alloc::boxed::Box;
use core::hint::black_box;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};

use crate::zeroizing_stack;

/// A key in the library's form, made when first needed and zeroized at the end: the library leaves
/// its keys in memory. Making it costs a tenth of sealing a small packet, so it is kept. It is boxed,
/// because it holds the schedules of other ciphers, too.
///
/// The pointer is null, or that of a box which only [`Drop`] frees.
#[derive(Default)]
pub(crate) struct LibraryKey(AtomicPtr<LessSafeKey>);

/// Threads share the key behind the pointer, and any of them may drop it.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<LessSafeKey>();
};

impl LibraryKey {
    /// The library's form of the key `bytes`, which are the same in each call.
    pub(super) fn get(&self, bytes: &[u8; 32]) -> &LessSafeKey {
        let mut key = self.0.load(Ordering::Acquire);
        if key.is_null() {
            key = self.make(bytes);
        }
        // SAFETY: the box stays where it is until this is dropped, and nobody changes what it holds.
        unsafe { &*key }
    }

    #[cold]
    fn make(&self, bytes: &[u8; 32]) -> *mut LessSafeKey {
        // On its way to the box it leaves itself on the stack.
        let made = zeroizing_stack::<{ 8 << 10 }, _>(|| {
            let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).expect("32 bytes");
            Box::into_raw(Box::new(LessSafeKey::new(key)))
        });
        let set =
            self.0
                .compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        set.map_or_else(
            |other| {
                // SAFETY: made above, and nobody has seen it: another thread was first.
                unsafe { free(made) };
                other
            },
            |_| made,
        )
    }

    #[cfg(test)]
    pub(super) fn is_made(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_null()
    }
}

impl Drop for LibraryKey {
    fn drop(&mut self) {
        let key = *self.0.get_mut();
        if !key.is_null() {
            // SAFETY: made by `make`, and used by nobody any more.
            unsafe { free(key) };
        }
    }
}

/// Zeroizes and frees a key.
///
/// # Safety
/// It is that of a box, and nobody has another pointer to it.
unsafe fn free(key: *mut LessSafeKey) {
    // SAFETY: the caller's promise. What is freed has the key's layout and no destructor: that of the key
    // would find zeros.
    unsafe {
        ptr::write_bytes(key.cast::<u8>(), 0, size_of::<LessSafeKey>());
        black_box(key);
        drop(Box::from_raw(key.cast::<MaybeUninit<LessSafeKey>>()));
    }
}
