#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod config;
mod event;
mod frame;
mod keys;
#[cfg(feature = "net")]
pub mod net;
pub mod sans_io;
pub mod std_udp;

#[cfg(feature = "engine")]
mod builder;
#[cfg(feature = "engine")]
mod channel;
#[cfg(feature = "linux")]
mod descriptor;
#[cfg(feature = "engine")]
mod driver;
#[cfg(feature = "engine")]
mod error;
#[cfg(feature = "engine")]
mod events;
#[cfg(feature = "engine")]
mod hand_over;
#[cfg(feature = "engine")]
mod packet_io;
#[cfg(feature = "engine")]
mod parts;
#[cfg(feature = "engine")]
mod stats;
#[cfg(feature = "engine")]
mod threads;
#[cfg(feature = "engine")]
mod tunnel;

pub use config::{BlockError, Change, Config, ConfigError, IpBlock, Peer, PeerStatus, Status};
pub use event::Event;
pub use frame::{Frame, Gso, GsoKind};
pub use keys::{KeyError, PresharedKey, PrivateKey, PublicKey, RandomError, random};

#[cfg(feature = "engine")]
pub use builder::Builder;
#[cfg(feature = "engine")]
pub use channel::{Channel, ChannelEnd, Packet, channel};
#[cfg(feature = "linux")]
pub use descriptor::TunFd;
#[cfg(feature = "engine")]
pub use driver::Driver;
#[cfg(feature = "engine")]
pub use error::{Error, Fault};
#[cfg(feature = "engine")]
pub use events::Events;
#[cfg(feature = "engine")]
pub use hand_over::{HandOver, NotHandedOver};
#[cfg(feature = "engine")]
pub use packet_io::{Doorbell, Full, NotPut, PacketIo, Room};
#[cfg(feature = "engine")]
pub use stats::Stats;
#[cfg(feature = "engine")]
pub use threads::{Pin, Priority, Threads};
#[cfg(feature = "engine")]
pub use tunnel::Tunnel;
