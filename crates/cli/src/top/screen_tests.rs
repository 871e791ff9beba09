use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// All keys that are in these bytes, and how many of these are left.
fn keys(bytes: &[u8]) -> (Vec<KeyPress>, usize) {
    let (mut keys, mut at) = (Vec::new(), 0);
    while let Some((key, length)) = first(&bytes[at..]) {
        assert!(length > 0 && at + length <= bytes.len(), "{bytes:?}");
        keys.extend(key);
        at += length;
    }
    (keys, bytes.len() - at)
}

const SENT: [(&[u8], &[KeyPress]); 19] = [
    (b"q", &[KeyPress::Char('q')]),
    (
        "é€😀".as_bytes(),
        &[
            KeyPress::Char('é'),
            KeyPress::Char('€'),
            KeyPress::Char('😀'),
        ],
    ),
    (b"\r\n", &[KeyPress::Enter, KeyPress::Enter]),
    (b"\x7f\x08", &[KeyPress::Backspace, KeyPress::Backspace]),
    (b"\x03", &[KeyPress::ControlC]),
    (b"\t\x01\x1a\x00", &[]),
    (b"\x1b[A", &[KeyPress::Up]),
    (b"\x1b[B", &[KeyPress::Down]),
    (b"\x1bOA\x1bOB", &[KeyPress::Up, KeyPress::Down]),
    (b"\x1b[H\x1b[1~\x1b[7~\x1bOH", &[KeyPress::Home; 4]),
    (b"\x1b[5~", &[KeyPress::PageUp]),
    (b"\x1b[6~", &[KeyPress::PageDown]),
    // With Control or Shift held down.
    (b"\x1b[1;5A\x1b[6;2~", &[KeyPress::Up, KeyPress::PageDown]),
    // Left, Insert, End, F5, F1 twice.
    (b"\x1b[D\x1b[2~\x1b[F\x1b[15~\x1bOP\x1b[[A", &[]),
    (b"\x1b\x1b[A", &[KeyPress::Escape, KeyPress::Up]),
    (b"\x1bq", &[KeyPress::Escape, KeyPress::Char('q')]),
    // No UTF-8.
    (b"a\xff\xc3b", &[KeyPress::Char('a'), KeyPress::Char('b')]),
    (b"\xff\xff\xff\xff\xffb", &[KeyPress::Char('b')]),
    (b"\x1b[200~ab", &[KeyPress::Char('a'), KeyPress::Char('b')]),
];

#[test]
fn keys_are_read_as_terminals_send_them() {
    for (bytes, expected) in SENT {
        assert_eq!(keys(bytes), (expected.to_vec(), 0), "{bytes:?}");
    }
}

#[test]
fn a_key_that_comes_in_pieces_is_waited_for() {
    for begun in [
        &b"\x1b"[..],
        b"\x1b[",
        b"\x1b[1;5",
        b"\x1b[[",
        b"\x1bO",
        b"\xf0\x9f\x98",
    ] {
        assert_eq!(keys(begun), (Vec::new(), begun.len()), "{begun:?}");
    }
}

proptest! {
    #[test]
    fn whatever_is_sent_comes_to_an_end(bytes in vec(any::<u8>(), 0..300)) {
        let (_, left) = keys(&bytes);
        let is_begun = bytes[bytes.len() - left..].first() == Some(&ESCAPE);
        prop_assert!(left < 4 || is_begun, "{bytes:?}");
    }
}

#[test]
fn only_lines_that_differ_are_written() {
    let line = |text: &str| (text.to_owned(), Style::Plain);
    let before = [line("one"), line("two"), line("three")];
    assert_eq!(changes(&before, &before), "");
    let mut after = before.clone();
    after[1] = ("two".to_owned(), Style::Red);
    assert_eq!(
        changes(&before, &after),
        "\x1b[2;1H\x1b[2K\x1b[31mtwo\x1b[0m"
    );
    let all = changes(&[], &after);
    assert_eq!(all.matches("\x1b[2K").count(), 3, "{all:?}");
    assert!(
        all.ends_with("\x1b[3;1H\x1b[2K\x1b[0mthree\x1b[0m"),
        "{all:?}"
    );
}

#[test]
fn a_name_cannot_command_the_terminal() {
    let name = "a\x1b[2J\x07\u{9b}31mb\n".to_owned();
    let text = changes(&[], &[(name, Style::Plain)]);
    assert_eq!(text, "\x1b[1;1H\x1b[2K\x1b[0ma[2J31mb\x1b[0m");
}
