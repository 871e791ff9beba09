//! Peers that another process had sessions with.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::peer_state::{CallReason, PeerState};
use crate::Time;
use crate::limits::{MAX_PEERS, REJECT_AFTER_TIME};
use crate::secret::PublicKey;

pub(super) struct Remembered {
    /// Peers that are not configured yet, and their turn among the calls. Those of them that are not
    /// `forget_at` had no session for longer than one lasts.
    pub(super) endpoints: BTreeMap<PublicKey, (SocketAddr, u64)>,
    pub(super) forget_at: Option<Time>,
    /// Peers to be called, by their turn, each once, and when the next one is. Remembered peers come
    /// first, in the order in which the process before this one left them.
    pub(super) calls: BTreeMap<u64, u32>,
    pub(super) next: Time,
    next_turn: u64,
    /// What peers that have no quota yet used of it.
    pub(super) used: BTreeMap<PublicKey, u64>,
    /// Whether the endpoints that are to be kept for the next process have changed.
    pub(super) changed: bool,
}

impl Default for Remembered {
    fn default() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            forget_at: None,
            calls: BTreeMap::new(),
            next: Time::default(),
            next_turn: MAX_PEERS as u64,
            used: BTreeMap::new(),
            changed: false,
        }
    }
}

impl Remembered {
    /// The interface came up: peers that are configured much later are not called.
    pub(super) fn came_up(&mut self, now: Time) {
        if !self.endpoints.is_empty() {
            self.forget_at.get_or_insert(now + REJECT_AFTER_TIME);
        }
    }

    /// Forgets them, if it is time.
    pub(super) fn forget(&mut self, now: Time) {
        if self.forget_at.is_some_and(|at| at <= now) {
            self.forget_at = None;
            self.changed |= !self.endpoints.is_empty();
            self.endpoints = BTreeMap::new();
        }
    }

    /// A peer was added or changed.
    pub(super) fn peer_configured(&mut self, state: &mut PeerState) {
        let Some((addr, turn)) = self.endpoints.remove(&state.public_key()) else {
            return;
        };
        // What the configuration says is newer.
        if state.peer.endpoint().is_none() {
            state.peer.set_endpoint(Some(addr.into()));
        }
        self.queue_at(turn, state, CallReason::Remembered);
    }

    /// The peer is to be called after the others.
    pub(super) fn queue_call(&mut self, state: &mut PeerState, reason: CallReason) {
        self.next_turn += 1;
        self.queue_at(self.next_turn, state, reason);
    }

    fn queue_at(&mut self, turn: u64, state: &mut PeerState, reason: CallReason) {
        if state.call_due.is_none() {
            self.calls.insert(turn, state.peer.id());
        }
        state.call_due = state.call_due.max(Some(reason));
    }
}
