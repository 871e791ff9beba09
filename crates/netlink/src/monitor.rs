//! Changes in a namespace.
//!
//! What can change which route and source address the kernel chooses, and who tells of it:
//!
//! | what changes | the kernel tells in |
//! |---|---|
//! | carrier, up, down, a VRF; routes that go with them are not told for IPv4 | LINK |
//! | an address; its state (IPv6: tentative, deprecated) | IPV4_IFADDR, IPV6_IFADDR |
//! | a route, its metric, gateway, source, MTU; ICMPv6 router advertisements | IPV4_ROUTE, IPV6_ROUTE |
//! | a nexthop object, where the sysctl `nexthop_compat_mode` is 0 or its routes go silently | NEXTHOP |
//! | policy rules, also by mark | IPV4_RULE, IPV6_RULE |
//! | the sysctls `ignore_routes_with_linkdown`, `forwarding`, `rp_filter` | IPV4_NETCONF, IPV6_NETCONF |
//! | the sysctls `disable_ipv6`, `accept_ra` and others of an interface | IPV6_IFINFO, IPV6_IFADDR |
//! | whether a neighbour answers, where there are several routers (`fib_multipath_use_neigh`, RFC 4191) | NEIGH: not asked for, as a router hears of its neighbours all the time |
//! | the sysctls `fib_multipath_hash_policy`, `use_oif_addrs_only`; address labels; nftables, BPF and IPsec on the way out; a router elsewhere that drops a source | nothing |
//!
//! So no list is complete. What needs no list: a source from which answers stay unconfirmed is
//! dropped, and the kernel is asked anew.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::netns::Netns;
use crate::{Address, Link, Raw, descriptor, open_socket, receive};

/// The groups RTNLGRP_LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE,
/// IPV6_IFINFO, IPV6_RULE, IPV4_NETCONF, IPV6_NETCONF and NEXTHOP.
const GROUPS: [u32; 11] = [1, 5, 7, 8, 9, 11, 12, 19, 24, 25, 32];

/// RTNLGRP_LINK, IPV4_IFADDR and IPV6_IFADDR.
const GROUPS_OF_ADDRESSES: [u32; 3] = [1, 5, 9];

/// RTM_BASE: messages below are netlink's own.
const FIRST_OF_ROUTING: u16 = 16;

/// Reports what changes among the links, addresses and routes of a namespace.
pub struct Monitor {
    socket: OwnedFd,
}

/// Something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetlinkEvent {
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
    /// A route, a nexthop, a rule or a setting was added, changed or removed.
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
        Self::of_groups(&GROUPS)
    }

    /// Watches the calling thread's namespace, and reports links and addresses only: a router may learn
    /// thousands of routes a second.
    ///
    /// # Errors
    ///
    /// Those of socket(2) and bind(2).
    pub fn of_addresses() -> io::Result<Self> {
        Self::of_groups(&GROUPS_OF_ADDRESSES)
    }

    fn of_groups(groups: &[u32]) -> io::Result<Self> {
        // The group with number n is bit n - 1.
        let groups = groups.iter().fold(0, |bits, group| bits | 1 << (group - 1));
        let socket = open_socket(netlink_sys::protocols::NETLINK_ROUTE, groups)?;
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
    /// [`NetlinkEvent::Lost`].
    pub fn drain(&self, mut each: impl FnMut(NetlinkEvent)) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            match receive(&self.socket, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    each(NetlinkEvent::Lost)
                }
                result => {
                    result?;
                    let events = Raw::split(&buffer).filter_map(|raw| NetlinkEvent::of(&raw));
                    events.for_each(&mut each);
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

impl NetlinkEvent {
    /// What is not understood, as newer kernels may send, may have changed routes, too.
    pub(super) fn of(raw: &Raw<'_>) -> Option<Self> {
        if raw.kind < FIRST_OF_ROUTING {
            return None;
        }
        let known = raw.parse().and_then(|message| match &message {
            // What a protocol or a bridge makes of an interface, which lacks most of a link: a port
            // that leaves its bridge is deleted there, and stays in the namespace.
            Message::NewLink(link) | Message::DelLink(link)
                if link.header.interface_family != AddressFamily::Unspec =>
            {
                None
            }
            Message::NewLink(_) => Link::from_message(&message).map(Self::Link),
            Message::DelLink(link) => Some(Self::LinkGone {
                index: link.header.index,
            }),
            Message::NewAddress(_) => Address::from_message(&message).map(Self::Address),
            Message::DelAddress(_) => Address::from_message(&message).map(Self::AddressGone),
            _ => None,
        });
        known.or(Some(Self::Routing))
    }
}
