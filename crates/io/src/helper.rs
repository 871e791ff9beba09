//! What takes a right, and the process that does it for one that has none: the helper.
//!
//! 1. A function here makes a `HelperRequest`, with the descriptors that it is about.
//! 2. If this process has a helper ([`connect`]), the request is sent to it, and its answer brings
//!    the descriptors that it opened. Otherwise this process does the work itself.
//!
//! The helper ([`HelperServer`]) believes nothing that it is told: it looks at lengths, values, the number
//! of descriptors and what each of them is. It opens no path that it is told: its files are of names
//! in the folders that it was started with ([`files`]). It opens no TUN device that exists already,
//! unless it was named when the helper started. It changes no interface but a TUN device of which it
//! is given a queue, and no socket but one of UDP. It makes BPF programs itself.
//!
//! 3. What is only told is not waited for: threads that process packets have little time.

mod client;
mod file_request;
#[cfg(feature = "host")]
mod file_server;
#[cfg(feature = "host")]
pub mod files;
#[cfg(feature = "host")]
pub(crate) mod fuzzing;
mod messages;
mod name;
mod request;
#[cfg(feature = "host")]
mod server;
mod work;

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

#[cfg(feature = "host")]
use adit_netlink::{CloneMonitor, Monitor, Netlink};
use rustix::process::{Pid, getpriority_process};

use crate::helper::client::{ask, tell};
use crate::helper::messages::{HelperAnswer, malformed};
use crate::helper::name::InterfaceName;
use crate::helper::request::HelperRequest;
use crate::sys::os;
use crate::udp::open::{BoundSocket, Gear, SocketPair, SocketPurpose};

pub use client::{connect, connection, has_ended};
pub use file_request::Folder;
#[cfg(feature = "host")]
pub use file_server::Folders;
pub(crate) use request::{NetlinkPurpose, Options, QueueChoice, TunChange};
#[cfg(feature = "host")]
pub use server::HelperServer;

pub(crate) fn open(name: &str, queues: QueueChoice) -> io::Result<OwnedFd> {
    os::IfReq::new(name)?;
    let name = InterfaceName::try_from(name.as_bytes()).unwrap_or_default();
    ask(HelperRequest::Open(name, queues), &[])?.one()
}

pub(crate) fn queue(tun: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    ask(HelperRequest::Queue, &[tun])?.one()
}

/// Where a TUN device is, and what it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunLocation {
    /// The network namespace: device and inode, as [`Netns::id`](adit_netlink::netns::Netns::id).
    pub netns: (u64, u64),
    /// The device there; `None` where the process may not enter the namespace.
    pub link: Option<Placed>,
}

/// A TUN device where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its index.
    pub index: u32,
    /// Its MTU.
    pub mtu: u32,
    /// Packets that its queue holds.
    pub room: u32,
    /// Packets so far that found its queue full.
    pub tx_dropped: u64,
}

pub(crate) fn look(tun: BorrowedFd<'_>) -> io::Result<TunLocation> {
    let [device, inode, index, mtu, room, tx_dropped] = ask(HelperRequest::Look, &[tun])?.numbers;
    let number = |number| u32::try_from(number).map_err(|_| malformed());
    let placed = Placed {
        index: number(index)?,
        mtu: number(mtu)?,
        room: number(room)?,
        tx_dropped,
    };
    let link = (placed.index != 0).then_some(placed);
    let netns = (device, inode);
    Ok(TunLocation { netns, link })
}

#[cfg(feature = "host")]
fn home(kind: NetlinkPurpose) -> io::Result<OwnedFd> {
    ask(HelperRequest::Home(kind), &[])?.one()
}

/// For questions in the process's own namespace.
///
/// # Errors
///
/// Those of [`Netlink::open`].
#[cfg(feature = "host")]
pub fn netlink() -> io::Result<Netlink> {
    home(NetlinkPurpose::Netlink).map(Netlink::from)
}

/// For changes in the process's own namespace.
///
/// # Errors
///
/// Those of [`Monitor::open`].
#[cfg(feature = "host")]
pub fn monitor() -> io::Result<Monitor> {
    home(NetlinkPurpose::Monitor).map(Monitor::from)
}

/// Whether the interface of this index segments UDP in hardware; `None` if it cannot be found out.
pub fn segments(index: u32) -> Option<bool> {
    match ask(HelperRequest::Segments(index), &[]).ok()?.numbers[0] {
        1 => Some(false),
        2 => Some(true),
        _ => None,
    }
}

/// For [`TunChange::NoQueue`]: whether the qdisc was changed.
pub(crate) fn change(tun: BorrowedFd<'_>, change: TunChange) -> io::Result<bool> {
    Ok(ask(HelperRequest::Link(change), &[tun])?.numbers[0] == 1)
}

pub(crate) fn arrivals(tun: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    ask(HelperRequest::Arrivals, &[tun])?.one()
}

pub(crate) fn limit(tun: BorrowedFd<'_>, least: u32, several: bool) -> io::Result<[OwnedFd; 2]> {
    ask(HelperRequest::Limit { least, several }, &[tun])?.all()
}

/// Sets buffers, soon: no longer than the system allows, without a right for more.
pub(crate) fn set_buffers(socket: BorrowedFd<'_>, receive: u32, send: u32) -> io::Result<()> {
    let options = Options {
        receive,
        send,
        mark: None,
    };
    tell(HelperRequest::Options(options), &[socket])
}

/// Sets the mark of what a socket sends, for rules of routing and firewalls.
pub(crate) fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    let options = Options {
        mark: Some(mark),
        ..Options::default()
    };
    ask(HelperRequest::Options(options), &[socket]).map(drop)
}

pub(crate) fn pair(port: u16, mark: u32, wants: Gear) -> io::Result<SocketPair> {
    let HelperAnswer { fds, numbers } = ask(HelperRequest::Pair { port, mark, wants }, &[])?;
    let mut fds = fds.into_iter();
    let [bits, port, ..] = numbers;
    let mut next = |bits: u64| {
        let has = Gear::of_bits((bits & 3) as u8)?;
        let fd = (bits & 4 != 0).then(|| fds.next()).flatten()?;
        Some(BoundSocket { fd, has })
    };
    let (v4, v6) = (next(bits), next(bits >> 3));
    Ok((v4, v6, u16::try_from(port).map_err(|_| malformed())?))
}

/// Whether others shared the port before comes with the sockets.
pub(crate) fn join(
    socket: BorrowedFd<'_>,
    group: u32,
    more: usize,
    way: SocketPurpose,
) -> io::Result<(Vec<BoundSocket>, bool)> {
    let [group, more] =
        [group as usize, more].map(|number| u8::try_from(number).unwrap_or(u8::MAX));
    let HelperAnswer { fds, numbers } = ask(HelperRequest::Join { group, more, way }, &[socket])?;
    let has = Gear::of_bits((numbers[0] & 3) as u8).unwrap_or_default();
    let sockets = fds.into_iter().map(|fd| BoundSocket { fd, has });
    Ok((sockets.collect(), numbers[1] == 1))
}

pub(crate) fn spread(socket: BorrowedFd<'_>, over: u32) -> io::Result<()> {
    let over = u8::try_from(over).unwrap_or(u8::MAX);
    ask(HelperRequest::Spread(over), &[socket]).map(drop)
}

pub(crate) fn ignore_icmp(socket: BorrowedFd<'_>, ignore: bool) -> io::Result<()> {
    ask(HelperRequest::Ignore(ignore), &[socket]).map(drop)
}

pub(crate) fn apart(socket: BorrowedFd<'_>) -> io::Result<()> {
    ask(HelperRequest::Apart, &[socket]).map(drop)
}

/// A UDP socket of each family whose packets have the mark; none without the right for it.
pub fn marked(mark: u32) -> Vec<OwnedFd> {
    let answer = ask(HelperRequest::Marked(mark), &[]);
    answer.map_or_else(|_| Vec::new(), |answer| answer.fds.into_iter().collect())
}

pub(crate) fn table() -> io::Result<OwnedFd> {
    ask(HelperRequest::Table, &[])?.one()
}

pub(crate) fn filter(
    socket: BorrowedFd<'_>,
    table: BorrowedFd<'_>,
    factors: [u64; 2],
) -> io::Result<OwnedFd> {
    ask(HelperRequest::Filter(factors), &[socket, table])?.one()
}

/// Hears of clones of this machine, as [`CloneMonitor::open`] does.
///
/// # Errors
///
/// Those of [`CloneMonitor::open`].
#[cfg(feature = "host")]
pub fn clones() -> io::Result<CloneMonitor> {
    let HelperAnswer { fds, numbers } = ask(HelperRequest::Clones, &[])?;
    let mut fds = fds.into_iter();
    let uevents = fds.next().ok_or_else(malformed)?;
    let mut next = |has: u64| (has == 1).then(|| fds.next()).flatten();
    let (log, clock) = (next(numbers[0]), next(numbers[1]));
    Ok(CloneMonitor::with(uevents, log, clock))
}

/// The file that tells how long the calling thread has waited for a CPU (schedstat).
///
/// # Errors
///
/// Those of openat(2); a helper of another user than root may not see threads of others.
pub fn waits() -> io::Result<File> {
    let thread = rustix::thread::gettid();
    ask(HelperRequest::Waits(thread), &[])?
        .one()
        .map(File::from)
}

/// The nice value of a thread that packets wait for. The kernel forwards packets before any process
/// runs; if the processes whose packets the tunnel carries had its priority, they would fill its
/// queues faster than it empties them.
pub const PRIORITY: i8 = -10;

/// Gives a thread of this process a nice value: [`PRIORITY`], or one from 0 on.
///
/// # Errors
///
/// `PermissionDenied` without CAP_SYS_NICE, unless RLIMIT_NICE allows it.
pub fn set_priority(thread: Pid, nice: i8) -> io::Result<()> {
    ask(HelperRequest::Priority { thread, nice }, &[]).map(drop)
}

/// The same, soon.
///
/// # Errors
///
/// `WouldBlock` while the helper has too much to do.
pub fn set_priority_soon(thread: Pid, nice: i8) -> io::Result<()> {
    tell(HelperRequest::Priority { thread, nice }, &[])
}

/// The priority of threads that packets wait for, which the calling thread has until this is dropped.
#[derive(Debug)]
pub struct Raised(Option<(Pid, i8)>);

/// Raises it. Without the right to it, or where a user has raised it already, nothing changes.
pub fn raise_priority() -> Raised {
    let thread = rustix::thread::gettid();
    let before = getpriority_process(None).ok();
    let before = before.and_then(|nice| i8::try_from(nice).ok());
    let before = before.filter(|nice| *nice >= 0);
    Raised(
        before
            .filter(|_| set_priority(thread, PRIORITY).is_ok())
            .map(|nice| (thread, nice)),
    )
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some((thread, before)) = self.0 {
            let _ = set_priority(thread, before);
        }
    }
}

#[cfg(test)]
mod file_server_tests;
#[cfg(test)]
mod served_tests;
#[cfg(test)]
#[path = "helper_tests.rs"]
mod tests;
