//! Times, which the caller passes in.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_proto::{Tai64N, Time};

/// What time it is: on a clock that never goes back, and the time of day.
///
/// A program asks a [`Clock`]. A test, or a program with clocks of its own, makes it of two
/// durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub(super) time: Time,
    pub(super) wall: Tai64N,
}

impl Now {
    /// `elapsed` since any moment that stays the same for the life of the device, and since the
    /// Unix epoch.
    ///
    /// The clock of the first is to go on while the machine sleeps, because keys age then, too: on
    /// Linux that is `CLOCK_BOOTTIME`. The second is told to peers, which refuse handshakes whose
    /// time is not after that of the one before.
    pub fn new(elapsed: Duration, since_epoch: Duration) -> Self {
        Self {
            time: Time::default() + elapsed,
            wall: Tai64N::from_unix(since_epoch),
        }
    }

    /// The time on the clock that never goes back.
    pub fn elapsed(&self) -> Duration {
        self.time.since(Time::default())
    }

    /// The time of day, since the Unix epoch.
    pub fn since_epoch(&self) -> Duration {
        self.wall.to_unix()
    }
}

/// The clocks of the standard library.
///
/// On some systems [`Instant`] stands still while the machine sleeps. So where the time of day has
/// gone on for more than a second longer than `Instant` since the clock was last asked, that is
/// taken for sleep. The time of day may also have been set: then keys seem older than they are, and
/// new handshakes begin earlier than they must.
#[derive(Debug)]
pub struct Clock {
    began: Instant,
    asleep: Duration,
    /// When it was last asked.
    last: (Instant, Duration),
}

/// Less may be that both clocks were not read at the same instant, or that one is adjusted.
const SLEEP: Duration = Duration::from_secs(1);

impl Clock {
    /// A clock that begins now.
    pub fn new() -> Self {
        let began = Instant::now();
        Self {
            began,
            asleep: Duration::ZERO,
            last: (began, since_epoch()),
        }
    }

    /// What time it is.
    pub fn now(&mut self) -> Now {
        self.at(Instant::now(), since_epoch())
    }

    fn at(&mut self, instant: Instant, wall: Duration) -> Now {
        let awake = instant.saturating_duration_since(self.last.0);
        let longer = wall.saturating_sub(self.last.1).saturating_sub(awake);
        if longer > SLEEP {
            self.asleep = self.asleep.saturating_add(longer);
        }
        self.last = (instant, wall);
        let elapsed = instant.saturating_duration_since(self.began);
        Now::new(elapsed.saturating_add(self.asleep), wall)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
