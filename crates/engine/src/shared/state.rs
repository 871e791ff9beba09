//! The state of an interface beside the protocol.

use std::io;
use std::os::fd::OwnedFd;

use adit_io::udp::UdpState;

use crate::shared::counters::{BatchCounters, TrainCounters};

/// The state of an interface besides the protocol's. It has no secrets. Counters go
/// by name, because versions may have others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceState {
    /// The port that was asked for; 0 for any.
    pub listen_port: u16,
    /// The port last bound; 0 if there was none.
    pub bound_port: u16,
    /// 0 is none.
    pub fwmark: u32,
    /// The device is up.
    pub up: bool,
    /// Its MTU.
    pub mtu: usize,
    /// Packets dropped, by reason.
    pub drops: Vec<(String, u64)>,
    /// Packets that are no drops, by kind.
    pub ignored: Vec<(String, u64)>,
    /// Packets that passed, by kind.
    pub passed: Vec<(String, u64)>,
    /// ICMP errors that came back, by kind.
    pub icmp_errors: Vec<(String, u64)>,
    /// Trains that the kernel refused to segment.
    pub refused_trains: u64,
    /// Kinds of packets that the TUN refused to take merged.
    pub tun_refuses: Vec<bool>,
    /// Batches that were taken from the TUN.
    pub outbound: BatchCounters,
    /// Batches that were taken from the sockets.
    pub inbound: BatchCounters,
    /// Trains that were given to the kernel.
    pub sent_trains: TrainCounters,
    /// Trains that the kernel gave.
    pub received_trains: TrainCounters,
}

/// A socket of an interface that is handed over.
#[derive(Debug)]
pub struct HandedSocket {
    /// Whether it is of IPv6.
    pub v6: bool,
    /// Another descriptor of it.
    pub fd: OwnedFd,
    /// The rest of its state.
    pub state: UdpState,
}

/// Why an interface ended.
#[derive(Debug)]
pub enum StopReason {
    /// [`Interface::stop`](crate::Interface::stop) was called.
    Asked,
    /// The device was deleted.
    InterfaceGone,
    /// A thread, or the device, failed.
    Failed(io::Error),
}
