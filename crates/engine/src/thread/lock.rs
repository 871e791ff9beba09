//! A lock that a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what no thread leaves half-changed: a panic elsewhere does not make it unusable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
