use super::*;

#[test]
fn keys_age_while_the_machine_sleeps() {
    let secs = Duration::from_secs;
    let mut clock = Clock::new();
    let (began, wall) = clock.last;
    let mut at = |awake, day| {
        clock
            .at(began + secs(awake), wall + secs(day))
            .elapsed()
            .as_secs()
    };
    assert_eq!(at(10, 10), 10);
    // It slept for 200 s.
    assert_eq!(at(11, 211), 211);
    assert_eq!(at(12, 212), 212);
    // The time of day was set back, and goes on.
    assert_eq!(at(13, 5), 213);
    assert_eq!(at(14, 6), 214);
    assert_eq!(Now::new(secs(3), secs(9)).since_epoch(), secs(9));
}
