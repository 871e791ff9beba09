//! Lines about handshakes, for the function that a program in C has set.

use std::fmt::Arguments;

#[cfg(feature = "ffi-bindings")]
use std::sync::OnceLock;

#[cfg(feature = "ffi-bindings")]
type Sink = Box<dyn Fn(&str) + Send + Sync>;

#[cfg(feature = "ffi-bindings")]
static SINK: OnceLock<Sink> = OnceLock::new();

/// Where lines go from now on. False if that was set before.
#[cfg(feature = "ffi-bindings")]
pub(crate) fn set_sink(sink: impl Fn(&str) + Send + Sync + 'static) -> bool {
    SINK.set(Box::new(sink)).is_ok()
}

/// Writes a line. Nothing in it is secret.
#[cfg(feature = "ffi-bindings")]
pub(crate) fn log(line: Arguments<'_>) {
    if let Some(sink) = SINK.get() {
        sink(&line.to_string());
    }
}

/// A Rust program has no such function.
#[cfg(not(feature = "ffi-bindings"))]
pub(crate) fn log(_: Arguments<'_>) {}
