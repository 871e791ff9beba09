//! The values of all rounds of programs that are compared with each other, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::ways::{Program, Way};
use crate::goals::{GoalResult, Limit};
use crate::rounds::{Measure, Values};
use crate::samples::RoundValues;
use crate::stats::Ratio;

/// Programs that are compared with each other.
pub(super) struct Comparison {
    title: &'static str,
    measures: &'static [Measure],
    /// The one that the others are compared with.
    reference: Way,
    programs: Vec<Program>,
    samples: RoundValues<(Way, &'static str)>,
}

impl Comparison {
    pub(super) fn new(
        title: &'static str,
        measures: &'static [Measure],
        reference: Way,
        programs: Vec<Program>,
    ) -> Self {
        Self {
            title,
            measures,
            reference,
            programs,
            samples: RoundValues::new(),
        }
    }

    pub(super) fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// What a round of one program found; what has no column is left out.
    pub(super) fn add(&mut self, round: u32, way: Way, values: Values) {
        for (id, value) in values {
            if self.measures.iter().any(|measure| measure.id == id) {
                self.samples.add((way, id), round, value);
            }
        }
    }

    /// The median of a way.
    pub(super) fn median(&self, way: Way, id: &'static str) -> Option<f64> {
        Some(self.samples.summary(&(way, id))?.median)
    }

    /// One way's values over another's, from rounds that both finished.
    fn ratio(&self, way: Way, to: Way, id: &'static str) -> Option<Ratio> {
        self.samples.ratio(&(way, id), &(to, id))
    }

    /// How one way stands to another; nothing unless both were to be measured.
    pub(super) fn goal(
        &self,
        name: &str,
        (way, to): (Way, Way),
        id: &'static str,
        limit: Limit,
    ) -> Option<GoalResult> {
        if !self.has(way) || !self.has(to) {
            return None;
        }
        let ratio = self.ratio(way, to, id);
        Some(GoalResult::of_ratio(name.to_owned(), ratio, limit))
    }

    /// As JSON: ratios are multiples of the reference; nothing of itself.
    pub(super) fn document(&self) -> Value {
        let ids = || self.measures.iter().map(|measure| measure.id);
        let way = |program: &Program| {
            let way = program.way;
            let measures = ids().filter_map(|id| Some((id, self.samples.rounds(&(way, id))?)));
            let ratios = ids()
                .filter(|_| way != self.reference)
                .filter_map(|id| Some((id, self.ratio(way, self.reference, id)?)));
            json!({"way": way, "version": program.version,
                "measures": measures.collect::<BTreeMap<_, _>>(),
                "to_reference": ratios.collect::<BTreeMap<_, _>>()})
        };
        let measure = |it: &Measure| json!({"id": it.id, "title": it.title, "unit": it.unit});
        json!({
            "reference": self.reference,
            "measures": self.measures.iter().map(measure).collect::<Value>(),
            "ways": self.programs.iter().map(way).collect::<Value>(),
        })
    }

    /// Medians with half their range, and below them ratios with their intervals; nothing of no program.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        if self.programs.is_empty() {
            return out;
        }
        let names = self.programs.iter().map(|program| program.way.name());
        line(
            &mut out,
            self.title,
            names.map(|name| Some(name.to_owned())),
        );
        for measure in self.measures {
            let (id, places) = (measure.id, measure.places);
            let medians = self.programs.iter().map(|program| {
                let summary = self.samples.summary(&(program.way, id))?;
                let (median, spread) = (summary.median, summary.spread * 100.0);
                Some(format!("{median:.places$} ±{spread:.0} %"))
            });
            line(&mut out, &measure.label(), medians);
            let ratios = self.programs.iter().map(|program| {
                if program.way == self.reference {
                    return Some(String::new());
                }
                let ratio = self.ratio(program.way, self.reference, id)?;
                let (value, low, high) = (ratio.value, ratio.low, ratio.high);
                Some(format!("{value:.2} ({low:.2}–{high:.2})"))
            });
            if self.programs.len() > 1 && self.has(self.reference) {
                line(&mut out, &format!("  × {}", self.reference.name()), ratios);
            }
        }
        out
    }

    fn has(&self, way: Way) -> bool {
        self.programs.iter().any(|program| program.way == way)
    }
}

fn line(out: &mut String, name: &str, cells: impl Iterator<Item = Option<String>>) {
    let _ = write!(out, "{name:24}");
    for cell in cells {
        let _ = write!(out, "{:>23}", cell.as_deref().unwrap_or("–"));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::measure;

    const MEASURES: [Measure; 1] = [measure("tcp1", "1 stream", "Gb/s", 2)];

    fn comparison() -> Comparison {
        let program = |way| Program {
            way,
            version: "1".to_owned(),
            words: Vec::new(),
        };
        let programs = [Way::AditEngine, Way::Gotatun].map(program);
        Comparison::new("TCP", &MEASURES, Way::Gotatun, programs.to_vec())
    }

    #[test]
    fn only_rounds_that_both_finished_are_compared() {
        let mut comparison = comparison();
        for (round, ours, theirs) in [(1, 4.0, Some(1.0)), (2, 100.0, None), (3, 6.0, Some(1.0))] {
            comparison.add(round, Way::AditEngine, vec![("tcp1", ours), ("other", 1.0)]);
            if let Some(theirs) = theirs {
                comparison.add(round, Way::Gotatun, vec![("tcp1", theirs)]);
            }
        }
        let ways = (Way::AditEngine, Way::Gotatun);
        let goal = comparison.goal("a stream", ways, "tcp1", Limit::AtLeast(4.0));
        assert_eq!(goal.unwrap().value, Some(5.0));
        let document = comparison.document();
        let ways = &document["ways"];
        assert_eq!(ways[0]["measures"]["tcp1"]["median"], 6.0);
        assert_eq!(ways[0]["measures"]["tcp1"]["rounds"][1]["value"], 100.0);
        assert_eq!(ways[0]["measures"]["other"], serde_json::Value::Null);
        assert_eq!(ways[0]["to_reference"]["tcp1"]["value"], 5.0);
        assert_eq!(ways[1]["to_reference"], serde_json::json!({}));
        let text = comparison.text();
        assert!(
            text.contains("× gotatun") && text.contains("5.00 (4.00–6.00)"),
            "{text}"
        );
    }

    #[test]
    fn what_failed_misses_its_goal_and_what_was_not_asked_for_has_none() {
        let comparison = comparison();
        let goal = |to| {
            let ways = (Way::AditEngine, to);
            comparison.goal("a stream", ways, "tcp1", Limit::AtLeast(4.0))
        };
        let failed = goal(Way::Gotatun).unwrap();
        assert_eq!((failed.value, failed.met), (None, false));
        assert_eq!(goal(Way::BoringtunTunn), None);
        assert!(comparison.text().contains('–'));
    }
}
