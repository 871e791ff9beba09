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

use adit_offload::lab::{self, Idea};
use adit_proto::InUse;
use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::helper;
use crate::sys::mmsg::{self, OutgoingMessage, SEND_BATCH};
use crate::{
    Arrival, Cut, Filtered, Grace, RecvBatch, SendReport, ShortBuffers, Transmit, UdpSocket,
};

mod answers;
mod autotuning;
pub(crate) mod filter;
mod gso_fallbacks;
mod icmp;
pub(crate) mod open;
mod setup;
#[cfg(test)]
pub(crate) mod tests;

pub use crate::transmit::UdpState;
use crate::udp::autotuning::SOCKET_BUFFER;
pub use answers::AnsweringSocket;
use autotuning::BufferAutotuning;
pub use autotuning::MAX_RECEIVE_BUFFER;
use filter::SocketFilter;
use gso_fallbacks::GsoFallbacks;
pub use icmp::{IcmpError, IcmpKind};
use icmp::{IcmpErrors, past_errors};
pub use open::SEND_BUFFER;
use open::{BoundSocket, Gear, SocketPurpose};
pub use setup::{bind_embedded, bind_pair};

/// Segments of one UDP_SEGMENT send: UDP_MAX_SEGMENTS of every kernel that has it.
pub const MAX_SEGMENTS: usize = 64;
/// UDP payload of one IPv4 send, UDP_SEGMENT or not: 65,535 less both headers.
pub const MAX_SEND_V4: usize = 65_535 - 20 - 8;
/// The same for IPv6, whose kernel counts the header too when it builds a train: 65,535 less both
/// headers.
pub const MAX_SEND_V6: usize = 65_535 - 40 - 8;

/// A UDP socket of one address family.
pub struct Udp {
    fd: OwnedFd,
    gso: bool,
    gro: bool,
    gso_fallbacks: GsoFallbacks,
    icmp: IcmpErrors,
    /// How long the receive buffer is, by the rate of this socket. One thread at a time receives.
    room: Mutex<BufferAutotuning>,
    /// How long the receive buffer is to be, while that has not been set yet; 0 otherwise.
    wanted: AtomicUsize,
    /// Messages that found the receive buffer full: the lower 32 bits.
    dropped: AtomicU32,
    /// What it drops, and where datagrams arrive, if the kernel lets us have that.
    filter: RwLock<Option<Arc<SocketFilter>>>,
    /// No other socket may join it.
    stands_alone: bool,
    /// Others receive on its port, too: where the last one arrived says little.
    is_shared: bool,
    /// Over how many sockets data is spread that arrives at the port; 0 is 1.
    group: AtomicU32,
    /// To be held while sockets join it, or data is spread anew.
    joining: Mutex<()>,
}

impl Udp {
    fn new(BoundSocket { fd, has }: BoundSocket, shared: bool) -> Self {
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
            stands_alone: false,
            is_shared: shared,
            group: AtomicU32::new(0),
            joining: Mutex::default(),
        }
    }

    /// Whether UDP_SEGMENT is in force, though perhaps not for every destination.
    pub fn gso(&self) -> bool {
        self.gso && !self.gso_fallbacks.everywhere()
    }

    /// Whether UDP_GRO is in force.
    pub fn gro(&self) -> bool {
        self.gro
    }

    fn room(&self) -> MutexGuard<'_, BufferAutotuning> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets as many bytes wait to be received as are wanted, soon: with what arrives next if the helper
    /// has too much to do now, and never if it has ended.
    fn set_receive_buffer(&self) {
        let wanted = self.wanted.load(Relaxed);
        if wanted > 0 && !is_too_early(&helper::set_buffers(self.fd(), option(wanted), 0)) {
            self.wanted.store(0, Relaxed);
        }
    }
}

impl UdpSocket for Udp {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let gso = self.gso.then_some(&self.gso_fallbacks);
        let fd = self.fd.as_fd();
        let mut icmp = false;
        let kernel = |messages: &[OutgoingMessage<'_>]| {
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
        let (sockets, _) = self.join(more, SocketPurpose::RxQueue(wants))?;
        if let Some(filter) = self.filter() {
            let table = (Arc::clone(&filter.table), Arc::clone(&filter.map));
            sockets.iter().for_each(|it| it.set_filter(&table));
        }
        Ok(sockets)
    }

    fn spread(&self, over: usize) -> io::Result<Grace> {
        if self.stands_alone {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let _alone = self.alone();
        let group = u32::try_from(over).unwrap_or(u32::MAX);
        helper::spread(self.fd(), group)?;
        self.group.store(group, Relaxed);
        let held = Arc::new(());
        let grace = Grace::until_dropped(&held);
        let wait = move || {
            // An RCU grace period, some 20 ms: a CPU that had read the program before has queued what
            // it was about. Where the kernel refuses it (nohz_full), a datagram that is delayed
            // for longer than the sockets need to become empty is overtaken.
            let _ = membarrier(MembarrierCommand::Global);
            drop(held);
        };
        // Without memory for a thread it is over at once.
        #[cfg(feature = "host")]
        let _ = adit_sandbox::start("adit-grace", wait);
        #[cfg(not(feature = "host"))]
        let _ = std::thread::Builder::new()
            .name("adit-grace".into())
            .spawn(wait);
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

/// Whether it is to be tried again.
fn is_too_early(result: &io::Result<()>) -> bool {
    let kind = result.as_ref().err().map(io::Error::kind);
    kind == Some(io::ErrorKind::WouldBlock)
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

/// A place between two messages.
#[derive(Clone, Copy)]
struct Cursor {
    train: usize,
    /// Into that train's bytes.
    offset: usize,
}

/// Sends `trains` through `kernel`, which sends messages and returns how many went out.
///
/// Without `gso` every message is one datagram.
fn send_trains(
    mut kernel: impl FnMut(&[OutgoingMessage<'_>]) -> Result<usize, Errno>,
    gso: Option<&GsoFallbacks>,
    trains: &[Transmit<'_>],
    report: &mut SendReport,
) -> usize {
    (report.stale_source, report.too_long, report.resume_at) = (None, None, 0);
    report.lost.clear();
    let mut at = Cursor {
        train: 0,
        offset: 0,
    };
    // The train that goes on datagram by datagram, and the one that goes on without its source
    // address.
    let (mut plain, mut sourceless) = (None, None);
    // Where segmentation seems to be refused, until a datagram alone has been taken: else it is not
    // what was wrong.
    let mut suspect = None;
    loop {
        // 1. messages of the trains from `at` on, and where each of them ends
        let mut messages = ArrayVec::<OutgoingMessage<'_>, SEND_BATCH>::new();
        let mut ends = ArrayVec::<Cursor, SEND_BATCH>::new();
        let mut next = at;
        let is_full =
            |messages: usize| messages == SEND_BATCH || lab::without(Idea::Mmsg) && messages == 1;
        while let Some(train) = trains.get(next.train).filter(|_| !is_full(messages.len())) {
            let segment = plain != Some(next.train)
                && gso.is_some_and(|gso| gso.allow(train.to.addr.ip(), train.stride));
            let bytes = &train.bytes[next.offset..];
            let bytes = &bytes[..bytes.len().min(message_len(train, segment))];
            messages.push(OutgoingMessage {
                train,
                bytes,
                from_source: sourceless != Some(next.train),
            });
            next.offset += bytes.len();
            if next.offset == train.bytes.len() {
                next = Cursor {
                    train: next.train + 1,
                    offset: 0,
                };
            }
            ends.push(next);
        }
        let Some((&head, &end)) = messages.first().zip(ends.first()) else {
            return trains.len();
        };
        // 2. as many as the kernel takes: after a part of them, the next round meets what stopped
        //    it
        let errno = match kernel(&messages) {
            Ok(sent) => {
                if let Some((gso, (errno, train))) = gso.zip(suspect.take()) {
                    let Transmit { to, stride, .. } = trains[train];
                    let is_long = errno != Errno::IO;
                    gso.insert(to.addr.ip(), if is_long { stride } else { 0 });
                    report.refused += 1;
                    report.too_long = Some(train).filter(|_| is_long).or(report.too_long);
                }
                at = ends[sent.clamp(1, ends.len()) - 1];
                continue;
            }
            Err(Errno::AGAIN) => {
                report.resume_at = at.offset;
                return at.train;
            }
            Err(Errno::INTR) => continue,
            Err(errno) => errno,
        };
        // 3. the source address may be gone: try without
        if head.from_source && head.train.to.src.is_some() && blames_source(errno) {
            let retry = OutgoingMessage {
                from_source: false,
                ..head
            };
            if kernel(&[retry]).is_ok() {
                report.stale_source = Some(at.train);
                sourceless = Some(at.train);
                at = end;
                continue;
            }
        }
        // 4. the path may not take segmentation: try without
        if head.is_segmented() && blames_gso(errno) {
            suspect = Some((errno, at.train));
            plain = Some(at.train);
            continue;
        }
        // 5. lost, as UDP loses it
        suspect = None;
        report.lose(at.train, head.datagrams() as u64);
        report.error = Some(errno);
        at = end;
    }
}

/// How much of a train fits one message.
fn message_len(train: &Transmit<'_>, segment: bool) -> usize {
    // The kernel knows no segments of length 0 and none beyond 65,535.
    let stride = train.stride.max(1);
    let max = match train.to.addr {
        SocketAddr::V4(_) => MAX_SEND_V4,
        SocketAddr::V6(_) => MAX_SEND_V6,
    };
    if segment && stride <= max {
        stride * (max / stride).min(MAX_SEGMENTS)
    } else {
        stride
    }
}

/// Errors that a source address or interface that went away causes.
fn blames_source(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::INVAL | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ADDRNOTAVAIL | Errno::NODEV
    )
}

/// Errors that UDP_SEGMENT causes: EIO where the device cannot do checksums, EMSGSIZE where a
/// segment exceeds the path's MTU (EINVAL before Linux 6.14), EINVAL where it is not liked
/// otherwise.
fn blames_gso(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::INVAL | Errno::MSGSIZE)
}
