//! The Linux kernel as the host: real sockets, and netlink for what happens around them.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use adit_io::tun::Tun;
use adit_io::udp::{self, Udp};
use adit_io::{Offloads, TunQueue};
use adit_netlink::netns::Netns;
use adit_netlink::{CloneMonitor, Event, LinkChange, Monitor, Netlink};
use adit_proto::Endpoint;
use rustix::event::Timespec;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::common::Sockets;
use crate::platform::{Platform, PlatformEvent, TunDrops};
use crate::train;

/// How soon a device that nothing can watch is looked at again.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Takes lines of the log that tell how it goes.
pub type VerboseLog = Arc<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// What a user decides about sockets and devices.
#[derive(Clone)]
pub struct Settings {
    /// The offloads that may be used.
    pub offloads: Offloads,
    /// Called with what went wrong where no caller waits for an answer.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
    /// Called with how it goes, line by line; without it nothing of that is even noted.
    pub log_verbose: Option<VerboseLog>,
}

/// Sockets of the network namespace that the process is in, and a TUN device that may be moved to
/// any other.
pub struct Kernel {
    tun: Arc<Tun>,
    settings: Settings,
    /// Routes and addresses where the sockets are.
    routes: Option<Monitor>,
    clones: Option<CloneMonitor>,
    /// For looking up routes, once they change.
    lookups: Option<Netlink>,
    /// Where the device is now: another namespace, perhaps.
    netns: Option<Netns>,
    /// Sockets to tune it there, with the right to.
    namespace: Option<Namespace>,
    last: PlatformEvent,
    /// Says when to look again whether the device, which is up, went down: nothing else does where
    /// this process may not watch it.
    tick: Option<OwnedFd>,
    /// What the TUN had lost when that was last asked.
    lost: TunDrops,
}

/// Sockets to watch and change the device, in its namespace.
struct Namespace {
    monitor: Monitor,
    netlink: Netlink,
    /// Nothing is left to be done about what the device drops.
    noqueue: bool,
}

impl Namespace {
    fn open(netns: &Netns) -> io::Result<Self> {
        Ok(Self {
            monitor: Monitor::open_in(netns)?,
            netlink: Netlink::open_in(netns)?,
            noqueue: false,
        })
    }
}

impl Kernel {
    /// A platform for the device of this TUN, in the namespace of the calling thread. Failures to
    /// watch or tune the device are logged; the engine works without that.
    pub fn new(tun: Arc<Tun>, settings: Settings) -> Self {
        let routes = Monitor::open()
            .inspect_err(|e| (settings.log)(&format!("route changes go unnoticed: {e}")));
        let clones = CloneMonitor::open()
            .inspect_err(|e| (settings.log)(&format!("clones of this machine go unnoticed: {e}")));
        let mut kernel = Self {
            tun,
            settings,
            routes: routes.ok(),
            clones: clones.ok(),
            lookups: None,
            netns: None,
            namespace: None,
            last: PlatformEvent {
                up: false,
                mtu: 1420,
                routes_changed: false,
            },
            tick: None,
            lost: TunDrops::default(),
        };
        kernel.follow();
        // What a device lost before it was ours.
        kernel.tun_drops();
        kernel
    }

    /// Watches the device in the namespace where it is, and sizes its GSO packets there.
    fn follow(&mut self) {
        let Ok(netns) = self.tun.netns() else { return };
        let same = |last: &Netns| last.is(&netns).unwrap_or(false);
        let stayed = self.netns.as_ref().is_some_and(same);
        if stayed && self.namespace.is_some() {
            return;
        }
        let opened = Namespace::open(&netns);
        if let (Err(e), false) = (&opened, stayed) {
            (self.settings.log)(&format!("the interface is not tuned: {e}"));
        }
        self.namespace = opened.ok();
        self.netns = Some(netns);
        self.size_frames();
    }

    /// Has the kernel make TCP GSO packets that fit one train, instead of one and a stub (9.2 → 11
    /// Gb/s).
    ///
    /// The kernel subtracts 321 bytes of headers from the limit and fills the rest with whole
    /// segments. GSO packets in a UDP tunnel are sized by the device that makes them, and UDP GSO
    /// packets by their application; the kernel cuts those that are longer than the TUN's limit
    /// before the TUN. So the limit is as high as possible where there may be UDP tunnels (VXLAN:
    /// 8.0 instead of 3.7 Gb/s, trains of 47 datagrams: 10.2 instead of 5.5; plain TCP is as fast,
    /// for up to 2 % more CPU).
    fn size_frames(&self) {
        let Some(namespace) = &self.namespace else {
            return;
        };
        let mtu = self.last.mtu;
        let segments = train::packets_per_train(mtu);
        // 52 bytes of IPv4 and TCP headers with timestamps: the usual segment.
        let size = match u32::try_from(segments * mtu.saturating_sub(52) + 400) {
            Ok(size) if !self.tun.offloads().tun_tunnel => size.min(65_536),
            _ => 65_536,
        };
        let change = LinkChange {
            gso_max_size: Some(size),
            ..LinkChange::default()
        };
        let sized = self
            .tun
            .ifindex()
            .and_then(|index| Ok(namespace.netlink.set_link(index, &change)?));
        if let Err(e) = sized {
            (self.settings.log)(&format!("GSO packets keep their size: {e}"));
        }
    }
}

impl Platform for Kernel {
    type Socket = Udp;

    fn bind(&self, port: u16, fwmark: u32, shards: usize) -> io::Result<Vec<Sockets<Udp>>> {
        let (pairs, port) = udp::bind_group(port, fwmark, self.settings.offloads, shards)?;
        Ok(pairs
            .into_iter()
            .map(|pair| Sockets {
                v4: pair.v4,
                v6: pair.v6,
                port,
            })
            .collect())
    }

    fn set_mark(&self, socket: &Udp, fwmark: u32) -> io::Result<()> {
        socket.set_mark(fwmark)
    }

    fn offloads(&self, socket: &Udp) -> Offloads {
        Offloads {
            udp_gso: socket.gso(),
            udp_gro: socket.gro(),
            ..self.settings.offloads
        }
    }

    fn forget_paths(&self, socket: &Udp) {
        socket.clear_gso_fallbacks();
    }

    fn events(&self) -> Vec<(BorrowedFd<'_>, EventFlags)> {
        let link = self.namespace.as_ref().map(|namespace| &namespace.monitor);
        let monitors = self.routes.iter().chain(link).map(Monitor::fd);
        let readable = monitors.chain(self.tick.as_ref().map(AsFd::as_fd));
        let readable = readable.map(|fd| (fd, EventFlags::IN));
        // A device that comes up becomes writable, in whatever namespace it is.
        let down = (!self.last.up).then(|| self.tun.fd());
        readable
            .chain(down.map(|fd| (fd, EventFlags::OUT)))
            .collect()
    }

    fn handle_events(&mut self) -> io::Result<PlatformEvent> {
        let routes_changed = self.routes.as_mut().is_some_and(drain);
        if let Some(namespace) = &mut self.namespace {
            drain(&mut namespace.monitor);
        }
        self.follow();
        let before = self.last.mtu;
        let up = match self.tun.is_up() {
            // The device was deleted. Shards that leave the TUN alone, since their socket is full,
            // do not hear of it.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::BADFD) => return Err(e),
            up => up.unwrap_or(self.last.up),
        };
        self.last = PlatformEvent {
            up,
            mtu: self.tun.mtu().map_or(self.last.mtu, |mtu| mtu as usize),
            routes_changed,
        };
        if self.last.mtu != before {
            self.size_frames();
        }
        let unwatched = up && self.namespace.is_none();
        self.tick = unwatched.then(tick).and_then(Result::ok);
        Ok(self.last)
    }

    fn clones(&self) -> Vec<BorrowedFd<'_>> {
        self.clones.iter().flat_map(CloneMonitor::fds).collect()
    }

    fn was_cloned(&mut self) -> bool {
        self.clones.as_mut().is_some_and(CloneMonitor::was_cloned)
    }

    fn source_is_stale(&mut self, to: Endpoint, fwmark: u32) -> bool {
        let Some(source) = to.src else { return false };
        if self.lookups.is_none() {
            self.lookups = Netlink::open().ok();
        }
        let Some(netlink) = &self.lookups else {
            return false;
        };
        // No route from that address, or one through another interface.
        netlink
            .route_get(to.addr.ip(), Some(source.ip), fwmark, None)
            .map_or(true, |route| {
                source.ifindex != 0 && route.oif != source.ifindex
            })
    }

    fn tun_is_behind(&mut self) {
        let Some(namespace) = self
            .namespace
            .as_mut()
            .filter(|namespace| !namespace.noqueue)
        else {
            return;
        };
        let done = self.tun.ifindex().and_then(|index| {
            // Changing the qdisc loses what is sent meanwhile: not before the queue has overflowed.
            let full = namespace.netlink.link_by_index(index)?.tx_dropped > 0;
            if full {
                namespace.netlink.set_noqueue(index)?;
            }
            Ok(full)
        });
        namespace.noqueue = done.unwrap_or_else(|e| {
            (self.settings.log)(&format!("what a full interface drops is lost: {e}"));
            true
        });
    }

    fn tun_drops(&mut self) -> TunDrops {
        let before = self.lost;
        let link = self.namespace.as_ref().and_then(|namespace| {
            let index = self.tun.ifindex().ok()?;
            namespace.netlink.link_by_index(index).ok()
        });
        // The device's own number goes where the device goes, and never back.
        let full = link.map_or(before.full, |link| link.tx_dropped);
        self.lost = TunDrops {
            full: full.max(before.full),
            limit: self.tun.lost_to_limit(),
        };
        TunDrops {
            full: self.lost.full - before.full,
            limit: self.lost.limit - before.limit,
        }
    }

    fn log_error(&self, message: &str) {
        (self.settings.log)(message);
    }

    fn is_verbose(&self) -> bool {
        self.settings.log_verbose.is_some()
    }

    fn log_verbose(&self, line: fmt::Arguments<'_>) {
        if let Some(log) = &self.settings.log_verbose {
            log(line);
        }
    }
}

/// A timer that goes off once.
fn tick() -> io::Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let once = Itimerspec {
        it_interval: Timespec::default(),
        it_value: LOOK_AGAIN,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(timer)
}

/// Takes everything that happened; whether it concerned routing or addresses.
fn drain(monitor: &mut Monitor) -> bool {
    let mut routing = false;
    while let Ok(Some(event)) = monitor.next_event() {
        routing |= !matches!(event, Event::Link(_));
    }
    routing
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
