//! ICMP errors for datagrams that were sent, and how sending and receiving continue meanwhile.
//!
//! With IP_RECVERR the kernel keeps each ICMP error in the error queue of the socket whose datagram
//! it quotes, and its errno at the socket. The next send or receive fails with that errno,
//! whichever peer it is for. A call that fails with such an errno is made again, so that no peer
//! pays for the path of another. The error queue counts against the receive buffer, and wakes every
//! thread that sleeps on the socket until the queue is read.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_proto::explained_enum;
use arrayvec::ArrayVec;
use rustix::io::Errno;

use crate::sys::error_queue::{ERROR_BATCH, QueuedError, receive_errors};

/// Different errors that a socket keeps until they are taken; of more it keeps nothing.
const KEPT: usize = 64;
/// Errors that are moved from the queue at once. Of a flood the rest is left for the next time.
const BATCHES: usize = 4;
/// How often a call is made again while errors come. A train that meets more of them is lost, as
/// UDP loses it.
const ATTEMPTS: usize = 8;

explained_enum! {
    /// The kind of an ICMP error.
    pub enum IcmpKind {
        /// Nothing receives at the peer's port: its daemon does not run, or has another port.
        PortUnreachable => "port_unreachable",
        /// The peer's host does not answer in its network, or a router cannot reach it.
        HostUnreachable => "host_unreachable",
        /// A router, or this host, has no route to the peer's network.
        NetworkUnreachable => "network_unreachable",
        /// A firewall on the way or at the peer refuses our datagrams (administratively
        /// prohibited).
        Prohibited => "prohibited",
        /// A datagram is larger than a link on its way takes (fragmentation needed, packet too
        /// big).
        TooBig => "too_big",
        /// A datagram was on its way for too long, as in a routing loop.
        TimeExceeded => "time_exceeded",
        /// Any other type or code.
        Other => "other",
    }
}

/// An ICMP error that came back for a datagram that was sent.
///
/// ICMP is not authenticated: a host that guesses two ports can forge it. It is for people to read,
/// and for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Where the datagram was sent.
    pub to: SocketAddr,
    /// Which router or host says so, if the kernel knows.
    pub reporter: Option<IpAddr>,
    /// Its kind.
    pub kind: IcmpKind,
    /// The type and code of ICMP or ICMPv6.
    pub code: (u8, u8),
    /// With [`IcmpKind::TooBig`], how many bytes of IP packet the link takes; 0 if that is not
    /// said.
    pub mtu: u32,
}

impl IcmpError {
    pub(crate) fn new(queued: &QueuedError) -> Option<Self> {
        use IcmpKind::{
            HostUnreachable, NetworkUnreachable, Other, PortUnreachable, Prohibited, TimeExceeded,
            TooBig,
        };
        let (kind, code) = (queued.kind, queued.code);
        let said = match (queued.origin, kind, code) {
            (libc::SO_EE_ORIGIN_ICMP, 3, 0 | 6 | 11) => NetworkUnreachable,
            (libc::SO_EE_ORIGIN_ICMP, 3, 1 | 7 | 12) => HostUnreachable,
            (libc::SO_EE_ORIGIN_ICMP, 3, 3) => PortUnreachable,
            (libc::SO_EE_ORIGIN_ICMP, 3, 4) => TooBig,
            (libc::SO_EE_ORIGIN_ICMP, 3, 9 | 10 | 13) => Prohibited,
            (libc::SO_EE_ORIGIN_ICMP, 11, _) => TimeExceeded,
            (libc::SO_EE_ORIGIN_ICMP6, 1, 0) => NetworkUnreachable,
            (libc::SO_EE_ORIGIN_ICMP6, 1, 1 | 5 | 6) => Prohibited,
            (libc::SO_EE_ORIGIN_ICMP6, 1, 2 | 3) => HostUnreachable,
            (libc::SO_EE_ORIGIN_ICMP6, 1, 4) => PortUnreachable,
            (libc::SO_EE_ORIGIN_ICMP6, 2, _) => TooBig,
            (libc::SO_EE_ORIGIN_ICMP6, 3, _) => TimeExceeded,
            _ => Other,
        };
        Some(Self {
            to: queued.to?,
            reporter: queued.reporter,
            kind: said,
            code: (kind, code),
            mtu: if said == TooBig { queued.info } else { 0 },
        })
    }
}

/// One line for the log, without the peer.
impl fmt::Display for IcmpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ICMP error ")?;
        if let Some(reporter) = self.reporter {
            write!(f, "from {reporter} ")?;
        }
        write!(f, "about what was sent to {}: ", self.to)?;
        match self.kind {
            IcmpKind::PortUnreachable => f.write_str(
                "port unreachable: nothing receives there, or a firewall rejects it; is the port right, and does the \
                 peer run?",
            ),
            IcmpKind::HostUnreachable => {
                f.write_str("host unreachable: is the address right, and is the peer up?")
            }
            IcmpKind::NetworkUnreachable => {
                f.write_str("network unreachable: there is no route to it")
            }
            IcmpKind::Prohibited => {
                f.write_str("administratively prohibited: a firewall rejects it")
            }
            IcmpKind::TooBig if self.mtu > 0 => write!(
                f,
                "fragmentation needed: a link on the way takes {} bytes; a lower MTU of the interface avoids it",
                self.mtu
            ),
            IcmpKind::TooBig => f.write_str(
                "fragmentation needed: a lower MTU of the interface avoids it",
            ),
            IcmpKind::TimeExceeded => f.write_str("time exceeded: perhaps a routing loop"),
            IcmpKind::Other => write!(f, "type {}, code {}", self.code.0, self.code.1),
        }
    }
}

/// The ICMP errors of one socket that were not read yet.
#[derive(Default)]
pub(super) struct IcmpErrors {
    /// How many came out of the queue so far: that it grows tells that errors come.
    came: AtomicU64,
    /// Equal ones once, with how often they came.
    kept: Mutex<ArrayVec<(IcmpError, u64), KEPT>>,
}

impl IcmpErrors {
    /// Hands out what has come, each with how often it did.
    pub(super) fn take(&self, fd: BorrowedFd<'_>, each: &mut dyn FnMut(IcmpError, u64)) {
        self.collect(fd);
        // Drained, not consumed: that would copy the array.
        for (error, times) in self.lock().drain(..) {
            each(error, times);
        }
    }

    /// Empties the socket's error queue, or takes as much of a flood as is due at once. Returns how
    /// many ever came.
    pub(super) fn collect(&self, fd: BorrowedFd<'_>) -> u64 {
        let mut kept = self.lock();
        for _ in 0..BATCHES {
            let keep = |queued: &QueuedError| {
                // What the kernel itself refused stands in the same queue.
                if !matches!(
                    queued.origin,
                    libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6
                ) {
                    return;
                }
                self.came.fetch_add(1, Ordering::Relaxed);
                let Some(error) = IcmpError::new(queued) else {
                    return;
                };
                match kept.iter_mut().find(|(known, _)| *known == error) {
                    Some((_, times)) => *times += 1,
                    None => drop(kept.try_push((error, 1))),
                }
            };
            if receive_errors(fd, keep).unwrap_or(0) < ERROR_BATCH {
                break;
            }
        }
        self.came.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, ArrayVec<(IcmpError, u64), KEPT>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a system call again that failed because an ICMP error left its errno at the socket.
/// `collect` empties the error queue and returns how many errors ever came.
///
/// 1. An errno that ICMP cannot leave is the call's own.
/// 2. Else the call is made again, also with an empty queue, because a full receive buffer keeps
///    errors out of it.
/// 3. If it fails again and no error came meanwhile, the errno is its own.
/// 4. While errors come it is made again, but not for ever. Then the errno is one that is blamed
///    neither on the source address nor on segmentation.
pub(super) fn past_errors<T>(
    mut call: impl FnMut() -> Result<T, Errno>,
    mut collect: impl FnMut() -> u64,
) -> Result<T, Errno> {
    let mut before = None;
    for _ in 0..ATTEMPTS {
        let errno = match call() {
            Err(errno) if is_of_icmp(errno) => errno,
            result => return result,
        };
        let came = collect();
        if before.is_some_and(|before| before == came) {
            return Err(errno);
        }
        before = Some(came);
    }
    Err(Errno::CONNREFUSED)
}

/// The errors that the kernel makes of ICMP messages (`icmp_err_convert`, `icmpv6_err_convert`).
fn is_of_icmp(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NOPROTOOPT
            | Errno::CONNREFUSED
            | Errno::MSGSIZE
            | Errno::OPNOTSUPP
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::PROTO
            | Errno::ACCESS
    )
}

#[cfg(test)]
#[path = "icmp_tests.rs"]
mod tests;
