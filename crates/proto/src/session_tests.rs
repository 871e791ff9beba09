use std::sync::Arc;
use std::time::Duration;

use super::*;

fn session(initiator: bool) -> Session {
    let key = || Key::new(&[7; 32]);
    let ends = SessionEnds {
        local_index: 1,
        remote_index: 2,
        initiator,
        born: Time(1000),
    };
    Session::new(ends, key(), key())
}

fn at(seconds: u64) -> Time {
    Time(1000) + Duration::from_secs(seconds)
}

#[test]
fn no_counter_is_handed_out_twice_to_many_threads() {
    let session = Arc::new(session(true));
    let threads: Vec<_> = (1..=4)
        .map(|n| {
            let session = Arc::clone(&session);
            std::thread::spawn(move || {
                let take = |_| session.reserve(at(0), n).unwrap();
                let firsts = (0..20_000).map(take);
                firsts.map(|first| (first, n)).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut ranges: Vec<_> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    ranges.sort_unstable();
    let mut next = 0;
    for (first, n) in ranges {
        assert_eq!(first, next);
        next += u64::from(n);
    }
    assert_eq!(next, 20_000 * (1 + 2 + 3 + 4));
}

#[test]
fn the_counter_stops_at_its_limit_however_many_threads_push() {
    let session = Arc::new(session(true));
    session
        .counter
        .store(REJECT_AFTER_MESSAGES - 10, Ordering::Relaxed);
    assert_eq!(session.reserve(at(0), 11), Err(Expired));
    assert_eq!(session.reserve(at(0), 7), Ok(REJECT_AFTER_MESSAGES - 10));
    assert_eq!(session.reserve(at(0), 4), Err(Expired));
    assert_eq!(session.reserve(at(0), 3), Ok(REJECT_AFTER_MESSAGES - 3));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let session = Arc::clone(&session);
            std::thread::spawn(move || {
                for _ in 0..10_000 {
                    assert_eq!(session.reserve(at(0), u32::MAX), Err(Expired));
                    assert_eq!(session.reserve(at(0), 1), Err(Expired));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(session.sent(), REJECT_AFTER_MESSAGES);
}

#[test]
fn a_session_of_180_seconds_neither_sends_nor_receives() {
    let session = session(true);
    assert!(session.reserve(at(179), 1).is_ok() && session.may_receive(at(179)));
    assert!(session.reserve(at(180), 1).is_err() && !session.may_receive(at(180)));
}

#[test]
fn a_retired_session_receives_only() {
    let session = session(true);
    session.retire();
    assert!(session.reserve(at(0), 1).is_err() && session.may_receive(at(0)));
}

#[test]
fn only_the_initiator_rekeys_by_time_and_both_by_messages() {
    let (ours, theirs) = (session(true), session(false));
    assert!(!ours.is_stale_for_sending(at(119)) && ours.is_stale_for_sending(at(120)));
    assert!(!theirs.is_stale_for_sending(at(179)));
    assert!(!ours.enters_last_minute(at(164)) && ours.enters_last_minute(at(165)));
    assert!(!ours.enters_last_minute(at(166)), "acts upon it once");
    assert!(!theirs.enters_last_minute(at(166)));
    theirs
        .counter
        .store(REKEY_AFTER_MESSAGES - 1, Ordering::Relaxed);
    assert!(!theirs.is_stale_for_sending(at(0)));
    theirs.reserve(at(0), 1).unwrap();
    assert!(theirs.is_stale_for_sending(at(0)));
}

#[test]
fn threads_that_commit_the_same_counters_find_each_fresh_once() {
    let session = Arc::new(session(true));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let session = Arc::clone(&session);
            std::thread::spawn(move || {
                let fresh = |counter: &u64| session.window().commit(*counter);
                (0..8192).filter(fresh).count()
            })
        })
        .collect();
    let fresh = threads.into_iter().map(|thread| thread.join().unwrap());
    assert_eq!(fresh.sum::<usize>(), 8192);
}
