use rustix::thread::sched_getcpu;

use super::*;

/// A thread with its own affinity and clock.
struct Walk {
    placement: Placement,
    now: Time,
}

impl Walk {
    /// A turn after `pause`, for a packet that waited for `wait` on `cpu`.
    fn late_turn(&mut self, pause: Duration, cpu: usize, wait: Duration) {
        self.now = self.now + pause;
        let at = self.now;
        self.now = self.now + wait;
        let rested = self.placement.turn(self.now);
        self.placement.carried(1);
        if rested {
            self.placement.came_from(Origin { cpu, at });
        }
    }

    fn turn(&mut self, pause: Duration, cpu: usize) {
        self.late_turn(pause, cpu, Duration::from_micros(10));
    }

    /// Lone packets from `cpu` until the thread is there, and how many it took.
    fn follow(&mut self, cpu: usize) -> u32 {
        let mut packets = 0;
        while affinity() != only(cpu) {
            assert!(packets <= MAX_PATTERN, "that is a pattern");
            self.turn(PAUSE, cpu);
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
    let walk = Walk {
        placement: Placement::new(),
        now: Time::default(),
    };
    std::thread::scope(|scope| {
        let test = scope.spawn(|| test(walk, allowed, [first, second]));
        test.join().expect("the test passes");
    });
}

fn affinity() -> CpuSet {
    sched_getaffinity(None).expect("the CPUs of this thread")
}

const PAUSE: Duration = Duration::from_millis(2);
const NONE: Duration = Duration::from_micros(20);

#[test]
fn a_thread_goes_where_lone_packets_come_from_once_that_is_a_pattern() {
    walk(|mut walk, allowed, cpus| {
        for cpu in [cpus[1], cpus[0], cpus[1]] {
            for n in 1..=PATTERN {
                assert!(affinity() != only(cpu), "after {n} packets");
                walk.turn(PAUSE, cpu);
                // An answer is no packet after a rest.
                walk.turn(NONE, cpus[n as usize % 2]);
            }
            assert!(affinity() == only(cpu));
            assert_eq!(sched_getcpu(), cpu);
            assert!(walk.placement.is_bound());
        }
        walk.placement.leave();
        assert!(affinity() == allowed);
    });
}

#[test]
fn packets_from_everywhere_are_no_reason_to_go_anywhere() {
    walk(|mut walk, allowed, cpus| {
        for n in 0..10 * PATTERN as usize {
            walk.turn(PAUSE, cpus[n / 2 % 2]);
        }
        assert!(affinity() == allowed);
    });
}

#[test]
fn under_load_the_scheduler_decides_until_there_is_a_pattern_again() {
    walk(|mut walk, allowed, cpus| {
        assert_eq!(walk.follow(cpus[1]), PATTERN);
        for n in 2..LOAD {
            walk.turn(NONE, cpus[1]);
            assert!(walk.placement.is_bound(), "turn {n}");
        }
        for _ in 0..100 {
            walk.turn(NONE, cpus[1]);
            assert!(walk.placement.is_loaded() && !walk.placement.is_bound());
            assert!(affinity() == allowed);
        }
        assert_eq!(walk.follow(cpus[1]), PATTERN);
        assert!(!walk.placement.is_loaded());
        // So it is with datagrams that carry nothing.
        for _ in 1..LOAD {
            walk.now = walk.now + NONE;
            assert!(!walk.placement.turn(walk.now));
            walk.placement.carried(0);
        }
        assert!(walk.placement.is_loaded() && affinity() == allowed);
        // A thread that had no CPU for a while is loaded, too.
        for _ in 0..100 {
            walk.now = walk.now + PAUSE;
            assert!(walk.placement.turn(walk.now));
            walk.placement.carried(LOAD);
            let at = walk.now;
            walk.placement.came_from(Origin { cpu: cpus[1], at });
            assert!(affinity() == allowed);
        }
    });
}

#[test]
fn a_cpu_that_is_too_busy_is_left_and_followed_less_easily_until_it_proves_well() {
    walk(|mut walk, allowed, cpus| {
        let late = PROMPT + NONE;
        let mut pattern = PATTERN;
        for _ in 0..8 {
            assert_eq!(walk.follow(cpus[1]), pattern);
            // Now and then a packet may wait.
            for _ in 0..3 {
                walk.late_turn(PAUSE, cpus[1], late);
                for _ in 0..LATE {
                    walk.turn(PAUSE, cpus[1]);
                }
            }
            for n in 0..TOO_LATE {
                assert!(affinity() == only(cpus[1]), "after {n} in a row");
                walk.late_turn(PAUSE, cpus[1], late);
            }
            assert!(affinity() == allowed);
            pattern = (4 * pattern).min(MAX_PATTERN);
        }
        assert_eq!(pattern, MAX_PATTERN);
        for _ in 0..16 * MAX_PATTERN {
            walk.turn(PAUSE, cpus[1]);
        }
        assert_eq!(walk.follow(cpus[0]), PATTERN);
    });
}

#[test]
fn what_somebody_else_decides_about_the_thread_holds() {
    walk(|mut walk, allowed, cpus| {
        // 1. before it goes anywhere
        sched_setaffinity(None, &only(cpus[0])).expect("one of the CPUs");
        for _ in 0..2 * PATTERN {
            walk.turn(PAUSE, cpus[1]);
        }
        assert!(affinity() == only(cpus[0]));
        assert!(!walk.placement.is_bound());
        // 2. while it is bound
        sched_setaffinity(None, &allowed).expect("as before");
        walk.follow(cpus[1]);
        sched_setaffinity(None, &only(cpus[0])).expect("one of the CPUs");
        walk.placement.leave();
        assert!(affinity() == only(cpus[0]));
    });
}

#[test]
fn a_cpu_that_does_not_exist_is_ignored() {
    walk(|mut walk, allowed, _| {
        for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            for _ in 0..2 * PATTERN {
                walk.turn(PAUSE, cpu);
            }
            assert!(affinity() == allowed);
        }
    });
}
