//! Child processes with an end: each is stopped when it goes out of scope, and every wait has a limit.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::sandbox::{self, Failure, signal};

const POLL: Duration = Duration::from_millis(5);

/// A child that does not outlive its owner.
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Takes charge of `child`.
    pub(crate) fn new(name: &str, child: Child) -> Self {
        Self {
            child,
            name: name.to_owned(),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, Failure> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            sandbox::check()?;
            if Instant::now() > deadline {
                return Err(format!("{} did not end within {limit:?}", self.name).into());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits until a line of its standard output contains `what`. Later output is read and dropped.
    pub(crate) fn wait_for_line(&mut self, what: &str, limit: Duration) -> Result<(), Failure> {
        let stdout = self.child.stdout.take().ok_or("its output is not piped")?;
        let (found, wait) = mpsc::channel();
        let what = what.to_owned();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.contains(&what) {
                    let _ = found.send(());
                }
            }
        });
        wait.recv_timeout(limit)
            .map_err(|_| format!("{} did not get ready within {limit:?}", self.name).into())
    }

    /// Asks it to end, and kills it if it does not within a second.
    pub(crate) fn stop(&mut self, first: Signal) {
        if !self.is_alive() {
            return;
        }
        signal(&self.child, first);
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.is_alive() {
            if Instant::now() > deadline {
                signal(&self.child, Signal::SIGKILL);
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop(Signal::SIGTERM);
    }
}

/// Waits for a child whose standard output and error are piped, and returns the output; its error text on failure.
pub(crate) fn output(name: &str, child: Child, limit: Duration) -> Result<String, Failure> {
    let (status, out, err) = ended(name, child, limit)?;
    if !status.success() {
        // iperf3 tells its errors on standard output.
        let said = if err.trim().is_empty() { &out } else { &err };
        let said = said.trim();
        let tail = said.char_indices().rev().nth(400).map_or(0, |(at, _)| at);
        return Err(format!("{name}: {status}: {}", &said[tail..]).into());
    }
    Ok(out)
}

/// Waits for a child and returns how it ended, its standard output and its standard error.
pub(crate) fn ended(
    name: &str,
    mut child: Child,
    limit: Duration,
) -> Result<(ExitStatus, String, String), Failure> {
    let stdout = child.stdout.take().ok_or("its output is not piped")?;
    let stderr = child.stderr.take().ok_or("its errors are not piped")?;
    let stdout = std::thread::spawn(move || read_all(stdout));
    let stderr = std::thread::spawn(move || read_all(stderr));
    let mut process = Process::new(name, child);
    let status = process.wait(limit)?;
    drop(process);
    let out = stdout.join().map_err(|_| "the reader failed")?;
    let err = stderr.join().map_err(|_| "the reader failed")?;
    Ok((status, out, err))
}

fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A command with piped output and no input.
pub(crate) fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command here, outside every host, and returns what it printed.
pub(crate) fn run(program: &str, args: &[&str], limit: Duration) -> Result<String, Failure> {
    let child = command(program, args)
        .spawn()
        .map_err(|e| format!("{program}: {e}"))?;
    output(program, child, limit)
}
