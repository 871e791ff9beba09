//! The device: its peers, handshakes and timers.
//!
//! - this file: the four families of methods, and which part owns what;
//! - `handshake`: how a message of type 1, 2 or 3 is handled;
//! - `common`: what a peer's actions need besides the peer;
//! - `output`: what a device wants done;
//! - `outcome`: the result of a handshake message, for the log and the counters;
//! - `peer_state`: a peer as the control thread has it, and starting handshakes;
//! - `sessions`: how sessions begin, follow each other and end;
//! - `calls`: handshakes that are asked for, and with peers that another process had (`remembered`);
//! - `timer_table`, `timers`: which timers a peer has, and the action of each;
//! - `handed_over`: a device as bytes, for the process that goes on in its place;
//! - `configure`: a change of configuration, and `configure_peer` of one peer;
//! - `access`: what peers may do, and until when;
//! - `cloned`: what a machine forgets that has become two;
//! - `balance`: the receive queue that a new peer is in, by the work of each (`rates`);
//! - `race`: the addresses of a peer whose endpoint is a name (`candidates`);
//! - `path`: the longest packet that the path to a peer takes, found by a `search`;
//! - `packet`: one packet of data, and one peer, for embedders without shards.

mod access;
mod balance;
mod calls;
mod candidates;
mod cloned;
mod common;
mod configure;
mod configure_peer;
mod handed_over;
mod handshake;
mod last_seen;
mod outcome;
mod output;
mod packet;
mod path;
mod peer_state;
mod race;
mod rates;
mod remembered;
mod search;
mod sessions;
mod timer_table;
mod timers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::allowed_ips::Garbage;
use crate::config::{DeviceStatus, PeerStatus};
use crate::device::common::{Core, Queued};
use crate::device::rates::RxQueueRates;
use crate::in_use::Indices;
use crate::peer::{Peer, event};
use crate::secret::PublicKey;
use crate::shared::Shared;
use crate::stats::HandshakeStats;
use crate::wire::{INITIATION_LEN, RESPONSE_LEN};
use crate::{AllowedIps, InUse, Tai64N, Time};
use peer_state::PeerState;
use remembered::Remembered;

pub use calls::{ActiveEndpoints, PeerCall};
pub use common::Random;
pub use configure::Transaction;
pub use handed_over::{HAND_OVER_FORMAT, Import, NotImported};
pub use last_seen::LastSeen;
pub use outcome::{
    FailureReason, HandshakeFailure, HandshakeKind, HandshakeOutcome, Liveness, Refusal,
};
pub use output::{Output, PeerEvent};
pub use packet::{NotOpened, NotSealed};

/// How many peers one call serves: each may cost a Diffie-Hellman computation and an answer.
const MAX_DUE: usize = 32;
/// How many peers one call tells that the device came up.
const TOLD_AT_ONCE: usize = 2048;
/// Nodes of routing tables, and entries in them, that one call frees.
const FREED_AT_ONCE: usize = 8192;
/// A smaller change of the clock leaves the times of events as they were told.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// How long to wait for shards that still use a table.
const FREE_AGAIN: Duration = Duration::from_millis(10);

/// The two orders of [`Device::deadlines`].
const URGENT: usize = 0;
const ORDINARY: usize = 1;

/// A WireGuard interface without its sockets: see the [crate] for how to drive it.
pub struct Device {
    core: Core,
    /// By [`Peer::id`], so in the order in which they were added. Boxed, because nodes of a tree
    /// that grows at its end stay half empty.
    peers: BTreeMap<u32, Box<PeerState>>,
    /// A tree, because a hash table stands still while it grows: 40 ms at half a million.
    by_key: BTreeMap<PublicKey, u32>,
    next_id: u32,
    /// The last timestamp that each removed peer was sent, for the case that it is added again. At
    /// most MAX_PEERS.
    removed: BTreeMap<PublicKey, Tai64N>,
    /// The routes that the next change starts from; clones of them are published.
    routes: AllowedIps<Arc<Peer>>,
    /// Tables that were published before; shards may still use them.
    retired: Vec<Arc<AllowedIps<Arc<Peer>>>>,
    /// Parts of those that nobody uses any more.
    garbage: Garbage<Arc<Peer>>,
    /// When to free more of both.
    free_at: Option<Time>,
    /// How many transactions began, and how many identities there were.
    transactions: u32,
    identities: u32,
    /// While the peers learn that the device came up, the peer to go on with.
    coming_up: Option<u32>,
    /// The earliest deadline of each peer that has one. Those that frames wait for stand in
    /// [`URGENT`], the others in [`ORDINARY`].
    deadlines: [BTreeSet<(Time, u32)>; 2],
    /// The peers that may not do everything.
    limited: BTreeSet<u32>,
    listen_port: u16,
    fwmark: u32,
    remembered: Remembered,
}

/// Why a change was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The device would have more than [`MAX_PEERS`](crate::limits::MAX_PEERS) peers.
    TooManyPeers,
    /// The public key of a peer is the device's private key, or the peer's own preshared key: a secret
    /// that stands in a wrong place, where everybody would see it.
    SecretAsPublicKey,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManyPeers => {
                write!(f, "a device has at most {} peers", crate::limits::MAX_PEERS)
            }
            Self::SecretAsPublicKey => f.write_str(
                "the public key of a peer is a secret: this interface's private key, or that peer's preshared key; \
                 `adit pubkey` prints the public key of a private one",
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Device {
    /// `random` fills a buffer with random bytes: the operating system's in production, seeded in
    /// tests. It keeps none for later: a machine that is cloned would use them twice.
    pub fn new(random: Random) -> Self {
        Self {
            core: Core {
                up: true,
                identity: None,
                indices: Indices::default(),
                index_prefix: None,
                gateway_id: None,
                rx_queue_rates: RxQueueRates::default(),
                shared: Arc::new(Shared::new()),
                random,
                outputs: VecDeque::new(),
                stats: HandshakeStats::default(),
                keys_dropped: false,
                probed_mtu: None,
                epoch: Duration::ZERO,
            },
            peers: BTreeMap::new(),
            by_key: BTreeMap::new(),
            next_id: 0,
            removed: BTreeMap::new(),
            routes: AllowedIps::default(),
            retired: Vec::new(),
            garbage: Garbage::default(),
            free_at: None,
            transactions: 0,
            identities: 0,
            coming_up: None,
            deadlines: Default::default(),
            limited: BTreeSet::new(),
            listen_port: 0,
            fwmark: 0,
            remembered: Remembered::default(),
        }
    }

    /// Sets the time of day: it is `wall` now. Earlier events are told by the clock as it is set now: a
    /// router without a battery learns the time of day after its first handshakes. The other methods
    /// that take the time of day call this.
    pub fn set_clock(&mut self, now: Time, wall: Tai64N) {
        let epoch = wall.to_unix().saturating_sub(Duration::from_nanos(now.0));
        // Both were not read at the same instant, and times that were told should stay.
        if epoch.abs_diff(self.core.epoch) >= CLOCK_STEP {
            self.core.epoch = epoch;
        }
    }

    /// The configuration and counters, as `get` reports them.
    pub fn status(&self) -> DeviceStatus {
        DeviceStatus {
            peers: self.peer_status_from(0).map(|(_, status)| status).collect(),
            ..self.status_without_peers()
        }
    }

    /// The same, with room for all peers but without them.
    pub fn status_without_peers(&self) -> DeviceStatus {
        DeviceStatus {
            peers: Vec::with_capacity(self.peers.len()),
            ..self.settings()
        }
    }

    /// The same, without room for peers.
    pub fn settings(&self) -> DeviceStatus {
        let identity = self.core.identity.as_ref();
        DeviceStatus {
            private_key: identity.map(|identity| identity.secret.clone()),
            public_key: identity.map(|identity| identity.public),
            listen_port: self.listen_port,
            fwmark: self.fwmark,
            peers: Vec::new(),
        }
    }

    /// The status of each peer from the one with this [`Peer::id`] on, with its id, in the order in
    /// which they were added.
    pub fn peer_status_from(&self, id: u32) -> impl Iterator<Item = (u32, PeerStatus)> {
        let peers = self.peers.range(id..);
        let rx_queues = u8::try_from(self.core.shared.rx_queues().count()).unwrap_or(1);
        let epoch = self.core.epoch;
        peers.map(move |(id, state)| (*id, state.status(rx_queues, epoch)))
    }

    /// The status of the peers that have these keys.
    pub fn peer_status_of(&self, keys: &[PublicKey]) -> impl Iterator<Item = PeerStatus> {
        let rx_queues = u8::try_from(self.core.shared.rx_queues().count()).unwrap_or(1);
        let epoch = self.core.epoch;
        let found = keys.iter().filter_map(|key| self.by_key.get(key));
        let found = found.filter_map(|id| self.peers.get(id));
        found.map(move |state| state.status(rx_queues, epoch))
    }

    /// How many peers there are.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// How many allowed IPs the peers that have these keys have together.
    pub fn blocks_of(&self, keys: &[PublicKey]) -> usize {
        let found = keys.iter().filter_map(|key| self.by_key.get(key));
        let found = found.filter_map(|id| self.peers.get(id));
        found.map(|state| state.allowed_ips.len()).sum()
    }

    /// How many peers there are from this one on, `count` at most, and how many allowed IPs they have
    /// together.
    pub fn sizes_from(&self, id: u32, count: usize) -> (usize, usize) {
        let peers = self.peers.range(id..).take(count);
        peers.fold((0, 0), |(peers, blocks), (_, state)| {
            (peers + 1, blocks + state.allowed_ips.len())
        })
    }

    /// All peers, in the order in which they were added.
    pub fn peers(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.peers.values().map(|state| &state.peer)
    }

    /// The peers that have a session or a handshake under way, each with a number by which to go on
    /// from it, from such a number on. A peer has several.
    pub fn peers_in_use_from(&self, number: u32) -> impl Iterator<Item = (u32, &Arc<Peer>)> {
        let peers = self.core.indices.peers_from(number);
        peers.filter_map(|(number, id)| Some((number, &self.peers.get(&id)?.peer)))
    }

    /// From now on this one learns which receiver indices are in use, and the one before learns no
    /// more.
    pub fn tell_indices(&mut self, whom: Option<Arc<dyn InUse>>) {
        self.core.indices.tell(whom);
    }

    /// The peer with this static key.
    pub fn peer(&self, key: &PublicKey) -> Option<&Arc<Peer>> {
        let id = self.by_key.get(key)?;
        self.peers.get(id).map(|state| &state.peer)
    }

    /// The state that shards read.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.core.shared)
    }

    /// How handshakes went so far.
    pub fn handshake_stats(&self) -> HandshakeStats {
        let mut stats = self.core.stats;
        self.core.shared.admission().add_to(&mut stats);
        stats
    }

    /// Says whether the datagram of an [`Output::Handshake`] for this peer left. If it did not, its
    /// timer tries it again, as if the network had lost it.
    pub fn handle_sent(&mut self, datagram: &[u8], peer: Option<&Arc<Peer>>, left: bool) {
        let stats = &mut self.core.stats;
        if !left {
            stats.send_failed += 1;
            if let Some(peer) = peer
                && let Some(state) = self.peers.get_mut(&peer.id())
            {
                if datagram.len() == INITIATION_LEN && state.copy_not_sent() {
                    self.reschedule(peer.id());
                } else {
                    let at = state.last_sent_handshake.unwrap_or_default();
                    state.failed(FailureReason::NotSent, at);
                }
            }
            return;
        }
        if let Some(peer) = peer {
            peer.handshake_sent(datagram.len() as u64);
        }
        let state = peer.and_then(|peer| self.peers.get_mut(&peer.id()));
        match (datagram.len(), state) {
            (INITIATION_LEN, state) => {
                stats.initiations_sent += 1;
                if let Some(state) = state {
                    state.initiations_in_vain += 1;
                }
            }
            (RESPONSE_LEN, state) => {
                stats.responses_sent += 1;
                if let Some(state) = state {
                    state.responses_in_vain += 1;
                }
            }
            _ => stats.cookies_sent += 1,
        }
    }

    /// A shard raised an event for this peer: one of its methods returned true.
    pub fn handle_event(&mut self, now: Time, wall: Tai64N, peer: &Arc<Peer>) {
        self.set_clock(now, wall);
        let events = peer.take_events();
        self.remembered.changed |= events & (event::ROAMED | event::CONFIRMED) != 0;
        if let Some(state) = self.peers.get_mut(&peer.id()) {
            state.events_raised(&mut self.core, now, events);
            self.reschedule(peer.id());
        }
    }

    /// [`Device::next_deadline`] has passed. Harmless at any other time.
    ///
    /// Where many peers are due at once, some may still be afterwards: the caller sends and hears
    /// others in between. Peers that frames wait for and the others alternate, so that neither can
    /// hold the other up.
    pub fn handle_timeout(&mut self, now: Time, wall: Tai64N) {
        self.set_clock(now, wall);
        self.tell_peers_of_coming_up(now);
        if self.free_at.is_some_and(|at| at <= now) {
            self.free(now);
        }
        self.call_remembered(now);
        let orders = [[URGENT, ORDINARY], [ORDINARY, URGENT]].into_iter().cycle();
        for [first, second] in orders.take(MAX_DUE) {
            let Some(id) = self
                .take_due(first, now)
                .or_else(|| self.take_due(second, now))
            else {
                break;
            };
            if let Some(state) = self.peers.get_mut(&id) {
                state.scheduled = None;
                state.time_passed(&mut self.core, now, wall);
                self.reschedule(id);
            }
        }
    }

    /// Nothing can be sent from now on: handshakes and keepalives wait until the interface comes
    /// up.
    pub fn went_down(&mut self) {
        self.core.up = false;
        self.coming_up = None;
    }

    /// Messages that were sent while there was no socket are lost. Where there are many peers, some
    /// learn of it by [`Device::handle_timeout`].
    pub fn came_up(&mut self, now: Time) {
        self.core.up = true;
        self.remembered.came_up(now);
        self.coming_up = Some(0);
        self.tell_peers_of_coming_up(now);
    }

    fn tell_peers_of_coming_up(&mut self, now: Time) {
        let Some(from) = self.coming_up.take() else {
            return;
        };
        let mut ids = self.peers.range(from..).map(|(id, _)| *id);
        let told: Vec<u32> = ids.by_ref().take(TOLD_AT_ONCE).collect();
        self.coming_up = ids.next();
        for id in told {
            if let Some(state) = self.peers.get_mut(&id) {
                state.came_up(&mut self.core, now);
                self.reschedule(id);
            }
        }
    }

    /// Publishes the routes, and frees what that replaced.
    fn publish_routes(&mut self, now: Time) {
        let before = self.core.shared.publish(self.routes.clone());
        self.retired.push(before);
        self.free(now);
    }

    /// Frees a bounded part of the tables that were replaced.
    fn free(&mut self, now: Time) {
        let retired = std::mem::take(&mut self.retired);
        for table in retired {
            // A shard may just look something up in it, and must not be the one that frees it.
            match Arc::try_unwrap(table) {
                Ok(table) => self.garbage.add(table),
                Err(table) => self.retired.push(table),
            }
        }
        let more = self.garbage.free(FREED_AT_ONCE);
        self.free_at = if more {
            Some(now)
        } else {
            (!self.retired.is_empty()).then_some(now + FREE_AGAIN)
        };
    }

    /// The peer that is first in an order, if it is due. It leaves the order.
    fn take_due(&mut self, order: usize, now: Time) -> Option<u32> {
        let &(at, id) = self.deadlines[order].first()?;
        (at <= now && self.deadlines[order].remove(&(at, id))).then_some(id)
    }

    /// When to call [`Device::handle_timeout`] at the latest. That may have passed already:
    /// initiations are sent by it, also the first one to a peer, a bounded number a call.
    pub fn next_deadline(&self) -> Option<Time> {
        let first = self.deadlines.iter().filter_map(BTreeSet::first);
        let first = first.map(|(time, _)| *time);
        let coming_up = self.coming_up.map(|_| Time::default());
        let first = first.chain(coming_up).chain(self.free_at);
        first.chain(self.next_call()).min()
    }

    /// Whether all keys of a peer were dropped since the last call. Then each thread that sealed or
    /// opened with them overwrites its stack ([`adit_aead::zeroizing_stack`]). Keys that were
    /// replaced need no such care: packets with the new keys overwrite the stack.
    pub fn poll_keys_dropped(&mut self) -> bool {
        std::mem::take(&mut self.core.keys_dropped)
    }

    /// The next thing that the device wants done: call until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        loop {
            match self.core.outputs.pop_front()? {
                Queued::Output(output) => return Some(output),
                Queued::Confirm(peer, session) if session.sent() == 0 => {
                    return Some(Output::Keepalive { peer });
                }
                Queued::Confirm(..) => {}
            }
        }
    }

    /// Brings the order of deadlines up to date with the timers of a peer.
    fn reschedule(&mut self, id: u32) {
        let Some(state) = self.peers.get_mut(&id) else {
            return;
        };
        let order = if state.frames_wait { URGENT } else { ORDINARY };
        let next = state.next_deadline().map(|at| (order, at));
        if next == state.scheduled {
            return;
        }
        if let Some((order, at)) = state.scheduled {
            self.deadlines[order].remove(&(at, id));
        }
        if let Some((order, at)) = next {
            self.deadlines[order].insert((at, id));
        }
        state.scheduled = next;
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
