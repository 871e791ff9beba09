//! Links, addresses, routes, rules and the packet filter over netlink, as far as a tunnel needs
//! them.
//!
//! Requests are synchronous: the kernel handles one while it is sent, so its answer waits already.
//! A [`Netlink`] stays in the namespace of the thread that opened it, wherever it is used.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod address;
mod attribute;
mod clones;
pub mod ethtool;
#[doc(hidden)]
pub mod fuzzing;
mod link;
mod monitor;
pub mod netns;
pub mod nft;
#[cfg(test)]
mod nft_tests;
mod nftables;
#[cfg(test)]
mod nftables_tests;
mod peer_filter;
#[cfg(test)]
mod peer_filter_tests;
mod qdisc;
mod route;
mod rule;
mod steering;
#[cfg(test)]
mod steering_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::attribute::{Attributes, u16_at};
use crate::netns::Netns;

pub use address::Address;
pub use clones::CloneMonitor;
pub use link::{Link, LinkChange};
pub use monitor::{Monitor, NetlinkEvent};
pub use nftables::Firewall;
pub use peer_filter::{FilterElement, FilterMonitor, PeerFilter};
pub use route::{Route, RouteLookup};
pub use rule::Rule;
pub use steering::{Steering, SteeringTarget};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of `ip`.
    pub fn of(ip: std::net::IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Length of the family's addresses.
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

impl From<Family> for netlink_packet_route::AddressFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Inet,
            Family::V6 => Self::Inet6,
        }
    }
}

/// A request that failed: what was attempted, and the kernel's answer. The caller knows the name of
/// the interface.
#[derive(Debug)]
pub struct Error {
    /// The operation that was attempted.
    what: String,
    /// The kernel's own words, where it has some.
    reason: Option<String>,
    source: io::Error,
}

impl Error {
    /// The errno.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// The kind of the errno: `AlreadyExists`, `NotFound`, `PermissionDenied`, …
    pub fn kind(&self) -> io::ErrorKind {
        match self.source.raw_os_error() {
            // The error of deleting a route, an address or a link that is not there.
            Some(libc::ESRCH | libc::EADDRNOTAVAIL | libc::ENODEV) => io::ErrorKind::NotFound,
            // A part that the kernel was built without.
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => {
                io::ErrorKind::Unsupported
            }
            _ => self.source.kind(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)?;
        match &self.reason {
            Some(reason) => write!(f, " ({reason})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

/// The result of methods of [`Netlink`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A routing socket.
pub struct Netlink {
    socket: OwnedFd,
    sequence: AtomicU32,
}

/// Attempts at a dump that changes while it is read.
const DUMP_ATTEMPTS: usize = 10;

impl Netlink {
    /// A socket in the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// Those of socket(2) and bind(2).
    pub fn open() -> io::Result<Self> {
        let socket = open_socket(netlink_sys::protocols::NETLINK_ROUTE, 0)?;
        // Old kernels lack these; they only make errors clearer.
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_netlink_get_strict_chk(true);
        descriptor(&socket).map(Self::from)
    }

    /// A socket in `netns`.
    ///
    /// # Errors
    ///
    /// Those of [`Netlink::open`], and of entering the namespace.
    pub fn open_in(netns: &Netns) -> io::Result<Self> {
        netns.run(Self::open)?
    }

    /// Changes something. `flags` are added to REQUEST and ACK.
    fn change(
        &self,
        what: impl fmt::Display,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<()> {
        let mut ignored = Vec::new();
        let result = self.exchange(message, flags | NLM_F_ACK, &mut ignored);
        result
            .map(drop)
            .map_err(|failure| failure.while_trying(what))
    }

    /// Asks for one object.
    fn get(
        &self,
        what: impl fmt::Display,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>> {
        let mut answers = Vec::new();
        match self.exchange(message, NLM_F_ACK, &mut answers) {
            Ok(_) => Ok(answers),
            Err(failure) => Err(failure.while_trying(what)),
        }
    }

    /// Asks for all objects of a kind: none if the kernel has nothing of the kind for the family,
    /// as with `ipv6.disable=1`.
    fn dump(
        &self,
        what: impl fmt::Display,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>> {
        let mut answers = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            answers.clear();
            match self.exchange(message.clone(), NLM_F_DUMP, &mut answers) {
                Ok(false) => return Ok(answers),
                // It changed meanwhile: what we have may be neither the old nor the new state.
                Ok(true) => {}
                Err(failure) if failure.source.raw_os_error() == Some(libc::EAFNOSUPPORT) => break,
                Err(failure) => return Err(failure.while_trying(what)),
            }
        }
        Ok(answers)
    }

    /// Sends a request and collects answers until it is done with; true if a dump was interrupted
    /// by a change.
    fn exchange(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        answers: &mut Vec<RouteNetlinkMessage>,
    ) -> Result<bool, KernelRefusal> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = sequence;
        request.finalize();
        let mut buffer = vec![0; request.buffer_len()];
        request.serialize(&mut buffer);
        let _ = send(&self.socket, &buffer, SendFlags::empty()).map_err(io::Error::from)?;

        let mut interrupted = false;
        let mut buffer = Vec::new();
        loop {
            receive(&self.socket, &mut buffer)?;
            for raw in Raw::split(&buffer).filter(|raw| raw.sequence == sequence) {
                interrupted |= raw.flags & NLM_F_DUMP_INTR != 0;
                match raw.kind {
                    NLMSG_ERROR | NLMSG_DONE => return raw.outcome().map(|()| interrupted),
                    _ => answers.extend(raw.parse()),
                }
            }
        }
    }
}

/// A socket that [`Netlink::open`] opened, perhaps in another process.
impl From<OwnedFd> for Netlink {
    fn from(socket: OwnedFd) -> Self {
        Self {
            socket,
            sequence: AtomicU32::new(1),
        }
    }
}

impl From<Netlink> for OwnedFd {
    fn from(netlink: Netlink) -> Self {
        netlink.socket
    }
}

/// The kernel's refusal.
struct KernelRefusal {
    source: io::Error,
    reason: Option<String>,
}

impl From<io::Error> for KernelRefusal {
    fn from(source: io::Error) -> Self {
        Self {
            source,
            reason: None,
        }
    }
}

impl KernelRefusal {
    fn while_trying(self, what: impl fmt::Display) -> Error {
        Error {
            what: what.to_string(),
            reason: self.reason,
            source: self.source,
        }
    }
}

/// A netlink message before it is understood.
struct Raw<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    /// With its header.
    bytes: &'a [u8],
}

/// `struct nlmsghdr`: length (4), type (2), flags (2), sequence (4), port (4).
const HEADER: usize = 16;

/// Attribute of an extended acknowledgement that is a string.
const NLMSGERR_ATTR_MSG: u16 = 1;

impl<'a> Raw<'a> {
    /// The messages in `buffer`; ends at the first that does not fit.
    fn split(mut buffer: &'a [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let len = usize::try_from(u32_at(buffer, 0)?).ok()?;
            let bytes = buffer.get(..len).filter(|_| len >= HEADER)?;
            buffer = buffer.get(len.next_multiple_of(4)..).unwrap_or_default();
            Some(Self {
                kind: u16_at(bytes, 4)?,
                flags: u16_at(bytes, 6)?,
                sequence: u32_at(bytes, 8)?,
                bytes,
            })
        })
    }

    /// `None` for what this crate does not understand, as newer kernels may send.
    fn parse(&self) -> Option<RouteNetlinkMessage> {
        match NetlinkMessage::deserialize(self.bytes).ok()?.payload {
            NetlinkPayload::InnerMessage(message) => Some(message),
            _ => None,
        }
    }

    /// What an acknowledgement or the end of a dump says: an errno, negative or 0, the header of
    /// the request, which the end of a dump leaves out, and attributes.
    fn outcome(&self) -> Result<(), KernelRefusal> {
        let code = u32_at(self.bytes, HEADER).map_or(0, u32::cast_signed);
        if code == 0 {
            return Ok(());
        }
        let request = if self.kind == NLMSG_DONE { 0 } else { HEADER };
        let attributes = self.bytes.get(HEADER + 4 + request..).unwrap_or_default();
        let reason = Attributes(attributes).find(NLMSGERR_ATTR_MSG).map(|text| {
            let text = text.strip_suffix(&[0]).unwrap_or(text);
            String::from_utf8_lossy(text).into_owned()
        });
        Err(KernelRefusal {
            source: io::Error::from_raw_os_error(code.wrapping_neg()),
            reason,
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

/// A netlink socket that is connected to the kernel and member of the given groups (a bit each).
fn open_socket(protocol: isize, groups: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    let kernel = netlink_sys::SocketAddr::new(0, 0);
    socket.bind(&netlink_sys::SocketAddr::new(0, groups))?;
    socket.connect(&kernel)?;
    Ok(socket)
}

/// The socket as a descriptor, which another process may be given.
fn descriptor(socket: &Socket) -> io::Result<OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}

/// Receives one datagram into `buffer`, which it replaces.
fn receive(socket: impl AsFd, buffer: &mut Vec<u8>) -> io::Result<()> {
    // The kernel's datagrams are at most 32 KiB long.
    buffer.clear();
    buffer.reserve(1 << 16);
    loop {
        let space = rustix::buffer::spare_capacity(buffer);
        match recv(&socket, space, RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

/// The descriptor, for attributes that name a namespace by it.
fn netns_fd(netns: &Netns) -> i32 {
    netns.as_fd().as_raw_fd()
}
