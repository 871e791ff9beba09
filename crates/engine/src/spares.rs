//! Buffers that are kept for the next batch.

use std::sync::Mutex;

use crate::lock::lock;

/// So many are kept: one for each of several threads. The others are freed.
const MAX_KEPT: usize = 8;

/// Buffers of one kind that the threads of a process share. They are made when first needed: light
/// traffic touches few.
pub(crate) struct Spares<B>(Mutex<Vec<Box<B>>>);

impl<B> Default for Spares<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B: Default> Spares<B> {
    /// The one that was used last, which is most likely in a cache.
    pub(crate) fn take(&self) -> Box<B> {
        let kept = lock(&self.0).pop();
        kept.unwrap_or_default()
    }

    pub(crate) fn put(&self, buffer: Box<B>) {
        let mut kept = lock(&self.0);
        if kept.len() < MAX_KEPT {
            kept.push(buffer);
        }
    }
}
