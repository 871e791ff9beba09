//! Admission: which handshake messages are worth the computation that follows them (whitepaper 5.3).
//!
//! While the device is not under load, all with a right mac1 are. Under load a message is looked at
//! in this order, the cheapest look first:
//!
//! 1. one that is neither expected, nor could be answered with a cookie, nor heard with one, is
//!    refused;
//! 2. mac1 shows that the sender knows our public key;
//! 3. mac2 shows that it receives at its address: the message is proven, unless the queue for those
//!    is long and its source has sent more than others;
//! 4. a response to an initiation of ours, and an initiation from where a peer with a session is, are
//!    expected ([`Expected`]): a few of them need no mac2;
//! 5. any other is answered with a cookie, at a bounded rate for all.
//!
//! The source of a message without a valid mac2 may be forged. So what such messages have used up never
//! decides alone about another one from their source: it decides only what a message shares with others
//! once the replies to all of them are used up.
//!
//! Shards look themselves ([`Shared::screen`](crate::Shared::screen)), so that a flood does not reach the control thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zeroize::Zeroizing;

use crate::Time;
use crate::cookie::{Checker, has_mac2};
use crate::device::{HandshakeKind, HandshakeOutcome, Refusal};
use crate::expected::Expected;
use crate::limiter::{Limiter, SourceHost};
use crate::limits::*;
use crate::replies::{NoReply, ReplyLimit};
use crate::secret::{PublicKey, Secret};
use crate::stats::HandshakeStats;
use crate::wire::{COOKIE_REPLY_LEN, ParsedMessage};

/// Decides which handshake messages of a device are looked at; shards and the control thread share
/// it.
pub struct Admission {
    state: Mutex<AdmissionState>,
    /// The device is under load until then, in nanoseconds.
    loaded_until: AtomicU64,
    screened: AdmissionCounters,
}

struct AdmissionState {
    checker: Checker,
    /// Limits of what was proven, by address, and by address and port.
    by_host: Limiter<SourceHost>,
    by_port: Limiter<SocketAddr>,
    /// The nanoseconds until which the time of those is used up that have proven more than others.
    beyond: u64,
    expected: Expected,
    replies: ReplyLimit,
}

/// How long the queue is in which proven messages wait for their computation. The longer it is, the
/// more counts that others have sent less. Beyond LIMITER_RATE for each source, PROVEN_RATE_OF_ALL a
/// second pass at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// Nearly none: for messages of hosts that have sent no more than LIMITER_RATE a second.
    Little,
    /// Less than half: those of ports that have, too, since many clients may have one address.
    Some,
    /// For any message: the queue is short.
    Ample,
}

/// The answer to a shard: what to do with a handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screened {
    /// The sender has shown that it receives at its address: for [`Device::handle_proven`].
    ///
    /// [`Device::handle_proven`]: crate::Device::handle_proven
    Proven,
    /// Nothing speaks against it: for [`Device::handle_handshake`].
    ///
    /// [`Device::handle_handshake`]: crate::Device::handle_handshake
    Passed,
    /// Send this cookie reply to where the message came from, then say so to [`Admission::replied`].
    Reply([u8; COOKIE_REPLY_LEN], HandshakeOutcome),
    /// Drop it. It is counted.
    Refused(HandshakeOutcome),
    /// The same, and no cookies are left for the next few milliseconds. Until then the same may become
    /// of all from its source that has no mac2: what is dropped before it comes here counts by
    /// [`Admission::dropped`].
    Exhausted(HandshakeOutcome),
}

pub(crate) enum AdmissionVerdict {
    Proven,
    Passed,
    Reply([u8; COOKIE_REPLY_LEN]),
    Refused(Refusal),
    /// Refused, too: its source has had more cookies than others, and no more can be given now.
    Exhausted,
}

#[derive(Default)]
struct AdmissionCounters {
    initiations: AtomicU64,
    responses: AtomicU64,
    cookies: AtomicU64,
    bad_mac1: AtomicU64,
    rate_limited: AtomicU64,
    unexpected: AtomicU64,
    cookies_sent: AtomicU64,
    send_failed: AtomicU64,
}

impl Admission {
    /// An admission apart from a device, for several that have the same key: each message is screened
    /// here, and what passes is for [`Device::handle_proven`](crate::Device::handle_proven). `seed` is of
    /// random bytes.
    pub fn of(ours: &PublicKey, seed: &Secret) -> Self {
        let admission = Self::new();
        admission.state().checker = Checker::new(ours, seed.bytes());
        admission
    }

    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(AdmissionState {
                checker: Checker::new(&PublicKey([0; 32]), &[0; 32]),
                by_host: Limiter::default(),
                by_port: Limiter::default(),
                beyond: 0,
                expected: Expected::default(),
                replies: ReplyLimit::default(),
            }),
            loaded_until: AtomicU64::new(0),
            screened: AdmissionCounters::default(),
        }
    }

    /// Cookies and mac1 are of this key from now on, with new secrets.
    pub(crate) fn set_key(&self, ours: &PublicKey, random: impl FnOnce(&mut [u8])) {
        let mut seed = Zeroizing::new([0; 32]);
        random(&mut *seed);
        self.state().checker = Checker::new(ours, &seed);
    }

    /// Handshake messages wait in a long queue: the device is under load for UNDER_LOAD_TIME. In a flood
    /// the queue is soon long again after that; otherwise the work is done.
    pub fn load(&self, now: Time) {
        let until = now + UNDER_LOAD_TIME;
        self.loaded_until.fetch_max(until.0, Ordering::Relaxed);
    }

    /// Whether senders have to prove their address.
    pub fn is_loaded(&self, now: Time) -> bool {
        now.0 < self.loaded_until.load(Ordering::Relaxed)
    }

    /// A response with this receiver index is expected, or not any more.
    pub(crate) fn expect_response(&self, index: u32, is_expected: bool) {
        self.state().expected.set_response(index, is_expected);
    }

    /// A peer with a session is there now. `before` is what this returned when it was elsewhere.
    pub(crate) fn expect_peer(&self, before: Option<u64>, now: Option<SocketAddr>) -> Option<u64> {
        self.state().expected.set_peer(before, now)
    }

    /// Whether a handshake of ours has this index.
    pub(crate) fn expects_response(&self, index: u32) -> bool {
        self.state().expected.has_response(index)
    }

    /// A cookie reply answers no message of ours. It takes nobody's key to send one.
    pub(crate) fn refuse_cookie(&self, from: SocketAddr) -> Screened {
        for counter in [&self.screened.cookies, &self.screened.unexpected] {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Screened::Refused(HandshakeOutcome {
            kind: Some(HandshakeKind::CookieReply),
            from,
            peer: None,
            refusal: Some(Refusal::Unexpected),
        })
    }

    /// Looks at an initiation or a response from the network; `room` is left for it if it is proven. Other
    /// datagrams pass.
    pub fn screen(&self, now: Time, from: SocketAddr, datagram: &[u8], room: Room) -> Screened {
        let Some(message) = ParsedMessage::parse(datagram) else {
            return Screened::Passed;
        };
        if let ParsedMessage::CookieReply(_) = message {
            return Screened::Passed;
        }
        let outcome = |refusal| HandshakeOutcome {
            kind: Some(HandshakeKind::of(&message)),
            from,
            peer: None,
            refusal: Some(refusal),
        };
        let refusal = match self.judge(now, from, datagram, room) {
            AdmissionVerdict::Proven => return Screened::Proven,
            AdmissionVerdict::Passed => return Screened::Passed,
            AdmissionVerdict::Reply(reply) => {
                self.screened.received(&message);
                return Screened::Reply(reply, outcome(Refusal::CookieRequired));
            }
            AdmissionVerdict::Refused(refusal) => refusal,
            AdmissionVerdict::Exhausted => {
                self.screened.received(&message);
                self.screened.rate_limited.fetch_add(1, Ordering::Relaxed);
                return Screened::Exhausted(outcome(Refusal::RateLimited));
            }
        };
        self.screened.received(&message);
        let counter = match refusal {
            Refusal::BadMac1 => &self.screened.bad_mac1,
            _ => &self.screened.rate_limited,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Screened::Refused(outcome(refusal))
    }

    /// Whether an initiation or a response shows that its sender receives at its address. Harmless at any time.
    pub fn is_proven(&self, now: Time, from: SocketAddr, message: &[u8]) -> bool {
        let is_one = matches!(
            ParsedMessage::parse(message),
            Some(ParsedMessage::Initiation(_) | ParsedMessage::Response(_))
        );
        is_one && has_mac2(message) && self.state().checker.mac2_is_valid(now, from, message)
    }

    /// Counts initiations that were dropped because their sources are [exhausted](Screened::Exhausted).
    pub fn dropped(&self, initiations: u64) {
        let screened = &self.screened;
        for counter in [&screened.initiations, &screened.rate_limited] {
            counter.fetch_add(initiations, Ordering::Relaxed);
        }
    }

    /// Counts the replies that [`Shared::screen`](crate::Shared::screen) made: those that left, and
    /// those that did not.
    pub fn replied(&self, left: u64, failed: u64) {
        self.screened
            .cookies_sent
            .fetch_add(left, Ordering::Relaxed);
        self.screened
            .send_failed
            .fetch_add(failed, Ordering::Relaxed);
    }

    /// Adds what was counted here.
    pub(crate) fn add_to(&self, stats: &mut HandshakeStats) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let screened = &self.screened;
        stats.initiations_received += of(&screened.initiations);
        stats.responses_received += of(&screened.responses);
        stats.cookies_received += of(&screened.cookies);
        stats.unexpected += of(&screened.unexpected);
        stats.bad_mac1 += of(&screened.bad_mac1);
        stats.rate_limited += of(&screened.rate_limited);
        stats.cookies_sent += of(&screened.cookies_sent);
        stats.send_failed += of(&screened.send_failed);
    }

    /// `message` is an initiation or a response.
    pub(crate) fn judge(
        &self,
        now: Time,
        from: SocketAddr,
        message: &[u8],
        room: Room,
    ) -> AdmissionVerdict {
        let (sender, receiver) = match ParsedMessage::parse(message) {
            Some(ParsedMessage::Initiation(message)) => (message.sender(), None),
            Some(ParsedMessage::Response(message)) => (message.sender(), Some(message.receiver())),
            _ => return AdmissionVerdict::Refused(Refusal::Invalid),
        };
        let state = &mut *self.state();
        if !self.is_loaded(now) {
            state.replies.forget();
            return match state.checker.mac1_is_valid(message) {
                true => AdmissionVerdict::Passed,
                false => AdmissionVerdict::Refused(Refusal::BadMac1),
            };
        }
        let source = SourceHost::of(from.ip());
        let may_reply = state.replies.may_allow(now, source);
        let may_prove = has_mac2(message) && state.place(now, from, room).is_some();
        let is_expected = state.expected.may_pass(now, from, receiver);
        if let Err(no_reply) = may_reply
            && !may_prove
            && !is_expected
        {
            return no_reply.into();
        }
        if !state.checker.mac1_is_valid(message) {
            return AdmissionVerdict::Refused(Refusal::BadMac1);
        }
        // "If the responder is under load, … it may … respond with a cookie reply message" (5.3) to
        // a sender that has not proven that it receives at its address. After that, messages are
        // limited by that address.
        if has_mac2(message) && state.checker.mac2_is_valid(now, from, message) {
            let Some(place) = state.place(now, from, room) else {
                return AdmissionVerdict::Refused(Refusal::RateLimited);
            };
            if place == LimitState::Beyond {
                state.beyond = now.0.max(state.beyond) + COST_BEYOND;
            }
            state.by_host.allow(now, source);
            state.by_port.allow(now, from);
            return AdmissionVerdict::Proven;
        }
        if is_expected && state.expected.pass(now, from, receiver) {
            return AdmissionVerdict::Proven;
        }
        match state.replies.allow(now, source) {
            Ok(()) => {
                AdmissionVerdict::Reply(state.checker.create_reply(now, from, message, sender))
            }
            Err(no_reply) => no_reply.into(),
        }
    }

    fn state(&self) -> MutexGuard<'_, AdmissionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cost of a message beyond the limit of its source, and the time that may be saved, in
/// nanoseconds.
const COST_BEYOND: u64 = 1_000_000_000 / PROVEN_RATE_OF_ALL as u64;
const SAVED: u64 = 100_000_000;

/// A proven message that may pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitState {
    /// Within the limits of its host and its port,
    Within,
    /// or there is time left for such as are not.
    Beyond,
}

impl AdmissionState {
    fn place(&self, now: Time, from: SocketAddr, room: Room) -> Option<LimitState> {
        let port = self.by_port.may_allow(now, from);
        if port && self.by_host.may_allow(now, SourceHost::of(from.ip())) {
            return Some(LimitState::Within);
        }
        let has_room = room == Room::Ample || room == Room::Some && port;
        (has_room && self.beyond <= now.0 + SAVED).then_some(LimitState::Beyond)
    }
}

impl From<NoReply> for AdmissionVerdict {
    fn from(no_reply: NoReply) -> Self {
        match no_reply {
            NoReply::ToSource => Self::Exhausted,
            NoReply::ToAny => Self::Refused(Refusal::RateLimited),
        }
    }
}

impl AdmissionCounters {
    fn received(&self, message: &ParsedMessage<'_>) {
        let counter = match message {
            ParsedMessage::Initiation(_) => &self.initiations,
            _ => &self.responses,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
