//! What the control thread tells a peer's other threads, and reads of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Peer, path, stamp, time};
use crate::allowance::Allowance;
use crate::drops::DropReason;
use crate::session::Session;
use crate::{Endpoint, Time};

/// Notes of shards about a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerNotes {
    /// Received and sent.
    pub(crate) bytes: [u64; 2],
    /// Last sent, last received, unanswered and owed, as [`Peer`] has them.
    pub(crate) times: [u64; 4],
    pub(crate) armed: u8,
    pub(crate) handshaking: bool,
}

impl Peer {
    /// The notes of shards, while none of them writes.
    pub(crate) fn noted(&self) -> PeerNotes {
        PeerNotes {
            bytes: [&self.rx_bytes, &self.tx_bytes].map(|bytes| bytes.load(Ordering::Relaxed)),
            times: [
                self.last_sent.load(Ordering::Relaxed),
                self.last_received.load(Ordering::Relaxed),
                self.unanswered.load(Ordering::SeqCst),
                self.owed.load(Ordering::SeqCst),
            ],
            armed: self.armed.load(Ordering::SeqCst),
            handshaking: self.is_handshaking(),
        }
    }

    /// Takes the notes of another process's shards. No shard knows the peer yet.
    pub(crate) fn set_noted(&self, noted: &PeerNotes) {
        let [received, sent] = noted.bytes;
        self.rx_bytes.store(received, Ordering::Relaxed);
        self.tx_bytes.store(sent, Ordering::Relaxed);
        let [last_sent, last_received, unanswered, owed] = noted.times;
        self.last_sent.store(last_sent, Ordering::Relaxed);
        self.last_received.store(last_received, Ordering::Relaxed);
        self.unanswered.store(unanswered, Ordering::SeqCst);
        self.owed.store(owed, Ordering::SeqCst);
        self.armed.store(noted.armed, Ordering::SeqCst);
        self.handshaking.store(noted.handshaking, Ordering::SeqCst);
    }

    /// The part of its allowance that other threads look at, from now on.
    pub(crate) fn set_allowance(&self, allowance: &Allowance, is_barred: bool) {
        if self.limits.get().is_none() && *allowance == Allowance::default() {
            return;
        }
        let limits = self.limits.get_or_init(Box::default);
        limits.to_peer.set(allowance.to_peer);
        limits.from_peer.set(allowance.from_peer);
        limits.is_barred.store(is_barred, Ordering::Relaxed);
    }

    /// Packets that another process dropped.
    pub(crate) fn add_drops(&self, reason: DropReason, packets: u64) {
        self.drops.count(reason, packets);
    }

    /// The work that was done with data from it so far.
    pub(crate) fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

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

    /// Where it was before it roamed, once.
    pub(crate) fn take_roamed(&self) -> Option<SocketAddr> {
        // In this order: who roams meanwhile says so again.
        self.path.fetch_and(!path::ROAMED, Ordering::AcqRel);
        self.roamed_from.swap(None).map(|before| *before)
    }

    /// Whether it is reached from or at another address than when this was last asked.
    pub(crate) fn take_new_path(&self) -> bool {
        self.path.load(Ordering::Relaxed) & path::NEW != 0
            && self.path.fetch_and(!path::NEW, Ordering::AcqRel) & path::NEW != 0
    }

    pub(crate) fn want_sample(&self) {
        self.path.fetch_or(path::WANTS_SAMPLE, Ordering::AcqRel);
    }

    pub(crate) fn wants_sample(&self) -> bool {
        self.path.load(Ordering::Acquire) & path::WANTS_SAMPLE != 0
    }

    pub(crate) fn take_sample(&self) -> Option<(IpAddr, IpAddr)> {
        self.sample.swap(None).map(|between| *between)
    }

    pub(crate) fn begin_probes(&self, id: u16) {
        self.probes.store(u64::from(id) << 32, Ordering::Release);
        self.path.fetch_or(path::PROBING, Ordering::AcqRel);
    }

    pub(crate) fn end_probes(&self) {
        self.path.fetch_and(!path::PROBING, Ordering::AcqRel);
    }

    /// Which of the probes are answered: bit n is the sequence number n.
    pub(crate) fn probe_answers(&self) -> u32 {
        u32::try_from(self.probes.load(Ordering::Acquire) & 0xffff_ffff).unwrap_or(0)
    }

    /// `loses` says whether longer packets are lost. True if anything changed.
    pub(crate) fn set_path_limit(&self, limit: Option<u16>, loses: bool) -> bool {
        let bits = u32::from(limit.unwrap_or(0)) | if loses { path::LOSES } else { 0 };
        // Only the control thread changes these bits.
        let before = self.path.fetch_and(!path::FOUND, Ordering::AcqRel);
        self.path.fetch_or(bits, Ordering::AcqRel);
        before & path::FOUND != bits
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
