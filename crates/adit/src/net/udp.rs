//! A UDP port inside a tunnel, as a program uses it.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size, set_socket_send_buffer_size, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags,
    SocketType, recvmsg, sendmsg, socketpair,
};

use super::datagram::{self, HEADER, MessageKind};
use super::error::NetError;
use super::shared::{Command, Shared};
use super::wire;

/// Bytes of datagrams that wait in each direction, as far as the host allows it.
const QUEUE: usize = 1 << 20;

/// A UDP port inside a tunnel, on all its inner addresses.
///
/// Its descriptor can be waited for, to be read and to be written. What does not fit its queue is lost, as
/// with any UDP. Dropping it frees the port.
pub struct UdpSocket {
    fd: OwnedFd,
    port: u16,
    mtu: usize,
    addresses: Vec<IpAddr>,
    tells_unreachable: Arc<AtomicBool>,
}

impl UdpSocket {
    pub(super) fn bind(
        shared: &Shared,
        addresses: &[IpAddr],
        mtu: usize,
        port: u16,
    ) -> Result<Self, NetError> {
        let host = |error: rustix::io::Errno| NetError::Host(error.into());
        let (unix, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (fd, theirs) = socketpair(unix, kind, SocketFlags::CLOEXEC, None).map_err(host)?;
        for end in [&fd, &theirs] {
            // The host has its own limit.
            let _ = set_socket_send_buffer_size(end, QUEUE);
            let _ = set_socket_recv_buffer_size(end, QUEUE);
        }
        let tells_unreachable = Arc::new(AtomicBool::new(false));
        let port = shared.call(|reply| Command::Bind {
            port,
            fd: theirs,
            tells_unreachable: Arc::clone(&tells_unreachable),
            reply,
        })?;
        Ok(Self {
            fd,
            port,
            mtu,
            addresses: addresses.to_vec(),
            tells_unreachable,
        })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if it does not fit the MTU, since it is not sent in fragments.
    /// [`io::ErrorKind::HostUnreachable`] if this end has no address of that family.
    pub fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        if !self
            .addresses
            .iter()
            .any(|own| own.is_ipv4() == to.is_ipv4())
        {
            return Err(NetError::NoAddress(to).into());
        }
        let len = wire::datagram_len(to.ip(), payload.len());
        if len > self.mtu {
            let mtu = self.mtu;
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a datagram of {len} bytes with its headers does not fit the MTU {mtu}"),
            ));
        }
        let header = datagram::header(MessageKind::Datagram, to);
        let pieces = [IoSlice::new(&header), IoSlice::new(payload)];
        let mut control = SendAncillaryBuffer::default();
        match sendmsg(&self.fd, &pieces, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(payload.len()),
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                Err(NetError::Ended.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Receives a datagram: its length and where it is from. What does not fit the buffer is lost.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if none came in time. [`io::ErrorKind::ConnectionRefused`] as
    /// [`Self::tell_unreachable`] says. [`io::ErrorKind::ConnectionAborted`] once the tunnel has ended.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut header = [0; HEADER];
        let mut pieces = [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
        let mut control = RecvAncillaryBuffer::default();
        let received = loop {
            match recvmsg(&self.fd, &mut pieces, &mut control, RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                received => break received?,
            }
        };
        match datagram::parse(&header).filter(|_| received.bytes >= HEADER) {
            Some((MessageKind::Datagram, from)) => Ok((received.bytes - HEADER, from)),
            Some((MessageKind::Unreachable, at)) => Err(NetError::Refused(at).into()),
            None => Err(NetError::Ended.into()),
        }
    }

    /// Whether [`Self::recv_from`] fails when an earlier datagram could not be delivered, as ICMP tells.
    /// Not by default: a server that answers many is not disturbed by one that is gone.
    pub fn tell_unreachable(&self, tells: bool) {
        self.tells_unreachable.store(tells, Ordering::Relaxed);
    }

    /// Sets how long [`Self::recv_from`] waits; `None` for as long as it takes.
    ///
    /// # Errors
    ///
    /// If the time is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(set_socket_timeout(&self.fd, Timeout::Recv, timeout)?)
    }

    /// Whether calls wait, or fail with [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, nonblocking)?)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSocket")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
