//! The threads that process packets, and the queues that they share.

pub(crate) mod crew;
pub(crate) mod inbound_thread;
pub(crate) mod owner;
pub(crate) mod queues;
pub(crate) mod shard;
