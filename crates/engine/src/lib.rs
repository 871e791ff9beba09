//! The data path of Adit.
//!
//! An [`Engine`] has shards: threads that process packets all the way, `outbound` from a TUN queue
//! to UDP sockets, `inbound` back. It runs any number of interfaces. Each of them is owned by one
//! shard, and idle shards help where one is not enough: an `ordered_queue` keeps packets in order. One
//! control thread does handshakes, timers and configuration for all, and publishes sessions and
//! routes that the shards read.
//!
//! What is around an interface is a [`Platform`]: [`LinuxPlatform`] is Linux, [`MemPlatform`] is one in
//! memory.
//!
//! A packet's outbound path: `adit_io::tun` → `outbound` → `adit_aead` → `adit_io::udp`; and in:
//! the mirror.
//!
//! An interface over memory, without the kernel's network and without rights:
//!
//! ```
//! use adit_engine::{Engine, MemPlatform};
//! use adit_io::{Offloads, testing::mem};
//!
//! let network = mem::MemNetwork::new();
//! let (tun, end) = mem::tun()?;
//! let host = MemPlatform::new(&network, "192.0.2.1:51820".parse().unwrap())?.with_tun(end.clone());
//! let engine = Engine::start(1)?;
//! let interface = engine.add(tun, host, Offloads::ALL)?;
//! assert_eq!(interface.get().unwrap().listen_port, 51820);
//! // Frames go in with `end.inject` and come out with `end.take`.
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]
// What only a host of its own needs.
#![cfg_attr(not(feature = "host"), allow(dead_code, unused_imports))]

mod control;
mod driver;
mod engine;
mod hand_over;
mod host;
mod inbound;
mod interface;
mod order;
mod outbound;
mod shards;
mod shared;
mod thread;

pub use adit_proto::{DropReason, IgnoredKind, PassedKind};
pub use driver::Driver;
pub use engine::{Engine, open_host_files};
pub use hand_over::importer;
pub use host::embedded::{Embedded, EmbeddedEnd, OnSocket};
#[cfg(feature = "host")]
pub use host::kernel::{EventListener, LinuxPlatform, Settings, VerboseLog};
pub use host::mem::{MemPlatform, PlatformEnd};
pub use host::platform::{EventSource, PathMtu, Platform, PlatformEvent, TunDrops};
#[cfg(feature = "host")]
pub use host::remembered::{count_anew, forget_endpoints, used_quotas};
#[cfg(feature = "host")]
pub use host::watch::Watches;
pub use interface::{Answered, EngineReport, Interface, Pending};
pub use shards::settings::{Liberties, OnStart, Policy, ThreadSettings};
pub use shared::counters::{BatchCounters, TrainCounters, WaitingCounters};
pub use shared::error::CommandError;
pub use shared::event::Event;
pub use shared::mailbox::{AllowanceChange, GivenAllowance, PeerCandidates, Resume};
pub use shared::rate_limited_log::{Incident, source_network};
pub use shared::sockets::Sockets;
pub use shared::state::{HandedSocket, InterfaceState, StopReason};
#[cfg(debug_assertions)]
pub use thread::progress;
pub use thread::wake::Bell;
