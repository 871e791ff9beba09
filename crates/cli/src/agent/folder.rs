//! A folder whose changes are noticed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use zeroize::Zeroizing;

/// What a program does in several steps, such as an editor that writes a file by renaming another one, is over
/// after this.
const SETTLES: Duration = Duration::from_millis(20);
/// How often to look whether the path leads to the same folder: a link to it, or a file system below it, may be
/// another one, and its watch stays silent.
const LOOK: Duration = Duration::from_millis(500);

/// Tells one folder from another one of the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FolderIdentity {
    pub(super) dev: u64,
    pub(super) ino: u64,
}

impl FolderIdentity {
    /// No folder has it.
    pub(super) const UNKNOWN: Self = Self { dev: 0, ino: 0 };

    /// That of the folder at this path.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let found = std::fs::metadata(path)?;
        match found.is_dir() {
            true => Ok(Self {
                dev: found.dev(),
                ino: found.ino(),
            }),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }
}

/// Something about a folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FolderNews {
    /// These files are new, others or gone.
    Files(BTreeSet<OsString>),
    /// Any of them may be.
    Anything,
    /// The folder is not there any more.
    Gone,
    /// Another one has its path.
    Replaced,
}

/// A folder that is watched.
pub(super) struct WatchedFolder {
    path: PathBuf,
    inotify: OwnedFd,
    identity: FolderIdentity,
}

impl WatchedFolder {
    /// Watches from now on.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        // Before the watch begins: if another folder takes its place meanwhile, that is noticed.
        let identity = FolderIdentity::of(path)?;
        let inotify =
            inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let watched = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, path, watched)?;
        Ok(Self {
            path: path.to_owned(),
            inotify,
            identity,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn identity(&self) -> FolderIdentity {
        self.identity
    }

    /// Whether the path still leads to it: what was read by that path before is its.
    pub(super) fn is_here(&self) -> bool {
        FolderIdentity::of(&self.path).is_ok_and(|here| here == self.identity)
    }

    /// Waits for news, or so long.
    pub(super) fn next(&self, patience: Option<Duration>) -> Option<FolderNews> {
        let start = Instant::now();
        loop {
            let here = FolderIdentity::of(&self.path);
            match here {
                Ok(identity) if identity == self.identity => {}
                Ok(_) => return Some(FolderNews::Replaced),
                Err(_) => return Some(FolderNews::Gone),
            }
            if self.wait(LOOK) {
                match self.read() {
                    FolderNews::Files(files) if files.is_empty() => {}
                    news => return Some(news),
                }
            }
            if patience.is_some_and(|patience| start.elapsed() >= patience) {
                return None;
            }
        }
    }

    fn wait(&self, within: Duration) -> bool {
        let mut fds = [PollFd::new(&self.inotify, PollFlags::IN)];
        let within = Timespec::try_from(within).unwrap_or_default();
        matches!(poll(&mut fds, Some(&within)), Ok(1..))
    }

    /// What happened by now and, from there on, until it settles.
    fn read(&self) -> FolderNews {
        let until = Instant::now() + SETTLES;
        let mut files = BTreeSet::new();
        let mut is_anything = false;
        loop {
            let mut space = [MaybeUninit::uninit(); 16 << 10];
            let mut reader = inotify::Reader::new(&self.inotify, &mut space);
            while let Ok(event) = reader.next() {
                let flags = event.events();
                if flags.intersects(
                    ReadFlags::DELETE_SELF
                        | ReadFlags::MOVE_SELF
                        | ReadFlags::UNMOUNT
                        | ReadFlags::IGNORED,
                ) {
                    return FolderNews::Gone;
                }
                is_anything |= flags.contains(ReadFlags::QUEUE_OVERFLOW);
                let name = event
                    .file_name()
                    .map(|name| OsString::from(std::ffi::OsStr::from_bytes(name.to_bytes())));
                // The link by which Kubernetes changes all files of a ConfigMap or a Secret.
                is_anything |= name.as_deref().is_some_and(|name| name == "..data");
                // A file that is made is told of again when it is written; what is none, or a link, is not.
                let is_written = |name: &OsString| {
                    !flags.contains(ReadFlags::CREATE) || is_whole(&self.path.join(name))
                };
                files.extend(name.filter(is_written));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || files.is_empty() && !is_anything || !self.wait(left) {
                break;
            }
        }
        match is_anything {
            true => FolderNews::Anything,
            false => FolderNews::Files(files),
        }
    }
}

/// What an error means, for people.
pub(super) fn explain(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ": it must be readable without root's rights, and links must stay in or below the folder"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

/// Whether this is anything but a file that nobody has written yet: a link, a pipe, another name of a file.
fn is_whole(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| !found.is_file() || found.nlink() > 1)
}

/// A file of at most so many bytes and one, which is no pipe or device that never ends.
pub(super) fn read_file(path: &Path, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut options = File::options();
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let file = options
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Zeroizing::new(Vec::new());
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "folder_tests.rs"]
pub(super) mod tests;
