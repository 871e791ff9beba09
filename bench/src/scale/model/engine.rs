//! Adit's engine as discrete events: threads that take, work and commit batches of queues through
//! ordered queues, as `adit_engine` has them.
//!
//! Each thread has a core of its own, and every queue always has more than a batch. An event is the
//! moment at which a thread ends what it does; what it does next depends on the locks then. Costs
//! vary by some per cent, from a seed: without that, threads would fall into step.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use adit_engine::Policy;

use super::Random;

/// Batches of one queue that are taken and not committed, at most: `DEPTH` of `engine/src/order/ordered_queue.rs`.
const DEPTH: usize = 16;
/// The same where one or two threads poll it: `LEAST_DEPTH`.
const LEAST_DEPTH: usize = 4;
/// The same while several commit locks are in use: `SPLIT_DEPTH`.
const SPLIT_DEPTH: usize = 8;
/// Commit locks of an interface that sends, at most: `FLOW_SHARDS` of `engine/src/outbound/seal.rs`.
const FLOW_SHARDS: usize = 8;
/// Those that deliver what arrives, at most: `DELIVERIES` of `engine/src/shards/queues.rs`.
const DELIVERIES: usize = 4;
/// Of committing what arrived, the part that is done under the commit lock before them: not more than this, by a
/// profile of the engine in memory.
const COMMIT: f64 = 0.1;
/// Between two looks of a thread that finds a lock held: sched_yield(2) and what is around it.
const LOOK: f64 = 1_000.0;
/// How far costs lie from their mean, at most.
const SPREAD: f64 = 0.1;
/// Batches of all queues before anything counts, and those that count, for each queue.
const WARM_UP: u64 = 100;
const COUNTED: u64 = 1_000;

/// Nanoseconds of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in super::super) struct BatchCosts {
    pub(in super::super) take: f64,
    pub(in super::super) work: f64,
    pub(in super::super) put: f64,
    /// What a thread does between two batches.
    pub(in super::super) poll: f64,
    /// A thread works on what another one took: its core has to fetch that.
    pub(in super::super) fetch_work: f64,
    /// A thread commits what another one worked on.
    pub(in super::super) fetch_put: f64,
    /// From waking a thread until it runs, and what that costs the one that wakes it.
    pub(in super::super) wake: f64,
    pub(in super::super) wake_call: f64,
}

impl BatchCosts {
    /// The same on cores that are slower by this factor.
    pub(in super::super) fn slower(self, by: f64) -> Self {
        Self {
            take: self.take * by,
            work: self.work * by,
            put: self.put * by,
            poll: self.poll * by,
            fetch_work: self.fetch_work * by,
            fetch_put: self.fetch_put * by,
            ..self
        }
    }
}

/// How batches are split where two threads help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Split {
    /// They are not: all packets are of one flow, or each peer is in a receive queue of its own.
    Not,
    /// Each commit lock sends a flow shard.
    Outbound,
    /// The first commits all, and each of the others then delivers a flow shard.
    Inbound,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Setup {
    pub(in super::super) policy: Policy,
    /// Threads, one at least.
    pub(in super::super) shards: usize,
    /// Interfaces with one direction of traffic, one at least.
    pub(in super::super) queues: usize,
    pub(in super::super) split: Split,
    pub(in super::super) costs: BatchCosts,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(in super::super) struct Outcome {
    /// Batches a second, of all queues.
    pub(in super::super) rate: f64,
    /// The share of the time in which each thread had a core, looking at held locks included.
    pub(in super::super) busy: Vec<f64>,
}

/// A thread does this until its next event.
#[derive(Clone, Copy, Debug)]
enum Doing {
    /// Nothing: it looks for something to do now.
    Looking,
    /// It reads a batch under the take lock of this queue.
    Taking(usize),
    /// It works on a batch with this sequence number.
    Working(usize, u64),
    /// It commits the head under this commit lock.
    Committing(usize, usize),
}

#[derive(Default)]
struct CommitLock {
    /// The sequence number to be committed next.
    head: u64,
    committing: bool,
    /// By sequence number: the thread that filed it, and whether its work is done.
    filed: [Option<(usize, bool)>; DEPTH],
}

impl CommitLock {
    fn slot(&mut self, sequence: u64) -> &mut Option<(usize, bool)> {
        &mut self.filed[usize::try_from(sequence % DEPTH as u64).unwrap_or_default()]
    }

    fn head_is_filed(&mut self) -> bool {
        self.slot(self.head).is_some()
    }
}

#[derive(Default)]
struct Queue {
    taking: bool,
    next: u64,
    /// The commit locks, each of which has a flow shard of every batch.
    commit_locks: Vec<CommitLock>,
    /// Batches that the owner of a pipeline took, for others to work on.
    jobs: Vec<u64>,
    workers: usize,
    /// The owner sleeps until something is committed, or filed.
    sleeps: bool,
}

impl Queue {
    /// The first sequence number that some commit lock has not committed.
    fn head(&self) -> u64 {
        self.commit_locks
            .iter()
            .map(|lock| lock.head)
            .min()
            .unwrap_or(0)
    }

    fn is_full(&self) -> bool {
        let most = match self.commit_locks.len() {
            1 => (2 * (1 + self.workers)).clamp(LEAST_DEPTH, DEPTH),
            _ => SPLIT_DEPTH,
        };
        self.next - self.head() >= most as u64
    }

    /// Whether a thread may commit the head of this commit lock.
    fn is_ready(&mut self, at: usize, split: Split) -> bool {
        let committed = self.commit_locks[0].head;
        let of = &mut self.commit_locks[at];
        let waits = split == Split::Inbound && at > 0 && of.head == committed;
        !of.committing && !waits && of.head_is_filed()
    }
}

struct Thread {
    doing: Doing,
    /// Queues that it owns, and the one to look at next.
    owns: Vec<usize>,
    turn: usize,
    /// The queue of another thread that it helps with.
    helps: Option<usize>,
    asleep_since: Option<f64>,
    slept: f64,
}

struct Engine {
    setup: Setup,
    now: f64,
    threads: Vec<Thread>,
    queues: Vec<Queue>,
    /// Times in nanoseconds and the order in which they were added, then the thread.
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    added: u64,
    put: u64,
    random: Random,
}

/// Runs it until enough batches were committed.
pub(in super::super) fn run(setup: Setup) -> Outcome {
    let mut engine = Engine::new(setup);
    let queues = engine.queues.len() as u64;
    engine.run_until(WARM_UP * queues);
    let begun = engine.now;
    for thread in &mut engine.threads {
        thread.slept = 0.0;
        if thread.asleep_since.is_some() {
            thread.asleep_since = Some(begun);
        }
    }
    engine.run_until((WARM_UP + COUNTED) * queues);
    let time = engine.now - begun;
    let busy = engine.threads.iter().map(|thread| {
        let slept = thread.slept + thread.asleep_since.map_or(0.0, |since| engine.now - since);
        (1.0 - slept / time).clamp(0.0, 1.0)
    });
    Outcome {
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        rate: (COUNTED * queues) as f64 / time * 1e9,
        busy: busy.collect(),
    }
}

impl Engine {
    /// Queues are owned in turn; threads that own none help with the queues in turn, as `auto` and
    /// `pipeline` have them.
    fn new(setup: Setup) -> Self {
        let (shards, queues) = (setup.shards.max(1), setup.queues.max(1));
        let mut all: Vec<Queue> = (0..queues).map(|_| Queue::default()).collect();
        let mut threads: Vec<Thread> = (0..shards)
            .map(|shard| Thread {
                doing: Doing::Looking,
                owns: (shard..queues).step_by(shards).collect(),
                turn: 0,
                helps: None,
                asleep_since: None,
                slept: 0.0,
            })
            .collect();
        if setup.policy != Policy::Inline {
            let idle = threads.iter_mut().filter(|thread| thread.owns.is_empty());
            for (thread, queue) in idle.zip((0..queues).cycle()) {
                all[queue].workers += 1;
                thread.helps = Some(queue);
            }
        }
        for queue in &mut all {
            let threads = match setup.policy {
                Policy::Auto if queue.workers >= 2 => (1 + queue.workers).next_power_of_two(),
                _ => 1,
            };
            let commit_locks = match setup.split {
                _ if threads == 1 => 1,
                Split::Not => 1,
                Split::Outbound => threads.min(FLOW_SHARDS),
                Split::Inbound => 1 + threads.min(DELIVERIES),
            };
            queue.commit_locks = (0..commit_locks).map(|_| CommitLock::default()).collect();
        }
        let mut engine = Self {
            setup,
            now: 0.0,
            threads,
            queues: all,
            events: BinaryHeap::new(),
            added: 0,
            put: 0,
            random: Random::new(),
        };
        for thread in 0..shards {
            engine.after(thread, Doing::Looking, 0.0);
        }
        engine
    }

    fn run_until(&mut self, put: u64) {
        while self.put < put
            && let Some(Reverse((at, _, thread))) = self.events.pop()
        {
            self.now = self.now.max(from_ticks(at));
            match self.threads[thread].doing {
                Doing::Looking => self.look(thread),
                Doing::Taking(queue) => self.taken(thread, queue),
                Doing::Working(queue, sequence) => self.worked(thread, queue, sequence),
                Doing::Committing(queue, at) => self.has_committed(thread, queue, at),
            }
        }
    }

    /// The thread does this, and its next event comes so many nanoseconds later.
    fn after(&mut self, thread: usize, doing: Doing, nanoseconds: f64) {
        let spread = 1.0 + SPREAD * (2.0 * self.random.share() - 1.0);
        self.threads[thread].doing = doing;
        self.added += 1;
        let at = ticks(self.now + nanoseconds * spread);
        self.events.push(Reverse((at, self.added, thread)));
    }

    fn sleep(&mut self, thread: usize) {
        self.threads[thread].asleep_since = Some(self.now);
    }

    /// Wakes the owner of a queue if it sleeps.
    fn wake(&mut self, queue: usize) {
        self.queues[queue].sleeps = false;
        let owner = queue % self.setup.shards;
        if let Some(since) = self.threads[owner].asleep_since.take() {
            self.threads[owner].slept += self.now - since;
            self.after(owner, Doing::Looking, self.setup.costs.wake);
        }
    }

    /// Whether the owner of this queue leaves the work to others.
    fn is_pipeline(&self, queue: usize) -> bool {
        self.setup.policy == Policy::Pipeline && self.queues[queue].workers > 0
    }

    fn look(&mut self, thread: usize) {
        if let Some(queue) = self.threads[thread].helps {
            return self.help(thread, queue);
        }
        let owned = self.threads[thread].owns.len();
        for _ in 0..owned {
            let turn = self.threads[thread].turn % owned;
            self.threads[thread].turn = turn + 1;
            let queue = self.threads[thread].owns[turn];
            if self.is_pipeline(queue) && self.queues[queue].commit_locks[0].head_is_filed() {
                return self.commit_head(thread, queue, 0);
            }
            if self.queues[queue].taking {
                return self.after(thread, Doing::Looking, LOOK);
            }
            if !self.queues[queue].is_full() {
                return self.take(thread, queue);
            }
        }
        // All are full. If workers have more to do than they can begin, it does a part of that itself.
        let jobs = |queue: &&usize| {
            self.is_pipeline(**queue)
                && self.queues[**queue].jobs.len() > self.queues[**queue].workers
        };
        if let Some(&queue) = self.threads[thread].owns.iter().find(jobs) {
            return self.work(thread, queue, 0.0);
        }
        // The thread that commits the next batch wakes it.
        for at in 0..owned {
            let queue = self.threads[thread].owns[at];
            self.queues[queue].sleeps = true;
        }
        self.sleep(thread);
    }

    fn help(&mut self, thread: usize, queue: usize) {
        if self.setup.policy == Policy::Pipeline {
            if self.queues[queue].jobs.is_empty() {
                return self.after(thread, Doing::Looking, LOOK);
            }
            return self.work(thread, queue, self.setup.costs.fetch_work);
        }
        match self.queues[queue].taking || self.queues[queue].is_full() {
            true => self.after(thread, Doing::Looking, LOOK),
            false => self.take(thread, queue),
        }
    }

    /// Works on the first batch that the owner of a pipeline left to others.
    fn work(&mut self, thread: usize, queue: usize, fetch: f64) {
        let sequence = self.queues[queue].jobs.remove(0);
        self.after(
            thread,
            Doing::Working(queue, sequence),
            fetch + self.setup.costs.work,
        );
    }

    fn take(&mut self, thread: usize, queue: usize) {
        self.queues[queue].taking = true;
        self.after(thread, Doing::Taking(queue), self.setup.costs.take);
    }

    fn taken(&mut self, thread: usize, queue: usize) {
        let of = &mut self.queues[queue];
        of.taking = false;
        let sequence = of.next;
        of.next += 1;
        if self.is_pipeline(queue) {
            self.queues[queue].jobs.push(sequence);
            return self.after(thread, Doing::Looking, self.setup.costs.poll);
        }
        // The head is worked on under the commit lock, if there is one.
        let of = &self.queues[queue];
        match of.commit_locks.len() == 1 && sequence == of.head() {
            true => self.file(thread, queue, sequence, false),
            false => self.after(
                thread,
                Doing::Working(queue, sequence),
                self.setup.costs.work,
            ),
        }
    }

    fn worked(&mut self, thread: usize, queue: usize, sequence: u64) {
        if self.is_pipeline(queue) {
            *self.queues[queue].commit_locks[0].slot(sequence) = Some((thread, true));
            if self.queues[queue].sleeps {
                self.wake(queue);
            }
            return self.after(thread, Doing::Looking, self.setup.costs.wake_call);
        }
        self.file(thread, queue, sequence, true);
    }

    fn file(&mut self, thread: usize, queue: usize, sequence: u64, is_worked: bool) {
        for commit_lock in &mut self.queues[queue].commit_locks {
            *commit_lock.slot(sequence) = Some((thread, is_worked));
        }
        self.proceed(thread, queue, 0, self.setup.costs.poll);
    }

    /// The thread commits what is ready at the commit locks from this one on, unless others are there:
    /// those look again. Then it looks for something else, so many nanoseconds later.
    fn proceed(&mut self, thread: usize, queue: usize, from: usize, later: f64) {
        let split = self.setup.split;
        let of = &mut self.queues[queue];
        let mut left = from..of.commit_locks.len();
        match left.find(|at| of.is_ready(*at, split)) {
            Some(at) => self.commit_head(thread, queue, at),
            None => self.after(thread, Doing::Looking, later),
        }
    }

    fn commit_head(&mut self, thread: usize, queue: usize, at: usize) {
        let costs = self.setup.costs;
        let commit_locks = &mut self.queues[queue].commit_locks;
        let count = adit_testbed::stats::to_f64(commit_locks.len());
        // The thread that commits looks at no packet.
        let (put, part) = match (self.setup.split, commit_locks.len(), at) {
            (Split::Inbound, 2.., 0) => (COMMIT * costs.put, 0.0),
            (Split::Inbound, 2.., _) => {
                let part = 1.0 / (count - 1.0);
                ((1.0 - COMMIT) * costs.put * part, part)
            }
            _ => (costs.put / count, 1.0 / count),
        };
        let of = &mut commit_locks[at];
        let Some((filed_by, is_worked)) = *of.slot(of.head) else {
            return self.after(thread, Doing::Looking, 0.0);
        };
        of.committing = true;
        let work = if is_worked { 0.0 } else { costs.work };
        let fetch = match (filed_by == thread, is_worked) {
            (true, _) => 0.0,
            (false, true) => costs.fetch_put,
            (false, false) => costs.fetch_work,
        };
        let doing = Doing::Committing(queue, at);
        self.after(thread, doing, (fetch + work) * part + put);
    }

    fn has_committed(&mut self, thread: usize, queue: usize, at: usize) {
        let before = self.queues[queue].head();
        let of = &mut self.queues[queue].commit_locks[at];
        *of.slot(of.head) = None;
        of.head += 1;
        of.committing = false;
        let is_done = self.queues[queue].head() > before;
        self.put += u64::from(is_done);
        let sleeps = is_done && self.queues[queue].sleeps;
        if sleeps {
            self.wake(queue);
        }
        let call = if sleeps {
            self.setup.costs.wake_call
        } else {
            0.0
        };
        self.proceed(thread, queue, at, self.setup.costs.poll + call);
    }
}

/// Tenths of a nanosecond: the order of events must not depend on how numbers are rounded.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and less than 2^53"
)]
fn ticks(nanoseconds: f64) -> u64 {
    (nanoseconds * 10.0).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "less than 2^53")]
fn from_ticks(ticks: u64) -> f64 {
    ticks as f64 / 10.0
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
