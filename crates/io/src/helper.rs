//! What takes a right, and the process that does it for one that has none: the helper.
//!
//! 1. A function here makes a `Request`, with the descriptors that it is about.
//! 2. If this process has a helper ([`connect`]), the request is sent to it, and its answer brings
//!    the descriptors that it opened. Otherwise this process does the work itself.
//!
//! The helper ([`serve`]) believes nothing that it is told: it looks at lengths, values, the number
//! of descriptors and what each of them is. It opens no path that it is told, and no TUN device that
//! exists already, unless it was named when the helper started. It changes no interface but a TUN
//! device of which it is given a queue, and no socket but one of UDP. It makes BPF programs itself.
//!
//! These functions wait for the helper. They are called where a descriptor can be opened, which
//! threads that process packets cannot: [`adit_sandbox::run`] brings them there.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use adit_netlink::netns::Netns;
use adit_netlink::{CloneMonitor, LinkChange, Monitor, Netlink};
use arrayvec::ArrayVec;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, makedev};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, ipproto,
    recvmsg, sendmsg, socket_with, sockopt,
};
use rustix::process::{Pid, getppid, setpriority_process};

use crate::sys::{bpf, os};
use crate::tun::egress::{self, Egress};
use crate::tun::{attach, attached};
use crate::udp::filter;
use crate::udp::{local_addr, set_receive_buffer, set_send_buffer};

/// Descriptors of a request or of an answer.
const MAX_FDS: usize = 2;
/// Bytes of a request.
const MAX_REQUEST: usize = 32;
/// Bytes of an answer: an error number, a flag, and what the error says.
const MAX_ANSWER: usize = 512;
const ANSWER_HEADER: usize = 5;
/// More than any buffer of a socket, or of a TUN, is to hold.
const MAX_BYTES: u32 = 1 << 30;
/// The device /dev/net/tun.
const TUN_DEVICE: (u32, u32) = (10, 200);

/// The nice value of a thread that packets wait for. The kernel forwards packets before any process
/// runs; if the processes whose packets the tunnel carries ran as readily as it, they would fill its
/// queues faster than it empties them.
const PRIORITY: i32 = -10;

/// Why a device is not opened.
const EXISTS: &str = "it exists already, and this process was not started for it: delete it, or start a process for it";

static HELPER: OnceLock<Helper> = OnceLock::new();

struct Helper {
    socket: OwnedFd,
    /// One request at a time is under way.
    turn: Mutex<()>,
}

/// From now on the process at the other end, which runs [`serve`], does what takes a right.
pub fn connect(socket: OwnedFd) {
    let turn = Mutex::new(());
    let _ = HELPER.set(Helper { socket, turn });
}

/// The socket of the helper, which hangs up when the helper has ended.
pub fn connection() -> Option<BorrowedFd<'static>> {
    HELPER.get().map(|helper| helper.socket.as_fd())
}

/// Whether this process had a helper that has ended.
pub fn has_ended() -> bool {
    connection().is_some_and(|socket| {
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    })
}

/// What takes a right. A TUN device is named by the descriptor of a queue, in whatever namespace it
/// is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Request {
    /// A queue of the device of this name in the namespace of the process. It is made, unless it is
    /// one that the helper was started for and exists.
    Open(Name, Queues),
    /// One more queue of a TUN device.
    Queue,
    /// The network namespace of a TUN device.
    Namespace,
    /// A socket in the network namespace of a TUN device.
    Socket(Kind),
    /// Changes a TUN device.
    Link(Change),
    /// A program that notes what leaves through a TUN device: its map.
    Arrivals,
    /// A program that limits what waits in the queues of a TUN device: its map, and its place there.
    Limit { least: u32, several: bool },
    /// Options of a UDP socket.
    Options(Options),
    /// Binds a UDP socket to this port of all addresses.
    Bind(u16),
    /// The map that programs of UDP sockets share.
    Table,
    /// A program for a UDP socket. The second descriptor is that of the table, the numbers are the
    /// factors of its hash. The answer is the program's own map.
    Filter([u64; 2]),
    /// Sockets and files that tell of clones of this machine.
    Clones,
    /// Raises the priority of this thread to [`PRIORITY`].
    Priority(Pid),
}

type Name = ArrayVec<u8, 15>;

/// Which queue of a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queues {
    /// The only one.
    One,
    /// One of several.
    Several,
    /// The first one of several: the device must not exist.
    First,
}

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Questions about a device, by ioctl(2).
    Control,
    /// As [`Monitor::open`] opens it.
    Monitor,
    /// As [`Netlink::open`] opens it.
    Netlink,
}

/// What is changed of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// `gso_max_size`
    FrameSize(u32),
    Mtu(u32),
    /// It sends nothing of its own accord.
    Quiet,
    /// The qdisc, as [`Netlink::set_noqueue`] does it.
    NoQueue,
}

/// Of a UDP socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Bytes of the buffers; 0 leaves one as it is. Without a right for more they are as long as the
    /// system allows.
    pub(crate) receive: u32,
    pub(crate) send: u32,
    pub(crate) mark: Option<u32>,
}

/// What a request brings.
#[derive(Debug, Default)]
struct Answer {
    fds: ArrayVec<OwnedFd, MAX_FDS>,
    flag: bool,
}

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
    Ok(ask(Request::Link(change), &[tun])?.flag)
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

fn ask(request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
    let Some(helper) = HELPER.get() else {
        return request.perform(fds, None);
    };
    let _turn = helper.turn.lock().unwrap_or_else(PoisonError::into_inner);
    exchange(&helper.socket, &request.to_bytes(), fds)
}

/// Answers requests until the other end of the socket is closed. TUN devices of these names, which
/// the user has made perhaps, are opened if they exist; others have to be new.
///
/// # Errors
///
/// Those of recvmsg(2) and sendmsg(2).
pub fn serve(socket: &OwnedFd, named: &[String]) -> io::Result<()> {
    let mut bytes = [0; MAX_REQUEST];
    loop {
        let received = receive(socket, &mut bytes)?;
        if received.len == 0 {
            return Ok(());
        }
        let request = Request::parse(&bytes[..received.len]).filter(|_| !received.is_cut);
        let answer = {
            let fds: ArrayVec<_, MAX_FDS> = received.fds.iter().map(AsFd::as_fd).collect();
            match request.filter(|request| request.is_allowed(&fds)) {
                Some(request) => request.perform(&fds, Some(named)),
                None => Err(Errno::INVAL.into()),
            }
        };
        // A socket that is closed after the answer leaves its port at once.
        drop(received);
        send_answer(socket, &answer)?;
    }
}

impl Request {
    fn to_bytes(&self) -> ArrayVec<u8, MAX_REQUEST> {
        let mut bytes = ArrayVec::new();
        let mut add = |more: &[u8]| bytes.extend(more.iter().copied());
        match self {
            Self::Open(name, queues) => {
                add(&[0, *queues as u8]);
                add(name);
            }
            Self::Queue => add(&[1]),
            Self::Namespace => add(&[2]),
            Self::Socket(kind) => add(&[3, *kind as u8]),
            Self::Link(change) => {
                let (which, value) = match change {
                    Change::FrameSize(size) => (0, *size),
                    Change::Mtu(mtu) => (1, *mtu),
                    Change::Quiet => (2, 0),
                    Change::NoQueue => (3, 0),
                };
                add(&[4, which]);
                add(&value.to_le_bytes());
            }
            Self::Arrivals => add(&[5]),
            Self::Limit { least, several } => {
                add(&[6, u8::from(*several)]);
                add(&least.to_le_bytes());
            }
            Self::Options(options) => {
                add(&[7, u8::from(options.mark.is_some())]);
                for number in [options.receive, options.send, options.mark.unwrap_or(0)] {
                    add(&number.to_le_bytes());
                }
            }
            Self::Bind(port) => {
                add(&[8]);
                add(&port.to_le_bytes());
            }
            Self::Table => add(&[9]),
            Self::Filter(factors) => {
                add(&[10]);
                factors.iter().for_each(|factor| add(&factor.to_le_bytes()));
            }
            Self::Clones => add(&[11]),
            Self::Priority(thread) => {
                add(&[12]);
                add(&thread.as_raw_pid().to_le_bytes());
            }
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
        let flag = |byte: u8| [false, true].get(usize::from(byte)).copied();
        Some(match *bytes {
            [0, queues, ref name @ ..] => {
                let all = [Queues::One, Queues::Several, Queues::First];
                let queues = *all.get(usize::from(queues))?;
                Self::Open(Name::try_from(name).ok()?, queues)
            }
            [1] => Self::Queue,
            [2] => Self::Namespace,
            [3, kind] => {
                let all = [Kind::Control, Kind::Monitor, Kind::Netlink];
                Self::Socket(*all.get(usize::from(kind))?)
            }
            [4, which, ref value @ ..] => Self::Link(match (which, number(value)?) {
                (0, size) => Change::FrameSize(size),
                (1, mtu) => Change::Mtu(mtu),
                (2, 0) => Change::Quiet,
                (3, 0) => Change::NoQueue,
                _ => return None,
            }),
            [5] => Self::Arrivals,
            [6, several, ref least @ ..] => Self::Limit {
                least: number(least)?,
                several: flag(several)?,
            },
            [7, marked, ref numbers @ ..] => {
                let (receive, rest) = numbers.split_at_checked(4)?;
                let (send, mark) = rest.split_at_checked(4)?;
                Self::Options(Options {
                    receive: number(receive)?,
                    send: number(send)?,
                    mark: match (flag(marked)?, number(mark)?) {
                        (true, mark) => Some(mark),
                        (false, 0) => None,
                        _ => return None,
                    },
                })
            }
            [8, low, high] => Self::Bind(u16::from_le_bytes([low, high])),
            [9] => Self::Table,
            [10, ref factors @ ..] => {
                let (one, other) = factors.split_at_checked(8)?;
                let factor = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
                Self::Filter([factor(one)?, factor(other)?])
            }
            [11] => Self::Clones,
            [12, ref thread @ ..] => {
                // `Pid` panics with a negative number in debug builds.
                let thread = i32::try_from(number(thread)?).ok()?;
                Self::Priority(Pid::from_raw(thread)?)
            }
            _ => return None,
        })
    }

    /// Whether the helper does this: the values are possible, and the descriptors are what they have
    /// to be.
    fn is_allowed(&self, fds: &[BorrowedFd<'_>]) -> bool {
        match (self, fds) {
            (Self::Open(name, _), []) => is_name(name),
            (Self::Table | Self::Clones, []) => true,
            (Self::Priority(thread), []) => is_of_parent(*thread),
            (Self::Queue | Self::Namespace | Self::Socket(_) | Self::Arrivals, [tun]) => {
                is_tun(*tun)
            }
            (Self::Link(change), [tun]) => {
                let is_possible = match change {
                    Change::FrameSize(size) => (1..=1 << 16).contains(size),
                    Change::Mtu(mtu) => (68..1 << 16).contains(mtu),
                    Change::Quiet | Change::NoQueue => true,
                };
                is_possible && is_tun(*tun)
            }
            (Self::Limit { least, .. }, [tun]) => (1..=MAX_BYTES).contains(least) && is_tun(*tun),
            (Self::Options(options), [socket]) => {
                options.receive.max(options.send) <= MAX_BYTES && is_udp(*socket)
            }
            (Self::Bind(port), [socket]) => *port != 0 && is_udp(*socket),
            // What is no map, or one that is too small, the kernel refuses with the program.
            (Self::Filter(_), [socket, _]) => is_udp(*socket),
            _ => false,
        }
    }

    /// Does it, in this process. With a list of names, only TUN devices of these names may exist
    /// already.
    fn perform(&self, fds: &[BorrowedFd<'_>], named: Option<&[String]>) -> io::Result<Answer> {
        match (self, fds) {
            (Self::Open(name, queues), []) => {
                let name = std::str::from_utf8(name).map_err(io::Error::other)?;
                let may_exist = named.is_none_or(|named| named.iter().any(|one| one == name));
                match attach(name, *queues, may_exist) {
                    Err(error)
                        if !may_exist
                            && *queues != Queues::First
                            && Errno::from_io_error(&error) == Some(Errno::BUSY) =>
                    {
                        Err(io::Error::new(ErrorKind::ResourceBusy, EXISTS))
                    }
                    attached => attached.map(Answer::from),
                }
            }
            (Self::Queue, [tun]) => {
                let attach = || attach(&attached(*tun)?.name(), Queues::Several, true);
                namespace_of(*tun)?.run(attach)?.map(Answer::from)
            }
            (Self::Namespace, [tun]) => os::tun_netns(*tun).map(Answer::from),
            (Self::Socket(kind), [tun]) => {
                let open = || kind.open();
                namespace_of(*tun)?.run(open)?.map(Answer::from)
            }
            (Self::Link(change), [tun]) => {
                let netns = os::tun_netns(*tun).map(Netns::from);
                // Before Linux 5.2, it is here as far as we know.
                let netns = netns.or_else(|_| Netns::current())?;
                let flag = netns.run(|| change.make(&attached(*tun)?.name()))??;
                let fds = ArrayVec::new();
                Ok(Answer { fds, flag })
            }
            (Self::Arrivals, [tun]) => bpf::note_arrivals(*tun).map(Answer::from),
            (Self::Limit { least, several }, [tun]) => {
                let attach = || {
                    let index = Netlink::open()?.link(&attached(*tun)?.name())?.index;
                    Egress::attach(index, (*least).into(), *several)
                };
                let fds = namespace_of(*tun)?.run(attach)??;
                if *several {
                    egress::obey(*tun)?;
                }
                Ok(Answer::of(fds))
            }
            (Self::Options(options), [socket]) => options.set(*socket).map(|()| Answer::default()),
            (Self::Bind(port), [socket]) => {
                let mut addr = local_addr(socket)?;
                addr.set_port(*port);
                // One for both families only sends, over IPv4: `Udp::bind_to_send`.
                if addr.is_ipv6() && !sockopt::ipv6_v6only(socket)? {
                    addr.set_ip(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into());
                }
                rustix::net::bind(socket, &addr)?;
                Ok(Answer::default())
            }
            (Self::Table, []) => bpf::new_map(filter::TABLE).map(Answer::from),
            (Self::Filter(factors), [socket, table]) => {
                filter::attach(*socket, *table, *factors).map(Answer::from)
            }
            (Self::Clones, []) => {
                let (uevents, log) = CloneMonitor::open()?.into_fds();
                Ok(Answer::of(std::iter::once(uevents).chain(log)))
            }
            (Self::Priority(thread), []) => {
                setpriority_process(Some(*thread), PRIORITY)?;
                Ok(Answer::default())
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

/// Whether it may be the name of an interface; a `%` would have the kernel choose one.
fn is_name(name: &[u8]) -> bool {
    let is_good = |byte: &u8| byte.is_ascii_graphic() && !b"/%:".contains(byte);
    !name.is_empty() && name.iter().all(is_good)
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

impl Kind {
    /// In the namespace of the calling thread.
    pub(crate) fn open(self) -> io::Result<OwnedFd> {
        match self {
            Self::Control => {
                let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
                Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
            }
            Self::Monitor => Monitor::open().map(OwnedFd::from),
            Self::Netlink => Netlink::open().map(OwnedFd::from),
        }
    }
}

impl Change {
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

impl From<OwnedFd> for Answer {
    fn from(fd: OwnedFd) -> Self {
        Self::of([fd])
    }
}

impl Answer {
    fn of(fds: impl IntoIterator<Item = OwnedFd>) -> Self {
        Self {
            fds: fds.into_iter().collect(),
            flag: false,
        }
    }

    /// The only descriptor.
    fn one(mut self) -> io::Result<OwnedFd> {
        self.fds.pop().ok_or_else(malformed)
    }
}

fn malformed() -> io::Error {
    io::Error::other("the helper process answers something else")
}

fn exchange(socket: &OwnedFd, request: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
    let ended = || io::Error::other("the helper process, which has the rights for it, has ended");
    let mut bytes = [0; MAX_ANSWER];
    let received = send(socket, &[IoSlice::new(request)], fds)
        .and_then(|()| receive(socket, &mut bytes))
        .map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => ended(),
            error => error.into(),
        })?;
    if received.len == 0 {
        return Err(ended());
    }
    let answer = bytes[..received.len].split_first_chunk::<ANSWER_HEADER>();
    let ([a, b, c, d, flag], says) = answer.ok_or_else(malformed)?;
    let error = io::Error::from_raw_os_error(i32::from_le_bytes([*a, *b, *c, *d]));
    match (error.raw_os_error(), says) {
        (Some(0), _) => Ok(Answer {
            fds: received.fds,
            flag: *flag == 1,
        }),
        (_, []) => Err(error),
        (_, says) => Err(io::Error::new(
            error.kind(),
            String::from_utf8_lossy(says).into_owned(),
        )),
    }
}

fn send_answer(socket: &OwnedFd, answer: &io::Result<Answer>) -> io::Result<()> {
    let (number, flag, says) = match answer {
        Ok(answer) => (0, answer.flag, String::new()),
        Err(error) => match error.raw_os_error() {
            Some(number) => (number, false, String::new()),
            None => (number_of(error.kind()), false, error.to_string()),
        },
    };
    let says = &says.as_bytes()[..says.len().min(MAX_ANSWER - ANSWER_HEADER)];
    let (number, flag) = (number.to_le_bytes(), [flag.into()]);
    let parts = [&number, &flag[..], says].map(IoSlice::new);
    let fds = answer.iter().flat_map(|answer| &answer.fds);
    let fds: ArrayVec<_, MAX_FDS> = fds.map(AsFd::as_fd).collect();
    Ok(send(socket, &parts, &fds)?)
}

/// An error number of this kind.
fn number_of(kind: ErrorKind) -> i32 {
    let errno = match kind {
        ErrorKind::PermissionDenied => Errno::PERM,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::AlreadyExists => Errno::EXIST,
        ErrorKind::ResourceBusy => Errno::BUSY,
        ErrorKind::InvalidInput => Errno::INVAL,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        _ => Errno::IO,
    };
    errno.raw_os_error()
}

fn send(socket: &OwnedFd, parts: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    retry_on_intr(|| sendmsg(socket, parts, &mut control, SendFlags::NOSIGNAL)).map(drop)
}

/// A datagram that came.
struct Datagram {
    len: usize,
    fds: ArrayVec<OwnedFd, MAX_FDS>,
    /// It was longer, or there were more descriptors.
    is_cut: bool,
}

fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<Datagram> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(bytes)];
        recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(Datagram {
        len: received.bytes,
        fds: rights.flatten().take(MAX_FDS).collect(),
        is_cut: (received.flags).intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
    })
}

#[cfg(test)]
#[path = "helper_tests.rs"]
mod tests;
