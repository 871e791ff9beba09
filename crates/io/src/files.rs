//! The files of a process that serves interfaces: its sockets, what stands beside them, and where
//! their peers were.
//!
//! What is done here is done by path. A process with a sandbox leaves it to its helper
//! ([`helper::files`](crate::helper::files)), which chooses the folders. A socket appears in two
//! steps, so that no client ever finds one that refuses it: [`lay`] binds it beside its place, and
//! once it listens, [`Egg::hatch`] moves it there. Who listens is the process that the kernel names
//! to clients, and that is never the helper.

pub(crate) mod private;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, chmodat, chownat, fchmod, flock, fstat,
    inotify, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Gid, Pid, PidfdFlags, pidfd_open};

use crate::sys::os;

/// Device and inode: they differ when another file has taken the place of this one.
pub type FileIdentity = (u64, u64);

/// What is done when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileStep {
    /// Making the folder.
    Make,
    /// Locking the folder.
    Lock,
    /// Taking over what a dead process left.
    TakeOver,
    /// Binding the socket, and all that follows.
    Bind,
}

impl FileStep {
    pub(crate) const ALL: [Self; 4] = [Self::Make, Self::Lock, Self::TakeOver, Self::Bind];
}

/// Why there is no socket.
#[derive(Debug)]
pub enum Failed {
    /// A living process answers there.
    Running,
    /// Something that is no socket stands in the way.
    Occupied,
    /// The step that failed, and why.
    At(FileStep, io::Error),
}

/// Why nothing was done.
#[derive(Debug)]
pub(crate) enum FileRefusal {
    /// Another process has the folder locked just now.
    Locked,
    Failed(Failed),
}

impl From<Failed> for FileRefusal {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// Where a socket of an interface stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketLocation {
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
    /// A file `IF.name` stands beside the socket.
    pub(crate) has_companion: bool,
}

impl SocketLocation {
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(format!("{}.sock", self.name))
    }

    /// Where the socket is until it listens. Nobody looks for sockets of such a name.
    fn egg(&self) -> PathBuf {
        self.dir.join(format!(".{}.next", self.name))
    }

    fn companion(&self) -> PathBuf {
        self.dir.join(format!("{}.name", self.name))
    }

    /// Writes the file beside the socket, if there is to be one. Without it the socket is as good.
    pub(crate) fn accompany(&self) {
        if !self.has_companion {
            return;
        }
        let path = self.companion();
        // Who left one there does not choose who may write this one.
        let _ = unlink(&path);
        if let Ok(mut file) = create(&path, 0o644) {
            let _ = file.write_all(format!("{}\n", self.name).as_bytes());
        }
    }

    /// Whether the socket is the one that was put there.
    pub(crate) fn has(&self, file: FileIdentity) -> bool {
        identity(&self.path()).is_ok_and(|found| found == file)
    }

    /// Removes the socket, if it is still the one that was put there, and the file beside it. Another
    /// process may have the folder locked; with `insists`, that does not count: every user may open the
    /// folder, and keep it locked, and is to keep no interface up or down.
    pub(crate) fn remove(&self, file: FileIdentity, insists: bool) -> Result<(), FileRefusal> {
        let _lock = match lock(&self.dir) {
            Err(FileRefusal::Locked) if !insists => return Err(FileRefusal::Locked),
            lock => lock.ok(),
        };
        let found = identity(&self.path()).ok();
        // Another process may have put its own there.
        if self.has_companion && found.is_none_or(|found| found == file) {
            let _ = unlink(&self.companion());
        }
        if found == Some(file) {
            let _ = unlink(&self.path());
        }
        Ok(())
    }

    /// Whether `listener` is the socket of the file that stands here now.
    pub(crate) fn is_of(&self, listener: BorrowedFd<'_>) -> bool {
        match os::file_of_socket(listener) {
            Ok(file) => fstat(file).is_ok_and(|found| self.has((found.st_dev, found.st_ino))),
            // Without the right to ask, the name at which it was bound tells: only a socket of this
            // interface was ever bound there.
            Err(_) => {
                let address = net::getsockname(listener);
                let address = address.and_then(SocketAddrUnix::try_from);
                let bound = address
                    .ok()
                    .and_then(|it| it.path().map(|it| it.into_owned()));
                let before = self.dir.join(format!(".{}.new/s", self.name));
                let known = [self.egg(), self.path(), before];
                bound.is_some_and(|bound| {
                    let bound = Path::new(OsStr::from_bytes(bound.to_bytes()));
                    known.iter().any(|path| path == bound)
                })
            }
        }
    }
}

/// A socket that is bound and does not listen yet. It goes with this, unless it [hatches](Self::hatch).
#[derive(Debug)]
pub(crate) struct Egg {
    at: PathBuf,
    to: PathBuf,
    /// The lock of the folder, until the socket is in its place.
    _lock: Option<OwnedFd>,
}

impl Egg {
    /// Moves the socket to its place.
    pub(crate) fn hatch(self) -> io::Result<FileIdentity> {
        let file = identity(&self.at)?;
        renameat(CWD, &self.at, CWD, &self.to)?;
        Ok(file)
    }
}

impl Drop for Egg {
    fn drop(&mut self) {
        let _ = unlink(&self.at);
    }
}

/// Binds a socket for its owner alone, or for a `group`, too. What a dead process left in its place
/// goes. The folder must be there.
pub(crate) fn lay(
    place: &SocketLocation,
    group: Option<u32>,
    insists: bool,
) -> Result<(OwnedFd, Egg), FileRefusal> {
    let lock = match lock(&place.dir) {
        Err(FileRefusal::Locked) if insists => None,
        lock => Some(lock?),
    };
    clear(&place.path())?;
    let egg = Egg {
        at: place.egg(),
        to: place.path(),
        _lock: lock,
    };
    let _ = unlink(&egg.at);
    let socket = bind(&egg.at, group).map_err(|error| Failed::At(FileStep::Bind, error))?;
    Ok((socket, egg))
}

/// A socket at `path` with mode 0600, or 0660 for a `group`.
fn bind(path: &Path, group: Option<u32>) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(if group.is_some() { 0o660 } else { 0o600 });
    let socket = stream(SocketFlags::empty())?;
    // The file gets the mode of the socket, and at no time another one.
    fchmod(&socket, mode)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Some(group) = group {
        chownat(
            CWD,
            path,
            None,
            Some(Gid::from_raw(group)),
            AtFlags::empty(),
        )?;
    }
    // A helper has no umask.
    if Mode::from_raw_mode(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?.st_mode) != mode {
        chmodat(CWD, path, mode, AtFlags::empty())?;
    }
    Ok(socket)
}

/// The lock of a folder, so that no process removes a socket that another has just put there.
fn lock(dir: &Path) -> Result<OwnedFd, FileRefusal> {
    let failed = |error: Errno| Failed::At(FileStep::Lock, error.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = openat(CWD, dir, flags, Mode::empty()).map_err(failed)?;
    match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(handle),
        Err(Errno::WOULDBLOCK) => Err(FileRefusal::Locked),
        Err(error) => Err(failed(error).into()),
    }
}

/// Removes what a dead process left at `path`.
pub(crate) fn clear(path: &Path) -> Result<(), Failed> {
    let failed = |error: Errno| Failed::At(FileStep::TakeOver, error.into());
    let found = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        found => found.map_err(failed)?,
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(Failed::Occupied);
    }
    if answers(path).map_err(|error| Failed::At(FileStep::TakeOver, error))? {
        return Err(Failed::Running);
    }
    match unlink(path) {
        // wg removes what refuses connections, too.
        Err(Errno::NOENT) => Ok(()),
        result => result.map_err(failed),
    }
}

/// Whether a process listens at `path`.
pub(crate) fn answers(path: &Path) -> io::Result<bool> {
    let socket = stream(SocketFlags::NONBLOCK)?;
    match net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // A full backlog is a sign of life.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn stream(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The identity of what stands at a path itself, be it a link.
///
/// # Errors
///
/// The file is not there, or a directory on the way to it may not be searched.
pub fn identity(path: &Path) -> io::Result<FileIdentity> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((found.st_dev, found.st_ino))
}

fn unlink(path: &Path) -> rustix::io::Result<()> {
    unlinkat(CWD, path, AtFlags::empty())
}

/// A new file.
fn create(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::from_raw_mode(mode))?.into())
}

/// The file in `dir` that says where the peers of an interface were.
pub(crate) struct Peers {
    path: PathBuf,
    new: PathBuf,
}

/// Longer than any such file, of a million peers.
const MAX_PEERS_FILE: u64 = 256 << 20;

impl Peers {
    pub(crate) fn of(dir: &Path, name: &str) -> Self {
        Self {
            path: dir.join(format!("{name}.peers")),
            new: dir.join(format!("{name}.new")),
        }
    }

    /// To read.
    pub(crate) fn recall(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(CWD, &self.path, flags, Mode::empty())?)
    }

    /// A new one, to write. Only its owner can read where peers are. A process that is killed now
    /// leaves the last one whole.
    pub(crate) fn begin(&self) -> io::Result<OwnedFd> {
        let _ = unlink(&self.new);
        create(&self.new, 0o600).map(OwnedFd::from)
    }

    /// Puts the new one in the place of the last one.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let found = statat(CWD, &self.new, AtFlags::SYMLINK_NOFOLLOW)?;
        if u64::try_from(found.st_size).is_ok_and(|size| size > MAX_PEERS_FILE) {
            let _ = unlink(&self.new);
            return Err(Errno::FBIG.into());
        }
        Ok(renameat(CWD, &self.new, CWD, &self.path)?)
    }

    pub(crate) fn forget(&self) -> io::Result<()> {
        Ok(unlink(&self.path)?)
    }
}

/// Removes folders that are empty.
pub(crate) fn remove_empty<'a>(dirs: impl IntoIterator<Item = &'a Path>) {
    for dir in dirs {
        let _ = unlinkat(CWD, dir, AtFlags::REMOVEDIR);
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
    Ok(chmodat(
        CWD,
        dir,
        Mode::from_raw_mode(0o755),
        AtFlags::empty(),
    )?)
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

/// Has an inotify descriptor tell when a socket's file goes.
pub(crate) fn watch(inotify: BorrowedFd<'_>, path: &Path) -> io::Result<i32> {
    // Losing its last name is a change of the inode's attributes; the inode itself lives as long as
    // a process listens. A watch is one socket's: MASK_CREATE, since Linux 4.18, refuses a second.
    let signs = inotify::WatchFlags::ATTRIB | inotify::WatchFlags::MOVE_SELF;
    let only = signs | inotify::WatchFlags::MASK_CREATE;
    Ok(match inotify::add_watch(inotify, path, only) {
        Err(Errno::INVAL) => inotify::add_watch(inotify, path, signs)?,
        watch => watch?,
    })
}

/// A handle of the process at the other end of a UNIX socket, which is there, by its number.
pub(crate) fn process_of(stream: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (pid, _) = os::peer(stream)?;
    let pid = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw);
    Ok(pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())?)
}

/// The name of the program that a process runs, and [the user behind it](user_behind).
pub(crate) fn caller(pid: i32) -> io::Result<(Vec<u8>, Option<u32>)> {
    let mut name = std::fs::read(format!("/proc/{pid}/comm"))?;
    name.truncate(name.trim_ascii_end().len());
    Ok((name, user_behind(pid)))
}

/// The kernel's word for nobody.
const NOBODY: u32 = u32::MAX;
/// Ancestors that are looked at.
const GENERATIONS: usize = 32;

/// The user who became root for a process of root: who logged in, as the kernel keeps it (loginuid),
/// or else whose process started the command by which root came, such as sudo(8).
fn user_behind(pid: i32) -> Option<u32> {
    let read = |pid: i32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    if parent_and_user(&read(pid, "status")?)?.1 != 0 {
        return None;
    }
    let login = read(pid, "loginuid").and_then(|text| text.trim().parse().ok());
    if let Some(login) = login.filter(|login| *login != NOBODY) {
        return Some(login).filter(|login| *login != 0);
    }
    let mut next = pid;
    for _ in 0..GENERATIONS {
        let (parent, user) = parent_and_user(&read(next, "status")?)?;
        if user != 0 {
            return Some(user);
        }
        next = Some(parent).filter(|parent| *parent > 0)?;
    }
    None
}

/// The parent and the real user of a process, by the text of /proc/PID/status.
fn parent_and_user(status: &str) -> Option<(i32, u32)> {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.split_whitespace().next()
    };
    let parent = field("PPid:")?.parse().ok()?;
    Some((parent, field("Uid:")?.parse().ok()?))
}
