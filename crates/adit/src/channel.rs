//! A source of packets in memory.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::frame::{Frame, Gso};
use crate::packet_io::{Doorbell, Full, PacketIo, Room};

/// A packet of a [`channel`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Its bytes, from the IP header on.
    pub bytes: Vec<u8>,
    /// How it is to be cut, or was merged, if it stands for several.
    pub gso: Option<Gso>,
}

impl Packet {
    /// One packet.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, gso: None }
    }

    /// One that stands for several of one flow.
    #[must_use]
    pub fn with_gso(mut self, gso: Gso) -> Self {
        self.gso = Some(gso);
        self
    }
}

/// A source of packets in memory, and its other end: packets that are [sent](ChannelEnd::send) there go
/// through the tunnel, and those that come out of it are [received](ChannelEnd::recv) there. Each is
/// copied once. So many bytes may wait in each direction.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = adit::Config::new(adit::PrivateKey::generate()?);
/// let (io, end) = adit::channel(1 << 20);
/// let tunnel = adit::Tunnel::builder(config).packets(io).start()?;
/// end.send(adit::Packet::new(vec![0x45; 20]))?;
/// assert_eq!(end.try_recv(), None);
/// # Ok(())
/// # }
/// ```
pub fn channel(bytes: usize) -> (Channel, ChannelEnd) {
    let inner = Arc::new(ChannelState {
        limit: bytes,
        to_tunnel: Mutex::default(),
        from_tunnel: Mutex::default(),
        arrived: Condvar::new(),
        bell: Mutex::default(),
    });
    (Channel(Arc::clone(&inner)), ChannelEnd(inner))
}

/// The tunnel's end of a [`channel`].
#[derive(Clone)]
pub struct Channel(Arc<ChannelState>);

/// The program's end of a [`channel`]. Clones are the same end.
#[derive(Clone)]
pub struct ChannelEnd(Arc<ChannelState>);

struct ChannelState {
    limit: usize,
    to_tunnel: Mutex<PacketQueue>,
    from_tunnel: Mutex<PacketQueue>,
    arrived: Condvar,
    bell: Mutex<Option<Doorbell>>,
}

#[derive(Default)]
struct PacketQueue {
    packets: VecDeque<Packet>,
    bytes: usize,
}

impl PacketQueue {
    fn push(&mut self, packet: Packet, limit: usize) -> Result<(), Full> {
        if self.bytes + packet.bytes.len() > limit {
            return Err(Full);
        }
        self.bytes += packet.bytes.len();
        self.packets.push_back(packet);
        Ok(())
    }

    fn pop(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.bytes -= packet.bytes.len();
        Some(packet)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChannelEnd {
    /// Has a packet sent through the tunnel.
    ///
    /// # Errors
    ///
    /// [`Full`]: it is lost.
    pub fn send(&self, packet: Packet) -> Result<(), Full> {
        lock(&self.0.to_tunnel).push(packet, self.0.limit)?;
        if let Some(bell) = &*lock(&self.0.bell) {
            bell.ring();
        }
        Ok(())
    }

    /// A packet that came out of the tunnel, if one waits.
    pub fn try_recv(&self) -> Option<Packet> {
        lock(&self.0.from_tunnel).pop()
    }

    /// A packet that came out of the tunnel, for which it waits for so long at most.
    pub fn recv(&self, timeout: Duration) -> Option<Packet> {
        let until = Instant::now().checked_add(timeout);
        let mut waiting = lock(&self.0.from_tunnel);
        loop {
            if let Some(packet) = waiting.pop() {
                return Some(packet);
            }
            let left = until.map_or(timeout, |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return None;
            }
            let waited = self.0.arrived.wait_timeout(waiting, left);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl PacketIo for Channel {
    fn attach(&self, bell: Doorbell) {
        // What was sent before waits.
        bell.ring();
        *lock(&self.0.bell) = Some(bell);
    }

    fn pull(&self, room: &mut Room<'_>) {
        let mut waiting = lock(&self.0.to_tunnel);
        while !room.is_full() {
            let Some(packet) = waiting.pop() else {
                break;
            };
            // No packet is as long as one that is refused here.
            let _ = room.put(&packet.bytes, packet.gso);
        }
    }

    fn push(&self, frame: &Frame<'_>) -> Result<(), Full> {
        let mut bytes = Vec::new();
        frame.gather(&mut bytes);
        let packet = Packet {
            bytes,
            gso: frame.gso(),
        };
        lock(&self.0.from_tunnel).push(packet, self.0.limit)
    }

    fn flush(&self) {
        self.0.arrived.notify_all();
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Channel")
    }
}

impl fmt::Debug for ChannelEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelEnd")
    }
}
