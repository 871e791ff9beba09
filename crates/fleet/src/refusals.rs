//! What is wrong with the records that are refused, and of which of them that is news.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use crate::record::RecordId;

/// Reasons by record. Those that changed are known apart: a source may have as many wrong records as it likes.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    reasons: BTreeMap<RecordId, String>,
    news: BTreeSet<RecordId>,
}

impl Refusals {
    pub(crate) fn insert(&mut self, id: RecordId, why: String) {
        self.news.insert(RecordId::clone(&id));
        self.reasons.insert(id, why);
    }

    pub(crate) fn remove(&mut self, id: &RecordId) {
        if self.reasons.remove(id).is_some() {
            self.news.insert(RecordId::clone(id));
        }
    }

    /// The records that were or are refused, and that may have another reason since this was asked last.
    pub(crate) fn take_news(&mut self) -> BTreeSet<RecordId> {
        std::mem::take(&mut self.news)
    }
}

impl Deref for Refusals {
    type Target = BTreeMap<RecordId, String>;

    fn deref(&self) -> &Self::Target {
        &self.reasons
    }
}
