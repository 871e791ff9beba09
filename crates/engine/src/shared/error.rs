//! Why a command to the engine was refused.

use std::error::Error;
use std::fmt;
use std::io;

use adit_proto::ConfigError;
use rustix::io::Errno;

/// Why a command was refused. Nothing was changed.
#[derive(Debug)]
pub enum CommandError {
    /// The caller asks for what no device can have.
    Config(ConfigError),
    /// The kernel did not bind the UDP port.
    Bind {
        /// The port, or 0 for any.
        port: u16,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The kernel did not set the firewall mark of a socket.
    Mark {
        /// The mark.
        fwmark: u32,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The change takes more memory than the process may have.
    Memory {
        /// Bytes that the change needs, roughly.
        needed: u64,
        /// Bytes that there are.
        left: u64,
    },
    /// This process may not have the memory that the answer takes.
    NoMemory,
    /// The engine is shutting down.
    Stopping,
}

impl CommandError {
    /// The errno that the UAPI answers with.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Config(_) => Errno::INVAL,
            Self::Bind { error, .. } => match error.kind() {
                io::ErrorKind::AddrInUse => Errno::ADDRINUSE,
                io::ErrorKind::PermissionDenied => Errno::ACCESS,
                _ => Errno::IO,
            },
            Self::Memory { .. } | Self::NoMemory => Errno::NOMEM,
            Self::Mark { .. } | Self::Stopping => Errno::IO,
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Bind { port, error } => write!(f, "cannot listen on UDP port {port}: {error}"),
            Self::Mark { fwmark, error } => {
                write!(f, "cannot set the firewall mark {fwmark:#x}: {error}")
            }
            Self::Memory { needed, left } => write!(
                f,
                "the change needs some {} MiB of memory, and this process may have {} MiB more: raise its limit \
                 (RLIMIT_AS, RLIMIT_DATA, or memory.max of its cgroup), or set fewer peers",
                needed >> 20,
                left >> 20
            ),
            Self::NoMemory => f.write_str(
                "this process has no memory left for the answer: raise its limit (RLIMIT_AS, RLIMIT_DATA)",
            ),
            Self::Stopping => f.write_str("the tunnel is shutting down"),
        }
    }
}

impl Error for CommandError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Bind { error, .. } | Self::Mark { error, .. } => Some(error),
            Self::Memory { .. } | Self::NoMemory | Self::Stopping => None,
        }
    }
}
