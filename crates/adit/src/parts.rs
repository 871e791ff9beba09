//! The parts of a tunnel, with threads of its own or without.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Answered, EmbeddedEnd, Interface, Pending, StopReason};
use adit_io::TunQueue;

use crate::error::Error;
use crate::events::Events;

/// The source of packets as the engine has it.
pub(crate) type Source = Arc<dyn TunQueue>;

/// How long to wait for a thread of the tunnel.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The parts of a tunnel.
pub(crate) struct Parts {
    pub(crate) interface: Arc<Interface>,
    pub(crate) end: EmbeddedEnd,
    pub(crate) events: Events,
}

thread_local! {
    /// The calling thread is one of a tunnel.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is one of a tunnel from now on.
pub(crate) fn set_own() {
    IS_OWN.set(true);
}

/// Whether the calling thread is one of a tunnel.
pub(crate) fn is_own() -> bool {
    IS_OWN.get()
}

/// Why a tunnel has ended.
pub(crate) fn reason(reason: StopReason) -> Error {
    match reason {
        StopReason::Asked => Error::Ended,
        StopReason::InterfaceGone => Error::Descriptor(std::io::ErrorKind::NotFound.into()),
        StopReason::Failed(error) => Error::Host(error),
    }
}

/// Waits for an answer.
pub(crate) fn answer<R>(pending: &Pending<R>) -> Result<R, Error> {
    match pending.wait_for(PATIENCE) {
        Answered::Yes(answer) => Ok(answer),
        Answered::NotYet => Err(Error::NoAnswer),
        Answered::Never => Err(Error::Ended),
    }
}
