//! What the thread of a stack is asked for.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit::net::NetError;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::socket_kind::SocketKind;
use crate::stack::{OpenedTcp, Then};

/// How long the child process may take to make a socket: it may have been stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something to do.
pub(super) enum Task {
    /// Get a socket of the namespace.
    Socket {
        kind: SocketKind,
        then: Then<OwnedFd>,
    },
    /// Connect, until a time at the latest.
    Connect {
        remote: SocketAddr,
        until: Instant,
        then: Then<Box<dyn OpenedTcp>>,
    },
    /// Carry what each of two sockets receives to the other one.
    Join { inner: OwnedFd, client: OwnedFd },
}

/// Tasks that wait for the thread.
pub(super) struct Tasks {
    /// `None` once the thread has ended: it takes no more.
    waiting: Mutex<Option<VecDeque<Task>>>,
    wake: OwnedFd,
}

impl Tasks {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::new(Some(VecDeque::new())),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Task>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, task: Task) -> Result<(), NetError> {
        match &mut *self.lock() {
            Some(waiting) => waiting.push_back(task),
            None => return Err(NetError::Ended),
        }
        // It fails only while the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// A socket of the namespace. It waits for the thread, and so must not be called there.
    pub(super) fn socket(&self, kind: SocketKind) -> Result<OwnedFd, NetError> {
        self.socket_within(kind, PATIENCE)
    }

    fn socket_within(&self, kind: SocketKind, patience: Duration) -> Result<OwnedFd, NetError> {
        let (sender, receiver) = channel();
        let then = Box::new(move |made| {
            let _ = sender.send(made);
        });
        self.add(Task::Socket { kind, then })?;
        match receiver.recv_timeout(patience) {
            Ok(made) => made,
            Err(RecvTimeoutError::Timeout) => Err(NetError::Host(Errno::TIMEDOUT.into())),
            Err(RecvTimeoutError::Disconnected) => Err(NetError::Ended),
        }
    }

    /// All that wait; `None` after the end.
    pub(super) fn take(&self) -> Option<VecDeque<Task>> {
        self.lock().as_mut().map(std::mem::take)
    }

    /// Takes no more, and drops those that wait.
    pub(super) fn end(&self) {
        let left = self.lock().take();
        // What is dropped with them may add more.
        drop(left);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub(super) fn have_ended(&self) -> bool {
        self.lock().is_none()
    }
}

impl AsFd for Tasks {
    /// To be watched for edges: it is never read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_does_not_come_is_not_waited_for_without_end() {
        let tasks = Tasks::new().expect("a descriptor");
        let kind = SocketKind::Udp4;
        let error = tasks.socket_within(kind, Duration::from_millis(10));
        assert!(matches!(error, Err(NetError::Host(_))), "{error:?}");
        // It may still come, for nobody.
        let Some(Task::Socket { then, .. }) = tasks.take().and_then(|mut it| it.pop_front()) else {
            panic!("it is asked for");
        };
        then(Err(NetError::Ended));
    }
}
