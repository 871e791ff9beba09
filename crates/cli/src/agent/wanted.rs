//! Which records of a store an agent follows that brings peers just in time, and for which it may ask.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_engine::source_network;
use adit_fleet::{JustInTime, RecordId};
use adit_proto::config::PublicKey;

use super::dir::MAX_RECORDS;

/// Look-ups in vain within [`WINDOW`] at most: a flood of unknown keys costs the store no more.
const IN_VAIN: u32 = 100;
/// Those of them for addresses that may be forged: a flood of these leaves the rest.
const IN_VAIN_UNPROVEN: u32 = 50;
/// Those of them for one address, or for the network of an IPv6 address.
const IN_VAIN_OF_SOURCE: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);
/// How long a key that the store does not have is not asked for again, unless the store tells of it: twice the
/// time after which a peer tries again.
const MISSING: Duration = Duration::from_secs(10);

/// An unknown peer that began a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stranger {
    pub(super) key: PublicKey,
    pub(super) from: SocketAddr,
    /// It receives there.
    pub(super) is_proven: bool,
    /// Another gateway has it, and says so: it is not called, and not limited.
    pub(super) is_elsewhere: bool,
}

/// The records that are followed.
#[derive(Default)]
pub(super) struct WantedRecords {
    /// Held from the moment at which the store is asked, or has told of changes, until that is passed on: an old
    /// answer never comes after a newer change.
    order: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ids: HashSet<RecordId>,
    /// Keys that the store does not have, and until when that is believed.
    missing: HashMap<RecordId, Instant>,
    /// When the next window begins, and the look-ups of this one that are in vain so far.
    window: Option<Instant>,
    in_vain: u32,
    unproven: u32,
    of_source: HashMap<IpAddr, u32>,
    counts: JustInTime,
}

impl WantedRecords {
    /// Begins with the records that earlier processes brought.
    pub(super) fn new(ids: impl Iterator<Item = RecordId>) -> Self {
        let wanted = Self::default();
        wanted.state().ids.extend(ids.filter(|id| !id.is_empty()));
        wanted
    }

    pub(super) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ids(&self) -> Vec<RecordId> {
        self.state().ids.iter().cloned().collect()
    }

    pub(super) fn counts(&self) -> JustInTime {
        self.state().counts
    }

    pub(super) fn has(&self, id: &RecordId) -> bool {
        self.state().ids.contains(id)
    }

    /// The store has told of this record: whether it is followed.
    pub(super) fn heard(&self, id: &RecordId, is_gone: bool) -> bool {
        let mut state = self.state();
        state.missing.remove(id);
        match is_gone {
            true => state.ids.remove(id),
            false => state.ids.contains(id),
        }
    }

    /// No longer follows these.
    pub(super) fn evict(&self, ids: &[RecordId]) {
        let mut state = self.state();
        for id in ids {
            state.counts.evicted += u64::from(state.ids.remove(id));
        }
    }

    /// Those of these peers for which the store is to be asked now.
    pub(super) fn select(
        &self,
        now: Instant,
        strangers: &[Stranger],
    ) -> HashMap<RecordId, Stranger> {
        let mut state = self.state();
        if state.window.is_none_or(|until| until <= now) {
            state.window = Some(now + WINDOW);
            (state.in_vain, state.unproven) = (0, 0);
            state.of_source.clear();
            state.missing.retain(|_, until| *until > now);
        }
        let mut selected = HashMap::new();
        for stranger in strangers {
            let id: RecordId = stranger.key.to_string().into();
            if state.ids.contains(&id) || selected.contains_key(&id) {
                continue;
            }
            if state.missing.get(&id).is_some_and(|until| *until > now) {
                continue;
            }
            let is_full = state.ids.len() + selected.len() >= MAX_RECORDS;
            if stranger.is_elsewhere && !is_full {
                selected.insert(id, *stranger);
                continue;
            }
            let source = source_network(stranger.from.ip());
            let of_source = state.of_source.get(&source).copied().unwrap_or(0);
            let is_flood = !stranger.is_proven && state.unproven >= IN_VAIN_UNPROVEN;
            let is_beyond = state.in_vain >= IN_VAIN || of_source >= IN_VAIN_OF_SOURCE;
            if is_flood || is_beyond || is_full {
                state.counts.limited += 1;
                continue;
            }
            // Until it is found.
            state.in_vain += 1;
            state.unproven += u32::from(!stranger.is_proven);
            state.of_source.insert(source, of_source + 1);
            selected.insert(id, *stranger);
        }
        selected
    }

    /// The store has answered: it has these of the selected ones, which are followed from now on.
    pub(super) fn answered(
        &self,
        now: Instant,
        selected: &HashMap<RecordId, Stranger>,
        found: &HashSet<RecordId>,
    ) {
        let mut state = self.state();
        for (id, stranger) in selected {
            if stranger.is_elsewhere {
                if found.contains(id) {
                    state.ids.insert(RecordId::clone(id));
                }
                continue;
            }
            if found.contains(id) {
                state.in_vain = state.in_vain.saturating_sub(1);
                let unproven = u32::from(!stranger.is_proven);
                state.unproven = state.unproven.saturating_sub(unproven);
                if let Some(count) = state.of_source.get_mut(&source_network(stranger.from.ip())) {
                    *count = count.saturating_sub(1);
                }
                state.ids.insert(RecordId::clone(id));
                state.counts.found += 1;
            } else {
                state.missing.insert(RecordId::clone(id), now + MISSING);
                state.counts.missing += 1;
            }
        }
    }
}

#[cfg(test)]
#[path = "wanted_tests.rs"]
mod tests;
