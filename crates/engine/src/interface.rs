//! The handle of a running interface.

use std::any::Any;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use adit_io::{IcmpKind, Offloads, TunQueue, UdpSocket};
use adit_offload::Merged;
use adit_proto::config::{DeviceChange, DeviceStatus, PublicKey};
use adit_proto::{DropReason, HandshakeStats, IgnoredKind, LastSeen, PassedKind, PeerCall};

use crate::shards::queues::Queues;
use crate::shared::common::Common;
use crate::shared::counters::{BatchCounters, TrainCounters, WaitingCounters};
use crate::shared::error::CommandError;
use crate::shared::mailbox::{
    AllowanceChange, ControlCommand, GivenAllowance, OfControl, PeerCandidates,
};
use crate::shared::sockets::RxQueueSocket;
use crate::shared::state::{HandedSocket, StopReason};

/// A running interface. Dropping it ends the interface.
pub struct Interface {
    pub(crate) common: Arc<dyn AnyCommon>,
    /// Its threads, which end after it.
    _engine: Arc<dyn Any + Send + Sync>,
}

/// The counters so far and the settings in force.
#[derive(Clone, Debug)]
pub struct EngineReport {
    /// Offloads of the sockets and of writing to the TUN that are in force; the caller knows those
    /// of reading from it.
    pub offloads: Offloads,
    /// Trains that the kernel refused to segment and that went out datagram by datagram.
    pub refused_trains: u64,
    /// The AEAD implementation in use.
    pub aead: &'static str,
    /// Packets dropped, by the name of the reason; zeros included.
    pub drops: Vec<(&'static str, u64)>,
    /// Packets that are no drops though no peer got them, by the name of what they are; zeros
    /// included.
    pub ignored: Vec<(&'static str, u64)>,
    /// Packets that passed, by the name of where; zeros included.
    pub passed: Vec<(&'static str, u64)>,
    /// ICMP errors that came back, by the name of what they say; zeros included.
    pub icmp_errors: Vec<(&'static str, u64)>,
    /// How handshakes went.
    pub handshakes: HandshakeStats,
    /// Threads that process its packets at this moment.
    pub shards: usize,
    /// Features that the kernel refused to this process, by the name that the status has for them.
    pub refused: Vec<&'static str>,
    /// Batches that were taken from the TUN.
    pub outbound: BatchCounters,
    /// Batches that were taken from the sockets.
    pub inbound: BatchCounters,
    /// Data messages by receive queue; empty while there is one.
    pub rx_queues: Vec<u64>,
    /// Load of each receive queue lately, in units of [`adit_proto::work`] a second.
    pub rx_queue_loads: Vec<u64>,
    /// Trains that were sent.
    pub sent_trains: TrainCounters,
    /// Trains that were received.
    pub received_trains: TrainCounters,
    /// Packets and messages that wait at the moment.
    pub waiting: WaitingCounters,
}

/// An answer that the control thread owes.
#[derive(Debug)]
pub struct Pending<R>(Receiver<R>);

/// How an answer stands.
#[derive(Debug)]
pub enum Answered<R> {
    /// It is there.
    Yes(R),
    /// It comes.
    NotYet,
    /// It does not come: the interface ends.
    Never,
}

impl<R> Pending<R> {
    /// Waits for it; `None` if the interface ends.
    pub fn wait(self) -> Option<R> {
        self.0.recv().ok()
    }

    /// Waits for it for so long at most.
    pub fn wait_for(&self, timeout: Duration) -> Answered<R> {
        match self.0.recv_timeout(timeout) {
            Ok(answer) => Answered::Yes(answer),
            Err(RecvTimeoutError::Timeout) => Answered::NotYet,
            Err(RecvTimeoutError::Disconnected) => Answered::Never,
        }
    }
}

/// Peers that the control thread looks at without doing anything else meanwhile.
const LOOKED_AT: usize = 256;

impl Interface {
    pub(crate) fn new<T: TunQueue + 'static, U: UdpSocket + 'static>(
        queues: &Arc<Queues<T, U>>,
        offloads: Offloads,
        engine: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            common: Arc::new(RunningInterface {
                common: Arc::clone(&queues.common),
                queues: Arc::downgrade(queues),
                offloads,
            }),
            _engine: engine,
        }
    }

    /// Applies a transaction, whole or not at all. Blocks until it is in force.
    ///
    /// # Errors
    ///
    /// [`CommandError`] says what was refused; nothing was changed.
    pub fn set(&self, change: DeviceChange) -> Result<(), CommandError> {
        let answer = self.begin_set(change).wait();
        answer.map_or(Err(CommandError::Stopping), |(result, _)| result)
    }

    /// Begins what [`Self::set`] does. The change comes back with the answer, to be freed.
    pub fn begin_set(
        &self,
        change: DeviceChange,
    ) -> Pending<(Result<(), CommandError>, DeviceChange)> {
        let (answer, result) = sync_channel(1);
        self.common.command(ControlCommand::Set(change, answer));
        Pending(result)
    }

    /// Configuration and status as of now; an error once the interface ends.
    ///
    /// # Errors
    ///
    /// [`CommandError::NoMemory`], and [`CommandError::Stopping`] once the interface ends.
    pub fn get(&self) -> Result<DeviceStatus, CommandError> {
        let answer = self.begin_get().wait();
        answer.unwrap_or(Err(CommandError::Stopping))
    }

    /// Begins what [`Self::get`] does.
    pub fn begin_get(&self) -> Pending<Result<DeviceStatus, CommandError>> {
        let (answer, result) = sync_channel(1);
        self.common.command(ControlCommand::Get(answer));
        Pending(result)
    }

    /// The settings and only the peers that have these keys, and how many peers there are. Takes some
    /// microseconds for each key.
    ///
    /// # Errors
    ///
    /// As of [`Self::get`].
    pub fn look(&self, keys: &[PublicKey]) -> Result<(DeviceStatus, usize), CommandError> {
        let ask = |keys: &[PublicKey]| {
            let (answer, result) = sync_channel(1);
            self.common
                .command(ControlCommand::Look(keys.to_vec(), answer));
            result.recv().unwrap_or(Err(CommandError::Stopping))
        };
        let (first, rest) = keys.split_at(keys.len().min(LOOKED_AT));
        let (mut status, mut count) = ask(first)?;
        for keys in rest.chunks(LOOKED_AT) {
            let (more, now) = ask(keys)?;
            status.peers.extend(more.peers);
            count = now;
        }
        Ok((status, count))
    }

    /// Begins a handshake with a peer, unless one is under way. Returns the time until its initiation
    /// leaves, which the protocol's limits decide; `None` if there is no such peer.
    pub fn probe(&self, peer: PublicKey) -> Option<Duration> {
        self.begin_probe(peer).wait().flatten()
    }

    /// Begins what [`Self::probe`] does.
    pub fn begin_probe(&self, peer: PublicKey) -> Pending<Option<Duration>> {
        let (answer, result) = sync_channel(1);
        self.common.command(ControlCommand::Probe(peer, answer));
        Pending(result)
    }

    /// The addresses that the names of peers' endpoints lead to now; `None` for a peer without a
    /// name. It does not block, and the caller bounds how often it comes.
    pub fn set_candidates(&self, named: Vec<PeerCandidates>) {
        self.common.command(ControlCommand::Candidates(named));
    }

    /// Sets what peers may do, in pieces, as [`Self::set`] does. With `replace`, all others may do
    /// everything. Returns what changed.
    ///
    /// # Errors
    ///
    /// [`CommandError::Stopping`] once the interface ends or another process goes on with it: nothing is
    /// changed.
    pub fn allow(
        &self,
        given: Vec<GivenAllowance>,
        replace: bool,
    ) -> Result<Vec<AllowanceChange>, CommandError> {
        let (answer, result) = sync_channel(1);
        self.common
            .command(ControlCommand::Allow(given, replace, answer));
        result.recv().map_err(|_| CommandError::Stopping)
    }

    /// Begins handshakes with peers that another host had until now, from this address
    /// ([`adit_proto::Device::call`]). Returns what becomes of each. Some thousands take a millisecond, in
    /// which nothing else is configured: the caller bounds how many come at once.
    ///
    /// # Errors
    ///
    /// [`CommandError::Stopping`] once the interface ends or another process goes on with it.
    pub fn call(
        &self,
        peers: Vec<(PublicKey, LastSeen)>,
        from: Option<IpAddr>,
    ) -> Result<Vec<PeerCall>, CommandError> {
        let (answer, result) = sync_channel(1);
        self.common
            .command(ControlCommand::Call(peers, from, answer));
        result.recv().map_err(|_| CommandError::Stopping)
    }

    /// The counters so far and the settings in force.
    pub fn report(&self) -> EngineReport {
        let (answer, result) = sync_channel(1);
        self.common.command(ControlCommand::Report(answer));
        self.common.report(result.recv().unwrap_or_default())
    }

    /// The same without what the control thread would have to say, for which nobody waits: how
    /// handshakes went, the offloads of sockets, the load of receive queues.
    pub fn report_at_once(&self) -> EngineReport {
        self.common.report(OfControl::default())
    }

    /// For a watchdog: waits for the control thread, and returns whether the threads that process
    /// packets have answered the call before this one. They are to have some seconds for that.
    pub fn responds(&self) -> bool {
        let (answer, result) = sync_channel(1);
        self.common.command(ControlCommand::Report(answer));
        result.recv().is_ok() && self.common.responds()
    }

    /// Whether the listener of the settings is to be told of all. Refused messages,
    /// failed sends and the like are told only then.
    pub fn listen(&self, listens: bool) {
        self.common.listen(listens);
    }

    /// Asks it to end.
    pub fn stop(&self) {
        self.common.stop();
    }

    /// Waits until the engine has closed its TUN and its sockets, and says why it ended; the first
    /// caller learns that.
    pub fn wait(&self) -> StopReason {
        self.common.wait()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.common.has_ended()
    }

    /// Has `on_end` called when it has ended, at once if it has. It is called on a thread of the
    /// engine, which it must not block.
    pub fn on_end(&self, on_end: impl FnOnce() + Send + 'static) {
        self.common.on_end(Box::new(on_end));
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.stop();
        self.wait();
    }
}

/// The methods of [`Common`] that the handle needs, whatever its sockets are.
pub(crate) trait AnyCommon: Send + Sync {
    fn command(&self, command: ControlCommand);
    fn report(&self, of_control: OfControl) -> EngineReport;
    fn responds(&self) -> bool;
    fn listen(&self, listens: bool);
    fn stop(&self);
    fn wait(&self) -> StopReason;
    fn has_ended(&self) -> bool;
    fn on_end(&self, on_end: Box<dyn FnOnce() + Send>);
    /// See [`Queues::pause`].
    fn pause(&self, pauses: bool) -> bool;
    /// See [`Queues::is_drained`].
    fn is_drained(&self) -> bool;
    /// Packets that wait for sessions.
    fn staged_packets(&self) -> u64;
    fn sockets(&self) -> io::Result<Vec<HandedSocket>>;
}

struct RunningInterface<T, U> {
    common: Arc<Common<U>>,
    /// Gone once the interface ends.
    queues: Weak<Queues<T, U>>,
    offloads: Offloads,
}

impl<T, U: UdpSocket> RunningInterface<T, U> {
    /// The names of what the kernel refused.
    fn refused(&self) -> Vec<&'static str> {
        let queues = &self.common.queues;
        let (mut receive, mut send) = (false, false);
        for it in queues.sockets.load().all() {
            let short = it.socket.short_buffers();
            receive |= short.receive;
            send |= short.send;
        }
        let all = [
            ("priority", queues.ownership.owner().is_priority_refused()),
            ("receive_buffer", receive),
            ("send_buffer", send),
        ];
        all.into_iter()
            .filter_map(|(name, refused)| refused.then_some(name))
            .collect()
    }
}

impl<T: TunQueue, U: UdpSocket> AnyCommon for RunningInterface<T, U> {
    fn command(&self, command: ControlCommand) {
        // Once the control thread has ended, no command is executed: dropping this one answers the
        // caller.
        if !self.common.is_stopping() {
            self.common.control.command(command);
        }
    }

    fn report(&self, of_control: OfControl) -> EngineReport {
        let OfControl {
            handshakes,
            offloads,
            rx_queue_loads,
        } = of_control;
        let common = &self.common;
        let drops = &common.queues.drops;
        let load = common.load.read();
        let mut offloads = self.offloads.and(offloads);
        // Packets in UDP tunnels are merged only where TCP is.
        offloads.tun_gro_tunnel &= offloads.tun_gro_tcp && common.tun_takes(Merged::Tunnel);
        offloads.tun_gro_tcp &= common.tun_takes(Merged::Tcp);
        offloads.tun_gro_udp &= common.tun_takes(Merged::Udp);
        EngineReport {
            offloads,
            refused_trains: common.refused_trains(),
            aead: adit_aead::implementation(),
            drops: DropReason::ALL
                .iter()
                .map(|reason| (reason.name(), drops.of(*reason)))
                .collect(),
            ignored: IgnoredKind::ALL
                .iter()
                .map(|kind| (kind.name(), drops.ignored(*kind)))
                .collect(),
            passed: PassedKind::ALL
                .iter()
                .map(|kind| (kind.name(), drops.passed(*kind)))
                .collect(),
            icmp_errors: IcmpKind::ALL
                .iter()
                .map(|kind| (kind.name(), common.icmp_errors(*kind)))
                .collect(),
            handshakes,
            shards: 1 + self.queues.upgrade().map_or(0, |queues| queues.workers()),
            refused: self.refused(),
            outbound: load.outbound,
            inbound: load.inbound,
            // As the receive queues of peers: while their number changes, it is the one before.
            rx_queues: match common.proto.rx_queues().count() {
                1 => Vec::new(),
                rx_queues => load.rx_queues.iter().take(rx_queues).copied().collect(),
            },
            rx_queue_loads,
            sent_trains: load.sent,
            received_trains: load.received,
            waiting: WaitingCounters {
                handshake_messages: common.control.handshakes() as u64,
                ..common.load.waiting.read()
            },
        }
    }

    fn responds(&self) -> bool {
        self.common.queues.ownership.owner().responds()
    }

    fn listen(&self, listens: bool) {
        self.common.log.listen(listens);
    }

    fn stop(&self) {
        self.common.stop();
    }

    fn wait(&self) -> StopReason {
        self.common.wait()
    }

    fn has_ended(&self) -> bool {
        self.common.has_ended()
    }

    fn on_end(&self, on_end: Box<dyn FnOnce() + Send>) {
        self.common.on_end(on_end);
    }

    fn pause(&self, pauses: bool) -> bool {
        let Some(queues) = self.queues.upgrade() else {
            return true;
        };
        let can = queues.pause(pauses);
        queues.handle().wake();
        can
    }

    fn is_drained(&self) -> bool {
        let queues = self.queues.upgrade();
        queues.is_none_or(|queues| queues.is_drained())
    }

    fn staged_packets(&self) -> u64 {
        let queues = self.queues.upgrade();
        queues.map_or(0, |queues| queues.outbound.staged_packets())
    }

    fn sockets(&self) -> io::Result<Vec<HandedSocket>> {
        let sockets = self.common.queues.sockets.load();
        let handed = sockets.all().map(|RxQueueSocket { v6, socket, .. }| {
            Ok(HandedSocket {
                v6,
                fd: socket.fd().try_clone_to_owned()?,
                state: socket.state(),
            })
        });
        handed.collect()
    }
}
