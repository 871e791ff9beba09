use super::*;

#[test]
fn every_limit_has_the_value_that_the_whitepaper_spells_out() {
    // 6.1, the table.
    assert_eq!(REKEY_AFTER_MESSAGES, 1_152_921_504_606_846_976); // 2^60
    assert_eq!(REJECT_AFTER_MESSAGES, 18_446_744_073_709_543_423); // 2^64 - 2^13 - 1
    assert_eq!(u128::from(REJECT_AFTER_MESSAGES), (1 << 64) - (1 << 13) - 1);
    assert_eq!(REKEY_AFTER_TIME.as_secs(), 120);
    assert_eq!(REJECT_AFTER_TIME.as_secs(), 180);
    assert_eq!(REKEY_ATTEMPT_TIME.as_secs(), 90);
    assert_eq!(REKEY_TIMEOUT.as_secs(), 5);
    assert_eq!(KEEPALIVE_TIMEOUT.as_secs(), 10);
    // Limits that follow from it.
    assert_eq!(REKEY_JITTER.as_millis(), 333);
    assert_eq!(NO_ANSWER_TIMEOUT.as_secs(), 15);
    assert_eq!(REKEY_ON_RECEIVE_TIME.as_secs(), 165);
    assert_eq!(ZERO_KEYS_AFTER_TIME.as_secs(), 540);
    assert_eq!(COOKIE_REFRESH_TIME.as_secs(), 120);
    // Limits that it leaves open.
    assert_eq!(INITIATION_INTERVAL.as_millis(), 20);
    assert_eq!(TIMESTAMP_GRAIN, 16_777_216);
    assert_eq!((LIMITER_RATE, LIMITER_BURST), (20, 5));
    assert_eq!(LIMITER_SOURCES, 16_384);
    assert_eq!((COOKIE_RATE, COOKIE_BURST), (2, 10));
    assert_eq!(COOKIE_RATE_OF_ALL, 50_000);
    assert_eq!(PROVEN_RATE_OF_ALL, 4000);
    assert_eq!(RESPONSES_EXPECTED, 3);
    assert_eq!((KNOWN_RATE, KNOWN_RATE_OF_ALL), (1, 1000));
    assert_eq!(UNDER_LOAD_TIME.as_secs(), 1);
    assert_eq!(CALLS_PER_SECOND, 5000);
    assert_eq!(MAX_QUOTAS_REMEMBERED, 65_536);
    assert_eq!(WINDOW_PACKETS, 8192);
    assert_eq!((MAX_CANDIDATES, STAGGER.as_millis()), (8, 250));
    assert_eq!(MAX_PEERS, 1_048_576);
}
