//! `adit agent`: peers of an interface that come from a source.
//!
//! Two processes, one more that runs the program of `exec:` (`program`), and one more for `--rules` (`filter`). This
//! one starts the other, which does the work, and starts it anew when a folder, or a file that it takes to look names
//! up, was made again: the sandbox of a process is about those that there were when it began.
//!
//! The other one (`worker`):
//! 1. reads what earlier ones brought (`brought`), and begins the sandbox;
//! 2. is told of records by a thread for the source (`dir`, `exec`, `etcd` with `etcd_client`), and of the interface
//!    by another (`follow`): `sources` starts them;
//!    With `--just-in-time`, another thread asks for unknown peers (`lookups`), within limits (`wanted`);
//! 3. has `adit_fleet` say what the interface lacks, and makes these changes over the control socket (`apply`), and lets
//!    peers go that came just in time (`evict`);
//! 4. has another process keep the packet filter to the ports that records allow, before and after (`rules`, `filter`);
//! 5. with `--write-back`, has two threads tell other gateways which peers are here, and keep what these tell (`held`);
//! 6. replaces the file with its status (`report`).
//!
//! It may be killed at any time: what it is about to bring is written down before.

mod apply;
mod brought;
mod dir;
mod etcd;
mod etcd_client;
mod evict;
mod exec;
mod failures;
pub(crate) mod filter;
mod folder;
mod follow;
mod held;
mod lookups;
mod news;
mod preshared;
pub(crate) mod program;
mod records;
mod report;
mod rules;
mod sources;
mod wanted;
mod worker;

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait, waitpid};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) use self::brought::brought_to;
pub(crate) use self::held::path as held_path;
use self::news::BEGIN_ANEW;
pub(crate) use self::records::{RecordEdit, add_record, edit_record};
pub(crate) use self::report::{FIELDS, all, status_of};
use crate::cli::{AgentArgs, AgentCommand, ServeAgentArgs};
use crate::failure::{Context, Result, bail};
use crate::run::status_group;

pub(crate) fn agent(args: &AgentArgs) -> Result<ExitCode> {
    match (&args.command, &args.serve) {
        (Some(AgentCommand::Status(args)), _) => report::print(args).map(|()| ExitCode::SUCCESS),
        (None, Some(args)) if args.worker => worker::work(args),
        (None, Some(args)) => supervise(args),
        (None, None) => bail!(Mistake, "which interface? See `adit agent --help`"),
    }
}

/// Starts the process that does the work, as often as it asks for that.
fn supervise(args: &ServeAgentArgs) -> Result<ExitCode> {
    make_folder(&args.state, args.status_group.as_deref())?;
    let _ = rustix::thread::set_name(c"adit-supervisor");
    // Without handlers they do nothing to the first process of a container.
    let signals = Signals::new([SIGTERM, SIGINT, SIGCHLD]);
    let mut signals = signals.context(|| "cannot catch signals".into())?;
    loop {
        // Not the path of the binary, which may have been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("adit")
            .args(std::env::args_os().skip(1).take(1))
            // Before the arguments of a program.
            .arg("--worker")
            .args(std::env::args_os().skip(2))
            .stdin(Stdio::null());
        let worker = command.spawn();
        let worker = worker.context(|| "cannot start the process that does the work".into())?;
        let status = end_of(&worker, &mut signals);
        let status = status.context(|| "cannot wait for the process that does the work".into())?;
        let Some(status) = status else {
            return Ok(ExitCode::SUCCESS);
        };
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) if code == i32::from(BEGIN_ANEW) => {}
            (Some(code), _) => return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
            (None, signal) => bail!(
                State,
                "{}: the process that does the work was killed by signal {}",
                args.interface,
                signal.unwrap_or_default()
            ),
        }
    }
}

/// Waits for the end of the process that does the work. `None`: this one was asked to end, and has ended it.
fn end_of(worker: &Child, signals: &mut Signals) -> std::io::Result<Option<WaitStatus>> {
    let worker = Pid::from_child(worker);
    let is_asked = |signal| signal != SIGCHLD;
    loop {
        let status = reap(worker)?;
        // A terminal asks both.
        if signals.pending().any(is_asked) || status.is_none() && signals.wait().any(is_asked) {
            if status.is_none() {
                let _ = kill_process(worker, Signal::TERM);
                retry_on_intr(|| waitpid(Some(worker), WaitOptions::empty()))?;
            }
            return Ok(None);
        }
        if status.is_some() {
            return Ok(status);
        }
    }
}

/// How the worker has ended, if it has. Reaps all children: as PID 1 of a container, this process also gets the orphans
/// of the program of `exec:`.
fn reap(worker: Pid) -> std::io::Result<Option<WaitStatus>> {
    while let Some((ended, status)) = wait(WaitOptions::NOHANG)? {
        if ended == worker {
            return Ok(Some(status));
        }
    }
    Ok(None)
}

/// Makes the folder for what was brought, where there is none. The group gets to the status in it.
fn make_folder(path: &Path, group: Option<&str>) -> Result<()> {
    let group = status_group(group)?;
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made.context(|| format!("cannot make {}", path.display()))?,
    }
    let Some(group) = group else { return Ok(()) };
    let given = chown(path, None, Some(group))
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o750)));
    given.context(|| format!("cannot give {} to the group {group}", path.display()))
}
