//! What the kernel says over netlink and in its log. It is trusted, but newer than this program.

use crate::source::InputBytes;

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let bytes = if source.bool() {
        structured(&mut source)
    } else {
        source.rest().to_vec()
    };
    let heard = adit_netlink::fuzzing::hear(&bytes);
    assert_eq!(heard, walk(&bytes), "messages in the buffer");
}

/// Well-formed headers of messages that are understood.
fn structured(source: &mut InputBytes<'_>) -> Vec<u8> {
    // NLMSG_ERROR, NLMSG_DONE; links, addresses, routes, rules: new and gone.
    const KINDS: [u16; 10] = [2, 3, 16, 17, 20, 21, 24, 25, 32, 33];
    let mut bytes = Vec::new();
    while !source.is_empty() {
        let kind = KINDS[source.below(KINDS.len())];
        let flags = source.u16();
        let mut body = source.piece(64);
        for _ in 0..source.below(6) {
            let kind = source.u16() & 0xc03f;
            let value = source.piece(80);
            let length = u16::try_from(4 + value.len()).unwrap_or(0);
            body.resize(body.len().next_multiple_of(4), 0);
            body.extend(length.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(value);
        }
        let length = u32::try_from(16 + body.len()).unwrap_or(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(body);
    }
    bytes
}

/// Kinds of the messages, by netlink(7): `NLMSG_OK`, `NLMSG_NEXT`.
fn walk(bytes: &[u8]) -> Vec<u16> {
    let mut kinds = Vec::new();
    let mut at = 0;
    while at + 16 <= bytes.len() {
        let length = u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let Ok(length) = usize::try_from(length) else {
            break;
        };
        if length < 16 || at + length > bytes.len() {
            break;
        }
        kinds.push(u16::from_ne_bytes([bytes[at + 4], bytes[at + 5]]));
        at += length.next_multiple_of(4);
    }
    kinds
}
