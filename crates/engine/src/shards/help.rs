//! When a queue needs help, and when a worker leaves.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use adit_proto::Time;

use crate::order::rx_queues::RX_QUEUES;
use crate::thread::poll::{Descriptor, Polled};

/// Polls in a row that left something in a queue, before its owner looks for an idle CPU.
const BUSY_POLLS: u32 = 4;
/// How often it looks, and how often a worker does.
pub(crate) const LOOK: Duration = Duration::from_millis(1);
/// Looks in a row that have to see an idle CPU, before help is asked for.
const IDLE_LOOKS: u32 = 4;

/// The need for help with the queues of an interface.
#[derive(Debug, Default)]
pub(crate) struct Need {
    /// Polls in a row that left something in a queue: the TUN, and each receive queue. A gateway that
    /// forwards empties the TUN each time that it has put a batch there.
    busy: [u32; 1 + RX_QUEUES],
    /// When to look for an idle CPU.
    pub(crate) look_at: Time,
    /// Looks in a row that saw one.
    idle: u32,
    /// Threads that help.
    pub(crate) workers: usize,
    /// Helpers in a row that found no CPU.
    pub(crate) in_vain: u32,
}

impl Need {
    /// One poll more of a queue. Whether one more worker is needed, which is then counted.
    pub(crate) fn polled(
        &mut self,
        (queue, more): (Descriptor, bool),
        now: Time,
        most: usize,
        load: &CpuLoad,
    ) -> bool {
        let busy = match queue {
            Descriptor::Socket { rx_queue, .. } => {
                &mut self.busy[1 + usize::from(rx_queue) % RX_QUEUES]
            }
            Descriptor::Tun | Descriptor::Paths => &mut self.busy[0],
        };
        *busy = if more { *busy + 1 } else { 0 };
        if *busy < BUSY_POLLS || now < self.look_at || self.workers >= most {
            return false;
        }
        *busy = 0;
        self.look_at = now + LOOK;
        self.idle = match load.idle_cpus() {
            Some(1..) => self.idle + 1,
            _ => 0,
        };
        if self.idle < IDLE_LOOKS {
            return false;
        }
        self.idle = 0;
        self.workers += 1;
        true
    }

    /// Threads that help.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Of so many batches that wait for a worker, these the owner of a pipeline works on itself: all, if
    /// nobody helps; one, if no more can be taken and each worker still has one to go on with. Otherwise it
    /// would sleep.
    pub(crate) fn left_to_owner(&self, polled: Polled, jobs: usize) -> usize {
        match polled {
            _ if self.workers == 0 => jobs,
            Polled::Full if jobs > self.workers => 1,
            _ => 0,
        }
    }

    /// So many batches wait for a thread that works on them. Whether one more worker is wanted,
    /// which is then counted.
    pub(crate) fn wants_worker(&mut self, jobs: usize, most: usize) -> bool {
        let wants = self.workers < jobs.min(most);
        self.workers += usize::from(wants);
        wants
    }
}

/// Why a worker leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The worker finds nothing.
    Idle,
    /// There are as many threads as CPUs, and the queue is emptied even so: its owner alone may do, for
    /// less CPU time.
    Spare,
    /// There are more threads than CPUs.
    Crowded,
}

impl Reason {
    /// The result of one look at the CPUs; `left_some`: of what waited, something was left.
    pub(crate) fn of(idle_cpus: Option<i64>, left_some: bool) -> Option<Self> {
        match idle_cpus {
            None | Some(..0) => Some(Self::Crowded),
            Some(0) if !left_some => Some(Self::Spare),
            Some(_) => None,
        }
    }
}

/// The reason that most looks give.
pub(crate) fn reason(looks: &[Option<Reason>]) -> Option<Reason> {
    let count = |reason| looks.iter().filter(|look| **look == Some(reason)).count();
    let [crowded, spare] = [Reason::Crowded, Reason::Spare].map(count);
    let are_most = |some: usize| 2 * some > looks.len();
    if are_most(crowded) {
        return Some(Reason::Crowded);
    }
    are_most(crowded + spare).then_some(Reason::Spare)
}

/// How busy the CPUs are.
#[derive(Debug)]
pub(crate) struct CpuLoad(Option<(File, i64)>);

impl CpuLoad {
    /// Before threads are confined, which cannot open a file.
    pub(crate) fn open() -> Arc<Self> {
        static LOAD: OnceLock<Arc<CpuLoad>> = OnceLock::new();
        Arc::clone(LOAD.get_or_init(|| Arc::new(Self::new())))
    }

    /// Not known: nobody is asked for help.
    pub(crate) fn unknown() -> Self {
        Self(None)
    }

    /// Until it is dropped.
    pub(crate) fn new() -> Self {
        let open = || {
            let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
            Some((File::open("/proc/loadavg").ok()?, count_cpus(cpus.trim())?))
        };
        Self(open())
    }

    /// CPUs without a thread; negative if there are more threads that are ready to run than CPUs.
    /// `None` where the kernel does not tell.
    pub(crate) fn idle_cpus(&self) -> Option<i64> {
        #[cfg(debug_assertions)]
        if crate::thread::progress::cpus_are_idle() {
            return Some(1);
        }
        let (file, cpus) = self.0.as_ref()?;
        let mut text = [0; 64];
        let len = file.read_at(&mut text, 0).ok()?;
        Some(cpus - ready_threads(&text[..len])?)
    }
}

/// The threads that run or are ready to, in the text of /proc/loadavg.
fn ready_threads(text: &[u8]) -> Option<i64> {
    let field = text.split(|byte| *byte == b' ').nth(3)?;
    let ready = field.split(|byte| *byte == b'/').next()?;
    str::from_utf8(ready).ok()?.parse().ok()
}

/// How many CPUs a list such as `0-3,8` has.
fn count_cpus(list: &str) -> Option<i64> {
    let of_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<i64>().ok()? - first.parse::<i64>().ok()? + 1)
    };
    list.split(',').map(of_range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_pipeline_works_on_what_workers_are_too_few_for() {
        let found = Polled::packets(8, true);
        let with = |workers| Need {
            workers,
            ..Need::default()
        };
        for polled in [found, Polled::Full] {
            assert_eq!(with(0).left_to_owner(polled, 3), 3, "nobody helps");
            assert_eq!(
                with(2).left_to_owner(polled, 2),
                0,
                "each has one to go on with"
            );
        }
        assert_eq!(with(2).left_to_owner(found, 3), 0, "more can be taken");
        assert_eq!(with(2).left_to_owner(Polled::Full, 3), 1);
    }

    #[test]
    fn a_worker_leaves_where_cpus_are_needed_or_one_thread_would_do() {
        for left_some in [false, true] {
            assert_eq!(Reason::of(None, left_some), Some(Reason::Crowded));
            assert_eq!(Reason::of(Some(-1), left_some), Some(Reason::Crowded));
            assert_eq!(Reason::of(Some(1), left_some), None);
        }
        let (stays, spare) = (Reason::of(Some(0), true), Reason::of(Some(0), false));
        assert_eq!((stays, spare), (None, Some(Reason::Spare)));
        let crowded = Some(Reason::Crowded);
        for (looks, says) in [
            ([None, spare, crowded, None], None),
            ([None, spare, crowded, spare], Some(Reason::Spare)),
            ([spare, crowded, crowded, None], Some(Reason::Spare)),
            ([None, crowded, crowded, crowded], Some(Reason::Crowded)),
        ] {
            assert_eq!(reason(&looks), says, "{looks:?}");
        }
    }

    #[test]
    fn cpus_and_ready_threads_are_counted() {
        for (list, cpus) in [("0", 1), ("0-1", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(count_cpus(list), Some(cpus));
        }
        assert_eq!(count_cpus("none"), None);
        assert_eq!(ready_threads(b"0.20 0.18 0.12 3/412 1234\n"), Some(3));
        assert_eq!(ready_threads(b""), None);
        let load = CpuLoad::open();
        assert!(load.idle_cpus().is_some(), "this kernel tells");
    }
}
