//! A client that speaks TLS with the proxy. A pair of UNIX sockets takes the plaintext to an ordinary client of HTTP, so
//! that no other file here knows of TLS.

use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
use super::http_client::HttpClient;
use super::http_peer::{HttpPeer, PairNotes};
use super::news::ClientToken;
use super::report::{RefusalReason, ServiceName};
use super::secret::LoginCheck;
use super::socket::{BOTH, reset, send_some};

/// The descriptor of what is passed on, where that of the client is 0.
const PLAIN: usize = 1;
/// The longest record of TLS. As much waits for the client at a time, and is passed on at a time.
const RECORD: usize = 16 << 10;
/// How long the client may take for the last words.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client that speaks TLS.
pub(crate) struct TlsClient {
    fd: OwnedFd,
    from: Option<SocketAddr>,
    tls: Box<ServerConnection>,
    login: Option<Arc<LoginCheck>>,
    /// This end of the pair, once the handshake is done.
    plain: Option<OwnedFd>,
    notes: Arc<PairNotes>,
    /// Nothing more of the client is passed on: it has ended its direction, or the client of HTTP is gone.
    up_is_over: bool,
    /// That it has ended its direction was passed on.
    up_is_shut: bool,
    /// It has sent something.
    has_spoken: bool,
    /// The client of HTTP has ended its direction: only what TLS still holds is left to send.
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

impl TlsClient {
    /// It speaks as `config` says, and has to give this name and password.
    pub(crate) fn begin(
        arrival: ClientSocket,
        config: &Arc<ServerConfig>,
        login: Option<Arc<LoginCheck>>,
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
            login,
            plain: None,
            notes: Arc::default(),
            up_is_over: false,
            up_is_shut: false,
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

    /// Sends what TLS has for the client. True once all is sent.
    fn flush(&mut self) -> Result<bool, RefusalReason> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut TlsSocket(&self.fd)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Err(RefusalReason::Gone),
            }
        }
        Ok(true)
    }

    /// Reads a piece of what the client sent, and passes on what is in it. How many bytes were read: records may be
    /// empty, and take time all the same.
    fn up(&mut self) -> Result<usize, RefusalReason> {
        self.pass_on()?;
        // It does not while something waits to be passed on.
        if !self.tls.wants_read() {
            return Ok(0);
        }
        let read = match self.tls.read_tls(&mut TlsSocket(&self.fd)) {
            Ok(0) if self.plain.is_none() => return Err(RefusalReason::Gone),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(_) => return Err(RefusalReason::Gone),
        };
        self.has_spoken |= read > 0;
        if self.tls.process_new_packets().is_err() {
            // The alert that says why, if it fits.
            let _ = self.flush();
            return Err(RefusalReason::Malformed);
        }
        self.pass_on()?;
        Ok(read)
    }

    /// Passes on what the client said, as far as it fits.
    fn pass_on(&mut self) -> Result<(), RefusalReason> {
        let Some(plain) = &self.plain else {
            return Ok(());
        };
        let mut reader = self.tls.reader();
        loop {
            let chunk = match reader.fill_buf() {
                // It said that it has ended.
                Ok([]) => break,
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // Its connection ended, and it did not say so.
                Err(_) => return Err(RefusalReason::Gone),
            };
            let mut taken = chunk.len();
            if !self.up_is_over {
                match send_some(plain, chunk) {
                    Ok(0) => return Ok(()),
                    Ok(sent) => taken = sent,
                    Err(_) => self.up_is_over = true,
                }
            }
            reader.consume(taken);
        }
        if !self.up_is_over {
            self.up_is_over = true;
            self.up_is_shut = true;
            let _ = shutdown(plain, Shutdown::Write);
        }
        Ok(())
    }

    /// Passes on a piece of what is for the client, once it has the one before: how many bytes.
    fn down(&mut self, scratch: &mut [u8]) -> Result<usize, RefusalReason> {
        if !self.flush()? {
            return Ok(0);
        }
        let Some(plain) = self.plain.as_ref().filter(|_| !self.down_is_over) else {
            return Ok(0);
        };
        let (len, is_broken) = match recv(plain, &mut scratch[..RECORD], RecvFlags::DONTWAIT) {
            Ok((_, len)) => (len, false),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            // It was closed with something unread.
            Err(_) => (0, true),
        };
        if len > 0 {
            // It takes all, since there is no limit.
            let _ = self.tls.writer().write_all(&scratch[..len]);
        } else if self.is_cut(plain, is_broken) {
            reset(&self.fd);
            return Err(RefusalReason::Gone);
        } else {
            self.down_is_over = true;
            self.tls.send_close_notify();
        }
        self.flush()?;
        Ok(len)
    }

    /// Whether the end of what is for the client is none that was meant. One of a stack cannot be told from others once
    /// the client has ended its direction, too.
    fn is_cut(&self, plain: &OwnedFd, is_broken: bool) -> bool {
        let is_joined = self.notes.is_joined.load(Ordering::Acquire);
        // Nothing is sent, and refused where the other end is closed.
        let is_closed = || is_broken || send_some(plain, &[]).is_err();
        self.notes.is_cut.load(Ordering::Acquire) || (is_joined && !self.up_is_shut && is_closed())
    }

    /// The handshake is done: what the client says from now on is for another one.
    fn begin_plain(&mut self, core: &mut ServeCore, token: ClientToken) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let Ok((ours, fd)) = pair else { return false };
        if !core.watch(&ours, token.with_part(PLAIN), BOTH) {
            return false;
        }
        let peer = HttpPeer {
            fd,
            from: self.from,
            login: self.login.clone(),
            pair: Some(Arc::clone(&self.notes)),
        };
        let client = HttpClient::new(peer, false, core);
        core.arrivals.push(Box::new(client));
        self.plain = Some(ours);
        self.until = None;
        true
    }

    fn advance(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        let mut moved = 0;
        while moved < TURN {
            let step = (self.up()).and_then(|up| Ok(up + self.down(&mut core.scratch)?));
            if self.plain.is_none() && !self.tls.is_handshaking() {
                if !self.begin_plain(core, token) {
                    return self.refuse(core, RefusalReason::NoDescriptors);
                }
                continue;
            }
            let now_moved = match step {
                Ok(bytes) => bytes,
                // The client of HTTP tells what came of the request.
                Err(_) if self.plain.is_some() => return Step::Done,
                // A health check sends nothing.
                Err(_) if !self.has_spoken => return Step::Done,
                Err(reason) => return self.refuse(core, reason),
            };
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
            if now_moved == 0 {
                return Step::Wait;
            }
            moved += now_moved;
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
        // The client of HTTP is gone. What it wrote before is still in the socket.
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
