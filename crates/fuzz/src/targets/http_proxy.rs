//! What clients of an HTTP proxy and servers behind it send. What is forwarded ends where both ends say so:
//! a head that could be read in two ways never leaves.

use adit_proxy::serve::http::{
    BodyFraming, HeadScan, HttpMistake, RequestKind, Requested, request, response,
};

use crate::source::InputBytes;

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let (what, cut) = (source.u8(), source.u16());
    let bytes = source.rest();
    let end = scanned(bytes, usize::from(cut));
    let head = match end {
        Ok(Some(end)) => &bytes[..end],
        _ => bytes,
    };
    if let Ok(read) = request(head)
        && let RequestKind::Forward { head, body, .. } = read.kind
    {
        assert!(read.target.port > 0);
        let framings = forwarded(&head);
        match body {
            BodyFraming::Chunked(_) => assert_eq!(framings, 1),
            BodyFraming::Length(_) => assert!(framings <= 1),
            BodyFraming::UntilClose => panic!("a request ends"),
        }
    }
    let requested = Requested {
        is_head: what & 1 != 0,
        minor: what >> 1 & 1,
        keeps_alive: what & 4 != 0,
        upgrades: what & 8 != 0,
    };
    if let Ok(read) = response(head, requested) {
        // Several codings may stand in several fields.
        forwarded(&read.head);
        assert!(!read.keeps_alive || requested.keeps_alive);
        assert!(!read.keeps_alive || read.body != Some(BodyFraming::UntilClose));
    }
    for body in [BodyFraming::chunked(), BodyFraming::Length(cut.into())] {
        pieces(bytes, usize::from(cut), body);
    }
    if let Some(len) = naive_chunks(bytes) {
        assert_eq!(BodyFraming::chunked().take(bytes), Ok(len));
    }
}

/// Where a head ends: the same, however it comes.
fn scanned(bytes: &[u8], cut: usize) -> Result<Option<usize>, HttpMistake> {
    let whole = HeadScan::default().scan(bytes);
    let cut = cut.min(bytes.len());
    let mut scan = HeadScan::default();
    let in_pieces = match scan.scan(&bytes[..cut]) {
        Ok(None) => scan.scan(&bytes[cut..]).map(|end| end.map(|end| end + cut)),
        first => first,
    };
    assert_eq!(in_pieces, whole);
    whole
}

/// Checks a head that leaves: how many fields say how the body is framed.
fn forwarded(head: &[u8]) -> usize {
    assert_eq!(HeadScan::default().scan(head), Ok(Some(head.len())));
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let names: Vec<&str> = text
        .split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':').map(|(name, _)| name))
        .collect();
    let count = |wanted: &str| names.iter().filter(|name| **name == wanted).count();
    for never in [
        "proxy-authorization",
        "proxy-connection",
        "keep-alive",
        "te",
    ] {
        assert_eq!(count(never), 0, "{text}");
    }
    let (lengths, codings) = (count("content-length"), count("transfer-encoding"));
    assert!(lengths <= 1 && (lengths == 0 || codings == 0), "{text}");
    assert!(count("connection") <= 1 && count("upgrade") <= 1, "{text}");
    lengths + codings
}

/// A body ends at the same place, however it comes.
fn pieces(bytes: &[u8], cut: usize, body: BodyFraming) {
    let mut whole = body;
    let all = whole.take(bytes);
    let cut = cut.min(bytes.len());
    let mut part = body;
    let taken = match part.take(&bytes[..cut]) {
        Ok(first) => part.take(&bytes[first..]).map(|rest| first + rest),
        Err(mistake) => Err(mistake),
    };
    assert_eq!(taken, all);
    if all.is_ok() {
        assert_eq!(part, whole);
    }
}

/// The length of a body of simple chunks without extensions and trailers; `None` if it is not one.
fn naive_chunks(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = bytes[at..].windows(2).position(|it| it == b"\r\n")?;
        let digits = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let is_size =
            (1..=4).contains(&digits.len()) && digits.bytes().all(|it| it.is_ascii_hexdigit());
        let size = usize::from_str_radix(digits, 16).ok().filter(|_| is_size)?;
        at += line + 2 + size;
        if bytes.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
        if size == 0 {
            return Some(at);
        }
    }
}
