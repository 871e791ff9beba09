//! Failures for people: what happened, where, and what to do.

use std::fmt;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Writes a line to standard error. `eprintln!` panics where that fails, and a terminal may have
/// gone, a pipe's reader have ended and a disk be full: no reason for a tunnel to end, or to stay
/// half taken down.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}
pub(crate) use say;

/// A message that is complete in itself.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Another process has told the user already.
    pub(crate) fn already_said() -> Self {
        Self(String::new())
    }

    /// Tells the user.
    pub(crate) fn report(&self) {
        if !self.0.is_empty() {
            say!("adit: {}", self.0);
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says what was being done when an error struck.
pub(crate) trait Context<T> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure(format!("{}: {error}", doing())))
    }
}

/// Returns early with a formatted [`Failure`].
macro_rules! bail {
    ($($arg:tt)*) => {
        return Err($crate::failure::Failure::new(format!($($arg)*)))
    };
}
pub(crate) use bail;
