//! What time it is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_proto::{Tai64N, Time};

/// The standard library's clocks. On some systems [`Instant`] stands still while the machine sleeps, but keys
/// age: where the time of day has gone on for more than a second longer, that is taken for sleep.
#[derive(Debug)]
pub(crate) struct Clock {
    began: Instant,
    asleep: Duration,
    /// When both were last read, and what the time of day was.
    looked: (Instant, Duration),
}

/// Less may be that both were not read at the same instant, or that one is adjusted.
const SLEEP: Duration = Duration::from_secs(1);

impl Clock {
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        Self {
            began,
            asleep: Duration::ZERO,
            looked: (began, since_epoch()),
        }
    }

    /// The time, by one clock: for each packet.
    pub(crate) fn now(&self) -> Time {
        self.at(Instant::now())
    }

    /// The time of day as it was when both clocks were last read: for what only tells it.
    pub(crate) fn wall(&self) -> Tai64N {
        Tai64N::from_unix(self.looked.1)
    }

    /// Reads both clocks.
    pub(crate) fn look(&mut self) -> (Time, Tai64N) {
        let (instant, wall) = (Instant::now(), since_epoch());
        let awake = instant.saturating_duration_since(self.looked.0);
        let longer = wall.saturating_sub(self.looked.1).saturating_sub(awake);
        if longer > SLEEP {
            self.asleep = self.asleep.saturating_add(longer);
        }
        self.looked = (instant, wall);
        (self.at(instant), self.wall())
    }

    fn at(&self, instant: Instant) -> Time {
        let elapsed = instant.saturating_duration_since(self.began);
        Time::default() + Duration::from_secs(1) + elapsed.saturating_add(self.asleep)
    }

    /// Time passes in a test.
    #[cfg(test)]
    pub(crate) fn advance(&mut self, by: Duration) {
        self.asleep += by;
    }
}

fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}
