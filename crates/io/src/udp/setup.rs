//! What is done with sockets besides sending and receiving: marks, filters, others on their port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};

use crate::helper;
use crate::sys::os::local_addr;
use crate::transmit::UdpState;
use crate::udp::Udp;
use crate::udp::filter::{FilterTable, SocketFilter};
use crate::udp::open::{self, BoundSocket, Gear, SocketPurpose};
use crate::{Cut, Offloads, UdpSocket};

/// Sockets for both address families on one port, and that port. Port 0 asks for any.
///
/// A family that the host lacks is `None`; that both are is an error. `AddrInUse` if the port is
/// taken in either.
///
/// # Errors
///
/// `AddrInUse` if the port is taken in either family, `Unsupported` if the host has neither,
/// `PermissionDenied` for a port or a mark that the process may not have, and those of socket(2)
/// and bind(2).
pub fn bind_pair(
    port: u16,
    fwmark: u32,
    offloads: Offloads,
) -> io::Result<(Option<Udp>, Option<Udp>, u16)> {
    let (v4, v6, port) = helper::pair(port, fwmark, gear(offloads))?;
    let table = FilterTable::new().ok();
    let socket = |opened: BoundSocket| {
        let socket = Udp::new(opened, false);
        if let Some(table) = &table {
            socket.set_filter(table);
        }
        socket
    };
    Ok((v4.map(socket), v6.map(socket), port))
}

/// The same for a program that embeds the tunnel: no program of the kernel's (BPF) is given to these
/// sockets, and no other joins them, so that peers share one send buffer and one receive queue.
/// `prepare` is called with each before it is bound; true for IPv6.
///
/// # Errors
///
/// Those of [`bind_pair`], and those of `prepare`.
pub fn bind_embedded(
    port: u16,
    offloads: Offloads,
    prepare: &dyn Fn(BorrowedFd<'_>, bool) -> io::Result<()>,
) -> io::Result<(Option<Udp>, Option<Udp>, u16)> {
    let (v4, v6, port) = open::pair_alone(port, gear(offloads), prepare)?;
    let socket = |opened: BoundSocket| Udp {
        stands_alone: true,
        ..Udp::new(opened, false)
    };
    Ok((v4.map(socket), v6.map(socket), port))
}

fn gear(offloads: Offloads) -> Gear {
    Gear {
        gso: offloads.udp_gso,
        gro: offloads.udp_gro,
    }
}

impl Udp {
    /// Binds a socket to `addr`. `shared` lets it join the others on that port which are `shared`
    /// too.
    ///
    /// # Errors
    ///
    /// Those of socket(2), setsockopt(2) and bind(2): `AddrInUse` if the port is taken.
    pub fn bind(
        addr: SocketAddr,
        fwmark: u32,
        offloads: Offloads,
        shared: bool,
    ) -> io::Result<Self> {
        let opened = open::bind(addr, fwmark, gear(offloads), shared)?;
        Ok(Self::new(opened, shared))
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    ///
    /// Those of getsockname(2), which do not occur for a bound socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(&self.fd)
    }

    /// Sets the mark that policy routing sees on what is sent; 0 removes it. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without CAP_NET_ADMIN.
    pub fn set_mark(&self, fwmark: u32) -> io::Result<()> {
        helper::set_mark(self.fd(), fwmark)
    }

    /// Goes on with a socket that another process bound with the same offloads.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the descriptor is no UDP socket of that port.
    pub fn take_over(fd: OwnedFd, state: UdpState) -> io::Result<Self> {
        let is_udp = sockopt::socket_type(&fd)? == SocketType::DGRAM
            && sockopt::socket_protocol(&fd)? == Some(ipproto::UDP)
            && matches!(
                sockopt::socket_domain(&fd)?,
                AddressFamily::INET | AddressFamily::INET6
            );
        if !is_udp {
            let message = "a descriptor that was handed over is no UDP socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let has = Gear {
            gso: state.gso,
            gro: state.gro,
        };
        Ok(Self {
            dropped: AtomicU32::new(state.dropped),
            group: AtomicU32::new(state.group),
            ..Self::new(BoundSocket { fd, has }, false)
        })
    }

    /// Has no other socket join it, as those of [`bind_embedded`].
    #[must_use]
    pub fn embedded(self) -> Self {
        Self {
            stands_alone: true,
            ..self
        }
    }

    /// Gives the sockets of an interface the programs that drop for this process what nobody wants,
    /// and say where datagrams arrive. Those that another process gave them are gone.
    pub fn set_filters<'a>(sockets: impl Iterator<Item = &'a Self>) {
        if let Ok(table) = FilterTable::new() {
            for socket in sockets {
                socket.set_filter(&table);
            }
        }
    }

    pub(super) fn set_filter(&self, (table, map): &(Arc<FilterTable>, Arc<OwnedFd>)) {
        if let Ok(filter) = SocketFilter::of(self.fd(), Arc::clone(table), map) {
            let mut place = self.filter.write().unwrap_or_else(PoisonError::into_inner);
            // What the one before has dropped goes on to count as dropped.
            let before = place.replace(Arc::new(filter));
            if let Some(before) = before {
                self.dropped.fetch_add(before.dropped_32(), Relaxed);
            }
        }
    }

    pub(super) fn filter(&self) -> Option<Arc<SocketFilter>> {
        let filter = self.filter.read().unwrap_or_else(PoisonError::into_inner);
        filter.clone()
    }

    /// Binds more sockets to the port. Data arrives where it did before. Returns whether others shared
    /// the port before.
    pub(super) fn join(&self, more: usize, way: SocketPurpose) -> io::Result<(Vec<Self>, bool)> {
        if self.stands_alone {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let group = self.group.load(Relaxed).max(1);
        let (opened, was_shared) = helper::join(self.fd(), group, more, way)?;
        let sockets = opened.into_iter().map(|opened| Self::new(opened, true));
        Ok((sockets.collect(), was_shared))
    }

    /// One more socket on the port, to send, and whether others shared it before.
    pub(super) fn beside(&self, cut: Cut) -> io::Result<(Self, bool)> {
        let gso = self.gso;
        let (mut sockets, was_shared) = self.join(1, SocketPurpose::Beside { gso, cut })?;
        let beside = sockets.pop().ok_or(io::ErrorKind::NotFound)?;
        Ok((beside, was_shared))
    }

    /// While this is held, no other socket joins, and those of [`Self::send_beside`] are gone: the
    /// first sockets of the group are those that data is spread over.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ignores what ICMP has said or will say of paths, which may be forged (RFC 5927), or believes it
    /// again. Meanwhile only what the device does not take is cut or refused here, whatever routes say.
    ///
    /// # Errors
    ///
    /// Those of setsockopt(2).
    pub fn ignore_icmp(&self, ignore: bool) -> io::Result<()> {
        helper::ignore_icmp(self.fd(), ignore)?;
        self.gso_fallbacks.clear();
        Ok(())
    }

    /// A route changed: what was refused on the old one may work on the new one.
    pub fn clear_gso_fallbacks(&self) {
        self.gso_fallbacks.clear();
    }
}
