//! Two joined interfaces (veth) where there is no TUN device: the kernel has one, and a packet socket has what
//! goes into it.
//!
//! A frame of such a socket begins as one of a TUN does, by chance: 10 bytes of virtio header and 14 of Ethernet
//! are as long as the virtio header of a TUN, of which the kernel has the first 10 bytes as well.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use adit_offload::{NEEDS_CSUM, VNET_HDR_LEN, VnetHdr};
use arrayvec::ArrayVec;
use rustix::net::{AddressFamily, sockopt};

use crate::sys::packet;
use crate::{FrameBatch, MAX_FRAME, TunQueue};

/// `struct virtio_net_hdr`.
const SHORT_HEADER: usize = 10;
/// Two addresses and a type.
const ETHERNET: usize = 14;
const _: () = assert!(SHORT_HEADER + ETHERNET == VNET_HDR_LEN);

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Pieces of a frame that the kernel takes at once (IOV_MAX).
const MAX_PIECES: usize = 1024;

/// The packets of one of two joined interfaces. The other one has the address [`Self::ADDRESS`], and does
/// without ARP.
pub struct VethQueue {
    fd: OwnedFd,
}

impl VethQueue {
    /// The Ethernet address of the kernel's interface: locally administered, and nobody else sees it.
    pub const ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 1];

    /// A socket for what arrives at the interface of this index, in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without CAP_NET_RAW, and what the kernel says otherwise.
    pub fn open(index: u32) -> io::Result<OwnedFd> {
        packet::open(index)
    }

    /// Takes over a socket that [`Self::open`] opened, perhaps in another process.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it is no packet socket.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        if sockopt::socket_domain(&fd).ok() != Some(AddressFamily::PACKET) {
            let message = "the descriptor is no packet socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd })
    }

    /// Reads the next frame that is an IP packet.
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let buf = buf.get_mut(..MAX_FRAME).unwrap_or_default();
        loop {
            let len = rustix::io::read(&self.fd, &mut *buf)?;
            if let Some(header) = buf[..len].first_chunk_mut::<VNET_HDR_LEN>()
                && from_ethernet(header)
            {
                return Ok(len);
            }
        }
    }
}

/// Makes of the headers of an Ethernet frame that of a packet: false if it is no IP packet.
fn from_ethernet(bytes: &mut [u8; VNET_HDR_LEN]) -> bool {
    let ([.., high, low], mut header) = (*bytes, VnetHdr::parse(bytes));
    if ![IPV4, IPV6].contains(&[high, low]) {
        return false;
    }
    header.flags &= NEEDS_CSUM;
    if header.flags != 0 {
        header.csum_start = header.csum_start.saturating_sub(14);
    }
    header.hdr_len = header.hdr_len.saturating_sub(14);
    (header.outer_transport, header.inner_network) = (0, 0);
    *bytes = header.write();
    true
}

/// The other way around, for a packet that begins with this byte.
fn to_ethernet(bytes: &[u8; VNET_HDR_LEN], version: u8) -> [u8; VNET_HDR_LEN] {
    let mut header = VnetHdr::parse(bytes);
    if header.flags & NEEDS_CSUM != 0 {
        header.csum_start = header.csum_start.saturating_add(14);
    }
    if header.hdr_len != 0 {
        header.hdr_len = header.hdr_len.saturating_add(14);
    }
    let mut bytes = header.write();
    let (addresses, kind) = bytes[SHORT_HEADER..].split_at_mut(12);
    addresses[..6].copy_from_slice(&VethQueue::ADDRESS);
    // From nobody in particular: it is not answered.
    addresses[6..].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    kind.copy_from_slice(if version >> 4 == 4 { &IPV4 } else { &IPV6 });
    bytes
}

impl TunQueue for VethQueue {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        batch.fill(|buf| self.read(buf))
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        let refused = || io::Error::from(rustix::io::Errno::INVAL);
        let (first, rest) = frame.split_first().ok_or_else(refused)?;
        let (header, head) = first.split_first_chunk().ok_or_else(refused)?;
        let mut all = [head].into_iter().chain(rest.iter().map(|piece| &**piece));
        let version = all.find_map(|piece| piece.first()).ok_or_else(refused)?;
        let header = to_ethernet(header, *version);
        let mut pieces = ArrayVec::<IoSlice<'_>, MAX_PIECES>::new();
        pieces.push(IoSlice::new(&header));
        pieces.push(IoSlice::new(head));
        if pieces.remaining_capacity() < rest.len() {
            return Err(rustix::io::Errno::MSGSIZE.into());
        }
        pieces.extend(rest.iter().copied());
        rustix::io::writev(&self.fd, &pieces)?;
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_count_from_the_packet_or_from_the_ethernet_header() {
        let header = VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: adit_offload::GSO_TCPV6,
            hdr_len: 60,
            gso_size: 1360,
            csum_start: 40,
            csum_offset: 16,
            ..VnetHdr::default()
        };
        let mut bytes = to_ethernet(&header.write(), 0x60);
        assert_eq!(&bytes[10..16], &VethQueue::ADDRESS);
        assert_eq!(&bytes[22..], &[0x86, 0xdd]);
        let inside = VnetHdr::parse(&bytes);
        assert_eq!((inside.hdr_len, inside.csum_start), (74, 54));
        assert!(from_ethernet(&mut bytes));
        assert_eq!(VnetHdr::parse(&bytes), header);
    }

    #[test]
    fn what_is_no_ip_packet_is_passed_over() {
        let mut bytes = to_ethernet(&[0; VNET_HDR_LEN], 0x45);
        assert_eq!(&bytes[22..], &[0x08, 0x00]);
        bytes[23] = 0x06;
        assert!(!from_ethernet(&mut bytes));
    }

    #[test]
    fn other_sockets_are_refused() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let error = VethQueue::new(socket.into()).err().expect("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
