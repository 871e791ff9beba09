use super::*;

fn push(waiting: &mut Waiting, peer: u32, len: usize) -> u64 {
    waiting.push(peer, PacketRef::new(&vec![7; len]), 1)
}

#[test]
fn a_peer_keeps_a_bounded_number_and_drops_its_oldest() {
    let mut waiting = Waiting::default();
    for n in 0..MAX_PACKETS + 9 {
        assert_eq!(push(&mut waiting, 1, 20 + n), u64::from(n >= MAX_PACKETS));
    }
    assert_eq!(waiting.packets(), MAX_PACKETS as u64);
    let queue = waiting.take(1);
    let first = queue.packets().next().map(|packet| packet.bytes.len());
    assert_eq!(first, Some(20 + 9));
    assert_eq!((waiting.packets(), waiting.bytes), (0, 0));
    assert!(!waiting.holds(1));
}

#[test]
fn a_peer_keeps_bounded_bytes() {
    let mut waiting = Waiting::default();
    let dropped: u64 = (0..40).map(|_| push(&mut waiting, 1, 65_535)).sum();
    assert_eq!(dropped, 40 - 16);
    assert!(waiting.bytes <= MAX_PEER_BYTES);
}

#[test]
fn when_all_is_full_the_longest_queue_drops() {
    let mut waiting = Waiting::default();
    for peer in 0..4 {
        for _ in 0..16 {
            push(&mut waiting, peer, 65_000);
        }
    }
    push(&mut waiting, 9, 1000);
    let before = waiting.bytes;
    let mut dropped = 0;
    for _ in 0..100 {
        dropped += push(&mut waiting, 9, 1400);
    }
    assert!(dropped > 0 && waiting.bytes <= MAX_BYTES && before <= MAX_BYTES);
    assert_eq!(waiting.take(9).packets().count(), 101);
}
