//! A device as bytes: what another process needs to go on in its place.
//!
//! A device is a sequence of records: [`DEVICE`] first, then one [`PEER`] for each peer in the order
//! in which they were added, one [`REMOVED`] for each timestamp of a removed peer, and [`END`]. All
//! numbers are little-endian. What is counted by name goes by name, so that versions may have
//! different counters. Any other change of a record raises [`HAND_OVER_FORMAT`].
//!
//! Records have keys: they are zeroized when dropped, and must not be stored.
//!
//! A few things stay behind, because handshakes do without: the secret behind our cookies and the
//! cookies of peers, the products of static keys, and who is still to be called after a restart. A
//! search for the MTU of a path begins anew. The limit that it has found goes along, but not whether
//! longer packets are lost: until the next search they leave.

mod records;

use std::sync::Arc;

use zeroize::Zeroizing;

use super::peer_state::PeerState;
use super::timer_table::Timer;
use super::{Device, FailureReason, Liveness};
use crate::allowance::{Access, Allowance, Allowed};
use crate::config::Cidr;
use crate::device::common::Random;
use crate::limits::MAX_PEERS;
use crate::noise::{CreatedInitiation, Identity, Remote};
use crate::replay::WORDS;
use crate::secret::{PublicKey, Secret};
use crate::{DropReason, Endpoint, Source, Tai64N, Time};
pub use records::NotImported;
use records::{RecordReader, RecordWriter, Result, count};

/// The version of the records. A process takes those of its own version only.
pub const HAND_OVER_FORMAT: u32 = 7;

const DEVICE: u8 = 1;
const PEER: u8 = 2;
const REMOVED: u8 = 3;
const END: u8 = 4;

/// The longest record of a peer without sessions and allowed IPs: a handshake under way that goes to
/// many addresses.
const PEER_BYTES: usize = 1896;
/// A session.
const SESSION_BYTES: usize = 112 + 8 * WORDS;
/// An allowed IP.
const BLOCK_BYTES: usize = 18;

impl Device {
    /// Puts out the records of this device. No thread may seal or open with its sessions while this
    /// runs, and none of them afterwards if another device goes on with the records: a counter is
    /// used once (invariant 1). All outputs were taken before, and all events handled.
    ///
    /// # Errors
    ///
    /// Those of `put`.
    pub fn export<E>(
        &mut self,
        now: Time,
        mut put: impl FnMut(Zeroizing<Vec<u8>>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        while self.coming_up.is_some() {
            self.tell_peers_of_coming_up(now);
        }
        put(self.own_record())?;
        for state in self.peers.values() {
            put(peer_record(state))?;
        }
        for (key, timestamp) in &self.removed {
            let mut record = RecordWriter::new(REMOVED, 64);
            record.bytes(&key.0);
            record.bytes(&timestamp.0);
            put(record.0)?;
        }
        let mut end = RecordWriter::new(END, 16);
        end.u32(count(self.peers.len()));
        end.u32(count(self.removed.len()));
        put(end.0)
    }

    fn own_record(&self) -> Zeroizing<Vec<u8>> {
        let mut record = RecordWriter::new(DEVICE, 4096);
        let identity = self.core.identity.as_ref();
        record.option(identity, |record, own| record.bytes(own.secret.bytes()));
        record.u16(self.listen_port);
        record.u32(self.fwmark);
        record.bool(self.core.up);
        record.duration(self.core.epoch);
        let stats = self.handshake_stats();
        record.u32(count(stats.counters().count()));
        for (name, value, _) in stats.counters() {
            record.text(name);
            record.u64(value);
        }
        // Peers' drops go by the place of the reason among these.
        record.u32(count(DropReason::ALL.len()));
        for reason in DropReason::ALL {
            record.text(reason.name());
        }
        record.0
    }

    /// The sessions of this device went to another process that may have sealed with them. None
    /// seals here any more; handshakes follow.
    pub fn gave_up_sessions(&mut self, now: Time) {
        self.was_cloned(now);
    }
}

fn peer_record(state: &PeerState) -> Zeroizing<Vec<u8>> {
    let sessions = &state.sessions;
    let more = SESSION_BYTES * sessions.all().count();
    let more = more + BLOCK_BYTES * state.allowed_ips.len();
    let mut record = RecordWriter::new(PEER, PEER_BYTES + more);
    record.bytes(&state.public_key().0);
    record.bytes(state.remote.preshared_key.bytes());
    record.option(state.configured_endpoint, RecordWriter::address);
    record.option(state.peer.endpoint(), |record, endpoint| {
        record.address(endpoint.addr);
        record.option(endpoint.src, |record, source| {
            record.ip(source.ip);
            record.u32(source.ifindex);
        });
    });
    record.u16(state.persistent_keepalive);
    record.option(state.allowance.as_ref(), |record, it| {
        let Allowance {
            to_peer,
            from_peer,
            quota,
            expires,
        } = it.allowance;
        for number in [to_peer, from_peer, quota] {
            record.option(number, RecordWriter::u64);
        }
        record.option(expires, RecordWriter::duration);
        record.u64(it.counted_from);
        record.u64(it.used_before);
        record.u8(place(&Access::ALL, it.access));
    });
    record.u32(count(state.allowed_ips.len()));
    for block in &state.allowed_ips {
        record.ip(block.addr());
        record.u8(block.prefix_len());
    }
    record.option(state.initiation.as_ref(), |record, initiation| {
        let (chaining_key, hash, ephemeral) = initiation.parts();
        record.u32(initiation.index);
        record.bytes(chaining_key.bytes());
        record.bytes(hash);
        record.bytes(ephemeral.bytes());
    });
    record.u32(count(sessions.older.len()));
    for session in &sessions.older {
        record.session(session);
    }
    for session in [&sessions.current, &sessions.next] {
        record.option(session.as_ref(), |record, session| record.session(session));
    }
    record.bytes(&state.greatest_timestamp.0);
    record.option(state.last_consumed_initiation, RecordWriter::time);
    record.option(state.last_handshake, RecordWriter::time);
    record.u8(place(Liveness::ALL, state.liveness));
    record.option(state.last_failure, |record, (reason, at)| {
        record.u8(place(FailureReason::ALL, reason));
        record.time(at);
    });
    record.option(state.latency, RecordWriter::duration);
    record.bytes(&state.sent_timestamp.0);
    record.option(state.last_attempt, RecordWriter::time);
    record.option(state.last_sent_handshake, RecordWriter::time);
    record.u32(state.initiations_in_vain);
    record.u32(state.responses_in_vain);
    record.bool(state.answers_there);
    record.time(state.attempts_since);
    record.duration(state.jitter);
    for timer in Timer::ALL {
        record.option(state.timers.deadline(timer), RecordWriter::time);
    }
    record.bool(state.frames_wait);
    record.noted(&state.peer.noted());
    let drops = state.peer.drops();
    record.u32(count(drops.len()));
    for (reason, packets) in drops {
        record.u8(place(DropReason::ALL, reason));
        record.u64(packets);
    }
    record.option(state.peer.path_limit(), RecordWriter::u16);
    record.bool(state.search.is_some() || state.peer.wants_sample());
    record.option(state.searched, |record, ((from, to), at)| {
        record.ip(from);
        record.ip(to);
        record.time(at);
    });
    record.option(state.candidates.as_ref(), |record, candidates| {
        record.addresses(&candidates.addrs);
        record.u32(count(candidates.races));
        record.option(candidates.message.first(), |record, _| {
            record.bytes(&candidates.message);
        });
        record.addresses(&candidates.waiting);
        record.addresses(&candidates.sent);
        record.option(candidates.due, RecordWriter::time);
    });
    record.0
}

fn place<T: Copy + PartialEq>(all: &[T], one: T) -> u8 {
    let place = all.iter().position(|other| *other == one);
    place
        .and_then(|place| u8::try_from(place).ok())
        .unwrap_or(u8::MAX)
}

/// Makes a device of the records of another one, in the order in which they came.
pub struct Import {
    device: Device,
    /// The reasons for drops, as the other process numbers them; `None` for one not known here.
    reasons: Vec<Option<DropReason>>,
    has_device: bool,
    has_ended: bool,
}

impl Import {
    /// Nothing came yet. `random` is as of [`Device::new`].
    pub fn new(random: Random) -> Self {
        Self {
            device: Device::new(random),
            reasons: Vec::new(),
            has_device: false,
            has_ended: false,
        }
    }

    /// Takes the next record.
    ///
    /// # Errors
    ///
    /// It is no record, not the next one, or contradicts those before.
    pub fn take(&mut self, record: &[u8]) -> Result<()> {
        let mut record = RecordReader(record);
        let kind = record.u8()?;
        if self.has_ended || (kind == DEVICE) == self.has_device {
            return Err(NotImported("the records are in a wrong order"));
        }
        match kind {
            DEVICE => self.take_own(&mut record)?,
            PEER => self.take_peer(&mut record)?,
            REMOVED => {
                let key = PublicKey(*record.array()?);
                let timestamp = Tai64N(*record.array()?);
                if self.device.removed.len() >= MAX_PEERS {
                    return Err(NotImported("too many removed peers"));
                }
                self.device.removed.insert(key, timestamp);
            }
            END => {
                let (peers, removed) = (record.u32()?, record.u32()?);
                let device = &self.device;
                let here = (count(device.peers.len()), count(device.removed.len()));
                if (peers, removed) != here {
                    return Err(NotImported("peers are missing"));
                }
                self.has_ended = true;
            }
            _ => return Err(NotImported("a record of an unknown kind")),
        }
        match record.0 {
            [] => Ok(()),
            _ => Err(NotImported("a record is too long")),
        }
    }

    /// The device, when the last record has come.
    ///
    /// # Errors
    ///
    /// Records are missing.
    pub fn finish(self, now: Time) -> Result<Device> {
        let mut device = self.device;
        if !self.has_ended {
            return Err(NotImported("records are missing"));
        }
        device.publish_routes(now);
        let ids: Vec<u32> = device.peers.keys().copied().collect();
        for id in ids {
            device.reschedule(id);
        }
        Ok(device)
    }

    fn take_own(&mut self, record: &mut RecordReader<'_>) -> Result<()> {
        self.has_device = true;
        let device = &mut self.device;
        if let Some(key) = record.option(|record| Ok(Secret::new(record.array()?)))? {
            device.identities += 1;
            let own = Identity::new(key, device.identities);
            let super::Core { shared, random, .. } = &mut device.core;
            shared.admission().set_key(&own.public, random);
            device.core.identity = Some(own);
        }
        device.listen_port = record.u16()?;
        device.fwmark = record.u32()?;
        device.core.up = record.bool()?;
        device.core.epoch = record.duration()?;
        for _ in 0..record.u32()? {
            let (name, value) = (record.text()?, record.u64()?);
            device.core.stats.set(name, value);
        }
        for _ in 0..record.u32()? {
            let name = record.text()?;
            let known = DropReason::ALL.iter().find(|reason| reason.name() == name);
            self.reasons.push(known.copied());
        }
        Ok(())
    }

    fn take_peer(&mut self, record: &mut RecordReader<'_>) -> Result<()> {
        let device = &mut self.device;
        let key = PublicKey(*record.array()?);
        let own = device.core.identity.as_ref().map(|own| own.public);
        if device.by_key.contains_key(&key) || own == Some(key) || device.peers.len() >= MAX_PEERS {
            return Err(NotImported("a peer that cannot be"));
        }
        let id = device.next_id;
        let mut state = PeerState::new(id, Remote::new(key));
        state.remote.preshared_key = Secret::new(record.array()?);
        state.configured_endpoint = record.option(RecordReader::address)?;
        let endpoint = record.option(|record| {
            let addr = record.address()?;
            let src = record.option(|record| {
                let (ip, ifindex) = (record.ip()?, record.u32()?);
                Ok(Source { ip, ifindex })
            })?;
            Ok(Endpoint { addr, src })
        })?;
        state.peer.set_endpoint(endpoint);
        state.persistent_keepalive = record.u16()?;
        state.allowance = record.option(|record| {
            let allowance = Allowance {
                to_peer: record.option(RecordReader::u64)?,
                from_peer: record.option(RecordReader::u64)?,
                quota: record.option(RecordReader::u64)?,
                expires: record.option(RecordReader::duration)?,
            };
            let (counted_from, used_before) = (record.u64()?, record.u64()?);
            let access = record.one_of(&Access::ALL)?;
            let is_barred = access != Access::Open;
            state.peer.set_allowance(&allowance, is_barred);
            Ok(Box::new(Allowed {
                allowance,
                counted_from,
                used_before,
                access,
            }))
        })?;
        for _ in 0..record.u32()? {
            let block = Cidr::new(record.ip()?, record.u8()?);
            let block = block.ok_or(NotImported("a prefix is too long"))?;
            let other = device.routes.insert(block, Arc::clone(&state.peer));
            if !state.allowed_ips.insert(block) || other.is_some() {
                return Err(NotImported("an allowed IP of two peers"));
            }
        }
        state.initiation = record.option(|record| {
            let index = record.u32()?;
            let chaining_key = Secret::new(record.array()?);
            let hash = *record.array()?;
            let ephemeral = Secret::new(record.array()?);
            let parts = (chaining_key, hash, ephemeral);
            Ok(CreatedInitiation::from_parts(index, parts))
        })?;
        let mut indices = Vec::from_iter(state.initiation.as_ref().map(|it| it.index));
        for _ in 0..record.u32()? {
            let added = state.sessions.older.try_push(Arc::new(record.session()?));
            added.map_err(|_| NotImported("too many sessions of a peer"))?;
        }
        state.sessions.current = record.option(RecordReader::session)?.map(Arc::new);
        state.sessions.next = record.option(RecordReader::session)?.map(Arc::new);
        state.peer.set_current(state.sessions.current.clone());
        for session in state.sessions.all() {
            device.core.shared.insert(&state.peer, session);
            indices.push(session.local_index());
        }
        let admission = device.core.shared.admission();
        if let Some(initiation) = &state.initiation {
            admission.expect_response(initiation.index, true);
        }
        state.expect_initiations(&device.core);
        for index in indices {
            if !device.core.indices.insert(index, id) {
                return Err(NotImported("an index of two sessions"));
            }
        }
        read_history(&mut state, record)?;
        for _ in 0..record.u32()? {
            let (place, packets) = (usize::from(record.u8()?), record.u64()?);
            let reason = self.reasons.get(place);
            let reason = reason.ok_or(NotImported("a drop without reason"))?;
            if let Some(reason) = reason {
                state.peer.add_drops(*reason, packets);
            }
        }
        let limit = record.option(RecordReader::u16)?;
        state.peer.set_path_limit(limit, false);
        if record.bool()? {
            state.peer.want_sample();
        }
        state.searched =
            record.option(|record| Ok(((record.ip()?, record.ip()?), record.time()?)))?;
        state.candidates = record.option(RecordReader::candidates)?.map(Box::new);
        if state.allowance.is_some() {
            device.limited.insert(id);
        }
        device.next_id += 1;
        device.peers.insert(id, Box::new(state));
        device.by_key.insert(key, id);
        device.core.shared.set_peer_count(device.peers.len());
        Ok(())
    }
}

/// Reads what happened with a peer so far, and its timers.
fn read_history(state: &mut PeerState, record: &mut RecordReader<'_>) -> Result<()> {
    state.greatest_timestamp = Tai64N(*record.array()?);
    state.last_consumed_initiation = record.option(RecordReader::time)?;
    state.last_handshake = record.option(RecordReader::time)?;
    state.liveness = record.one_of(Liveness::ALL)?;
    state.last_failure =
        record.option(|record| Ok((record.one_of(FailureReason::ALL)?, record.time()?)))?;
    state.latency = record.option(RecordReader::duration)?;
    state.sent_timestamp = Tai64N(*record.array()?);
    state.last_attempt = record.option(RecordReader::time)?;
    state.last_sent_handshake = record.option(RecordReader::time)?;
    state.initiations_in_vain = record.u32()?;
    state.responses_in_vain = record.u32()?;
    state.answers_there = record.bool()?;
    state.attempts_since = record.time()?;
    state.jitter = record.duration()?;
    for timer in Timer::ALL {
        if let Some(at) = record.option(RecordReader::time)? {
            state.timers.arm(timer, at);
        }
    }
    state.frames_wait = record.bool()?;
    state.peer.set_noted(&record.noted()?);
    Ok(())
}
