//! What takes a right, and the process that does it for one that has none: the helper.
//!
//! 1. A function here makes a `Request`, with the descriptors that it is about.
//! 2. If this process has a helper ([`connect`]), the request is sent to it, and its answer brings
//!    the descriptors that it opened. Otherwise this process does the work itself.
//!
//! The helper ([`Server`]) believes nothing that it is told: it looks at lengths, values, the number
//! of descriptors and what each of them is. It opens no path that it is told: its files are of names
//! in the folders that it was started with ([`files`]). It opens no TUN device that exists already,
//! unless it was named when the helper started. It changes no interface but a TUN device of which it
//! is given a queue, and no socket but one of UDP. It makes BPF programs itself.
//!
//! These functions wait for the helper. Threads that process packets may not:
//! [`adit_sandbox::run`] has the main thread call them.

mod client;
mod file_request;
mod file_server;
pub mod files;
mod messages;
mod name;
mod request;
mod server;

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use adit_netlink::netns::Netns;
use adit_netlink::{CloneMonitor, Monitor, Netlink};
use rustix::process::{Pid, setpriority_process};

use crate::helper::client::ask;
use crate::helper::messages::{Answer, malformed};
use crate::helper::name::Name;
use crate::helper::request::Request;
use crate::helper::server::PRIORITY;
use crate::sys::os;
use crate::udp::open::{Gear, Opened, Way};

pub use client::{connect, connection, has_ended};
pub use file_request::Folder;
pub use file_server::Folders;
pub(crate) use request::{Change, Kind, Options, Queues};
pub use server::Server;

pub(crate) fn open(name: &str, queues: Queues) -> io::Result<OwnedFd> {
    os::IfReq::new(name)?;
    let name = Name::try_from(name.as_bytes()).unwrap_or_default();
    ask(Request::Open(name, queues), &[])?.one()
}

pub(crate) fn queue(tun: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    ask(Request::Queue, &[tun])?.one()
}

pub(crate) fn namespace(tun: BorrowedFd<'_>) -> io::Result<Netns> {
    ask(Request::Namespace, &[tun])?.one().map(Netns::from)
}

/// A socket of the process's own namespace.
pub(crate) fn home(kind: Kind) -> io::Result<OwnedFd> {
    ask(Request::Home(kind), &[])?.one()
}

/// For questions in the process's own namespace.
///
/// # Errors
///
/// Those of [`Netlink::open`].
pub fn netlink() -> io::Result<Netlink> {
    home(Kind::Netlink).map(Netlink::from)
}

/// For changes in the process's own namespace.
///
/// # Errors
///
/// Those of [`Monitor::open`].
pub fn monitor() -> io::Result<Monitor> {
    home(Kind::Monitor).map(Monitor::from)
}

/// Whether the interface of this index segments UDP in hardware; `None` if it cannot be found out.
pub fn segments(index: u32) -> Option<bool> {
    match ask(Request::Segments(index), &[]).ok()?.numbers[0] {
        1 => Some(false),
        2 => Some(true),
        _ => None,
    }
}

/// A socket in the namespace of the device, which is `netns`.
pub(crate) fn socket(tun: BorrowedFd<'_>, netns: &Netns, kind: Kind) -> io::Result<OwnedFd> {
    match netns.is_current() {
        Ok(true) => home(kind),
        _ => ask(Request::Socket(kind), &[tun])?.one(),
    }
}

/// For [`Change::NoQueue`]: whether the qdisc was changed.
pub(crate) fn change(tun: BorrowedFd<'_>, change: Change) -> io::Result<bool> {
    Ok(ask(Request::Link(change), &[tun])?.numbers[0] == 1)
}

pub(crate) fn arrivals(tun: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    ask(Request::Arrivals, &[tun])?.one()
}

pub(crate) fn limit(tun: BorrowedFd<'_>, least: u32, several: bool) -> io::Result<[OwnedFd; 2]> {
    ask(Request::Limit { least, several }, &[tun])?.all()
}

/// Fails for a mark only.
pub(crate) fn set_options(socket: BorrowedFd<'_>, options: Options) -> io::Result<()> {
    match ask(Request::Options(options), &[socket]) {
        Err(_) if options.mark.is_none() => Ok(()),
        result => result.map(drop),
    }
}

/// Sets the mark of what a socket sends, for rules of routing and firewalls.
pub(crate) fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    let options = Options {
        mark: Some(mark),
        ..Options::default()
    };
    set_options(socket, options)
}

/// Sockets of both families that are bound, and their port.
type Pair = (Option<Opened>, Option<Opened>, u16);

pub(crate) fn pair(port: u16, mark: u32, wants: Gear) -> io::Result<Pair> {
    let Answer { fds, numbers } = ask(Request::Pair { port, mark, wants }, &[])?;
    let mut fds = fds.into_iter();
    let [bits, port] = numbers;
    let mut next = |bits: u64| {
        let has = Gear::of_bits((bits & 3) as u8)?;
        let fd = (bits & 4 != 0).then(|| fds.next()).flatten()?;
        Some(Opened { fd, has })
    };
    let (v4, v6) = (next(bits), next(bits >> 3));
    Ok((v4, v6, u16::try_from(port).map_err(|_| malformed())?))
}

/// Whether others shared the port before comes with the sockets.
pub(crate) fn join(
    socket: BorrowedFd<'_>,
    group: u32,
    more: usize,
    way: Way,
) -> io::Result<(Vec<Opened>, bool)> {
    let [group, more] =
        [group as usize, more].map(|number| u8::try_from(number).unwrap_or(u8::MAX));
    let Answer { fds, numbers } = ask(Request::Join { group, more, way }, &[socket])?;
    let has = Gear::of_bits((numbers[0] & 3) as u8).unwrap_or_default();
    let sockets = fds.into_iter().map(|fd| Opened { fd, has });
    Ok((sockets.collect(), numbers[1] == 1))
}

pub(crate) fn spread(socket: BorrowedFd<'_>, over: u32) -> io::Result<()> {
    let over = u8::try_from(over).unwrap_or(u8::MAX);
    ask(Request::Spread(over), &[socket]).map(drop)
}

pub(crate) fn ignore_icmp(socket: BorrowedFd<'_>, ignore: bool) -> io::Result<()> {
    ask(Request::Ignore(ignore), &[socket]).map(drop)
}

pub(crate) fn apart(socket: BorrowedFd<'_>) -> io::Result<()> {
    ask(Request::Apart, &[socket]).map(drop)
}

/// A UDP socket of each family whose packets have the mark; none without the right for it.
pub fn marked(mark: u32) -> Vec<OwnedFd> {
    let answer = ask(Request::Marked(mark), &[]);
    answer.map_or_else(|_| Vec::new(), |answer| answer.fds.into_iter().collect())
}

pub(crate) fn table() -> io::Result<OwnedFd> {
    ask(Request::Table, &[])?.one()
}

pub(crate) fn filter(
    socket: BorrowedFd<'_>,
    table: BorrowedFd<'_>,
    factors: [u64; 2],
) -> io::Result<OwnedFd> {
    ask(Request::Filter(factors), &[socket, table])?.one()
}

/// Hears of clones of this machine, as [`CloneMonitor::open`] does.
///
/// # Errors
///
/// Those of [`CloneMonitor::open`].
pub fn clones() -> io::Result<CloneMonitor> {
    let Answer { fds, numbers } = ask(Request::Clones, &[])?;
    let mut fds = fds.into_iter();
    let uevents = fds.next().ok_or_else(malformed)?;
    let [log, clock] = numbers.map(|has| (has == 1).then(|| fds.next()).flatten());
    Ok(CloneMonitor::with(uevents, log, clock))
}

/// The file that tells how long the calling thread has waited for a CPU (schedstat).
///
/// # Errors
///
/// Those of openat(2); a helper of another user than root may not see threads of others.
pub fn waits() -> io::Result<File> {
    let thread = rustix::thread::gettid();
    ask(Request::Waits(thread), &[])?.one().map(File::from)
}

/// Raises the priority of a thread of this process that packets wait for.
///
/// # Errors
///
/// `PermissionDenied` without CAP_SYS_NICE, unless RLIMIT_NICE allows it.
pub fn prioritize(thread: Pid) -> io::Result<()> {
    // There may be a limit that allows it.
    let own = setpriority_process(Some(thread), PRIORITY);
    own.or_else(|_| ask(Request::Priority(thread), &[]).map(drop))
}

#[cfg(test)]
mod file_server_tests;
#[cfg(test)]
mod served_tests;
#[cfg(test)]
#[path = "helper_tests.rs"]
mod tests;
