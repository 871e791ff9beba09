use std::sync::Arc;
use std::sync::atomic::{self, Ordering};

use arc_swap::ArcSwapOption;

use crate::config::PublicKey;
use crate::drops::{DropReason, Drops, PeerDrops};
use crate::session::Session;
use crate::sync::{AtomicBool, AtomicU8, AtomicU64};
use crate::{Endpoint, Time};

/// The part of a peer that the shards share with the control thread; nothing here blocks.
///
/// Shards note events as timestamps; the control thread reads them when a timer runs out. A shard
/// wakes the control thread only when no armed timer will read the timestamp, or when a handshake
/// is due. `tests/loom.rs` tries every interleaving of this protocol; atomics that it does not
/// depend on are those of the standard library in that build, too.
pub struct Peer {
    id: u32,
    public_key: PublicKey,
    current: ArcSwapOption<Session>,
    endpoint: ArcSwapOption<Endpoint>,
    rx_bytes: atomic::AtomicU64,
    tx_bytes: atomic::AtomicU64,
    last_sent: atomic::AtomicU64,
    last_received: atomic::AtomicU64,
    /// When the first data was sent that nothing was received since; 0 if there is none.
    unanswered: AtomicU64,
    /// When the first data was received that nothing was sent since; 0 if there is none.
    owed: AtomicU64,
    /// Frames wait for a session (since the control thread last looked).
    wanted: AtomicBool,
    /// A handshake is under way, or paused until the next one may start.
    handshaking: AtomicBool,
    /// Which of NO_ANSWER and KEEPALIVE in [`event`] have an armed timer: the control thread will
    /// look without being woken.
    armed: AtomicU8,
    /// The bits of [`event`] that the control thread has not read yet.
    pending: AtomicU8,
    drops: PeerDrops,
}

/// The events that a shard raises for the control thread.
pub(crate) mod event {
    pub(crate) const WANT_SESSION: u8 = 1;
    pub(crate) const REKEY: u8 = 2;
    pub(crate) const CONFIRMED: u8 = 4;
    /// Data was sent and the timer for its answer is not armed.
    pub(crate) const NO_ANSWER: u8 = 8;
    /// Data was received and the timer for our answer is not armed.
    pub(crate) const KEEPALIVE: u8 = 16;
}

impl Peer {
    pub(crate) fn new(id: u32, public_key: PublicKey) -> Self {
        Self {
            id,
            public_key,
            current: ArcSwapOption::empty(),
            endpoint: ArcSwapOption::empty(),
            rx_bytes: atomic::AtomicU64::new(0),
            tx_bytes: atomic::AtomicU64::new(0),
            last_sent: atomic::AtomicU64::new(0),
            last_received: atomic::AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            handshaking: AtomicBool::new(false),
            armed: AtomicU8::new(0),
            pending: AtomicU8::new(0),
            drops: PeerDrops::default(),
        }
    }

    /// A small number that no other peer of the device has or had.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The peer's static key.
    pub fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// The session to send with, if there is one that may send now. Without one, stage what is to
    /// be sent and say [`want_session`](Self::want_session).
    pub fn session(&self, now: Time) -> Option<Arc<Session>> {
        self.current().filter(|session| session.may_send(now))
    }

    /// The current session, if there is one that the peer has confirmed. It may have expired.
    pub fn current(&self) -> Option<Arc<Session>> {
        self.current.load_full()
    }

    /// Where to send to.
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.endpoint.load().as_deref().copied()
    }

    /// Follows the peer to where an *authenticated* packet came from (whitepaper 2.1, invariant 3).
    pub fn roam(&self, from: Endpoint) {
        let known = self.endpoint.load();
        let same = known.as_deref().is_some_and(|known| {
            known.addr == from.addr && (known.src == from.src || from.src.is_none())
        });
        if !same {
            self.endpoint.store(Some(Arc::new(from)));
        }
    }

    /// Lets the kernel's routing choose the source address again.
    pub fn clear_source(&self) {
        let known = self.endpoint.load();
        if let Some(endpoint) = known.as_deref()
            && endpoint.src.is_some()
        {
            // If the peer has just roamed, its new endpoint stays.
            let cleared = Arc::new(endpoint.addr.into());
            self.endpoint.compare_and_swap(&known, Some(cleared));
        }
    }

    /// A train of data was sealed and sent: `bytes` of UDP payload, 0 if it was lost on the
    /// outbound path.
    ///
    /// Returns whether to wake the control thread, here and below: if true, queue this peer for
    /// [`Device::handle_event`](crate::Device::handle_event). It is true at most once until that
    /// was called.
    pub fn data_sent(&self, now: Time, session: &Session, bytes: u64) -> bool {
        let mut events = self.sent(now, session, bytes);
        if self.unanswered.load(Ordering::Relaxed) == 0 {
            self.unanswered.store(stamp(now), Ordering::SeqCst);
        }
        events |= self.arm(event::NO_ANSWER);
        self.raise(events)
    }

    /// A keepalive was sealed and sent: `bytes` of UDP payload.
    pub fn keepalive_sent(&self, now: Time, session: &Session, bytes: u64) -> bool {
        let events = self.sent(now, session, bytes);
        self.raise(events)
    }

    /// A train was opened and at least one packet of it was authentic and fresh: `bytes` of UDP
    /// payload of those. `data` is false if all were keepalives.
    pub fn received(&self, now: Time, session: &Arc<Session>, bytes: u64, data: bool) -> bool {
        let mut events = 0;
        self.note_received(now, bytes);
        if data {
            if self.owed.load(Ordering::Relaxed) == 0 {
                self.owed.store(stamp(now), Ordering::SeqCst);
            }
            events |= self.arm(event::KEEPALIVE);
        }
        if session.confirm() {
            // At once: the answer to this packet may leave before the control thread runs, and a
            // peer that restarted knows no other session.
            self.current.store(Some(Arc::clone(session)));
            events |= event::CONFIRMED;
        }
        if session.enters_last_minute(now) && self.is_current(session) {
            events |= self.rekey();
        }
        self.raise(events)
    }

    /// Frames wait for this peer and no session can send them: a handshake must start.
    pub fn want_session(&self) -> bool {
        self.wanted.store(true, Ordering::SeqCst);
        !self.is_handshaking() && self.raise(event::WANT_SESSION)
    }

    /// Bytes of UDP payload received and found authentic, handshakes included.
    pub fn rx_bytes(&self) -> u64 {
        self.rx_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of UDP payload sent, handshakes included.
    pub fn tx_bytes(&self) -> u64 {
        self.tx_bytes.load(Ordering::Relaxed)
    }

    /// Counts packets to or from this peer that were dropped: in `total`, and as this peer's.
    pub fn count_dropped(&self, total: &Drops, reason: DropReason, packets: u64) {
        total.count(reason, packets);
        if packets > 0 {
            self.drops.count(reason, packets);
        }
    }

    /// Packets to and from this peer that were dropped, by reason; only reasons that occurred.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        self.drops.counted()
    }

    fn sent(&self, now: Time, session: &Session, bytes: u64) -> u8 {
        self.note_sent(now, bytes);
        if session.is_stale_for_sending(now) && self.is_current(session) {
            self.rekey()
        } else {
            0
        }
    }

    fn rekey(&self) -> u8 {
        if self.is_handshaking() {
            0
        } else {
            event::REKEY
        }
    }

    fn is_current(&self, session: &Session) -> bool {
        self.current
            .load()
            .as_deref()
            .is_some_and(|current| std::ptr::eq(current, session))
    }

    /// The event must be raised unless an armed timer will look. The control thread disarms first
    /// and looks then. So either it sees the timestamp that was stored before this load, or this
    /// load sees that it disarmed (both SeqCst).
    fn arm(&self, bit: u8) -> u8 {
        bit & !self.armed.load(Ordering::SeqCst)
    }

    fn raise(&self, events: u8) -> bool {
        events != 0 && self.pending.fetch_or(events, Ordering::SeqCst) == 0
    }

    fn is_handshaking(&self) -> bool {
        self.handshaking.load(Ordering::SeqCst)
    }
}

/// For the control thread.
impl Peer {
    pub(crate) fn note_sent(&self, now: Time, bytes: u64) {
        self.tx_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_sent.store(stamp(now), Ordering::Relaxed);
        if self.owed.load(Ordering::Relaxed) != 0 {
            self.owed.store(0, Ordering::Relaxed);
        }
    }

    /// A handshake message to this peer was sent: `bytes` of UDP payload.
    pub(crate) fn handshake_sent(&self, bytes: u64) {
        self.tx_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn note_received(&self, now: Time, bytes: u64) {
        self.rx_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_received.store(stamp(now), Ordering::Relaxed);
        if self.unanswered.load(Ordering::Relaxed) != 0 {
            self.unanswered.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn take_events(&self) -> u8 {
        self.pending.swap(0, Ordering::SeqCst)
    }

    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn set_handshaking(&self, handshaking: bool) {
        self.handshaking.store(handshaking, Ordering::SeqCst);
    }

    pub(crate) fn set_armed(&self, bit: u8, on: bool) {
        if on {
            self.armed.fetch_or(bit, Ordering::SeqCst);
        } else {
            self.armed.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    pub(crate) fn unanswered(&self) -> Option<Time> {
        time(self.unanswered.load(Ordering::SeqCst))
    }

    pub(crate) fn owed(&self) -> Option<Time> {
        time(self.owed.load(Ordering::SeqCst))
    }

    /// A keepalive or handshake answers now.
    pub(crate) fn clear_owed(&self) {
        self.owed.store(0, Ordering::SeqCst);
    }

    /// A handshake starts now: it will show whether the peer is alive.
    pub(crate) fn clear_unanswered(&self) {
        self.unanswered.store(0, Ordering::SeqCst);
    }

    pub(crate) fn last_received(&self) -> Option<Time> {
        time(self.last_received.load(Ordering::Relaxed))
    }

    /// When an authenticated packet last went either way.
    pub(crate) fn last_traversal(&self) -> Option<Time> {
        let sent = self.last_sent.load(Ordering::Relaxed);
        time(sent.max(self.last_received.load(Ordering::Relaxed)))
    }

    pub(crate) fn set_current(&self, session: Option<Arc<Session>>) {
        self.current.store(session);
    }

    pub(crate) fn set_endpoint(&self, endpoint: Option<Endpoint>) {
        self.endpoint.store(endpoint.map(Arc::new));
    }
}

/// 0 means never.
fn stamp(now: Time) -> u64 {
    now.0.max(1)
}

fn time(stamp: u64) -> Option<Time> {
    (stamp != 0).then_some(Time(stamp))
}
