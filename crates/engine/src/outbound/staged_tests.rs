use super::*;

/// As SPEC.md says.
const PER_PEER: usize = 128;
const PER_SHARD: usize = 4 << 20;
/// Does not divide the bound: the last frame that would cross it must not.
const LEN: usize = 60_001;

/// The bytes that are really held, whatever the counter says.
fn held(staged: &Staged<u32>) -> usize {
    staged
        .queues
        .values()
        .flat_map(|queue| &queue.frames)
        .map(|frame| frame.len())
        .sum()
}

/// Puts a frame in; how many packets were dropped for it.
fn push(staged: &mut Staged<u32>, peer: u32, frame: &[u8]) -> u64 {
    let mut sum = 0;
    staged.push(peer, &peer, frame, |_, packets| sum += packets);
    sum
}

#[test]
fn many_peers_with_big_frames_stay_within_the_bytes_of_a_shard() {
    let mut staged = Staged::default();
    let (mut pushed, mut dropped) = (0, 0);
    for round in 0..5 {
        for peer in 0..40 {
            dropped += push(&mut staged, peer, &vec![round; LEN]);
            pushed += 1;
            assert!(held(&staged) <= PER_SHARD && staged.bytes == held(&staged));
        }
    }
    let fit = PER_SHARD / LEN;
    assert_eq!(dropped, (pushed - fit) as u64);
    assert_eq!(held(&staged), fit * LEN, "the bound is used");

    // All peers bring as much, so none loses everything.
    for peer in 0..40 {
        let frames = staged.take(peer);
        assert!(!frames.is_empty(), "peer {peer} lost all to others");
        assert_eq!(frames.back().expect("not empty")[0], 4, "the newest stays");
        assert!(!staged.holds(peer));
    }
    assert_eq!((staged.bytes, staged.queues.len()), (0, 0));
    assert!(staged.by_bytes.is_empty());
    assert_eq!(
        push(&mut staged, 0, &vec![0; LEN]),
        0,
        "what was taken is free"
    );
}

#[test]
fn a_peer_that_has_taken_all_makes_room_for_others() {
    let mut staged = Staged::default();
    while push(&mut staged, 0, &vec![0; LEN]) == 0 {}
    // A first packet of each of many: all of them wait, and the one with most has paid.
    let frame = vec![1; 1400];
    let (mut dropped, mut losers) = (0, Vec::new());
    for peer in 1..1000 {
        staged.push(peer, &peer, &frame, |loser, packets| {
            dropped += packets;
            losers.push(*loser);
        });
    }
    assert!(losers.iter().all(|loser| *loser == 0), "{losers:?}");
    assert!(held(&staged) <= PER_SHARD && staged.bytes == held(&staged));
    let free = PER_SHARD % LEN;
    assert_eq!(dropped, (999 * 1400 - free).div_ceil(LEN) as u64);
    assert_eq!((staged.queues.len(), staged.by_bytes.len()), (1000, 1000));

    // It may come back, at no cost to those that have less.
    push(&mut staged, 0, &vec![0; LEN]);
    for peer in 1..1000 {
        assert_eq!(staged.take(peer).len(), 1, "peer {peer}");
    }
    assert!(held(&staged) > PER_SHARD / 2, "what is left is the first's");
}

#[test]
fn a_peer_with_small_frames_has_the_newest_128() {
    let mut staged = Staged::default();
    let dropped: u64 = (0..=255).map(|n| push(&mut staged, 0, &[n])).sum();
    assert_eq!(dropped, 256 - PER_PEER as u64);
    let frames = staged.take(0);
    let numbers: Vec<u8> = frames.iter().map(|frame| frame[0]).collect();
    assert_eq!(numbers, (128..=255).collect::<Vec<u8>>());
}
