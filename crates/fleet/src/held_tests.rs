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
    assert_eq!(held_change(PREFIX, pair), Some((key, Some(peer))));
    let gone = (text("key"), EtcdValue::Deleted);
    assert_eq!(held_change(PREFIX, gone), Some((key, None)));
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
    assert!(held_change(PREFIX, pair(&name, good)).is_some());
    assert_eq!(
        held_change(PREFIX, (name.clone().into(), EtcdValue::TooLong)),
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
            held_change(PREFIX, pair(wrong_key, &value)),
            None,
            "{value}"
        );
    }
}

#[test]
fn the_list_has_the_latest_sessions_first() {
    let mut held = HeldPeers::default();
    assert!(held.is_empty());
    held.change(key(1), Some(peer("a", 5)));
    held.change(key(2), Some(peer("b", 9)));
    held.change(key(3), Some(peer("b", 7)));
    held.change(key(3), None);
    let expected = format!(
        "{}\t192.0.2.1:7\t@070707070707070707070707\t-\tb\n{}\t192.0.2.1:7\t@070707070707070707070707\t-\ta\n",
        key(2),
        key(1)
    );
    assert_eq!((held.list(), held.len()), (expected, 2));
    assert_eq!(held.get(&key(1)).map(|it| it.session), Some(5));
    held.clear();
    assert_eq!(held.list(), "");
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
