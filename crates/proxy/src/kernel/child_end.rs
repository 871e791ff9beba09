//! The child process, from outside.

use std::os::fd::OwnedFd;
use std::process::Child;

/// A child process, and the socket to it. It ends when that is closed: dropping this does so, and waits.
pub(super) struct ChildEnd {
    /// Closed first.
    pub(super) socket: OwnedFd,
    child: AwaitedChild,
}

struct AwaitedChild(Child);

impl ChildEnd {
    pub(super) fn new(socket: OwnedFd, child: Child) -> Self {
        let child = AwaitedChild(child);
        Self { socket, child }
    }

    pub(super) fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// Ends one that does not answer.
    pub(super) fn kill(&mut self) {
        let _ = self.child.0.kill();
    }
}

impl Drop for AwaitedChild {
    fn drop(&mut self) {
        // Nothing is left of it, not even its number.
        let _ = self.0.wait();
    }
}
