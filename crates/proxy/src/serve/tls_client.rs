//! A client that speaks TLS with the proxy. What it says in it is passed on over a pair of sockets, whose other end is a
//! client like those without TLS: so nothing else here knows of TLS.

use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, recv, shutdown, socketpair,
};
use rustls::{ServerConfig, ServerConnection};

use super::acceptor::{ClientSocket, From};
use super::closing::Closing;
use super::core::{ProxyClient, ServeCore, Step, TURN};
use super::news::ClientToken;
use super::report::{RefusalReason, ServiceName};
use super::socket::{BOTH, reset, send_some};

/// The descriptor of what is passed on, where that of the client is 0.
const PLAIN: usize = 1;
/// The longest record of TLS. As much waits for the client at a time, and is passed on at a time.
const RECORD: usize = 16 << 10;
/// How long the client may take for the last words.
const PATIENCE: Duration = Duration::from_secs(5);

/// The end of the pair that a client without TLS gets.
pub(crate) struct PlainEnd {
    pub(crate) fd: OwnedFd,
    pub(crate) from: Option<SocketAddr>,
    /// Set where what the client got is cut, since a pair has no reset.
    pub(crate) is_cut: Arc<AtomicBool>,
}

/// Makes the client that takes what is passed on.
pub(crate) type MakePlain = Arc<dyn Fn(PlainEnd, &ServeCore) -> Box<dyn ProxyClient> + Send + Sync>;

/// A client that speaks TLS.
pub(crate) struct TlsClient {
    fd: OwnedFd,
    from: Option<SocketAddr>,
    tls: Box<ServerConnection>,
    make: MakePlain,
    /// What is passed on, once the handshake is done.
    plain: Option<OwnedFd>,
    is_cut: Arc<AtomicBool>,
    /// No more of the client's is passed on: it said that it has ended, or nobody takes it.
    up_is_over: bool,
    /// It has sent something.
    has_spoken: bool,
    /// Nothing more is for the client but what TLS holds.
    down_is_over: bool,
    /// All of that is sent.
    is_shut: bool,
    until: Option<Instant>,
}

/// The client's socket, as TLS reads and writes it.
struct TlsSocket<'a>(&'a OwnedFd);

impl Read for TlsSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, buffer, RecvFlags::DONTWAIT)?.1)
    }
}

impl Write for TlsSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match send_some(self.0, bytes)? {
            0 if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            sent => Ok(sent),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a direction did.
enum Moved {
    Bytes(usize),
    /// Nothing is there, nothing fits, or it is over.
    Nothing,
    /// The client is gone, or speaks no TLS.
    Broken(RefusalReason),
}

impl TlsClient {
    /// It speaks as `config` says, and `make` makes the client without TLS.
    pub(crate) fn begin(
        arrival: ClientSocket,
        config: &Arc<ServerConfig>,
        make: MakePlain,
        core: &ServeCore,
    ) -> Box<dyn ProxyClient> {
        let Ok(mut tls) = ServerConnection::new(Arc::clone(config)) else {
            return Closing::client(arrival.fd, Vec::new(), core.now, false);
        };
        // It is given the next piece only when it holds none.
        tls.set_buffer_limit(None);
        Box::new(Self {
            fd: arrival.fd,
            from: arrival.from,
            tls: Box::new(tls),
            make,
            plain: None,
            is_cut: Arc::default(),
            up_is_over: false,
            has_spoken: false,
            down_is_over: false,
            is_shut: false,
            until: Some(core.now + core.limits.request),
        })
    }

    fn refuse(&self, core: &ServeCore, reason: RefusalReason) -> Step {
        core.report
            .refused(ServiceName::Http, reason, &From(self.from));
        Step::Done
    }

    /// Sends what TLS has for the client. True once all is sent; an error if the client is gone.
    fn flush(&mut self) -> Result<bool, Moved> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut TlsSocket(&self.fd)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Err(Moved::Broken(RefusalReason::Gone)),
            }
        }
        Ok(true)
    }

    /// Reads a piece of what the client sent, and passes on what is in it.
    fn up(&mut self) -> Moved {
        let mut moved = self.pass_on();
        // What cannot be passed on yet stays where it is.
        if matches!(self.tls.reader().fill_buf(), Ok([_, ..])) {
            return moved;
        }
        if self.tls.wants_read() {
            let read = self.tls.read_tls(&mut TlsSocket(&self.fd));
            let is_new = match read {
                Ok(0) => false,
                Ok(_) => {
                    self.has_spoken = true;
                    true
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return moved,
                Err(_) => return Moved::Broken(RefusalReason::Gone),
            };
            if self.tls.process_new_packets().is_err() {
                // It is told why, if that fits.
                let _ = self.flush();
                return Moved::Broken(RefusalReason::Malformed);
            }
            if is_new {
                moved = Moved::Bytes(1);
            } else if self.plain.is_none() {
                return Moved::Broken(RefusalReason::Gone);
            }
        }
        match self.pass_on() {
            Moved::Nothing => moved,
            more => more,
        }
    }

    /// Passes on what the client said.
    fn pass_on(&mut self) -> Moved {
        let Some(plain) = &self.plain else {
            return Moved::Nothing;
        };
        let mut moved = 0;
        let mut reader = self.tls.reader();
        loop {
            let chunk = match reader.fill_buf() {
                Ok([]) => break,
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return match moved {
                        0 => Moved::Nothing,
                        moved => Moved::Bytes(moved),
                    };
                }
                // Its connection ended in the middle of what it says, or it has been reset.
                Err(_) => return Moved::Broken(RefusalReason::Gone),
            };
            let len = chunk.len();
            let sent = match self.up_is_over {
                true => len,
                false => match send_some(plain, chunk) {
                    Ok(0) => return Moved::Nothing,
                    Ok(sent) => sent,
                    Err(_) => {
                        self.up_is_over = true;
                        len
                    }
                },
            };
            reader.consume(sent);
            moved += sent;
        }
        if !self.up_is_over {
            self.up_is_over = true;
            let _ = shutdown(plain, Shutdown::Write);
        }
        Moved::Nothing
    }

    /// Passes on what is for the client, once it has what was before.
    fn down(&mut self, scratch: &mut [u8]) -> Moved {
        match self.flush() {
            Ok(true) => {}
            Ok(false) => return Moved::Nothing,
            Err(broken) => return broken,
        }
        let Some(plain) = self.plain.as_ref().filter(|_| !self.down_is_over) else {
            return Moved::Nothing;
        };
        let len = match recv(plain, &mut scratch[..RECORD], RecvFlags::DONTWAIT) {
            Ok((_, len)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Moved::Nothing,
            Err(_) => 0,
        };
        match len {
            0 if self.is_cut.load(Ordering::Acquire) => {
                reset(&self.fd);
                return Moved::Broken(RefusalReason::Gone);
            }
            0 => {
                self.down_is_over = true;
                self.tls.send_close_notify();
            }
            len => {
                // It takes all, since there is no limit.
                let _ = self.tls.writer().write_all(&scratch[..len]);
            }
        }
        match self.flush() {
            Ok(_) => Moved::Bytes(len),
            Err(broken) => broken,
        }
    }

    /// The handshake is done: what the client says from now on is for another one.
    fn begin_plain(&mut self, core: &mut ServeCore, token: ClientToken) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let Ok((ours, fd)) = pair else { return false };
        if !core.watch(&ours, token.with_part(PLAIN), BOTH) {
            return false;
        }
        let end = PlainEnd {
            fd,
            from: self.from,
            is_cut: Arc::clone(&self.is_cut),
        };
        let client = (self.make)(end, core);
        core.arrivals.push(client);
        self.plain = Some(ours);
        self.until = None;
        true
    }

    fn advance(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        let mut moved = 0;
        while moved < TURN {
            let (up, down) = (self.up(), self.down(&mut core.scratch));
            if self.plain.is_none() && !self.tls.is_handshaking() {
                if !self.begin_plain(core, token) {
                    return self.refuse(core, RefusalReason::NoDescriptors);
                }
                moved += 1;
                continue;
            }
            let before = moved;
            for moved_there in [up, down] {
                match moved_there {
                    Moved::Bytes(len) => moved += len.max(1),
                    Moved::Nothing => {}
                    // What its request came to has been told by the other one.
                    Moved::Broken(_) if self.plain.is_some() => return Step::Done,
                    // One that only looks whether somebody listens.
                    Moved::Broken(_) if !self.has_spoken => return Step::Done,
                    Moved::Broken(reason) => return self.refuse(core, reason),
                }
            }
            if self.down_is_over && !self.is_shut && !self.tls.wants_write() {
                self.is_shut = true;
                let _ = shutdown(&self.fd, Shutdown::Write);
            }
            if self.down_is_over && self.up_is_over && self.until.is_none() {
                self.until = Some(core.now + PATIENCE);
            }
            if self.is_shut && self.up_is_over && !self.tls.wants_read() {
                return Step::Done;
            }
            if moved == before {
                return Step::Wait;
            }
        }
        Step::Again
    }
}

impl ProxyClient for TlsClient {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        match core.watch(&self.fd, token, BOTH) {
            true => Step::Wait,
            false => self.refuse(core, RefusalReason::NoDescriptors),
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        // Nobody takes what is passed on any more. What was for the client is still there.
        self.up_is_over |= token.part() == PLAIN && flags.contains(EventFlags::HUP);
        self.advance(core, token.with_part(0))
    }

    fn deadline(&self) -> Option<Instant> {
        self.until
    }

    fn expired(&mut self, core: &mut ServeCore, _: ClientToken) -> Step {
        match self.plain {
            Some(_) => Step::Done,
            None => self.refuse(core, RefusalReason::Slow),
        }
    }

    fn failed(&mut self, core: &mut ServeCore) {
        let _ = self.refuse(core, RefusalReason::Defect);
    }
}
