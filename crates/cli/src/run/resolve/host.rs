//! A name that is looked up, and when.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::resolver::Answer;

/// A name is looked up this often at most while handshakes of its peer fail, as the next initiation
/// comes then (REKEY_TIMEOUT), and half as often after each failure, down to `SELDOM`.
const OFTEN: Duration = Duration::from_secs(5);
const SELDOM: Duration = Duration::from_secs(40);
/// After failures, when no peer needs the name.
const PATIENT: Duration = Duration::from_secs(300);
/// What is taken of the time that an answer holds.
pub(super) const TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(30)..=Duration::from_secs(3600);

/// A name.
pub(super) struct ResolvedName {
    pub(super) addrs: Vec<SocketAddr>,
    pub(super) due: Instant,
    /// When the last look-up began.
    pub(super) asked: Option<Instant>,
    pub(super) failures: u32,
    pub(super) is_asked: bool,
}

impl ResolvedName {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            addrs: Vec::new(),
            due: now,
            asked: None,
            failures: 0,
            is_asked: false,
        }
    }

    /// A peer needs it.
    pub(super) fn hurry(&mut self, now: Instant) {
        let pause = (OFTEN * 2_u32.pow(self.failures.min(3))).min(SELDOM);
        let soonest = self.asked.map_or(now, |at| at + pause);
        self.due = self.due.min(soonest.max(now));
    }

    pub(super) fn answered(&mut self, now: Instant, answer: &Answer) {
        self.is_asked = false;
        self.due = now
            + match answer.addrs.is_empty() {
                true => {
                    self.failures = self.failures.saturating_add(1);
                    (OFTEN * 2_u32.pow(self.failures.min(6))).min(PATIENT)
                }
                false => {
                    self.failures = 0;
                    self.addrs.clone_from(&answer.addrs);
                    answer.ttl.clamp(*TTL.start(), *TTL.end())
                }
            };
    }
}
