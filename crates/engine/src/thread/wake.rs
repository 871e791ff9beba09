//! Sleeping and waking: every thread of the engine sleeps on descriptors only, and has one that
//! others wake it by.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes the thread that waits for a [`TunQueue`](adit_io::TunQueue) which has no descriptor of its own.
/// Its descriptor is readable from the first ring on.
#[derive(Debug)]
pub struct Bell(Waker);

impl Bell {
    /// A bell that was not rung.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2), as when there are no further descriptors.
    pub fn new() -> io::Result<Self> {
        Waker::new().map(Self)
    }

    /// Rings.
    pub fn ring(&self) {
        self.0.wake();
    }

    /// The ring was heard: the descriptor is not readable until the next one.
    pub fn clear(&self) {
        self.0.clear();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wakes one sleeping thread. Waking twice before it runs wakes it once.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    /// How often [`Self::responds`] was asked since the thread last woke up.
    unanswered: AtomicU32,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            unanswered: AtomicU32::new(0),
        })
    }

    pub(crate) fn wake(&self) {
        // A full counter means that a wake-up is already due.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// To be called by the thread that was woken, before it looks for what it was woken for.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// Whether a wake-up is due.
    #[cfg(test)]
    pub(crate) fn is_due(&self) -> bool {
        rustix::io::read(&self.event, &mut [0u8; 8]).is_ok()
    }

    /// Wakes the thread, and tells whether it has woken up since the last call: not if it hangs.
    pub(crate) fn responds(&self) -> bool {
        let unanswered = self.unanswered.fetch_add(1, Ordering::Relaxed);
        self.wake();
        unanswered == 0
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_wake_up_does_not_respond() {
        let waker = Waker::new().expect("an eventfd");
        // Nothing was asked of it yet.
        assert!(waker.responds());
        assert!(!waker.responds());
        waker.wake();
        assert!(!waker.responds());
        waker.clear();
        assert!(waker.responds());
    }
}
