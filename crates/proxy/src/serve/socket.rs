//! Stream sockets of clients. What was received is looked at first, and taken once it has been used: so the
//! kernel's buffer is the only one, and a client that waits has none.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// What is waited for of a client that is to send something.
pub(crate) const READABLE: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);
/// What is waited for of a socket that is also written.
pub(crate) const BOTH: EventFlags = READABLE.union(EventFlags::OUT);

/// What a socket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// So many bytes, which are still there.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The end.
    End,
    /// An error: it has been reset.
    Broken,
}

/// Looks at what a socket has received.
pub(crate) fn peek(fd: impl AsFd, buffer: &mut [u8]) -> Peeked {
    loop {
        return match recv(&fd, &mut *buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Peeked::End,
            Ok((_, len)) => Peeked::Bytes(len),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Peeked::Nothing,
            Err(_) => Peeked::Broken,
        };
    }
}

/// Takes so many bytes that were looked at. False if the socket is broken.
pub(crate) fn consume(fd: impl AsFd, mut len: usize, buffer: &mut [u8]) -> bool {
    while len > 0 {
        let most = len.min(buffer.len());
        match recv(&fd, &mut buffer[..most], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok((_, taken)) => len -= taken,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Sends what fits; an error if the socket is broken.
pub(crate) fn send_some(fd: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        return match send(&fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(0),
            sent => sent,
        };
    }
}

/// Sends a short message to a socket whose buffer is empty. False if it is broken.
pub(crate) fn send_short(fd: &OwnedFd, bytes: &[u8]) -> bool {
    send_some(fd, bytes) == Ok(bytes.len())
}

/// Has a socket of TCP send at once, and find out whether its other end is still there.
pub(crate) fn tune(fd: &OwnedFd) {
    use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_nodelay};
    // A UNIX socket has none of this.
    let _ = set_tcp_nodelay(fd, true);
    let _ = set_socket_keepalive(fd, true);
    let _ = set_tcp_keepidle(fd, Duration::from_secs(60));
}

/// Has the socket be reset when it is closed.
pub(crate) fn reset(fd: impl AsFd) {
    // A UNIX socket has none.
    let _ = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO));
}

/// The address of a TCP socket of this host.
pub(crate) fn local_address(fd: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(fd).ok()?.try_into().ok()
}

/// An address of IPv4, if it is one in that of IPv6. Others keep the interface that a link-local one belongs to.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_keeps_its_interface() {
        for (address, expected) in [
            ("[::ffff:10.0.0.1]:5", "10.0.0.1:5"),
            ("10.0.0.1:5", "10.0.0.1:5"),
            ("[fe80::1%3]:5", "[fe80::1%3]:5"),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(canonical(address).to_string(), expected);
        }
    }
}
