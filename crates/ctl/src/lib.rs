//! The interfaces of WireGuard's tools: the UAPI socket, wg-quick's configuration files, keys as text, and the
//! status that `adit show` prints.

#![forbid(unsafe_code)]

pub mod config;
pub mod keys;
mod socket;
pub mod status;
pub mod uapi;
mod wiped;

pub use socket::{BindError, Notice, Serving, connect, identity};
