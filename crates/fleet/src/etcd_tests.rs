use super::*;

#[test]
fn an_address_has_members_and_a_prefix() {
    let text = "http://a:2379,https://[::1]:2379,https://b-1.c/wg0/peers/";
    let address: EtcdAddress = text.parse().expect("one");
    assert_eq!(
        address.endpoints,
        ["http://a:2379", "https://[::1]:2379", "https://b-1.c"]
    );
    assert_eq!(address.prefix, "wg0/peers/");
    assert_eq!(address.ports, [2379, 2379, 443]);
    assert_eq!(address.to_string(), text);
    let ports = |text: &str| text.parse::<EtcdAddress>().map(|it| it.ports);
    assert_eq!(ports("http://[::1]/x"), Ok(vec![80]));
    for wrong in [
        "",
        "a:2379/wg0",
        "http://a",
        "http://a/",
        "ftp://a/b",
        "http://u:p@a/b",
        "http://a/b,http://c",
        "http://a/b,c",
        "http:///b",
        "http://:1/b",
        "http://a:0/b",
        "http://a:65536/b",
        "http://a:x/b",
        "http://a b/c",
        "http://a/b\n",
    ] {
        assert!(wrong.parse::<EtcdAddress>().is_err(), "{wrong}");
    }
}

#[test]
fn a_range_has_all_keys_of_a_prefix_and_no_others() {
    for (prefix, end) in [
        (&b"a"[..], &b"b"[..]),
        (b"wg0/", b"wg00"),
        (b"a\xff", b"b"),
        (b"\xff", b"\0"),
    ] {
        assert_eq!(range_end(prefix), end);
    }
    let first = range_request("a", None, 9, true);
    assert_eq!(
        (&first["key"], &first["revision"], &first["limit"]),
        (&json!("YQ=="), &json!("0"), &json!("9"))
    );
    let next = range_request("a", Some((b"ab", 7)), 9, false);
    assert_eq!(
        (&next["key"], &next["revision"], &next["keys_only"]),
        (&json!("YWIA"), &json!("7"), &json!(true))
    );
    assert_eq!(
        watch_request("a", 8)["create_request"]["start_revision"],
        "8"
    );
}

fn bytes(text: &str) -> EtcdValue {
    EtcdValue::Bytes(text.into())
}

#[test]
fn a_page_has_keys_with_their_values() {
    let text = br#"{"header":{"cluster_id":"1","revision":"5"},"kvs":[{"key":"YWI=","value":"eA==","version":"1"},{"key":"YWM="}],"more":true,"count":"9"}"#;
    let found = page(text, true).expect("a page");
    assert_eq!((found.revision, found.has_more), (5, true));
    assert_eq!(
        found.pairs,
        [(b"ab".to_vec(), bytes("x")), (b"ac".to_vec(), bytes(""))]
    );
    // Values that were not asked for.
    let found = page(text, false).expect("a page");
    assert!(found.pairs.iter().all(|(_, it)| *it == EtcdValue::TooLong));
    // One that is too long is not decoded.
    let long = "!".repeat(MAX_RECORD * 2);
    let text = format!(r#"{{"header":{{"revision":"5"}},"kvs":[{{"key":"","value":"{long}"}}]}}"#);
    let found = page(text.as_bytes(), true).expect("a page");
    assert_eq!(found.pairs, [(Vec::new(), EtcdValue::TooLong)]);
}

/// The answers are those of etcd 3.4.
#[test]
fn a_watch_tells_changes_and_where_it_goes_on() {
    let line = |text: &str| watch_line(text.as_bytes(), 6);
    let changes = |next, pairs| Ok(EtcdChanges { next, pairs });
    assert_eq!(
        line(r#"{"result":{"header":{"revision":"5"},"created":true}}"#),
        changes(6, Vec::new())
    );
    let events = r#"{"result":{"header":{"revision":"90"},"events":[{"kv":{"key":"YWI=","mod_revision":"6","value":"eQ=="}},{"type":"DELETE","kv":{"key":"YWM=","mod_revision":"7"}}]"#;
    let pairs = || {
        vec![
            (b"ab".to_vec(), bytes("y")),
            (b"ac".to_vec(), EtcdValue::Deleted),
        ]
    };
    // The store is at 90, and the rest comes later.
    assert_eq!(line(&format!("{events}}}}}")), changes(8, pairs()));
    // More of revision 7 may come.
    let fragment = format!("{events},\"fragment\":true}}}}");
    assert_eq!(line(&fragment), changes(7, pairs()));
    for gap in [
        r#"{"result":{"header":{"cluster_id":"1","raft_term":"2"},"canceled":true,"compact_revision":"5"}}"#,
        r#"{"result":{"header":{"revision":"2"},"created":true}}"#,
        r#"{"error":{"grpc_code":11,"message":"compacted"}}"#,
    ] {
        assert_eq!(line(gap), Err(EtcdRefusal::Gap));
    }
    for old in [
        r#"{"error":{"grpc_code":16,"message":"etcdserver: x"}}"#,
        r#"{"result":{"header":{"revision":"6"},"watch_id":"-1","created":true,"canceled":true,"cancel_reason":"rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"}}"#,
    ] {
        assert_eq!(line(old), Err(EtcdRefusal::Token));
    }
    let denied = r#"{"result":{"header":{"revision":"6"},"watch_id":"-1","created":true,"canceled":true,"cancel_reason":"permission denied"}}"#;
    assert_eq!(
        line(denied),
        Err(EtcdRefusal::Failed("it answers: permission denied".into()))
    );
}

#[test]
fn refusals_of_etcd_are_told_in_its_words() {
    let failed = |why: &str| EtcdRefusal::Failed(format!("it answers: {why}"));
    let error = |text: &str| page(text.as_bytes(), true).expect_err("none");
    assert_eq!(error(r#"{"error":"denied","code":7}"#), failed("denied"));
    assert_eq!(error(r#"{"error":"x","code":11}"#), EtcdRefusal::Gap);
    assert_eq!(error(r#"{"error":"x","code":16}"#), EtcdRefusal::Token);
    assert_eq!(error(r#"{"error":"x","code":8}"#), EtcdRefusal::TooLong);
    assert_eq!(error("CommonName of x\n"), failed("CommonName of x"));
    let long = "x".repeat(100_000);
    assert_eq!(error(&long), failed(&long[..MAX_WORDS]));
    let told = error(&format!(r#"{{"error":"{long}","code":7}}"#));
    assert_eq!(told, failed(&long[..MAX_WORDS]));
    assert_eq!(token(br#"{"header":{},"token":"t"}"#), Ok("t".into()));
    let refused = token(br#"{"error":"authentication failed"}"#);
    assert_eq!(refused, Err(failed("authentication failed")));
}

#[test]
fn what_is_no_answer_is_refused_and_not_repeated() {
    for wrong in [
        "",
        "[]",
        "{}",
        "{\"header\":{}}",
        "{\"header\":{\"revision\":5}}",
        "{\"header\":{\"revision\":\"9223372036854775807\"}}",
        "{\"header\":{\"revision\":\"-1\"}}",
        "{\"header\":{\"revision\":\"5\"},\"kvs\":[{\"key\":\"secret!\"}]}",
    ] {
        let bytes = wrong.as_bytes();
        assert_eq!(page(bytes, true), Err(EtcdRefusal::none()), "{wrong}");
        assert_eq!(watch_line(bytes, 1), Err(EtcdRefusal::none()), "{wrong}");
        assert_eq!(token(bytes), Err(EtcdRefusal::none()), "{wrong}");
    }
}

#[test]
fn a_key_names_a_record_if_it_can_be_printed() {
    let change = |key: &[u8], value| record_change("wg0/", ([b"wg0/", key].concat(), value));
    let key = adit_proto::config::Secret::new(&[1; 32]).public_key();
    let good = || bytes(&format!("{{\"public_key\":\"{key}\"}}"));
    let (id, put) = change(b"a/b", good());
    assert!(&*id == "a/b" && matches!(put, RecordChange::Put(_)));
    assert_eq!(
        change(b"a", EtcdValue::Deleted),
        ("a".into(), RecordChange::Delete)
    );
    let long = [b'x'; MAX_NAME + 1];
    for (name, expected) in [
        (&b""[..], "\\"),
        (b"a\n", "\\a\\n"),
        (b"a\\n", "\\a\\\\n"),
        (b"\xff", "\\\\xff"),
        (&long, &format!("\\{}", "x".repeat(MAX_NAME))),
    ] {
        let (id, bad) = change(name, good());
        assert_eq!(&*id, expected);
        assert!(matches!(bad, RecordChange::Bad(_)), "{bad:?}");
        // What is gone is forgotten by the same name.
        assert_eq!(change(name, EtcdValue::Deleted), (id, RecordChange::Delete));
    }
    let (_, large) = change(b"a", EtcdValue::TooLong);
    assert_eq!(
        large,
        RecordChange::Bad("it has more than 65536 bytes".into())
    );
}

proptest::proptest! {
    #[test]
    fn no_answer_panics(text in ".{0,200}", from in proptest::num::i64::ANY) {
        let _ = page(text.as_bytes(), true);
        let _ = watch_line(text.as_bytes(), from);
        let _ = record_change("", (text.clone().into(), EtcdValue::Bytes(text.clone().into())));
        let inner = format!("{{\"result\":{{\"header\":{{\"revision\":\"{from}\"}},\"events\":[{text}]}}}}");
        let _ = watch_line(inner.as_bytes(), from);
    }

    #[test]
    fn an_address_that_is_taken_is_read_again(text in "(https?://[a-c\\[\\]:0-9]{0,6},?){0,3}/?[a-c/,]{0,3}") {
        if let Ok(address) = text.parse::<EtcdAddress>() {
            proptest::prop_assert_eq!(address.to_string().parse(), Ok(address.clone()));
            proptest::prop_assert_eq!(address.ports.len(), address.endpoints.len());
        }
    }
}

#[test]
fn records_are_got_by_their_names() {
    let ids: [RecordId; 2] = ["a".into(), "b".into()];
    let asked = gets_request("p/", &ids, 7);
    let second = &asked["success"][1]["request_range"];
    assert_eq!(
        (&second["key"], &second["revision"]),
        (&json!("cC9i"), &json!("7"))
    );
    let text = br#"{"header":{"revision":"9"},"succeeded":true,"responses":[
        {"response_range":{"header":{"revision":"9"}}},
        {"response_range":{"header":{"revision":"9"},"kvs":[{"key":"cC9i","value":"eA=="}],"count":"1"}}]}"#;
    let found = gets(text, "p/").expect("an answer");
    assert!(
        matches!(&found[..], [(id, RecordChange::Bad(_))] if &**id == "b"),
        "{found:?}"
    );
    assert_eq!(gets(br#"{"succeeded":true}"#, "p/"), Ok(vec![]));
    let compacted =
        br#"{"error":"etcdserver: mvcc: required revision has been compacted","code":11}"#;
    assert_eq!(gets(compacted, "p/"), Err(EtcdRefusal::Gap));
    for wrong in [
        &b"{}"[..],
        br#"{"succeeded":true,"responses":[{}]}"#,
        br#"{"succeeded":true,"responses":[{"response_range":{"kvs":[{"key":"!"}]}}]}"#,
    ] {
        let got = gets(wrong, "p/");
        assert!(matches!(got, Err(EtcdRefusal::Failed(_))), "{got:?}");
    }
}
