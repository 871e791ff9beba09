//! Packet sockets, which have the Ethernet frames of an interface.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::sys::os::{check, set_option};

/// Numbers of the kernel's linux/if_packet.h.
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Bytes of frames that may wait to be read, as far as the host allows it.
const QUEUE_BYTES: usize = 4 << 20;

/// A socket that has what arrives at the interface of this index in the calling thread's network namespace,
/// each frame behind a virtio header; it takes CAP_NET_RAW.
pub(crate) fn open(index: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it receives nothing until it is bound.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    // Before Linux 4.20 it would also have what the kernel itself sends there, which is nothing.
    let _ = set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    if sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, QUEUE_BYTES)?;
    }
    let index = i32::try_from(index).map_err(io::Error::other)?;
    let protocol = u16::try_from(libc::ETH_P_ALL).unwrap_or_default().to_be();
    let address = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or_default(),
        sll_protocol: protocol,
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
    // SAFETY: the kernel reads a sockaddr_ll, whose length is stated, and which lives until the call returns.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}
