use super::*;

fn at(millis: u64) -> Time {
    Time(1_000_000_000) + Duration::from_millis(millis)
}

fn ip(text: &str) -> SourceHost {
    SourceHost::of(text.parse().unwrap())
}

#[test]
fn a_source_has_a_burst_of_five_and_twenty_a_second() {
    let mut limiter = Limiter::<SourceHost>::default();
    let source = ip("192.0.2.1");
    let allowed = (0..10).filter(|_| limiter.allow(at(0), source)).count();
    assert_eq!(allowed, 5);
    assert!(!limiter.may_allow(at(49), source) && !limiter.allow(at(49), source));
    assert!(
        limiter.may_allow(at(50), source),
        "and a look takes nothing"
    );
    assert!(limiter.allow(at(50), source) && !limiter.allow(at(50), source));
    let over_ten_seconds = (0..10_000).filter(|ms| limiter.allow(at(50 + ms), source));
    assert!((195..=205).contains(&over_ten_seconds.count()));
    assert!(limiter.allow(at(60_000), source), "and recovers");
}

#[test]
fn one_source_costs_no_other_anything() {
    let mut limiter = Limiter::<SourceHost>::default();
    while limiter.allow(at(0), ip("192.0.2.1")) {}
    assert!(limiter.allow(at(0), ip("192.0.2.2")));
}

#[test]
fn an_ipv6_source_is_its_slash_64() {
    let mut limiter = Limiter::<SourceHost>::default();
    for i in 0..5 {
        assert!(limiter.allow(at(0), ip(&format!("2001:db8::{i}"))));
    }
    assert!(!limiter.allow(at(0), ip("2001:db8::ffff:0:0:1")));
    assert!(limiter.allow(at(0), ip("2001:db8:0:1::1")));
}

#[test]
fn a_million_sources_take_no_more_memory_than_the_bound() {
    let mut limiter = Limiter::<SourceHost>::default();
    for i in 0..1_000_000 {
        limiter.allow(at(u64::from(i) / 100), SourceHost::V4(i));
        assert!(limiter.young.len() <= LIMITER_SOURCES);
        assert!(limiter.old.len() <= LIMITER_SOURCES);
    }
}

#[test]
fn a_full_limiter_admits_known_sources_and_new_ones() {
    let mut limiter = Limiter::<SourceHost>::default();
    let [known, spent, new] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(ip);
    assert!(limiter.allow(at(0), known));
    while limiter.allow(at(0), spent) {}
    // From one routed /48.
    for i in 2..u128::try_from(LIMITER_SOURCES).unwrap() {
        let source = 0x2001_0db8 << 96 | i << 64;
        assert!(limiter.allow(at(0), SourceHost::V6(source >> 64)));
    }
    assert_eq!(limiter.young.len(), LIMITER_SOURCES);
    assert!(limiter.allow(at(0), new));
    assert!(limiter.allow(at(0), known));
    assert!(!limiter.allow(at(0), spent), "who is remembered is limited");
    assert!(limiter.young.len() <= LIMITER_SOURCES && limiter.old.len() <= LIMITER_SOURCES);
}
