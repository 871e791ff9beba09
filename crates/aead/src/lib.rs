//! ChaCha20-Poly1305 (RFC 8439) for batches of packets.

mod kernels;

use kernels::Job;
pub use kernels::Kernel;
use zeroize::Zeroizing;

/// The length of the tag that follows every ciphertext.
pub const TAG_LEN: usize = 16;

/// A key, ready for use.
pub struct Key {
    bytes: Zeroizing<[u8; 32]>,
}

impl Key {
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self {
            bytes: Zeroizing::new(*bytes),
        }
    }

    fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

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
        Self::laid(key, counter, in_place, &[], out)
    }

    /// Seals a plaintext of `out.len() - TAG_LEN` bytes that is put together from three parts: the first
    /// `in_place` bytes already stand in `out`, `src` follows, and zero bytes (WireGuard's padding) fill the rest.
    ///
    /// `in_place` is fastest as a multiple of 64.
    ///
    /// # Panics
    /// If the parts and the tag do not fit `out`.
    pub fn laid(
        key: &'a Key,
        counter: u64,
        in_place: usize,
        src: &'a [u8],
        out: &'a mut [u8],
    ) -> Self {
        assert!(
            in_place + src.len() + TAG_LEN <= out.len(),
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
}

/// Seals every job. Each (key, counter) pair must be used only once.
pub fn seal(jobs: &mut [SealJob<'_>]) {
    Kernel::active().seal(jobs);
}

/// One packet to open.
pub struct OpenJob<'a>(Job<'a>, bool);

impl<'a> OpenJob<'a> {
    /// Opens ciphertext and tag where they stand: afterwards the plaintext is `text[..text.len() - TAG_LEN]`.
    /// A text shorter than a tag is never authentic.
    pub fn in_place(key: &'a Key, counter: u64, text: &'a mut [u8]) -> Self {
        Self(
            Job {
                key,
                nonce: nonce(counter),
                aad: &[],
                in_place: text.len(),
                src: &[],
                out: text,
            },
            false,
        )
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
        Self(
            Job {
                key,
                nonce: nonce(counter),
                aad: &[],
                in_place: 0,
                src,
                out: dst,
            },
            false,
        )
    }

    /// Whether `open` found the tag right. If not, no plaintext is left in the text.
    pub fn is_authentic(&self) -> bool {
        self.1
    }
}

/// Opens every job; each tells with `is_authentic` how it went.
pub fn open(jobs: &mut [OpenJob<'_>]) {
    Kernel::active().open(jobs);
}

/// The name of the implementation in use.
pub fn implementation() -> &'static str {
    Kernel::active().name()
}
