//! Goals, in the same form in the JSON of every command.

use serde::Serialize;

use crate::stats::Ratio;

/// What a value is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Limit {
    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }

    /// "≥ 0.9" and the unit, which brings its own space.
    pub(crate) fn text(self, unit: &str) -> String {
        match self {
            Self::AtLeast(limit) => format!("≥ {limit}{unit}"),
            Self::AtMost(limit) => format!("≤ {limit}{unit}"),
        }
    }
}

/// How a run stands to one goal. A goal whose value was not asked for is left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct GoalResult {
    pub(crate) name: String,
    /// None if the measurement failed.
    pub(crate) value: Option<f64>,
    pub(crate) goal: String,
    pub(crate) met: bool,
}

impl GoalResult {
    /// A goal of `limit` in `unit`, and what was measured.
    pub(crate) fn new(name: String, value: f64, limit: Limit, unit: &str) -> Self {
        Self {
            name,
            value: Some(value),
            goal: limit.text(unit),
            met: limit.is_met(value),
        }
    }

    /// A goal of a ratio, which is missed where there is none.
    pub(crate) fn of_ratio(name: String, ratio: Option<Ratio>, limit: Limit) -> Self {
        match ratio {
            Some(ratio) => Self::new(name, ratio.value, limit, " ×"),
            None => Self {
                name,
                value: None,
                goal: limit.text(" ×"),
                met: false,
            },
        }
    }
}

/// A line for each, for people: nothing of nothing.
pub(crate) fn table(goals: &[GoalResult]) -> String {
    let name = |goal: &GoalResult| goal.name.chars().count();
    let width = goals.iter().map(name).max().unwrap_or(0).max(36) + 2;
    let line = |goal: &GoalResult| {
        let value = goal
            .value
            .map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
        let verdict = if goal.met { "met" } else { "MISSED" };
        let (name, text) = (&goal.name, &goal.goal);
        format!("{name:<width$}{value:>10}  {text:<28}{verdict}\n")
    };
    goals.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_at_its_limit_and_not_beyond() {
        let judged = |limit, value| GoalResult::new("x".to_owned(), value, limit, " ms");
        assert!(judged(Limit::AtLeast(0.9), 0.9).met);
        assert!(!judged(Limit::AtLeast(0.9), 0.89).met);
        assert!(judged(Limit::AtMost(50.0), 50.0).met);
        assert!(!judged(Limit::AtMost(50.0), 50.1).met);
        assert!(!judged(Limit::AtMost(50.0), f64::NAN).met);
    }

    #[test]
    fn a_goal_has_four_fields_in_json_and_a_line_for_people() {
        let goal = GoalResult::new("gap".to_owned(), 51.0, Limit::AtMost(50.0), " ms");
        let json = serde_json::to_value(&goal).unwrap();
        let expected =
            serde_json::json!({"name": "gap", "value": 51.0, "goal": "≤ 50 ms", "met": false});
        assert_eq!(json, expected);
        let table = table(&[goal]);
        assert!(
            table.contains("51.00") && table.contains("MISSED"),
            "{table}"
        );
        assert_eq!(super::table(&[]), "");
    }
}
