//! The kernel's randomness.

/// Fills a buffer with the kernel's random bytes.
pub(crate) fn random(bytes: &mut [u8]) {
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
        .expect("getrandom gives up to 256 bytes whole");
}
