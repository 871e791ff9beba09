//! Threads for what waits: names that are looked up, pages that are made.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use super::options::StartHook;

/// Jobs that wait for a thread.
const QUEUE: usize = 1024;
/// What the system's resolver needs, and more.
const STACK: usize = 256 << 10;

type WaitingJob = Box<dyn FnOnce() + Send>;
/// For whom a job is: a host, or this one.
type JobOwner = Option<IpAddr>;

/// Threads that do jobs, of which one asker has three quarters at most, and half of the queue. They end some time
/// after it was dropped: none of them is waited for.
pub(crate) struct WaitingPool(Arc<PoolQueue>);

struct PoolQueue {
    state: Mutex<PoolState>,
    wake: Condvar,
    /// Jobs of one asker that are done at a time.
    share: usize,
}

#[derive(Default)]
struct PoolState {
    waiting: VecDeque<(JobOwner, WaitingJob)>,
    /// Jobs that are being done.
    running: HashMap<JobOwner, usize>,
    has_ended: bool,
}

impl WaitingPool {
    pub(crate) fn new(name: &str, threads: usize, on_start: Option<StartHook>) -> io::Result<Self> {
        let queue = Arc::new(PoolQueue {
            state: Mutex::default(),
            wake: Condvar::new(),
            share: threads - threads / 4,
        });
        let pool = Self(Arc::clone(&queue));
        for _ in 0..threads {
            let (queue, on_start) = (Arc::clone(&queue), on_start.clone());
            let run = move || {
                if let Some(on_start) = on_start {
                    on_start();
                }
                queue.work();
            };
            thread::Builder::new()
                .name(name.to_owned())
                .stack_size(STACK)
                .spawn(run)?;
        }
        Ok(pool)
    }

    /// Has a job done. False if too many wait.
    pub(crate) fn run(&self, asker: JobOwner, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.lock();
        let of_asker = state.waiting.iter().filter(|(it, _)| *it == asker).count();
        if state.waiting.len() >= QUEUE || of_asker >= QUEUE / 2 {
            return false;
        }
        state.waiting.push_back((asker, Box::new(job)));
        self.0.wake.notify_one();
        true
    }
}

impl PoolQueue {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.has_ended {
            let Some((asker, job)) = state.next(self.share) else {
                let waited = self.wake.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            // Its result is dropped, and the client that waits for it runs into its time limit.
            let _ = catch_unwind(AssertUnwindSafe(job));
            state = self.lock();
            state.done(asker);
        }
    }
}

impl PoolState {
    /// The first job of an asker that has not its share.
    fn next(&mut self, share: usize) -> Option<(JobOwner, WaitingJob)> {
        let running = &self.running;
        let may_run = |(asker, _): &(JobOwner, WaitingJob)| {
            running.get(asker).is_none_or(|running| *running < share)
        };
        let at = self.waiting.iter().position(may_run)?;
        let (asker, job) = self.waiting.remove(at)?;
        *self.running.entry(asker).or_default() += 1;
        Some((asker, job))
    }

    fn done(&mut self, asker: JobOwner) {
        if let Some(running) = self.running.get_mut(&asker) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&asker);
            }
        }
    }
}

impl Drop for WaitingPool {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_ended = true;
        let dropped = std::mem::take(&mut state.waiting);
        drop(state);
        drop(dropped);
        self.0.wake.notify_all();
    }
}
