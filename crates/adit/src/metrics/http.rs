//! HTTP/1.1 for one document: `GET /metrics`. Each connection carries one request.
//!
//! Nothing that a client does costs more than a constant: [`CONNECTIONS`] at a time, [`HEAD`] bytes
//! of request, [`PATIENCE`] for all of it. Documents are made one at a time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Put;
use crate::failure::{Context, Result, say};

/// Connections at a time; further ones are closed at once.
const CONNECTIONS: usize = 16;
/// Longest request, in bytes.
const HEAD: usize = 8 << 10;
/// How long a client may take for its request, and again for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait when accept(2) fails, as it does without free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Puts out a document, in pieces.
pub(super) type Document = Box<dyn Fn(&mut Put<'_>) -> io::Result<()>>;

/// Answers until the process is ended. `address` is `ADDRESS:PORT` or `unix:PATH`.
pub(super) fn serve(
    address: &str,
    document: impl Fn() -> Document + Send + Sync + 'static,
) -> Result<()> {
    let server = Arc::new(Server {
        document: Box::new(document),
        one_at_a_time: Mutex::new(()),
        connections: AtomicUsize::new(0),
    });
    let failed = || format!("cannot listen at {address}");
    match address.strip_prefix("unix:") {
        Some(path) => {
            let listener = bind(Path::new(path)).context(failed)?;
            server.run(|| listener.accept().map(|(stream, _)| stream))
        }
        None => {
            let listener = TcpListener::bind(address).context(failed)?;
            server.run(|| listener.accept().map(|(stream, _)| stream))
        }
    }
}

/// Takes the place of a socket that nobody listens at.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let bound = UnixListener::bind(path).or_else(|error| {
        let is_dead = UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        match error.kind() == io::ErrorKind::AddrInUse && is_dead {
            true => std::fs::remove_file(path).and_then(|()| UnixListener::bind(path)),
            false => Err(error),
        }
    })?;
    // The document has no keys. Its directory says who may get here.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
    Ok(bound)
}

/// A connection of either kind.
trait Stream: Read + Write + Send + 'static {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()>;
    fn end(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

struct Server {
    document: Box<dyn Fn() -> Document + Send + Sync>,
    one_at_a_time: Mutex<()>,
    connections: AtomicUsize,
}

impl Server {
    fn run<S: Stream>(self: &Arc<Self>, accept: impl Fn() -> io::Result<S>) -> Result<()> {
        loop {
            let stream = match accept() {
                Ok(stream) => stream,
                Err(error) => {
                    say!("adit: cannot accept a connection: {error}");
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            let place = Place::take(self);
            let Some(place) = place else {
                continue;
            };
            let thread = std::thread::Builder::new().name("adit-metrics".into());
            let answered = thread.spawn(move || {
                // A client that goes away or stalls is none of our business.
                _ = place.0.answer(stream);
            });
            if let Err(error) = answered {
                say!("adit: cannot answer a connection: {error}");
            }
        }
    }

    fn answer(&self, mut stream: impl Stream) -> io::Result<()> {
        let head = read_head(&mut stream)?;
        match request(&head) {
            Ok(wanted) => {
                let turn = self.one_at_a_time.lock();
                let document = (self.document)();
                drop(turn.unwrap_or_else(PoisonError::into_inner));
                self.send(&mut stream, wanted, &document)?;
            }
            Err(status) => {
                let kind = "text/plain; charset=utf-8";
                let body = format!("{status}\n");
                let length = format!("Content-Length: {}\r\n", body.len());
                let answer = format_head(status, kind, &length) + &body;
                write_all(&mut stream, answer.as_bytes(), Instant::now() + PATIENCE)?;
            }
        }
        stream.end()
    }

    /// The document leaves while it is made, and nobody knows its length before: an older client
    /// than of HTTP/1.1 learns from the end of the connection that it is whole.
    fn send(
        &self,
        stream: &mut impl Stream,
        wanted: Wanted,
        document: &Document,
    ) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let coding = match wanted.in_chunks {
            true => "Transfer-Encoding: chunked\r\n",
            false => "",
        };
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        write_all(
            stream,
            format_head("200 OK", kind, coding).as_bytes(),
            until,
        )?;
        if !wanted.has_body {
            return Ok(());
        }
        document(&mut |piece| {
            if !wanted.in_chunks {
                return write_all(stream, piece, until);
            }
            let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
            chunk.extend_from_slice(piece);
            chunk.extend_from_slice(b"\r\n");
            write_all(stream, &chunk, until)
        })?;
        match wanted.in_chunks {
            true => write_all(stream, b"0\r\n\r\n", until),
            false => Ok(()),
        }
    }
}

/// One of the connections that there may be; it is given back when this is dropped.
struct Place(Arc<Server>);

impl Place {
    fn take(server: &Arc<Server>) -> Option<Self> {
        let place = Self(Arc::clone(server));
        let before = server.connections.fetch_add(1, Ordering::AcqRel);
        (before < CONNECTIONS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The request up to its blank line. Empty if it is too long.
fn read_head(stream: &mut impl Stream) -> io::Result<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_timeouts(left)?;
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&piece[..count]);
        let is_whole = head.windows(4).any(|four| four == b"\r\n\r\n")
            || head.windows(2).any(|two| two == b"\n\n");
        if head.len() > HEAD {
            return Ok(Vec::new());
        }
        if is_whole {
            return Ok(head);
        }
    }
}

/// How the document is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    /// It is not wanted by HEAD.
    has_body: bool,
    in_chunks: bool,
}

/// How the document is wanted, or what is wrong with the request.
fn request(head: &[u8]) -> std::result::Result<Wanted, &'static str> {
    if head.is_empty() {
        return Err("431 Request Header Fields Too Large");
    }
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| "400 Bad Request")?;
    let mut words = line.split_whitespace();
    let (method, target, version) = (words.next(), words.next(), words.next());
    if !version.is_some_and(|version| version.starts_with("HTTP/1.")) || words.next().is_some() {
        return Err("400 Bad Request");
    }
    let path = target.and_then(|target| target.split('?').next());
    match (method, path) {
        (Some(method @ ("GET" | "HEAD")), Some("/metrics")) => Ok(Wanted {
            has_body: method == "GET",
            in_chunks: version != Some("HTTP/1.0"),
        }),
        (Some("GET" | "HEAD"), _) => Err("404 Not Found"),
        _ => Err("405 Method Not Allowed"),
    }
}

/// `length` is the line that says how long the body is.
fn format_head(status: &str, kind: &str, length: &str) -> String {
    let allow = match status.starts_with("405") {
        true => "Allow: GET, HEAD\r\n",
        false => "",
    };
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}{allow}Connection: close\r\n\r\n")
}

fn write_all(stream: &mut impl Stream, mut answer: &[u8], until: Instant) -> io::Result<()> {
    while !answer.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_timeouts(left)?;
        match stream.write(answer)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => answer = &answer[count..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_document_can_be_got() {
        let wanted = |has_body, in_chunks| {
            Ok(Wanted {
                has_body,
                in_chunks,
            })
        };
        for (line, expected) in [
            ("GET /metrics HTTP/1.1", wanted(true, true)),
            ("GET /metrics?name[]=x HTTP/1.0", wanted(true, false)),
            ("HEAD /metrics HTTP/1.1", wanted(false, true)),
            ("GET / HTTP/1.1", Err("404 Not Found")),
            ("GET /metrics/.. HTTP/1.1", Err("404 Not Found")),
            ("POST /metrics HTTP/1.1", Err("405 Method Not Allowed")),
            ("GET /metrics", Err("400 Bad Request")),
            ("GET /metrics HTTP/1.1 x", Err("400 Bad Request")),
            ("\u{0}", Err("400 Bad Request")),
        ] {
            let head = format!("{line}\r\nHost: x\r\n\r\n");
            assert_eq!(request(head.as_bytes()), expected, "{line}");
        }
        assert!(request(b"\xff / HTTP/1.1").is_err());
        assert_eq!(request(b""), Err("431 Request Header Fields Too Large"));
    }

    /// Connects to a server in a directory of its own.
    fn server(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("adit-http-{name}-{}", std::process::id()));
        _ = std::fs::remove_file(&path);
        let address = format!("unix:{}", path.display());
        std::thread::spawn(move || {
            serve(&address, || {
                Box::new(|put: &mut Put<'_>| {
                    put(b"adit_test")?;
                    put(b" 1\n")
                })
            })
        });
        while UnixStream::connect(&path).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        path
    }

    fn ask(path: &Path, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).expect("connected");
        stream.write_all(request).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    #[test]
    fn a_request_in_pieces_is_answered_with_the_document() {
        let path = server("pieces");
        let mut stream = UnixStream::connect(&path).expect("connected");
        for byte in b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" {
            stream.write_all(&[*byte]).expect("written");
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let chunks = "\r\n\r\n9\r\nadit_test\r\n3\r\n 1\n\r\n0\r\n\r\n";
        assert!(answer.ends_with(chunks), "{answer}");
        let older = ask(&path, b"GET /metrics HTTP/1.0\r\n\r\n");
        assert!(older.ends_with("\r\n\r\nadit_test 1\n"), "{older}");
        assert!(!older.contains("chunked"), "{older}");
        let head = ask(&path, b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.ends_with("Connection: close\r\n\r\n"), "{head}");
        _ = std::fs::remove_file(&path);
    }

    #[test]
    fn requests_without_end_and_crowds_are_turned_away() {
        let path = server("crowd");
        let long = ask(&path, &vec![b'x'; HEAD + 1024]);
        assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
        // These say nothing, and keep their places for a while.
        let crowd: Vec<UnixStream> = (0..CONNECTIONS)
            .map(|_| UnixStream::connect(&path).expect("connected"))
            .collect();
        let full = || {
            let mut stream = UnixStream::connect(&path).expect("connected");
            let mut answer = String::new();
            _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            _ = stream.read_to_string(&mut answer);
            answer
        };
        // The one that `server` made may still have a place.
        assert!((0..50).any(|_| full().is_empty()));
        drop(crowd);
        let mut answer = full();
        while answer.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
            answer = full();
        }
        assert!(answer.starts_with("HTTP/1.1 200 OK"));
        _ = std::fs::remove_file(&path);
    }
}
