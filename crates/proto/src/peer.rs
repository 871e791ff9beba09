use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{self, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};

use crate::allowance::Limits;
use crate::drops::{DropReason, Drops, PeerDrops};
use crate::secret::PublicKey;
use crate::session::Session;
use crate::sync::{AtomicBool, AtomicU8, AtomicU64};
use crate::{Endpoint, Time};

mod control;

pub(crate) use control::PeerNotes;

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
    /// The endpoint whose source no longer fits the routes: packets that still arrive there do not
    /// bring it back.
    avoided: ArcSwapOption<Endpoint>,
    /// Where it was before it roamed, until the control thread has looked.
    roamed_from: ArcSwapOption<SocketAddr>,
    rx_bytes: atomic::AtomicU64,
    tx_bytes: atomic::AtomicU64,
    /// The cost of receiving from it, in units of [`work`](crate::work).
    work: atomic::AtomicU64,
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
    /// Once it had any.
    limits: OnceLock<Box<Limits>>,
    /// 0 if there is nothing to say of the path; else its limit in bytes, and [`path`].
    path: atomic::AtomicU32,
    /// Where a long packet went from and to, for the control thread.
    sample: ArcSwapOption<(IpAddr, IpAddr)>,
    /// The identifier of the probes that are under way, and which of them are answered.
    probes: atomic::AtomicU64,
    /// When a sender was last told of the limit of the path.
    told: atomic::AtomicU64,
}

/// Bits of [`Peer::path`] above the limit.
mod path {
    /// The next long packet begins a search.
    pub(super) const WANTS_SAMPLE: u32 = 1 << 16;
    /// Answers to probes may come in.
    pub(super) const PROBING: u32 = 1 << 17;
    /// Packets beyond the limit are lost, in fragments, too.
    pub(super) const LOSES: u32 = 1 << 18;
    /// The peer is reached from or at another address: what was found is of another path.
    pub(super) const NEW: u32 = 1 << 19;
    /// The peer is at another address, and the control thread has not looked yet.
    pub(super) const ROAMED: u32 = 1 << 20;
    /// The limit and that.
    pub(super) const FOUND: u32 = LOSES | 0xffff;
}

/// Shorter packets pass wherever there is IP at all, and begin no search.
const LONG_PACKET: usize = 1200;
/// How long nobody is told after a sender was.
const TELL_PAUSE: Duration = Duration::from_millis(1);

/// The events that a shard raises for the control thread.
pub(crate) mod event {
    pub(crate) const WANT_SESSION: u8 = 1;
    pub(crate) const REKEY: u8 = 2;
    pub(crate) const CONFIRMED: u8 = 4;
    /// Data was sent and the timer for its answer is not armed.
    pub(crate) const NO_ANSWER: u8 = 8;
    /// Data was received and the timer for our answer is not armed.
    pub(crate) const KEEPALIVE: u8 = 16;
    /// The peer is reached at another address than before.
    pub(crate) const ROAMED: u8 = 32;
    /// A packet was seen that is long enough to probe the path, or a probe was answered.
    pub(crate) const PATH: u8 = 64;
    /// The path is another one than before.
    pub(crate) const NEW_PATH: u8 = 128;
}

impl Peer {
    pub(crate) fn new(id: u32, public_key: PublicKey) -> Self {
        Self {
            id,
            public_key,
            current: ArcSwapOption::empty(),
            endpoint: ArcSwapOption::empty(),
            avoided: ArcSwapOption::empty(),
            roamed_from: ArcSwapOption::empty(),
            rx_bytes: atomic::AtomicU64::new(0),
            tx_bytes: atomic::AtomicU64::new(0),
            work: atomic::AtomicU64::new(0),
            last_sent: atomic::AtomicU64::new(0),
            last_received: atomic::AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            handshaking: AtomicBool::new(false),
            armed: AtomicU8::new(0),
            pending: AtomicU8::new(0),
            drops: PeerDrops::default(),
            limits: OnceLock::new(),
            path: atomic::AtomicU32::new(0),
            sample: ArcSwapOption::empty(),
            probes: atomic::AtomicU64::new(0),
            told: atomic::AtomicU64::new(0),
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

    /// The same, without a reference of one's own.
    pub(crate) fn load_current(&self) -> Guard<Option<Arc<Session>>> {
        self.current.load()
    }

    /// What it may send and be sent in a second; `None` if it was never told.
    #[inline]
    pub fn limits(&self) -> Option<&Limits> {
        self.limits.get().map(Box::as_ref)
    }

    /// Whether its access has ended: nothing is sent to it, and no session begins.
    pub fn is_barred(&self) -> bool {
        let limits = self.limits();
        limits.is_some_and(|limits| limits.is_barred.load(Ordering::Relaxed))
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
        if same || self.avoided().is_some_and(|avoided| avoided == from) {
            return;
        }
        let before = known.as_deref().copied();
        self.endpoint.store(Some(Arc::new(from)));
        let Some(before) = before else { return };
        if before.addr != from.addr {
            self.roamed_from.store(Some(Arc::new(before.addr)));
            self.path.fetch_or(path::ROAMED, Ordering::AcqRel);
        }
        // Where routing chose the source, it may have chosen this one.
        if before.addr != from.addr || before.src.is_some() {
            self.path.fetch_or(path::NEW, Ordering::AcqRel);
        }
    }

    /// The endpoint of which [`Self::avoid_source`] was said.
    pub fn avoided(&self) -> Option<Endpoint> {
        self.avoided.load().as_deref().copied()
    }

    /// The source of this endpoint no longer fits the routes: the kernel's routing chooses one, until
    /// the peer is reached at another address, or the source [fits again](Self::source_fits).
    pub fn avoid_source(&self, stale: Endpoint) {
        self.avoided.store(Some(Arc::new(stale)));
        self.clear_source();
    }

    /// No source is avoided any more.
    pub fn source_fits(&self) {
        self.avoided.store(None);
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
        session.set_heard(now);
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
        let path = self.path.load(Ordering::Relaxed);
        if path & path::ROAMED != 0 {
            events |= event::ROAMED;
        }
        if path & path::NEW != 0 {
            events |= event::NEW_PATH;
        }
        if session.enters_last_minute(now) && self.is_current(session) {
            events |= self.rekey();
        }
        self.raise(events)
    }

    /// Counts [`work`](crate::work) that was done with authentic data from it.
    pub fn worked(&self, work: u64) {
        self.work.fetch_add(work, Ordering::Relaxed);
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

    /// Whether [`Self::path_limit`] or [`Self::sample`] concerns a packet of this length.
    #[inline]
    pub fn path_concerns(&self, len: impl FnOnce() -> usize) -> bool {
        let path = self.path.load(Ordering::Relaxed);
        if path == 0 {
            return false;
        }
        let (len, limit) = (len(), path & 0xffff);
        limit != 0 && len > limit as usize || path & path::WANTS_SAMPLE != 0 && len >= LONG_PACKET
    }

    /// The longest packet that the path takes whole, if it is known to take less than the interface.
    pub fn path_limit(&self) -> Option<u16> {
        let limit = self.path.load(Ordering::Relaxed) & 0xffff;
        u16::try_from(limit).ok().filter(|limit| *limit != 0)
    }

    /// Whether packets that are longer than [`Self::path_limit`] are lost: fragments do not arrive.
    pub fn loses_longer(&self) -> bool {
        self.path.load(Ordering::Relaxed) & path::LOSES != 0
    }

    /// Whether to tell the sender of a packet that it is longer than [`Self::path_limit`]: often
    /// enough that each flow learns it soon, and seldom enough for those that do not care.
    pub fn tells_limit(&self, now: Time) -> bool {
        let last = Time(self.told.load(Ordering::Relaxed));
        let tells = now.since(last) >= TELL_PAUSE;
        if tells {
            self.told.store(stamp(now), Ordering::Relaxed);
        }
        tells
    }

    /// The kernel would not segment datagrams to the peer, as if they were too long for the path: the
    /// next long packet begins a search, unless one is under way.
    pub fn look_at_path(&self) {
        if !self.is_probing() {
            self.want_sample();
        }
    }

    /// A packet of this length leaves. Returns whether to wake the control thread.
    pub fn sample(&self, len: usize, from: IpAddr, to: IpAddr) -> bool {
        if len < LONG_PACKET || self.path.load(Ordering::Relaxed) & path::WANTS_SAMPLE == 0 {
            return false;
        }
        let before = self.path.fetch_and(!path::WANTS_SAMPLE, Ordering::AcqRel);
        if before & path::WANTS_SAMPLE == 0 {
            return false;
        }
        self.sample.store(Some(Arc::new((from, to))));
        self.raise(event::PATH)
    }

    /// Whether answers to probes may come in.
    pub fn is_probing(&self) -> bool {
        self.path.load(Ordering::Relaxed) & path::PROBING != 0
    }

    /// An echo was answered inside the tunnel. `None` if it is none of our probes; else whether to
    /// wake the control thread.
    pub fn probe_answered(&self, id: u16, sequence: u16) -> Option<bool> {
        let probes = self.probes.load(Ordering::Acquire);
        if probes >> 32 != u64::from(id) || sequence >= 32 {
            return None;
        }
        self.probes.fetch_or(1 << sequence, Ordering::AcqRel);
        Some(self.raise(event::PATH))
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

/// 0 means never.
fn stamp(now: Time) -> u64 {
    now.0.max(1)
}

fn time(stamp: u64) -> Option<Time> {
    (stamp != 0).then_some(Time(stamp))
}
