use adit_proto::config::Secret;

use super::*;

#[test]
fn a_line_is_news_of_one_record_or_the_end_of_the_list() {
    let key = Secret::new(&[1; 32]).public_key();
    let parse = |line: &str| ProgramLine::parse(line.as_bytes());
    let put = parse(&format!(
        "{{\"put\":{{\"public_key\":\"{key}\",\"allowed_ips\":[\"10.0.0.2\"]}}}}"
    ));
    let ProgramLine::Change(id, RecordChange::Put(record)) = put else {
        panic!("{put:?}");
    };
    assert_eq!((&*id, record.public_key), (&*key.to_string(), key));
    let delete = parse(&format!(" {{\"delete\":\"{key}\"}}\r"));
    let id = RecordId::from(key.to_string());
    assert_eq!(
        delete,
        ProgramLine::Change(id.clone(), RecordChange::Delete)
    );
    assert_eq!(parse("{\"listed\":true}"), ProgramLine::Listed);
    // A record that is bad has its key, if that is one.
    let bad = parse(&format!(
        "{{\"put\":{{\"public_key\":\"{key}\",\"quota\":\"much\"}}}}"
    ));
    assert!(
        matches!(bad, ProgramLine::Change(of, RecordChange::Bad(why)) if of == id && why.contains("Quota"))
    );
}

#[test]
fn a_line_that_is_none_says_why_and_repeats_nothing() {
    // No public key: a secret in the wrong place.
    let secret = "AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let long = "[".repeat(MAX_LINE + 1);
    for (line, words) in [
        ("", "no JSON object"),
        ("hello", "no JSON object"),
        ("[]", "no JSON object"),
        ("{}", "expected {\"put\""),
        ("{\"listed\":false}", "expected {\"put\""),
        ("{\"listed\":true,\"delete\":\"x\"}", "expected {\"put\""),
        ("{\"delete\":\"x\"}", "expected a public key"),
        ("{\"put\":[]}", "expected {\"put\""),
        ("{\"put\":{}}", "missing field"),
        (
            &format!("{{\"put\":{{\"public_key\":\"{secret}\"}}}}"),
            "no public key",
        ),
        (&long, "more than"),
    ] {
        let read = ProgramLine::parse(line.as_bytes());
        let ProgramLine::Bad(why) = read else {
            panic!("{line}: {read:?}");
        };
        assert!(why.contains(words) && !why.contains(secret), "{why}");
    }
}

proptest::proptest! {
    #[test]
    fn no_line_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let _ = ProgramLine::parse(&bytes);
    }
}
