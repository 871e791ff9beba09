//! A UNIX socket of one interface at a path: bound by one process at a time, guarded, and removed
//! with its owner.

mod client;
mod contain;
mod service;

#[cfg(test)]
mod service_tests;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use client::{RESERVE, STALL, Talk};
pub(crate) use service::Poker;
pub use service::{ServerEvent, Service, Serving};

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_io::helper::{Folder, files};
use adit_io::{Failed, FileIdentity, FileStep, identity};
use rustix::net::{self, sockopt::Timeout};

/// Connections that wait to be accepted. Those beyond wait in connect(2), so that one that comes
/// late has few before it, however many others try.
const BACKLOG: i32 = 16;

/// What to do where a container has a file system that is read-only.
const READ_ONLY: &str = "; the sockets need a /run that can be written: mount a tmpfs there (`--tmpfs /run` of docker and \
                         podman, an emptyDir of Kubernetes)";

/// Why a socket could not be bound.
#[derive(Debug)]
pub enum BindError {
    /// A living process answers at this path.
    AlreadyRunning(PathBuf),
    /// Something that is no socket stands in the way.
    Occupied(PathBuf),
    /// The inherited file descriptor is no listening UNIX socket.
    NotListening,
    /// The interface name is not one.
    Name(String),
    /// The call that was tried ("bind"), the file, and why it failed.
    Io(&'static str, PathBuf, io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyRunning(path) => write!(
                f,
                "{}: another process already serves this interface",
                path.display()
            ),
            Self::Occupied(path) => write!(f, "{}: exists and is no socket", path.display()),
            Self::NotListening => {
                f.write_str("the inherited descriptor is no listening UNIX socket")
            }
            Self::Name(why) => f.write_str(why),
            Self::Io(what, path, error) => {
                write!(f, "cannot {what} {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::ReadOnlyFilesystem => f.write_str(READ_ONLY),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for BindError {}

/// A listening socket and its file, which goes when this is dropped, if it is still the one that
/// was bound.
#[derive(Debug)]
pub(crate) struct BoundListener {
    listener: Option<Arc<UnixListener>>,
    /// A control socket has its removal noticed, and a file `IF.name` beside it that goes with it.
    folder: Folder,
    dir: PathBuf,
    name: String,
    /// The socket file. `None` once it was handed to another process.
    file: Option<FileIdentity>,
    /// The removal was noticed.
    is_missed: bool,
}

fn stream(flags: net::SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | net::SocketFlags::CLOEXEC;
    net::socket_with(
        net::AddressFamily::UNIX,
        net::SocketType::STREAM,
        flags,
        None,
    )
}

/// Connects to the socket at `path`. The process behind it may take this long to accept, and for
/// every read or write.
///
/// # Errors
///
/// No process listens there, or it does not accept in time (`WouldBlock`), or the path is longer
/// than a socket's may be (107 bytes).
pub fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = stream(net::SocketFlags::empty())?;
    for direction in [Timeout::Send, Timeout::Recv] {
        net::sockopt::set_socket_timeout(&socket, direction, Some(patience))?;
    }
    let address = net::SocketAddrUnix::new(path)?;
    // A backlog that stays full is silence, too: EAGAIN.
    rustix::io::retry_on_intr(|| net::connect(&socket, &address))?;
    Ok(socket.into())
}

/// How long a whole answer may take: far longer than one about a million peers.
pub(crate) const TO_ANSWER: Duration = Duration::from_secs(60);
/// Longest answer that is read: a million peers with some allowed IPs each.
pub(crate) const MAX_ANSWER: u64 = 1 << 30;

/// A connection on which an answer is read. A process that is in the hands of an intruder may never
/// come to the end of one, and each read alone is short.
pub(crate) struct AnswerReader<R> {
    pub(crate) stream: R,
    until: Instant,
    left: u64,
}

impl<R> AnswerReader<R> {
    pub(crate) fn new(stream: R, patience: Duration) -> Self {
        Self {
            stream,
            until: Instant::now() + patience,
            left: MAX_ANSWER,
        }
    }

    /// Another one follows.
    pub(crate) fn begin(&mut self) {
        (self.until, self.left) = (Instant::now() + TO_ANSWER, MAX_ANSWER);
    }
}

impl<R: Read> Read for AnswerReader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if Instant::now() > self.until {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let got = self.stream.read(to)?;
        let left = self.left.checked_sub(got as u64);
        self.left = left.ok_or(io::ErrorKind::InvalidData)?;
        Ok(got)
    }
}

impl BoundListener {
    /// Binds `dir/name.sock` with mode 0600, or 0660 for a `group`, making `dir` with mode 0755 if
    /// it is missing.
    pub(crate) fn bind(
        folder: Folder,
        dir: &Path,
        name: &str,
        group: Option<u32>,
    ) -> Result<Self, BindError> {
        crate::names::check_name(name).map_err(BindError::Name)?;
        let path = path(dir, name);
        let failed = |error| BindError::Io("bind", path.clone(), error);
        let laid = files::lay(folder, dir, name, group).map_err(|error| match error {
            Failed::Running => BindError::AlreadyRunning(path.clone()),
            Failed::Occupied => BindError::Occupied(path.clone()),
            Failed::At(FileStep::Make, error) => BindError::Io("make", dir.to_owned(), error),
            Failed::At(FileStep::Lock, error) => BindError::Io("lock", dir.to_owned(), error),
            Failed::At(FileStep::TakeOver, error) => {
                BindError::Io("take over", path.clone(), error)
            }
            Failed::At(FileStep::Bind, error) => failed(error),
        })?;
        // No client can connect before it listens, and wg, which removes sockets that refuse
        // connections, never sees it refuse.
        net::listen(&laid, BACKLOG).map_err(|error| failed(error.into()))?;
        let (listener, file) = laid.show().map_err(failed)?;
        Self::new(listener, folder, (dir, name), file).map_err(failed)
    }

    /// Takes a socket that the parent process bound at `dir/name.sock`.
    pub(crate) fn adopt(
        folder: Folder,
        dir: &Path,
        name: &str,
        fd: OwnedFd,
    ) -> Result<Self, BindError> {
        crate::names::check_name(name).map_err(BindError::Name)?;
        let path = path(dir, name);
        let family = net::sockopt::socket_domain(&fd);
        if family != Ok(net::AddressFamily::UNIX)
            || net::sockopt::socket_acceptconn(&fd) != Ok(true)
        {
            return Err(BindError::NotListening);
        }
        let failed = |error| BindError::Io("take over", path.clone(), error);
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            // As many wait as at a socket that was bound here, and clients learn from the kernel that
            // it is this process's now.
            .and_then(|()| net::listen(&fd, BACKLOG))
            .map_err(|error| failed(error.into()))?;
        let file = files::adopt(folder, dir, name, fd.as_fd()).map_err(failed)?;
        Self::new(fd, folder, (dir, name), file).map_err(failed)
    }

    fn new(
        listener: OwnedFd,
        folder: Folder,
        (dir, name): (&Path, &str),
        file: FileIdentity,
    ) -> io::Result<Self> {
        let listener = UnixListener::from(listener);
        // From here on it is removed when something fails.
        let bound = Self {
            listener: Some(Arc::new(listener)),
            folder,
            dir: dir.to_owned(),
            name: name.to_owned(),
            file: Some(file),
            is_missed: false,
        };
        rustix::io::ioctl_fionbio(bound.listener(), true)?;
        Ok(bound)
    }

    /// For a child process to adopt: leaves the socket's file alone from now on.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.file = None;
        match self.listener.take().and_then(Arc::into_inner) {
            Some(listener) => listener.into(),
            None => unreachable!("only into_fd takes the listener, and nobody serves it yet"),
        }
    }

    /// The listening socket, to hand it over.
    fn shared(&self) -> Option<Arc<UnixListener>> {
        self.listener.clone()
    }

    fn listener(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Some(listener) => listener.as_fd(),
            None => unreachable!("only into_fd takes the listener"),
        }
    }

    fn path(&self) -> PathBuf {
        path(&self.dir, &self.name)
    }

    /// Whether its removal has to be noticed.
    fn is_watched(&self) -> bool {
        self.folder == Folder::Control
    }

    /// Whether the socket's file was removed or replaced, if that must be noticed; true once.
    fn was_removed(&mut self) -> bool {
        let is_gone = self
            .file
            .is_some_and(|file| identity(&self.path()).ok() != Some(file));
        self.is_watched() && is_gone && !std::mem::replace(&mut self.is_missed, true)
    }
}

impl Drop for BoundListener {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            files::remove(self.folder, &self.dir, &self.name, file);
        }
    }
}

fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.sock"))
}
