//! The error queue of a socket (`MSG_ERRQUEUE`): what ICMP said about datagrams that it sent.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::sys::mmsg::{ControlBuffer, RawAddress, control_messages, decode_name, last_errno};

/// Entries of an error queue that one call takes.
pub(crate) const ERROR_BATCH: usize = 16;
/// Room for PKTINFO, TOS or TCLASS, and `struct sock_extended_err` with an address behind it.
const ERROR_CONTROL: usize = 256;

/// An entry of a socket's error queue: `struct sock_extended_err`, and the addresses that come with
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueuedError {
    /// Where the datagram went that it is about.
    pub(crate) to: Option<SocketAddr>,
    /// The origin of the error: the kernel itself, ICMP or ICMPv6 (SO_EE_ORIGIN_*).
    pub(crate) origin: u8,
    /// The type of the ICMP message.
    pub(crate) kind: u8,
    /// The code of the ICMP message.
    pub(crate) code: u8,
    /// Further information of the message: a link's MTU.
    pub(crate) info: u32,
    /// Where the ICMP message came from.
    pub(crate) reporter: Option<IpAddr>,
}

/// Takes up to [`ERROR_BATCH`] entries out of a socket's error queue; returns how many.
#[cold]
pub(crate) fn receive_errors(
    fd: BorrowedFd<'_>,
    mut each: impl FnMut(&QueuedError),
) -> Result<usize, Errno> {
    let mut names = [RawAddress([0; 28]); ERROR_BATCH];
    let mut controls = [ControlBuffer([0; ERROR_CONTROL]); ERROR_BATCH];
    // SAFETY: mmsghdr consists of integers and pointers, for all of which zero is a value.
    let mut headers: [libc::mmsghdr; ERROR_BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
    for ((header, name), control) in headers.iter_mut().zip(&mut names).zip(&mut controls) {
        header.msg_hdr.msg_name = (&raw mut *name).cast();
        header.msg_hdr.msg_namelen = 28;
        header.msg_hdr.msg_control = (&raw mut *control).cast();
        header.msg_hdr.msg_controllen = ERROR_CONTROL as _;
    }
    // SAFETY: the loop above pointed the headers to distinct memory of the stated lengths that this
    // frame owns; without buffers for it, what the datagrams held is left out.
    let received = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            u32::try_from(ERROR_BATCH).unwrap_or(0),
            (libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) as _,
            std::ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| last_errno())?;
    let places = names.iter().zip(&controls);
    for (header, (name, control)) in headers.iter().take(received).zip(places) {
        // Other C libraries say u32.
        #[allow(clippy::unnecessary_cast)]
        let control_len = (header.msg_hdr.msg_controllen as usize).min(ERROR_CONTROL);
        let mut error = decode_error(&control.0[..control_len]);
        error.to = decode_name(&name.0, header.msg_hdr.msg_namelen as usize);
        each(&error);
    }
    Ok(received)
}

/// The control message that says what an entry of the error queue is.
pub(crate) fn decode_error(control: &[u8]) -> QueuedError {
    let mut error = QueuedError::default();
    for (level, kind, payload) in control_messages(control) {
        match (level, kind, payload) {
            // struct sock_extended_err: errno, origin, type, code, padding, info, data; the
            // reporter's address
            (
                libc::IPPROTO_IP,
                libc::IP_RECVERR,
                [
                    _,
                    _,
                    _,
                    _,
                    origin,
                    kind,
                    code,
                    _,
                    i0,
                    i1,
                    i2,
                    i3,
                    _,
                    _,
                    _,
                    _,
                    reporter @ ..,
                ],
            )
            | (
                libc::IPPROTO_IPV6,
                libc::IPV6_RECVERR,
                [
                    _,
                    _,
                    _,
                    _,
                    origin,
                    kind,
                    code,
                    _,
                    i0,
                    i1,
                    i2,
                    i3,
                    _,
                    _,
                    _,
                    _,
                    reporter @ ..,
                ],
            ) => {
                let mut name = [0; 28];
                let len = reporter.len().min(name.len());
                name[..len].copy_from_slice(&reporter[..len]);
                error = QueuedError {
                    to: None,
                    origin: *origin,
                    kind: *kind,
                    code: *code,
                    info: u32::from_ne_bytes([*i0, *i1, *i2, *i3]),
                    reporter: decode_name(&name, len).map(|addr| addr.ip()),
                };
            }
            _ => {}
        }
    }
    error
}

#[cfg(test)]
#[path = "error_queue_tests.rs"]
mod tests;
