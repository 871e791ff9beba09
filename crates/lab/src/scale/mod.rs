//! `adit-lab scale`: what more threads bring, by policy.
//!
//! Stages: the engine over devices in memory, for each load and policy in turn → tunnels between two
//! hosts, by streams and policy → table or JSON.

mod memory;

use std::fmt::Write as _;

use adit_engine::{Policy, ThreadSettings};
use adit_testbed::interrupt;
use clap::Args;
use serde::Serialize;

use crate::goals::{self, GoalResult, Limit};
use crate::output::Json;
use crate::sandbox::Failure;
use crate::stats::{Summary, summary};
use memory::Direction;

/// Loads of the engine in memory: name, peers, where packets go.
const LOADS: [(&str, u8, Direction); 4] = [
    ("to one peer", 1, Direction::Outbound),
    ("to 64 peers", 64, Direction::Outbound),
    ("from one peer", 1, Direction::Inbound),
    ("from 64 peers", 64, Direction::Inbound),
];

/// Bytes of datagrams that are sealed before they are received.
const RECEIVED: usize = 768 << 20;

/// Measures what further threads bring: the engine over devices in memory, which copy packets and
/// do nothing else, with one thread and with several by each policy.
///
/// The policies take turns in each round. `auto` is measured with idle CPUs for its helpers: on a
/// machine that does other things at the same time it shows less.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScaleArgs {
    /// Also print JSON, or write it to a file.
    ///
    /// One object with `schema`, `command`, `cpus`, `rounds` and `memory`: one for each `load` and
    /// `policy`, with its `threads`, and the median, least and greatest of `gbps` and of
    /// `cpu_s_per_gb`. Each of the `goals` has `name`, `value`, `goal` and `met`. Fields are only
    /// ever added under the same schema number.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = true)]
    json: Option<String>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Threads of the policies that use several; by default as many as CPUs, two at least.
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=64))]
    shards: Option<u16>,
}

#[derive(Serialize)]
struct ScaleReport {
    schema: u32,
    command: &'static str,
    cpus: usize,
    rounds: u16,
    memory: Vec<Row>,
    goals: Vec<GoalResult>,
}

/// One load by one policy.
#[derive(Serialize)]
struct Row {
    load: &'static str,
    policy: &'static str,
    threads: usize,
    gbps: Summary,
    cpu_s_per_gb: Summary,
}

/// One value of one round.
pub(crate) struct Sample {
    pub(crate) round: u16,
    pub(crate) load: &'static str,
    pub(crate) policy: Policy,
    pub(crate) gbps: f64,
    pub(crate) cpu: f64,
}

/// How many threads a policy with several has: as many as CPUs, two at least.
pub(crate) fn several() -> usize {
    std::thread::available_parallelism().map_or(2, |cpus| usize::from(cpus).max(2))
}

/// What is measured, by its name.
pub(crate) fn loads() -> impl Iterator<Item = &'static str> {
    LOADS.iter().map(|(load, ..)| *load)
}

/// Each policy and its threads.
pub(crate) const fn ways(several: usize) -> [(Policy, usize); 3] {
    [
        (Policy::Inline, 1),
        (Policy::Auto, several),
        (Policy::Pipeline, several),
    ]
}

/// Measures and prints.
pub(crate) fn run(args: &ScaleArgs) -> Result<(), Failure> {
    let json = Json::open(args.json.as_deref())?;
    let several = args.shards.map_or_else(several, usize::from);
    let rows = rows(args.rounds, several, |_| {})?;
    let report = ScaleReport {
        schema: 1,
        command: "scale",
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        rounds: args.rounds,
        goals: judge(&rows),
        memory: rows,
    };
    json.publish(&table(&report), || {
        Ok(serde_json::to_string_pretty(&report)?)
    })
}

/// Measures everything, hands out each value, and judges.
pub(crate) fn measure(
    rounds: u16,
    several: usize,
    each: impl FnMut(&Sample),
) -> Result<Vec<GoalResult>, Failure> {
    Ok(judge(&rows(rounds, several, each)?))
}

fn rows(rounds: u16, several: usize, mut each: impl FnMut(&Sample)) -> Result<Vec<Row>, Failure> {
    let ways = ways(several);
    let mut values = vec![[const { (Vec::new(), Vec::new()) }; 3]; LOADS.len()];
    for round in 1..=rounds {
        for ((load, peers, direction), values) in LOADS.iter().zip(&mut values) {
            eprintln!("round {round} of {rounds}: {load}");
            for (&(policy, shards), (gbps, cpu)) in ways.iter().zip(values) {
                interrupt::check()?;
                let settings = ThreadSettings {
                    policy,
                    ..ThreadSettings::from(shards)
                };
                let name = policy.name();
                let rate = memory::measure(&settings, *peers, *direction, RECEIVED)
                    .map_err(|error| format!("{load}, {name}: {error}"))?;
                gbps.push(rate.gbps);
                cpu.push(rate.cpu);
                each(&Sample {
                    round,
                    load,
                    policy,
                    gbps: rate.gbps,
                    cpu: rate.cpu,
                });
            }
        }
    }
    let mut rows = Vec::new();
    for ((load, ..), values) in LOADS.iter().zip(&values) {
        for ((policy, threads), (gbps, cpu)) in ways.iter().zip(values) {
            rows.push(Row {
                load,
                policy: policy.name(),
                threads: *threads,
                gbps: summary(gbps).ok_or("no round")?,
                cpu_s_per_gb: summary(cpu).ok_or("no round")?,
            });
        }
    }
    Ok(rows)
}

/// What `auto` with several threads is to reach, against one thread.
fn judge(rows: &[Row]) -> Vec<GoalResult> {
    let rate = |load: &str, policy: Policy| {
        let is_it = |row: &&Row| row.load == load && row.policy == policy.name();
        rows.iter()
            .find(is_it)
            .map_or(f64::NAN, |row| row.gbps.median)
    };
    let goal = |load: &str, limit| {
        let name = format!("memory, {load}: auto against one thread");
        let value = rate(load, Policy::Auto) / rate(load, Policy::Inline);
        GoalResult::new(name, value, Limit::AtLeast(limit), " ×")
    };
    vec![
        goal("to one peer", 1.7),
        goal("from one peer", 1.7),
        goal("to 64 peers", 1.9),
        goal("from 64 peers", 1.9),
    ]
}

fn table(report: &ScaleReport) -> String {
    let mut text = format!(
        "The engine over devices in memory, {} CPUs, {} rounds\n\n{:<16}{:<10}{:>8}{:>12}{:>18}{:>16}\n",
        report.cpus, report.rounds, "packets", "policy", "threads", "Gb/s", "range", "CPU-s/GB"
    );
    for row in &report.memory {
        let range = format!("{:.1}–{:.1}", row.gbps.min, row.gbps.max);
        let _ = writeln!(
            text,
            "{:<16}{:<10}{:>8}{:>12.1}{range:>18}{:>16.3}",
            row.load, row.policy, row.threads, row.gbps.median, row.cpu_s_per_gb.median
        );
    }
    text.push('\n');
    text + &goals::table(&report.goals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_are_judged_by_what_one_moves() {
        let row = |load, policy: Policy, gbps| Row {
            load,
            policy: policy.name(),
            threads: 2,
            gbps: summary(&[gbps]).unwrap(),
            cpu_s_per_gb: summary(&[1.0]).unwrap(),
        };
        let rows = [
            row("to one peer", Policy::Inline, 10.0),
            row("to one peer", Policy::Auto, 18.0),
            row("from one peer", Policy::Inline, 10.0),
            row("from one peer", Policy::Auto, 15.0),
        ];
        let met: Vec<bool> = judge(&rows).iter().map(|goal| goal.met).collect();
        assert_eq!(
            met,
            [true, false, false, false],
            "what is missing is missed"
        );
    }

    #[test]
    fn the_engine_in_memory_moves_packets_by_each_policy() {
        for (_, policy) in Policy::ALL {
            let settings = ThreadSettings {
                policy,
                ..ThreadSettings::from(2)
            };
            for direction in [Direction::Outbound, Direction::Inbound] {
                let rate = memory::measure(&settings, 2, direction, 16 << 20).unwrap();
                assert!(rate.gbps > 0.0 && rate.cpu > 0.0);
            }
        }
    }
}
