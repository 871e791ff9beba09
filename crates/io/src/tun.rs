//! TUN devices, opened with every offload that the kernel accepts.
//!
//! The device may be renamed, moved to another network namespace, given another MTU or deleted at
//! any moment. The descriptor stays attached to it whatever happens, so everything about it is
//! asked for through the descriptor, in the namespace where the device is then.

pub(crate) mod egress;
mod fair_queues;
mod handed_over;
mod plain;
mod probes;
mod schedule;
mod veth;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::helper::{self, QueueChoice, TunChange, TunLocation};
use crate::sys::bpf::LastArrival;
use crate::sys::os;
use crate::sys::tun::{attach, attached, context, explain_attach};
use crate::{Arrival, FrameBatch, Offloads, TunQueue};
#[cfg(feature = "host")]
use adit_netlink::netns::Netns;
use adit_offload::VNET_HDR_LEN;
use egress::{Egress, Reading};
use fair_queues::FairQueues;
pub use handed_over::TunState;
pub use plain::PlainTun;
use probes::{loses_merged_datagrams, probe_frame, probe_tunnel};
pub use veth::VethQueue;

#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod tests;

/// Features that come with a virtio header: the kernel leaves checksums to us, as every GSO packet
/// needs.
const BASE: u32 = libc::TUN_F_CSUM;
const TSO: u32 = libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
const USO: u32 = libc::TUN_F_USO4 | libc::TUN_F_USO6;
/// `TUN_F_UDP_TUNNEL_GSO` and `TUN_F_UDP_TUNNEL_GSO_CSUM` (Linux 6.17).
const TUNNEL: u32 = 0x80 | 0x100;

/// Bytes of GSO packets that may wait to be read, as long as they are long: 3 ms at 11 Gb/s. In the
/// 500 packets that the kernel allows there may be 30 MB.
const QUEUE_BYTES: u32 = 4 << 20;

/// One queue of a TUN device, or all queues of one that [`Tun::open_fair`] opened.
pub struct Tun {
    fd: OwnedFd,
    offloads: Offloads,
    /// If nobody else has queues of this device, and the kernel lets us.
    last_arrival: OnceLock<LastArrival>,
    /// Set once, if nobody else has queues.
    egress: OnceLock<Egress>,
    /// The first queue is `fd`.
    fair: Option<FairQueues>,
    has_other_queues: bool,
}

impl Tun {
    /// Opens the device called `name`, creating it if need be, with `queues` queues.
    ///
    /// `%d` in the name lets the kernel choose a number; an empty name means `tun%d`. The error
    /// says what to do when the device node is missing, the right to create interfaces is, or the
    /// name is taken.
    ///
    /// # Errors
    ///
    /// The device node or the right to create interfaces (CAP_NET_ADMIN) is missing, or another
    /// process has the device. The message says what to do.
    pub fn open(name: &str, queues: usize, offloads: Offloads) -> io::Result<Vec<Self>> {
        let mut tuns: Vec<Self> = Vec::with_capacity(queues.max(1));
        for _ in 0..queues.max(1) {
            let which = match queues {
                2.. => QueueChoice::Several,
                _ => QueueChoice::One,
            };
            let fd = match tuns.first() {
                Some(first) => helper::queue(first.fd.as_fd()),
                None => helper::open(name, which),
            };
            let fd = fd.map_err(|error| explain_attach(error, name))?;
            tuns.push(Self::from_fd(fd, offloads)?);
        }
        Ok(tuns)
    }

    /// Opens the device called `name` as [`Self::open`] does. One that it creates is ready for more
    /// queues, which [`Self::limit_queue`] adds: peers then share it fairly, and packets of sparse
    /// flows are read first.
    ///
    /// The kernel takes 3.5 MiB for such a device with its default qdisc, most of it for queues that
    /// are never opened.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], and those of epoll_create(2).
    pub fn open_fair(name: &str, offloads: Offloads) -> io::Result<Self> {
        match helper::open(name, QueueChoice::First) {
            Ok(fd) => {
                let fair = FairQueues::new(&fd)?;
                let mut tun = Self::from_fd(fd, offloads)?;
                tun.has_other_queues = false;
                tun.follow_arrivals();
                tun.fair = Some(fair);
                Ok(tun)
            }
            // It exists.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
                let fd = helper::open(name, QueueChoice::One).map_err(|error| {
                    match Errno::from_io_error(&error) {
                        Some(Errno::INVAL) => {
                            let what =
                                "is in use by another process, or is no TUN device with one queue";
                            context(error, format!("{name} {what}"))
                        }
                        _ => explain_attach(error, name),
                    }
                })?;
                Self::from_fd(fd, offloads)
            }
            Err(error) => Err(explain_attach(error, name)),
        }
    }

    /// Takes over a queue that is attached to a device already (`WG_TUN_FD`).
    ///
    /// It must be a TUN device with a virtio header and without packet information, as
    /// [`Self::open`] makes it.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the descriptor is no such queue, and those of its ioctls.
    pub fn from_fd(fd: OwnedFd, offloads: Offloads) -> io::Result<Self> {
        let tun = Self::embedded(fd, offloads)?;
        tun.follow_arrivals();
        Ok(tun)
    }

    /// Opens the device called `name`, or makes it, for a program that embeds the tunnel: no program of the
    /// kernel's (BPF) is given to it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_embedded(name: &str, offloads: Offloads) -> io::Result<Self> {
        let fd = attach(name, QueueChoice::One, true);
        Self::embedded(fd.map_err(|error| explain_attach(error, name))?, offloads)
    }

    /// As [`Self::from_fd`], for a program that embeds the tunnel: no program of the kernel's (BPF) is given
    /// to the device.
    ///
    /// # Errors
    ///
    /// Those of [`Self::from_fd`].
    pub fn embedded(fd: OwnedFd, offloads: Offloads) -> io::Result<Self> {
        check_queue(fd.as_fd())?;
        let flags = i32::from(attached(fd.as_fd())?.flags());
        rustix::io::ioctl_fionbio(&fd, true)?;
        let close = rustix::io::fcntl_getfd(&fd)? | rustix::io::FdFlags::CLOEXEC;
        rustix::io::fcntl_setfd(&fd, close)?;
        let mut tun = Self {
            fd,
            offloads,
            last_arrival: OnceLock::new(),
            egress: OnceLock::new(),
            fair: None,
            has_other_queues: flags & libc::IFF_MULTI_QUEUE != 0,
        };
        // Any length from 10 on does for any kernel. It comes before the features that need it.
        let header = libc::c_int::try_from(VNET_HDR_LEN).unwrap_or(libc::c_int::MAX);
        os::ioctl_int(tun.fd.as_fd(), libc::TUNSETVNETHDRSZ, header)
            .map_err(|error| context(error, "setting the length of the virtio header"))?;
        tun.negotiate()?;
        tun.offloads.tun_gro_tunnel &= tun.offloads.tun_tunnel;
        tun.offloads.tun_gro_udp &= !loses_merged_datagrams(os::kernel_release());
        tun.probe_writes();
        Ok(tun)
    }

    /// Has the kernel say where packets come from, if nobody else has queues of the device. Another
    /// process that had it say so learns no more.
    pub fn follow_arrivals(&self) {
        if !self.has_other_queues
            && let Ok(map) = helper::arrivals(self.fd.as_fd())
            && let Ok(last) = LastArrival::of(&map)
        {
            let _ = self.last_arrival.set(last);
        }
    }

    /// Asks for what is allowed, then for less and less until the kernel accepts. The features are
    /// those of the device, not of the queue, and outlive the descriptor: they are always set, also
    /// to less than they were.
    fn negotiate(&mut self) -> io::Result<()> {
        let tso = if self.offloads.tun_tso { TSO } else { 0 };
        let uso = if self.offloads.tun_uso { USO } else { 0 };
        let tunnel = if self.offloads.tun_tunnel { TUNNEL } else { 0 };
        let mut result = Ok(());
        for features in [
            BASE | tso | uso | tunnel,
            BASE | tso | uso,
            BASE | tso,
            BASE,
            0,
        ] {
            result = os::ioctl_value(self.fd.as_fd(), libc::TUNSETOFFLOAD, features.into());
            if result.is_ok() {
                self.offloads.tun_tso &= features & TSO != 0;
                self.offloads.tun_uso &= features & USO != 0;
                self.offloads.tun_tunnel &= features & TUNNEL != 0;
                return Ok(());
            }
        }
        result.map_err(|error| context(error, "negotiating offloads with the TUN device"))
    }

    /// Tries a GSO packet of each kind while the device is down. The kernel judges the virtio
    /// header first (EINVAL: refused, as some kernels do) and only then finds the device down
    /// (EIO), so nothing gets through.
    fn probe_writes(&mut self) {
        if self.is_up().unwrap_or(true) {
            return;
        }
        let refused = |frame: &[u8]| {
            self.write(&[IoSlice::new(frame)])
                .is_err_and(|error| TunErrorKind::of(&error) == TunErrorKind::Refused)
        };
        let [tcp, udp, tunnel] =
            [probe_frame(6), probe_frame(17), probe_tunnel()].map(|frame| refused(&frame));
        self.offloads.tun_gro_tcp &= !tcp;
        self.offloads.tun_gro_udp &= !udp;
        self.offloads.tun_gro_tunnel &= !tunnel;
    }

    /// The device's name at this moment.
    ///
    /// # Errors
    ///
    /// The device was deleted (EBADFD).
    pub fn name(&self) -> io::Result<String> {
        Ok(attached(self.fd.as_fd())?.name())
    }

    /// Whether the device is administratively up, wherever it is: that takes no right to enter its
    /// namespace.
    ///
    /// The kernel says that a queue can be written to while the device is up, and only then
    /// (`tun_sock_writeable`).
    ///
    /// # Errors
    ///
    /// The device was deleted (EBADFD).
    pub fn is_up(&self) -> io::Result<bool> {
        let mut queue = [PollFd::new(&self.fd, PollFlags::OUT)];
        poll(&mut queue, Some(&Timespec::default()))?;
        let flags = queue[0].revents();
        if flags.contains(PollFlags::ERR) {
            // The device was deleted, as this will say.
            self.name()?;
        }
        Ok(flags.contains(PollFlags::OUT))
    }

    /// Where the device is at this moment, and what it is there.
    ///
    /// # Errors
    ///
    /// The device was deleted (EBADFD).
    pub fn place(&self) -> io::Result<TunLocation> {
        helper::look(self.fd.as_fd())
    }

    /// Limits the GSO packets that the kernel hands over, in bytes.
    ///
    /// # Errors
    ///
    /// The kernel's, and those of entering the device's namespace.
    pub fn set_frame_size(&self, bytes: u32) -> io::Result<()> {
        helper::change(self.fd.as_fd(), TunChange::FrameSize(bytes)).map(drop)
    }

    /// Sets the device's MTU.
    ///
    /// # Errors
    ///
    /// The kernel's, and those of entering the device's namespace.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        helper::change(self.fd.as_fd(), TunChange::Mtu(mtu)).map(drop)
    }

    /// Has the device send nothing of its own accord: it gets no link-local address of IPv6.
    ///
    /// # Errors
    ///
    /// The kernel's, as where there is no IPv6, and those of entering the device's namespace.
    pub fn set_quiet(&self) -> io::Result<()> {
        helper::change(self.fd.as_fd(), TunChange::Quiet).map(drop)
    }

    /// Gives the device the qdisc `noqueue`, unless its qdisc was chosen by hand: true if it was
    /// still the default. [`Netlink::set_noqueue`](adit_netlink::Netlink::set_noqueue) says what that does.
    ///
    /// # Errors
    ///
    /// The kernel's, and those of entering the device's namespace.
    pub fn set_noqueue(&self) -> io::Result<bool> {
        helper::change(self.fd.as_fd(), TunChange::NoQueue)
    }

    #[cfg(feature = "host")]
    /// Limits the bytes that wait in the queue, where nobody else has queues and the kernel and this
    /// process's rights allow it; and opens the further queues of a device that
    /// [`Self::open_fair`] opened. The kernel takes 10 to 30 ms for that, while packets pass.
    pub fn limit_queue(&self) {
        if self.has_other_queues || self.egress.get().is_some() {
            return;
        }
        if let Ok(egress) = self.limited(QUEUE_BYTES) {
            let egress = self.egress.get_or_init(|| egress);
            if let Some(fair) = &self.fair
                && let Ok(room) = self.open_others(fair)
            {
                egress.steer(room);
            }
        }
    }

    #[cfg(feature = "host")]
    /// Attaches a limit to the device, where it is.
    fn limited(&self, least: u32) -> io::Result<Egress> {
        let several = self.fair.is_some();
        let program = helper::limit(self.fd.as_fd(), least, several)?;
        Egress::take_over(program, least.into(), several)
    }

    #[cfg(feature = "host")]
    /// Opens the further queues; returns for how many packets each has room.
    fn open_others(&self, fair: &FairQueues) -> io::Result<u64> {
        // A queue belongs to the namespace that it is opened in, and keeps it alive.
        let place = self.place()?;
        let (true, Some(link)) = (place.netns == Netns::current_id()?, place.link) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        if !fair.are_open() {
            fair.open(|| helper::queue(self.fd.as_fd()))?;
        }
        Ok(link.room.into())
    }

    /// Reads one frame from the first queue.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when none waits; [`TunErrorKind::of`] classifies all others.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut reading = self.egress.get().map(Egress::reading);
        self.read_first(reading.as_mut(), buf)
    }

    /// Reads from the first queue.
    fn read_first(&self, reading: Option<&mut Reading<'_>>, buf: &mut [u8]) -> io::Result<usize> {
        let read = rustix::io::read(&self.fd, buf);
        if let Some(reading) = reading {
            match read {
                Ok(len) => reading.took(0, len.saturating_sub(VNET_HDR_LEN), &[]),
                Err(Errno::AGAIN) => reading.was_empty(0),
                Err(_) => {}
            }
        }
        Ok(read?)
    }

    /// Packets that the limit of the queue's length has dropped so far and that no TCP of this host
    /// keeps.
    pub fn lost_to_limit(&self) -> u64 {
        self.egress.get().map_or(0, Egress::lost)
    }

    /// The offloads of the TUN that are in force; those of the socket are returned as they were
    /// given.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }
}

/// The descriptor of the first queue.
impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl TunQueue for Tun {
    fn read_batch(&self, batch: &mut FrameBatch) -> io::Result<bool> {
        match (&self.fair, self.egress.get()) {
            (Some(fair), Some(egress)) if fair.are_open() => fair.read(&self.fd, egress, batch),
            (_, egress) => {
                let mut reading = egress.map(Egress::reading);
                batch.fill(|buf| self.read_first(reading.as_mut(), buf))
            }
        }
    }

    fn processed(&self, batch: &FrameBatch) {
        if let (Some(fair), Some(egress)) = (&self.fair, self.egress.get()) {
            fair.processed(egress, batch);
        }
    }

    fn write(&self, frame: &[IoSlice<'_>]) -> io::Result<()> {
        // The kernel takes a frame whole or not at all.
        rustix::io::writev(&self.fd, frame)?;
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.fair {
            Some(fair) => fair.fd(),
            None => self.fd.as_fd(),
        }
    }

    fn rests_for(&self) -> Option<Duration> {
        self.fair.as_ref()?.rests_for(self.egress.get()?)
    }

    fn has_begun_to_rest(&self) -> bool {
        self.fair
            .as_ref()
            .is_some_and(FairQueues::has_begun_to_rest)
    }

    fn last_arrival(&self) -> Option<Arrival> {
        self.last_arrival.get().map(LastArrival::get)
    }
}

/// The meaning of an error of a [`TunQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunErrorKind {
    /// No frame waits to be read, or the queue is full: poll.
    WouldBlock,
    /// The device was deleted. Nothing will ever work on this queue again.
    Gone,
    /// The device is down: the frame is lost, the next one may do.
    Down,
    /// The kernel does not take this frame. If it was coalesced, fall back to single packets.
    Refused,
    /// Anything else, like a signal or memory that was short: the frame is lost.
    Transient,
}

impl TunErrorKind {
    /// Sorts `error`.
    pub fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::AGAIN) => Self::WouldBlock,
            // tun_get(): "the device is not attached"
            Some(Errno::BADFD | Errno::NODEV | Errno::NXIO) => Self::Gone,
            // tun_get_user() answers a write to a device without IFF_UP with EIO.
            Some(Errno::IO) => Self::Down,
            Some(Errno::INVAL | Errno::MSGSIZE | Errno::OPNOTSUPP) => Self::Refused,
            _ => Self::Transient,
        }
    }
}

/// Makes sure that a descriptor of another process is a queue as [`attach`] makes it.
fn check_queue(fd: BorrowedFd<'_>) -> io::Result<()> {
    let device = attached(fd).map_err(|error| context(error, "the descriptor is no TUN device"))?;
    let needed = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if i32::from(device.flags()) & needed != needed {
        let message = "the descriptor is no TUN device with IFF_NO_PI and IFF_VNET_HDR";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}
