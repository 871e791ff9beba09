//! The child process, from outside.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

/// How long it may take to end. One that was stopped does not, and a sandbox allows no signal to it; it ends when
/// it goes on, or once this process has ended.
const PATIENCE: Duration = Duration::from_secs(2);

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
        let until = Instant::now() + PATIENCE;
        // Nothing is left of it, not even its number.
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_that_does_not_end_is_not_waited_for_without_end() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut command = Command::new("sleep");
        let child = command
            .arg("60")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
        let end = ChildEnd::new(ours.into(), child.spawn().expect("a process"));
        let process = i32::try_from(end.process())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        drop(end);
        let kill = rustix::process::Signal::KILL;
        rustix::process::kill_process(process.expect("a number"), kill).expect("it goes on");
    }
}
