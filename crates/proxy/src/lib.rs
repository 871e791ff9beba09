//! `adit proxy`: programs reach what is inside a WireGuard tunnel by SOCKS, HTTP and forwarded ports. It needs
//! no TUN device, no privileges, and nothing of the host but sockets.
//!
//! [`config`] reads what it is to do, from the files of wireproxy and of wg-quick. [`stack`] is TCP and UDP
//! inside the tunnel, and [`kernel`] one of two that have it. [`serve`] has the clients.

#![forbid(unsafe_code)]

pub mod config;
pub mod kernel;
pub mod serve;
pub mod stack;
