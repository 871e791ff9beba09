//! The work of peers and of receive queues.

use crate::Time;
use crate::rx_queues::{RxQueueTable, RxQueuesInUse};

/// Earlier work counts as so many nanoseconds of what is done now, at most.
const MEMORY: u64 = 30_000_000_000;
/// More often than so many nanoseconds nothing is measured.
const LOOK: u64 = 1_000_000_000;
/// Where no receive queue has so much work a second, new peers may go to any: a thread does a thousand times that.
const WORTH_IT: u64 = 1_000_000;

/// The work of a peer or a receive queue, for each second.
#[derive(Clone, Copy, Default)]
pub(super) struct Rate {
    pub(super) a_second: u64,
    /// For how long it was measured, in nanoseconds.
    pub(super) measured: u64,
    /// All work so far, and when that was.
    pub(super) seen: Option<(u64, Time)>,
}

impl Rate {
    /// Notes how much work was done so far.
    pub(super) fn observe(&mut self, now: Time, done: u64) {
        let Some((before, at)) = self.seen else {
            self.seen = Some((done, now));
            return;
        };
        let span = u64::try_from(now.since(at).as_nanos()).unwrap_or(u64::MAX);
        if span < LOOK {
            return;
        }
        let past = self.measured.min(MEMORY);
        let new = u128::from(done.saturating_sub(before)) * 1_000_000_000;
        let sum = u128::from(self.a_second) * u128::from(past) + new;
        let mean = sum / (u128::from(past) + u128::from(span));
        self.a_second = u64::try_from(mean).unwrap_or(u64::MAX);
        self.measured = past.saturating_add(span);
        self.seen = Some((done, now));
    }
}

/// The work of receive queues.
#[derive(Default)]
pub(super) struct RxQueueRates {
    /// Rates of all of them, since then.
    rates: Vec<Rate>,
    since: Time,
}

impl RxQueueRates {
    /// When their number has changed, measuring begins anew.
    pub(super) fn observe(&mut self, now: Time, table: &RxQueueTable) {
        let RxQueuesInUse { count, since } = table.in_use();
        if (self.rates.len(), self.since) != (count, since) {
            self.since = since;
            let rate = Rate {
                seen: Some((0, since)),
                ..Rate::default()
            };
            self.rates = vec![rate; count];
        }
        for (rx_queue, rate) in self.rates.iter_mut().enumerate() {
            rate.observe(now, table.done(rx_queue));
        }
    }

    pub(super) fn count(&self) -> usize {
        self.rates.len()
    }

    pub(super) fn each(&self) -> impl Iterator<Item = u64> {
        self.rates.iter().map(|rate| rate.a_second)
    }

    /// A peer with so much work comes: what is measured shows it only later.
    pub(super) fn add(&mut self, rx_queue: usize, work: u64) {
        if let Some(rate) = self.rates.get_mut(rx_queue) {
            rate.a_second = rate.a_second.saturating_add(work);
        }
    }

    /// The receive queue for a new peer, if it matters.
    pub(super) fn for_new_peer(&self) -> Option<usize> {
        let (least, _) = self.each().enumerate().min_by_key(|(_, rate)| *rate)?;
        (self.each().max()? >= WORTH_IT).then_some(least)
    }
}

#[cfg(test)]
#[path = "rates_tests.rs"]
mod tests;
