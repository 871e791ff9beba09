//! A run leaves nothing behind, however it ends.
//!
//! The command starts itself again as the first process of a PID namespace. Everything an experiment starts lives in
//! there, so when that process ends, for whatever reason, the kernel ends all of it, and with the last process go the
//! network namespaces. Ctrl-C and SIGTERM ask the inner process to stop at the next step and to report what it has;
//! if the outer process is killed outright, the kernel kills the inner one too.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What an experiment fails with.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Tells the inner process that it is the inner one.
const INSIDE: &str = "ADIT_LAB_INSIDE";
/// How long the inner process may take to report and stop.
const GRACE: Duration = Duration::from_secs(8);

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether the user asked the run to end. Every loop and every wait looks here.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED
        .get()
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// An error if the user asked the run to end.
pub(crate) fn check() -> Result<(), Failure> {
    if interrupted() {
        return Err("interrupted".into());
    }
    Ok(())
}

/// Runs `body` in the sandbox and ends the process.
pub(crate) fn run(body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    if env::var_os(INSIDE).is_some() && getpid() == Pid::from_raw(1) {
        inside()?;
        return body();
    }
    let status = outside()?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    std::process::exit(code.unwrap_or(1));
}

/// Starts the inner process, hands signals on to it and waits.
fn outside() -> Result<ExitStatus, Failure> {
    let flag = watch_signals()?;
    unshare(CloneFlags::CLONE_NEWPID).map_err(|e| {
        format!("cannot make a PID namespace ({e}): the lab needs root (CAP_SYS_ADMIN)")
    })?;
    let mut child = Command::new("/proc/self/exe")
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .spawn()?;
    let mut asked = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if asked.is_none() && flag.load(Ordering::Relaxed) {
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
fn inside() -> Result<(), Failure> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let flag = watch_signals()?;
    INTERRUPTED.set(flag).map_err(|_| "entered twice")?;
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

fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Sends a signal to a child that has not been waited for yet, so its number is still its own.
pub(crate) fn signal(child: &Child, signal: Signal) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
