//! `LOG_LEVEL`.

use serde::{Deserialize, Serialize};

use crate::failure::say;

/// `LOG_LEVEL`, as wireguard-go reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LogLevel {
    /// Errors, and the terminal is left when running in the background.
    Unset,
    Silent,
    Error,
    Verbose,
}

impl LogLevel {
    pub(super) fn from_env() -> Self {
        Self::parse(&std::env::var("LOG_LEVEL").unwrap_or_default())
    }

    pub(super) fn parse(value: &str) -> Self {
        match value {
            "verbose" | "debug" => Self::Verbose,
            "error" => Self::Error,
            "silent" => Self::Silent,
            _ => Self::Unset,
        }
    }

    pub(super) fn error(self, message: impl std::fmt::Display) {
        if self != Self::Silent {
            say!("adit: {message}");
        }
    }

    pub(super) fn verbose(self, message: impl std::fmt::Display) {
        if self == Self::Verbose {
            say!("adit: {message}");
        }
    }
}
