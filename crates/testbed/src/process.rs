//! Child processes with an end: each is stopped when it goes out of scope, and every wait has a
//! limit.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt;

const POLL: Duration = Duration::from_millis(5);
/// What a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// A child that does not outlive its owner.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

/// How long output may stay open once a process has ended: something that it started may hold it.
const LEFT_OPEN: Duration = Duration::from_secs(10);

/// How a process ended and what it said.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output, with U+FFFD for what is no UTF-8.
    pub stdout: String,
    /// Its standard error, likewise.
    pub stderr: String,
}

impl Finished {
    /// Whether it succeeded.
    pub fn ok(&self) -> bool {
        self.status.success()
    }
}

impl Process {
    /// Starts `command` where the calling thread is.
    ///
    /// # Errors
    /// With the program's name if it cannot be started.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        let program = Path::new(command.get_program());
        let name = program.file_name().unwrap_or(program.as_os_str());
        let name = name.to_string_lossy().into_owned();
        match command.spawn() {
            Ok(child) => Ok(Self { child, name }),
            Err(e) => Err(io::Error::new(e.kind(), format!("{name}: {e}"))),
        }
    }

    /// Writes `input` to its standard input, if that is a pipe, and closes it. The process need not
    /// read it.
    pub fn feed(&mut self, input: Vec<u8>) {
        if let Some(mut stdin) = self.child.stdin.take() {
            std::thread::spawn(move || {
                let _ = stdin.write_all(&input);
            });
        }
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.ended(), Ok(None))
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after `limit`, and those of [`interrupt::check`].
    pub fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        let begun = Instant::now();
        let deadline = begun + limit;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            interrupt::check()?;
            if Instant::now() > deadline {
                return Err(self.late("end", limit));
            }
            // Most commands end at once.
            let is_young = begun.elapsed() < 4 * POLL;
            std::thread::sleep(if is_young { POLL / 5 } else { POLL });
        }
    }

    /// Waits until a line of its standard output, which is a pipe, contains `what`. Later output is
    /// read and dropped.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after `limit`, or if it ends before.
    pub fn wait_for_line(&mut self, what: &str, limit: Duration) -> io::Result<()> {
        let stdout = self.child.stdout.take();
        let stdout = stdout.ok_or_else(|| io::Error::other("its output is not piped"))?;
        let (found, wait) = mpsc::channel();
        let what = what.to_owned();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.contains(&what) {
                    let _ = found.send(());
                }
            }
        });
        let found = wait.recv_timeout(limit);
        found.map_err(|_| self.late("get ready", limit))
    }

    /// Waits for the end, reading its output meanwhile.
    ///
    /// # Errors
    /// Those of [`Process::wait`], after which the process is stopped; if its output or its errors
    /// are no pipes; and [`io::ErrorKind::TimedOut`] if a process that it left behind keeps them
    /// open.
    pub fn finish(mut self, limit: Duration) -> io::Result<Finished> {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let (stdout, stderr) =
            (stdout.zip(stderr)).ok_or_else(|| io::Error::other("its output is not piped"))?;
        let (stdout, stderr) = (reader(stdout), reader(stderr));
        let status = self.wait(limit)?;
        let text = |from: mpsc::Receiver<String>| {
            let text = from.recv_timeout(LEFT_OPEN);
            text.map_err(|_| self.late("close its output after its end", LEFT_OPEN))
        };
        Ok(Finished {
            status,
            stdout: text(stdout)?,
            stderr: text(stderr)?,
        })
    }

    /// Waits for the end and returns its standard output.
    ///
    /// # Errors
    /// Those of [`Process::finish`]; with the end of what it said if it failed.
    pub fn output(self, limit: Duration) -> io::Result<String> {
        let name = self.name.clone();
        let Finished {
            status,
            stdout,
            stderr,
        } = self.finish(limit)?;
        if !status.success() {
            // iperf3 tells its errors on standard output.
            let said = if stderr.trim().is_empty() {
                &stdout
            } else {
                &stderr
            };
            let said = said.trim();
            let tail = said.char_indices().rev().nth(400).map_or(0, |(at, _)| at);
            return Err(io::Error::other(format!(
                "{name}: {status}: {}",
                &said[tail..]
            )));
        }
        Ok(stdout)
    }

    fn late(&self, to: &str, limit: Duration) -> io::Error {
        let text = format!("{} did not {to} within {limit:?}", self.name);
        io::Error::new(io::ErrorKind::TimedOut, text)
    }
}

/// Asks it to end (SIGTERM), and kills it if it does not within two seconds.
impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        // It has not been waited for yet, so its number is still its own.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while self.is_alive() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Reads to the end, on a thread of its own.
fn reader(mut from: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        let _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    result
}

/// A command with piped output and no input.
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command here, outside every host, and returns what it printed.
///
/// # Errors
/// Those of [`Process::spawn`] and [`Process::output`].
pub fn run(program: &str, args: &[&str], limit: Duration) -> io::Result<String> {
    Process::spawn(command(program, args))?.output(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_process_ends_with_its_owner() {
        let process = Process::spawn(command("sleep", &["600"])).unwrap();
        let directory = format!("/proc/{}", process.id());
        assert!(Path::new(&directory).exists());
        drop(process);
        assert!(!Path::new(&directory).exists());
    }

    #[test]
    fn a_failure_tells_what_the_process_said() {
        let error = run("sh", &["-c", "echo alas >&2; exit 3"], LONG).unwrap_err();
        assert_eq!(error.to_string(), "sh: exit status: 3: alas");
        assert!(run("/no/such program", &[], LONG).is_err());
    }

    #[test]
    fn a_wait_is_over_at_its_limit() {
        let error = run("sleep", &["600"], Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
