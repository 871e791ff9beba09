//! A host: a network namespace of its own, and a thread that lives in it.
//!
//! The namespace has no name, so nothing can be left behind: it exists while the thread or a process that the thread
//! started exists. `/run` is the host's own too, so that two hosts can use the same interface name without their
//! control sockets meeting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, unshare};
use nix::unistd::{Pid, gettid};

use crate::process;
use crate::sandbox::Failure;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace, its mounts and its cores.
pub(crate) struct Host {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tid: Pid,
}

impl Host {
    /// A host whose processes and threads run on `core` only, or anywhere.
    pub(crate) fn new(core: Option<usize>) -> Result<Self, Failure> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("host".to_owned())
            .spawn(move || {
                let settled = settle(core);
                let failed = settled.is_err();
                let _ = ready.send(settled.map(|()| gettid()));
                if failed {
                    return;
                }
                for job in todo {
                    job();
                }
            })?;
        let tid = started.recv()??;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            tid,
        })
    }

    /// The thread by which `ip link set … netns` finds this host.
    pub(crate) fn tid(&self) -> i32 {
        self.tid.as_raw()
    }

    /// Does `work` inside the host and waits for it.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (done, result) = mpsc::channel();
        let job = move || {
            let outcome = catch_unwind(AssertUnwindSafe(work));
            let _ = done.send(outcome.unwrap_or_else(|_| Err("the work panicked".into())));
        };
        let jobs = self.jobs.as_ref().ok_or("the host is closed")?;
        jobs.send(Box::new(job)).map_err(|_| "the host is gone")?;
        result.recv().map_err(|_| "the host is gone")?
    }

    /// Starts a thread inside the host.
    pub(crate) fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Failure> {
        self.run(move || Ok(std::thread::Builder::new().spawn(work)?))
    }

    /// Starts a process inside the host.
    pub(crate) fn spawn(&self, mut command: Command) -> Result<Child, Failure> {
        self.run(move || {
            let program = command.get_program().to_string_lossy().into_owned();
            command
                .spawn()
                .map_err(|e| format!("{program}: {e}").into())
        })
    }

    /// Runs a command inside the host and returns what it printed.
    pub(crate) fn output(
        &self,
        program: &str,
        args: &[&str],
        limit: Duration,
    ) -> Result<String, Failure> {
        let child = self.spawn(process::command(program, args))?;
        process::output(program, child, limit)
    }

    /// Runs `ip` with space-separated arguments.
    pub(crate) fn ip(&self, args: &str) -> Result<(), Failure> {
        let words: Vec<&str> = args.split_whitespace().collect();
        self.output("ip", &words, Duration::from_secs(5))
            .map(drop)
            .map_err(|e| format!("ip {args}: {e}").into())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread its own network, mounts and cores.
fn settle(core: Option<usize>) -> Result<(), Failure> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    let nothing: Option<&str> = None;
    // Where the control sockets are; the same directory as /run on most systems.
    let run = std::fs::canonicalize("/var/run")?;
    mount(Some("lab"), &run, Some("tmpfs"), MsFlags::empty(), nothing)?;
    mount(
        Some("lab"),
        "/sys",
        Some("sysfs"),
        MsFlags::empty(),
        nothing,
    )?;
    if let Some(core) = core {
        let mut cores = CpuSet::new();
        cores.set(core)?;
        sched_setaffinity(Pid::from_raw(0), &cores)?;
    }
    Ok(())
}
