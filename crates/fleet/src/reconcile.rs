//! What an interface lacks of the records, as bounded changes.
//!
//! 1. The source tells of records ([`Reconciler::change`], [`Reconciler::listed`]), the interface of its peers
//!    ([`Reconciler::look`]).
//! 2. [`Reconciler::next_batch`] has the next change. What it brings is to be written down before it is made, and
//!    [`Reconciler::done`] told afterwards.
//! 3. Only what was brought is changed or removed, and nothing is removed before the first whole list.

use std::collections::{BTreeSet, HashMap, HashSet};

use adit_ctl::config::HostPort;
use adit_proto::Allowance;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceStatus, PeerChange, PublicKey, Secret};

use crate::list::{ForeignPeers, RecordChange, RecordList};
use crate::record::{PeerRecord, RecordId};

/// Peers in one change: as many as the control thread of an interface looks at between two handshakes.
pub const MAX_SECTIONS: usize = 1_000;

/// A peer of the interface that was brought, or is being brought.
#[derive(Clone, Debug, Default)]
struct PresentPeer {
    /// `None`: others may have got some of them.
    allowed_ips: Option<Vec<Cidr>>,
    preshared_key: Option<Secret>,
    persistent_keepalive: u16,
    endpoint: Option<std::net::SocketAddr>,
    /// The endpoint of the record that was brought last; `None` if another process did that.
    meant: Option<Option<HostPort>>,
    /// What the process was told besides; `None` if that is not known.
    told: Option<ToldPeer>,
}

/// What the process of an interface was told of a peer that it does not show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ToldPeer {
    name: Option<String>,
    allowance: Allowance,
}

/// A change of an interface, in the order of the fields.
#[derive(Debug, Default)]
pub struct ChangeBatch {
    /// Peers that are brought, with the records that they are of: to be written down first.
    pub brings: Vec<(PublicKey, RecordId)>,
    /// What people call peers; empty for one that has no name any more. Those that are forgotten have none, either.
    pub names: Vec<(PublicKey, String)>,
    /// The transaction.
    pub sections: Vec<PeerChange>,
    /// What peers may do.
    pub allowances: Vec<(PublicKey, Allowance, bool)>,
    /// Endpoints that are names to be looked up.
    pub endpoints: Vec<(PublicKey, HostPort)>,
    /// Peers that are no longer the source's: to be written down last.
    pub forgets: Vec<PublicKey>,
    /// What is done, in a line for each peer.
    pub lines: Vec<String>,
    /// What the peers are afterwards.
    after: Vec<(PublicKey, Option<PresentPeer>)>,
}

/// The records of a source, and the peers of an interface.
#[derive(Default)]
pub struct Reconciler {
    list: RecordList,
    /// The peers that were brought, by this process or an earlier one; those of no record have an empty name.
    brought: HashMap<PublicKey, RecordId>,
    /// Those of them that the interface has; `None` while there is no interface.
    present: Option<HashMap<PublicKey, PresentPeer>>,
    /// Peers to be looked at.
    pending: BTreeSet<PublicKey>,
    is_listed: bool,
}

impl Reconciler {
    /// Begins with what earlier processes brought, and the interface as it is, if it is there.
    pub fn new(brought: HashMap<PublicKey, RecordId>, status: Option<&DeviceStatus>) -> Self {
        let peers = status.iter().flat_map(|status| &status.peers);
        let blocks: HashMap<_, _> = peers.map(|it| (it.public_key, &it.allowed_ips)).collect();
        let held = brought.iter().map(|(key, id)| {
            let blocks = blocks.get(key).map(|it| it.to_vec());
            (RecordId::clone(id), *key, blocks.unwrap_or_default())
        });
        let mut reconciler = Self {
            list: RecordList::holding(held),
            brought,
            ..Self::default()
        };
        if let Some(status) = status {
            reconciler.look(status);
        }
        reconciler
    }

    /// The source has news.
    pub fn change(&mut self, changes: impl IntoIterator<Item = (RecordId, RecordChange)>) {
        let touched = self.list.change(changes);
        self.pending.extend(touched);
    }

    /// The source has told of all that it has: these records, and no others.
    pub fn listed(&mut self, ids: &HashSet<RecordId>) {
        let touched = self.list.retain(ids);
        self.pending.extend(touched);
        if !std::mem::replace(&mut self.is_listed, true) {
            // What is in no list was brought by an earlier process.
            self.pending.extend(self.brought.keys());
        }
    }

    /// The interface has these peers now.
    pub fn look(&mut self, status: &DeviceStatus) {
        let mut foreign = ForeignPeers {
            own_key: status.public_key,
            ..ForeignPeers::default()
        };
        let mut before = self.present.take().unwrap_or_default();
        let mut present = HashMap::new();
        for peer in &status.peers {
            let key = peer.public_key;
            if !self.brought.contains_key(&key) {
                foreign.keys.insert(key);
                foreign
                    .blocks
                    .extend(peer.allowed_ips.iter().map(|block| (*block, key)));
                continue;
            }
            let mut allowed_ips = peer.allowed_ips.clone();
            allowed_ips.sort_unstable();
            let PresentPeer { meant, told, .. } = before.remove(&key).unwrap_or_default();
            let found = PresentPeer {
                allowed_ips: Some(allowed_ips),
                preshared_key: peer.preshared_key.clone(),
                persistent_keepalive: peer.persistent_keepalive,
                endpoint: peer.endpoint,
                meant,
                told,
            };
            present.insert(key, found);
        }
        self.present = Some(present);
        let touched = self.list.set_foreign(foreign);
        self.pending.extend(touched);
        self.pending.extend(self.list.keys());
        self.pending.extend(self.brought.keys());
    }

    /// The process of the interface is another one, or its peers were told something by others: what it was told
    /// is not known any more.
    pub fn forget_told(&mut self) {
        for peer in self.present.iter_mut().flat_map(HashMap::values_mut) {
            peer.told = None;
        }
    }

    /// There is no interface.
    pub fn gone(&mut self) {
        self.present = None;
    }

    /// The records.
    pub fn list(&self) -> &RecordList {
        &self.list
    }

    /// Peers that may have to change.
    pub fn due(&self) -> impl Iterator<Item = &PublicKey> {
        self.pending.iter()
    }

    /// Whether the interface has a peer with the addresses of its record, or does not have it at all.
    pub fn is_settled(&self, key: &PublicKey) -> bool {
        let Some(present) = &self.present else {
            return false;
        };
        let has = |peer: &PresentPeer| {
            let record = self.list.of(key);
            record.is_some_and(|it| peer.allowed_ips.as_ref() == Some(&it.allowed_ips))
        };
        present.get(key).is_none_or(has)
    }

    /// The addresses of peers that stay although no good record of them is known; `None` while these are not known,
    /// or something is still to be changed.
    pub fn held_blocks(&self) -> Option<Vec<Cidr>> {
        let present = self.present.as_ref().filter(|_| self.is_listed);
        let present = present.filter(|_| self.pending.is_empty())?;
        let held = present
            .iter()
            .filter(|(key, _)| self.list.of(key).is_none());
        let blocks: Option<Vec<_>> = held.map(|(_, it)| it.allowed_ips.as_deref()).collect();
        Some(blocks?.concat())
    }

    /// As of [`RecordList::refusal_news`].
    pub fn refusal_news(&mut self) -> BTreeSet<RecordId> {
        self.list.refusal_news()
    }

    /// Whether the source has told of all that it has.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// How many peers of the interface come from the source.
    pub fn applied(&self) -> usize {
        self.present.as_ref().map_or(0, HashMap::len)
    }

    /// The peers that were brought, with the records that they are of.
    pub fn brought(&self) -> &HashMap<PublicKey, RecordId> {
        &self.brought
    }

    /// The next change, of so many peers at most, if the interface is there and lacks something.
    pub fn next_batch(&mut self, most: usize) -> Option<ChangeBatch> {
        let present = self.present.as_mut()?;
        let mut batch = ChangeBatch::default();
        let mut removed = Vec::new();
        while batch.after.len() < most {
            let Some(key) = self.pending.pop_first() else {
                break;
            };
            match (self.list.of(&key), present.get(&key)) {
                (Some(record), before) => {
                    let id = self.list.id_of(&key);
                    let id = id.filter(|id| self.brought.get(&key) != Some(*id));
                    batch.bring(record, before, id);
                }
                // It is held: what it should be is not known.
                (None, _) if self.list.id_of(&key).is_some() => {}
                (None, _) if !self.is_listed || !self.brought.contains_key(&key) => {
                    // It stays for now, and its addresses may be given to another.
                    if let Some(peer) = present.get_mut(&key) {
                        peer.allowed_ips = None;
                    }
                    // Its record may have another peer, and is not to bring this one back.
                    if self.brought.get(&key).is_some_and(|id| !id.is_empty()) {
                        batch.brings.push((key, "".into()));
                    }
                }
                (None, before) => {
                    batch.forgets.push(key);
                    if let Some(before) = before {
                        removed.push(PeerChange {
                            remove: true,
                            ..PeerChange::new(key)
                        });
                        let name = before.told.as_ref().and_then(|it| it.name.as_deref());
                        batch.say("removed", &key, name);
                    }
                    batch.after.push((key, None));
                }
            }
        }
        // Those that give up addresses come before those that get them.
        removed.append(&mut batch.sections);
        batch.sections = removed;
        (!batch.after.is_empty() || !batch.brings.is_empty()).then_some(batch)
    }

    /// The interface refused a change: it is due again after the next look.
    pub fn leave_out(&mut self, batch: ChangeBatch) {
        self.brought.extend(batch.brings);
    }

    /// A change was made, or none of it: it is due again.
    pub fn done(&mut self, batch: ChangeBatch, is_made: bool) {
        self.brought.extend(batch.brings);
        if !is_made {
            self.pending.extend(batch.after.iter().map(|(key, _)| *key));
            return;
        }
        for key in &batch.forgets {
            self.brought.remove(key);
        }
        let Some(present) = &mut self.present else {
            return;
        };
        for (key, after) in batch.after {
            match after {
                Some(peer) => drop(present.insert(key, peer)),
                None => drop(present.remove(&key)),
            }
        }
    }
}

impl ChangeBatch {
    /// The peers that it is about.
    pub fn keys(&self) -> impl Iterator<Item = PublicKey> {
        self.after.iter().map(|(key, _)| *key)
    }

    fn say(&mut self, done: &str, key: &PublicKey, name: Option<&str>) {
        let name = name.map_or(String::new(), |name| format!(" ({name})"));
        self.lines.push(format!("{done} the peer {key}{name}"));
    }

    /// Adds what a peer lacks of its record. `id` is that of a peer that was brought under another one, or never.
    fn bring(&mut self, record: &PeerRecord, before: Option<&PresentPeer>, id: Option<&RecordId>) {
        let key = record.public_key;
        let numeric = record.endpoint.as_ref().and_then(HostPort::numeric);
        let told = ToldPeer {
            name: record.name.clone(),
            allowance: record.allowance,
        };
        let old = before.cloned().unwrap_or_default();
        let told_before = match before {
            Some(_) => old.told.clone(),
            None => Some(ToldPeer::default()),
        };
        let differs = |is_same: fn(&ToldPeer, &ToldPeer) -> bool| {
            (told_before.as_ref()).is_none_or(|before| !is_same(before, &told))
        };
        // Without another endpoint in its record, a peer stays where it has roamed to.
        let is_moved = (old.meant.as_ref()).is_some_and(|meant| *meant != record.endpoint);
        let to = numeric.filter(|to| (old.endpoint).is_none_or(|here| is_moved && here != *to));
        let other_key = !same(record.preshared_key.as_ref(), old.preshared_key.as_ref());
        let is_other = before.is_none()
            || old.allowed_ips.as_ref() != Some(&record.allowed_ips)
            || old.persistent_keepalive != record.persistent_keepalive
            || other_key;
        if is_other || to.is_some() {
            self.sections.push(PeerChange {
                preshared_key: other_key
                    .then(|| record.preshared_key.clone().unwrap_or_else(Secret::zero)),
                endpoint: to,
                persistent_keepalive: Some(record.persistent_keepalive),
                replace_allowed_ips: true,
                allowed_ips: (record.allowed_ips.iter().copied())
                    .map(AllowedIpChange::Add)
                    .collect(),
                ..PeerChange::new(key)
            });
        }
        if differs(|one, other| one.name == other.name) {
            self.names
                .push((key, record.name.clone().unwrap_or_default()));
        }
        if differs(|one, other| one.allowance == other.allowance) {
            self.allowances.push((key, record.allowance, false));
        }
        if let Some(endpoint) = record.endpoint.as_ref().filter(|_| numeric.is_none())
            && (before.is_none() || told_before.is_none() || is_moved)
        {
            self.endpoints.push((key, endpoint.clone()));
        }
        let is_told = told_before.as_ref() == Some(&told) && !is_moved;
        if before.is_some() && is_told && !is_other && to.is_none() && id.is_none() {
            return;
        }
        let is_changed = told_before.is_some() && !is_told;
        if before.is_none() || is_other || to.is_some() || is_changed {
            let verb = if before.is_none() { "added" } else { "changed" };
            self.say(verb, &key, record.name.as_deref());
        }
        self.brings.extend(id.map(|id| (key, RecordId::clone(id))));
        let after = PresentPeer {
            allowed_ips: Some(record.allowed_ips.clone()),
            preshared_key: record.preshared_key.clone(),
            persistent_keepalive: record.persistent_keepalive,
            endpoint: to.or(old.endpoint),
            meant: Some(record.endpoint.clone()),
            told: Some(told),
        };
        self.after.push((key, Some(after)));
    }
}

/// A preshared key of zeros is none.
fn same(one: Option<&Secret>, other: Option<&Secret>) -> bool {
    let key = |secret: Option<&Secret>| secret.filter(|it| !it.is_zero()).cloned();
    key(one) == key(other)
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
