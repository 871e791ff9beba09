use std::net::{IpAddr, Ipv4Addr};

use super::*;

const MSS: u16 = 1000;

/// Ten segments were sent, the first of which begins at 1001.
fn after_ten() -> Recovery {
    let mut recovery = Recovery::default();
    recovery.sent_syn(1000);
    let (syn_ack, headers) = segment(1001, &[]);
    assert_eq!(
        recovery.received(0, &syn_ack, &headers, MSS),
        Repeat::Nothing
    );
    (0..10).for_each(|n| recovery.sent(0, 1001 + n * 1000, 1000, MSS));
    recovery
}

/// An acknowledgement, with what was selectively acknowledged.
fn segment(ack: u32, ranges: &[(u32, u32)]) -> (Vec<u8>, Headers) {
    let mut bytes = vec![0; 20];
    bytes[8..12].copy_from_slice(&ack.to_be_bytes());
    bytes[14] = 1;
    if !ranges.is_empty() {
        let len = u8::try_from(2 + 8 * ranges.len()).expect("short");
        bytes.extend([1, 1, SACK, len]);
    }
    for (left, right) in ranges {
        bytes.extend(left.to_be_bytes());
        bytes.extend(right.to_be_bytes());
    }
    bytes[12] = u8::try_from(bytes.len() / 4).expect("short") << 4;
    let headers = Headers {
        source: IpAddr::V4(Ipv4Addr::LOCALHOST),
        destination: IpAddr::V4(Ipv4Addr::LOCALHOST),
        protocol: wire::TCP,
        start: 0,
        end: bytes.len(),
    };
    (bytes, headers)
}

fn repeats(recovery: &mut Recovery, ack: u32, ranges: &[(u32, u32)]) -> bool {
    let (bytes, headers) = segment(ack, ranges);
    recovery.received(1, &bytes, &headers, MSS) == Repeat::First
}

#[test]
fn three_segments_that_arrived_behind_one_show_that_it_is_lost() {
    let mut recovery = after_ten();
    assert!(!repeats(&mut recovery, 1001, &[(2001, 4001)]));
    assert!(repeats(&mut recovery, 1001, &[(2001, 4001), (5001, 6001)]));
    // Once only.
    assert!(!repeats(&mut recovery, 1001, &[(2001, 8001)]));
    // Ranges that are none do not count.
    let mut recovery = after_ten();
    assert!(!repeats(&mut recovery, 1001, &[(9001, 2001), (1, 900)]));
}

#[test]
fn three_duplicates_show_a_loss_which_reduces_the_window_once() {
    let mut recovery = after_ten();
    let window = recovery.congestion.window();
    assert!(!repeats(&mut recovery, 1001, &[]));
    assert!(!repeats(&mut recovery, 1001, &[]));
    assert!(repeats(&mut recovery, 1001, &[]));
    assert!(!repeats(&mut recovery, 1001, &[]));
    let reduced = recovery.congestion.window();
    assert!(reduced < window);
    // It has repeated the first; the next hole is shown by what is acknowledged then.
    assert!(repeats(&mut recovery, 4001, &[]));
    assert!(!repeats(&mut recovery, 11_001, &[]));
    assert!(recovery.congestion.window() >= reduced);
    assert_eq!(recovery.probe_at(MSS), None, "nothing is on its way");
}

#[test]
fn after_some_holes_all_is_sent_anew() {
    let mut recovery = after_ten();
    assert!(repeats(&mut recovery, 1001, &[(2001, 6001)]));
    for n in 1..=MAX_HOLES {
        assert!(repeats(&mut recovery, 1001 + n * 1000, &[]));
    }
    let (bytes, headers) = segment(10_001, &[]);
    assert_eq!(recovery.received(1, &bytes, &headers, MSS), Repeat::All);
}

#[test]
fn smoltcp_hears_what_is_new_and_nothing_twice() {
    let mut recovery = after_ten();
    assert_eq!(recovery.news(), Some((1001, 256)));
    assert_eq!(recovery.news(), None);
    // Neither a duplicate nor what is older.
    for ack in [1001, 900] {
        repeats(&mut recovery, ack, &[]);
        assert_eq!(recovery.news(), None);
    }
    repeats(&mut recovery, 2001, &[]);
    assert_eq!(recovery.news(), Some((2001, 256)));
    // No more than the other end takes, and no more than may be on its way.
    let own = u16::try_from(recovery.congestion.window()).expect("small");
    for (window, seen) in [(255, 255), (u16::MAX, own), (0, 0)] {
        recovery.begins(window, None);
        assert_eq!(recovery.news(), Some((2001, seen)));
    }
    assert!(recovery.may_probe());
}

#[test]
fn a_timer_that_passes_ends_the_recovery() {
    let mut recovery = after_ten();
    assert!(repeats(&mut recovery, 1001, &[(2001, 6001)]));
    // The one that was asked for, and the same again: all is sent anew.
    recovery.awaits();
    recovery.sent(2, 1001, 1000, MSS);
    assert!(repeats(&mut recovery, 3001, &[]));
    recovery.awaits();
    recovery.sent(3, 3001, 1000, MSS);
    recovery.sent(4, 3001, 1000, MSS);
    assert!(!repeats(&mut recovery, 4001, &[]));
}

#[test]
fn a_silent_path_is_probed_a_few_times_and_less_and_less() {
    let mut recovery = after_ten();
    let mut times = Vec::new();
    while let Some(at) = recovery.probe_at(MSS) {
        assert_eq!(recovery.probes(at - 1, MSS), Repeat::Nothing);
        let expected = match times.len() {
            0 | 1 => Repeat::First,
            _ => Repeat::All,
        };
        assert_eq!(recovery.probes(at, MSS), expected);
        times.push(at);
    }
    assert_eq!(times.len(), 8);
    assert!(times.is_sorted_by(|one, next| one < next));
    let (ack, windows) = recovery.duplicates().expect("a window");
    assert_eq!((ack, windows), (1001, [255, 256, 256, 256, 256]));
}

#[test]
fn a_timer_that_passes_leaves_a_window_of_two_segments() {
    let mut recovery = after_ten();
    repeats(&mut recovery, 11_001, &[]);
    (0..2).for_each(|_| recovery.sent(2, 11_001, 100, MSS));
    assert_eq!(recovery.congestion.window(), 2 * u32::from(MSS));
}

#[test]
fn probes_of_a_closed_window_and_their_answers_show_no_loss() {
    let mut recovery = after_ten();
    repeats(&mut recovery, 11_001, &[]);
    let window = recovery.congestion.window();
    recovery.begins(0, None);
    for _ in 0..5 {
        recovery.sent(2, 11_001, 1, MSS);
        let (mut answer, headers) = segment(11_001, &[]);
        answer[14] = 0;
        let repeat = recovery.received(3, &answer, &headers, MSS);
        assert_eq!(repeat, Repeat::Nothing);
    }
    assert_eq!(recovery.congestion.window(), window);
}
