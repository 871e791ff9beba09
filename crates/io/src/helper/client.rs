//! The end of a process that has a helper.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;

use crate::helper::messages::{HelperAnswer, exchange, send};
use crate::helper::request::{HelperRequest, UNANSWERED};

static HELPER: OnceLock<Helper> = OnceLock::new();

struct Helper {
    socket: OwnedFd,
    /// One request at a time is under way.
    turn: Mutex<()>,
    /// Folders of control sockets and of status sockets.
    folders: [PathBuf; 2],
}

/// From now on the process at the other end, a [`HelperServer`](super::HelperServer), does what takes a
/// right, and has the files in these folders: of control sockets, and of status sockets.
pub fn connect(socket: OwnedFd, folders: [PathBuf; 2]) {
    let turn = Mutex::new(());
    let _ = HELPER.set(Helper {
        socket,
        turn,
        folders,
    });
}

/// The socket of the helper, which hangs up when the helper has ended.
pub fn connection() -> Option<BorrowedFd<'static>> {
    HELPER.get().map(|helper| helper.socket.as_fd())
}

/// Whether this process had a helper that has ended.
pub fn has_ended() -> bool {
    connection().is_some_and(|socket| {
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    })
}

/// Whether the helper has the files of this folder; `None` without a helper.
pub(super) fn has(folder: usize, dir: &Path) -> Option<io::Result<()>> {
    let helper = HELPER.get()?;
    let is_it = helper.folders.get(folder).is_some_and(|own| own == dir);
    let other = || io::Error::other("the helper process has other folders");
    Some(is_it.then_some(()).ok_or_else(other))
}

/// Has the helper do it, or does it in this process without one.
pub(super) fn ask(request: HelperRequest, fds: &[BorrowedFd<'_>]) -> io::Result<HelperAnswer> {
    ask_helper(&request, fds).unwrap_or_else(|| request.perform(fds, None))
}

/// Has the helper do it, which neither answers nor is waited for, or does it in this process without
/// one.
///
/// # Errors
///
/// `WouldBlock` while as much as fits waits for the helper.
pub(super) fn tell(request: HelperRequest, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let Some(helper) = HELPER.get() else {
        return request.perform(fds, None).map(drop);
    };
    let mut bytes = request.to_bytes();
    if let Some(kind) = bytes.first_mut() {
        *kind |= UNANSWERED;
    }
    let parts = [IoSlice::new(&bytes)];
    Ok(send(&helper.socket, &parts, fds, SendFlags::DONTWAIT)?)
}

/// Has the helper do it; `None` without one.
pub(super) fn ask_helper(
    request: &HelperRequest,
    fds: &[BorrowedFd<'_>],
) -> Option<io::Result<HelperAnswer>> {
    let helper = HELPER.get()?;
    let _turn = helper.turn.lock().unwrap_or_else(PoisonError::into_inner);
    Some(exchange(&helper.socket, &request.to_bytes(), fds))
}
