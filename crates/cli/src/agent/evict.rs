//! Peers that came just in time and are gone: they make room, and come again when they begin a handshake.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use adit_fleet::{HeldPeers, RecordId, RecordList};
use adit_proto::config::{DeviceStatus, PublicKey};

/// How often to look.
pub(super) const EVERY: Duration = Duration::from_secs(30);
/// How long after its last handshake a peer is gone: a session ends after 180 seconds, and a peer that has
/// something to send tries for a new one for 90.
const GONE: Duration = Duration::from_secs(300);
/// How long a peer may take for its first handshake, or a record to be mended.
const FIRST: Duration = Duration::from_secs(90);

/// What is known of the peers that may be gone.
#[derive(Default)]
pub(super) struct Eviction {
    /// Since when each record is followed.
    since: HashMap<RecordId, Instant>,
}

impl Eviction {
    /// Those of the records that are followed whose peers are gone, here and elsewhere. `wall` is the time since the Unix
    /// epoch.
    pub(super) fn gone(
        &mut self,
        (now, wall): (Instant, Duration),
        followed: Vec<RecordId>,
        list: &RecordList,
        status: &DeviceStatus,
        held: &HeldPeers,
    ) -> Vec<RecordId> {
        let followed: HashSet<RecordId> = followed.into_iter().collect();
        self.since.retain(|id, _| followed.contains(id));
        let mut keys: HashMap<&RecordId, PublicKey> = HashMap::new();
        for key in list.keys() {
            keys.extend(list.id_of(key).map(|id| (id, *key)));
        }
        let peers = status.peers.iter();
        let last: HashMap<PublicKey, Option<Duration>> =
            peers.map(|it| (it.public_key, it.last_handshake)).collect();
        let mut gone = Vec::new();
        for id in followed {
            let since = *self.since.entry(RecordId::clone(&id)).or_insert(now);
            let key = keys.get(&id);
            // What it has used of a quota is not to be forgotten.
            let record = key.and_then(|key| list.of(key));
            if record.is_some_and(|record| record.allowance.quota.is_some()) {
                continue;
            }
            let here = key.and_then(|key| last.get(key).copied().flatten());
            let anywhere = key.and_then(|key| held.get(key));
            let last = here.max(anywhere.map(|it| Duration::from_millis(it.session)));
            let is_gone = match last {
                Some(at) => wall.saturating_sub(at) >= GONE,
                None => now.saturating_duration_since(since) >= FIRST,
            };
            if is_gone {
                self.since.remove(&id);
                gone.push(id);
            }
        }
        gone
    }
}

#[cfg(test)]
#[path = "evict_tests.rs"]
mod tests;
