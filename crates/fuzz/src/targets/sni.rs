//! The begin of a TLS connection: what is found does not depend on the pieces that it comes in.

use adit_proxy::serve::sni::{LONGEST_HELLO, server_name};

pub(crate) fn run(input: &[u8]) {
    let whole = server_name(input);
    if let Ok(Some(name)) = &whole {
        assert!(!name.is_empty() && name.len() <= 255 && name.is_ascii());
        // It stands there, if not split over records.
        if input
            .windows(name.len())
            .all(|part| part != name.as_bytes())
        {
            assert!(input.len() > name.len() + 10);
        }
    }
    let mut known = false;
    for len in 0..=input.len().min(700) {
        let part = server_name(&input[..len]);
        known |= part != Ok(None);
        assert!(!known || part == whole, "{len}");
    }
    // The same in one record.
    if let Some(message) = message(input)
        && message.len() < LONGEST_HELLO / 2
        && input.len() < LONGEST_HELLO / 2
        && let Ok(len) = u16::try_from(message.len())
    {
        let one = [&[22, 3, 1][..], &len.to_be_bytes(), &message].concat();
        assert_eq!(server_name(&one), whole);
    }
}

/// What whole records of handshake messages have together, if there are no others.
fn message(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    while !bytes.is_empty() {
        let [22, 3, _, high, low, rest @ ..] = bytes else {
            return None;
        };
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        if len == 0 {
            return None;
        }
        message.extend(rest.get(..len)?);
        bytes = &rest[len..];
    }
    (!message.is_empty()).then_some(message)
}
