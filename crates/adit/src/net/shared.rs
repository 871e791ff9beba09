//! What programs ask of the thread of the stack, and what that tells them.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::error::NetError;
use super::link::Link;

/// Names a connection: its place in the table, and which of those that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectionId(pub(super) u64);

/// A connection that is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenConnection {
    pub(super) id: ConnectionId,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// Called on the thread of the stack with what came of a command; dropped when the stack ends.
pub(super) type Reply<T> = Box<dyn FnOnce(Result<T, NetError>) + Send>;

pub(super) enum Command {
    Connect {
        remote: SocketAddr,
        timeout: Duration,
        reply: Reply<OpenConnection>,
    },
    /// What a connection carries comes from this descriptor, and goes there.
    Attach {
        id: ConnectionId,
        fd: OwnedFd,
        end: Arc<EndReason>,
    },
    Abort(ConnectionId),
    Listen {
        port: u16,
        reply: Reply<Arc<Backlog>>,
    },
    Unlisten(u16),
    /// An echo request; the answer says after how long that came.
    Ping {
        to: IpAddr,
        timeout: Duration,
        reply: Reply<Duration>,
    },
    /// Datagrams of a port come from this descriptor, and go there.
    Bind {
        port: u16,
        fd: OwnedFd,
        tells_unreachable: Arc<AtomicBool>,
        reply: Reply<u16>,
    },
}

/// Between programs and the thread of the stack.
pub(super) struct Shared {
    pub(super) link: Arc<Link>,
    commands: Mutex<Commands>,
    pub(super) counters: Counters,
}

#[derive(Default)]
struct Commands {
    queue: Vec<Command>,
    has_ended: bool,
}

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            link: Arc::new(Link::new()?),
            commands: Mutex::default(),
            counters: Counters::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for something.
    pub(super) fn ask(&self, command: Command) -> Result<(), NetError> {
        let mut commands = self.lock();
        if commands.has_ended {
            return Err(NetError::Ended);
        }
        commands.queue.push(command);
        drop(commands);
        self.link.wake.wake();
        Ok(())
    }

    /// Asks for something, and waits for the answer, which comes by itself.
    pub(super) fn call<T: Send + 'static>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, NetError> {
        let (sender, answer) = std::sync::mpsc::sync_channel(1);
        let reply = move |result| drop(sender.send(result));
        self.ask(command(Box::new(reply)))?;
        answer.recv().unwrap_or(Err(NetError::Ended))
    }

    /// Takes what was asked for; false once the stack is to end.
    pub(super) fn take(&self, commands: &mut Vec<Command>) -> bool {
        let mut shared = self.lock();
        std::mem::swap(&mut shared.queue, commands);
        !shared.has_ended
    }

    /// Whether there is nothing to take.
    pub(super) fn is_quiet(&self) -> bool {
        let commands = self.lock();
        commands.queue.is_empty() && !commands.has_ended
    }

    /// The stack is to end. What was asked for and not begun is dropped.
    pub(super) fn end(&self) {
        let mut commands = self.lock();
        commands.has_ended = true;
        let dropped = std::mem::take(&mut commands.queue);
        drop(commands);
        for command in dropped {
            if let Command::Attach { end, .. } = &command {
                end.net_ended();
            }
        }
        self.link.wake.wake();
    }
}

/// Why a stream ended that did not end by itself.
#[derive(Default)]
pub(super) struct EndReason(AtomicU8);

const RESET: u8 = 1;
const TIMED_OUT: u8 = 2;
const NET_ENDED: u8 = 3;

impl EndReason {
    pub(super) fn reset(&self) {
        self.0.store(RESET, Ordering::Release);
    }

    pub(super) fn timed_out(&self) {
        self.0.store(TIMED_OUT, Ordering::Release);
    }

    pub(super) fn net_ended(&self) {
        self.0.store(NET_ENDED, Ordering::Release);
    }

    /// The error of a read or write that found the stream at its end, if that is one.
    pub(super) fn error(&self) -> Option<io::Error> {
        let kind = match self.0.load(Ordering::Acquire) {
            RESET => io::ErrorKind::ConnectionReset,
            TIMED_OUT => io::ErrorKind::TimedOut,
            NET_ENDED => return Some(NetError::Ended.into()),
            _ => return None,
        };
        Some(kind.into())
    }
}

/// Connections that wait to be accepted.
pub(super) struct Backlog {
    pub(super) port: u16,
    state: Mutex<BacklogState>,
    /// Readable while one waits, or none will.
    event: OwnedFd,
}

#[derive(Default)]
struct BacklogState {
    queue: VecDeque<OpenConnection>,
    has_ended: bool,
}

impl Backlog {
    pub(super) fn new(port: u16) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(Self {
            port,
            state: Mutex::default(),
            event: eventfd(0, flags)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BacklogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    pub(super) fn push(&self, opened: OpenConnection) {
        self.lock().queue.push_back(opened);
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    pub(super) fn pop(&self) -> Result<Option<OpenConnection>, NetError> {
        let mut state = self.lock();
        match state.queue.pop_front() {
            Some(opened) => {
                let _ = rustix::io::read(&self.event, &mut [0; 8]);
                Ok(Some(opened))
            }
            None if state.has_ended => Err(NetError::Ended),
            None => Ok(None),
        }
    }

    /// No connection comes any more.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Backlog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What the stack counts.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) reserved: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) fragments: AtomicU64,
    pub(super) not_ours: AtomicU64,
    pub(super) no_memory: AtomicU64,
    pub(super) backlog_full: AtomicU64,
    pub(super) datagrams_dropped: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// Counts one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
