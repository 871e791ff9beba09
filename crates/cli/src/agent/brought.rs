//! What agents brought to an interface: a file with a line for each peer, which outlives a killed process.
//!
//! ```text
//! folder 2049:131074
//! etcd 1234 wg0/
//! + KEY alice.conf
//! - KEY
//! ```
//!
//! A line is added before a peer is brought, and after it was removed. It is rewritten when a process begins.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use adit_ctl::keys::public_from_base64;
use adit_fleet::RecordId;
use adit_proto::config::PublicKey;

use super::folder::FolderIdentity;
use crate::cli::AGENT_DIR;
use crate::failure::{Context, Result};

/// The file, open to be added to.
pub(super) struct BroughtFile {
    path: PathBuf,
    file: File,
    /// The source whose records these are.
    mark: Option<SourceMark>,
}

/// What tells a source from another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SourceMark {
    Folder(FolderIdentity),
    /// The revision of a store that was listed last, and the prefix of its keys.
    Revision(i64, String),
}

impl SourceMark {
    fn line(&self) -> String {
        match self {
            Self::Folder(it) => format!("folder {}:{}\n", it.dev, it.ino),
            Self::Revision(revision, prefix) => format!("etcd {revision} {prefix}\n"),
        }
    }
}

impl BroughtFile {
    /// Reads it, and writes it anew.
    pub(super) fn open(
        dir: &Path,
        interface: &str,
    ) -> io::Result<(Self, HashMap<PublicKey, RecordId>)> {
        let path = dir.join(format!("{interface}.peers"));
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let (brought, mark) = parse(&text);
        let file = Self::write(&path, &brought, mark.as_ref())?;
        Ok((Self { path, file, mark }, brought))
    }

    /// The source whose records were brought.
    pub(super) fn mark(&self) -> Option<&SourceMark> {
        self.mark.as_ref()
    }

    /// From now on this is it.
    pub(super) fn set_mark(&mut self, mark: SourceMark) -> io::Result<()> {
        if self.mark.as_ref() == Some(&mark) {
            return Ok(());
        }
        let line = mark.line();
        self.mark = Some(mark);
        self.file.write_all(line.as_bytes())
    }

    /// These are about to be brought.
    pub(super) fn bring(&mut self, peers: &[(PublicKey, RecordId)]) -> io::Result<()> {
        let lines = peers.iter().map(|(key, id)| format!("+ {key} {id}\n"));
        self.add(lines.collect())
    }

    /// These were removed.
    pub(super) fn forget(&mut self, peers: &[PublicKey]) -> io::Result<()> {
        self.add(peers.iter().map(|key| format!("- {key}\n")).collect())
    }

    fn add(&mut self, lines: String) -> io::Result<()> {
        match lines.is_empty() {
            true => Ok(()),
            false => self.file.write_all(lines.as_bytes()),
        }
    }

    /// Writes it anew if it has grown to more lines than it needs. If that fails, it says the same as before.
    pub(super) fn tidy(&mut self, brought: &HashMap<PublicKey, RecordId>) {
        /// Bytes of a line with a name of usual length.
        const LINE: u64 = 100;
        /// Less is not worth it.
        const LITTLE: u64 = 1 << 20;
        let needed = u64::try_from(brought.len()).unwrap_or(u64::MAX);
        let needed = needed.saturating_mul(2 * LINE);
        let length = self.file.metadata().map_or(0, |found| found.len());
        if length > needed.saturating_add(LITTLE)
            && let Ok(file) = Self::write(&self.path, brought, self.mark.as_ref())
        {
            self.file = file;
        }
    }

    fn write(
        path: &Path,
        brought: &HashMap<PublicKey, RecordId>,
        mark: Option<&SourceMark>,
    ) -> io::Result<File> {
        let mut text = mark.map_or(String::new(), SourceMark::line);
        for (key, id) in brought {
            text += &format!("+ {key} {id}\n");
        }
        replace(path, text.as_bytes(), None)
    }
}

/// What agents brought to an interface, where they keep it if nothing else is said.
///
/// # Errors
///
/// It cannot be read: that is not nothing.
pub(crate) fn brought_to(interface: &str) -> Result<HashMap<PublicKey, RecordId>> {
    let path = Path::new(AGENT_DIR).join(format!("{interface}.peers"));
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(parse(&text).0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HashMap::new()),
        Err(error) => Err(error).context(|| {
            let path = path.display();
            format!("cannot tell which peers of {interface} an agent brought: {path}")
        }),
    }
}

/// Puts a file in the place of another, which stays if that fails. It is open to be added to. The group, if there is
/// one, may read it.
pub(super) fn replace(path: &Path, bytes: &[u8], group: Option<u32>) -> io::Result<File> {
    let next = path.with_added_extension("next");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = options.custom_flags(no_link).open(&next)?;
    let replaced = file
        .write_all(bytes)
        .and_then(|()| share(&file, group))
        .and_then(|()| std::fs::rename(&next, path));
    if replaced.is_err() {
        // It may be what fills the disk.
        let _ = std::fs::remove_file(&next);
    }
    replaced.map(|()| file)
}

/// Lets a group read a file.
fn share(file: &File, group: Option<u32>) -> io::Result<()> {
    if group.is_some() {
        fchown(file, None, group)?;
        file.set_permissions(Permissions::from_mode(0o640))?;
    }
    Ok(())
}

/// The file by which an agent has an interface for itself. Who may read the status sees by it whether there is one.
pub(super) fn lock_of(dir: &Path, interface: &str, group: Option<u32>) -> std::io::Result<File> {
    let path = dir.join(format!("{interface}.lock"));
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    let lock = options.open(path)?;
    share(&lock, group)?;
    Ok(lock)
}

/// Whether an agent serves the interface.
pub(super) fn is_running(dir: &Path, interface: &str) -> bool {
    let path = dir.join(format!("{interface}.lock"));
    File::open(path).is_ok_and(|file| file.try_lock_shared().is_err())
}

/// A line that is not whole, as of a disk that is full, says nothing.
fn parse(text: &str) -> (HashMap<PublicKey, RecordId>, Option<SourceMark>) {
    let (mut brought, mut mark) = (HashMap::new(), None);
    for line in text.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else {
            break;
        };
        let mut words = line.splitn(3, ' ');
        let word = words.next();
        let second = words.next().unwrap_or_default();
        let third = words.next();
        match (word, public_from_base64(second), third) {
            (Some("+"), Some(key), Some(id)) => drop(brought.insert(key, id.into())),
            (Some("-"), Some(key), _) => drop(brought.remove(&key)),
            (Some("folder"), ..) => {
                let pair = second.split_once(':');
                mark = pair.and_then(|(dev, ino)| {
                    Some(SourceMark::Folder(FolderIdentity {
                        dev: dev.parse().ok()?,
                        ino: ino.parse().ok()?,
                    }))
                });
            }
            (Some("etcd"), _, Some(prefix)) => {
                let revision = second.parse().ok();
                mark = revision.map(|it| SourceMark::Revision(it, prefix.to_owned()));
            }
            _ => {}
        }
    }
    (brought, mark)
}

#[cfg(test)]
#[path = "brought_tests.rs"]
mod tests;
