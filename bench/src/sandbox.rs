//! A run leaves nothing behind, however it ends.
//!
//! The command starts itself again as the first process of a PID namespace. Everything an
//! experiment starts lives in there, so when that process ends, for whatever reason, the kernel
//! ends all of it, and with the last process go the network namespaces. Ctrl-C and SIGTERM ask the
//! inner process to stop at the next step and to report what it has; if the outer process is killed
//! outright, the kernel kills the inner one too.

use std::env;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use adit_testbed::interrupt;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};

/// What an experiment fails with.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Tells the inner process that it is the inner one, and the number of the outer one.
const INSIDE: &str = "ADIT_LAB_INSIDE";
/// How long the inner process may take to report and stop.
const GRACE: Duration = Duration::from_secs(8);

/// Runs `body` in the sandbox and ends the process.
pub(crate) fn run(body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    if let Some(outer) = env::var_os(INSIDE).filter(|_| getpid() == Pid::from_raw(1)) {
        inside(&outer)?;
        return body();
    }
    let status = outside()?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    std::process::exit(code.unwrap_or(1));
}

/// Starts the inner process, hands signals on to it and waits.
fn outside() -> Result<ExitStatus, Failure> {
    interrupt::watch()?;
    unshare(CloneFlags::CLONE_NEWPID).map_err(|e| {
        format!("cannot make a PID namespace ({e}): the lab needs root (CAP_SYS_ADMIN)")
    })?;
    let mut child = Command::new("/proc/self/exe")
        .args(env::args_os().skip(1))
        .env(INSIDE, std::fs::read_link("/proc/self")?)
        .spawn()?;
    let mut asked = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if asked.is_none() && interrupt::interrupted() {
            signal(&child, Signal::SIGTERM);
            asked = Some(Instant::now());
        }
        if asked.is_some_and(|at| at.elapsed() > GRACE) {
            signal(&child, Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes the inner process's own view of processes and mounts.
fn inside(outer: &OsStr) -> Result<(), Failure> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The outer process may have been killed before that: no signal comes then.
    if outer.to_str() != Some(parent()?.as_str()) {
        return Err("the process that started this one is gone".into());
    }
    interrupt::watch()?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let nothing: Option<&str> = None;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )?;
    mount(
        Some("proc"),
        "/proc",
        Some("proc"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        nothing,
    )?;
    Ok(())
}

/// The number of the parent, as the namespace that `/proc` is of knows it: getppid(2) tells the
/// first process of a PID namespace nothing.
fn parent() -> Result<String, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
    let parent = fields.and_then(|fields| fields.split(' ').nth(1));
    Ok(parent.ok_or("/proc/self/stat has no parent")?.to_owned())
}

/// Sends a signal to a child that has not been waited for yet, so its number is still its own.
fn signal(child: &Child, signal: Signal) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
