//! What TCP and UDP of a stack have in common.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use smoltcp::iface::Interface;

use super::awake;
use super::clock::{Micros, SECOND};
use crate::net::link::Egress;
use crate::net::shared::Shared;
use crate::net::wire::{self, Headers};

/// ICMP messages that are sent in a second, and at once.
const ICMP_RATE: i64 = 1_000;

/// What epoll says of the descriptor that wakes the thread.
pub(super) const WAKE: u64 = u64::MAX;
/// What sets tokens of UDP apart from those of TCP.
pub(super) const UDP_TOKEN: u64 = 1 << 63;

/// The ports that are given to those that ask for none: Linux's.
const PORTS: std::ops::RangeInclusive<u16> = 32_768..=60_999;

pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) epoll: OwnedFd,
    pub(super) egress: Egress,
    /// smoltcp's, for all connections.
    pub(super) interface: Interface,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mtu: usize,
    pub(super) now: Micros,
    random: RandomState,
    drawn: u64,
    /// ICMP messages that may be sent, and since when they count.
    icmp: (i64, Micros),
}

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        epoll: OwnedFd,
        addresses: Vec<IpAddr>,
        mtu: usize,
    ) -> Self {
        let random = RandomState::new();
        Self {
            egress: Egress::new(Arc::clone(&shared.link)),
            interface: awake::interface(random.hash_one(0)),
            shared,
            epoll,
            addresses,
            mtu,
            now: 0,
            random,
            drawn: 0,
            icmp: (ICMP_RATE, 0),
        }
    }

    /// A number that nobody outside can guess.
    pub(super) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.random.hash_one(self.drawn)
    }

    /// The inner address from which a remote one is reached.
    pub(super) fn source_for(&self, remote: SocketAddr) -> Option<IpAddr> {
        let mut own = self.addresses.iter();
        own.find(|own| own.is_ipv4() == remote.is_ipv4()).copied()
    }

    /// A port that is not in use.
    pub(super) fn free_port(&mut self, is_used: impl Fn(u16) -> bool) -> Option<u16> {
        let (first, count) = (u64::from(*PORTS.start()), PORTS.len() as u64);
        let begin = self.draw() % count;
        let mut ports = (0..count).map(|n| first + (begin + n) % count);
        ports.find_map(|port| u16::try_from(port).ok().filter(|port| !is_used(*port)))
    }

    /// Answers that the port of a received packet is unreachable, if that is not done too often.
    pub(super) fn answer_unreachable(&mut self, headers: &Headers, packet: &[u8]) {
        if self.may_send_icmp() {
            self.egress.send(wire::unreachable_len(headers), |answer| {
                wire::write_unreachable(answer, headers, packet);
                ((), None)
            });
        }
    }

    pub(super) fn answer_echo(&mut self, headers: &Headers, packet: &[u8]) {
        if self.may_send_icmp() {
            let len = wire::ip_header(headers.source) + headers.end - headers.start;
            self.egress.send(len, |answer| {
                wire::write_echo_reply(answer, headers, packet);
                ((), None)
            });
        }
    }

    fn may_send_icmp(&mut self) -> bool {
        let (left, since) = &mut self.icmp;
        if self.now - *since >= SECOND {
            (*left, *since) = (ICMP_RATE, self.now);
        }
        *left -= 1;
        *left >= 0
    }
}
