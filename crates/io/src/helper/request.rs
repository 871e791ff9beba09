//! What is asked of the helper, as bytes.

use arrayvec::ArrayVec;
use rustix::process::Pid;

use crate::helper::file_request::FileRequest;
use crate::helper::name::Name;

/// Bytes of a request.
pub(super) const MAX_REQUEST: usize = 32;

/// What takes a right. A TUN device is named by the descriptor of a queue, in whatever namespace it
/// is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
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
    /// Raises the priority of this thread to [`PRIORITY`](super::server::PRIORITY).
    Priority(Pid),
    /// About files.
    File(FileRequest),
}

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
    /// As [`Monitor::open`](adit_netlink::Monitor::open) opens it.
    Monitor,
    /// As [`Netlink::open`](adit_netlink::Netlink::open) opens it.
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
    /// The qdisc, as [`Netlink::set_noqueue`](adit_netlink::Netlink::set_noqueue) does it.
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

impl Request {
    pub(super) fn to_bytes(&self) -> ArrayVec<u8, MAX_REQUEST> {
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
            Self::File(request) => {
                bytes.push(13);
                request.add_to(&mut bytes);
            }
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
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
            [13, ref request @ ..] => Self::File(FileRequest::parse(request)?),
            _ => return None,
        })
    }
}
