//! The data path of Adit.
//!
//! Each shard is a thread that processes packets all the way: `outbound` from its TUN queue to its
//! UDP sockets, `inbound` back. One control thread does handshakes, timers and configuration, and
//! publishes sessions and routes that the shards read.
//!
//! What is around the engine is a [`Platform`]: [`Kernel`] is Linux, [`MemPlatform`] is one in
//! memory.
//!
//! A packet's outbound path: `adit_io::tun` → `outbound` → `adit_aead` → `adit_io::udp`; and in:
//! the mirror.
//!
//! An engine over memory, without the kernel's network and without rights:
//!
//! ```
//! use adit_engine::{Engine, MemPlatform};
//! use adit_io::{Offloads, testing::mem};
//!
//! let network = mem::Network::new();
//! let (tun, end) = mem::tun()?;
//! let host = MemPlatform::new(&network, "192.0.2.1:51820".parse().unwrap())?.with_tuns([end.clone()]);
//! let engine = Engine::start(vec![tun], host, Offloads::ALL)?;
//! assert_eq!(engine.get().unwrap().listen_port, 51820);
//! // Frames go in with `end.inject` and come out with `end.take`.
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod clock;
mod common;
mod control;
mod error;
mod inbound;
mod inbound_path;
mod inbox;
mod journal;
mod kernel;
mod lock;
mod mem;
mod outbound;
mod paths;
mod placement;
mod platform;
mod poll;
mod sender;
mod shard;
mod staged;
mod train;
mod wake;

use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use adit_io::tun::TunErrorKind;
use adit_io::{IcmpKind, Offloads, TunQueue};
use adit_offload::Merged;
use adit_proto::config::{DeviceChange, DeviceStatus};
use adit_proto::{Device, Drops, HandshakeStats};

pub use adit_proto::{DropReason, IgnoredKind};
pub use common::Sockets;
pub use error::CommandError;
pub use journal::Incident;
pub use kernel::{Kernel, Settings, VerboseLog};
pub use mem::{MemPlatform, PlatformEnd};
pub use platform::{Platform, PlatformEvent, TunDrops};

use common::{Common, ShardHandle};
use control::Control;
use inbox::Command;
use lock::lock;
use shard::Shard;

/// A running data path. Dropping it stops it.
pub struct Engine {
    handle: Arc<dyn Face>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

/// Why the engine stopped.
#[derive(Debug)]
pub enum StopReason {
    /// [`Engine::stop`] was called.
    Asked,
    /// The interface was deleted.
    InterfaceGone,
    /// A thread failed.
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
    /// Threads that process packets in both directions.
    pub shards: usize,
    /// What the kernel refused to this process, by the name that the status has for it.
    pub refused: Vec<&'static str>,
}

impl Engine {
    /// Starts one shard per TUN queue, and the control thread.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2), epoll_create(2), timerfd_create(2) and clone(2), as when there are no
    /// further descriptors or threads.
    ///
    /// # Panics
    ///
    /// If getrandom(2) fails, which it does not on Linux 3.17 and later.
    pub fn start<T, H>(tuns: Vec<T>, platform: H, offloads: Offloads) -> io::Result<Self>
    where
        T: TunQueue + 'static,
        H: Platform,
    {
        let device = Device::new(Box::new(|bytes| {
            rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
                .expect("getrandom gives up to 256 bytes whole");
        }));
        let handles = tuns
            .iter()
            .map(|_| ShardHandle::new())
            .collect::<io::Result<Vec<_>>>()?;
        let is_verbose = platform.is_verbose();
        let common = Common::new(device.shared(), handles, offloads, is_verbose)?;
        let common = Arc::new(common);
        let mut shards = Vec::new();
        for (number, tun) in tuns.into_iter().enumerate() {
            shards.push(Shard::new(number, tun, Arc::clone(&common), offloads)?);
        }
        let control = Control::new(device, platform, Arc::clone(&common))?;
        let engine = Self {
            handle: Arc::new(Running {
                common: Arc::clone(&common),
                offloads,
            }),
            threads: Mutex::default(),
        };
        engine.spawn("adit-control".into(), Arc::clone(&common), move || {
            control.run()
        })?;
        for (number, (shard, inbound_path)) in shards.into_iter().enumerate() {
            engine.spawn(
                format!("adit-shard-{number}"),
                Arc::clone(&common),
                move || shard.run(),
            )?;
            engine.spawn(
                format!("adit-inbound-{number}"),
                Arc::clone(&common),
                move || inbound_path.run(),
            )?;
        }
        Ok(engine)
    }

    /// A thread whose end, for whatever reason, stops the others.
    fn spawn<U: Send + Sync + 'static>(
        &self,
        name: String,
        common: Arc<Common<U>>,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        struct StopAll<U>(Arc<Common<U>>);
        impl<U> Drop for StopAll<U> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _stop_all = StopAll(common);
            run()
        })?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Applies a transaction, whole or not at all. Blocks until it is in force.
    ///
    /// # Errors
    ///
    /// [`CommandError`] says what was refused; nothing was changed.
    pub fn set(&self, change: DeviceChange) -> Result<(), CommandError> {
        let (answer, result) = sync_channel(1);
        self.handle.command(Command::Set(change, answer));
        result.recv().unwrap_or(Err(CommandError::Stopping))
    }

    /// Configuration and status as of now; an error once the engine stops.
    ///
    /// # Errors
    ///
    /// [`CommandError::Stopping`] once the engine stops.
    pub fn get(&self) -> Result<DeviceStatus, CommandError> {
        let (answer, result) = sync_channel(1);
        self.handle.command(Command::Get(answer));
        result.recv().map_err(|_| CommandError::Stopping)
    }

    /// The counters so far and the settings in force.
    pub fn report(&self) -> EngineReport {
        let (answer, result) = sync_channel(1);
        self.handle.command(Command::Report(answer));
        let (handshakes, offloads) = result.recv().unwrap_or_default();
        self.handle.report(handshakes, offloads)
    }

    /// Asks all threads to end.
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Waits until all threads have ended, and says why.
    pub fn wait(&self) -> StopReason {
        let threads = std::mem::take(&mut *lock(&self.threads));
        let mut reason = StopReason::Asked;
        for thread in threads {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(e)) if TunErrorKind::of(&e) == TunErrorKind::Gone => {
                    reason = StopReason::InterfaceGone
                }
                Ok(Err(e)) => reason = StopReason::Failed(e),
                Err(_) => reason = StopReason::Failed(io::Error::other("a thread panicked")),
            }
        }
        reason
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
        self.wait();
    }
}

/// What the handle needs of [`Common`], whatever its sockets are.
trait Face: Send + Sync {
    fn command(&self, command: Command);
    fn report(&self, handshakes: HandshakeStats, sockets: Offloads) -> EngineReport;
    fn stop(&self);
}

struct Running<U> {
    common: Arc<Common<U>>,
    offloads: Offloads,
}

impl<U: adit_io::UdpSocket> Running<U> {
    /// The names of what the kernel refused.
    fn refused(&self) -> Vec<&'static str> {
        let sockets = self.common.shards.iter().map(|shard| shard.sockets.load());
        let (mut receive, mut send) = (false, false);
        for sockets in sockets {
            for socket in sockets.both() {
                let short = socket.short_buffers();
                receive |= short.receive;
                send |= short.send;
            }
        }
        let all = [
            ("priority", self.common.is_priority_refused()),
            ("receive_buffer", receive),
            ("send_buffer", send),
        ];
        all.into_iter()
            .filter_map(|(name, refused)| refused.then_some(name))
            .collect()
    }
}

impl<U: adit_io::UdpSocket> Face for Running<U> {
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
            let shards = common.shards.iter();
            shards.map(|shard| count(&shard.drops)).sum()
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
            shards: common.shards.len(),
            refused: self.refused(),
        }
    }

    fn stop(&self) {
        self.common.stop();
    }
}
