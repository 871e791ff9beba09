//! `adit upgrade`: has this program go on in place of the processes that run, without a handshake.
//!
//! 1. find the processes, by their sockets in /run/adit/upgrade;
//! 2. start this program once for each, which takes over all of its interfaces (`run/hand_over`);
//! 3. where an `adit up --foreground` watches over the process, ask that one to do it: the new process
//!    has to be its child.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_ctl::status;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::MetadataExt;

use crate::cli::{RunArgs, UpgradeArgs};
use crate::failure::{Context, Failure, Result, bail, say};
use crate::run::hand_over::{Channel, DIR, Description, describe, sockets};
use crate::run::start_program;

/// How long a supervisor may take.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn upgrade(args: &UpgradeArgs) -> Result<()> {
    let running = processes();
    let (known, missing): (Vec<_>, Vec<_>) = (args.interfaces.iter())
        .partition(|name| running.iter().any(|it| it.interfaces.contains(name)));
    let asked = |it: &&Description| {
        known.is_empty() && missing.is_empty()
            || known.iter().any(|name| it.interfaces.contains(name))
    };
    let program = program()?;
    let mut failed = false;
    for old in running.iter().filter(asked) {
        if args.if_replaced && old.program == program {
            continue;
        }
        match replace(old, program) {
            Ok(pid) => say!(
                "adit: {}: process {pid} goes on in place of {} (Adit {} in place of {})",
                old.interfaces.join(" "),
                old.pid,
                env!("CARGO_PKG_VERSION"),
                old.version
            ),
            Err(failure) => {
                failed = true;
                let names = old.interfaces.join(" ");
                say!("adit: {names}: process {} goes on: {failure}", old.pid);
            }
        }
    }
    for name in &missing {
        failed |= !args.if_replaced;
        say!(
            "adit: no process of this user serves {name} and can hand it over: an older Adit cannot. Start it anew \
             (`adit down`, `adit up`, or `systemctl restart adit@{name}`)"
        );
    }
    match failed {
        true => Err(Failure::Reported),
        false => Ok(()),
    }
}

/// Device and inode of this program.
fn program() -> Result<(u64, u64)> {
    let found =
        std::fs::metadata("/proc/self/exe").context(|| "cannot find this program".into())?;
    Ok((found.dev(), found.ino()))
}

fn directory() -> PathBuf {
    Path::new(status::DIR).join(DIR)
}

/// What each process says of itself.
fn processes() -> Vec<Description> {
    let found = sockets(&directory()).into_iter();
    let mut known: Vec<_> = found.filter_map(|(path, _)| ask(&path).ok()).collect();
    known.sort_by(|a, b| a.interfaces.cmp(&b.interfaces));
    known
}

fn ask(path: &Path) -> Result<Description> {
    let mut channel = Channel::connect(path).context(|| "cannot ask".into())?;
    describe(&mut channel)
}

/// Returns the process that goes on.
fn replace(old: &Description, program: (u64, u64)) -> Result<i32> {
    if let Some(why) = &old.refuses {
        bail!(State, "{why}");
    }
    match old.supervisor {
        None => start(old),
        Some(supervisor) => ask_supervisor(old, supervisor, program),
    }
}

fn start(old: &Description) -> Result<i32> {
    let args = RunArgs {
        interfaces: old.interfaces.clone(),
        take_over: Some(old.pid),
        ..RunArgs::default()
    };
    let child = start_program(Path::new("/proc/self/exe"), &args, &old.environment)?;
    i32::try_from(child.id()).context(|| "cannot tell the new process".into())
}

/// Asks an `adit up --foreground`, which starts the program that stands where its own did.
fn ask_supervisor(old: &Description, supervisor: i32, program: (u64, u64)) -> Result<i32> {
    let pid = Pid::from_raw(supervisor).ok_or_else(|| Failure::State("it has no parent".into()))?;
    kill_process(pid, Signal::USR2)
        .context(|| format!("cannot ask `adit up --foreground`, process {supervisor}"))?;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
        let new = processes().into_iter().find(|it| {
            it.pid != old.pid && (old.interfaces.iter()).any(|name| it.interfaces.contains(name))
        });
        match new {
            Some(new) if new.program == program => return Ok(new.pid),
            Some(new) => bail!(
                State,
                "process {} goes on in its place, of another program than this one: the one that stands where \
                 `adit up --foreground` was started from",
                new.pid
            ),
            None => {}
        }
    }
    bail!(
        State,
        "`adit up --foreground`, process {supervisor}, did not replace it; its log says why"
    )
}
