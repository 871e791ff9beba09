//! What the thread that serves sockets shares with those that have it serve them.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use adit_io::helper::files;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::origin::Origin;
use crate::socket::BoundListener;
use crate::socket::client::Talk;
use crate::socket::contain::contain;
use crate::uapi::Configured;
use crate::zeroized::Zeroized;

/// Clients of a socket at a time.
pub(super) const MAX_CLIENTS: usize = 32;
/// Clients of all sockets at a time.
pub(super) const MAX_ALL_CLIENTS: usize = 1024;
/// Bytes that all clients together may hold, but for the one that holds most.
pub(super) const SHARED: usize = 16 << 20;
/// Bytes that a client that holds some has to move each [`PACE_TIME`] while others wait for memory.
pub(super) const PACE: usize = 64 << 10;
/// How often that is looked at.
pub(super) const PACE_TIME: Duration = Duration::from_secs(1);
/// Descriptors below the limit of the process that clients leave free, for the sockets and files
/// of its interfaces.
const SPARE_DESCRIPTORS: u64 = 8;
/// How long to leave a socket's waiting clients alone when accept(2) fails, as it does without free
/// file descriptors.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Events taken from epoll at once: all that there are at 1,000 interfaces, so that no client is
/// taken for stalled before its turn.
pub(super) const EVENTS: usize = 4096;

/// The id that epoll reports when there are commands.
pub(super) const COMMANDS: u64 = 0;
/// The id that epoll reports when a file that is watched has changed.
pub(super) const FILES: u64 = 1;

/// Events that the owner of a socket has to handle.
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// A client got this error: a line for the log.
    Refused(&'a crate::uapi::UapiError),
    /// A client's `set` was applied, and this is what it named.
    Configured(&'a Configured),
    /// The socket's file was removed: no client can reach this interface any more, so it should
    /// end.
    Removed,
    /// Clients cannot be accepted at the moment.
    Failed(&'a io::Error),
    /// What answers clients panicked with this text. The client that had asked was hung up.
    Panicked(&'a str),
}

/// State that the thread and its users share.
#[derive(Debug)]
pub(super) struct ServiceState {
    pub(super) commands: mpsc::Sender<ServiceCommand>,
    /// Wakes the thread when there are commands.
    pub(super) wake: OwnedFd,
    /// One for all files: a user may have 128 of them (`fs.inotify.max_user_instances`).
    pub(super) inotify: OwnedFd,
    pub(super) next_id: AtomicU64,
}

pub(super) enum ServiceCommand {
    Add(u64, Socket),
    Remove(u64),
    Poke(u64),
    Keep(Box<dyn Any + Send>, Duration),
    Stop,
}

pub(super) type Open = Box<dyn Fn(&mut Zeroized, Origin) -> Box<dyn Talk> + Send>;

pub(super) struct Socket {
    pub(super) bound: BoundListener,
    pub(super) open: Open,
    pub(super) notify: Box<dyn Fn(ServerEvent<'_>) + Send>,
    /// The inotify watch on the socket's file, if its removal is to be noticed.
    pub(super) watch: Option<i32>,
    /// How many clients it has.
    pub(super) clients: usize,
    /// The clients are to be looked at, and were not yet.
    pub(super) is_due: Arc<AtomicBool>,
    /// Gives the socket back when it is served no more.
    pub(super) done: mpsc::Sender<BoundListener>,
}

impl ServiceState {
    /// With the end at which commands arrive.
    pub(super) fn new() -> io::Result<(Arc<Self>, mpsc::Receiver<ServiceCommand>)> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify =
            inotify::init(flags).map_err(|errno| exhausted(errno, "max_user_instances"))?;
        let (commands, received) = mpsc::channel();
        let shared = Self {
            commands,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            inotify,
            next_id: AtomicU64::new(FILES + 1),
        };
        Ok((Arc::new(shared), received))
    }

    /// An id that nothing else has or had.
    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// False: the thread has ended.
    pub(super) fn command(&self, command: ServiceCommand) -> bool {
        let sent = self.commands.send(command).is_ok();
        _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        sent
    }

    /// Watches the socket's file, if it is still there.
    pub(super) fn watch(&self, bound: &BoundListener) -> io::Result<Option<i32>> {
        let watch = files::watch(self.inotify.as_fd(), &bound.dir, &bound.name);
        match watch.map(Some) {
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => Ok(None),
                Some(errno) => Err(exhausted(errno, "max_user_watches")),
                None => Err(error),
            },
            watch => watch,
        }
    }
}

/// Whether the process has few descriptors left: it gets the lowest number that is free.
pub(super) fn is_scarce(newest: &OwnedFd) -> bool {
    let number = u64::try_from(newest.as_raw_fd()).unwrap_or(0);
    let limit = getrlimit(Resource::Nofile).current;
    limit.is_some_and(|limit| number + SPARE_DESCRIPTORS >= limit)
}

/// Explains that inotify has no more of what the limit is for.
pub(super) fn exhausted(errno: Errno, limit: &str) -> io::Error {
    match errno {
        Errno::MFILE | Errno::NOSPC => io::Error::other(format!(
            "{}: there are too many inotify watchers; `sysctl fs.inotify.{limit}` says how many there may be",
            io::Error::from(errno)
        )),
        _ => errno.into(),
    }
}

impl Socket {
    pub(super) fn check_file(&mut self) {
        if self.bound.was_removed() {
            self.tell(ServerEvent::Removed);
        }
    }

    /// A panic in this has nobody left who would hear of it, but those who read standard error.
    pub(super) fn tell(&self, event: ServerEvent<'_>) {
        let _ = contain(|| (self.notify)(event));
    }
}
