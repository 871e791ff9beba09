use super::*;

const NOW: Time = Time(1_000_000_000_000);

/// That of a peer which moves from 0, unless the test has others.
fn index(rx_queue: u8) -> u32 {
    index_of(0, rx_queue)
}

fn index_of(from: u8, to: u8) -> u32 {
    u32::from_le_bytes([1, 2, from, to])
}

fn begin(table: &RxQueueTable, from: u8, to: u8) -> bool {
    let mut state = table.lock();
    let may = state.may_begin(NOW) && state.may_lead(from.into(), to.into());
    if may {
        state.begin(Move {
            index: index_of(from, to),
            peer: index_of(from, to),
            from,
            until: None,
            work: 0,
        });
    }
    may
}

#[test]
fn no_rx_queue_waits_for_one_that_may_wait_itself() {
    let table = RxQueueTable::new();
    table.set_count(4, NOW);
    assert!(begin(&table, 0, 1));
    assert!(!begin(&table, 1, 2), "receive queue 1 may wait");
    assert!(!begin(&table, 2, 0), "receive queue 0 is waited for");
    assert!(begin(&table, 0, 3) && begin(&table, 2, 1));
    let moving = table.moving(index(1), NOW);
    assert_eq!(moving, Some(Moving { from: 0, to: 1 }));
    table.moved(index(1));
    assert_eq!(table.moving(index(1), NOW), None);
    table.moved(index(1));
    assert!(!begin(&table, 1, 3), "the other one still moves there");
    table.moved(index_of(2, 1));
    assert!(begin(&table, 1, 3));
}

#[test]
fn the_number_of_rx_queues_does_not_change_while_a_peer_moves() {
    let table = RxQueueTable::new();
    table.set_count(2, NOW);
    assert!(begin(&table, 0, 1));
    assert!(!table.begin_change(NOW));
    table.moved(index(1));
    assert!(!begin(&table, 0, 1), "the number is about to change");
    assert!(table.begin_change(NOW));
    let later = NOW + 2 * CHANGE_WAITS;
    assert!(!table.lock().may_begin(later), "the number changes");
    table.set_count(4, NOW);
    assert!(table.lock().may_begin(later));
    assert_eq!(table.count(), 4);
}

/// Nothing that was received on the old session waits anywhere by then.
#[test]
fn a_move_is_over_when_the_session_before_it_has_expired() {
    let table = RxQueueTable::new();
    table.set_count(2, NOW);
    assert!(begin(&table, 0, 1));
    assert!(table.lock().has_session(index(1), Some(NOW)));
    let expired = NOW + REJECT_AFTER_TIME;
    assert!(table.moving(index(1), expired).is_some());
    assert_eq!(table.moving(index(1), expired + COMMITTED), None);
    assert!(table.begin_change(expired + COMMITTED));
}

/// A peer that only sends keepalives does not keep the number of receive queues as it is for long.
#[test]
fn a_move_is_over_when_nothing_more_can_be_under_way() {
    let table = RxQueueTable::new();
    table.set_count(2, NOW);
    assert!(begin(&table, 0, 1));
    assert!(table.lock().has_session(index(1), Some(NOW)));
    table.heard(index(1), NOW);
    let arrived = NOW + UNDER_WAY;
    table.heard(index(1), NOW + CHANGE_WAITS);
    assert!(!table.begin_change(NOW + CHANGE_WAITS));
    assert!(table.begin_change(arrived));
}

#[test]
fn a_session_without_one_before_it_does_not_move() {
    let table = RxQueueTable::new();
    table.set_count(2, NOW);
    assert!(begin(&table, 0, 1));
    assert!(!table.lock().has_session(index(1), None));
    assert!(table.begin_change(NOW));
}

/// Another process may have had another number of receive queues.
#[test]
fn of_moves_that_contradict_each_other_one_is_kept() {
    let table = RxQueueTable::new();
    table.set_count(8, NOW);
    assert!(begin(&table, 0, 1) && begin(&table, 2, 7) && begin(&table, 5, 6));
    table.set_count(2, NOW);
    let indices = [index_of(0, 1), index_of(2, 7), index_of(5, 6)];
    let left = indices.map(|index| table.moving(index, NOW));
    let moving = Some(Moving { from: 0, to: 1 });
    assert_eq!(left, [moving, moving, None]);
}
