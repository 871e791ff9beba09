//! Flow shards: a batch that is split by the flows of its packets, one flow shard for each commit lock.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A batch that is split: the lock that it is behind, and how many flow shards have not been committed.
pub(crate) struct SplitBatch<L> {
    pub(crate) batch: L,
    left: AtomicUsize,
}

impl<L> SplitBatch<L> {
    pub(crate) fn new(batch: L, flow_shards: usize) -> Arc<Self> {
        let left = AtomicUsize::new(flow_shards);
        Arc::new(Self { batch, left })
    }

    /// One more flow shard has been committed. Whether it was the last.
    pub(crate) fn commit_one(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// The flow shard of a packet, of so many: packets between the same hosts are in one, fragments included.
pub(crate) fn flow_shard_between(destination: IpAddr, source: IpAddr, flow_shards: usize) -> usize {
    let last = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => v6.octets().last_chunk().copied().unwrap_or_default(),
    };
    let [to, from] = [destination, source].map(|end| u32::from_be_bytes(last(end)));
    // The upper bits of a product depend on all bits of both (Knuth's multiplicative hash).
    let ends = to ^ from.rotate_left(16);
    (ends.wrapping_mul(0x9e37_79b9) >> 16) as usize % flow_shards.max(1)
}
