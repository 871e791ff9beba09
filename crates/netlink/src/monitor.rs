//! Changes in a namespace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_route::RouteNetlinkMessage as Message;

use crate::netns::Netns;
use crate::{Address, Link, Raw, descriptor, open_socket, receive};

/// The groups RTNLGRP_LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE and
/// IPV6_RULE; the group with number n is bit n - 1.
const GROUPS: u32 = 1 << 0 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 18;

/// Reports what changes among the links, addresses and routes of a namespace.
pub struct Monitor {
    socket: OwnedFd,
}

/// Something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interface is new, or not as it was.
    Link(Link),
    /// An interface left the namespace: it was deleted, or moved to another one.
    LinkGone {
        /// The index that it had.
        index: u32,
    },
    /// An interface got an address, or the address changed its state.
    Address(Address),
    /// An interface lost an address.
    AddressGone(Address),
    /// A route or rule was added, changed or removed.
    Routing,
    /// Events were lost, so anything may have changed.
    Lost,
}

impl Monitor {
    /// Watches the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// Those of socket(2) and bind(2).
    pub fn open() -> io::Result<Self> {
        let socket = open_socket(netlink_sys::protocols::NETLINK_ROUTE, GROUPS)?;
        socket.set_non_blocking(true)?;
        // A burst of routes should not be lost at once; if it is, `Lost` tells.
        let _ = socket.set_rx_buf_sz(1 << 20);
        descriptor(&socket).map(Self::from)
    }

    /// Watches `netns`.
    ///
    /// # Errors
    ///
    /// Those of [`Monitor::open`], and of entering the namespace.
    pub fn open_in(netns: &Netns) -> io::Result<Self> {
        netns.run(Self::open)?
    }

    /// Readable when [`Self::drain`] may have something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Gives `each` the events that wait, in the kernel's order.
    ///
    /// # Errors
    ///
    /// Those of recvmsg(2). Events that did not fit the buffer are no error, but an
    /// [`Event::Lost`].
    pub fn drain(&self, mut each: impl FnMut(Event)) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            match receive(&self.socket, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => each(Event::Lost),
                result => {
                    result?;
                    let messages = Raw::split(&buffer).filter_map(|raw| raw.parse());
                    messages
                        .filter_map(|message| Event::from_message(&message))
                        .for_each(&mut each);
                }
            }
        }
    }
}

/// A socket that [`Monitor::open`] opened, perhaps in another process.
impl From<OwnedFd> for Monitor {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl From<Monitor> for OwnedFd {
    fn from(monitor: Monitor) -> Self {
        monitor.socket
    }
}

impl Event {
    pub(super) fn from_message(message: &Message) -> Option<Self> {
        match message {
            Message::NewLink(_) => Link::from_message(message).map(Self::Link),
            Message::DelLink(link) => Some(Self::LinkGone {
                index: link.header.index,
            }),
            Message::NewAddress(_) => Address::from_message(message).map(Self::Address),
            Message::DelAddress(_) => Address::from_message(message).map(Self::AddressGone),
            Message::NewRoute(_)
            | Message::DelRoute(_)
            | Message::NewRule(_)
            | Message::DelRule(_) => Some(Self::Routing),
            _ => None,
        }
    }
}
