use super::*;

fn counted(len: usize, bytes: &[u8]) -> Vec<u8> {
    let count = bytes.len().to_be_bytes();
    [&count[count.len() - len..], bytes].concat()
}

fn extension(kind: u16, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &counted(2, bytes)].concat()
}

fn name(name: &[u8]) -> Vec<u8> {
    extension(0, &counted(2, &[&[0][..], &counted(2, name)].concat()))
}

/// The handshake message with these extensions.
fn hello(extensions: &[u8]) -> Vec<u8> {
    let body = [
        &[3, 3][..],
        &[7; 32],
        &counted(1, &[9; 32]),
        &counted(2, &[0x13, 1, 0x13, 2]),
        &counted(1, &[0]),
        &counted(2, extensions),
    ];
    [&[1][..], &counted(3, &body.concat())].concat()
}

/// A message in records of so many bytes.
fn records(message: &[u8], len: usize) -> Vec<u8> {
    let record = |piece: &[u8]| [&[22, 3, 1][..], &counted(2, piece)].concat();
    message.chunks(len).flat_map(record).collect()
}

#[test]
fn the_name_is_found_however_the_hello_is_split() {
    let others = extension(0xaaaa, &[0; 40]);
    let message = hello(&[others.clone(), name(b"www.example.org"), others].concat());
    for len in [1, 5, 100, 4096] {
        let bytes = records(&message, len);
        for len in 0..bytes.len() {
            assert_eq!(server_name(&bytes[..len]), Ok(None));
        }
        let early = [&bytes[..], &[23, 3, 3]].concat();
        assert_eq!(server_name(&early), Ok(Some("www.example.org".into())));
    }
}

#[test]
fn what_has_no_name_is_told_apart_from_what_is_no_tls() {
    let of = |message: &[u8]| server_name(&records(message, 4096));
    assert_eq!(of(&hello(&[])), Err(SniMistake::NoName));
    assert_eq!(of(&hello(&extension(10, &[1, 2]))), Err(SniMistake::NoName));
    for wrong in [&b"10.0.0.1"[..], b"fd00::1", b"", b"a b", b"a\0", b"\xff"] {
        assert_eq!(
            of(&hello(&name(wrong))),
            Err(SniMistake::NotTls),
            "{wrong:?}"
        );
    }
    let mut wrong = hello(&name(b"a.example"));
    wrong[0] = 2;
    assert_eq!(of(&wrong), Err(SniMistake::NotTls));
    // An extension that goes on after its end.
    let mut wrong = hello(&name(b"a.example"));
    let at = wrong.len() - 13;
    wrong[at] = 0xff;
    assert_eq!(of(&wrong), Err(SniMistake::NotTls));
    for wrong in [
        &b"GET / HTTP/1.1"[..],
        &[22, 2],
        &[22, 3, 1, 0, 0],
        &[22, 3, 1, 0xff, 0xff],
    ] {
        assert_eq!(server_name(wrong), Err(SniMistake::NotTls), "{wrong:?}");
    }
}

#[test]
fn a_hello_without_end_is_given_up() {
    let long = hello(&extension(21, &[0; LONGEST_HELLO]));
    assert_eq!(server_name(&records(&long, 4096)), Err(SniMistake::TooLong));
    // Records of a byte: five times as many bytes as the message has.
    let message = hello(&extension(21, &[0; LONGEST_HELLO / 3]));
    let bytes = records(&message, 1);
    assert_eq!(server_name(&bytes), Err(SniMistake::TooLong));
    assert_eq!(server_name(&bytes[..LONGEST_HELLO - 1]), Ok(None));
}
