//! The values of all rounds, as a table and as JSON.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::measures::{Goal, MEASURES, Measure, goals};
use super::{Case, GatewayArgs, Values};
use crate::goals::{self, GoalResult, Limit};
use crate::implementation::{Entry, Implementation};
use crate::install;
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::stats::{Summary, summary};

/// A run.
pub(super) struct GatewayReport {
    pub(super) machine: Machine,
    started: u64,
    rounds: u32,
    congestion: String,
    pub(super) implementations: Vec<Entry>,
    samples: BTreeMap<(Case, &'static str, Implementation), Vec<f64>>,
    notes: Vec<GatewayNote>,
    /// Why the run ended early, if it did.
    pub(super) stopped: Option<String>,
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
    /// Seconds since 1970.
    started: u64,
    machine: &'a Machine,
    /// Why the run ended early, if it did.
    stopped: Option<&'a str>,
    rounds: u32,
    congestion_control: &'a str,
    implementations: &'a [Entry],
    cases: Vec<CaseResults>,
    goals: Vec<GoalResult>,
    notes: &'a [GatewayNote],
}

#[derive(Serialize)]
struct CaseResults {
    case: Case,
    measures: Vec<CaseMeasure>,
    /// Why these have no value.
    cannot: BTreeMap<&'static str, String>,
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

impl GatewayReport {
    pub(super) fn new(rounds: u32, congestion: &str) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            machine: Machine::here(),
            started: started.map_or(0, |since| since.as_secs()),
            rounds,
            congestion: congestion.to_owned(),
            implementations: Vec::new(),
            samples: BTreeMap::new(),
            notes: Vec::new(),
            stopped: None,
        }
    }

    pub(super) fn find(&mut self, args: &GatewayArgs) -> Result<(), Failure> {
        let (there, left_out) = install::find_all(&args.implementations, args.adit.as_deref())?;
        self.implementations = there;
        self.notes.extend(
            left_out
                .into_iter()
                .map(|(implementation, text)| GatewayNote {
                    round: 0,
                    implementation,
                    case: None,
                    text,
                }),
        );
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

    /// How often Adit failed, or another implementation where none has a value. Others may not be
    /// able to do what Adit does.
    pub(super) fn failures(&self) -> usize {
        let counts = |note: &&GatewayNote| {
            let Some(case) = note.case else { return false };
            let measured = self.samples.keys().any(|(of, ..)| *of == case);
            note.implementation == Implementation::Adit || !measured
        };
        self.notes.iter().filter(counts).count()
    }

    fn cases(&self) -> impl Iterator<Item = Case> {
        let has = |case: &Case| {
            let noted = self.notes.iter().any(|note| note.case == Some(*case));
            noted || self.samples.keys().any(|(of, ..)| of == case)
        };
        Case::ALL.into_iter().filter(has)
    }

    /// Why an implementation has no value in a case, if it was tried.
    fn cannot(&self, case: Case, who: Implementation) -> Option<&str> {
        let mut samples = self.samples.keys();
        if samples.any(|(of, _, by)| (*of, *by) == (case, who)) {
            return None;
        }
        let mut notes = self.notes.iter();
        let note = notes.find(|note| note.case == Some(case) && note.implementation == who)?;
        Some(&note.text)
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
            let unit = MEASURES.iter().find(|measure| measure.id == id)?.unit;
            let unit = match unit {
                "" => String::new(),
                unit => format!(" {unit}"),
            };
            let (value, limit, unit) = match goal {
                Goal::Own(limit) => (median, limit, unit),
                Goal::TimesBest(times) => {
                    let others = Implementation::PEERS.into_iter();
                    let others = others.filter_map(|who| self.summary(case, id, who));
                    let best = others.map(|other| other.median).reduce(f64::max)?;
                    (median / best, Limit::AtLeast(times), " × best".to_owned())
                }
                Goal::TimesCase(other, times) => {
                    let other_median = self.summary(other, id, Implementation::Adit)?.median;
                    let of = format!(" × {}", other.name());
                    (median / other_median, Limit::AtLeast(times), of)
                }
            };
            let name = format!("{}: {id}", case.name());
            Some(GoalResult::new(name, value, limit, &unit))
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
            started: self.started,
            machine: &self.machine,
            stopped: self.stopped.as_deref(),
            rounds: self.rounds,
            congestion_control: &self.congestion,
            implementations: &self.implementations,
            cases: self
                .cases()
                .map(|case| CaseResults {
                    case,
                    cannot: self
                        .implementations
                        .iter()
                        .filter_map(|entry| {
                            let why = self.cannot(case, entry.who)?;
                            Some((entry.who.name(), why.to_owned()))
                        })
                        .collect(),
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

    /// Medians: a table for each case, one for all numbers of active peers, then the goals.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        for case in self.cases().filter(|case| !Case::ACTIVE.contains(case)) {
            let rows = MEASURES.iter().map(|measure| {
                let title = format!("{}, {}", measure.title, measure.unit);
                (title, case, measure)
            });
            text += &self.part(case.name(), rows);
        }
        // One measure after the other, so that its values for more and more peers stand together.
        for measure in &MEASURES {
            let rows = Case::ACTIVE.into_iter().map(|case| {
                let peers = case.name().trim_start_matches("peers-active-");
                (format!("  {peers} active peers"), case, measure)
            });
            let title = format!("{}, {}", measure.title.trim(), measure.unit);
            text += &self.part(&title, rows);
        }
        text.push('\n');
        text += &goals::table(&self.goals());
        for note in &self.notes {
            let case = note.case.map_or("", Case::name);
            let who = note.implementation.name();
            text += &format!("note: {who} {case}, round {}: {}\n", note.round, note.text);
        }
        if let Some(why) = &self.stopped {
            text += &format!("\nINCOMPLETE: {why}\n");
        }
        text
    }

    /// One table: nothing without a value.
    fn part<'a>(
        &self,
        title: &str,
        rows: impl Iterator<Item = (String, Case, &'a Measure)>,
    ) -> String {
        let mut text = format!("\n{title:<38}");
        for entry in &self.implementations {
            text += &format!("{:>14}", entry.who.name());
        }
        text.push('\n');
        let (mut rows_text, mut tried) = (String::new(), None);
        for (title, case, measure) in rows {
            tried = Some(case);
            let cells: Vec<Option<String>> = self
                .implementations
                .iter()
                .map(|entry| {
                    let median = self.summary(case, measure.id, entry.who)?.median;
                    Some(format!("{median:.*}", measure.places))
                })
                .collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let cells = cells.into_iter().zip(&self.implementations);
            rows_text += &format!("{title:<38}");
            rows_text.extend(cells.map(|(cell, entry)| {
                let cannot = || self.cannot(case, entry.who).map(|_| "cannot".to_owned());
                format!("{:>14}", cell.or_else(cannot).unwrap_or_default())
            }));
            rows_text.push('\n');
        }
        match tried {
            _ if !rows_text.is_empty() => text + &rows_text,
            // Every implementation that was tried failed.
            Some(case) if title == case.name() => format!("{text}cannot: see the notes\n"),
            _ => String::new(),
        }
    }
}
