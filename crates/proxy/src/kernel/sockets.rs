//! Sockets of the namespace, as the traits of a stack have them.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use adit::net::NetError;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ipv6_v6only, set_socket_linger, set_socket_recv_buffer_size, set_socket_reuseaddr,
    set_socket_send_buffer_size, socket_type,
};
use rustix::net::{
    RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, acceptfrom_with, bind,
    getpeername, getsockname, listen, recvfrom, sendto,
};

use super::socket_kind::SocketKind;
use super::tasks::{Task, Tasks};
use crate::stack::{Datagrams, InnerStream, Listening, OpenedTcp};

/// Connections that may wait to be accepted; the host has its own limit.
const BACKLOG: i32 = 1024;
/// Bytes of datagrams that may wait, as far as the host allows it.
const QUEUE: usize = 1 << 20;

/// What an errno of a connection means.
pub(super) fn explain(error: Errno, remote: SocketAddr) -> NetError {
    match error {
        Errno::CONNREFUSED => NetError::Refused(remote),
        Errno::TIMEDOUT => NetError::TimedOut(remote.to_string()),
        // EACCES: ICMP says that it is forbidden to get there.
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::ACCESS => {
            NetError::Unreachable(remote)
        }
        // There is no port left.
        Errno::ADDRNOTAVAIL => NetError::PortTaken(0),
        Errno::NOBUFS | Errno::NOMEM => NetError::NoMemory,
        error => NetError::Host(error.into()),
    }
}

/// An address as a person writes it: that of IPv4, where IPv6 has it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn of_any(address: Option<SocketAddrAny>) -> SocketAddr {
    let none = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let known = address.and_then(|any| SocketAddr::try_from(any).ok());
    known.map_or(none, plain)
}

pub(super) fn host(error: Errno) -> NetError {
    NetError::Host(error.into())
}

/// A connection that nothing was read from or written to.
pub(super) struct KernelConnection {
    tasks: Arc<Tasks>,
    /// `None` once it became something else.
    socket: Option<OwnedFd>,
    local: SocketAddr,
    remote: SocketAddr,
}

impl KernelConnection {
    pub(super) fn of(tasks: Arc<Tasks>, socket: OwnedFd) -> Self {
        Self {
            tasks,
            local: of_any(getsockname(&socket).ok()),
            remote: of_any(getpeername(&socket).ok().flatten()),
            socket: Some(socket),
        }
    }
}

impl OpenedTcp for KernelConnection {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.remote
    }

    fn join(mut self: Box<Self>, client: OwnedFd) -> Result<(), NetError> {
        match socket_type(&client) {
            Ok(SocketType::STREAM) => {}
            Ok(_) => {
                let message = "it is a socket of another type";
                return Err(NetError::NoStream(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    message,
                )));
            }
            Err(error) => return Err(NetError::NoStream(error.into())),
        }
        rustix::io::ioctl_fionbio(&client, true).map_err(host)?;
        let inner = self.socket.take().ok_or(NetError::Ended)?;
        self.tasks.add(Task::Join { inner, client })
    }

    fn into_stream(mut self: Box<Self>) -> Result<Box<dyn InnerStream>, NetError> {
        let socket = self.socket.take().ok_or(NetError::Ended)?;
        rustix::io::ioctl_fionbio(&socket, false).map_err(host)?;
        Ok(Box::new(TcpStream::from(socket)))
    }
}

impl Drop for KernelConnection {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            reset(&socket);
        }
    }
}

/// Has the end of a socket be a reset.
pub(super) fn reset(socket: &OwnedFd) {
    // A UNIX socket has none.
    let _ = set_socket_linger(socket, Some(Duration::ZERO));
}

/// A socket for both families where the kernel has IPv6; true for that of IPv6.
fn dual(
    tasks: &Tasks,
    v6: SocketKind,
    v4: SocketKind,
    port: u16,
) -> Result<(OwnedFd, bool), NetError> {
    let (socket, is_v6) = match tasks.socket(v6) {
        Ok(socket) => {
            set_ipv6_v6only(&socket, false).map_err(host)?;
            (socket, true)
        }
        Err(NetError::Host(error)) if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => {
            (tasks.socket(v4)?, false)
        }
        Err(error) => return Err(error),
    };
    let any: SocketAddr = match is_v6 {
        true => (Ipv6Addr::UNSPECIFIED, port).into(),
        false => ([0, 0, 0, 0], port).into(),
    };
    if v6 == SocketKind::Tcp6 {
        // Connections of an earlier listener may be left.
        set_socket_reuseaddr(&socket, true).map_err(host)?;
    }
    match bind(&socket, &any) {
        Err(Errno::ADDRINUSE) => Err(NetError::PortTaken(port)),
        bound => bound.map(|()| (socket, is_v6)).map_err(host),
    }
}

/// A TCP port on all inner addresses.
pub(super) struct KernelListener {
    tasks: Arc<Tasks>,
    socket: OwnedFd,
}

impl KernelListener {
    pub(super) fn bind(tasks: &Arc<Tasks>, port: u16) -> Result<Self, NetError> {
        let (socket, _) = dual(tasks, SocketKind::Tcp6, SocketKind::Tcp4, port)?;
        match listen(&socket, BACKLOG) {
            Err(Errno::ADDRINUSE) => return Err(NetError::PortTaken(port)),
            listening => listening.map_err(host)?,
        }
        Ok(Self {
            tasks: Arc::clone(tasks),
            socket,
        })
    }
}

impl AsFd for KernelListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listening for KernelListener {
    fn try_accept(&self) -> Result<Option<Box<dyn OpenedTcp>>, NetError> {
        if self.tasks.have_ended() {
            return Err(NetError::Ended);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match acceptfrom_with(&self.socket, flags) {
            Ok((socket, _)) => {
                let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
                let connection = KernelConnection::of(Arc::clone(&self.tasks), socket);
                Ok(Some(Box::new(connection)))
            }
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                Err(host(error))
            }
            // None waits, or the one that did has gone: accept(2) tells its error, too.
            Err(_) => Ok(None),
        }
    }
}

/// A UDP port on all inner addresses.
pub(super) struct KernelDatagrams {
    socket: OwnedFd,
    is_v6: bool,
    port: u16,
}

impl KernelDatagrams {
    pub(super) fn bind(tasks: &Tasks, port: u16) -> Result<Self, NetError> {
        let (socket, is_v6) = dual(tasks, SocketKind::Udp6, SocketKind::Udp4, port)?;
        // The host has its own limit.
        let _ = set_socket_send_buffer_size(&socket, QUEUE);
        let _ = set_socket_recv_buffer_size(&socket, QUEUE);
        let port = of_any(getsockname(&socket).ok()).port();
        Ok(Self {
            socket,
            is_v6,
            port,
        })
    }
}

impl AsFd for KernelDatagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Datagrams for KernelDatagrams {
    fn port(&self) -> u16 {
        self.port
    }

    fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        let to = match to.ip() {
            IpAddr::V4(ip) if self.is_v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        Ok(sendto(&self.socket, payload, SendFlags::NOSIGNAL, &to)?)
    }

    fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        loop {
            match recvfrom(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                received => {
                    let (len, _, from) = received?;
                    return Ok((len, of_any(from)));
                }
            }
        }
    }
}
