//! The name of the server in a TLS ClientHello (RFC 8446 §4.1.2, RFC 6066 §3), as a function on bytes.

/// The bytes of a ClientHello that are looked at, those of its records included.
pub const LONGEST_HELLO: usize = 16 << 10;

/// Records (RFC 8446 §5.1) of handshake messages.
const HANDSHAKE: u8 = 22;
const LONGEST_RECORD: usize = (1 << 14) + 256;
/// The first handshake message of a client.
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Why there is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SniMistake {
    /// It is no TLS, or no ClientHello that can be read.
    NotTls,
    /// It is longer than [`LONGEST_HELLO`].
    TooLong,
    /// It names no server.
    NoName,
}

/// A fatal alert that tells the client so (RFC 8446 §6): `decode_error`, or `unrecognized_name`.
pub fn alert(mistake: SniMistake) -> [u8; 7] {
    match mistake {
        SniMistake::NotTls | SniMistake::TooLong => fatal(50),
        SniMistake::NoName => fatal(112),
    }
}

/// The fatal alert of this number.
pub fn fatal(description: u8) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description]
}

/// The name of the server that a client wants, of all that it has sent so far; `None` while bytes are
/// missing. A ClientHello may be split over records.
///
/// # Errors
///
/// [`SniMistake`].
pub fn server_name(bytes: &[u8]) -> Result<Option<String>, SniMistake> {
    let mut message = Vec::new();
    let mut rest = bytes;
    let body = loop {
        if let Some([kind, len @ ..]) = message.first_chunk::<4>() {
            if *kind != CLIENT_HELLO {
                return Err(SniMistake::NotTls);
            }
            let len = usize::from(len[0]) << 16 | usize::from(u16::from_be_bytes([len[1], len[2]]));
            if len > LONGEST_HELLO {
                return Err(SniMistake::TooLong);
            }
            if let Some(body) = message.get(4..4 + len) {
                break body;
            }
        }
        if bytes.len() - rest.len() > LONGEST_HELLO {
            return Err(SniMistake::TooLong);
        }
        let Some(after) = record(rest, &mut message)? else {
            return match bytes.len() < LONGEST_HELLO {
                true => Ok(None),
                false => Err(SniMistake::TooLong),
            };
        };
        rest = after;
    };
    let name = name_in(body).ok_or(SniMistake::NotTls)?;
    name.map(Some).ok_or(SniMistake::NoName)
}

/// Appends what a record has to a message: what is after the record, or `None` while bytes are missing.
fn record<'a>(bytes: &'a [u8], message: &mut Vec<u8>) -> Result<Option<&'a [u8]>, SniMistake> {
    // A client of another protocol is told at once.
    let is_begun = |at: usize, byte| bytes.get(at).is_none_or(|it| *it == byte);
    if !is_begun(0, HANDSHAKE) || !is_begun(1, 3) {
        return Err(SniMistake::NotTls);
    }
    let Some([_, _, _, high, low]) = bytes.first_chunk() else {
        return Ok(None);
    };
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    if len == 0 || len > LONGEST_RECORD {
        return Err(SniMistake::NotTls);
    }
    let have = &bytes[5..];
    message.extend_from_slice(&have[..len.min(have.len())]);
    Ok(have.get(len..))
}

/// The name in the body of a ClientHello: `None` if that is malformed, `Some(None)` if it has none.
fn name_in(body: &[u8]) -> Option<Option<String>> {
    let mut body = HelloFields(body);
    // Version and random bytes.
    body.take(34)?;
    // The session, cipher suites, ways of compression.
    let len = body.byte()?;
    body.take(len.into())?;
    let len = body.word()?;
    body.take(len.into())?;
    let len = body.byte()?;
    body.take(len.into())?;
    if body.0.is_empty() {
        return Some(None);
    }
    let len = body.word()?;
    let mut extensions = HelloFields(body.take(len.into())?);
    while !extensions.0.is_empty() {
        let kind = extensions.word()?;
        let len = extensions.word()?;
        let extension = extensions.take(len.into())?;
        if kind == SERVER_NAME {
            let mut names = HelloFields(extension);
            let len = names.word()?;
            let mut names = HelloFields(names.take(len.into())?);
            let kind = names.byte()?;
            let len = names.word()?;
            let name = names.take(len.into())?;
            return (kind == HOST_NAME)
                .then(|| host_name(name))
                .flatten()
                .map(Some);
        }
    }
    Some(None)
}

/// A name of DNS, without the dot at its end; addresses are none (RFC 6066 §3).
fn host_name(name: &[u8]) -> Option<String> {
    let of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let is_name = (1..=255).contains(&name.len()) && name.iter().all(of_name);
    let name = std::str::from_utf8(name).ok().filter(|_| is_name)?;
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    (!is_address).then(|| name.to_owned())
}

/// HelloFields that follow each other.
struct HelloFields<'a>(&'a [u8]);

impl<'a> HelloFields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|it| it[0])
    }

    fn word(&mut self) -> Option<u16> {
        self.take(2).map(|it| u16::from_be_bytes([it[0], it[1]]))
    }
}

#[cfg(test)]
#[path = "sni_tests.rs"]
mod tests;
