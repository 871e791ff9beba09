//! Poly1305 in the integer unit, one packet after the other, in small steps that ChaCha20 takes
//! between its rounds.

use super::super::lanes::Text;
use super::super::scalar::{Poly, absorb};
use zeroize::Zeroize;

/// A queue of packets whose tags are made, one after the other. Packet `i` has slot `i % SLOTS`.
///
/// The caller that makes packets ready promises: until they are finished, their texts can be read
/// and are not written, their keys stand at `keys`, and their tags may be written.
pub(super) struct Feed {
    /// The packet at work, its next block, and how many whole blocks it still has.
    poly: Poly,
    at: *const u8,
    left: usize,
    /// Whether these are those of packet `now`.
    begun: bool,
    /// The packets before this one have their tags.
    now: usize,
    /// The packets before this one can be worked on.
    pub(super) ready: usize,
    pub(super) texts: [Text; SLOTS],
    /// The first of as many keys.
    pub(super) keys: *const [u8; 32],
    /// The places of the tags.
    pub(super) tags: [*mut [u8; 16]; SLOTS],
}

/// The packet at work, in registers.
pub(super) struct Hot {
    h: [u64; 3],
    r: [u64; 2],
    at: *const u8,
    pub(super) left: usize,
}

impl Hot {
    /// Adds a block, if there is one.
    ///
    /// # Safety
    /// The promises of [`Feed`].
    #[inline(always)]
    pub(super) unsafe fn step(&mut self) {
        if self.left > 0 {
            // SAFETY: `left` counts the whole blocks that the text still has.
            let [low, high] = unsafe { self.at.cast::<[u64; 2]>().read_unaligned() };
            self.h = absorb(self.h, self.r, low, high);
            self.at = self.at.wrapping_add(16);
            self.left -= 1;
        }
    }
}

impl Feed {
    pub(super) fn new() -> Self {
        Self {
            poly: Poly::new(&[0; 32]),
            at: core::ptr::null(),
            left: 0,
            begun: false,
            now: 0,
            ready: 0,
            texts: [Text::NONE; SLOTS],
            keys: core::ptr::null(),
            tags: [core::ptr::null_mut(); SLOTS],
        }
    }

    /// Finishes the packet at work, which has no more whole blocks, and begins the next, if it is
    /// ready.
    ///
    /// # Safety
    /// The promises of [`Feed`].
    pub(super) unsafe fn turn(&mut self) {
        let slot = self.now % SLOTS;
        if self.begun {
            let text = &self.texts[slot];
            // SAFETY: the text is readable, and so is the additional data.
            let (bytes, aad) =
                unsafe { (core::slice::from_raw_parts(text.text, text.len), text.aad()) };
            self.poly.rest(bytes);
            let tag = self.poly.finish(aad.len(), text.len);
            // SAFETY: it may be written there.
            unsafe { *self.tags[slot] = tag };
            self.now += 1;
            self.begun = false;
        }
        if self.now < self.ready {
            let slot = self.now % SLOTS;
            let text = &self.texts[slot];
            // SAFETY: the key stands there, and the additional data is readable.
            unsafe {
                self.poly = Poly::new(&*self.keys.add(slot));
                self.poly.padded(text.aad());
            }
            self.at = text.text;
            self.left = text.len / 16;
            self.begun = true;
        }
    }

    /// Takes the packet at work into registers.
    #[inline(always)]
    pub(super) fn hot(&self) -> Hot {
        Hot {
            h: self.poly.h,
            r: self.poly.r,
            at: self.at,
            left: self.left,
        }
    }

    /// Puts it back.
    #[inline(always)]
    pub(super) fn cold(&mut self, hot: &Hot) {
        self.poly.h = hot.h;
        self.at = hot.at;
        self.left = hot.left;
    }

    /// Finishes the packets before `end`, which are ready.
    ///
    /// # Safety
    /// The promises of [`Feed`], and the processor has the features.
    #[target_feature(enable = "avx2,bmi2")]
    pub(super) unsafe fn finish(&mut self, end: usize) {
        // SAFETY: passed on.
        unsafe {
            while self.now < end {
                let mut hot = self.hot();
                while hot.left > 0 {
                    hot.step();
                }
                self.cold(&hot);
                self.turn();
            }
        }
    }

    pub(super) fn zeroize(&mut self) {
        self.poly.zeroize();
    }
}

/// The most packets between the first whose tag is not made and the last that has lanes. More than
/// have lanes at once, so that nothing waits for Poly1305 that is as fast as ChaCha20.
pub(super) const SLOTS: usize = 32;
