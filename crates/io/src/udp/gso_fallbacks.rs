//! Destinations to which the kernel would not segment.
//!
//! What is refused depends on the path (its MTU, its device), so it is remembered per destination
//! and tried again after a while: one bad path does not cost the others their speed.

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
    refused: Mutex<Vec<(IpAddr, Instant)>>,
}

impl GsoFallbacks {
    /// Whether to try segmentation towards `to`.
    pub(super) fn allow(&self, to: IpAddr) -> bool {
        match self.len.load(Ordering::Relaxed) {
            0 => return true,
            CAPACITY.. => return !self.still_full(),
            _ => {}
        }
        let to = path(to);
        let refused = self.lock();
        !refused
            .iter()
            .any(|(path, since)| *path == to && since.elapsed() < LIFETIME)
    }

    pub(super) fn insert(&self, to: IpAddr) {
        let to = path(to);
        let mut refused = self.lock();
        refused.retain(|(path, since)| *path != to && since.elapsed() < LIFETIME);
        refused.truncate(CAPACITY - 1);
        refused.push((to, Instant::now()));
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
        refused.retain(|(_, since)| since.elapsed() < LIFETIME);
        self.len.store(refused.len(), Ordering::Relaxed);
        refused.len() >= CAPACITY
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(IpAddr, Instant)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
