//! The stack that a computation with keys used, and its overwriting.

use core::hint::black_box;

/// Runs `work`, then overwrites the first `DEPTH` bytes of the stack that it used.
///
/// A value that is moved or passed by value also stays where it was: no destructor runs there, and
/// a library's functions do so with keys. The result of `work` passes through the caller's own
/// frames: it must own its keys by pointers.
pub fn zeroizing_stack<const DEPTH: usize, T>(work: impl FnOnce() -> T) -> T {
    let result = below(work);
    overwrite::<DEPTH>();
    result
}

/// Runs `work`; its frames begin where those of [`overwrite`] begin.
#[inline(never)]
fn below<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[inline(never)]
fn overwrite<const DEPTH: usize>() {
    // The memory must be overwritten when it is next read: the compiler cannot leave the stores
    // out.
    black_box(&mut [0_u8; DEPTH]);
}
