//! A TCP stream inside a tunnel, as a program reads and writes it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendFlags, send};

use super::shared::EndReason;

/// A TCP stream inside a tunnel.
///
/// It is read and written as one of the standard library, and its descriptor is waited for as that of any
/// stream: it is one end of a pair of sockets whose other end the thread of the [`Net`](super::Net) has.
/// Dropping it closes the connection: what was written still arrives.
pub struct TcpStream {
    socket: UnixStream,
    end: Arc<EndReason>,
    local: SocketAddr,
    remote: SocketAddr,
}

impl TcpStream {
    pub(super) fn new(
        socket: UnixStream,
        end: Arc<EndReason>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Self {
        Self {
            socket,
            end,
            local,
            remote,
        }
    }

    #[cfg(feature = "tokio")]
    pub(super) fn into_parts(self) -> (UnixStream, Arc<EndReason>, SocketAddr, SocketAddr) {
        (self.socket, self.end, self.local, self.remote)
    }

    /// The inner address and port of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Those of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.remote
    }

    /// Another handle of the same stream.
    ///
    /// # Errors
    ///
    /// If there is no further descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            socket: self.socket.try_clone()?,
            end: Arc::clone(&self.end),
            ..*self
        })
    }

    /// Ends what this end sends, or no longer takes what the other one sends, or both.
    ///
    /// # Errors
    ///
    /// If the stream has ended.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// Sets how long a read waits; `None` for as long as it takes.
    ///
    /// # Errors
    ///
    /// If the time is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)
    }

    /// Sets how long a write waits for room; `None` for as long as it takes.
    ///
    /// # Errors
    ///
    /// If the time is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_write_timeout(timeout)
    }

    /// Whether reads and writes wait, or fail with [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    fn receive(&self, read: io::Result<usize>, wanted: usize) -> io::Result<usize> {
        match read {
            Ok(0) if wanted > 0 => self.end.error().map_or(Ok(0), Err),
            Err(error) if is_end(&error) => Err(self.end.error().unwrap_or(error)),
            read => read,
        }
    }
}

/// Whether a socket said that its other end is gone.
pub(super) fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = (&self.socket).read(buffer);
        self.receive(read, buffer.len())
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // No signal, whatever the program does with SIGPIPE.
        let sent = send(&self.socket, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from);
        sent.map_err(|error| match is_end(&error) {
            true => self.end.error().unwrap_or(error),
            false => error,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("local", &self.local)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}
