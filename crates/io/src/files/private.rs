//! Sockets that only the user of a process may reach, in a folder of its own: a new process asks
//! there for a hand-over.

use std::fs::DirEntry;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, mkdirat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{Egg, answers, bind, remove_empty, unlink};

/// The folder, below that of the status sockets.
pub const DIR: &str = "upgrade";

/// Binds `dir/PID.sock`. What killed processes left in the folder goes. The folder may go at any
/// time, with the last process that has a socket there: `NotFound`.
pub(crate) fn lay_private(dir: &Path, pid: i32) -> io::Result<(OwnedFd, Egg)> {
    remove_dead(dir);
    make_private(dir)?;
    let egg = Egg {
        at: dir.join(format!(".{pid}.next")),
        to: path_of(dir, pid),
        _lock: None,
    };
    let _ = unlink(&egg.at);
    Ok((bind(&egg.at, None)?, egg))
}

/// Removes `dir/PID.sock`. The last one takes the folder along.
pub(crate) fn remove_private(dir: &Path, pid: i32) {
    let _ = unlink(&path_of(dir, pid));
    remove_empty([dir]);
}

fn path_of(dir: &Path, pid: i32) -> PathBuf {
    dir.join(format!("{pid}.sock"))
}

/// Makes a directory that nobody but this user may enter.
fn make_private(dir: &Path) -> io::Result<()> {
    match mkdirat(CWD, dir, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let found = statat(CWD, dir, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    if !is_directory || found.st_uid != geteuid().as_raw() || found.st_mode & 0o077 != 0 {
        let text = "the directory is not this user's alone: remove it, and start again";
        return Err(io::Error::other(text));
    }
    Ok(())
}

/// Removes what killed processes left in a directory of such sockets.
pub fn remove_dead(dir: &Path) {
    let is_dead = |path: &Path| answers(path).is_ok_and(|answers| !answers);
    for (path, _) in sockets(dir).iter().filter(|(path, _)| is_dead(path)) {
        let _ = unlink(path);
    }
}

/// The sockets in a directory, by the process that each is of. A link may lead to any program's, and
/// a file is none.
pub fn sockets(dir: &Path) -> Vec<(PathBuf, i32)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_socket = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
    let found = entries.filter(is_socket).filter_map(|entry| {
        let path = entry.path();
        let pid = path.file_name()?.to_str()?.strip_suffix(".sock")?;
        let pid = pid.parse().ok()?;
        Some((path, pid))
    });
    found.collect()
}
