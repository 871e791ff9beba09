//! The Linux kernel as the host: real sockets, and netlink for what happens around them.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use adit_io::helper::files::NewPeersFile;
use adit_io::helper::{self, Placed, TunLocation};
use adit_io::tun::Tun;
use adit_io::udp::{self, Udp};
use adit_io::{Offloads, TunQueue};
use adit_netlink::netns::Netns;
use adit_netlink::{Link, Netlink};
use adit_offload::VNET_HDR_LEN;
use adit_offload::lab::{self, Idea};
use adit_proto::Endpoint;
use adit_proto::config::PublicKey;
use rustix::event::Timespec;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::control::memory;
use crate::host::platform::{
    EventSource, PathMtu, Platform, PlatformEvent, RememberedPeers, TunDrops,
};
use crate::host::remembered;
use crate::host::watch::{Changes, Subscription, Topic, Watches};
use crate::outbound::train;
use crate::shared::event::Event;
use crate::shared::sockets::Sockets;

/// How soon a device that nothing can watch is looked at again.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Takes lines of the log that tell how it goes.
pub type VerboseLog = Arc<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// Takes events; it is called on a thread of the engine, which it must not block.
pub type EventListener = Arc<dyn Fn(&Event) + Send + Sync>;

/// A user's decisions about sockets and devices.
#[derive(Clone)]
pub struct Settings {
    /// The offloads that may be used.
    pub offloads: Offloads,
    /// Called with what went wrong where no caller waits for an answer.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
    /// Called with how it goes, line by line; without it nothing of that is even noted.
    pub log_verbose: Option<VerboseLog>,
    /// Called with events, those of [`Interface::listen`] included.
    ///
    /// [`Interface::listen`]: crate::Interface::listen
    pub listener: Option<EventListener>,
    /// Where a process leaves to the next one what its peers have used of their quotas and, if it is
    /// killed, their endpoints.
    pub peers_file: Option<PathBuf>,
    /// The number of this gateway, 0 to 31, if it is one of several that have one key.
    pub gateway_id: Option<u8>,
}

/// Sockets of the network namespace that the process is in, and a TUN device that may be moved to
/// any other.
pub struct LinuxPlatform {
    tun: Arc<Tun>,
    settings: Settings,
    watches: Watches,
    changes: Arc<Changes>,
    /// Routes and addresses where the sockets are.
    routes: Option<Subscription>,
    clones: Option<Subscription>,
    /// For looking up routes, once they change.
    lookups: Option<Netlink>,
    /// Identity of the namespace where the sockets are.
    home: Option<(u64, u64)>,
    /// Identity of where the device is now: another namespace, perhaps.
    netns: Option<(u64, u64)>,
    /// The device there, if this process has the right to tune it.
    namespace: Option<Namespace>,
    last: PlatformEvent,
    /// Says when to look again whether the device, which is up, went down: nothing else does where
    /// this process may not watch it.
    tick: Option<OwnedFd>,
    /// Packets that the TUN had lost when that was last asked.
    lost: TunDrops,
    /// A file for the next process, of which a part is written.
    remembering: Option<NewPeersFile>,
}

/// The device in its namespace.
struct Namespace {
    /// The device's index here.
    index: u32,
    /// Where the sockets are, what tells of changes of the device, and a socket to ask about it. A
    /// socket keeps its namespace alive, so there is none elsewhere: the namespace of a container is
    /// to end with the container, and the device with it. The kernel then says so at the TUN.
    home: Option<(Subscription, Netlink)>,
    /// Nothing is left to be done about what the device drops.
    noqueue: bool,
}

impl LinuxPlatform {
    /// A platform for the device of this TUN, in the namespace of the calling thread. Failures to
    /// watch or tune the device are logged; the engine works without that. All interfaces of a
    /// process share `watches`.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2), as when there are no further descriptors.
    pub fn new(tun: Arc<Tun>, settings: Settings, watches: &Watches) -> io::Result<Self> {
        let changes = Arc::new(Changes::new()?);
        let home = Netns::current_id();
        let routes = home
            .as_ref()
            .map_err(|error| io::Error::new(error.kind(), error.to_string()))
            .and_then(|home| {
                watches.subscribe_with(*home, Topic::Routes, &changes, helper::monitor)
            })
            .inspect_err(|e| (settings.log)(&format!("route changes go unnoticed: {e}")));
        let clones = watches
            .subscribe_to_clones(&changes)
            .inspect_err(|e| (settings.log)(&format!("clones of this machine go unnoticed: {e}")));
        let mut kernel = Self {
            tun,
            settings,
            watches: watches.clone(),
            changes,
            routes: routes.ok(),
            clones: clones.ok(),
            lookups: None,
            home: home.ok(),
            netns: None,
            namespace: None,
            last: PlatformEvent {
                up: false,
                mtu: 1420,
                routes_changed: false,
                rebinds: false,
            },
            tick: None,
            lost: TunDrops::default(),
            remembering: None,
        };
        kernel.follow();
        // What a device lost before it was ours.
        kernel.tun_drops();
        Ok(kernel)
    }

    /// Watches the device in the namespace where it is, and sizes its GSO packets there. Returns what it
    /// is there, if that can be seen.
    fn follow(&mut self) -> Option<Placed> {
        let Ok(TunLocation { netns, link }) = self.tun.place() else {
            return None;
        };
        let stayed = self.netns == Some(netns);
        // A device that was elsewhere and came back may have another index.
        let same = |known: &Namespace| link.is_some_and(|link| link.index == known.index);
        if stayed && self.namespace.as_ref().is_some_and(same) {
            return link;
        }
        let opened = match link {
            Some(link) => self.open(netns, link.index),
            None => Err(io::Error::other(
                "entering its network namespace takes CAP_SYS_ADMIN",
            )),
        };
        if let (Err(e), false) = (&opened, stayed) {
            (self.settings.log)(&format!("the interface is not tuned: {e}"));
        }
        self.namespace = opened.ok();
        self.netns = Some(netns);
        if self.namespace.is_some() {
            // Nobody told what happened before.
            self.changes.add(Changes::LINK);
        }
        self.size_frames();
        link
    }

    /// For looking up routes.
    fn lookups(&mut self) -> Option<&Netlink> {
        if self.lookups.is_none() {
            self.lookups = helper::netlink().ok();
        }
        self.lookups.as_ref()
    }

    fn open(&self, netns: (u64, u64), index: u32) -> io::Result<Namespace> {
        let (topic, changes) = (Topic::Link(index), &self.changes);
        let home = match self.home == Some(netns) {
            true => {
                let link = (self.watches).subscribe_with(netns, topic, changes, helper::monitor)?;
                Some((link, helper::netlink()?))
            }
            false => None,
        };
        Ok(Namespace {
            index,
            home,
            noqueue: false,
        })
    }

    /// Whether something tells of changes of the device.
    fn is_watched(&self) -> bool {
        let namespace = self.namespace.as_ref();
        namespace.is_some_and(|namespace| namespace.home.is_some())
    }

    /// The device, if it is where the sockets are. No helper is asked.
    fn link_at_home(&self) -> Option<Link> {
        let namespace = self.namespace.as_ref()?;
        let (_, netlink) = namespace.home.as_ref()?;
        netlink.link_by_index(namespace.index).ok()
    }

    /// Packets that the device has dropped since its queue was full, as its namespace has it.
    fn tx_dropped(&self) -> Option<u64> {
        let dropped = |link: Link| link.tx_dropped;
        let elsewhere = || Some(self.tun.place().ok()?.link?.tx_dropped);
        self.link_at_home().map(dropped).or_else(elsewhere)
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
        if self.namespace.is_none() {
            return;
        }
        let mtu = self.last.mtu;
        let segments = train::packets_per_train(mtu);
        // 52 bytes of IPv4 and TCP headers with timestamps: the usual segment.
        let size = match u32::try_from(segments * mtu.saturating_sub(52) + 400) {
            Ok(size) if !self.tun.offloads().tun_tunnel && !lab::without(Idea::SizedFrames) => {
                size.min(65_536)
            }
            _ => 65_536,
        };
        if let Err(e) = self.tun.set_frame_size(size) {
            (self.settings.log)(&format!("GSO packets keep their size: {e}"));
        }
    }
}

impl Platform for LinuxPlatform {
    type Socket = Udp;

    fn bind(&self, port: u16, fwmark: u32) -> io::Result<Sockets<Udp>> {
        let offloads = self.settings.offloads;
        let (v4, v6, port) = udp::bind_pair(port, fwmark, offloads)?;
        Ok(Sockets::new(v4, v6, port))
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
        let changes = std::iter::once(self.changes.as_fd());
        let readable = changes.chain(self.tick.as_ref().map(AsFd::as_fd));
        let readable = readable.map(|fd| (fd, EventFlags::IN));
        // A device that comes up becomes writable, in whatever namespace it is.
        let down = (!self.last.up).then(|| self.tun.as_fd());
        readable
            .chain(down.map(|fd| (fd, EventFlags::OUT)))
            .collect()
    }

    fn sources(&self) -> Vec<Arc<dyn EventSource>> {
        let home = self.namespace.as_ref().and_then(|it| it.home.as_ref());
        let link = home.map(|(link, _)| link);
        let all = [self.routes.as_ref(), self.clones.as_ref(), link];
        let all = all.into_iter().flatten();
        all.map(Subscription::source).collect()
    }

    fn handle_events(&mut self) -> io::Result<PlatformEvent> {
        let changes = self.changes.take(Changes::LINK | Changes::ROUTES);
        let routes_changed = changes & Changes::ROUTES != 0;
        // A change of routes wakes every interface, and says nothing about the devices.
        let watched = self.last.up && self.is_watched();
        if watched && changes & Changes::LINK == 0 {
            return Ok(PlatformEvent {
                routes_changed,
                ..self.last
            });
        }
        let found = self.follow();
        let before = self.last.mtu;
        let at_home = self.link_at_home().map(|link| link.mtu);
        let mtu = at_home.or(found.map(|link| link.mtu));
        let up = match self.tun.is_up() {
            // The device was deleted. Shards that leave the TUN alone, since their socket is full,
            // do not hear of it.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::BADFD) => return Err(e),
            up => up.unwrap_or(self.last.up),
        };
        self.last = PlatformEvent {
            up,
            mtu: mtu.map_or(before, |mtu| mtu as usize),
            routes_changed,
            rebinds: false,
        };
        if self.last.mtu != before {
            self.size_frames();
        }
        let unwatched = up && !self.is_watched();
        self.tick = unwatched.then(tick).and_then(Result::ok);
        Ok(self.last)
    }

    fn was_cloned(&mut self) -> bool {
        self.changes.take(Changes::CLONES) != 0
    }

    fn source_is_stale(&mut self, to: Endpoint, fwmark: u32) -> bool {
        let Some(source) = to.src else { return false };
        let Some(netlink) = self.lookups() else {
            return false;
        };
        // No route from that address, or one through another interface.
        netlink
            .route_get(to.addr.ip(), Some(source.ip), fwmark, None)
            .map_or(true, |route| {
                source.ifindex != 0 && route.oif != source.ifindex
            })
    }

    fn ignore_icmp(&self, socket: &Udp, ignore: bool) -> io::Result<()> {
        socket.ignore_icmp(ignore)
    }

    fn path_mtu(&mut self, to: Endpoint, fwmark: u32) -> Option<PathMtu> {
        let source = to.src.map(|source| source.ip);
        let netlink = self.lookups()?;
        let path = netlink.route_get(to.addr.ip(), source, fwmark, None).ok()?;
        let device = netlink.link_by_index(path.oif).ok()?.mtu;
        let by_route = path.mtu.filter(|_| path.learned.is_none());
        Some(PathMtu {
            takes: by_route.map_or(device, |mtu| mtu.min(device)),
            device,
            learned: path.mtu.zip(path.learned),
        })
    }

    fn resumed(&mut self, sockets: &Sockets<Udp>) {
        self.tun.follow_arrivals();
        Udp::set_filters(sockets.all().map(|it| it.socket));
    }

    fn tun_is_behind(&mut self) {
        if self.namespace.as_ref().is_none_or(|it| it.noqueue) {
            return;
        }
        // Changing the qdisc loses what is sent meanwhile: not before the queue has overflowed.
        if self.tx_dropped().is_none_or(|dropped| dropped == 0) {
            return;
        }
        if let Err(e) = self.tun.set_noqueue() {
            (self.settings.log)(&format!("what a full interface drops is lost: {e}"));
        }
        if let Some(namespace) = &mut self.namespace {
            namespace.noqueue = true;
        }
    }

    fn probes_paths(&self) -> bool {
        true
    }

    fn deliver(&self, packet: &[u8]) {
        let header = [0; VNET_HDR_LEN];
        let _ = self
            .tun
            .write(&[IoSlice::new(&header), IoSlice::new(packet)]);
    }

    fn tun_drops(&mut self) -> TunDrops {
        let before = self.lost;
        // The device's own number goes where the device goes, and never back.
        let full = self.tx_dropped().unwrap_or(before.full);
        self.lost = TunDrops {
            full: full.max(before.full),
            limit: self.tun.lost_to_limit(),
        };
        TunDrops {
            full: self.lost.full - before.full,
            limit: self.lost.limit - before.limit,
        }
    }

    fn remembered(&mut self) -> RememberedPeers {
        let path = self.settings.peers_file.as_deref();
        path.map(remembered::load).unwrap_or_default()
    }

    fn remember(&mut self, some: &RememberedPeers, is_last: bool) -> bool {
        let Some(path) = &self.settings.peers_file else {
            return true;
        };
        let begun = self.remembering.take();
        let file = begun.map_or_else(|| remembered::begin(path), Ok);
        let stored = file.and_then(|mut file| {
            remembered::write(&mut file, some)?;
            match is_last {
                true => file.keep(),
                false => {
                    self.remembering = Some(file);
                    Ok(())
                }
            }
        });
        if let Err(error) = &stored {
            let path = path.display();
            self.log_verbose(format_args!(
                "cannot keep endpoints and used quotas in {path}: {error}"
            ));
        }
        stored.is_ok()
    }

    fn ended(&self, used: Vec<(PublicKey, u64)>) {
        if let Some(path) = &self.settings.peers_file {
            // Often there is nothing to remove.
            let _ = remembered::leave(path, used);
        }
    }

    fn memory_left(&self) -> Option<u64> {
        memory::left()
    }

    fn log_error(&self, message: &str) {
        (self.settings.log)(message);
    }

    fn gateway_id(&self) -> Option<u8> {
        self.settings.gateway_id
    }

    fn is_verbose(&self) -> bool {
        self.settings.log_verbose.is_some()
    }

    fn log_verbose(&self, line: fmt::Arguments<'_>) {
        if let Some(log) = &self.settings.log_verbose {
            log(line);
        }
    }

    fn tell(&self, event: &Event) {
        if let Some(listener) = &self.settings.listener {
            listener(event);
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

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
