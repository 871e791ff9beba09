//! Peers that another process had sessions with.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::peer_state::{CallReason, PeerState};
use crate::Time;
use crate::secret::PublicKey;

#[derive(Default)]
pub(super) struct Remembered {
    /// Peers that are not configured yet.
    pub(super) endpoints: BTreeMap<PublicKey, SocketAddr>,
    /// Peers to be called, each once, and when the next one is.
    pub(super) calls: VecDeque<u32>,
    pub(super) next: Time,
    /// What peers that have no quota yet used of it.
    pub(super) used: BTreeMap<PublicKey, u64>,
    /// Whether the endpoints that are to be kept for the next process have changed.
    pub(super) changed: bool,
}

impl Remembered {
    /// A peer was added or changed.
    pub(super) fn peer_configured(&mut self, state: &mut PeerState) {
        let Some(addr) = self.endpoints.remove(&state.public_key()) else {
            return;
        };
        // What the configuration says is newer.
        if state.peer.endpoint().is_none() {
            state.peer.set_endpoint(Some(addr.into()));
        }
        self.queue_call(state, CallReason::Remembered);
    }

    /// The peer is to be called.
    pub(super) fn queue_call(&mut self, state: &mut PeerState, reason: CallReason) {
        if state.call_due.is_none() {
            self.calls.push_back(state.peer.id());
        }
        state.call_due = state.call_due.max(Some(reason));
    }
}
