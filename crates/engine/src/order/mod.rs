//! The order of packets while several threads process them.

pub(crate) mod buffer_pool;
pub(crate) mod flow_shards;
pub(crate) mod ordered_queue;
pub(crate) mod rx_queues;
