//! How a proxy is to be, and what can go wrong when it begins.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use adit::net::NetError;

use super::report::LogSink;

/// How a proxy is to be.
#[derive(Default)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Called first on each thread that handles what clients send, to give up what such a thread does not need.
    /// It starts no threads. The one that looks up names outside the tunnel is none of them, since the
    /// system's resolver opens files.
    pub on_start: Option<StartHook>,
    /// What clients may take.
    pub limits: ServeLimits,
    /// The page for monitoring.
    pub info: Option<InfoOptions>,
    /// Gets the lines of the log; nothing is logged otherwise.
    pub log: Option<LogSink>,
    /// Called once when standard input and output have both ended, or could not be connected, which it is
    /// told: the program has nothing left to do for them.
    pub on_stdio_end: Option<StdioHook>,
}

/// Called first on a thread.
pub type StartHook = Arc<dyn Fn() + Send + Sync>;

/// Told how standard input and output ended.
pub type StdioHook = Arc<dyn Fn(Result<(), NetError>) + Send + Sync>;

/// Makes the page at a path.
pub type PageMaker = Arc<dyn Fn(&str) -> Option<InfoPage> + Send + Sync>;

/// What clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServeLimits {
    /// Clients that have not been joined to a connection, at most. One that speaks TLS with the proxy counts as
    /// long as it lasts, since its bytes pass through the thread that has the clients.
    pub clients: usize,
    /// How long a request may take to come.
    pub request: Duration,
    /// How long a connection may take to come about, names included.
    pub connect: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            clients: 20_000,
            request: Duration::from_secs(30),
            connect: Duration::from_secs(10),
        }
    }
}

/// A page for monitoring: a port of its own, and what it shows.
pub struct InfoOptions {
    /// Where it is asked for: a TCP port or a UNIX socket that listens.
    pub listener: OwnedFd,
    /// The page at a path, as `/metrics`; `None` if there is none. It may wait: it has a thread of its own.
    pub pages: PageMaker,
}

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoPage {
    /// The status of HTTP: 200, or 503 where something is not ready.
    pub status: u16,
    /// The type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

/// Why a proxy could not begin.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// A port or a socket could not be opened.
    Bind {
        /// The line of the file that asks for it; 0 for one of the command line.
        line: usize,
        /// What was to be opened.
        bind: String,
        /// Why it could not.
        error: io::Error,
    },
    /// A file that the proxy's file names is not what it should be.
    File {
        /// The line that names it.
        line: usize,
        /// Section, key and path, and what is wrong.
        why: String,
    },
    /// A port inside the tunnel could not be had.
    Inner {
        /// The line of the file that asks for it.
        line: usize,
        /// The port.
        port: u16,
        /// Why not.
        error: NetError,
    },
    /// The system refused a thread, a descriptor or memory.
    Host(io::Error),
}

impl ServeError {
    /// The line of the file that it is about, which the text does not name; 0 if it is about none.
    pub fn line(&self) -> usize {
        match self {
            Self::Bind { line, .. } | Self::File { line, .. } | Self::Inner { line, .. } => *line,
            Self::Host(_) => 0,
        }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { bind, error, .. } => {
                write!(f, "cannot listen on {bind}: {error}")?;
                f.write_str(match error.kind() {
                    io::ErrorKind::AddrInUse => ": stop what listens there, or choose another",
                    io::ErrorKind::PermissionDenied => {
                        ": choose a port above 1023, or another path"
                    }
                    io::ErrorKind::AddrNotAvailable => ": this host has no such address",
                    _ => "",
                })
            }
            Self::File { why, .. } => f.write_str(why),
            Self::Inner { port, error, .. } => {
                write!(f, "cannot have port {port} inside the tunnel: {error}")
            }
            Self::Host(error) => write!(f, "the system refused what the proxy needs: {error}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { error, .. } | Self::Host(error) => Some(error),
            Self::Inner { error, .. } => Some(error),
            Self::File { .. } => None,
        }
    }
}

impl fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeOptions")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
