//! Ends of UDP tunnels on this side.
//!
//! Linux hands a GSO packet in a UDP tunnel to the socket that it is for as it is. The device of a
//! tunnel takes it; an application would get one datagram where many were sent. So packets are
//! merged only for an address and a port that such a device uses: it listens on the port that it
//! sends to, and it alone leaves to the TUN what has to be done to a packet inside a datagram, its
//! checksum at least.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use super::frame::mix;

/// Addresses and ports of tunnels' devices that sent something in the last second or two.
#[derive(Debug)]
pub struct TunnelEnds([AtomicU64; 64]);

impl Default for TunnelEnds {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; 64])
    }
}

impl TunnelEnds {
    /// A device sent something from there ([`Frame::tunnel_end`](super::Frame::tunnel_end)). `now`
    /// is the time since any fixed moment, the same for all calls.
    pub fn saw(&self, end: (IpAddr, u16), now: Duration) {
        let (slot, tag) = self.slot(end);
        slot.store(tag | seconds(now), Ordering::Relaxed);
    }

    /// Whether one did a moment ago.
    pub fn know(&self, end: (IpAddr, u16), now: Duration) -> bool {
        let (slot, tag) = self.slot(end);
        let seen = slot.load(Ordering::Relaxed);
        let (before, now) = (tag | seconds(now).saturating_sub(1), tag | seconds(now));
        seen == before || seen == now
    }

    /// Two ends that fall into one slot forget each other.
    #[expect(clippy::cast_possible_truncation, reason = "all parts are used")]
    fn slot(&self, (address, port): (IpAddr, u16)) -> (&AtomicU64, u64) {
        let address = match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        let hash = mix(u64::from(port), (address >> 64) as u64);
        let hash = mix(hash, address as u64);
        (&self.0[hash as usize % 64], hash & !u64::from(u32::MAX))
    }
}

/// The time in units of 2^30 ns, about a second: 32 bits suffice for a century.
fn seconds(time: Duration) -> u64 {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    nanos >> 30 & u64::from(u32::MAX)
}
