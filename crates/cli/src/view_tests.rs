use std::collections::BTreeMap;
use std::time::Duration;

use super::*;

fn peer(key: &str, name: Option<&str>, endpoint: &str, block: &str) -> PeerJson {
    let mut peer = PeerJson::default();
    key.clone_into(&mut peer.public_key);
    peer.name = name.map(str::to_owned);
    peer.endpoint = (!endpoint.is_empty()).then(|| endpoint.to_owned());
    peer.allowed_ips.push(block.to_owned());
    peer
}

fn interface() -> InterfaceJson {
    let mut interface = InterfaceJson::default();
    "wg0".clone_into(&mut interface.name);
    interface.peers = vec![
        peer(
            "Akey1234567",
            Some("Bob's phone"),
            "192.0.2.10:1",
            "10.0.0.1/32",
        ),
        peer("Bkey1234567", Some("alice"), "192.0.2.9:1", "10.0.1.0/24"),
        peer("Ckey1234567", None, "", "fd00::/64"),
    ];
    interface
}

/// The rows of those that pass, in order.
fn sorted(
    interfaces: &[InterfaceJson],
    filter: &str,
    sort: Sort,
    before: Option<&Sample>,
    at: Instant,
) -> Vec<Row> {
    let rows = rows(interfaces, before, at);
    let order = order(&rows, &Filter::new(filter), sort);
    order.iter().map(|at| rows[*at as usize].clone()).collect()
}

fn names(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.name().into_owned()).collect()
}

fn shown(filter: &str, sort: Sort) -> Vec<String> {
    names(&sorted(&[interface()], filter, sort, None, Instant::now()))
}

#[test]
fn a_filter_is_a_name_a_key_or_an_address() {
    for (words, expected) in [
        ("", vec!["alice", "Bob's phone", "Ckey1234…"]),
        ("PHONE", vec!["Bob's phone"]),
        ("Bkey", vec!["alice"]),
        ("bkey", vec![]),
        ("Bkey1…", vec!["alice"]),
        ("…", vec![]),
        ("10.0.1.77", vec!["alice"]),
        ("10.0", vec!["alice", "Bob's phone"]),
        ("192.0.2.1", vec![]),
        ("192.0.2.10", vec!["Bob's phone"]),
        ("fd00::1", vec!["Ckey1234…"]),
    ] {
        assert_eq!(shown(words, Sort::Name), expected, "{words}");
    }
}

#[test]
fn more_drops_than_can_be_are_shown() {
    let mut interface = interface();
    let drops = ["replayed", "no_route"].map(|reason| (reason.to_owned(), u64::MAX));
    interface.peers[0].drops = BTreeMap::from(drops);
    let rows = rows(&[interface], None, Instant::now());
    assert_eq!(rows[0].drops, u64::MAX);
}

#[test]
fn rows_have_an_order_and_rates() {
    assert_eq!(
        shown("", Sort::Endpoint),
        ["alice", "Bob's phone", "Ckey1234…"]
    );
    let before = interface();
    let start = Instant::now();
    let of = |interfaces: &[InterfaceJson]| Sample::of(&rows(interfaces, None, start), start);
    let sample = of(std::slice::from_ref(&before));
    let mut after = before;
    after.peers[0].transfer_rx = 1000;
    after.peers[1].transfer_rx = 9000;
    after.peers[2].latest_handshake = Some(7);
    after.peers[2].drops = BTreeMap::from([("replayed".into(), 4)]);
    let at = start + Duration::from_secs(2);
    let since = |sample, sort| sorted(std::slice::from_ref(&after), "", sort, Some(sample), at);
    let by = |sort| since(&sample, sort);
    let by_rx = by(Sort::Rx);
    assert_eq!(names(&by_rx), ["alice", "Bob's phone", "Ckey1234…"]);
    assert_eq!(by_rx[0].rates, Some([4500.0, 0.0, 0.0]));
    assert_eq!(by(Sort::Drops)[0].rates, Some([0.0, 0.0, 2.0]));
    assert_eq!(by(Sort::Handshake)[0].handshake, Some(7));
    // A peer that was not there before has no rate, and no failure to compute one.
    assert_eq!(since(&of(&[]), Sort::Rx)[0].rates, None);
    // Others came in front of it and went: rates are those of the same peer.
    let mut moved = after.clone();
    moved.peers.rotate_left(1);
    moved.peers.push(peer("New", None, "", ""));
    let moved = sorted(&[moved], "", Sort::Rx, Some(&sample), at);
    let (rates, new) = moved.split_at(3);
    assert_eq!(rates, by_rx);
    assert_eq!(new[0].rates, None);
}

#[test]
fn a_failure_before_the_latest_handshake_is_history() {
    let mut interface = interface();
    let failure = |at| {
        Some(adit_ctl::status::FailureJson {
            at,
            reason: "no_answer".into(),
        })
    };
    interface.peers[0].last_failure = failure(5);
    interface.peers[0].latest_handshake = Some(6);
    interface.peers[1].last_failure = failure(5);
    interface.peers[1].latest_handshake = Some(4);
    let rows = sorted(&[interface], "1", Sort::Name, None, Instant::now());
    let failures: Vec<Option<&str>> = rows.iter().map(|row| row.failure.as_deref()).collect();
    assert_eq!(failures, [Some("no answer"), None]);
}

#[test]
fn numbers_have_three_digits_and_a_unit() {
    for (number, text) in [
        (0, "0"),
        (1023, "1023"),
        (1024, "1.00K"),
        (10_229, "9.99K"),
        (10_240, "10.0K"),
        (1024 * 1024 - 1, "1.00M"),
        (u64::MAX, "16384P"),
    ] {
        assert_eq!(bytes(number), text);
    }
    assert_eq!(bit_rate(125.0), "1.00K");
    assert_eq!(bit_rate(124_970_000.0), "1.00G");
    assert_eq!(latency(900), "0.9ms");
    assert_eq!(latency(25_000), "25ms");
}

#[test]
fn ages_and_cells_are_short() {
    for (ago, text) in [
        (0, "0s"),
        (75, "1m15s"),
        (3_660, "1h01m"),
        (90_000, "1d01h"),
    ] {
        assert_eq!(age(Some(100_000 - ago), 100_000), text);
    }
    assert_eq!(age(None, 1), "-");
    assert_eq!(age(Some(2), 1), "future");
    assert_eq!(cell("abc", 5, false), "abc  ");
    assert_eq!(cell("abc", 5, true), "  abc");
    assert_eq!(cell("abcdef", 4, false), "abc…");
    assert_eq!(cell("abc", 0, true), "");
}

#[test]
fn what_is_equal_goes_by_name() {
    let mut interface = InterfaceJson::default();
    let peers = [
        ("Z", Some("bob")),
        ("A", None),
        ("Y", Some("Alice")),
        ("X", Some("carol")),
    ];
    interface.peers = peers
        .map(|(key, name)| peer(key, name, "", "10.0.0.1/32"))
        .into();
    for sort in [
        Sort::Rx,
        Sort::Tx,
        Sort::Drops,
        Sort::Handshake,
        Sort::Endpoint,
    ] {
        let rows = sorted(
            std::slice::from_ref(&interface),
            "",
            sort,
            None,
            Instant::now(),
        );
        assert_eq!(names(&rows), ["Alice", "bob", "carol", "A…"], "{sort:?}");
    }
}

#[test]
fn what_is_too_long_ends_behind_a_word() {
    for (width, text) in [
        (20, "one two, three four"),
        (19, "one two, three four"),
        (18, "one two, three…"),
        (15, "one two, three…"),
        (14, "one two…"),
        (8, "one two…"),
        (7, "one…"),
        (3, "on…"),
        (1, "…"),
        (0, ""),
    ] {
        assert_eq!(fit("one two, three four", width), text, "{width}");
    }
}
