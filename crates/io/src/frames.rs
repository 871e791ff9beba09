//! Room for the frames that are read from a TUN at once.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use adit_offload::VNET_HDR_LEN;

/// The longest frame of a TUN queue: a virtio header and 65,535 bytes of IP packet.
pub const MAX_FRAME: usize = VNET_HDR_LEN + 65_535;
/// Bytes of frames that are read at once: four GSO packets or thousands of small packets. More
/// would leave the second-level cache before they are sealed.
const BATCH_BYTES: usize = 256 << 10;
/// Room for them, and for what sparse flows add to a full batch.
const ARENA_BYTES: usize = 2 * BATCH_BYTES;

/// Frames that were read from a TUN, in the order in which they are to be processed.
///
/// The memory is reserved with the first read. A page of it costs nothing until frames fill it.
#[derive(Default)]
pub struct FrameBatch {
    arena: Vec<u8>,
    /// Where the next frame goes.
    end: usize,
    frames: Vec<Slot>,
    /// The first that [`Self::next_frame`] has not returned.
    next: Cell<usize>,
}

/// Where a frame is.
struct Slot {
    start: usize,
    len: usize,
    queue: usize,
    peer: Cell<Option<u32>>,
    can_wait: bool,
    rest: Cell<Option<Duration>>,
}

/// A frame of a [`FrameBatch`].
#[derive(Clone, Copy)]
pub struct BatchFrame<'a> {
    /// A virtio header and an IP packet.
    pub bytes: &'a [u8],
    /// The peer that it turned out to be for, for [`TunQueue::processed`].
    ///
    /// [`TunQueue::processed`]: crate::TunQueue::processed
    pub peer: &'a Cell<Option<u32>>,
    /// What comes after it for the same peer can wait in its queue: [`Self::rest`] has it wait.
    pub can_wait: bool,
    /// How long no further frames for its peer are to be read, if that peer has a limit.
    pub rest: &'a Cell<Option<Duration>>,
}

impl FrameBatch {
    /// Whether no frame is left to process.
    pub fn is_empty(&self) -> bool {
        self.next.get() == self.frames.len()
    }

    /// Takes the next frame.
    pub fn next_frame(&self) -> Option<BatchFrame<'_>> {
        let frame = self.peek()?;
        self.next.set(self.next.get() + 1);
        Some(frame)
    }

    /// The next frame, which stays.
    pub fn peek(&self) -> Option<BatchFrame<'_>> {
        let slot = self.frames.get(self.next.get())?;
        Some(self.frame(slot))
    }

    fn frame<'a>(&'a self, slot: &'a Slot) -> BatchFrame<'a> {
        BatchFrame {
            bytes: &self.arena[slot.start..slot.start + slot.len],
            peer: &slot.peer,
            can_wait: slot.can_wait,
            rest: &slot.rest,
        }
    }

    /// Clears it and reads frames until none waits (true), which `read` says by `WouldBlock`, or the next might
    /// not fit.
    ///
    /// # Errors
    ///
    /// Those of `read` if there is no frame, but not `WouldBlock`.
    pub fn fill(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<bool> {
        self.clear();
        while self.has_room() {
            match self.append(0, &mut read) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if self.frames.is_empty() => return Err(e),
                // Frames that were read come first. The next read meets the same error.
                Err(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        if self.arena.len() != ARENA_BYTES {
            self.arena = vec![0; ARENA_BYTES];
        }
        self.end = 0;
        self.frames.clear();
        self.next.set(0);
    }

    /// How many frames it has, those that were processed included.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether any frame fits.
    pub fn has_room(&self) -> bool {
        self.end + MAX_FRAME <= BATCH_BYTES
    }

    /// Appends the frame that `write` writes into [`MAX_FRAME`] bytes, a virtio header first, and whose
    /// length it returns: nothing if that is 0. There has to be [room](Self::has_room), or it grows.
    pub fn put(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let read = |buf: &mut [u8]| match write(buf.get_mut(..MAX_FRAME).unwrap_or_default()) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            len => Ok(len.min(MAX_FRAME)),
        };
        // What is not written is not appended.
        let _ = self.append(0, read);
    }

    /// Appends the frame that `read` reads from this queue, and returns its length. There is always
    /// room: what does not fit makes the arena longer, until the batch is cleared.
    pub(crate) fn append(
        &mut self,
        queue: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.end + MAX_FRAME > self.arena.len() {
            self.arena.resize(self.end + MAX_FRAME, 0);
        }
        let len = read(&mut self.arena[self.end..])?;
        self.frames.push(Slot {
            start: self.end,
            len,
            queue,
            peer: Cell::new(None),
            can_wait: false,
            rest: Cell::new(None),
        });
        self.end += len.next_multiple_of(64);
        Ok(len)
    }

    /// The frame that was appended last; empty if there is none.
    pub(crate) fn last_frame(&self) -> &[u8] {
        let slot = self.frames.last();
        slot.map_or(&[], |slot| &self.arena[slot.start..slot.start + slot.len])
    }

    /// What comes after the frame that was appended last can wait.
    pub(crate) fn set_can_wait(&mut self) {
        if let Some(slot) = self.frames.last_mut() {
            slot.can_wait = true;
        }
    }

    /// The frames that are left, which stay.
    pub(crate) fn left(&self) -> impl Iterator<Item = &[u8]> {
        let left = self.frames.iter().skip(self.next.get());
        left.map(|slot| &self.arena[slot.start..slot.start + slot.len])
    }

    /// The frames from `from` on are to be processed before the others.
    pub(crate) fn put_first(&mut self, from: usize) {
        self.frames.rotate_left(from);
    }

    /// The queue of each frame, and the frame.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (usize, BatchFrame<'_>)> {
        let frames = self.frames.iter();
        frames.map(|slot| (slot.queue, self.frame(slot)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_batch_takes_what_sparse_flows_add_without_another_arena() {
        let mut batch = FrameBatch::default();
        batch.clear();
        let arena = batch.arena.as_ptr();
        for _ in 0..3 {
            while batch.has_room() {
                batch.append(1, |_| Ok(MAX_FRAME)).expect("it was read");
            }
            for _ in 0..100 {
                batch.append(0, |_| Ok(1_500)).expect("it was read");
            }
            assert_eq!(batch.arena.as_ptr(), arena);
            batch.clear();
            assert_eq!(batch.arena.as_ptr(), arena);
        }
    }

    #[test]
    fn an_arena_that_grew_shrinks_again() {
        let mut batch = FrameBatch::default();
        batch.clear();
        for first in 0..10 {
            let read = |buf: &mut [u8]| {
                buf[0] = first;
                Ok(MAX_FRAME)
            };
            batch.append(0, read).expect("it was read");
        }
        assert!(batch.arena.len() > ARENA_BYTES);
        for first in 0..10 {
            assert_eq!(batch.next_frame().expect("a frame").bytes[0], first);
        }
        batch.clear();
        assert_eq!(batch.arena.len(), ARENA_BYTES);
    }
}
