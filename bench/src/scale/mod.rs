//! `adit-lab scale`: what more threads bring, by policy.
//!
//! Stages: the engine over devices in memory, for each load and policy in turn → what its stages cost
//! → real tunnels between two hosts, by flows, tunnels and policy → gateways that forward, beside other
//! implementations → a model made of these costs: first of what was measured, then of other machines →
//! table or JSON.

mod forwarded;
mod machine;
mod memory;
mod model;
mod real;
mod stages;
mod tunnels;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use adit_engine::{Policy, ThreadSettings};
use adit_testbed::interrupt;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::goals::{self, GoalResult, Limit};
use crate::install::{self, Flavour};
use crate::output::Json;
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::stats::{Summary, summary};
use crate::tools;
use machine::Cores;
use memory::Direction;
use model::engine::Split;
use model::predict::{self, Model, Validated};
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

/// Measures what further threads bring, by policy: the engine over devices in memory, which copy
/// packets and do nothing else, and real tunnels between two hosts on this machine.
///
/// In memory: one thread, and several by each policy; and what each stage costs. The policies take
/// turns in each round. `auto` is measured with idle CPUs for its workers: on a machine that does
/// other things at the same time it shows less.
///
/// Tunnels: TCP through TUN devices and UDP sockets, from 1 to 32 flows in one tunnel, 12 flows over
/// 1 to 4 tunnels, and 4 flows that offer less than a tunnel carries, with the CPU time of each thread
/// and core. Both ends, and the programs that send and receive, share the machine's cores. This part
/// needs root.
///
/// Forwarded: two gateways with one tunnel and with four between them, each of which carries a part of
/// both sites' networks, as in "WireGuard in pfSense 2.5 Performance". Hosts behind them send UDP in
/// IP packets of 1420 octets in both directions, more and more until no more arrives behind the other
/// gateway. Other implementations, and the same links without a tunnel, stand beside it. This part
/// needs root.
///
/// Model: a simulation of the engine's ordered queues and threads, with what the stages cost here. It says what
/// every measured point should have been, and how far off it is; then what up to 32 cores bring, and
/// beside that the pipelines of the kernel and of wireguard-go, with costs from published figures.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScaleArgs {
    /// Also print JSON, or write it to a file.
    ///
    /// One object with `schema`, `command`, `started`, `machine`, `congestion_control`, `cpus`,
    /// `rounds` and `memory`: one for each `load` and `policy`, with its `threads`, and the median,
    /// least and greatest of `gbps`, of `gbps_alone` (without the time in which other programs had
    /// the CPUs) and of `cpu_s_per_gb`. `stages` has CPU nanoseconds a packet for
    /// each `load` and its `devices`, in memory or the kernel's: `take_ns`, `work_ns`, `put_ns` and
    /// `poll_ns`. `tunnels` has for each number of `tunnels` and `flows` and each `policy` what came
    /// through (`gbps`), CPU seconds a GB of both ends' daemons and of the whole machine, and the
    /// shares of a core that each thread had (`thread_load`) and that each core was busy
    /// (`core_load`). `loads` has the same of flows that offer no more than `offered_gbps`. `forwarded` has for each `implementation` and number of `tunnels` what arrived
    /// (`gbps`, of IP packets in both directions) when `offered_gbps` were sent, CPU microseconds of the
    /// daemons for each packet, and `of_theory`, the share of what the links forward without a tunnel, less
    /// framing; `left_out`, which implementations are not there, and why. `model` has `cores`, what two cores cost each other; `validation`, every measured
    /// point with `measured_gbps`, `alone_gbps`, `model_gbps` and both errors; `curves`, with `lines` of `points`; and
    /// `published` figures of other systems beside their model. Each of the `goals` has `name`, `value`, `goal` and `met`. Fields are only ever
    /// added under the same schema number.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = true)]
    json: Option<String>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Threads of the policies that use several, and of every policy with real tunnels; by default as
    /// many as CPUs, two at least.
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=64))]
    shards: Option<u16>,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// The Adit to measure (the binary itself, no script), instead of building the one in the
    /// repository.
    #[arg(long, value_name = "PATH")]
    adit: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The engine over devices in memory.
    Memory,
    /// Tunnels between two hosts.
    Tunnels,
    /// Packets that two gateways forward, by implementation.
    Forwarded,
}

impl ScaleArgs {
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Whether it needs hosts.
    pub(crate) fn needs_root(&self) -> bool {
        self.has(Part::Tunnels) || self.has(Part::Forwarded)
    }
}

#[derive(Serialize)]
struct ScaleReport {
    schema: u32,
    command: &'static str,
    /// Seconds since 1970.
    started: u64,
    machine: Machine,
    congestion_control: String,
    cpus: usize,
    rounds: u16,
    memory: Vec<Row>,
    stages: Vec<StageRow>,
    tunnels: Vec<tunnels::Row>,
    loads: Vec<tunnels::Row>,
    forwarded: Vec<forwarded::Row>,
    left_out: Vec<String>,
    model: Option<Model>,
    goals: Vec<GoalResult>,
    /// Why it ended early.
    stopped: Option<String>,
}

/// What the stages of one load cost.
#[derive(Serialize)]
struct StageRow {
    load: &'static str,
    /// Those of the engine in memory, or the kernel's.
    devices: &'static str,
    #[serde(flatten)]
    costs: StageCosts,
}

/// One load by one policy.
#[derive(Serialize)]
struct Row {
    load: &'static str,
    policy: &'static str,
    threads: usize,
    gbps: Summary,
    /// Without the time in which threads were ready and other programs had the CPUs.
    gbps_alone: Summary,
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

/// Measures and prints. What was measured before an interruption is printed, too.
pub(crate) fn run(args: &ScaleArgs) -> Result<(), Failure> {
    if args.needs_root() {
        tools::require(&tools::LOAD)?;
    }
    let json = Json::open(args.json.as_deref())?;
    let mut measured = Measurements::new(args.shards.map_or_else(several, usize::from));
    let mut machine = Machine::here();
    let started = SystemTime::now().duration_since(UNIX_EPOCH);
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
        started: started.map_or(0, |since| since.as_secs()),
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
    json.publish(&table(&report), || {
        Ok(serde_json::to_string_pretty(&report)?)
    })
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
            true => Some(install::adit(args.adit.as_deref(), Flavour::Release)?),
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

fn table(report: &ScaleReport) -> String {
    let mut text = String::new();
    if !report.memory.is_empty() {
        let _ = write!(
            text,
            "The engine over devices in memory, {} CPUs, {} rounds\n\n{:<16}{:<10}{:>8}{:>12}{:>18}{:>16}\n",
            report.cpus, report.rounds, "packets", "policy", "threads", "Gb/s", "range", "CPU-s/GB"
        );
    }
    for row in &report.memory {
        let range = format!("{:.1}–{:.1}", row.gbps.min, row.gbps.max);
        let _ = writeln!(
            text,
            "{:<16}{:<10}{:>8}{:>12.1}{range:>18}{:>16.3}",
            row.load, row.policy, row.threads, row.gbps.median, row.cpu_s_per_gb.median
        );
    }
    text += &stage_table(&report.stages);
    text += &tunnel_table(&report.tunnels);
    text += &load_table(&report.loads);
    text += &forwarded::table(&report.forwarded, &report.left_out);
    if let Some(model) = &report.model {
        text += &model_table(model);
    }
    if let Some(why) = &report.stopped {
        let _ = writeln!(text, "\nThe run is incomplete: {why}");
    }
    text.push('\n');
    text + &goals::table(&report.goals)
}

fn stage_table(rows: &[StageRow]) -> String {
    let mut text = String::new();
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\nStages, one thread, CPU ns a packet\n\n{:<16}{:<10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>16}\n",
            "packets", "devices", "take", "work", "put", "polls", "all", "packets a batch"
        );
    }
    for StageRow {
        load,
        devices,
        costs,
    } in rows
    {
        let _ = writeln!(
            text,
            "{load:<16}{devices:<10}{:>8.0}{:>8.0}{:>8.0}{:>8.0}{:>8.0}{:>16.0}",
            costs.take_ns,
            costs.work_ns,
            costs.put_ns,
            costs.poll_ns,
            costs.total_ns(),
            costs.batch_packets
        );
    }
    text
}

fn tunnel_table(rows: &[tunnels::Row]) -> String {
    let mut text = String::new();
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\nReal tunnels, both ends on this machine\n\n{:>8}{:>7}  {:<10}{:>8}{:>8}{:>14}{:>10}{:>10}{:>10}  cores\n",
            "tunnels",
            "flows",
            "policy",
            "threads",
            "Gb/s",
            "range",
            "sender",
            "receiver",
            "machine"
        );
        let _ = writeln!(text, "{:>57}{:>30}  % busy", "", "CPU-s/GB");
    }
    for row in rows {
        let range = format!("{:.2}–{:.2}", row.gbps.min, row.gbps.max);
        let cores = row.core_load.iter();
        let cores: Vec<String> = cores
            .map(|core| format!("{:.0}", core.busy() * 100.0))
            .collect();
        let _ = writeln!(
            text,
            "{:>8}{:>7}  {:<10}{:>8}{:>8.2}{range:>14}{:>10.2}{:>10.2}{:>10.2}  {}",
            row.tunnels,
            row.flows,
            row.policy,
            row.threads,
            row.gbps.median,
            row.sender_cpu_s_per_gb.median,
            row.receiver_cpu_s_per_gb.median,
            row.machine_cpu_s_per_gb.median,
            cores.join(" ")
        );
    }
    text
}

fn load_table(rows: &[tunnels::Row]) -> String {
    let mut text = String::new();
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\nFlows that offer less than the tunnel carries\n\n{:>14}  {:<10}{:>8}{:>14}{:>10}{:>10}\n",
            "offered, Gb/s", "policy", "Gb/s", "range", "CPU-s/GB", "machine"
        );
    }
    for row in rows {
        let range = format!("{:.2}–{:.2}", row.gbps.min, row.gbps.max);
        let _ = writeln!(
            text,
            "{:>14.1}  {:<10}{:>8.2}{range:>14}{:>10.2}{:>10.2}",
            row.offered_gbps.unwrap_or_default(),
            row.policy,
            row.gbps.median,
            row.cpu(),
            row.machine_cpu_s_per_gb.median
        );
    }
    text
}

fn model_table(model: &Model) -> String {
    let Cores {
        wake_ns,
        fetch_ns_per_byte,
        side_by_side,
        ..
    } = model.cores;
    let mut text = format!(
        "\nModel: a thread wakes in {:.1} µs, another core's batch takes {:.1} µs to fetch, two busy cores \
         have {:.0} % of their speed\n\n{:<24}{:<10}{:>10}{:>10}{:>10}{:>8}{:>8}\n",
        wake_ns / 1e3,
        fetch_ns_per_byte * 262.144,
        side_by_side * 100.0,
        "measured before",
        "policy",
        "measured",
        "alone",
        "model",
        "error",
        "alone"
    );
    for point in &model.validation {
        let _ = writeln!(
            text,
            "{:<24}{:<10}{:>10.2}{:>10.2}{:>10.2}{:>7.0}%{:>7.0}%",
            point.load,
            point.policy,
            point.measured_gbps,
            point.alone_gbps,
            point.model_gbps,
            point.error * 100.0,
            point.error_alone * 100.0
        );
    }
    for part in ["memory", "tunnels"] {
        let of = |error| predict::errors(&model.validation, part, error);
        let median = of(|point: &Validated| point.error);
        let alone = of(|point: &Validated| point.error_alone);
        if let Some((median, alone)) = median.zip(alone) {
            let [middle, greatest] = median.map(|error| error * 100.0);
            let [middle_alone, greatest_alone] = alone.map(|error| error * 100.0);
            let _ = writeln!(
                text,
                "{part}: error {middle:.0} % in the middle, {greatest:.0} % at most; without what other \
                 programs took {middle_alone:.0} %, {greatest_alone:.0} %"
            );
        }
    }
    for curve in &model.curves {
        let at = curve
            .lines
            .first()
            .into_iter()
            .flat_map(|line| &line.points);
        let at: String = at.map(|point| format!("{:>7}", point.at)).collect();
        let _ = writeln!(
            text,
            "\n{:<24}{at} {}",
            format!("{}, Gb/s", curve.title),
            curve.axis
        );
        for line in &curve.lines {
            let gbps = line
                .points
                .iter()
                .map(|point| format!("{:>7.1}", point.gbps));
            let _ = writeln!(text, "  {:<22}{}", line.name, gbps.collect::<String>());
        }
    }
    let _ = writeln!(
        text,
        "\n{:<44}{:>10}{:>10}{:>8}",
        "published, Gb/s", "", "model", "error"
    );
    for point in &model.published {
        let _ = writeln!(
            text,
            "{:<44}{:>10.1}{:>10.1}{:>7.0}%",
            point.what,
            point.published_gbps,
            point.model_gbps,
            point.error * 100.0
        );
    }
    text
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
            gbps_alone: summary(&[gbps]).unwrap(),
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
                let rate = memory::measure(&settings, 2, direction, 64 << 20).unwrap();
                assert!(rate.gbps > 0.0 && rate.cpu > 0.0);
            }
        }
    }
}
