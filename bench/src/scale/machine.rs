//! What this machine takes for two cores to work together: waking a thread, fetching what another
//! core wrote, and being busy at the same time.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use adit_testbed::stats::{median, to_f64};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

use super::memory;
use crate::sandbox::Failure;

/// Bytes of a batch that one core hands to another.
const BATCH: usize = 256 << 10;
const TIMES: usize = 400;

/// What two cores cost each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Cores {
    /// From waking a thread that sleeps until it runs.
    pub(super) wake_ns: f64,
    /// What waking costs the thread that does it.
    pub(super) wake_call_ns: f64,
    /// Changing a byte that another core wrote, more than one that this core wrote.
    pub(super) fetch_ns_per_byte: f64,
    /// The speed of a core beside another one that is busy, over that of one alone.
    pub(super) side_by_side: f64,
}

impl Cores {
    pub(super) fn measure() -> Result<Self, Failure> {
        let (wake_ns, wake_call_ns) = wake()?;
        Ok(Self {
            wake_ns,
            wake_call_ns,
            fetch_ns_per_byte: fetch()?,
            side_by_side: memory::side_by_side()?,
        })
    }

    /// Each value is the median of those of all rounds.
    pub(super) fn median(rounds: &[Self]) -> Option<Self> {
        let of = |value: fn(&Self) -> f64| {
            let values: Vec<f64> = rounds.iter().map(value).collect();
            median(&values)
        };
        Some(Self {
            wake_ns: of(|cores| cores.wake_ns)?,
            wake_call_ns: of(|cores| cores.wake_call_ns)?,
            fetch_ns_per_byte: of(|cores| cores.fetch_ns_per_byte)?,
            side_by_side: of(|cores| cores.side_by_side)?,
        })
    }
}

fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e9
}

/// Two CPUs that this thread may use, or one twice. A thread that is bound to one starts others there.
fn two_cpus() -> Result<[usize; 2], Failure> {
    let usable = sched_getaffinity(Pid::from_raw(0))?;
    let mut all = (0..CpuSet::count()).filter(|&cpu| usable.is_set(cpu).unwrap_or(false));
    let first = all.next().ok_or("there is no CPU")?;
    Ok([first, all.next().unwrap_or(first)])
}

/// Runs this on a thread of its own, on this CPU.
fn on_cpu<T: Send + 'static>(
    cpu: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let mut one = CpuSet::new();
        // Where that is not allowed, the kernel chooses.
        if one.set(cpu).is_ok() {
            let _ = sched_setaffinity(Pid::from_raw(0), &one);
        }
        work()
    })
}

fn join<T>(thread: JoinHandle<T>) -> Result<T, Failure> {
    thread.join().map_err(|_| "a thread panicked".into())
}

/// Two threads wake each other in turn.
fn wake() -> Result<(f64, f64), Failure> {
    let [near, far] = two_cpus()?;
    join(on_cpu(near, move || wake_on(far)))?
}

fn wake_on(cpu: usize) -> Result<(f64, f64), Failure> {
    let (mut near, mut far) = UnixStream::pair()?;
    let answering = on_cpu(cpu, move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    });
    let (mut trips, mut calls) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let begun = Instant::now();
        near.write_all(&[0])?;
        calls.push(nanoseconds(begun));
        near.read_exact(&mut [0])?;
        trips.push(nanoseconds(begun) / 2.0);
    }
    drop(near);
    join(answering)?;
    let both = median(&trips).zip(median(&calls));
    both.ok_or_else(|| "nothing was measured".into())
}

/// A thread changes what it wrote itself, and what another one wrote.
fn fetch() -> Result<f64, Failure> {
    let [near, far] = two_cpus()?;
    join(on_cpu(near, move || fetch_from(far)))?
}

fn fetch_from(cpu: usize) -> Result<f64, Failure> {
    let (to, from_here) = mpsc::channel::<Vec<u64>>();
    let (back, from_there) = mpsc::channel::<Vec<u64>>();
    let writing = on_cpu(cpu, move || {
        for (mut batch, value) in from_here.into_iter().zip(0..) {
            batch.fill(value);
            if back.send(batch).is_err() {
                return;
            }
        }
    });
    let change = |batch: &mut [u64]| {
        let begun = Instant::now();
        for word in &mut *batch {
            *word ^= 0x5a;
        }
        std::hint::black_box(batch);
        nanoseconds(begun)
    };
    let mut batch = vec![0_u64; BATCH / 8];
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for value in 0..TIMES as u64 {
        batch.fill(value);
        std::hint::black_box(&mut batch);
        own.push(change(&mut batch));
        to.send(batch).map_err(|_| "a thread ended")?;
        batch = from_there.recv()?;
        others.push(change(&mut batch));
    }
    drop(to);
    join(writing)?;
    let both = median(&own).zip(median(&others));
    let (own, others) = both.ok_or("nothing was measured")?;
    Ok((others - own).max(0.0) / to_f64(BATCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_work_together_have_a_cpu_each() {
        let [near, far] = two_cpus().unwrap();
        let several = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        assert_eq!(near != far, several);
        let nested = join(on_cpu(near, move || join(on_cpu(far, two_cpus)).unwrap())).unwrap();
        assert_eq!(
            nested.unwrap(),
            [far, far],
            "the other one is bound to its own"
        );
    }

    #[test]
    fn waking_a_thread_takes_time_and_fetching_takes_no_less_than_none() {
        let (wake, call) = wake().unwrap();
        assert!(wake > 0.0 && call > 0.0);
        assert!(fetch().unwrap() >= 0.0);
    }
}
