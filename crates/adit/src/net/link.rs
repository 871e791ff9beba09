//! Between the threads of a tunnel and that of the stack: whole GSO packets, in batches.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::batch::PacketBatch;
use super::wake::Wake;
use crate::frame::Frame;
use crate::packet_io::{Doorbell, Full, NotPut, Room};

/// Bytes that wait for the stack at most.
const MAX_INBOUND: usize = 4 << 20;
/// Bytes that wait for the tunnel at most, but for answers to what was received.
const MAX_OUTBOUND: usize = 1 << 20;
/// Bytes that wait for the tunnel at most, with answers.
const MOST_OUTBOUND: usize = 4 << 20;
/// A batch of so many bytes is passed on.
const BATCH: usize = 128 << 10;
/// Buffers that are kept to be used again.
const SPARES: usize = 8;

/// The two queues.
pub(super) struct Link {
    inbound: Mutex<PacketBatch>,
    outbound: Mutex<Outbound>,
    /// Bytes of the outbound queue.
    outbound_bytes: AtomicUsize,
    bell: Mutex<Option<Doorbell>>,
    pub(super) wake: Wake,
}

#[derive(Default)]
struct Outbound {
    queue: VecDeque<PacketBatch>,
    spares: Vec<PacketBatch>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            inbound: Mutex::default(),
            outbound: Mutex::default(),
            outbound_bytes: AtomicUsize::new(0),
            bell: Mutex::default(),
            wake: Wake::new()?,
        })
    }

    /// Exchanges what waits for the stack for an empty batch.
    pub(super) fn receive(&self, emptied: &mut PacketBatch) {
        emptied.clear();
        std::mem::swap(&mut *lock(&self.inbound), emptied);
    }

    /// Whether anything waits for the stack.
    pub(super) fn has_inbound(&self) -> bool {
        !lock(&self.inbound).is_empty()
    }

    /// A frame that came out of the tunnel.
    pub(super) fn push(&self, frame: &Frame<'_>) -> Result<(), Full> {
        let mut inbound = lock(&self.inbound);
        if inbound.bytes() + frame.len() > MAX_INBOUND {
            return Err(Full);
        }
        inbound.append_copy(frame);
        Ok(())
    }

    /// The bell to ring when something waits for the tunnel.
    pub(super) fn attach(&self, bell: Doorbell) {
        *lock(&self.bell) = Some(bell);
    }

    /// Puts what waits for the tunnel into its room.
    pub(super) fn pull(&self, room: &mut Room<'_>) {
        let mut outbound = lock(&self.outbound);
        let was = self.outbound_bytes.load(Ordering::Relaxed);
        let mut left = was;
        while let Some(batch) = outbound.queue.front_mut() {
            while let Some((bytes, gso)) = batch.peek() {
                if room.put(bytes, gso) == Err(NotPut::Full) {
                    break;
                }
                batch.advance();
            }
            if !batch.is_empty() {
                break;
            }
            left = left.saturating_sub(batch.bytes());
            if let Some(mut batch) = outbound.queue.pop_front()
                && outbound.spares.len() < SPARES
            {
                batch.clear();
                outbound.spares.push(batch);
            }
        }
        self.outbound_bytes.store(left, Ordering::Relaxed);
        drop(outbound);
        // The stack may wait for room.
        if was >= MAX_OUTBOUND / 2 && left < MAX_OUTBOUND / 2 {
            self.wake.wake();
        }
    }

    /// Takes what waits for the tunnel, where there is none.
    pub(super) fn take_outbound(&self, mut each: impl FnMut(&[u8])) {
        let mut outbound = lock(&self.outbound);
        for mut batch in std::mem::take(&mut outbound.queue) {
            while let Some((bytes, _)) = batch.take() {
                each(bytes);
            }
        }
        self.outbound_bytes.store(0, Ordering::Relaxed);
    }
}

/// The stack's end of the outbound queue: the batch that it is writing.
pub(super) struct Egress {
    link: Arc<Link>,
    batch: PacketBatch,
}

impl Egress {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            batch: PacketBatch::default(),
        }
    }

    /// Whether more than answers may be sent.
    pub(super) fn has_room(&self) -> bool {
        let queued = self.link.outbound_bytes.load(Ordering::Relaxed);
        queued + self.batch.bytes() < MAX_OUTBOUND
    }

    /// Sends a frame of `len` bytes that `write` writes. It returns how the frame is to be cut.
    pub(super) fn send<R>(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> (R, Option<crate::Gso>),
    ) -> R {
        let queued = self.link.outbound_bytes.load(Ordering::Relaxed);
        if queued + self.batch.bytes() > MOST_OUTBOUND {
            // The tunnel takes nothing, and answers pile up: they are lost.
            self.batch.clear();
        }
        let result = self.batch.append(len, write);
        if self.batch.bytes() >= BATCH {
            self.flush();
        }
        result
    }

    /// Passes on what was written.
    pub(super) fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut outbound = lock(&self.link.outbound);
        let spare = outbound.spares.pop().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, spare);
        let bytes = &self.link.outbound_bytes;
        bytes.store(
            bytes.load(Ordering::Relaxed) + batch.bytes(),
            Ordering::Relaxed,
        );
        outbound.queue.push_back(batch);
        drop(outbound);
        if let Some(bell) = &*lock(&self.link.bell) {
            bell.ring();
        }
    }
}
