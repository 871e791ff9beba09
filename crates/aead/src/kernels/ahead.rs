//! Keystream that is made ahead, for short packets that come one at a time.
//!
//! A packet of up to 64 bytes takes two blocks of keystream, and two blocks take as long as the
//! eight that fit the registers. So the blocks of four counters are made together: those of the
//! packet at hand, and of the three that most often follow it.

use super::avx2;
use super::keystream::{KeystreamBlocks, LONGEST};
use super::scalar::Poly;
use crate::kernels::batch::differs;
use crate::{Key, TAG_LEN};
/// Works with the blocks of a counter, if the text is short and no other thread works with those of
/// the key; `work` says whether the counter was used.
fn with_blocks(
    key: &Key,
    counter: u64,
    text: &mut [u8],
    work: impl FnOnce(&KeystreamBlocks, &mut [u8], &mut [u8; TAG_LEN]) -> bool,
) -> Option<bool> {
    let (text, tag) = text.split_last_chunk_mut()?;
    if text.len() > LONGEST {
        return None;
    }
    let taken = key.ahead.take()?;
    let n = taken.ahead.find(counter, |first, to| {
        avx2::blocks_ahead(key.bytes(), first, to)
    });
    let used = work(taken.ahead.blocks(n), text, tag);
    if used {
        taken.ahead.used(n);
    }
    taken.put_back();
    Some(used)
}

/// Seals a packet, if it is short enough; tells whether it did.
pub(super) fn seal(key: &Key, counter: u64, out: &mut [u8]) -> bool {
    with_blocks(key, counter, out, seal_with).is_some()
}

fn seal_with(blocks: &KeystreamBlocks, text: &mut [u8], tag: &mut [u8; TAG_LEN]) -> bool {
    xor(text, blocks);
    *tag = self::tag(blocks, text);
    true
}

/// Opens a packet, if it is short enough; tells whether it is authentic then.
pub(super) fn open(key: &Key, counter: u64, text: &mut [u8]) -> Option<bool> {
    with_blocks(key, counter, text, open_with)
}

/// Not inlined, so that the check of constant time knows the only branch by this name.
#[inline(never)]
fn open_with(blocks: &KeystreamBlocks, text: &mut [u8], tag: &mut [u8; TAG_LEN]) -> bool {
    let authentic = !differs(&self::tag(blocks, text), tag);
    if authentic {
        xor(text, blocks);
    }
    authentic
}

fn tag(blocks: &KeystreamBlocks, text: &[u8]) -> [u8; TAG_LEN] {
    let key = blocks.first_chunk().expect("a block is longer");
    Poly::new(key).tag(&[], text)
}

fn xor(text: &mut [u8], blocks: &KeystreamBlocks) {
    let stream = &blocks[LONGEST..];
    let (chunks, rest) = text.as_chunks_mut::<16>();
    for (chunk, stream) in chunks.iter_mut().zip(stream.as_chunks().0) {
        *chunk = (u128::from_ne_bytes(*chunk) ^ u128::from_ne_bytes(*stream)).to_ne_bytes();
    }
    for (byte, stream) in rest.iter_mut().zip(&stream[16 * chunks.len()..]) {
        *byte ^= stream;
    }
}
