//! Datagrams of UNIX sockets that bring descriptors, by `recvmmsg`: threads that process packets have no
//! other call that does it.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::io::Errno;

use crate::sys::mmsg::{ControlBuffer, cmsg_space, control_messages, last_errno};

/// Descriptors that come with a datagram, at most.
pub(crate) const MAX_FDS: usize = 8;
const CONTROL: usize = cmsg_space(size_of::<libc::c_int>() * MAX_FDS);

/// A datagram that came.
pub(crate) struct FdDatagram {
    /// Bytes; 0 at the end.
    pub(crate) len: usize,
    pub(crate) fds: ArrayVec<OwnedFd, MAX_FDS>,
    /// It was longer, or there were more descriptors.
    pub(crate) is_cut: bool,
}

/// Waits for the next datagram.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<FdDatagram, Errno> {
    let mut control = ControlBuffer([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: mmsghdr consists of integers and pointers, for all of which zero is a value.
    let mut header: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_hdr.msg_iov = &raw mut part;
    header.msg_hdr.msg_iovlen = 1;
    header.msg_hdr.msg_control = (&raw mut control).cast();
    header.msg_hdr.msg_controllen = CONTROL as _;
    // SAFETY: the header points to `part` and `control`, which this frame owns, and through `part` to
    // `bytes`, which it borrows exclusively, each of the stated length.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            &raw mut header,
            1,
            libc::MSG_CMSG_CLOEXEC as _,
            std::ptr::null_mut(),
        )
    };
    if received < 0 {
        return Err(last_errno());
    }
    // Other C libraries say u32.
    #[allow(clippy::unnecessary_cast)]
    let len = (header.msg_hdr.msg_controllen as usize).min(CONTROL);
    let mut fds = ArrayVec::new();
    for (level, kind, payload) in control_messages(&control.0[..len]) {
        if (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            continue;
        }
        for number in payload.chunks_exact(size_of::<libc::c_int>()) {
            let number = number.try_into().map_or(-1, libc::c_int::from_ne_bytes);
            // SAFETY: the kernel has just made this descriptor for the message, and tells of it here
            // alone: `CONTROL` has room for no more than fit `fds`.
            fds.push(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    let cut = libc::MSG_TRUNC | libc::MSG_CTRUNC;
    Ok(FdDatagram {
        len: header.msg_len as usize,
        fds,
        is_cut: header.msg_hdr.msg_flags & cut != 0,
    })
}
