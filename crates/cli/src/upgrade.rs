//! `adit upgrade`: has this program go on in place of the processes that run, without a handshake.
//!
//! 1. find the processes, by their sockets in /run/adit/upgrade;
//! 2. start this program once for each, which takes over all of its interfaces (`run/hand_over`);
//! 3. where an `adit up --foreground` watches over the process, ask that one to do it: the new process
//!    has to be its child.
//!
//! The processes may be in the hands of an intruder, and this command has rights that they gave up.
//! Which process answers, its user and its parent, the kernel tells. What a process says of itself is
//! checked when it is read (`run/hand_over/messages.rs`).

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_ctl::status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;

use crate::cli::{OutputArgs, RunArgs, UpgradeArgs};
use crate::failure::{Context, Failure, Result, bail, say};
use crate::quick;
use crate::run::hand_over::{Channel, Description, describe, own_namespace};
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
    let (mut failed, mut upgraded) = (false, Vec::new());
    for old in running.iter().filter(asked) {
        if args.if_replaced && old.program == program {
            continue;
        }
        match replace(old, program, args.no_sandbox) {
            Ok(pid) => upgraded.push(Upgraded::new(old, pid, args.said)),
            Err(failure) => {
                failed = true;
                let names = old.interfaces.join(" ");
                say!("adit: {names}: process {} goes on: {failure}", old.pid);
            }
        }
    }
    let has_nothing = running.is_empty() && missing.is_empty() && !args.if_replaced;
    if has_nothing && !args.said.quiet && !args.said.json {
        say!("adit: no process of this user serves an interface: `adit up NAME` starts one");
    }
    for name in &missing {
        failed |= !args.if_replaced;
        say!(
            "adit: no process of this user serves {name} and can hand it over: an older Adit cannot. Start it anew \
             (`adit down`, `adit up`, or `systemctl restart adit@{name}`)"
        );
    }
    if args.said.json {
        quick::print_json(&UpgradeDone {
            schema: 1,
            done: "upgraded",
            processes: upgraded,
        })?;
    }
    match failed {
        true => Err(Failure::Reported),
        false => Ok(()),
    }
}

/// What was done, as JSON.
#[derive(Serialize)]
struct UpgradeDone<'a> {
    schema: u32,
    done: &'a str,
    processes: Vec<Upgraded<'a>>,
}

/// A process that goes on in place of another one.
#[derive(Serialize)]
struct Upgraded<'a> {
    interfaces: &'a [String],
    pid: i32,
    old_pid: i32,
    version: &'a str,
    old_version: &'a str,
}

impl<'a> Upgraded<'a> {
    /// Says so to a person at once.
    fn new(old: &'a Description, pid: i32, said: OutputArgs) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        if !said.quiet && !said.json {
            say!(
                "adit: {}: process {pid} goes on in place of {} (Adit {version} in place of {}): `adit show` shows it",
                old.interfaces.join(" "),
                old.pid,
                old.version
            );
        }
        Self {
            interfaces: &old.interfaces,
            pid,
            old_pid: old.pid,
            version,
            old_version: &old.version,
        }
    }
}

/// Device and inode of this program.
fn program() -> Result<(u64, u64)> {
    let found =
        std::fs::metadata("/proc/self/exe").context(|| "cannot find this program".into())?;
    Ok((found.dev(), found.ino()))
}

fn directory() -> PathBuf {
    Path::new(status::DIR).join(adit_io::UPGRADE_DIR)
}

/// Descriptions of each process of this user.
fn processes() -> Vec<Description> {
    let found = adit_io::sockets(&directory()).into_iter();
    let mut known: Vec<_> = found.filter_map(|(_, pid)| ask(pid).ok()).collect();
    known.sort_by(|a, b| a.interfaces.cmp(&b.interfaces));
    known
}

fn ask(pid: i32) -> Result<Description> {
    describe(&mut Channel::connect(&directory(), pid)?)
}

/// Returns the process that goes on.
fn replace(old: &Description, program: (u64, u64), no_sandbox: bool) -> Result<i32> {
    if let Some(why) = &old.refuses {
        bail!(State, "{why}");
    }
    match (supervisor(old.pid)?, old.supervisor) {
        (Some(supervisor), _) => ask_supervisor(old, &supervisor, program),
        (None, None) => start(old, no_sandbox),
        (None, Some(other)) => bail!(
            State,
            "it says that `adit up --foreground`, process {other}, watches over it, which is not its parent"
        ),
    }
}

fn start(old: &Description, no_sandbox: bool) -> Result<i32> {
    // What it opens later, it opens in its own namespace.
    if let (Some(own), Some(other)) = (own_namespace(), old.namespace)
        && own != other
    {
        bail!(
            State,
            "it runs in another network namespace: `nsenter -t {} -n adit upgrade {}`",
            old.pid,
            old.interfaces.join(" ")
        );
    }
    let args = RunArgs {
        interfaces: old.interfaces.clone(),
        take_over: Some(old.pid),
        no_sandbox,
        ..RunArgs::default()
    };
    let child = start_program(Path::new("/proc/self/exe"), &args, &old.environment())?;
    i32::try_from(child.id()).context(|| "cannot tell the new process".into())
}

/// An `adit up --foreground`.
struct Supervisor {
    pid: i32,
    handle: OwnedFd,
}

/// The parent of a process, if it is an `adit up --foreground`.
fn supervisor(pid: i32) -> Result<Option<Supervisor>> {
    let failed = || format!("cannot tell the parent of process {pid}");
    let parent = parent(pid).context(failed)?;
    let Some(number) = (parent > 0).then(|| Pid::from_raw(parent)).flatten() else {
        return Ok(None);
    };
    let handle = pidfd_open(number, PidfdFlags::empty()).context(failed)?;
    // A parent that ends is the parent no more: the handle is of this one.
    let is_same = self::parent(pid).context(failed)? == parent;
    Ok((is_same && awaits_upgrades(parent)).then_some(Supervisor {
        pid: parent,
        handle,
    }))
}

/// The parent of a process: the second field behind the name, which may have any characters.
fn parent(pid: i32) -> std::io::Result<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let parent = fields.split_whitespace().nth(1);
    let parent = parent.and_then(|parent| parent.parse().ok());
    parent.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Whether a process catches the signal, which would end another one, or worse: it turns a machine
/// off where an init(8) gets it.
fn awaits_upgrades(pid: i32) -> bool {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let (arguments, status) = (read("cmdline"), read("status"));
    let is_up = arguments.split('\0').skip(1).any(|word| word == "up");
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok());
    let signal = 1 << (Signal::USR2.as_raw() - 1);
    is_up && caught.is_some_and(|caught| caught & signal != 0)
}

/// Asks an `adit up --foreground`, which starts the program that stands where its own did.
fn ask_supervisor(old: &Description, supervisor: &Supervisor, program: (u64, u64)) -> Result<i32> {
    let Supervisor { pid, handle } = supervisor;
    pidfd_send_signal(handle, Signal::USR2)
        .context(|| format!("cannot ask `adit up --foreground`, process {pid}"))?;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
        let new = processes().into_iter().find(|it| {
            it.pid != old.pid
                && (old.interfaces.iter()).any(|name| it.interfaces.contains(name))
                && parent(it.pid).is_ok_and(|parent| parent == *pid)
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
        "`adit up --foreground`, process {pid}, did not replace it; its log says why"
    )
}

/// Ends the process that serves an interface, as its socket and the kernel tell which one that is. The
/// interface goes with it, wherever it is.
pub(crate) fn end(interface: &str) -> Result<()> {
    adit_ctl::config::check_name(interface).map_err(Failure::Mistake)?;
    let path = Path::new(status::DIR).join(format!("{interface}.sock"));
    let failed = || format!("cannot end the process of {interface}");
    // Who may write there must not choose another process by a link.
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|found| found.file_type().is_socket());
    let socket = adit_ctl::connect(&path, PATIENCE).context(failed)?;
    let (pid, _) = adit_io::peer(socket.as_fd()).context(failed)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if !is_socket || name.trim() != "adit" {
        bail!(
            State,
            "the process {pid}, which serves {interface}, is no Adit"
        );
    }
    let process = adit_io::peer_process(socket.as_fd()).or_else(|_| {
        let pid = (pid > 0).then(|| Pid::from_raw(pid)).flatten();
        let pid = pid.ok_or_else(|| std::io::Error::other("it is in another PID namespace"))?;
        Ok::<_, std::io::Error>(pidfd_open(pid, PidfdFlags::empty())?)
    });
    let process = process.context(failed)?;
    pidfd_send_signal(&process, Signal::TERM).context(failed)?;
    let patience = Timespec::try_from(PATIENCE).ok();
    match poll(
        &mut [PollFd::new(&process, PollFlags::IN)],
        patience.as_ref(),
    ) {
        Ok(1..) => Ok(()),
        _ => bail!(State, "the process of {interface} does not end"),
    }
}
