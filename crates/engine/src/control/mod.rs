//! The control thread: handshakes, timers and configuration. It never touches a data packet but
//! keepalives.

pub(crate) mod memory;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use adit_aead::{SealJob, TAG_LEN};
use adit_io::udp::IcmpKind;
use adit_io::{Cut, Offloads, SendReport, Transmit, UdpSocket};
use adit_proto::config::{DeviceChange, DeviceStatus};
use adit_proto::limits::REKEY_ATTEMPT_TIME;
use adit_proto::wire::{DataHeader, INITIATION_LEN, RESPONSE_LEN, padded_len};
use adit_proto::{
    Device, DropReason, Endpoint, HandshakeKind, Output, Peer, PeerEvent, Session, Time,
    Transaction,
};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::hand_over::{InterfaceState, RECORDS};
use crate::host::platform::{Platform, PlatformEvent, Source, TunDrops};
use crate::outbound::train::OVERHEAD;
use crate::shared::common::{Common, LaneSocket, Part, ShardCommand, Sockets};
use crate::shared::error::CommandError;
use crate::shared::event::Event;
use crate::shared::inbox::{Command, Exported, OfControl, Resume, SetAnswer};
use crate::shared::journal::{Incident, Line};
use crate::thread::arrivals::Arrivals;
use crate::thread::clock;
use crate::thread::contain::contain;
use crate::thread::poll::{overwrite_stack, wait, with_priority};
use crate::thread::wake::Waker;

/// How long shards may take to close a socket, and how often to try to bind its port meanwhile. Other
/// interfaces have their turns in between.
const RELEASE: Duration = Duration::from_secs(1);
const RELEASE_POLL: Duration = Duration::from_millis(1);
/// How often to try to bind a port that is in use.
const REBIND: Duration = Duration::from_secs(1);
/// How often to keep the endpoints of peers for the next process, at most.
const REMEMBER: Duration = Duration::from_secs(1);
/// How often to ask again, at most, which way each peer is reached. Routers learn of hundreds of
/// routes a second.
const LOOK_AT_PATHS: Duration = Duration::from_millis(250);
/// How often it is asked after a change: the kernel tells of some changes before it makes them.
const LOOKS: u8 = 2;
/// How often probes of paths leave, at most: for those that leave together a socket is opened, and
/// that takes longer than all else about them.
const PROBES_EVERY: Duration = Duration::from_millis(10);
/// Peers whose probes leave together, at most.
const PROBES_BATCH: usize = 256;
/// Peers whose probes wait, at most: those that leave within a second. After that the protocol asks
/// for new ones.
const PROBES_WAITING: usize = 100 * PROBES_BATCH;
/// For how long ICMP is ignored at a time, at most: as long as Linux believes it by default.
const ICMP_IGNORED: Duration = Duration::from_secs(600);
/// Handshake messages between two looks at timers and commands.
const HANDSHAKE_BATCH: usize = 32;
/// Events of peers that are handled in a turn.
const EVENTS_BATCH: usize = 1024;
/// Peers whose status is read in a turn.
const STATUS_BATCH: usize = 1024;
/// Peers among which the one is looked for that an ICMP error is about.
const PEERS_SEARCHED: usize = 10_000;
/// Paths that are looked at before handshakes are answered again: each may be a question to the
/// kernel, of some 10 µs.
const PATHS_BATCH: usize = 64;
/// Paths that are forgotten in a turn, which asks nothing.
const FORGET_BATCH: usize = 1024;
/// Interfaces that get a turn before any gets its next one.
const MAX_TURNS: usize = 64;

// What woke the thread for an interface.
const WAKER: u64 = 0;
const TIMER: u64 = 1;
const HOST: u64 = 2;

/// What others leave for the control thread.
pub(crate) struct ControlInbox<H: Platform> {
    waker: Waker,
    /// Interfaces that it is to control.
    arrivals: Arrivals<Control<H>>,
    stopping: AtomicBool,
}

impl<H: Platform> ControlInbox<H> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            arrivals: Arrivals::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Leaves an interface for the thread.
    pub(crate) fn leave(&self, control: Control<H>) {
        self.arrivals.leave(control);
        self.waker.wake();
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// The control thread. Each interface that has something to be done gets a turn, and a turn is
/// bounded, so that no interface keeps the others waiting.
pub(crate) struct ControlThread<H: Platform> {
    inbox: Arc<ControlInbox<H>>,
    /// Readable when an interface is to have a turn.
    epoll: OwnedFd,
    interfaces: HashMap<u32, Control<H>>,
    /// The numbers of those whose last turn ended before all was done.
    busy: Vec<u32>,
    /// What several interfaces have in common, by their tokens.
    sources: BTreeMap<u64, Arc<dyn Source>>,
}

/// Events have the number of an interface, the token of a source, or this: the thread's waker.
const THREAD_WAKER: u64 = u64::MAX;
/// Below the tokens of sources, above the numbers of interfaces.
const FIRST_SOURCE: u64 = 1 << 32;

impl<H: Platform> ControlThread<H> {
    pub(crate) fn new(inbox: Arc<ControlInbox<H>>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(THREAD_WAKER);
        epoll::add(&epoll, &inbox.waker, data, EventFlags::IN)?;
        Ok(Self {
            inbox,
            epoll,
            interfaces: HashMap::new(),
            busy: Vec::new(),
            sources: BTreeMap::new(),
        })
    }

    /// Runs until it is asked to end.
    pub(crate) fn run(mut self) -> io::Result<()> {
        adit_sandbox::confine(adit_sandbox::Role::Control)?;
        let mut events = Vec::with_capacity(MAX_TURNS);
        while !self.inbox.stopping.load(Ordering::Acquire) {
            let timeout = (!self.busy.is_empty()).then_some(Duration::ZERO);
            wait(&self.epoll, &mut events, timeout)?;
            let mut round = std::mem::take(&mut self.busy);
            for event in &events {
                let token = event.data.u64();
                if token == THREAD_WAKER {
                    self.take_arrivals(&mut round);
                } else if let Some(source) = self.sources.get(&token) {
                    // The interfaces concerned have their turn in the next round.
                    source.take();
                } else if let Ok(number) = u32::try_from(token)
                    && !round.contains(&number)
                {
                    round.push(number);
                }
            }
            for number in round {
                self.turn(number);
            }
        }
        Ok(())
    }

    fn take_arrivals(&mut self, round: &mut Vec<u32>) {
        self.inbox.waker.clear();
        for mut control in self.inbox.arrivals.take() {
            let number = control.number();
            match contain(|| control.host_changed()) {
                Ok(()) => {
                    self.interfaces.insert(number, control);
                    round.push(number);
                }
                Err(error) => {
                    control.common.fail(error);
                    end(control);
                }
            }
        }
    }

    /// One interface's turn.
    fn turn(&mut self, number: u32) {
        let Some(control) = self.interfaces.get_mut(&number) else {
            return;
        };
        let ended = match contain(|| control.turn()) {
            Ok(is_busy) => {
                if is_busy {
                    self.busy.push(number);
                }
                control.common.is_stopping()
            }
            Err(error) => {
                control.common.fail(error);
                true
            }
        };
        if ended {
            self.interfaces.remove(&number).into_iter().for_each(end);
            self.drop_sources();
        } else if control.is_unwatched {
            let watched = self.watch(number);
            if let (Err(error), Some(control)) = (watched, self.interfaces.get(&number)) {
                control.common.fail(error);
            }
        }
    }

    /// Watches the descriptors of an interface that are new, and those that it shares with others.
    fn watch(&mut self, number: u32) -> io::Result<()> {
        let Some(control) = self.interfaces.get_mut(&number) else {
            return Ok(());
        };
        let data = EventData::new_u64(number.into());
        epoll::add(&self.epoll, &control.wakeups, data, EventFlags::IN)?;
        control.is_unwatched = false;
        for source in control.platform.sources() {
            if self
                .sources
                .values()
                .any(|known| Arc::ptr_eq(known, &source))
            {
                continue;
            }
            let last = self.sources.last_key_value();
            let token = last.map_or(FIRST_SOURCE, |(token, _)| token + 1);
            for fd in source.fds() {
                epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)?;
            }
            self.sources.insert(token, source);
        }
        self.drop_sources();
        Ok(())
    }

    /// Closes what no interface shares any more.
    fn drop_sources(&mut self) {
        self.sources
            .retain(|_, source| Arc::strong_count(source) > 1);
    }
}

/// Lets go of an interface. What panicked may do so again here, and its other parts end nevertheless.
fn end<H: Platform>(control: Control<H>) {
    let _ = contain(|| {
        drop(control);
        Ok(())
    });
}

impl<H: Platform> Drop for ControlThread<H> {
    fn drop(&mut self) {
        self.inbox.arrivals.close();
    }
}

/// The control thread's state of one interface: the protocol and what connects it to the host.
pub(crate) struct Control<H: Platform> {
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
    /// When to keep the endpoints of peers, since they changed, and when that was done last.
    remember_at: Option<Time>,
    remembered: Time,
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
    /// Peers whose events are to be handled.
    events: VecDeque<Arc<Peer>>,
    /// Commands that wait for the one that is being executed.
    commands: VecDeque<Command>,
    executing: Option<Executing>,
    fwmark: u32,
    up: bool,
    /// It counts the time for which the machine is suspended, as that of epoll_wait(2) does not.
    timer: OwnedFd,
    /// Readable when the interface is to have a turn.
    wakeups: OwnedFd,
    /// The thread does not watch that yet.
    is_unwatched: bool,
    /// Another process has what this one had, or is to give it: nothing happens until it resumes.
    is_paused: bool,
    _part: Part<H::Socket>,
}

/// A probe as it leaves.
struct SealedProbe {
    peer: Arc<Peer>,
    session: Arc<Session>,
    to: Endpoint,
    datagram: Vec<u8>,
    /// Whether it is the longest of its peer.
    is_longest: bool,
}

impl SealedProbe {
    fn train(&self) -> Transmit<'_> {
        Transmit {
            to: self.to,
            ecn: 0,
            stride: self.datagram.len(),
            bytes: &self.datagram,
        }
    }
}

impl<H: Platform> Control<H> {
    pub(crate) fn new(
        mut device: Device,
        mut platform: H,
        common: Arc<Common<H::Socket>>,
    ) -> io::Result<Self> {
        device.went_down();
        device.remember(platform.remembered());
        Self::of(device, platform, common, &InterfaceState::default())
    }

    /// Goes on with an interface of another process, once it [resumes](Resume).
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
        device: Device,
        platform: H,
        common: Arc<Common<H::Socket>>,
        state: &InterfaceState,
    ) -> io::Result<Self> {
        Ok(Self {
            device,
            platform,
            listen_port: state.listen_port,
            bound_port: state.bound_port,
            left: None,
            rebind_at: None,
            told_of_port: false,
            set_at: None,
            remember_at: None,
            remembered: Time::default(),
            paths_at: None,
            paths_seen: Time::default(),
            looks: 0,
            paths_from: None,
            forget_paths: false,
            ignores_icmp: [None; 2],
            probes: VecDeque::new(),
            probes_from: Time::default(),
            events: VecDeque::new(),
            commands: VecDeque::new(),
            executing: None,
            fwmark: state.fwmark,
            up: state.up,
            timer: timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?,
            wakeups: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            is_unwatched: true,
            is_paused: false,
            _part: Part::new(&common),
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
        self.remember(now);
        self.put_out();
        self.tell();
        self.set_timer()?;
        let executes = self.executing.is_some() || !self.commands.is_empty();
        let is_busy = self.paths_from.is_some()
            || !self.events.is_empty()
            || executes && self.set_at.is_none();
        Ok(is_busy || !self.common.control.is_empty())
    }

    /// While another process has the interface, or still has it: nothing is sealed, and no timer
    /// runs. Questions are answered; a change is not made, because it would be lost.
    fn pauses(&mut self) -> io::Result<bool> {
        self.common.control.waker.clear();
        // What happens to the device is looked at afterwards.
        self.wakeups = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = self.common.control.waker.as_fd();
        epoll::add(
            &self.wakeups,
            waker,
            EventData::new_u64(WAKER),
            EventFlags::IN,
        )?;
        self.is_unwatched = true;
        self.commands.extend(self.common.control.take_commands());
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::Resume(how, answer) => {
                    self.resume(how)?;
                    let _ = answer.send(());
                    return Ok(true);
                }
                // Without an answer the caller learns that nothing was done. Addresses of names
                // come again.
                Command::Set(..)
                | Command::Export(_)
                | Command::Probe(..)
                | Command::Candidates(_) => {}
                command => self.executing = self.begin(clock::now(), command),
            }
            while let Some(Executing::Get(get)) = self.executing.take() {
                self.executing = self.go_on_getting(get);
            }
        }
        Ok(false)
    }

    fn resume(&mut self, how: Resume) -> io::Result<()> {
        if how == Resume::WithoutSessions {
            self.device.gave_up_sessions(clock::now());
        }
        self.is_paused = false;
        let sockets = self.common.queues.sockets.load();
        self.platform.resumed(&sockets);
        self.tell_indices(&sockets);
        // They may be another process's, which ignored ICMP.
        self.set_icmp();
        // Routes and the device may have changed unseen.
        (self.paths_from, self.forget_paths) = (Some(0), false);
        self.host_changed()
    }

    /// Puts out what another process needs. All that the shards told is handled before.
    fn export(&mut self, answer: &SyncSender<Exported>) {
        loop {
            let now = clock::now();
            let (events, commands, _) = self.common.control.take_all();
            self.events.extend(events);
            self.commands.extend(commands);
            for peer in take_some(&mut self.events, usize::MAX) {
                self.device.handle_event(now, clock::wall(), &peer);
            }
            self.handshakes();
            self.put_out();
            if !self.common.control.has_messages() {
                break;
            }
        }
        self.count_tun_drops();
        // From now on the sockets drop nothing: the new process has programs of its own.
        self.device.tell_indices(None);
        self.count_filtered();
        self.is_paused = true;
        let mut records = Vec::with_capacity(RECORDS);
        let exported = self.device.export(clock::now(), |record| {
            records.push(record);
            if records.len() < RECORDS {
                return Ok(());
            }
            let full = std::mem::replace(&mut records, Vec::with_capacity(RECORDS));
            answer.send(Exported::Records(full))
        });
        let exported = exported.and_then(|()| answer.send(Exported::Records(records)));
        let mut state = self.common.counters();
        state.listen_port = self.listen_port;
        state.bound_port = self.bound_port;
        state.fwmark = self.fwmark;
        state.up = self.up;
        if exported.is_ok() {
            let _ = answer.send(Exported::State(Box::new(state)));
        }
    }

    fn count_filtered(&self) {
        for LaneSocket { socket, .. } in self.common.queues.sockets.load().all() {
            self.common.count_filtered(socket);
        }
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
            .chain(self.remember_at)
            .chain(self.paths_at)
            .chain(self.ignores_icmp.into_iter().flatten())
            .chain((!self.probes.is_empty()).then_some(self.probes_from))
            .chain(self.common.journal.deadline())
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

    /// Keeps for the next process where peers are, if that changed.
    fn remember(&mut self, now: Time) {
        if self.device.poll_endpoints_changed() {
            self.remember_at.get_or_insert(self.remembered + REMEMBER);
        }
        if self.remember_at.is_some_and(|at| at <= now) {
            (self.remember_at, self.remembered) = (None, now);
            self.platform.remember(&self.device.active_endpoints());
        }
    }

    /// Handshake messages, a bounded number: timers and commands must not wait for a flood.
    fn handshakes(&mut self) {
        for _ in 0..HANDSHAKE_BATCH {
            let Some(message) = self.common.control.next_handshake() else {
                break;
            };
            let (now, wall) = (clock::now(), clock::wall());
            let (from, datagram) = (message.from, &message.datagram);
            // A shard tells of load before it adds to a long queue.
            let outcome = match message.proven {
                true => self.device.handle_proven(now, wall, from, datagram),
                false => (self.device).handle_handshake(now, wall, from, datagram, false),
            };
            if outcome.refusal.is_some() {
                self.note(|| Incident::Handshake(outcome));
            }
            self.put_out();
        }
    }

    /// Does what the protocol asks for.
    fn put_out(&mut self) {
        while let Some(output) = self.device.poll_output() {
            match output {
                Output::Handshake {
                    to,
                    datagram,
                    peer,
                    in_vain,
                } => self.send_handshake(to, &datagram, peer.as_ref(), in_vain),
                Output::Keepalive { peer } => self.send_keepalive(&peer),
                Output::SessionReady { peer } => {
                    let key = peer.public_key();
                    self.platform
                        .log_verbose(format_args!("peer {key}: session established"));
                    self.common.queues.tell(ShardCommand::SessionReady(peer));
                }
                Output::DropStaged {
                    peer,
                    given_up_after,
                } => {
                    let key = peer.public_key();
                    if let Some(initiations) = given_up_after {
                        let event = Event::GivenUp {
                            peer: key,
                            initiations,
                        };
                        self.platform.tell(&event);
                    }
                    match given_up_after {
                        Some(count) => self.platform.log_verbose(format_args!(
                            "peer {key}: handshake given up after {} s and {count} initiations without an answer",
                            REKEY_ATTEMPT_TIME.as_secs()
                        )),
                        None => self.platform.log_verbose(format_args!("peer {key}: removed")),
                    }
                    self.common.queues.tell(ShardCommand::DropStaged(peer));
                }
                Output::Event(PeerEvent::Liveness { peer, state }) => {
                    self.platform.tell(&Event::Liveness {
                        peer: peer.public_key(),
                        state,
                        endpoint: peer.endpoint().map(|to| to.addr),
                    });
                }
                Output::Event(PeerEvent::Session { peer }) => self.platform.tell(&Event::Session {
                    peer: peer.public_key(),
                    endpoint: peer.endpoint().map(|to| to.addr),
                }),
                Output::Event(probes @ PeerEvent::ProbePath { .. }) => {
                    if self.probes.len() < PROBES_WAITING {
                        self.probes.push_back(probes);
                    }
                }
                Output::Event(PeerEvent::PathFound { peer, limit, loses }) => {
                    self.path_found(&peer, limit, loses)
                }
                Output::Event(PeerEvent::DoubtIcmp { peer }) => self.doubt_icmp(&peer),
                Output::Event(PeerEvent::Unanswered { peer }) => {
                    let peer = peer.public_key();
                    self.platform.tell(&Event::Unanswered { peer });
                }
                Output::Event(PeerEvent::Roamed { peer, from }) => {
                    if let Some(to) = peer.endpoint() {
                        self.platform.tell(&Event::Roamed {
                            peer: peer.public_key(),
                            from,
                            to: to.addr,
                        });
                    }
                }
            }
        }
        if self.probes_from <= clock::now() && !self.probes.is_empty() {
            self.send_probes();
        }
        if self.device.poll_keys_dropped() {
            overwrite_stack();
            self.common.overwrite_stacks();
        }
    }

    fn path_found(&self, peer: &Peer, limit: Option<u16>, loses: bool) {
        let (key, log) = (peer.public_key(), |line: fmt::Arguments<'_>| {
            self.platform.log_verbose(line)
        });
        let told = "their senders are told to send shorter ones";
        match limit {
            Some(limit) if loses => log(format_args!(
                "peer {key}: packets of more than {limit} bytes do not arrive: {told}"
            )),
            Some(limit) => log(format_args!(
                "peer {key}: packets of more than {limit} bytes leave in fragments: {told}"
            )),
            None => {
                log(format_args!("peer {key}: packets of any length arrive"));
                // Trains of any length may be segmented again.
                for LaneSocket { socket, .. } in self.common.queues.sockets.load().all() {
                    self.platform.forget_paths(socket);
                }
            }
        }
    }

    /// Has the sockets of the peer's family ignore what ICMP says, as long as the host believes it: it
    /// would cut datagrams, at most of the throughput.
    fn doubt_icmp(&mut self, peer: &Peer) {
        let Some(to) = peer.endpoint() else { return };
        let path = self.platform.path_mtu(to, self.fwmark);
        let Some((mtu, left)) = path.and_then(|path| path.learned) else {
            return;
        };
        let (is_ipv6, left) = (to.addr.is_ipv6(), left.min(ICMP_IGNORED));
        let until = &mut self.ignores_icmp[usize::from(is_ipv6)];
        if until.replace(clock::now() + left).is_some() {
            return;
        }
        // The kernel tells a socket of IPv4 nothing, and none of what quotes no datagram of its.
        self.common.count_icmp_error(IcmpKind::TooBig, 1);
        let (key, family) = (peer.public_key(), if is_ipv6 { 6 } else { 4 });
        self.platform.log_error(&format!(
            "peer {key}: ICMP says that the path takes {mtu} bytes, which is wrong or forged: \
             what ICMP says of paths is ignored over IPv{family} for {} s",
            left.as_secs()
        ));
        self.set_icmp();
    }

    /// What the host learned is forgotten by now, or it learned it anew.
    fn obey_icmp(&mut self, now: Time) {
        let ends = |until: &mut Option<Time>| until.take_if(|at| *at <= now);
        if self.ignores_icmp.iter_mut().filter_map(ends).count() > 0 {
            self.set_icmp();
        }
    }

    /// Tells all sockets whether they ignore ICMP. Those that are opened beside them do as they do.
    fn set_icmp(&self) {
        for LaneSocket { socket, v6, .. } in self.common.queues.sockets.load().all() {
            let ignores = self.ignores_icmp[usize::from(v6)].is_some();
            if let Err(error) = self.platform.ignore_icmp(socket, ignores) {
                let log = &self.platform;
                log.log_verbose(format_args!("whether ICMP is ignored stays: {error}"));
            }
        }
        self.common.queues.tell(ShardCommand::ClearPaths);
    }

    /// A message that could not be sent is tried again by its timer, as if the network had lost it.
    fn send_handshake(
        &mut self,
        to: Endpoint,
        datagram: &[u8],
        peer: Option<&Arc<Peer>>,
        in_vain: u32,
    ) {
        let kind = match datagram.len() {
            INITIATION_LEN => HandshakeKind::Initiation,
            RESPONSE_LEN => HandshakeKind::Response,
            _ => HandshakeKind::CookieReply,
        };
        let sent = self.send(to, datagram, peer, Some(kind));
        self.device.handle_sent(datagram, peer, sent);
        // A cookie reply has no known peer; the log has it with the message that it answers.
        let Some(peer) = peer.filter(|_| sent) else {
            return;
        };
        let (peer, to) = (peer.public_key(), to.addr);
        if in_vain == 0 {
            self.platform
                .log_verbose(format_args!("peer {peer}: {kind} sent to {to}"));
        } else {
            self.note(|| Incident::InVain {
                peer,
                kind,
                to,
                before: in_vain,
            });
        }
    }

    /// Notes an incident, and writes its line now if it is due.
    fn note(&self, incident: impl FnOnce() -> Incident) {
        if self.common.journal.note(clock::now(), 1, incident) {
            self.tell();
        }
    }

    /// Writes what is due of the journal, and tells whoever listens.
    fn tell(&self) {
        let journal = &self.common.journal;
        for mut line in journal.take_due(clock::now()) {
            if let Line::Of(Incident::Icmp { peer, error }, _) = &mut line {
                let named =
                    |peer: &&Arc<Peer>| peer.endpoint().is_some_and(|to| to.addr == error.to);
                let found = self.device.peers().take(PEERS_SEARCHED).find(named);
                *peer = found.map(|peer| peer.public_key());
            }
            if journal.is_logged() {
                self.platform.log_verbose(format_args!("{line}"));
            }
            if journal.is_heard() {
                self.platform.tell(&match line {
                    Line::Of(incident, times) => Event::Incident { incident, times },
                    Line::Others(count) => Event::Others { count },
                });
            }
        }
    }

    /// True if it left. `kind` is that of a message of a handshake.
    fn send(
        &self,
        to: Endpoint,
        datagram: &[u8],
        peer: Option<&Arc<Peer>>,
        kind: Option<HandshakeKind>,
    ) -> bool {
        let not_sent = |error| {
            self.note(|| Incident::NotSent {
                peer: peer.map(|peer| peer.public_key()),
                kind,
                to: to.addr,
                error,
            });
            false
        };
        let sockets = self.common.queues.sockets.load();
        let Some(socket) = sockets.family(to.addr.is_ipv6()) else {
            return not_sent(None);
        };
        let mut report = SendReport::default();
        let taken = socket.send(
            &[Transmit {
                to,
                ecn: 0,
                stride: datagram.len(),
                bytes: datagram,
            }],
            &mut report,
        );
        if let (Some(peer), Some(_)) = (peer, report.stale_source) {
            peer.clear_source();
        }
        if report.icmp {
            self.common.take_errors(socket, clock::now());
        }
        if taken == 1 && report.lost.is_empty() {
            return true;
        }
        not_sent(Some(report.error.unwrap_or(Errno::AGAIN)))
    }

    fn send_keepalive(&self, peer: &Arc<Peer>) {
        self.seal_and_send(peer, &[]);
    }

    /// Sends one packet that no shard has, as a keepalive is: no timer waits for its answer.
    fn seal_and_send(&self, peer: &Arc<Peer>, packet: &[u8]) {
        let now = clock::now();
        if let Some((session, to, datagram)) = self.seal(now, peer, packet)
            && self.send(to, &datagram, Some(peer), None)
            && peer.keepalive_sent(now, &session, datagram.len() as u64)
        {
            self.common.control.event(peer);
        }
    }

    /// Sends the probes that have waited for longest.
    fn send_probes(&mut self) {
        let now = clock::now();
        self.probes_from = now + PROBES_EVERY;
        let count = self.probes.len().min(PROBES_BATCH);
        let some: Vec<PeerEvent> = self.probes.drain(..count).collect();
        // Those that may be fragmented, and those that nobody may fragment, each by family.
        let mut sealed: [[Vec<SealedProbe>; 2]; 2] = Default::default();
        for probes in some {
            let PeerEvent::ProbePath {
                peer,
                from,
                to,
                id,
                whole,
                fragmented,
            } = probes
            else {
                continue;
            };
            for (sealed, lengths) in sealed
                .iter_mut()
                .zip([fragmented.as_slice(), whole.as_slice()])
            {
                for (index, &(sequence, len)) in lengths.iter().enumerate() {
                    let packet = adit_offload::echo(from, to, len.into(), id, sequence);
                    let probe = packet.and_then(|packet| self.seal(now, &peer, &packet));
                    let Some((session, to, datagram)) = probe else {
                        continue;
                    };
                    sealed[usize::from(to.addr.is_ipv6())].push(SealedProbe {
                        peer: Arc::clone(&peer),
                        session,
                        to,
                        datagram,
                        // They come in this order.
                        is_longest: index == 0,
                    });
                }
            }
        }
        for (of_kind, cut) in sealed.iter().zip([Cut::Allowed, Cut::Refused]) {
            for probes in of_kind {
                let probes: Vec<&SealedProbe> = probes.iter().collect();
                self.send_sealed_probes(now, &probes, cut);
            }
        }
    }

    /// Sends probes to addresses of one family past what waits for the socket. If ICMP alone is why
    /// this host does not send a peer's, they leave all the same.
    fn send_sealed_probes(&mut self, now: Time, mut probes: &[&SealedProbe], cut: Cut) {
        let sockets = self.common.queues.sockets.load();
        let (mut told, mut again) = (None, Vec::new());
        while let [first, ..] = probes
            && let Some(socket) = sockets.family(first.to.addr.is_ipv6())
        {
            let trains: Vec<_> = probes.iter().map(|probe| probe.train()).collect();
            let mut report = SendReport::default();
            let taken = socket.send_beside(&trains, cut, &mut report);
            if let Some(stale) = report.stale_source {
                probes[stale].peer.clear_source();
            }
            if report.icmp {
                self.common.take_errors(socket, now);
            }
            let (sent, rest) = probes.split_at(taken);
            for (index, &probe) in sent.iter().enumerate() {
                let (peer, len) = (&probe.peer, probe.datagram.len() as u64);
                if report.lost_of(index) == 0 {
                    if peer.keepalive_sent(now, &probe.session, len) {
                        self.common.control.event(peer);
                    }
                } else if cut == Cut::Refused {
                    if probe.is_longest && self.probe_refused(now, probe) {
                        told = Some(peer.id());
                    }
                    again.extend((told == Some(peer.id())).then_some(probe));
                }
            }
            // Into a buffer of their own.
            probes = if taken > 0 { rest } else { &[] };
        }
        if !again.is_empty() {
            self.send_sealed_probes(now, &again, Cut::RefusedPastIcmp);
        }
    }

    /// This host did not send a probe whole: what it knows of the path may say why. True if ICMP alone
    /// does.
    fn probe_refused(&mut self, now: Time, probe: &SealedProbe) -> bool {
        let Some(path) = self.platform.path_mtu(probe.to, self.fwmark) else {
            return false;
        };
        let headers = if probe.to.addr.is_ipv6() { 48 } else { 28 };
        let longest = |bytes: u32| {
            let longest = (bytes as usize).saturating_sub(headers + OVERHEAD);
            u16::try_from(longest).unwrap_or(u16::MAX)
        };
        let fits = headers + probe.datagram.len() <= path.takes as usize;
        if let Some((told, _)) = path.learned.filter(|_| fits) {
            self.device.path_told(&probe.peer, longest(told));
            return true;
        }
        let (longest, device) = (longest(path.takes), longest(path.device));
        self.device.path_refused(now, &probe.peer, longest, device);
        false
    }

    fn seal(
        &self,
        now: Time,
        peer: &Peer,
        packet: &[u8],
    ) -> Option<(Arc<Session>, Endpoint, Vec<u8>)> {
        let (session, to) = (peer.session(now)?, peer.endpoint()?);
        let counter = session.reserve(now, 1).ok()?;
        let padded = padded_len(packet.len(), self.common.mtu().max(packet.len()));
        let mut datagram = vec![0; DataHeader::LEN + padded + TAG_LEN];
        datagram[DataHeader::LEN..][..packet.len()].copy_from_slice(packet);
        let (header, text) = datagram
            .split_first_chunk_mut()
            .expect("longer than a header");
        DataHeader {
            receiver: session.remote_index(),
            counter,
        }
        .write(header);
        adit_aead::seal(&mut [SealJob::in_place(session.send_key(), counter, text)]);
        Some((session, to, datagram))
    }

    /// Executes commands in their order, a bounded piece of one a turn: a change of half a million
    /// peers takes seconds, and handshakes, timers and other interfaces get their turns meanwhile.
    /// So `get` reports what was before a change, or what is after it.
    fn execute(&mut self, now: Time) {
        if self.set_at.is_some_and(|at| at > now) {
            return;
        }
        self.set_at = None;
        if self.executing.is_none() {
            self.executing = self
                .commands
                .pop_front()
                .and_then(|command| self.begin(now, command));
        }
        self.executing = match self.executing.take() {
            Some(Executing::Set(set)) => self.go_on_setting(now, set),
            Some(Executing::Get(get)) => self.go_on_getting(get),
            None => None,
        };
    }

    fn begin(&mut self, now: Time, command: Command) -> Option<Executing> {
        match command {
            Command::Set(change, answer) => Some(Executing::Set(Box::new(Setting {
                transaction: self.device.begin(change),
                has_sockets: false,
                answer,
            }))),
            Command::Get(answer) => {
                self.device.set_clock(now, clock::wall());
                Some(Executing::Get(Box::new(Getting {
                    status: self.status_without_peers(),
                    next: 0,
                    answer,
                })))
            }
            Command::Probe(key, answer) => {
                let due = self.device.probe(now, &key);
                let _ = answer.send(due.map(|due| due.since(now)));
                None
            }
            Command::Candidates(named) => {
                for (peer, addrs) in named {
                    self.device.set_candidates(now, &peer, addrs.as_deref());
                }
                None
            }
            Command::Report(answer) => {
                self.count_tun_drops();
                self.count_filtered();
                // A caller that went away needs no answer, here and below.
                let _ = answer.send(OfControl {
                    handshakes: self.device.handshake_stats(),
                    offloads: self.offloads(),
                    lane_loads: self.device.lane_loads(now),
                });
                None
            }
            Command::Export(answer) => {
                with_priority(|| self.export(&answer));
                None
            }
            // It does not pause.
            Command::Resume(_, answer) => {
                let _ = answer.send(());
                None
            }
        }
    }

    fn go_on_getting(&mut self, mut get: Box<Getting>) -> Option<Executing> {
        let status = &mut get.status.peers;
        if !memory::reserve_status(&self.device, get.next, STATUS_BATCH, status) {
            let _ = get.answer.send(Err(CommandError::NoMemory));
            return None;
        }
        let peers = self.device.peer_status_from(get.next);
        let before = get.status.peers.len();
        for (id, peer) in peers.take(STATUS_BATCH) {
            get.status.peers.push(peer);
            get.next = id + 1;
        }
        if get.status.peers.len() < before + STATUS_BATCH {
            let _ = get.answer.send(Ok(get.status));
            return None;
        }
        Some(Executing::Get(get))
    }

    fn go_on_setting(&mut self, now: Time, mut set: Box<Setting>) -> Option<Executing> {
        let mut result = Ok(());
        // Sockets before anything changes, since binding is what can fail.
        if !set.has_sockets && set.transaction.is_checked() {
            let change = set.transaction.change();
            let done = self.check_memory(change);
            match done.and_then(|()| self.set_sockets(change)) {
                Ok(true) => set.has_sockets = true,
                Ok(false) => {
                    self.set_at = Some(now + RELEASE_POLL);
                    return Some(Executing::Set(set));
                }
                Err(error) => result = Err(error),
            }
        }
        let done = result.and_then(|()| {
            let done = self.device.resume(now, &mut set.transaction);
            done.map_err(CommandError::Config)
        });
        self.put_out();
        let result = match done {
            Ok(false) => return Some(Executing::Set(set)),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let _ = set.answer.send((result, set.transaction.into_change()));
        None
    }

    /// Refuses a change that does not fit into the memory that the process may have.
    fn check_memory(&self, change: &DeviceChange) -> Result<(), CommandError> {
        match memory::needed(&self.device, change) {
            0 => Ok(()),
            needed => match self.platform.memory_left() {
                Some(left) if !memory::suffices(needed, left) => {
                    Err(CommandError::Memory { needed, left })
                }
                _ => Ok(()),
            },
        }
    }

    /// Port and mark of a transaction; if that fails, nothing was changed. False, and nothing changed
    /// yet, while our own shards still close a socket on the port.
    fn set_sockets(&mut self, change: &DeviceChange) -> Result<bool, CommandError> {
        let port = change.listen_port.unwrap_or(self.listen_port);
        let fwmark = change.fwmark.unwrap_or(self.fwmark);
        let bound = self.common.queues.sockets.load().port;
        // The port that the kernel chose is no other port; one that could not be had at first may
        // be free now.
        let is_bound = bound != 0 && port == bound;
        let failed = self.up && bound == 0 && change.listen_port.is_some();
        let rebound = if is_bound || port == self.listen_port && !failed {
            None
        } else {
            match self.platform.bind(port, fwmark) {
                Ok(sockets) => Some(sockets),
                Err(error) if self.is_closing(port, &error) => return Ok(false),
                Err(error) => return Err(CommandError::Bind { port, error }),
            }
        };
        if fwmark != self.fwmark
            && let Err(error) = self.set_mark(fwmark)
        {
            // A mark that could be set before can be set again.
            let _ = self.set_mark(self.fwmark);
            return Err(error);
        }
        if fwmark != self.fwmark || rebound.is_some() {
            // They may leave by another uplink now.
            (self.paths_from, self.forget_paths) = (Some(0), true);
            self.look_at_paths(clock::now());
            // What still arrives at the old address brings it back.
            self.look_at_paths_soon();
        }
        (self.listen_port, self.fwmark) = (port, fwmark);
        // While the interface is down the port was only tried: sockets are bound when it comes up.
        match rebound {
            Some(sockets) if self.up => self.publish(sockets),
            Some(_) => self.bound_port = 0,
            None => {}
        }
        Ok(true)
    }

    fn set_mark(&self, fwmark: u32) -> Result<(), CommandError> {
        for LaneSocket { socket, .. } in self.common.queues.sockets.load().all() {
            self.platform
                .set_mark(socket, fwmark)
                .map_err(|error| CommandError::Mark { fwmark, error })?;
        }
        self.common.queues.tell(ShardCommand::ClearPaths);
        Ok(())
    }

    /// The offloads that are in force on every socket.
    fn offloads(&self) -> Offloads {
        let sockets = self.common.queues.sockets.load();
        let of_socket = sockets.all().map(|it| self.platform.offloads(it.socket));
        of_socket.fold(Offloads::ALL, Offloads::and)
    }

    fn status_without_peers(&self) -> DeviceStatus {
        DeviceStatus {
            listen_port: match self.listen_port {
                0 => self.bound_port,
                port => port,
            },
            fwmark: self.fwmark,
            ..self.device.status_without_peers()
        }
    }

    /// Binds the configured port; without one, that of the last time if it is still free, as peers
    /// know it. Nothing while our own shards still close a socket there.
    fn bind(&self) -> io::Result<Option<Sockets<H::Socket>>> {
        let bind = |port| match self.platform.bind(port, self.fwmark) {
            Err(error) if self.is_closing(port, &error) => Ok(None),
            bound => bound.map(Some),
        };
        if self.listen_port == 0 && self.bound_port != 0 {
            bind(self.bound_port).or_else(|_| bind(0))
        } else {
            bind(self.listen_port)
        }
    }

    /// Whether a port cannot be bound because our own shards have not closed their sockets on it yet.
    fn is_closing(&self, port: u16, error: &io::Error) -> bool {
        let is_left = |(left, at): (u16, Time)| left == port && clock::now().since(at) < RELEASE;
        error.kind() == io::ErrorKind::AddrInUse && self.left.is_some_and(is_left)
    }

    fn publish(&mut self, sockets: Sockets<H::Socket>) {
        let before = self.common.queues.sockets.load().port;
        if before != 0 {
            self.left = Some((before, clock::now()));
        }
        let port = sockets.port;
        self.tell_indices(&sockets);
        self.count_filtered();
        self.common.queues.sockets.store(Arc::new(sockets));
        if self.ignores_icmp != [None; 2] {
            self.set_icmp();
        }
        self.common.queues.wake();
        (self.rebind_at, self.told_of_port) = (None, false);
        if port == 0 {
            self.device.went_down();
        } else {
            self.bound_port = port;
            if before == 0 {
                self.device.came_up(clock::now());
            }
        }
    }

    /// What these sockets drop before they queue it depends on the indices that are in use.
    fn tell_indices(&mut self, sockets: &Sockets<H::Socket>) {
        let in_use = sockets.all().find_map(|it| it.socket.in_use());
        self.device.tell_indices(in_use);
    }

    /// Binds the sockets, or tries again soon: the port may become free.
    fn come_up(&mut self) {
        match self.bind() {
            Ok(Some(sockets)) => self.publish(sockets),
            Ok(None) => self.rebind_at = Some(clock::now() + RELEASE_POLL),
            Err(error) => {
                if !std::mem::replace(&mut self.told_of_port, true) {
                    let port = self.listen_port;
                    let error = CommandError::Bind { port, error };
                    self.platform.log_error(&error.to_string());
                }
                self.rebind_at = Some(clock::now() + REBIND);
            }
        }
    }

    /// The interface, a route or an address changed, or may have. An error is the interface's and
    /// final.
    fn host_changed(&mut self) -> io::Result<()> {
        let PlatformEvent {
            up,
            mtu,
            routes_changed,
        } = self.platform.handle_events()?;
        self.watch()?;
        self.common.set_mtu(mtu);
        let probed = u16::try_from(mtu).ok();
        let probes = self.platform.probes_paths();
        self.device.probe_paths(probed.filter(|_| probes));
        if up != self.up {
            self.up = up;
            if up {
                self.come_up();
            } else {
                self.publish(Sockets::unbound());
            }
        }
        if routes_changed {
            self.look_at_paths_soon();
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
            for LaneSocket { socket, .. } in self.common.queues.sockets.load().all() {
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

/// At most so many from the front.
fn take_some<T>(queue: &mut VecDeque<T>, count: usize) -> Vec<T> {
    queue.drain(..queue.len().min(count)).collect()
}

impl<H: Platform> Drop for Control<H> {
    fn drop(&mut self) {
        // After the end of the engine, its port is free.
        self.publish(Sockets::unbound());
        self.common.control.close();
    }
}
