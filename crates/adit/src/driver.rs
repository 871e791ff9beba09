//! A tunnel on a thread of its caller.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use adit_engine as engine;
use adit_engine::{Answered, Embedded, Pending};

use crate::config::{Change, Config, Status};
use crate::error::Error;
use crate::events::Events;
use crate::parts::{PATIENCE, Parts, Source};
use crate::stats::Stats;

/// A tunnel without threads ([`Builder::drive`](crate::Builder::drive)): all of it happens in
/// [`Self::poll`], on the thread that calls it.
///
/// Its descriptor is readable when there is something to do, so that it fits any loop of events.
///
/// ```no_run
/// # fn f(mut driver: adit::Driver) -> Result<(), adit::Error> {
/// loop {
///     let again = driver.poll()?;
///     driver.wait(again)?;
/// }
/// # }
/// ```
pub struct Driver {
    driver: engine::Driver<Source, Embedded<Source>>,
    /// `None` while it is dropped.
    parts: Option<Parts>,
}

impl Driver {
    pub(crate) fn new(driver: engine::Driver<Source, Embedded<Source>>, parts: Parts) -> Self {
        let parts = Some(parts);
        Self { driver, parts }
    }

    pub(crate) fn begin(&mut self, config: &Config) -> Result<(), Error> {
        self.set(Change::to(config)?)
    }

    fn parts(&self) -> &Parts {
        self.parts
            .as_ref()
            .expect("it is there until it is dropped")
    }

    /// Does what there is to do, up to a batch of packets in each direction, and does not wait. Returns when to
    /// call it again at the latest, if nothing happens before that; `None` is any time.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] once it has ended, and [`Error::Host`].
    pub fn poll(&mut self) -> Result<Option<Duration>, Error> {
        if self.parts().interface.has_ended() {
            return Err(Error::Ended);
        }
        self.driver.turn().map_err(Error::Host)
    }

    /// Waits until there is something to do, not longer than `timeout`.
    ///
    /// # Errors
    ///
    /// [`Error::Host`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.driver.wait(timeout).map_err(Error::Host)
    }

    /// Changes it, whole or not at all; packets pass meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error`] says what was refused; nothing was changed.
    pub fn set(&mut self, change: Change) -> Result<(), Error> {
        let pending = self.parts().interface.begin_set(change.into_proto());
        let (result, _) = self.answer(&pending)?;
        result.map_err(Error::of)
    }

    /// How it is now; packets pass meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`], and [`Error::Host`] without memory for the answer.
    pub fn status(&mut self) -> Result<Status, Error> {
        let pending = self.parts().interface.begin_get();
        let status = self.answer(&pending)?;
        status.map(Status::of).map_err(Error::of)
    }

    /// Its counters.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.parts().interface.report_at_once())
    }

    /// Its events.
    pub fn events(&self) -> Events {
        self.parts().events.clone()
    }

    /// Closes its sockets, as [`Tunnel::suspend`](crate::Tunnel::suspend) does, with the next poll.
    pub fn suspend(&self) {
        self.parts().end.set_up(false);
    }

    /// Opens them again.
    pub fn resume(&self) {
        self.parts().end.set_up(true);
    }

    /// Replaces them, as [`Tunnel::rebind`](crate::Tunnel::rebind) does.
    pub fn rebind(&self) {
        self.parts().end.rebind();
    }

    fn answer<R>(&mut self, pending: &Pending<R>) -> Result<R, Error> {
        let until = Instant::now() + PATIENCE;
        loop {
            let again = self.poll()?;
            match pending.wait_for(Duration::ZERO) {
                Answered::Yes(answer) => return Ok(answer),
                Answered::Never => return Err(Error::Ended),
                Answered::NotYet => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::NoAnswer);
            }
            self.wait(Some(again.map_or(left, |again| again.min(left))))?;
        }
    }
}

impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.as_fd()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            // It cannot fail, and without its end the rest would wait for it.
            if self.driver.end(&parts.interface).is_err() {
                std::mem::forget(parts);
            }
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}
