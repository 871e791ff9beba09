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
//! processor. The environment variable `ADIT_AEAD` forces one (`avx512`, `avx2`, `portable`,
//! `ring`); if this processor cannot run it, or there is none of that name, the choice is as
//! without it. [`implementation`] tells what is in use.
//!
//! Nothing here allocates, but for the library's form of a key, once. Times do not depend on keys
//! or data, only on lengths and on which tags are right. Keys are zeroized when dropped, scratch
//! memory and vector registers at the end of each batch.

#![deny(missing_docs)]

mod kernels;
mod stack;

pub use kernels::Kernel;
use kernels::{Job, LibraryKey};
use ring::aead::LessSafeKey;
pub use stack::zeroizing_stack;
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// The length of the tag that follows every ciphertext.
pub const TAG_LEN: usize = 16;

/// A key of 32 bytes; zeroized when dropped.
// In this order, so that tests that search the memory for keys know them.
#[repr(C)]
pub struct Key {
    bytes: Zeroizing<[u8; 32]>,
    /// Made when first needed: most processors never need it.
    library: OnceLock<LibraryKey>,
}

impl Key {
    /// The key in the form that the kernels and the library use. `bytes` are copied; the caller
    /// zeroizes its own.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self {
            bytes: Zeroizing::new(*bytes),
            library: OnceLock::new(),
        }
    }

    /// The key itself: for the process that goes on with it. Callers zeroize their copies.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The same for the library.
    fn library(&self) -> &LessSafeKey {
        &self.library.get_or_init(|| LibraryKey::new(&self.bytes)).0
    }
}

/// The nonce of WireGuard's data packets (whitepaper, section 5.4.6): four zero bytes, then the
/// counter.
fn nonce(counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

/// One packet to seal.
pub struct SealJob<'a>(Job<'a>);

impl<'a> SealJob<'a> {
    /// Seals the plaintext `out[..out.len() - TAG_LEN]` where it stands; the tag goes behind it.
    ///
    /// # Panics
    /// If `out` is shorter than a tag.
    pub fn in_place(key: &'a Key, counter: u64, out: &'a mut [u8]) -> Self {
        let in_place = out.len().checked_sub(TAG_LEN).expect("room for the tag");
        Self::gathered(key, counter, in_place, &[], out)
    }

    /// Seals a plaintext of `out.len() - TAG_LEN` bytes that is put together from three parts: the
    /// first `in_place` bytes already stand in `out`, `src` follows, and zero bytes (WireGuard's
    /// padding) fill the rest. Most of `src` is read only once, by the cipher: there is no copy to
    /// be saved before.
    ///
    /// `in_place` is fastest as a multiple of 64.
    ///
    /// # Panics
    /// If the parts and the tag do not fit `out`.
    pub fn gathered(
        key: &'a Key,
        counter: u64,
        in_place: usize,
        src: &'a [u8],
        out: &'a mut [u8],
    ) -> Self {
        let room = out.len().checked_sub(TAG_LEN);
        assert!(
            room.and_then(|room| room.checked_sub(in_place)) >= Some(src.len()),
            "the plaintext and its tag do not fit"
        );
        Self(Job {
            key,
            nonce: nonce(counter),
            aad: &[],
            in_place,
            src,
            out,
        })
    }

    /// With this nonce instead of WireGuard's counter.
    #[must_use]
    pub fn with_nonce(mut self, nonce: [u8; 12]) -> Self {
        self.0.nonce = nonce;
        self
    }

    /// With additional data that the tag covers. Its packets get no share in the speed of Poly1305
    /// across packets.
    #[must_use]
    pub fn with_aad(mut self, aad: &'a [u8]) -> Self {
        self.0.aad = aad;
        self
    }
}

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

/// One packet to open, and whether it was authentic.
pub struct OpenJob<'a>(Job<'a>, bool);

impl<'a> OpenJob<'a> {
    /// Opens ciphertext and tag where they stand: afterwards the plaintext is
    /// `text[..text.len() - TAG_LEN]`. A text shorter than a tag is never authentic.
    pub fn in_place(key: &'a Key, counter: u64, text: &'a mut [u8]) -> Self {
        let job = Job {
            key,
            nonce: nonce(counter),
            aad: &[],
            in_place: text.len(),
            src: &[],
            out: text,
        };
        Self(job, false)
    }

    /// Opens `src`, ciphertext and tag, to the beginning of `dst`.
    ///
    /// # Panics
    /// If `dst` is shorter than the plaintext.
    pub fn apart(key: &'a Key, counter: u64, src: &'a [u8], dst: &'a mut [u8]) -> Self {
        assert!(
            src.len().saturating_sub(TAG_LEN) <= dst.len(),
            "the plaintext does not fit"
        );
        let job = Job {
            key,
            nonce: nonce(counter),
            aad: &[],
            in_place: 0,
            src,
            out: dst,
        };
        Self(job, false)
    }

    /// With this nonce instead of WireGuard's counter.
    #[must_use]
    pub fn with_nonce(mut self, nonce: [u8; 12]) -> Self {
        self.0.nonce = nonce;
        self
    }

    /// With additional data that the tag covers.
    #[must_use]
    pub fn with_aad(mut self, aad: &'a [u8]) -> Self {
        self.0.aad = aad;
        self
    }

    /// Whether [`open`] found the tag right. If not, nothing of the plaintext was written anywhere
    /// that the caller can see: what is in its memory then is what was there before, or zeros.
    pub fn is_authentic(&self) -> bool {
        self.1
    }
}

/// Opens every job; each tells with [`OpenJob::is_authentic`] how it went, and none depends on
/// another. No content of a packet makes it panic.
pub fn open(jobs: &mut [OpenJob<'_>]) {
    if cfg!(adit_lab_no_aead) {
        return without_cipher::open(jobs);
    }
    Kernel::active().open(jobs);
}

/// The name of the implementation in use: `avx512`, `avx2`, `portable` or `ring`.
pub fn implementation() -> &'static str {
    if cfg!(adit_lab_no_aead) {
        return "none";
    }
    Kernel::active().name()
}

/// What a build of the lab does instead, to measure what everything else costs: it moves the bytes
/// and checks nothing. No build has it unless it is compiled with `--cfg adit_lab_no_aead`, and
/// [`implementation`] then says so.
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
