//! TUN devices and UDP sockets with every offload that Linux has.
//!
//! A shard holds one [`TunQueue`] and one [`UdpSocket`] per address family. Real ones are
//! [`tun::Tun`] and [`udp::Udp`]; behind the same traits stand the test doubles of [`testing`].

#![deny(missing_docs)]
// Requests that only a host of its own makes stay in the lists of them.
#![cfg_attr(not(feature = "host"), allow(dead_code, unused_imports))]

mod batch;
mod files;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
pub mod helper;
mod offloads;
mod programs;
mod sys;
pub mod testing;
mod traits;
mod transmit;
pub mod tun;
pub mod udp;

pub use batch::{Received, RecvBatch};
pub use files::private::{DIR as UPGRADE_DIR, remove_dead, sockets};
pub use files::{Failed, FileIdentity, FileStep, identity, make_dir};
pub use frames::{BatchFrame, FrameBatch, MAX_FRAME};
pub use offloads::{Offloads, UnknownOffload};
pub use sys::os::{
    close_inherited, duplicate, give_back_memory, map_large_buffers, namespace_cookie, peer,
    peer_process, thread_time,
};
pub use traits::{TunQueue, UdpSocket};
pub use transmit::{Arrival, Cut, Filtered, Grace, Lost, SendReport, ShortBuffers, Transmit};
pub use udp::{IcmpError, IcmpKind};
