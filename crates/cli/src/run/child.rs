//! Processes of this program that one serving interfaces starts before its sandbox, for what it is
//! not to do itself. Requests and answers are datagrams of a socket pair, their standard input.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that goes with this.
pub(crate) struct Guard(Option<(Child, OwnedFd)>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((mut child, handle)) = self.0.take() {
            // Not by kill(2), which would have to be left to the process with every signal. Where it
            // cannot be killed, as it is another user's, it goes with this process.
            if pidfd_send_signal(&handle, Signal::KILL).is_ok() {
                let _ = child.wait();
            }
        }
    }
}

/// Starts this program with these arguments, which no person types.
pub(crate) fn start(arguments: &[impl AsRef<OsStr>]) -> std::io::Result<(Guard, OwnedFd)> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Not the path of the binary, which may have been replaced since.
    let mut command = Command::new("/proc/self/exe");
    let child = command
        .arg0("adit")
        .args(arguments)
        .current_dir("/")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // Before Linux 5.3 there is none, and the child goes with this process.
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    Ok((Guard(handle.ok().map(|handle| (child, handle))), ours))
}
