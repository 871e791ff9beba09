//! The files of the interfaces that a process serves, by the hand of its helper, if it has one.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_netlink::Netlink;

use crate::files::private::{lay_private, remove_private};
use crate::files::{self, Egg, Failed, FileIdentity, FileRefusal, FileStep, Peers, SocketLocation};
use crate::helper::client::{ask_helper, has};
use crate::helper::file_request::{FileRequest, Folder, Spot, heard};
use crate::helper::messages::{HelperAnswer, malformed};
use crate::helper::name::InterfaceName;
use crate::helper::request::HelperRequest;

/// How long to wait for another process that is just binding or removing a socket in the same
/// directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// Bytes of the file of peers.
const WRITTEN_AT_ONCE: usize = 64 << 10;

/// The helper keeps one socket at a time that does not stand in its place yet.
static LAYING: Mutex<()> = Mutex::new(());

/// A socket that is bound and has its mode, and that no client can find yet.
#[derive(Debug)]
pub struct Laid {
    socket: OwnedFd,
    by: By,
}

#[derive(Debug)]
enum By {
    Helper(MutexGuard<'static, ()>),
    Us(Egg, SocketLocation),
}

impl AsFd for Laid {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Laid {
    /// Moves the socket to its place, with the file that stands beside it. It has to listen already.
    ///
    /// # Errors
    ///
    /// Those of rename(2).
    pub fn show(self) -> io::Result<(OwnedFd, FileIdentity)> {
        let file = match self.by {
            By::Helper(_turn) => {
                let answer = ask_for(FileRequest::Show, &[]).unwrap_or_else(|| Err(malformed()));
                let [device, inode, ..] = answer?.numbers;
                (device, inode)
            }
            By::Us(egg, place) => {
                let file = egg.hatch()?;
                place.accompany();
                file
            }
        };
        Ok((self.socket, file))
    }
}

/// Binds the socket of an interface in `dir`, for its owner alone, or for a `group`, too. What a dead
/// process left in its place goes.
///
/// # Errors
///
/// See [`Failed`].
pub fn lay(folder: Folder, dir: &Path, name: &str, group: Option<u32>) -> Result<Laid, Failed> {
    let failed = |error| Failed::At(FileStep::Bind, error);
    let Some(known) = has(folder as usize, dir) else {
        let place = place(folder, dir, name);
        files::make_dir(dir).map_err(|error| Failed::At(FileStep::Make, error))?;
        let (socket, egg) = patiently(|insists| files::lay(&place, group, insists))?;
        let by = By::Us(egg, place);
        return Ok(Laid { socket, by });
    };
    known.map_err(failed)?;
    let at = spot(folder, name).map_err(failed)?;
    let turn = LAYING.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = patiently(|insists| {
        let at = at.clone();
        let answer = by_helper(FileRequest::Lay { at, insists }, &[]);
        let answer = answer.map_err(failed)?;
        heard(answer.numbers)?;
        Ok(answer.one().map_err(failed)?)
    })?;
    let by = By::Helper(turn);
    Ok(Laid { socket, by })
}

/// Binds the socket at which a new process asks for the interfaces, below the folder of the status
/// sockets, where only this user may come. Returns nothing but `NotFound` where the folder has just
/// gone with the last one there.
///
/// # Errors
///
/// Those of bind(2), and a folder that others may enter.
pub fn lay_for_upgrade(dir: &Path) -> io::Result<Laid> {
    let Some(known) = has(Folder::Status as usize, dir) else {
        let pid = rustix::process::getpid().as_raw_pid();
        let (socket, egg) = lay_private(&dir.join(files::private::DIR), pid)?;
        let by = By::Us(egg, place(Folder::Upgrade, dir, ""));
        return Ok(Laid { socket, by });
    };
    known?;
    let turn = LAYING.lock().unwrap_or_else(PoisonError::into_inner);
    let (at, insists) = (spot(Folder::Upgrade, "")?, true);
    let socket = by_helper(FileRequest::Lay { at, insists }, &[])?.one()?;
    let by = By::Helper(turn);
    Ok(Laid { socket, by })
}

/// Removes that socket.
pub fn remove_for_upgrade(dir: &Path) {
    match has(Folder::Status as usize, dir) {
        None => {
            let pid = rustix::process::getpid().as_raw_pid();
            remove_private(&dir.join(files::private::DIR), pid);
        }
        Some(_) => {
            let _ = spot(Folder::Upgrade, "").and_then(|at| {
                let insists = true;
                by_helper(FileRequest::Remove { at, insists }, &[])
            });
        }
    }
}

/// Takes a socket that another process bound, which listens, and whose file stands in its place.
///
/// # Errors
///
/// The file is not there, or is another socket's.
pub fn adopt(
    folder: Folder,
    dir: &Path,
    name: &str,
    listener: BorrowedFd<'_>,
) -> io::Result<FileIdentity> {
    let Some(known) = has(folder as usize, dir) else {
        let place = place(folder, dir, name);
        let file = files::identity(&place.path())?;
        place.accompany();
        return Ok(file);
    };
    known?;
    let adopt = FileRequest::Adopt(spot(folder, name)?);
    let [device, inode, ..] = by_helper(adopt, &[listener])?.numbers;
    Ok((device, inode))
}

/// Removes a socket that was shown or adopted here, and the file beside it, if it still is the one in
/// its place. Returns when it is gone.
pub fn remove(folder: Folder, dir: &Path, name: &str, file: FileIdentity) {
    let _ = match (has(folder as usize, dir), spot(folder, name)) {
        (None, _) => {
            let place = place(folder, dir, name);
            patiently(|insists| place.remove(file, insists))
        }
        (Some(_), Ok(at)) => patiently(|insists| {
            let at = at.clone();
            let answer = by_helper(FileRequest::Remove { at, insists }, &[]);
            heard(
                answer
                    .map_err(|error| Failed::At(FileStep::Lock, error))?
                    .numbers,
            )
        }),
        (Some(_), Err(_)) => Ok(()),
    };
}

/// Has an inotify descriptor tell when the file of a control socket goes, by the number that is
/// returned.
///
/// # Errors
///
/// Those of inotify_add_watch(2).
pub fn watch(inotify: BorrowedFd<'_>, dir: &Path, name: &str) -> io::Result<i32> {
    let Some(known) = has(Folder::Control as usize, dir) else {
        return files::watch(inotify, &place(Folder::Control, dir, name).path());
    };
    known?;
    let [watch, ..] = by_helper(FileRequest::Watch(name_of(name)?), &[inotify])?.numbers;
    i32::try_from(watch).map_err(|_| malformed())
}

/// The file in `dir` that says where the peers of an interface were, to read.
///
/// # Errors
///
/// Those of openat(2).
pub fn recall(dir: &Path, name: &str) -> io::Result<File> {
    let fd = match has(Folder::Status as usize, dir) {
        None => Peers::of(dir, name).recall(),
        Some(_) => by_helper(FileRequest::Recall(name_of(name)?), &[])?.one(),
    };
    fd.map(File::from)
}

/// A new file of that kind, to be written.
///
/// # Errors
///
/// Those of openat(2).
pub fn remember(dir: &Path, name: &str) -> io::Result<NewPeersFile> {
    let file = match has(Folder::Status as usize, dir) {
        None => Peers::of(dir, name).begin(),
        Some(_) => by_helper(FileRequest::Remember(name_of(name)?), &[])?.one(),
    };
    Ok(NewPeersFile {
        file: BufWriter::with_capacity(WRITTEN_AT_ONCE, File::from(file?)),
        dir: dir.to_owned(),
        name: name.to_owned(),
    })
}

/// A file of that kind which is not in its place yet.
#[derive(Debug)]
pub struct NewPeersFile {
    file: BufWriter<File>,
    dir: PathBuf,
    name: String,
}

impl NewPeersFile {
    /// Puts it in the place of the last one.
    ///
    /// # Errors
    ///
    /// Those of write(2) and rename(2).
    pub fn keep(mut self) -> io::Result<()> {
        self.file.flush()?;
        match has(Folder::Status as usize, &self.dir) {
            None => Peers::of(&self.dir, &self.name).keep(),
            Some(_) => by_helper(FileRequest::Keep(name_of(&self.name)?), &[]).map(drop),
        }
    }
}

impl Write for NewPeersFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Removes it.
///
/// # Errors
///
/// Those of unlink(2).
pub fn forget(dir: &Path, name: &str) -> io::Result<()> {
    match has(Folder::Status as usize, dir) {
        None => Peers::of(dir, name).forget(),
        Some(_) => by_helper(FileRequest::Forget(name_of(name)?), &[]).map(drop),
    }
}

/// Removes the folders of a process that were named for it, if they are empty.
pub fn leave(control: &Path, status: &Path) {
    if ask_for(FileRequest::Leave, &[]).is_none() {
        files::remove_empty([status, control]);
    }
}

/// The name of the program that a process runs, and the user behind a process of root: who logged
/// in, as the kernel keeps it, or else whose process started sudo(8) or its like.
///
/// # Errors
///
/// There is no such process.
pub fn caller(pid: i32) -> io::Result<(Vec<u8>, Option<u32>)> {
    let Some(answer) = ask_for(FileRequest::Caller(pid), &[]) else {
        return files::caller(pid);
    };
    let [one, two, user, ..] = answer?.numbers;
    let mut name = [one, two].map(u64::to_le_bytes).concat();
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(16));
    let user = u32::try_from(user).map_err(|_| malformed())?;
    Ok((name, Some(user).filter(|user| *user != 0)))
}

/// A handle of the process at the other end of a UNIX socket, by its number, which is its own only
/// while it waits for an answer.
///
/// # Errors
///
/// It has ended, or is not seen here.
pub fn process_of(stream: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match ask_for(FileRequest::Peer, &[stream]) {
        None => files::process_of(stream),
        Some(answer) => answer?.one(),
    }
}

/// The index of the interface of this name.
///
/// # Errors
///
/// There is none.
pub fn index(name: &str) -> io::Result<u32> {
    match ask_for(FileRequest::Index(name_of(name)?), &[]) {
        None => Ok(Netlink::open()?.link(name)?.index),
        Some(answer) => u32::try_from(answer?.numbers[0]).map_err(|_| malformed()),
    }
}

/// Tries again while another process has the folder locked, which anyone may who can read it, and at
/// last does it all the same.
fn patiently<T>(mut work: impl FnMut(bool) -> Result<T, FileRefusal>) -> Result<T, Failed> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match work(Instant::now() >= until) {
            Ok(done) => return Ok(done),
            Err(FileRefusal::Failed(failed)) => return Err(failed),
            Err(FileRefusal::Locked) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn place(folder: Folder, dir: &Path, name: &str) -> SocketLocation {
    SocketLocation {
        dir: dir.to_owned(),
        name: name.to_owned(),
        has_companion: folder == Folder::Control,
    }
}

fn spot(folder: Folder, name: &str) -> io::Result<Spot> {
    let name = name_of(name)?;
    Ok(Spot { folder, name })
}

fn name_of(name: &str) -> io::Result<InterfaceName> {
    InterfaceName::try_from(name.as_bytes()).map_err(io::Error::other)
}

fn ask_for(request: FileRequest, fds: &[BorrowedFd<'_>]) -> Option<io::Result<HelperAnswer>> {
    ask_helper(&HelperRequest::File(request), fds)
}

/// Of a process that has a helper.
fn by_helper(request: FileRequest, fds: &[BorrowedFd<'_>]) -> io::Result<HelperAnswer> {
    ask_for(request, fds).unwrap_or_else(|| Err(malformed()))
}
