//! A change of configuration: checked whole, then done, then published at once.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::peer_state::PeerState;
use super::timer_table::Timer;
use super::{ConfigError, Core, Device, Output};
use crate::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use crate::cookie::Checker;
use crate::limits::{MAX_PEERS, REJECT_AFTER_TIME};
use crate::noise::{Identity, Remote};
use crate::{Tai64N, Time};

impl Device {
    /// Changes the configuration, whole or not at all. A value that is set to what it already was
    /// disturbs no session, no endpoint and no packet.
    ///
    /// A peer that has roamed keeps its learned endpoint if the change names the endpoint that was
    /// configured last. It does not keep it if handshakes there get no answer and nothing authentic
    /// came for Reject-After-Time. With `replace_peers`, a peer that the change names keeps its
    /// sessions, its counters and its learned endpoint; every other setting that the change does
    /// not name is reset.
    ///
    /// # Errors
    ///
    /// There would be too many peers; nothing was changed.
    pub fn apply(&mut self, now: Time, change: &DeviceChange) -> Result<(), ConfigError> {
        let own_key = self.own_key_after(change);
        self.check_size(change, own_key)?;

        if let Some(key) = &change.private_key {
            self.set_private_key(now, key);
        }
        self.listen_port = change.listen_port.unwrap_or(self.listen_port);
        self.fwmark = change.fwmark.unwrap_or(self.fwmark);

        let mut routes_changed = false;
        let mut kept = HashSet::new();
        for section in &change.peers {
            // A peer with our own key is ignored, as if it were not there.
            if Some(section.public_key) == own_key {
                continue;
            }
            let known = self.by_key.get(&section.public_key).copied();
            let named = known.filter(|id| !change.replace_peers || kept.contains(id));
            if section.remove {
                if let Some(id) = named {
                    routes_changed |= self.remove_peer(id);
                }
                continue;
            }
            if named.is_none() && section.update_only {
                continue;
            }
            let id = known.unwrap_or_else(|| self.add_peer(section.public_key));
            kept.insert(id);
            routes_changed |= self.change_peer(now, id, section, named.is_none());
        }
        if change.replace_peers {
            let unnamed = self.peers.keys().filter(|id| !kept.contains(id));
            for id in unnamed.copied().collect::<Vec<_>>() {
                routes_changed |= self.remove_peer(id);
            }
        }
        if routes_changed {
            self.core.shared.publish(self.routes.clone());
        }
        Ok(())
    }

    fn own_key_after(&self, change: &DeviceChange) -> Option<PublicKey> {
        match &change.private_key {
            Some(key) => clamped(key).map(|key| key.public_key()),
            None => self.core.identity.as_ref().map(|own| own.public),
        }
    }

    /// Counts the peers that the change would leave, at most.
    fn check_size(&self, change: &DeviceChange, own: Option<PublicKey>) -> Result<(), ConfigError> {
        let before = if change.replace_peers {
            0
        } else {
            self.peers.len()
        };
        if before + change.peers.len() <= MAX_PEERS {
            return Ok(());
        }
        let mut keys = HashSet::new();
        if !change.replace_peers {
            keys.extend(self.by_key.keys().copied());
        }
        for section in &change.peers {
            if section.remove {
                keys.remove(&section.public_key);
            } else if !section.update_only && Some(section.public_key) != own {
                keys.insert(section.public_key);
            }
            if keys.len() > MAX_PEERS {
                return Err(ConfigError::TooManyPeers);
            }
        }
        Ok(())
    }

    fn set_private_key(&mut self, now: Time, key: &Secret) {
        let identity = clamped(key).map(Identity::new);
        let before = self.core.identity.as_ref().map(|own| &own.secret);
        if before == identity.as_ref().map(|own| &own.secret) {
            return;
        }
        let public = identity.as_ref().map(|own| own.public);
        self.core.identity = identity;
        if let Some(public) = public {
            self.checker = Checker::new(&public);
            if let Some(&id) = self.by_key.get(&public)
                && self.remove_peer(id)
            {
                self.core.shared.publish(self.routes.clone());
            }
        }
        let ids: Vec<u32> = self.peers.keys().copied().collect();
        for id in ids {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.own_key_changed(&mut self.core, now);
                self.reschedule(id);
            }
        }
    }

    fn add_peer(&mut self, key: PublicKey) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        let mut peer = PeerState::new(id, Remote::new(key));
        peer.sent_timestamp = self.removed.remove(&key).unwrap_or_default();
        self.peers.insert(id, peer);
        self.core.shared.set_peer_count(self.peers.len());
        self.by_key.insert(key, id);
        id
    }

    /// True if that changed the routes.
    fn remove_peer(&mut self, id: u32) -> bool {
        let Some(mut peer) = self.peers.remove(&id) else {
            return false;
        };
        let core = &mut self.core;
        core.shared.set_peer_count(self.peers.len());
        self.by_key.remove(&peer.public_key());
        if let Some((order, at)) = peer.scheduled {
            self.deadlines[order].remove(&(at, id));
        }
        peer.end_handshake(core);
        peer.expire_sessions(core);
        peer.drop_sessions(core);
        for block in &peer.allowed_ips {
            self.routes.remove(*block);
        }
        if peer.sent_timestamp != Tai64N::default() {
            if self.removed.len() >= MAX_PEERS {
                // Without it only a clock that is set back locks a peer out that comes again.
                self.removed.clear();
            }
            self.removed.insert(peer.public_key(), peer.sent_timestamp);
        }
        core.push(Output::DropStaged {
            peer: Arc::clone(&peer.peer),
            given_up_after: None,
        });
        !peer.allowed_ips.is_empty()
    }

    /// Does what a section asks; `anew` also resets what it does not name. True if that changed the
    /// routes.
    fn change_peer(&mut self, now: Time, id: u32, section: &PeerChange, anew: bool) -> bool {
        let routes_changed = self.change_allowed_ips(id, section, anew);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.change(&mut self.core, now, section, anew);
            self.reschedule(id);
        }
        routes_changed
    }

    fn change_allowed_ips(&mut self, id: u32, section: &PeerChange, anew: bool) -> bool {
        let Some(peer) = self.peers.get_mut(&id) else {
            return false;
        };
        let before = std::mem::take(&mut peer.allowed_ips);
        let mut after: BTreeSet<Cidr> = if anew || section.replace_allowed_ips {
            BTreeSet::new()
        } else {
            before.clone()
        };
        for change in &section.allowed_ips {
            match change {
                AllowedIpChange::Add(block) => after.insert(*block),
                AllowedIpChange::Remove(block) => after.remove(block),
            };
        }
        let peer = Arc::clone(&peer.peer);
        let mut changed = false;
        for block in before.difference(&after) {
            self.routes.remove(*block);
            changed = true;
        }
        for block in after.difference(&before) {
            changed = true;
            // The block moves from its old owner.
            let owner = self.routes.insert(*block, Arc::clone(&peer));
            if let Some(owner) = owner.and_then(|owner| self.peers.get_mut(&owner.id())) {
                owner.allowed_ips.remove(block);
            }
        }
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.allowed_ips = after;
        }
        changed
    }
}

impl PeerState {
    fn own_key_changed(&mut self, core: &mut Core, now: Time) {
        let preshared_key = self.remote.preshared_key.clone();
        self.remote = Remote::new(self.public_key());
        self.remote.preshared_key = preshared_key;
        self.start_anew(core, now);
    }

    fn change(&mut self, core: &mut Core, now: Time, section: &PeerChange, anew: bool) {
        if let Some(key) = &section.preshared_key {
            // Takes effect with the next handshake; sessions live on.
            self.remote.preshared_key = key.clone();
        } else if anew {
            self.remote.preshared_key = Secret::zero();
        }
        self.change_endpoint(now, section, anew);
        let keepalive = section.persistent_keepalive;
        if let Some(interval) = keepalive.or(anew.then_some(0)) {
            self.change_persistent_keepalive(core, now, interval);
        }
    }

    fn change_endpoint(&mut self, now: Time, section: &PeerChange, anew: bool) {
        let Some(addr) = section.endpoint else {
            if anew {
                self.configured_endpoint = None;
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
        let same = self.configured_endpoint.replace(addr) == Some(addr);
        let silent = |at| now.since(at) >= REJECT_AFTER_TIME;
        let dead =
            self.timers.is_armed(Timer::Retransmit) && self.peer.last_received().is_none_or(silent);
        if here == Some(addr) || here.is_some() && whole && same && !dead {
            return;
        }
        self.peer.set_endpoint(Some(addr.into()));
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

/// The private key as Curve25519 uses it; `None` for all zeros.
fn clamped(key: &Secret) -> Option<Secret> {
    let mut clamped = key.clone();
    let bytes = clamped.bytes_mut();
    bytes[0] &= 248;
    bytes[31] = bytes[31] & 127 | 64;
    (!key.is_zero()).then_some(clamped)
}
