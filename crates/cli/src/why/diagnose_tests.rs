use adit_ctl::status::{FailureJson, PeerJson};
use adit_netlink::RouteLookup;

use super::*;
use crate::why::beyond;
use crate::why::clock::wrong_clock;
use crate::why::evidence::{Inside, WantedAddress};
use crate::why::other_end::{OtherEnd, Us};
use crate::why::rules::Limited;

const KEY: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const OTHER: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

/// A peer that does not answer, at a host that says nothing.
fn silent() -> Evidence {
    let mut peer = PeerJson::default();
    peer.public_key = KEY.into();
    peer.allowed_ips = vec!["10.0.0.2/32".into()];
    Evidence {
        interface: "wg0".into(),
        index: Some(7),
        up: true,
        mtu: 1420,
        has_key: true,
        endpoint: Some("192.0.2.1:51820".parse().unwrap()),
        outside: Some(PortReply::Silent),
        since: 1_800_000_000,
        peer,
        ..Evidence::default()
    }
}

fn event(kind: EventKind, peer: Option<&str>, endpoint: &str, reason: &str) -> EventJson {
    EventJson {
        event: kind.name().into(),
        peer: peer.map(str::to_owned),
        endpoint: Some(endpoint.into()),
        reason: Some(reason.into()),
        text: format!("peer {KEY}: something"),
        ..EventJson::default()
    }
}

#[track_caller]
fn first(seen: &Evidence) -> (Cause, Certainty) {
    let found = diagnose(seen);
    let first = found.first().expect("a finding");
    (first.cause, first.certainty)
}

#[test]
fn silence_is_told_by_what_the_host_says_and_what_was_before() {
    let mut seen = silent();
    assert_eq!(first(&seen), (Cause::NoAnswer, Likely));
    seen.outside = None;
    assert_eq!(first(&seen), (Cause::NoAnswer, Likely));
    seen.outside = Some(PortReply::Answers);
    assert_eq!(first(&seen), (Cause::PeerLacksOurKey, Likely));
    // The keys were right once.
    seen.peer.latest_handshake = Some(1);
    assert_eq!(first(&seen), (Cause::NoAnswer, Likely));
    (seen.clock, seen.outside) = (Some("it says 1970".into()), None);
    assert_eq!(first(&seen), (Cause::Clock, Likely));
}

#[test]
fn a_failure_of_now_counts_and_one_of_the_past_does_not() {
    for (reason, ago, cause) in [
        ("not_authentic", 5, Cause::PresharedKey),
        ("not_confirmed", 5, Cause::PresharedKey),
        ("replayed_timestamp", 5, Cause::PeerClock),
        ("no_answer", 5, Cause::NoAnswer),
        ("replayed_timestamp", 500, Cause::NoAnswer),
    ] {
        let mut seen = silent();
        seen.peer.last_failure = Some(FailureJson {
            at: seen.since - ago,
            reason: reason.into(),
        });
        assert_eq!(first(&seen).0, cause, "{reason} {ago} s ago");
    }
    let mut seen = silent();
    seen.counters[1].insert("cookies_accepted".into(), 1);
    assert_eq!(first(&seen), (Cause::UnderLoad, Certain));
}

#[test]
fn each_icmp_error_names_its_cause() {
    for (reason, cause) in [
        ("port_unreachable", Cause::PortClosed),
        ("host_unreachable", Cause::HostUnreachable),
        ("network_unreachable", Cause::HostUnreachable),
        ("time_exceeded", Cause::HostUnreachable),
        ("prohibited", Cause::Rejected),
        ("other", Cause::NoAnswer),
    ] {
        let mut seen = silent();
        let error = event(EventKind::IcmpError, Some(KEY), "192.0.2.1:51820", reason);
        seen.events = vec![error];
        assert_eq!(first(&seen).0, cause, "{reason}");
    }
}

/// Without an endpoint anybody may be the one who calls.
#[test]
fn a_stranger_counts_where_the_peer_is_or_may_be() {
    let stranger = |from| event(EventKind::UnknownPeer, Some(OTHER), from, "unknown_peer");
    let ip = |text: &str| text.parse().ok();
    for (from, endpoint, is_ours) in [
        ("192.0.2.1:9", ip("192.0.2.1"), true),
        ("192.0.2.2:9", ip("192.0.2.1"), false),
        ("192.0.2.2:9", None, true),
    ] {
        assert_eq!(concerns(&stranger(from), KEY, endpoint), is_ours, "{from}");
    }
    // What is about another peer is not about this one, wherever it comes from.
    let others = event(
        EventKind::HandshakeFailed,
        Some(OTHER),
        "192.0.2.1:9",
        "flooded",
    );
    assert!(!concerns(&others, KEY, ip("192.0.2.1")) && concerns(&others, OTHER, None));

    let mut seen = silent();
    for (endpoint, certainty) in [(seen.endpoint, Certain), (None, Likely)] {
        seen.endpoint = endpoint;
        seen.events = vec![event(
            EventKind::HandshakeFailed,
            None,
            "192.0.2.1:9",
            "bad_mac1",
        )];
        assert_eq!(first(&seen), (Cause::PeerLacksOurKey, certainty));
        seen.events = vec![stranger("192.0.2.1:9")];
        assert_eq!(first(&seen), (Cause::WrongPeerKey, certainty));
    }
}

#[test]
fn long_packets_that_do_not_pass_are_the_mtu() {
    let mut seen = silent();
    seen.session = true;
    seen.path_mtu = Some(1480);
    let inside = |short, long| {
        let to = "10.0.0.2".parse().unwrap();
        let is_guess = false;
        Some(Inside {
            to,
            is_guess,
            short,
            long,
        })
    };
    seen.inside = inside(PortReply::Answers, PortReply::Answers);
    assert!(diagnose(&seen).is_empty());
    seen.inside = inside(PortReply::Answers, PortReply::Silent);
    assert_eq!(first(&seen), (Cause::Mtu, Certain));
    seen.inside = inside(PortReply::Silent, PortReply::Silent);
    assert_eq!(first(&seen), (Cause::NothingInside, Likely));
    // 1479 bytes hold an MTU of 1419.
    seen.inside = None;
    seen.path_mtu = Some(1479);
    let found = diagnose(&seen);
    assert_eq!((found[0].cause, found[0].problem), (Cause::Mtu, false));
    assert!(found[0].commands[0].ends_with("mtu 1419"));
    // Over IPv6 an MTU of 1420 needs 1500.
    seen.endpoint = Some("[2001:db8::1]:1".parse().unwrap());
    seen.path_mtu = Some(1500);
    assert!(diagnose(&seen).is_empty());
    // What probes have found counts for more than what the route says.
    seen.peer.path_mtu = Some(1292);
    let found = diagnose(&seen);
    assert_eq!((found[0].cause, found[0].problem), (Cause::Mtu, false));
    assert!(found[0].commands[0].ends_with("mtu 1292"));
    seen.inside = inside(PortReply::Answers, PortReply::Silent);
    assert_eq!(first(&seen), (Cause::Mtu, Certain));
    assert!(diagnose(&seen)[0].commands[0].ends_with("mtu 1292"));
    // They try every sixteenth length, and the route knows better.
    seen.inside = None;
    seen.peer.path_mtu = Some(1328);
    for (path, mtu) in [(1407, 1328), (1408, 1328), (1423, 1343), (1424, 1328)] {
        seen.path_mtu = Some(path);
        let found = diagnose(&seen);
        assert_eq!(found.len(), 1, "{path}");
        let command = &found[0].commands[0];
        assert!(
            command.ends_with(&format!("mtu {mtu}")),
            "{path}: {command}"
        );
    }
    (seen.mtu, seen.path_mtu) = (1340, Some(1420));
    assert!(diagnose(&seen).is_empty());
}

#[test]
fn a_clock_is_wrong_before_2020_and_before_what_has_happened() {
    let wrong =
        |now, happened: u64| wrong_clock(now, [(happened, "it was".to_owned())].into_iter());
    assert!(wrong(100_000, 0).unwrap().contains("1970-01-02"));
    assert_eq!(wrong(1_800_000_000, 1_800_000_100), None);
    let text = wrong(1_800_000_000, 1_800_086_400).unwrap();
    assert!(
        text.contains("2027-01-15") && text.contains("2027-01-16"),
        "{text}"
    );
}

#[test]
fn a_key_on_two_hosts_is_told_from_a_network_that_changed() {
    let mut seen = silent();
    seen.session = true;
    let roams = |places: &[&str]| {
        let roam = |to: &&str| event(EventKind::PeerRoamed, Some(KEY), to, "");
        places.iter().map(roam).collect::<Vec<EventJson>>()
    };
    let (here, there) = ("192.0.2.1:9", "192.0.2.1:10");
    for (places, is_shared) in [
        (&[here, there, here][..], true),
        (&[here, there, here, there], true),
        (&[here, there], false),
        (&[here, there, "192.0.2.2:9"], false),
    ] {
        seen.events = roams(places);
        let found = diagnose(&seen);
        let shared = found.iter().any(|one| one.cause == Cause::SharedKey);
        assert_eq!(shared, is_shared, "{places:?}");
        let problem = found.first().is_some_and(|one| one.problem);
        assert_eq!(problem, is_shared, "{places:?}");
    }
}

#[test]
fn what_is_silent_behind_a_peer_is_not_its_allowed_ips() {
    let mut seen = silent();
    seen.session = true;
    let to = "10.3.0.2".parse().unwrap();
    seen.wanted = Some(WantedAddress {
        to,
        owner: Some(KEY.into()),
        elsewhere: None,
    });
    seen.inside = Some(Inside {
        to,
        is_guess: false,
        short: PortReply::Silent,
        long: PortReply::Silent,
    });
    seen.peer_answers = true;
    let router = Some("10.0.0.2".parse().unwrap());
    for (peer, behind, cause) in [
        (None, false, Cause::NoForwarding),
        (router, false, Cause::NoMasquerade),
        (router, true, Cause::NoMasquerade),
    ] {
        seen.beyond = Some(beyond::Beyond { to, peer, behind });
        assert_eq!(first(&seen), (cause, Likely));
        let found = diagnose(&seen);
        assert!(found.iter().all(|one| one.cause != Cause::NothingInside));
    }
    // Who does not answer at all may lack our address.
    seen.peer_answers = false;
    seen.beyond = Some(beyond::Beyond {
        to,
        peer: None,
        behind: false,
    });
    assert_eq!(first(&seen), (Cause::NothingInside, Likely));
}

#[test]
fn an_address_that_goes_elsewhere_says_nothing_of_the_tunnel() {
    let mut seen = silent();
    seen.session = true;
    let to = "10.0.0.2".parse().unwrap();
    for (owner, elsewhere, is_wrong) in [
        (Some(KEY.to_owned()), None, false),
        (Some(KEY.to_owned()), Some(Some("eth0".to_owned())), true),
        (Some(KEY.to_owned()), Some(None), true),
        (None, None, true),
    ] {
        seen.wanted = Some(WantedAddress {
            to,
            owner,
            elsewhere,
        });
        let found = diagnose(&seen);
        assert_eq!(found.iter().any(|one| one.problem), is_wrong);
        assert!(!is_wrong || found[0].cause == Cause::NotRouted);
    }
}

#[test]
fn a_refused_source_counts_when_it_comes_now() {
    let mut seen = silent();
    seen.session = true;
    seen.peer.drops.insert("wrong_source".into(), 3);
    assert!(!diagnose(&seen)[0].problem);
    seen.wrong_sources = 1;
    assert_eq!(first(&seen), (Cause::WrongSource, Certain));
}

#[test]
fn an_endpoint_in_a_providers_nat_is_told_unless_this_host_is_in_one() {
    let mut seen = silent();
    seen.endpoint = "100.64.3.4:51820".parse().ok();
    seen.path = Some(Ok(RouteLookup::default()));
    assert_eq!(first(&seen), (Cause::Cgnat, Likely));
    assert_eq!(diagnose(&seen).len(), 1);
    seen.has_cgnat = true;
    assert_eq!(first(&seen).0, Cause::NoAnswer);
    // A private address is said to be one, where it is far away.
    let says_so = |seen: &Evidence| diagnose(seen)[0].text.contains("a private address");
    seen.endpoint = "10.1.2.3:51820".parse().ok();
    assert!(!says_so(&seen));
    let gateway = "192.0.2.254".parse().ok();
    seen.path = Some(Ok(RouteLookup {
        gateway,
        ..RouteLookup::default()
    }));
    assert!(says_so(&seen));
    seen.endpoint = "192.0.2.7:51820".parse().ok();
    assert!(!says_so(&seen));
}

#[test]
fn who_cannot_be_called_is_told_by_the_addresses_in_front() {
    let ip = |text: &str| text.parse().unwrap();
    let mut seen = silent();
    seen.endpoint = None;
    for (outer, routers, cause) in [
        (
            "192.168.1.2",
            &["192.168.1.1", "192.168.0.1"][..],
            Some(Cause::DoubleNat),
        ),
        ("192.168.1.2", &["192.168.1.1", "203.0.113.1"], None),
        ("192.168.1.2", &["192.168.1.1"], None),
        (
            "192.168.1.2",
            &["192.168.1.1", "100.64.0.1"],
            Some(Cause::Cgnat),
        ),
        ("100.64.0.7", &[], Some(Cause::Cgnat)),
        ("203.0.113.7", &[], None),
    ] {
        seen.outer = Some(ip(outer));
        seen.routers = routers.iter().map(|it| ip(it)).collect();
        let found = diagnose(&seen);
        let named = [Cause::DoubleNat, Cause::Cgnat];
        let other = found
            .iter()
            .map(|one| one.cause)
            .find(|it| named.contains(it));
        assert_eq!(other, cause, "{outer} {routers:?}");
        assert!(found.iter().any(|one| one.cause == Cause::NoEndpoint));
    }
}

#[test]
fn a_peer_on_this_host_may_have_an_address_of_this_host() {
    let mut seen = silent();
    seen.path = Some(Ok(RouteLookup {
        local: true,
        ..RouteLookup::default()
    }));
    assert_eq!(first(&seen), (Cause::EndpointIsHere, Certain));
    let other = OtherEnd {
        interface: "wg1".into(),
        listen_port: 51820,
        us: Some(Us::default()),
    };
    seen.other_end = Some(other.clone());
    assert!(
        diagnose(&seen)
            .iter()
            .all(|one| one.cause != Cause::EndpointIsHere)
    );
    seen.other_end = Some(OtherEnd {
        listen_port: 9,
        ..other
    });
    assert_eq!(first(&seen), (Cause::EndpointIsHere, Certain));
}

#[test]
fn limits_of_a_record_are_told_of_a_peer_that_works() {
    let mut seen = silent();
    (seen.session, seen.peer_answers) = (true, true);
    assert!(diagnose(&seen).is_empty());
    for (dropped, says) in [(Some(7), "dropped 7 packets"), (None, "drops the rest")] {
        seen.limited = Some(Limited {
            table: "inet adit-rules-wg0".into(),
            dropped,
        });
        let found = diagnose(&seen);
        let [finding] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(finding.cause, Cause::LimitedByRules);
        assert!(
            !finding.problem && finding.text.contains(says),
            "{finding:?}"
        );
        assert_eq!(finding.commands, ["nft list table inet adit-rules-wg0"]);
    }
}
