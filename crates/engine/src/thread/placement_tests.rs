use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;

/// A thread with its own affinity and clock.
struct Walk {
    placement: Placement,
    now: Time,
    /// How long it had no CPU, for all that the kernel says.
    waited: Duration,
}

impl Walk {
    fn new() -> Self {
        let walk = Self {
            placement: Placement::new(true),
            now: Time::default(),
            waited: Duration::ZERO,
        };
        let file = memfd_create("schedstat", MemfdFlags::CLOEXEC).expect("a file in memory");
        let set = walk.placement.stayer.schedstat.set(Some(file.into()));
        set.expect("nothing was open");
        walk
    }

    /// A poll after `pause`, for a packet that waited for `wait` on `cpu`.
    fn late_poll(&mut self, pause: Duration, cpu: usize, wait: Duration) {
        self.now = self.now + pause;
        let at = self.now;
        self.now = self.now + wait;
        let rested = self.placement.poll_begins(self.now);
        self.placement.processed(1);
        if rested {
            self.placement.arrived(Arrival { cpu, at });
        }
        self.poll_ended();
    }

    fn poll_ended(&mut self) {
        if let Some(Some(file)) = self.placement.stayer.schedstat.get() {
            let line = format!("123456789 {} 42\n", self.waited.as_nanos());
            file.write_all_at(line.as_bytes(), 0).expect("written");
        }
        self.placement.poll_ended(self.now);
    }

    /// A load for so long, with one part of the time in `one_in` spent waiting for a CPU.
    fn load(&mut self, time: Duration, one_in: u32) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + NONE;
            self.waited += NONE / one_in;
            self.placement.poll_begins(self.now);
            self.placement.processed(1);
            self.poll_ended();
        }
    }

    fn poll(&mut self, pause: Duration, cpu: usize) {
        self.late_poll(pause, cpu, Duration::from_micros(10));
    }

    /// Packets of sparse flows from `cpu` until the thread is there, and how many it took.
    fn follow(&mut self, cpu: usize) -> u32 {
        let mut packets = 0;
        while affinity() != only(cpu) {
            assert!(packets <= MAX_PATTERN, "that is a pattern");
            self.poll(PAUSE, cpu);
            packets += 1;
        }
        packets
    }
}

/// Runs `test` on a thread of its own with what it may run on, if that is two CPUs at least.
fn walk(test: impl FnOnce(Walk, CpuSet, [usize; 2]) + Send) {
    let allowed = sched_getaffinity(None).expect("the CPUs of this process");
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let (Some(first), Some(second)) = (cpus.next(), cpus.next()) else {
        println!("there is one CPU only: nowhere to go");
        return;
    };
    std::thread::scope(|scope| {
        let test = scope.spawn(|| test(Walk::new(), allowed, [first, second]));
        test.join().expect("the test passes");
    });
}

fn affinity() -> CpuSet {
    sched_getaffinity(None).expect("the CPUs of this thread")
}

const PAUSE: Duration = Duration::from_millis(2);
const NONE: Duration = Duration::from_micros(20);
/// A thread that waits for no CPU at all.
const NEVER: u32 = u32::MAX;

#[test]
fn a_thread_follows_sparse_packets_once_they_are_a_pattern() {
    walk(|mut walk, allowed, cpus| {
        for cpu in [cpus[1], cpus[0], cpus[1]] {
            walk.placement.leave();
            for n in 1..=PATTERN {
                assert!(affinity() != only(cpu), "after {n} packets");
                walk.poll(PAUSE, cpu);
                // An answer is no packet after a rest.
                walk.poll(NONE, cpus[n as usize % 2]);
            }
            assert!(affinity() == only(cpu));
            assert_eq!(sched_getcpu(), cpu);
            assert!(walk.placement.follows());
        }
        walk.placement.leave();
        assert!(affinity() == allowed);
    });
}

#[test]
fn a_second_move_takes_longer_and_by_chance() {
    walk(|mut walk, _, cpus| {
        walk.follow(cpus[0]);
        let took: Vec<u32> = (1..200)
            .map(|n| {
                walk.now =
                    walk.now + Duration::from_nanos(u64::try_from(n).expect("a number") * 7919);
                walk.follow(cpus[n % 2])
            })
            .collect();
        assert_eq!(took.iter().min(), Some(&PATTERN));
        assert_eq!(took.iter().max(), Some(&(PATTERN + CHANGE * PATTERN - 1)));
    });
}

#[test]
fn a_thread_stays_when_packets_alternate_between_two_cpus() {
    walk(|mut walk, allowed, cpus| {
        let swings = (SWINGS * PATTERN) as usize;
        // The first two are no swing yet.
        for n in 0..swings + 2 {
            assert!(affinity() == allowed, "after {n} packets");
            walk.poll(PAUSE, cpus[n % 2]);
        }
        let cpu = cpus[(swings + 1) % 2];
        assert!(affinity() == only(cpu) && walk.placement.follows());
        // They may be two applications' after all: one place is as good as the other.
        for n in 0..10 * swings {
            walk.poll(PAUSE, cpus[n % 2]);
            assert!(affinity() == only(cpu));
        }
        // Where they wait for too long they are not followed at once again.
        for n in 0..TOO_LATE as usize {
            assert!(affinity() == only(cpu), "after {n} in a row");
            walk.late_poll(PAUSE, cpus[n % 2], PROMPT + NONE);
        }
        for n in 0..3 * swings {
            assert!(affinity() == allowed, "after {n} packets");
            walk.poll(PAUSE, cpus[n % 2]);
        }
    });
}

#[test]
fn packets_from_everywhere_are_no_reason_to_go_anywhere() {
    walk(|mut walk, allowed, cpus| {
        for n in 0..10 * PATTERN as usize {
            walk.poll(PAUSE, cpus[n / 2 % 2]);
        }
        assert!(affinity() == allowed);
    });
}

#[test]
fn after_a_load_following_needs_a_new_pattern() {
    walk(|mut walk, allowed, cpus| {
        assert_eq!(walk.follow(cpus[1]), PATTERN);
        for n in 2..LOAD {
            walk.poll(NONE, cpus[1]);
            assert!(walk.placement.follows(), "poll {n}");
        }
        for _ in 0..100 {
            walk.poll(NONE, cpus[1]);
            assert!(walk.placement.is_loaded() && !walk.placement.follows());
            assert!(affinity() == allowed);
        }
        assert_eq!(walk.follow(cpus[1]), PATTERN);
        assert!(!walk.placement.is_loaded());
        // So it is with datagrams that carry nothing.
        for _ in 1..LOAD {
            walk.now = walk.now + NONE;
            assert!(!walk.placement.poll_begins(walk.now));
            walk.placement.processed(0);
        }
        assert!(walk.placement.is_loaded() && affinity() == allowed);
        // A thread that had no CPU for a while is loaded, too.
        for _ in 0..100 {
            walk.now = walk.now + PAUSE;
            assert!(walk.placement.poll_begins(walk.now));
            walk.placement.processed(LOAD);
            let at = walk.now;
            walk.placement.arrived(Arrival { cpu: cpus[1], at });
            walk.waited += PAUSE;
            walk.poll_ended();
            assert!(affinity() == allowed);
        }
    });
}

#[test]
fn a_busy_cpu_is_left_and_then_followed_less_easily() {
    walk(|mut walk, allowed, cpus| {
        let late = PROMPT + NONE;
        let mut pattern = PATTERN;
        for _ in 0..8 {
            assert_eq!(walk.follow(cpus[1]), pattern);
            // Now and then a packet may wait.
            for _ in 0..3 {
                walk.late_poll(PAUSE, cpus[1], late);
                for _ in 0..LATE {
                    walk.poll(PAUSE, cpus[1]);
                }
            }
            for n in 0..TOO_LATE {
                assert!(affinity() == only(cpus[1]), "after {n} in a row");
                walk.late_poll(PAUSE, cpus[1], late);
            }
            assert!(affinity() == allowed);
            pattern = (4 * pattern).min(MAX_PATTERN);
        }
        assert_eq!(pattern, MAX_PATTERN);
        for _ in 0..16 * MAX_PATTERN {
            walk.poll(PAUSE, cpus[1]);
        }
        walk.placement.leave();
        assert_eq!(walk.follow(cpus[0]), PATTERN);
    });
}

#[test]
fn what_somebody_else_decides_about_the_thread_holds() {
    walk(|mut walk, allowed, cpus| {
        // 1. before it goes anywhere
        sched_setaffinity(None, &only(cpus[0])).expect("one of the CPUs");
        for _ in 0..2 * PATTERN {
            walk.poll(PAUSE, cpus[1]);
        }
        assert!(affinity() == only(cpus[0]));
        assert!(!walk.placement.follows());
        walk.load(2 * STAY, NEVER);
        assert!(affinity() == only(cpus[0]));
        // 2. while it is bound
        sched_setaffinity(None, &allowed).expect("as before");
        walk.follow(cpus[1]);
        sched_setaffinity(None, &only(cpus[0])).expect("one of the CPUs");
        walk.placement.leave();
        assert!(affinity() == only(cpus[0]));
        // 3. while it stays
        sched_setaffinity(None, &allowed).expect("as before");
        walk.load(STAY / 2, NEVER);
        let other = cpus[usize::from(affinity() == only(cpus[0]))];
        sched_setaffinity(None, &only(other)).expect("one of the CPUs");
        walk.load(2 * STAY, NEVER);
        assert!(affinity() == only(other));
    });
}

#[test]
fn cpus_that_somebody_chose_are_all_that_a_thread_gets_again() {
    walk(|mut walk, allowed, cpus| {
        let mut chosen = only(cpus[0]);
        chosen.set(cpus[1]);
        if chosen == allowed {
            println!("there are two CPUs only: nothing to choose from");
            return;
        }
        sched_setaffinity(None, &chosen).expect("two of the CPUs");
        walk.follow(cpus[1]);
        walk.placement.leave();
        assert!(affinity() == chosen);
        walk.load(2 * WINDOW, NEVER);
        assert_eq!(affinity().count(), 1);
        walk.load(2 * WINDOW, 1);
        assert!(affinity() == chosen);
    });
}

#[test]
fn a_released_thread_may_run_on_cpus_that_came_meanwhile() {
    walk(|mut walk, allowed, cpus| {
        let mut any = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| any.set(cpu));
        sched_setaffinity(None, &any).expect("some of them exist");
        if affinity() != allowed {
            println!("somebody chose the CPUs of these tests");
            return;
        }
        for _ in 0..2 {
            walk.follow(cpus[1]);
            let bound = walk.placement.bound().expect("it follows");
            assert!(bound.before == any);
            walk.placement.leave();
            assert!(affinity() == allowed);
        }
    });
}

#[test]
fn a_cpu_that_does_not_exist_is_ignored() {
    walk(|mut walk, allowed, _| {
        for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            for _ in 0..2 * PATTERN {
                walk.poll(PAUSE, cpu);
            }
            assert!(affinity() == allowed);
        }
    });
}

#[test]
fn a_cpu_where_a_thread_may_not_run_is_tried_less_and_less() {
    walk(|mut walk, allowed, cpus| {
        let mut pattern = PATTERN;
        while pattern < MAX_PATTERN {
            for n in 0..pattern {
                assert_eq!(walk.placement.follower.from.1, n);
                walk.poll(PAUSE, CpuSet::MAX_CPU - 1);
            }
            assert!(affinity() == allowed);
            pattern = (4 * pattern).min(MAX_PATTERN);
            assert_eq!(walk.placement.follower.pattern, pattern);
        }
        // So it is with what comes from others, as after a CPU that was too busy.
        assert_eq!(walk.follow(cpus[1]), pattern);
    });
}

#[test]
fn under_load_a_thread_stays_unless_it_has_to_wait() {
    walk(|mut walk, allowed, _| {
        for _ in 0..3 {
            // It waits too often to begin with, but not too often to go on.
            walk.load(STAY, EASY - 1);
            assert!(affinity() == allowed);
            walk.load(2 * WINDOW, NEVER);
            assert_eq!(affinity().count(), 1);
            assert!(affinity() == only(sched_getcpu()) && !walk.placement.follows());
            walk.load(STAY / 4, EASY - 1);
            assert_eq!(affinity().count(), 1);
            walk.load(2 * WINDOW, CROWDED - 1);
            assert!(affinity() == allowed);
            // The scheduler has some time to find it another place.
            walk.load(FREE / 4, NEVER);
            assert!(affinity() == allowed);
        }
    });
}

#[test]
fn however_well_it_is_the_scheduler_gets_its_chance() {
    walk(|mut walk, allowed, _| {
        let until = |walk: &mut Walk, free: bool| {
            let start = walk.now;
            while (affinity() == allowed) != free {
                assert!(walk.now.since(start) <= 2 * STAY);
                walk.load(NONE, NEVER);
            }
            walk.now.since(start)
        };
        until(&mut walk, false);
        for _ in 0..5 {
            let stayed = until(&mut walk, true);
            assert!(stayed >= STAY && stayed < STAY + 2 * WINDOW, "{stayed:?}");
            let free = until(&mut walk, false);
            assert!(free >= FREE && free < FREE + 2 * WINDOW, "{free:?}");
        }
    });
}

#[test]
fn after_the_load_lone_packets_are_followed_as_ever() {
    walk(|mut walk, allowed, cpus| {
        for cpu in [cpus[0], cpus[1], cpus[0]] {
            walk.load(4 * WINDOW, NEVER);
            assert_eq!(affinity().count(), 1);
            walk.poll(WINDOW, cpu);
            assert!(affinity() == allowed, "the load is over");
            assert_eq!(walk.follow(cpu), PATTERN - 1);
            // So it is where it stayed on the very CPU, and the pause is shorter.
            walk.load(4 * WINDOW, NEVER);
            let Some(stayed) = cpus.into_iter().find(|cpu| affinity() == only(*cpu)) else {
                return;
            };
            for _ in 0..PATTERN {
                assert!(!walk.placement.follows());
                walk.poll(PAUSE, stayed);
            }
            assert!(walk.placement.follows() && affinity() == only(stayed));
        }
    });
}

#[test]
fn a_load_may_pause_but_not_become_a_trickle() {
    walk(|mut walk, allowed, cpus| {
        walk.load(4 * WINDOW, NEVER);
        for _ in 0..10 {
            walk.poll(PAUSE, cpus[0]);
            for _ in 0..LOAD {
                walk.load(NONE, NEVER);
            }
            assert_eq!(affinity().count(), 1);
        }
        for cpu in cpus {
            walk.poll(PAUSE, cpu);
        }
        assert!(affinity() == allowed);
    });
}

#[test]
fn a_kernel_that_does_not_tell_is_left_to_decide() {
    for tells in ["", "1234", "1234 ", "1234 x 1\n"] {
        walk(|mut walk, allowed, _| {
            let file = memfd_create("schedstat", MemfdFlags::CLOEXEC).expect("a file in memory");
            let file = File::from(file);
            file.write_all_at(tells.as_bytes(), 0).expect("written");
            walk.placement = Placement::new(true);
            let set = walk.placement.stayer.schedstat.set(Some(file));
            set.expect("nothing was open");
            assert_eq!(walk.placement.stayer.waited(), None);
            walk.placement = Placement::new(true);
            walk.placement
                .stayer
                .schedstat
                .set(None)
                .expect("nothing was open");
            walk.load(2 * STAY, NEVER);
            assert!(affinity() == allowed);
        });
    }
}

#[test]
fn the_kernel_tells_a_thread_how_long_it_waited() {
    walk(|walk, _, cpus| {
        if Stayer::new().waited().is_none() {
            println!("this kernel does not tell");
            return;
        }
        let (both, done) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sched_setaffinity(None, &only(cpus[1])).expect("one of the CPUs");
                both.wait();
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            sched_setaffinity(None, &only(cpus[1])).expect("one of the CPUs");
            let stayer = Stayer::new();
            let before = stayer.waited().expect("it just did");
            both.wait();
            let start = Instant::now();
            let mut waited = Duration::ZERO;
            while waited < Duration::from_millis(5) && start.elapsed() < Duration::from_secs(20) {
                waited = stayer.waited().expect("it just did") - before;
            }
            done.store(true, Ordering::Relaxed);
            assert!(waited >= Duration::from_millis(5), "{waited:?}");
        });
        drop(walk);
    });
}
