//! The work itself, in whatever process, and the helper that does it for another.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use adit_netlink::ethtool::tx_udp_segmentation;
use adit_netlink::netns::Netns;
use adit_netlink::{CloneMonitor, Link, LinkChange, Monitor, Netlink};
use arrayvec::ArrayVec;
use rustix::fs::{FileType, Mode, OFlags, fstat, makedev};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use rustix::process::{Pid, getpid, getppid, setpriority_process};

use crate::helper::PRIORITY;
use crate::helper::file_server::{Folders, ProcessFiles};
use crate::helper::messages::{HelperAnswer, MAX_FDS, send_answer};
use crate::helper::name::is_name;
use crate::helper::request::{
    HelperRequest, MAX_REQUEST, NetlinkPurpose, Options, QueueChoice, TunChange, UNANSWERED,
};
use crate::programs::{egress, filter};
use crate::sys::bpf;
use crate::sys::os::{self, set_receive_buffer, set_send_buffer};
use crate::sys::rights::receive;
use crate::sys::tun::{attach, attached};
use crate::udp::open::{self, SocketPurpose};

/// More than any buffer of a socket, or of a TUN, is to hold.
pub(super) const MAX_BYTES: u32 = 1 << 30;
/// Sockets that the data of a port is spread over.
const MAX_GROUP: u8 = 8;
/// The device /dev/net/tun.
const TUN_DEVICE: (u32, u32) = (10, 200);

/// Why a device is not opened.
const EXISTS: &str = "it exists already, and this process was not started for it: delete it, or start a process for it";

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

    /// Does it, in this process. With a list of names, only TUN devices of these names may exist
    /// already.
    pub(super) fn perform(
        &self,
        fds: &[BorrowedFd<'_>],
        named: Option<&[String]>,
    ) -> io::Result<HelperAnswer> {
        match (self, fds) {
            (Self::Open(name, queues), []) => {
                let name = std::str::from_utf8(name).map_err(io::Error::other)?;
                let may_exist = named.is_none_or(|named| named.iter().any(|one| one == name));
                match attach(name, *queues, may_exist) {
                    Err(error)
                        if !may_exist
                            && *queues != QueueChoice::First
                            && Errno::from_io_error(&error) == Some(Errno::BUSY) =>
                    {
                        Err(io::Error::new(ErrorKind::ResourceBusy, EXISTS))
                    }
                    attached => attached.map(HelperAnswer::from),
                }
            }
            (Self::Queue, [tun]) => {
                let attach = || attach(&attached(*tun)?.name(), QueueChoice::Several, true);
                namespace_of(*tun)?.run(attach)?.map(HelperAnswer::from)
            }
            (Self::Look, [tun]) => look(*tun),
            (Self::Link(change), [tun]) => {
                let make = || change.make(&attached(*tun)?.name());
                let flag = namespace_or_own(*tun)?.run(make)??;
                Ok(HelperAnswer::say(&[flag.into()]))
            }
            (Self::Arrivals, [tun]) => bpf::note_arrivals(*tun).map(HelperAnswer::from),
            (Self::Limit { least, several }, [tun]) => {
                let attach = || {
                    let index = Netlink::open()?.link(&attached(*tun)?.name())?.index;
                    egress::attach(index, (*least).into(), *several)
                };
                let fds = namespace_of(*tun)?.run(attach)??;
                if *several {
                    egress::obey(*tun)?;
                }
                Ok(HelperAnswer::of(fds))
            }
            (Self::Options(options), [socket]) => {
                options.set(*socket).map(|()| HelperAnswer::default())
            }
            (Self::Pair { port, mark, wants }, []) => {
                let (v4, v6, port) = open::pair(*port, *mark, *wants)?;
                let has = [&v4, &v6].map(|socket| match socket {
                    Some(socket) => 4 | u64::from(socket.has.to_bits()),
                    None => 0,
                });
                let fds = v4.into_iter().chain(v6).map(|socket| socket.fd);
                Ok(HelperAnswer::of(fds).and(&[has[0] | has[1] << 3, port.into()]))
            }
            (Self::Join { group, more, way }, [socket]) => {
                let (sockets, was_shared) =
                    open::join(*socket, (*group).into(), (*more).into(), *way)?;
                // All are alike.
                let has = sockets.first().map_or(0, |socket| socket.has.to_bits());
                let fds = sockets.into_iter().map(|socket| socket.fd);
                Ok(HelperAnswer::of(fds).and(&[has.into(), was_shared.into()]))
            }
            (Self::Spread(over), [socket]) => {
                os::steer(*socket, (*over).into()).map(|()| HelperAnswer::default())
            }
            (Self::Ignore(ignore), [socket]) => {
                open::ignore_icmp(*socket, *ignore).map(|()| HelperAnswer::default())
            }
            (Self::Apart, [socket]) => open::apart(*socket).map(|()| HelperAnswer::default()),
            (Self::Marked(mark), []) => Ok(HelperAnswer::of(open::marked(*mark))),
            (Self::Home(kind), []) => kind.open().map(HelperAnswer::from),
            (Self::Segments(index), []) => {
                let name = Netlink::open()?.link_by_index(*index)?.name;
                let segments =
                    tx_udp_segmentation(&name).map_or(0, |segments| 1 + u64::from(segments));
                Ok(HelperAnswer::say(&[segments]))
            }
            (Self::Table, []) => bpf::new_map(filter::TABLE).map(HelperAnswer::from),
            (Self::Filter(factors), [socket, table]) => {
                filter::attach(*socket, *table, *factors).map(HelperAnswer::from)
            }
            (Self::Clones, []) => {
                let (uevents, log, clock) = CloneMonitor::open_fds()?;
                let has = [&log, &clock].map(|fd| u64::from(fd.is_some()));
                let fds = std::iter::once(uevents).chain(log).chain(clock);
                Ok(HelperAnswer::of(fds).and(&has))
            }
            (Self::Priority { thread, nice }, []) => {
                setpriority_process(Some(*thread), (*nice).into())?;
                Ok(HelperAnswer::default())
            }
            (Self::Waits(thread), []) => {
                let own = getppid().filter(|_| named.is_some());
                let (process, thread) = (own.unwrap_or_else(getpid), thread.as_raw_pid());
                let path = format!("/proc/{}/task/{thread}/schedstat", process.as_raw_pid());
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
            }
            _ => Err(Errno::INVAL.into()),
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

fn namespace_of(tun: BorrowedFd<'_>) -> io::Result<Netns> {
    os::tun_netns(tun).map(Netns::from)
}

/// Before Linux 5.2, it is here as far as we know.
fn namespace_or_own(tun: BorrowedFd<'_>) -> io::Result<Netns> {
    namespace_of(tun).or_else(|_| Netns::current())
}

/// Device and inode of the namespace, and the link there: index, MTU and length of its queue, drops. It has
/// no index where this process may not enter the namespace.
fn look(tun: BorrowedFd<'_>) -> io::Result<HelperAnswer> {
    // One that was deleted is nowhere.
    attached(tun)?;
    let netns = namespace_or_own(tun)?;
    let (device, inode) = netns.id()?;
    let mut attempts = 0;
    let link = netns.run(|| {
        let netlink = Netlink::open()?;
        loop {
            match netlink.link(&attached(tun)?.name()) {
                // It was renamed or moved meanwhile.
                Err(_) if attempts < 5 => attempts += 1,
                link => return Ok::<_, io::Error>(link?),
            }
        }
    });
    let link = match link {
        Ok(link) => link?,
        Err(_) => Link::default(),
    };
    let [index, mtu, room] = [link.index, link.mtu, link.txqueuelen].map(u64::from);
    let numbers = [device, inode, index, mtu, room, link.tx_dropped];
    Ok(HelperAnswer::say(&numbers))
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

impl NetlinkPurpose {
    /// In the namespace of the calling thread.
    fn open(self) -> io::Result<OwnedFd> {
        match self {
            Self::Monitor => Monitor::open().map(OwnedFd::from),
            Self::Netlink => Netlink::open().map(OwnedFd::from),
        }
    }
}

impl TunChange {
    /// In the namespace of the calling thread.
    fn make(self, name: &str) -> io::Result<bool> {
        let netlink = Netlink::open()?;
        let index = netlink.link(name)?.index;
        let mut change = LinkChange::default();
        match self {
            Self::FrameSize(size) => change.gso_max_size = Some(size),
            Self::Mtu(mtu) => change.mtu = Some(mtu),
            Self::Quiet => change.no_link_local = true,
            Self::NoQueue => return Ok(netlink.set_noqueue(index)?),
        }
        netlink.set_link(index, &change)?;
        Ok(true)
    }
}

impl Options {
    fn set(self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.receive > 0 {
            set_receive_buffer(socket, self.receive as usize);
        }
        if self.send > 0 {
            set_send_buffer(socket, self.send as usize);
        }
        self.mark.map_or(Ok(()), |mark| os::set_mark(socket, mark))
    }
}
