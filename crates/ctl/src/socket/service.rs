//! One thread that serves the clients of any number of sockets.
//!
//! No client can stop it. A handler that panics costs only the client that it answered. Sockets do
//! not block. A client that does not read its answer is not read from. A client that stalls within
//! a request or an answer is dropped after [`STALL`]. A client that has sent its request is heard
//! before the next is accepted.
//!
//! When a socket has too many clients, the user with the most of them loses the one that has been
//! silent for longest; when all sockets together have too many, or the process has few descriptors
//! left, so does the socket with the most clients. Root's clients stay where others can go.
//!
//! Unfinished requests, and answers that are not taken, hold memory: [`SHARED`](shared::SHARED) bytes at most, and
//! the largest one of them. While there are more, only the client of the largest is heard. The
//! others wait, and who moves fewer than [`PACE`](shared::PACE) bytes in a second while they do is given up.
//!
//! The thread
//! sleeps in epoll_wait(2) until a client, a socket's file or a [`ServiceCommand`] wakes it, or the
//! earliest deadline passes, and then looks only at what is ready.
//!
//! [`STALL`]: super::client::STALL

mod shared;
mod thread;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use super::BoundListener;
use super::client::Talk;
use crate::origin::Origin;
use crate::zeroized::Zeroized;
pub use shared::ServerEvent;
use shared::{ServiceCommand, ServiceState, Socket};
use thread::Thread;

/// A thread that serves sockets, which come and go while it runs: [`uapi::UapiServer::serve`] and
/// [`status::StatusServer::serve`] add one. All their callbacks run on it, one at a time.
///
/// Dropping it ends the thread and removes the sockets that are still served.
///
/// [`uapi::UapiServer::serve`]: crate::uapi::UapiServer::serve
/// [`status::StatusServer::serve`]: crate::status::StatusServer::serve
#[derive(Debug)]
pub struct Service {
    shared: Arc<ServiceState>,
    thread: Option<JoinHandle<()>>,
}

/// A socket that is being served; dropping it stops that, drops the socket's clients and removes
/// the socket.
///
/// That is done when the drop returns, except within a callback of the same [`Service`]: there it
/// is done as soon as the callback returns.
#[derive(Debug)]
pub struct Serving {
    id: u64,
    shared: Arc<ServiceState>,
    thread: Option<ThreadId>,
    /// Brings the socket back when it is no longer served.
    bound: mpsc::Receiver<BoundListener>,
    poker: Poker,
    listener: Option<Arc<UnixListener>>,
}

/// Has the service look whether the clients of a socket have something new to be told.
#[derive(Clone, Debug)]
pub(crate) struct Poker {
    id: u64,
    shared: Arc<ServiceState>,
    /// Whether it has been asked to and has not looked yet.
    is_due: Arc<AtomicBool>,
}

impl Poker {
    pub(crate) fn poke(&self) {
        if !self.is_due.swap(true, Ordering::AcqRel) {
            self.shared.command(ServiceCommand::Poke(self.id));
        }
    }

    /// Has the service keep a thing for so long, the same for all things.
    pub(crate) fn keep(&self, thing: impl Any + Send, time: Duration) {
        self.shared
            .command(ServiceCommand::Keep(Box::new(thing), time));
    }
}

impl Service {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread, descriptor or inotify instance left.
    pub fn start() -> io::Result<Self> {
        let (shared, commands) = ServiceState::new()?;
        let thread = Thread::new(Arc::clone(&shared), commands)?;
        let builder = std::thread::Builder::new().name("adit-ctl".into());
        let thread = Some(builder.spawn(move || thread.run())?);
        Ok(Self { shared, thread })
    }

    /// Serves `bound` from now on; `open` writes the greeting for a new client and returns the
    /// conversation with it.
    pub(crate) fn serve(
        &self,
        bound: BoundListener,
        open: impl Fn(&mut Zeroized, Origin) -> Box<dyn Talk> + Send + 'static,
        notify: impl Fn(ServerEvent<'_>) + Send + 'static,
    ) -> io::Result<Serving> {
        let id = self.shared.new_id();
        let (done, returned) = mpsc::channel();
        let is_due = Arc::new(AtomicBool::new(false));
        let poker = Poker {
            id,
            shared: Arc::clone(&self.shared),
            is_due: Arc::clone(&is_due),
        };
        let listener = bound.shared();
        let socket = Socket {
            watch: match bound.is_watched() {
                true => self.shared.watch(&bound)?,
                false => None,
            },
            bound,
            open: Box::new(open),
            notify: Box::new(notify),
            clients: 0,
            is_due,
            done,
        };
        if !self.shared.command(ServiceCommand::Add(id, socket)) {
            return Err(io::Error::other("the thread that serves sockets has ended"));
        }
        Ok(Serving {
            id,
            shared: Arc::clone(&self.shared),
            thread: self.thread.as_ref().map(|thread| thread.thread().id()),
            bound: returned,
            poker,
            listener,
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.command(ServiceCommand::Stop);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            _ = thread.join();
        }
    }
}

impl Serving {
    /// Returns when the socket is no longer served and its file is gone.
    pub fn stop(self) {}

    /// The listening socket, for another process to go on with. Its clients there wait for that
    /// process; those that were accepted here stay here.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_deref().map(AsFd::as_fd)
    }

    pub(crate) fn poker(&self) -> Poker {
        self.poker.clone()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shared.command(ServiceCommand::Remove(self.id));
        if self.thread != Some(std::thread::current().id()) {
            // Here and not on the thread, because the directory may be locked for a while.
            self.listener = None;
            drop(self.bound.recv());
        }
    }
}
