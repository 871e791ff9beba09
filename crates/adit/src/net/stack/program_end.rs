//! The descriptor whose bytes a connection carries.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use smoltcp::socket::tcp;

use crate::net::shared::EndReason;

/// Bytes that are moved between a descriptor and a ring before others have their turn.
pub(super) const TURN: usize = 256 << 10;

/// The descriptor of a program, once there is one, and what is known of it.
#[derive(Default)]
pub(super) struct ProgramEnd {
    fd: Option<OwnedFd>,
    end: Option<Arc<EndReason>>,
    is_readable: bool,
    is_writable: bool,
    /// Nothing comes from it any more.
    pub(super) has_ended: bool,
    /// It was told that nothing more comes.
    is_shut: bool,
    /// Its other end is gone.
    pub(super) is_gone: bool,
}

/// What was moved between a descriptor and a ring. It may have been found to be broken.
pub(super) struct Moved {
    pub(super) bytes: usize,
    pub(super) is_broken: bool,
}

impl ProgramEnd {
    pub(super) fn new(fd: OwnedFd, end: Arc<EndReason>) -> Self {
        Self {
            fd: Some(fd),
            end: Some(end),
            is_readable: true,
            is_writable: true,
            ..Self::default()
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// What epoll says of the descriptor.
    pub(super) fn event(&mut self, readable: bool, writable: bool, is_gone: bool) {
        self.is_readable |= readable;
        self.is_writable |= writable;
        self.is_gone |= is_gone;
    }

    /// Whether something may be read from it.
    pub(super) fn has_input(&self) -> bool {
        self.fd.is_some() && self.is_readable && !self.has_ended
    }

    /// Tells the program why its stream ended, and closes the descriptor.
    pub(super) fn finish(&mut self, tell: impl FnOnce(&EndReason), is_reset: bool) {
        let Some(fd) = self.fd.take() else {
            return;
        };
        if let Some(end) = &self.end {
            tell(end);
        }
        if is_reset {
            // A TCP socket that was joined is reset, too. Another kind has no such thing.
            let _ = rustix::net::sockopt::set_socket_linger(&fd, Some(std::time::Duration::ZERO));
        }
    }

    /// The stack ends. What the program has not heard the end of must not look complete.
    pub(super) fn net_ended(&mut self) {
        let is_cut = !self.is_shut;
        self.finish(EndReason::net_ended, is_cut);
    }

    /// Reads into the ring of what is sent.
    pub(super) fn read(&mut self, socket: &mut tcp::Socket<'_>) -> Moved {
        let mut moved = Moved {
            bytes: 0,
            is_broken: false,
        };
        let Some(fd) = &self.fd else { return moved };
        while moved.bytes < TURN && self.is_readable && !self.has_ended && socket.can_send() {
            let read = socket.send(|ring| {
                let received = recv(fd, &mut *ring, RecvFlags::DONTWAIT);
                (received.map_or(0, |(_, len)| len.min(ring.len())), received)
            });
            match read {
                Ok(Ok((_, 0))) => self.has_ended = true,
                Ok(Ok((_, len))) => moved.bytes += len,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(Errno::AGAIN)) => self.is_readable = false,
                Ok(Err(_)) => {
                    // Nobody waits for what is left.
                    self.is_gone = true;
                    moved.is_broken = true;
                    break;
                }
                Err(_) => break,
            }
        }
        moved
    }

    /// Writes what was received; and that nothing more comes, if so.
    pub(super) fn write(&mut self, socket: &mut tcp::Socket<'_>, is_last: bool) -> Moved {
        let mut moved = Moved {
            bytes: 0,
            is_broken: false,
        };
        let Some(fd) = &self.fd else { return moved };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while moved.bytes < TURN && self.is_writable && socket.can_recv() {
            let written = socket.recv(|ring| {
                let sent = send(fd, ring, flags);
                (sent.unwrap_or(0), sent)
            });
            match written {
                Ok(Ok(len)) => moved.bytes += len,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(Errno::AGAIN)) => self.is_writable = false,
                Ok(Err(_)) => {
                    self.is_gone = true;
                    moved.is_broken = true;
                    return moved;
                }
                Err(_) => break,
            }
        }
        if is_last && !socket.can_recv() && !self.is_shut {
            self.is_shut = true;
            let _ = shutdown(fd, Shutdown::Write);
        }
        moved
    }
}
