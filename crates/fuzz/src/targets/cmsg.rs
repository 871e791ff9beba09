//! Control messages of datagrams and of error queues, against a walk by cmsg(3) to the letter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_io::fuzzing;

use crate::source::InputBytes;

/// What is understood: level, type and how long its payload is at least. From the kernel's headers.
const IP: (i32, i32) = (0, 8);
const IP6: (i32, i32) = (41, 50);
const TOS: (i32, i32) = (0, 1);
const TCLASS: (i32, i32) = (41, 67);
const GRO: (i32, i32) = (17, 104);
const OVERFLOW: (i32, i32) = (1, 40);
const ERROR: (i32, i32) = (0, 11);
const ERROR6: (i32, i32) = (41, 25);
const KNOWN: [(i32, i32); 8] = [IP, IP6, TOS, TCLASS, GRO, OVERFLOW, ERROR, ERROR6];

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let control = if source.bool() {
        structured(&mut source)
    } else {
        source.rest().to_vec()
    };
    let messages = walk(&control);

    // 1. Of each kind, the last message that is long enough counts.
    let last = |kind: (i32, i32), len: usize, exact: bool| {
        let fits = |payload: &[u8]| payload.len() == len || !exact && payload.len() > len;
        let found = messages
            .iter()
            .rev()
            .find(|m| (m.0, m.1) == kind && fits(&m.2));
        found.map(|m| m.2.clone())
    };
    let int = |payload: Vec<u8>, at: usize| {
        i32::from_ne_bytes([
            payload[at],
            payload[at + 1],
            payload[at + 2],
            payload[at + 3],
        ])
    };
    let arrived = fuzzing::control(&control);
    let mut sources = messages
        .iter()
        .filter_map(|(level, kind, payload)| match (*level, *kind) {
            IP if payload.len() >= 8 => {
                let ip = Ipv4Addr::new(payload[4], payload[5], payload[6], payload[7]);
                Some((IpAddr::from(ip), int(payload.clone(), 0)))
            }
            IP6 if payload.len() == 20 => {
                let ip: [u8; 16] = payload[..16].try_into().expect("16 bytes");
                Some((Ipv6Addr::from(ip).into(), int(payload.clone(), 16)))
            }
            _ => None,
        });
    let found = arrived
        .source
        .map(|found| (found.ip, found.ifindex.cast_signed()));
    assert_eq!(found, sources.next_back());
    let stride = last(GRO, 4, false).map(|payload| int(payload, 0));
    assert_eq!(arrived.stride.map(|stride| stride as u64), {
        stride.and_then(|stride| u64::try_from(stride).ok())
    });
    let dropped = last(OVERFLOW, 4, false).map(|payload| int(payload, 0).cast_unsigned());
    assert_eq!(arrived.dropped, dropped);
    let mut marks = messages
        .iter()
        .filter_map(|(level, kind, payload)| match (*level, *kind) {
            TOS if !payload.is_empty() => Some(payload[0] & 3),
            TCLASS if payload.len() >= 4 => Some((int(payload.clone(), 0) & 3).to_le_bytes()[0]),
            _ => None,
        });
    assert_eq!(arrived.ecn, marks.next_back().unwrap_or(0));

    // 2. An entry of the error queue; its name is what is left, cut to a length that may be wrong.
    let name: [u8; 28] = source.array();
    let length = usize::from(source.u8());
    let address = fuzzing::name(&name, length);
    let family = u16::from_ne_bytes([name[0], name[1]]);
    assert_eq!(
        address.is_some(),
        matches!((family, length), (2, 16..) | (10, 28..))
    );
    let mut errors = messages
        .iter()
        .filter(|m| matches!((m.0, m.1), ERROR | ERROR6) && m.2.len() >= 16);
    let expected = errors.next_back().map(|m| (m.2[5], m.2[6]));
    let error = fuzzing::icmp(&control, &name, length);
    assert_eq!(error.is_some(), address.is_some());
    if let Some(error) = error {
        assert_eq!(error.code, expected.unwrap_or_default());
        assert!(!error.to_string().contains('\n'));
    }
}

/// Well-formed messages of kinds that are understood, with lengths that may be wrong.
fn structured(source: &mut InputBytes<'_>) -> Vec<u8> {
    let mut control = Vec::new();
    for _ in 0..source.below(8) {
        let (level, kind) = KNOWN[source.below(KNOWN.len())];
        let len = source.below(48);
        let payload = source.take(len).to_vec();
        let wrong = source.u8();
        let length = match wrong {
            0..8 => u64::from(wrong),
            8 => u64::MAX,
            9 => u64::MAX - 7,
            10 => 1 << 32,
            _ => 16 + payload.len() as u64,
        };
        control.extend(length.to_ne_bytes());
        control.extend(level.to_ne_bytes());
        control.extend(kind.to_ne_bytes());
        control.extend(&payload);
        control.resize(control.len().next_multiple_of(8), 0);
    }
    control
}

/// Level, type and payload of every message: `CMSG_FIRSTHDR`, `CMSG_NXTHDR`.
fn walk(control: &[u8]) -> Vec<(i32, i32, Vec<u8>)> {
    let mut messages = Vec::new();
    let mut at = 0;
    while at + 16 <= control.len() {
        let field = |from: usize| <[u8; 4]>::try_from(&control[from..from + 4]).expect("4 bytes");
        let length: [u8; 8] = control[at..at + 8].try_into().expect("8 bytes");
        let length = u64::from_ne_bytes(length);
        if length < 16 || length > (control.len() - at) as u64 {
            break;
        }
        let Ok(length) = usize::try_from(length) else {
            break;
        };
        let payload = control[at + 16..at + length].to_vec();
        messages.push((
            i32::from_ne_bytes(field(at + 8)),
            i32::from_ne_bytes(field(at + 12)),
            payload,
        ));
        at += length.next_multiple_of(8);
    }
    messages
}
