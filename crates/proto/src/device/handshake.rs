//! What happens to a handshake message, in this order: parse → mac1 → mac2 and limiter under load → consume → act.

use super::{Core, Device, HandshakeStats, Output};
use crate::limits::*;
use crate::noise::{Reject, consume_initiation, consume_response, create_response};
use crate::wire::{CookieReply, Initiation, Message, Response};
use crate::{Endpoint, Tai64N, Time};

impl Device {
    /// A datagram of type 1, 2 or 3 came in. `wall` is the time of day; `under_load` says that the engine's queue of
    /// handshakes is long. Datagrams of any other kind are counted and dropped.
    pub fn handle_handshake(
        &mut self,
        now: Time,
        wall: Tai64N,
        from: Endpoint,
        datagram: &[u8],
        under_load: bool,
    ) {
        if under_load {
            self.under_load_until = now + UNDER_LOAD_TIME;
        }
        let stats = &mut self.core.stats;
        let (Some(message), true) = (Message::parse(datagram), self.core.identity.is_some()) else {
            stats.invalid += 1;
            return;
        };
        match message {
            Message::Initiation(initiation) => {
                stats.initiations_received += 1;
                if self.admit(now, from, datagram, initiation.sender()) {
                    self.handle_initiation(now, from, initiation);
                }
            }
            Message::Response(response) => {
                stats.responses_received += 1;
                if self.admit(now, from, datagram, response.sender()) {
                    self.handle_response(now, wall, from, response);
                }
            }
            Message::CookieReply(reply) => {
                stats.cookies_received += 1;
                self.handle_cookie_reply(now, reply);
            }
        }
    }

    /// Whether a message is worth the computation that follows (5.3).
    fn admit(&mut self, now: Time, from: Endpoint, datagram: &[u8], sender: u32) -> bool {
        let Core { random, stats, .. } = &mut self.core;
        if !self.checker.mac1_is_valid(datagram) {
            stats.bad_mac1 += 1;
            return false;
        }
        if now >= self.under_load_until {
            return true;
        }
        // "If the responder is under load, … it may … respond with a cookie reply message" (5.3) to whoever has not
        // shown that it receives at its address, and then limits by that address.
        let addr = from.addr;
        if !self
            .checker
            .mac2_is_valid(now, addr, datagram, &mut *random)
        {
            let reply = self
                .checker
                .create_reply(now, addr, datagram, sender, &mut *random);
            stats.cookies_sent += 1;
            self.core.push(Output::Handshake {
                to: from,
                datagram: reply.into_iter().collect(),
                tunnel: None,
            });
            return false;
        }
        if !self.limiter.allow(now, addr.ip()) {
            stats.rate_limited += 1;
            return false;
        }
        true
    }

    fn handle_initiation(&mut self, now: Time, from: Endpoint, message: Initiation<'_>) {
        let Self {
            core,
            peers,
            by_key,
            ..
        } = self;
        let Some(identity) = &core.identity else {
            return;
        };
        let consumed = consume_initiation(identity, message, |public| {
            peers.get(by_key.get(public)?).map(|peer| &peer.remote)
        });
        let (public, consumed) = match consumed {
            Ok(consumed) => consumed,
            Err(reject) => return core.stats.count(reject),
        };
        let Some(peer) = by_key.get(&public).and_then(|id| peers.get_mut(id)) else {
            return;
        };
        // "…discards packets containing timestamps less than or equal to it" (5.1).
        if consumed.timestamp <= peer.greatest_timestamp {
            core.stats.replayed_timestamp += 1;
            return;
        }
        let too_soon = |last| now.since(last) < INITIATION_INTERVAL;
        if peer.last_consumed_initiation.is_some_and(too_soon) {
            core.stats.flooded += 1;
            return;
        }
        peer.greatest_timestamp = consumed.timestamp;
        peer.last_consumed_initiation = Some(now);

        let id = peer.tunnel.id();
        let index = core.new_index(id);
        let ephemeral = core.new_ephemeral();
        let Some((session, mut response)) =
            create_response(consumed, &peer.remote, index, &ephemeral, now)
        else {
            core.indices.remove(&index);
            return core.stats.count(Reject::NotAuthentic);
        };
        core.stats.initiations_accepted += 1;
        core.stats.responses_sent += 1;
        peer.tunnel.roam(from);
        peer.tunnel.note_received(now, INITIATION_BYTES);
        peer.session_responded(core, now, session);
        peer.last_sent_handshake = Some(now);
        peer.stamper.stamp(now, &mut response);
        peer.send_handshake(core, now, from, &response);
        self.reschedule(id);
    }

    fn handle_response(&mut self, now: Time, wall: Tai64N, from: Endpoint, message: Response<'_>) {
        let Self { core, peers, .. } = self;
        let index = message.receiver();
        let peer = core.indices.get(&index).and_then(|id| peers.get_mut(id));
        // A response is consumed at most once: the index then names a session, no initiation.
        let waiting = peer.and_then(|peer| {
            let initiation = peer.initiation.take_if(|created| created.index == index)?;
            Some((peer, initiation))
        });
        let Some((peer, initiation)) = waiting else {
            core.stats.unexpected += 1;
            return;
        };
        let session = core.identity.as_ref().and_then(|identity| {
            consume_response(identity, &peer.remote, &initiation, message, now)
        });
        let Some(session) = session else {
            peer.initiation = Some(initiation);
            return core.stats.count(Reject::NotAuthentic);
        };
        core.stats.responses_accepted += 1;
        peer.tunnel.roam(from);
        peer.tunnel.note_received(now, RESPONSE_BYTES);
        peer.session_initiated(core, now, wall, session);
        let id = peer.tunnel.id();
        self.reschedule(id);
    }

    /// A cookie reply moves no endpoint and no timer: anyone who saw our message can make one (invariant 3).
    fn handle_cookie_reply(&mut self, now: Time, reply: CookieReply<'_>) {
        let Self { core, peers, .. } = self;
        let id = core.indices.get(&reply.receiver());
        let Some(peer) = id.and_then(|id| peers.get_mut(id)) else {
            core.stats.unexpected += 1;
            return;
        };
        if peer.stamper.consume_reply(now, reply) {
            core.stats.cookies_accepted += 1;
        } else {
            core.stats.count(Reject::NotAuthentic);
        }
    }
}

const INITIATION_BYTES: u64 = crate::wire::INITIATION_LEN as u64;
const RESPONSE_BYTES: u64 = crate::wire::RESPONSE_LEN as u64;

impl HandshakeStats {
    fn count(&mut self, reject: Reject) {
        match reject {
            Reject::NotAuthentic => self.not_authentic += 1,
            Reject::UnknownPeer => self.unknown_peer += 1,
        }
    }
}
