//! The control thread, and how interfaces come to it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, Event, EventData, EventFlags};

use crate::control::InterfaceControl;
use crate::host::platform::{EventSource, Platform};
use crate::shards::settings::Liberties;
use crate::thread::arrivals::Arrivals;
use crate::thread::contain::contain;
use crate::thread::poll::wait;
use crate::thread::start;
use crate::thread::wake::Waker;

/// Interfaces that get a turn before any gets its next one.
const MAX_TURNS: usize = 64;

/// The mailbox of the control thread.
pub(crate) struct ControlMailbox<H: Platform> {
    waker: Waker,
    /// Interfaces that it is to control.
    arrivals: Arrivals<InterfaceControl<H>>,
    stopping: AtomicBool,
}

impl<H: Platform> ControlMailbox<H> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            arrivals: Arrivals::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Leaves an interface for the thread.
    pub(crate) fn post(&self, control: InterfaceControl<H>) {
        self.arrivals.post(control);
        self.waker.wake();
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// The control thread. Each interface that has something to be done gets a turn, and a turn is
/// bounded, so that no interface keeps the others waiting.
pub(crate) struct ControlThread<H: Platform> {
    mailbox: Arc<ControlMailbox<H>>,
    /// Readable when an interface is to have a turn.
    epoll: OwnedFd,
    interfaces: HashMap<u32, InterfaceControl<H>>,
    /// The numbers of those whose last turn ended before all was done.
    busy: Vec<u32>,
    /// Sources that several interfaces have in common, by their tokens.
    sources: BTreeMap<u64, Arc<dyn EventSource>>,
}

/// Events have the number of an interface, the token of a source, or this: the thread's waker.
const THREAD_WAKER: u64 = u64::MAX;
/// Below the tokens of sources, above the numbers of interfaces.
const FIRST_SOURCE: u64 = 1 << 32;

impl<H: Platform> ControlThread<H> {
    pub(crate) fn new(mailbox: Arc<ControlMailbox<H>>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(THREAD_WAKER);
        epoll::add(&epoll, &mailbox.waker, data, EventFlags::IN)?;
        Ok(Self {
            mailbox,
            epoll,
            interfaces: HashMap::new(),
            busy: Vec::new(),
            sources: BTreeMap::new(),
        })
    }

    /// Runs until it is asked to end.
    pub(crate) fn run(mut self, liberties: Liberties) -> io::Result<()> {
        if liberties.sandbox {
            start::confine(start::Role::Control)?;
        }
        let mut events = Vec::with_capacity(MAX_TURNS);
        while !self.mailbox.stopping.load(Ordering::Acquire) {
            self.round(&mut events, None)?;
        }
        Ok(())
    }

    /// Whether an interface has more to do.
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Sleeps until something happens, not longer than `timeout`, and gives each interface that has something
    /// to do a turn.
    /// `events` has room for what may happen.
    pub(crate) fn round(
        &mut self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let timeout = if self.is_busy() {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        wait(&self.epoll, events, timeout)?;
        let mut round = std::mem::take(&mut self.busy);
        for event in &*events {
            let token = event.data.u64();
            if token == THREAD_WAKER {
                self.take_arrivals(&mut round);
            } else if let Some(source) = self.sources.get(&token) {
                // The interfaces concerned have their turn in the next round.
                source.take();
            } else if let Ok(number) = u32::try_from(token)
                && !round.contains(&number)
            {
                round.push(number);
            }
        }
        for number in round {
            self.turn(number);
        }
        Ok(())
    }

    fn take_arrivals(&mut self, round: &mut Vec<u32>) {
        self.mailbox.waker.clear();
        for mut control in self.mailbox.arrivals.take() {
            let number = control.number();
            match contain(|| control.host_changed()) {
                Ok(()) => {
                    self.interfaces.insert(number, control);
                    round.push(number);
                }
                Err(error) => {
                    control.common.fail(error);
                    end(control);
                }
            }
        }
    }

    /// One interface's turn.
    fn turn(&mut self, number: u32) {
        let Some(control) = self.interfaces.get_mut(&number) else {
            return;
        };
        let ended = match contain(|| control.turn()) {
            Ok(is_busy) => {
                if is_busy {
                    self.busy.push(number);
                }
                control.common.is_stopping()
            }
            Err(error) => {
                control.common.fail(error);
                true
            }
        };
        if ended {
            self.interfaces.remove(&number).into_iter().for_each(end);
            self.drop_sources();
        } else if control.is_unwatched {
            let watched = self.watch(number);
            if let (Err(error), Some(control)) = (watched, self.interfaces.get(&number)) {
                control.common.fail(error);
            }
        }
    }

    /// Watches the descriptors of an interface that are new, and those that it shares with others.
    fn watch(&mut self, number: u32) -> io::Result<()> {
        let Some(control) = self.interfaces.get_mut(&number) else {
            return Ok(());
        };
        let data = EventData::new_u64(number.into());
        epoll::add(&self.epoll, &control.wakeups, data, EventFlags::IN)?;
        control.is_unwatched = false;
        for source in control.platform.sources() {
            if self
                .sources
                .values()
                .any(|known| Arc::ptr_eq(known, &source))
            {
                continue;
            }
            let last = self.sources.last_key_value();
            let token = last.map_or(FIRST_SOURCE, |(token, _)| token + 1);
            for fd in source.fds() {
                epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)?;
            }
            self.sources.insert(token, source);
        }
        self.drop_sources();
        Ok(())
    }

    /// Closes what no interface shares any more.
    fn drop_sources(&mut self) {
        self.sources
            .retain(|_, source| Arc::strong_count(source) > 1);
    }
}

/// Lets go of an interface. What panicked may do so again here, and its other parts end nevertheless.
fn end<H: Platform>(control: InterfaceControl<H>) {
    let _ = contain(|| {
        drop(control);
        Ok(())
    });
}

impl<H: Platform> AsFd for ControlThread<H> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl<H: Platform> Drop for ControlThread<H> {
    fn drop(&mut self) {
        self.mailbox.arrivals.close();
    }
}
