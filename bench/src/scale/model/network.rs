//! Pipelines of queues as discrete events: a batch passes stages, each on some core, some of them one
//! at a time and in order.
//!
//! The kernel's module and wireguard-go are such pipelines, and so are the programs and daemons that
//! share the cores of one machine. Cores take the batch that has waited longest among those that may
//! run; nothing is preempted. A tunnel has some batches under way at a time, and always another one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet, VecDeque};

use super::Random;

/// Batches of a tunnel under way.
const WINDOW: u64 = 16;
const SPREAD: f64 = 0.1;
const WARM_UP: u64 = 40;
const COUNTED: u64 = 400;

/// Where a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Place {
    /// On whatever core is free.
    Any,
    /// On the core of the tunnel: where its interrupts arrive.
    OfTunnel,
    /// Batch by batch on the next core: the kernel's work queues.
    EachInTurn,
    /// All on one core.
    One,
}

/// What may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Order {
    /// Batches of the same tunnel, too.
    Free,
    /// One batch of a tunnel, in order.
    Tunnel,
    /// One batch of those tunnels that have the same thread of so many, with this name.
    Threads(&'static str, usize),
}

/// A step of the pipeline.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Stage {
    /// Nanoseconds of a batch.
    pub(in super::super) cost: f64,
    pub(in super::super) place: Place,
    pub(in super::super) order: Order,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(in super::super) struct Outcome {
    /// Batches a second, of all tunnels.
    pub(in super::super) rate: f64,
    /// The share of the time in which each core ran something.
    pub(in super::super) busy: Vec<f64>,
}

/// A batch before a stage.
#[derive(Clone, Copy, Debug)]
struct Task {
    tunnel: usize,
    number: u64,
    stage: usize,
}

struct Machine<'a> {
    stages: &'a [Stage],
    now: u64,
    /// What each core runs.
    cores: Vec<Option<Task>>,
    busy: Vec<u64>,
    /// In the order in which they came.
    waiting: VecDeque<Task>,
    /// The batch that each stage with an order takes next, of each tunnel.
    next: BTreeMap<(usize, usize), u64>,
    /// Who is at work: of tunnels by stage, of threads by name.
    held: HashSet<(&'static str, usize, usize)>,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    added: u64,
    done: u64,
    random: Random,
}

/// Runs it until enough batches have passed.
pub(in super::super) fn run(cores: usize, tunnels: usize, stages: &[Stage]) -> Outcome {
    let (cores, tunnels) = (cores.max(1), tunnels.max(1));
    let mut machine = Machine {
        stages,
        now: 0,
        cores: vec![None; cores],
        busy: vec![0; cores],
        waiting: VecDeque::new(),
        next: BTreeMap::new(),
        held: HashSet::new(),
        events: BinaryHeap::new(),
        added: 0,
        done: 0,
        random: Random::new(),
    };
    for number in 0..WINDOW {
        for tunnel in 0..tunnels {
            machine.waiting.push_back(Task {
                tunnel,
                number,
                stage: 0,
            });
        }
    }
    let all = tunnels as u64;
    machine.run_until(WARM_UP * all);
    let begun = machine.now;
    machine.busy.fill(0);
    machine.run_until((WARM_UP + COUNTED) * all);
    #[expect(clippy::cast_precision_loss, reason = "less than 2^53")]
    let real = |number: u64| number as f64;
    let time = real((machine.now - begun).max(1));
    Outcome {
        rate: real(COUNTED * all) / time * 1e9,
        busy: machine
            .busy
            .iter()
            .map(|busy| (real(*busy) / time).min(1.0))
            .collect(),
    }
}

impl Machine<'_> {
    fn run_until(&mut self, done: u64) {
        self.start();
        while self.done < done
            && let Some(Reverse((at, _, core))) = self.events.pop()
        {
            self.now = at;
            self.ended(core);
            self.start();
        }
    }

    /// Who may not be at work twice.
    fn holder(&self, task: Task) -> Option<(&'static str, usize, usize)> {
        match self.stages[task.stage].order {
            Order::Free => None,
            Order::Tunnel => Some(("", task.stage, task.tunnel)),
            Order::Threads(name, threads) => Some((name, 0, task.tunnel % threads.max(1))),
        }
    }

    fn may_run(&self, task: Task, core: usize) -> bool {
        let cores = self.cores.len();
        let number = usize::try_from(task.number).unwrap_or_default();
        let is_placed = match self.stages[task.stage].place {
            Place::Any => true,
            Place::OfTunnel => task.tunnel % cores == core,
            Place::EachInTurn => (task.tunnel + number) % cores == core,
            Place::One => core == 0,
        };
        let Some(holder) = self.holder(task).filter(|_| is_placed) else {
            return is_placed;
        };
        let next = self.next.get(&(task.stage, task.tunnel));
        !self.held.contains(&holder) && next.copied().unwrap_or(0) == task.number
    }

    /// Every core that is free takes something that may run there.
    fn start(&mut self) {
        for core in 0..self.cores.len() {
            if self.cores[core].is_some() {
                continue;
            }
            let found = self
                .waiting
                .iter()
                .position(|task| self.may_run(*task, core));
            let Some(task) = found.and_then(|at| self.waiting.remove(at)) else {
                continue;
            };
            self.held.extend(self.holder(task));
            let spread = 1.0 + SPREAD * (2.0 * self.random.share() - 1.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "nanoseconds of a batch"
            )]
            let cost = (self.stages[task.stage].cost * spread).round() as u64;
            self.cores[core] = Some(task);
            self.busy[core] += cost;
            self.added += 1;
            self.events
                .push(Reverse((self.now + cost, self.added, core)));
        }
    }

    fn ended(&mut self, core: usize) {
        let Some(task) = self.cores[core].take() else {
            return;
        };
        if let Some(holder) = self.holder(task) {
            self.held.remove(&holder);
            self.next.insert((task.stage, task.tunnel), task.number + 1);
        }
        let stage = task.stage + 1;
        if stage < self.stages.len() {
            self.waiting.push_back(Task { stage, ..task });
            return;
        }
        self.done += 1;
        self.waiting.push_back(Task {
            number: task.number + WINDOW,
            stage: 0,
            ..task
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(cost: f64, place: Place, order: Order) -> Stage {
        Stage { cost, place, order }
    }

    fn is_about(value: f64, expected: f64) {
        assert!(
            (value / expected - 1.0).abs() < 0.04,
            "{value} instead of {expected}"
        );
    }

    const PIPELINE: [Stage; 3] = [
        Stage {
            cost: 20_000.0,
            place: Place::Any,
            order: Order::Tunnel,
        },
        Stage {
            cost: 60_000.0,
            place: Place::Any,
            order: Order::Free,
        },
        Stage {
            cost: 20_000.0,
            place: Place::Any,
            order: Order::Tunnel,
        },
    ];

    #[test]
    fn one_core_needs_the_sum_of_the_stages() {
        is_about(run(1, 1, &PIPELINE).rate, 10_000.0);
        is_about(run(1, 3, &PIPELINE).rate, 10_000.0);
    }

    #[test]
    fn a_tunnel_is_as_fast_as_its_slowest_stage_in_order() {
        is_about(run(32, 1, &PIPELINE).rate, 50_000.0);
        is_about(run(32, 2, &PIPELINE).rate, 100_000.0);
        is_about(run(3, 1, &PIPELINE).rate, 30_000.0);
    }

    #[test]
    fn a_stage_on_one_core_holds_all_tunnels_up() {
        let stages = [
            PIPELINE[0],
            stage(60_000.0, Place::EachInTurn, Order::Free),
            stage(20_000.0, Place::One, Order::Tunnel),
        ];
        let one = run(16, 16, &stages);
        assert!(one.rate < 50_000.0, "{}", one.rate);
        assert!(one.busy[0] > 0.98, "that core is busy: {:?}", one.busy);
    }

    #[test]
    fn tunnels_have_the_cores_of_their_interrupts() {
        let inline = [stage(100_000.0, Place::OfTunnel, Order::Tunnel)];
        is_about(run(8, 4, &inline).rate, 40_000.0);
        let busy = run(8, 4, &inline).busy;
        assert_eq!(busy.iter().filter(|share| **share > 0.0).count(), 4);
    }

    #[test]
    fn tunnels_of_one_thread_take_turns() {
        let shared = |threads| {
            [stage(
                100_000.0,
                Place::Any,
                Order::Threads("shard", threads),
            )]
        };
        is_about(run(8, 4, &shared(1)).rate, 10_000.0);
        is_about(run(8, 4, &shared(2)).rate, 20_000.0);
    }

    #[test]
    fn a_thread_with_two_stages_does_one_at_a_time() {
        let of = |cost| stage(cost, Place::Any, Order::Threads("owner", 1));
        let stages = [
            of(30_000.0),
            stage(1_000.0, Place::Any, Order::Free),
            of(20_000.0),
        ];
        is_about(run(4, 1, &stages).rate, 20_000.0);
    }

    #[test]
    fn the_same_pipeline_has_the_same_outcome() {
        let (one, other) = (run(5, 3, &PIPELINE), run(5, 3, &PIPELINE));
        assert_eq!(one.rate.to_bits(), other.rate.to_bits());
        assert_eq!(one.busy, other.busy);
    }
}
