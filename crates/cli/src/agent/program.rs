//! The process that runs the program of `exec:`: `adit --agent-program INTERFACE PROGRAM ARGUMENTS`.
//!
//! It starts the program again when that ends, after a pause, and hands on what it says. A line that begins with a
//! zero byte is this process's own: the program has ended, for this reason, and the next one begins anew. It ends
//! with the process at the other end of its standard input, and so does the program, with all that it started.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::failure::{Context, Failure, Result, say};

/// The argument that starts it.
pub(crate) const ARGUMENT: &str = "--agent-program";
/// What a line of this process begins with.
pub(super) const MARK: u8 = 0;
/// Between the end of the program and its next start: at first, and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];
/// A program that ran for so long did work.
const WORKED: Duration = Duration::from_secs(60);
/// How long the program may take to end.
const TO_END: Duration = Duration::from_secs(1);
/// Lines of its standard error in the log each second, and bytes of each.
const LINES: u32 = 20;
const LINE: usize = 1024;

/// Runs the program until standard input is closed.
pub(crate) fn serve(mut arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let missing = || Failure::Mistake("--agent-program is for `adit agent` alone".into());
    let interface = arguments.next().ok_or_else(missing)?;
    let program = arguments.next().ok_or_else(missing)?;
    let arguments: Vec<OsString> = arguments.collect();
    let failed = || "cannot run a program".to_owned();
    let _ = rustix::thread::set_name(c"adit-program");
    let stdin = adit_io::duplicate(0).context(failed)?;
    let mut log = ProgramLog::new(format!(
        "{}: {}",
        interface.to_string_lossy(),
        program.to_string_lossy()
    ));
    let mut pause = PAUSE[0];
    loop {
        let start = Instant::now();
        let mut command = Command::new(&program);
        command.args(&arguments).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let why = match command.process_group(0).spawn() {
            Ok(child) => match RunningProgram(child).relay(&stdin, &mut log) {
                Some(status) => format!("it ended with {}", told(status)),
                None => return Ok(()),
            },
            Err(error) => format!("it cannot be started: {error}"),
        };
        if start.elapsed() >= WORKED {
            pause = PAUSE[0];
        }
        let line = format!("\n\0{why}; it is started again in {pause:?}\n");
        if write(line.as_bytes()).is_err() || hangs_up(&stdin, pause) {
            return Ok(());
        }
        pause = (2 * pause).min(PAUSE[1]);
    }
}

fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

fn write(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}

/// Whether the other end of standard input is closed, or is within this time.
fn hangs_up(stdin: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(stdin, PollFlags::empty())];
    let within = Timespec::try_from(within).unwrap_or_default();
    matches!(poll(&mut fds, Some(&within)), Ok(1..))
}

/// The program, which ends with this.
struct RunningProgram(Child);

impl RunningProgram {
    /// Hands on what it says until it ends. `None`: this process is to end.
    fn relay(mut self, stdin: &OwnedFd, log: &mut ProgramLog) -> Option<ExitStatus> {
        let pid = Pid::from_child(&self.0);
        let ended = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let mut stdout = File::from(OwnedFd::from(self.0.stdout.take()?));
        let mut stderr = File::from(OwnedFd::from(self.0.stderr.take()?));
        let mut is_open = [true, true];
        loop {
            let mut fds = vec![
                PollFd::new(stdin, PollFlags::empty()),
                PollFd::new(&ended, PollFlags::IN),
            ];
            if is_open[0] {
                fds.push(PollFd::new(&stdout, PollFlags::IN));
            }
            if is_open[1] {
                fds.push(PollFd::new(&stderr, PollFlags::IN));
            }
            // Errors are of signals.
            let _ = poll(&mut fds, None);
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            let (hung_up, has_ended) = (ready.next()?, ready.next()?);
            let of_stdout = is_open[0] && ready.next()?;
            let of_stderr = is_open[1] && ready.next()?;
            drop(fds);
            if hung_up {
                return None;
            }
            let mut piece = [0; 16 << 10];
            if of_stdout {
                match stdout.read(&mut piece) {
                    Ok(count @ 1..) => {
                        // No line of the program is taken for one of this process.
                        let own = piece[..count].iter_mut().filter(|byte| **byte == MARK);
                        own.for_each(|byte| *byte = b'?');
                        write(&piece[..count]).ok()?;
                    }
                    _ => is_open[0] = false,
                }
            }
            if of_stderr {
                match stderr.read(&mut piece) {
                    Ok(count @ 1..) => log.take(&piece[..count]),
                    _ => is_open[1] = false,
                }
            }
            // What it has said is handed on first; what others that it started say is not waited for.
            if has_ended && !of_stdout && !of_stderr {
                log.end();
                return self.0.wait().ok();
            }
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::TERM);
        let until = Instant::now() + TO_END;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// The standard error of the program, as lines of the log.
struct ProgramLog {
    before: String,
    begun: Vec<u8>,
    second: Instant,
    lines: u32,
}

impl ProgramLog {
    fn new(before: String) -> Self {
        Self {
            before,
            begun: Vec::new(),
            second: Instant::now(),
            lines: 0,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.line(),
                _ if self.begun.len() < LINE => self.begun.push(byte),
                // The rest of a long one.
                _ => {}
            }
        }
    }

    /// The last line may have no end.
    fn end(&mut self) {
        if !self.begun.is_empty() {
            self.line();
        }
    }

    fn line(&mut self) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            if let Some(more @ 1..) = self.lines.checked_sub(LINES) {
                say!("adit: {}: {more} lines more", self.before);
            }
            (self.second, self.lines) = (Instant::now(), 0);
        }
        self.lines = self.lines.saturating_add(1);
        let line = std::mem::take(&mut self.begun);
        if self.lines <= LINES {
            say!("adit: {}: {}", self.before, String::from_utf8_lossy(&line));
        }
    }
}
