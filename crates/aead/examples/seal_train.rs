//! Cuts a buffer into packets, seals them as one train, opens them at the other end, and prints how
//! long that took.
//!
//! `cargo run --release -p adit-aead --example seal_train`

use std::time::Instant;

use adit_aead::{Key, OpenJob, SealJob, TAG_LEN, implementation, open, seal};

/// Bytes of plaintext in a packet.
const SEGMENT: usize = 1420;

fn main() {
    // Never seal two packets with the same key and counter: count on, and change the key before the
    // counter ends.
    let key = Key::new(&[7; 32]);
    let first_counter = 0;

    let message: Vec<u8> = (0..=u8::MAX).cycle().take(64 << 10).collect();
    let segments: Vec<&[u8]> = message.chunks(SEGMENT).collect();
    let mut packets: Vec<Vec<u8>> = segments
        .iter()
        .map(|segment| vec![0; segment.len() + TAG_LEN])
        .collect();

    // The plaintext is read where it is (`in_place` is 0: none of it stands in the packet), and the
    // ciphertext and its tag are written where they go.
    let started = Instant::now();
    let mut jobs: Vec<SealJob<'_>> = (first_counter..)
        .zip(segments.iter().zip(&mut packets))
        .map(|(counter, (segment, packet))| SealJob::gathered(&key, counter, 0, segment, packet))
        .collect();
    seal(&mut jobs);
    drop(jobs);
    let sealed = started.elapsed();

    // The receiver knows the key and learns each counter from the packet's header. It opens to a
    // buffer of its own.
    let mut received = vec![0; message.len()];
    let started = Instant::now();
    let mut jobs: Vec<OpenJob<'_>> = (first_counter..)
        .zip(packets.iter().zip(received.chunks_mut(SEGMENT)))
        .map(|(counter, (packet, text))| OpenJob::apart(&key, counter, packet, text))
        .collect();
    open(&mut jobs);
    // A packet that was tampered with fails alone; use the text of the others only.
    let authentic = jobs.iter().filter(|job| job.is_authentic()).count();
    drop(jobs);
    let opened = started.elapsed();

    assert_eq!((authentic, &received), (packets.len(), &message));
    println!(
        "{}: {authentic} packets, {} bytes: sealed in {sealed:?}, opened in {opened:?}",
        implementation(),
        message.len(),
    );
}
