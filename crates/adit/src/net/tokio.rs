//! The same types for tokio. They are waited for by its reactor: there is no thread in between.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use ::tokio::net::UnixStream;

use super::listener::TcpListener;
use super::shared::EndReason;
use super::stream::{TcpStream, is_end};
use super::udp::UdpSocket;

/// A [`TcpStream`] for tokio: [`TcpStream::into_async`].
#[derive(Debug)]
pub struct AsyncTcpStream {
    socket: UnixStream,
    end: Reason,
    local: SocketAddr,
    remote: SocketAddr,
}

struct Reason(Arc<EndReason>);

impl std::fmt::Debug for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EndReason")
    }
}

impl TcpStream {
    /// The stream for tokio. To be called within a runtime that has its I/O driver enabled.
    ///
    /// # Errors
    ///
    /// Those of registering it there.
    ///
    /// # Panics
    ///
    /// Without such a runtime, as tokio's own types.
    pub fn into_async(self) -> io::Result<AsyncTcpStream> {
        self.set_nonblocking(true)?;
        let (socket, end, local, remote) = self.into_parts();
        Ok(AsyncTcpStream {
            socket: UnixStream::from_std(socket)?,
            end: Reason(end),
            local,
            remote,
        })
    }
}

impl AsyncTcpStream {
    /// The inner address and port of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Those of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.remote
    }

    fn mend(&self, error: io::Error) -> io::Error {
        match is_end(&error) {
            true => self.end.0.error().unwrap_or(error),
            false => error,
        }
    }
}

impl AsyncRead for AsyncTcpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.socket).poll_read(context, buffer));
        let is_at_end = buffer.filled().len() == before && buffer.remaining() > 0;
        Poll::Ready(match read {
            Ok(()) if is_at_end => self.end.0.error().map_or(Ok(()), Err),
            read => read.map_err(|error| self.mend(error)),
        })
    }
}

impl AsyncWrite for AsyncTcpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.mend(error)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// Watches a descriptor of its own for the one of a socket.
fn watch(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned()?;
    #[allow(
        deprecated,
        reason = "what replaces it is unsafe, for types that need not own their descriptor"
    )]
    AsyncFd::with_interest(fd, interest)
}

/// A [`TcpListener`] for tokio: [`TcpListener::into_async`].
#[derive(Debug)]
pub struct AsyncTcpListener {
    listener: TcpListener,
    readable: AsyncFd<OwnedFd>,
}

impl TcpListener {
    /// The listener for tokio. To be called within a runtime that has its I/O driver enabled.
    ///
    /// # Errors
    ///
    /// Those of registering it there.
    ///
    /// # Panics
    ///
    /// Without such a runtime, as tokio's own types.
    pub fn into_async(self) -> io::Result<AsyncTcpListener> {
        let readable = watch(self.as_fd(), Interest::READABLE)?;
        Ok(AsyncTcpListener {
            listener: self,
            readable,
        })
    }
}

impl AsyncTcpListener {
    /// Its port.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The next connection.
    ///
    /// # Errors
    ///
    /// As of [`TcpListener::accept`].
    pub async fn accept(&self) -> io::Result<AsyncTcpStream> {
        loop {
            if let Some(connection) = self.listener.try_accept()? {
                return connection.into_stream()?.into_async();
            }
            let mut ready = self.readable.readable().await?;
            // One that came since shows again: each is counted by the descriptor.
            if let Some(connection) = self.listener.try_accept()? {
                return connection.into_stream()?.into_async();
            }
            ready.clear_ready();
        }
    }
}

/// A [`UdpSocket`] for tokio: [`UdpSocket::into_async`].
#[derive(Debug)]
pub struct AsyncUdpSocket {
    socket: UdpSocket,
    ready: AsyncFd<OwnedFd>,
}

impl UdpSocket {
    /// The socket for tokio. To be called within a runtime that has its I/O driver enabled.
    ///
    /// # Errors
    ///
    /// Those of registering it there.
    ///
    /// # Panics
    ///
    /// Without such a runtime, as tokio's own types.
    pub fn into_async(self) -> io::Result<AsyncUdpSocket> {
        self.set_nonblocking(true)?;
        let ready = watch(self.as_fd(), Interest::READABLE | Interest::WRITABLE)?;
        Ok(AsyncUdpSocket {
            socket: self,
            ready,
        })
    }
}

impl AsyncUdpSocket {
    /// Its port.
    pub fn port(&self) -> u16 {
        self.socket.port()
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// As of [`UdpSocket::send_to`].
    pub async fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        let send = |_: &OwnedFd| self.socket.send_to(payload, to);
        self.ready.async_io(Interest::WRITABLE, send).await
    }

    /// Receives a datagram.
    ///
    /// # Errors
    ///
    /// As of [`UdpSocket::recv_from`].
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let receive = |_: &OwnedFd| self.socket.recv_from(buffer);
        self.ready.async_io(Interest::READABLE, receive).await
    }
}
