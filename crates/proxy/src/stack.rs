//! TCP and UDP inside the tunnel, by either of two stacks.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use adit::Tunnel;
use adit::net::{Connection, Net, NetError, TcpListener, UdpSocket};

/// Called once with what came of something, on a thread of the stack's: it must not wait.
pub type Then<T> = Box<dyn FnOnce(Result<T, NetError>) + Send>;

/// TCP and UDP inside a tunnel. All methods may be called from any thread.
pub trait Stack: Send + Sync {
    /// Its name for people: `smoltcp`, or `kernel`.
    fn name(&self) -> &'static str;

    /// The tunnel that it is in.
    fn tunnel(&self) -> &Tunnel;

    /// Connects to an address. `then` is dropped without a call if the tunnel ends before.
    ///
    /// # Errors
    ///
    /// [`NetError::Ended`].
    fn open_tcp(
        &self,
        remote: SocketAddr,
        timeout: Duration,
        then: Then<Box<dyn OpenedTcp>>,
    ) -> Result<(), NetError>;

    /// Looks up the addresses of a name inside the tunnel, of families that this end has; it waits.
    ///
    /// # Errors
    ///
    /// [`NetError::UnknownName`], [`NetError::NoDnsServers`], [`NetError::TimedOut`].
    fn look_up(&self, name: &str, timeout: Duration) -> Result<Vec<IpAddr>, NetError>;

    /// Listens on a TCP port inside the tunnel.
    ///
    /// # Errors
    ///
    /// [`NetError::PortTaken`], and [`NetError::Host`] without descriptors.
    fn listen_tcp(&self, port: u16) -> Result<Box<dyn Listening>, NetError>;

    /// Has a UDP port inside the tunnel; 0 for any. It does not wait: reads fail with
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    ///
    /// [`NetError::PortTaken`], and [`NetError::Host`] without descriptors.
    fn bind_udp(&self, port: u16) -> Result<Box<dyn Datagrams>, NetError>;
}

/// A connection that is open and has carried nothing. Dropping it resets it.
pub trait OpenedTcp: Send {
    /// The inner address and port of this end.
    fn local_addr(&self) -> SocketAddr;

    /// Those of the other end.
    fn peer_addr(&self) -> SocketAddr;

    /// Carries what a stream socket receives, and has it send what arrives, until both directions have
    /// ended: the socket of a client.
    ///
    /// # Errors
    ///
    /// [`NetError::NoStream`] and [`NetError::Ended`].
    fn join(self: Box<Self>, socket: OwnedFd) -> Result<(), NetError>;

    /// To be read and written.
    ///
    /// # Errors
    ///
    /// [`NetError::Ended`], and [`NetError::Host`] without descriptors.
    fn into_stream(self: Box<Self>) -> Result<Box<dyn InnerStream>, NetError>;
}

/// A connection that is read and written. Its descriptor, which waits, is that of a stream socket; that a connection
/// was cut is told by reads from this alone.
pub trait InnerStream: Read + Write + AsFd + Send {}

impl<T: Read + Write + AsFd + Send> InnerStream for T {}

/// A TCP port inside the tunnel. Its descriptor is readable while a connection waits.
pub trait Listening: AsFd + Send {
    /// A connection that waits, if one does.
    ///
    /// # Errors
    ///
    /// [`NetError::Ended`]; others where the host has no descriptor or memory for now.
    fn try_accept(&self) -> Result<Option<Box<dyn OpenedTcp>>, NetError>;
}

/// A UDP port inside the tunnel.
pub trait Datagrams: AsFd + Send {
    /// Its port.
    fn port(&self) -> u16;

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// Those of [`UdpSocket::send_to`].
    fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize>;

    /// Receives a datagram: its length and where it is from.
    ///
    /// # Errors
    ///
    /// Those of [`UdpSocket::recv_from`].
    fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
}

impl Stack for Net {
    fn name(&self) -> &'static str {
        "smoltcp"
    }

    fn tunnel(&self) -> &Tunnel {
        self.tunnel()
    }

    fn open_tcp(
        &self,
        remote: SocketAddr,
        timeout: Duration,
        then: Then<Box<dyn OpenedTcp>>,
    ) -> Result<(), NetError> {
        self.open_tcp_with(remote, timeout, |opened| {
            then(opened.map(|opened| -> Box<dyn OpenedTcp> { Box::new(opened) }));
        })
    }

    fn look_up(&self, name: &str, timeout: Duration) -> Result<Vec<IpAddr>, NetError> {
        self.look_up(name, timeout)
    }

    fn listen_tcp(&self, port: u16) -> Result<Box<dyn Listening>, NetError> {
        Ok(Box::new(self.listen_tcp(port)?))
    }

    fn bind_udp(&self, port: u16) -> Result<Box<dyn Datagrams>, NetError> {
        let socket = self.bind_udp(port)?;
        socket.set_nonblocking(true).map_err(NetError::Host)?;
        Ok(Box::new(socket))
    }
}

impl OpenedTcp for Connection {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer_addr()
    }

    fn join(self: Box<Self>, socket: OwnedFd) -> Result<(), NetError> {
        Connection::join(*self, socket)
    }

    fn into_stream(self: Box<Self>) -> Result<Box<dyn InnerStream>, NetError> {
        Ok(Box::new(Connection::into_stream(*self)?))
    }
}

impl Listening for TcpListener {
    fn try_accept(&self) -> Result<Option<Box<dyn OpenedTcp>>, NetError> {
        let opened = self.try_accept()?;
        Ok(opened.map(|opened| -> Box<dyn OpenedTcp> { Box::new(opened) }))
    }
}

impl Datagrams for UdpSocket {
    fn port(&self) -> u16 {
        self.port()
    }

    fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_to(payload, to)
    }

    fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }
}
