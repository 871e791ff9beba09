//! The priority of a thread: it runs before the processes whose packets it carries, but for one case.
//!
//! TCP waits for its application. Datagrams do not: what is delivered while an application waits for
//! the CPU overflows the buffer of its socket, and was opened for nothing, with the CPU time that the
//! application needs to read (receive livelock). So a thread that carries more datagrams, in either
//! direction, than such a buffer holds while the scheduler may have another thread wait has the
//! priority of all others. What is sent waits in the TUN's queue then, and before that its sender does.

use std::cell::Cell;
use std::time::Duration;

use adit_io::helper::{PRIORITY, set_priority, set_priority_soon};
use adit_proto::Time;
use rustix::process::getpriority_process;
use rustix::thread::{Pid, gettid};

/// The time for which the scheduler may have a thread wait for another one: its slice with two CPUs.
const INTERVAL: Duration = Duration::from_millis(3);
/// Datagrams of full size that fill a receive buffer of 212,992 octets, the default.
const FILL: u64 = 92;
/// A flood is over when no interval had so many for so long.
const CALM: Duration = Duration::from_millis(100);

thread_local! {
    /// UDP datagrams that the thread carried, since they were last counted.
    static CARRIED: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread carries so many UDP datagrams. Frames of UDP tunnels are none: what is in them
/// may be TCP.
pub(crate) fn carried(datagrams: usize) {
    CARRIED.set(CARRIED.get() + datagrams as u64);
}

/// The priority of the thread that made it.
#[derive(Debug)]
pub(crate) struct ThreadPriority {
    thread: Pid,
    /// The nice value that it had before; None if it was not allowed to raise its priority.
    ordinary: Option<i8>,
    flood: Flood,
}

impl ThreadPriority {
    /// Leaves that of the calling thread as it is.
    pub(crate) fn leave() -> Self {
        Self {
            thread: gettid(),
            ordinary: None,
            flood: Flood::default(),
        }
    }

    /// Raises that of the calling thread.
    pub(crate) fn raise() -> Self {
        let (thread, before) = (gettid(), getpriority_process(None).unwrap_or(0));
        let is_raised = set_priority(thread, PRIORITY).is_ok();
        Self {
            thread,
            ordinary: is_raised.then_some(i8::try_from(before).unwrap_or(0).max(0)),
            flood: Flood::default(),
        }
    }

    /// Whether the thread has the right to it.
    pub(crate) fn is_raised(&self) -> bool {
        self.ordinary.is_some()
    }

    /// The thread's poll is over.
    pub(crate) fn poll_ended(&mut self, now: Time) {
        let datagrams = CARRIED.take();
        let (thread, Some(ordinary)) = (self.thread, self.ordinary) else {
            return;
        };
        let Some(is_flood) = self.flood.carried(datagrams, now) else {
            return;
        };
        let nice = if is_flood { ordinary } else { PRIORITY };
        // There is nothing to be done about a failure.
        let _ = set_priority_soon(thread, nice);
    }
}

/// Whether there are more datagrams than applications may be able to read.
#[derive(Debug, Default)]
struct Flood {
    /// When the present interval began, and what was carried since.
    begun: Time,
    datagrams: u64,
    /// When it ends, if there is one.
    until: Option<Time>,
}

impl Flood {
    /// Whether one began or ended with this.
    fn carried(&mut self, datagrams: u64, now: Time) -> Option<bool> {
        if now.since(self.begun) >= INTERVAL {
            (self.begun, self.datagrams) = (now, 0);
        }
        self.datagrams += datagrams;
        let was = self.until.is_some();
        if self.datagrams > FILL {
            self.until = Some(now + CALM);
        } else if self.until.is_some_and(|until| now >= until) {
            self.until = None;
        }
        let is = self.until.is_some();
        (is != was).then_some(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Time {
        Time(1_000_000_000 + ms * 1_000_000)
    }

    #[test]
    fn a_flood_begins_with_more_than_a_buffer_holds_and_ends_after_calm() {
        let mut flood = Flood::default();
        assert_eq!(flood.carried(60, at(0)), None);
        assert_eq!(flood.carried(32, at(1)), None);
        // As many again, in the next interval.
        assert_eq!(flood.carried(92, at(3)), None);
        assert_eq!(flood.carried(1, at(5)), Some(true));
        assert_eq!(flood.carried(93, at(50)), None);
        // It goes on for as long as it did not come to rest.
        assert_eq!(flood.carried(0, at(149)), None);
        assert_eq!(flood.carried(0, at(150)), Some(false));
        assert_eq!(flood.carried(1, at(151)), None);
    }
}
