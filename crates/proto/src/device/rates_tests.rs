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
fn a_peer_moves_only_where_there_is_clearly_less_to_do() {
    const M: u64 = 10 * WORTH_IT;
    for (rx_queues, from, work, to) in [
        (&[8 * M, 0][..], 0, 4 * M, Some(1)),
        // It would be the only one there, too.
        (&[8 * M, 0], 0, 8 * M, None),
        (&[8 * M, 3 * M], 0, 4 * M, Some(1)),
        (&[8 * M, 3 * M + 1], 0, 4 * M, None),
        (&[8 * M, 4 * M], 1, M, None),
        (&[8 * M, 5 * M, 2 * M, 4 * M], 0, M, Some(2)),
        // A receive queue that has little to do, and a peer that does little.
        (&[WORTH_IT - 1, 0], 0, WORTH_IT / 2, None),
        (&[8 * M, 0], 0, M / 1000, None),
    ] {
        assert_eq!(rates(rx_queues).better(from, work), to, "{rx_queues:?}");
    }
}

/// With the same work as before, the way back is closed.
#[test]
fn no_peer_goes_back() {
    let mut random = 1_u64;
    let mut any = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % 1000 * WORTH_IT
    };
    let mut moves = 0;
    for _ in 0..10_000 {
        let work = any();
        let mut rx_queues = rates(&[any() + work, any(), any(), any()]);
        if let Some(to) = rx_queues.better(0, work) {
            rx_queues.shift(Some(0), Some(to), work);
            assert_ne!(rx_queues.better(to, work), Some(0));
            moves += 1;
        }
    }
    assert!(moves > 1000, "{moves}");
}
