use super::*;

const START: Time = Time(1_000_000_000);

fn refused(refusal: Refusal, host: u32) -> Incident {
    Incident::Handshake(HandshakeOutcome {
        kind: Some(HandshakeKind::Initiation),
        from: SocketAddr::from((std::net::Ipv4Addr::from_bits(host), 7)),
        peer: None,
        refusal: Some(refusal),
    })
}

fn at(millis: u64) -> Time {
    START + Duration::from_millis(millis)
}

/// The lines from one time to the other, as a control thread writes them that sleeps as long as it
/// may.
fn lines(log: &RateLimitedLog, from: u64, to: u64) -> Vec<LogLine> {
    let mut lines = log.take_due(at(from));
    while let Some(due) = log.deadline().filter(|due| *due < at(to)) {
        lines.extend(log.take_due(due));
    }
    lines
}

#[test]
fn a_first_incident_is_logged_at_once_and_repeats_each_second() {
    let log = RateLimitedLog::new(true);
    let mistake = refused(Refusal::BadMac1, 1);
    assert!(log.note(at(0), 1, || mistake));
    assert_eq!(log.take_due(at(0)), [LogLine::Of(mistake, 1)]);
    assert_eq!(log.deadline(), None, "there is nothing more to say");
    // Invariant 6: a thread that sleeps without a deadline is woken by the first repeat, and then
    // has one.
    assert!(log.note(at(500), 1, || mistake));
    for _ in 1..1000 {
        assert!(!log.note(at(500), 1, || mistake));
    }
    assert_eq!(log.take_due(at(999)), []);
    assert_eq!(log.deadline(), Some(at(1000)));
    assert_eq!(log.take_due(at(1000)), [LogLine::Of(mistake, 1000)]);
    assert!(log.note(at(1500), 1, || mistake));
    assert_eq!(log.take_due(at(2000)), [LogLine::Of(mistake, 1)]);
    // It has stopped, and no thread woke up for that: the next time it is written at once again.
    assert!(log.note(at(3001), 3, || mistake));
    assert_eq!(log.take_due(at(3001)), [LogLine::Of(mistake, 3)]);
    assert_eq!(log.take_due(at(5000)), []);
    assert!(lock(&log.state).recent.is_empty());
}

#[test]
fn incidents_that_have_no_line_wake_the_one_who_counts_them() {
    let log = RateLimitedLog::new(true);
    for host in 0..8 {
        assert!(log.note(at(0), 1, || refused(Refusal::BadMac1, host)));
    }
    assert_eq!(log.take_due(at(0)).len(), 8);
    assert!(log.note(at(100), 1, || refused(Refusal::BadMac1, 99)));
    assert!(!log.note(at(200), 4, || refused(Refusal::BadMac1, 98)));
    assert_eq!(log.deadline(), Some(at(1100)));
    assert_eq!(log.take_due(at(1100)), [LogLine::Others(5)]);
    assert_eq!(log.deadline(), None);
}

#[test]
fn a_flood_of_sources_gives_few_lines_and_hides_no_other_cause() {
    let log = RateLimitedLog::new(true);
    let rare = refused(Refusal::ReplayedTimestamp, 77);
    let mut all = Vec::new();
    for second in 0..5 {
        for host in 0..10_000 {
            let now = at(1000 * second + u64::from(host) / 10);
            log.note(now, 1, || refused(Refusal::BadMac1, host));
            if (second, host) == (2, 5000) {
                assert!(log.note(now, 1, || rare));
            }
        }
        let written = lines(&log, 1000 * second + 999, 1000 * (second + 1) + 999);
        assert!(written.len() <= SOURCES_OF_CAUSE + 2, "{written:?}");
        all.extend(written);
    }
    all.extend(lines(&log, 6000, 20_000));
    assert!(all.contains(&LogLine::Of(rare, 1)));
    let told = all.iter().map(|line| match line {
        LogLine::Of(_, times) | LogLine::Others(times) => *times,
    });
    assert_eq!(told.sum::<u64>(), 50_001, "each has a line or is counted");
    assert!(lock(&log.state).recent.is_empty(), "and nothing is kept");
}

#[test]
fn where_nobody_reads_nothing_is_noted() {
    let log = RateLimitedLog::new(false);
    assert!(!log.note(at(0), 1, || panic!("nothing is made up")));
    assert_eq!((log.take_due(at(0)), log.deadline()), (vec![], None));
}

#[test]
fn a_network_is_one_source() {
    let log = RateLimitedLog::new(true);
    let from = |ip: &str| {
        let mut incident = refused(Refusal::BadMac1, 0);
        if let Incident::Handshake(outcome) = &mut incident {
            outcome.from = SocketAddr::new(ip.parse().unwrap(), 7);
        }
        incident
    };
    for (ip, lines) in [
        ("2001:db8::1", 1),
        ("2001:db8::2", 0),
        ("2001:db8:0:1::1", 1),
        ("192.0.2.1", 1),
        ("192.0.2.2", 1),
        ("192.0.2.2", 0),
    ] {
        log.note(at(0), 1, || from(ip));
        assert_eq!(log.take_due(at(0)).len(), lines, "{ip}");
    }
}

#[test]
fn lines_name_peer_addresses_and_what_is_most_likely_wrong() {
    let peer = PublicKey([1; 32]);
    let to: SocketAddr = "192.0.2.1:51820".parse().unwrap();
    let not_sent = |kind, error| Incident::NotSent {
        peer: Some(peer),
        kind,
        to,
        error,
    };
    let initiation = Some(HandshakeKind::Initiation);
    for (incident, expected) in [
        (
            Incident::WrongSource {
                peer,
                from: to,
                source: "10.9.9.9".parse().unwrap(),
            },
            "packet from 192.0.2.1:51820 dropped: its inner source 10.9.9.9 is not among this peer's allowed IPs",
        ),
        (
            Incident::InVain {
                peer,
                kind: HandshakeKind::Response,
                to,
                before: 3,
            },
            "handshake response sent to 192.0.2.1:51820; 3 before it led to no session: the preshared keys differ, or the peer does not hear us",
        ),
        (
            not_sent(initiation, Some(Errno::PERM)),
            "handshake initiation could not be sent to 192.0.2.1:51820: Operation not permitted (a local firewall?)",
        ),
        (
            not_sent(None, Some(Errno::NETUNREACH)),
            "data could not be sent to 192.0.2.1:51820: Network is unreachable (no route?)",
        ),
        (
            not_sent(None, None),
            "data could not be sent to 192.0.2.1:51820: this host has no socket of that address family",
        ),
    ] {
        assert_eq!(incident.to_string(), format!("peer {peer}: {expected}"));
        let twice = LogLine::Of(incident, 2).to_string();
        assert_eq!(twice, format!("peer {peer}: {expected} (2 times)"));
    }
    let mut stranger = refused(Refusal::UnknownPeer, 1);
    if let Incident::Handshake(outcome) = &mut stranger {
        outcome.peer = Some(peer);
    }
    let line = stranger.to_string();
    assert!(
        line.starts_with("handshake initiation from 0.0.0.1:7 refused: "),
        "{line}"
    );
    assert!(line.contains(&peer.to_string()), "{line}");
}
