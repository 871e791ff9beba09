//! The status at one moment, for all who ask in that moment.
//!
//! With many peers it is costly to make and large. Root, and the user that the process runs as, get
//! one of their own, so that they see what they have just changed. All others together have one made
//! every [`FRESH`] at most, and [`ALIVE`] of them in memory: while so many are being read, the newest
//! is told again. Those that have been read for longer than [`OLD`] are then given up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use adit_proto::config::{PeerStatus, PublicKey};

use super::peer_json::NamedPeer;
use super::{InterfaceJson, StatusReport};
use crate::origin::Origin;
use crate::socket::{Poker, STALL};

/// For how long a report is told to others, too.
pub(crate) const FRESH: Duration = Duration::from_millis(100);
/// Reports for others than root that may be in memory.
const ALIVE: usize = 3;
/// How long a client may read one while others wait for a newer one.
const OLD: Duration = STALL;

/// What people call a peer.
type NameOf = dyn Fn(&PublicKey) -> Option<String> + Send + Sync;

/// A report of a status socket: an interface and its peers, of which there may be a million.
pub struct Report {
    head: StatusReport,
    peers: Vec<PeerStatus>,
    name_of: Box<NameOf>,
    piece: usize,
    made: Instant,
    is_given_up: AtomicBool,
}

impl Report {
    /// Peers of `head` are not told, nor is its private key. `name_of` says what people call a peer.
    pub fn new(
        mut head: InterfaceJson,
        peers: Vec<PeerStatus>,
        name_of: impl Fn(&PublicKey) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        head.private_key = None;
        head.peers = Vec::new();
        let most_blocks = peers.iter().map(|peer| peer.allowed_ips.len()).max();
        Self {
            piece: 256 * most_blocks.unwrap_or(0) + 48 * peers.len(),
            head: StatusReport::new(vec![head]),
            peers,
            name_of: Box::new(name_of),
            made: Instant::now(),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// All but the peers.
    pub(super) fn head(&self) -> &StatusReport {
        &self.head
    }

    /// The peers from this one on.
    pub(super) fn peers_from(&self, first: usize) -> impl Iterator<Item = NamedPeer<&PeerStatus>> {
        let rest = self.peers.get(first..).unwrap_or_default();
        rest.iter().map(|status| NamedPeer {
            name: (self.name_of)(&status.public_key),
            status,
        })
    }

    /// Bytes that the text of one peer may take while it is made, and what is remembered of all.
    pub(super) fn piece(&self) -> usize {
        self.piece
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }
}

/// `None`: there is no memory for it, or the interface ends.
type Reporter = dyn Fn() -> Option<Report> + Send + Sync;

/// The reports of one interface.
pub(super) struct Reports {
    make: Box<Reporter>,
    /// Reports that others than root are sent, the newest last.
    alive: Mutex<Vec<Weak<Report>>>,
    poker: OnceLock<Poker>,
}

impl Reports {
    pub(super) fn new(make: impl Fn() -> Option<Report> + Send + Sync + 'static) -> Self {
        Self {
            make: Box::new(make),
            alive: Mutex::default(),
            poker: OnceLock::new(),
        }
    }

    /// Of the socket that they are told at.
    pub(super) fn wake_by(&self, poker: Poker) {
        _ = self.poker.set(poker);
    }

    /// The one for a client.
    pub(super) fn get(&self, client: Origin) -> Option<Arc<Report>> {
        if client.is_trusted() {
            return (self.make)().map(Arc::new);
        }
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.retain(|report| report.strong_count() > 0);
        if let Some(newest) = alive.last().and_then(Weak::upgrade) {
            if newest.made.elapsed() < FRESH {
                return Some(newest);
            }
            if alive.len() >= ALIVE {
                // The newest gets a client more: it is not cut off.
                let others = alive.iter().rev().skip(1).filter_map(Weak::upgrade);
                for old in others.filter(|report| report.made.elapsed() > OLD) {
                    old.is_given_up.store(true, Ordering::Relaxed);
                    self.poker.get().into_iter().for_each(Poker::poke);
                }
                return Some(newest);
            }
        }
        let report = Arc::new((self.make)()?);
        alive.push(Arc::downgrade(&report));
        if let Some(poker) = self.poker.get() {
            poker.keep(Arc::clone(&report), FRESH);
        }
        Some(report)
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
