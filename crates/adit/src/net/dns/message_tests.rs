use super::*;

/// An answer to a question: its code, flags, and records of kind, TTL and data, all of the name that was
/// asked for.
fn answered(question: &[u8], flags: [u8; 2], records: &[(u16, u32, &[u8])]) -> Vec<u8> {
    let mut message = question.to_vec();
    message[2] = flags[0];
    message[3] = flags[1];
    message[7] = u8::try_from(records.len()).expect("few");
    for (kind, ttl, data) in records {
        message.extend([0xc0, 12]);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message.extend(ttl.to_be_bytes());
        message.extend(u16::try_from(data.len()).expect("short").to_be_bytes());
        message.extend(*data);
    }
    message
}

#[test]
fn addresses_come_with_the_least_of_their_times() {
    let asked = question(7, "Host.Example.", RecordKind::A);
    let records: [(u16, u32, &[u8]); 3] = [
        (1, 60, &[10, 0, 0, 1]),
        (1, 30, &[10, 0, 0, 2]),
        // Of another kind.
        (16, 1, b"\x04text"),
    ];
    let answer = answer(&asked, &answered(&asked, [0x81, 0x80], &records)).expect("an answer");
    let addresses: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
    assert_eq!(answer.addresses, addresses);
    assert_eq!(
        (answer.ttl, answer.code, answer.is_truncated),
        (30, 0, false)
    );
}

#[test]
fn an_alias_is_followed() {
    let asked = question(7, "www.example", RecordKind::Aaaa);
    let mut message = answered(&asked, [0x81, 0x80], &[(5, 9, b"\x01a\xc0\x10")]);
    // a.example, by a pointer to where the alias stands: behind the record's fixed fields.
    let alias = u8::try_from(asked.len() + 12).expect("short");
    message[7] = 2;
    message.extend([0xc0, alias, 0, 28, 0, 1, 0, 0, 0, 60, 0, 16]);
    message.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let answer = answer(&asked, &message).expect("an answer");
    assert_eq!(
        answer.addresses,
        ["fd00::1".parse::<IpAddr>().expect("one")]
    );
    assert_eq!(answer.ttl, 9);
}

#[test]
fn what_does_not_answer_the_question_is_none() {
    let asked = question(7, "host", RecordKind::A);
    let right = answered(&asked, [0x81, 0x80], &[(1, 60, &[10, 0, 0, 1])]);
    assert!(answer(&asked, &right).is_some());
    let other_id = question(8, "host", RecordKind::A);
    let other_name = question(7, "hosu", RecordKind::A);
    let other_kind = question(7, "host", RecordKind::Aaaa);
    for other in [&other_id, &other_name, &other_kind] {
        assert_eq!(answer(other, &right), None);
    }
    assert_eq!(answer(&asked, &asked), None, "a question is no answer");
    for len in 0..right.len() {
        assert_eq!(answer(&asked, &right[..len]), None, "{len}");
    }
    let loops = answered(&asked, [0x81, 0x80], &[(5, 1, &[0xc0, 34])]);
    assert_eq!(answer(&asked, &loops), None);
}

#[test]
fn a_truncated_answer_and_a_name_error_are_told() {
    let asked = question(7, "host", RecordKind::A);
    let truncated = answered(&asked, [0x83, 0x80], &[]);
    assert!(answer(&asked, &truncated).expect("an answer").is_truncated);
    let unknown = answered(&asked, [0x81, 0x83], &[]);
    let answer = answer(&asked, &unknown).expect("an answer");
    assert_eq!((answer.code, answer.addresses), (NAME_ERROR, vec![]));
}

#[test]
fn names_have_labels_of_1_to_63_bytes() {
    assert!(is_name("a.b-c.example.") && is_name("_tcp.host") && is_name(&"a".repeat(63)));
    for wrong in [
        "",
        ".",
        "a..b",
        ".a",
        &"a".repeat(64),
        &"abc.".repeat(64),
        "ä",
        "a b",
    ] {
        assert!(!is_name(wrong), "{wrong}");
    }
}
