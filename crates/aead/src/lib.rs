//! ChaCha20-Poly1305 (RFC 8439) for batches of packets.
//!
//! Libraries seal one packet at a time, and a packet of 1,420 bytes is too small to keep a wide
//! vector unit busy: the last blocks leave lanes empty, and every packet pays for its own Poly1305
//! powers. This crate takes *batches*: the lanes of its ChaCha20 are blocks of any packet of the
//! batch, and the lanes of its Poly1305 are packets. With AVX-512 that is three to five times as
//! fast as a library (the README has the table, and tells where it is not).
//!
//! ```
//! use adit_aead::{Key, OpenJob, SealJob, TAG_LEN, open, seal};
//!
//! const LEN: usize = 1420;
//! let key = Key::new(&[7; 32]);
//! let mut train = vec![[0x5a; LEN + TAG_LEN]; 45];
//!
//! // Seal all where they stand, with counters from 1000. The last 16 bytes of each are for its tag.
//! let mut jobs: Vec<_> = (1000..)
//!     .zip(&mut train)
//!     .map(|(counter, packet)| SealJob::in_place(&key, counter, packet))
//!     .collect();
//! seal(&mut jobs);
//! drop(jobs);
//!
//! // One of them arrives damaged; the others are none the worse for it.
//! train[7][3] ^= 1;
//! let mut jobs: Vec<_> = (1000..)
//!     .zip(&mut train)
//!     .map(|(counter, packet)| OpenJob::in_place(&key, counter, packet))
//!     .collect();
//! open(&mut jobs);
//! let bad: Vec<_> = (0..jobs.len()).filter(|&i| !jobs[i].is_authentic()).collect();
//! assert_eq!(bad, [7]);
//! assert_eq!(train[0][..LEN], [0x5a; LEN]);
//! ```
//!
//! `examples/seal_train.rs` seals from one buffer to another and tells how long that takes.
//!
//! The implementation is chosen once, at run time, by what the processor has: AVX-512 (with IFMA),
//! AVX2, or the library [ring](https://docs.rs/ring), which also does what it does faster on any
//! processor. Without the feature `ring`, it is plain Rust instead. A program may [`prefer`] another
//! one. [`implementation`] tells what is in use.
//!
//! Nothing here needs the standard library. Nothing allocates, but for the library's form of a key and
//! for keystream that is made ahead ([`seal_one`]), once a key. Times do not depend on keys or data,
//! only on lengths and on which tags are right. Keys are zeroized when dropped, scratch memory and
//! vector registers at the end of each batch.

#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]

extern crate alloc;

mod job;
mod kernels;
mod key;
mod message;
mod stack;

pub use job::{OpenJob, SealJob};
pub use kernels::Kernel;
pub use key::{Key, TAG_LEN};
pub use message::{open_message, open_message_extended, seal_message, seal_message_extended};
pub use stack::zeroizing_stack;

/// Seals every job. Never seal two different packets with the same key and counter.
///
/// Jobs may differ in key and length; those with the same are fastest side by side.
///
/// # Panics
/// Perhaps, if a plaintext is longer than the cipher allows, 256 GiB (RFC 8439, section 2.8).
pub fn seal(jobs: &mut [SealJob<'_>]) {
    if cfg!(adit_lab_no_aead) {
        return without_cipher::seal(jobs);
    }
    Kernel::active().seal(jobs);
}

/// Opens every job; each tells with [`OpenJob::is_authentic`] how it went, and none depends on
/// another. No content of a packet makes it panic.
pub fn open(jobs: &mut [OpenJob<'_>]) {
    if cfg!(adit_lab_no_aead) {
        return without_cipher::open(jobs);
    }
    Kernel::active().open(jobs);
}

/// Seals one packet where it stands, the plaintext `out[..out.len() - TAG_LEN]`; the tag goes behind
/// it. Never seal two different packets with the same key and counter.
///
/// This is for packets that come one at a time, with counters that mostly follow each other: of
/// short ones, the keystream of several is made together, and kept with the key.
///
/// # Panics
/// If `out` is shorter than a tag.
pub fn seal_one(key: &Key, counter: u64, out: &mut [u8]) {
    if cfg!(adit_lab_no_aead) {
        return without_cipher::seal(&mut [SealJob::in_place(key, counter, out)]);
    }
    Kernel::active().seal_one(key, counter, out);
}

/// Opens one packet where it stands; returns whether it is authentic. Then the plaintext is
/// `text[..text.len() - TAG_LEN]`, and otherwise nothing of it was written.
pub fn open_one(key: &Key, counter: u64, text: &mut [u8]) -> bool {
    if cfg!(adit_lab_no_aead) {
        return true;
    }
    Kernel::active().open_one(key, counter, text)
}

/// Has this process use the implementation of this name, `avx512`, `avx2`, `portable` or `ring`. To be called
/// before any packet is sealed or opened; nothing happens after that, where there is none of that name, and
/// where this processor cannot run it.
pub fn prefer(name: &str) {
    Kernel::prefer(name);
}

/// The name of the implementation in use: `avx512`, `avx2`, `portable` or `ring`.
pub fn implementation() -> &'static str {
    if cfg!(adit_lab_no_aead) {
        return "none";
    }
    Kernel::active().name()
}

/// Stand-ins for the cipher in a build of the lab, to measure what everything else costs: they move
/// the bytes and check nothing. No build has them unless it is compiled with
/// `--cfg adit_lab_no_aead`, and [`implementation`] then says so.
mod without_cipher {
    use crate::{OpenJob, SealJob, TAG_LEN};

    pub(crate) fn seal(jobs: &mut [SealJob<'_>]) {
        for SealJob(job) in jobs {
            job.gather();
        }
    }

    pub(crate) fn open(jobs: &mut [OpenJob<'_>]) {
        for OpenJob(job, authentic) in jobs {
            let len = job.src.len().saturating_sub(TAG_LEN);
            job.out[..len].copy_from_slice(&job.src[..len]);
            *authentic = true;
        }
    }
}
