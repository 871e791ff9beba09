//! The values of all rounds of programs that are compared with each other, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::ways::{Program, Way};
use crate::goals::{GoalResult, Limit};
use crate::stats::{self, Ratio, Summary};

/// Id, title, unit, and decimal places.
pub(super) type Measure = (&'static str, &'static str, &'static str, usize);

/// Values of one round, by the id of their measure.
pub(super) type Values = Vec<(&'static str, f64)>;

/// Programs that are compared with each other.
pub(super) struct Comparison {
    title: &'static str,
    measures: &'static [Measure],
    /// The one that the others are compared with.
    reference: Way,
    programs: Vec<Program>,
    samples: BTreeMap<(Way, &'static str), Vec<Round>>,
}

#[derive(Clone, Copy, Serialize)]
struct Round {
    round: u32,
    value: f64,
}

#[derive(Serialize)]
pub(super) struct ComparisonDocument {
    reference: Way,
    measures: Vec<MeasureDocument>,
    ways: Vec<WayDocument>,
}

#[derive(Serialize)]
struct MeasureDocument {
    id: &'static str,
    title: &'static str,
    unit: &'static str,
}

#[derive(Serialize)]
struct WayDocument {
    way: Way,
    version: String,
    measures: BTreeMap<&'static str, Rounds>,
    /// As a multiple of the reference; nothing of itself.
    to_reference: BTreeMap<&'static str, Ratio>,
}

#[derive(Serialize)]
struct Rounds {
    rounds: Vec<Round>,
    #[serde(flatten)]
    summary: Summary,
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
            samples: BTreeMap::new(),
        }
    }

    pub(super) fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// What a round of one program found; what has no column is left out.
    pub(super) fn add(&mut self, round: u32, way: Way, values: Values) {
        for (id, value) in values {
            if self.measures.iter().any(|(known, ..)| *known == id) {
                let rounds = self.samples.entry((way, id)).or_default();
                rounds.push(Round { round, value });
            }
        }
    }

    fn rounds(&self, way: Way, id: &'static str) -> &[Round] {
        self.samples.get(&(way, id)).map_or(&[], Vec::as_slice)
    }

    fn summary(&self, way: Way, id: &'static str) -> Option<Summary> {
        let values: Vec<f64> = self.rounds(way, id).iter().map(|it| it.value).collect();
        stats::summary(&values)
    }

    /// The median of a way.
    pub(super) fn median(&self, way: Way, id: &'static str) -> Option<f64> {
        Some(self.summary(way, id)?.median)
    }

    /// One way's values over another's, from rounds that both finished.
    fn ratio(&self, way: Way, to: Way, id: &'static str) -> Option<Ratio> {
        let theirs = self.rounds(to, id);
        let pairs = self.rounds(way, id).iter().filter_map(|ours| {
            let same = theirs.iter().find(|theirs| theirs.round == ours.round)?;
            Some((ours.value, same.value))
        });
        stats::ratio(&pairs.collect::<Vec<_>>())
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
        let name = name.to_owned();
        Some(match self.ratio(way, to, id) {
            Some(ratio) => GoalResult::new(name, ratio.value, limit, " ×"),
            None => GoalResult {
                name,
                value: None,
                goal: limit.text(" ×"),
                met: false,
            },
        })
    }

    pub(super) fn document(&self) -> ComparisonDocument {
        let ids = || self.measures.iter().map(|&(id, ..)| id);
        let rounds = |way, id| {
            Some(Rounds {
                rounds: self.rounds(way, id).to_vec(),
                summary: self.summary(way, id)?,
            })
        };
        let way = |program: &Program| WayDocument {
            way: program.way,
            version: program.version.clone(),
            measures: ids()
                .filter_map(|id| Some((id, rounds(program.way, id)?)))
                .collect(),
            to_reference: ids()
                .filter(|_| program.way != self.reference)
                .filter_map(|id| Some((id, self.ratio(program.way, self.reference, id)?)))
                .collect(),
        };
        let measure = |&(id, title, unit, _): &Measure| MeasureDocument { id, title, unit };
        ComparisonDocument {
            reference: self.reference,
            measures: self.measures.iter().map(measure).collect(),
            ways: self.programs.iter().map(way).collect(),
        }
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
        for &(id, title, unit, places) in self.measures {
            let medians = self.programs.iter().map(|program| {
                let summary = self.summary(program.way, id)?;
                let (median, spread) = (summary.median, summary.spread * 100.0);
                Some(format!("{median:.places$} ±{spread:.0} %"))
            });
            line(&mut out, &format!("{title}, {unit}"), medians);
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

    const MEASURES: [Measure; 1] = [("tcp1", "1 stream", "Gb/s", 2)];

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
        let document = serde_json::to_value(comparison.document()).unwrap();
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
