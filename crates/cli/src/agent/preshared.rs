//! Preshared keys of records, which name the files that have them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use adit_fleet::{PeerRecord, RecordChange, RecordId, preshared_key};

use super::folder::{explain, read_file};

/// Longest file with a preshared key: that, and spaces around it.
const MAX_KEY_FILE: usize = 4096;

/// The records that name a file.
pub(super) struct PresharedKeys {
    dir: Option<PathBuf>,
    with_keys: HashMap<RecordId, PeerRecord>,
}

impl PresharedKeys {
    /// Files are in this folder.
    pub(super) fn new(dir: Option<PathBuf>) -> Self {
        Self {
            dir,
            with_keys: HashMap::new(),
        }
    }

    /// Reads the preshared key that a record names.
    pub(super) fn read(&mut self, id: &RecordId, change: RecordChange) -> RecordChange {
        let RecordChange::Put(mut record) = change else {
            self.with_keys.remove(id);
            return change;
        };
        let Some(file) = record.preshared_key_file.clone() else {
            self.with_keys.remove(id);
            return RecordChange::Put(record);
        };
        self.with_keys
            .insert(RecordId::clone(id), (*record).clone());
        let Some(dir) = &self.dir else {
            let why = "PresharedKeyFile: the agent was started without --psk-dir, the folder of such files";
            return RecordChange::Bad(why.into());
        };
        let read = read_file(&dir.join(&file), MAX_KEY_FILE).map_err(|error| explain(&error));
        match read.and_then(|text| preshared_key(&text)) {
            Ok(key) => {
                record.preshared_key = Some(key);
                RecordChange::Put(record)
            }
            Err(why) => RecordChange::Bad(format!("PresharedKeyFile {file}: {why}")),
        }
    }

    /// There are these records, and no others.
    pub(super) fn retain(&mut self, ids: &HashSet<RecordId>) {
        self.with_keys.retain(|id, _| ids.contains(id));
    }

    /// There are no such records any more.
    pub(super) fn forget(&mut self, ids: &[RecordId]) {
        ids.iter().for_each(|id| drop(self.with_keys.remove(id)));
    }

    /// The records that name these files, or any file: they are to be read anew.
    pub(super) fn of_files(
        &self,
        names: Option<&BTreeSet<OsString>>,
    ) -> Vec<(RecordId, RecordChange)> {
        let is_named = |record: &PeerRecord| {
            let file = record.preshared_key_file.as_deref().map(OsStr::new);
            names.is_none_or(|names| file.is_some_and(|it| names.contains(it)))
        };
        let named = self.with_keys.iter().filter(|(_, record)| is_named(record));
        let put = |record: &PeerRecord| RecordChange::Put(Box::new(record.clone()));
        named
            .map(|(id, record)| (RecordId::clone(id), put(record)))
            .collect()
    }
}
