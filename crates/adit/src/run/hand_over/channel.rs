//! The socket of a hand-over: where it stands, who may connect, and how messages cross it.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use super::messages::{Kind, Refused};
use super::out_of_turn;
use crate::failure::{Context, Failure, Result, bail};

/// The directory below that of the status sockets. Nobody but its owner may enter it.
pub(crate) const DIR: &str = "upgrade";
/// Longest message: a peer with a million allowed IPs.
const MAX_MESSAGE: usize = 32 << 20;
/// Descriptors that one message may bring: those of an interface are some 70. The kernel allows 253.
const MAX_FDS: usize = 128;
/// Kind and length.
const HEADER: usize = 5;

/// Where a new process asks for a hand-over. Its file goes when this is dropped.
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Binds `dir/upgrade/PID.sock`. What killed processes left there goes.
    pub(crate) fn bind(dir: &Path) -> Result<Self> {
        let dir = dir.join(DIR);
        let path = dir.join(format!("{}.sock", std::process::id()));
        remove_dead(&dir);
        let mut attempts = 100;
        let bound = loop {
            match make_private(&dir).and_then(|()| UnixListener::bind(&path)) {
                // Another process has just ended, and taken the directory along. A pause lets any
                // others that are at it finish, rather than meet them again in step.
                Err(error) if error.kind() == ErrorKind::NotFound && attempts > 1 => {
                    attempts -= 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                bound => break bound,
            }
        };
        let failed = || format!("cannot listen at {}", path.display());
        let socket = bound.context(failed)?;
        socket.set_nonblocking(true).context(failed)?;
        Ok(Self { socket, path })
    }

    /// The next client that may ask: root, or the user that this process runs as.
    pub(crate) fn accept(&self) -> Option<Channel> {
        let (stream, _) = self.socket.accept().ok()?;
        let own = rustix::process::geteuid();
        let peer = sockopt::socket_peercred(&stream).ok()?;
        if !peer.uid.is_root() && peer.uid != own {
            return None;
        }
        Some(Channel(stream))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        adit_sandbox::run(move || {
            let _ = std::fs::remove_file(&path);
            // The last one takes the directory along.
            let _ = path.parent().map(std::fs::remove_dir);
        });
    }
}

/// Makes a directory that nobody but this user may enter. It may go at any time: `NotFound`.
fn make_private(dir: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = dir.symlink_metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != own || found.mode() & 0o077 != 0 {
        let text = "the directory is not this user's alone: remove it, and start again";
        return Err(std::io::Error::other(text));
    }
    Ok(())
}

/// Removes what killed processes left in a directory.
pub(crate) fn remove_dead(dir: &Path) {
    let is_dead = |path: &Path| {
        let answer = UnixStream::connect(path);
        answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    for (path, _) in sockets(dir).iter().filter(|(path, _)| is_dead(path)) {
        let _ = std::fs::remove_file(path);
    }
}

/// The sockets in a directory, by the process that each is of.
pub(crate) fn sockets(dir: &Path) -> Vec<(PathBuf, i32)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let path = entry.path();
        let pid = path.file_name()?.to_str()?.strip_suffix(".sock")?;
        let pid = pid.parse().ok()?;
        Some((path, pid))
    });
    found.collect()
}

/// One end of a hand-over.
pub(crate) struct Channel(UnixStream);

impl Channel {
    pub(crate) fn connect(path: &Path) -> std::io::Result<Self> {
        UnixStream::connect(path).map(Self)
    }

    /// The process at the other end.
    pub(super) fn pid(&self) -> Option<rustix::process::Pid> {
        sockopt::socket_peercred(&self.0).ok().map(|peer| peer.pid)
    }

    /// How long the other process may take over what is sent or heard from now on.
    pub(super) fn set_patience(&self, patience: Duration) -> Result<()> {
        let set = (self.0.set_read_timeout(Some(patience)))
            .and_then(|()| self.0.set_write_timeout(Some(patience)));
        set.context(|| "cannot limit the time of a hand-over".into())
    }

    /// Sends a message without descriptors.
    pub(super) fn tell(&mut self, kind: Kind, message: &impl Serialize) -> Result<()> {
        self.tell_with(kind, message, &[])
    }

    pub(super) fn tell_with(
        &mut self,
        kind: Kind,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let text = serde_json::to_vec(message).context(|| "cannot hand over".into())?;
        self.send(kind, &text, fds)
    }

    /// Sends a message as it is.
    pub(super) fn send(&mut self, kind: Kind, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let failed = || "cannot tell the other process".to_owned();
        let mut header = [0; HEADER];
        header[0] = kind as u8;
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        header[1..].copy_from_slice(&len.to_le_bytes());
        if body.len() > MAX_MESSAGE || fds.len() > MAX_FDS {
            bail!(State, "there is more to hand over than fits a message");
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // Most messages are short: one system call.
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let sent = sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL);
        let sent = sent.map_err(std::io::Error::from).context(failed)?;
        if sent < HEADER {
            bail!(State, "a message was cut");
        }
        self.0.write_all(&body[sent - HEADER..]).context(failed)
    }

    /// The next message, which has to be of this kind.
    pub(super) fn hear<T: DeserializeOwned>(&mut self, kind: Kind) -> Result<T> {
        self.hear_with(kind).map(|(message, _)| message)
    }

    /// The same, and the descriptors that come with it.
    pub(super) fn hear_with<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
    ) -> Result<(T, Vec<OwnedFd>)> {
        let (found, body, fds) = self.receive()?;
        if found != kind {
            return Err(out_of_turn());
        }
        let message = parse(&body)?;
        Ok((message, fds))
    }

    /// The next message as it is. `Refused` is an error that says why.
    pub(super) fn receive(&mut self) -> Result<(Kind, Zeroizing<Vec<u8>>, Vec<OwnedFd>)> {
        let failed = || "cannot hear from the other process".to_owned();
        let mut header = [0; HEADER];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut header)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let got = received
            .map_err(std::io::Error::from)
            .context(failed)?
            .bytes;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if got == 0 {
            bail!(State, "the other process has ended");
        }
        self.0.read_exact(&mut header[got..]).context(failed)?;
        let [kind, len @ ..] = header;
        let kind = Kind::ALL.get(usize::from(kind)).ok_or_else(out_of_turn)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_MESSAGE {
            return Err(out_of_turn());
        }
        let mut body = Zeroizing::new(vec![0; len]);
        self.0.read_exact(&mut body).context(failed)?;
        if *kind == Kind::Refused {
            let refused: Refused = parse(&body)?;
            return Err(Failure::State(refused.why));
        }
        Ok((*kind, body, fds))
    }
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).context(|| "cannot read what was handed over".into())
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
