//! Failures for people: what happened, where, and what to do.

use std::error::Error;
use std::fmt;
use std::io::Write;

use adit_ctl::text::printable_lines;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Writes a line to standard error. `eprintln!` panics where that fails, and a terminal may have
/// gone, a pipe's reader have ended and a disk be full: no reason for a tunnel to end, or to stay
/// half taken down. Names and messages in it come from files and other processes, and do nothing to
/// the terminal.
macro_rules! say {
    ($($arg:tt)*) => {
        $crate::failure::say_text(&format!($($arg)*))
    };
}
pub(crate) use say;

/// For [`say!`].
pub(crate) fn say_text(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable_lines(text));
}

/// Why a command failed, by what has to change before it can succeed. The texts are complete
/// sentences that say what to do.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A mistake in the command line, a file, a key or the environment.
    Mistake(String),
    /// The host lacks something, already has it, or does not permit it.
    State(String),
    /// An operation that the kernel or another program refused.
    Operation {
        /// The operation, as `cannot delete wg0`.
        name: String,
        /// The answer to it.
        error: Box<dyn Error + Send + Sync>,
    },
    /// A signal asked the command to end.
    Interrupted,
    /// The reasons are already printed, by this process or by one that it started.
    Reported,
}

impl Failure {
    /// Prints it to standard error, unless that was done.
    pub(crate) fn report(&self) {
        if !matches!(self, Self::Reported) {
            say!("adit: {self}");
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mistake(text) | Self::State(text) => f.write_str(text),
            Self::Operation { name, error } => write!(f, "{name}: {error}"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Reported => f.write_str("the reason is printed above"),
        }
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Operation { error, .. } => Some(error.as_ref()),
            _ => None,
        }
    }
}

/// Names the operation that an error is the answer to.
pub(crate) trait Context<T> {
    fn context(self, name: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Context<T> for std::result::Result<T, E> {
    fn context(self, name: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::Operation {
            name: name(),
            error: error.into(),
        })
    }
}

/// Returns early with a formatted [`Failure::Mistake`] or [`Failure::State`].
macro_rules! bail {
    ($kind:ident, $($arg:tt)*) => {
        return Err($crate::failure::Failure::$kind(format!($($arg)*)))
    };
}
pub(crate) use bail;
