//! The work of peers and of receive queues.

use crate::Time;
use crate::rx_queues::{RxQueueState, RxQueueTable};

/// Earlier work counts as so many nanoseconds of what is done now, at most.
const MEMORY: u64 = 30_000_000_000;
/// More often than so many nanoseconds nothing is measured.
const LOOK: u64 = 1_000_000_000;
/// A receive queue with less work a second has no need to be relieved: a thread does a thousand times that.
const WORTH_IT: u64 = 1_000_000;
/// A receive queue has clearly less to do than another if that is at most so many eighths.
const CLEARLY_EIGHTHS: u64 = 7;
/// A peer with a smaller part of its receive queue's work is not worth to be moved.
const PART: u64 = 1024;

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
    pub(super) fn observe(&mut self, now: Time, rx_queues: &RxQueueState, table: &RxQueueTable) {
        if (self.rates.len(), self.since) != (rx_queues.count(), rx_queues.since()) {
            self.since = rx_queues.since();
            let rate = Rate {
                seen: Some((0, self.since)),
                ..Rate::default()
            };
            self.rates = vec![rate; rx_queues.count()];
        }
        for (rx_queue, rate) in self.rates.iter_mut().enumerate() {
            rate.observe(now, table.done(rx_queue));
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = u64> {
        self.rates.iter().map(|rate| rate.a_second)
    }

    /// A peer with so much work goes: what is measured shows it only later.
    pub(super) fn shift(&mut self, from: Option<usize>, to: Option<usize>, work: u64) {
        let mut of = |rx_queue: Option<usize>, change: fn(u64, u64) -> u64| {
            if let Some(rate) = rx_queue.and_then(|rx_queue| self.rates.get_mut(rx_queue)) {
                rate.a_second = change(rate.a_second, work);
            }
        };
        of(from, u64::saturating_sub);
        of(to, u64::saturating_add);
    }

    pub(super) fn least(&self, except: Option<usize>) -> Option<(usize, u64)> {
        let rx_queues = self.each().enumerate();
        let others = rx_queues.filter(|(rx_queue, _)| Some(*rx_queue) != except);
        others.min_by_key(|(_, rate)| *rate)
    }

    /// Where a peer with so much work had better be.
    pub(super) fn better(&self, from: usize, work: u64) -> Option<usize> {
        let own = self.rates.get(from)?.a_second;
        let (to, least) = self.least(Some(from))?;
        let is_worth_it = own >= WORTH_IT && work > own / PART;
        (is_worth_it && (least + work) * 8 <= own * CLEARLY_EIGHTHS).then_some(to)
    }

    /// The receive queue for a new peer, if it matters.
    pub(super) fn for_new_peer(&self) -> Option<usize> {
        let (to, _) = self.least(None)?;
        (self.each().max()? >= WORTH_IT).then_some(to)
    }
}

#[cfg(test)]
#[path = "rates_tests.rs"]
mod tests;
