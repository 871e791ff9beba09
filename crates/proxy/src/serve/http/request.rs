//! Requests to a proxy.

use std::net::Ipv6Addr;

use httparse::Header;

use super::HttpMistake;
use super::body::BodyFraming;
use crate::config::{Credentials, EndpointHost, ProxyEndpoint};

/// Fields of a head.
pub(super) const FIELDS: usize = 128;
/// Fields that Connection names.
const NAMED: usize = 64;

/// What a client asks for.
#[derive(Debug)]
pub struct ProxyRequest {
    /// What is to be done.
    pub kind: RequestKind,
    /// Where.
    pub target: ProxyEndpoint,
    /// What it says of itself: the value of Proxy-Authorization.
    pub authorization: Option<Vec<u8>>,
}

/// What is to be done for a request.
#[derive(Debug)]
pub enum RequestKind {
    /// A connection is wanted.
    Connect,
    /// The request is to be forwarded.
    Forward {
        /// Its head, as the server is to get it.
        head: Vec<u8>,
        /// Its body.
        body: BodyFraming,
        /// What the answer depends on.
        requested: Requested,
    },
}

/// What a response depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Only the head was asked for.
    pub is_head: bool,
    /// The client's version is 1.0, or 1.1.
    pub minor: u8,
    /// The client sends further requests.
    pub keeps_alive: bool,
    /// The client asks for another protocol.
    pub upgrades: bool,
}

/// Reads a head, with all its lines.
///
/// # Errors
///
/// [`HttpMistake`].
pub fn request(head: &[u8]) -> Result<ProxyRequest, HttpMistake> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut read = httparse::Request::new(&mut fields);
    match read.parse(head) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Ok(_) => {
            return Err(HttpMistake::Malformed(
                "the head does not end where its lines do",
            ));
        }
        Err(error) => return Err(mistake(error)),
    }
    let (Some(method), Some(uri), Some(minor)) = (read.method, read.path, read.version) else {
        return Err(HttpMistake::Malformed("the request line is incomplete"));
    };
    let fields: &[Header<'_>] = read.headers;
    let authorization = one(fields, "proxy-authorization")?.map(<[u8]>::to_vec);
    if method == "CONNECT" {
        let target = authority(uri, None)
            .ok_or(HttpMistake::Malformed("CONNECT takes a host and a port"))?;
        return Ok(ProxyRequest {
            kind: RequestKind::Connect,
            target,
            authorization,
        });
    }
    let (host, path) = absolute(uri)?;
    let target = authority(host, Some(80)).ok_or(HttpMistake::Malformed(
        "the URL has no host and port that can be read",
    ))?;
    let body = body_of(fields, minor)?;
    let upgrade = match has_token(fields, "connection", "upgrade") && minor == 1 {
        true => one(fields, "upgrade")?,
        false => None,
    };
    let requested = Requested {
        is_head: method == "HEAD",
        minor,
        keeps_alive: minor == 1
            && !has_token(fields, "connection", "close")
            && !has_token(fields, "proxy-connection", "close"),
        upgrades: upgrade.is_some(),
    };
    // OPTIONS of a URL without a path is about the server (RFC 9112 §3.2.4).
    let path = match path {
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    // 1. The request line and the host of the URL, whatever Host says (RFC 9112 §3.2.2).
    let mut out = format!("{method} {path} HTTP/1.{minor}\r\nHost: {host}\r\n").into_bytes();
    // 2. Fields of the sender, but for those of this connection.
    let drops = |name: &str| name.eq_ignore_ascii_case("host");
    copy_fields(fields, drops, &mut out)?;
    // 3. The framing, said once.
    match body {
        BodyFraming::Chunked(_) => out.extend(b"Transfer-Encoding: chunked\r\n"),
        BodyFraming::Length(len) if len > 0 || one(fields, "content-length")?.is_some() => {
            out.extend(format!("Content-Length: {len}\r\n").into_bytes());
        }
        _ => {}
    }
    // 4. The fields of the next connection.
    finish(upgrade, false, &mut out);
    Ok(ProxyRequest {
        kind: RequestKind::Forward {
            head: out,
            body,
            requested,
        },
        target,
        authorization,
    })
}

/// What RFC 7617 has a client say with these credentials.
pub fn basic(credentials: &Credentials) -> String {
    let pair = zeroize::Zeroizing::new(format!(
        "{}:{}",
        credentials.user,
        credentials.password.as_str()
    ));
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("Basic ");
    for piece in pair.as_bytes().chunks(3) {
        let byte = |at: usize| u32::from(piece.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            match digit <= piece.len() {
                true => text.push(char::from(ALPHABET[value as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

pub(super) fn mistake(error: httparse::Error) -> HttpMistake {
    match error {
        httparse::Error::Version => HttpMistake::Version,
        httparse::Error::TooManyHeaders => HttpMistake::TooLong,
        httparse::Error::HeaderName => HttpMistake::Malformed("the name of a field is malformed"),
        httparse::Error::HeaderValue => HttpMistake::Malformed("the value of a field is malformed"),
        _ => HttpMistake::Malformed("the first line is malformed"),
    }
}

/// The host and the path of a URL.
fn absolute(uri: &str) -> Result<(&str, &str), HttpMistake> {
    let Some((scheme, rest)) = uri.split_once("://") else {
        return Err(HttpMistake::Malformed(
            "this is a proxy: it takes CONNECT, or a whole URL",
        ));
    };
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HttpMistake::Malformed(
            "only URLs of http are forwarded: use CONNECT for others",
        ));
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    Ok(rest.split_at(end))
}

/// A host and a port.
fn authority(text: &str, port: Option<u16>) -> Option<ProxyEndpoint> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let host = EndpointHost::Address(host.parse::<Ipv6Addr>().ok()?.into());
        let port = port_of(rest.strip_prefix(':'), port.filter(|_| rest.is_empty()))?;
        return Some(ProxyEndpoint { host, port });
    }
    let (name, after) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if name.is_empty() || name.len() > 255 || !name.bytes().all(of_name) {
        return None;
    }
    let port = port_of(after, port.filter(|_| after.is_none()))?;
    let host = match name.parse() {
        Ok(ip) => EndpointHost::Address(ip),
        Err(_) => EndpointHost::Name(name.to_owned()),
    };
    Some(ProxyEndpoint { host, port })
}

fn port_of(text: Option<&str>, otherwise: Option<u16>) -> Option<u16> {
    let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let port = match text {
        Some(text) => Some(text).filter(is_number)?.parse().ok(),
        None => otherwise,
    };
    port.filter(|port| *port > 0)
}

/// How the body of a request is framed. What could be read in two ways is refused (RFC 9112 §6.3, §11.2).
fn body_of(fields: &[Header<'_>], minor: u8) -> Result<BodyFraming, HttpMistake> {
    let coding = one(fields, "transfer-encoding")?;
    let len = content_length(fields)?;
    match (coding, len) {
        (None, len) => Ok(BodyFraming::Length(len.unwrap_or(0))),
        (Some(_), Some(_)) => Err(HttpMistake::Malformed(
            "both Content-Length and Transfer-Encoding",
        )),
        (Some(coding), None) if minor == 1 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(BodyFraming::chunked())
        }
        (Some(_), None) => Err(HttpMistake::Malformed(
            "a Transfer-Encoding other than chunked",
        )),
    }
}

/// The value of Content-Length, which may be repeated, but not differ.
pub(super) fn content_length(fields: &[Header<'_>]) -> Result<Option<u64>, HttpMistake> {
    let wrong = HttpMistake::Malformed("Content-Length is no number, or several");
    let mut len = None;
    for field in named(fields, "content-length") {
        let text = std::str::from_utf8(field.value).map_err(|_| wrong)?;
        let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        let value: u64 = text.parse().ok().filter(|_| is_number).ok_or(wrong)?;
        if len.is_some_and(|before| before != value) {
            return Err(wrong);
        }
        len = Some(value);
    }
    Ok(len)
}

fn named<'a, 'b>(fields: &'a [Header<'b>], name: &'a str) -> impl Iterator<Item = &'a Header<'b>> {
    fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name))
}

/// The value of a field that may be there once.
pub(super) fn one<'b>(
    fields: &[Header<'b>],
    name: &'static str,
) -> Result<Option<&'b [u8]>, HttpMistake> {
    let mut values = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case(name));
    let value = values.next().map(|field| field.value);
    match values.next() {
        None => Ok(value),
        Some(_) => Err(HttpMistake::Malformed(
            "a field that may be there once is repeated",
        )),
    }
}

/// The words of the list in a field.
fn tokens<'a, 'b>(fields: &'a [Header<'b>], name: &'a str) -> impl Iterator<Item = &'b [u8]> {
    named(fields, name)
        .flat_map(|field| field.value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|word| !word.is_empty())
}

fn has_token(fields: &[Header<'_>], name: &str, token: &str) -> bool {
    tokens(fields, name).any(|word| word.eq_ignore_ascii_case(token.as_bytes()))
}

/// Copies fields, but for those of one connection (RFC 9110 §7.6.1), those that Connection names, and those
/// that are said anew. Connection names only so many, as each field is looked for among them.
pub(super) fn copy_fields(
    fields: &[Header<'_>],
    drops: impl Fn(&str) -> bool,
    out: &mut Vec<u8>,
) -> Result<(), HttpMistake> {
    const OF_CONNECTION: [&str; 9] = [
        "connection",
        "proxy-connection",
        "keep-alive",
        "te",
        "upgrade",
        "proxy-authorization",
        "proxy-authenticate",
        "transfer-encoding",
        "content-length",
    ];
    let named: Vec<&[u8]> = tokens(fields, "connection").take(NAMED + 1).collect();
    if named.len() > NAMED {
        return Err(HttpMistake::TooLong);
    }
    for field in fields {
        let is = |name: &&[u8]| name.eq_ignore_ascii_case(field.name.as_bytes());
        let is_of_connection = OF_CONNECTION.iter().any(|name| is(&name.as_bytes()));
        if is_of_connection || drops(field.name) || named.iter().any(is) {
            continue;
        }
        out.extend(field.name.as_bytes());
        out.extend(b": ");
        out.extend(field.value);
        out.extend(b"\r\n");
    }
    Ok(())
}

/// Ends a head with the fields of its connection.
pub(super) fn finish(upgrade: Option<&[u8]>, keeps_alive: bool, out: &mut Vec<u8>) {
    match (upgrade, keeps_alive) {
        (Some(protocol), _) => {
            out.extend(b"Connection: upgrade\r\nUpgrade: ");
            out.extend(protocol);
            out.extend(b"\r\n");
        }
        (None, true) => out.extend(b"Connection: keep-alive\r\n"),
        (None, false) => out.extend(b"Connection: close\r\n"),
    }
    out.extend(b"\r\n");
}
