use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_aead::Key;

use crate::Time;
use crate::limits::*;
use crate::replay::ReplayWindow;

/// A session with its two indices, send counter and replay window: what a handshake leaves behind
/// (whitepaper 5.4.5).
///
/// Its keys are zeroized when the last reference goes.
pub struct Session {
    ends: SessionEnds,
    send_key: Key,
    receive_key: Key,
    /// The next counter to hand out.
    counter: AtomicU64,
    /// The peer has proven that it derived the same keys; an initiator knows from the start.
    confirmed: AtomicBool,
    /// The handshake for the last minute of the session was asked for.
    last_minute: AtomicBool,
    /// When an authentic datagram last came in on it, in nanoseconds; 0 if none did.
    heard: AtomicU64,
    window: Mutex<ReplayWindow>,
}

/// The session may not send any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired;

impl std::fmt::Display for Expired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the session is too old or has sent too many messages")
    }
}

impl std::error::Error for Expired {}

/// The ends of a session: what a handshake says besides its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionEnds {
    pub(crate) local_index: u32,
    pub(crate) remote_index: u32,
    pub(crate) initiator: bool,
    pub(crate) born: Time,
}

impl Session {
    pub(crate) fn new(ends: SessionEnds, send_key: Key, receive_key: Key) -> Self {
        Self {
            ends,
            send_key,
            receive_key,
            counter: AtomicU64::new(0),
            confirmed: AtomicBool::new(ends.initiator),
            last_minute: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            window: Mutex::new(ReplayWindow::new()),
        }
    }

    /// A session that another process used before: it goes on with the counter `sent`.
    pub(crate) fn in_use(
        self,
        sent: u64,
        window: ReplayWindow,
        is_confirmed: bool,
        has_last_minute: bool,
        heard: Option<Time>,
    ) -> Self {
        Self {
            counter: AtomicU64::new(sent),
            confirmed: AtomicBool::new(is_confirmed),
            last_minute: AtomicBool::new(has_last_minute),
            heard: AtomicU64::new(heard.map_or(0, |at| at.0)),
            window: Mutex::new(window),
            ..self
        }
    }

    /// An authentic datagram came in on it.
    pub(crate) fn set_heard(&self, now: Time) {
        self.heard.store(now.0.max(1), Ordering::Relaxed);
    }

    /// When one last did.
    pub(crate) fn heard(&self) -> Option<Time> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard != 0).then_some(Time(heard))
    }

    pub(crate) fn born(&self) -> Time {
        self.ends.born
    }

    pub(crate) fn ends(&self) -> SessionEnds {
        self.ends
    }

    pub(crate) fn has_last_minute(&self) -> bool {
        self.last_minute.load(Ordering::Relaxed)
    }

    /// The receiver index of datagrams that come in.
    pub fn local_index(&self) -> u32 {
        self.ends.local_index
    }

    /// The receiver index of datagrams that go out.
    pub fn remote_index(&self) -> u32 {
        self.ends.remote_index
    }

    /// Seals what goes out.
    pub fn send_key(&self) -> &Key {
        &self.send_key
    }

    /// Opens what comes in.
    pub fn receive_key(&self) -> &Key {
        &self.receive_key
    }

    /// Reserves the counters `first..first + n` for the caller alone (invariant 1).
    ///
    /// "After Reject-After-Messages transport data messages or after the current secure session is
    /// Reject-After-Time seconds old, whichever comes first, WireGuard will refuse to send or
    /// receive any more transport data messages using the current secure session" (6.2).
    ///
    /// # Errors
    ///
    /// The session may not send any more: too old, or out of counters.
    pub fn reserve(&self, now: Time, n: u32) -> Result<u64, Expired> {
        if !self.may_send(now) {
            return Err(Expired);
        }
        // The counter never passes the limit, so that no number of failing callers can make it
        // wrap.
        self.counter
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |first| {
                let end = first.checked_add(u64::from(n))?;
                (end <= REJECT_AFTER_MESSAGES).then_some(end)
            })
            .map_err(|_| Expired)
    }

    /// Whether the session is young enough to receive with.
    pub fn may_receive(&self, now: Time) -> bool {
        now.since(self.ends.born) < REJECT_AFTER_TIME
    }

    /// The replay window, locked: take it once for all packets of a train.
    pub fn window(&self) -> MutexGuard<'_, ReplayWindow> {
        // A panic elsewhere leaves the window intact, because each step of `commit` does.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a packet could be sent now.
    pub fn may_send(&self, now: Time) -> bool {
        now.since(self.ends.born) < REJECT_AFTER_TIME && self.sent() < REJECT_AFTER_MESSAGES
    }

    /// How many counters were handed out.
    pub fn sent(&self) -> u64 {
        self.counter.load(Ordering::Relaxed)
    }

    /// "…if a peer is the initiator of a current secure session, WireGuard will send a handshake
    /// initiation … if after transmitting a transport data message, the current secure session is
    /// Rekey-After-Time seconds old", and either side after Rekey-After-Messages (6.2).
    pub(crate) fn is_stale_for_sending(&self, now: Time) -> bool {
        self.ends.initiator && now.since(self.ends.born) >= REKEY_AFTER_TIME
            || self.sent() >= REKEY_AFTER_MESSAGES
    }

    /// "…or if after receiving a transport data message, the current secure session is
    /// (Reject-After-Time - Keepalive-Timeout - Rekey-Timeout) seconds old and it has not yet acted
    /// upon this event" (6.2).
    pub(crate) fn enters_last_minute(&self, now: Time) -> bool {
        self.ends.initiator
            && now.since(self.ends.born) >= REKEY_ON_RECEIVE_TIME
            && !self.last_minute.swap(true, Ordering::Relaxed)
    }

    /// True for the first authenticated packet of a session that its responder has not confirmed
    /// yet.
    pub(crate) fn confirm(&self) -> bool {
        !self.confirmed.load(Ordering::Relaxed) && !self.confirmed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Forbids sending; packets that the peer still sends are received.
    ///
    /// It uses all counters up, so that no thread can reserve one after this, whatever that thread
    /// has read before.
    pub(crate) fn retire(&self) {
        self.counter.store(REJECT_AFTER_MESSAGES, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
