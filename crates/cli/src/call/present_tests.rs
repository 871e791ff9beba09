use super::*;

#[test]
fn peers_are_called_once_each_time_the_address_comes() {
    let mut presence = Presence::Unknown;
    assert_eq!(presence.look(false), None);
    // Until it succeeds.
    for _ in 0..2 {
        assert_eq!(presence.look(true), Some(Whom::All));
    }
    presence = Presence::Called;
    assert_eq!(presence.look(true), None);
    // It went and came between two looks.
    presence.went();
    assert_eq!(presence.look(true), Some(Whom::All));
    presence = Presence::Called;
    assert_eq!(presence.look(false), None);
    assert_eq!(presence.look(true), Some(Whom::All));
}

#[test]
fn peers_that_came_before_this_was_started_are_left_alone() {
    let mut presence = Presence::Unknown;
    for _ in 0..2 {
        assert_eq!(presence.look(true), Some(Whom::Strangers));
    }
    presence.went();
    assert_eq!(presence.look(true), Some(Whom::All));
}
