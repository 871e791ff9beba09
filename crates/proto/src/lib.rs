//! WireGuard's protocol without I/O, clock, threads or unsafe code.

#![forbid(unsafe_code)]

pub mod config;
mod endpoint;
mod time;

pub use endpoint::{Endpoint, Source};
pub use time::{Tai64N, Time};
