//! Peers that are brought just in time: the store is asked for an unknown peer that began a handshake.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use adit_fleet::{EtcdAddress, EtcdRefusal, GETS, RecordChange, RecordId, etcd_gets, gets_request};

use adit_proto::LastSeen;

use super::etcd_client::{EtcdClient, EtcdMember};
use super::news::{NewsSender, SourceNews};
use super::wanted::{Stranger, WantedRecords};

/// The thread that asks.
#[derive(Clone)]
pub(super) struct Lookups {
    pub(super) address: EtcdAddress,
    pub(super) client: Arc<EtcdClient>,
    pub(super) news: NewsSender,
    pub(super) wanted: Arc<WantedRecords>,
}

impl Lookups {
    /// Asks for these until nobody tells of any more.
    pub(super) fn work(self, strangers: &Receiver<Stranger>) {
        let endpoints = self.address.endpoints.clone();
        let mut members = endpoints.iter().cycle();
        let mut member: Option<EtcdMember<'_>> = None;
        while let Ok(first) = strangers.recv() {
            let more = std::iter::from_fn(|| strangers.try_recv().ok());
            let strangers: Vec<_> = std::iter::once(first).chain(more.take(GETS - 1)).collect();
            let selected = self.wanted.select(Instant::now(), &strangers);
            if selected.is_empty() {
                continue;
            }
            let _order = self.wanted.in_order();
            // Another member, or another token. Who is not found for all that tries again.
            for _ in 0..=endpoints.len() {
                let here = match member.take() {
                    Some(member) => Ok(member),
                    None => match members.next() {
                        Some(endpoint) => self.client.member(endpoint),
                        None => return,
                    },
                };
                let Ok(here) = here else { continue };
                if self.ask(&here, &selected).is_ok() {
                    member = Some(here);
                    break;
                }
            }
        }
    }

    fn ask(
        &self,
        member: &EtcdMember<'_>,
        selected: &HashMap<RecordId, Stranger>,
    ) -> Result<(), EtcdRefusal> {
        let ids: Vec<RecordId> = selected.keys().cloned().collect();
        let found = gets(&self.client, member, &self.address.prefix, &ids, 0)?;
        let there: HashSet<RecordId> = found.iter().map(|(id, _)| RecordId::clone(id)).collect();
        self.wanted.answered(Instant::now(), selected, &there);
        let calls = selected.iter();
        let calls = calls.filter(|(id, it)| there.contains(*id) && !it.is_elsewhere);
        let calls = calls
            .map(|(_, it)| (it.key, LastSeen::at(it.from)))
            .collect();
        // Also without any: the status counts those that are missing.
        self.news.send(SourceNews::Found(found, calls));
        Ok(())
    }
}

/// Those of these records that a member has, as of a revision or, if that is 0, now: [`GETS`] at most.
pub(super) fn gets(
    client: &EtcdClient,
    member: &EtcdMember<'_>,
    prefix: &str,
    ids: &[RecordId],
    revision: i64,
) -> Result<Vec<(RecordId, RecordChange)>, EtcdRefusal> {
    let get = |ids: &[RecordId]| {
        let answer = client.ask(member, "kv/txn", &gets_request(prefix, ids, revision))?;
        etcd_gets(&answer, prefix)
    };
    let found = match get(ids) {
        // One by one, each is short enough, or no record.
        Err(EtcdRefusal::TooLong) => {
            let mut found = Vec::new();
            for id in ids {
                match get(std::slice::from_ref(id)) {
                    Err(EtcdRefusal::TooLong) => {
                        let why = RecordChange::Bad("it is too long".into());
                        found.push((RecordId::clone(id), why));
                    }
                    got => found.extend(got?),
                }
            }
            found
        }
        found => found?,
    };
    // Of a store that means ill.
    let asked: HashSet<&RecordId> = ids.iter().collect();
    let is_asked = |(id, _): &(RecordId, RecordChange)| asked.contains(id);
    Ok(found.into_iter().filter(is_asked).map(checked).collect())
}

/// A record that is found by the key of its peer is of that peer.
pub(super) fn checked((id, change): (RecordId, RecordChange)) -> (RecordId, RecordChange) {
    let named = adit_ctl::keys::public_from_base64(&id);
    match change {
        RecordChange::Put(record) if named.is_some_and(|it| it != record.public_key) => {
            let why = "its public_key is not the one by which it is named";
            (id, RecordChange::Bad(why.into()))
        }
        change => (id, change),
    }
}
