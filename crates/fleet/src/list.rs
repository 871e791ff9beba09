//! The records that hold together.
//!
//! A record claims a key and blocks of addresses. The first to claim them has them. A record that is bad, or that
//! claims what another has, is refused, and the peer of its source's name stays what it was. A refused
//! record is tried again when the record or peer that it conflicts with changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use adit_proto::config::{Cidr, PublicKey};

use crate::blocks::OwnedBlocks;
use crate::record::{PeerRecord, RecordId};
use crate::refusals::Refusals;

/// News of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// It is new, or another one.
    Put(Box<PeerRecord>),
    /// It is there, and this is wrong with it.
    Bad(String),
    /// It is gone.
    Delete,
}

/// What the interface has from others than the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignPeers {
    /// Its own public key.
    pub own_key: Option<PublicKey>,
    /// Its other peers.
    pub keys: HashSet<PublicKey>,
    /// Their blocks.
    pub blocks: HashMap<Cidr, PublicKey>,
}

/// A record of the list.
#[derive(Default)]
struct Claim {
    /// What holds. `None`: nothing ever did, or only `held` is known of it.
    record: Option<PeerRecord>,
    /// What an earlier process brought, and what its blocks are now, until there is a good record.
    held: Option<(PublicKey, Vec<Cidr>)>,
    /// What would hold if nothing stood in its way.
    waiting: Option<PeerRecord>,
    /// What does.
    blocker: Option<Blocker>,
}

/// Whatever stands in the way of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Blocker {
    Record(RecordId),
    Interface,
}

/// The records of a source, by what the source calls them.
#[derive(Default)]
pub struct RecordList {
    claims: BTreeMap<RecordId, Claim>,
    /// Who has each key and each block: records that hold, and peers that are held.
    keys: HashMap<PublicKey, RecordId>,
    blocks: OwnedBlocks,
    foreign: ForeignPeers,
    /// Those that wait, by what stands in their way.
    waiters: HashMap<RecordId, BTreeSet<RecordId>>,
    waiters_for_interface: BTreeSet<RecordId>,
    /// What is wrong with those that are refused.
    refused: Refusals,
    /// The part of it that no other record can mend.
    bad: BTreeMap<RecordId, String>,
    /// How many hold.
    holding: usize,
}

/// A change of several records at once: what each had before, until it is known what holds.
#[derive(Default)]
struct Round {
    before: BTreeMap<RecordId, Claim>,
    /// Records that hold since this round.
    new: BTreeSet<RecordId>,
    touched: BTreeSet<PublicKey>,
    /// One that held since this round had to give way: others may now hold.
    gave_way: bool,
}

impl RecordList {
    /// A list of what an earlier process brought: these peers stay until their records are known. Of two of one
    /// record, which got another key, the one without blocks is the old one.
    pub fn holding(held: impl IntoIterator<Item = (RecordId, PublicKey, Vec<Cidr>)>) -> Self {
        let mut list = Self::default();
        for (id, key, blocks) in held {
            if let Some(other) = list.claims.remove(&id) {
                list.release(&id, &other);
                if blocks.is_empty() {
                    list.claim(&id, &other);
                    list.claims.insert(id, other);
                    continue;
                }
            }
            let claim = Claim {
                held: Some((key, blocks)),
                ..Claim::default()
            };
            list.claim(&id, &claim);
            list.claims.insert(id, claim);
        }
        list
    }

    /// Takes news of records; of several about one, the last counts. Returns the keys of peers that may have to
    /// change.
    pub fn change(
        &mut self,
        changes: impl IntoIterator<Item = (RecordId, RecordChange)>,
    ) -> BTreeSet<PublicKey> {
        let mut round = Round::default();
        let changes: BTreeMap<RecordId, RecordChange> = changes.into_iter().collect();
        let mut changed = BTreeSet::new();
        for (id, change) in changes {
            match change {
                RecordChange::Bad(why) => {
                    self.stop_waiting(&id);
                    self.claims.entry(RecordId::clone(&id)).or_default().waiting = None;
                    self.refused.insert(RecordId::clone(&id), why.clone());
                    self.bad.insert(id, why);
                }
                RecordChange::Delete => {
                    self.stop_waiting(&id);
                    self.refused.remove(&id);
                    self.bad.remove(&id);
                    if let Some(claim) = self.claims.remove(&id) {
                        self.release(&id, &claim);
                        round.touched.extend(claim.key());
                        changed.insert(id);
                    }
                }
                RecordChange::Put(record) => {
                    self.stop_waiting(&id);
                    self.bad.remove(&id);
                    let claim = self.claims.entry(RecordId::clone(&id)).or_default();
                    claim.waiting = Some(*record).filter(|it| claim.record.as_ref() != Some(it));
                    match claim.waiting {
                        Some(_) => drop(changed.insert(id)),
                        // It is what it was before a bad one.
                        None => self.refused.remove(&id),
                    }
                }
            }
        }
        self.settle(changed, round)
    }

    /// All records that these are not have gone, as [`RecordList::change`] has it.
    pub fn retain(&mut self, ids: &HashSet<RecordId>) -> BTreeSet<PublicKey> {
        let gone = self.claims.keys().filter(|id| !ids.contains(*id));
        let gone: Vec<_> = gone
            .map(|id| (RecordId::clone(id), RecordChange::Delete))
            .collect();
        self.change(gone)
    }

    /// The interface has these peers from others.
    pub fn set_foreign(&mut self, foreign: ForeignPeers) -> BTreeSet<PublicKey> {
        if self.foreign == foreign {
            return BTreeSet::new();
        }
        self.foreign = foreign;
        let mut round = Round::default();
        let is_refused = |(_, claim): &(&RecordId, &Claim)| {
            (claim.record.as_ref()).is_some_and(|it| self.conflict_with_foreign(it).is_some())
        };
        let refused: Vec<RecordId> = (self.claims.iter().filter(is_refused))
            .map(|(id, _)| RecordId::clone(id))
            .collect();
        for id in &refused {
            if let Some(mut claim) = self.claims.remove(id) {
                self.release(id, &claim);
                round.touched.extend(claim.key());
                let record = claim.record.take();
                // A peer of the source stays, but for one that is another's now.
                let held = record.as_ref().map(|it| {
                    let blocks = it.allowed_ips.iter().copied();
                    let own = blocks.filter(|block| !self.foreign.blocks.contains_key(block));
                    (it.public_key, own.collect())
                });
                claim.held = held.filter(|(key, _)| !self.foreign.has(key));
                claim.waiting = claim.waiting.or(record);
                self.claim(id, &claim);
                self.claims.insert(RecordId::clone(id), claim);
            }
        }
        let mut changed: BTreeSet<RecordId> = refused.into_iter().collect();
        changed.extend(std::mem::take(&mut self.waiters_for_interface));
        self.settle(changed, round)
    }

    /// The record of a peer, if one holds.
    pub fn of(&self, key: &PublicKey) -> Option<&PeerRecord> {
        self.claims.get(self.keys.get(key)?)?.record.as_ref()
    }

    /// What the source calls the record of a peer: one that holds, or one that would if it were good.
    pub fn id_of(&self, key: &PublicKey) -> Option<&RecordId> {
        self.keys.get(key)
    }

    /// The keys of all records that hold, and of the peers that are held.
    pub fn keys(&self) -> impl Iterator<Item = &PublicKey> {
        self.keys.keys()
    }

    /// How many records hold.
    pub fn len(&self) -> usize {
        self.holding
    }

    /// Whether no record holds.
    pub fn is_empty(&self) -> bool {
        self.holding == 0
    }

    /// How many records the source has, good and bad.
    pub fn known(&self) -> usize {
        self.claims.len()
    }

    /// The records that are refused, and why.
    pub fn refused(&self) -> &BTreeMap<RecordId, String> {
        &self.refused
    }

    /// A record that is refused for what others have, not for itself.
    pub fn waiting(&self, id: &RecordId) -> Option<&PeerRecord> {
        self.claims.get(id)?.waiting.as_ref()
    }

    /// The records that were or are refused, and that may have another reason since this was asked last.
    pub fn refusal_news(&mut self) -> BTreeSet<RecordId> {
        self.refused.take_news()
    }

    /// Finds out which of the records that wait hold now: those of `changed`, and those that wait for them.
    fn settle(&mut self, changed: BTreeSet<RecordId>, mut round: Round) -> BTreeSet<PublicKey> {
        let mut next: Vec<RecordId> = changed.into_iter().collect();
        let mut ids = BTreeSet::new();
        while let Some(id) = next.pop() {
            if ids.insert(RecordId::clone(&id)) {
                next.extend(self.waiters.remove(&id).into_iter().flatten());
            }
        }
        // All let go of what they had, so that two may exchange it.
        let mut wanted = Vec::new();
        for id in ids {
            self.stop_waiting(&id);
            let Some(mut claim) = self.claims.remove(&id) else {
                continue;
            };
            let Some(record) = claim.waiting.take() else {
                self.claims.insert(id, claim);
                continue;
            };
            self.release(&id, &claim);
            round.touched.extend(claim.key());
            // A record that keeps its key goes first.
            let is_new = claim.key() != Some(record.public_key);
            round.before.insert(RecordId::clone(&id), claim);
            wanted.push((is_new, id, record));
        }
        wanted.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        for (_, id, record) in wanted {
            self.accept(id, record, &mut round);
        }
        while std::mem::take(&mut round.gave_way) {
            let again: Vec<RecordId> = (round.before.keys())
                .filter(|id| self.claims.get(*id).is_some_and(|it| it.waiting.is_some()))
                .map(RecordId::clone)
                .collect();
            for id in again {
                self.try_again(id, &mut round);
            }
        }
        round.touched
    }

    /// Has a record hold, or what was there before.
    fn accept(&mut self, id: RecordId, record: PeerRecord, round: &mut Round) {
        match self.conflict(&record) {
            None => {
                round.touched.insert(record.public_key);
                match self.bad.get(&id) {
                    Some(why) => self.refused.insert(RecordId::clone(&id), why.clone()),
                    None => self.refused.remove(&id),
                }
                let claim = Claim {
                    record: Some(record),
                    ..Claim::default()
                };
                self.claim(&id, &claim);
                self.claims.insert(RecordId::clone(&id), claim);
                round.new.insert(id);
            }
            Some((blocker, why)) => self.refuse(id, record, (blocker, why), round),
        }
    }

    /// A record that was refused in this round, whose blocker may be gone.
    fn try_again(&mut self, id: RecordId, round: &mut Round) {
        self.stop_waiting(&id);
        let Some(mut claim) = self.claims.remove(&id) else {
            return;
        };
        let Some(record) = claim.waiting.take() else {
            self.claims.insert(id, claim);
            return;
        };
        self.release(&id, &claim);
        round.before.insert(RecordId::clone(&id), claim);
        self.accept(RecordId::clone(&id), record, round);
        // What it had before is free.
        round.gave_way |= round.new.contains(&id);
    }

    /// Leaves a record waiting, with what it had before. Records that are new in this round give way to that.
    fn refuse(
        &mut self,
        id: RecordId,
        record: PeerRecord,
        (blocker, why): (Blocker, String),
        round: &mut Round,
    ) {
        let mut next = vec![(id, record, blocker, why)];
        while let Some((id, record, blocker, why)) = next.pop() {
            let mut claim = round.before.remove(&id).unwrap_or_default();
            while let Some(other) = self.in_the_way(&claim, &round.new) {
                round.new.remove(&other);
                round.gave_way = true;
                let Some(mut evicted) = self.claims.remove(&other) else {
                    continue;
                };
                self.release(&other, &evicted);
                if let Some(record) = evicted.record.take() {
                    let why = format!("another record, {id}, has the same key or addresses");
                    next.push((other, record, Blocker::Record(RecordId::clone(&id)), why));
                }
            }
            match &blocker {
                Blocker::Record(of) => {
                    let waiters = self.waiters.entry(RecordId::clone(of)).or_default();
                    waiters.insert(RecordId::clone(&id));
                }
                Blocker::Interface => {
                    self.waiters_for_interface.insert(RecordId::clone(&id));
                }
            }
            claim.waiting = Some(record);
            claim.blocker = Some(blocker);
            self.claim(&id, &claim);
            self.refused.insert(RecordId::clone(&id), why);
            self.claims.insert(RecordId::clone(&id), claim);
            // It may still be tried again.
            round.before.entry(id).or_default();
        }
    }

    /// A record that is new in this round and has what this claim had.
    fn in_the_way(&self, claim: &Claim, new: &BTreeSet<RecordId>) -> Option<RecordId> {
        let key = claim.key().and_then(|key| self.keys.get(&key));
        let blocks = claim.blocks().iter();
        let blocks = blocks.filter_map(|block| self.blocks.overlapping(*block));
        let mut others = key.into_iter().chain(blocks.map(|(_, id)| id));
        others.find(|id| new.contains(*id)).cloned()
    }

    fn conflict(&self, record: &PeerRecord) -> Option<(Blocker, String)> {
        if let Some(why) = self.conflict_with_foreign(record) {
            return Some((Blocker::Interface, why));
        }
        if let Some(other) = self.keys.get(&record.public_key) {
            let why = format!("another record, {other}, has the same public key");
            return Some((Blocker::Record(RecordId::clone(other)), why));
        }
        let overlaps = |block: &Cidr| Some((*block, self.blocks.overlapping(*block)?));
        let (block, (theirs, other)) = record.allowed_ips.iter().find_map(overlaps)?;
        let why = match block == theirs {
            true => format!("another record, {other}, has {block}"),
            false => format!("{block} overlaps {theirs} of another record, {other}"),
        };
        Some((Blocker::Record(RecordId::clone(other)), why))
    }

    fn conflict_with_foreign(&self, record: &PeerRecord) -> Option<String> {
        let foreign = &self.foreign;
        if foreign.own_key == Some(record.public_key) {
            return Some("this is the interface's own public key".into());
        }
        if foreign.keys.contains(&record.public_key) {
            return Some("the interface has this peer, and not from this source".into());
        }
        let mut blocks = record.allowed_ips.iter();
        let (block, owner) = blocks.find_map(|block| Some((block, foreign.blocks.get(block)?)))?;
        Some(format!(
            "the interface has {block} for the peer {owner}, which is not from this source"
        ))
    }

    fn claim(&mut self, id: &RecordId, claim: &Claim) {
        if let Some(key) = claim.key() {
            self.keys.insert(key, RecordId::clone(id));
        }
        for block in claim.blocks() {
            self.blocks.insert(*block, id);
        }
        self.holding += usize::from(claim.record.is_some());
    }

    fn release(&mut self, id: &RecordId, claim: &Claim) {
        if let Some(key) = claim.key()
            && self.keys.get(&key) == Some(id)
        {
            self.keys.remove(&key);
        }
        for block in claim.blocks() {
            self.blocks.remove(*block);
        }
        self.holding -= usize::from(claim.record.is_some());
    }

    fn stop_waiting(&mut self, id: &RecordId) {
        let claim = self.claims.get_mut(id);
        match claim.and_then(|claim| claim.blocker.take()) {
            Some(Blocker::Record(of)) => {
                if let Some(waiters) = self.waiters.get_mut(&of) {
                    waiters.remove(id);
                    if waiters.is_empty() {
                        self.waiters.remove(&of);
                    }
                }
            }
            Some(Blocker::Interface) => drop(self.waiters_for_interface.remove(id)),
            None => {}
        }
    }
}

impl Claim {
    fn key(&self) -> Option<PublicKey> {
        let record = self.record.as_ref().map(|it| it.public_key);
        record.or(self.held.as_ref().map(|(key, _)| *key))
    }

    fn blocks(&self) -> &[Cidr] {
        match (&self.record, &self.held) {
            (Some(record), _) => &record.allowed_ips,
            (None, Some((_, blocks))) => blocks,
            (None, None) => &[],
        }
    }
}

impl ForeignPeers {
    fn has(&self, key: &PublicKey) -> bool {
        self.own_key == Some(*key) || self.keys.contains(key)
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
