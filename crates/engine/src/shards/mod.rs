//! The threads that process packets, and the queues that they share.

pub(crate) mod alone;
pub(crate) mod help;
pub(crate) mod inbound_thread;
pub(crate) mod mailbox;
pub(crate) mod owner;
pub(crate) mod queues;
mod rx_queue_changes;
pub(crate) mod settings;
pub(crate) mod shard;
pub(crate) mod thread_pool;
pub(crate) mod thread_state;
pub(crate) mod worker;
