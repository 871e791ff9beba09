//! What a run found, and the questions that tables, targets and JSON ask of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_testbed::proc;
use serde::Serialize;

use crate::implementation::{Entry, Implementation};
use crate::metric::{Metric, Step, metric};
use crate::stats::{Ratio, Summary, ratio, summary};
use crate::{output, tools};

/// One value of one round, or of one of its turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) round: u32,
    pub(crate) implementation: Implementation,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
}

/// Something that went wrong. Round 0 is before the first round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Note {
    pub(crate) round: u32,
    pub(crate) implementation: Implementation,
    pub(crate) step: Option<Step>,
    pub(crate) text: String,
}

/// The machine that a run was made on.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Sizes of the caches of the first CPU, from the first level on.
    pub(crate) caches: String,
    /// What the kernel does about each flaw of the processor that it knows.
    pub(crate) mitigations: String,
    /// Where it says so: a hypervisor runs below.
    pub(crate) virtual_machine: bool,
    pub(crate) clock: String,
    pub(crate) load_before: String,
    pub(crate) load_after: String,
}

impl Machine {
    /// This machine, at the beginning of a run.
    pub(crate) fn here() -> Self {
        let (cpu, cores) = proc::processor();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu,
            cores,
            kernel: kernel.trim().to_owned(),
            caches: caches(),
            mitigations: mitigations(),
            virtual_machine: std::fs::read_to_string("/proc/cpuinfo")
                .is_ok_and(|info| info.split_whitespace().any(|flag| flag == "hypervisor")),
            clock: line(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource".as_ref(),
            ),
            load_before: proc::load_average(),
            load_after: String::new(),
        }
    }

    /// The run has ended.
    pub(crate) fn finish(&mut self) {
        self.load_after = proc::load_average();
    }
}

/// The first line of a file; nothing where it cannot be read.
fn line(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// What a directory holds, by name.
fn entries(directory: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn caches() -> String {
    let caches = entries("/sys/devices/system/cpu/cpu0/cache");
    let named = caches.iter().filter_map(|cache| {
        let [level, kind, size] = ["level", "type", "size"].map(|name| line(&cache.join(name)));
        (!size.is_empty()).then(|| format!("L{level} {} {size}", kind.to_lowercase()))
    });
    named.collect::<Vec<_>>().join(", ")
}

fn mitigations() -> String {
    let flaws = entries("/sys/devices/system/cpu/vulnerabilities");
    let named = flaws.iter().filter_map(|flaw| {
        let name = flaw.file_name()?.to_string_lossy();
        let state = line(flaw);
        (!state.is_empty() && state != "Not affected").then(|| format!("{name}: {state}"))
    });
    named.collect::<Vec<_>>().join("; ")
}

/// A run.
#[derive(Debug)]
pub(crate) struct ComparisonReport {
    pub(crate) implementations: Vec<Entry>,
    pub(crate) steps: Vec<Step>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) notes: Vec<Note>,
    /// Why it ended early.
    pub(crate) stopped: Option<String>,
    pub(crate) congestion: String,
    pub(crate) machine: Machine,
    pub(crate) tools: Vec<(String, String)>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    pub(crate) took: Duration,
    clock: Instant,
}

impl ComparisonReport {
    /// An empty run that starts now, on this machine.
    pub(crate) fn new(congestion: String, steps: Vec<Step>) -> Self {
        Self {
            implementations: Vec::new(),
            steps,
            samples: Vec::new(),
            notes: Vec::new(),
            stopped: None,
            congestion,
            machine: Machine::here(),
            tools: tools::versions(),
            started: output::now(),
            took: Duration::ZERO,
            clock: Instant::now(),
        }
    }

    /// The run has ended.
    pub(crate) fn finish(&mut self) {
        self.machine.finish();
        self.took = self.clock.elapsed();
    }

    /// (round, value), in the order of the rounds.
    pub(crate) fn values(&self, who: Implementation, id: &str) -> Vec<(u32, f64)> {
        let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        let samples = self.samples.iter();
        for sample in samples.filter(|sample| sample.implementation == who && sample.metric == id) {
            rounds.entry(sample.round).or_default().push(sample.value);
        }
        let metric = metric(id);
        rounds
            .into_iter()
            .filter_map(|(round, turns)| Some((round, metric?.of_turns(&turns))))
            .collect()
    }

    /// How many failures the rounds had. Implementations that were left out before them do not
    /// count.
    pub(crate) fn failures(&self) -> usize {
        self.notes.iter().filter(|note| note.round > 0).count()
    }

    /// Whether the user asked for this implementation, also where it had to be left out.
    pub(crate) fn asked(&self, who: Implementation, id: &str) -> bool {
        let step = metric(id).map(|metric| metric.step);
        let there = self.implementations.iter().any(|entry| entry.who == who);
        (there || self.notes.iter().any(|note| note.implementation == who))
            && step.is_some_and(|step| self.steps.contains(&step))
    }

    /// Whether a measurement that was asked for went wrong, in any round. A note without a step is
    /// about every one that the round then does not have.
    pub(crate) fn failed(&self, who: Implementation, id: &str) -> bool {
        let step = metric(id).map(|metric| metric.step);
        let values = self.values(who, id);
        let missing = |round| !values.iter().any(|&(measured, _)| measured == round);
        let concerned = |note: &Note| match note.step {
            None => missing(note.round),
            failed => failed == step,
        };
        let mut notes = self.notes.iter();
        self.asked(who, id) && notes.any(|note| note.implementation == who && concerned(note))
    }

    /// Median and range over the rounds.
    pub(crate) fn summary(&self, who: Implementation, metric: &str) -> Option<Summary> {
        let values: Vec<f64> = self
            .values(who, metric)
            .into_iter()
            .map(|(_, value)| value)
            .collect();
        summary(&values)
    }

    pub(crate) fn median(&self, who: Implementation, metric: &str) -> Option<f64> {
        self.summary(who, metric).map(|summary| summary.median)
    }

    /// Ours over theirs, from the rounds that have both.
    pub(crate) fn ratio(
        &self,
        ours: (Implementation, &str),
        theirs: (Implementation, &str),
    ) -> Option<Ratio> {
        let theirs = self.values(theirs.0, theirs.1);
        let pairs: Vec<(f64, f64)> = self
            .values(ours.0, ours.1)
            .into_iter()
            .filter_map(|(round, ours)| {
                let (_, theirs) = theirs.iter().find(|(other, _)| *other == round)?;
                Some((ours, *theirs))
            })
            .collect();
        ratio(&pairs)
    }

    /// The best of these implementations by its median.
    pub(crate) fn best(&self, of: &[Implementation], id: &str) -> Option<Implementation> {
        let better = metric(id)?.better;
        let medians = of
            .iter()
            .filter_map(|&who| Some((who, self.median(who, id)?)));
        better.best(medians)
    }

    /// What a tunnel could reach at most: the direct path's median times what framing leaves of it.
    pub(crate) fn maximum(&self, metric: &Metric) -> Option<f64> {
        let (load, outer) = metric.framing?;
        Some(self.median(Implementation::Direct, metric.id)? * load.share(outer))
    }

    /// An implementation's median as a share of [`ComparisonReport::maximum`].
    pub(crate) fn share_of_maximum(&self, who: Implementation, metric: &Metric) -> Option<f64> {
        if who == Implementation::Direct {
            return None;
        }
        Some(self.median(who, metric.id)? / self.maximum(metric)?)
    }

    /// Whether a flood's result was limited by the tool that sent it: hardly anything was lost.
    pub(crate) fn is_tool_bound(&self, who: Implementation, id: &str) -> bool {
        const LITTLE: f64 = 2.0;
        self.median(who, &format!("{id}.lost"))
            .is_some_and(|lost| lost < LITTLE)
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
