//! What can go wrong with a tunnel, and whose fault it is.

use std::fmt;
use std::io;

use adit_engine::CommandError;

use crate::config::ConfigError;
use crate::hand_over::NotHandedOver;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The program's that uses the tunnel: it asks for what cannot be.
    Caller,
    /// The host's: it lacks something, or refuses it. What is asked for may work later or elsewhere.
    Host,
    /// Nobody's: the tunnel has ended.
    Ended,
}

/// Why a tunnel was not started, not changed, or ended. What was asked for was not done, not even in part.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No tunnel can be so.
    Config(ConfigError),
    /// It has no source of packets.
    NoPackets,
    /// The descriptor that is to be the source of packets is none that can be.
    Descriptor(io::Error),
    /// The UDP port cannot be had.
    Bind {
        /// The port; 0 for any.
        port: u16,
        /// What the host said.
        error: io::Error,
    },
    /// What was handed over is no tunnel.
    HandOver(NotHandedOver),
    /// The host refused a thread, a descriptor or memory.
    Host(io::Error),
    /// The tunnel has ended.
    Ended,
    /// A thread of the tunnel did not answer for ten seconds: something that it calls blocks it.
    NoAnswer,
}

impl Error {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Config(_)
            | Self::NoPackets
            | Self::Descriptor(_)
            | Self::HandOver(_)
            | Self::NoAnswer => Fault::Caller,
            Self::Bind { .. } | Self::Host(_) => Fault::Host,
            Self::Ended => Fault::Ended,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::NoPackets => f.write_str("the tunnel has no source of packets: call packets() before start()"),
            Self::Descriptor(error) => {
                write!(f, "the descriptor cannot be the source of packets: {error}")
            }
            Self::Bind { port, error } => write!(f, "cannot listen on UDP port {port}: {error}"),
            Self::HandOver(error) => write!(f, "what was handed over is no tunnel: {error}"),
            Self::Host(error) => write!(f, "the system refused what a tunnel needs: {error}"),
            Self::Ended => f.write_str("the tunnel has ended"),
            Self::NoAnswer => f.write_str(
                "a thread of the tunnel did not answer for 10 seconds: something that it calls blocks it",
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Descriptor(error) | Self::Bind { error, .. } | Self::Host(error) => Some(error),
            Self::HandOver(error) => Some(error),
            Self::NoPackets | Self::Ended | Self::NoAnswer => None,
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl Error {
    pub(crate) fn of(error: CommandError) -> Self {
        match error {
            CommandError::Config(error) => Self::Config(ConfigError::of(error)),
            CommandError::Bind { port, error } => Self::Bind { port, error },
            CommandError::Mark { error, .. } => Self::Host(error),
            CommandError::Memory { .. } | CommandError::NoMemory => Self::Host(io::Error::new(
                io::ErrorKind::OutOfMemory,
                error.to_string(),
            )),
            CommandError::Stopping => Self::Ended,
        }
    }
}
