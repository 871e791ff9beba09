//! Every kernel of the batch AEAD against RustCrypto's ChaCha20-Poly1305.

use adit_aead::{Kernel, Key, OpenJob, SealJob, TAG_LEN};
use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};

use crate::source::InputBytes;

struct PacketCase {
    key: usize,
    counter: u64,
    /// Bytes that stand in the output before.
    in_place: usize,
    text: Vec<u8>,
    padding: usize,
    /// Bit of the sealed packet that is flipped.
    damage: Option<usize>,
}

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let keys: [[u8; 32]; 2] = [source.array(), source.array()];
    let mut packets = Vec::new();
    while !source.is_empty() && packets.len() < 70 {
        let (flags, length) = (source.u8(), usize::from(source.u16()) % 1500);
        // What the input does not give repeats what it gave.
        let seed = source.take(usize::from(flags >> 4).min(length));
        let text: Vec<u8> = (0..length)
            .map(|i| {
                seed.get(i % seed.len().max(1))
                    .copied()
                    .unwrap_or(0)
                    .wrapping_add(i.to_le_bytes()[0])
            })
            .collect();
        packets.push(PacketCase {
            key: usize::from(flags & 1),
            counter: source.u64(),
            in_place: usize::from(source.u8()).min(length),
            padding: source.below(17),
            damage: (flags & 2 != 0).then(|| usize::from(source.u16())),
            text,
        });
        // Runs of packets that are alike are what the lanes are for.
        if flags & 4 != 0 {
            for n in 1..=u64::from(source.u8() % 20) {
                let last = &packets[packets.len() - 1];
                let (key, counter) = (last.key, last.counter.wrapping_add(n));
                let (in_place, padding, text) = (last.in_place, last.padding, last.text.clone());
                packets.push(PacketCase {
                    key,
                    counter,
                    in_place,
                    text,
                    padding,
                    damage: None,
                });
            }
        }
    }
    let sealed: Vec<Vec<u8>> = packets
        .iter()
        .map(|packet| reference(packet, &keys))
        .collect();
    for kernel in Kernel::available().flat_map(|kernel| [kernel, kernel.unmixed()]) {
        check(kernel, &packets, &sealed, &keys);
    }
}

fn check(kernel: Kernel, packets: &[PacketCase], sealed: &[Vec<u8>], keys: &[[u8; 32]; 2]) {
    let keys = keys.each_ref().map(Key::new);
    let name = kernel.name();
    // 1. Seal.
    let mut outputs: Vec<Vec<u8>> = packets
        .iter()
        .map(|packet| {
            let mut out = vec![0xaa; packet.text.len() + packet.padding + TAG_LEN];
            out[..packet.in_place].copy_from_slice(&packet.text[..packet.in_place]);
            out
        })
        .collect();
    let mut jobs: Vec<SealJob<'_>> = packets
        .iter()
        .zip(&mut outputs)
        .map(|(packet, out)| {
            let rest = &packet.text[packet.in_place..];
            SealJob::gathered(
                &keys[packet.key],
                packet.counter,
                packet.in_place,
                rest,
                out,
            )
        })
        .collect();
    kernel.seal(&mut jobs);
    drop(jobs);
    assert!(outputs == sealed, "{name} seals another text");
    // 2. Open, in place and apart; what is damaged stays closed and is not seen.
    for (packet, out) in packets.iter().zip(&mut outputs) {
        if let Some(bit) = packet.damage {
            let bit = bit % (out.len() * 8);
            out[bit / 8] ^= 1 << (bit % 8);
        }
    }
    let mut apart: Vec<Vec<u8>> = outputs
        .iter()
        .map(|sealed| vec![0xbb; sealed.len() - TAG_LEN])
        .collect();
    let mut jobs: Vec<OpenJob<'_>> = packets
        .iter()
        .zip(outputs.iter().zip(&mut apart))
        .map(|(packet, (sealed, out))| {
            OpenJob::apart(&keys[packet.key], packet.counter, sealed, out)
        })
        .collect();
    kernel.open(&mut jobs);
    let verdicts: Vec<bool> = jobs.iter().map(OpenJob::is_authentic).collect();
    drop(jobs);
    let mut jobs: Vec<OpenJob<'_>> = packets
        .iter()
        .zip(&mut outputs)
        .map(|(packet, text)| OpenJob::in_place(&keys[packet.key], packet.counter, text))
        .collect();
    kernel.open(&mut jobs);
    let again: Vec<bool> = jobs.iter().map(OpenJob::is_authentic).collect();
    drop(jobs);
    assert_eq!(verdicts, again, "{name}");
    for ((packet, verdict), (in_place, apart)) in
        packets.iter().zip(verdicts).zip(outputs.iter().zip(&apart))
    {
        assert_eq!(verdict, packet.damage.is_none(), "{name}");
        let plain = [&packet.text[..], &vec![0; packet.padding]].concat();
        if verdict {
            assert!(
                in_place[..plain.len()] == plain && *apart == plain,
                "{name} opens another text"
            );
        } else if plain.iter().any(|byte| *byte != 0) && plain.len() >= 16 {
            assert!(
                in_place[..plain.len()] != plain && *apart != plain,
                "{name} leaks"
            );
        }
    }
}

fn reference(packet: &PacketCase, keys: &[[u8; 32]; 2]) -> Vec<u8> {
    let cipher = ChaCha20Poly1305::new(&keys[packet.key].into());
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&packet.counter.to_le_bytes());
    let mut text = packet.text.clone();
    text.resize(text.len() + packet.padding, 0);
    let tag = cipher.encrypt_inout_detached(&nonce.into(), &[], text.as_mut_slice().into());
    text.extend_from_slice(&tag.expect("short enough"));
    text
}
