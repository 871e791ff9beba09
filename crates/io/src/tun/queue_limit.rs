//! A BPF program that holds back what would make the queue of a TUN device too long.
//!
//! The kernel measures that queue in packets, which may be a thousand times as long as others.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::sys::bpf::{self, Instruction, R0, R1, R2, R6, R7, R8, R9, SharedMap, TCP_SOCK, offset};

/// Bytes of a packet that counts: shorter ones are limited by their number.
const LONG: u16 = 4096;
/// Packets that are read before what was let through before them is taken for read, too, or lost.
/// No fewer than the queue has room for.
const AGE: u32 = 512;
/// Bytes that long packets have on average where the queue is long enough. TCP makes none longer
/// than a third of its window, so where many connections share the queue a short one costs them
/// more than it saves.
const MEAN: u64 = 48_000;
/// So many times the least limit is the most.
const RANGE: u64 = 8;

/// Bytes of long packets that were let through: what the program writes.
const PASSED: usize = 0;
/// Packets that were in the GSO packets which it dropped and nobody keeps. The program writes that,
/// too.
const LOST: usize = 1;
/// How many of them were read. It begins a cache line, of what this process writes.
const TAKEN: usize = 8;
/// How many there may be between the two before the next packet.
const LIMIT: usize = 9;

// Where a program finds what it asks for.
/// `struct __sk_buff`
const LEN: i16 = 0;
const GSO_SEGS: i16 = 164;
const SOCKET: i16 = 168;
const GSO_SIZE: i16 = 176;
/// `struct bpf_tcp_sock`
const PACKETS_OUT: i16 = 44;

/// Headers of IPv6 and TCP with timestamps.
const HEADERS: i32 = 40 + 32;

/// Drops long GSO packets that are sent through an interface while too many bytes of long packets
/// wait, as long as it lives.
///
/// TCP on this host keeps what is dropped here, and slows down. It tries again when an
/// acknowledgement comes; where none is to come, only after 200 ms or more. So a connection that
/// has nothing in flight passes. A packet that is no GSO packet passes, too: with an MTU of 4096 or
/// more a retransmission is as long as that. Of such packets the kernel's limit lets no more bytes
/// wait than the MTU times the number of packets.
#[derive(Debug)]
pub(crate) struct QueueLimit {
    numbers: SharedMap,
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
    /// For an interface of the calling thread's network namespace that has one queue: `least` bytes
    /// may wait, or up to [`RANGE`] times that as long as packets are short of [`MEAN`]. Needs
    /// Linux 6.6, CAP_BPF and CAP_NET_ADMIN.
    pub(crate) fn attach(ifindex: u32, least: u64) -> io::Result<Self> {
        let (numbers, map) = SharedMap::new()?;
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

    /// Packets dropped so far that no TCP of this host keeps: those in GSO packets that are
    /// forwarded, or UDP.
    pub(crate) fn lost(&self) -> u64 {
        self.numbers.get()[LOST].load(Relaxed)
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
        // What was let through may be lost where the queue is full of packets, and must not count
        // for ever.
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

fn program(map: &OwnedFd) -> [Instruction; 30] {
    let [map_low, map_high] = Instruction::numbers(R7, map);
    let (count, pass, lost, add, drop) = (18, 19, 21, 27, 28);
    // How far it is from one instruction to another.
    let skip = |from: i16, to: i16| to - from - 1;
    [
        // 0. A short packet passes.
        Instruction::copy(R6, R1),
        map_low,
        map_high,
        Instruction::load32(R8, R6, LEN),
        Instruction::skip_if_less(R8, i32::from(LONG), skip(4, pass)),
        // 5. As long as passed - taken is within the limit, every packet is counted and passes.
        Instruction::load64(R1, R7, offset(PASSED)),
        Instruction::load64(R2, R7, offset(TAKEN)),
        Instruction::subtract(R1, R2),
        Instruction::load64(R2, R7, offset(LIMIT)),
        Instruction::skip_if_at_most(R1, R2, skip(9, count)),
        // 10. So does, beyond it, what is no GSO packet.
        Instruction::load32(R9, R6, GSO_SIZE),
        Instruction::skip_if_equal(R9, 0, skip(11, count)),
        // 12. And what a TCP socket sends that has nothing in flight. What another one sends, TCP
        //     keeps.
        Instruction::load64(R1, R6, SOCKET),
        Instruction::skip_if_equal(R1, 0, skip(13, lost)),
        Instruction::call(TCP_SOCK),
        Instruction::skip_if_equal(R0, 0, skip(15, lost)),
        Instruction::load32(R1, R0, PACKETS_OUT),
        Instruction::skip_if_not_equal(R1, 0, skip(17, drop)),
        // 18. count, 19. pass
        Instruction::add64(R7, offset(PASSED), R8),
        Instruction::set(R0, bpf::PASS),
        Instruction::exit(),
        // 21. lost: how many packets it holds. What a virtual machine or another TUN sent does not
        //     say. Then it is what is left without headers, divided by the GSO size and rounded up:
        //     one less than it holds if the last is tiny.
        Instruction::load32(R1, R6, GSO_SEGS),
        Instruction::skip_if_not_equal(R1, 0, skip(22, add)),
        Instruction::copy(R1, R8),
        Instruction::add(R1, R9),
        Instruction::add_value(R1, -HEADERS - 1),
        Instruction::divide(R1, R9),
        // 27. add, 28. drop
        Instruction::add64(R7, offset(LOST), R1),
        Instruction::set(R0, bpf::DROP),
        Instruction::exit(),
    ]
}
