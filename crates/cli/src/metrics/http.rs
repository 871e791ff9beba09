//! HTTP/1.1 for one document: `GET /metrics`. Each connection carries one request.
//!
//! Nothing that a client does costs more than a constant: [`CONNECTIONS`] at a time, [`HEAD`] bytes
//! of request, [`PATIENCE`] for all of it. Documents are made one at a time. When there are too many
//! connections, the address, or the user, with the most of those without a request loses its oldest.
//!
//! A browser sends whatever name led it here. So a page whose owner has that name lead to this
//! host (DNS rebinding) gets nothing: only addresses, and names that are known, are answered.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::failure::{Context, Result, say};

mod hosts;

use hosts::Hosts;

/// Connections at a time.
const CONNECTIONS: usize = 16;
/// Threads at a time: those of connections that were dropped end soon.
const THREADS: usize = 4 * CONNECTIONS;
/// Longest request, in bytes.
const HEAD: usize = 8 << 10;
/// How long a client may take for its request, and again for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait when accept(2) fails, as it does without free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes a piece of the document.
pub(super) type Put<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

/// Puts out a document, in pieces.
pub(super) type DocumentWriter = Box<dyn Fn(&mut Put<'_>) -> io::Result<()>>;

/// Answers until the process is ended. `address` is `ADDRESS:PORT` or `unix:PATH`; `names` are those
/// that a client may know the host by.
pub(super) fn serve(
    address: &str,
    names: &[String],
    document: impl Fn() -> DocumentWriter + Send + Sync + 'static,
) -> Result<()> {
    let server = |hosts| {
        Arc::new(Server {
            document: Box::new(document),
            one_at_a_time: Mutex::new(()),
            connections: Mutex::default(),
            ended: Condvar::new(),
            hosts,
        })
    };
    let failed = || format!("cannot listen at {address}");
    match address.strip_prefix("unix:") {
        Some(path) => {
            let listener = bind(Path::new(path)).context(failed)?;
            // No browser gets there.
            server(Hosts::any()).run(|| listener.accept().map(|(stream, _)| stream))
        }
        None => {
            let listener = TcpListener::bind(address).context(failed)?;
            server(Hosts::new(address, names)).run(|| listener.accept().map(|(stream, _)| stream))
        }
    }
}

/// Takes the place of a socket that no process listens at.
///
/// The directory may belong to a user who moves things meanwhile. So nothing is done by a path that
/// leads through it twice: the directory is opened once, and the socket gets its mode as it is made.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent, flags, Mode::empty())?;
    let path = Path::new("/proc/self/fd")
        .join(std::os::fd::AsRawFd::as_raw_fd(&dir).to_string())
        .join(name);
    // The document has no keys. The directory says who may get here.
    let before = rustix::process::umask(Mode::from_raw_mode(0o111));
    let bound = UnixListener::bind(&path).or_else(|error| {
        // What is no socket refuses connections, too.
        let found = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_socket =
            found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket);
        let is_dead = is_socket
            && UnixStream::connect(&path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        match error.kind() == io::ErrorKind::AddrInUse && is_dead {
            true => rustix::fs::unlinkat(&dir, name, AtFlags::empty())
                .map_err(io::Error::from)
                .and_then(|()| UnixListener::bind(&path)),
            false => Err(error),
        }
    });
    rustix::process::umask(before);
    bound
}

/// The origin of a connection: an address, or a user of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientOrigin {
    Host(IpAddr),
    User(u32),
    Unknown,
}

/// A connection of either kind.
trait Stream: Read + Write + Send + Sync + Sized + 'static {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()>;
    fn end(&self, how: Shutdown) -> io::Result<()>;
    fn source(&self) -> ClientOrigin;
    fn copy(&self) -> io::Result<Self>;
}

impl Stream for TcpStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn end(&self, how: Shutdown) -> io::Result<()> {
        self.shutdown(how)
    }

    /// An IPv6 host has as many addresses as it wants of its network.
    fn source(&self) -> ClientOrigin {
        let network = |ip: IpAddr| match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::from((ip.to_bits() >> 64 << 64).to_be_bytes()),
            ip => ip,
        };
        self.peer_addr().map_or(ClientOrigin::Unknown, |addr| {
            ClientOrigin::Host(network(addr.ip()))
        })
    }

    fn copy(&self) -> io::Result<Self> {
        self.try_clone()
    }
}

impl Stream for UnixStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn end(&self, how: Shutdown) -> io::Result<()> {
        self.shutdown(how)
    }

    fn source(&self) -> ClientOrigin {
        adit_io::peer(self.as_fd())
            .map_or(ClientOrigin::Unknown, |(_, uid)| ClientOrigin::User(uid))
    }

    fn copy(&self) -> io::Result<Self> {
        self.try_clone()
    }
}

struct Server {
    document: Box<dyn Fn() -> DocumentWriter + Send + Sync>,
    one_at_a_time: Mutex<()>,
    connections: Mutex<Connections>,
    /// A thread has ended.
    ended: Condvar,
    hosts: Hosts,
}

/// The connections that there are, the oldest first.
#[derive(Default)]
struct Connections {
    /// Of the next one.
    number: u64,
    threads: usize,
    all: Vec<Connection>,
}

struct Connection {
    number: u64,
    source: ClientOrigin,
    /// Whether it has sent its request.
    is_heard: bool,
    /// Has its thread end soon.
    drop: Box<dyn Fn() + Send>,
}

impl Connections {
    /// Makes room for one more from there. False: that one has to go.
    fn make_room(&mut self, newcomer: ClientOrigin) -> bool {
        if self.threads >= THREADS {
            return false;
        }
        if self.all.len() < CONNECTIONS {
            return true;
        }
        let silent = self.all.iter().any(|one| !one.is_heard);
        let candidates = || (self.all.iter()).filter(|one| !silent || !one.is_heard);
        let of = |source| candidates().filter(|one| one.source == source).count();
        let mut victim: Option<(usize, usize)> = None;
        for (at, one) in self.all.iter().enumerate() {
            let count = of(one.source);
            let is_candidate = !silent || !one.is_heard;
            if is_candidate && victim.is_none_or(|(most, _)| count > most) {
                victim = Some((count, at));
            }
        }
        match victim {
            Some((count, at)) if silent || of(newcomer) < count => {
                (self.all.remove(at).drop)();
                true
            }
            _ => false,
        }
    }
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
            let Some(place) = Place::take(self, &stream) else {
                continue;
            };
            let thread = std::thread::Builder::new().name("adit-metrics".into());
            let answered = thread.spawn(move || {
                // A client that goes away or stalls is none of our business.
                _ = place.server.answer(stream, &place);
            });
            if let Err(error) = answered {
                say!("adit: cannot answer a connection: {error}");
            }
        }
    }

    fn answer(&self, mut stream: impl Stream, place: &Place) -> io::Result<()> {
        let head = read_head(&mut stream)?;
        place.is_heard();
        match request(&head, &self.hosts) {
            Ok(wanted) => {
                let turn = self.one_at_a_time.lock();
                if !place.is_there() {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                let document = (self.document)();
                drop(turn.unwrap_or_else(PoisonError::into_inner));
                self.send(&mut stream, wanted, &document)?;
            }
            Err(status) => {
                let kind = "text/plain; charset=utf-8";
                let help = match status {
                    MISDIRECTED => hosts::HELP,
                    _ => "",
                };
                let body = format!("{status}\n{help}");
                let length = format!("Content-Length: {}\r\n", body.len());
                let answer = format_head(status, kind, &length) + &body;
                write_all(&mut stream, answer.as_bytes(), Instant::now() + PATIENCE)?;
            }
        }
        stream.end(Shutdown::Write)
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The document leaves while it is made, and its length is not known before: an older client
    /// than of HTTP/1.1 learns from the end of the connection that it is whole.
    fn send(
        &self,
        stream: &mut impl Stream,
        wanted: AnswerForm,
        document: &DocumentWriter,
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
struct Place {
    server: Arc<Server>,
    number: u64,
}

impl Place {
    /// `None`: there is no place for this one.
    fn take(server: &Arc<Server>, stream: &impl Stream) -> Option<Self> {
        let copy = stream.copy().ok()?;
        let source = stream.source();
        // Threads whose connections were dropped are about to end: they cost no other client its place.
        let (mut connections, _) = server
            .ended
            .wait_timeout_while(server.connections(), PATIENCE, |all| all.threads >= THREADS)
            .unwrap_or_else(PoisonError::into_inner);
        if !connections.make_room(source) {
            return None;
        }
        let number = connections.number;
        connections.number += 1;
        connections.threads += 1;
        connections.all.push(Connection {
            number,
            source,
            is_heard: false,
            drop: Box::new(move || _ = copy.end(Shutdown::Both)),
        });
        let server = Arc::clone(server);
        Some(Self { server, number })
    }

    fn is_heard(&self) {
        let mut connections = self.server.connections();
        let mut all = connections.all.iter_mut();
        if let Some(own) = all.find(|one| one.number == self.number) {
            own.is_heard = true;
        }
    }

    /// Whether the connection was not dropped for another one.
    fn is_there(&self) -> bool {
        let connections = self.server.connections();
        let mut all = connections.all.iter();
        all.any(|one| one.number == self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut connections = self.server.connections();
        connections.threads -= 1;
        connections.all.retain(|one| one.number != self.number);
        self.server.ended.notify_one();
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
struct AnswerForm {
    /// It is not wanted by HEAD.
    has_body: bool,
    in_chunks: bool,
}

/// The answer to a name that is not known.
const MISDIRECTED: &str = "421 Misdirected Request";

/// How the document is wanted, or what is wrong with the request.
fn request(head: &[u8], hosts: &Hosts) -> std::result::Result<AnswerForm, &'static str> {
    if head.is_empty() {
        return Err("431 Request Header Fields Too Large");
    }
    let mut lines = head.split(|byte| *byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| "400 Bad Request")?;
    let mut named = lines.filter_map(|line| {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':')?);
        let is_host = name.trim_ascii().eq_ignore_ascii_case(b"host");
        is_host.then(|| value[1..].trim_ascii())
    });
    let host = named.next();
    if named.next().is_some() {
        return Err("400 Bad Request");
    }
    let mut words = line.split_whitespace();
    let (method, target, version) = (words.next(), words.next(), words.next());
    if !version.is_some_and(|version| version.starts_with("HTTP/1.")) || words.next().is_some() {
        return Err("400 Bad Request");
    }
    // Every browser sends one.
    if host.is_some_and(|host| !hosts.contain(host)) {
        return Err(MISDIRECTED);
    }
    let path = target.and_then(|target| target.split('?').next());
    match (method, path) {
        (Some(method @ ("GET" | "HEAD")), Some("/metrics")) => Ok(AnswerForm {
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
#[path = "http_tests.rs"]
mod tests;
