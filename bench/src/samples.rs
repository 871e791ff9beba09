//! Values of rounds whose numbers are kept: what two subjects reached in the same round is compared.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::stats::{Ratio, Rounds, Summary, ratio, summary};

/// The value of one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RoundValue {
    pub(crate) round: u32,
    pub(crate) value: f64,
}

/// Values by what was measured and of whom: the key says both.
pub(crate) struct RoundValues<K>(BTreeMap<K, Vec<RoundValue>>);

impl<K: Ord> RoundValues<K> {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn add(&mut self, key: K, round: u32, value: f64) {
        let value = RoundValue { round, value };
        self.0.entry(key).or_default().push(value);
    }

    pub(crate) fn of(&self, key: &K) -> &[RoundValue] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn summary(&self, key: &K) -> Option<Summary> {
        let values = self.of(key).iter().map(|it| it.value);
        summary(&values.collect::<Vec<_>>())
    }

    /// For JSON.
    pub(crate) fn rounds(&self, key: &K) -> Option<Rounds<RoundValue>> {
        Some(Rounds::new(self.of(key).to_vec(), self.summary(key)?))
    }

    /// The values of rounds that have both.
    pub(crate) fn pairs(&self, ours: &K, theirs: &K) -> Vec<(RoundValue, f64)> {
        let theirs = self.of(theirs);
        let pair = |ours: &RoundValue| {
            let same = theirs.iter().find(|theirs| theirs.round == ours.round)?;
            Some((*ours, same.value))
        };
        self.of(ours).iter().filter_map(pair).collect()
    }

    /// One over the other.
    pub(crate) fn ratio(&self, ours: &K, theirs: &K) -> Option<Ratio> {
        let pairs = self.pairs(ours, theirs).into_iter();
        ratio(
            &pairs
                .map(|(ours, theirs)| (ours.value, theirs))
                .collect::<Vec<_>>(),
        )
    }
}
