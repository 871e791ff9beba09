//! The control thread: handshakes, timers and configuration. It never touches a data packet but
//! keepalives.

mod commands;
mod hand_over;
mod handshakes;
pub(crate) mod memory;
mod probes;
mod remember;
mod sockets;
mod strangers;
pub(crate) mod thread;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use adit_proto::config::{DeviceStatus, PublicKey};
use adit_proto::{Device, DropReason, Peer, PeerEvent, Time, Transaction};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::control::remember::Remember;
use crate::control::strangers::StrangerLimit;
use crate::host::platform::{Platform, RememberedPeers, TunDrops};
use crate::shared::common::{Common, EndGuard};
use crate::shared::error::CommandError;
use crate::shared::mailbox::{AllowanceChange, ControlCommand, GivenAllowance, SetAnswer};
use crate::shared::sockets::{RxQueueSocket, Sockets};
use crate::shared::state::InterfaceState;
use crate::thread::clock;
use crate::thread::poll::wait;

/// How often to ask again, at most, which way each peer is reached. Routers learn of hundreds of
/// routes a second.
const LOOK_AT_PATHS: Duration = Duration::from_millis(250);
/// How often it is asked after a change: the kernel tells of some changes before it makes them.
const LOOKS: u8 = 2;
/// Events of peers that are handled in a turn.
const EVENTS_BATCH: usize = 1024;
/// Paths that are looked at before handshakes are answered again: each may be a question to the
/// kernel, of some 10 µs.
const PATHS_BATCH: usize = 64;
/// Paths that are forgotten in a turn, which asks nothing.
const FORGET_BATCH: usize = 1024;

// What woke the thread for an interface.
const WAKER: u64 = 0;
const TIMER: u64 = 1;
const HOST: u64 = 2;

/// The control thread's state of one interface: the protocol and what connects it to the host.
pub(crate) struct InterfaceControl<H: Platform> {
    device: Device,
    platform: H,
    common: Arc<Common<H::Socket>>,
    /// The port that `set` asked for: 0 for any. Shards know the actual one.
    listen_port: u16,
    /// The port last bound: one that the kernel chose is asked for again.
    bound_port: u16,
    /// The port last left, and when: shards may still have its sockets open.
    left: Option<(u16, Time)>,
    /// When to try again to bind it.
    rebind_at: Option<Time>,
    /// The log says that it cannot be bound.
    told_of_port: bool,
    /// When to go on with a change whose port our own shards are about to close.
    set_at: Option<Time>,
    remember: Remember,
    /// When to look at the paths to peers, since routes changed, and when that was done last.
    paths_at: Option<Time>,
    paths_seen: Time,
    /// How often to look at them.
    looks: u8,
    /// While they are looked at, the receiver index to go on with.
    paths_from: Option<u32>,
    /// All of them are wrong, whatever the kernel says.
    forget_paths: bool,
    /// Until when the sockets of IPv4 and of IPv6 ignore what ICMP says of paths.
    ignores_icmp: [Option<Time>; 2],
    /// Probes that wait, and until when others do not leave.
    probes: VecDeque<PeerEvent>,
    probes_from: Time,
    strangers: StrangerLimit,
    /// Peers whose events are to be handled.
    events: VecDeque<Arc<Peer>>,
    /// Commands that wait for the one that is being executed.
    commands: VecDeque<ControlCommand>,
    executing: Option<Executing>,
    fwmark: u32,
    up: bool,
    /// Counts the time for which the machine is suspended, as that of epoll_wait(2) does not.
    timer: OwnedFd,
    /// Readable when the interface is to have a turn.
    wakeups: OwnedFd,
    /// The thread does not watch that yet.
    is_unwatched: bool,
    /// Another process has what this one had, or is to give it: nothing happens until it resumes.
    is_paused: bool,
    _end_guard: EndGuard<H::Socket>,
}

impl<H: Platform> InterfaceControl<H> {
    pub(crate) fn new(
        mut device: Device,
        mut platform: H,
        common: Arc<Common<H::Socket>>,
    ) -> io::Result<Self> {
        device.went_down();
        let RememberedPeers { endpoints, used } = platform.remembered();
        let count = endpoints.len();
        device.remember(endpoints);
        device.remember_used(used.iter().copied());
        let mut control = Self::of(device, platform, common, &InterfaceState::default())?;
        control.remember.found(count, used);
        Ok(control)
    }

    /// Goes on with an interface of another process, once it [resumes](crate::shared::mailbox::Resume).
    pub(crate) fn take_over(
        device: Device,
        platform: H,
        common: Arc<Common<H::Socket>>,
        state: &InterfaceState,
    ) -> io::Result<Self> {
        let mut control = Self::of(device, platform, common, state)?;
        control.is_paused = true;
        Ok(control)
    }

    fn of(
        mut device: Device,
        platform: H,
        common: Arc<Common<H::Socket>>,
        state: &InterfaceState,
    ) -> io::Result<Self> {
        device.set_gateway_id(platform.gateway_id());
        Ok(Self {
            device,
            platform,
            listen_port: state.listen_port,
            bound_port: state.bound_port,
            left: None,
            rebind_at: None,
            told_of_port: false,
            set_at: None,
            remember: Remember::default(),
            paths_at: None,
            paths_seen: Time::default(),
            looks: 0,
            paths_from: None,
            forget_paths: false,
            ignores_icmp: [None; 2],
            probes: VecDeque::new(),
            probes_from: Time::default(),
            strangers: StrangerLimit::default(),
            events: VecDeque::new(),
            commands: VecDeque::new(),
            executing: None,
            fwmark: state.fwmark,
            up: state.up,
            timer: timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?,
            wakeups: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            is_unwatched: true,
            is_paused: false,
            _end_guard: EndGuard::new(&common),
            common,
        })
    }

    /// Its turn: does what is due, and returns whether more is. Errors are the interface's and
    /// final.
    fn turn(&mut self) -> io::Result<bool> {
        if self.is_paused {
            return self.pauses();
        }
        self.take_wakeups()?;
        let (events, commands, behind) = self.common.control.take_all();
        if behind {
            self.platform.tun_is_behind();
        }
        for packet in self.common.control.take_answers() {
            self.platform.deliver(&packet);
        }
        let now = clock::now();
        self.events.extend(events);
        for peer in take_some(&mut self.events, EVENTS_BATCH) {
            self.device.handle_event(now, clock::wall(), &peer);
        }
        self.commands.extend(commands);
        self.execute(now);
        if self.is_paused {
            return Ok(true);
        }
        self.handshakes();
        let now = clock::now();
        if self.device.next_deadline().is_some_and(|at| at <= now) {
            self.device.handle_timeout(now, clock::wall());
        }
        if self.rebind_at.is_some_and(|at| at <= now) {
            self.come_up();
        }
        self.obey_icmp(now);
        self.look_at_paths(now);
        let store = |some: &_, is_last| self.platform.remember(some, is_last);
        self.remember.keep(now, &mut self.device, store);
        self.put_out();
        self.tell();
        self.set_timer()?;
        let executes = self.executing.is_some() || !self.commands.is_empty();
        let is_busy = self.paths_from.is_some()
            || self.remember.is_busy()
            || !self.events.is_empty()
            || executes && self.set_at.is_none();
        Ok(is_busy || !self.common.control.is_empty())
    }

    fn count_tun_drops(&mut self) {
        let TunDrops { full, limit } = self.platform.tun_drops();
        let drops = &self.common.queues.drops;
        drops.count(DropReason::TunFull, full);
        drops.count(DropReason::TunLimit, limit);
    }

    /// Has the timer wake the thread when something is due.
    fn set_timer(&self) -> io::Result<()> {
        let due = self.device.next_deadline().into_iter();
        // 0 is never.
        let due = due
            .chain(self.rebind_at)
            .chain(self.set_at)
            .chain(self.remember.deadline())
            .chain(self.paths_at)
            .chain(self.ignores_icmp.into_iter().flatten())
            .chain((!self.probes.is_empty()).then_some(self.probes_from))
            .chain(self.common.log.deadline())
            .min()
            .map_or(0, |at| at.0.max(1));
        let due = Duration::from_nanos(due);
        let due = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(due.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: due.subsec_nanos().into(),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &due)?;
        Ok(())
    }

    /// The number of the interface: that of its first queues.
    fn number(&self) -> u32 {
        self.common.queues.number
    }

    /// Collects what may wake the thread for this interface.
    fn watch(&mut self) -> io::Result<()> {
        // Anew, since the platform's descriptors change: those that were closed cannot be deleted.
        self.wakeups = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        self.is_unwatched = true;
        let add = |fd: BorrowedFd<'_>, wakeup, flags| {
            epoll::add(&self.wakeups, fd, EventData::new_u64(wakeup), flags)
        };
        add(self.common.control.waker.as_fd(), WAKER, EventFlags::IN)?;
        add(self.timer.as_fd(), TIMER, EventFlags::IN)?;
        for (fd, flags) in self.platform.events() {
            add(fd, HOST, flags)?;
        }
        Ok(())
    }

    /// Takes what woke the thread for this interface.
    fn take_wakeups(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(8);
        wait(&self.wakeups, &mut events, Some(Duration::ZERO))?;
        let has = |wakeup| events.iter().any(|event| event.data.u64() == wakeup);
        if has(WAKER) {
            self.common.control.waker.clear();
        }
        // Before anything else: shards still send with the old sessions.
        if has(HOST) && self.platform.was_cloned() {
            self.device.was_cloned(clock::now());
            let message =
                "this machine was cloned or reset to a snapshot: all sessions are replaced";
            self.platform.log_error(message);
        }
        if has(HOST) {
            self.host_changed()?;
        }
        Ok(())
    }

    /// Has [`Self::look_at_paths`] ask which way each peer is reached.
    fn look_at_paths_soon(&mut self) {
        let at = self.paths_seen + LOOK_AT_PATHS;
        self.paths_at.get_or_insert(at);
        self.looks = LOOKS;
    }

    /// Routes changed: the cached paths to peers may be wrong. They are checked a few at a time,
    /// because handshakes wait meanwhile. If routes change again, every peer is checked before the
    /// first one is checked again. Only a peer with a session has such a path.
    fn look_at_paths(&mut self, now: Time) {
        if self.paths_from.is_none() && self.paths_at.is_some_and(|at| at <= now) {
            (self.paths_seen, self.paths_from) = (now, Some(0));
            self.looks = self.looks.saturating_sub(1);
            self.paths_at = (self.looks > 0).then_some(now + LOOK_AT_PATHS);
            for RxQueueSocket { socket, .. } in self.common.queues.sockets.load().all() {
                self.platform.forget_paths(socket);
            }
        }
        let Some(from) = self.paths_from.take() else {
            return;
        };
        let batch = match self.forget_paths {
            true => FORGET_BATCH,
            false => PATHS_BATCH,
        };
        let mut peers = self.device.peers_in_use_from(from);
        let some = peers.by_ref().take(batch);
        let some: Vec<Arc<Peer>> = some.map(|(_, peer)| Arc::clone(peer)).collect();
        self.paths_from = peers.next().map(|(index, _)| index);
        drop(peers);
        for peer in some {
            self.look_at_path(now, &peer);
        }
        self.forget_paths &= self.paths_from.is_some();
    }

    /// Has a peer's packets leave from an address that fits the routes. Packets that still arrive at
    /// the old address do not bring it back, until it fits again.
    fn look_at_path(&mut self, now: Time, peer: &Peer) {
        if self.forget_paths {
            peer.source_fits();
            peer.clear_source();
            return self.device.path_changed(now, peer);
        }
        let mut is_stale = |to| self.platform.source_is_stale(to, self.fwmark);
        if peer.avoided().is_some_and(|avoided| !is_stale(avoided)) {
            peer.source_fits();
        }
        if let Some(to) = peer.endpoint().filter(|to| is_stale(*to)) {
            peer.avoid_source(to);
            self.device.path_changed(now, peer);
        }
    }
}

/// A command of which a part is done.
enum Executing {
    Set(Box<Setting>),
    Get(Box<Getting>),
    Allow(Box<Allowing>),
}

struct Setting {
    transaction: Transaction,
    /// Its sockets are bound.
    has_sockets: bool,
    answer: SyncSender<SetAnswer>,
}

struct Getting {
    status: DeviceStatus,
    /// The id of the peer to go on with.
    next: u32,
    answer: SyncSender<Result<DeviceStatus, CommandError>>,
}

struct Allowing {
    given: Vec<GivenAllowance>,
    /// The next of them.
    next: usize,
    /// Peers that are not among those may do everything: their keys, and the id to go on with.
    others: Option<(BTreeSet<PublicKey>, u32)>,
    changed: Vec<AllowanceChange>,
    answer: SyncSender<Vec<AllowanceChange>>,
}

/// At most so many from the front.
fn take_some<T>(queue: &mut VecDeque<T>, count: usize) -> Vec<T> {
    queue.drain(..queue.len().min(count)).collect()
}

impl<H: Platform> Drop for InterfaceControl<H> {
    fn drop(&mut self) {
        // After the end of the engine, its port is free.
        self.publish(Sockets::unbound());
        self.common.control.close();
        if !self.is_paused {
            self.platform.ended(self.device.used());
        }
    }
}
