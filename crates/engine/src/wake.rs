//! Sleeping and waking: every thread of the engine sleeps on descriptors only, and has one that
//! others wake it by.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes one sleeping thread. Waking twice before it runs wakes it once.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    pub(crate) fn wake(&self) {
        // A full counter means that a wake-up is already due.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// To be called by the thread that was woken, before it looks for what it was woken for.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
