//! The threads of the process that have a work of their own.

use std::sync::{Mutex, PoisonError};

use rustix::thread::{Pid, gettid};

static THREADS: Mutex<Vec<(String, Pid)>> = Mutex::new(Vec::new());

/// Has the calling thread be known by a name. [`confine`](crate::confine) does it with the name that
/// the thread has.
pub fn register(name: &str) {
    let own = gettid();
    retain_threads(|_, thread| thread != own);
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    threads.push((name.to_owned(), own));
}

/// Looks at all threads that are known, by their names, and forgets those that it says have ended.
pub fn retain_threads(mut look: impl FnMut(&str, Pid) -> bool) {
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    threads.retain(|(name, thread)| look(name, *thread));
}
