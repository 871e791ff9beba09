//! How both threads of a shard sleep, and what wakes them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::process::setpriority_process;

use crate::common::{Common, Sockets};

/// The nice value of a shard. The kernel forwards packets before any process runs; if the processes
/// whose packets the tunnel carries ran as readily as it, they would fill its queues faster than it
/// empties them.
const PRIORITY: i32 = -10;

pub(crate) const WAKER: u64 = 0;
pub(crate) const TUN: u64 = 1;
const V4: u64 = 2;
pub(crate) const V6: u64 = 3;
pub(crate) const PATHS: u64 = 4;

/// Raises the priority of the calling thread. Without the right to it, it runs as everyone else
/// does.
pub(crate) fn give_priority<U>(common: &Common<U>) {
    if setpriority_process(None, PRIORITY).is_err() {
        common.priority_was_refused();
    }
}

/// Overwrites what sealing and opening left of keys on the stack of a thread, below its loop. A
/// thread that has packets does that by itself; one that has none is woken for it when keys are
/// dropped.
#[inline]
pub(crate) fn overwrite_stack() {
    adit_aead::zeroizing_stack::<{ 64 << 10 }, _>(|| ());
}

/// Sleeps until something happens, and tells what; not longer than `timeout`.
pub(crate) fn wait(
    epoll: &OwnedFd,
    events: &mut Vec<Event>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    events.clear();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let spare = rustix::buffer::spare_capacity(events);
    match epoll::wait(epoll, spare, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

pub(crate) fn tokens<U>(sockets: &Sockets<U>) -> impl Iterator<Item = (&U, u64)> {
    sockets
        .v4
        .iter()
        .map(|socket| (socket, V4))
        .chain(sockets.v6.iter().map(|socket| (socket, V6)))
}
