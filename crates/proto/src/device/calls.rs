//! The peers that the process before this one had sessions with.
//!
//! A peer does not learn that we started anew: it sends on its old session, and misses an answer
//! after 15 s only. If it also has no fixed endpoint, nobody but the process that ended knew where
//! it is. So a process leaves the endpoints of its active peers to the next one, which calls them.
//! It leaves no session: the next process has keys and counters of its own (invariant 1).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::Time;
use crate::device::Device;
use crate::limits::*;
use crate::secret::PublicKey;

/// Between two calls.
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / CALLS_PER_SECOND as u64);
/// A peer that is called may be gone for good: it is called twice.
const PATIENCE: Duration = Duration::from_secs(2 * REKEY_TIMEOUT.as_secs() - 1);

impl Device {
    /// The process before this one had sessions with these peers, there: they are called as soon as
    /// they are configured and the device is up. At most MAX_REMEMBERED; call it before the first
    /// change.
    pub fn remember(&mut self, peers: impl IntoIterator<Item = (PublicKey, SocketAddr)>) {
        let peers = peers.into_iter().take(MAX_REMEMBERED);
        self.remembered.endpoints.extend(peers);
    }

    /// Whether [`Device::active_endpoints`] may have changed since this was last asked.
    pub fn poll_endpoints_changed(&mut self) -> bool {
        std::mem::take(&mut self.remembered.changed)
    }

    /// Where the peers are that have a session: what the next process should remember. At most
    /// MAX_REMEMBERED, any of them.
    pub fn active_endpoints(&self) -> Vec<(PublicKey, SocketAddr)> {
        let mut seen = BTreeSet::new();
        self.peers_in_use_from(0)
            .filter(|(_, peer)| peer.current().is_some() && seen.insert(peer.id()))
            .filter_map(|(_, peer)| Some((peer.public_key(), peer.endpoint()?.addr)))
            .take(MAX_REMEMBERED)
            .collect()
    }

    pub(super) fn next_call(&self) -> Option<Time> {
        let some = self.core.up && !self.remembered.calls.is_empty();
        some.then_some(self.remembered.next)
    }

    /// Calls the next of them, if it is time.
    pub(super) fn call_remembered(&mut self, now: Time) {
        if self.next_call().is_none_or(|at| at > now) {
            return;
        }
        // A late call does not bring the next ones forward by more than it was late by.
        let late = now.since(self.remembered.next).min(INTERVAL * 32);
        self.remembered.next = Time(now.0 - u64::try_from(late.as_nanos()).unwrap_or(0));
        while self.remembered.next <= now
            && let Some(id) = self.remembered.calls.pop_front()
        {
            self.remembered.next = self.remembered.next + INTERVAL;
            if let Some(state) = self.peers.get_mut(&id) {
                state.call(now, PATIENCE);
                self.reschedule(id);
            }
        }
    }
}
