use proptest::prelude::*;

use super::*;

const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// As journalctl prints it.
fn entry(uid: &str, message: &str) -> Vec<u8> {
    let message = serde_json::to_string(message).unwrap();
    format!(
        r#"{{"__CURSOR":"s=1","__REALTIME_TIMESTAMP":"1764417600250000","PRIORITY":"5","_UID":"{uid}","MESSAGE":{message}}}"#
    )
    .into_bytes()
}

#[test]
fn lines_of_the_log_become_events() {
    let line = format!(
        "adit: wg0: configuration changed: wg (pid 17, uid 0, for uid 1000) removed the peer {KEY} (phone)"
    );
    let found = event(&entry("0", &line), 7).unwrap();
    assert_eq!(
        (found.interface.as_str(), found.event.as_str()),
        ("wg0", "configured")
    );
    assert_eq!(
        (found.pid, found.uid, found.login),
        (Some(17), Some(0), Some(1000))
    );
    assert_eq!(found.command.as_deref(), Some("wg"));
    assert_eq!(found.peer.as_deref(), Some(KEY));
    assert!(
        found
            .text
            .ends_with("removed the peer AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE= (phone)")
    );
    assert!((found.time - 1_764_417_600.25).abs() < 1e-6);

    let other = event(&entry("7", "wg0: refused a request: no"), 7).unwrap();
    assert_eq!((other.event.as_str(), other.pid), ("logged", None));
}

#[test]
fn entries_of_other_users_and_of_other_programs_are_left_out() {
    let line = "adit: wg0: configuration changed: wg (pid 1, uid 0) changed fwmark from 0 to 7";
    assert!(event(&entry("0", line), 7).is_some());
    assert!(event(&entry("8", line), 7).is_none());
    assert!(event(&entry("", line), 7).is_none());
    for other in [
        "",
        "adit",
        "adit: wg0",
        "adit: two words: x",
        "adit: ../x: y",
    ] {
        assert!(event(&entry("0", other), 7).is_none(), "{other}");
    }
    let bytes = r#"{"_UID":"0","__REALTIME_TIMESTAMP":"1","MESSAGE":[119,103,48,58,32,255]}"#;
    assert_eq!(event(bytes.as_bytes(), 7).unwrap().text, "\u{fffd}");
}

#[test]
fn a_line_that_is_too_long_is_left_out() {
    let long = vec![b'x'; 3 << 20];
    let text = [&b"a\n"[..], &long, b"\nb\n"].concat();
    let (mut input, mut line) = (&text[..], Vec::new());
    let mut found = Vec::new();
    while next_line(&mut input, &mut line).unwrap() {
        found.push(line.clone());
    }
    assert_eq!(found, [&b"a\n"[..], b"", b"b\n"]);
}

proptest! {
    #[test]
    fn whatever_the_journal_has_nothing_panics(message in ".*", field in ".*", bytes in any::<Vec<u8>>()) {
        let _ = event(&entry("0", &message), 0);
        let _ = event(&entry("0", &format!("wg0: configuration changed: {message}")), 0);
        let _ = event(field.as_bytes(), 0);
        let _ = event(&bytes, 0);
    }
}
