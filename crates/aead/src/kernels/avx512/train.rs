//! ChaCha20 in 512-bit registers over a train: packets that differ only in nonce and text.
//!
//! The lanes take block 0 of all packets, then block 1 of all, and so on, so that what a lane needs
//! of its packet is found by an offset into arrays that repeat the packets: nothing has to be
//! arranged block by block. Most of the first round is made once for all blocks: before columns are
//! mixed, the number of the block has reached only one of four, and that one is the same for all
//! packets.
//!
//! Sixteen lanes are in the first half of their rounds while the sixteen before them are in the
//! second. So there are always rounds for the processor to make while others start or finish, which
//! alone would leave it waiting.

use super::super::job::Job;
use super::super::lanes::{Packet, first};
use super::super::scalar::CONSTANTS;
use super::chacha::{States, quarter_rounds, transpose_parts, transpose_words};
use core::arch::x86_64::*;
use core::hint::black_box;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr;

type V = __m512i;

/// The first diagonals, of which `Train::columns` has begun two.
macro_rules! first_diagonals {
    ($x:ident) => {
        quarter_rounds!(@one 16 $x [(0 5 15) (3 4 14)]);
        $x[12] = _mm512_rol_epi32::<16>(_mm512_xor_si512($x[12], $x[1]));
        quarter_rounds!(@one 12 $x [(10 15 5) (11 12 6) (8 13 7) (9 14 4)]);
        quarter_rounds!(@one 8 $x [(0 5 15) (1 6 12) (2 7 13) (3 4 14)]);
        quarter_rounds!(@one 7 $x [(10 15 5) (11 12 6) (8 13 7) (9 14 4)]);
    };
}

/// Columns, then diagonals.
macro_rules! double_round {
    ($($x:ident)+) => {
        quarter_rounds!($($x)+; (0 4 8 12) (1 5 9 13) (2 6 10 14) (3 7 11 15));
        quarter_rounds!($($x)+; (0 5 10 15) (1 6 11 12) (2 7 8 13) (3 4 9 14));
    };
}

/// The most packets of a train.
const MOST: usize = 32;
/// Trains of more than 16 packets stay below this number of bytes, for the first-level cache.
const BYTES: usize = 48 << 10;
/// The fewest blocks with which up to 16 packets are a train.
const LEAST_BLOCKS: usize = 128;
/// The lanes of a register.
const WIDTH: usize = 16;
/// The elements of an array: a whole register can be read from any packet on.
const SPAN: usize = MOST + WIDTH;

/// The number of jobs that come next, and whether they make a train, of `most` packets or less.
pub(super) fn next<'a>(
    mut jobs: impl Iterator<Item = &'a Job<'a>> + Clone,
    most: usize,
) -> (usize, bool) {
    let mut before = 0;
    while let Some(shape) = jobs.clone().next() {
        let len = shape.out.len();
        let fitting = (BYTES / len.max(1)).clamp(WIDTH, MOST) & !7;
        let alike = jobs
            .clone()
            .take(fitting.min(most))
            .take_while(|job| job.is_like(shape))
            .count();
        if alike > WIDTH || alike * (1 + len / 64) >= LEAST_BLOCKS {
            return if before == 0 {
                (alike, true)
            } else {
                (before, false)
            };
        }
        before += alike;
        jobs.nth(alike - 1);
    }
    (before, false)
}

/// A train of up to [`MOST`] packets. Element `i` of the arrays is of packet `i % count`,
/// `i / count` blocks further on; `new` fills all up to `count + WIDTH`, so that 16 can be read from any packet on.
#[repr(C, align(64))]
pub(super) struct Train {
    count: usize,
    /// The first packet, which all are like.
    shape: Packet,
    keys: *mut [u8; 32],
    /// The last three rows of the initial state.
    nonces: [[i32; SPAN]; 3],
    /// The number of blocks further on.
    ahead: [u32; SPAN],
    /// The place where block 0 would begin if it were text.
    src: [*const u8; SPAN],
    dst: [*mut u8; SPAN],
}

impl Train {
    /// Writes the Poly1305 keys of the packets to `keys` when it runs block 0.
    pub(super) fn new(packets: impl Iterator<Item = Packet>, keys: *mut [u8; 32]) -> Self {
        let mut packets = packets.peekable();
        let mut train = Self {
            count: 0,
            shape: *packets.peek().expect("a train has packets"),
            keys,
            nonces: [[0; SPAN]; 3],
            ahead: [0; SPAN],
            src: [ptr::null(); SPAN],
            dst: [ptr::null_mut(); SPAN],
        };
        for packet in packets {
            let i = train.count;
            let [_, nonces @ ..] = packet.row_words();
            for (row, nonce) in train.nonces.iter_mut().zip(nonces) {
                row[i] = nonce;
            }
            train.src[i] = packet.src.wrapping_sub(64);
            train.dst[i] = packet.dst.wrapping_sub(64);
            train.count += 1;
        }
        for i in train.count..train.count + WIDTH {
            let same = i - train.count;
            for row in &mut train.nonces {
                row[i] = row[same];
            }
            train.ahead[i] = train.ahead[same] + 1;
            train.src[i] = train.src[same].wrapping_add(64);
            train.dst[i] = train.dst[same].wrapping_add(64);
        }
        train
    }

    /// The number of blocks of a packet, with that of its key.
    pub(super) fn blocks(&self) -> u32 {
        1 + u32::try_from(self.shape.len.div_ceil(64)).expect("ChaCha20 has no more")
    }

    /// Makes these blocks of all packets: writes the keys, and XORs the keystream into the texts.
    ///
    /// # Safety
    /// The packets' texts can be read and written, the keys written, and the processor has the
    /// features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
    pub(super) unsafe fn run(&self, blocks: Range<u32>, states: &mut MaybeUninit<States>) {
        // SAFETY: the states have 64 vectors, exclusive, which are more than the columns need; the
        // rest is passed on.
        unsafe {
            let mut columns = self.columns(states.as_mut_ptr().cast(), blocks.start);
            let mut older = Sixteen {
                train: self,
                block: blocks.start,
                from: 0,
                end: blocks.end,
            };
            let mut x = older.start(&mut columns);
            first_diagonals!(x);
            // Of nine double rounds, four are made beside older lanes, one beside their end, four
            // beside younger lanes.
            for _ in 0..5 {
                double_round!(x);
            }
            loop {
                let younger = older.next();
                if younger.block >= blocks.end {
                    break;
                }
                let mut y = younger.start(&mut columns);
                first_diagonals!(y);
                for _ in 0..4 {
                    double_round!(x y);
                }
                double_round!(y);
                older.finish(|i| x[i]);
                x = y;
                older = younger;
            }
            for _ in 0..4 {
                double_round!(x);
            }
            older.finish(|i| x[i]);
        }
    }

    /// Makes what all blocks of a packet share; of the first column nothing yet before block `end`.
    ///
    /// # Safety
    /// `rows` has room for 16 rows of `SPAN / WIDTH` vectors, and the processor has the features.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
    unsafe fn columns(&self, rows: *mut V, end: u32) -> Columns {
        // SAFETY: a packet's key is borrowed by its job and has 8 words; a row of nonces has `SPAN`
        // of them; the room is the caller's promise.
        unsafe {
            let key = self.shape.key.cast::<i32>();
            let word = |i: usize| _mm512_set1_epi32(key.add(i).read_unaligned());
            for (i, constant) in CONSTANTS.into_iter().enumerate().skip(1) {
                for part in 0..SPAN / WIDTH {
                    let nonce = self.nonces[i - 1].as_ptr().add(WIDTH * part);
                    let constant = _mm512_set1_epi32(constant.cast_signed());
                    let nonce = _mm512_loadu_si512(nonce.cast());
                    let mut x = [constant, word(i), word(i + 4), nonce];
                    quarter_rounds!(x; (0 1 2 3));
                    for (j, row) in x.into_iter().enumerate() {
                        rows.add(SPAN / WIDTH * (4 * j + i) + part).write(row);
                    }
                }
            }
            // What the first diagonals can do without the first column.
            for part in 0..SPAN / WIDTH {
                let row = |i: usize| rows.add(SPAN / WIDTH * i + part);
                row(1).write(_mm512_add_epi32(row(1).read(), row(6).read()));
                row(2).write(_mm512_add_epi32(row(2).read(), row(7).read()));
                let mixed = _mm512_xor_si512(row(13).read(), row(2).read());
                row(13).write(_mm512_rol_epi32::<16>(mixed));
            }
        }
        Columns { rows, end }
    }
}

/// The states after the first round of columns, and some of the first diagonals.
struct Columns {
    /// Sixteen rows of 3 vectors: of the first column, in which packets do not differ, a word for
    /// each of 16 blocks; of the others a word for each packet.
    rows: *mut V,
    /// The end of the 16 blocks.
    end: u32,
}

/// The next sixteen lanes: from packet `from` and `block` on.
///
/// All its unsafe functions rely on the same: `from` is a packet of the train (`next` keeps it
/// below `count`), the columns are those of the train, and the processor has the features.
#[derive(Clone, Copy)]
struct Sixteen<'a> {
    train: &'a Train,
    block: u32,
    from: usize,
    /// The block at which all ends.
    end: u32,
}

impl Sixteen<'_> {
    fn next(mut self) -> Self {
        self.from += WIDTH;
        while self.from >= self.train.count {
            self.from -= self.train.count;
            self.block += 1;
        }
        self
    }

    /// Row `i` of the initial state.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
    unsafe fn initial(&self, i: usize) -> V {
        // SAFETY: the key, borrowed by its job, has 8 words; there are 16 elements from packet
        // `from` on.
        unsafe {
            let key = self.train.shape.key.cast::<i32>();
            match i {
                0..4 => _mm512_set1_epi32(CONSTANTS[i].cast_signed()),
                4..12 => _mm512_set1_epi32(key.add(i - 4).read_unaligned()),
                12 => {
                    let ahead = _mm512_loadu_si512(self.train.ahead.as_ptr().add(self.from).cast());
                    _mm512_add_epi32(ahead, _mm512_set1_epi32(self.block.cast_signed()))
                }
                _ => _mm512_loadu_si512(self.train.nonces[i - 13].as_ptr().add(self.from).cast()),
            }
        }
    }

    /// The state, in which the first diagonals are to go on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
    unsafe fn start(&self, columns: &mut Columns) -> [V; 16] {
        // SAFETY: there are 3 vectors in each of 16 rows, and 16 words from any packet on.
        unsafe {
            // Sixteen blocks of all packets fill a register for each packet: no lane is beyond when
            // the first is not.
            if self.block == columns.end {
                self.first_column(columns);
            }
            let before = _mm512_set1_epi32((columns.end - 16).cast_signed());
            let number = _mm512_sub_epi32(self.initial(12), before);
            core::array::from_fn(|i| {
                let row = columns.rows.add(SPAN / WIDTH * i);
                match i % 4 {
                    0 => _mm512_permutexvar_epi32(number, row.read()),
                    _ => _mm512_loadu_si512(row.cast::<i32>().add(self.from).cast()),
                }
            })
        }
    }

    /// Makes the first round of the first column for the next 16 blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
    unsafe fn first_column(&self, columns: &mut Columns) {
        // SAFETY: there are 3 vectors in each of 16 rows.
        unsafe {
            let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let from = _mm512_set1_epi32(columns.end.cast_signed());
            let mut x = [
                self.initial(0),
                self.initial(4),
                self.initial(8),
                _mm512_add_epi32(from, numbers),
            ];
            quarter_rounds!(x; (0 1 2 3));
            for (j, row) in x.into_iter().enumerate() {
                columns.rows.add(SPAN / WIDTH * 4 * j).write(row);
            }
            columns.end += 16;
        }
    }

    /// Adds the initial state, turns rows into blocks and XORs them into the texts. (Compilers
    /// inline a function with two callers only if each has its own `end`.)
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
    unsafe fn finish(&self, end: impl Fn(usize) -> V) {
        // SAFETY: `whole` says yes only if all 64 bytes of each lane are text on one side; `part`
        // masks what is not. The texts are those of jobs, as `Train::run` demands.
        unsafe {
            let x = |i: usize| _mm512_add_epi32(self.initial(i), end(i));
            let q0 = transpose_words([x(0), x(1), x(2), x(3)]);
            let q1 = transpose_words([x(4), x(5), x(6), x(7)]);
            let q2 = transpose_words([x(8), x(9), x(10), x(11)]);
            let q3 = transpose_words([x(12), x(13), x(14), x(15)]);
            if let Some((src, dst)) = self.whole() {
                let at = 64 * self.block as usize;
                for j in 0..4 {
                    let blocks = transpose_parts([q0[j], q1[j], q2[j], q3[j]]);
                    for (i, block) in blocks.into_iter().enumerate() {
                        let src = src.add(4 * i + j).read().wrapping_add(at);
                        let dst = dst.add(4 * i + j).read().wrapping_add(at);
                        let text = _mm512_xor_si512(_mm512_loadu_si512(src.cast()), block);
                        _mm512_storeu_si512(dst.cast(), text);
                    }
                }
            } else {
                // Read again, or compilers would take a number that they have in a vector out of
                // it, which nothing that looks at the machine code could tell from a secret.
                let this = black_box(self);
                for j in 0..4 {
                    let blocks = transpose_parts([q0[j], q1[j], q2[j], q3[j]]);
                    for (i, block) in blocks.into_iter().enumerate() {
                        let (src, load, dst, store) = this.part(4 * i + j);
                        let text = _mm512_maskz_loadu_epi8(load, src.cast());
                        let text = _mm512_xor_si512(text, block);
                        _mm512_mask_storeu_epi8(dst.cast(), store, text);
                    }
                }
            }
        }
    }

    /// The pointers, if all lanes have whole blocks of text from the same side.
    #[inline]
    fn whole(&self) -> Option<(*const *const u8, *const *mut u8)> {
        let (train, shape) = (self.train, &self.train.shape);
        let dst = train.dst[self.from..].as_ptr();
        let last = self.block + train.ahead[self.from + WIDTH - 1];
        let (at, end) = (64 * self.block as usize, 64 * last as usize);
        if self.block == 0 || last >= self.end || end > shape.len {
            None
        } else if end <= shape.in_place {
            Some((dst.cast(), dst))
        } else if at >= shape.in_place + 64 && end <= shape.src_end {
            Some((train.src[self.from..].as_ptr(), dst))
        } else {
            None
        }
    }

    /// The bytes that a lane reads and those that it writes, with masks.
    #[inline(always)]
    fn part(&self, lane: usize) -> (*const u8, u64, *mut u8, u64) {
        let (train, shape) = (self.train, &self.train.shape);
        let i = self.from + lane;
        let block = self.block + train.ahead[i];
        if block == 0 {
            let key = train.keys.wrapping_add(i).cast::<u8>();
            return (key, 0, key, first(32));
        }
        let at = 64 * (block - 1) as usize;
        let dst = train.dst[i].wrapping_add(64 * self.block as usize);
        if block >= self.end {
            return (dst, 0, dst, 0);
        }
        let store = first(shape.len - at);
        if at < shape.in_place {
            (dst, store, dst, store)
        } else {
            let src = train.src[i].wrapping_add(64 * self.block as usize);
            (src, first(shape.src_end.saturating_sub(at)), dst, store)
        }
    }
}
