//! UDP sockets that send and receive trains.
//!
//! - Sending: split trains into messages → `sendmmsg` → find what the kernel refused, and why →
//!   send that again without the refused offload.
//! - Receiving: `recvmmsg` → control messages → batch.
//! - ICMP errors come through the socket's error queue (`icmp`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use adit_proto::InUse;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::helper;
use crate::sys::mmsg::{self, Message};
use crate::{
    Arrival, Cut, Filtered, Grace, Offloads, RecvBatch, SendReport, ShortBuffers, Transmit,
    UdpSocket,
};

pub(crate) mod filter;
mod gso_fallbacks;
mod icmp;
pub(crate) mod open;
mod room;
mod send;
#[cfg(test)]
pub(crate) mod tests;

use crate::sys::os::local_addr;
pub use crate::transmit::UdpState;
use crate::udp::room::SOCKET_BUFFER;
use filter::{Filter, Table};
use gso_fallbacks::GsoFallbacks;
pub use icmp::{IcmpError, IcmpKind};
use icmp::{IcmpErrors, past_errors};
pub use open::SEND_BUFFER;
use open::{Gear, Opened, Way};
pub use room::MAX_RECEIVE_BUFFER;
use room::Room;
use send::send_trains;
pub use send::{MAX_SEGMENTS, MAX_SEND_V4, MAX_SEND_V6};

/// A UDP socket of one address family.
pub struct Udp {
    fd: OwnedFd,
    gso: bool,
    gro: bool,
    gso_fallbacks: GsoFallbacks,
    icmp: IcmpErrors,
    /// How long the receive buffer is, by the rate of this socket. One thread at a time receives.
    room: Mutex<Room>,
    /// How long the receive buffer is to be, while that has not been set yet; 0 otherwise.
    wanted: AtomicUsize,
    /// Messages that found the receive buffer full: the lower 32 bits.
    dropped: AtomicU32,
    /// What it drops, and where datagrams arrive, if the kernel lets us have that.
    filter: RwLock<Option<Arc<Filter>>>,
    /// Others receive on its port, too: where the last one arrived says little.
    is_shared: bool,
    /// Over how many sockets data is spread that arrives at the port; 0 is 1.
    group: AtomicU32,
    /// To be held while sockets join it, or data is spread anew.
    joining: Mutex<()>,
}

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
    let table = Table::new().ok();
    let socket = |opened: Opened| {
        let socket = Udp::new(opened, false);
        if let Some(table) = &table {
            socket.set_filter(table);
        }
        socket
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

    fn new(Opened { fd, has }: Opened, shared: bool) -> Self {
        Self {
            fd,
            gso: has.gso,
            gro: has.gro,
            gso_fallbacks: GsoFallbacks::default(),
            icmp: IcmpErrors::default(),
            room: Mutex::default(),
            wanted: AtomicUsize::new(0),
            dropped: AtomicU32::new(0),
            filter: RwLock::default(),
            is_shared: shared,
            group: AtomicU32::new(0),
            joining: Mutex::default(),
        }
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
            ..Self::new(Opened { fd, has }, false)
        })
    }

    /// Gives the sockets of an interface the programs that drop for this process what nobody wants,
    /// and say where datagrams arrive. Those that another process gave them are gone.
    pub fn set_filters<'a>(sockets: impl Iterator<Item = &'a Self>) {
        if let Ok(table) = Table::new() {
            for socket in sockets {
                socket.set_filter(&table);
            }
        }
    }

    fn set_filter(&self, (table, map): &(Arc<Table>, Arc<OwnedFd>)) {
        if let Ok(filter) = Filter::of(self.fd(), Arc::clone(table), map) {
            let mut place = self.filter.write().unwrap_or_else(PoisonError::into_inner);
            // What the one before has dropped goes on to count as dropped.
            let before = place.replace(Arc::new(filter));
            if let Some(before) = before {
                self.dropped.fetch_add(before.dropped_32(), Relaxed);
            }
        }
    }

    fn filter(&self) -> Option<Arc<Filter>> {
        let filter = self.filter.read().unwrap_or_else(PoisonError::into_inner);
        filter.clone()
    }

    /// Binds more sockets to the port. Data arrives where it did before. Returns whether others shared
    /// the port before.
    fn join(&self, more: usize, way: Way) -> io::Result<(Vec<Self>, bool)> {
        let group = self.group.load(Relaxed).max(1);
        let (opened, was_shared) = helper::join(self.fd(), group, more, way)?;
        let sockets = opened.into_iter().map(|opened| Self::new(opened, true));
        Ok((sockets.collect(), was_shared))
    }

    /// One more socket on the port, to send, and whether others shared it before.
    fn beside(&self, cut: Cut) -> io::Result<(Self, bool)> {
        let gso = self.gso;
        let (mut sockets, was_shared) = self.join(1, Way::Beside { gso, cut })?;
        let beside = sockets.pop().ok_or(io::ErrorKind::NotFound)?;
        Ok((beside, was_shared))
    }

    /// While this is held, no other socket joins, and those of [`Self::send_beside`] are gone: the
    /// first sockets of the group are those that data is spread over.
    fn alone(&self) -> MutexGuard<'_, ()> {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether UDP_SEGMENT is in force, though perhaps not for every destination.
    pub fn gso(&self) -> bool {
        self.gso && !self.gso_fallbacks.everywhere()
    }

    /// Whether UDP_GRO is in force.
    pub fn gro(&self) -> bool {
        self.gro
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets as many bytes wait to be received as are wanted, soon: if not now, with what arrives
    /// next.
    fn set_receive_buffer(&self) {
        let wanted = self.wanted.load(Relaxed);
        if wanted > 0 && helper::set_buffers(self.fd(), option(wanted), 0).is_ok() {
            self.wanted.store(0, Relaxed);
        }
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

impl UdpSocket for Udp {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let gso = self.gso.then_some(&self.gso_fallbacks);
        let fd = self.fd.as_fd();
        let mut icmp = false;
        let kernel = |messages: &[Message<'_>]| {
            let collect = || {
                icmp = true;
                self.icmp.collect(fd)
            };
            past_errors(|| mmsg::send(fd, messages), collect)
        };
        let taken = send_trains(kernel, gso, trains, report);
        report.icmp |= icmp;
        taken
    }

    /// Through a socket of its own, which lives as long as that takes. ICMP errors that come
    /// meanwhile count as this one's.
    fn send_beside(&self, trains: &[Transmit<'_>], cut: Cut, report: &mut SendReport) -> usize {
        let _alone = self.alone();
        let Ok((beside, was_shared)) = self.beside(cut) else {
            return self.send(trains, report);
        };
        let taken = beside.send(trains, report);
        self.icmp.collect(beside.fd());
        report.icmp = true;
        if !was_shared {
            // Otherwise the port is one of several sockets until the next time.
            let _ = helper::apart(self.fd());
        }
        taken
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        let filter = self.filter();
        let passed = filter.as_ref().map_or(0, |filter| filter.passed());
        // What an ICMP error left at the socket concerns nothing that waits. The error itself stays
        // in its queue, and the descriptor says so.
        let bytes = match batch.receive(self.fd.as_fd()) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                batch.receive(self.fd.as_fd())
            }
            result => result,
        }?;
        let room = self.room().received(Instant::now(), bytes);
        if let Some(room) = room {
            self.wanted.store(room, Relaxed);
        }
        self.set_receive_buffer();
        if let Some(now) = batch.dropped {
            // The kernel counts what the program drops, too, and told before this how much there
            // was: while such comes, a little less may be told here than was lost.
            let filtered = filter.as_ref().map_or(0, |filter| filter.dropped_32());
            let now = now.wrapping_sub(filtered);
            let more = newer(self.dropped.load(Relaxed), now);
            if more > 0 {
                self.dropped.store(now, Relaxed);
                batch.add_lost(more.into());
            }
        }
        if let Some(filter) = filter {
            let gone = (batch.len() as u64, batch.lost());
            batch.set_waiting(filter.waiting(passed, gone, !batch.is_full()));
        }
        Ok(())
    }

    fn send_socket(&self) -> io::Result<Self> {
        let _alone = self.alone();
        self.beside(Cut::Allowed).map(|(beside, _)| beside)
    }

    fn further(&self, more: usize) -> io::Result<Vec<Self>> {
        let wants = Gear {
            gso: self.gso,
            gro: self.gro,
        };
        let _alone = self.alone();
        let (sockets, _) = self.join(more, Way::RxQueue(wants))?;
        if let Some(filter) = self.filter() {
            let table = (Arc::clone(&filter.table), Arc::clone(&filter.map));
            sockets.iter().for_each(|it| it.set_filter(&table));
        }
        Ok(sockets)
    }

    fn spread(&self, over: usize) -> io::Result<Grace> {
        let _alone = self.alone();
        let group = u32::try_from(over).unwrap_or(u32::MAX);
        helper::spread(self.fd(), group)?;
        self.group.store(group, Relaxed);
        let held = Arc::new(());
        let grace = Grace::until_dropped(&held);
        let wait = move || {
            // An RCU grace period, some 20 ms: whoever had read the program before has queued what
            // it was about. Where the kernel refuses it (nohz_full), a datagram that is delayed
            // for longer than the sockets need to become empty is overtaken.
            let _ = membarrier(MembarrierCommand::Global);
            drop(held);
        };
        // Without memory for a thread it is over at once.
        let _ = adit_sandbox::start("adit-grace", wait);
        Ok(grace)
    }

    fn set_send_buffer(&self, bytes: usize) {
        // Otherwise the kernel's default stays.
        let _ = helper::set_buffers(self.fd(), 0, option(bytes));
    }

    fn take_errors(&self, each: &mut dyn FnMut(IcmpError, u64)) {
        self.icmp.take(self.fd.as_fd(), each);
    }

    fn state(&self) -> UdpState {
        UdpState {
            gso: self.gso,
            gro: self.gro,
            dropped: {
                let filtered = self.filter().map_or(0, |filter| filter.dropped_32());
                self.dropped.load(Relaxed).wrapping_add(filtered)
            },
            group: self.group.load(Relaxed),
        }
    }

    fn in_use(&self) -> Option<Arc<dyn InUse>> {
        Some(Arc::clone(&self.filter()?.table) as _)
    }

    fn refuse(&self, source: IpAddr) {
        if let Some(filter) = self.filter() {
            filter.refuse(source);
        }
    }

    fn take_filtered(&self) -> Filtered {
        self.filter().map_or_else(Filtered::default, |it| it.take())
    }

    fn short_buffers(&self) -> ShortBuffers {
        // The kernel doubles what it grants, for its own bookkeeping.
        let is_short =
            |size: rustix::io::Result<usize>| size.is_ok_and(|size| size / 2 < SOCKET_BUFFER);
        ShortBuffers {
            receive: is_short(sockopt::socket_recv_buffer_size(&self.fd)),
            send: is_short(sockopt::socket_send_buffer_size(&self.fd)),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        let filter = self.filter().filter(|_| !self.is_shared);
        filter.map(|filter| filter.last_arrival())
    }
}

/// The length of a buffer as an option.
fn option(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// How far a counter of 32 bits, which wraps, has gone on. Messages that several CPUs queued may
/// tell it out of order.
fn newer(before: u32, now: u32) -> u32 {
    match now.wrapping_sub(before) {
        more if more <= u32::MAX / 2 => more,
        _ => 0,
    }
}
