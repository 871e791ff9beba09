//! An experiment with implementations: they take turns in rounds, part by part. What that brings, as a
//! table and as JSON.

use std::collections::BTreeMap;

use adit_testbed::interrupt;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::goals::{self, GoalResult};
use crate::implementation::{Entry, Implementation};
use crate::install::{self, AditArg};
use crate::output::{self, Json, name};
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::stats::{Rounds, Summary, summary};

/// What such experiments are asked.
#[derive(Args, Clone, Debug)]
pub(crate) struct RoundArgs {
    /// How many rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Run only these.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) implementations: Vec<Implementation>,
    #[command(flatten)]
    pub(crate) adit: AditArg,
}

/// A quantity that is measured.
pub(crate) struct Measure {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// Decimal places in the table.
    pub(crate) places: usize,
}

pub(crate) const fn measure(
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    places: usize,
) -> Measure {
    Measure {
        id,
        title,
        unit,
        places,
    }
}

impl Measure {
    /// Title and unit.
    pub(crate) fn label(&self) -> String {
        match self.unit {
            "" => self.title.to_owned(),
            unit => format!("{}, {unit}", self.title),
        }
    }
}

/// Values of one round, by the id of their measure.
pub(crate) type Values = Vec<(&'static str, f64)>;

/// Values of rounds, by what was measured and of whom.
pub(crate) type Samples<P> = BTreeMap<(P, &'static str, Implementation), Vec<f64>>;

/// The values of implementations in one measure, for JSON.
pub(crate) fn implementations<P: Copy + Ord>(
    samples: &Samples<P>,
    part: P,
    id: &'static str,
) -> BTreeMap<&'static str, Rounds<f64>> {
    let of = samples
        .iter()
        .filter(|((of, by, _), _)| (*of, *by) == (part, id));
    let rounds = of.filter_map(|((.., who), values)| {
        Some((who.name(), Rounds::new(values.clone(), summary(values)?)))
    });
    rounds.collect()
}

/// Something that went wrong. Round 0 is before the first round.
struct RoundNote<P> {
    round: u32,
    who: Implementation,
    part: Option<P>,
    text: String,
}

/// A run.
pub(crate) struct Experiment<P> {
    pub(crate) machine: Machine,
    started: u64,
    rounds: u32,
    pub(crate) implementations: Vec<Entry>,
    measures: &'static [Measure],
    samples: Samples<P>,
    notes: Vec<RoundNote<P>>,
    /// Why the run ended early, if it did.
    pub(crate) stopped: Option<String>,
}

impl<P: Copy + Ord + ValueEnum> Experiment<P> {
    /// Of nothing yet.
    pub(crate) fn new(measures: &'static [Measure]) -> Self {
        Self {
            machine: Machine::here(),
            started: output::now(),
            rounds: 0,
            implementations: Vec::new(),
            measures,
            samples: BTreeMap::new(),
            notes: Vec::new(),
            stopped: None,
        }
    }

    /// Measures these parts, or all of them, with every implementation that is there, until it is
    /// interrupted. A part that fails is noted, and the next one follows.
    pub(crate) fn run(
        &mut self,
        args: &RoundArgs,
        only: &[P],
        measure: impl Fn(&Entry, P) -> Result<Values, Failure>,
        progress: impl Fn(P, &Values) -> String,
    ) -> Result<(), Failure> {
        let (there, left_out) = install::find_all(&args.implementations, args.adit.path())?;
        (self.implementations, self.rounds) = (there, args.rounds);
        for (who, text) in left_out {
            self.note(0, who, None, text);
        }
        let parts = if only.is_empty() {
            P::value_variants()
        } else {
            only
        };
        let mut rounds = || -> Result<(), Failure> {
            for round in 1..=args.rounds {
                eprintln!("round {round} of {}", args.rounds);
                for entry in install::order(&self.implementations, round) {
                    for &part in parts {
                        interrupt::check()?;
                        eprint!("  {:<14}{:<20}", entry.who.name(), name(part));
                        match measure(&entry, part) {
                            Ok(values) => {
                                eprintln!("{}", progress(part, &values));
                                self.add(part, entry.who, values);
                            }
                            Err(why) => {
                                interrupt::check()?;
                                eprintln!("failed: {why}");
                                self.note(round, entry.who, Some(part), why.to_string());
                            }
                        }
                    }
                }
            }
            Ok(())
        };
        if let Err(why) = rounds() {
            eprintln!("\nstopped: {why}");
            self.stopped = Some(why.to_string());
        }
        self.machine.finish();
        Ok(())
    }

    pub(crate) fn add(&mut self, part: P, who: Implementation, values: Values) {
        for (id, value) in values {
            self.samples.entry((part, id, who)).or_default().push(value);
        }
    }

    pub(crate) fn note(&mut self, round: u32, who: Implementation, part: Option<P>, text: String) {
        self.notes.push(RoundNote {
            round,
            who,
            part,
            text,
        });
    }

    /// How often Adit failed, or another implementation where none has a value. Others may not be
    /// able to do what Adit does.
    pub(crate) fn failures(&self) -> usize {
        let counts = |note: &&RoundNote<P>| {
            let Some(part) = note.part else { return false };
            let measured = self.samples.keys().any(|(of, ..)| *of == part);
            note.who == Implementation::Adit || !measured
        };
        self.notes.iter().filter(counts).count()
    }

    /// The parts that were tried.
    pub(crate) fn parts(&self) -> impl Iterator<Item = P> {
        let has = |part: &P| {
            let noted = self.notes.iter().any(|note| note.part == Some(*part));
            noted || self.samples.keys().any(|(of, ..)| of == part)
        };
        P::value_variants().iter().copied().filter(has)
    }

    /// Why an implementation has no value in a part, if it was tried.
    fn cannot(&self, part: P, who: Implementation) -> Option<&str> {
        let mut samples = self.samples.keys();
        if samples.any(|(of, _, by)| (*of, *by) == (part, who)) {
            return None;
        }
        let mut notes = self.notes.iter();
        let note = notes.find(|note| note.part == Some(part) && note.who == who)?;
        Some(&note.text)
    }

    pub(crate) fn summary(
        &self,
        part: P,
        id: &'static str,
        who: Implementation,
    ) -> Option<Summary> {
        summary(self.samples.get(&(part, id, who))?)
    }

    /// The values of all implementations in one measure, for JSON.
    pub(crate) fn values(&self, part: P, id: &'static str) -> BTreeMap<&'static str, Rounds<f64>> {
        implementations(&self.samples, part, id)
    }

    /// The run as JSON: `kind` is what a part is called.
    pub(crate) fn document(&self, command: &str, kind: &str, goals: &[GoalResult]) -> Value {
        let measures = |part| {
            let measured = self.measures.iter().filter_map(|measure| {
                let values = implementations(&self.samples, part, measure.id);
                (!values.is_empty()).then(|| {
                    json!({"name": measure.id, "title": measure.title.trim(), "unit": measure.unit,
                        "implementations": values})
                })
            });
            measured.collect::<Value>()
        };
        let parts = self.parts().map(|part| {
            let entries = self.implementations.iter();
            let cannot =
                entries.filter_map(|entry| Some((entry.who.name(), self.cannot(part, entry.who)?)));
            json!({kind: name(part), "measures": measures(part),
                "cannot": cannot.collect::<BTreeMap<_, _>>()})
        });
        let notes = self.notes.iter().map(|note| {
            json!({"round": note.round, "implementation": note.who, kind: note.part.map(name),
                "text": note.text})
        });
        json!({
            "schema": 1,
            "command": command,
            "started": self.started,
            "machine": self.machine,
            "stopped": self.stopped,
            "rounds": self.rounds,
            "implementations": self.implementations,
            format!("{kind}s"): parts.collect::<Value>(),
            "goals": goals,
            "notes": notes.collect::<Value>(),
        })
    }

    /// Medians: a table for each of these parts.
    pub(crate) fn tables(&self, parts: impl Iterator<Item = P>) -> String {
        let table = |part| {
            let rows = self.measures.iter().map(|it| (it.label(), part, it));
            self.table(&name(part), rows)
        };
        parts.map(table).collect()
    }

    /// Medians, a column for each implementation: nothing without a value.
    pub(crate) fn table<'a>(
        &self,
        title: &str,
        rows: impl Iterator<Item = (String, P, &'a Measure)>,
    ) -> String {
        let mut text = format!("\n{title:<38}");
        for entry in &self.implementations {
            text += &format!("{:>14}", entry.who.name());
        }
        text.push('\n');
        let (mut rows_text, mut tried) = (String::new(), None);
        for (title, part, measure) in rows {
            tried = Some(part);
            let entries = || self.implementations.iter().map(|entry| entry.who);
            let cell = |who| {
                let median = self.summary(part, measure.id, who)?.median;
                Some(format!("{median:.*}", measure.places))
            };
            if entries().all(|who| cell(who).is_none()) {
                continue;
            }
            rows_text += &format!("{title:<38}");
            rows_text.extend(entries().map(|who| {
                let cannot = || self.cannot(part, who).map(|_| "cannot".to_owned());
                format!("{:>14}", cell(who).or_else(cannot).unwrap_or_default())
            }));
            rows_text.push('\n');
        }
        match tried {
            _ if !rows_text.is_empty() => text + &rows_text,
            // Every implementation that was tried failed.
            Some(part) if title == name(part) => format!("{text}cannot: see the notes\n"),
            _ => String::new(),
        }
    }

    /// What stands below the tables: goals, and what went wrong.
    pub(crate) fn end(&self, goals: &[GoalResult]) -> String {
        let mut text = format!("\n{}", goals::table(goals));
        for note in &self.notes {
            let part = note.part.map_or_else(String::new, name);
            let (who, round, why) = (note.who.name(), note.round, &note.text);
            text += &format!("note: {who} {part}, round {round}: {why}\n");
        }
        if let Some(why) = &self.stopped {
            text += &format!("\nINCOMPLETE: {why}\n");
        }
        text
    }

    /// Prints the tables and writes the JSON. An error if something failed.
    pub(crate) fn publish(
        &self,
        json: Json,
        tables: &str,
        document: &Value,
    ) -> Result<(), Failure> {
        json.publish(tables, document)?;
        output::verdict(self.stopped.is_some(), self.failures())
    }
}
