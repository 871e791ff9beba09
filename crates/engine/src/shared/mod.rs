//! State that the control thread and the shards share.

pub(crate) mod common;
pub(crate) mod counters;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod handles;
pub(crate) mod mailbox;
pub(crate) mod rate_limited_log;
pub(crate) mod sockets;
pub(crate) mod state;
