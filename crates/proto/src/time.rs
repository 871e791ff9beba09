use std::time::Duration;

/// A point on a clock that never goes back and keeps running while the machine sleeps, in nanoseconds.
///
/// The caller passes it in; the protocol reads no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time that has passed since `earlier`, zero if that is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, rhs: Duration) -> Time {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}

/// A TAI64N timestamp: seconds since 1970 TAI plus 2^62, then nanoseconds, big-endian (whitepaper 5.4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tai64N(pub [u8; 12]);
