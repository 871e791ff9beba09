//! A batch of which several commit locks have a part.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the parts of a batch share: the lock that it is behind, and how many have not been put.
pub(crate) struct Parts<L> {
    pub(crate) batch: L,
    left: AtomicUsize,
}

impl<L> Parts<L> {
    pub(crate) fn new(batch: L, parts: usize) -> Arc<Self> {
        let left = AtomicUsize::new(parts);
        Arc::new(Self { batch, left })
    }

    /// One more part has been put. Whether it was the last.
    pub(crate) fn put(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// The part of a packet, of so many: packets between the same hosts are in one, fragments included.
pub(crate) fn part_of(destination: IpAddr, source: IpAddr, parts: usize) -> usize {
    let last = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => v6.octets().last_chunk().copied().unwrap_or_default(),
    };
    let [to, from] = [destination, source].map(|end| u32::from_be_bytes(last(end)));
    // The upper bits of a product depend on all bits of both (Knuth's multiplicative hash).
    let ends = to ^ from.rotate_left(16);
    (ends.wrapping_mul(0x9e37_79b9) >> 16) as usize % parts.max(1)
}
