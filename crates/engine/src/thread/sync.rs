//! Locks and atomics of ordered queues and of their ownership: the standard library's, or, in a build
//! with `--cfg loom`, those of [loom](https://docs.rs/loom), whose scheduler tries every interleaving.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// An `Arc` that is replaced while others read it.
#[cfg(not(loom))]
pub(crate) type Swap<T> = arc_swap::ArcSwap<T>;

/// The same in a model. The `Mutex` is the standard library's, so it orders nothing there.
#[cfg(loom)]
pub(crate) struct Swap<T> {
    all: std::sync::Mutex<Vec<std::sync::Arc<T>>>,
    current: AtomicUsize,
}

#[cfg(loom)]
impl<T> Swap<T> {
    pub(crate) fn new(first: std::sync::Arc<T>) -> Self {
        Self {
            all: std::sync::Mutex::new(vec![first]),
            current: AtomicUsize::new(0),
        }
    }

    pub(crate) fn load_full(&self) -> std::sync::Arc<T> {
        let current = self.current.load(Ordering::Acquire);
        self.all.lock().expect("no panic")[current].clone()
    }

    pub(crate) fn store(&self, next: std::sync::Arc<T>) {
        let mut all = self.all.lock().expect("no panic");
        all.push(next);
        let current = all.len() - 1;
        drop(all);
        self.current.store(current, Ordering::Release);
    }
}

/// Locks what no thread leaves half-changed: a panic elsewhere does not make it unusable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, unless another thread has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
