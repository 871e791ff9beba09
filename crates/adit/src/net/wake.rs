//! Wakes a thread that sleeps in epoll or poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes the thread of a stack. While that is awake a wake-up costs one atomic exchange: it looks at its
/// queues before it sleeps.
pub(super) struct Wake {
    event: OwnedFd,
    is_awake: AtomicBool,
}

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_awake: AtomicBool::new(true),
        })
    }

    /// To be called after the queue was written that the thread is to look at.
    pub(super) fn wake(&self) {
        if !self.is_awake.swap(true, Ordering::AcqRel) {
            // It fails only while the counter is full, and then the descriptor is readable.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// The thread is about to sleep, and looks at its queues once more after this.
    pub(super) fn before_sleep(&self) {
        self.is_awake.swap(false, Ordering::AcqRel);
    }

    /// The thread is awake.
    pub(super) fn after_sleep(&self) {
        self.is_awake.store(true, Ordering::Release);
    }
}

impl AsFd for Wake {
    /// To be watched for edges: it is never read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
