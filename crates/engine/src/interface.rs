//! The handle of a running interface.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use adit_io::{IcmpKind, Offloads, UdpSocket};
use adit_offload::Merged;
use adit_proto::config::{DeviceChange, DeviceStatus};
use adit_proto::{DropReason, Drops, HandshakeStats, IgnoredKind};

use crate::common::Common;
use crate::error::CommandError;
use crate::inbox::Command;

/// A running interface. Dropping it ends the interface.
pub struct Interface {
    common: Arc<dyn AnyCommon>,
    /// Its threads, which end after it.
    _engine: Arc<dyn Any + Send + Sync>,
}

/// Why an interface ended.
#[derive(Debug)]
pub enum StopReason {
    /// [`Interface::stop`] was called.
    Asked,
    /// The device was deleted.
    InterfaceGone,
    /// A thread, or the device, failed.
    Failed(io::Error),
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
    /// ICMP errors that came back, by the name of what they say; zeros included.
    pub icmp_errors: Vec<(&'static str, u64)>,
    /// How handshakes went.
    pub handshakes: HandshakeStats,
    /// Threads that process its packets.
    pub shards: usize,
    /// What the kernel refused to this process, by the name that the status has for it.
    pub refused: Vec<&'static str>,
}

impl Interface {
    pub(crate) fn new<U: UdpSocket + 'static>(
        common: Arc<Common<U>>,
        offloads: Offloads,
        engine: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            common: Arc::new(Running { common, offloads }),
            _engine: engine,
        }
    }

    /// Applies a transaction, whole or not at all. Blocks until it is in force.
    ///
    /// # Errors
    ///
    /// [`CommandError`] says what was refused; nothing was changed.
    pub fn set(&self, change: DeviceChange) -> Result<(), CommandError> {
        let (answer, result) = sync_channel(1);
        self.common.command(Command::Set(change, answer));
        result
            .recv()
            .map_or(Err(CommandError::Stopping), |(result, _)| result)
    }

    /// Configuration and status as of now; an error once the interface ends.
    ///
    /// # Errors
    ///
    /// [`CommandError::Stopping`] once the interface ends.
    pub fn get(&self) -> Result<DeviceStatus, CommandError> {
        let (answer, result) = sync_channel(1);
        self.common.command(Command::Get(answer));
        result.recv().map_err(|_| CommandError::Stopping)
    }

    /// The counters so far and the settings in force.
    pub fn report(&self) -> EngineReport {
        let (answer, result) = sync_channel(1);
        self.common.command(Command::Report(answer));
        let (handshakes, offloads) = result.recv().unwrap_or_default();
        self.common.report(handshakes, offloads)
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

/// What the handle needs of [`Common`], whatever its sockets are.
trait AnyCommon: Send + Sync {
    fn command(&self, command: Command);
    fn report(&self, handshakes: HandshakeStats, sockets: Offloads) -> EngineReport;
    fn stop(&self);
    fn wait(&self) -> StopReason;
    fn on_end(&self, on_end: Box<dyn FnOnce() + Send>);
}

struct Running<U> {
    common: Arc<Common<U>>,
    offloads: Offloads,
}

impl<U: UdpSocket> Running<U> {
    /// The names of what the kernel refused.
    fn refused(&self) -> Vec<&'static str> {
        let queues = self.common.queues.iter();
        let sockets = queues.map(|queues| queues.sockets.load());
        let (mut receive, mut send) = (false, false);
        for sockets in sockets {
            for socket in sockets.both() {
                let short = socket.short_buffers();
                receive |= short.receive;
                send |= short.send;
            }
        }
        let mut queues = self.common.queues.iter();
        let all = [
            (
                "priority",
                queues.any(|queues| queues.shard.is_priority_refused()),
            ),
            ("receive_buffer", receive),
            ("send_buffer", send),
        ];
        all.into_iter()
            .filter_map(|(name, refused)| refused.then_some(name))
            .collect()
    }
}

impl<U: UdpSocket> AnyCommon for Running<U> {
    fn command(&self, command: Command) {
        // Once the control thread has ended, no command is executed: dropping this one answers the
        // caller.
        if !self.common.is_stopping() {
            self.common.control.command(command);
        }
    }

    fn report(&self, handshakes: HandshakeStats, sockets: Offloads) -> EngineReport {
        let common = &self.common;
        let sum = |count: &dyn Fn(&Drops) -> u64| {
            let queues = common.queues.iter();
            queues.map(|queues| count(&queues.drops)).sum()
        };
        let mut offloads = self.offloads.and(sockets);
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
                .map(|reason| (reason.name(), sum(&|drops| drops.of(*reason))))
                .collect(),
            ignored: IgnoredKind::ALL
                .iter()
                .map(|kind| (kind.name(), sum(&|drops| drops.ignored(*kind))))
                .collect(),
            icmp_errors: IcmpKind::ALL
                .iter()
                .map(|kind| (kind.name(), common.icmp_errors(*kind)))
                .collect(),
            handshakes,
            shards: common.queues.len(),
            refused: self.refused(),
        }
    }

    fn stop(&self) {
        self.common.stop();
    }

    fn wait(&self) -> StopReason {
        self.common.wait()
    }

    fn on_end(&self, on_end: Box<dyn FnOnce() + Send>) {
        self.common.on_end(on_end);
    }
}
