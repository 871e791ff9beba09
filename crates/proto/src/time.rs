use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::limits::TIMESTAMP_GRAIN;

/// A point on a clock that never goes back and keeps running while the machine sleeps, in
/// nanoseconds.
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

/// A TAI64N timestamp: seconds since 1970 TAI plus 2^62, then nanoseconds, big-endian (whitepaper
/// 5.4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tai64N(pub [u8; 12]);

/// As TAI64N labels are written: `@` and 24 hexadecimal digits.
impl fmt::Display for Tai64N {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("@")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The label is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTai64N;

impl FromStr for Tai64N {
    type Err = NoTai64N;

    fn from_str(text: &str) -> Result<Self, NoTai64N> {
        let digits = text
            .strip_prefix('@')
            .filter(|it| it.len() == 24)
            .ok_or(NoTai64N)?;
        let mut bytes = [0; 12];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            let pair = digits.get(at..at + 2).filter(|it| !it.starts_with('+'));
            *byte = pair
                .and_then(|it| u8::from_str_radix(it, 16).ok())
                .ok_or(NoTai64N)?;
        }
        Ok(Self(bytes))
    }
}

/// The label of 1970-01-01 00:00:00 UTC in seconds: TAI was 10 seconds ahead then, and leap seconds
/// since are not counted (every implementation of WireGuard counts so).
const UNIX_EPOCH: u64 = (1 << 62) + 10;

impl Tai64N {
    /// The timestamp of a moment that is given as the time since the Unix epoch.
    pub fn from_unix(since_epoch: Duration) -> Self {
        let seconds = UNIX_EPOCH.saturating_add(since_epoch.as_secs());
        Self::from_parts(seconds, since_epoch.subsec_nanos())
    }

    /// The time since the Unix epoch, zero if before.
    pub fn to_unix(self) -> Duration {
        let (seconds, nanos) = self.parts();
        Duration::from_secs(seconds.saturating_sub(UNIX_EPOCH))
            .saturating_add(Duration::from_nanos(nanos.into()))
    }

    fn parts(self) -> (u64, u32) {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = self.0;
        (
            u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            u32::from_be_bytes([i, j, k, l]),
        )
    }

    /// Rounded down, so that it does not tell the exact time.
    pub(crate) fn coarse(self) -> Self {
        let (seconds, nanos) = self.parts();
        Self::from_parts(seconds, nanos & !(TIMESTAMP_GRAIN - 1))
    }

    /// The next greater coarse timestamp.
    pub(crate) fn next_grain(self) -> Self {
        let (seconds, nanos) = self.parts();
        match nanos.saturating_add(TIMESTAMP_GRAIN) {
            nanos if nanos < 1_000_000_000 => Self::from_parts(seconds, nanos),
            _ => Self::from_parts(seconds.saturating_add(1), 0),
        }
    }

    fn from_parts(seconds: u64, nanos: u32) -> Self {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&seconds.to_be_bytes());
        bytes[8..].copy_from_slice(&nanos.to_be_bytes());
        Self(bytes)
    }
}
