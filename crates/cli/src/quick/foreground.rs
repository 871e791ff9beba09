//! `adit up --foreground`: a process that stays with its tunnel, for systemd, containers and other
//! supervisors.
//!
//! 1. bring the tunnel up; its process ends with this one, however that ends;
//! 2. tell the service manager;
//! 3. wait for a signal or for the end of the tunnel's process; as PID 1, bury what others leave; on
//!    SIGUSR2, of `adit upgrade`, start the program that stands where this one was started from, which
//!    goes on in place of the tunnel's process, and then become that program, too;
//! 4. take the tunnel down, or, after the process failed, leave what keeps traffic from leaving in
//!    clear.

use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use adit_ctl::config::Table;
use adit_netlink::Netlink;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait, waitpid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use super::{PATIENCE, Quick, down, forward, has_default, programs, sync, watchdog};
use crate::cli::{FileArgs, OutputArgs, RunArgs, UpArgs};
use crate::failure::{Context, Failure, Result, say};
use crate::run;
use crate::systemd::tell;

/// In the environment of a process that became another program: its PID and the tunnel's process.
const UPGRADED: &str = "ADIT_UPGRADED";

pub(super) fn up(args: &UpArgs) -> Result<()> {
    // It reads keys, and lives as long as the tunnel.
    adit_sandbox::protect_memory();
    // Before there is anything that they could tell of.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2, SIGCHLD])
        .context(|| "cannot catch signals".into())?;
    let begun = match upgraded() {
        Some(daemon) => Some((Quick::load(&args.file)?, super::open_netlink()?, daemon)),
        None => begin(args, &mut signals)?,
    };
    let Some((mut quick, netlink, mut daemon)) = begun else {
        return Ok(());
    };
    quick.forget_keys();
    let name = quick.name.clone();
    // Signals interrupt nothing from now on; they are heard here.
    quick.interrupted = Arc::default();
    let mut full = quick.routes_everything();
    tell(&format!("READY=1\nSTATUS={name} is up"));
    say!("adit: {name} is up");
    watchdog::start(&name);
    // One may have ended while this process became another program.
    if let Some(status) = bury(daemon) {
        return quick.has_ended(&netlink, status, full);
    }

    for signal in &mut signals {
        match signal {
            SIGCHLD => {
                if let Some(status) = bury(daemon) {
                    return quick.has_ended(&netlink, status, full);
                }
            }
            SIGUSR2 => match quick.upgrade(args, daemon) {
                Ok(new) => {
                    daemon = new;
                    quick.become_new_program(&args.file, daemon).report();
                }
                Err(failure) => say!("adit: {name} is not upgraded: {failure}"),
            },
            // A pipe cannot be read again.
            SIGHUP if !std::io::stdin().is_terminal() && quick.path.is_file() => {
                match sync(&args.file) {
                    Ok(()) => say!("adit: applied {}", quick.path.display()),
                    Err(failure) => failure.report(),
                }
                full = quick.routes_everything();
            }
            SIGHUP if !std::io::stdin().is_terminal() => {
                say!("adit: {} is no file to read again", quick.path.display());
            }
            _ => break,
        }
    }
    tell("STOPPING=1");
    quick.end(&netlink, daemon)
}

/// Brings the tunnel up. `None` if a signal asked for its end meanwhile.
fn begin(args: &UpArgs, signals: &mut Signals) -> Result<Option<(Quick, Netlink, Pid)>> {
    let (quick, netlink) = Quick::prepare(args)?;
    tell(&format!("STATUS=Bringing up {}", quick.name));
    let daemon = run::start_in_background(&RunArgs {
        die_with: Some(rustix::process::getpid().as_raw_pid()),
        ..quick.process(args)
    })?;
    let daemon = Pid::from_child(&daemon);
    if let Err(failure) = quick.bring_up_or_undo(&netlink) {
        let asked = |signal| [SIGTERM, SIGINT].contains(&signal);
        if !signals.pending().any(asked) {
            return Err(failure);
        }
        // After a stop request, remains of an earlier run are removed, too.
        if quick.path.is_file() {
            let said = OutputArgs {
                quiet: true,
                json: false,
            };
            let _ = down(&args.file, said);
        }
        return Ok(None);
    }
    Ok(Some((quick, netlink, daemon)))
}

/// The tunnel's process, when this process was another version of this program before: a child of
/// this process, as that version said.
fn upgraded() -> Option<Pid> {
    let known = std::env::var(UPGRADED).ok()?;
    let (own, daemon) = known.split_once(' ')?;
    // A hook inherits it, and may start another tunnel.
    let is_meant = own == std::process::id().to_string();
    daemon
        .parse()
        .ok()
        .filter(|_| is_meant)
        .and_then(Pid::from_raw)
}

/// The program that stands where this one was started from, perhaps a newer one.
fn program() -> Result<PathBuf> {
    let failed = || "cannot find the program".to_owned();
    let path = std::fs::read_link("/proc/self/exe").context(failed)?;
    let text = path.to_string_lossy();
    // So the kernel says that the file was replaced.
    Ok(text
        .strip_suffix(" (deleted)")
        .map_or(path.clone(), PathBuf::from))
}

/// Takes note of every child that has ended, and says how the tunnel's process did.
fn bury(daemon: Pid) -> Option<ExitStatus> {
    let mut end = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == daemon {
            end = Some(ExitStatus::from_raw(status.as_raw()));
        }
    }
    end
}

impl Quick {
    /// The tunnel's process has them now.
    fn forget_keys(&mut self) {
        self.config.interface.private_key = None;
        for peer in &mut self.config.peers {
            peer.preshared_key = None;
        }
    }

    /// Whether a default route leads into the tunnel, with the rules and the firewall that belong
    /// to it.
    fn routes_everything(&self) -> bool {
        let status = self.ask();
        self.config.interface.table == Table::Auto && status.is_ok_and(|it| has_default(&it))
    }

    /// Has a new process go on in place of the tunnel's process. If that fails, the old one goes on.
    fn upgrade(&self, args: &UpArgs, daemon: Pid) -> Result<Pid> {
        let new = RunArgs {
            die_with: Some(rustix::process::getpid().as_raw_pid()),
            take_over: Some(daemon.as_raw_pid()),
            ..self.process(args)
        };
        let aead = std::env::var("ADIT_AEAD").ok();
        let environment: Vec<_> = aead
            .map(|it| ("ADIT_AEAD".into(), it))
            .into_iter()
            .collect();
        let child = run::start_program(&program()?, &new, &environment)?;
        Ok(Pid::from_child(&child))
    }

    /// Becomes the new program, in this very process, which the service manager and the tunnel's
    /// process know. If that fails, this one goes on.
    fn become_new_program(&self, file: &FileArgs, daemon: Pid) -> Failure {
        // The new one reads the file, and must not fail.
        let read = match self.path.is_file() {
            true => Self::load(file).map(drop),
            false => Err(Failure::State("its configuration came from a pipe".into())),
        };
        let exec: Result<()> = read.and_then(|()| {
            let mut command = Command::new(program()?);
            let mut args = std::env::args_os();
            command.arg0(args.next().unwrap_or_else(|| "adit".into()));
            let known = format!("{} {}", std::process::id(), daemon.as_raw_pid());
            Err(command.args(args).env(UPGRADED, known).exec()).context(|| "cannot start it".into())
        });
        let why = exec.err().unwrap_or(Failure::Reported);
        Failure::State(format!(
            "{}: the tunnel has the new program, and the process that watches over it keeps the old one: {why}",
            self.name
        ))
    }

    /// Does what `down` does. This process ends in any case, so nothing that fails keeps the rest
    /// from being done.
    fn end(&self, netlink: &Netlink, daemon: Pid) -> Result<()> {
        let interface = &self.config.interface;
        let mut results: Vec<Result<()>> = (self.down_hooks(&interface.pre_down).into_iter())
            .map(Err)
            .collect();
        let status = self.status();
        match &status {
            Ok(_) if interface.save_config => results.push(self.save(netlink)),
            Ok(_) => {}
            Err(failure) => {
                say!("adit: {failure}; its process is killed");
                let _ = kill_process(daemon, Signal::KILL);
                let _ = waitpid(Some(daemon), WaitOptions::empty());
            }
        }
        results.push(self.take_down(netlink, status.as_ref().ok()));
        self.see_it_end(daemon);
        results.extend(self.down_hooks(&interface.post_down).into_iter().map(Err));
        let failures: Vec<Failure> = results.into_iter().filter_map(Result::err).collect();
        failures.iter().for_each(Failure::report);
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Failure::Reported),
        }
    }

    /// Waits until the tunnel's process has ended. One that was stopped, or hangs, is killed.
    fn see_it_end(&self, daemon: Pid) {
        let deadline = Instant::now() + PATIENCE;
        // There is nothing to wait for if it was waited for before.
        while let Ok(None) = waitpid(Some(daemon), WaitOptions::NOHANG) {
            if Instant::now() > deadline {
                say!("adit: {}: its process is killed", self.name);
                let _ = kill_process(daemon, Signal::KILL);
                let _ = waitpid(Some(daemon), WaitOptions::empty());
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Cleans up after the tunnel's process, and says why it ended.
    fn has_ended(&self, netlink: &Netlink, status: ExitStatus, full: bool) -> Result<()> {
        let Self { name, .. } = self;
        self.remove_dead_files();
        if status.success() {
            say!("adit: {name} was taken down by another program");
            // A user of `adit down` runs the hooks there, and may have used `adit up` since.
            if netlink.link(name).is_err() {
                self.undo_surroundings(netlink, None);
            }
            return Ok(());
        }
        let why = match status.signal() {
            Some(signal) => format!("its process was killed by signal {signal}"),
            None => format!("its process failed ({status})"),
        };
        let mut message = format!("{name} is down: {why}");
        forward::unset(name);
        let interface = &self.config.interface;
        // PostUp hooks will run again.
        for hooks in [&interface.pre_down, &interface.post_down] {
            self.down_hooks(hooks).iter().for_each(Failure::report);
        }
        if full {
            message += &format!(
                "; its routing rules and firewall stay, to keep packets from leaving in clear, until `adit down {called}` or \
                 the next `adit up {called}`",
                called = self.called()
            );
        } else if interface.has_dns() {
            programs::unset_dns(name);
        }
        tell(&format!("STATUS={message}"));
        Err(Failure::State(message))
    }
}
