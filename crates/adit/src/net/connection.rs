//! A connection that is open, before it is read or written.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;

use super::error::NetError;
use super::shared::{Command, EndReason, OpenConnection, Shared};
use super::stream::TcpStream;

/// A TCP connection inside the tunnel that is open and has not been read or written: it becomes a
/// [`TcpStream`], or carries what a socket of the program sends and receives. What arrives before waits.
/// Dropping it resets the connection.
pub struct Connection {
    shared: Arc<Shared>,
    /// `None` once it became something else.
    opened: Option<OpenConnection>,
    local: SocketAddr,
    remote: SocketAddr,
}

impl Connection {
    pub(super) fn of(shared: Arc<Shared>, opened: OpenConnection) -> Self {
        Self {
            shared,
            local: opened.local,
            remote: opened.remote,
            opened: Some(opened),
        }
    }

    /// Connects to an address.
    pub(super) fn open(
        shared: &Arc<Shared>,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<Self, NetError> {
        let opened = shared.call(|reply| Command::Connect {
            remote,
            timeout,
            reply,
        })?;
        Ok(Self::of(Arc::clone(shared), opened))
    }

    /// Its inner address and port of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// That of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.remote
    }

    /// To be read and written.
    ///
    /// # Errors
    ///
    /// [`NetError::Ended`], and [`NetError::Host`] without descriptors.
    pub fn into_stream(self) -> Result<TcpStream, NetError> {
        let (ours, theirs) = UnixStream::pair().map_err(NetError::Host)?;
        let end = Arc::new(EndReason::default());
        let (local, remote) = (self.local, self.remote);
        self.attach(theirs.into(), Arc::clone(&end))?;
        Ok(TcpStream::new(ours, end, local, remote))
    }

    /// Carries what a stream socket receives, and has it send what arrives: the client's own socket, in a
    /// proxy. Bytes pass between it and the connection without a copy in between, on the thread that has
    /// all connections. An end of either direction is passed on, and so is a reset, to a TCP socket. The
    /// descriptor is closed when both directions have ended.
    ///
    /// What the program read from the socket before has to be sent by other means.
    ///
    /// # Errors
    ///
    /// [`NetError::NoStream`] if it is no stream socket, and [`NetError::Ended`].
    pub fn join(self, socket: OwnedFd) -> Result<(), NetError> {
        match socket_type(socket.as_fd()) {
            Ok(SocketType::STREAM) => self.attach(socket, Arc::default()),
            Ok(_) => {
                let kind = std::io::ErrorKind::InvalidInput;
                Err(NetError::NoStream(std::io::Error::new(
                    kind,
                    "it is a socket of another type",
                )))
            }
            Err(error) => Err(NetError::NoStream(error.into())),
        }
    }

    fn attach(mut self, fd: OwnedFd, end: Arc<EndReason>) -> Result<(), NetError> {
        let Some(OpenConnection { id, .. }) = self.opened.take() else {
            return Err(NetError::Ended);
        };
        self.shared.ask(Command::Attach { id, fd, end })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(OpenConnection { id, .. }) = self.opened.take() {
            // After the end there is no connection.
            let _ = self.shared.ask(Command::Abort(id));
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local", &self.local)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}
