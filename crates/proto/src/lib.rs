//! WireGuard's protocol without I/O, clock, threads or unsafe code.
//!
//! [`Device`] is the core that one control thread owns. It has four families of methods:
//!
//! - getters look at it: [`Device::status`], [`Device::tunnel`], [`Device::handshake_stats`];
//! - `handle_*` tell it what happened: a datagram came in or left, a shard raised a notice, a deadline passed;
//! - commands change it: [`Device::apply`];
//! - `poll_*` take out what it wants: [`Device::poll_output`], [`Device::next_deadline`].
//!
//! The drain rule: after every `handle_*` and every command, call [`Device::poll_output`] until it returns `None`,
//! then wait for [`Device::next_deadline`] at most. Time and randomness are arguments.
//!
//! Packets never pass through the device. Shards send and receive them with what the device publishes: a [`Tunnel`]
//! for each peer, its [`Session`]s and the routes, all in [`Shared`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

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
mod replay;
mod session;
mod shared;
mod time;
mod tunnel;
pub mod wire;

pub use allowed_ips::AllowedIps;
pub use device::{
    ConfigError, Device, HandshakeKind, HandshakeOutcome, HandshakeStats, Output, Random, Refusal,
};
pub use endpoint::{Endpoint, Source};
pub use replay::ReplayWindow;
pub use session::{Expired, Session};
pub use shared::{Inbound, Shared};
pub use time::{Tai64N, Time};
pub use tunnel::Tunnel;
