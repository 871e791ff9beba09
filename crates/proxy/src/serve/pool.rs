//! A few threads for what waits: names that are looked up, pages that are made.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use super::options::StartHook;

/// Jobs that wait for a thread.
const QUEUE: usize = 1024;
/// What the system's resolver needs, and more.
const STACK: usize = 256 << 10;

type WaitingJob = Box<dyn FnOnce() + Send>;

/// Threads that do jobs. They end some time after it was dropped: none of them is waited for.
pub(crate) struct WaitingPool(SyncSender<WaitingJob>);

impl WaitingPool {
    pub(crate) fn new(name: &str, threads: usize, on_start: Option<StartHook>) -> io::Result<Self> {
        let (sender, jobs) = sync_channel(QUEUE);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..threads {
            let (jobs, on_start) = (Arc::clone(&jobs), on_start.clone());
            let run = move || {
                if let Some(on_start) = on_start {
                    on_start();
                }
                work(&jobs);
            };
            thread::Builder::new()
                .name(name.to_owned())
                .stack_size(STACK)
                .spawn(run)?;
        }
        Ok(Self(sender))
    }

    /// Has a job done. False if too many wait.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.0.try_send(Box::new(job)).is_ok()
    }
}

fn work(jobs: &Mutex<Receiver<WaitingJob>>) {
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        // Its result is dropped, and the client that waits for it runs into its time limit.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}
