use super::*;

#[test]
fn the_bar_is_empty_at_first_and_never_overflows() {
    assert_eq!(bar(0.0).matches('█').count(), 0);
    assert_eq!(bar(0.5).matches('█').count(), BAR / 2);
    assert_eq!(bar(1.7), "█".repeat(BAR));
}
