//! One packet costs no allocation. This is a test binary of its own, since it replaces the allocator.
#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use adit_proto::Endpoint;
use common::*;

/// Counts what the calling thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: all is done by the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A seals a packet of this length, and B opens it.
fn pass(net: &mut Net, len: u16, datagram: &mut [u8]) {
    let mut packet = [0x5a; 1420];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let packet = &packet[..usize::from(len)];
    let (now, walls) = (net.now, [net.wall(A), net.wall(B)]);
    let from = Endpoint::from(net.hosts[A].addr);
    let sealed = net.hosts[A]
        .device
        .seal(now, walls[A], packet, 1420, datagram);
    let (_, len) = sealed.ok().expect("a session");
    let opened = net.hosts[B]
        .device
        .open(now, walls[B], from, &mut datagram[..len]);
    assert!(opened == Ok(packet));
}

#[test]
fn a_thousand_packets_are_sealed_and_opened_without_an_allocation() {
    let mut net = Net::pair(50);
    net.connect();
    let mut datagram = [0; 1452];
    let lens = [20, 64, 65, 200, 512, 1280, 1420];
    for len in lens {
        pass(&mut net, len, &mut datagram);
        net.drain(A);
        net.drain(B);
    }
    let before = ALLOCATIONS.get();
    for len in lens.into_iter().cycle().take(1000) {
        pass(&mut net, len, &mut datagram);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    // It does count.
    drop(std::hint::black_box(Box::new(0)));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
