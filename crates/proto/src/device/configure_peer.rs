//! A change of one peer: its blocks, preshared key, endpoint and keepalive.

use std::sync::Arc;
use std::time::Duration;

use super::Device;
use super::peer_state::PeerState;
use super::timer_table::Timer;
use crate::Time;
use crate::config::{Cidr, PeerChange};
use crate::device::common::Core;
use crate::limits::REJECT_AFTER_TIME;
use crate::noise::Remote;
use crate::peer::Peer;
use crate::secret::{PublicKey, Secret};

impl Device {
    pub(super) fn add_peer(&mut self, key: PublicKey) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        let mut peer = PeerState::new(id, Remote::new(key));
        peer.sent_timestamp = self.removed.remove(&key).unwrap_or_default();
        self.peers.insert(id, Box::new(peer));
        self.core.shared.set_peer_count(self.peers.len());
        self.by_key.insert(key, id);
        id
    }

    /// The block moves from its old owner. True if that is another peer, or none.
    pub(super) fn add_block(&mut self, peer: &Arc<Peer>, block: Cidr) -> bool {
        let is_new =
            (self.peers.get_mut(&peer.id())).is_some_and(|state| state.allowed_ips.insert(block));
        if is_new {
            let owner = self.routes.insert(block, Arc::clone(peer));
            if let Some(owner) = owner.and_then(|owner| self.peers.get_mut(&owner.id())) {
                owner.allowed_ips.remove(&block);
            }
        }
        is_new
    }

    /// True if the peer had it.
    pub(super) fn remove_block(&mut self, id: u32, block: Cidr) -> bool {
        let state = self.peers.get_mut(&id);
        let had = state.is_some_and(|state| state.allowed_ips.remove(&block));
        if had {
            self.routes.remove(block);
        }
        had
    }
}

impl PeerState {
    pub(super) fn change(&mut self, core: &mut Core, now: Time, section: &PeerChange, anew: bool) {
        if let Some(key) = &section.preshared_key {
            // Takes effect with the next handshake; sessions live on.
            self.remote.preshared_key = key.clone();
        } else if anew {
            self.remote.preshared_key = Secret::zero();
        }
        self.change_endpoint(now, section, anew);
        self.expect_initiations(core);
        let keepalive = section.persistent_keepalive;
        if let Some(interval) = keepalive.or(anew.then_some(0)) {
            self.change_persistent_keepalive(core, now, interval);
        }
    }

    fn change_endpoint(&mut self, now: Time, section: &PeerChange, anew: bool) {
        let Some(addr) = section.endpoint else {
            if anew {
                self.configured_endpoint = None;
                self.candidates = None;
                if self.peer.last_received().is_none() {
                    // No peer was ever there.
                    self.peer.set_endpoint(None);
                }
            }
            return;
        };
        // A program that loads a whole file sends whole peers. A change that names only the
        // endpoint is meant to move the peer.
        let whole = anew || section.replace_allowed_ips;
        let here = self.peer.endpoint().map(|endpoint| endpoint.addr);
        let known = (self.candidates.as_ref()).is_some_and(|names| names.contains(addr));
        let same = self.configured_endpoint.replace(addr) == Some(addr) || known;
        let silent = |at| now.since(at) >= REJECT_AFTER_TIME;
        let dead =
            self.timers.is_armed(Timer::Retransmit) && self.peer.last_received().is_none_or(silent);
        if here == Some(addr) || here.is_some() && whole && same && !dead {
            return;
        }
        self.peer.set_endpoint(Some(addr.into()));
        self.endpoint_configured(addr);
        self.initiations_in_vain = 0;
        self.restart_handshake(now);
    }

    fn change_persistent_keepalive(&mut self, core: &mut Core, now: Time, seconds: u16) {
        let before = std::mem::replace(&mut self.persistent_keepalive, seconds);
        if before == seconds {
            return;
        }
        if seconds == 0 {
            return self.timers.disarm(Timer::PersistentKeepalive);
        }
        let interval = Duration::from_secs(seconds.into());
        self.timers.arm(Timer::PersistentKeepalive, now + interval);
        if before == 0 {
            self.send_keepalive(core, now);
        }
    }
}

/// Whether Curve25519 uses both alike: files have a key as it was made, and the UAPI as it is used.
pub(super) fn is_same_private_key(one: &[u8; 32], other: &[u8; 32]) -> bool {
    (one[0] ^ other[0]) & 248 == 0 && one[1..31] == other[1..31] && (one[31] ^ other[31]) & 63 == 0
}

/// The private key as Curve25519 uses it; `None` for all zeros.
pub(super) fn clamped(key: &Secret) -> Option<Secret> {
    let mut clamped = key.clone();
    let bytes = clamped.bytes_mut();
    bytes[0] &= 248;
    bytes[31] = bytes[31] & 127 | 64;
    (!key.is_zero()).then_some(clamped)
}
