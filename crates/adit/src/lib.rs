//! WireGuard as a library.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod config;
mod keys;

pub use config::{BlockError, Change, Config, ConfigError, IpBlock, Peer, PeerStatus, Status};
pub use keys::{KeyError, PresharedKey, PrivateKey, PublicKey, RandomError, random};
