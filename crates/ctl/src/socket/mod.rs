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
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{self, sockopt::Timeout};

/// How long to wait for another process that is just binding or removing a socket in the same
/// directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
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
    /// What was tried ("bind"), on which file, and why it failed.
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
pub(crate) struct Bound {
    listener: Option<Arc<UnixListener>>,
    path: PathBuf,
    /// Device and inode of the socket file. `None` once it was removed.
    file: Option<(u64, u64)>,
    /// Whether the file's removal must be noticed.
    watched: bool,
    /// Goes with the socket.
    companion: Option<PathBuf>,
}

/// Waits for the directory's lock, so that no process removes a socket that another has just put
/// there. `None` if it is not to be had: every user may open the directory, and keep it locked, and
/// is to keep no interface down.
fn lock(dir: &Path) -> Result<Option<OwnedFd>, BindError> {
    let failed = |error: io::Error| BindError::Io("lock", dir.to_owned(), error);
    let handle = OwnedFd::from(std::fs::File::open(dir).map_err(failed)?);
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(handle)),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// Device and inode: they differ when another file has taken the place of this one.
///
/// # Errors
///
/// The file is not there, or a directory on the way to it may not be searched.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = path.symlink_metadata()?;
    Ok((found.dev(), found.ino()))
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
pub(crate) struct Answer<R> {
    pub(crate) stream: R,
    until: Instant,
    left: u64,
}

impl<R> Answer<R> {
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

impl<R: Read> Read for Answer<R> {
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

/// Whether a process listens at `path`.
fn answers(path: &Path) -> io::Result<bool> {
    let socket = stream(net::SocketFlags::NONBLOCK)?;
    match net::connect(&socket, &net::SocketAddrUnix::new(path)?) {
        // A full backlog is a sign of life.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes a directory for sockets, with mode 0755, if it is missing.
///
/// # Errors
///
/// Those of mkdir(2).
pub fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    make_dirs(dir)?;
    // The umask may have taken bits away.
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755))
}

/// Makes a directory, and those above it. A link among them may lead nowhere, as /var/run in an
/// image without /run: what it leads to is made.
fn make_dirs(dir: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755);
    let made = builder.create(dir);
    let dangling = |path: &&Path| path.is_symlink() && !path.exists();
    match (made, dir.ancestors().find(dangling)) {
        (Err(_), Some(link)) => {
            let target = std::fs::read_link(link)?;
            builder.create(link.parent().unwrap_or(link).join(target))?;
            builder.create(dir)
        }
        (made, _) => made,
    }
}

/// Removes what a dead process left at `path`.
fn clear(path: &Path) -> Result<(), BindError> {
    let failed = |error| BindError::Io("take over", path.to_owned(), error);
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => Err(BindError::Occupied(path.to_owned())),
        Ok(_) if answers(path).map_err(failed)? => Err(BindError::AlreadyRunning(path.to_owned())),
        Ok(_) => match std::fs::remove_file(path) {
            // wg removes what refuses connections, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(failed),
        },
    }
}

impl Bound {
    /// Binds `dir/name.sock` with mode 0600, or 0660 for a `group`, making `dir` with mode 0755 if
    /// it is missing. The file's removal is noticed if it is `watched`.
    pub(crate) fn bind(
        dir: &Path,
        name: &str,
        watched: bool,
        group: Option<u32>,
    ) -> Result<Self, BindError> {
        crate::names::check_name(name).map_err(BindError::Name)?;
        make_dir(dir).map_err(|error| BindError::Io("make", dir.to_owned(), error))?;
        let _lock = lock(dir)?;
        let path = dir.join(format!("{name}.sock"));
        clear(&path)?;
        // The socket is bound in a closed directory, and moved once it has its mode and listens. No
        // client can connect earlier, and wg, which removes sockets that refuse connections, never
        // sees it refuse.
        let nest = dir.join(format!(".{name}.new"));
        let egg = nest.join("s");
        let hatch = || -> io::Result<Self> {
            _ = std::fs::remove_dir_all(&nest);
            std::fs::DirBuilder::new().mode(0o700).create(&nest)?;
            let listener = UnixListener::bind(&egg)?;
            net::listen(&listener, BACKLOG)?;
            let mode = match group {
                Some(group) => {
                    std::os::unix::fs::chown(&egg, None, Some(group))?;
                    0o660
                }
                None => 0o600,
            };
            std::fs::set_permissions(&egg, PermissionsExt::from_mode(mode))?;
            Self::guard(listener, &egg, &path, watched)
        };
        let bound = hatch();
        _ = std::fs::remove_dir_all(&nest);
        bound.map_err(|error| BindError::Io("bind", path, error))
    }

    /// Takes a socket that the parent process bound at `dir/name.sock`.
    pub(crate) fn adopt(
        dir: &Path,
        name: &str,
        fd: OwnedFd,
        watched: bool,
    ) -> Result<Self, BindError> {
        crate::names::check_name(name).map_err(BindError::Name)?;
        let path = dir.join(format!("{name}.sock"));
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
        Self::guard(UnixListener::from(fd), &path, &path, watched).map_err(failed)
    }

    /// Moves the socket from `egg` to `path` when nothing else can fail.
    fn guard(listener: UnixListener, egg: &Path, path: &Path, watched: bool) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let file = identity(egg)?;
        if egg != path {
            std::fs::rename(egg, path)?;
        }
        Ok(Self {
            listener: Some(Arc::new(listener)),
            path: path.to_owned(),
            file: Some(file),
            watched,
            companion: None,
        })
    }

    /// Writes a file beside the socket that is removed with it.
    pub(crate) fn accompany(&mut self, path: PathBuf, content: &str) {
        // Whoever left one there does not choose who may write this one.
        let _ = std::fs::remove_file(&path);
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o644).open(&path);
        if file
            .and_then(|mut file| file.write_all(content.as_bytes()))
            .is_ok()
        {
            self.companion = Some(path);
        }
    }

    /// For a child process to adopt: leaves the socket's file alone from now on.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.file = None;
        self.companion = None;
        match self.listener.take().and_then(Arc::into_inner) {
            Some(listener) => listener.into(),
            None => unreachable!("only into_fd takes the listener, and nobody serves it yet"),
        }
    }

    /// The listening socket, for whoever hands it over.
    fn shared(&self) -> Option<Arc<UnixListener>> {
        self.listener.clone()
    }

    fn listener(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Some(listener) => listener.as_fd(),
            None => unreachable!("only into_fd takes the listener"),
        }
    }

    /// Whether the socket's file is still the one that was bound.
    fn is_in_place(&self) -> bool {
        self.file.is_some() && identity(&self.path).ok() == self.file
    }

    /// Whether the socket's file was removed or replaced, if that must be noticed; true once.
    fn was_removed(&mut self) -> bool {
        let gone = self.watched && self.file.is_some() && !self.is_in_place();
        if gone {
            self.file = None;
        }
        gone
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(companion) = &self.companion {
            _ = std::fs::remove_file(companion);
        }
        let _lock = self.path.parent().map(lock);
        if self.is_in_place() {
            _ = std::fs::remove_file(&self.path);
        }
    }
}
