//! What time it is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_proto::{Tai64N, Time};

/// Two clocks. The first stands still on some systems while the machine sleeps, but keys age: where the time of
/// day has gone on for more than a second longer, that is taken for sleep.
#[derive(Debug)]
pub(crate) struct Clock {
    began: Duration,
    asleep: Duration,
    /// When both were last read, and what the time of day was.
    looked: (Duration, Duration),
}

/// Less may be that both were not read at the same instant, or that one is adjusted.
const SLEEP: Duration = Duration::from_secs(1);

impl Clock {
    pub(crate) fn new() -> Self {
        let began = monotonic();
        Self {
            began,
            asleep: Duration::ZERO,
            looked: (began, since_epoch()),
        }
    }

    /// The time, by one clock: for each packet.
    pub(crate) fn now(&self) -> Time {
        self.at(monotonic())
    }

    /// The time of day as it was when both clocks were last read: for what only tells it.
    pub(crate) fn wall(&self) -> Tai64N {
        Tai64N::from_unix(self.looked.1)
    }

    /// Reads both clocks.
    pub(crate) fn look(&mut self) -> (Time, Tai64N) {
        let (instant, wall) = (monotonic(), since_epoch());
        let awake = instant.saturating_sub(self.looked.0);
        let longer = wall.saturating_sub(self.looked.1).saturating_sub(awake);
        if longer > SLEEP {
            self.asleep = self.asleep.saturating_add(longer);
        }
        self.looked = (instant, wall);
        (self.at(instant), self.wall())
    }

    fn at(&self, instant: Duration) -> Time {
        let elapsed = instant.saturating_sub(self.began);
        Time::default() + Duration::from_secs(1) + elapsed.saturating_add(self.asleep)
    }

    /// Time passes in a test.
    #[cfg(test)]
    pub(crate) fn advance(&mut self, by: Duration) {
        self.asleep += by;
    }
}

/// The kernel's clock of its last tick: at most 10 ms behind the exact one, and a fifth of its price.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn monotonic() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let time = clock_gettime(ClockId::MonotonicCoarse);
    // It counts from the start of the machine.
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn monotonic() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;

    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed()
}

fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}
