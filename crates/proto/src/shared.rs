use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use arc_swap::{ArcSwap, Guard};

use crate::Time;
use crate::admission::{Admission, Room, Screened};
use crate::allowed_ips::AllowedIps;
use crate::peer::Peer;
use crate::rx_queues::RxQueueTable;
use crate::session::Session;
use crate::wire::ParsedMessage;

/// Tables of sessions: so many that one of them grows in a fraction of a millisecond at a million sessions.
const INDEX_SHARDS: usize = 256;

/// The state that every shard reads while the control thread changes it.
pub struct Shared {
    routes: ArcSwap<AllowedIps<Arc<Peer>>>,
    /// Sessions by receiver index, spread over locks that are held for one look-up at a time.
    sessions: Box<[IndexShard]>,
    peers: AtomicUsize,
    admission: Admission,
    rx_queues: RxQueueTable,
}

/// Sessions whose receiver indices end with the same byte, and so arrive in the same receive queue: no cache
/// line is of two, since to lock one for reading writes to it.
#[derive(Default)]
#[repr(align(64))]
struct IndexShard(RwLock<HashMap<u32, IndexEntry, IndexHashing>>);

/// Receiver indices are random numbers of our own: nobody else can choose them so that they
/// collide.
#[derive(Clone, Copy, Default)]
pub(crate) struct IndexHashing;

pub(crate) struct IndexHasher(u64);

impl BuildHasher for IndexHashing {
    type Hasher = IndexHasher;

    fn build_hasher(&self) -> IndexHasher {
        IndexHasher(0)
    }
}

impl Hasher for IndexHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, index: u32) {
        // By the golden ratio (Fibonacci hashing), so that the highest bits depend on all.
        self.0 = (self.0 ^ u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Where a datagram with a receiver index belongs.
#[derive(Clone)]
pub struct IndexEntry {
    /// The peer that the session is with.
    pub peer: Arc<Peer>,
    /// The session to open the datagram with.
    pub session: Arc<Session>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            routes: ArcSwap::default(),
            sessions: (0..INDEX_SHARDS).map(|_| IndexShard::default()).collect(),
            peers: AtomicUsize::new(0),
            admission: Admission::new(),
            rx_queues: RxQueueTable::new(),
        }
    }

    /// The allowed IPs of all peers, as of the last complete change of configuration.
    pub fn routes(&self) -> Guard<Arc<AllowedIps<Arc<Peer>>>> {
        self.routes.load()
    }

    /// The admission of handshake messages.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Looks at a handshake message from the network, while many wait; `room` is left for it if its sender
    /// has shown a cookie.
    pub fn screen(&self, now: Time, from: SocketAddr, datagram: &[u8], room: Room) -> Screened {
        let Some(ParsedMessage::CookieReply(reply)) = ParsedMessage::parse(datagram) else {
            return self.admission.screen(now, from, datagram, room);
        };
        // It answers an initiation, or the response that led to a session.
        let index = reply.receiver();
        match self.admission.expects_response(index) || self.session(index).is_some() {
            true => Screened::Passed,
            false => self.admission.refuse_cookie(from),
        }
    }

    /// The receive queues of the interface.
    pub fn rx_queues(&self) -> &RxQueueTable {
        &self.rx_queues
    }

    /// The session that a receiver index names. One look-up a train is enough.
    pub fn session(&self, receiver_index: u32) -> Option<IndexEntry> {
        self.sessions(receiver_index).get(&receiver_index).cloned()
    }

    /// The sessions among which one with this receiver index is, to look at only.
    pub(crate) fn sessions(
        &self,
        receiver_index: u32,
    ) -> RwLockReadGuard<'_, HashMap<u32, IndexEntry, IndexHashing>> {
        let shard = self.shard(receiver_index);
        shard.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many sessions there are, of all peers: at most five each.
    pub fn session_count(&self) -> usize {
        let shards = self.sessions.iter();
        shards
            .map(|shard| shard.0.read().unwrap_or_else(PoisonError::into_inner).len())
            .sum()
    }

    /// How many peers are configured.
    pub fn peer_count(&self) -> usize {
        self.peers.load(Ordering::Relaxed)
    }

    pub(crate) fn set_peer_count(&self, peers: usize) {
        self.peers.store(peers, Ordering::Relaxed);
    }

    /// Returns the table that was published before; shards may still use it.
    pub(crate) fn publish(&self, routes: AllowedIps<Arc<Peer>>) -> Arc<AllowedIps<Arc<Peer>>> {
        self.routes.swap(Arc::new(routes))
    }

    pub(crate) fn insert(&self, peer: &Arc<Peer>, session: &Arc<Session>) {
        let entry = IndexEntry {
            peer: Arc::clone(peer),
            session: Arc::clone(session),
        };
        self.shard(session.local_index())
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(session.local_index(), entry);
    }

    pub(crate) fn remove(&self, receiver_index: u32) {
        self.shard(receiver_index)
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&receiver_index);
    }

    fn shard(&self, index: u32) -> &RwLock<HashMap<u32, IndexEntry, IndexHashing>> {
        &self.sessions[usize::from(index.to_le_bytes()[3])].0
    }
}
