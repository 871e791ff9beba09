//! Where a thread runs while little moves: on the CPU that its packets come from.
//!
//! The scheduler wakes a sleeper on an idle CPU if there is one. For a lone packet that is the slower choice: an
//! interrupt to a CPU that is halted, and the time it takes to get going, where the CPU that the packet is on could
//! go on with it. Under load the scheduler knows better, and decides; and where that CPU is too busy with other things.

use std::time::Duration;

use adit_io::Origin;
use adit_proto::Time;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;

/// A pause between turns after which a packet may be a lone one.
const REST: Duration = Duration::from_millis(1);
/// Packets without a rest between them that are load. A request and its answer are two. A thread that had to wait for
/// a CPU seems to have rested, but finds more than that.
const LOAD: usize = 16;
/// Packets from the same CPU, each after a rest, that make a pattern at first.
const PATTERN: u32 = 4;
/// The longest pattern to be asked for, once CPUs were too busy.
const MAX_PATTERN: u32 = 1 << 14;
/// What a packet may wait for its turn on the CPU that it came from.
const PROMPT: Duration = Duration::from_micros(200);
/// One packet in this many may wait for longer.
const LATE: u32 = 8;
/// So many more than that in a row, and the CPU is too busy.
const TOO_LATE: u32 = 4;

/// What the calling thread has seen, and where it runs.
#[derive(Debug)]
pub(crate) struct Placement {
    /// When the last turn began.
    last: Time,
    /// Packets since the last rest.
    packets: usize,
    /// The CPU that the last packet after a rest came from, and how many in a row did.
    from: (usize, u32),
    /// How many it takes to follow them.
    pattern: u32,
    /// Packets that waited for too long, times [`LATE`], less those that did not.
    late: u32,
    /// The CPU that the thread is bound to, and those it was allowed before.
    bound: Option<(usize, CpuSet)>,
}

impl Placement {
    pub(crate) fn new() -> Self {
        Self {
            last: Time::default(),
            packets: 0,
            from: (0, 0),
            pattern: PATTERN,
            late: 0,
            bound: None,
        }
    }

    /// A turn begins. Whether the thread rested before it: then [`Self::came_from`] wants to know more.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        let rested = now.since(self.last) >= REST;
        self.last = now;
        if rested {
            self.packets = 0;
        }
        rested
    }

    /// So many packets were carried in this turn. It counts as one at least: a flood of datagrams that are none is load.
    pub(crate) fn carried(&mut self, packets: usize) {
        self.packets = self.packets.saturating_add(packets.max(1));
        if self.is_loaded() {
            self.leave();
        }
    }

    /// The packets of this turn, after a rest.
    pub(crate) fn came_from(&mut self, origin: Origin) {
        if self.is_loaded() {
            return;
        }
        let Origin { cpu, at } = origin;
        self.from = if self.from.0 == cpu {
            (cpu, self.from.1.saturating_add(1))
        } else {
            (cpu, 1)
        };
        if self.is_bound() && self.last.since(at) > PROMPT {
            self.late += LATE;
            if self.late >= TOO_LATE * LATE {
                // Other things are done on that CPU, and interrupts come before any thread.
                self.pattern = (4 * self.pattern).min(MAX_PATTERN);
                self.leave();
            }
        } else {
            self.late = self.late.saturating_sub(1);
        }
        if self.is_bound() && self.from.1 >= 16 * self.pattern {
            // It was well here for long enough.
            self.pattern = PATTERN;
        }
        if self.from.1 >= self.pattern && self.bound.as_ref().is_none_or(|(bound, _)| *bound != cpu)
        {
            self.bind(cpu);
        }
    }

    /// Runs wherever the scheduler thinks best again.
    pub(crate) fn leave(&mut self) {
        if self.is_bound() {
            if let Some(allowed) = self.allowed() {
                let _ = sched_setaffinity(None, &allowed);
            }
            self.bound = None;
        }
        self.from.1 = 0;
        self.late = 0;
    }

    /// Whether the thread is where its packets come from: little moves.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// Whether packet comes after packet.
    pub(crate) fn is_loaded(&self) -> bool {
        self.packets >= LOAD
    }

    /// Binds the thread to `cpu`, if that is among several CPUs that it may run on.
    fn bind(&mut self, cpu: usize) {
        let Some(allowed) = self.allowed() else {
            return;
        };
        if cpu < CpuSet::MAX_CPU
            && allowed.is_set(cpu)
            && allowed.count() > 1
            && sched_setaffinity(None, &only(cpu)).is_ok()
        {
            self.bound = Some((cpu, allowed));
        }
    }

    /// The CPUs that the thread may run on, but for this binding. If somebody else bound it since, that holds.
    fn allowed(&self) -> Option<CpuSet> {
        let now = sched_getaffinity(None).ok()?;
        match self.bound {
            Some((cpu, before)) if now == only(cpu) => Some(before),
            _ => Some(now),
        }
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}
