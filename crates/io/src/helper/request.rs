//! Requests to the helper, as bytes.

use arrayvec::ArrayVec;
use rustix::process::Pid;

use crate::helper::file_request::FileRequest;
use crate::helper::name::InterfaceName;
use crate::transmit::Cut;
use crate::udp::open::{Gear, SocketPurpose};

/// Bytes of a request.
pub(super) const MAX_REQUEST: usize = 32;
/// Set in the first byte of a request that has no answer.
pub(super) const UNANSWERED: u8 = 0x80;

/// What takes a right. A TUN device is named by the descriptor of a queue, in whatever namespace it
/// is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HelperRequest {
    /// A queue of the device of this name in the namespace of the process. It is made, unless it is
    /// one that the helper was started for and exists.
    Open(InterfaceName, QueueChoice),
    /// One more queue of a TUN device.
    Queue,
    /// Where a TUN device is, and what it is there.
    Look,
    /// Changes a TUN device.
    Link(TunChange),
    /// A program that notes what leaves through a TUN device: its map.
    Arrivals,
    /// A program that limits what waits in the queues of a TUN device: its map, and its place there.
    Limit { least: u32, several: bool },
    /// Options of a UDP socket.
    Options(Options),
    /// UDP sockets of both families on one port of all addresses; 0 is any.
    Pair { port: u16, mark: u32, wants: Gear },
    /// More sockets on the port of a UDP socket, whose data is spread over a group of so many.
    Join {
        group: u8,
        more: u8,
        way: SocketPurpose,
    },
    /// Spreads the data of a port over its first sockets.
    Spread(u8),
    /// Whether a UDP socket ignores what ICMP says of paths.
    Ignore(bool),
    /// Has a UDP socket be the only one on its port again.
    Apart,
    /// A UDP socket of each family whose packets have the mark.
    Marked(u32),
    /// A netlink socket of the process's own namespace.
    Home(NetlinkPurpose),
    /// Whether the interface of this index segments UDP in hardware.
    Segments(u32),
    /// The map that programs of UDP sockets share.
    Table,
    /// A program for a UDP socket. The second descriptor is that of the table, the numbers are the
    /// factors of its hash. The answer is the program's own map.
    Filter([u64; 2]),
    /// Sockets and files that tell of clones of this machine.
    Clones,
    /// Gives this thread a nice value: [`PRIORITY`](super::PRIORITY), or one from 0 on.
    Priority { thread: Pid, nice: i8 },
    /// Opens the file that tells how long this thread has waited for a CPU.
    Waits(Pid),
    /// About files.
    File(FileRequest),
}

/// Which queue of a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueChoice {
    /// The only one.
    One,
    /// One of several.
    Several,
    /// The first one of several: the device must not exist.
    First,
}

/// The purpose of a netlink socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetlinkPurpose {
    /// A socket like that of [`Monitor::open`](adit_netlink::Monitor::open).
    Monitor,
    /// A socket like that of [`Netlink::open`](adit_netlink::Netlink::open).
    Netlink,
}

/// A change of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunChange {
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

impl NetlinkPurpose {
    fn of(byte: u8) -> Option<Self> {
        let all = [Self::Monitor, Self::Netlink];
        all.get(usize::from(byte)).copied()
    }
}

impl Gear {
    /// Two bits.
    pub(super) fn to_bits(self) -> u8 {
        u8::from(self.gso) | u8::from(self.gro) << 1
    }

    pub(super) fn of_bits(bits: u8) -> Option<Self> {
        let has = |bit: u8| bits & bit != 0;
        (bits < 4).then(|| Self {
            gso: has(1),
            gro: has(2),
        })
    }
}

fn bits_of(way: SocketPurpose) -> u8 {
    match way {
        SocketPurpose::RxQueue(wants) => wants.to_bits(),
        SocketPurpose::Beside { gso, cut } => 4 + (u8::from(gso) | (cut as u8) << 1),
    }
}

fn way_of(bits: u8) -> Option<SocketPurpose> {
    let Some(beside) = bits.checked_sub(4) else {
        return Gear::of_bits(bits).map(SocketPurpose::RxQueue);
    };
    let all = [Cut::Allowed, Cut::Refused, Cut::RefusedPastIcmp];
    Some(SocketPurpose::Beside {
        gso: beside & 1 != 0,
        cut: *all.get(usize::from(beside >> 1))?,
    })
}

impl HelperRequest {
    pub(super) fn to_bytes(&self) -> ArrayVec<u8, MAX_REQUEST> {
        let mut bytes = ArrayVec::new();
        let mut add = |more: &[u8]| bytes.extend(more.iter().copied());
        match self {
            Self::Open(name, queues) => {
                add(&[0, *queues as u8]);
                add(name);
            }
            Self::Queue => add(&[1]),
            Self::Look => add(&[2]),
            Self::Link(change) => {
                let (which, value) = match change {
                    TunChange::FrameSize(size) => (0, *size),
                    TunChange::Mtu(mtu) => (1, *mtu),
                    TunChange::Quiet => (2, 0),
                    TunChange::NoQueue => (3, 0),
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
            Self::Pair { port, mark, wants } => {
                add(&[8, wants.to_bits()]);
                add(&port.to_le_bytes());
                add(&mark.to_le_bytes());
            }
            Self::Join { group, more, way } => add(&[15, *group, *more, bits_of(*way)]),
            Self::Spread(over) => add(&[16, *over]),
            Self::Ignore(ignore) => add(&[17, u8::from(*ignore)]),
            Self::Apart => add(&[18]),
            Self::Marked(mark) => {
                add(&[19]);
                add(&mark.to_le_bytes());
            }
            Self::Home(kind) => add(&[20, *kind as u8]),
            Self::Segments(index) => {
                add(&[21]);
                add(&index.to_le_bytes());
            }
            Self::Table => add(&[9]),
            Self::Filter(factors) => {
                add(&[10]);
                factors.iter().for_each(|factor| add(&factor.to_le_bytes()));
            }
            Self::Clones => add(&[11]),
            Self::Priority { thread, nice } => {
                add(&[12, nice.to_le_bytes()[0]]);
                add(&thread.as_raw_pid().to_le_bytes());
            }
            Self::Waits(thread) => {
                add(&[14]);
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
        // `Pid` panics with a negative number in debug builds.
        let pid = |number: u32| Pid::from_raw(i32::try_from(number).ok()?);
        Some(match *bytes {
            [0, queues, ref name @ ..] => {
                let all = [QueueChoice::One, QueueChoice::Several, QueueChoice::First];
                let queues = *all.get(usize::from(queues))?;
                Self::Open(InterfaceName::try_from(name).ok()?, queues)
            }
            [1] => Self::Queue,
            [2] => Self::Look,
            [4, which, ref value @ ..] => Self::Link(match (which, number(value)?) {
                (0, size) => TunChange::FrameSize(size),
                (1, mtu) => TunChange::Mtu(mtu),
                (2, 0) => TunChange::Quiet,
                (3, 0) => TunChange::NoQueue,
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
            [8, wants, low, high, ref mark @ ..] => Self::Pair {
                port: u16::from_le_bytes([low, high]),
                mark: number(mark)?,
                wants: Gear::of_bits(wants)?,
            },
            [15, group, more, way] => {
                let way = way_of(way)?;
                Self::Join { group, more, way }
            }
            [16, over] => Self::Spread(over),
            [17, ignore] => Self::Ignore(flag(ignore)?),
            [18] => Self::Apart,
            [19, ref mark @ ..] => Self::Marked(number(mark)?),
            [20, kind] => Self::Home(NetlinkPurpose::of(kind)?),
            [21, ref index @ ..] => Self::Segments(number(index)?),
            [9] => Self::Table,
            [10, ref factors @ ..] => {
                let (one, other) = factors.split_at_checked(8)?;
                let factor = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
                Self::Filter([factor(one)?, factor(other)?])
            }
            [11] => Self::Clones,
            [12, nice, ref thread @ ..] => Self::Priority {
                thread: pid(number(thread)?)?,
                nice: i8::from_le_bytes([nice]),
            },
            [14, ref thread @ ..] => Self::Waits(pid(number(thread)?)?),
            [13, ref request @ ..] => Self::File(FileRequest::parse(request)?),
            _ => return None,
        })
    }
}
