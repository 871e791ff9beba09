//! Time as the stack counts it.

/// Microseconds since the stack began.
pub(super) type Micros = i64;

pub(super) const SECOND: Micros = 1_000_000;
pub(super) const MILLISECOND: Micros = 1_000;
