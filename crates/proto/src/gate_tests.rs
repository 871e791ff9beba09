use super::*;
use crate::cookie::Stamper;
use crate::wire::{CookieReply, INITIATION_LEN};
use std::time::Duration;

const KEY: PublicKey = PublicKey([9; 32]);
/// Messages of a flood in a millisecond.
const PER_MS: u64 = 250;

fn at(millis: u64) -> Time {
    Time(1_000_000_000) + Duration::from_millis(millis)
}

fn from(source: u32) -> SocketAddr {
    (std::net::Ipv4Addr::from_bits(source), 51820).into()
}

/// A gate under load.
fn loaded() -> Gate {
    let gate = Gate::new();
    gate.set_key(&KEY, |seed| seed.fill(0x42));
    gate.load(at(0));
    gate
}

/// Without macs.
fn initiation() -> [u8; INITIATION_LEN] {
    let mut message = [3; INITIATION_LEN];
    message[..4].copy_from_slice(&[1, 0, 0, 0]);
    message[INITIATION_LEN - 32..].fill(0);
    message
}

/// With a right mac1.
fn stamped() -> [u8; INITIATION_LEN] {
    let mut message = initiation();
    Stamper::new(&KEY).stamp(at(0), &mut message);
    message
}

fn screen(gate: &Gate, millis: u64, source: u32, message: &[u8]) -> Screened {
    gate.screen(at(millis), from(source), message)
}

fn is_reply(screened: Screened) -> bool {
    matches!(screened, Screened::Reply(..))
}

fn refusal(screened: Screened) -> Option<Refusal> {
    match screened {
        Screened::Refused(outcome) | Screened::Exhausted(outcome) => outcome.refusal,
        _ => None,
    }
}

/// A sender that asks for a cookie at a time, and what it sends with it.
fn proven(gate: &Gate, millis: u64, source: u32) -> [u8; INITIATION_LEN] {
    let (mut stamper, mut message) = (Stamper::new(&KEY), initiation());
    stamper.stamp(at(millis), &mut message);
    let Screened::Reply(reply, _) = screen(gate, millis, source, &message) else {
        panic!("no reply")
    };
    let Some(Message::CookieReply(reply)) = Message::parse(&reply) else {
        panic!("no cookie reply")
    };
    let reply: CookieReply<'_> = reply;
    assert!(stamper.consume_reply(at(millis), reply));
    let mut message = initiation();
    stamper.stamp(at(millis), &mut message);
    message
}

#[test]
fn without_load_a_right_mac1_is_enough() {
    let gate = Gate::new();
    gate.set_key(&KEY, |seed| seed.fill(0x42));
    assert_eq!(screen(&gate, 0, 1, &stamped()), Screened::Passed);
    let wrong = refusal(screen(&gate, 0, 1, &initiation()));
    assert_eq!(wrong, Some(Refusal::BadMac1));
}

#[test]
fn under_load_a_cookie_proves_the_address() {
    let gate = loaded();
    let message = proven(&gate, 0, 1);
    assert_eq!(screen(&gate, 1, 1, &message), Screened::Proven);
    assert!(is_reply(screen(&gate, 1, 2, &message)), "not another's");
    let stats = &mut HandshakeStats::default();
    gate.replied(2, 1);
    gate.add_to(stats);
    let counted = (stats.initiations_received, stats.cookies_sent);
    assert_eq!((counted, stats.send_failed), ((2, 2), 1));
}

#[test]
fn a_flood_of_one_source_leaves_others_their_cookies() {
    let gate = loaded();
    let flood = (0..1000 * PER_MS).filter(|n| {
        // With and without a mac2, which is wrong.
        let mut message = stamped();
        message[INITIATION_LEN - 1] = u8::from(n % 2 == 0);
        is_reply(screen(&gate, n / PER_MS, 1, &message))
    });
    let replies = flood.count();
    assert!((11..=12).contains(&replies), "{replies} replies");
    let message = proven(&gate, 1000, 2);
    assert_eq!(screen(&gate, 1000, 2, &message), Screened::Proven);
}

#[test]
fn thousands_of_sources_leave_a_newcomer_its_cookie() {
    let gate = loaded();
    let message = stamped();
    // The first second is that of the attack's beginning: every source is new then.
    for n in 0..3000 * PER_MS {
        let (millis, forged) = (n / PER_MS, u32::try_from(n % 1000).unwrap());
        screen(&gate, millis, 1 << 24 | forged, &message);
        if millis >= 1000 && n % (50 * PER_MS) == 0 {
            let newcomer = 2 << 24 | u32::try_from(millis).unwrap();
            let message = proven(&gate, millis, newcomer);
            let screened = screen(&gate, millis, newcomer, &message);
            assert_eq!(screened, Screened::Proven, "after {millis} ms");
        }
    }
}

#[test]
fn replies_to_all_sources_together_are_bounded() {
    let gate = loaded();
    let message = stamped();
    let flood = (0..1000 * PER_MS).filter(|n| {
        let source = u32::try_from(*n).unwrap();
        is_reply(screen(&gate, n / PER_MS, source, &message))
    });
    let replies = flood.count();
    assert!((50_000..=55_001).contains(&replies), "{replies} replies");
}

#[test]
fn a_source_with_a_cookie_has_its_own_limit() {
    let gate = loaded();
    let message = proven(&gate, 0, 1);
    // The same message again and again, as somebody can send it who saw it.
    let passed = (0..1000 * PER_MS)
        .filter(|n| screen(&gate, n / PER_MS, 1, &message) == Screened::Proven)
        .count();
    assert!((24..=25).contains(&passed), "{passed} passed");
    let other = proven(&gate, 1000, 2);
    assert_eq!(screen(&gate, 1000, 2, &other), Screened::Proven);
}

#[test]
fn a_wrong_mac1_takes_nothing_from_its_source() {
    let gate = loaded();
    for n in 0..1000 {
        let wrong = refusal(screen(&gate, n, 1, &initiation()));
        assert_eq!(wrong, Some(Refusal::BadMac1));
    }
    assert!(!gate.is_loaded(at(1000)), "and keeps up no load");
    gate.load(at(1000));
    assert!(is_reply(screen(&gate, 1000, 1, &stamped())));
    let stats = &mut HandshakeStats::default();
    gate.add_to(stats);
    assert_eq!((stats.initiations_received, stats.bad_mac1), (1001, 1000));
}

#[test]
fn the_load_lasts_as_long_as_the_flood() {
    let message = stamped();
    for (every_ms, lasts) in [(1, true), (3, false)] {
        let gate = loaded();
        for millis in (0..5000).step_by(every_ms) {
            screen(&gate, millis, 1, &message);
        }
        assert_eq!(gate.is_loaded(at(5000)), lasts, "every {every_ms} ms");
    }
}

#[test]
fn a_source_is_exhausted_until_its_next_reply() {
    let gate = loaded();
    let message = stamped();
    let is_exhausted = |millis, source, message: &[u8]| {
        matches!(
            screen(&gate, millis, source, message),
            Screened::Exhausted(_)
        )
    };
    let replies = (0..20).filter(|_| !is_exhausted(0, 1, &message)).count();
    assert_eq!(replies, 10);
    assert!(!is_exhausted(0, 2, &message), "another");
    assert!(!is_exhausted(500, 1, &message) && is_exhausted(500, 1, &message));
    // A mac2 may be right, unless it is known that it is not worth a look.
    let mut claims = message;
    claims[INITIATION_LEN - 1] = 1;
    assert!(!is_exhausted(501, 3, &claims));
}

#[test]
fn what_is_dropped_before_it_comes_counts_and_keeps_up_the_load() {
    let gate = loaded();
    gate.dropped(at(900), 512);
    assert!(gate.is_loaded(at(1500)));
    gate.dropped(at(2000), 100);
    assert!(!gate.is_loaded(at(2000)));
    let stats = &mut HandshakeStats::default();
    gate.add_to(stats);
    assert_eq!((stats.initiations_received, stats.rate_limited), (612, 612));
}

/// Invariant 5.
#[test]
fn a_table_of_sources_is_there_under_load_only() {
    let gate = loaded();
    screen(&gate, 0, 1, &stamped());
    assert_eq!(gate.state().replies.cells.len(), CELLS);
    screen(&gate, 5000, 1, &stamped());
    assert_eq!(gate.state().replies.cells.capacity(), 0);
}
