//! The buffers of the outbound path, as one thread has them.

use crate::order::buffer_pool::{BufferPool, SharedPool};
use crate::order::ordered_queue::DEPTH;
use crate::outbound::batch::OutboundBatch;
use crate::outbound::train;

/// Trains of an interface that exist at once: those that are open, and sealed ones that wait for the socket.
pub(crate) const MAX_TRAINS: usize = 64;
/// Trains that threads exchange at a time.
const TRAINS: usize = 16;
/// Batches of a kind that they share at most.
pub(crate) const MAX_BATCHES: usize = DEPTH;

/// Buffers that all threads share.
#[derive(Default)]
pub(crate) struct SharedOutboundBuffers {
    batches: SharedPool<Box<OutboundBatch>>,
    trains: SharedPool<Box<[u8]>>,
}

/// The buffers of one thread.
pub(crate) struct OutboundBuffers {
    pub(crate) batches: BufferPool<Box<OutboundBatch>>,
    pub(crate) trains: BufferPool<Box<[u8]>>,
}

impl OutboundBuffers {
    pub(crate) fn new(shared: &SharedOutboundBuffers) -> Self {
        Self {
            batches: BufferPool::new(&shared.batches, (1, MAX_BATCHES), Default::default),
            trains: BufferPool::new(&shared.trains, (TRAINS, MAX_TRAINS), train::buffer),
        }
    }

    pub(crate) fn keep_some(&self) -> bool {
        self.batches.keeps_some() || self.trains.keeps_some()
    }

    pub(crate) fn free(&self) {
        self.batches.free();
        self.trains.free();
    }
}
