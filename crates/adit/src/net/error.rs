//! What can go wrong inside a tunnel.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::error::Error;

/// Why a connection, a listener or a name was not had.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetError {
    /// Nobody listens there: the other end refused the connection.
    Refused(SocketAddr),
    /// A router, or the other end, said that there is no way there. A [ping](super::Net::ping) has port 0.
    Unreachable(SocketAddr),
    /// There was no answer in time.
    TimedOut(String),
    /// There is no such name, or it has no address of a family that this end has.
    UnknownName(String),
    /// What was to be connected to is no `name:port`, `address:port` or `[address]:port`.
    Target(String),
    /// A name was to be looked up, and there are no DNS servers.
    NoDnsServers(String),
    /// This end has no inner address of the family of this one.
    NoAddress(SocketAddr),
    /// The inner port is taken; 0: all are.
    PortTaken(u16),
    /// The memory budget has nothing left for another connection.
    NoMemory,
    /// The descriptor that was to be joined to a connection is no stream socket.
    NoStream(io::Error),
    /// The host refused a thread, a descriptor or memory.
    Host(io::Error),
    /// The tunnel could not be started.
    Tunnel(Error),
    /// The tunnel has ended.
    Ended,
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(at) => write!(
                f,
                "{at} inside the tunnel refused the connection: nothing listens there"
            ),
            Self::Unreachable(at) => write!(
                f,
                "{} inside the tunnel cannot be reached, says a host on the way",
                WithPort(*at)
            ),
            Self::TimedOut(what) => write!(f, "{what} did not answer in time"),
            Self::UnknownName(name) => write!(
                f,
                "the DNS servers inside the tunnel know no address of {name}"
            ),
            Self::Target(text) => write!(
                f,
                "{text:?} is not name:port, address:port or [address]:port"
            ),
            Self::NoDnsServers(name) => {
                write!(
                    f,
                    "cannot look up {name}: give a DNS server inside the tunnel, or an address"
                )
            }
            Self::NoAddress(at) => {
                write!(
                    f,
                    "cannot reach {}: this end has no inner address of that family",
                    WithPort(*at)
                )
            }
            Self::PortTaken(0) => f.write_str("all ports inside the tunnel are taken"),
            Self::PortTaken(port) => write!(f, "port {port} inside the tunnel is taken"),
            Self::NoMemory => f.write_str(
                "no memory is left for another connection: raise the budget, or close connections",
            ),
            Self::NoStream(error) => {
                write!(
                    f,
                    "the descriptor cannot be joined, because it is no stream socket: {error}"
                )
            }
            Self::Host(error) => write!(f, "the system refused what the stack needs: {error}"),
            Self::Tunnel(error) => error.fmt(f),
            Self::Ended => f.write_str("the tunnel has ended"),
        }
    }
}

/// An address, with its port if it has one.
struct WithPort(SocketAddr);

impl fmt::Display for WithPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port() {
            0 => self.0.ip().fmt(f),
            _ => self.0.fmt(f),
        }
    }
}

impl std::error::Error for NetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoStream(error) | Self::Host(error) => Some(error),
            Self::Tunnel(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for NetError {
    fn from(error: Error) -> Self {
        Self::Tunnel(error)
    }
}

impl From<NetError> for io::Error {
    fn from(error: NetError) -> Self {
        let kind = match &error {
            NetError::Refused(_) => io::ErrorKind::ConnectionRefused,
            NetError::Unreachable(_) | NetError::NoAddress(_) => io::ErrorKind::HostUnreachable,
            NetError::TimedOut(_) => io::ErrorKind::TimedOut,
            NetError::UnknownName(_) => io::ErrorKind::NotFound,
            NetError::Target(_) | NetError::NoDnsServers(_) | NetError::NoStream(_) => {
                io::ErrorKind::InvalidInput
            }
            NetError::PortTaken(_) => io::ErrorKind::AddrInUse,
            NetError::NoMemory => io::ErrorKind::OutOfMemory,
            NetError::Host(error) => error.kind(),
            NetError::Tunnel(_) => io::ErrorKind::Other,
            NetError::Ended => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}
