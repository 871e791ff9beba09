//! Checks of the progress of batches in debug builds, and so in tests: a thread that has a sequence number goes
//! on until it is filed or another thread has it.
//!
//! A thread that sleeps with a sequence number stops the queue: what is behind it waits for that thread. Such
//! a thread panics when it is about to sleep, and says its name and the sequence number.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

thread_local! {
    /// The sequence numbers that the calling thread has.
    static HELD: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread has this sequence number.
pub(crate) fn takes(sequence: u64) {
    HELD.with_borrow_mut(|held| held.push(sequence));
}

/// Notes that the calling thread has it no longer.
pub(crate) fn lets_go(sequence: u64) {
    HELD.with_borrow_mut(|held| {
        if let Some(at) = held.iter().position(|of| *of == sequence) {
            held.swap_remove(at);
        }
    });
}

/// The calling thread panicked with what it had: nobody has that any more.
pub(crate) fn panicked() {
    HELD.with_borrow_mut(Vec::clear);
}

/// The calling thread is about to sleep.
pub(crate) fn sleeps() {
    let held = HELD.with_borrow(Vec::clone);
    let this = thread::current();
    let name = this.name().unwrap_or("a thread");
    assert!(
        held.is_empty(),
        "{name} goes to sleep with sequence number {held:?}: what was taken after it waits"
    );
}

type Pause = Box<dyn Fn(&str) + Send + Sync>;

static PAUSE: OnceLock<Pause> = OnceLock::new();
static CPUS_ARE_IDLE: AtomicBool = AtomicBool::new(false);
static SPLITS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
static PUT_BY: AtomicUsize = AtomicUsize::new(0);

/// Has every thread call this, with its name, each time that it has taken a batch and has not
/// worked on it: where a scheduler that stops it does most harm. To be called once in a process.
pub fn pause_with(pause: impl Fn(&str) + Send + Sync + 'static) {
    let _ = PAUSE.set(Box::new(pause));
}

/// Has threads help as if there were a CPU for each, however busy this machine is.
pub fn assume_idle_cpus() {
    CPUS_ARE_IDLE.store(true, Ordering::Relaxed);
}

/// Has batches split as if so many threads commit at the same time; 0: as many as there are.
pub fn commit_as_by(threads: usize) {
    PUT_BY.store(threads, Ordering::Relaxed);
}

pub(crate) fn commit_by() -> Option<usize> {
    Some(PUT_BY.load(Ordering::Relaxed)).filter(|threads| *threads > 0)
}

/// A batch was split, to be committed by several threads.
pub(crate) fn count_split(is_inbound: bool) {
    SPLITS[usize::from(is_inbound)].fetch_add(1, Ordering::Relaxed);
}

/// How many batches were, by this process: outbound and inbound.
pub fn splits() -> [usize; 2] {
    [0, 1].map(|at| SPLITS[at].load(Ordering::Relaxed))
}

/// Calls what [`pause_with`] was given.
pub(crate) fn pause() {
    if let Some(pause) = PAUSE.get() {
        pause(thread::current().name().unwrap_or_default());
    }
}

pub(crate) fn cpus_are_idle() -> bool {
    CPUS_ARE_IDLE.load(Ordering::Relaxed)
}
