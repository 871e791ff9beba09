//! `adit call --when-present`: calls the peers of an interface each time an address comes to this host,
//! whatever moves it.

use std::net::IpAddr;

use adit_netlink::{Monitor, Netlink, NetlinkEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use crate::failure::{Context, Result, say};
use crate::systemd;

/// Has `call` call peers each time, until this process is ended. `ready` is for people, once it watches.
pub(super) fn each_time(
    address: IpAddr,
    ready: &str,
    call: impl Fn(Whom) -> Result<()>,
) -> Result<()> {
    let failed = || "cannot watch the addresses of this host".to_owned();
    let monitor = Monitor::of_addresses().context(failed)?;
    let netlink = Netlink::open().context(failed)?;
    let mut presence = Presence::Unknown;
    let (mut is_ready, mut said) = (false, String::new());
    loop {
        let addresses = netlink.addresses().context(failed)?;
        let is_here = addresses.iter().any(|it| it.ip == address && !it.tentative);
        let called = match presence.look(is_here) {
            Some(whom) => call(whom).map(|()| presence = Presence::Called),
            None => Ok(()),
        };
        // What fails is tried again: when the interface comes later, that is an event, too.
        let why = called.map_or_else(|error| error.to_string(), |()| String::new());
        if why != said && !why.is_empty() {
            say!("adit: {why}");
        }
        said = why;
        if !is_ready {
            is_ready = true;
            systemd::tell("READY=1");
            if !ready.is_empty() {
                say!("adit: {ready}");
            }
        }
        let mut wait = [PollFd::from_borrowed_fd(monitor.fd(), PollFlags::IN)];
        retry_on_intr(|| poll(&mut wait, None)).context(failed)?;
        let each = |event| match event {
            NetlinkEvent::AddressGone(gone) if gone.ip == address => presence.went(),
            // It may have gone and come.
            NetlinkEvent::Lost => presence.went(),
            _ => {}
        };
        monitor.drain(each).context(failed)?;
    }
}

/// What is known of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// Nothing yet: it may have been here for long.
    Unknown,
    /// It was not here when that was last looked at, or went since, or no peer could be called.
    Away,
    /// It is here, and the peers were called.
    Called,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    All,
    /// The address was here already: what the list says of peers that came meanwhile may be old.
    Strangers,
}

impl Presence {
    fn went(&mut self) {
        *self = Self::Away;
    }

    /// Who is to be called now.
    fn look(&mut self, is_here: bool) -> Option<Whom> {
        if !is_here {
            self.went();
        }
        match self {
            Self::Unknown => Some(Whom::Strangers),
            Self::Away if is_here => Some(Whom::All),
            Self::Away | Self::Called => None,
        }
    }
}

#[cfg(test)]
#[path = "present_tests.rs"]
mod tests;
