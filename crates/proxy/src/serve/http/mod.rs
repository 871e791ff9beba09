//! HTTP/1.1 messages (RFC 9110, 9112) as a proxy reads and forwards them, as functions on bytes.

mod body;
mod head;
mod request;
mod response;

pub use body::BodyFraming;
pub use head::{HeadScan, LONGEST_HTTP_HEAD};
pub use request::{ProxyRequest, RequestKind, Requested, basic, request};
pub use response::{ProxyResponse, response};

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpMistake {
    /// It cannot be read, or it can be read in two ways.
    Malformed(&'static str),
    /// Its head is longer than [`LONGEST_HTTP_HEAD`], or has too many fields, or names too many.
    TooLong,
    /// It is of another version than 1.0 and 1.1.
    Version,
}

/// An answer of the proxy's own, after which it closes the connection.
pub fn answer(status: &str, fields: &str, text: &str) -> Vec<u8> {
    let len = text.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len}\r\n\
         Connection: close\r\n\r\n{text}\n"
    )
    .into_bytes()
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
