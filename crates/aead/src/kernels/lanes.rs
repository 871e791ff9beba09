//! The work list of ChaCha20: each lane is one block of one packet.

use core::ptr;

/// The most lanes that a kernel works on at a time.
pub(super) const MAX_LANES: usize = 32;

/// Up to [`MAX_LANES`] blocks to make. The arrays are parallel: a lane is an index.
///
/// Whoever pushes a lane promises that until the lanes are cleared its key lives, the bytes of `src` in the mask
/// `load` can be read, and those of `dst` in the mask `store` written; kernels touch no other byte.
/// Where the two masks cover the same bytes of overlapping memory, `src` and `dst` are equal.
/// Unused lanes have empty masks and the key of lane 0.
#[repr(C, align(64))]
pub(super) struct Lanes {
    /// The fourth row of the state: block counter and nonce.
    pub(super) rows: [[u32; 4]; MAX_LANES],
    pub(super) keys: [*const [u8; 32]; MAX_LANES],
    pub(super) src: [*const u8; MAX_LANES],
    pub(super) dst: [*mut u8; MAX_LANES],
    pub(super) load: [u64; MAX_LANES],
    pub(super) store: [u64; MAX_LANES],
    len: usize,
    mixed: bool,
}

/// The mask of the first `n` of 64 bytes.
#[inline(always)]
pub(super) fn first(n: usize) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            rows: [[0; 4]; MAX_LANES],
            keys: [ptr::null(); MAX_LANES],
            src: [ptr::null(); MAX_LANES],
            dst: [ptr::null_mut(); MAX_LANES],
            load: [0; MAX_LANES],
            store: [0; MAX_LANES],
            len: 0,
            mixed: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether the lanes have more than one key.
    pub(super) fn mixed(&self) -> bool {
        self.mixed
    }

    /// Forgets the lanes, keeps the arrays.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.mixed = false;
    }

    /// Adds a lane for block `counter` of a packet; the masks are given as numbers of bytes. Returns whether there
    /// is room for another.
    #[inline(always)]
    fn push(
        &mut self,
        packet: &Packet,
        counter: u32,
        (src, load): (*const u8, usize),
        (dst, store): (*mut u8, usize),
    ) -> bool {
        let [n0, n1, n2] = packet.nonce;
        // The remainder tells the compiler that the index is in range; callers flush full lanes.
        let lane = self.len % MAX_LANES;
        self.rows[lane] = [counter, n0, n1, n2];
        self.keys[lane] = packet.key;
        self.src[lane] = src;
        self.dst[lane] = dst;
        self.load[lane] = first(load);
        self.store[lane] = first(store);
        self.mixed |= packet.key != self.keys[0];
        self.len = lane + 1;
        self.len < MAX_LANES
    }

    /// Adds the lane of block 0, whose first 32 bytes are the packet's Poly1305 key.
    #[inline(always)]
    pub(super) fn push_key(
        &mut self,
        packet: &Packet,
        key: *mut [u8; 32],
        flush: &mut impl FnMut(&mut Self),
    ) {
        if !self.push(packet, 0, (key.cast(), 0), (key.cast(), 32)) {
            flush(self);
        }
    }

    /// Adds the lanes of the text of a packet.
    #[inline(always)]
    pub(super) fn push_text(&mut self, packet: &Packet, flush: &mut impl FnMut(&mut Self)) {
        let mut counter = 0;
        let mut at = 0;
        while at < packet.len {
            counter += 1;
            let rest = packet.len - at;
            let from = if at < packet.in_place {
                (packet.dst.wrapping_add(at).cast_const(), rest)
            } else {
                let src = packet.src.wrapping_add(at);
                (src, packet.src_end.saturating_sub(at))
            };
            if !self.push(packet, counter, from, (packet.dst.wrapping_add(at), rest)) {
                flush(self);
            }
            at += 64;
        }
    }

    /// Empties the lanes from the last one pushed to `end`, so that a kernel may run them all.
    pub(super) fn idle(&mut self, end: usize) {
        for lane in self.len..end.min(MAX_LANES) {
            self.keys[lane] = self.keys[0];
            self.src[lane] = self.src[0];
            self.dst[lane] = self.dst[0];
            self.load[lane] = 0;
            self.store[lane] = 0;
        }
    }
}

/// One packet as the kernels see it: what is to be XORed with the keystream, and where it goes.
///
/// Byte `i` of the input is `dst[i]` for `i < in_place`, then `src[i]` for `i < src_end`, then zero.
/// `in_place` is a multiple of 64 or not less than `len`.
pub(super) struct Packet {
    pub(super) key: *const [u8; 32],
    pub(super) nonce: [u32; 3],
    pub(super) src: *const u8,
    pub(super) src_end: usize,
    pub(super) in_place: usize,
    pub(super) dst: *mut u8,
    pub(super) len: usize,
}
