use super::*;

/// Bytes a second.
const RATE: u64 = 1_250_000;
const SECOND: u64 = 1_000_000_000;

fn limit() -> Limit {
    let limit = Limit::default();
    limit.set(Some(RATE));
    limit
}

#[test]
fn without_a_limit_everything_passes_and_nothing_waits() {
    let limit = Limit::default();
    assert!(!limit.is_set());
    assert_eq!(limit.charge(Time(1), u64::MAX), None);
    assert!((0..10_000).all(|_| limit.admit(Time(1), 60_000)));
    limit.set(Some(0));
    assert_eq!(limit.charge(Time(1), u64::MAX), None);
}

#[test]
fn who_waits_as_told_gets_the_rate() {
    for bytes in [100, 1_400, 64_000] {
        let limit = limit();
        let (mut now, mut sent) = (Time(5 * SECOND), 0);
        let end = Time(65 * SECOND);
        while now < end {
            let wait = limit.charge(now, bytes).expect("a limit");
            sent += bytes;
            // A thread that sleeps wakes a little late.
            now = now
                + match wait {
                    Duration::ZERO => Duration::from_micros(1),
                    wait => wait + Duration::from_micros(300),
                };
        }
        let rate = sent as f64 / 60.0 / RATE as f64;
        assert!((0.99..1.01).contains(&rate), "{bytes}: {rate}");
    }
}

#[test]
fn a_sender_that_does_not_wait_gets_the_rate_and_no_more() {
    // Twice as fast, and a hundred times.
    for times in [2, 100] {
        let limit = limit();
        let gap = SECOND * 1_400 / (RATE * times);
        let packets = 60 * SECOND / gap;
        let passed = (0..packets).filter(|n| limit.admit(Time(5 * SECOND + n * gap), 1_400));
        let rate = (passed.count() * 1_400) as f64 / 60.0 / RATE as f64;
        assert!((0.99..1.02).contains(&rate), "{times}: {rate}");
    }
}

#[test]
fn below_the_rate_nothing_is_refused() {
    let limit = limit();
    let gap = SECOND * 1_400 * 11 / (RATE * 10);
    assert!((0..10_000).all(|n| limit.admit(Time(5 * SECOND + n * gap), 1_400)));
}

#[test]
fn small_packets_of_a_peer_at_its_limit_pass_more_often() {
    let limit = limit();
    let gap = SECOND * 1_400 / (RATE * 3 / 2);
    let mut refused = [0, 0];
    for n in 0..50_000 {
        let now = Time(5 * SECOND + n * gap);
        refused[0] += u32::from(!limit.admit(now, 1_400));
        refused[1] += u32::from(!limit.admit(now, 64));
    }
    assert!(refused[0] > 10_000, "{refused:?}");
    assert!(refused[1] < refused[0] / 10, "{refused:?}");
}

#[test]
fn a_rest_saves_little_unless_the_limit_caused_it() {
    let burst = |limit: &Limit, now: Time| {
        let passes = |_: &u32| limit.charge(now, 1_400) == Some(Duration::ZERO);
        (0..10_000).take_while(passes).count() as u64 * 1_400
    };
    let rested = limit();
    assert!(burst(&rested, Time(100 * SECOND)) <= RATE / 20);
    let stopped = limit();
    let now = Time(100 * SECOND);
    while stopped.charge(now, 1_400) == Some(Duration::ZERO) {}
    let share = burst(&stopped, now + Duration::from_millis(400));
    assert!((RATE * 3 / 10..=RATE * 4 / 10).contains(&share), "{share}");
}
