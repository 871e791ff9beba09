//! After the first batches nothing is allocated for packets.

#![expect(unsafe_code, reason = "an allocator that counts is unsafe to write")]

#[path = "sans_io/packets.rs"]
mod packets;
#[path = "sans_io/pair.rs"]
mod pair;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use adit::GsoKind;
use adit::sans_io::PacketRef;
use pair::{B, Pair, secs};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: it is the system's allocator, which gets the same arguments. What counts allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as of the caller; `at` is of the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A batch from A to B, from packets to packets: how often memory was allocated. `look` gets what B
/// got.
fn pass(pair: &mut Pair, batch: &[PacketRef<'_>], merge: bool) -> (u64, usize) {
    let now = pair.now();
    let [a, b] = &mut pair.hosts;
    let before = ALLOCATIONS.get();
    let taken = a.device.seal(now, batch, &mut a.outbox);
    a.device.handle_timeout(now, &mut a.outbox);
    for train in a.outbox.drain() {
        for datagram in train.datagrams() {
            b.inbox.push(a.addr, datagram).expect("room");
        }
    }
    let mut opened = b.device.open(now, &mut b.inbox, &mut b.outbox);
    let mut got = opened.packets().count();
    if merge {
        got = opened.merged().map(|frame| frame.pieces().count()).sum();
    }
    let allocations = ALLOCATIONS.get() - before;
    assert_eq!(taken, batch.len());
    assert!(b.outbox.is_empty());
    (allocations, got)
}

#[test]
fn after_the_first_batches_packets_allocate_nothing() {
    let mut pair = Pair::up();
    // B answers once, so that no timer of A waits for it.
    pair.seal(B, &[packets::udp(false, 2, 1, b"answer")]);
    pair.run();
    let full: Vec<_> = (0..45)
        .map(|n| packets::udp(false, 1, 2, &packets::bytes(1392, n)))
        .collect();
    let small: Vec<_> = (0..45)
        .map(|n| packets::tcp(n % 2 == 0, 1, 2, &packets::bytes(n % 30, n)))
        .collect();
    let (packet, gso) = packets::gso(GsoKind::Tcp4, 1, 2, 1380);
    let batches: [Vec<PacketRef<'_>>; 3] = [
        full.iter().map(|packet| PacketRef::new(packet)).collect(),
        small.iter().map(|packet| PacketRef::new(packet)).collect(),
        vec![PacketRef::with_gso(&packet, gso)],
    ];
    for merge in [false, true] {
        for batch in &batches {
            pass(&mut pair, batch, merge);
        }
    }
    for round in 0..50 {
        for batch in &batches {
            let (allocations, got) = pass(&mut pair, batch, round % 2 == 0);
            assert_eq!(allocations, 0);
            assert!(got >= 45);
        }
        // No timer is due.
        assert!(pair.elapsed < secs(10));
    }
    // The counter counts.
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1]));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
