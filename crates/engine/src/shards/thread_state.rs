//! The state that a thread needs to poll queues, of whatever interface.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::Event;

use crate::inbound::InboundBatch;
use crate::inbound::deliver::Delivery;
use crate::order::buffer_pool::{BufferPool, SharedPool};
use crate::outbound::buffers::{self, MAX_BATCHES};
use crate::thread::poll::wait;

/// A thread that had nothing to do for so long frees its buffers.
const REST: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(10)
};

/// Buffers that all threads share.
#[derive(Default)]
pub(crate) struct SharedBuffers {
    outbound: buffers::SharedOutboundBuffers,
    inbound: SharedPool<Box<InboundBatch>>,
}

/// The buffers of one thread.
pub(crate) struct ThreadBuffers {
    pub(crate) outbound: buffers::OutboundBuffers,
    pub(crate) inbound: BufferPool<Box<InboundBatch>>,
}

impl ThreadBuffers {
    fn new(shared: &SharedBuffers) -> Self {
        let batches = (1, MAX_BATCHES);
        Self {
            outbound: buffers::OutboundBuffers::new(&shared.outbound),
            inbound: BufferPool::new(&shared.inbound, batches, Default::default),
        }
    }

    fn keep_some(&self) -> bool {
        self.outbound.keep_some() || self.inbound.keeps_some()
    }

    fn free(&self) {
        self.outbound.free();
        self.inbound.free();
    }
}

/// The state of a thread that polls queues, of whatever interface.
pub(crate) struct ThreadState {
    pub(crate) buffers: ThreadBuffers,
    pub(crate) delivery: Delivery,
    /// Memory that is freed goes back to the system.
    gives_back: bool,
}

impl ThreadState {
    pub(crate) fn new(shared: &SharedBuffers, gives_back: bool) -> Self {
        Self {
            buffers: ThreadBuffers::new(shared),
            delivery: Delivery::new(),
            gives_back,
        }
    }

    /// Sleeps until something happens, and tells what; not longer than `timeout`. Buffers are freed
    /// if nothing does for long.
    pub(crate) fn wait(
        &self,
        epoll: &OwnedFd,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let rests = timeout.is_none() && self.buffers.keep_some();
        wait(epoll, events, timeout.or(rests.then_some(REST)))?;
        if rests && events.is_empty() {
            self.buffers.free();
            if self.gives_back {
                adit_io::give_back_memory();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::epoll;

    use super::*;

    #[test]
    fn a_thread_that_rests_frees_its_buffers_and_one_that_does_not_keeps_them() {
        let shared = SharedBuffers::default();
        let thread = ThreadState::new(&shared, true);
        let buffers = &thread.buffers;
        let use_all = || {
            let outbound = &buffers.outbound;
            outbound.batches.give_back(outbound.batches.take());
            outbound.trains.give_back(outbound.trains.take());
            buffers.inbound.give_back(buffers.inbound.take());
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll descriptor");
        let mut events = Vec::with_capacity(1);
        let mut wait = |timeout| thread.wait(&epoll, &mut events, timeout).expect("a wait");
        use_all();
        // It helps another, or looks at something soon.
        for timeout in [Duration::ZERO, Duration::from_millis(1)] {
            wait(Some(timeout));
            assert!(buffers.keep_some());
        }
        wait(None);
        assert!(!buffers.keep_some());
    }
}
