//! Real tunnels: TCP through Adit's daemons between two hosts, with TUN devices and UDP sockets.
//!
//! Stages: hosts with some tunnels → for each policy `adit tune` → streams → what arrived, and the CPU
//! time of every thread and core meanwhile.
//!
//! Both ends, and the processes that send and receive, share the cores of the machine. What each end
//! takes stands beside the throughput.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use adit_engine::Policy;
use adit_testbed::proc::{self, CoreTime, ThreadTime};
use adit_testbed::stats::{median, to_f64};
use adit_testbed::{Host, interrupt};
use serde::Serialize;

use super::model::predict::Shared;
use crate::gateway::{Tunnels, inner};
use crate::generator::Streams;
use crate::goals::{GoalResult, Limit};
use crate::implementation::Entry;
use crate::install;
use crate::measure::wait;
use crate::sandbox::Failure;
use crate::stats::{Summary, summary};

/// Flows in one tunnel.
const FLOWS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Tunnels, and the flows that they share evenly.
const TUNNELS: [u8; 4] = [1, 2, 3, 4];
const SHARED: u32 = 12;
/// Tenths of a Gb/s that flows offer together, in one tunnel; [`FLOWS`] has the load that is as fast as
/// it goes.
const OFFERED: [u32; 5] = [5, 10, 20, 40, 60];
const OFFERING: u32 = 4;
/// Policies carry the same if what they carry differs by less.
const SAME: f64 = 0.02;
const WARM_UP: Duration = Duration::from_millis(400);
const TIME: Duration = Duration::from_millis(1200);
const TUNED: Duration = Duration::from_secs(5);

/// Streams through tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    pub(super) tunnels: u8,
    pub(super) flows: u32,
    /// Tenths of a Gb/s; as fast as it goes without.
    pub(super) offered: Option<u32>,
}

/// All that is measured, those with the same tunnels side by side.
pub(super) fn loads() -> Vec<Load> {
    let one = FLOWS.map(|flows| Load {
        tunnels: 1,
        flows,
        offered: None,
    });
    let several = TUNNELS.map(|tunnels| Load {
        tunnels,
        flows: SHARED,
        offered: None,
    });
    let offered = OFFERED.map(|tenths| Load {
        tunnels: 1,
        flows: OFFERING,
        offered: Some(tenths),
    });
    let mut all: Vec<Load> = one.into_iter().chain(several).chain(offered).collect();
    all.sort_by_key(|load| load.tunnels);
    all
}

/// One load by one policy.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) tunnels: u8,
    pub(super) flows: u32,
    /// What the flows offer together; nothing if they are as fast as they go.
    pub(super) offered_gbps: Option<f64>,
    pub(super) policy: &'static str,
    /// Shards of each daemon, at most.
    pub(super) threads: usize,
    pub(super) gbps: Summary,
    /// As if what other programs took of the cores had not been taken: the cores are busy.
    pub(super) gbps_alone: Summary,
    /// Of the sending host's daemon, and of the receiving one's.
    pub(super) sender_cpu_s_per_gb: Summary,
    pub(super) receiver_cpu_s_per_gb: Summary,
    /// Of the program that sends and receives, this one.
    pub(super) load_cpu_s_per_gb: Summary,
    /// Of the machine, whatever else ran on it included.
    pub(super) machine_cpu_s_per_gb: Summary,
    /// Medians of the shares of a core that threads had, by their end and name.
    pub(super) thread_load: BTreeMap<String, f64>,
    /// Medians of the shares of each core.
    pub(super) core_load: Vec<CoreLoad>,
    pub(super) retransmits: Summary,
}

impl Row {
    /// Of both daemons, for each GB.
    pub(super) fn cpu(&self) -> f64 {
        self.sender_cpu_s_per_gb.median + self.receiver_cpu_s_per_gb.median
    }

    /// Who had the cores.
    pub(super) fn shared(&self) -> Shared {
        let core = self.core_load.iter();
        let interrupts: f64 = core.map(|core| core.interrupts).sum();
        Shared {
            sender: self.sender_cpu_s_per_gb.median,
            receiver: self.receiver_cpu_s_per_gb.median,
            programs: self.load_cpu_s_per_gb.median,
            interrupts: interrupts / (self.gbps.median / 8.0),
        }
    }
}

/// What one core did, in shares of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct CoreLoad {
    pub(super) user: f64,
    pub(super) system: f64,
    pub(super) interrupts: f64,
}

impl CoreLoad {
    pub(super) fn busy(self) -> f64 {
        self.user + self.system + self.interrupts
    }
}

/// One load by one policy in one round.
struct Sample {
    gbps: f64,
    ends: [f64; 2],
    load: f64,
    machine: f64,
    threads: BTreeMap<String, f64>,
    cores: Vec<CoreLoad>,
    retransmits: f64,
}

impl Sample {
    fn alone(&self) -> f64 {
        let cores = to_f64(self.cores.len());
        let own = self.ends[0] + self.ends[1] + self.load;
        let others = (self.machine - own).max(0.0) * self.gbps / 8.0;
        self.gbps * cores / (cores - others).max(0.1)
    }
}

/// CPU times at one moment.
struct Usage {
    at: Instant,
    cores: Vec<CoreTime>,
    threads: [Vec<ThreadTime>; 2],
    load: Duration,
}

impl Usage {
    fn now(daemons: [u32; 2]) -> Result<Self, Failure> {
        Ok(Self {
            at: Instant::now(),
            cores: proc::core_cpu_times()?,
            threads: [
                proc::thread_cpu_times(daemons[0])?,
                proc::thread_cpu_times(daemons[1])?,
            ],
            load: proc::cpu_time(std::process::id())?,
        })
    }

    /// Shares of one core since then: of the threads by end and name, of each core, and of both ends.
    fn since(&self, before: &Self) -> (BTreeMap<String, f64>, Vec<CoreLoad>, [f64; 2]) {
        let seconds = (self.at - before.at).as_secs_f64();
        let share =
            |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() / seconds;
        let mut threads = BTreeMap::new();
        let mut ends = [0.0; 2];
        let all = self.threads.iter().zip(&before.threads).zip(&mut ends);
        for (((now, then), sum), end) in all.zip(["sender", "receiver"]) {
            for thread in now {
                let same = then.iter().find(|of| of.id == thread.id);
                let share = share(thread.time, same.map_or(Duration::ZERO, |of| of.time));
                *sum += share;
                if share > 0.0 {
                    *threads.entry(format!("{end} {}", thread.name)).or_default() += share;
                }
            }
        }
        let cores = self.cores.iter().zip(&before.cores);
        let cores = cores.map(|(now, then)| CoreLoad {
            user: share(now.user, then.user),
            system: share(now.system, then.system),
            interrupts: share(now.interrupts, then.interrupts),
        });
        (threads, cores.collect(), ends)
    }
}

/// What the rounds bring.
pub(super) struct Measured {
    ways: Vec<(Policy, usize)>,
    samples: BTreeMap<(Load, usize), Vec<Sample>>,
}

impl Measured {
    /// With so many shards in each daemon, by every policy.
    pub(super) fn new(shards: usize) -> Self {
        let ways = Policy::ALL.map(|(_, policy)| (policy, shards));
        Self {
            ways: ways.to_vec(),
            samples: BTreeMap::new(),
        }
    }

    /// Measures every load by every policy once.
    pub(super) fn round(&mut self, entry: &Entry, round: u16, rounds: u16) -> Result<(), Failure> {
        let mut hosts: Option<(u8, Tunnels)> = None;
        for load in loads() {
            let there = match hosts.take() {
                Some((tunnels, there)) if tunnels == load.tunnels => there,
                before => {
                    // Its daemons end before others start.
                    drop(before);
                    Tunnels::new(entry, load.tunnels)?
                }
            };
            let Load {
                tunnels,
                flows,
                offered,
            } = load;
            let offer = offered.map_or(String::new(), |it| {
                format!(" that offer {:.1} Gb/s", tenths(it))
            });
            eprint!(
                "round {round} of {rounds}: real tunnels, {tunnels} with {flows} flows{offer}:"
            );
            let ways: Vec<usize> = (0..self.ways.len()).collect();
            for way in install::order(&ways, round.into()) {
                interrupt::check()?;
                let (policy, shards) = self.ways[way];
                let sample = measure(&there, entry, load, policy, shards).map_err(|e| {
                    format!("{tunnels} tunnels, {flows} flows, {}: {e}", policy.name())
                })?;
                eprint!(" {} {:.2}", policy.name(), sample.gbps);
                self.samples.entry((load, way)).or_default().push(sample);
            }
            eprintln!(" Gb/s");
            hosts = Some((tunnels, there));
        }
        Ok(())
    }

    /// What all rounds brought.
    pub(super) fn rows(&self) -> Result<Vec<Row>, Failure> {
        let rows = self.samples.iter().map(|((load, way), samples)| {
            let all = |value: &dyn Fn(&Sample) -> f64| {
                let values: Vec<f64> = samples.iter().map(value).collect();
                summary(&values).ok_or("no round")
            };
            let (policy, threads) = self.ways[*way];
            Ok(Row {
                tunnels: load.tunnels,
                flows: load.flows,
                offered_gbps: load.offered.map(tenths),
                policy: policy.name(),
                threads,
                gbps: all(&|of| of.gbps)?,
                gbps_alone: all(&Sample::alone)?,
                sender_cpu_s_per_gb: all(&|of| of.ends[0])?,
                receiver_cpu_s_per_gb: all(&|of| of.ends[1])?,
                load_cpu_s_per_gb: all(&|of| of.load)?,
                machine_cpu_s_per_gb: all(&|of| of.machine)?,
                thread_load: thread_load(samples),
                core_load: core_load(samples),
                retransmits: all(&|of| of.retransmits)?,
            })
        });
        rows.collect()
    }
}

fn tenths(count: u32) -> f64 {
    f64::from(count) / 10.0
}

/// `auto` against the better of the other policies: the one that carries more, or takes less CPU time
/// where both carry the same. The worst of all loads counts.
pub(super) fn goals(rows: &[&Row]) -> Vec<GoalResult> {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for auto in rows.iter().filter(|row| row.policy == Policy::Auto.name()) {
        let same = |row: &&&Row| {
            (row.tunnels, row.flows, row.offered_gbps)
                == (auto.tunnels, auto.flows, auto.offered_gbps)
        };
        let others = rows
            .iter()
            .filter(same)
            .filter(|row| row.policy != auto.policy);
        let better = others.reduce(|one, other| {
            let ratio = other.gbps.median / one.gbps.median;
            match (ratio - 1.0).abs() < SAME {
                true if other.cpu() < one.cpu() => other,
                false if ratio > 1.0 => other,
                _ => one,
            }
        });
        if let Some(better) = better {
            least = least.min(auto.gbps.median / better.gbps.median);
            most = most.max(auto.cpu() / better.cpu());
        }
    }
    if least.is_infinite() {
        return Vec::new();
    }
    let name = |what: &str| format!("tunnels: auto against the better policy, {what} of all loads");
    vec![
        GoalResult::new(name("least throughput"), least, Limit::AtLeast(0.95), " ×"),
        GoalResult::new(name("most CPU time"), most, Limit::AtMost(1.05), " ×"),
    ]
}

fn thread_load(samples: &[Sample]) -> BTreeMap<String, f64> {
    let names: Vec<&String> = samples.iter().flat_map(|of| of.threads.keys()).collect();
    let median = |name: &String| {
        let shares = samples.iter().map(|of| of.threads.get(name).copied());
        let shares: Vec<f64> = shares.map(Option::unwrap_or_default).collect();
        (name.clone(), median(&shares).unwrap_or_default())
    };
    names.into_iter().map(median).collect()
}

fn core_load(samples: &[Sample]) -> Vec<CoreLoad> {
    let cores = samples.iter().map(|of| of.cores.len()).min().unwrap_or(0);
    let load = |core: usize| {
        let of = |part: fn(&CoreLoad) -> f64| {
            let shares: Vec<f64> = samples.iter().map(|of| part(&of.cores[core])).collect();
            median(&shares).unwrap_or_default()
        };
        CoreLoad {
            user: of(|load| load.user),
            system: of(|load| load.system),
            interrupts: of(|load| load.interrupts),
        }
    };
    (0..cores).map(load).collect()
}

fn measure(
    hosts: &Tunnels,
    entry: &Entry,
    load: Load,
    policy: Policy,
    shards: usize,
) -> Result<Sample, Failure> {
    for host in [&hosts.left, &hosts.right] {
        tune(host, entry, policy, shards)?;
    }
    let streams = Streams {
        count: load.flows,
        time: TIME,
        warm_up: WARM_UP,
        rate: load.offered.map(tenths),
        ..Streams::default()
    };
    let to: Vec<IpAddr> = (0..load.tunnels).map(|tunnel| inner(tunnel, 2)).collect();
    let daemons = hosts.pair()?;
    let running = streams.start(&hosts.left, &hosts.right, &to)?;
    wait(WARM_UP)?;
    let before = Usage::now(daemons)?;
    wait(TIME)?;
    let after = Usage::now(daemons)?;
    let (threads, cores, ends) = after.since(&before);
    let own = after.load.saturating_sub(before.load).as_secs_f64();
    let seconds = (after.at - before.at).as_secs_f64();
    let flow = running.finish(&hosts.left, &hosts.right)?;
    let gbytes_per_s = flow.gbps() / 8.0;
    let machine: f64 = cores.iter().map(|core| core.busy()).sum();
    Ok(Sample {
        gbps: flow.gbps(),
        ends: ends.map(|share| share / gbytes_per_s),
        load: own / seconds / gbytes_per_s,
        machine: machine / gbytes_per_s,
        threads,
        cores,
        retransmits: flow.retransmits.unwrap_or(0.0),
    })
}

/// All interfaces of a process follow.
fn tune(host: &Host, entry: &Entry, policy: Policy, shards: usize) -> Result<(), Failure> {
    let binary = entry.binary.as_deref().ok_or("adit has no binary")?;
    let shards = shards.to_string();
    let arguments = [
        "tune",
        "wg0",
        "--policy",
        policy.name(),
        "--shards",
        &shards,
    ];
    host.output(&binary.to_string_lossy(), &arguments, TUNED)?;
    Ok(())
}

#[cfg(test)]
#[path = "tunnels_tests.rs"]
mod tests;
