use super::*;

const START: Time = Time(1_000_000_000_000);

fn rates(rates: &[u64]) -> RxQueueRates {
    let rate = |a_second: &u64| Rate {
        a_second: *a_second,
        ..Rate::default()
    };
    RxQueueRates {
        rates: rates.iter().map(rate).collect(),
        since: START,
    }
}

#[test]
fn a_rate_follows_what_is_done_and_forgets() {
    let (mut rate, mut done, mut now) = (Rate::default(), 0, START);
    let mut second = |rate: &mut Rate, work: u64| {
        rate.observe(now, done);
        done += work;
        now = now + std::time::Duration::from_secs(1);
        rate.observe(now, done);
    };
    second(&mut rate, 1000);
    assert_eq!(rate.a_second, 1000);
    (0..29).for_each(|_| second(&mut rate, 1000));
    assert_eq!(rate.a_second, 1000);
    (0..20).for_each(|_| second(&mut rate, 0));
    assert!((500..560).contains(&rate.a_second), "{}", rate.a_second);
    (0..100).for_each(|_| second(&mut rate, 0));
    assert!(rate.a_second < 50, "{}", rate.a_second);
}

#[test]
fn looks_that_follow_closely_are_one() {
    let mut rate = Rate::default();
    for (millis, done) in [(0, 0), (10, 1_000_000), (990, 5_000_000), (2000, 8_000_000)] {
        rate.observe(START + std::time::Duration::from_millis(millis), done);
    }
    assert_eq!(rate.a_second, 4_000_000);
}

#[test]
fn a_new_peer_goes_where_least_is_done_or_expected() {
    const M: u64 = WORTH_IT;
    let mut rx_queues = rates(&[8 * M, 0, 3 * M, 9 * M]);
    let come = |work| {
        let least = rx_queues.for_new_peer();
        rx_queues.add(least.expect("it matters"), work);
        least
    };
    let found = [4 * M, 2 * M, M, 0].map(come);
    assert_eq!(found, [1, 2, 1, 1].map(Some));
    assert_eq!(rates(&[M - 1, 0]).for_new_peer(), None, "any will do");
}
