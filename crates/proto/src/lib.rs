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
//! They check sources, move the replay window, trim the padding, and note what they did. An
//! embedder that needs no trains has commands for one packet, which do all of that:
//! [`Device::seal`], [`Device::open`] and [`Device::seal_keepalive`].

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod allowed_ips;
pub mod config;
mod cookie;
mod crypto;
mod device;
mod endpoint;
mod explained;
mod limiter;
pub mod limits;
mod noise;
mod peer;
mod replay;
mod session;
mod shared;
mod sync;
mod time;
pub mod wire;

pub use allowed_ips::AllowedIps;
pub use device::{
    ConfigError, Device, HandshakeKind, HandshakeOutcome, HandshakeStats, NotOpened, NotSealed,
    Output, Random, Refusal,
};
pub use endpoint::{Endpoint, Source};
pub use peer::Peer;
pub use replay::ReplayWindow;
pub use session::{Expired, Session};
pub use shared::{IndexEntry, Shared};
pub use time::{Tai64N, Time};
