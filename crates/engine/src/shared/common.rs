//! What the control thread and the shards share.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use adit_io::tun::TunErrorKind;
use adit_io::{Filtered, Grace, IcmpKind, Offloads, UdpSocket};
use adit_offload::{Frame, Merged, TunnelEnds};
use adit_proto::{DropReason, Drops, IgnoredKind, PassedKind, Peer, Time};
use arc_swap::ArcSwap;

use crate::hand_over::InterfaceState;
use crate::interface::StopReason;
use crate::order::lanes::LANES;
use crate::shards::queues::Buffers;
use crate::shared::counters::Load;
use crate::shared::inbox::Inbox;
use crate::shared::journal::{Incident, Journal};
use crate::thread::contain::this_thread;
use crate::thread::lock::lock;
use crate::thread::ownership::Ownership;
use crate::thread::poll::Descriptor;
use crate::thread::priority;
use crate::thread::wake::Waker;

/// The sockets of an interface, all on one port: one per address family that the host has, or
/// several ([`UdpSocket::further`]).
///
/// A lane (`lanes.rs`) is a socket of each family. What leaves leaves through the first. A lane
/// that is given up keeps its sockets, because the kernel counts them.
#[derive(Debug)]
pub struct Sockets<U> {
    /// For IPv4; none where the host has no IPv4.
    pub v4: Option<U>,
    /// For IPv6; none where the host has no IPv6.
    pub v6: Option<U>,
    /// 0 while none is bound.
    pub port: u16,
    /// The further lanes: IPv4 and IPv6.
    further: Vec<OnceLock<Box<Lane<U>>>>,
    /// How many lanes are polled. The others are empty.
    in_use: AtomicUsize,
}

/// For IPv4 and IPv6.
type Lane<U> = [Option<U>; 2];

/// A socket that receives, and which one it is.
pub(crate) struct LaneSocket<'a, U> {
    pub(crate) lane: usize,
    pub(crate) v6: bool,
    pub(crate) socket: &'a U,
}

impl<U> Sockets<U> {
    /// One lane.
    pub fn new(v4: Option<U>, v6: Option<U>, port: u16) -> Self {
        Self {
            v4,
            v6,
            port,
            further: (1..LANES).map(|_| OnceLock::new()).collect(),
            in_use: AtomicUsize::new(1),
        }
    }

    /// No socket: nothing arrives and nothing leaves.
    pub(crate) fn unbound() -> Self {
        Self::new(None, None, 0)
    }

    /// Adds a socket of another process. Those of one family come in the order of their lanes.
    pub fn add(&mut self, v6: bool, socket: U)
    where
        U: UdpSocket,
    {
        let first = if v6 { &mut self.v6 } else { &mut self.v4 };
        if first.is_none() {
            let group = usize::try_from(socket.state().group).unwrap_or_default();
            let in_use = self.in_use.get_mut();
            *in_use = group.max(*in_use);
            *first = Some(socket);
            return;
        }
        let lacks = |lane: &OnceLock<Box<Lane<U>>>| {
            lane.get()
                .is_none_or(|lane| lane[usize::from(v6)].is_none())
        };
        let at = self.further.iter().position(lacks).unwrap_or_else(|| {
            self.further.push(OnceLock::new());
            self.further.len() - 1
        });
        let mut lane = self.further[at].take().unwrap_or_default();
        lane[usize::from(v6)] = Some(socket);
        self.further[at] = lane.into();
    }

    /// How many lanes have sockets.
    pub(crate) fn lanes(&self) -> usize {
        let further = self.further.iter();
        1 + further.take_while(|lane| lane.get().is_some()).count()
    }

    /// How many lanes are polled.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    /// So many lanes are polled from now on.
    pub(crate) fn use_lanes(&self, lanes: usize) {
        self.in_use.store(lanes, Ordering::Release);
    }

    pub(crate) fn of_lane(&self, lane: usize, v6: bool) -> Option<&U> {
        match lane.checked_sub(1) {
            None => self.family(v6),
            Some(further) => self.further.get(further)?.get()?[usize::from(v6)].as_ref(),
        }
    }

    /// The one that a descriptor is.
    pub(crate) fn of(&self, descriptor: Descriptor) -> Option<LaneSocket<'_, U>> {
        let Descriptor::Socket { lane, v6 } = descriptor else {
            return None;
        };
        let lane = usize::from(lane);
        let socket = self.of_lane(lane, v6)?;
        Some(LaneSocket { lane, v6, socket })
    }

    /// All, the first lane first.
    pub(crate) fn all(&self) -> impl Iterator<Item = LaneSocket<'_, U>> {
        (0..self.lanes()).flat_map(move |lane| {
            [false, true].into_iter().filter_map(move |v6| {
                let socket = self.of_lane(lane, v6)?;
                Some(LaneSocket { lane, v6, socket })
            })
        })
    }

    /// Those that are polled.
    pub(crate) fn all_in_use(&self) -> impl Iterator<Item = LaneSocket<'_, U>> {
        let lanes = self.in_use();
        self.all().take_while(move |it| it.lane < lanes)
    }

    pub(crate) fn family(&self, v6: bool) -> Option<&U> {
        if v6 {
            self.v6.as_ref()
        } else {
            self.v4.as_ref()
        }
    }
}

impl<U: UdpSocket> Sockets<U> {
    /// Has the kernel spread data over so many lanes, whose sockets are opened if there are none yet.
    /// Returns when it does for all that arrives, by family, and whether it refused any.
    pub(crate) fn spread(&self, lanes: usize) -> (Vec<Grace>, bool) {
        let opened = self.lanes();
        let mut refused = false;
        let mut more = [false, true].map(|v6| {
            let first = self.family(v6).filter(|_| opened < lanes);
            let sockets = first.map(|first| first.further(lanes - opened));
            let sockets = sockets.unwrap_or_else(|| Ok(Vec::new()));
            refused |= sockets.is_err();
            sockets.unwrap_or_default().into_iter()
        });
        for lane in self.further.iter().take(lanes - 1).skip(opened - 1) {
            let [v4, v6] = &mut more;
            let pair = [v4.next(), v6.next()];
            if pair.iter().any(Option::is_some) {
                let _ = lane.set(Box::new(pair));
            }
        }
        let mut graces = Vec::new();
        for v6 in [false, true] {
            // One that the kernel refused further sockets keeps its data in the first.
            let has_all = self.of_lane(lanes - 1, v6).is_some();
            if let Some(first) = self.family(v6).filter(|_| has_all) {
                match first.spread(lanes) {
                    Ok(grace) => graces.push(grace),
                    Err(_) => refused = true,
                }
            }
        }
        (graces, refused)
    }
}

/// What a poll of the outbound path runs with.
pub(crate) struct Context<'a, U> {
    pub(crate) common: &'a Common<U>,
    pub(crate) sockets: &'a Sockets<U>,
    /// Those of the thread.
    pub(crate) buffers: &'a Buffers,
    /// The time of this poll.
    pub(crate) now: Time,
}

impl<U> Context<'_, U> {
    /// A frame leaves: datagrams, or a UDP tunnel's packet, which ends here.
    pub(crate) fn saw(&self, frame: &Frame<'_>) {
        match (frame.tunnel_end(), &self.common.tunnel_ends) {
            (Some(end), Some(tunnel_ends)) => {
                tunnel_ends.saw(end, self.now.since(Time::default()));
            }
            (None, _) if frame.udp_ports().is_some() => priority::carried(frame.segments()),
            _ => {}
        }
    }
}

impl<U> Clone for Context<'_, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Context<'_, U> {}

/// One interface, as all threads that have to do with it see it.
pub(crate) struct Common<U> {
    /// Routes and sessions, published by the control thread.
    pub(crate) proto: Arc<adit_proto::Shared>,
    pub(crate) control: Inbox,
    pub(crate) queues: QueuesHandle<U>,
    /// Where UDP tunnels end, unless what is for them is not merged.
    pub(crate) tunnel_ends: Option<TunnelEnds>,
    mtu: AtomicUsize,
    /// What the TUN refused to take merged.
    tun_refuses: [AtomicBool; Merged::COUNT],
    refused_trains: AtomicU64,
    icmp_errors: [AtomicU64; IcmpKind::ALL.len()],
    pub(crate) journal: Journal,
    pub(crate) load: Load,
    stopping: AtomicBool,
    end: Mutex<End>,
    ended: Condvar,
}

/// How far the end of an interface has come.
#[derive(Default)]
struct End {
    /// The [`Part`]s that are left.
    parts: usize,
    reason: Option<StopReason>,
    /// To be called when none is left.
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

/// What a thread has of an interface. When one of them is dropped, for whatever reason, the others
/// are asked to end; the interface has ended with the last.
pub(crate) struct Part<U>(Arc<Common<U>>);

impl<U> Part<U> {
    pub(crate) fn new(common: &Arc<Common<U>>) -> Self {
        lock(&common.end).parts += 1;
        Self(Arc::clone(common))
    }
}

impl<U> Drop for Part<U> {
    fn drop(&mut self) {
        let what = match std::thread::panicking() {
            true => "panicked, which is a defect of this program",
            false => "ended",
        };
        if !self.0.is_stopping() {
            let text = format!("{} {what}", this_thread());
            self.0.fail(io::Error::other(text));
        }
        let mut end = lock(&self.0.end);
        end.parts -= 1;
        let on_end = match end.parts {
            0 => end.on_end.take(),
            _ => None,
        };
        drop(end);
        self.0.ended.notify_all();
        if let Some(on_end) = on_end {
            on_end();
        }
    }
}

/// The part of a shard that other threads use.
pub(crate) struct ShardHandle {
    waker: Waker,
    /// How many interfaces it serves.
    load: AtomicUsize,
    /// The numbers of the queues that have something for it.
    due: Mutex<Vec<u32>>,
    /// The thread of the inbound path has met load: the shard is to reclaim the sockets.
    overloaded: AtomicBool,
    /// The shard may not run at the priority that it should have.
    priority_refused: AtomicBool,
    /// It sleeps, and nobody has asked it for help since.
    is_idle: AtomicBool,
    /// It is one shard too many: it ends once it serves nothing.
    retires: AtomicBool,
    /// Of the thread of the inbound path.
    inbound_thread: Arc<Waker>,
}

impl ShardHandle {
    pub(crate) fn new(inbound_thread: Arc<Waker>) -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            load: AtomicUsize::new(0),
            due: Mutex::default(),
            overloaded: AtomicBool::new(false),
            priority_refused: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            retires: AtomicBool::new(false),
            inbound_thread,
        })
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether this thread and that of the inbound path have woken up since the last call, which
    /// woke them.
    pub(crate) fn responds(&self) -> bool {
        // Both are to be woken.
        let (shard, inbound) = (self.waker.responds(), self.inbound_thread.responds());
        shard && inbound
    }

    /// How many interfaces it serves.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Acquire)
    }

    /// It has to give away what it serves, and ends then.
    pub(crate) fn retire(&self) {
        self.retires.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn retires(&self) -> bool {
        self.retires.load(Ordering::Acquire)
    }

    /// The numbers of the queues that have something for the shard, since the last call.
    pub(crate) fn take_due(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.due))
    }

    /// The thread of the inbound path has met load.
    pub(crate) fn overload(&self) {
        if !self.overloaded.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Whether it has since this was last asked.
    pub(crate) fn was_overloaded(&self) -> bool {
        self.overloaded.swap(false, Ordering::AcqRel)
    }

    /// The shard is about to sleep, or awake.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::Relaxed);
    }

    /// Whether it sleeps; if so, it counts as awake from now on.
    pub(crate) fn ends_idleness(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed) && self.is_idle.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn priority_was_refused(&self) {
        self.priority_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_priority_refused(&self) -> bool {
        self.priority_refused.load(Ordering::Relaxed)
    }
}

/// That a shard serves, or is about to serve, one interface more.
pub(crate) struct Served(pub(crate) Arc<ShardHandle>);

impl Served {
    pub(crate) fn new(shard: &Arc<ShardHandle>) -> Self {
        shard.load.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shard))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::Release);
        if self.0.retires() {
            self.0.waker.wake();
        }
    }
}

/// The queues of an interface, as other threads than their owner see them.
pub(crate) struct QueuesHandle<U> {
    /// No other queues of the engine have this number.
    pub(crate) number: u32,
    pub(crate) sockets: ArcSwap<Sockets<U>>,
    pub(crate) drops: Arc<Drops>,
    pub(crate) ownership: Ownership<ShardHandle>,
    /// Nothing is read for now.
    is_paused: AtomicBool,
    commands: Mutex<Vec<ShardCommand>>,
    /// The peers that it has frames staged for, or had.
    waits_for: Mutex<HashSet<u32>>,
}

/// What the control thread tells a shard.
pub(crate) enum ShardCommand {
    /// The peer has a session to send with: what was staged for it can go.
    SessionReady(Arc<Peer>),
    /// The peer will have none: what was staged for it is dropped.
    DropStaged(Arc<Peer>),
    /// The settings of its sockets changed: no peer keeps a socket of its own.
    ClearPaths,
}

impl<U> QueuesHandle<U> {
    pub(crate) fn new(number: u32, shard: Arc<ShardHandle>) -> Self {
        Self {
            number,
            sockets: ArcSwap::from_pointee(Sockets::unbound()),
            drops: Arc::default(),
            ownership: Ownership::new(shard),
            is_paused: AtomicBool::new(false),
            commands: Mutex::default(),
            waits_for: Mutex::default(),
        }
    }

    /// Has the shard look at what changed.
    pub(crate) fn wake(&self) {
        self.ownership.wake(|shard| {
            lock(&shard.due).push(self.number);
            shard.waker.wake();
        });
    }

    /// The shard stages frames for a peer: it wants to hear what becomes of the handshake. To be
    /// called before it asks for a session for the last time.
    pub(crate) fn wait_for(&self, peer: u32) {
        lock(&self.waits_for).insert(peer);
    }

    /// Leaves a command and wakes the shard. What concerns a handshake is left only if the shard
    /// waits for that.
    pub(crate) fn tell(&self, command: ShardCommand) {
        let is_wanted = match &command {
            ShardCommand::SessionReady(peer) | ShardCommand::DropStaged(peer) => {
                lock(&self.waits_for).remove(&peer.id())
            }
            ShardCommand::ClearPaths => true,
        };
        if is_wanted {
            lock(&self.commands).push(command);
            self.wake();
        }
    }

    /// Nothing is read for now, or all goes on.
    pub(crate) fn set_paused(&self, pauses: bool) {
        self.is_paused.store(pauses, Ordering::Release);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    /// The path pauses: the shard does what it was told when it is woken again.
    pub(crate) fn put_back(&self, command: ShardCommand) {
        lock(&self.commands).push(command);
    }

    pub(crate) fn take_commands(&self) -> Vec<ShardCommand> {
        std::mem::take(&mut *lock(&self.commands))
    }
}

impl<U> Common<U> {
    pub(crate) fn new(
        proto: Arc<adit_proto::Shared>,
        queues: QueuesHandle<U>,
        offloads: Offloads,
        is_verbose: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            proto,
            control: Inbox::new()?,
            queues,
            tunnel_ends: offloads.tun_gro_tunnel.then(TunnelEnds::default),
            mtu: AtomicUsize::new(1420),
            tun_refuses: Default::default(),
            refused_trains: AtomicU64::new(0),
            icmp_errors: Default::default(),
            journal: Journal::new(is_verbose),
            load: Load::default(),
            stopping: AtomicBool::new(false),
            end: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// The MTU of the TUN, which bounds padding.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed)
    }

    pub(crate) fn set_mtu(&self, mtu: usize) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    /// The TUN refused a GSO packet: from now on the packets of such are written one by one.
    pub(crate) fn tun_refused(&self, kind: Merged) {
        self.tun_refuses[kind as usize].store(true, Ordering::Relaxed);
    }

    pub(crate) fn tun_takes(&self, kind: Merged) -> bool {
        !self.tun_refuses[kind as usize].load(Ordering::Relaxed)
    }

    /// Trains that the kernel would not segment.
    pub(crate) fn count_refused_trains(&self, trains: u64) {
        if trains > 0 {
            self.refused_trains.fetch_add(trains, Ordering::Relaxed);
        }
    }

    /// Goes on with the counters of another process.
    pub(crate) fn set_counters(&self, state: &InterfaceState) {
        let named = |counters: &[(String, u64)], name: &str| {
            let found = counters.iter().find(|(known, _)| known == name);
            found.map_or(0, |(_, count)| *count)
        };
        let drops = &self.queues.drops;
        for reason in DropReason::ALL {
            drops.count(*reason, named(&state.drops, reason.name()));
        }
        for kind in IgnoredKind::ALL {
            drops.count_ignored(*kind, named(&state.ignored, kind.name()));
        }
        for kind in PassedKind::ALL {
            drops.count_passed(*kind, named(&state.passed, kind.name()));
        }
        for kind in IcmpKind::ALL {
            let count = named(&state.icmp_errors, kind.name());
            self.icmp_errors[*kind as usize].store(count, Ordering::Relaxed);
        }
        self.refused_trains
            .store(state.refused_trains, Ordering::Relaxed);
        for (refuses, known) in self.tun_refuses.iter().zip(&state.tun_refuses) {
            refuses.store(*known, Ordering::Relaxed);
        }
        let load = self.load.own();
        load.outbound.go_on_from(&state.outbound);
        load.inbound.go_on_from(&state.inbound);
        load.sent.go_on_from(&state.sent_trains);
        load.received.go_on_from(&state.received_trains);
        self.set_mtu(state.mtu);
    }

    /// What [`Self::set_counters`] takes; the control thread adds its part.
    pub(crate) fn counters(&self) -> InterfaceState {
        let drops = &self.queues.drops;
        let named = |(name, count): (&str, u64)| (name.to_owned(), count);
        let dropped = DropReason::ALL.iter().map(|it| (it.name(), drops.of(*it)));
        let passed = (PassedKind::ALL.iter()).map(|it| (it.name(), drops.passed(*it)));
        let ignored = (IgnoredKind::ALL.iter()).map(|it| (it.name(), drops.ignored(*it)));
        let icmp_errors = IcmpKind::ALL
            .iter()
            .map(|it| (it.name(), self.icmp_errors(*it)));
        let refuses = self.tun_refuses.iter();
        let load = self.load.read();
        InterfaceState {
            drops: dropped.map(named).collect(),
            ignored: ignored.map(named).collect(),
            passed: passed.map(named).collect(),
            icmp_errors: icmp_errors.map(named).collect(),
            refused_trains: self.refused_trains(),
            tun_refuses: refuses.map(|it| it.load(Ordering::Relaxed)).collect(),
            mtu: self.mtu(),
            outbound: load.outbound,
            inbound: load.inbound,
            sent_trains: load.sent,
            received_trains: load.received,
            ..InterfaceState::default()
        }
    }

    pub(crate) fn refused_trains(&self) -> u64 {
        self.refused_trains.load(Ordering::Relaxed)
    }

    /// Counts the ICMP errors that came back to a socket, and notes them. ICMP is not
    /// authenticated, so nothing else follows from it.
    pub(crate) fn take_errors(&self, socket: &impl UdpSocket, now: Time) {
        socket.take_errors(&mut |error, times| {
            self.count_icmp_error(error.kind, times);
            self.note(now, times, || Incident::Icmp { peer: None, error });
        });
    }

    /// Counts what a socket has dropped before it was queued, as if it had been received.
    pub(crate) fn count_filtered(&self, socket: &impl UdpSocket) {
        let Filtered {
            malformed,
            unknown,
            refused,
        } = socket.take_filtered();
        let drops = &self.queues.drops;
        let all = malformed + unknown + refused;
        if all > 0 {
            drops.count_passed(PassedKind::Received, all);
            drops.count(DropReason::MalformedDatagram, malformed);
            drops.count(DropReason::UnknownSession, unknown);
        }
        if refused > 0 {
            drops.count_passed(PassedKind::HandshakeMessages, refused);
            self.proto.gate().dropped(refused);
        }
    }

    pub(crate) fn count_icmp_error(&self, kind: IcmpKind, times: u64) {
        self.icmp_errors[kind as usize].fetch_add(times, Ordering::Relaxed);
    }

    pub(crate) fn icmp_errors(&self, kind: IcmpKind) -> u64 {
        self.icmp_errors[kind as usize].load(Ordering::Relaxed)
    }

    /// Something went wrong, so many `times`: the control thread tells of it, if anybody reads
    /// that.
    pub(crate) fn note(&self, now: Time, times: u64, incident: impl FnOnce() -> Incident) {
        if self.journal.note(now, times, incident) {
            self.control.waker.wake();
        }
    }

    /// Asks all threads to let go of the interface.
    pub(crate) fn stop(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.control.waker.wake();
            self.queues.wake();
        }
    }

    /// The interface cannot go on.
    pub(crate) fn fail(&self, error: io::Error) {
        lock(&self.end)
            .reason
            .get_or_insert(match TunErrorKind::of(&error) {
                TunErrorKind::Gone => StopReason::InterfaceGone,
                _ => StopReason::Failed(error),
            });
        self.stop();
    }

    /// Waits until the interface has ended, and returns why; the first caller learns that.
    pub(crate) fn wait(&self) -> StopReason {
        let mut end = lock(&self.end);
        while end.parts > 0 {
            let waited = self.ended.wait(end);
            end = waited.unwrap_or_else(PoisonError::into_inner);
        }
        end.reason.take().unwrap_or(StopReason::Asked)
    }

    /// Calls `on_end` when the interface has ended.
    pub(crate) fn on_end(&self, on_end: Box<dyn FnOnce() + Send>) {
        let mut end = lock(&self.end);
        if end.parts > 0 {
            end.on_end = Some(on_end);
        } else {
            drop(end);
            on_end();
        }
    }

    /// Has all threads that may have keys on their stacks overwrite these.
    pub(crate) fn overwrite_stacks(&self) {
        let shard = self.queues.ownership.owner();
        shard.waker.wake();
        shard.inbound_thread.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
