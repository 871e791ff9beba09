//! Which handshake messages are worth the computation that follows them (whitepaper 5.3).
//!
//! While the device is not under load, all with a right mac1 are. Under load a message is looked at
//! in this order, the cheapest look first:
//!
//! 1. a source that may neither be answered with a cookie nor be heard with one is refused;
//! 2. mac1 shows that the sender knows our public key;
//! 3. mac2 shows that it receives at its address: then the source's own limit counts, and the
//!    message is proven;
//! 4. any other is answered with a cookie, at a bounded rate for each source and for all.
//!
//! Shards look themselves ([`Gate::screen`]), so that a flood does not reach the control thread.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zeroize::Zeroizing;

use crate::Time;
use crate::config::PublicKey;
use crate::cookie::{Checker, has_mac2};
use crate::device::{HandshakeKind, HandshakeOutcome, HandshakeStats, Refusal};
use crate::limiter::{Limiter, Source};
use crate::limits::*;
use crate::wire::{COOKIE_REPLY_LEN, Message};

/// Decides which handshake messages of a device are looked at; shards and the control thread share
/// it.
pub struct Gate {
    state: Mutex<State>,
    /// The device is under load until then, in nanoseconds.
    loaded_until: AtomicU64,
    screened: Counters,
}

struct State {
    checker: Checker,
    limiter: Limiter,
    replies: ReplyLimit,
    /// Messages since this time that were not passed, though mac1 was not wrong: many of them keep up
    /// the load.
    excess: u32,
    excess_since: Time,
}

/// What a shard is to do with a handshake message.
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
    /// Send this cookie reply to where the message came from, then say so to [`Gate::replied`].
    Reply([u8; COOKIE_REPLY_LEN], HandshakeOutcome),
    /// Drop it. It is counted.
    Refused(HandshakeOutcome),
    /// The same. For half a second or so the same becomes of all from its source that has no mac2:
    /// what is dropped before it comes here counts by [`Gate::dropped`].
    Exhausted(HandshakeOutcome),
}

pub(crate) enum Verdict {
    Proven,
    Passed,
    Reply([u8; COOKIE_REPLY_LEN]),
    Refused(Refusal),
    /// As above: the source may be given no cookie now.
    Exhausted,
}

#[derive(Default)]
struct Counters {
    initiations: AtomicU64,
    responses: AtomicU64,
    bad_mac1: AtomicU64,
    rate_limited: AtomicU64,
    cookies_sent: AtomicU64,
    send_failed: AtomicU64,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                checker: Checker::new(&PublicKey([0; 32]), &[0; 32]),
                limiter: Limiter::default(),
                replies: ReplyLimit::default(),
                excess: 0,
                excess_since: Time::default(),
            }),
            loaded_until: AtomicU64::new(0),
            screened: Counters::default(),
        }
    }

    /// Cookies and mac1 are of this key from now on, with new secrets.
    pub(crate) fn set_key(&self, ours: &PublicKey, random: impl FnOnce(&mut [u8])) {
        let mut seed = Zeroizing::new([0; 32]);
        random(&mut *seed);
        self.state().checker = Checker::new(ours, &seed);
    }

    /// Handshake messages wait in a long queue: the device is under load for UNDER_LOAD_TIME. That
    /// goes on while LOADED_MESSAGES are not passed in that time.
    pub fn load(&self, now: Time) {
        let until = now + UNDER_LOAD_TIME;
        self.loaded_until.fetch_max(until.0, Ordering::Relaxed);
    }

    /// Whether senders have to prove their address.
    pub fn is_loaded(&self, now: Time) -> bool {
        now.0 < self.loaded_until.load(Ordering::Relaxed)
    }

    /// Looks at a handshake message from the network.
    pub fn screen(&self, now: Time, from: SocketAddr, datagram: &[u8]) -> Screened {
        let Some(message) = Message::parse(datagram) else {
            return Screened::Passed;
        };
        let sender = match message {
            Message::Initiation(message) => message.sender(),
            Message::Response(message) => message.sender(),
            Message::CookieReply(_) => return Screened::Passed,
        };
        let outcome = |refusal| HandshakeOutcome {
            kind: Some(HandshakeKind::of(&message)),
            from,
            peer: None,
            refusal: Some(refusal),
        };
        let refusal = match self.judge(now, from, datagram, sender) {
            Verdict::Proven => return Screened::Proven,
            Verdict::Passed => return Screened::Passed,
            Verdict::Reply(reply) => {
                self.screened.received(&message);
                return Screened::Reply(reply, outcome(Refusal::CookieRequired));
            }
            Verdict::Refused(refusal) => refusal,
            Verdict::Exhausted => {
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

    /// So many initiations were dropped because their sources are [exhausted](Screened::Exhausted).
    pub fn dropped(&self, now: Time, initiations: u64) {
        let screened = &self.screened;
        for counter in [&screened.initiations, &screened.rate_limited] {
            counter.fetch_add(initiations, Ordering::Relaxed);
        }
        let messages = u32::try_from(initiations).unwrap_or(u32::MAX);
        self.count_excess(&mut self.state(), now, messages);
    }

    /// So many of the replies that [`Gate::screen`] made left, and so many did not.
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
        stats.bad_mac1 += of(&screened.bad_mac1);
        stats.rate_limited += of(&screened.rate_limited);
        stats.cookies_sent += of(&screened.cookies_sent);
        stats.send_failed += of(&screened.send_failed);
    }

    /// `sender` is the index in the message, which is an initiation or a response.
    pub(crate) fn judge(
        &self,
        now: Time,
        from: SocketAddr,
        message: &[u8],
        sender: u32,
    ) -> Verdict {
        let state = &mut *self.state();
        if !self.is_loaded(now) {
            state.replies.forget();
            return match state.checker.mac1_is_valid(message) {
                true => Verdict::Passed,
                false => Verdict::Refused(Refusal::BadMac1),
            };
        }
        let source = Source::of(from.ip());
        let may_reply = state.replies.may_allow(now, source);
        let may_prove = has_mac2(message) && state.limiter.may_allow(now, source);
        if !may_reply && !may_prove {
            self.count_excess(state, now, 1);
            return Verdict::Exhausted;
        }
        if !state.checker.mac1_is_valid(message) {
            return Verdict::Refused(Refusal::BadMac1);
        }
        // "If the responder is under load, … it may … respond with a cookie reply message" (5.3) to
        // a sender that has not proven that it receives at its address. After that, messages are
        // limited by that address.
        if has_mac2(message) && state.checker.mac2_is_valid(now, from, message) {
            if state.limiter.allow(now, source) {
                return Verdict::Proven;
            }
            self.count_excess(state, now, 1);
            return Verdict::Refused(Refusal::RateLimited);
        }
        self.count_excess(state, now, 1);
        if !state.replies.allow(now, source) {
            return Verdict::Refused(Refusal::RateLimited);
        }
        let checker = &mut state.checker;
        Verdict::Reply(checker.create_reply(now, from, message, sender))
    }

    /// A shard refuses what would make the control thread's queue long: the load is over when that
    /// is not much any more.
    fn count_excess(&self, state: &mut State, now: Time, messages: u32) {
        if now.since(state.excess_since) >= UNDER_LOAD_TIME {
            (state.excess, state.excess_since) = (0, now);
        }
        state.excess = state.excess.saturating_add(messages);
        if state.excess >= LOADED_MESSAGES {
            (state.excess, state.excess_since) = (0, now);
            self.load(now);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters {
    fn received(&self, message: &Message<'_>) {
        let counter = match message {
            Message::Initiation(_) => &self.initiations,
            _ => &self.responses,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Cells of a [`ReplyLimit`]: with 4,096 sources one in 5,000 others shares all its cells.
const CELLS: usize = 1 << 18;
const HASHES: usize = 4;
/// What one reply costs, in milliseconds of a source's time, and in nanoseconds of that of all.
const REPLY_COST: u64 = 1000 / COOKIE_RATE as u64;
const REPLY_COST_OF_ALL: u64 = 1_000_000_000 / COOKIE_RATE_OF_ALL as u64;
/// Time that all sources together may have saved.
const SAVED: u64 = 100_000_000;

/// How many cookie replies each source gets.
///
/// The source of a message without a cookie may be forged, so there can be more than fit any table.
/// Each source has a few cells in one of a fixed size, chosen by a secret hash, and may be answered
/// while any of them has time left: what others send counts against it only if they share all its
/// cells. Memory is taken under load only (invariant 5).
#[derive(Default)]
struct ReplyLimit {
    /// Milliseconds since `since` that are used up.
    cells: Vec<u32>,
    since: Time,
    hasher: RandomState,
    /// As a cell, in nanoseconds, for all sources.
    all: u64,
}

impl ReplyLimit {
    /// Whether [`Self::allow`] would say yes.
    fn may_allow(&self, now: Time, source: Source) -> bool {
        if self.cells.is_empty() {
            return true;
        }
        let limit = self.limit(now);
        self.places(source)
            .into_iter()
            .any(|place| u64::from(self.cells[place]) <= limit)
    }

    /// Takes one reply's time of the source and of all; false if either has none.
    fn allow(&mut self, now: Time, source: Source) -> bool {
        if self.cells.is_empty() {
            (self.cells, self.since) = (vec![0; CELLS], now);
        }
        let (limit, of_all) = (self.limit(now), now.0.max(self.all));
        if !self.may_allow(now, source) || of_all > now.0 + SAVED {
            return false;
        }
        self.all = of_all + REPLY_COST_OF_ALL;
        let now = limit.saturating_sub(REPLY_COST * u64::from(COOKIE_BURST - 1));
        for place in self.places(source) {
            let used = now.max(self.cells[place].into()) + REPLY_COST;
            self.cells[place] = u32::try_from(used).unwrap_or(u32::MAX);
        }
        true
    }

    /// The load is over.
    fn forget(&mut self) {
        if !self.cells.is_empty() {
            *self = Self::default();
        }
    }

    /// Up to here a cell may be used up: a burst ahead of the time.
    fn limit(&self, now: Time) -> u64 {
        let since = u64::try_from(now.since(self.since).as_millis()).unwrap_or(u64::MAX);
        since + REPLY_COST * u64::from(COOKIE_BURST - 1)
    }

    fn places(&self, source: Source) -> [usize; HASHES] {
        let mut hash = self.hasher.hash_one(source);
        std::array::from_fn(|_| {
            let place = usize::try_from(hash % CELLS as u64).unwrap_or(0);
            // Sixteen bits of its own each.
            hash = hash.rotate_right(16);
            place
        })
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
