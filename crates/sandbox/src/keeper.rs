//! The thread that keeps the system calls which others have given up.
//!
//! It is the only thread that can open a file, make a socket or start a thread, within the limits
//! of the whole process. It has no capability, as no thread of the process has. What is asked of it is a function of this program, not a message that
//! could say anything.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{OnceLock, mpsc};

type Job = Box<dyn FnOnce() + Send>;

static KEEPER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();

thread_local! {
    /// The calling thread has given up system calls.
    static IS_CONFINED: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn set_confined() {
    IS_CONFINED.set(true);
}

/// Starts it; it lives as long as the process.
pub(crate) fn start() -> io::Result<()> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let work = move || {
        for job in jobs {
            job();
        }
    };
    std::thread::Builder::new()
        .name("adit-keeper".into())
        .spawn(work)?;
    let _ = KEEPER.set(sender);
    Ok(())
}

/// The keeper, if the calling thread needs it.
fn keeper() -> Option<&'static mpsc::Sender<Job>> {
    KEEPER.get().filter(|_| IS_CONFINED.get())
}

/// Runs `job` where its system calls are allowed, and waits for its result: on this thread, unless it
/// is confined. A panic in `job` continues in the caller.
///
/// `job` must wait for no other thread, which might wait for the keeper. [`aside`] is for one that
/// does.
pub fn run<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    match keeper() {
        Some(keeper) => ask(keeper, job, |job| job()),
        None => job(),
    }
}

/// Runs `job` as [`run`] does, but on a thread of its own, so that it may wait for others.
///
/// # Errors
///
/// No thread could be started.
pub fn aside<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let Some(keeper) = keeper() else {
        return Ok(job());
    };
    let spawned = |job: Job| {
        let builder = std::thread::Builder::new().name("adit-aside".into());
        // Without a thread the job is dropped, and with it where its result would go.
        drop(builder.spawn(job));
    };
    let (answer, result) = mpsc::sync_channel(1);
    send(keeper, answer, job, spawned);
    match result.recv() {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(io::Error::other("no thread could be started")),
    }
}

/// Has `job` run where its system calls are allowed, and does not wait.
pub fn post(job: impl FnOnce() + Send + 'static) {
    match keeper() {
        Some(keeper) => drop(keeper.send(Box::new(|| {
            // A panic has been reported, and nobody waits for anything.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }))),
        None => job(),
    }
}

/// Has `job` run where the rights for it are, on a thread of its own, and does not wait. Without
/// memory for a thread `job` is dropped.
pub fn post_aside(job: impl FnOnce() + Send + 'static) {
    post(move || {
        let builder = std::thread::Builder::new().name("adit-aside".into());
        drop(builder.spawn(job));
    });
}

fn ask<T: Send + 'static>(
    keeper: &mpsc::Sender<Job>,
    job: impl FnOnce() -> T + Send + 'static,
    start: fn(Job),
) -> T {
    let (answer, result) = mpsc::sync_channel(1);
    send(keeper, answer, job, start);
    match result.recv() {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => unreachable!("the keeper answers, and lives as long as the process"),
    }
}

fn send<T: Send + 'static>(
    keeper: &mpsc::Sender<Job>,
    answer: mpsc::SyncSender<std::thread::Result<T>>,
    job: impl FnOnce() -> T + Send + 'static,
    start: impl FnOnce(Job) + Send + 'static,
) {
    let job: Job = Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(job));
        let _ = answer.send(result);
    });
    let _ = keeper.send(Box::new(move || start(job)));
}
