//! The values of all rounds, as a table and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    Attack, CONNECTED, CONNECTED_AFTER, GROWTH, HONEST, HostileArgs, KEPT, LOST, PING_P99, Rate,
    SENT, SENT_CLOSED, STREAM, STREAM_ATTACKED, STREAM_CLOSED, Values,
};
use crate::implementation::{Entry, Implementation};
use crate::install;
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::stats::{Summary, summary};

/// Id, title, unit, and decimal places.
type Measure = (&'static str, &'static str, &'static str, usize);

const MEASURES: [Measure; 11] = [
    (STREAM, "TCP, alone", "Gb/s", 2),
    (
        STREAM_CLOSED,
        "  beside a flood of a closed port",
        "Gb/s",
        2,
    ),
    (STREAM_ATTACKED, "  beside the attack", "Gb/s", 2),
    (KEPT, "  of that of a closed port", "×", 2),
    (PING_P99, "ping beside the attack, p99", "ms", 2),
    (LOST, "  not answered", "%", 1),
    (CONNECTED, "honest peers of 20 that connect", "", 0),
    (CONNECTED_AFTER, "  the last of them after", "s", 2),
    (GROWTH, "memory, growth to its peak", "MiB", 1),
    (SENT, "messages sent, thousand", "1/s", 0),
    (SENT_CLOSED, "  to a closed port", "1/s", 0),
];

/// What Adit is to reach: at least, or at most.
#[derive(Clone, Copy)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

fn goals(attack: Attack) -> Vec<(&'static str, Goal)> {
    use Goal::{AtLeast, AtMost};
    let others = [
        (PING_P99, AtMost(10.0)),
        (CONNECTED, AtLeast(f64::from(HONEST))),
        (GROWTH, AtMost(16.0)),
    ];
    let kept = match attack {
        Attack::BadTags => Some((KEPT, AtLeast(0.6))),
        // A peer has its share.
        Attack::Peer => None,
        _ => Some((KEPT, AtLeast(0.8))),
    };
    kept.into_iter().chain(others).collect()
}

/// A run.
pub(super) struct HostileReport {
    pub(super) machine: Machine,
    rounds: u32,
    rate: Rate,
    pub(super) implementations: Vec<Entry>,
    samples: BTreeMap<(Attack, &'static str, Implementation), Vec<f64>>,
    notes: Vec<Note>,
}

/// Something that went wrong. Round 0 is before the first round.
#[derive(Clone, Serialize)]
struct Note {
    round: u32,
    implementation: Implementation,
    attack: Option<Attack>,
    text: String,
}

#[derive(Serialize)]
pub(super) struct Document<'a> {
    schema: u32,
    command: &'static str,
    machine: &'a Machine,
    rounds: u32,
    rate: Rate,
    implementations: &'a [Entry],
    attacks: Vec<AttackResults>,
    goals: Vec<GoalResult>,
    notes: &'a [Note],
}

#[derive(Serialize)]
struct AttackResults {
    attack: Attack,
    measures: Vec<Measured>,
}

#[derive(Serialize)]
struct Measured {
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

impl HostileReport {
    pub(super) fn new(rounds: u32, rate: Rate) -> Self {
        Self {
            machine: Machine::here(),
            rounds,
            rate,
            implementations: Vec::new(),
            samples: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn find(&mut self, args: &HostileArgs) -> Result<(), Failure> {
        let (there, left_out) = install::find_all(&args.implementations, args.adit.as_deref())?;
        self.implementations = there;
        self.notes
            .extend(left_out.into_iter().map(|(implementation, text)| Note {
                round: 0,
                implementation,
                attack: None,
                text,
            }));
        Ok(())
    }

    pub(super) fn add(&mut self, attack: Attack, who: Implementation, values: Values) {
        for (id, value) in values {
            let samples = self.samples.entry((attack, id, who));
            samples.or_default().push(value);
        }
    }

    pub(super) fn note(&mut self, round: u32, who: Implementation, of: Attack, why: &Failure) {
        self.notes.push(Note {
            round,
            implementation: who,
            attack: Some(of),
            text: why.to_string(),
        });
    }

    fn attacks(&self) -> impl Iterator<Item = Attack> {
        let has = |attack: &Attack| self.samples.keys().any(|(of, ..)| of == attack);
        Attack::ALL.into_iter().filter(has)
    }

    fn summary(&self, of: Attack, id: &'static str, who: Implementation) -> Option<Summary> {
        summary(self.samples.get(&(of, id, who))?)
    }

    pub(super) fn goals(&self) -> Vec<GoalResult> {
        let all = self.attacks().flat_map(|attack| {
            let goals = goals(attack).into_iter();
            goals.map(move |(id, goal)| (attack, id, goal))
        });
        all.filter_map(|(attack, id, goal)| {
            let value = self.summary(attack, id, Implementation::Adit)?.median;
            let (goal, met) = match goal {
                Goal::AtLeast(least) => (format!("≥ {least}"), value >= least),
                Goal::AtMost(most) => (format!("≤ {most}"), value <= most),
            };
            Some(GoalResult {
                name: format!("{}: {id}", attack.name()),
                value,
                goal,
                met,
            })
        })
        .collect()
    }

    pub(super) fn document(&self) -> Document<'_> {
        let measured = |attack: Attack, &(name, title, unit, _): &Measure| {
            let implementations = self.implementations.iter().filter_map(|entry| {
                let rounds = self.samples.get(&(attack, name, entry.who))?.clone();
                let summary = summary(&rounds)?;
                Some((entry.who.name(), Rounds { rounds, summary }))
            });
            Measured {
                name,
                title: title.trim(),
                unit,
                implementations: implementations.collect(),
            }
        };
        let attacks = self.attacks().map(|attack| AttackResults {
            attack,
            measures: MEASURES
                .iter()
                .map(|measure| measured(attack, measure))
                .collect(),
        });
        Document {
            schema: 1,
            command: "hostile",
            machine: &self.machine,
            rounds: self.rounds,
            rate: self.rate,
            implementations: &self.implementations,
            attacks: attacks.collect(),
            goals: self.goals(),
            notes: &self.notes,
        }
    }

    /// Medians: a table for each attack, then the goals.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        for attack in self.attacks() {
            text += &format!("\n{:<38}", attack.name());
            for entry in &self.implementations {
                text += &format!("{:>14}", entry.who.name());
            }
            for &(id, title, unit, places) in &MEASURES {
                text += &format!(
                    "\n{:<38}",
                    format!("{title}, {unit}").trim_end_matches(", ")
                );
                for entry in &self.implementations {
                    let median = self.summary(attack, id, entry.who);
                    let cell = median.map(|of| format!("{:.places$}", of.median));
                    text += &format!("{:>14}", cell.unwrap_or_default());
                }
            }
            text.push('\n');
        }
        text.push('\n');
        for goal in self.goals() {
            let verdict = if goal.met { "met" } else { "MISSED" };
            let (name, value) = (goal.name, goal.value);
            text += &format!("{name:<38}{value:>10.2}  {:<14}{verdict}\n", goal.goal);
        }
        for note in &self.notes {
            let attack = note.attack.map_or("", Attack::name);
            let who = note.implementation.name();
            let (round, why) = (note.round, &note.text);
            text += &format!("note: {who} {attack}, round {round}: {why}\n");
        }
        text
    }
}
