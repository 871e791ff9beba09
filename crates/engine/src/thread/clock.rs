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

/// Now, as the timestamp of a handshake initiation.
pub(crate) fn wall() -> Tai64N {
    Tai64N::from_unix(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}
