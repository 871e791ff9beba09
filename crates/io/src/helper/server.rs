//! The helper: it answers the requests of another process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::fs::{FileType, Mode, OFlags, fstat, makedev};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use rustix::process::{Pid, getppid};

use crate::helper::PRIORITY;
use crate::helper::file_server::{Folders, ProcessFiles};
use crate::helper::messages::{MAX_FDS, send_answer};
use crate::helper::name::is_name;
use crate::helper::request::{HelperRequest, MAX_REQUEST, TunChange, UNANSWERED};
use crate::sys::rights::receive;
use crate::sys::tun::attached;
use crate::udp::open::SocketPurpose;

/// More than any buffer of a socket, or of a TUN, is to hold.
pub(super) const MAX_BYTES: u32 = 1 << 30;
/// Sockets that the data of a port is spread over.
const MAX_GROUP: u8 = 8;
/// The device /dev/net/tun.
const TUN_DEVICE: (u32, u32) = (10, 200);

/// The server of a helper.
pub struct HelperServer {
    named: Vec<String>,
    files: ProcessFiles,
}

impl HelperServer {
    /// A helper of a process that was started for interfaces of these names: their TUN devices, which
    /// the user has made perhaps, are opened if they exist; others have to be new. The folders are made,
    /// and files that this process makes have the modes that are stated, without its umask.
    pub fn new(named: Vec<String>, folders: Folders) -> Self {
        let files = ProcessFiles::new(folders);
        Self { named, files }
    }

    /// Answers requests until the other end of the socket is closed.
    ///
    /// # Errors
    ///
    /// Those of recvmmsg(2) and sendmmsg(2).
    pub fn serve(mut self, socket: &OwnedFd) -> io::Result<()> {
        let mut bytes = [0; MAX_REQUEST];
        loop {
            let received = retry_on_intr(|| receive(socket.as_fd(), &mut bytes))?;
            if received.len == 0 {
                return Ok(());
            }
            let is_answered = bytes[0] & UNANSWERED == 0;
            bytes[0] &= !UNANSWERED;
            let request = HelperRequest::parse(&bytes[..received.len]).filter(|_| !received.is_cut);
            let answer = {
                let fds: ArrayVec<_, MAX_FDS> = received.fds.iter().map(AsFd::as_fd).collect();
                match request.filter(|request| request.is_allowed(&fds)) {
                    Some(HelperRequest::File(request)) => self.files.perform(&request, &fds),
                    Some(request) => request.perform(&fds, Some(&self.named)),
                    None => Err(Errno::INVAL.into()),
                }
            };
            // A socket that is closed after the answer leaves its port at once.
            drop(received);
            if is_answered {
                send_answer(socket, &answer)?;
            }
        }
    }
}

impl HelperRequest {
    /// Whether the helper does this: the values are possible, and the descriptors are what they have
    /// to be.
    pub(super) fn is_allowed(&self, fds: &[BorrowedFd<'_>]) -> bool {
        match (self, fds) {
            (Self::Open(name, _), []) => is_name(name),
            (Self::Table | Self::Clones, []) => true,
            // Looked at where they are done.
            (Self::File(_), _) => true,
            (Self::Priority { thread, nice }, []) => {
                (*nice == PRIORITY || (0..=19).contains(nice)) && is_of_parent(*thread)
            }
            (Self::Waits(thread), []) => is_of_parent(*thread),
            (Self::Queue | Self::Look | Self::Arrivals, [tun]) => is_tun(*tun),
            (Self::Link(change), [tun]) => {
                let is_possible = match change {
                    TunChange::FrameSize(size) => (1..=1 << 16).contains(size),
                    TunChange::Mtu(mtu) => (68..1 << 16).contains(mtu),
                    TunChange::Quiet | TunChange::NoQueue => true,
                };
                is_possible && is_tun(*tun)
            }
            (Self::Limit { least, .. }, [tun]) => (1..=MAX_BYTES).contains(least) && is_tun(*tun),
            (Self::Options(options), [socket]) => {
                options.receive.max(options.send) <= MAX_BYTES && is_udp(*socket)
            }
            (Self::Pair { .. } | Self::Marked(_) | Self::Home(_) | Self::Segments(_), []) => true,
            (Self::Join { group, more, way }, [socket]) => {
                let most = match way {
                    SocketPurpose::RxQueue(_) => MAX_FDS,
                    SocketPurpose::Beside { .. } => 1,
                };
                (1..=MAX_GROUP).contains(group)
                    && (1..=most).contains(&usize::from(*more))
                    && is_udp(*socket)
            }
            (Self::Spread(over), [socket]) => (1..=MAX_GROUP).contains(over) && is_udp(*socket),
            (Self::Ignore(_) | Self::Apart, [socket]) => is_udp(*socket),
            // What is no map, or one that is too small, the kernel refuses with the program.
            (Self::Filter(_), [socket, _]) => is_udp(*socket),
            _ => false,
        }
    }
}

/// Whether it is a thread of the process that started this one.
fn is_of_parent(thread: Pid) -> bool {
    let is_found = |parent: Pid| {
        let (parent, thread) = (parent.as_raw_pid(), thread.as_raw_pid());
        let path = format!("/proc/{parent}/task/{thread}");
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
    };
    getppid().is_some_and(is_found)
}

fn is_tun(fd: BorrowedFd<'_>) -> bool {
    let (major, minor) = TUN_DEVICE;
    let is_device = fstat(fd).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && found.st_rdev == makedev(major, minor)
    });
    let is_tun = |flags: i16| i32::from(flags) & libc::IFF_TUN != 0;
    is_device && attached(fd).is_ok_and(|device| is_tun(device.flags()))
}

fn is_udp(fd: BorrowedFd<'_>) -> bool {
    let family = sockopt::socket_domain(fd);
    matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_type(fd) == Ok(SocketType::DGRAM)
        && sockopt::socket_protocol(fd) == Ok(Some(ipproto::UDP))
}
