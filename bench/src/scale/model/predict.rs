//! What the models say: of every point that was measured, and of machines that are not at hand.
//!
//! Stages: measured costs of a packet → costs of a batch → the measured points again, each with its
//! error → curves by cores and tunnels → what systems published, by the same model.

use adit_engine::Policy;
use adit_testbed::stats::{median, quantile};
use serde::Serialize;

use super::engine::{self, BatchCosts, Setup, Split};
use super::network::{self, Order, Place, Stage};
use crate::goals::{GoalResult, Limit};
use crate::scale::machine::Cores;
use crate::scale::stages::StageCosts;
use crate::stats::Summary;

/// The link of a gateway: 100 Gb/s Ethernet, less 66 octets of each frame that are no datagram of
/// WireGuard's: preamble, gap, Ethernet, IPv4 and UDP.
const LINK: f64 = 100.0;
const FRAMING: f64 = 66.0;
/// Cores, and tunnels, that curves are drawn over.
const STEPS: [usize; 9] = [1, 2, 3, 4, 8, 12, 16, 24, 32];
const MOST: usize = 32;
const MANY: usize = 16;

/// All that the model says.
#[derive(Serialize)]
pub(in super::super) struct Model {
    /// What the machine takes for two cores to work together.
    pub(in super::super) cores: Cores,
    pub(in super::super) validation: Vec<Validated>,
    pub(in super::super) curves: Vec<Curve>,
    pub(in super::super) published: Vec<PublishedPoint>,
}

/// A point that was measured, and what the model makes of it.
#[derive(Clone, Debug, Serialize)]
pub(in super::super) struct Validated {
    /// `memory` or `tunnels`.
    pub(in super::super) part: &'static str,
    pub(in super::super) load: String,
    pub(in super::super) policy: &'static str,
    /// The median of the rounds, and that of what they would be without other programs.
    pub(in super::super) measured_gbps: f64,
    pub(in super::super) alone_gbps: f64,
    pub(in super::super) model_gbps: f64,
    /// The model's less the measured one, as a share of that.
    pub(in super::super) error: f64,
    /// The same for what it would be without other programs.
    pub(in super::super) error_alone: f64,
}

impl Validated {
    pub(in super::super) fn new(
        part: &'static str,
        load: String,
        policy: &'static str,
        [measured, alone]: [&Summary; 2],
        model_gbps: f64,
    ) -> Self {
        Self {
            part,
            load,
            policy,
            measured_gbps: measured.median,
            alone_gbps: alone.median,
            model_gbps,
            error: model_gbps / measured.median - 1.0,
            error_alone: model_gbps / alone.median - 1.0,
        }
    }
}

/// A drawing.
#[derive(Serialize)]
pub(in super::super) struct Curve {
    pub(in super::super) title: String,
    pub(in super::super) axis: &'static str,
    pub(in super::super) lines: Vec<Line>,
}

/// One system, or one policy.
#[derive(Serialize)]
pub(in super::super) struct Line {
    pub(in super::super) name: &'static str,
    pub(in super::super) points: Vec<Point>,
}

#[derive(Serialize)]
pub(in super::super) struct Point {
    pub(in super::super) at: usize,
    pub(in super::super) gbps: f64,
    /// The share of the time in which each core is busy, the busiest first.
    pub(in super::super) core_load: Vec<f64>,
}

/// A figure that a source published, and what the model makes of it.
#[derive(Serialize)]
pub(in super::super) struct PublishedPoint {
    pub(in super::super) what: &'static str,
    pub(in super::super) published_gbps: f64,
    pub(in super::super) model_gbps: f64,
    pub(in super::super) error: f64,
}

/// Costs of a batch of these packets on cores that work together as these do. `reads` says that the
/// devices read what they are given to put: those in memory do not.
fn batch(costs: &StageCosts, cores: &Cores, reads: bool) -> BatchCosts {
    let packets = costs.batch_packets.max(1.0);
    let fetch = cores.fetch_ns_per_byte * packets * costs.packet_bytes;
    BatchCosts {
        take: costs.take_ns * packets,
        work: costs.work_ns * packets,
        put: costs.put_ns * packets,
        poll: costs.poll_ns * packets,
        fetch_work: fetch,
        fetch_put: if reads { fetch } else { 0.0 },
        wake: cores.wake_ns,
        wake_call: cores.wake_call_ns,
    }
}

/// Gb/s of datagrams, and the share of each thread's core. `reads` is that of [`batch`], `split` that of
/// [`Setup`].
fn adit(
    costs: &StageCosts,
    cores: &Cores,
    (reads, split): (bool, Split),
    (policy, shards, queues): (Policy, usize, usize),
) -> Point {
    let alone = shards == 1 || (policy == Policy::Inline && queues == 1);
    let slower = if alone { 1.0 } else { 1.0 / cores.side_by_side };
    let outcome = engine::run(Setup {
        policy,
        shards,
        queues,
        split,
        costs: batch(costs, cores, reads).slower(slower),
    });
    let bits = costs.batch_packets.max(1.0) * costs.packet_bytes * 8.0;
    Point {
        at: 0,
        gbps: outcome.rate * bits / 1e9,
        core_load: sorted(outcome.busy),
    }
}

fn sorted(mut load: Vec<f64>) -> Vec<f64> {
    load.sort_by(|a, b| b.total_cmp(a));
    load
}

/// A load of the engine in memory by one policy, in Gb/s.
pub(in super::super) fn of_memory(
    costs: &StageCosts,
    cores: &Cores,
    policy: Policy,
    threads: usize,
    split: Split,
) -> f64 {
    adit(costs, cores, (false, split), (policy, threads, 1)).gbps
}

/// CPU seconds a GB of all that shares the machine with real tunnels, measured with `inline`.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Shared {
    pub(in super::super) sender: f64,
    pub(in super::super) receiver: f64,
    /// The programs that send and receive.
    pub(in super::super) programs: f64,
    /// The kernel, for nobody in particular.
    pub(in super::super) interrupts: f64,
}

/// What so many tunnels bring by one policy where both ends and the programs share so many cores, in
/// Gb/s. `outbound` and `inbound` tell which part of a daemon's time is work; on a machine whose
/// cores are busy `auto` has no workers, and is as `inline`.
pub(in super::super) fn of_tunnels(
    shared: &Shared,
    [outbound, inbound]: [&StageCosts; 2],
    cores: (&Cores, usize),
    (policy, shards, tunnels): (Policy, usize, usize),
) -> f64 {
    const BATCH: f64 = 256.0 * 1024.0;
    let (machine, count) = cores;
    let ns = |cpu_s_per_gb: f64| cpu_s_per_gb * BATCH;
    let any = |cost: f64, order| Stage {
        cost,
        place: Place::Any,
        order,
    };
    let mut stages = vec![any(ns(shared.programs) / 2.0, Order::Threads("sends", 1))];
    let ends = [
        ("left", shared.sender, outbound),
        ("right", shared.receiver, inbound),
    ];
    for (name, cpu, costs) in ends {
        let owner = Order::Threads(name, shards);
        if policy != Policy::Pipeline || shards <= tunnels {
            stages.push(any(ns(cpu), owner));
            continue;
        }
        let part = |stage: f64| ns(cpu) * stage / costs.total_ns();
        let fetch = machine.fetch_ns_per_byte * BATCH;
        stages.extend([
            any(part(costs.take_ns + costs.poll_ns), owner),
            any(
                part(costs.work_ns) + fetch + machine.wake_call_ns,
                Order::Free,
            ),
            any(part(costs.put_ns) + fetch, owner),
        ]);
    }
    stages.push(any(ns(shared.interrupts), Order::Free));
    stages.push(any(
        ns(shared.programs) / 2.0,
        Order::Threads("receives", 1),
    ));
    network::run(count, tunnels, &stages).rate * BATCH * 8.0 / 1e9
}

/// Microseconds a packet of 1,420 octets on the Xeon Silver 4314 of "WireGuard Inline", from its own
/// figures: one tunnel has 5 Gb/s, which its receiving core limits; polls that came to one core
/// forward 13 Gb/s; inline, a core has 90 / 32 Gb/s, so that all is 4.0 µs; and decrypting is what
/// leaves 48 Gb/s of 16 tunnels with threads: 2 µs more than inline, which is the hand-over.
mod kernel {
    pub(super) const RECEIVE: f64 = 2.2;
    pub(super) const DECRYPT: f64 = 3.6;
    pub(super) const FORWARD: f64 = 0.6;
    pub(super) const INLINE: f64 = 4.0;
    pub(super) const OCTETS: f64 = 1420.0;
    /// The budget of a NAPI poll.
    pub(super) const BATCH: f64 = 64.0;
}

/// Microseconds a packet of 1,280 octets in wireguard-go on an AWS c6in, from what NetBird published:
/// on one core it encrypts 1.6 Gb/s, from four on 6.8 Gb/s, which a goroutine that works in order
/// limits.
mod go {
    pub(super) const READ: f64 = 1.5;
    pub(super) const ENCRYPT: f64 = 3.6;
    pub(super) const SEND: f64 = 1.3;
    pub(super) const OCTETS: f64 = 1280.0;
    pub(super) const BATCH: f64 = 64.0;
}

/// A pipeline of three stages, each with microseconds a packet.
fn pipeline(
    (cores, tunnels): (usize, usize),
    (octets, batch): (f64, f64),
    stages: &[(f64, Place, Order)],
) -> Point {
    let stages: Vec<Stage> = stages
        .iter()
        .map(|&(cost, place, order)| Stage {
            cost: cost * 1_000.0 * batch,
            place,
            order,
        })
        .collect();
    let outcome = network::run(cores, tunnels, &stages);
    Point {
        at: 0,
        gbps: outcome.rate * batch * octets * 8.0 / 1e9,
        core_load: sorted(outcome.busy),
    }
}

/// The kernel's pipeline; without threads, all polls that forward have come to one core.
fn kernel_pipeline(cores: usize, tunnels: usize, threaded: bool) -> Point {
    let forward = if threaded { Place::Any } else { Place::One };
    let stages = [
        (kernel::RECEIVE, Place::OfTunnel, Order::Tunnel),
        (kernel::DECRYPT, Place::EachInTurn, Order::Free),
        (kernel::FORWARD, forward, Order::Tunnel),
    ];
    pipeline((cores, tunnels), (kernel::OCTETS, kernel::BATCH), &stages)
}

fn kernel_inline(cores: usize, tunnels: usize) -> Point {
    let stages = [(kernel::INLINE, Place::OfTunnel, Order::Tunnel)];
    pipeline((cores, tunnels), (kernel::OCTETS, kernel::BATCH), &stages)
}

/// An interface, and a peer, for each tunnel.
fn wireguard_go(cores: usize, tunnels: usize) -> Point {
    let stages = [
        (go::READ, Place::Any, Order::Tunnel),
        (go::ENCRYPT, Place::Any, Order::Free),
        (go::SEND, Place::Any, Order::Tunnel),
    ];
    pipeline((cores, tunnels), (go::OCTETS, go::BATCH), &stages)
}

/// What the sources published of these systems, beside the model.
pub(in super::super) fn published() -> Vec<PublishedPoint> {
    let point = |what, published_gbps, model: Point| PublishedPoint {
        what,
        published_gbps,
        model_gbps: model.gbps,
        error: model.gbps / published_gbps - 1.0,
    };
    vec![
        point(
            "kernel, one tunnel, 32 cores",
            5.0,
            kernel_pipeline(32, 1, true),
        ),
        point(
            "kernel, 16 tunnels, polls on one core",
            13.0,
            kernel_pipeline(32, 16, false),
        ),
        point(
            "kernel, 16 tunnels, threaded",
            48.0,
            kernel_pipeline(32, 16, true),
        ),
        point("kernel inline, 32 tunnels", 90.0, kernel_inline(32, 32)),
        point("wireguard-go, 1 core", 1.6, wireguard_go(1, 1)),
        point("wireguard-go, 2 cores", 2.3, wireguard_go(2, 1)),
        point("wireguard-go, 4 cores", 6.8, wireguard_go(4, 1)),
        point("wireguard-go, 16 cores", 6.8, wireguard_go(16, 1)),
    ]
}

/// The curves: `costs` are those with the kernel's devices, outbound and inbound, if they were
/// measured.
pub(in super::super) fn curves(costs: [Option<StageCosts>; 2], cores: &Cores) -> Vec<Curve> {
    let mut all = Vec::new();
    for (costs, direction) in costs.iter().zip(["outbound", "inbound"]) {
        let Some(costs) = costs else { continue };
        let split = match direction {
            "outbound" => Split::Outbound,
            _ => Split::Inbound,
        };
        let ways = (true, split);
        let one = |policy, shards, queues| adit(costs, cores, ways, (policy, shards, queues));
        let policies = |of: &dyn Fn(Policy, usize) -> Point| -> Vec<Line> {
            let lines = Policy::ALL
                .iter()
                .map(|(name, policy)| line(name, |at| of(*policy, at)));
            lines.collect()
        };
        all.push(Curve {
            title: format!("One tunnel {direction}"),
            axis: "cores",
            lines: policies(&|policy, at| one(policy, at, 1)),
        });
        all.push(Curve {
            title: format!("{MANY} tunnels {direction}"),
            axis: "cores",
            lines: policies(&|policy, at| one(policy, at, MANY)),
        });
        let mut by_tunnels = policies(&|policy, at| one(policy, MOST, at));
        if direction == "inbound" {
            by_tunnels.push(line("kernel", |at| kernel_pipeline(MOST, at, false)));
            by_tunnels.push(line("kernel, threads", |at| {
                kernel_pipeline(MOST, at, true)
            }));
            by_tunnels.push(line("kernel, inline", |at| kernel_inline(MOST, at)));
        } else {
            by_tunnels.push(line("wireguard-go", |at| wireguard_go(MOST, at)));
        }
        all.push(Curve {
            title: format!("{MOST} cores {direction}"),
            axis: "tunnels",
            lines: by_tunnels,
        });
    }
    all
}

/// No line is faster than the link.
fn line(name: &'static str, of: impl Fn(usize) -> Point) -> Line {
    let most = LINK * kernel::OCTETS / (kernel::OCTETS + FRAMING + 32.0);
    let points = STEPS.iter().map(|&at| {
        let point = of(at);
        Point {
            at,
            gbps: point.gbps.min(most),
            core_load: point.core_load,
        }
    });
    Line {
        name,
        points: points.collect(),
    }
}

/// What the model is to say, and how far it may be from what was measured. The lesser of both
/// directions counts.
pub(in super::super) fn goals(
    validation: &[Validated],
    costs: [Option<StageCosts>; 2],
    cores: &Cores,
) -> Vec<GoalResult> {
    let mut goals = Vec::new();
    for part in ["memory", "tunnels"] {
        if let Some([_, greatest]) = errors(validation, part, |point| point.error_alone) {
            let name = format!("model, {part}: greatest error");
            goals.push(GoalResult::new(
                name,
                greatest * 100.0,
                Limit::AtMost(10.0),
                " %",
            ));
        }
    }
    let [Some(outbound), Some(inbound)] = costs else {
        return goals;
    };
    let ratio = |shards, queues| {
        let of = |costs: &StageCosts, split| {
            let many = adit(costs, cores, (true, split), (Policy::Auto, shards, queues)).gbps;
            many / adit(costs, cores, (true, split), (Policy::Inline, 1, 1)).gbps
        };
        of(&outbound, Split::Outbound).min(of(&inbound, Split::Inbound))
    };
    let many = format!("model: {MANY} tunnels on {MOST} cores over one thread");
    goals.push(GoalResult::new(
        many,
        ratio(MOST, MANY),
        Limit::AtLeast(18.0),
        " ×",
    ));
    let one = "model: one tunnel on 8 cores over one thread".to_owned();
    goals.push(GoalResult::new(one, ratio(8, 1), Limit::AtLeast(3.0), " ×"));
    goals
}

/// Median and greatest of some error of a part, as shares.
pub(in super::super) fn errors(
    validation: &[Validated],
    part: &str,
    error: fn(&Validated) -> f64,
) -> Option<[f64; 2]> {
    let of_part = validation.iter().filter(|point| point.part == part);
    let errors: Vec<f64> = of_part.map(|point| error(point).abs()).collect();
    Some([median(&errors)?, quantile(&errors, 1.0)?])
}

#[cfg(test)]
#[path = "predict_tests.rs"]
mod tests;
