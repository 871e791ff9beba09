//! The data path of Adit.
//!
//! An [`Engine`] has shards: threads that process packets all the way, `outbound` from a TUN queue
//! to UDP sockets, `inbound` back. It runs any number of interfaces. Each of them is owned by one
//! shard, and idle shards help where one is not enough: the `gates` of a queue keep its order. One
//! control thread does handshakes, timers and configuration for all, and publishes sessions and
//! routes that the shards read.
//!
//! What is around an interface is a [`Platform`]: [`Kernel`] is Linux, [`MemPlatform`] is one in
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
//! let network = mem::Network::new();
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

mod arrivals;
mod clock;
mod common;
mod contain;
mod control;
mod crew;
mod engine;
mod error;
mod event;
mod gates;
mod handed_over;
mod inbound;
mod inbound_thread;
mod inbox;
mod interface;
mod journal;
mod kernel;
mod lanes;
mod load;
mod lock;
mod mem;
mod memory;
mod outbound;
mod owner;
mod ownership;
mod parts;
mod paths;
mod placement;
mod platform;
mod poll;
mod priority;
#[cfg(debug_assertions)]
pub mod progress;
mod queues;
mod remembered;
mod sender;
mod shard;
mod shares;
mod spares;
mod staged;
mod sync;
mod train;
mod wake;
mod watch;

pub use adit_proto::{DropReason, IgnoredKind, PassedKind};
pub use common::Sockets;
pub use crew::{Policy, ThreadSettings};
pub use engine::Engine;
pub use error::CommandError;
pub use event::Event;
pub use handed_over::{HandedSocket, InterfaceState, Resume, importer};
pub use inbox::Candidates;
pub use interface::{EngineReport, Interface, StopReason};
pub use journal::Incident;
pub use kernel::{Kernel, Listener, Settings, VerboseLog};
pub use load::{BatchCounters, TrainCounters, WaitingCounters};
pub use mem::{MemPlatform, PlatformEnd};
pub use platform::{PathMtu, Platform, PlatformEvent, Source, TunDrops};
pub use watch::Watches;
