//! What debug builds, and so the tests, check of the progress of batches: whoever has a ticket goes
//! on until it is filed or another thread has it.
//!
//! A thread that sleeps with a ticket stops the queue: what is behind it waits for that thread. Such
//! a thread panics when it is about to sleep, and says its name and the ticket.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

thread_local! {
    /// The tickets that the calling thread has.
    static HELD: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread has this ticket.
pub(crate) fn takes(ticket: u64) {
    HELD.with_borrow_mut(|held| held.push(ticket));
}

/// It has it no longer.
pub(crate) fn lets_go(ticket: u64) {
    HELD.with_borrow_mut(|held| {
        if let Some(at) = held.iter().position(|of| *of == ticket) {
            held.swap_remove(at);
        }
    });
}

/// The calling thread is about to sleep.
pub(crate) fn sleeps() {
    let held = HELD.with_borrow(Vec::clone);
    let this = thread::current();
    let name = this.name().unwrap_or("a thread");
    assert!(
        held.is_empty(),
        "{name} goes to sleep with ticket {held:?}: what was taken after it waits"
    );
}

type Pause = Box<dyn Fn(&str) + Send + Sync>;

static PAUSE: OnceLock<Pause> = OnceLock::new();
static CPUS_ARE_IDLE: AtomicBool = AtomicBool::new(false);
static SPLITS: AtomicUsize = AtomicUsize::new(0);
static SEND_GATES: AtomicUsize = AtomicUsize::new(0);

/// Has every thread call this, with its name, each time that it has taken a batch and has not
/// worked on it: where a scheduler that stops it does most harm. To be called once in a process.
pub fn pause_with(pause: impl Fn(&str) + Send + Sync + 'static) {
    let _ = PAUSE.set(Box::new(pause));
}

/// Has threads help as if there were a CPU for each, however busy this machine is.
pub fn assume_idle_cpus() {
    CPUS_ARE_IDLE.store(true, Ordering::Relaxed);
}

/// Has threads send through so many second gates, however many they are; 0: as many as are of use.
pub fn send_through(gates: usize) {
    SEND_GATES.store(gates, Ordering::Relaxed);
}

pub(crate) fn send_gates() -> Option<usize> {
    Some(SEND_GATES.load(Ordering::Relaxed)).filter(|gates| *gates > 0)
}

/// A batch was split, to be sent by several threads.
pub(crate) fn count_split() {
    SPLITS.fetch_add(1, Ordering::Relaxed);
}

/// How many batches were, by this process.
pub fn splits() -> usize {
    SPLITS.load(Ordering::Relaxed)
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
