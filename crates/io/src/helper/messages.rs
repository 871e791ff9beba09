//! The messages between a process and its helper: bytes, with descriptors.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmmsg};

pub(super) use crate::sys::rights::MAX_FDS;
use crate::sys::rights::receive;

/// Numbers of an answer.
pub(super) const NUMBERS: usize = 6;
/// Bytes of an answer: an error number, the numbers, and what the error says.
const MAX_ANSWER: usize = 512;
const ANSWER_HEADER: usize = 4 + 8 * NUMBERS;

/// The answer to a request.
#[derive(Debug, Default)]
pub(super) struct HelperAnswer {
    pub(super) fds: ArrayVec<OwnedFd, MAX_FDS>,
    pub(super) numbers: [u64; NUMBERS],
}

impl From<OwnedFd> for HelperAnswer {
    fn from(fd: OwnedFd) -> Self {
        Self::of([fd])
    }
}

impl HelperAnswer {
    pub(super) fn of(fds: impl IntoIterator<Item = OwnedFd>) -> Self {
        Self {
            fds: fds.into_iter().collect(),
            numbers: [0; NUMBERS],
        }
    }

    /// At most [`NUMBERS`].
    pub(super) fn say(numbers: &[u64]) -> Self {
        Self::default().and(numbers)
    }

    /// The same, with these numbers.
    pub(super) fn and(mut self, numbers: &[u64]) -> Self {
        for (place, number) in self.numbers.iter_mut().zip(numbers) {
            *place = *number;
        }
        self
    }

    /// The descriptors, of which there are as many.
    pub(super) fn all<const N: usize>(self) -> io::Result<[OwnedFd; N]> {
        let fds: Vec<OwnedFd> = self.fds.into_iter().collect();
        fds.try_into().map_err(|_| malformed())
    }

    /// The only descriptor.
    pub(super) fn one(mut self) -> io::Result<OwnedFd> {
        self.fds.pop().ok_or_else(malformed)
    }
}

pub(super) fn malformed() -> io::Error {
    io::Error::other("the helper process answers something else")
}

pub(super) fn exchange(
    socket: &OwnedFd,
    request: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<HelperAnswer> {
    let ended = || {
        io::Error::other(
            "the helper process, which has the rights for it, has ended: `adit upgrade` has a new process go on, with \
             a helper",
        )
    };
    let mut bytes = [0; MAX_ANSWER];
    let received = send(socket, &[IoSlice::new(request)], fds, SendFlags::empty())
        .and_then(|()| retry_on_intr(|| receive(socket.as_fd(), &mut bytes)))
        .map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => ended(),
            error => error.into(),
        })?;
    if received.len == 0 {
        return Err(ended());
    }
    let answer = bytes[..received.len].split_first_chunk::<ANSWER_HEADER>();
    let (header, says) = answer.ok_or_else(malformed)?;
    let number = |at: usize| {
        let bytes = header[at..].first_chunk().copied();
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let error = i32::from_le_bytes(header.first_chunk().copied().unwrap_or_default());
    let error = io::Error::from_raw_os_error(error);
    match (error.raw_os_error(), says) {
        (Some(0), _) => Ok(HelperAnswer {
            fds: received.fds,
            numbers: std::array::from_fn(|at| number(4 + 8 * at)),
        }),
        (_, []) => Err(error),
        (_, says) => Err(io::Error::new(
            error.kind(),
            String::from_utf8_lossy(says).into_owned(),
        )),
    }
}

pub(super) fn send_answer(socket: &OwnedFd, answer: &io::Result<HelperAnswer>) -> io::Result<()> {
    let (error, numbers, says) = match answer {
        Ok(answer) => (0, answer.numbers, String::new()),
        Err(error) => match error.raw_os_error() {
            Some(number) => (number, [0; NUMBERS], String::new()),
            None => (number_of(error.kind()), [0; NUMBERS], error.to_string()),
        },
    };
    let says = &says.as_bytes()[..says.len().min(MAX_ANSWER - ANSWER_HEADER)];
    let numbers = numbers.map(u64::to_le_bytes);
    let error = error.to_le_bytes();
    let parts = [&error[..], numbers.as_flattened(), says].map(IoSlice::new);
    let fds = answer.iter().flat_map(|answer| &answer.fds);
    let fds: ArrayVec<_, MAX_FDS> = fds.map(AsFd::as_fd).collect();
    Ok(send(socket, &parts, &fds, SendFlags::empty())?)
}

/// An error number of this kind.
fn number_of(kind: ErrorKind) -> i32 {
    let errno = match kind {
        ErrorKind::PermissionDenied => Errno::PERM,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::AlreadyExists => Errno::EXIST,
        ErrorKind::ResourceBusy => Errno::BUSY,
        ErrorKind::InvalidInput => Errno::INVAL,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        _ => Errno::IO,
    };
    errno.raw_os_error()
}

pub(super) fn send(
    socket: &OwnedFd,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<()> {
    let flags = flags | SendFlags::NOSIGNAL;
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    retry_on_intr(|| sendmmsg(socket, &mut [MMsgHdr::new(parts, &mut control)], flags)).map(drop)
}
