//! Sockets of a port, as descriptors: what a helper makes for a process that makes none.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::sys::os::{self, local_addr, set_receive_buffer, set_send_buffer};
use crate::transmit::Cut;
use crate::udp::autotuning::SOCKET_BUFFER;

/// The send buffer of a new socket, in bytes.
pub const SEND_BUFFER: usize = SOCKET_BUFFER;

/// How often a port is chosen anew because the other address family has it taken.
const PORT_ATTEMPTS: usize = 100;

/// Which offloads a socket is to have, or has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gear {
    pub(crate) gso: bool,
    pub(crate) gro: bool,
}

/// A socket that is bound.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    pub(crate) fd: OwnedFd,
    pub(crate) has: Gear,
}

/// What a socket is for that joins others on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketPurpose {
    /// It receives.
    RxQueue(Gear),
    /// It sends only, perhaps with GSO, and treats what is longer than its path takes so.
    Beside { gso: bool, cut: Cut },
}

/// Sockets of both families, and their port.
pub(crate) type SocketPair = (Option<BoundSocket>, Option<BoundSocket>, u16);

/// Sockets for both address families on one port, and that port, as [`bind_pair`](super::bind_pair)
/// has them.
pub(crate) fn pair(port: u16, fwmark: u32, wants: Gear) -> io::Result<SocketPair> {
    pair_by(port, |addr| {
        let socket = bind(addr, fwmark, wants, false)?;
        // Without it, some datagrams go astray when further sockets join.
        let _ = begin_group(&socket.fd);
        Ok(socket)
    })
}

/// Called with a socket before it is bound; true for IPv6.
pub(crate) type Prepare<'a> = &'a dyn Fn(BorrowedFd<'_>, bool) -> io::Result<()>;

/// The same, of sockets that no other joins.
pub(crate) fn pair_alone(port: u16, wants: Gear, prepare: Prepare<'_>) -> io::Result<SocketPair> {
    pair_by(port, |addr| {
        let socket = new_socket_for(addr)?;
        prepare(socket.as_fd(), addr.is_ipv6())?;
        bind_new(socket, addr, 0, wants, false)
    })
}

fn pair_by(
    port: u16,
    bind: impl Fn(SocketAddr) -> io::Result<BoundSocket>,
) -> io::Result<SocketPair> {
    let mut attempts = 0;
    loop {
        match try_pair(port, &bind) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && port == 0
                    && attempts < PORT_ATTEMPTS =>
            {
                attempts += 1;
            }
            result => return result,
        }
    }
}

fn try_pair(
    mut port: u16,
    bind: impl Fn(SocketAddr) -> io::Result<BoundSocket>,
) -> io::Result<SocketPair> {
    let mut bind = |ip: IpAddr| -> io::Result<Option<BoundSocket>> {
        let socket = match bind(SocketAddr::new(ip, port)) {
            Err(error) if is_missing(&error) => return Ok(None),
            result => result?,
        };
        port = local_addr(&socket.fd)?.port();
        Ok(Some(socket))
    };
    let (v4, v6) = (
        bind(Ipv4Addr::UNSPECIFIED.into())?,
        bind(Ipv6Addr::UNSPECIFIED.into())?,
    );
    if v4.is_none() && v6.is_none() {
        let message = "this host has neither IPv4 nor IPv6";
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    Ok((v4, v6, port))
}

/// Whether the error says that the host lacks the address family.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT)
    )
}

/// Binds a socket to `addr`. `shared` lets it join the others on that port which are `shared` too.
pub(crate) fn bind(
    addr: SocketAddr,
    fwmark: u32,
    wants: Gear,
    shared: bool,
) -> io::Result<BoundSocket> {
    bind_new(new_socket_for(addr)?, addr, fwmark, wants, shared)
}

/// A socket that can be bound to `addr`, and has only its family.
fn new_socket_for(addr: SocketAddr) -> io::Result<OwnedFd> {
    if addr.is_ipv4() {
        return new_socket(AddressFamily::INET);
    }
    let socket = new_socket(AddressFamily::INET6)?;
    sockopt::set_ipv6_v6only(&socket, true)?;
    Ok(socket)
}

/// Binds one more socket to a port that others share, for sending only. It may be closed at any
/// time: what arrives meanwhile arrives at the others.
///
/// A socket that is being closed leaves its group while lookups still find it. They find IPv4
/// sockets before those that were bound earlier, and what arrives then is lost; IPv6 sockets
/// they find last. So it is one of those, which can send over IPv4, too.
fn bind_to_send(addr: SocketAddr, fwmark: u32, wants: Gear) -> io::Result<BoundSocket> {
    if let SocketAddr::V4(v4) = addr
        && let Ok(socket) = new_socket(AddressFamily::INET6)
        && sockopt::set_ipv6_v6only(&socket, false).is_ok()
    {
        let mapped = SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port());
        return bind_new(socket, mapped, fwmark, wants, true);
    }
    bind(addr, fwmark, wants, true)
}

fn bind_new(
    fd: OwnedFd,
    addr: SocketAddr,
    fwmark: u32,
    wants: Gear,
    shared: bool,
) -> io::Result<BoundSocket> {
    // No SO_REUSEADDR: for UDP it would let another process take the port.
    if shared {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    let on = |level, option| os::set_option(fd.as_fd(), level, option, 1);
    match addr.ip().to_canonical() {
        IpAddr::V4(_) => {
            on(libc::IPPROTO_IP, libc::IP_PKTINFO)?;
            on(libc::IPPROTO_IP, libc::IP_RECVTOS)?;
            // ICMP errors come back, and a send that a full queue of the device drops fails
            // with ENOBUFS (udp_send_skb hides it otherwise): what is lost on this host is
            // counted.
            on(libc::IPPROTO_IP, libc::IP_RECVERR)?;
            // As the kernel's WireGuard: no DF, for a tunnel whose MTU is too large works if
            // fragments do.
            let never = libc::IP_PMTUDISC_DONT;
            os::set_option(fd.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, never)?;
        }
        IpAddr::V6(_) => {
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)?;
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)?;
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVERR)?;
        }
    }
    // Where nobody implements it (user-mode emulation), what a full buffer loses is not counted.
    let _ = on(libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
    set_receive_buffer(fd.as_fd(), SOCKET_BUFFER);
    set_send_buffer(fd.as_fd(), SEND_BUFFER);
    if fwmark != 0 {
        os::set_mark(fd.as_fd(), fwmark)?;
    }
    let is_on = |option| os::option(fd.as_fd(), libc::SOL_UDP, option);
    let has = Gear {
        // Linux 4.18
        gso: wants.gso && !mangles_trains(os::kernel_release()) && is_on(libc::UDP_SEGMENT).is_ok(),
        // Linux 5.0, but trustworthy only since 5.12, which can also be asked whether it is on.
        gro: wants.gro
            && on(libc::SOL_UDP, libc::UDP_GRO).is_ok()
            && is_on(libc::UDP_GRO).is_ok_and(|on| on == 1),
    };
    if !has.gro {
        let _ = os::set_option(fd.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0);
    }
    rustix::net::bind(&fd, &addr)?;
    Ok(BoundSocket { fd, has })
}

/// Has the kernel make a group of the sockets that share the port: of this one alone, with a
/// program that chooses it. So no datagram arrives at a socket that joins later before the
/// program says so. Until then, lookups pass the group by.
fn begin_group(fd: &OwnedFd) -> io::Result<()> {
    // Only after the bind, which finds out whether another process has the port.
    sockopt::set_socket_reuseport(fd, true)?;
    // The kernel makes the group with its second socket.
    let second = local_addr(fd).and_then(|addr| bind(addr, 0, Gear::default(), true));
    let begun = second.and_then(|_second| os::steer(fd.as_fd(), 1));
    sockopt::set_socket_reuseport(fd, false)?;
    begun
}

/// Binds more sockets to the port of the `first` one, with its mark, and whether ICMP is ignored.
/// Data arrives where it did before, at so many sockets. Returns whether others shared the port
/// before.
pub(crate) fn join(
    first: BorrowedFd<'_>,
    group: u32,
    more: usize,
    way: SocketPurpose,
) -> io::Result<(Vec<BoundSocket>, bool)> {
    let was_shared = sockopt::socket_reuseport(first)?;
    sockopt::set_socket_reuseport(first, true)?;
    let joined = (0..more)
        .map(|_| join_one(first, way))
        .collect::<io::Result<Vec<_>>>()
        // Where the group could not be made before, it is made now.
        .and_then(|sockets| os::steer(first, group).map(|()| sockets));
    if joined.is_err() && !was_shared {
        let _ = sockopt::set_socket_reuseport(first, false);
    }
    Ok((joined?, was_shared))
}

fn join_one(first: BorrowedFd<'_>, way: SocketPurpose) -> io::Result<BoundSocket> {
    let mark = os::option(first, libc::SOL_SOCKET, libc::SO_MARK)?.cast_unsigned();
    let (level, option) = discovery(first)?;
    let found = os::option(first, level, option);
    let ignores = found.is_ok_and(|found| found == libc::IP_PMTUDISC_OMIT);
    let addr = local_addr(first)?;
    let (socket, value) = match way {
        SocketPurpose::RxQueue(wants) => (bind(addr, mark, wants, true)?, None),
        SocketPurpose::Beside { gso, cut } => {
            let wants = Gear { gso, gro: false };
            let value = match cut {
                Cut::Allowed => None,
                Cut::Refused => Some(libc::IP_PMTUDISC_DO),
                Cut::RefusedPastIcmp => Some(libc::IP_PMTUDISC_PROBE),
            };
            (bind_to_send(addr, mark, wants)?, value)
        }
    };
    let value = value.or(ignores.then_some(libc::IP_PMTUDISC_OMIT));
    if let Some(value) = value {
        set_discovery(socket.fd.as_fd(), value)?;
    }
    Ok(socket)
}

/// Others on the port leave, and no other may come.
pub(crate) fn apart(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::set_socket_reuseport(fd, false)?)
}

/// Ignores what ICMP says of paths, or believes it again.
pub(crate) fn ignore_icmp(fd: BorrowedFd<'_>, ignore: bool) -> io::Result<()> {
    let usual = match local_addr(fd)? {
        SocketAddr::V4(_) => libc::IP_PMTUDISC_DONT,
        SocketAddr::V6(_) => libc::IP_PMTUDISC_WANT,
    };
    set_discovery(
        fd,
        if ignore {
            libc::IP_PMTUDISC_OMIT
        } else {
            usual
        },
    )
}

fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    Ok(socket)
}

/// A socket of each family whose packets have the mark; none without the right for it.
pub(crate) fn marked(mark: u32) -> Vec<OwnedFd> {
    let families = [AddressFamily::INET, AddressFamily::INET6];
    let sockets = families.map(|family| {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None).ok()?;
        os::set_mark(socket.as_fd(), mark).ok()?;
        Some(socket)
    });
    sockets.into_iter().flatten().collect()
}

/// The option that says what becomes of what is longer than its path takes. Its values are the same
/// for both families.
fn discovery(fd: BorrowedFd<'_>) -> io::Result<(i32, i32)> {
    Ok(match local_addr(fd)? {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    })
}

fn set_discovery(fd: BorrowedFd<'_>, value: i32) -> io::Result<()> {
    let (level, option) = discovery(fd)?;
    os::set_option(fd, level, option, value)
}

/// Linux 7.0 to 7.1.4 corrupts a train whose datagrams are all equally long, as most are (tailscale
/// issue 19777).
///
/// A short datagram at the end avoids that but crashed the firmware of some network cards (their
/// issue 20994).
///
/// The release decides, though a distribution may have mended its kernel: no probe can. Such a
/// kernel leaves the length of the whole train in the UDP header, as the template of a network card
/// that segments by one (GSO_PARTIAL). What a process can send to itself, over loopback, veth or a
/// TUN, meets no such card and arrives right; the card may be out of sight, below a bridge or in
/// another namespace. A good kernel that is taken for a bad one is slower; a bad one that is taken
/// for a good one loses most of what it sends.
pub(super) fn mangles_trains(release: (u32, u32, u32)) -> bool {
    matches!(release, (7, 0, _) | (7, 1, 0..=4))
}
