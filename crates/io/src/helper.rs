//! What takes a right, and the process that does it for one that has none: the helper.
//!
//! 1. A function here makes a `Request`, with the descriptors that it is about.
//! 2. If this process has a helper ([`connect`]), the request is sent to it, and its answer brings
//!    the descriptors that it opened. Otherwise this process does the work itself.
//!
//! The helper ([`Server`]) believes nothing that it is told: it looks at lengths, values, the number
//! of descriptors and what each of them is. It opens no path that it is told: its files are of names
//! in the folders that it was started with ([`files`]). It opens no TUN device that exists already,
//! unless it was named when the helper started. It changes no interface but a TUN
//! device of which it is given a queue, and no socket but one of UDP. It makes BPF programs itself.
//!
//! These functions wait for the helper. They are called where a descriptor can be opened, which
//! threads that process packets cannot: [`adit_sandbox::run`] brings them there.

mod client;
mod file_request;
mod file_server;
pub mod files;
mod messages;
mod name;
mod request;
mod server;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use adit_netlink::CloneMonitor;
use adit_netlink::netns::Netns;
use rustix::process::{Pid, setpriority_process};

use crate::helper::client::ask;
use crate::helper::messages::malformed;
use crate::helper::name::Name;
use crate::helper::request::Request;
use crate::helper::server::PRIORITY;
use crate::sys::os;

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

/// A socket in the namespace of the device, which is `netns`.
pub(crate) fn socket(tun: BorrowedFd<'_>, netns: &Netns, kind: Kind) -> io::Result<OwnedFd> {
    match netns.is_current() {
        Ok(true) => kind.open(),
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
    let fds = ask(Request::Limit { least, several }, &[tun])?.fds;
    fds.into_inner().map_err(|_| malformed())
}

/// Fails for a mark only.
pub(crate) fn set_options(socket: BorrowedFd<'_>, options: Options) -> io::Result<()> {
    let request = Request::Options(options);
    match ask(request.clone(), &[socket]) {
        Err(_) if options.mark.is_none() => request.perform(&[socket], None).map(drop),
        result => result.map(drop),
    }
}

/// Sets the mark of what a socket sends, for rules of routing and firewalls.
///
/// # Errors
///
/// `PermissionDenied` without CAP_NET_ADMIN.
pub fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    let options = Options {
        mark: Some(mark),
        ..Options::default()
    };
    set_options(socket, options)
}

/// Binds a UDP socket to a port of all addresses that this process may not have.
pub(crate) fn bind(socket: BorrowedFd<'_>, port: u16) -> io::Result<()> {
    ask(Request::Bind(port), &[socket]).map(drop)
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
    let mut fds = ask(Request::Clones, &[])?.fds.into_iter();
    let uevents = fds.next().ok_or_else(malformed)?;
    Ok(CloneMonitor::with(uevents, fds.next()))
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
