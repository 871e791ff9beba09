//! What the rounds of a source brought, and what the source published.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use adit_testbed::interrupt;
use serde::Serialize;

use crate::goals::{GoalResult, Limit};
use crate::install;
use crate::metric::Better;
use crate::samples::{RoundValue, RoundValues};
use crate::sandbox::Failure;
use crate::stats::Rounds;

/// Something that is compared.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Subject {
    pub(super) name: String,
    /// What it is, or what it adds to the subject above it.
    pub(super) what: String,
}

/// What of it is measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measure {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) places: usize,
    /// Where it stands in a curve, if it is a point of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) curve: Option<Curve>,
    /// Where it stands in a distribution, if it is a percentile: one of `at` values is above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) distribution: Option<Curve>,
}

/// A point of a curve.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Curve {
    pub(super) title: String,
    /// What it is drawn over.
    pub(super) axis: &'static str,
    pub(super) at: f64,
}

/// A figure of the source.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Published {
    /// What the source measured.
    pub(super) what: &'static str,
    pub(super) value: f64,
    pub(super) unit: &'static str,
    /// What stands for it here.
    pub(super) measure: &'static str,
    pub(super) subject: &'static str,
    /// If the figure is a ratio: what the subject is divided by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) over: Option<&'static str>,
    /// What differs here, and why.
    pub(super) differs: &'static str,
}

impl Published {
    pub(super) const fn gbps(
        what: &'static str,
        value: f64,
        measure: &'static str,
        subject: &'static str,
        differs: &'static str,
    ) -> Self {
        Self {
            what,
            value,
            unit: "Gb/s",
            measure,
            subject,
            over: None,
            differs,
        }
    }
}

/// Something that is not there.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeftOut {
    name: String,
    why: String,
}

/// Where one end of a tunnel spent its time.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FlameGraph {
    pub(super) subject: String,
    /// Sender or receiver.
    pub(super) end: &'static str,
    /// Stacks with their CPU time, a line each: `thread;outer;…;inner nanoseconds`.
    pub(super) folded: String,
}

/// Something that went wrong.
#[derive(Clone, Debug, Serialize)]
struct Note {
    round: u32,
    subject: String,
    text: String,
}

/// Values of one subject in one round, by the id of their measure. What was measured before a
/// failure counts.
pub(super) type Values = Vec<(String, f64)>;

/// A source that is being measured.
pub(super) struct Results {
    source: &'static str,
    rounds: u32,
    pub(super) subjects: Vec<Subject>,
    pub(super) measures: Vec<Measure>,
    pub(super) published: Vec<Published>,
    pub(super) goals: Vec<GoalResult>,
    pub(super) flame_graphs: Vec<FlameGraph>,
    left_out: Vec<LeftOut>,
    notes: Vec<Note>,
    /// By measure and subject.
    samples: RoundValues<(String, String)>,
}

/// A source that was measured, as it stands in the JSON.
#[derive(Serialize)]
pub(super) struct SourceResults {
    source: &'static str,
    rounds: u32,
    subjects: Vec<Subject>,
    measures: Vec<Measured>,
    published: Vec<Published>,
    left_out: Vec<LeftOut>,
    pub(super) goals: Vec<GoalResult>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flame_graphs: Vec<FlameGraph>,
    notes: Vec<Note>,
}

#[derive(Serialize)]
struct Measured {
    #[serde(flatten)]
    measure: Measure,
    subjects: BTreeMap<String, Rounds<RoundValue>>,
}

/// Of a measure and a subject.
fn key(measure: &str, subject: &str) -> (String, String) {
    (measure.to_owned(), subject.to_owned())
}

impl Results {
    pub(super) fn new(source: &'static str, rounds: u32) -> Self {
        Self {
            source,
            rounds,
            subjects: Vec::new(),
            measures: Vec::new(),
            published: Vec::new(),
            goals: Vec::new(),
            flame_graphs: Vec::new(),
            left_out: Vec::new(),
            notes: Vec::new(),
            samples: RoundValues::new(),
        }
    }

    pub(super) fn leave_out(&mut self, name: &str, why: &str) {
        eprintln!("  {name:<24}left out: {why}");
        self.left_out.push(LeftOut {
            name: name.to_owned(),
            why: why.to_owned(),
        });
    }

    pub(super) fn add(&mut self, round: u32, subject: &str, values: Values) {
        for (measure, value) in values {
            self.samples.add(key(&measure, subject), round, value);
        }
    }

    /// Adds what subjects reached in a measure in percent of what another one reached in the same round,
    /// of which their framing leaves a share. Its id is that of the measure with ".percent" behind it.
    pub(super) fn add_percent(&mut self, of: &str, over: &str, share: impl Fn(&str) -> f64) {
        let mut percent = Vec::new();
        for subject in self.subjects.iter().filter(|subject| subject.name != over) {
            let pairs = self.samples.pairs(&key(of, &subject.name), &key(of, over));
            for (sample, whole) in pairs {
                let value = sample.value / whole / share(&subject.name) * 100.0;
                percent.push((sample.round, subject.name.clone(), value));
            }
        }
        for (round, subject, value) in percent {
            self.add(round, &subject, vec![(format!("{of}.percent"), value)]);
        }
    }

    /// Measures every subject once a round, in alternating order, but not longer than twice the time
    /// that `each` of them is expected to take.
    pub(super) fn measure_rounds(
        &mut self,
        each: Duration,
        mut measure: impl FnMut(&str, &mut Values) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.subjects.is_empty() {
            self.leave_out(self.source, "nothing that was asked for is there");
            return Ok(());
        }
        let names: Vec<String> = self.subjects.iter().map(|of| of.name.clone()).collect();
        let estimate = each * u32::try_from(names.len())? * self.rounds;
        let (minutes, seconds) = (estimate.as_secs() / 60, estimate.as_secs() % 60);
        eprintln!(
            "  {} subjects: about {minutes} min {seconds} s",
            names.len()
        );
        let deadline = Instant::now() + estimate * 2 + Duration::from_secs(60);
        for round in 1..=self.rounds {
            eprintln!("  round {round} of {}", self.rounds);
            for name in install::order(&names, round) {
                interrupt::check()?;
                if Instant::now() > deadline {
                    return Err("it took more than twice the time that was estimated".into());
                }
                let mut values = Values::new();
                let done = measure(&name, &mut values);
                eprintln!("    {name:<24}{}", self.progress(&values));
                self.add(round, &name, values);
                if let Err(why) = done {
                    interrupt::check()?;
                    eprintln!("    {name:<24}failed: {why}");
                    self.notes.push(Note {
                        round,
                        subject: name,
                        text: why.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The first values of a round.
    fn progress(&self, values: &Values) -> String {
        let shown = values.iter().take(4).map(|(id, value)| {
            let measure = self.measures.iter().find(|measure| measure.id == *id);
            let (places, unit) = measure.map_or((2, ""), |of| (of.places, of.unit));
            format!("{id} {value:.places$} {unit}")
        });
        shown.collect::<Vec<_>>().join(" · ")
    }

    pub(super) fn median(&self, measure: &str, subject: &str) -> Option<f64> {
        Some(self.samples.summary(&key(measure, subject))?.median)
    }

    /// Judges the ratio of two subjects in one measure, if both were asked for.
    pub(super) fn judge(&mut self, measure: &str, ours: &str, theirs: &str, limit: Limit) {
        let there = |name: &str| self.subjects.iter().any(|subject| subject.name == name);
        if !there(ours) || !there(theirs) {
            return;
        }
        let name = format!("{}: {measure}, {ours} / {theirs}", self.source);
        let ratio = self
            .samples
            .ratio(&key(measure, ours), &key(measure, theirs));
        self.goals.push(GoalResult::of_ratio(name, ratio, limit));
    }

    /// The subject with the best median among these.
    pub(super) fn best<'a>(&self, measure: &str, among: &[&'a str]) -> Option<&'a str> {
        let better = self.measures.iter().find(|of| of.id == measure)?.better;
        let medians = among
            .iter()
            .filter_map(|&name| Some((name, self.median(measure, name)?)));
        better.best(medians)
    }

    pub(super) fn finish(mut self) -> SourceResults {
        let mut measures = Vec::new();
        for measure in std::mem::take(&mut self.measures) {
            let mut subjects = BTreeMap::new();
            for subject in &self.subjects {
                let rounds = self.samples.rounds(&key(&measure.id, &subject.name));
                subjects.extend(rounds.map(|rounds| (subject.name.clone(), rounds)));
            }
            if !subjects.is_empty() {
                measures.push(Measured { measure, subjects });
            }
        }
        SourceResults {
            source: self.source,
            rounds: self.rounds,
            subjects: self.subjects,
            measures,
            published: self.published,
            left_out: self.left_out,
            goals: self.goals,
            flame_graphs: self.flame_graphs,
            notes: self.notes,
        }
    }
}

impl SourceResults {
    /// How many measurements went wrong.
    pub(super) fn failures(&self) -> usize {
        self.notes.len()
    }

    fn cell(&self, measure: &str, subject: &str) -> Option<String> {
        let measured = self.measures.iter().find(|of| of.measure.id == measure)?;
        let summary = measured.subjects.get(subject)?.summary;
        let places = measured.measure.places;
        let spread = summary.spread * 100.0;
        Some(format!("{:.places$} ±{spread:.0}%", summary.median))
    }

    /// The median of one subject over that of another.
    fn quotient(&self, measure: &str, subject: &str, over: &str) -> Option<String> {
        let measured = self.measures.iter().find(|of| of.measure.id == measure)?;
        let median = |name: &str| measured.subjects.get(name).map(|of| of.summary.median);
        Some(format!("{:.2} ×", median(subject)? / median(over)?))
    }

    /// A curve: a line for each of its points, a column for each subject.
    fn matrix(&self, title: &str) -> String {
        let points = self.measures.iter().filter_map(|measured| {
            let curve = measured.measure.curve.as_ref()?;
            (curve.title == title).then_some((curve, &measured.measure))
        });
        let points: Vec<_> = points.collect();
        let Some((curve, measure)) = points.first() else {
            return String::new();
        };
        let has = |subject: &&Subject| {
            let cell = |(_, measure): &(_, &Measure)| self.cell(&measure.id, &subject.name);
            points.iter().find_map(cell).is_some()
        };
        let subjects: Vec<&Subject> = self.subjects.iter().filter(has).collect();
        let mut text = format!("{title}, {}\n  {:<18}", measure.unit, curve.axis);
        for subject in &subjects {
            let _ = write!(text, "{:>19}", subject.name);
        }
        for (curve, measure) in &points {
            let _ = write!(text, "\n  {:<18}", curve.at);
            for subject in &subjects {
                let cell = self.cell(&measure.id, &subject.name);
                let _ = write!(text, "{:>19}", cell.unwrap_or_else(|| "–".to_owned()));
            }
        }
        text.push('\n');
        text
    }

    /// Medians of all subjects, the published figures beside those of here, and what is missing.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "\n{}\n\nmedian ± half the range, {} rounds\n",
            self.source, self.rounds
        );
        let mut tabled = BTreeSet::new();
        for measured in &self.measures {
            let measure = &measured.measure;
            if let Some(curve) = &measure.curve {
                if tabled.insert(&curve.title) {
                    text += &self.matrix(&curve.title);
                }
                continue;
            }
            // What stands in distributions only is drawn, not tabled.
            if measure.distribution.is_some() {
                continue;
            }
            let unit = match measure.unit {
                "" => String::new(),
                unit => format!(", {unit}"),
            };
            let _ = writeln!(text, "{}{unit}", measure.title);
            for subject in &self.subjects {
                if let Some(cell) = self.cell(&measure.id, &subject.name) {
                    let _ = writeln!(text, "  {:<24}{cell:>16}  {}", subject.name, subject.what);
                }
            }
        }
        if !self.published.is_empty() {
            let _ = writeln!(
                text,
                "\n{:<50}{:>12}{:>18}  what differs",
                "", "published", "here"
            );
        }
        for of in &self.published {
            let here = match of.over {
                None => self.cell(of.measure, of.subject),
                Some(over) => self.quotient(of.measure, of.subject, over),
            };
            let here = here.unwrap_or_else(|| "–".to_owned());
            let published = format!("{} {}", of.value, of.unit);
            let _ = writeln!(
                text,
                "{:<50}{published:>12}{here:>18}  {}",
                of.what, of.differs
            );
        }
        for left_out in &self.left_out {
            let _ = writeln!(text, "left out: {}: {}", left_out.name, left_out.why);
        }
        for note in &self.notes {
            let _ = writeln!(
                text,
                "note: {}, round {}: {}",
                note.subject, note.round, note.text
            );
        }
        text
    }
}
