use super::*;

#[test]
fn numeric_endpoints_need_no_resolver() {
    assert_eq!(
        resolve("192.0.2.1:51820").unwrap(),
        "192.0.2.1:51820".parse().unwrap()
    );
    assert_eq!(
        resolve("[2001:db8::1]:1").unwrap(),
        "[2001:db8::1]:1".parse().unwrap()
    );
    assert!(
        resolve("192.0.2.1")
            .unwrap_err()
            .to_string()
            .contains("192.0.2.1")
    );
    assert!(resolve("192.0.2.1:99999").is_err());
}

#[test]
fn retries_are_a_number_or_infinity() {
    assert_eq!(Retries::parse("3").unwrap(), Retries::Times(3));
    assert_eq!(Retries::parse("infinity").unwrap(), Retries::Forever);
    assert!(Retries::parse("often").is_err());
}

#[test]
fn a_signal_ends_the_wait_for_the_next_attempt() {
    let asked = std::cell::Cell::new(0);
    let interrupted = || {
        asked.set(asked.get() + 1);
        asked.get() > 3
    };
    // Longer than any test may take.
    wait(Duration::from_secs(3600), interrupted);
    assert_eq!(asked.get(), 4);
}
