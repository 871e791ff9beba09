//! One packet of a few blocks: what prepares a batch would cost more than its work. The keystream
//! stays in registers, so that opening needs no scratch memory, and its Poly1305 runs beside
//! ChaCha20.

use super::super::job::Job;
use super::super::lanes::{Text, first};
use super::super::scalar::Poly;
use super::registers::zeroize_registers;
use super::{chacha, poly};
use crate::kernels::batch::differs;
use core::arch::x86_64::*;
use core::hint::black_box;

/// Seals or opens a packet of up to 4 * `Q` blocks; returns whether it is authentic.
///
/// # Safety
/// The processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
pub(super) unsafe fn work<const Q: usize>(job: &mut Job<'_>, sealing: bool) -> bool {
    let packet = if sealing {
        job.sealing()
    } else {
        job.opening()
    };
    let (mut key, stream) = chacha::alone::<Q>(job.key.bytes(), job.nonce_words());
    let authentic = sealing
        || (job.sealed().split_last_chunk())
            .is_some_and(|(text, tag)| !differs(&Poly::new(&key).tag(job.aad, text), tag));
    // Written out here so that the keystream of what is not authentic never leaves the registers.
    for (i, block) in stream.as_flattened().iter().enumerate() {
        let at = 64 * i;
        if !authentic || at >= packet.len {
            break;
        }
        let (from, end) = packet.input(at);
        let (from, to) = (from.wrapping_add(at), packet.dst.wrapping_add(at));
        // SAFETY: `packet` is made of the job's slices, borrowed for this call: a whole block lies
        // before `end` and before `packet.len`, and the masks name only bytes that do.
        unsafe {
            if at + 64 <= end {
                let text = _mm512_loadu_si512(from.cast());
                _mm512_storeu_si512(to.cast(), _mm512_xor_si512(text, *block));
            } else {
                let text = _mm512_maskz_loadu_epi8(first(end.saturating_sub(at)), from.cast());
                let text = _mm512_xor_si512(text, *block);
                _mm512_mask_storeu_epi8(to.cast(), first(packet.len - at), text);
            }
        }
    }
    if sealing {
        let (text, tag) = job.out.split_at_mut(packet.len);
        let text = Text::new(text.as_ptr(), text.len(), job.aad);
        // SAFETY: the text is that of the job.
        tag.copy_from_slice(&unsafe { poly::tag(&text, &key) });
    }
    key = [0; 32];
    black_box(&mut key);
    zeroize_registers();
    authentic
}
