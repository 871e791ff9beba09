//! Questions and answers of DNS (RFC 1035), as far as addresses of a name take it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER: usize = 12;
/// Class IN.
const INTERNET: u16 = 1;
/// Names that point to each other are followed so often.
const MAX_POINTERS: usize = 16;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    A = 1,
    Aaaa = 28,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) addresses: Vec<IpAddr>,
    /// Seconds for which they hold.
    pub(super) ttl: u32,
    /// It did not fit: to be asked for over TCP.
    pub(super) is_truncated: bool,
    /// 0, or why there is none (RFC 1035 §4.1.1).
    pub(super) code: u8,
}

/// No such name.
pub(super) const NAME_ERROR: u8 = 3;

/// Whether a name can be asked for.
pub(super) fn is_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        let is_char = |byte: u8| byte.is_ascii_graphic() && byte != b'.';
        (1..=63).contains(&label.len()) && label.bytes().all(is_char)
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// The question for the addresses of a name that [can be asked for](is_name).
pub(super) fn question(id: u16, name: &str, kind: RecordKind) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + name.len() + 6);
    message.extend(id.to_be_bytes());
    // Recursion is desired; one question.
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.trim_end_matches('.').split('.') {
        message.push(u8::try_from(label.len()).unwrap_or(63));
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend((kind as u16).to_be_bytes());
    message.extend(INTERNET.to_be_bytes());
    message
}

/// Reads the answer to a question: `None` if it is none, or is malformed.
pub(super) fn answer(question: &[u8], message: &[u8]) -> Option<Answer> {
    let header = message.first_chunk::<HEADER>()?;
    let is_answer = header[2] & 0x80 != 0 && header[..2] == question[..2];
    let asked = &question[HEADER..];
    let repeated = message.get(HEADER..question.len())?;
    // Names are the same in either case of letters.
    if !is_answer || word(header, 4) != 1 || !repeated.eq_ignore_ascii_case(asked) {
        return None;
    }
    let kind = word(asked, asked.len() - 4);
    let mut answer = Answer {
        addresses: Vec::new(),
        ttl: u32::MAX,
        is_truncated: header[2] & 2 != 0,
        code: header[3] & 15,
    };
    // The name whose addresses count: that which was asked for, or the last alias.
    let mut name = name_at(message, HEADER)?.0;
    let mut at = question.len();
    for _ in 0..word(header, 6) {
        let Some((owner, record)) = name_at(message, at) else {
            // A truncated message may end anywhere.
            return answer.is_truncated.then_some(answer);
        };
        let fields = message.get(record..record + 10)?;
        let (of, class) = (word(fields, 0), word(fields, 2));
        let ttl = u32::from(word(fields, 4)) << 16 | u32::from(word(fields, 6));
        let data = record + 10;
        at = data + usize::from(word(fields, 8));
        let bytes = message.get(data..at)?;
        if class != INTERNET || owner != name {
            continue;
        }
        if of == 5 {
            name = name_at(message, data)?.0;
            answer.ttl = answer.ttl.min(ttl);
        } else if of == kind {
            let address = match kind {
                1 => <[u8; 4]>::try_from(bytes).map(|it| Ipv4Addr::from(it).into()),
                _ => <[u8; 16]>::try_from(bytes).map(|it| Ipv6Addr::from(it).into()),
            };
            answer.addresses.push(address.ok()?);
            answer.ttl = answer.ttl.min(ttl);
        }
    }
    Some(answer)
}

fn word(bytes: &[u8], at: usize) -> u16 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>());
    field.map_or(0, |field| u16::from_be_bytes(*field))
}

/// The name at a place, in lower case, and what follows it.
fn name_at(message: &[u8], mut at: usize) -> Option<(Vec<u8>, usize)> {
    let mut name = Vec::new();
    let mut behind = None;
    let mut pointers = 0;
    loop {
        let len = *message.get(at)?;
        match len {
            0 => return Some((name, behind.unwrap_or(at + 1))),
            1..=63 => {
                let end = at + 1 + usize::from(len);
                name.push(len);
                name.extend(message.get(at + 1..end)?.to_ascii_lowercase());
                if name.len() > 255 {
                    return None;
                }
                at = end;
            }
            192.. => {
                pointers += 1;
                if pointers > MAX_POINTERS {
                    return None;
                }
                behind.get_or_insert(at + 2);
                message.get(at + 1)?;
                at = usize::from(word(message, at) & 0x3fff);
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
