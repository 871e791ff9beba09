//! Destinations to which the kernel would not segment.
//!
//! What is refused depends on the path (its MTU, its device), so it is remembered per destination
//! and tried again after a while: one bad path does not cost the others their speed. Where segments
//! were too long, shorter ones are tried at once.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Destinations remembered. If there are more, segmentation is off for all of them.
const CAPACITY: usize = 256;

/// How long a refusal is believed.
const LIFETIME: Duration = Duration::from_secs(60);

/// An IPv4 address, or the network of an IPv6 one: a peer may have as many addresses there as it
/// likes.
fn path(to: IpAddr) -> IpAddr {
    match to {
        IpAddr::V4(_) => to,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

#[derive(Default)]
pub(super) struct GsoFallbacks {
    /// As many as `refused` has, so that a sender takes no lock when it is empty.
    len: AtomicUsize,
    refused: Mutex<Vec<GsoFallback>>,
}

/// What the kernel would not segment.
struct GsoFallback {
    path: IpAddr,
    /// Trains with segments of at least this length; 0 are all.
    stride: usize,
    since: Instant,
}

impl GsoFallback {
    fn is_believed(&self) -> bool {
        self.since.elapsed() < LIFETIME
    }
}

impl GsoFallbacks {
    /// Whether to try segmentation towards `to`, with segments of this length.
    pub(super) fn allow(&self, to: IpAddr, stride: usize) -> bool {
        match self.len.load(Ordering::Relaxed) {
            0 => return true,
            CAPACITY.. => return !self.still_full(),
            _ => {}
        }
        let to = path(to);
        let refused = self.lock();
        !refused
            .iter()
            .any(|it| it.path == to && it.stride <= stride && it.is_believed())
    }

    /// Segments of at least this length, 0 for all, were refused.
    pub(super) fn insert(&self, to: IpAddr, stride: usize) {
        let path = path(to);
        let mut refused = self.lock();
        // A longer length that is believed until sooner says nothing more.
        refused.retain(|it| it.path != path && it.is_believed());
        refused.truncate(CAPACITY - 1);
        let since = Instant::now();
        refused.push(GsoFallback {
            path,
            stride,
            since,
        });
        self.len.store(refused.len(), Ordering::Relaxed);
    }

    /// Whether so many destinations refuse that none is tried.
    pub(super) fn everywhere(&self) -> bool {
        self.len.load(Ordering::Relaxed) >= CAPACITY && self.still_full()
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
        self.len.store(0, Ordering::Relaxed);
    }

    fn still_full(&self) -> bool {
        let mut refused = self.lock();
        refused.retain(GsoFallback::is_believed);
        self.len.store(refused.len(), Ordering::Relaxed);
        refused.len() >= CAPACITY
    }

    fn lock(&self) -> MutexGuard<'_, Vec<GsoFallback>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
