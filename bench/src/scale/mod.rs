//! `adit-lab scale`: what more threads bring, by policy.
//!
//! Stages: the engine over devices in memory, for each load and policy in turn → what its stages cost
//! → real tunnels between two hosts, by flows, tunnels and policy → gateways that forward, beside other
//! implementations → a model made of these costs: first of what was measured, then of other machines →
//! table or JSON.

mod args;
mod devices;
mod forwarded;
mod machine;
mod memory;
mod model;
mod real;
mod report;
mod stages;
mod tunnels;

use adit_engine::{Policy, ThreadSettings};
use adit_testbed::interrupt;

use crate::goals::{GoalResult, Limit};
use crate::install::{self, Flavour};
use crate::output;
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::stats::summary;
use crate::tools;
use args::Part;
pub(crate) use args::ScaleArgs;
use machine::Cores;
use memory::Direction;
use model::engine::Split;
use model::predict::{self, Model, Validated};
use report::{Row, ScaleReport, StageRow, table};
use stages::StageCosts;

/// Loads of the engine in memory: name, peers, where packets go.
const LOADS: [(&str, u8, Direction); 4] = [
    ("to one peer", 1, Direction::Outbound),
    ("to 64 peers", 64, Direction::Outbound),
    ("from one peer", 1, Direction::Inbound),
    ("from 64 peers", 64, Direction::Inbound),
];

/// Bytes of datagrams that are sealed before they are received, at most: half a second of them, so that a
/// disturbance of a few milliseconds does not decide.
const RECEIVED: usize = 3 << 30;
/// The same where the kernel does not tell how much memory there is.
const FEW: usize = 256 << 20;

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

/// Measures and prints. What was measured before an interruption is printed, too.
pub(crate) fn run(args: &ScaleArgs) -> Result<(), Failure> {
    if args.needs_root() {
        tools::require(&tools::LOAD)?;
    }
    let json = args.json.open()?;
    let mut measured = Measurements::new(args.shards.map_or_else(several, usize::from));
    let mut machine = Machine::here();
    let started = output::now();
    let stopped = match measured.all(args) {
        Ok(()) => None,
        Err(why) if interrupt::interrupted() => Some(why.to_string()),
        Err(why) => return Err(why),
    };
    machine.finish();
    let control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let memory = measured.rows()?;
    let rows = measured.tunnels.rows()?.into_iter();
    let (loads, tunnels): (Vec<_>, Vec<_>) = rows.partition(|row| row.offered_gbps.is_some());
    let stages = measured.stage_rows();
    let mut goals = judge(&memory);
    goals.extend(tunnels::goals(
        &tunnels.iter().chain(&loads).collect::<Vec<_>>(),
    ));
    goals.extend(measured.forwarded.goals());
    // A user who interrupts a run does not wait for simulations.
    let model = match stopped {
        None => measured.model(&memory, &tunnels, &stages),
        Some(_) => None,
    };
    if let Some(model) = &model {
        goals.extend(predict::goals(
            &model.validation,
            kernel_costs(&stages),
            &model.cores,
        ));
    }
    let report = ScaleReport {
        schema: 1,
        command: "scale",
        started,
        machine,
        congestion_control: control.unwrap_or_default().trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        rounds: args.rounds,
        memory,
        stages,
        tunnels,
        loads,
        forwarded: measured.forwarded.rows(),
        left_out: measured.forwarded.left_out(),
        model,
        goals,
        stopped,
    };
    json.publish(&table(&report), &report)
}

/// Measures the engine in memory, hands out each value, and judges.
pub(crate) fn measure(
    rounds: u16,
    several: usize,
    mut each: impl FnMut(&Sample),
) -> Result<Vec<GoalResult>, Failure> {
    let mut measured = Measurements::new(several);
    for round in 1..=rounds {
        measured.memory(round, rounds, &mut each)?;
    }
    Ok(judge(&measured.rows()?))
}

/// What the rounds brought so far.
struct Measurements {
    several: usize,
    /// Bytes of datagrams that are sealed before they are received.
    received: usize,
    /// By load and policy: Gb/s, the same without other programs, and CPU seconds for each GB.
    memory: Vec<[[Vec<f64>; 3]; 3]>,
    /// By load.
    stages: Vec<Vec<StageCosts>>,
    /// Outbound and inbound.
    real_stages: [Vec<StageCosts>; 2],
    cores: Vec<Cores>,
    tunnels: tunnels::Measured,
    forwarded: forwarded::Measured,
}

/// Bytes that can be had without swapping.
fn available_memory() -> Option<usize> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = available.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1 << 10)
}

impl Measurements {
    fn new(several: usize) -> Self {
        Self {
            several,
            received: available_memory().map_or(FEW, |bytes| RECEIVED.min(bytes / 4)),
            memory: vec![[const { [const { Vec::new() }; 3] }; 3]; LOADS.len()],
            stages: vec![Vec::new(); LOADS.len()],
            real_stages: [Vec::new(), Vec::new()],
            cores: Vec::new(),
            tunnels: tunnels::Measured::new(several),
            forwarded: forwarded::Measured::nothing(),
        }
    }

    fn all(&mut self, args: &ScaleArgs) -> Result<(), Failure> {
        let rounds = args.rounds;
        let adit = match args.needs_root() {
            true => Some(install::adit(args.adit.path(), Flavour::Release)?),
            false => None,
        };
        if let Some(adit) = adit.as_ref().filter(|_| args.has(Part::Forwarded)) {
            self.forwarded = forwarded::Measured::find(adit)?;
        }
        for round in 1..=rounds {
            if args.has(Part::Memory) {
                self.memory(round, rounds, |_| {})?;
                self.stages(round, rounds)?;
                self.cores.push(Cores::measure()?);
            }
            if let Some(adit) = adit.as_ref().filter(|_| args.has(Part::Tunnels)) {
                self.real_stages(round, rounds)?;
                self.tunnels.round(adit, round, rounds)?;
            }
            if args.has(Part::Forwarded) {
                self.forwarded.round(round, rounds)?;
            }
        }
        Ok(())
    }

    /// Every load in memory by every policy.
    fn memory(
        &mut self,
        round: u16,
        rounds: u16,
        mut each: impl FnMut(&Sample),
    ) -> Result<(), Failure> {
        let ways = ways(self.several);
        for ((load, peers, direction), values) in LOADS.iter().zip(&mut self.memory) {
            eprint!("round {round} of {rounds}: {load}:");
            for (&(policy, shards), [gbps, alone, cpu]) in ways.iter().zip(values) {
                interrupt::check()?;
                let settings = ThreadSettings {
                    policy,
                    ..ThreadSettings::from(shards)
                };
                let name = policy.name();
                let rate = memory::measure(&settings, *peers, *direction, self.received)
                    .map_err(|error| format!("{load}, {name}: {error}"))?;
                eprint!(" {name} {:.1}", rate.gbps);
                gbps.push(rate.gbps);
                alone.push(rate.gbps / (1.0 - rate.waited));
                cpu.push(rate.cpu);
                each(&Sample {
                    round,
                    load,
                    policy,
                    gbps: rate.gbps,
                    cpu: rate.cpu,
                });
            }
            eprintln!(" Gb/s");
        }
        Ok(())
    }

    /// What the stages of every load cost one thread.
    fn stages(&mut self, round: u16, rounds: u16) -> Result<(), Failure> {
        eprint!("round {round} of {rounds}: stages, ns a packet:");
        for ((load, peers, direction), costs) in LOADS.iter().zip(&mut self.stages) {
            interrupt::check()?;
            let one = memory::stages(*peers, *direction, self.received)
                .map_err(|error| format!("the stages of {load}: {error}"))?;
            eprint!(" {load} {:.0}", one.total_ns());
            costs.push(one);
        }
        eprintln!();
        Ok(())
    }

    /// What the stages cost with the kernel's devices: the work is that of the engine in memory, with
    /// one peer.
    fn real_stages(&mut self, round: u16, rounds: u16) -> Result<(), Failure> {
        let of = |direction| -> Result<StageCosts, Failure> {
            let index = LOADS
                .iter()
                .position(|(_, peers, of)| (*peers, *of) == (1, direction));
            let (index, &(_, peers, _)) = index.map(|at| (at, &LOADS[at])).ok_or("no load")?;
            match self.stages[index].last() {
                Some(costs) => Ok(*costs),
                None => memory::stages(peers, direction, self.received),
            }
        };
        let memory = [of(Direction::Outbound)?, of(Direction::Inbound)?];
        let both = real::measure([&memory[0], &memory[1]])
            .map_err(|error| format!("the stages with the kernel: {error}"))?;
        let [out, inbound] = both.map(|costs| costs.total_ns());
        eprintln!(
            "round {round} of {rounds}: stages with the kernel, ns a packet: {out:.0} out, {inbound:.0} in"
        );
        for (costs, all) in both.into_iter().zip(&mut self.real_stages) {
            all.push(costs);
        }
        Ok(())
    }

    /// What the model makes of all that, if its costs were measured.
    fn model(
        &self,
        memory: &[Row],
        tunnels: &[tunnels::Row],
        stages: &[StageRow],
    ) -> Option<Model> {
        let cores = Cores::median(&self.cores)?;
        let costs = |load| {
            let of = |row: &&StageRow| row.load == load && row.devices == "memory";
            stages.iter().find(of).map(|row| &row.costs)
        };
        let mut validation = Vec::new();
        for (row, policy) in memory
            .iter()
            .filter_map(|row| Some((row, named(row.policy)?)))
        {
            // What arrives from several peers has receive queues instead.
            let split = match row.load {
                "to 64 peers" => Split::Outbound,
                _ => Split::Not,
            };
            let model = predict::of_memory(costs(row.load)?, &cores, policy, row.threads, split);
            let load = row.load.to_owned();
            let measured = [&row.gbps, &row.gbps_alone];
            validation.push(Validated::new("memory", load, row.policy, measured, model));
        }
        let kernel = kernel_costs(stages);
        if let [Some(outbound), Some(inbound)] = &kernel {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            for (row, policy) in tunnels
                .iter()
                .filter_map(|row| Some((row, named(row.policy)?)))
            {
                let is_inline = |of: &&tunnels::Row| {
                    (of.tunnels, of.flows) == (row.tunnels, row.flows)
                        && of.policy == Policy::Inline.name()
                };
                let shared = tunnels.iter().find(is_inline)?.shared();
                let way = (policy, row.threads, row.tunnels.into());
                let model = predict::of_tunnels(&shared, [outbound, inbound], (&cores, count), way);
                let load = format!("{} tunnels, {} flows", row.tunnels, row.flows);
                let measured = [&row.gbps, &row.gbps_alone];
                validation.push(Validated::new("tunnels", load, row.policy, measured, model));
            }
        }
        Some(Model {
            curves: predict::curves(kernel, &cores),
            cores,
            validation,
            published: predict::published(),
        })
    }

    fn rows(&self) -> Result<Vec<Row>, Failure> {
        let ways = ways(self.several);
        let mut rows = Vec::new();
        for ((load, ..), values) in LOADS.iter().zip(&self.memory) {
            for ((policy, threads), values) in ways.iter().zip(values) {
                // An interrupted run has some, or none.
                let [Some(gbps), Some(gbps_alone), Some(cpu)] =
                    values.each_ref().map(|of| summary(of))
                else {
                    continue;
                };
                rows.push(Row {
                    load,
                    policy: policy.name(),
                    threads: *threads,
                    gbps,
                    gbps_alone,
                    cpu_s_per_gb: cpu,
                });
            }
        }
        Ok(rows)
    }

    fn stage_rows(&self) -> Vec<StageRow> {
        let memory = LOADS.iter().zip(&self.stages);
        let memory = memory.map(|((load, ..), rounds)| (*load, "memory", rounds));
        let real = [LOADS[0].0, LOADS[2].0].into_iter().zip(&self.real_stages);
        let real = real.map(|(load, rounds)| (load, "kernel", rounds));
        memory
            .chain(real)
            .filter_map(|(load, devices, rounds)| {
                let costs = StageCosts::median(rounds)?;
                Some(StageRow {
                    load,
                    devices,
                    costs,
                })
            })
            .collect()
    }
}

fn named(policy: &str) -> Option<Policy> {
    let known = Policy::ALL.iter().find(|(name, _)| *name == policy);
    known.map(|(_, policy)| *policy)
}

/// What the stages cost with the kernel's devices, outbound and inbound.
fn kernel_costs(stages: &[StageRow]) -> [Option<StageCosts>; 2] {
    [LOADS[0].0, LOADS[2].0].map(|load| {
        let of = |row: &&StageRow| row.load == load && row.devices == "kernel";
        stages.iter().find(of).map(|row| row.costs)
    })
}

/// What `auto` with several threads is to reach, against one thread.
fn judge(rows: &[Row]) -> Vec<GoalResult> {
    if rows.is_empty() {
        // Not asked for.
        return Vec::new();
    }
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

#[cfg(test)]
mod tests;
