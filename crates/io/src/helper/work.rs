//! The work itself, in whatever process.

use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};

#[cfg(feature = "host")]
use adit_netlink::ethtool::tx_udp_segmentation;
#[cfg(feature = "host")]
use adit_netlink::netns::Netns;
#[cfg(feature = "host")]
use adit_netlink::{CloneMonitor, Link, LinkChange, Monitor, Netlink};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{getpid, getppid, setpriority_process};

use crate::helper::messages::HelperAnswer;
use crate::helper::request::{HelperRequest, NetlinkPurpose, Options, QueueChoice, TunChange};
use crate::programs::{egress, filter};
use crate::sys::bpf;
use crate::sys::os::{self, set_receive_buffer, set_send_buffer};
use crate::sys::tun::{attach, attached};
use crate::udp::open;

/// Why a device is not opened.
const EXISTS: &str = "it exists already, and this process was not started for it: delete it, or start a process for it";

impl HelperRequest {
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
            #[cfg(feature = "host")]
            (Self::Queue, [tun]) => {
                let attach = || attach(&attached(*tun)?.name(), QueueChoice::Several, true);
                namespace_of(*tun)?.run(attach)?.map(HelperAnswer::from)
            }
            #[cfg(feature = "host")]
            (Self::Look, [tun]) => look(*tun),
            #[cfg(feature = "host")]
            (Self::Link(change), [tun]) => {
                let make = || change.make(&attached(*tun)?.name());
                let flag = namespace_or_own(*tun)?.run(make)??;
                Ok(HelperAnswer::say(&[flag.into()]))
            }
            (Self::Arrivals, [tun]) => bpf::note_arrivals(*tun).map(HelperAnswer::from),
            #[cfg(feature = "host")]
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
            #[cfg(feature = "host")]
            (Self::Home(kind), []) => kind.open().map(HelperAnswer::from),
            #[cfg(feature = "host")]
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
            #[cfg(feature = "host")]
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

#[cfg(feature = "host")]
fn namespace_of(tun: BorrowedFd<'_>) -> io::Result<Netns> {
    os::tun_netns(tun).map(Netns::from)
}

#[cfg(feature = "host")]
/// Before Linux 5.2, it is here as far as we know.
fn namespace_or_own(tun: BorrowedFd<'_>) -> io::Result<Netns> {
    namespace_of(tun).or_else(|_| Netns::current())
}

#[cfg(feature = "host")]
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

#[cfg(feature = "host")]
impl NetlinkPurpose {
    /// In the namespace of the calling thread.
    fn open(self) -> io::Result<OwnedFd> {
        match self {
            Self::Monitor => Monitor::open().map(OwnedFd::from),
            Self::Netlink => Netlink::open().map(OwnedFd::from),
        }
    }
}

#[cfg(feature = "host")]
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
