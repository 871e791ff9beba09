//! `LOG_LEVEL`, and where the log goes.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_ctl::text::printable;
use serde::{Deserialize, Serialize};

use crate::failure::say;

/// `LOG_LEVEL`, as wireguard-go reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogLevel {
    /// Errors and changes; in the background they go to the system's log.
    Unset,
    Silent,
    Error,
    Verbose,
}

/// Priorities of syslog(3).
#[derive(Clone, Copy)]
enum Priority {
    Error = 3,
    Notice = 5,
}

impl LogLevel {
    pub(crate) fn from_env() -> Self {
        Self::parse(&std::env::var("LOG_LEVEL").unwrap_or_default())
    }

    pub(crate) fn parse(value: &str) -> Self {
        match value {
            "verbose" | "debug" => Self::Verbose,
            "error" => Self::Error,
            "silent" => Self::Silent,
            _ => Self::Unset,
        }
    }

    pub(crate) fn error(self, message: impl Display) {
        self.write(Priority::Error, &message);
    }

    /// What a client changed: a line for each change.
    pub(crate) fn change(self, message: impl Display) {
        self.write(Priority::Notice, &message);
    }

    pub(crate) fn verbose(self, message: impl Display) {
        if self == Self::Verbose {
            say!("adit: {message}");
        }
    }

    fn write(self, priority: Priority, message: &dyn Display) {
        match SYSTEM_LOG.get() {
            _ if self == Self::Silent => {}
            Some(log) if IS_LEFT.load(Relaxed) => log.write(priority, message),
            _ => say!("adit: {message}"),
        }
    }
}

/// The terminal was left, and nobody reads standard error.
static IS_LEFT: AtomicBool = AtomicBool::new(false);
static SYSTEM_LOG: OnceLock<SystemLog> = OnceLock::new();

/// A socket of the system's log.
struct SystemLog {
    socket: File,
    /// It is that of systemd's journal, which has a protocol of its own.
    is_journal: bool,
}

/// Sockets of systemd's journal, and of any log.
const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";
/// daemon
const FACILITY: u8 = 3;

/// Finds the system's log, if there is one: before the sandbox begins.
pub(crate) fn find_system_log() {
    let connect = |path: &str| -> std::io::Result<File> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A log that is full loses a line, and holds up no thread.
        socket.set_nonblocking(true)?;
        Ok(OwnedFd::from(socket).into())
    };
    let log = |path| connect(path).ok();
    let found = log(JOURNAL)
        .map(|socket| (socket, true))
        .or_else(|| Some((log(SYSLOG)?, false)));
    if let Some((socket, is_journal)) = found {
        let _ = SYSTEM_LOG.set(SystemLog { socket, is_journal });
    }
}

/// From now on the log goes to the system's, if that was found.
pub(crate) fn leave_terminal() {
    IS_LEFT.store(true, Relaxed);
}

impl SystemLog {
    /// One line. Every thread may write(2).
    fn write(&self, priority: Priority, message: &dyn Display) {
        let number = priority as u8;
        let message = message.to_string();
        let text = printable(&message);
        let datagram = match self.is_journal {
            true => format!("PRIORITY={number}\nSYSLOG_IDENTIFIER=adit\nMESSAGE=adit: {text}\n"),
            false => format!("<{}>adit: {text}", FACILITY * 8 + number),
        };
        let _ = (&self.socket).write(datagram.as_bytes());
    }
}
