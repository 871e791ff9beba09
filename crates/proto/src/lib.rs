//! WireGuard's protocol without I/O, clock, threads or unsafe code.
//!
//! [`Device`] is the core that one control thread owns. It has four families of methods:
//!
//! - getters look at it: [`Device::status`], [`Device::peer`], [`Device::handshake_stats`];
//! - `handle_*` tell it what happened: a datagram came in or left, a shard raised an event, a
//!   deadline passed;
//! - commands change it: [`Device::apply`];
//! - `poll_*` take out what it wants: [`Device::poll_output`], [`Device::next_deadline`].
//!
//! The drain rule: after every `handle_*` and every command, call [`Device::poll_output`] until it
//! returns `None`. Then sleep until [`Device::next_deadline`] at most, and call
//! [`Device::handle_timeout`]: at once if that has passed. It has passed whenever a handshake is
//! wanted, because nothing else sends initiations. Time and randomness are arguments.
//!
//! Packets need not pass through the device. Shards send and receive trains of them with what the
//! device publishes: a [`Peer`] for each peer, its [`Session`]s and the routes, all in [`Shared`].
//! They check sources, move the replay window, trim the padding, and note what they did. While
//! many handshake messages arrive, they pass on only what their [`Admission`] lets through. An
//! embedder that needs no trains has commands for one packet, which do all of that:
//! [`Device::seal`], [`Device::open`] and [`Device::seal_keepalive`].
//!
//! Two devices shake hands and exchange a packet, joined by function calls:
//!
//! ```
//! use std::io::Read;
//! use std::net::SocketAddr;
//! use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, Secret};
//! use adit_proto::{Device, NotSealed, Output, Tai64N, Time};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A real program asks its clocks: boot time, and the time of day.
//! let (now, wall) = (Time(1), Tai64N::from_unix(std::time::Duration::from_secs(1_800_000_000)));
//! let addrs: [SocketAddr; 2] = ["192.0.2.1:51820".parse()?, "192.0.2.2:51820".parse()?];
//! let mut devices = [1, 2].map(|n| {
//!     let mut urandom = std::fs::File::open("/dev/urandom").expect("random bytes");
//!     let random = Box::new(move |bytes: &mut [u8]| urandom.read_exact(bytes).expect("enough"));
//!     let mut device = Device::new(random);
//!     let private_key = Some(Secret::new(&[n; 32]));
//!     device.apply(now, &DeviceChange { private_key, ..Default::default() }).expect("few peers");
//!     device
//! });
//! for n in [0, 1] {
//!     let mut peer = PeerChange::new(devices[1 - n].status().public_key.expect("just set"));
//!     peer.endpoint = Some(addrs[1 - n]);
//!     let block = if n == 0 { "10.0.0.2" } else { "10.0.0.1" };
//!     peer.allowed_ips = vec![AllowedIpChange::Add(Cidr::new(block.parse()?, 32).expect("a prefix"))];
//!     devices[n].apply(now, &DeviceChange { peers: vec![peer], ..Default::default() })?;
//! }
//!
//! // An IPv4 header without payload from 10.0.0.1 to 10.0.0.2: without a session it has to wait.
//! let mut packet = [0; 20];
//! (packet[0], packet[3]) = (0x45, 20);
//! packet[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
//! let mut datagram = [0; 64];
//! let waits = devices[0].seal(now, wall, &packet, 1420, &mut datagram);
//! assert!(matches!(waits, Err(NotSealed::NoSession(_))));
//!
//! // Lets both do what they want done, until nothing is left.
//! loop {
//!     let mut quiet = true;
//!     for n in [0, 1] {
//!         if devices[n].next_deadline().is_some_and(|at| at <= now) {
//!             devices[n].handle_timeout(now, wall);
//!         }
//!         while let Some(output) = devices[n].poll_output() {
//!             quiet = false;
//!             match output {
//!                 Output::Handshake { datagram, peer, .. } => {
//!                     devices[n].handle_sent(&datagram, peer.as_ref(), true);
//!                     devices[1 - n].handle_handshake(now, wall, addrs[n].into(), &datagram, false);
//!                 }
//!                 Output::Keepalive { peer } => {
//!                     if let Some((_, mut datagram)) = devices[n].seal_keepalive(now, wall, &peer) {
//!                         let empty = devices[1 - n].open(now, wall, addrs[n].into(), &mut datagram);
//!                         assert_eq!(empty, Ok(&[][..]));
//!                     }
//!                 }
//!                 // What was kept is sealed now, or dropped.
//!                 Output::SessionReady { .. } | Output::DropStaged { .. } => {}
//!                 // A program may watch.
//!                 Output::Event(_) => {}
//!             }
//!         }
//!     }
//!     if quiet { break; }
//! }
//!
//! let sealed = devices[0].seal(now, wall, &packet, 1420, &mut datagram);
//! let Ok((to, len)) = sealed else { panic!("a session") };
//! assert_eq!(to.addr, addrs[1]);
//! assert_eq!(devices[1].open(now, wall, addrs[0].into(), &mut datagram[..len]), Ok(&packet[..]));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod admission;
mod allowance;
mod allowed_ips;
mod blake2s;
pub mod config;
mod cookie;
mod crypto;
mod device;
mod drops;
mod endpoint;
mod expected;
mod explained;
mod in_use;
mod limiter;
pub mod limits;
pub mod memory;
mod noise;
mod peer;
mod per_thread;
mod replay;
mod replies;
mod rx_queues;
mod secret;
mod session;
mod shared;
mod stats;
mod sync;
mod time;
pub mod wire;

pub use admission::{Admission, Room, Screened};
pub use allowance::{Access, Allowance, Limit, Limits, counted};
pub use allowed_ips::AllowedIps;
pub use device::{
    ActiveEndpoints, ConfigError, Device, FailureReason, HAND_OVER_FORMAT, HandshakeFailure,
    HandshakeKind, HandshakeOutcome, Import, LastSeen, Liveness, NotImported, NotOpened, NotSealed,
    Output, PeerCall, PeerEvent, Random, Refusal, Transaction,
};
pub use drops::{
    Counter, DropReason, Drops, IgnoredKind, PacketAccounting, PassedKind, packet_accounting,
};
pub use endpoint::{Endpoint, Source};
pub use in_use::{INDEX_BUCKETS, InUse};
pub use noise::shown_key;
pub use peer::Peer;
pub use per_thread::PerThread;
pub use replay::ReplayWindow;
pub use rx_queues::{GATEWAY_SHIFT, MAX_GATEWAYS, MAX_RX_QUEUES, RxQueueTable, work};
pub use session::{Expired, Session};
pub use shared::{IndexEntry, Shared};
pub use stats::HandshakeStats;
pub use time::{Tai64N, Time};
