//! Threads that load something until they are asked to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use adit_testbed::Host;
use adit_testbed::interrupt::interrupted;

use crate::sandbox::Failure;

/// Asks threads to end.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn goes_on(&self) -> bool {
        !self.0.load(Relaxed) && !interrupted()
    }
}

/// Threads, which end when this goes at the latest.
pub(crate) struct Threads<T> {
    stop: Stop,
    all: Vec<JoinHandle<T>>,
}

impl<T: Send + 'static> Threads<T> {
    pub(crate) fn new() -> Self {
        Self {
            stop: Stop::default(),
            all: Vec::new(),
        }
    }

    /// Starts one more, on a host.
    pub(crate) fn start(
        &mut self,
        at: &Host,
        work: impl FnOnce(&Stop) -> T + Send + 'static,
    ) -> Result<(), Failure> {
        let stop = self.stop.clone();
        self.all.push(at.thread(move || work(&stop))?);
        Ok(())
    }

    /// Ends them: what each has found, in their order.
    pub(crate) fn finish(mut self) -> Result<Vec<T>, Failure> {
        self.stop.0.store(true, Relaxed);
        let joined: Vec<_> = self.all.drain(..).map(JoinHandle::join).collect();
        let found = joined.into_iter();
        let found = found.map(|it| it.map_err(|_| "a thread of the lab failed".into()));
        found.collect()
    }
}

impl<T> Drop for Threads<T> {
    fn drop(&mut self) {
        self.stop.0.store(true, Relaxed);
        for thread in self.all.drain(..) {
            let _ = thread.join();
        }
    }
}
