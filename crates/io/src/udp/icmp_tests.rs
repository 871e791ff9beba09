use std::cell::Cell;
use std::collections::VecDeque;

use super::*;

/// Calls that fail as `script` says, where ICMP errors come as `errors` says, one entry for each
/// call; then one that succeeds. Returns the result and how many calls it took.
fn run(script: &[Errno], errors: &[u64]) -> (Result<usize, Errno>, usize) {
    let came = Cell::new(0);
    let mut script: VecDeque<_> = script.iter().copied().collect();
    let mut errors: VecDeque<_> = errors.iter().copied().collect();
    let calls = Cell::new(0);
    let call = || {
        calls.set(calls.get() + 1);
        came.set(came.get() + errors.pop_front().unwrap_or(0));
        script.pop_front().map_or(Ok(7), Err)
    };
    (past_errors(call, || came.get()), calls.get())
}

#[test]
fn a_call_that_an_icmp_error_failed_is_made_again() {
    for errno in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::MSGSIZE] {
        assert_eq!(run(&[errno], &[1]), (Ok(7), 2));
        // A full receive buffer kept it out of the queue.
        assert_eq!(run(&[errno], &[]), (Ok(7), 2));
        assert_eq!(run(&[errno; 4], &[1; 4]), (Ok(7), 5));
    }
}

#[test]
fn an_errno_of_the_call_itself_is_told_after_one_more_call() {
    for errno in [Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::MSGSIZE] {
        assert_eq!(run(&[errno; 9], &[]), (Err(errno), 2));
        // One error was there, too.
        assert_eq!(run(&[errno; 9], &[1]), (Err(errno), 2));
        assert_eq!(run(&[errno; 9], &[0, 1]), (Err(errno), 3));
    }
    for errno in [Errno::AGAIN, Errno::PERM, Errno::INVAL, Errno::NOBUFS] {
        assert_eq!(run(&[errno; 9], &[1; 9]), (Err(errno), 1), "{errno}");
    }
}

/// The source address and segmentation are not what ECONNREFUSED is blamed on.
#[test]
fn a_flood_of_errors_is_blamed_on_nothing_and_ends() {
    let (result, calls) = run(&[Errno::HOSTUNREACH; 99], &[1; 99]);
    assert_eq!((result, calls), (Err(Errno::CONNREFUSED), ATTEMPTS));
    assert!(!super::super::blames_source(Errno::CONNREFUSED));
    assert!(!super::super::blames_gso(Errno::CONNREFUSED));
}

#[test]
fn every_kind_of_icmp_error_is_told_in_words() {
    let queued = |origin, kind, code| QueuedError {
        to: Some("192.0.2.1:51820".parse().unwrap()),
        origin,
        kind,
        code,
        info: 1280,
        reporter: Some("198.51.100.1".parse().unwrap()),
    };
    for (origin, kind, code, said, word) in [
        (2, 3, 0, IcmpKind::NetworkUnreachable, "no route"),
        (2, 3, 1, IcmpKind::HostUnreachable, "host unreachable"),
        (2, 3, 3, IcmpKind::PortUnreachable, "port unreachable"),
        (2, 3, 4, IcmpKind::TooBig, "takes 1280 bytes"),
        (
            2,
            3,
            13,
            IcmpKind::Prohibited,
            "administratively prohibited",
        ),
        (2, 11, 0, IcmpKind::TimeExceeded, "routing loop"),
        (2, 12, 0, IcmpKind::Other, "type 12, code 0"),
        (3, 1, 0, IcmpKind::NetworkUnreachable, "no route"),
        (3, 1, 1, IcmpKind::Prohibited, "administratively prohibited"),
        (3, 1, 3, IcmpKind::HostUnreachable, "host unreachable"),
        (3, 1, 4, IcmpKind::PortUnreachable, "port unreachable"),
        (3, 2, 0, IcmpKind::TooBig, "takes 1280 bytes"),
        (3, 4, 1, IcmpKind::Other, "type 4, code 1"),
    ] {
        let error = IcmpError::new(&queued(origin, kind, code)).unwrap();
        assert_eq!(error.kind, said, "{origin} {kind} {code}");
        let line = error.to_string();
        assert!(line.contains(word), "{line}");
        assert!(line.contains("198.51.100.1") && line.contains("192.0.2.1:51820"));
        assert_eq!(error.mtu, if said == IcmpKind::TooBig { 1280 } else { 0 });
    }
    assert!(
        IcmpKind::ALL
            .iter()
            .all(|kind| kind.explanation().ends_with('.'))
    );
}
