//! Medians, spreads and the ratio of two implementations over paired rounds.

use adit_testbed::stats::{median, quantile};
use serde::Serialize;

/// Where the values of one metric lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Half the range as a share of the median: "± this".
    pub(crate) spread: f64,
    #[serde(rename = "count")]
    pub(crate) rounds: usize,
}

/// A value in JSON: that of every round, and where they lie.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rounds<T> {
    rounds: Vec<T>,
    #[serde(flatten)]
    pub(crate) summary: Summary,
}

impl<T> Rounds<T> {
    pub(crate) const fn new(rounds: Vec<T>, summary: Summary) -> Self {
        Self { rounds, summary }
    }
}

/// How one implementation stands to another, from rounds in which both ran.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// Median over median.
    pub(crate) value: f64,
    /// The ends of the interval.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) interval_kind: IntervalKind,
    /// The least and the greatest ratio within one round.
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) rounds: usize,
}

/// What an interval says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum IntervalKind {
    /// 95 % of the ratios of medians under bootstrap resampling of the rounds (percentile method,
    /// over the pairs).
    #[serde(rename = "95%")]
    Bootstrap,
    /// The least and the greatest round, where there are too few to resample.
    #[serde(rename = "range")]
    Range,
}

/// Even the whole range of four rounds holds what it is to hold 87.5 % of the time only (1 - 2^(1 -
/// 4)).
const ENOUGH: usize = 5;

/// Median and range; `None` of nothing.
pub(crate) fn summary(values: &[f64]) -> Option<Summary> {
    let median = median(values)?;
    let min = quantile(values, 0.0)?;
    let max = quantile(values, 1.0)?;
    let spread = if median == 0.0 {
        0.0
    } else {
        (max - min) / 2.0 / median
    };
    Some(Summary {
        median,
        min,
        max,
        spread,
        rounds: values.len(),
    })
}

/// `pairs` holds (ours, theirs) of each round that both finished; `None` without one or when theirs
/// is zero.
pub(crate) fn ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let value = ratio_of_medians(pairs)?;
    let within = pairs.iter().map(|(ours, theirs)| ours / theirs);
    let within: Vec<f64> = within.filter(|ratio| ratio.is_finite()).collect();
    let (min, max) = (quantile(&within, 0.0)?, quantile(&within, 1.0)?);
    let (low, high, interval_kind) = if pairs.len() < ENOUGH {
        (min, max, IntervalKind::Range)
    } else {
        let (low, high) = bootstrap(pairs)?;
        (low, high, IntervalKind::Bootstrap)
    };
    Some(Ratio {
        value,
        low,
        high,
        interval_kind,
        min,
        max,
        rounds: pairs.len(),
    })
}

/// Where 95 % of the ratios lie when the rounds are resampled with replacement.
fn bootstrap(pairs: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mut random = Random::new();
    let resampled: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let again: Vec<_> = pairs
                .iter()
                .map(|_| pairs[random.below(pairs.len())])
                .collect();
            ratio_of_medians(&again)
        })
        .collect();
    Some((quantile(&resampled, 0.025)?, quantile(&resampled, 0.975)?))
}

const RESAMPLES: usize = 2000;

fn ratio_of_medians(pairs: &[(f64, f64)]) -> Option<f64> {
    let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let theirs = median(&theirs)?;
    (theirs != 0.0).then_some(median(&ours)? / theirs)
}

/// xorshift64*: the same rounds always give the same interval.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let n = u64::try_from(n).unwrap_or(u64::MAX).max(1);
        let draw = (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % n;
        usize::try_from(draw).unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
