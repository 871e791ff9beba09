//! Peers that are to have a session here, without waiting until they notice that theirs has ended.
//!
//! A peer does not learn that we started anew: it sends on its old session, and misses an answer
//! after 15 s only. If it also has no fixed endpoint, nobody but the process that ended knew where
//! it is. So a process leaves the endpoints of its active peers to the next one, which calls them.
//! It leaves no session: the next process has keys and counters of its own (invariant 1). A gateway
//! that takes the place of another one calls that one's peers in the same way.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::Time;
use crate::device::Device;
use crate::device::peer_state::CallReason;
use crate::endpoint::{Endpoint, Source};
use crate::limits::*;
use crate::secret::PublicKey;

/// Between two calls.
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / CALLS_PER_SECOND as u64);
/// A peer that is called may be gone for good: it is called twice.
const PATIENCE: Duration = Duration::from_secs(2 * REKEY_TIMEOUT.as_secs() - 1);

/// What becomes of a peer that is to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerCall {
    /// It is called in its turn.
    Due,
    /// A session with it began in the last 5 seconds.
    IsHere,
    /// Nobody knows where it is.
    HasNoEndpoint,
    /// There is no such peer, or its access has ended.
    IsNoPeer,
}

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

    /// Another host had this peer until now, which was at `to` then, if that is known. A handshake with
    /// it begins, from the address `from`, if it is of the same family, after those of the calls before.
    /// Where a peer is that was heard from in the last 15 seconds is known here.
    pub fn call(
        &mut self,
        now: Time,
        key: &PublicKey,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
    ) -> PeerCall {
        let state = self.by_key.get(key).and_then(|id| self.peers.get_mut(id));
        let Some(state) = state.filter(|state| !state.is_barred()) else {
            return PeerCall::IsNoPeer;
        };
        let is_within = |limit, at: Option<Time>| at.is_some_and(|at| now.since(at) < limit);
        if is_within(REKEY_TIMEOUT, state.last_handshake) {
            return PeerCall::IsHere;
        }
        let before = state.peer.endpoint();
        let known = before.map(|before| before.addr);
        let was_heard = is_within(NO_ANSWER_TIMEOUT, state.peer.last_received());
        let Some(addr) = to.filter(|_| !was_heard).or(known) else {
            return PeerCall::HasNoEndpoint;
        };
        let from = from.filter(|from| from.is_ipv4() == addr.is_ipv4());
        let src = from.map(|ip| Source { ip, ifindex: 0 });
        let endpoint = Endpoint { addr, src };
        let reason = match before == Some(endpoint) {
            true => CallReason::WasElsewhere,
            false => CallReason::HasMoved,
        };
        state.peer.set_endpoint(Some(endpoint));
        self.remembered.queue_call(state, reason);
        PeerCall::Due
    }

    /// A user wants to see a handshake with a peer: one begins, as if a packet asked for it, unless
    /// one is under way. Returns when its next initiation is due; `None` if there is no such peer.
    pub fn probe(&mut self, now: Time, key: &PublicKey) -> Option<Time> {
        let id = *self.by_key.get(key)?;
        let state = self.peers.get_mut(&id)?;
        let due = state.probe(now);
        self.reschedule(id);
        Some(due)
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
            if let Some(state) = self.peers.get_mut(&id)
                && let Some(reason) = state.call_due.take()
            {
                state.call(&mut self.core, now, reason, PATIENCE);
                self.reschedule(id);
            }
        }
    }
}
