//! Configuration files on the disk: changed by one command at a time, and as a whole.
//!
//! 1. lock the file, wait for whatever has it;
//! 2. read it, and work out what it is to be;
//! 3. write that to a new file beside it, with the same owner, mode and access list;
//! 4. rename it, so that a crash leaves one or the other; where that cannot be, as for a file that
//!    is mounted, write to the file itself.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use adit_ctl::{config, status};
use rustix::fs::{
    Access, CWD, FallocateFlags, FlockOperation, RenameFlags, XattrFlags, access, fallocate,
    fgetxattr, flock, fsetxattr, renameat_with,
};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::roster::quoted;
use crate::failure::{Context, Failure, Result, bail};

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;

/// What commands call a tunnel by: its name, or the path of a file elsewhere.
pub(super) fn called(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match path.parent() == Some(Path::new(config::DIR)) {
        true => stem.into_owned(),
        false => {
            let path = path.strip_prefix(".").unwrap_or(path);
            quoted(&Path::new(".").join(path).display().to_string())
        }
    }
}

/// What a process of an interface leaves to the next one.
pub(super) fn peers_file(name: &str) -> PathBuf {
    Path::new(status::DIR).join(format!("{name}.peers"))
}

/// How long to wait for other commands that change the file.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);
/// The access list of a file, beyond its mode.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Keeps other commands of Adit, and flock(1), from changing a file.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until nothing else changes the file.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        let failed = || format!("cannot lock {}", path.display());
        loop {
            // NFS locks only what is open for writing.
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).open(path);
            let file = file.or_else(|_| File::open(path)).context(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The command that had the lock may have put a new file there.
                Ok(()) if identity(&file.metadata().context(failed)?) == of_path(path) => {
                    return Ok(Self { _file: file });
                }
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => bail!(
                    State,
                    "another program keeps {0} locked: try again when it is done (`fuser -v {0}` finds it)",
                    path.display()
                ),
                Err(error) => return Err(error).context(failed),
            }
        }
    }
}

fn identity(found: &Metadata) -> Option<(u64, u64)> {
    Some((found.dev(), found.ino()))
}

fn of_path(path: &Path) -> Option<(u64, u64)> {
    identity(&fs::metadata(path).ok()?)
}

/// The text of a configuration file.
pub(super) fn read(path: &Path) -> Result<Zeroizing<String>> {
    let (text, _) = config::read(path).context(|| format!("cannot read {}", path.display()))?;
    Ok(text)
}

/// Replaces a file that still has the `old` text: an editor takes no lock.
pub(super) fn replace(path: &Path, old: &str, new: &str) -> Result<()> {
    if *read(path)? != *old {
        bail!(
            State,
            "{} was changed meanwhile, and stays as it is: try again",
            path.display()
        );
    }
    write_or_explain(path, new)
}

/// Says that a file is as it was, if it cannot be written.
pub(super) fn write_or_explain(path: &Path, text: &str) -> Result<()> {
    write(path, text).map_err(|failure| {
        Failure::State(format!(
            "{failure}; nothing is changed: make it writable first"
        ))
    })
}

/// Replaces the contents of a configuration file, of which [`read`] has read the old ones.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    // The file itself, not a link to it.
    let path = fs::canonicalize(path).context(failed)?;
    let old = Zeroizing::new(fs::read(&path).context(failed)?);
    let new = encode(text, &old).map_err(Failure::Mistake)?;
    if *new == *old {
        return Ok(());
    }
    match put_in_place(&path, &new) {
        // A mounted file, a closed directory, or an owner that cannot be given.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::ResourceBusy
                    | ErrorKind::CrossesDevices
                    | ErrorKind::PermissionDenied
                    | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            overwrite(&path, &new)
        }
        result => result,
    }
    .context(failed)
}

/// A new file, for its owner only. It must not be there yet.
pub(super) fn create(path: &Path, text: &str) -> Result<()> {
    let put = || -> io::Result<()> {
        let (temporary, mut file) = temporary(path)?;
        let written = file.write_all(text.as_bytes());
        let named =
            (written.and_then(|()| file.sync_all())).and_then(|()| rename_to_new(&temporary, path));
        named.inspect_err(|_| drop(fs::remove_file(&temporary)))?;
        sync_dir(path);
        Ok(())
    };
    put().context(|| format!("cannot write {}", path.display()))
}

/// Gives a file a name that none has.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        result => Ok(result?),
    }
}

/// Whether files can be made in a directory.
pub(super) fn check_dir(dir: &Path) -> Result<()> {
    let found = access(dir, Access::WRITE_OK | Access::EXEC_OK);
    found.context(|| format!("cannot make a file in {}", dir.display()))
}

/// Makes a directory for files with keys, if it is not there.
pub(super) fn make_dir(dir: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        result => result.context(|| format!("cannot make the directory {}", dir.display())),
    }
}

/// The bytes of the text, in the encoding of the old ones.
fn encode(text: &str, old: &[u8]) -> std::result::Result<Zeroizing<Vec<u8>>, String> {
    if std::str::from_utf8(old).is_ok() {
        return Ok(Zeroizing::new(text.as_bytes().to_vec()));
    }
    // It was read as Latin-1.
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    for c in text.chars() {
        let byte = u8::try_from(c).map_err(|_| {
            format!(
                "the file is not UTF-8, and {c:?} is not Latin-1: take other letters for the name"
            )
        })?;
        bytes.push(byte);
    }
    Ok(bytes)
}

fn put_in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let (temporary, mut file) = temporary(path)?;
    let mut fill = || {
        copy_rights(path, &found, &file)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    fill().inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    sync_dir(path);
    Ok(())
}

/// An empty file beside another one, for its owner only.
fn temporary(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
    let name = format!(".adit-{:016x}.tmp", u64::from_ne_bytes(random));
    let temporary = path.with_file_name(name);
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600);
    let file = file.open(&temporary)?;
    Ok((temporary, file))
}

/// Has the names in a file's directory survive a crash. Not every file system can.
fn sync_dir(path: &Path) {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let _ = File::open(dir).and_then(|dir| dir.sync_all());
}

/// Gives a new file the owner, mode and access list of the one that it replaces.
fn copy_rights(path: &Path, old: &Metadata, new: &File) -> io::Result<()> {
    let own = new.metadata()?;
    if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
        fchown(new, Some(old.uid()), Some(old.gid()))?;
    }
    new.set_permissions(PermissionsExt::from_mode(old.mode() & 0o7777))?;
    let mut list = vec![0; 64 << 10];
    match fgetxattr(File::open(path)?, ACCESS_LIST, &mut list[..]) {
        Ok(length) => fsetxattr(new, ACCESS_LIST, &list[..length], XattrFlags::empty())?,
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Writes to the file itself, which stays as it is where there is no room for the text.
fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let length = bytes.len() as u64;
    match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, length.max(1)) {
        // Not every file system can reserve room.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    file.write_all(bytes)?;
    file.set_len(length)?;
    file.sync_all()
}
