//! Poly1305 in the integer unit, two packets side by side, in small steps that ChaCha20 takes between its rounds.

use super::super::lanes::Text;
use super::super::scalar::Poly;
use super::CHUNK;
use zeroize::Zeroize;

/// The packets of a chunk whose tags are being made.
///
/// Whoever starts a chunk promises that until it is finished the texts can be read and are not written.
pub(super) struct Feed {
    /// The two packets at work, the next block of each, and how many blocks both still have.
    polys: [Poly; 2],
    at: [*const u8; 2],
    left: usize,
    /// The number of the first of the two, if they are at work.
    pair: Option<usize>,
    texts: [Text; CHUNK],
    keys: [[u8; 32]; CHUNK],
    next: usize,
    count: usize,
    pub(super) tags: [[u8; 16]; CHUNK],
}

impl Feed {
    pub(super) fn new() -> Self {
        Self {
            polys: [Poly::new(&[0; 32]), Poly::new(&[0; 32])],
            at: [core::ptr::null(); 2],
            left: 0,
            pair: None,
            texts: [Text::NONE; CHUNK],
            keys: [[0; 32]; CHUNK],
            next: 0,
            count: 0,
            tags: [[0; 16]; CHUNK],
        }
    }

    /// Takes on a chunk; the one before must be finished.
    pub(super) fn start(&mut self, texts: &[Text], keys: &[[u8; 32]]) {
        self.texts[..texts.len()].copy_from_slice(texts);
        self.keys[..keys.len()].copy_from_slice(keys);
        self.next = 0;
        self.count = texts.len();
    }

    /// Adds a block of each of the two packets, if there is one.
    ///
    /// # Safety
    /// The promises of [`Feed`].
    #[inline(always)]
    pub(super) unsafe fn step(&mut self) {
        if self.left > 0 {
            for (poly, at) in self.polys.iter_mut().zip(&mut self.at) {
                // SAFETY: `left` counts the blocks that both texts still have.
                let [low, high] = unsafe { at.cast::<[u64; 2]>().read_unaligned() };
                poly.block(u64::from_le(low), u64::from_le(high));
                *at = at.wrapping_add(16);
            }
            self.left -= 1;
        }
    }

    /// If the two packets have no more blocks in common, finishes them and takes the next two.
    ///
    /// # Safety
    /// The promises of [`Feed`].
    pub(super) unsafe fn turn(&mut self) {
        if self.left > 0 {
            return;
        }
        if let Some(pair) = self.pair.take() {
            for i in 0..2 {
                let text = &self.texts[pair + i];
                let done = self.at[i].addr() - text.text.addr();
                // SAFETY: the text is readable, and `at` within it.
                let rest = unsafe { core::slice::from_raw_parts(self.at[i], text.len - done) };
                let mut poly = core::mem::replace(&mut self.polys[i], Poly::new(&[0; 32]));
                poly.padded(rest);
                // SAFETY: as above.
                let aad = unsafe { text.aad() };
                self.tags[pair + i] = poly.finish(aad.len(), text.len);
            }
        }
        match self.count - self.next {
            0 => {}
            1 => {
                // SAFETY: the text is readable.
                self.tags[self.next] =
                    unsafe { self.texts[self.next].scalar(&self.keys[self.next]) };
                self.next += 1;
            }
            _ => {
                let pair = self.next;
                for i in 0..2 {
                    let text = &self.texts[pair + i];
                    self.polys[i] = Poly::new(&self.keys[pair + i]);
                    // SAFETY: the text is readable.
                    self.polys[i].padded(unsafe { text.aad() });
                    self.at[i] = text.text;
                }
                self.left = self.texts[pair].len.min(self.texts[pair + 1].len) / 16;
                self.pair = Some(pair);
                self.next += 2;
            }
        }
    }

    /// Finishes the chunk.
    ///
    /// # Safety
    /// The promises of [`Feed`].
    #[target_feature(enable = "avx2,bmi2")]
    pub(super) unsafe fn finish(&mut self) {
        // SAFETY: passed on.
        unsafe {
            while self.pair.is_some() || self.next < self.count {
                while self.left > 0 {
                    self.step();
                }
                self.turn();
            }
        }
    }

    pub(super) fn wipe(&mut self) {
        self.polys.zeroize();
        self.keys = [[0; 32]; CHUNK];
    }
}
