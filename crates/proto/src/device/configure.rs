//! A change of configuration: checked whole, then done in bounded pieces, then published at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::configure_peer::{clamped, is_same_private_key};
use super::{ConfigError, Device};
use crate::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange};
use crate::device::common::Core;
use crate::device::output::Output;
use crate::limits::MAX_PEERS;
use crate::noise::Identity;
use crate::peer::Peer;
use crate::secret::{PublicKey, Secret};
use crate::{Tai64N, Time};

/// The budget of one call of [`Device::resume`]: about so many peers and blocks, some microseconds
/// each.
const WORK: usize = 1024;
/// Sections that are looked at in the time that one peer takes.
const LOOKS: usize = 64;

/// A change that is being made, in pieces: see [`Device::begin`].
pub struct Transaction {
    change: DeviceChange,
    own_key: Option<PublicKey>,
    /// Another one for each transaction of a device, above 0.
    number: u32,
    routes_changed: bool,
    /// Peers that were removed. Until the routes are published, frames are staged for them.
    removed: Vec<Arc<Peer>>,
    step: Phase,
}

/// The next step, and from which section or peer on.
enum Phase {
    /// Is the public key of this section, or of those behind it, a secret?
    Secrets(usize),
    /// Would there be too many peers?
    Count(usize, PeerCount),
    /// The settings of the device.
    Device,
    /// Our own key changed: each peer learns of it.
    Key(u32),
    /// A peer with our own key is removed.
    OwnPeer(u32),
    Section(usize, Option<BegunSection>),
    /// Peers that the change did not name are removed.
    Unnamed(u32),
    Publish,
    /// Drop what is staged for removed peers.
    DropStaged,
    Done,
}

/// The peers that there would be.
struct PeerCount {
    /// Peers that the change adds (true) or removes, as far as it was looked at.
    named: BTreeMap<PublicKey, bool>,
    peers: usize,
}

/// A section of which a part is done.
struct BegunSection {
    id: u32,
    /// The next of its changes of allowed IPs.
    next: usize,
    /// The blocks that replace all others, as far as they were looked at.
    replacement: Option<BTreeSet<Cidr>>,
    /// Up to here, blocks that are not among those were given up.
    swept: Option<Cidr>,
    anew: bool,
}

impl Transaction {
    /// The change that is asked for.
    pub fn change(&self) -> &DeviceChange {
        &self.change
    }

    /// Whether [`Device::resume`] will change something from now on, and not fail any more.
    pub fn is_checked(&self) -> bool {
        !matches!(self.step, Phase::Secrets(_) | Phase::Count(..))
    }

    /// The change, whose memory a caller may want to free elsewhere.
    pub fn into_change(self) -> DeviceChange {
        self.change
    }
}

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
    /// There would be too many peers, or the public key of one is a secret; nothing was changed.
    pub fn apply(&mut self, now: Time, change: &DeviceChange) -> Result<(), ConfigError> {
        let mut transaction = self.begin(change.clone());
        while !self.resume(now, &mut transaction)? {}
        Ok(())
    }

    /// The same in pieces, between which the device can do other things: half a million peers take
    /// seconds. Call [`Device::resume`] until it returns true, for one transaction after another.
    ///
    /// Peers change one after another meanwhile, and routes all at once in the end.
    pub fn begin(&mut self, change: DeviceChange) -> Transaction {
        self.transactions += 1;
        Transaction {
            own_key: self.own_key_after(&change),
            number: self.transactions,
            routes_changed: false,
            removed: Vec::new(),
            step: Phase::Secrets(0),
            change,
        }
    }

    /// Goes on with a change, and returns whether it is done: a bounded piece of work each time.
    ///
    /// # Errors
    ///
    /// There would be too many peers, or the public key of one is a secret; nothing was changed.
    pub fn resume(
        &mut self,
        now: Time,
        transaction: &mut Transaction,
    ) -> Result<bool, ConfigError> {
        let mut work = WORK;
        while work > 0 {
            work -= 1;
            let step = std::mem::replace(&mut transaction.step, Phase::Done);
            transaction.step = match step {
                Phase::Secrets(at) => {
                    transaction.step = self.look_for_secrets(transaction, at)?;
                    if transaction.is_checked() {
                        // The caller may have to prepare something that can fail.
                        return Ok(false);
                    }
                    continue;
                }
                Phase::Count(at, counted) => {
                    transaction.step = self.count(transaction, at, counted)?;
                    if transaction.is_checked() {
                        // The caller may have to prepare something that can fail.
                        return Ok(false);
                    }
                    continue;
                }
                Phase::Device => self.change_device(now, transaction),
                Phase::Key(from) => self.own_key_changed(now, from),
                Phase::OwnPeer(id) => match self.remove_some(id, transaction, &mut work) {
                    true => Phase::Section(0, None),
                    false => Phase::OwnPeer(id),
                },
                Phase::Section(at, begun) => {
                    self.change_section(now, transaction, at, begun, &mut work)
                }
                Phase::Unnamed(from) => self.remove_unnamed(transaction, from, &mut work),
                Phase::Publish => {
                    if transaction.routes_changed {
                        self.publish_routes(now);
                    }
                    Phase::DropStaged
                }
                Phase::DropStaged => match transaction.removed.pop() {
                    Some(peer) => {
                        self.core.push(Output::DropStaged {
                            peer,
                            given_up_after: None,
                        });
                        Phase::DropStaged
                    }
                    None => Phase::Done,
                },
                Phase::Done => return Ok(true),
            };
        }
        Ok(false)
    }

    fn own_key_after(&self, change: &DeviceChange) -> Option<PublicKey> {
        match &change.private_key {
            Some(key) => clamped(key).map(|key| key.public_key()),
            None => self.core.identity.as_ref().map(|own| own.public),
        }
    }

    /// Whether the public key of one of the next sections is a secret, or of a peer that there is.
    fn look_for_secrets(&self, transaction: &Transaction, at: usize) -> Result<Phase, ConfigError> {
        let change = &transaction.change;
        let own = self.core.identity.as_ref().map(|own| &own.secret);
        let own = change.private_key.as_ref().or(own);
        let own = own.filter(|own| !own.is_zero());
        let is_own =
            |key: &PublicKey| own.is_some_and(|own| is_same_private_key(own.bytes(), &key.0));
        if at == 0
            && !change.replace_peers
            && let Some(new) = &change.private_key
            && let Some(used) = clamped(new)
        {
            let there = [new, &used].map(|key| PublicKey(*key.bytes()));
            if there.iter().any(|key| self.by_key.contains_key(key)) {
                return Err(ConfigError::SecretAsPublicKey);
            }
        }
        let rest = change.peers.get(at..).unwrap_or_default();
        for section in rest.iter().take(LOOKS) {
            let preshared = section.preshared_key.as_ref();
            let is_preshared = preshared.is_some_and(|key| *key.bytes() == section.public_key.0);
            if !section.remove && (is_preshared || is_own(&section.public_key)) {
                return Err(ConfigError::SecretAsPublicKey);
            }
        }
        if rest.len() > LOOKS {
            return Ok(Phase::Secrets(at + LOOKS));
        }
        let before = match change.replace_peers {
            true => 0,
            false => self.peers.len(),
        };
        Ok(match before + change.peers.len() <= MAX_PEERS {
            true => Phase::Device,
            false => {
                let (named, peers) = (BTreeMap::new(), before);
                Phase::Count(0, PeerCount { named, peers })
            }
        })
    }

    /// Counts the peers that there would be after one more section.
    fn count(
        &self,
        transaction: &Transaction,
        at: usize,
        mut counted: PeerCount,
    ) -> Result<Phase, ConfigError> {
        let Some(section) = transaction.change.peers.get(at) else {
            return Ok(Phase::Device);
        };
        let adds = !section.remove;
        if section.remove || !section.update_only && Some(section.public_key) != transaction.own_key
        {
            let was_there = || {
                !transaction.change.replace_peers && self.by_key.contains_key(&section.public_key)
            };
            let before = counted.named.insert(section.public_key, adds);
            match (before.unwrap_or_else(was_there), adds) {
                (false, true) => counted.peers += 1,
                (true, false) => counted.peers -= 1,
                _ => {}
            }
        }
        if counted.peers > MAX_PEERS {
            return Err(ConfigError::TooManyPeers);
        }
        Ok(Phase::Count(at + 1, counted))
    }

    fn change_device(&mut self, now: Time, transaction: &Transaction) -> Phase {
        let change = &transaction.change;
        self.listen_port = change.listen_port.unwrap_or(self.listen_port);
        self.fwmark = change.fwmark.unwrap_or(self.fwmark);
        match &change.private_key {
            Some(key) if self.set_private_key(key) => self.own_key_changed(now, 0),
            _ => Phase::Section(0, None),
        }
    }

    /// True if it is another one.
    fn set_private_key(&mut self, key: &Secret) -> bool {
        let key = clamped(key);
        if self.core.identity.as_ref().map(|own| &own.secret) == key.as_ref() {
            return false;
        }
        self.identities += 1;
        self.core.identity = key.map(|key| Identity::new(key, self.identities));
        let Core {
            shared,
            random,
            identity,
            ..
        } = &mut self.core;
        if let Some(own) = identity {
            shared.admission().set_key(&own.public, random);
        }
        true
    }

    fn own_key_changed(&mut self, now: Time, from: u32) -> Phase {
        let Some((&id, peer)) = self.peers.range_mut(from..).next() else {
            let own = self.core.identity.as_ref();
            let own = own.and_then(|own| self.by_key.get(&own.public));
            return own.map_or(Phase::Section(0, None), |id| Phase::OwnPeer(*id));
        };
        peer.remote.forget_static_static();
        peer.start_anew(&mut self.core, now);
        self.reschedule(id);
        Phase::Key(id + 1)
    }

    fn change_section(
        &mut self,
        now: Time,
        transaction: &mut Transaction,
        at: usize,
        begun: Option<BegunSection>,
        work: &mut usize,
    ) -> Phase {
        let next = Phase::Section(at + 1, None);
        let (replace_peers, number) = (transaction.change.replace_peers, transaction.number);
        let Some(section) = transaction.change.peers.get(at) else {
            return match replace_peers {
                true => Phase::Unnamed(0),
                false => Phase::Publish,
            };
        };
        let mut begun = match begun {
            Some(begun) => begun,
            None => {
                // A peer with our own key is ignored, as if it were not there.
                if Some(section.public_key) == transaction.own_key {
                    return next;
                }
                let known = self.by_key.get(&section.public_key).copied();
                let is_named = |id: &u32| {
                    !replace_peers
                        || (self.peers.get(id)).is_some_and(|peer| peer.named_in == number)
                };
                let named = known.filter(is_named);
                if section.remove {
                    return match named {
                        Some(id) if !self.remove_some(id, transaction, work) => {
                            Phase::Section(at, None)
                        }
                        _ => next,
                    };
                }
                if named.is_none() && section.update_only {
                    return next;
                }
                let id = known.unwrap_or_else(|| self.add_peer(section.public_key));
                self.begin_section(id, section, named.is_none(), number)
            }
        };
        let Some(section) = transaction.change.peers.get(at) else {
            return next;
        };
        let changed = &mut transaction.routes_changed;
        if !self.change_allowed_ips(&mut begun, section, changed, work) {
            return Phase::Section(at, Some(begun));
        }
        if let Some(peer) = self.peers.get_mut(&begun.id) {
            peer.change(&mut self.core, now, section, begun.anew);
            self.remembered.peer_configured(peer);
            self.reschedule(begun.id);
        }
        next
    }

    fn begin_section(
        &mut self,
        id: u32,
        section: &PeerChange,
        anew: bool,
        number: u32,
    ) -> BegunSection {
        let mut has_blocks = false;
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.named_in = number;
            has_blocks = !peer.allowed_ips.is_empty();
        }
        let replaces = has_blocks && (anew || section.replace_allowed_ips);
        BegunSection {
            id,
            next: 0,
            replacement: replaces.then(BTreeSet::new),
            swept: None,
            anew,
        }
    }

    /// True when the peer is gone.
    fn remove_some(&mut self, id: u32, transaction: &mut Transaction, work: &mut usize) -> bool {
        let Some(state) = self.peers.get_mut(&id) else {
            return true;
        };
        while let Some(block) = state.allowed_ips.pop_first() {
            self.routes.remove(block);
            transaction.routes_changed = true;
            if *work == 0 {
                return false;
            }
            *work -= 1;
        }
        let Some(mut peer) = self.peers.remove(&id) else {
            return true;
        };
        let core = &mut self.core;
        core.shared.set_peer_count(self.peers.len());
        self.by_key.remove(&peer.public_key());
        self.limited.remove(&id);
        if let Some((order, at)) = peer.scheduled {
            self.deadlines[order].remove(&(at, id));
        }
        peer.end_handshake(core);
        peer.expire_sessions(core);
        peer.drop_sessions(core);
        self.remembered.changed = true;
        if peer.sent_timestamp != Tai64N::default() {
            if self.removed.len() >= MAX_PEERS {
                // Without it only a clock that is set back locks a peer out that comes again.
                self.removed.pop_first();
            }
            self.removed.insert(peer.public_key(), peer.sent_timestamp);
        }
        transaction.removed.push(peer.peer);
        true
    }

    fn remove_unnamed(
        &mut self,
        transaction: &mut Transaction,
        from: u32,
        work: &mut usize,
    ) -> Phase {
        let Some((&id, peer)) = self.peers.range(from..).next() else {
            return Phase::Publish;
        };
        if peer.named_in == transaction.number || self.remove_some(id, transaction, work) {
            Phase::Unnamed(id + 1)
        } else {
            Phase::Unnamed(id)
        }
    }

    /// Goes on with the allowed IPs of a section, and returns whether all is done. Blocks that the
    /// peer had and keeps are not touched.
    fn change_allowed_ips(
        &mut self,
        begun: &mut BegunSection,
        section: &PeerChange,
        changed: &mut bool,
        work: &mut usize,
    ) -> bool {
        let Some(peer) = self
            .peers
            .get(&begun.id)
            .map(|state| Arc::clone(&state.peer))
        else {
            return true;
        };
        while let Some(change) = section.allowed_ips.get(begun.next) {
            if *work == 0 {
                return false;
            }
            *work -= 1;
            begun.next += 1;
            match change {
                AllowedIpChange::Add(block) => {
                    begun.replacement.as_mut().map(|all| all.insert(*block));
                    *changed |= self.add_block(&peer, *block);
                }
                AllowedIpChange::Remove(block) => {
                    begun.replacement.as_mut().map(|all| all.remove(block));
                    *changed |= self.remove_block(begun.id, *block);
                }
            }
        }
        let Some(replacement) = &begun.replacement else {
            return true;
        };
        loop {
            let from = begun.swept.map_or(Bound::Unbounded, Bound::Excluded);
            let state = self.peers.get(&begun.id);
            let next =
                state.and_then(|state| state.allowed_ips.range((from, Bound::Unbounded)).next());
            let Some(block) = next.copied() else {
                return true;
            };
            if *work == 0 {
                return false;
            }
            *work -= 1;
            begun.swept = Some(block);
            if !replacement.contains(&block) {
                *changed |= self.remove_block(begun.id, block);
            }
        }
    }
}
