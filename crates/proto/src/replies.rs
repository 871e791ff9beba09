//! How many cookie replies leave under load, and to whom.

use std::hash::{BuildHasher, RandomState};

use crate::Time;
use crate::limiter::SourceHost;
use crate::limits::{COOKIE_BURST, COOKIE_RATE, COOKIE_RATE_OF_ALL};

/// Cells of a [`ReplyLimit`]: with 4,096 sources one in 5,000 others shares all its cells.
const CELLS: usize = 1 << 18;
const HASHES: usize = 4;
/// The cost of a reply, in milliseconds of a source's time, and in nanoseconds of that of all.
const COST: u64 = 1000 / COOKIE_RATE as u64;
const COST_OF_ALL: u64 = 1_000_000_000 / COOKIE_RATE_OF_ALL as u64;
/// Time that all sources together may have saved.
const SAVED: u64 = 100_000_000;

/// How many cookie replies leave.
///
/// The source of a message without a cookie may be forged: that of an honest sender, too. So no source
/// has a limit of its own. But while more is asked than COOKIE_RATE_OF_ALL, half of the replies are for
/// sources that get few of them, and half for those that have had COOKIE_RATE; what one half leaves
/// over, the other gets. A flood with few sources then takes nothing from the others. One from the very
/// address of an honest sender leaves that its part of a half: as often as it asks, it is as likely to
/// be answered as any message of the flood.
///
/// There can be more sources than fit any table. Each has a few cells in one of a fixed size, chosen by
/// a secret hash, and gets few replies while any of them has time left: what others get counts against
/// it only if they share all its cells. Memory is taken under load only (invariant 5).
#[derive(Default)]
pub(crate) struct ReplyLimit {
    /// Milliseconds since `since` that are used up.
    cells: Vec<u32>,
    since: Time,
    hasher: RandomState,
    /// The nanoseconds until which the replies to all are used up, and those of each half.
    all: u64,
    halves: [u64; 2],
}

/// Why there is no reply now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReply {
    /// Replies for sources that have had more than others are used up.
    ToSource,
    /// All are.
    ToAny,
}

impl ReplyLimit {
    /// Whether [`Self::allow`] would say yes.
    pub(crate) fn may_allow(&self, now: Time, source: SourceHost) -> Result<(), NoReply> {
        let has_had_few = self.has_had_few(now, source);
        let half = self.halves[usize::from(has_had_few)];
        match (self.all.min(half) > now.0 + SAVED, has_had_few) {
            (false, _) => Ok(()),
            (true, false) => Err(NoReply::ToSource),
            (true, true) => Err(NoReply::ToAny),
        }
    }

    /// Takes one reply.
    pub(crate) fn allow(&mut self, now: Time, source: SourceHost) -> Result<(), NoReply> {
        self.may_allow(now, source)?;
        if self.cells.is_empty() {
            (self.cells, self.since) = (vec![0; CELLS], now);
        }
        let has_had_few = self.has_had_few(now, source);
        let half = &mut self.halves[usize::from(has_had_few)];
        if *half <= now.0 + SAVED {
            *half = now.0.max(*half) + 2 * COST_OF_ALL;
        }
        self.all = now.0.max(self.all) + COST_OF_ALL;
        if has_had_few {
            let from = self
                .limit(now)
                .saturating_sub(COST * u64::from(COOKIE_BURST - 1));
            for place in self.places(source) {
                let used = from.max(self.cells[place].into()) + COST;
                self.cells[place] = u32::try_from(used).unwrap_or(u32::MAX);
            }
        }
        Ok(())
    }

    /// The load is over.
    pub(crate) fn forget(&mut self) {
        if !self.cells.is_empty() {
            self.cells = Vec::new();
        }
    }

    /// How many cells there are.
    #[cfg(test)]
    pub(crate) fn cells(&self) -> usize {
        self.cells.capacity()
    }

    fn has_had_few(&self, now: Time, source: SourceHost) -> bool {
        if self.cells.is_empty() {
            return true;
        }
        let limit = self.limit(now);
        self.places(source)
            .into_iter()
            .any(|place| u64::from(self.cells[place]) <= limit)
    }

    /// Up to here a cell may be used up: a burst ahead of the time.
    fn limit(&self, now: Time) -> u64 {
        let since = u64::try_from(now.since(self.since).as_millis()).unwrap_or(u64::MAX);
        since + COST * u64::from(COOKIE_BURST - 1)
    }

    fn places(&self, source: SourceHost) -> [usize; HASHES] {
        let mut hash = self.hasher.hash_one(source);
        std::array::from_fn(|_| {
            let place = usize::try_from(hash % CELLS as u64).unwrap_or(0);
            // Sixteen bits of its own each.
            hash = hash.rotate_right(16);
            place
        })
    }
}
