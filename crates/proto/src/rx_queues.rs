//! The receive queues of sessions, and the work of each.
//!
//! An interface may receive with several sockets, its receive queues. The last byte of a receiver index, modulo
//! their number, is the receive queue in which data for the index arrives: so the choice of an index chooses
//! which receive queue has the work. All indices of a peer are in one, so that what arrives on its next
//! session stays behind what arrived on the one before.
//!
//! The five upper bits of that byte say which of several gateways with one key has made the index. A rule of
//! the packet filter then finds the gateway that has the session.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Time;

/// Receive queues of an interface at most.
pub const MAX_RX_QUEUES: usize = 8;
/// A packet of 64 bytes costs about as much to process as one of 1,420: so much work is a packet, and
/// one is each byte.
const WORK_OF_PACKET: u64 = 2000;

/// The work that so many packets of so many bytes are.
pub fn work(packets: u64, bytes: u64) -> u64 {
    packets * WORK_OF_PACKET + bytes
}

/// The receive queues of an interface, as the control thread and the shards see them.
pub struct RxQueueTable {
    /// The work that was done for each, in units of [`work`].
    done: [DoneCounter; MAX_RX_QUEUES],
    in_use: Mutex<RxQueuesInUse>,
}

/// Of one receive queue. Only the thread that commits there writes it, so it has a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct DoneCounter(AtomicU64);

/// How many receive queues there are, and since when: the work that was done is counted since then.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RxQueuesInUse {
    pub(crate) count: usize,
    pub(crate) since: Time,
}

impl RxQueueTable {
    pub(crate) fn new() -> Self {
        Self {
            done: Default::default(),
            in_use: Mutex::new(RxQueuesInUse {
                count: 1,
                since: Time::default(),
            }),
        }
    }

    /// Counts [`work`] with authentic data that was done in a receive queue.
    pub fn worked(&self, rx_queue: usize, work: u64) {
        self.done[rx_queue % MAX_RX_QUEUES]
            .0
            .fetch_add(work, Ordering::Relaxed);
    }

    /// The work that was done in a receive queue since there are so many.
    pub(crate) fn done(&self, rx_queue: usize) -> u64 {
        self.done[rx_queue % MAX_RX_QUEUES]
            .0
            .load(Ordering::Relaxed)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.in_use().count
    }

    pub(crate) fn in_use(&self) -> RxQueuesInUse {
        *self.lock()
    }

    /// There are so many from now on.
    pub fn set_count(&self, count: usize, now: Time) {
        let count = count.clamp(1, MAX_RX_QUEUES);
        let mut in_use = self.lock();
        if in_use.count != count {
            *in_use = RxQueuesInUse { count, since: now };
            let done = self.done.iter();
            done.for_each(|done| done.0.store(0, Ordering::Relaxed));
        }
    }

    fn lock(&self) -> MutexGuard<'_, RxQueuesInUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receive queue of an index, if there are MAX_RX_QUEUES of them. Modulo a smaller number, which divides that,
/// it is the receive queue if there are so many.
pub(crate) fn rx_queue(index: u32) -> u8 {
    index.to_le_bytes()[3] & RX_QUEUE_BITS
}

pub(crate) const RX_QUEUE_BITS: u8 = 7;
const _: () = assert!(MAX_RX_QUEUES == 1 + RX_QUEUE_BITS as usize);

/// An index in a receive queue, with all other bits as they are: two sessions of a peer have no more in common
/// than their receive queue.
pub(crate) fn in_rx_queue(index: u32, rx_queue: u8) -> u32 {
    let mut bytes = index.to_le_bytes();
    bytes[3] = bytes[3] & !RX_QUEUE_BITS | rx_queue & RX_QUEUE_BITS;
    u32::from_le_bytes(bytes)
}

/// Gateways that may have one key, at most.
pub const MAX_GATEWAYS: u8 = 1 << (8 - GATEWAY_SHIFT);
/// Where the number of a gateway begins in the last byte of an index: above the bits of receive queues.
pub const GATEWAY_SHIFT: u8 = 3;
const _: () = assert!(1 << GATEWAY_SHIFT == MAX_RX_QUEUES);

/// An index of a gateway, in the same receive queue.
pub(crate) fn of_gateway(index: u32, id: Option<u8>) -> u32 {
    let mut bytes = index.to_le_bytes();
    if let Some(id) = id {
        bytes[3] = id << GATEWAY_SHIFT | bytes[3] & RX_QUEUE_BITS;
    }
    u32::from_le_bytes(bytes)
}
