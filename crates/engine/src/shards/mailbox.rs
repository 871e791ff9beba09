//! A shard's mailbox: what other threads post to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::shards::owner::OwnedQueues;
use crate::shards::worker::Worker;
use crate::shared::handles::ShardHandle;
use crate::thread::arrivals::Arrivals;

/// A shard's mailbox.
pub(crate) struct ShardMailbox<T, U> {
    pub(crate) handle: Arc<ShardHandle>,
    /// Queues that it is to serve.
    pub(crate) arrivals: Arrivals<OwnedQueues<T, U>>,
    /// Queues of others that it is to help with.
    pub(crate) help: Arrivals<Worker<T, U>>,
    /// How many interfaces it is to keep. It gives away the others.
    pub(crate) keeps: AtomicUsize,
    pub(crate) stopping: AtomicBool,
}

impl<T, U> ShardMailbox<T, U> {
    pub(crate) fn new(handle: ShardHandle) -> Self {
        Self {
            handle: Arc::new(handle),
            arrivals: Arrivals::default(),
            help: Arrivals::default(),
            keeps: AtomicUsize::new(usize::MAX),
            stopping: AtomicBool::new(false),
        }
    }

    /// Has the shard give away what it serves beyond so many interfaces.
    pub(crate) fn keep(&self, interfaces: usize) {
        self.keeps.store(interfaces, Ordering::Release);
        self.handle.waker().wake();
    }

    /// Whether its thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.arrivals.is_closed()
    }

    /// Asks the shard to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.handle.waker().wake();
    }
}
