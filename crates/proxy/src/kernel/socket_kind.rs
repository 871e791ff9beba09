//! The kinds of sockets that there are in a namespace.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

/// A kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketKind {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
    /// Of ICMP echo requests and replies, which takes no right.
    Ping4,
    Ping6,
}

impl SocketKind {
    pub(super) const ALL: [Self; 6] = [
        Self::Tcp4,
        Self::Tcp6,
        Self::Udp4,
        Self::Udp6,
        Self::Ping4,
        Self::Ping6,
    ];

    /// For connections to an address.
    pub(super) fn tcp(to: IpAddr) -> Self {
        if to.is_ipv4() { Self::Tcp4 } else { Self::Tcp6 }
    }

    pub(super) fn udp(to: IpAddr) -> Self {
        if to.is_ipv4() { Self::Udp4 } else { Self::Udp6 }
    }

    pub(super) fn ping(to: IpAddr) -> Self {
        if to.is_ipv4() {
            Self::Ping4
        } else {
            Self::Ping6
        }
    }

    /// A socket in the namespace of the calling thread, which does not block.
    pub(super) fn make(self) -> Result<OwnedFd, Errno> {
        let (family, kind, protocol) = match self {
            Self::Tcp4 => (AddressFamily::INET, SocketType::STREAM, None),
            Self::Tcp6 => (AddressFamily::INET6, SocketType::STREAM, None),
            Self::Udp4 => (AddressFamily::INET, SocketType::DGRAM, None),
            Self::Udp6 => (AddressFamily::INET6, SocketType::DGRAM, None),
            Self::Ping4 => (AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP)),
            Self::Ping6 => (
                AddressFamily::INET6,
                SocketType::DGRAM,
                Some(ipproto::ICMPV6),
            ),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(family, kind, flags, protocol)
    }
}
