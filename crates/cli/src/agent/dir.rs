//! Records that are the files of a folder: `NAME.conf`, each with one `[Peer]` section.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use adit_ctl::text::is_printable;
use adit_fleet::{MAX_RECORD, PeerRecord, RecordChange, RecordId};

use super::brought::SourceMark;
use super::folder::{FolderIdentity, FolderNews, WatchedFolder, explain, read_file};
use super::news::{NewsSender, PAUSE, SourceNews};

/// Records in one message: each has 64 KiB at most, and few messages wait.
pub(super) const PIECE: usize = 256;
/// Most records of a source: as many as an interface may have peers.
pub(super) const MAX_RECORDS: usize = adit_proto::limits::MAX_PEERS;

/// The thread that tells of a folder.
pub(super) struct FolderSource {
    watched: WatchedFolder,
    news: NewsSender,
    /// The folder of the records that were brought, if any were; [`FolderIdentity::UNKNOWN`] is none.
    before: Option<FolderIdentity>,
    /// All files were told of, and each change since then.
    is_listed: bool,
    /// Those that there are.
    ids: HashSet<RecordId>,
}

/// How long after a list that failed to try again.
const AGAIN: Duration = Duration::from_secs(1);

impl FolderSource {
    pub(super) fn new(
        watched: WatchedFolder,
        news: NewsSender,
        before: Option<FolderIdentity>,
    ) -> Self {
        Self {
            watched,
            news,
            before,
            is_listed: false,
            ids: HashSet::new(),
        }
    }

    pub(super) fn work(mut self) {
        self.list();
        loop {
            let patience = (!self.is_listed).then_some(AGAIN);
            let Some(news) = self.watched.next(patience) else {
                self.list();
                continue;
            };
            match news {
                FolderNews::Files(files) if self.is_listed => {
                    let ids: Vec<_> = files.iter().filter_map(|name| id_of(name)).collect();
                    self.ids.extend(ids.iter().cloned());
                    match self.ids.len() > MAX_RECORDS {
                        true => self.list(),
                        // If it is another folder, that is its next news.
                        false => _ = self.tell(&ids),
                    }
                }
                FolderNews::Files(_) | FolderNews::Anything => self.list(),
                FolderNews::Gone => {
                    let why = FolderIdentity::of(self.watched.path()).err();
                    let why = why.map_or_else(|| "it was replaced".into(), |error| explain(&error));
                    let why = format!(
                        "the folder is gone: {why}: everything stays as it is until it is back"
                    );
                    self.news.send(SourceNews::Failing(why));
                    while FolderIdentity::of(self.watched.path()).is_err() {
                        std::thread::sleep(PAUSE);
                    }
                    self.news.send(SourceNews::Replaced);
                    return;
                }
                FolderNews::Replaced => {
                    self.news.send(SourceNews::Replaced);
                    return;
                }
            }
        }
    }

    fn list(&mut self) {
        self.is_listed = false;
        match self.try_list() {
            Ok(()) => self.is_listed = true,
            Err(why) => self.news.send(SourceNews::Failing(why)),
        }
    }

    /// Tells of all files.
    fn try_list(&mut self) -> Result<(), String> {
        let entries = std::fs::read_dir(self.watched.path());
        let entries = entries.and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries =
            entries.map_err(|error| format!("the folder cannot be read: {}", explain(&error)))?;
        let ids: HashSet<RecordId> = (entries.iter())
            .filter_map(|entry| id_of(&entry.file_name()))
            .collect();
        if ids.len() > MAX_RECORDS {
            return Err(format!("the folder has more than {MAX_RECORDS} records"));
        }
        let own = self.watched.identity();
        if ids.is_empty() && self.before.is_some_and(|before| before != own) {
            return Err(
                "the folder is empty and is not the one that was read before; perhaps a file system is not mounted. \
                 Nothing changes until it has a record"
                    .into(),
            );
        }
        self.before = Some(own);
        let mut sorted: Vec<RecordId> = ids.iter().cloned().collect();
        sorted.sort_unstable();
        self.ids.clone_from(&ids);
        self.tell(&sorted)?;
        self.is_here()?;
        self.news
            .send(SourceNews::Listed(ids, Some(SourceMark::Folder(own))));
        Ok(())
    }

    /// Tells what these files say now.
    fn tell(&mut self, ids: &[RecordId]) -> Result<(), String> {
        for piece in ids.chunks(PIECE) {
            let changes = piece.iter().map(|id| self.look(RecordId::clone(id)));
            let changes: Vec<_> = changes.collect();
            // It was read by its path.
            self.is_here()?;
            for (id, _) in changes.iter().filter(|(_, it)| *it == RecordChange::Delete) {
                self.ids.remove(id);
            }
            self.news.send(SourceNews::Changes(changes));
        }
        Ok(())
    }

    fn is_here(&self) -> Result<(), String> {
        match self.watched.is_here() {
            true => Ok(()),
            false => Err("another folder has its path".into()),
        }
    }

    /// What a file says now.
    fn look(&self, id: RecordId) -> (RecordId, RecordChange) {
        let path = self.watched.path().join(&*id);
        let change = match read_file(&path, MAX_RECORD) {
            Ok(text) => match PeerRecord::from_section(&text) {
                Ok(record) => RecordChange::Put(Box::new(record)),
                Err(why) => RecordChange::Bad(why),
            },
            // A link that leads nowhere is still a record.
            Err(error) if is_missing(&error) && has_no_link(&path) => RecordChange::Delete,
            Err(error) => RecordChange::Bad(explain(&error)),
        };
        (id, change)
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

fn has_no_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| is_missing(&error))
}

/// The record that a file is, if it is one: `NAME.conf`, and no file that an editor or Kubernetes hides.
pub(super) fn id_of(name: &OsStr) -> Option<RecordId> {
    let name = name.to_str()?;
    let is_record = name.ends_with(".conf") && !name.starts_with('.');
    (is_record && name.chars().all(is_printable)).then(|| name.into())
}

#[cfg(test)]
#[path = "dir_tests.rs"]
mod tests;
