//! Poly1305 in the integer unit, one packet after the other, in small steps that ChaCha20 takes between its rounds.

use super::super::lanes::Text;
use super::super::scalar::{Poly, absorb};
use super::CHUNK;
use zeroize::Zeroize;

/// The packets of a chunk whose tags are being made.
///
/// Whoever starts a chunk promises that until it is finished the texts can be read and are not written.
pub(super) struct Feed {
    /// The packet at work, its next block, and how many whole blocks it still has.
    poly: Poly,
    at: *const u8,
    left: usize,
    texts: [Text; CHUNK],
    keys: [[u8; 32]; CHUNK],
    /// The number of the packet at work, and of packets in the chunk.
    now: usize,
    count: usize,
    pub(super) tags: [[u8; 16]; CHUNK],
}

/// The packet at work, in registers.
pub(super) struct Hot {
    h: [u64; 3],
    r: [u64; 2],
    at: *const u8,
    left: usize,
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
            texts: [Text::NONE; CHUNK],
            keys: [[0; 32]; CHUNK],
            now: 0,
            count: 0,
            tags: [[0; 16]; CHUNK],
        }
    }

    /// Takes on a chunk; the one before must be finished.
    ///
    /// # Safety
    /// The promises of [`Feed`].
    pub(super) unsafe fn start(&mut self, texts: &[Text], keys: &[[u8; 32]]) {
        self.texts[..texts.len()].copy_from_slice(texts);
        self.keys[..keys.len()].copy_from_slice(keys);
        self.now = 0;
        self.count = texts.len();
        // SAFETY: passed on.
        unsafe { self.begin() };
    }

    /// Begins packet `now`, if there is one.
    unsafe fn begin(&mut self) {
        if self.now < self.count {
            let text = &self.texts[self.now];
            self.poly = Poly::new(&self.keys[self.now]);
            // SAFETY: the additional data is readable.
            self.poly.padded(unsafe { text.aad() });
            self.at = text.text;
            self.left = text.len / 16;
        }
    }

    /// If the packet at work has no more whole blocks, finishes it and takes the next.
    ///
    /// # Safety
    /// The promises of [`Feed`].
    pub(super) unsafe fn turn(&mut self) {
        if self.left > 0 || self.now == self.count {
            return;
        }
        let text = &self.texts[self.now];
        // SAFETY: the text is readable, and `at` is within it; so is the additional data.
        unsafe {
            let rest = core::slice::from_raw_parts(self.at, text.len % 16);
            self.poly.padded(rest);
            self.tags[self.now] = self.poly.finish(text.aad().len(), text.len);
            self.now += 1;
            self.begin();
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

    /// Finishes the chunk.
    ///
    /// # Safety
    /// The promises of [`Feed`], and the processor has the features.
    #[target_feature(enable = "avx2,bmi2")]
    pub(super) unsafe fn finish(&mut self) {
        // SAFETY: passed on.
        unsafe {
            while self.now < self.count {
                let mut hot = self.hot();
                while hot.left > 0 {
                    hot.step();
                }
                self.cold(&hot);
                self.turn();
            }
        }
    }

    pub(super) fn wipe(&mut self) {
        self.poly.zeroize();
        self.keys = [[0; 32]; CHUNK];
    }
}
