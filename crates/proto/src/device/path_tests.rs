use super::*;

const TOP: u16 = 1420;

fn search() -> Search {
    let ip = |text: &str| text.parse().unwrap();
    Search::new(Time(0), (ip("192.0.2.1"), ip("192.0.2.2")), TOP)
}

/// What a search finds on a path that takes packets of this length, and how long it takes; answers
/// come after `rtt`.
fn find(limit: u16, rtt: Duration, mut lost: impl FnMut() -> bool) -> (Next, Duration) {
    let (mut search, mut now) = (search(), Time(1));
    let mut next = Next::Round;
    for _ in 0..100 {
        if next != Next::Round {
            return (next, now.since(Time(1)));
        }
        search.begin_round(now);
        let mut answers = 0;
        for (at, len) in search.round.iter().enumerate() {
            if *len <= limit && !lost() {
                answers |= 1 << at;
            }
        }
        if answers != 0 {
            now = now + rtt;
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
        let (next, took) = find(limit, Duration::from_millis(50), || false);
        let Next::Found(Some(found)) = next else {
            panic!("{limit}: {next:?}");
        };
        assert!(found <= limit && limit - found < STEP, "{limit}: {found}");
        assert!(took < Duration::from_secs(2), "{limit}: {took:?}");
    }
}

#[test]
fn a_path_without_a_limit_takes_one_round() {
    let rtt = Duration::from_millis(50);
    assert_eq!(find(TOP, rtt, || false), (Next::Found(None), rtt));
}

#[test]
fn where_nobody_answers_nothing_is_found() {
    let (next, took) = find(0, Duration::ZERO, || false);
    assert_eq!((next, took), (Next::Unknown, PATIENCE * TRIES.into()));
    // Nor where the path is too narrow for IP.
    let (next, _) = find(200, Duration::ZERO, || false);
    assert_eq!(next, Next::Unknown);
}

#[test]
fn a_lost_probe_makes_no_limit() {
    let mut count = 0;
    // The long one of the first round, and of the second.
    let lost = || {
        count += 1;
        count == 1 || count == 3
    };
    let (next, _) = find(TOP, Duration::from_millis(1), lost);
    assert_eq!(next, Next::Found(None));
}

#[test]
fn rounds_are_bounded_and_in_order() {
    let mut search = search();
    search.bad = Some(TOP);
    search.begin_round(Time(1));
    assert!(search.round.len() <= usize::from(LENGTHS) + 1);
    assert!(search.round.is_sorted_by(|a, b| a > b));
    assert_eq!(search.round.last(), Some(&SHORT));
}
