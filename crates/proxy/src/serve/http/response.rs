//! Responses that a proxy forwards.

use httparse::Header;

use super::HttpMistake;
use super::body::BodyFraming;
use super::request::{FIELDS, Requested, content_length, copy_fields, finish, mistake, one};

/// A response, as the client is to get it.
#[derive(Debug)]
pub struct ProxyResponse {
    /// Its head.
    pub head: Vec<u8>,
    /// Its body; `None` if another response follows, which is the answer (RFC 9110 §15.2).
    pub body: Option<BodyFraming>,
    /// What follows is of another protocol, in both directions.
    pub switches: bool,
    /// The client's connection stays.
    pub keeps_alive: bool,
}

/// Reads a head, with all its lines.
///
/// # Errors
///
/// [`HttpMistake`].
pub fn response(head: &[u8], requested: Requested) -> Result<ProxyResponse, HttpMistake> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut read = httparse::Response::new(&mut fields);
    match read.parse(head) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Ok(_) => {
            return Err(HttpMistake::Malformed(
                "the head does not end where its lines do",
            ));
        }
        Err(error) => return Err(mistake(error)),
    }
    let (Some(code @ 100..), Some(reason)) = (read.code, read.reason) else {
        return Err(HttpMistake::Malformed("the status line is malformed"));
    };
    let fields: &[Header<'_>] = read.headers;
    let switches = code == 101;
    let is_interim = code < 200 && !switches;
    if switches && !requested.upgrades {
        return Err(HttpMistake::Malformed("a protocol that was not asked for"));
    }
    let coding = has_coding(fields);
    let len = content_length(fields)?;
    if coding && len.is_some() {
        return Err(HttpMistake::Malformed(
            "both Content-Length and Transfer-Encoding",
        ));
    }
    let body = match (
        requested.is_head || code < 200 || matches!(code, 204 | 304),
        len,
    ) {
        (true, _) if switches => BodyFraming::UntilClose,
        (true, _) => BodyFraming::Length(0),
        (false, Some(len)) => BodyFraming::Length(len),
        (false, None) if coding && is_chunked(fields) => BodyFraming::chunked(),
        (false, None) => BodyFraming::UntilClose,
    };
    if coding && requested.minor == 0 {
        return Err(HttpMistake::Malformed("chunks for a client of HTTP/1.0"));
    }
    let keeps_alive = requested.keeps_alive && body != BodyFraming::UntilClose;
    let mut out = format!("HTTP/1.1 {code} {reason}\r\n").into_bytes();
    copy_fields(fields, |_| false, &mut out)?;
    for field in fields {
        if field.name.eq_ignore_ascii_case("transfer-encoding") {
            out.extend(b"Transfer-Encoding: ");
            out.extend(field.value);
            out.extend(b"\r\n");
        }
    }
    if let Some(len) = len {
        out.extend(format!("Content-Length: {len}\r\n").into_bytes());
    }
    if is_interim {
        out.extend(b"\r\n");
    } else {
        let upgrade = one(fields, "upgrade")?.filter(|_| switches);
        finish(upgrade, keeps_alive, &mut out);
    }
    Ok(ProxyResponse {
        head: out,
        body: (!is_interim).then_some(body),
        switches,
        keeps_alive,
    })
}

fn has_coding(fields: &[Header<'_>]) -> bool {
    fields
        .iter()
        .any(|field| field.name.eq_ignore_ascii_case("transfer-encoding"))
}

/// Whether the last coding is in chunks; otherwise the end of the connection is the body's.
fn is_chunked(fields: &[Header<'_>]) -> bool {
    let is_coding = |field: &&Header<'_>| field.name.eq_ignore_ascii_case("transfer-encoding");
    let last = fields.iter().rfind(is_coding);
    let word = last.and_then(|field| field.value.rsplit(|byte| *byte == b',').next());
    word.is_some_and(|word| word.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}
