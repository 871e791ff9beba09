//! The way of a handshake message, in this order: parse → mac1, and mac2 and limits under load
//! (`admission`) → consume → act.

use super::{Device, FailureReason, HandshakeKind, HandshakeOutcome, Refusal};
use crate::admission::{AdmissionVerdict, Room};
use crate::device::output::Output;
use crate::limits::*;
use crate::noise::{Reject, consume_initiation, consume_response, create_response};
use crate::secret::PublicKey;
use crate::stats::HandshakeStats;
use crate::wire::{CookieReply, Initiation, ParsedMessage, Response};
use crate::{Endpoint, Tai64N, Time};

/// Why a message is refused, and the static key that it shows or that its handshake is with.
type RefusedMessage = (Refusal, Option<PublicKey>);

impl Device {
    /// A datagram of type 1, 2 or 3 came in. `wall` is the time of day; `under_load` says that the
    /// engine's queue of handshakes is long. Datagrams of any other kind are counted and dropped.
    pub fn handle_handshake(
        &mut self,
        now: Time,
        wall: Tai64N,
        from: Endpoint,
        datagram: &[u8],
        under_load: bool,
    ) -> HandshakeOutcome {
        if under_load {
            self.core.shared.admission().load(now);
        }
        let room = match under_load {
            true => Room::Little,
            false => Room::Ample,
        };
        self.handle(now, wall, from, datagram, Some(room))
    }

    /// The same for a message that [`Shared::screen`](crate::Shared::screen) called proven.
    pub fn handle_proven(
        &mut self,
        now: Time,
        wall: Tai64N,
        from: Endpoint,
        datagram: &[u8],
    ) -> HandshakeOutcome {
        self.handle(now, wall, from, datagram, None)
    }

    /// Without `room`, the message is proven.
    fn handle(
        &mut self,
        now: Time,
        wall: Tai64N,
        from: Endpoint,
        datagram: &[u8],
        room: Option<Room>,
    ) -> HandshakeOutcome {
        self.set_clock(now, wall);
        let message = ParsedMessage::parse(datagram);
        let kind = message.as_ref().map(HandshakeKind::of);
        let handled = match message {
            None => Err((Refusal::Invalid, None)),
            Some(_) if self.core.identity.is_none() => Err((Refusal::NoPrivateKey, None)),
            Some(message) => self.handle_message(now, from, datagram, message, room),
        };
        let (refusal, peer) = match handled {
            Ok(peer) => (None, Some(peer)),
            Err((refusal, peer)) => (Some(refusal), peer),
        };
        if let Some(refusal) = refusal {
            self.core.stats.count(refusal);
            let id = peer.and_then(|peer| self.by_key.get(&peer));
            let state = id.and_then(|id| self.peers.get_mut(id));
            if let (Some(state), Some(reason)) = (state, FailureReason::of(refusal)) {
                state.failed(reason, now);
            }
        }
        HandshakeOutcome {
            kind,
            from: from.addr,
            peer,
            refusal,
        }
    }

    /// The peer that the message was of, if it was accepted.
    fn handle_message(
        &mut self,
        now: Time,
        from: Endpoint,
        datagram: &[u8],
        message: ParsedMessage<'_>,
        room: Option<Room>,
    ) -> Result<PublicKey, RefusedMessage> {
        let stats = &mut self.core.stats;
        match message {
            ParsedMessage::Initiation(initiation) => {
                stats.initiations_received += 1;
                self.admit(now, from, datagram, room)?;
                self.handle_initiation(now, from, initiation)
            }
            ParsedMessage::Response(response) => {
                stats.responses_received += 1;
                self.admit(now, from, datagram, room)?;
                self.handle_response(now, from, response)
            }
            ParsedMessage::CookieReply(reply) => {
                stats.cookies_received += 1;
                self.handle_cookie_reply(now, reply)
            }
        }
    }

    /// Whether a message is worth the computation that follows (5.3).
    fn admit(
        &mut self,
        now: Time,
        from: Endpoint,
        datagram: &[u8],
        room: Option<Room>,
    ) -> Result<(), RefusedMessage> {
        let Some(room) = room else {
            return Ok(());
        };
        let admission = self.core.shared.admission();
        match admission.judge(now, from.addr, datagram, room) {
            AdmissionVerdict::Proven | AdmissionVerdict::Passed => Ok(()),
            AdmissionVerdict::Refused(refusal) => Err((refusal, None)),
            AdmissionVerdict::Exhausted => Err((Refusal::RateLimited, None)),
            AdmissionVerdict::Reply(reply) => {
                self.core.push(Output::Handshake {
                    to: from,
                    datagram: reply.into_iter().collect(),
                    peer: None,
                    in_vain: 0,
                });
                Err((Refusal::CookieRequired, None))
            }
        }
    }

    fn handle_initiation(
        &mut self,
        now: Time,
        from: Endpoint,
        message: Initiation<'_>,
    ) -> Result<PublicKey, RefusedMessage> {
        let Self {
            core,
            peers,
            by_key,
            ..
        } = self;
        let Some(identity) = &core.identity else {
            return Err((Refusal::NoPrivateKey, None));
        };
        let consumed = consume_initiation(identity, message, |public| {
            peers.get(by_key.get(public)?).map(|state| &state.remote)
        });
        let (public, consumed) = consumed.map_err(|reject| match reject {
            Reject::NotAuthentic => (Refusal::NotAuthentic, None),
            Reject::UnknownPeer(public) => (Refusal::UnknownPeer, Some(public)),
        })?;
        let refused = |refusal| Err((refusal, Some(public)));
        let Some(state) = by_key.get(&public).and_then(|id| peers.get_mut(id)) else {
            return refused(Refusal::UnknownPeer);
        };
        if state.is_barred() {
            return refused(Refusal::NoAccess);
        }
        // "…discards packets containing timestamps less than or equal to it" (5.1).
        if consumed.timestamp <= state.greatest_timestamp {
            return refused(Refusal::ReplayedTimestamp);
        }
        let too_soon = |last| now.since(last) < INITIATION_INTERVAL;
        if state.last_consumed_initiation.is_some_and(too_soon) {
            return refused(Refusal::Flooded);
        }
        state.greatest_timestamp = consumed.timestamp;
        state.last_consumed_initiation = Some(now);

        let id = state.peer.id();
        let index = state.new_index(core, now);
        let ephemeral = core.new_ephemeral();
        let Some((session, mut response)) =
            create_response(consumed, &state.remote, index, &ephemeral, now)
        else {
            core.indices.remove(index);
            return refused(Refusal::NotAuthentic);
        };
        core.stats.initiations_accepted += 1;
        state.peer.roam(from);
        state.tell_roamed(core);
        // The address that the peer writes to may be none to answer from, as where another uplink
        // drops it. Then no response is confirmed, and every second one leaves from where routing
        // says.
        let is_avoided = state.peer.avoided() == Some(from);
        state.answers_there = is_avoided == (state.responses_in_vain % 2 == 1);
        let mut to = from;
        if !state.answers_there {
            to = from.addr.into();
            state.peer.clear_source();
        }
        if state.peer.take_new_path() {
            state.path_is_new(core, now);
        }
        self.remembered.changed = true;
        state.peer.note_received(now, INITIATION_BYTES);
        state.session_responded(core, now, session);
        state.last_sent_handshake = Some(now);
        state.stamper.stamp(now, &mut response);
        if state.responses_in_vain > 0 {
            state.failed(FailureReason::NotConfirmed, now);
        }
        state.send_handshake(core, now, to, &response, state.responses_in_vain);
        self.reschedule(id);
        Ok(public)
    }

    fn handle_response(
        &mut self,
        now: Time,
        from: Endpoint,
        message: Response<'_>,
    ) -> Result<PublicKey, RefusedMessage> {
        let Self { core, peers, .. } = self;
        let index = message.receiver();
        let Some(state) = core.indices.peer(index).and_then(|id| peers.get_mut(&id)) else {
            return Err((Refusal::Unexpected, None));
        };
        let public = state.public_key();
        // A response is consumed at most once: the index then names a session, no initiation.
        let Some(initiation) = state.initiation.take_if(|created| created.index == index) else {
            return Err((Refusal::Unexpected, Some(public)));
        };
        let session = core.identity.as_ref().and_then(|identity| {
            consume_response(identity, &state.remote, &initiation, message, now)
        });
        let Some(session) = session else {
            state.initiation = Some(initiation);
            return Err((Refusal::NotAuthentic, Some(public)));
        };
        core.stats.responses_accepted += 1;
        self.remembered.changed = true;
        state.peer.roam(from);
        state.tell_roamed(core);
        if state.peer.take_new_path() {
            state.path_is_new(core, now);
        }
        state.latency = state.last_sent_handshake.map(|sent| now.since(sent));
        state.peer.note_received(now, RESPONSE_BYTES);
        state.session_initiated(core, now, session);
        let id = state.peer.id();
        self.reschedule(id);
        Ok(public)
    }

    /// A cookie reply moves no endpoint and no timer: anyone who saw our message can make one
    /// (invariant 3).
    fn handle_cookie_reply(
        &mut self,
        now: Time,
        reply: CookieReply<'_>,
    ) -> Result<PublicKey, RefusedMessage> {
        let Self { core, peers, .. } = self;
        let id = core.indices.peer(reply.receiver());
        let Some(state) = id.and_then(|id| peers.get_mut(&id)) else {
            return Err((Refusal::Unexpected, None));
        };
        let public = state.public_key();
        if !state.stamper.consume_reply(now, reply) {
            return Err((Refusal::NotAuthentic, Some(public)));
        }
        core.stats.cookies_accepted += 1;
        Ok(public)
    }
}

const INITIATION_BYTES: u64 = crate::wire::INITIATION_LEN as u64;
const RESPONSE_BYTES: u64 = crate::wire::RESPONSE_LEN as u64;

impl HandshakeStats {
    fn count(&mut self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::Invalid | Refusal::NoPrivateKey => &mut self.invalid,
            Refusal::BadMac1 => &mut self.bad_mac1,
            // It is counted as a cookie reply when that has left.
            Refusal::CookieRequired => return,
            Refusal::RateLimited => &mut self.rate_limited,
            Refusal::UnknownPeer => &mut self.unknown_peer,
            Refusal::ReplayedTimestamp => &mut self.replayed_timestamp,
            Refusal::NoAccess => &mut self.no_access,
            Refusal::Flooded => &mut self.flooded,
            Refusal::NotAuthentic => &mut self.not_authentic,
            Refusal::Unexpected => &mut self.unexpected,
        };
        *counter += 1;
    }
}
