//! What other threads tell the thread that has the clients.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::options::InfoPage;
use super::report::RefusalReason;
use crate::stack::OpenedTcp;

/// Names a client, and one of its descriptors: its place in the table, and which of those that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientToken(pub(crate) u64);

/// Bits of a place, and of the number of a descriptor.
const PLACE: u32 = 20;
const PART: u32 = 20;

impl ClientToken {
    pub(crate) fn new(serial: u64, place: usize) -> Self {
        Self(serial << (PLACE + PART) | (place as u64) << PART)
    }

    /// The most places that there can be, and descriptors of one.
    pub(crate) const MOST: usize = 1 << PLACE;

    pub(crate) fn place(self) -> usize {
        usize::try_from(self.0 >> PART).unwrap_or(0) & (Self::MOST - 1)
    }

    pub(crate) fn part(self) -> usize {
        usize::try_from(self.0).unwrap_or(0) & (Self::MOST - 1)
    }

    /// That of a descriptor of the client.
    pub(crate) fn with_part(self, part: usize) -> Self {
        Self(self.0 & !(Self::MOST as u64 - 1) | part as u64)
    }
}

/// Where a name is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Inside,
    Outside,
}

/// A name, and where it is looked up.
pub(crate) type NameKey = (Side, Arc<str>);

/// What came of looking up a name.
pub(crate) type FoundNames = Result<Arc<[IpAddr]>, RefusalReason>;

/// What a client waits for.
pub(crate) enum News {
    Names(NameKey, FoundNames),
    Opened(Result<Box<dyn OpenedTcp>, RefusalReason>),
    Page(Option<InfoPage>),
    /// Others have come since, and there are too many.
    Displaced,
}

/// A message, and to whom it is.
pub(crate) enum Told {
    Client(ClientToken, News),
    /// To all that wait for this name.
    Names(NameKey, FoundNames),
}

/// Messages that wait for the thread. There are no more than clients wait for.
pub(crate) struct NewsQueue {
    waiting: Mutex<WaitingNews>,
    event: OwnedFd,
}

#[derive(Default)]
struct WaitingNews {
    messages: Vec<Told>,
    has_ended: bool,
}

impl NewsQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, WaitingNews> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It fails only while the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Tells something. After the end it is dropped.
    pub(crate) fn tell(&self, told: Told) {
        let mut waiting = self.lock();
        if waiting.has_ended {
            return;
        }
        waiting.messages.push(told);
        let is_first = waiting.messages.len() == 1;
        drop(waiting);
        if is_first {
            self.wake();
        }
    }

    /// The proxy is to end.
    pub(crate) fn end(&self) {
        let mut waiting = self.lock();
        waiting.has_ended = true;
        let dropped = std::mem::take(&mut waiting.messages);
        drop(waiting);
        drop(dropped);
        self.wake();
    }

    /// Takes what was told; `None` once the proxy is to end.
    pub(crate) fn take(&self) -> Option<Vec<Told>> {
        let mut waiting = self.lock();
        // Before it is empty, so that what comes later wakes again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        (!waiting.has_ended).then(|| std::mem::take(&mut waiting.messages))
    }
}

impl AsFd for NewsQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
