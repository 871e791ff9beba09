//! Records in etcd.
//!
//! 1. List all keys of the prefix, page by page, as of one revision.
//! 2. Watch from the next revision on. A watch ends after some time, so that a member that hangs is noticed, and the
//!    next one goes on at the revision where it ended: nothing is missed.
//! 3. Where revisions are missing, list again. Where a member does not answer, go to the next one.
//!
//! An agent that brings peers just in time lists only the records that it follows, and hears only of these.
//!
//! What a member says is read in pieces, and the records are at most [`MAX_RECORDS`].

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use super::brought::SourceMark;
use super::dir::{MAX_RECORDS, PIECE};
use super::etcd_client::{EtcdClient, EtcdMember};
use super::lookups::{checked, gets};
use super::news::{NewsSender, PAUSE, SourceNews};
use super::wanted::WantedRecords;
use adit_fleet::{
    EtcdAddress, EtcdPair, EtcdRefusal, GETS, RecordChange, RecordId, etcd_change, etcd_page,
    range_request,
};

/// The thread that tells of a store.
pub(super) struct EtcdSource {
    address: EtcdAddress,
    client: Arc<EtcdClient>,
    news: NewsSender,
    /// The records that are followed; `None` for all.
    wanted: Option<Arc<WantedRecords>>,
    ids: HashSet<RecordId>,
    /// The last revision that was seen.
    seen: i64,
    /// A watch goes on at this one. `None`: all is to be listed.
    next: Option<i64>,
    /// A member has answered since the last one failed.
    has_worked: bool,
    /// The files for names, which the sandbox is about.
    files: Vec<Option<(u64, u64)>>,
}

impl EtcdSource {
    /// To be made before the sandbox begins. `before` is what was listed last, and whether that has brought peers.
    pub(super) fn new(
        address: EtcdAddress,
        client: Arc<EtcdClient>,
        news: NewsSender,
        wanted: Option<Arc<WantedRecords>>,
        (mark, has_brought): (Option<&SourceMark>, bool),
    ) -> Self {
        let seen = match mark {
            Some(SourceMark::Revision(seen, prefix)) if *prefix == address.prefix => *seen,
            // No store is known to be the one that these peers are from.
            _ if has_brought => i64::MAX,
            _ => 0,
        };
        Self {
            address,
            client,
            news,
            wanted,
            ids: HashSet::new(),
            seen,
            next: None,
            has_worked: false,
            files: adit_sandbox::files_for_names(),
        }
    }

    /// Tells for good.
    pub(super) fn work(mut self) {
        let endpoints = self.address.endpoints.clone();
        let mut failures = 0;
        for endpoint in endpoints.iter().cycle() {
            let why = match self.follow(endpoint) {
                Ok(never) => match never {},
                Err(why) => why,
            };
            // Another member may be well.
            if std::mem::take(&mut self.has_worked) {
                failures = 0;
            }
            let why = match why {
                EtcdRefusal::Gap => {
                    self.next = None;
                    None
                }
                EtcdRefusal::TooLong => Some("its answer is too long".to_owned()),
                EtcdRefusal::Token => Some("it refuses its own token".to_owned()),
                EtcdRefusal::Failed(why) => Some(why),
            };
            if let Some(why) = why {
                if adit_sandbox::files_for_names() != self.files {
                    self.news.send(SourceNews::Replaced);
                    return;
                }
                failures += 1;
                if failures >= endpoints.len() {
                    let why = format!("{endpoint}: {why}");
                    self.news.send(SourceNews::Failing(why));
                }
            }
            // Also after a gap: a member that lags behind has one each time.
            std::thread::sleep(PAUSE);
        }
    }

    /// Follows one member until it fails.
    fn follow(&mut self, endpoint: &str) -> Result<Infallible, EtcdRefusal> {
        let mut member = self.client.member(endpoint)?;
        let mut is_new = true;
        loop {
            let done = match (self.next, self.wanted.clone()) {
                (Some(next), _) => self.watch(&member, next),
                (None, None) => self.list(&member),
                (None, Some(wanted)) => self.list_wanted(&member, &wanted),
            };
            match done {
                Ok(()) => is_new = false,
                // It has expired, or the member was started again.
                Err(EtcdRefusal::Token) if !is_new => {
                    member = self.client.member(endpoint)?;
                    is_new = true;
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// Lists all.
    fn list(&mut self, member: &EtcdMember<'_>) -> Result<(), EtcdRefusal> {
        self.ids.clear();
        let (client, prefix) = (Arc::clone(&self.client), self.address.prefix.clone());
        let revision = client.list(member, &prefix, |pairs| self.tell(pairs))?;
        self.listed(revision)
    }

    /// Lists the records that are followed.
    fn list_wanted(
        &mut self,
        member: &EtcdMember<'_>,
        wanted: &WantedRecords,
    ) -> Result<(), EtcdRefusal> {
        let _order = wanted.in_order();
        self.ids.clear();
        let prefix = self.address.prefix.clone();
        let answer =
            (self.client).ask(member, "kv/range", &range_request(&prefix, None, 1, false))?;
        let revision = etcd_page(&answer, false)?.revision;
        let ids = wanted.ids();
        for ids in ids.chunks(GETS) {
            let found = gets(&self.client, member, &prefix, ids, revision)?;
            self.ids
                .extend(found.iter().map(|(id, _)| RecordId::clone(id)));
            self.news.send(SourceNews::Changes(found));
        }
        if ids.is_empty() {
            // Another store has nothing less.
            self.seen = self.seen.min(revision);
        }
        self.listed(revision)?;
        for id in ids.iter().filter(|id| !self.ids.contains(*id)) {
            wanted.heard(id, true);
        }
        Ok(())
    }

    /// All was told as of a revision.
    fn listed(&mut self, revision: i64) -> Result<(), EtcdRefusal> {
        if self.ids.is_empty() && revision < self.seen {
            let why = "it has no record, and is not the store that was read before, or has lost revisions: \
                       nothing changes until it has a record";
            return Err(EtcdRefusal::Failed(why.into()));
        }
        self.seen = revision;
        self.next = Some(revision + 1);
        self.has_worked = true;
        let mark = SourceMark::Revision(revision, self.address.prefix.clone());
        self.news
            .send(SourceNews::Listed(self.ids.clone(), Some(mark)));
        Ok(())
    }

    /// Tells of changes until the time of the watch is over.
    fn watch(&mut self, member: &EtcdMember<'_>, first: i64) -> Result<(), EtcdRefusal> {
        let (client, prefix) = (Arc::clone(&self.client), self.address.prefix.clone());
        let mut has_begun = false;
        client.watch(member, &prefix, first, |changes| {
            if !std::mem::replace(&mut has_begun, true) {
                self.has_worked = true;
                self.news.send(SourceNews::Back);
            }
            self.tell(changes.pairs)?;
            self.seen = self.seen.max(changes.next - 1);
            self.next = Some(changes.next);
            Ok(())
        })
    }

    fn tell(&mut self, pairs: Vec<EtcdPair>) -> Result<(), EtcdRefusal> {
        let wanted = self.wanted.clone();
        let _order = wanted.as_ref().map(|wanted| wanted.in_order());
        let mut pairs = pairs.into_iter().peekable();
        while pairs.peek().is_some() {
            let piece = pairs.by_ref().take(PIECE);
            let mut piece: Vec<_> = piece
                .map(|it| etcd_change(&self.address.prefix, it))
                .collect();
            if let Some(wanted) = &wanted {
                piece.retain(|(id, change)| wanted.heard(id, *change == RecordChange::Delete));
                piece = piece.into_iter().map(checked).collect();
            }
            for (id, change) in &piece {
                match change {
                    RecordChange::Delete => drop(self.ids.remove(id)),
                    _ => drop(self.ids.insert(RecordId::clone(id))),
                }
            }
            if self.ids.len() > MAX_RECORDS {
                let why = format!("it has more than {MAX_RECORDS} records");
                return Err(EtcdRefusal::Failed(why));
            }
            self.news.send(SourceNews::Changes(piece));
        }
        Ok(())
    }
}
