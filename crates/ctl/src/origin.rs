//! The process at the other end of a connection.

use std::os::fd::{AsFd, OwnedFd};

/// The process at the other end of a connection, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// 0 for a process of a namespace that this one does not see.
    pub pid: i32,
    /// The user that it ran as when it connected.
    pub uid: u32,
}

impl Origin {
    pub(crate) fn of(stream: &OwnedFd) -> Self {
        // Without rights if the kernel does not say.
        let (pid, uid) = adit_io::peer(stream.as_fd()).unwrap_or((0, u32::MAX));
        Self { pid, uid }
    }

    /// Whether it is root's, or of the user that this process runs as.
    pub(crate) fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }

    /// The name of the program that the process runs now, if it is still there.
    pub fn command(&self) -> Option<String> {
        let name = adit_io::helper::files::command(self.pid).ok()?;
        let name = String::from_utf8(name).ok()?;
        let printable = name.trim().chars().filter(|c| !c.is_control());
        Some(printable.collect())
    }
}

#[cfg(test)]
#[path = "origin_tests.rs"]
mod tests;
