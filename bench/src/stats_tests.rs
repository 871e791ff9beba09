use super::*;

#[test]
fn a_summary_tells_the_range_around_the_median() {
    let summary = summary(&[9.0, 10.0, 12.0]).unwrap();
    assert_eq!(
        (summary.median, summary.min, summary.max),
        (10.0, 9.0, 12.0)
    );
    assert!((summary.spread - 0.15).abs() < 1e-9);
}

#[test]
fn a_ratio_brackets_its_value_and_is_the_same_every_time() {
    let pairs = [
        (10.0, 5.0),
        (11.0, 5.0),
        (9.0, 5.0),
        (10.0, 4.0),
        (12.0, 6.0),
    ];
    let once = ratio(&pairs).unwrap();
    assert_eq!(once.value, 2.0);
    assert!(once.low <= once.value && once.value <= once.high);
    assert_eq!(once.interval_kind, IntervalKind::Bootstrap);
    assert_eq!((once.min, once.max), (1.8, 2.5));
    assert_eq!(ratio(&pairs), Some(once));
}

#[test]
fn nothing_is_no_ratio() {
    assert_eq!(ratio(&[]), None);
    assert_eq!(ratio(&[(1.0, 0.0)]), None);
}

#[test]
fn fewer_than_five_rounds_have_a_range_and_no_interval() {
    let pairs = [(10.0, 5.0), (11.0, 5.0), (9.0, 5.0), (10.0, 4.0)];
    let four = ratio(&pairs).unwrap();
    assert_eq!(four.interval_kind, IntervalKind::Range);
    assert_eq!((four.low, four.high), (1.8, 2.5));
}

#[test]
fn a_round_in_which_theirs_is_zero_has_no_ratio() {
    let ratio = ratio(&[(1.0, 0.0), (2.0, 1.0), (3.0, 1.0)]).unwrap();
    assert_eq!((ratio.low, ratio.high), (2.0, 3.0));
}
