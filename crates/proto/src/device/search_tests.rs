use super::*;

const TOP: u16 = 1420;

fn search() -> Search {
    let ip = |text: &str| text.parse().unwrap();
    let between = (ip("192.0.2.1"), ip("192.0.2.2"));
    Search::new(Time(0), between, TOP, Why::Packet)
}

/// What is between two hosts.
#[derive(Clone, Copy)]
struct Between {
    /// The longest packet that passes whole.
    limit: u16,
    /// Any packet passes in fragments.
    fragments: bool,
    /// The longest packet that the host itself sends whole.
    known: u16,
    rtt: Duration,
}

/// A path that loses longer packets, of which the host knows nothing.
fn black_hole(limit: u16) -> Between {
    Between {
        limit,
        fragments: false,
        known: TOP,
        rtt: Duration::from_millis(50),
    }
}

/// What a search finds there, whether fragments pass, and how long it takes.
fn find(path: Between, mut lost: impl FnMut(u16) -> bool) -> (Next, bool, Duration) {
    let (mut search, mut now) = (search(), Time(1));
    let mut next = Next::Round;
    for _ in 0..100 {
        if next != Next::Round {
            return (next, search.fragments, now.since(Time(1)));
        }
        search.begin_round(now);
        if search.round[0] > path.known && search.refused(path.known, TOP) {
            continue;
        }
        let mut answers = 0;
        for (at, len) in search.round.iter().enumerate() {
            if *len <= path.limit.min(path.known) && !lost(0) {
                answers |= 1 << at;
            }
        }
        if search.tries_fragments() && path.fragments && !lost(FRAGMENTED) {
            answers |= 1 << FRAGMENTED;
        }
        if answers != 0 {
            now = now + path.rtt;
            next = search.answered(now, answers);
        }
        if answers == 0 || next == Next::Wait {
            now = search.due;
            next = search.end_round(answers);
        }
    }
    panic!("it does not end");
}

#[test]
fn every_limit_is_found_within_a_step_and_two_seconds() {
    for limit in LEAST..TOP {
        for fragments in [false, true] {
            let path = Between {
                fragments,
                ..black_hole(limit)
            };
            let (next, passed, took) = find(path, |_| false);
            let Next::Found(Some(found)) = next else {
                panic!("{limit}: {next:?}");
            };
            assert!(found <= limit && limit - found < STEP, "{limit}: {found}");
            assert_eq!(passed, fragments, "{limit}");
            assert!(took < Duration::from_secs(2), "{limit}: {took:?}");
        }
    }
}

#[test]
fn what_the_host_knows_is_found_in_one_round() {
    for known in LEAST..TOP {
        let path = Between {
            fragments: true,
            known,
            ..black_hole(TOP)
        };
        let found = Next::Found(Some(known / STEP * STEP));
        assert_eq!(find(path, |_| false), (found, true, path.rtt));
    }
}

#[test]
fn a_path_may_take_less_than_the_host_knows() {
    let path = Between {
        known: 1300,
        ..black_hole(1250)
    };
    let (next, passed, _) = find(path, |_| false);
    assert_eq!((next, passed), (Next::Found(Some(1248)), false));
}

#[test]
fn fragments_count_as_lost_after_several_were() {
    let path = Between {
        fragments: true,
        known: 1300,
        ..black_hole(TOP)
    };
    for (lost, passed) in [(4, true), (5, false)] {
        let mut left = lost;
        let lose = |sequence| {
            left -= i32::from(sequence == FRAGMENTED);
            sequence == FRAGMENTED && left >= 0
        };
        let (next, fragments, _) = find(path, lose);
        assert_eq!((next, fragments), (Next::Found(Some(1296)), passed));
    }
}

#[test]
fn a_path_without_a_limit_takes_one_round() {
    let (next, _, took) = find(black_hole(TOP), |_| false);
    assert_eq!((next, took), (Next::Found(None), Duration::from_millis(50)));
}

#[test]
fn where_nobody_answers_nothing_is_found() {
    let (next, _, took) = find(black_hole(0), |_| false);
    assert_eq!((next, took), (Next::Unknown, PATIENCE * TRIES.into()));
    // Nor where the path is too narrow for IP, nor where only fragments pass.
    for fragments in [false, true] {
        for limit in [0, 200] {
            let path = Between {
                fragments,
                ..black_hole(limit)
            };
            assert_eq!(find(path, |_| false).0, Next::Unknown);
        }
    }
}

#[test]
fn a_lost_probe_makes_no_limit() {
    let mut count = 0;
    // The long one of the first round, and of the second.
    let lost = |_| {
        count += 1;
        count == 1 || count == 3
    };
    let (next, ..) = find(black_hole(TOP), lost);
    assert_eq!(next, Next::Found(None));
}

#[test]
fn rounds_are_bounded_and_in_order() {
    let mut search = search();
    search.bad = Some(TOP);
    search.begin_round(Time(1));
    assert!(search.round.len() <= MAX_PROBES);
    assert!(search.round.is_sorted_by(|a, b| a > b));
    assert_eq!(search.round.last(), Some(&SHORT));
}
