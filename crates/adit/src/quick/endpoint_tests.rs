use super::*;

#[test]
fn numeric_endpoints_need_no_resolver() {
    let resolve = |endpoint| resolve(endpoint, Retries::Times(0), || false);
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
