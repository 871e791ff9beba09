//! Where a thread runs: while little moves, on the CPU that its packets come from; under load, on
//! the one where it is.
//!
//! The scheduler wakes a sleeper on an idle CPU if there is one. For a packet of a sparse flow that
//! is the slower choice: an interrupt to a CPU that is halted, and the time it takes to get going,
//! where the CPU that the packet is on could go on with it. Under load it moves a thread about that
//! finds its keys, buffers and code in the caches of one CPU. Where that CPU is too busy with other
//! things the scheduler knows better, and decides.

use std::cell::OnceCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use adit_io::Arrival;
use adit_proto::Time;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;

/// A pause between polls after which a flow may be sparse.
const REST: Duration = Duration::from_millis(1);
/// Packets without a rest between them that are load. A request and its answer are two. A thread
/// that had to wait for a CPU seems to have rested, but finds more than that.
const LOAD: usize = 16;
/// Packets from the same CPU, each after a rest, that make a pattern at first.
const PATTERN: u32 = 4;
/// Fewer patterns than this more, by chance, to go from one CPU to another: threads that follow
/// each other would change places for ever.
const CHANGE: u32 = 4;
/// Patterns of packets that come from either of two CPUs alternately: they come because of where
/// this thread is woken.
const SWINGS: u32 = 2;
/// The longest pattern to be asked for, once CPUs were too busy.
const MAX_PATTERN: u32 = 1 << 14;
/// How long a packet may wait on the CPU that it came from.
const PROMPT: Duration = Duration::from_micros(200);
/// One packet in this many may wait for longer.
const LATE: u32 = 8;
/// So many more than that in a row, and the CPU is too busy.
const TOO_LATE: u32 = 4;
/// How often a loaded thread asks how long it waited for its CPU.
const WINDOW: Duration = Duration::from_millis(4);
/// The thread stays where it is if it waited for less than one part of the time in this many.
const EASY: u32 = 6;
/// The thread is released if it waited for more than one part in this many.
const CROWDED: u32 = 3;
/// The longest that it stays. The scheduler knows more than this thread: interrupts, and faster
/// CPUs that are idle.
const STAY: Duration = Duration::from_millis(500);
/// The shortest that the scheduler then decides.
const FREE: Duration = Duration::from_millis(12);

/// Where the calling thread runs: what follows sparse flows, and what stays under load, decide in
/// turn, and one state says which of them has bound it.
#[derive(Debug)]
pub(crate) struct Placement {
    /// Otherwise the scheduler decides, always.
    is_on: bool,
    /// When the last poll began.
    last: Time,
    /// Packets since the last rest.
    packets: usize,
    state: PlacementState,
    follower: Follower,
    stayer: Stayer,
    affinity: Affinity,
}

/// Why the thread is bound to a CPU.
#[derive(Debug)]
enum PlacementState {
    /// Not bound: the scheduler decides.
    Free,
    /// Packets of sparse flows come from there.
    Following(CpuBinding),
    /// Bound to a CPU where it processed its load.
    Staying(CpuBinding),
}

impl Placement {
    pub(crate) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            last: Time::default(),
            packets: 0,
            state: PlacementState::Free,
            follower: Follower::new(),
            stayer: Stayer::new(),
            affinity: Affinity::default(),
        }
    }

    /// The calling thread is the one that this is about: opens what tells of it, which a confined
    /// thread cannot.
    pub(crate) fn begins(&self) {
        if self.is_on {
            let _ = self.stayer.waited();
        }
    }

    /// A poll begins. Whether the thread rested before it: then [`Self::arrived`] wants to know
    /// more.
    pub(crate) fn poll_begins(&mut self, now: Time) -> bool {
        if !self.is_on {
            return false;
        }
        let pause = now.since(self.last);
        self.last = now;
        let rested = pause >= REST;
        if rested {
            // A load may pause, but not for long.
            if pause >= WINDOW || !self.is_loaded() {
                self.stayer.asked = None;
                if matches!(self.state, PlacementState::Staying(_)) {
                    self.leave();
                }
            }
            self.packets = 0;
        }
        rested
    }

    /// Counts packets that were processed in this poll. It counts as one at least: a flood of datagrams
    /// that are none is load.
    pub(crate) fn processed(&mut self, packets: usize) {
        self.packets = self.packets.saturating_add(packets.max(1));
        if self.is_loaded() {
            self.follower.load_begins();
            if self.follows() {
                self.leave();
            }
        }
    }

    /// The packets of this poll, after a rest.
    pub(crate) fn arrived(&mut self, arrival: Arrival) {
        if self.is_loaded() {
            return;
        }
        self.follower.note(arrival.cpu);
        let waited = self.last.since(arrival.at);
        if self.follower.is_too_late(self.follows().then_some(waited)) {
            self.leave();
        }
        let bound = self.bound().map(|bound| bound.cpu);
        if self.follower.wants_to_go(self.last, bound) {
            match self.affinity.bind(arrival.cpu, self.bound()) {
                Some(bound) => self.state = PlacementState::Following(bound),
                None => self.follower.back_off(),
            }
        }
    }

    /// The calling thread's poll is over. Under load it stays where it is, unless it has to wait
    /// for that CPU.
    pub(crate) fn poll_ended(&mut self, now: Time) {
        if !self.is_on || !self.is_loaded() {
            return;
        }
        let stays = matches!(self.state, PlacementState::Staying(_));
        match self.stayer.decide(now, stays) {
            Some(Stay::Here) => {
                if let Some(bound) = self.affinity.bind(sched_getcpu(), self.bound()) {
                    self.state = PlacementState::Staying(bound);
                }
            }
            Some(Stay::Nowhere) => self.leave(),
            None => {}
        }
    }

    /// Runs wherever the scheduler thinks best again.
    pub(crate) fn leave(&mut self) {
        if let PlacementState::Following(bound) | PlacementState::Staying(bound) =
            std::mem::replace(&mut self.state, PlacementState::Free)
        {
            self.affinity.release(bound);
        }
        self.follower.left();
    }

    /// Whether the thread is where its packets of sparse flows come from.
    pub(crate) fn follows(&self) -> bool {
        matches!(self.state, PlacementState::Following(_))
    }

    /// Whether packet comes after packet.
    pub(crate) fn is_loaded(&self) -> bool {
        self.packets >= LOAD
    }

    fn bound(&self) -> Option<&CpuBinding> {
        match &self.state {
            PlacementState::Free => None,
            PlacementState::Following(bound) | PlacementState::Staying(bound) => Some(bound),
        }
    }
}

/// Finds out which CPU packets of sparse flows come from.
#[derive(Debug)]
struct Follower {
    /// The CPU that the last packet after a rest came from, and how many in a row did.
    from: (usize, u32),
    /// The CPU that the packet before that one came from, and how many in a row did not come from
    /// the same as the last.
    swing: (usize, u32),
    /// How many it takes to follow them.
    pattern: u32,
    /// Low bits of the clock when the thread last went somewhere.
    chance: u32,
    /// Packets that waited for too long, times [`LATE`], less those that did not.
    late: u32,
}

impl Follower {
    fn new() -> Self {
        Self {
            from: (0, 0),
            swing: (0, 0),
            pattern: PATTERN,
            chance: 0,
            late: 0,
        }
    }

    /// A packet came from this CPU, after a rest.
    fn note(&mut self, cpu: usize) {
        let (last, in_a_row) = self.from;
        self.swing = if cpu == self.swing.0 && cpu != last {
            (last, self.swing.1.saturating_add(1))
        } else {
            (last, 0)
        };
        self.from = if last == cpu {
            (cpu, in_a_row.saturating_add(1))
        } else {
            (cpu, 1)
        };
    }

    /// Whether packets wait too long where the thread follows them; `waited` is `None` where it
    /// does not.
    fn is_too_late(&mut self, waited: Option<Duration>) -> bool {
        if waited.is_some_and(|waited| waited > PROMPT) {
            self.late += LATE;
            if self.late >= TOO_LATE * LATE {
                // Other things are done on that CPU, and interrupts come before any thread.
                self.back_off();
                return true;
            }
        } else {
            self.late = self.late.saturating_sub(1);
        }
        if waited.is_some() && self.from.1 >= 16 * self.pattern {
            // That CPU served well for long enough.
            self.pattern = PATTERN;
        }
        false
    }

    /// Whether packets make a pattern that is worth following, from the CPU that the thread is
    /// bound to.
    fn wants_to_go(&mut self, now: Time, bound: Option<usize>) -> bool {
        let (cpu, in_a_row) = self.from;
        let more = self.chance % (CHANGE * self.pattern);
        let goes = match bound {
            Some(here) => here != cpu && in_a_row >= self.pattern + more,
            None => in_a_row >= self.pattern || self.swing.1 >= SWINGS * self.pattern,
        };
        if goes {
            self.swing.1 = 0;
            self.chance = now.since(Time::default()).subsec_nanos();
        }
        goes
    }

    /// The thread may not run there, or packets waited too long. Trying again for each packet would
    /// cost more than it can gain.
    fn back_off(&mut self) {
        self.pattern = (4 * self.pattern).min(MAX_PATTERN);
        self.from.1 = 0;
    }

    fn load_begins(&mut self) {
        self.from.1 = 0;
    }

    /// The thread is no longer bound.
    fn left(&mut self) {
        self.from.1 = 0;
        self.swing.1 = 0;
        self.late = 0;
    }
}

/// Has a loaded thread stay on its CPU, where its caches are.
#[derive(Debug)]
struct Stayer {
    /// When the kernel was last asked how long the thread had waited for CPUs in its life, and the
    /// answer.
    asked: Option<(Time, Duration)>,
    /// Until when the thread stays where it is at most, or moves about at least.
    until: Time,
    schedstat: OnceCell<Option<File>>,
}

/// Where a loaded thread is to be.
enum Stay {
    Here,
    Nowhere,
}

impl Stayer {
    fn new() -> Self {
        Self {
            asked: None,
            until: Time::default(),
            schedstat: OnceCell::new(),
        }
    }

    /// Whether a change is due; `stays` says that the thread is bound now.
    fn decide(&mut self, now: Time, stays: bool) -> Option<Stay> {
        let is_due = self.asked.is_none_or(|(at, _)| now.since(at) >= WINDOW);
        let waited = is_due.then(|| self.waited()).flatten()?;
        let (then, before) = self.asked.replace((now, waited))?;
        let (window, waited) = (now.since(then), waited.saturating_sub(before));
        if stays && (CROWDED * waited > window || now >= self.until) {
            self.until = now + FREE;
            Some(Stay::Nowhere)
        } else if !stays && EASY * waited < window && now >= self.until {
            self.until = now + STAY;
            Some(Stay::Here)
        } else {
            None
        }
    }

    /// How long the calling thread was ready to run and had no CPU, in its life. The kernel may not
    /// tell.
    fn waited(&self) -> Option<Duration> {
        let open = || adit_io::helper::waits().ok();
        let file = self.schedstat.get_or_init(open).as_ref()?;
        let mut text = [0; 64];
        let len = file.read_at(&mut text, 0).ok()?;
        // Nanoseconds that it ran, nanoseconds that it waited, and how many times it ran.
        let waited = text[..len].split(|byte| *byte == b' ').nth(1)?;
        Some(Duration::from_nanos(
            str::from_utf8(waited).ok()?.parse().ok()?,
        ))
    }
}

/// The CPUs that the calling thread may run on.
#[derive(Debug, Default)]
struct Affinity {
    /// When the thread was last released: the CPUs that it got, and those that it was allowed,
    /// which are more while CPUs are offline.
    left: Option<(CpuSet, CpuSet)>,
}

/// A binding of a thread to a CPU.
#[derive(Debug)]
struct CpuBinding {
    cpu: usize,
    /// The CPUs that it is to be allowed again.
    before: CpuSet,
}

impl Affinity {
    /// Binds the thread to `cpu`; `None` if that is not among several CPUs that it may run on.
    fn bind(&self, cpu: usize, bound: Option<&CpuBinding>) -> Option<CpuBinding> {
        let now = sched_getaffinity(None).ok()?;
        let before = match (bound, &self.left) {
            (Some(bound), _) if now == only(bound.cpu) => bound.before,
            _ if now.count() <= 1 => return None,
            (_, Some((got, allowed))) if now == *got => *allowed,
            _ => unbound(now),
        };
        let binds = cpu < CpuSet::MAX_CPU
            && before.is_set(cpu)
            && sched_setaffinity(None, &only(cpu)).is_ok();
        binds.then_some(CpuBinding { cpu, before })
    }

    /// Lets the thread run where it might before it was bound. If another program bound it since,
    /// or its CPU is gone, that setting stays.
    fn release(&mut self, CpuBinding { cpu, before }: CpuBinding) {
        if sched_getaffinity(None).is_ok_and(|now| now == only(cpu)) {
            let _ = sched_setaffinity(None, &before);
            self.left = sched_getaffinity(None).ok().map(|got| (got, before));
        }
    }
}

/// The CPUs that the calling thread, which may run on `now`, is to be allowed again: these if they
/// were chosen on purpose, or else any, so that it may use CPUs that the machine or the control
/// group gets while the thread is bound.
fn unbound(now: CpuSet) -> CpuSet {
    let mut any = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| any.set(cpu));
    // The kernel takes what there is.
    if sched_setaffinity(None, &any).is_ok() && sched_getaffinity(None) == Ok(now) {
        return any;
    }
    let _ = sched_setaffinity(None, &now);
    now
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

/// How many of these CPUs the calling thread may use.
pub(crate) fn usable(cpus: &[usize]) -> usize {
    let Ok(allowed) = sched_getaffinity(None) else {
        return 0;
    };
    let is_usable = |cpu: &&usize| **cpu < CpuSet::MAX_CPU && allowed.is_set(**cpu);
    cpus.iter().filter(is_usable).count()
}

/// Has the calling thread run on those of these CPUs that it may use.
pub(crate) fn restrict(cpus: &[usize]) {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    // CPUs may have gone since they were chosen: then it runs where it may.
    let _ = sched_setaffinity(None, &set);
}
