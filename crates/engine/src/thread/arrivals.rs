//! Things that are posted to a thread, until the thread has ended.

use std::sync::Mutex;

use crate::thread::lock::lock;

/// Things that wait for a thread to take them over.
pub(crate) struct Arrivals<Q>(Mutex<Option<Vec<Q>>>);

impl<Q> Default for Arrivals<Q> {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl<Q> Arrivals<Q> {
    /// Posts something to the thread, which is then to be woken. If the thread has ended, the
    /// thing is dropped.
    pub(crate) fn post(&self, arrival: Q) {
        // Dropped without the lock.
        let _refused = match &mut *lock(&self.0) {
            Some(waiting) => {
                waiting.push(arrival);
                None
            }
            None => Some(arrival),
        };
    }

    pub(crate) fn take(&self) -> Vec<Q> {
        lock(&self.0)
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Whether the thread has ended.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0).is_none()
    }

    /// The thread ends: nothing more is taken over.
    pub(crate) fn close(&self) {
        let waiting = lock(&self.0).take();
        drop(waiting);
    }
}
