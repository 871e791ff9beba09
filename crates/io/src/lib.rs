//! TUN devices and UDP sockets with every offload that Linux has.

pub mod checksum;
pub mod offload;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use adit_proto::Endpoint;

/// `struct virtio_net_hdr`, which precedes every frame read from and written to a TUN queue.
pub const VNET_HDR_LEN: usize = 10;

/// One queue of a TUN device.
pub trait TunQueue: Send {
    /// Reads one frame: a virtio header and an IP packet of up to 65,535 bytes. `WouldBlock` when none waits.
    fn read(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes one frame: a virtio header and an IP packet, gathered from `frame`.
    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()>;

    /// Readable when a frame waits.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// A UDP socket of one address family.
pub trait UdpSocket: Send + Sync {
    /// Sends trains in order and returns how many were taken: fewer than given when the socket's buffer is full.
    ///
    /// A train that the kernel refuses is tried without the offload it refused; what cannot be sent at all counts
    /// as taken and is lost, as UDP loses it, and added to `lost`.
    fn send(&self, trains: &[Transmit<'_>], lost: &mut u64) -> usize;

    /// Fills `batch` with what waits. `WouldBlock` when nothing does.
    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()>;

    /// Readable when a datagram waits.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Datagrams to one destination, all `stride` long except a shorter last one.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    pub to: Endpoint,
    /// The two ECN bits of the outer header.
    pub ecn: u8,
    pub stride: usize,
    pub bytes: &'a [u8],
}

/// Room for the messages of one `recvmmsg`, each a datagram or a train of them.
pub struct RecvBatch {
    slab: Vec<u8>,
    received: Vec<Received>,
}

/// One message in a [`RecvBatch`].
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// The sender, and our address that it wrote to.
    pub from: Endpoint,
    /// The two ECN bits of the outer header.
    pub ecn: u8,
    /// Length of each datagram but the last, which may be shorter. Equal to `len` for a lone datagram.
    pub stride: usize,
    pub len: usize,
}
