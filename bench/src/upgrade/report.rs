//! What the hand-overs were like, as a table and as a document.

use std::time::Instant;

use adit_testbed::stats::to_f64;
use serde::Serialize;
use serde_json::{Value, json};

use super::flows::Tally;
use crate::goals::{self, GoalResult, Limit};
use crate::implementation::Entry;
use crate::output;
use crate::report::Machine;
use crate::rounds::{Measure, measure};
use crate::sandbox::Failure;
use crate::stats::{Rounds, summary};

/// One hand-over.
#[derive(Clone, Copy)]
pub(super) struct HandOver {
    /// Milliseconds of the slowest datagram that came after the command began.
    pub(super) gap: f64,
    /// The same before.
    pub(super) before: f64,
    /// Milliseconds of the command.
    pub(super) took: f64,
    /// Gb/s of the stream, from then on.
    pub(super) stream: f64,
    /// The new process's peak in MiB.
    pub(super) memory: f64,
}

/// The value of a hand-over.
type Of = fn(&HandOver) -> f64;

#[rustfmt::skip]
const MEASURES: [(Measure, Of); 5] = [
    (measure("gap", "gap: the slowest datagram", "ms", 1), |it| { it.gap }),
    (measure("before", "the slowest in the 300 ms before", "ms", 1), |it| it.before),
    (measure("took", "adit upgrade took", "ms", 0), |it| it.took),
    (measure("stream", "the stream meanwhile", "Gb/s", 2), |it| { it.stream }),
    (measure("memory", "peak memory of the new process", "MiB", 0), |it| it.memory),
];

pub(super) struct UpgradeReport {
    machine: Machine,
    entry: Entry,
    settings: Settings,
    started: u64,
    begun: Instant,
    seconds: f64,
    stopped: Option<String>,
    hand_overs: Vec<HandOver>,
    /// Beside the hand-overs, and of the series.
    tally: Tally,
    handshakes: u64,
}

#[derive(Clone, Copy, Serialize)]
struct Settings {
    hand_overs: u32,
    peers: u32,
    silent_peers: u32,
}

impl UpgradeReport {
    pub(super) fn new([hand_overs, peers, silent_peers]: [u32; 3], entry: Entry) -> Self {
        Self {
            machine: Machine::here(),
            entry,
            settings: Settings {
                hand_overs,
                peers,
                silent_peers,
            },
            started: output::now(),
            begun: Instant::now(),
            seconds: 0.0,
            stopped: None,
            hand_overs: Vec::new(),
            tally: Tally::default(),
            handshakes: 0,
        }
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.hand_overs.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn add(&mut self, found: HandOver, tally: Tally) {
        self.hand_overs.push(found);
        self.tally.add(tally);
    }

    /// What the peers that the lab plays noticed, and handshake messages of all.
    pub(super) fn end_series(&mut self, handshakes: u64, tally: Tally) {
        self.handshakes += handshakes;
        self.tally.add(tally);
    }

    pub(super) fn finish(&mut self, stopped: Option<String>) {
        self.machine.finish();
        self.seconds = self.begun.elapsed().as_secs_f64();
        self.stopped = stopped;
    }

    /// A line for the last hand-over.
    pub(super) fn progress(&self, all: u32) -> String {
        let Some(last) = self.hand_overs.last() else {
            return String::new();
        };
        format!(
            "hand-over {} of {all}: gap {:.1} ms ({:.1} before), took {:.0} ms, {:.2} Gb/s, {} lost",
            self.count(),
            last.gap,
            last.before,
            last.took,
            last.stream,
            self.tally.lost()
        )
    }

    fn values(&self, of: Of) -> Vec<f64> {
        self.hand_overs.iter().map(of).collect()
    }

    fn goals(&self) -> Vec<GoalResult> {
        let longest = self.values(|it| it.gap).into_iter().fold(0.0, f64::max);
        let count = |count: u64| to_f64(usize::try_from(count).unwrap_or(usize::MAX));
        let at_most = |name: &str, value, most, unit| {
            GoalResult::new(name.to_owned(), value, Limit::AtMost(most), unit)
        };
        let wanted = f64::from(self.settings.hand_overs);
        let done = f64::from(self.count());
        vec![
            GoalResult::new("hand-overs".to_owned(), done, Limit::AtLeast(wanted), ""),
            at_most("longest gap", longest, 50.0, " ms"),
            at_most("handshake messages", count(self.handshakes), 0.0, ""),
            at_most(
                "datagrams delivered twice",
                count(self.tally.twice),
                0.0,
                "",
            ),
            at_most("datagrams lost", count(self.tally.lost()), 0.0, ""),
        ]
    }

    pub(super) fn table(&self) -> String {
        let Settings {
            peers,
            silent_peers,
            ..
        } = self.settings;
        let mut text = format!(
            "{} hand-overs of {peers} peers with a session and {silent_peers} without\n\n{:<38}{:>10}{:>10}{:>10}\n",
            self.count(),
            "",
            "median",
            "least",
            "most"
        );
        for (measure, of) in &MEASURES {
            if let Some(it) = summary(&self.values(*of)) {
                let (title, places) = (measure.label(), measure.places);
                text += &format!(
                    "{title:<38}{:>10.places$}{:>10.places$}{:>10.places$}\n",
                    it.median, it.min, it.max
                );
            }
        }
        text += &format!("{:<38}{:>10}\n\n", "datagrams", self.tally.sent);
        text += &goals::table(&self.goals());
        if let Some(why) = &self.stopped {
            text += &format!("stopped: {why}\n");
        }
        text
    }

    pub(super) fn document(&self) -> Value {
        let metrics = MEASURES.iter().filter_map(|(measure, of)| {
            let rounds = self.values(*of);
            let summary = summary(&rounds)?;
            Some(
                json!({"name": measure.id, "title": measure.title, "unit": measure.unit,
                "implementations": {self.entry.who.name(): Rounds::new(rounds, summary)}}),
            )
        });
        json!({
            "schema": 1,
            "command": "upgrade",
            "started": self.started,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "machine": self.machine,
            "settings": self.settings,
            "implementations": [self.entry],
            "metrics": metrics.collect::<Value>(),
            "datagrams": self.tally.sent,
            "goals": self.goals(),
            "notes": [],
        })
    }

    /// An error if a goal is missed.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        match self.goals().iter().filter(|goal| !goal.met).count() {
            0 => Ok(()),
            1 => Err("a goal is missed".into()),
            missed => Err(format!("{missed} goals are missed").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::implementation::Implementation;

    fn report(gaps: &[f64], handshakes: u64, tally: Tally) -> UpgradeReport {
        let entry = Entry::plain(Implementation::Adit, "1");
        let count = u32::try_from(gaps.len()).unwrap();
        let mut report = UpgradeReport::new([count, 1000, 0], entry);
        for &gap in gaps {
            let found = HandOver {
                gap,
                before: 1.0,
                took: 100.0,
                stream: 3.0,
                memory: 9.0,
            };
            report.add(found, Tally::default());
        }
        report.end_series(handshakes, tally);
        report
    }

    #[test]
    fn one_long_gap_a_handshake_or_a_datagram_that_is_lost_or_doubled_misses_a_goal() {
        let tally = |received, twice| Tally {
            sent: 10,
            received,
            twice,
        };
        let good = report(&[10.0, 50.0], 0, tally(10, 0));
        assert!(good.verdict().is_ok(), "{}", good.table());
        for bad in [
            report(&[10.0, 50.1], 0, tally(10, 0)),
            report(&[10.0], 1, tally(10, 0)),
            report(&[10.0], 0, tally(9, 0)),
            report(&[10.0], 0, tally(10, 1)),
        ] {
            assert!(bad.verdict().is_err(), "{}", bad.table());
        }
        let mut early = report(&[10.0], 0, tally(10, 0));
        early.settings.hand_overs = 2;
        assert!(early.verdict().is_err(), "{}", early.table());
    }

    #[test]
    fn the_document_has_every_value_and_what_the_page_of_results_reads() {
        let report = report(&[10.0, 30.0], 0, Tally::default());
        let json = report.document();
        let gap = &json["metrics"][0]["implementations"]["adit"];
        assert_eq!(gap["rounds"], serde_json::json!([10.0, 30.0]));
        assert_eq!((&gap["median"], &gap["max"]), (&20.0.into(), &30.0.into()));
        assert_eq!(json["goals"].as_array().unwrap().len(), 5);
        crate::page::check(&json.to_string()).unwrap();
    }
}
