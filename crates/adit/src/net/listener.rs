//! A port that connections come to.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connection::Connection;
use super::error::NetError;
use super::shared::{Backlog, Command, Shared};
use super::stream::TcpStream;

/// A TCP port inside a tunnel, on all its inner addresses. At most 1,024 connections wait to be accepted.
/// Its descriptor is readable while one does. Dropping it closes the port, and resets those that wait.
pub struct TcpListener {
    shared: Arc<Shared>,
    backlog: Arc<Backlog>,
}

impl TcpListener {
    pub(super) fn bind(shared: &Arc<Shared>, port: u16) -> Result<Self, NetError> {
        let backlog = shared.call(|reply| Command::Listen { port, reply })?;
        Ok(Self {
            shared: Arc::clone(shared),
            backlog,
        })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.backlog.port
    }

    /// The next connection; it waits until there is one, or the tunnel ends.
    ///
    /// # Errors
    ///
    /// [`NetError::Ended`], and [`NetError::Host`] without descriptors.
    pub fn accept(&self) -> Result<TcpStream, NetError> {
        loop {
            if let Some(stream) = self.accept_timeout(Duration::MAX)? {
                return Ok(stream);
            }
        }
    }

    /// The next connection, for which it waits for so long at most.
    ///
    /// # Errors
    ///
    /// As of [`Self::accept`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<TcpStream>, NetError> {
        let until = Instant::now().checked_add(timeout);
        loop {
            if let Some(connection) = self.try_accept()? {
                return connection.into_stream().map(Some);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            wait_readable(self.backlog.as_fd(), left).map_err(NetError::Host)?;
        }
    }

    /// A connection that waits, if one does: to be read and written, or [joined](Connection::join) to a
    /// socket.
    ///
    /// # Errors
    ///
    /// [`NetError::Ended`].
    pub fn try_accept(&self) -> Result<Option<Connection>, NetError> {
        let opened = self.backlog.pop()?;
        Ok(opened.map(|opened| Connection::of(Arc::clone(&self.shared), opened)))
    }
}

/// Waits until a descriptor can be read, for so long at most.
fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        timeout.as_ref(),
    ) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backlog.as_fd()
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        // After the end there is no port.
        let _ = self.shared.ask(Command::Unlisten(self.port()));
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener")
            .field("port", &self.port())
            .finish_non_exhaustive()
    }
}
