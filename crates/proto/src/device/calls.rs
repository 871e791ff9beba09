//! Peers that are to have a session here, without waiting until they notice that theirs has ended.
//!
//! A peer does not learn that we started anew: it sends on its old session, and misses an answer
//! after 15 s only. If it also has no fixed endpoint, nobody but the process that ended knew where
//! it is. So a process leaves the endpoints of its active peers to the next one, which calls them.
//! It leaves no session: the next process has keys and counters of its own (invariant 1). A gateway
//! that takes the place of another one calls that one's peers in the same way.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::Time;
use crate::device::Device;
use crate::device::last_seen::LastSeen;
use crate::device::peer_state::{CallReason, PeerState};
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

/// Peers that are listed at a time, because handshakes wait meanwhile.
const LISTED_AT_ONCE: usize = 1024;

/// The latest handshake first, and behind all of them peers by their turn to be called.
type EndpointRank = (Reverse<Option<Time>>, u64);

/// Where peers are, those with the latest handshakes first: see [`Device::list_active`].
#[derive(Default)]
pub struct ActiveEndpoints {
    looked_at: LookedAt,
    found: BTreeMap<EndpointRank, (PublicKey, SocketAddr)>,
}

#[derive(PartialEq, Eq)]
enum LookedAt {
    /// Peers with a session, of indices before this number: see `Device::peers_in_use_from`.
    Sessions(u32),
    /// Those that are called before this turn, too.
    Calls(u64),
    /// Those with a lesser key that are not configured yet, too.
    NotConfigured(PublicKey),
    All,
}

impl Default for LookedAt {
    fn default() -> Self {
        Self::Sessions(0)
    }
}

impl ActiveEndpoints {
    fn add(&mut self, at: EndpointRank, found: Option<(PublicKey, SocketAddr)>) {
        self.found.extend(found.map(|found| (at, found)));
    }
}

impl Iterator for ActiveEndpoints {
    type Item = (PublicKey, SocketAddr);

    fn next(&mut self) -> Option<Self::Item> {
        self.found.pop_first().map(|(_, found)| found)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.found.len(), Some(self.found.len()))
    }
}

impl ExactSizeIterator for ActiveEndpoints {}

impl Device {
    /// The process before this one had sessions with these peers, there: they are called in this order,
    /// as soon as they are configured and the device is up, within REJECT_AFTER_TIME. At most MAX_PEERS;
    /// call it before the first change.
    pub fn remember(&mut self, peers: impl IntoIterator<Item = (PublicKey, SocketAddr)>) {
        for ((key, addr), turn) in peers.into_iter().take(MAX_PEERS).zip(0..) {
            self.remembered.endpoints.entry(key).or_insert((addr, turn));
        }
    }

    /// Whether [`Device::active_endpoints`] may have changed since this was last asked.
    pub fn poll_endpoints_changed(&mut self) -> bool {
        std::mem::take(&mut self.remembered.changed)
    }

    /// Where the peers are that have a session, and those that are still to be called: what the next
    /// process should remember.
    pub fn active_endpoints(&self) -> Vec<(PublicKey, SocketAddr)> {
        let mut list = ActiveEndpoints::default();
        while !self.list_active(&mut list) {}
        list.collect()
    }

    /// The same in pieces: looks at some of the peers. True when `list` has all.
    pub fn list_active(&self, list: &mut ActiveEndpoints) -> bool {
        let state = |id: u32| self.peers.get(&id).map(|state| &**state);
        let endpoint = |state: &PeerState| Some((state.public_key(), state.peer.endpoint()?.addr));
        let waiting = &self.remembered;
        list.looked_at = match list.looked_at {
            LookedAt::Sessions(from) => {
                let mut indices = self.core.indices.peers_from(from);
                // A peer has several indices, and stands once in the list.
                for (_, id) in indices.by_ref().take(LISTED_AT_ONCE) {
                    let has_session = |state: &&PeerState| state.peer.current().is_some();
                    if let Some(state) = state(id).filter(has_session) {
                        let at = state.last_handshake.unwrap_or_default();
                        list.add((Reverse(Some(at)), id.into()), endpoint(state));
                    }
                }
                let next = indices.next();
                next.map_or(LookedAt::Calls(0), |(from, _)| LookedAt::Sessions(from))
            }
            LookedAt::Calls(from) => {
                let mut calls = waiting.calls.range(from..);
                for (turn, id) in calls.by_ref().take(LISTED_AT_ONCE) {
                    let is_new = |state: &&PeerState| {
                        state.call_due.is_some() && state.peer.current().is_none()
                    };
                    list.add(
                        (Reverse(None), *turn),
                        state(*id).filter(is_new).and_then(endpoint),
                    );
                }
                let next = calls.next().map(|(from, _)| LookedAt::Calls(*from));
                next.unwrap_or(LookedAt::NotConfigured(PublicKey([0; 32])))
            }
            LookedAt::NotConfigured(from) => {
                let mut peers = waiting.endpoints.range(from..);
                for (key, (addr, turn)) in peers.by_ref().take(LISTED_AT_ONCE) {
                    list.add((Reverse(None), *turn), Some((*key, *addr)));
                }
                let next = peers.next();
                next.map_or(LookedAt::All, |(from, _)| LookedAt::NotConfigured(*from))
            }
            LookedAt::All => LookedAt::All,
        };
        list.looked_at == LookedAt::All
    }

    /// Another host had this peer until now. A handshake with it begins, from the address `from`, if it is
    /// of the same family, after those of the calls before. Where a peer is that was heard from in the last
    /// 15 seconds is known here. The caller has seen to it that the timestamps can be [believed](LastSeen::believed).
    pub fn call(
        &mut self,
        now: Time,
        key: &PublicKey,
        last: LastSeen,
        from: Option<IpAddr>,
    ) -> PeerCall {
        let state = self.by_key.get(key).and_then(|id| self.peers.get_mut(id));
        let Some(state) = state.filter(|state| !state.is_barred()) else {
            return PeerCall::IsNoPeer;
        };
        state.sent_timestamp = state.sent_timestamp.max(last.sent);
        state.greatest_timestamp = state.greatest_timestamp.max(last.received);
        let is_within = |limit, at: Option<Time>| at.is_some_and(|at| now.since(at) < limit);
        if is_within(REKEY_TIMEOUT, state.last_handshake) {
            return PeerCall::IsHere;
        }
        let before = state.peer.endpoint();
        let known = before.map(|before| before.addr);
        let was_heard = is_within(NO_ANSWER_TIMEOUT, state.peer.last_received());
        let Some(addr) = last.at.filter(|_| !was_heard).or(known) else {
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
        // A peer that hears later of coming up would be called twice.
        let can_call = self.core.up && self.coming_up.is_none();
        let some = can_call && !self.remembered.calls.is_empty();
        let next = some.then_some(self.remembered.next);
        next.into_iter().chain(self.remembered.forget_at).min()
    }

    /// Calls the next of them, if it is time.
    pub(super) fn call_remembered(&mut self, now: Time) {
        self.remembered.forget(now);
        if self.next_call().is_none_or(|at| at > now) {
            return;
        }
        // A late call does not bring the next ones forward by more than it was late by.
        let late = now.since(self.remembered.next).min(INTERVAL * 32);
        self.remembered.next = Time(now.0 - u64::try_from(late.as_nanos()).unwrap_or(0));
        while self.remembered.next <= now
            && let Some((_, id)) = self.remembered.calls.pop_first()
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
