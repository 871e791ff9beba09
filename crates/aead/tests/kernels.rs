//! Every kernel against the reference and two independent libraries, tampering, and guard pages.
#![allow(unsafe_code)]

use std::ops::Range;

use adit_aead::{Kernel, Key, OpenJob, SealJob, TAG_LEN};
use chacha20poly1305::aead::{Aead, KeyInit};
use proptest::prelude::*;

mod guarded;
use guarded::Guarded;

/// What a packet of a batch is like.
#[derive(Clone, Debug)]
struct Packet {
    key: u8,
    counter: u64,
    len: usize,
    /// How much of the plaintext stands in the output already, and how much padding follows `src`.
    in_place: usize,
    padding: usize,
    /// Distances from a multiple of 64.
    src_skew: usize,
    out_skew: usize,
}

impl Packet {
    fn plaintext(&self) -> Vec<u8> {
        let seed = self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut text: Vec<u8> = (0..self.len as u64)
            .map(|i| (seed.wrapping_mul(2 * i + 1) >> 56) as u8)
            .collect();
        text[self.len - self.padding..].fill(0);
        text
    }

    fn key_bytes(&self) -> [u8; 32] {
        key_bytes(self.key)
    }

    fn nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.counter.to_le_bytes());
        nonce
    }
}

fn key_bytes(key: u8) -> [u8; 32] {
    core::array::from_fn(|i| key.wrapping_mul(31).wrapping_add(u8::try_from(i).unwrap()))
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..300_usize,
        2 => Just(1420),
        2 => 0..2048_usize,
        1 => (0..140_usize).prop_map(|n| n * 64),
        1 => 0..=65535_usize,
    ]
}

fn packet(lens: impl Strategy<Value = usize>) -> impl Strategy<Value = Packet> {
    let counters = prop_oneof![
        any::<u64>(),
        (0..64_u64).prop_map(|i| (u64::from(u32::MAX) - 32).wrapping_add(i)),
        (0..64_u64).prop_map(|i| (u64::MAX - 32).wrapping_add(i)),
    ];
    let split = prop_oneof![Just(0), Just(64), Just(usize::MAX), 0..1500_usize];
    (
        prop_oneof![4 => Just(0_u8), 1 => 1..4_u8],
        counters,
        lens,
        split,
        0..20_usize,
        0..64_usize,
        0..64_usize,
    )
        .prop_map(|(key, counter, len, split, padding, src_skew, out_skew)| {
            let in_place = split.min(len);
            let padding = padding.min(len - in_place);
            Packet {
                key,
                counter,
                len,
                in_place,
                padding,
                src_skew,
                out_skew,
            }
        })
}

fn batch() -> impl Strategy<Value = Vec<Packet>> {
    let mixed = prop::collection::vec(packet(lens()), 1..40);
    prop_oneof![mixed, train(packet(lens()), 1..70)]
}

/// Equal lengths, consecutive counters, one key.
fn train(
    first: impl Strategy<Value = Packet>,
    count: Range<usize>,
) -> impl Strategy<Value = Vec<Packet>> {
    (first, count).prop_map(|(first, n)| {
        let n = n.min(200_000 / (first.len + 1) + 1);
        (0..n)
            .map(|i| Packet {
                counter: first.counter.wrapping_add(i as u64),
                ..first.clone()
            })
            .collect()
    })
}

/// Copies of the bytes at the wanted distance from a multiple of 64, with room around.
struct Placed(Vec<u8>, usize, usize);

impl Placed {
    fn new(bytes: &[u8], skew: usize) -> Self {
        let mut memory = vec![0xee; bytes.len() + 192];
        let at = memory.as_ptr().align_offset(64) + 64 + skew;
        memory.resize(at + bytes.len() + 64, 0xee);
        let at = memory.as_ptr().align_offset(64) + 64 + skew;
        memory.resize(at + bytes.len(), 0xee);
        memory[at..].copy_from_slice(bytes);
        Self(memory, at, bytes.len())
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.0[self.1..][..self.2]
    }
}

/// Seals with one independent library, and makes sure that the other agrees.
fn sealed_by_libraries(packet: &Packet) -> Vec<u8> {
    let plaintext = packet.plaintext();
    let key = chacha20poly1305::ChaCha20Poly1305::new(&packet.key_bytes().into());
    let expected = key.encrypt(&packet.nonce().into(), &plaintext[..]).unwrap();
    let key =
        ring::aead::UnboundKey::new(&ring::aead::CHACHA20_POLY1305, &packet.key_bytes()).unwrap();
    let mut text = plaintext;
    let nonce = ring::aead::Nonce::assume_unique_for_key(packet.nonce());
    ring::aead::LessSafeKey::new(key)
        .seal_in_place_append_tag(nonce, ring::aead::Aad::empty(), &mut text)
        .unwrap();
    assert_eq!(text, expected, "the libraries disagree");
    expected
}

/// Seals and opens a batch with every kernel.
fn check(packets: &[Packet]) {
    let keys: Vec<_> = (0..4).map(|key| Key::new(&key_bytes(key))).collect();
    let expected: Vec<_> = packets.iter().map(sealed_by_libraries).collect();
    let plaintexts: Vec<_> = packets.iter().map(Packet::plaintext).collect();
    for kernel in kernels() {
        // 1. Gathered.
        let mut outs: Vec<_> = packets
            .iter()
            .zip(&plaintexts)
            .map(|(p, text)| {
                let mut out = text[..p.in_place].to_vec();
                out.resize(p.len + TAG_LEN, 0xcc);
                Placed::new(&out, p.out_skew)
            })
            .collect();
        let mut srcs: Vec<_> = packets
            .iter()
            .zip(&plaintexts)
            .map(|(p, text)| Placed::new(&text[p.in_place..p.len - p.padding], p.src_skew))
            .collect();
        let mut jobs: Vec<_> = packets
            .iter()
            .zip(&mut outs)
            .zip(&mut srcs)
            .map(|((p, out), src)| {
                SealJob::gathered(
                    &keys[usize::from(p.key)],
                    p.counter,
                    p.in_place,
                    src.get(),
                    out.get(),
                )
            })
            .collect();
        kernel.seal(&mut jobs);
        drop(jobs);
        for (i, (out, expected)) in outs.iter_mut().zip(&expected).enumerate() {
            assert!(
                out.get() == expected,
                "{} seals packet {i} wrongly",
                kernel.name()
            );
        }
        // 2. In place, and apart.
        let mut jobs: Vec<_> = packets
            .iter()
            .zip(&mut outs)
            .map(|(p, out)| OpenJob::in_place(&keys[usize::from(p.key)], p.counter, out.get()))
            .collect();
        kernel.open(&mut jobs);
        assert!(jobs.iter().all(OpenJob::is_authentic), "{}", kernel.name());
        drop(jobs);
        for (i, (out, text)) in outs.iter_mut().zip(&plaintexts).enumerate() {
            assert!(
                out.get()[..text.len()] == **text,
                "{} opens packet {i} wrongly",
                kernel.name()
            );
        }
        let mut srcs: Vec<_> = packets
            .iter()
            .zip(&expected)
            .map(|(p, e)| Placed::new(e, p.src_skew))
            .collect();
        let mut outs: Vec<_> = packets
            .iter()
            .map(|p| Placed::new(&vec![0; p.len], p.out_skew))
            .collect();
        let mut jobs: Vec<_> = packets
            .iter()
            .zip(&mut srcs)
            .zip(&mut outs)
            .map(|((p, src), out)| {
                OpenJob::apart(&keys[usize::from(p.key)], p.counter, src.get(), out.get())
            })
            .collect();
        kernel.open(&mut jobs);
        assert!(jobs.iter().all(OpenJob::is_authentic), "{}", kernel.name());
        drop(jobs);
        for (i, (out, text)) in outs.iter_mut().zip(&plaintexts).enumerate() {
            assert!(
                out.get() == text,
                "{} opens packet {i} apart wrongly",
                kernel.name()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// `ADIT_AEAD_CASES` makes this a fuzzer that runs for as long as you like.
    #[test]
    fn all_kernels_agree_with_two_libraries(packets in batch()) {
        check(&packets);
    }

    /// In a batch, any one bit of text, tag, counter or key is wrong: that packet fails and leaves
    /// no plaintext, the others open.
    #[test]
    fn tampering_is_found_per_packet(
        packets in prop_oneof![
            prop::collection::vec(packet(0..400_usize), 1..20),
            train(packet(0..2000_usize), 6..40),
        ],
        victim: prop::sample::Index,
        what in 0..4,
        bit: prop::sample::Index,
        apart: bool,
    ) {
        let victim = victim.index(packets.len());
        for kernel in kernels() {
            tamper(kernel, &packets, victim, what, bit, apart);
        }
    }
}

fn cases() -> u32 {
    let cases = std::env::var("ADIT_AEAD_CASES").ok();
    cases.and_then(|cases| cases.parse().ok()).unwrap_or(96)
}

fn tamper(
    kernel: Kernel,
    packets: &[Packet],
    victim: usize,
    what: i32,
    bit: prop::sample::Index,
    apart: bool,
) {
    let mut texts: Vec<_> = packets.iter().map(sealed_by_libraries).collect();
    let mut wrong_key = packets[victim].key_bytes();
    let mut counters: Vec<_> = packets.iter().map(|p| p.counter).collect();
    let flip = |bytes: &mut [u8]| {
        let bit = bit.index(8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
    };
    let len = packets[victim].len;
    match what {
        0 if len > 0 => flip(&mut texts[victim][..len]),
        1 => counters[victim] ^= 1 << bit.index(64),
        2 => flip(&mut wrong_key),
        _ => flip(&mut texts[victim][len..]),
    }
    let before = texts.clone();
    let mut dsts: Vec<_> = packets.iter().map(|p| vec![0x77; p.len]).collect();
    // Packets of one key share it, as those of a session do.
    let wrong_key = Key::new(&wrong_key);
    let keys: Vec<_> = (0..4).map(|key| Key::new(&key_bytes(key))).collect();
    let mut jobs: Vec<_> = texts
        .iter_mut()
        .zip(&mut dsts)
        .enumerate()
        .map(|(i, (text, dst))| {
            let key = match what {
                2 if i == victim => &wrong_key,
                _ => &keys[usize::from(packets[i].key)],
            };
            if apart {
                OpenJob::apart(key, counters[i], text, dst)
            } else {
                OpenJob::in_place(key, counters[i], text)
            }
        })
        .collect();
    kernel.open(&mut jobs);
    for (i, job) in jobs.iter().enumerate() {
        assert_eq!(
            job.is_authentic(),
            i != victim,
            "{} packet {i}",
            kernel.name()
        );
    }
    drop(jobs);
    for (i, packet) in packets.iter().enumerate() {
        let (text, was) = if apart {
            (&dsts[i][..], &[0x77; 2000][..])
        } else {
            (&texts[i][..packet.len], &before[i][..])
        };
        if i == victim {
            // Nothing was written, or all zeroized.
            let untouched = text == &was[..text.len()];
            assert!(
                untouched || text.iter().all(|byte| *byte == 0),
                "{}",
                kernel.name()
            );
        } else {
            assert!(text == packet.plaintext(), "{} packet {i}", kernel.name());
        }
    }
}

/// Every single byte, of one packet among few and among many.
#[test]
fn each_byte_counts() {
    let len = 200;
    let packet = |i: u64| Packet {
        key: 0,
        counter: i,
        len,
        in_place: 0,
        padding: 0,
        src_skew: 0,
        out_skew: 0,
    };
    let key = Key::new(&key_bytes(0));
    for (kernel, count) in kernels().flat_map(|kernel| [(kernel, 9), (kernel, 19)]) {
        let packets: Vec<_> = (0..count).map(packet).collect();
        let sealed: Vec<_> = packets.iter().map(sealed_by_libraries).collect();
        for at in 0..len + TAG_LEN {
            let victim = at % packets.len();
            let mut texts = sealed.clone();
            texts[victim][at] ^= 0x80;
            let mut jobs: Vec<_> = (0..)
                .zip(&mut texts)
                .map(|(counter, text)| OpenJob::in_place(&key, counter, text))
                .collect();
            kernel.open(&mut jobs);
            for (i, job) in jobs.iter().enumerate() {
                assert_eq!(
                    job.is_authentic(),
                    i != victim,
                    "{} byte {at}",
                    kernel.name()
                );
            }
            drop(jobs);
            for (i, packet) in packets.iter().enumerate() {
                if i != victim {
                    assert!(
                        texts[i][..len] == packet.plaintext(),
                        "{} packet {i} beside byte {at}",
                        kernel.name()
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_shorter_than_a_tag_is_not_authentic() {
    let key = Key::new(&[1; 32]);
    for kernel in kernels() {
        for len in 0..TAG_LEN {
            let (mut text, src) = (vec![0; len], vec![0; len]);
            let mut jobs = [
                OpenJob::in_place(&key, 0, &mut text),
                OpenJob::apart(&key, 0, &src, &mut []),
            ];
            kernel.open(&mut jobs);
            assert!(
                !jobs.iter().any(OpenJob::is_authentic),
                "{} {len}",
                kernel.name()
            );
            let mut texts = vec![vec![0; len]; 40];
            let mut jobs: Vec<_> = texts
                .iter_mut()
                .map(|text| OpenJob::in_place(&key, 0, text))
                .collect();
            kernel.open(&mut jobs);
            assert!(
                !jobs.iter().any(OpenJob::is_authentic),
                "{} 40 of {len}",
                kernel.name()
            );
        }
        kernel.seal(&mut []);
        kernel.open(&mut []);
    }
}

/// Inputs and outputs that end, or begin, where no memory is.
#[test]
fn no_kernel_touches_a_byte_outside_its_slices() {
    let lens = (0..200).chain([
        255, 256, 257, 320, 511, 512, 513, 1023, 1419, 1420, 1421, 4095, 4096, 8920,
    ]);
    for len in lens {
        for in_place in [0, 64.min(len), len / 2, len] {
            let p = Packet {
                key: 1,
                counter: 5,
                len,
                in_place,
                padding: 0,
                src_skew: 0,
                out_skew: 0,
            };
            let (expected, plaintext) = (sealed_by_libraries(&p), p.plaintext());
            let key = Key::new(&p.key_bytes());
            for kernel in kernels() {
                for batch in [1, 2, 9, 19] {
                    for at_end in [true, false] {
                        let mut srcs: Vec<_> = (0..batch)
                            .map(|_| Guarded::new(&plaintext[in_place..], at_end))
                            .collect();
                        let mut outs: Vec<_> = (0..batch)
                            .map(|_| {
                                let mut out = plaintext[..in_place].to_vec();
                                out.resize(len + TAG_LEN, 0);
                                Guarded::new(&out, at_end)
                            })
                            .collect();
                        let mut jobs: Vec<_> = outs
                            .iter_mut()
                            .zip(&mut srcs)
                            .map(|(out, src)| {
                                SealJob::gathered(&key, 5, in_place, src.bytes(), out.bytes())
                            })
                            .collect();
                        kernel.seal(&mut jobs);
                        drop(jobs);
                        let mut dsts: Vec<_> = (0..batch)
                            .map(|_| Guarded::new(&vec![0; len], at_end))
                            .collect();
                        assert!(
                            outs.iter_mut().all(|out| out.bytes() == expected),
                            "{}",
                            kernel.name()
                        );
                        let mut jobs: Vec<_> = outs
                            .iter_mut()
                            .zip(&mut dsts)
                            .map(|(out, dst)| OpenJob::apart(&key, 5, out.bytes(), dst.bytes()))
                            .collect();
                        kernel.open(&mut jobs);
                        drop(jobs);
                        assert!(
                            dsts.iter_mut().all(|dst| dst.bytes() == plaintext),
                            "{}",
                            kernel.name()
                        );
                        let mut jobs: Vec<_> = outs
                            .iter_mut()
                            .map(|out| OpenJob::in_place(&key, 5, out.bytes()))
                            .collect();
                        kernel.open(&mut jobs);
                        assert!(jobs.iter().all(OpenJob::is_authentic), "{}", kernel.name());
                    }
                }
            }
        }
    }
}

/// The kernels that can be chosen, and every kernel without the library's help.
fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::available().flat_map(|kernel| [kernel, kernel.unmixed()])
}
