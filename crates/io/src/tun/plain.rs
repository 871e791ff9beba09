//! Descriptors that give and take one IP packet a call, without a header before it: Android's TUN, one end
//! of a pair of sockets.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use adit_offload::VNET_HDR_LEN;
use arrayvec::ArrayVec;
use rustix::fs::{FileType, fstat};
use rustix::net::{SocketType, sockopt};

use crate::sys::tun::attached;
use crate::{FrameBatch, TunQueue};

/// Pieces of a packet: headers, then a payload. Packets are never merged for it.
const MAX_PIECES: usize = 8;

/// A descriptor without virtio headers.
pub struct PlainTun {
    fd: OwnedFd,
}

impl PlainTun {
    /// Takes over a descriptor, which is made non-blocking.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it is neither a TUN device with `IFF_NO_PI` and without `IFF_VNET_HDR` nor a socket
    /// that keeps packets apart, and those of fcntl(2).
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        check(fd.as_fd())?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        let flags = rustix::io::fcntl_getfd(&fd)? | rustix::io::FdFlags::CLOEXEC;
        rustix::io::fcntl_setfd(&fd, flags)?;
        Ok(Self { fd })
    }
}

fn check(fd: BorrowedFd<'_>) -> io::Result<()> {
    let refuse = |message: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    match FileType::from_raw_mode(fstat(fd)?.st_mode) {
        FileType::Socket => match sockopt::socket_type(fd)? {
            SocketType::DGRAM | SocketType::SEQPACKET => Ok(()),
            _ => refuse("the descriptor is a socket that does not keep packets apart"),
        },
        FileType::CharacterDevice => {
            // Where a policy forbids to ask, it is what the program says.
            let Ok(device) = attached(fd) else {
                return Ok(());
            };
            let flags = i32::from(device.flags());
            if flags & libc::IFF_TUN == 0 || flags & libc::IFF_NO_PI == 0 {
                refuse("the descriptor is no TUN device with IFF_NO_PI")
            } else if flags & libc::IFF_VNET_HDR != 0 {
                refuse("the descriptor is a TUN device with IFF_VNET_HDR: its packets have headers")
            } else {
                Ok(())
            }
        }
        _ => refuse("the descriptor is neither a TUN device nor a socket"),
    }
}

impl TunQueue for PlainTun {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        batch.fill(|buf| {
            let Some((header, packet)) = buf.split_first_chunk_mut::<VNET_HDR_LEN>() else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            *header = [0; VNET_HDR_LEN];
            match rustix::io::read(&self.fd, packet)? {
                // The other end of a pair of sockets is closed.
                0 => Err(rustix::io::Errno::NODEV.into()),
                len => Ok(VNET_HDR_LEN + len),
            }
        })
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        let mut pieces = ArrayVec::<IoSlice<'_>, MAX_PIECES>::new();
        let mut skip = VNET_HDR_LEN;
        for piece in frame {
            let rest = piece.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(piece.len());
            if rest.is_empty() {
                continue;
            }
            if pieces.try_push(IoSlice::new(rest)).is_err() {
                return Err(rustix::io::Errno::MSGSIZE.into());
            }
        }
        rustix::io::writev(&self.fd, &pieces)?;
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, socketpair};

    use super::*;
    use crate::tun::TunErrorKind;

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::empty(), None).expect("two sockets")
    }

    #[test]
    fn packets_come_and_go_without_a_header() {
        let (ours, theirs) = pair(SocketType::DGRAM);
        let tun = PlainTun::new(ours).expect("a source");
        let mut batch = FrameBatch::default();
        assert!(tun.read_batch(&mut batch).expect("nothing waits"));
        assert!(batch.is_empty());
        for packet in [b"first", b"other"] {
            rustix::io::write(&theirs, packet).expect("written");
        }
        assert!(tun.read_batch(&mut batch).expect("a batch"));
        let frame = batch.next_frame().expect("a frame").bytes;
        assert_eq!(frame, [&[0; VNET_HDR_LEN][..], b"first"].concat());
        assert_eq!(batch.len(), 2);
        let header = [0; VNET_HDR_LEN];
        // The header and the packet's beginning in one piece, or in two.
        let whole = [&header[..], b"he"].concat();
        let mut read = [0; 10];
        tun.write(&[IoSlice::new(&whole), IoSlice::new(b"llo")])
            .expect("written");
        assert_eq!(rustix::io::read(&theirs, &mut read), Ok(5));
        assert_eq!(&read[..5], b"hello");
        tun.write(&[IoSlice::new(&header), IoSlice::new(b"bye")])
            .expect("written");
        assert_eq!(rustix::io::read(&theirs, &mut read), Ok(3));
    }

    #[test]
    fn the_end_of_the_other_side_is_the_end() {
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        let tun = PlainTun::new(ours).expect("a source");
        drop(theirs);
        let error = tun
            .read_batch(&mut FrameBatch::default())
            .expect_err("closed");
        assert_eq!(TunErrorKind::of(&error), TunErrorKind::Gone);
    }

    #[test]
    fn descriptors_of_other_kinds_are_refused() {
        let (stream, _other) = pair(SocketType::STREAM);
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
        for fd in [stream, file.into(), pipe] {
            let error = PlainTun::new(fd).err().expect("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
