//! The only place where the engine asks what time it is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_proto::{Tai64N, Time};
use rustix::time::{ClockId, clock_gettime};

/// Now, on the clock that keeps running while the machine sleeps: keys must age then too.
pub(crate) fn now() -> Time {
    let t = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(t.tv_sec).unwrap_or(0));
    Time::default() + (seconds + Duration::from_nanos(u64::try_from(t.tv_nsec).unwrap_or(0)))
}

/// Now, as the timestamp of a handshake initiation (whitepaper 5.4.2).
///
/// The low 24 bits of the nanoseconds are cleared, as every implementation does, so that a timestamp tells little
/// about the load of its sender.
pub(crate) fn wall() -> Tai64N {
    const TAI_BASE: u64 = (1 << 62) + 10;
    const WHITENER: u32 = (1 << 24) - 1;
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&(TAI_BASE + unix.as_secs()).to_be_bytes());
    bytes[8..].copy_from_slice(&(unix.subsec_nanos() & !WHITENER).to_be_bytes());
    Tai64N(bytes)
}
