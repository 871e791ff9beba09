//! A BPF program that holds back what would make the queue of a TUN device too long.
//!
//! The kernel measures that queue in packets, which may be a thousand times as long as others.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::bpf::{self, Instruction, Numbers, offset, op};

/// Bytes of a packet that counts: shorter ones are limited by their number.
const LONG: u16 = 4096;
/// Packets that are read before what was let through before them is taken for read, too, or lost. No fewer than the queue
/// has room for.
const AGE: u32 = 512;
/// Bytes that long packets have on average where the queue is long enough. TCP makes none longer than a third of its
/// window, so where many connections share the queue a short one costs them more than it saves.
const MEAN: u64 = 48_000;
/// So many times the least limit is the most.
const RANGE: u64 = 8;

/// Bytes of long packets that were let through: what the program writes.
const PASSED: usize = 0;
/// How many of them were read. It begins a cache line, of what this process writes.
const TAKEN: usize = 8;
/// How many there may be between the two before the next packet.
const LIMIT: usize = 9;

/// Drops long packets that are sent through an interface while too many bytes of them wait, as long as it lives.
///
/// TCP on this host keeps what is dropped here, and slows down. A connection that has nothing in flight would only try
/// again after 200 ms or more: what it sends always passes.
#[derive(Debug)]
pub(crate) struct QueueLimit {
    numbers: Numbers,
    _attached: OwnedFd,
    least: u64,
    /// Packets read since what had been let through was `mark` bytes.
    packets: AtomicU32,
    mark: AtomicU64,
    /// How many of them were long, and their bytes.
    long: AtomicU64,
    bytes: AtomicU64,
}

impl QueueLimit {
    /// For an interface of the calling thread's network namespace that has one queue: `least` bytes may wait, or up to
    /// [`RANGE`] times that as long as packets are short of [`MEAN`]. Needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN.
    pub(crate) fn attach(ifindex: u32, least: u64) -> io::Result<Self> {
        let (numbers, map) = Numbers::new()?;
        numbers.get()[LIMIT].store(least, Relaxed);
        let attached = bpf::attach_to_egress(ifindex, &program(&map))?;
        Ok(Self {
            numbers,
            _attached: attached,
            least,
            packets: AtomicU32::new(0),
            mark: AtomicU64::new(0),
            long: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// A packet of so many bytes was read from the queue, or it was empty.
    pub(crate) fn took(&self, bytes: Option<usize>) {
        let numbers = self.numbers.get();
        let (passed, taken, limit) = (&numbers[PASSED], &numbers[TAKEN], &numbers[LIMIT]);
        let Some(bytes) = bytes else {
            taken.store(passed.load(Relaxed), Relaxed);
            return;
        };
        if bytes >= usize::from(LONG) {
            let bytes = bytes as u64;
            taken.fetch_add(bytes, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
            self.long.fetch_add(1, Relaxed);
        }
        // There is one reader.
        let packets = self.packets.load(Relaxed) + 1;
        self.packets.store(packets % AGE, Relaxed);
        if packets < AGE {
            return;
        }
        // What was let through may be lost where the queue is full of packets, and must not count for ever.
        let mark = self.mark.swap(passed.load(Relaxed), Relaxed);
        taken.fetch_max(mark, Relaxed);
        let (bytes, long) = (self.bytes.swap(0, Relaxed), self.long.swap(0, Relaxed));
        if let Some(mean) = bytes.checked_div(long) {
            let before = limit.load(Relaxed);
            let step = before / 8;
            let after = if mean < MEAN {
                before + step
            } else {
                before - step
            };
            limit.store(after.clamp(self.least, RANGE * self.least), Relaxed);
        }
    }
}

fn program(map: &OwnedFd) -> [Instruction; 21] {
    [
        // r6 = the packet, r7 = address of the numbers, in two instructions
        op(0xbf, 0x16, 0, 0),
        op(0x18, 0x27, 0, map.as_raw_fd()),
        op(0, 0, 0, 0),
        // r8 = its length; if it is short, it goes on
        op(0x61, 0x68, 0, 0),
        op(0xa5, 0x08, 12, i32::from(LONG)),
        // r1 = passed - taken; up to the limit, it is counted and goes on
        op(0x79, 0x71, offset(PASSED), 0),
        op(0x79, 0x72, offset(TAKEN), 0),
        op(0x1f, 0x21, 0, 0),
        op(0x79, 0x72, offset(LIMIT), 0),
        op(0xdd, 0x21, 6, 0),
        // r1 = its socket, r0 = bpf_tcp_sock(r1): without either, it is dropped
        op(0x79, 0x61, 168, 0),
        op(0x15, 0x01, 7, 0),
        op(0x85, 0, 0, 96),
        op(0x15, 0x00, 5, 0),
        // and if packets_out is not 0
        op(0x61, 0x01, 44, 0),
        op(0x55, 0x01, 3, 0),
        // passed += r8, atomically
        op(0xdb, 0x87, offset(PASSED), 0),
        op(0xb7, 0, 0, -1),
        op(0x95, 0, 0, 0),
        op(0xb7, 0, 0, 2),
        op(0x95, 0, 0, 0),
    ]
}
