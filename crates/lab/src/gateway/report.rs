//! The values of all rounds, as a table and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::measures::{Goal, MEASURES, Measure, goals};
use super::{Case, GatewayArgs, Values};
use crate::implementation::{Entry, Implementation};
use crate::install;
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::stats::{Summary, summary};

/// A run.
pub(super) struct GatewayReport {
    pub(super) machine: Machine,
    rounds: u32,
    pub(super) implementations: Vec<Entry>,
    samples: BTreeMap<(Case, &'static str, Implementation), Vec<f64>>,
    notes: Vec<GatewayNote>,
}

/// Something that went wrong. Round 0 is before the first round.
#[derive(Clone, Serialize)]
struct GatewayNote {
    round: u32,
    implementation: Implementation,
    case: Option<Case>,
    text: String,
}

#[derive(Serialize)]
pub(super) struct GatewayDocument<'a> {
    schema: u32,
    command: &'static str,
    machine: &'a Machine,
    rounds: u32,
    implementations: &'a [Entry],
    cases: Vec<CaseResults>,
    goals: Vec<GoalResult>,
    notes: &'a [GatewayNote],
}

#[derive(Serialize)]
struct CaseResults {
    case: Case,
    measures: Vec<CaseMeasure>,
}

#[derive(Serialize)]
struct CaseMeasure {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    implementations: BTreeMap<&'static str, Rounds>,
}

#[derive(Serialize)]
struct Rounds {
    rounds: Vec<f64>,
    #[serde(flatten)]
    summary: Summary,
}

/// A goal, and Adit's median.
#[derive(Serialize)]
pub(super) struct GoalResult {
    pub(super) name: String,
    value: f64,
    goal: String,
    pub(super) met: bool,
}

impl GatewayReport {
    pub(super) fn new(rounds: u32) -> Self {
        Self {
            machine: Machine::here(),
            rounds,
            implementations: Vec::new(),
            samples: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn find(&mut self, args: &GatewayArgs) -> Result<(), Failure> {
        let all = Implementation::PEERS
            .into_iter()
            .chain([Implementation::Adit]);
        let asked = &args.implementations;
        for who in all.filter(|who| asked.is_empty() || asked.contains(who)) {
            match install::find(who, args.adit.as_deref()) {
                Ok(entry) => {
                    eprintln!("{:<14}{}", who.name(), entry.version);
                    self.implementations.push(entry);
                }
                Err(why) => {
                    eprintln!("{:<14}left out: {why}", who.name());
                    self.notes.push(GatewayNote {
                        round: 0,
                        implementation: who,
                        case: None,
                        text: format!("left out: {why}"),
                    });
                }
            }
        }
        if self.implementations.is_empty() {
            return Err("nothing to measure: choose among wireguard-go, tailscale, boringtun, gotatun and adit".into());
        }
        Ok(())
    }

    pub(super) fn add(&mut self, case: Case, who: Implementation, values: Values) {
        for (id, value) in values {
            self.samples.entry((case, id, who)).or_default().push(value);
        }
    }

    pub(super) fn note(
        &mut self,
        round: u32,
        implementation: Implementation,
        case: Case,
        why: &Failure,
    ) {
        self.notes.push(GatewayNote {
            round,
            implementation,
            case: Some(case),
            text: why.to_string(),
        });
    }

    fn cases(&self) -> impl Iterator<Item = Case> {
        let has = |case: &Case| self.samples.keys().any(|(of, ..)| of == case);
        Case::ALL.into_iter().filter(has)
    }

    fn summary(&self, case: Case, id: &'static str, who: Implementation) -> Option<Summary> {
        summary(self.samples.get(&(case, id, who))?)
    }

    pub(super) fn goals(&self) -> Vec<GoalResult> {
        let all = self.cases().flat_map(|case| {
            let goals = goals(case, self.machine.cores);
            goals.into_iter().map(move |(id, goal)| (case, id, goal))
        });
        all.filter_map(|(case, id, goal)| {
            let median = self.summary(case, id, Implementation::Adit)?.median;
            let (value, text, met) = match goal {
                Goal::AtLeast(least) => (median, format!("≥ {least}"), median >= least),
                Goal::AtMost(most) => (median, format!("≤ {most}"), median <= most),
                Goal::TimesBest(times) => {
                    let others = Implementation::PEERS.into_iter();
                    let others = others.filter_map(|who| self.summary(case, id, who));
                    let best = others.map(|other| other.median).reduce(f64::max)?;
                    let ratio = median / best;
                    (ratio, format!("≥ {times} × best"), ratio >= times)
                }
            };
            Some(GoalResult {
                name: format!("{}: {id}", case.name()),
                value,
                goal: text,
                met,
            })
        })
        .collect()
    }

    pub(super) fn document(&self) -> GatewayDocument<'_> {
        let measured = |case: Case, measure: &Measure| {
            let implementations = self.implementations.iter().filter_map(|entry| {
                let rounds = self.samples.get(&(case, measure.id, entry.who))?.clone();
                let summary = summary(&rounds)?;
                Some((entry.who.name(), Rounds { rounds, summary }))
            });
            CaseMeasure {
                name: measure.id,
                title: measure.title.trim(),
                unit: measure.unit,
                implementations: implementations.collect(),
            }
        };
        GatewayDocument {
            schema: 1,
            command: "gateway",
            machine: &self.machine,
            rounds: self.rounds,
            implementations: &self.implementations,
            cases: self
                .cases()
                .map(|case| CaseResults {
                    case,
                    measures: MEASURES
                        .iter()
                        .map(|measure| measured(case, measure))
                        .filter(|measured| !measured.implementations.is_empty())
                        .collect(),
                })
                .collect(),
            goals: self.goals(),
            notes: &self.notes,
        }
    }

    /// Medians: a table for each case, then the goals.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        for case in self.cases() {
            text += &format!("\n{:<38}", case.name());
            for entry in &self.implementations {
                text += &format!("{:>14}", entry.who.name());
            }
            for measure in &MEASURES {
                let cells: Vec<String> = self
                    .implementations
                    .iter()
                    .map(|entry| {
                        let median = self.summary(case, measure.id, entry.who)?.median;
                        let places = measure.places;
                        Some(format!("{median:.places$}"))
                    })
                    .map(Option::unwrap_or_default)
                    .collect();
                if cells.iter().any(|cell| !cell.is_empty()) {
                    text += &format!("\n{:<38}", format!("{}, {}", measure.title, measure.unit));
                    text.extend(cells.iter().map(|cell| format!("{cell:>14}")));
                }
            }
            text.push('\n');
        }
        text.push('\n');
        for goal in self.goals() {
            let verdict = if goal.met { "met" } else { "MISSED" };
            text += &format!(
                "{:<38}{:>10.2}  {:<14}{verdict}\n",
                goal.name, goal.value, goal.goal
            );
        }
        for note in &self.notes {
            let case = note.case.map_or("", Case::name);
            let who = note.implementation.name();
            text += &format!("note: {who} {case}, round {}: {}\n", note.round, note.text);
        }
        text
    }
}
