//! Percentiles.

/// The value below which the share `q` (0 to 1) of `values` lies, in their unit, interpolated
/// linearly between neighbours; `None` of nothing.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * to_f64(last);
    let below = (0..=last).rev().find(|&i| to_f64(i) <= at).unwrap_or(0);
    let above = (below + 1).min(last);
    let share = at - to_f64(below);
    Some(sorted[below] + (sorted[above] - sorted[below]) * share)
}

/// The middle value, or the mean of the middle two; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// A count as a real number. Exact below 2^53, far above anything counted here.
#[expect(clippy::cast_precision_loss, reason = "the point of this one function")]
pub fn to_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn quantiles_reach_from_the_least_to_the_greatest() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 1.0), Some(1000.0));
        let p99 = quantile(&values, 0.99).unwrap();
        assert!((p99 - 990.01).abs() < 1e-6, "{p99}");
    }

    #[test]
    fn one_value_is_each_of_its_quantiles() {
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
    }
}
