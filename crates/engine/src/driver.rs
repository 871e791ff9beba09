//! An engine on a thread of its caller.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use adit_io::TunQueue;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::control::thread::ControlThread;
use crate::host::platform::Platform;
use crate::interface::Interface;
use crate::shards::shard::Shard;
use crate::thread::poll::{MAX_EVENTS, wait};

/// How long to wait, at most, for what ends an interface.
const END: Duration = Duration::from_millis(1);

/// The work of an engine without threads ([`Engine::driven`](crate::Engine::driven)): handshakes, timers
/// and packets, in turns. Its descriptor is readable when there is something to do.
pub struct Driver<T: TunQueue + 'static, H: Platform> {
    control: ControlThread<H>,
    shard: Shard<T, H::Socket>,
    epoll: OwnedFd,
}

impl<T: TunQueue + 'static, H: Platform> Driver<T, H> {
    pub(crate) fn new(control: ControlThread<H>, shard: Shard<T, H::Socket>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(0);
        for fd in [control.as_fd(), shard.as_fd()] {
            epoll::add(&epoll, fd, data, EventFlags::IN)?;
        }
        Ok(Self {
            control,
            shard,
            epoll,
        })
    }

    /// Does what there is to do, up to a batch of each queue, and returns when to call it again at the
    /// latest; before that, when its descriptor is readable.
    ///
    /// # Errors
    ///
    /// Those of epoll_wait(2), which do not occur.
    pub fn turn(&mut self) -> io::Result<Option<Duration>> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        self.control.round(&mut events, Some(Duration::ZERO))?;
        self.shard.turn(&mut events, Some(Duration::ZERO))?;
        match self.control.is_busy() {
            true => Ok(Some(Duration::ZERO)),
            false => Ok(self.shard.timeout()),
        }
    }

    /// Waits until there is something to do, not longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Those of epoll_wait(2), which do not occur.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        wait(&self.epoll, &mut Vec::with_capacity(2), timeout)
    }

    /// Ends an interface, which has no other thread that does it.
    ///
    /// # Errors
    ///
    /// Those of epoll_wait(2), which do not occur.
    pub fn end(&mut self, interface: &Interface) -> io::Result<()> {
        interface.stop();
        while !interface.has_ended() {
            self.turn()?;
            self.wait(Some(END))?;
        }
        Ok(())
    }
}

impl<T: TunQueue + 'static, H: Platform> AsFd for Driver<T, H> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
