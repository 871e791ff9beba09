//! A tunnel that runs.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Interface, Resume};

use crate::config::{Change, Config, Status};
use crate::error::Error;
use crate::events::Events;
use crate::hand_over::HandOver;
use crate::keys::PublicKey;
use crate::parts::{Parts, answer, is_own, reason};
use crate::stats::Stats;

/// How long a socket may be full when a tunnel is handed over.
const FULL: Duration = Duration::from_secs(5);

/// A tunnel that runs on threads of its own: packets of its source go to its peers over UDP, and
/// come back.
///
/// Dropping it stops it, and returns when its threads have ended and its descriptors are closed. That
/// takes some milliseconds, or as long as what it calls blocks. A process has any number of tunnels.
///
/// A tunnel does not survive fork(2) in the child, which has none of its threads: the child must not use
/// it, nor drop it, and may go on to exec(2), at which its descriptors close. Dropping it on one of its
/// own threads, as within [`PacketIo::push`](crate::PacketIo::push), is possible: it ends soon after.
pub struct Tunnel {
    /// `None` while it is dropped.
    parts: Option<Parts>,
}

impl Tunnel {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts: Some(parts) }
    }

    pub(crate) fn begin(&self, config: &Config) -> Result<(), Error> {
        self.set(Change::to(config)?)
    }

    fn parts(&self) -> &Parts {
        self.parts
            .as_ref()
            .expect("it is there until it is dropped")
    }

    /// The engine's end of it: for the `adit` command, and no part of the API.
    #[doc(hidden)]
    pub fn interface(&self) -> &Arc<Interface> {
        &self.parts().interface
    }

    /// Changes it, whole or not at all, and returns when that is in force.
    ///
    /// # Errors
    ///
    /// [`Error`] says what was refused; nothing was changed. After [`Error::NoAnswer`] it may still
    /// happen.
    pub fn set(&self, change: Change) -> Result<(), Error> {
        let pending = self.parts().interface.begin_set(change.into_proto());
        let (result, _) = answer(&pending)?;
        result.map_err(Error::of)
    }

    /// How it is now.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`], [`Error::NoAnswer`], and [`Error::Host`] without memory for the answer.
    pub fn status(&self) -> Result<Status, Error> {
        let pending = self.parts().interface.begin_get();
        answer(&pending)?.map(Status::of).map_err(Error::of)
    }

    /// Begins a handshake with a peer, unless one is under way, and returns when its first message leaves:
    /// `None` if there is no such peer.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] and [`Error::NoAnswer`].
    pub fn probe(&self, peer: PublicKey) -> Result<Option<Duration>, Error> {
        let pending = self.parts().interface.begin_probe(peer.to_proto());
        answer(&pending)
    }

    /// Its counters. It waits for nobody.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.parts().interface.report_at_once())
    }

    /// Its events.
    pub fn events(&self) -> Events {
        self.parts().events.clone()
    }

    /// Closes its sockets: until [`Self::resume`] nothing is sent, received or timed, and what its source
    /// has for peers is dropped. It takes effect soon. Sessions stay for as long as they are valid.
    pub fn suspend(&self) {
        self.parts().end.set_up(false);
    }

    /// Opens its sockets again, on the same port if that is free.
    pub fn resume(&self) {
        self.parts().end.set_up(true);
    }

    /// Replaces its sockets, because the network is another one: a telephone went from Wi-Fi to the mobile
    /// network. Sessions stay, and peers learn where it is with the next packet.
    pub fn rebind(&self) {
        self.parts().end.rebind();
    }

    /// Sets the MTU of the inner network.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if no tunnel has that.
    pub fn set_mtu(&self, mtu: usize) -> Result<(), Error> {
        self.parts().end.set_mtu(crate::config::check_mtu(mtu)?);
        Ok(())
    }

    /// Waits until it ends by itself, and says why: something failed, or its source of packets is
    /// gone.
    pub fn wait(&self) -> Error {
        reason(self.parts().interface.wait())
    }

    /// Has another one go on with its sessions and sockets: over another source of packets, or in another
    /// process. This one has stopped then; what is left to do with it is to drop it.
    ///
    /// # Errors
    ///
    /// It goes on as before: a socket has been full for five seconds ([`Error::Host`]). Or it has ended.
    pub fn hand_over(&self) -> Result<HandOver, Error> {
        let interface = &self.parts().interface;
        if interface.has_ended() {
            return Err(Error::Ended);
        }
        interface.pause(FULL).map_err(Error::Host)?;
        HandOver::of(interface).map_err(|error| {
            interface.resume(Resume::AsItWas);
            Error::Host(error)
        })
    }

    /// Stops it, as dropping it does.
    pub fn stop(self) {}
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else {
            return;
        };
        parts.interface.stop();
        if is_own() {
            // This thread is waited for. Without memory for another one, what is left is leaked: it ends.
            let parts = ManuallyDrop::new(parts);
            let end = move || drop(ManuallyDrop::into_inner(parts));
            let _ = std::thread::Builder::new().spawn(end);
        }
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tunnel")
    }
}
