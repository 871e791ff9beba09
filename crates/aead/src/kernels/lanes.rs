//! The work list of ChaCha20: each lane is one block of one packet.

use core::arch::x86_64::*;
use core::{ptr, slice};

use super::scalar::Poly;

/// The most lanes that a kernel works on at a time.
pub(super) const MAX_LANES: usize = 32;

/// A list of up to [`MAX_LANES`] blocks to make. The arrays are parallel: a lane is an index.
///
/// The caller that pushes a lane promises: until the lanes are cleared its key lives, the bytes of
/// `src` in the mask `load` can be read, and those of `dst` in the mask `store` written; kernels
/// touch no other byte. Where the two masks cover the same bytes of overlapping memory, `src` and
/// `dst` are equal.
#[repr(C, align(64))]
pub(super) struct Lanes {
    /// The fourth row of the state: block counter and nonce.
    pub(super) rows: [__m128i; MAX_LANES],
    pub(super) src: [*const u8; MAX_LANES],
    pub(super) dst: [*mut u8; MAX_LANES],
    pub(super) load: [u64; MAX_LANES],
    pub(super) store: [u64; MAX_LANES],
    /// Only the first is set unless the lanes are mixed.
    pub(super) keys: [*const [u8; 32]; MAX_LANES],
    len: usize,
    /// The number of lanes at which they are flushed.
    full: usize,
    mixed: bool,
    /// The lanes whose masks are not full.
    partial: u32,
}

/// The input of the lanes of Poly1305 keys. It could be any under an empty mask; but the memory of
/// the key overlaps with the 64 bytes at the key before, just stored under a mask, and the
/// processor would wait for that.
static ZEROS: [u8; 32] = [0; 32];

/// The mask of the first `n` of 64 bytes.
#[inline(always)]
pub(super) fn first(n: usize) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self::of(MAX_LANES)
    }

    /// A list of at most [`MAX_LANES`], to be flushed when there are as many.
    pub(super) fn of(full: usize) -> Self {
        Self {
            rows: [row(0, [0; 3]); MAX_LANES],
            src: [ptr::null(); MAX_LANES],
            dst: [ptr::null_mut(); MAX_LANES],
            load: [!0; MAX_LANES],
            store: [!0; MAX_LANES],
            keys: [ptr::null(); MAX_LANES],
            len: 0,
            full,
            mixed: false,
            partial: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether the lanes have more than one key.
    pub(super) fn mixed(&self) -> bool {
        self.mixed
    }

    /// The lanes whose masks are not full.
    pub(super) fn partial(&self) -> u32 {
        self.partial
    }

    /// Forgets the lanes.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.mixed = false;
        while self.partial != 0 {
            let lane = self.partial.trailing_zeros() as usize;
            self.load[lane] = !0;
            self.store[lane] = !0;
            self.partial &= self.partial - 1;
        }
    }

    /// Notes the key of the next `n` lanes.
    #[inline(always)]
    fn key(&mut self, key: *const [u8; 32], n: usize) {
        if self.len == 0 {
            self.keys[0] = key;
        } else if self.mixed || key != self.keys[0] {
            if !self.mixed {
                let first = self.keys[0];
                self.keys[..self.len].fill(first);
                self.mixed = true;
            }
            self.keys[self.len..][..n].fill(key);
        }
    }

    /// Adds a lane, and empties them all if they are full; the masks are given as numbers of bytes.
    #[inline(always)]
    fn push(
        &mut self,
        row: __m128i,
        (src, load): (*const u8, usize),
        (dst, store): (*mut u8, usize),
        flush: &mut impl FnMut(&mut Self),
    ) {
        let lane = self.len;
        self.rows[lane] = row;
        self.src[lane] = src;
        self.dst[lane] = dst;
        self.load[lane] = first(load);
        self.store[lane] = first(store);
        self.partial |= u32::from(load < 64 || store < 64) << lane;
        self.len += 1;
        if self.len == self.full {
            flush(self);
        }
    }

    /// Adds the lane of block 0, whose first 32 bytes are the packet's Poly1305 key.
    #[inline(always)]
    pub(super) fn push_key(
        &mut self,
        packet: &Packet,
        key: *mut [u8; 32],
        flush: &mut impl FnMut(&mut Self),
    ) {
        self.key(packet.key, 1);
        let input = (ZEROS.as_ptr(), ZEROS.len());
        self.push(packet.row, input, (key.cast(), 32), flush);
    }

    /// Adds the lanes of the text of a packet.
    #[inline(always)]
    pub(super) fn push_text(&mut self, packet: &Packet, flush: &mut impl FnMut(&mut Self)) {
        let mut row = next(packet.row);
        let (from, end) = packet.input(0);
        if packet.len == 64 && end >= 64 {
            // The most frequent of small packets; what follows takes three times as many
            // instructions for it.
            self.key(packet.key, 1);
            self.push(row, (from, 64), (packet.dst, 64), flush);
            return;
        }
        let mut at = 0;
        while at < packet.len {
            // 1. What comes in one piece from here on: the part in place, or the part from
            //    elsewhere.
            let (from, end) = packet.input(at);
            let whole = (end.saturating_sub(at) / 64).min(self.full - self.len);
            // 2. Its whole blocks, whose masks are full already.
            if whole > 0 {
                self.key(packet.key, whole);
                let lanes = self.len..self.len + whole;
                for ((r, src), dst) in self.rows[lanes.clone()]
                    .iter_mut()
                    .zip(&mut self.src[lanes.clone()])
                    .zip(&mut self.dst[lanes])
                {
                    *r = row;
                    row = next(row);
                    *src = from.wrapping_add(at);
                    *dst = packet.dst.wrapping_add(at);
                    at += 64;
                }
                self.len += whole;
                if self.len == self.full {
                    flush(self);
                }
            } else {
                // 3. Or one block, that may end within, or of which the input ends within, or that
                //    is only zeros.
                self.key(packet.key, 1);
                let input = (from.wrapping_add(at), end.saturating_sub(at));
                let output = (packet.dst.wrapping_add(at), packet.len - at);
                self.push(row, input, output, flush);
                row = next(row);
                at += 64;
            }
        }
    }

    /// Gives the lanes from the last one pushed to `end` nothing to do, so that a kernel may run
    /// them all. Their pointers are good ones all the same: the processor is slow to ignore a
    /// masked access to memory that is not there.
    pub(super) fn idle(&mut self, end: usize) {
        for lane in self.len..end.min(MAX_LANES) {
            self.keys[lane] = self.keys[0];
            self.src[lane] = self.src[0];
            self.dst[lane] = self.dst[0];
            self.load[lane] = 0;
            self.store[lane] = 0;
            self.partial |= 1 << lane;
        }
    }
}

/// The fourth row of the state for a block.
#[inline(always)]
pub(super) fn row(counter: i32, nonce: [u32; 3]) -> __m128i {
    let [n0, n1, n2] = nonce.map(u32::cast_signed);
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_setr_epi32(counter, n0, n1, n2) }
}

/// The row of the next block.
#[inline(always)]
fn next(row: __m128i) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_add_epi32(row, _mm_setr_epi32(1, 0, 0, 0)) }
}

/// One packet as the kernels see it: what is to be XORed with the keystream, and where it goes.
///
/// Byte `i` of the input is `dst[i]` for `i < in_place`, then `src[i]` for `i < src_end`, then
/// zero. `in_place` is a multiple of 64 or not less than `len`.
#[derive(Clone, Copy)]
pub(super) struct Packet {
    pub(super) key: *const [u8; 32],
    /// The fourth row of the state for block 0. (As words it would be loaded before their stores
    /// are complete.)
    pub(super) row: __m128i,
    pub(super) src: *const u8,
    pub(super) src_end: usize,
    pub(super) in_place: usize,
    pub(super) dst: *mut u8,
    pub(super) len: usize,
}

impl Packet {
    /// The row as words.
    #[inline(always)]
    pub(super) fn row_words(&self) -> [i32; 4] {
        let mut words = [0; 4];
        // SAFETY: SSE2 is part of x86-64, and the words have 16 bytes.
        unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), self.row) };
        words
    }

    /// The place from which the input at `at` is read, and the byte up to which it is.
    #[inline(always)]
    pub(super) fn input(&self, at: usize) -> (*const u8, usize) {
        if at < self.in_place {
            (self.dst.cast_const(), self.in_place.min(self.len))
        } else {
            (self.src, self.src_end)
        }
    }
}

/// Bytes to be authenticated: `len` readable ones, and possibly additional data before them.
#[derive(Clone, Copy)]
pub(super) struct Text {
    pub(super) text: *const u8,
    pub(super) len: usize,
    /// Null if there is none. Only [`Text::scalar`] heeds it.
    pub(super) aad: *const [u8],
}

impl Text {
    pub(super) const NONE: Self = Self {
        text: ptr::null(),
        len: 0,
        aad: NO_AAD,
    };

    pub(super) fn new(text: *const u8, len: usize, aad: &[u8]) -> Self {
        let aad = if aad.is_empty() { NO_AAD } else { aad };
        Self { text, len, aad }
    }

    /// The tag, from the integer unit.
    ///
    /// # Safety
    /// The text is readable, and so is the additional data.
    pub(super) unsafe fn scalar(&self, key: &[u8; 32]) -> [u8; 16] {
        // SAFETY: the caller promises that the `len` bytes of the text and the additional data can
        // be read while this runs.
        let (text, aad) = unsafe { (slice::from_raw_parts(self.text, self.len), self.aad()) };
        Poly::new(key).tag(aad, text)
    }

    /// # Safety
    /// The additional data is readable for as long as the result lives.
    pub(super) unsafe fn aad<'a>(&self) -> &'a [u8] {
        // SAFETY: `aad` points to a slice; the caller promises that it outlives the result.
        unsafe { self.aad.as_ref() }.unwrap_or(&[])
    }

    /// The number of blocks of the text, with that of the lengths.
    pub(super) fn blocks(&self) -> usize {
        self.len.div_ceil(16) + 1
    }
}

const NO_AAD: *const [u8] = ptr::slice_from_raw_parts(ptr::null(), 0);
