//! A UDP port of several addresses: an answer leaves from the one that was asked.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use adit_proto::Endpoint;
use rustix::io::Errno;

use crate::Transmit;
use crate::sys::{mmsg, os};

/// A UDP port that tells to which address of this host a datagram was sent.
pub struct AnsweringSocket {
    fd: UdpSocket,
    header: mmsg::RecvHeaders,
}

impl AnsweringSocket {
    /// Has the kernel tell the address.
    ///
    /// # Errors
    ///
    /// It is no socket of UDP.
    pub fn new(fd: UdpSocket) -> io::Result<Self> {
        let (level, option) = match fd.local_addr()? {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        };
        os::set_option(fd.as_fd(), level, option, 1)?;
        let header = mmsg::RecvHeaders::new(1);
        Ok(Self { fd, header })
    }

    /// Receives a datagram, and does not wait for one: its length, and where an answer goes to, and from.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is none.
    pub fn recv_from(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Endpoint)> {
        self.header.receive(self.fd.as_fd(), [buffer].into_iter())?;
        let mmsg::MessageInfo { addr, src, len, .. } = self.header.arrived(0);
        let addr = addr.ok_or(io::ErrorKind::InvalidData)?;
        Ok((len, Endpoint { addr, src }))
    }

    /// Sends a datagram, and does not wait. If its source is none of this host's, the kernel chooses one.
    ///
    /// # Errors
    ///
    /// Those of sendmsg(2).
    pub fn send_to(&self, payload: &[u8], mut to: Endpoint) -> io::Result<()> {
        let train = Transmit {
            to,
            ecn: 0,
            stride: payload.len(),
            bytes: payload,
        };
        let message = mmsg::OutgoingMessage {
            train: &train,
            bytes: payload,
            from_source: true,
        };
        match mmsg::send(self.fd.as_fd(), &[message]) {
            // That of many hosts, or it was removed.
            Err(Errno::INVAL) if to.src.take().is_some() => self.send_to(payload, to),
            sent => Ok(sent.map(drop)?),
        }
    }
}

impl AsFd for AnsweringSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
