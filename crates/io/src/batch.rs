//! Room for what one `recvmmsg` returns.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use adit_offload::lab::{self, Idea};
use adit_proto::Endpoint;

use crate::sys::mmsg::RecvHeaders;

/// Bytes of one slot that a message may fill: more than any UDP datagram or GRO train.
pub(crate) const SLOT_LEN: usize = 65_536;

/// Distance between slots. The extra cache lines keep the starts of the slots out of one set of the
/// L1 cache, where a stride of a power of two would put them all.
const SLOT_STRIDE: usize = SLOT_LEN + 3 * 64;

/// Bytes that one `recvmmsg` should bring: they are worked on before they leave the second-level
/// cache.
const BATCH_BYTES: usize = 256 << 10;
/// Messages asked for when little arrives: preparing more slots would cost more than it saves.
const FEW_MESSAGES: usize = 8;

/// Room for the messages of one `recvmmsg`, each a datagram or a train of them.
///
/// The memory is reserved once. A page of it costs nothing until a message was that long.
pub struct RecvBatch {
    slab: Vec<u8>,
    /// The message in each used slot.
    received: Vec<Received>,
    slots: usize,
    /// Messages that found the receive buffer full, since the last batch.
    lost: u64,
    /// How many the kernel says were, in the life of the socket; `None` while there were none.
    pub(crate) dropped: Option<u32>,
    waiting: Option<u64>,
    /// Messages to ask for next, by what came last.
    wanted: usize,
    /// Messages that were asked for.
    asked: usize,
    pub(crate) headers: RecvHeaders,
}

/// One message in a [`RecvBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender, and our address that it wrote to.
    pub from: Endpoint,
    /// The two ECN bits of the outer header.
    pub ecn: u8,
    /// Length of each datagram but the last, which may be shorter. Equal to `len` for a single
    /// datagram, at least 1.
    pub stride: usize,
    /// Length of the whole message.
    pub len: usize,
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new(Self::DEFAULT_SLOTS)
    }
}

impl RecvBatch {
    /// Slots of a batch by default.
    pub const DEFAULT_SLOTS: usize = 64;

    /// A batch of `slots` messages, at least one.
    pub fn new(slots: usize) -> Self {
        let slots = slots.max(1);
        Self {
            // Zeroed memory of this size comes from mmap, untouched.
            slab: vec![0; slots * SLOT_STRIDE],
            received: Vec::with_capacity(slots),
            slots,
            lost: 0,
            dropped: None,
            waiting: None,
            wanted: FEW_MESSAGES.min(slots),
            asked: slots,
            headers: RecvHeaders::new(slots),
        }
    }

    /// How many messages it can hold.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Messages in it.
    pub fn len(&self) -> usize {
        self.received.len()
    }

    /// Whether more may wait: it holds as many messages as were asked for.
    pub fn is_full(&self) -> bool {
        self.received.len() >= self.asked
    }

    /// Holds no message.
    pub fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// The messages, in the order of their arrival; the index is that of the slot.
    pub fn received(&self) -> &[Received] {
        &self.received
    }

    /// The bytes of message `index`; empty if there is none.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let len = self.received.get(index).map_or(0, |received| received.len);
        &self.slab[Self::range(index, len)]
    }

    /// The bytes of message `index`, to open datagrams in place; empty if there is none.
    pub fn bytes_mut(&mut self, index: usize) -> &mut [u8] {
        let len = self.received.get(index).map_or(0, |received| received.len);
        &mut self.slab[Self::range(index, len)]
    }

    /// Every message with its bytes, all at once if need be.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Received, &mut [u8])> {
        self.received
            .iter()
            .zip(self.slab.chunks_mut(SLOT_STRIDE))
            .map(|(received, slot)| (received, &mut slot[..received.len]))
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.received.clear();
        self.asked = self.slots;
        self.lost = 0;
        self.waiting = None;
    }

    /// More waits than these messages, as fakes of the socket say that fill less than all slots.
    pub fn leave_more(&mut self) {
        self.asked = self.received.len();
    }

    /// Messages that still wait in the socket, about, where the kernel tells.
    pub fn waiting(&self) -> Option<u64> {
        self.waiting
    }

    /// Notes how many still wait.
    pub fn set_waiting(&mut self, messages: u64) {
        self.waiting = Some(messages);
    }

    /// Messages that found the receive buffer full, since the last batch. The kernel counts a
    /// merged train as one, and reports the number with the next message.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// So many more were.
    pub fn add_lost(&mut self, messages: u64) {
        self.lost += messages;
    }

    /// Appends a message, as fakes of the socket do; false when it is full or the message too long.
    pub fn push(&mut self, from: Endpoint, ecn: u8, stride: usize, bytes: &[u8]) -> bool {
        let index = self.received.len();
        if index == self.slots || bytes.len() > SLOT_LEN {
            return false;
        }
        self.slab[Self::range(index, bytes.len())].copy_from_slice(bytes);
        self.received.push(Received {
            from,
            ecn,
            stride: stride.clamp(1, bytes.len().max(1)),
            len: bytes.len(),
        });
        true
    }

    fn range(index: usize, len: usize) -> std::ops::Range<usize> {
        let start = if len == 0 { 0 } else { index * SLOT_STRIDE };
        start..start + len
    }
}

impl RecvBatch {
    /// Fills it from a socket, and returns how many bytes that were.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.clear();
        self.dropped = None;
        if lab::without(Idea::Mmsg) {
            self.wanted = 1;
        }
        self.asked = self.wanted;
        let slots = self
            .slab
            .chunks_mut(SLOT_STRIDE)
            .take(self.wanted)
            .map(|slot| &mut slot[..SLOT_LEN]);
        let count = self.headers.receive(fd, slots)?;
        for index in 0..count.min(self.slots) {
            let arrived = self.headers.arrived(index);
            self.dropped = arrived.dropped.or(self.dropped);
            let (addr, len) = match arrived.addr {
                Some(addr) if !arrived.truncated => (addr, arrived.len.min(SLOT_LEN)),
                // Its slot stays, empty: no datagram that anybody acts on is.
                _ => (SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), 0),
            };
            self.received.push(Received {
                from: Endpoint {
                    addr,
                    src: arrived.src,
                },
                ecn: arrived.ecn,
                stride: arrived.stride.unwrap_or(len).clamp(1, len.max(1)),
                len,
            });
        }
        let bytes: usize = self.received.iter().map(|received| received.len).sum();
        self.wanted = (BATCH_BYTES * count / bytes.max(1))
            .min(FEW_MESSAGES.max(2 * count))
            .clamp(FEW_MESSAGES / 2, self.slots.max(FEW_MESSAGES / 2));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_full_if_its_slots_are_or_if_more_was_left() {
        let from = Endpoint::from(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1));
        let mut batch = RecvBatch::new(2);
        assert!(batch.push(from, 0, 1, &[1]));
        assert!(!batch.is_full());
        batch.leave_more();
        assert!(batch.is_full());
        batch.clear();
        assert!(batch.push(from, 0, 1, &[1]) && !batch.is_full());
        assert!(batch.push(from, 0, 1, &[2]) && batch.is_full());
    }
}
