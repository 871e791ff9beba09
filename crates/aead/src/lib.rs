//! ChaCha20-Poly1305 (RFC 8439) for batches of packets.

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

    fn library(&self) -> ring::aead::LessSafeKey {
        let key = ring::aead::UnboundKey::new(&ring::aead::CHACHA20_POLY1305, &*self.bytes)
            .expect("32 bytes");
        ring::aead::LessSafeKey::new(key)
    }
}

fn nonce(counter: u64) -> ring::aead::Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    ring::aead::Nonce::assume_unique_for_key(nonce)
}

/// One packet to seal.
pub struct SealJob<'a> {
    key: &'a Key,
    counter: u64,
    in_place: usize,
    src: &'a [u8],
    out: &'a mut [u8],
}

impl<'a> SealJob<'a> {
    /// Seals the plaintext `out[..out.len() - TAG_LEN]` where it stands; the tag goes behind it.
    ///
    /// # Panics
    /// If `out` is shorter than a tag.
    pub fn in_place(key: &'a Key, counter: u64, out: &'a mut [u8]) -> Self {
        let in_place = out.len().checked_sub(TAG_LEN).expect("room for the tag");
        Self {
            key,
            counter,
            in_place,
            src: &[],
            out,
        }
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
        Self {
            key,
            counter,
            in_place,
            src,
            out,
        }
    }
}

/// Seals every job. Each (key, counter) pair must be used only once.
pub fn seal(jobs: &mut [SealJob<'_>]) {
    for job in jobs {
        let len = job.out.len() - TAG_LEN;
        let (text, tag) = job.out.split_at_mut(len);
        text[job.in_place..][..job.src.len()].copy_from_slice(job.src);
        text[job.in_place + job.src.len()..].fill(0);
        let sealed = job.key.library().seal_in_place_separate_tag(
            nonce(job.counter),
            ring::aead::Aad::empty(),
            text,
        );
        tag.copy_from_slice(sealed.expect("shorter than 256 GiB").as_ref());
    }
}

/// One packet to open.
pub struct OpenJob<'a> {
    key: &'a Key,
    counter: u64,
    text: &'a mut [u8],
    authentic: bool,
}

impl<'a> OpenJob<'a> {
    /// Opens ciphertext and tag where they stand: afterwards the plaintext is `text[..text.len() - TAG_LEN]`.
    /// A text shorter than a tag is never authentic.
    pub fn in_place(key: &'a Key, counter: u64, text: &'a mut [u8]) -> Self {
        Self {
            key,
            counter,
            text,
            authentic: false,
        }
    }

    /// Whether `open` found the tag right. If not, no plaintext is left in the text.
    pub fn is_authentic(&self) -> bool {
        self.authentic
    }
}

/// Opens every job; each tells with `is_authentic` how it went.
pub fn open(jobs: &mut [OpenJob<'_>]) {
    for job in jobs {
        let opened =
            job.key
                .library()
                .open_in_place(nonce(job.counter), ring::aead::Aad::empty(), job.text);
        job.authentic = opened.is_ok();
    }
}

/// The name of the implementation in use.
pub fn implementation() -> &'static str {
    "ring"
}
