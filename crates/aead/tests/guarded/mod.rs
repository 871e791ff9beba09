//! Memory between two pages that cannot be touched.

pub(super) struct Guarded {
    base: *mut libc::c_void,
    pages: usize,
    at: *mut u8,
    len: usize,
}

const PAGE: usize = 4096;

impl Guarded {
    /// A copy of `bytes` that ends (or begins) where a page that must not be touched begins (or
    /// ends).
    pub(super) fn new(bytes: &[u8], at_end: bool) -> Self {
        let inner = bytes.len().div_ceil(PAGE).max(1);
        let pages = inner + 2;
        // SAFETY: new anonymous memory, at no particular address; then the inner pages of it are
        // made accessible.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(
                core::ptr::null_mut(),
                pages * PAGE,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(base.byte_add(PAGE), inner * PAGE, access), 0);
            base
        };
        let skip = if at_end {
            inner * PAGE - bytes.len()
        } else {
            0
        };
        // SAFETY: `skip` and the bytes are within the inner pages.
        let at = unsafe {
            let at = base.cast::<u8>().add(PAGE + skip);
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            at
        };
        Self {
            base,
            pages,
            at,
            len: bytes.len(),
        }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: these bytes are in the accessible pages, initialised, and borrowed with `self`.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nobody borrows from it any more.
        unsafe { libc::munmap(self.base, self.pages * PAGE) };
    }
}
