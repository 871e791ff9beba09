use super::*;

const PREFIX: &str = "wg0/held/";

fn key(n: u8) -> PublicKey {
    PublicKey([n; 32])
}

fn peer(gateway: &str, session: u64) -> HeldPeer {
    HeldPeer {
        gateway: gateway.into(),
        last: LastSeen {
            at: "192.0.2.1:7".parse().ok(),
            sent: Tai64N([7; 12]),
            received: Tai64N::default(),
        },
        session,
    }
}

/// Long after the sessions of these tests.
const NOW: Duration = Duration::from_secs(1_790_000_000);

fn pair(key: &str, value: &str) -> EtcdPair {
    (key.into(), EtcdValue::Bytes(value.into()))
}

#[test]
fn what_is_written_is_what_is_read() {
    let (key, peer) = (key(7), peer("a", 5));
    let asked = hold_request(PREFIX, "77", [(&key, &peer)].into_iter());
    let put = &asked["success"][0]["request_put"];
    assert_eq!(put["lease"], "77");
    let text = |name: &str| {
        let text = put[name].as_str().expect("a string");
        Base64::decode_vec(text).expect("base64")
    };
    let value = String::from_utf8(text("value")).expect("text");
    assert_eq!(
        value,
        r#"{"gateway":"a","endpoint":"192.0.2.1:7","session":5,"sent":"@070707070707070707070707"}"#
    );
    let pair = (text("key"), EtcdValue::Bytes(text("value")));
    assert_eq!(held_change(PREFIX, pair, NOW), Some((key, Some(peer))));
    let gone = (text("key"), EtcdValue::Deleted);
    assert_eq!(held_change(PREFIX, gone, NOW), Some((key, None)));
}

#[test]
fn a_peer_that_is_nowhere_is_not_written() {
    let mut peer = peer("a", 5);
    peer.last.at = None;
    let asked = hold_request(PREFIX, "77", [(&key(7), &peer)].into_iter());
    assert_eq!(asked["success"], json!([]));
}

#[test]
fn what_others_write_is_not_believed() {
    let name = format!("{PREFIX}{}", key(7));
    let good = r#"{"gateway":"a","endpoint":"192.0.2.1:7","session":5}"#;
    assert!(held_change(PREFIX, pair(&name, good), NOW).is_some());
    assert_eq!(
        held_change(PREFIX, (name.clone().into(), EtcdValue::TooLong), NOW),
        None
    );
    for (wrong_key, value) in [
        ("other/", good.to_owned()),
        ("wg0/held/alice", good.to_owned()),
        (name.as_str(), String::new()),
        (name.as_str(), "[]".into()),
        (name.as_str(), good.replace("192.0.2.1:7", "192.0.2.1:0")),
        (name.as_str(), good.replace("192.0.2.1:7", "example.com:7")),
        (name.as_str(), good.replace("\"a\"", "\"\"")),
        (name.as_str(), good.replace("\"a\"", "\"a b\"")),
        (name.as_str(), good.replace("\"a\"", r#""a\n""#)),
        (
            name.as_str(),
            good.replace("\"a\"", &format!("\"{}\"", "a".repeat(65))),
        ),
        (name.as_str(), good.replace("5}", "-5}")),
        (name.as_str(), good.replace("5}", r#"5,"sent":"7"}"#)),
    ] {
        assert_eq!(
            held_change(PREFIX, pair(wrong_key, &value), NOW),
            None,
            "{value}"
        );
    }
}

#[test]
fn the_list_has_the_latest_sessions_first() {
    let mut held = HeldPeers::default();
    assert!(held.is_empty());
    held.change(key(1), Some(peer("a", 5_000)));
    held.change(key(2), Some(peer("b", 9_999)));
    held.change(key(3), Some(peer("b", 7_000)));
    held.change(key(3), None);
    let expected = format!(
        "{}\t192.0.2.1:7\t@070707070707070707070707\t-\t9\tb\n{}\t192.0.2.1:7\t@070707070707070707070707\t-\t5\ta\n",
        key(2),
        key(1)
    );
    assert_eq!((held.list(), held.len()), (expected, 2));
    assert_eq!(held.get(&key(1)).map(|it| it.session), Some(5_000));
}

#[test]
fn a_lease_is_a_number() {
    assert_eq!(
        lease(br#"{"header":{},"ID":"7587","TTL":"86400"}"#),
        Ok("7587".into())
    );
    for wrong in [
        &b"{}"[..],
        br#"{"ID":"x"}"#,
        br#"{"error":"etcdserver: permission denied","code":7}"#,
    ] {
        assert!(lease(wrong).is_err());
    }
}

fn timestamp(n: u8) -> Tai64N {
    Tai64N([n; 12])
}

fn last(at: &str, sent: u8, received: u8) -> LastSeen {
    LastSeen {
        at: at.parse().ok(),
        sent: timestamp(sent),
        received: timestamp(received),
    }
}

#[test]
fn what_is_far_ahead_is_not_believed() {
    let name = format!("{PREFIX}{}", key(7));
    let told = |seconds: u64| {
        let at = NOW + Duration::from_secs(seconds);
        let mut peer = peer("a", u64::try_from(at.as_millis()).expect("small"));
        peer.last.sent = Tai64N::from_unix(at);
        let text = peer.to_json().expect("it is somewhere");
        let (_, read) = held_change(PREFIX, pair(&name, &text), NOW).expect("a peer");
        let read = read.expect("it is somewhere");
        (
            read.session == peer.session,
            read.last.sent == peer.last.sent,
        )
    };
    assert_eq!(told(30), (true, true));
    assert_eq!(told(3600), (false, false));
}

#[test]
fn timestamps_say_which_session_is_the_later_one() {
    let key = key(1);
    let address = |text: &str| text.parse().expect("an address");
    let mut held = HeldPeers::default();
    let claim = |held: &HeldPeers, own: &str, news| held.claim(own, &key, news);
    let first = PeerNews::Session(last("192.0.2.1:7", 0, 5), 100_000);
    held.change(key, claim(&held, "a", first));
    assert_eq!(claim(&held, "a", first), None, "it is known");
    // The other gateway's clock is behind, and its session is later all the same.
    let later = PeerNews::Session(last("192.0.2.2:7", 6, 0), 70_000);
    let peer = claim(&held, "b", later).expect("news");
    assert_eq!(
        (peer.session, peer.last),
        (100_001, last("192.0.2.2:7", 6, 5))
    );
    held.change(key, Some(peer));
    // What the first one could not write for some time is old.
    assert_eq!(
        claim(
            &held,
            "a",
            PeerNews::Session(last("192.0.2.1:7", 0, 5), 200_000)
        ),
        None
    );
    // An initiation that nobody confirmed moves no peer from one gateway to another.
    assert_eq!(
        claim(&held, "a", PeerNews::Moved(address("203.0.113.1:1"))),
        None
    );
    let moved = claim(&held, "b", PeerNews::Moved(address("192.0.2.3:7"))).expect("news");
    assert_eq!(
        (moved.session, moved.last),
        (100_001, last("192.0.2.3:7", 6, 5))
    );
    // A session whose timestamps are not known is later if it is by more than clocks differ.
    let since = |at: u64| PeerNews::Since(address("192.0.2.1:7"), at);
    assert_eq!(claim(&held, "a", since(130_000)), None);
    let peer = claim(&held, "a", since(170_000)).expect("news");
    assert_eq!(
        (peer.session, peer.last),
        (170_000, last("192.0.2.1:7", 6, 5))
    );
    assert!(claim(&HeldPeers::default(), "a", since(1)).is_some());
}

#[test]
fn what_a_restored_store_lacks_stays_and_is_written_again() {
    let mut held = HeldPeers::default();
    for (n, gateway) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
        held.change(key(n), Some(peer(gateway, 10)));
    }
    let mut listed = HeldPeers::default();
    listed.change(key(2), Some(peer("a", 5)));
    listed.change(key(3), Some(peer("a", 5)));
    listed.change(key(4), Some(peer("a", 20)));
    listed.change(key(5), Some(peer("a", 1)));
    let mut lost = held.went_back(&listed, "a");
    lost.sort_unstable_by_key(|(key, _)| key.0);
    assert_eq!(lost, [(key(1), peer("a", 10)), (key(3), peer("a", 10))]);
    let sessions: Vec<_> = (1..=5)
        .map(|n| held.get(&key(n)).map(|it| it.session))
        .collect();
    assert_eq!(sessions, [10, 10, 10, 20, 1].map(Some));
}
