//! Frames one after another in one buffer, which is used again.

use crate::frame::{Frame, Gso};

/// What a batch keeps of its buffer at least.
const KEPT: usize = 256 << 10;
/// After so many uses it gives back what none of them took.
const USES: u32 = 4096;

/// Frames in the order in which they were appended, and how many of them were taken.
#[derive(Default)]
pub(super) struct PacketBatch {
    /// Longer than what is in use: what was used once is not cleared again.
    buffer: Vec<u8>,
    used: usize,
    frames: Vec<FrameEntry>,
    taken: usize,
    /// The most that was in use lately, and how often it was used.
    most: usize,
    uses: u32,
}

#[derive(Clone, Copy)]
struct FrameEntry {
    start: usize,
    len: usize,
    gso: Option<Gso>,
}

impl PacketBatch {
    /// Whether all frames were taken.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.frames.len()
    }

    /// Bytes of all its frames, taken or not.
    pub(super) fn bytes(&self) -> usize {
        self.used
    }

    /// Begins anew, with the same buffer.
    pub(super) fn clear(&mut self) {
        self.most = self.most.max(self.used);
        self.used = 0;
        self.taken = 0;
        self.frames.clear();
        self.uses += 1;
        if self.uses == USES {
            let kept = self.most.next_power_of_two().max(KEPT);
            if self.buffer.len() > kept {
                self.buffer.truncate(kept);
                self.buffer.shrink_to_fit();
            }
            (self.most, self.uses) = (0, 0);
        }
    }

    /// Appends a frame of `len` bytes that `write` writes. It returns how the frame is to be cut.
    pub(super) fn append<R>(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> (R, Option<Gso>),
    ) -> R {
        let start = self.used;
        let end = start + len;
        if self.buffer.len() < end {
            self.buffer.resize(end.next_power_of_two(), 0);
        }
        let (result, gso) = write(&mut self.buffer[start..end]);
        self.used = end;
        self.frames.push(FrameEntry { start, len, gso });
        result
    }

    /// Appends a copy of a frame that came out of a tunnel.
    pub(super) fn append_copy(&mut self, frame: &Frame<'_>) {
        self.append(frame.len(), |to| (frame.copy_to(to), frame.gso()));
    }

    /// The next frame that was not taken.
    pub(super) fn peek(&self) -> Option<(&[u8], Option<Gso>)> {
        let entry = self.frames.get(self.taken)?;
        let bytes = self.buffer.get(entry.start..entry.start + entry.len)?;
        Some((bytes, entry.gso))
    }

    /// The next frame is taken.
    pub(super) fn advance(&mut self) {
        self.taken += 1;
    }

    /// Takes the next frame, to be changed where it is.
    pub(super) fn take(&mut self) -> Option<(&mut [u8], Option<Gso>)> {
        let entry = *self.frames.get(self.taken)?;
        self.taken += 1;
        let bytes = self.buffer.get_mut(entry.start..entry.start + entry.len)?;
        Some((bytes, entry.gso))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_in_the_order_in_which_they_were_appended() {
        let mut batch = PacketBatch::default();
        for n in 0..3_u8 {
            batch.append(usize::from(n) + 1, |to| (to.fill(n), None));
        }
        assert_eq!(batch.bytes(), 6);
        assert_eq!(batch.peek(), Some((&[0][..], None)));
        batch.advance();
        assert_eq!(batch.take(), Some((&mut [1, 1][..], None)));
        assert!(!batch.is_empty());
        batch.advance();
        assert!(batch.is_empty() && batch.take().is_none());
        batch.clear();
        // What is left in the buffer is written over.
        batch.append(2, |to| (to.fill(9), None));
        assert_eq!(batch.take(), Some((&mut [9, 9][..], None)));
    }

    #[test]
    fn memory_that_a_burst_took_is_given_back_after_a_while() {
        let mut batch = PacketBatch::default();
        batch.append(4 * KEPT, |_| ((), None));
        let mut uses = || {
            (0..USES).for_each(|_| batch.clear());
            batch.buffer.len()
        };
        assert_eq!(uses(), 4 * KEPT, "it was in use");
        assert_eq!(uses(), KEPT);
    }
}
