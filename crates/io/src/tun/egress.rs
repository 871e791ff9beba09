//! A BPF program for what leaves through a TUN device: it holds back what would make a queue too
//! long, and chooses the queue where there are several.
//!
//! The kernel measures a queue in packets, which may be a thousand times as long as others.
//!
//! Of several queues the first is for packets of sparse flows, all others ([`QUEUES`]) are for the
//! rest: the destination chooses among them. A packet is of a sparse flow if it is no GSO packet
//! and nothing of its flow waits: all that was sent before has been processed. Flows keep their
//! order as long as whoever reads the queues
//!
//! - processes what it read from the first queue before what it read from others before that, and
//! - reports as processed only what is ([`Reading::processed`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::bpf::{
    self, GET_HASH_RECALC, Instruction, Label, Program, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10,
    Register, SKB_LOAD_BYTES, SharedMap, TCP_SOCK, offset,
};

/// The version of the program and of the numbers that it shares: raised with every change of them. A
/// process goes on only with a program of its own version, and otherwise attaches one.
pub(super) const LAYOUT: u32 = 2;

/// The queues besides the first.
pub(crate) const QUEUES: usize = 1 << QUEUE_BITS;
const QUEUE_BITS: i32 = 6;

/// Bytes of a packet that counts: shorter ones are limited by their number.
const LONG: u16 = 4096;
/// Packets that are read from a queue before what was let through before them is taken for read,
/// too, or lost. No fewer than the queue has room for.
const AGE: u32 = 512;
/// For so long and so often it is observed how many packets an empty queue lost. Each time a packet
/// may be on its way into the queue: taken for lost, it is overtaken by the next one of its flow.
const OBSERVED: Duration = Duration::from_millis(100);
const OBSERVATIONS: u32 = 32;
/// When so many later ones were read from its queue, a packet was processed, or lost. Far more than
/// the queue has room for.
const SETTLED: u32 = 16_384;
/// When so many find a queue full and none is read meanwhile, one passes: perhaps what makes it seem
/// full never arrived. What is sent while the qdisc changes does not, and an empty queue is not read.
const STUCK: i32 = 512;
/// More packets than were in the first queue before the program came.
const UNCOUNTED: u64 = 1 << 16;
/// Bytes that long packets have on average where the queue is long enough. TCP makes none longer
/// than a third of its window, so where many connections share the queue a short one costs them
/// more than it saves.
const MEAN: u64 = 48_000;
/// So many times the least limit is the most.
const RANGE: u64 = 8;

// The numbers that the program and this process share. First come some for the device. What the
// program writes: packets that were in the GSO packets which it dropped and nobody keeps.
const LOST: usize = 0;
/// Bytes of long packets that were let through to any queue.
const ALL_PASSED: usize = 1;
/// What this process writes, in a cache line of its own: bytes of them that were read.
const ALL_READ: usize = 8;
/// How many bytes of long packets there may be before the next one: those of its queue and those of
/// all queues, added up.
const LIMIT: usize = 9;
/// Not zero if there are several queues.
const STEERED: usize = 10;
/// How many packets there may be between `PASSED` and `READ` before the next one.
const CAPACITY: usize = 11;
/// Then come so many for each queue.
const QUEUE: usize = 16;
/// The same in bytes, as a power of two.
const QUEUE_SHIFT: i32 = 7;
/// Packets that were let through: what the program writes.
const PASSED: usize = 0;
/// Bytes of the long ones among them.
const LONG_PASSED: usize = 1;
/// How much had been read when a packet found the queue full, and how many have found it so since.
const STOOD_AT: usize = 2;
const REFUSED: usize = 3;
/// What `PASSED` was when the last packet that was processed was let through, or less: what was lost
/// counts as processed only later. It begins a cache line, of what this process writes.
const PROCESSED: usize = 8;
/// Bytes of long packets that were read.
const LONG_READ: usize = 9;
/// Packets that were read, or more: what `PASSED` is when the queue is empty.
const READ: usize = 10;
/// Where there are several queues, then come two for each flow, as far as hashes tell flows apart:
/// what `PASSED` was when the flow last sent a packet to its queue and to the first one.
const FLOWS: usize = QUEUE * (2 + QUEUES);
const FLOW_BITS: u32 = 12;

// Where a program finds what it asks for.
/// `struct __sk_buff`
const LEN: i16 = 0;
const QUEUE_MAPPING: i16 = 12;
const PROTOCOL: i16 = 16;
const GSO_SEGS: i16 = 164;
const SOCKET: i16 = 168;
const GSO_SIZE: i16 = 176;
/// `struct bpf_tcp_sock`
const PACKETS_OUT: i16 = 44;
/// ETH_P_IP in network byte order, as little-endian machines read it.
const IPV4: i32 = 0x0008;
/// The last four bytes of the destination.
const DESTINATION_V4: i32 = 16;
const DESTINATION_V6: i32 = 36;

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
///
/// One queue alone may have as many bytes as the limit says. Of several, each may have what all
/// leave of twice the limit, so that full ones have equal parts.
#[derive(Debug)]
pub(crate) struct Egress {
    numbers: SharedMap,
    map: OwnedFd,
    attached: OwnedFd,
    least: u64,
    reader: Mutex<Reader>,
}

/// What this process knows of the queues.
#[derive(Debug)]
struct Reader {
    queues: Vec<ReadQueue>,
    /// Packets read lately, and how many of them were long.
    packets: u32,
    long: u64,
    limit: u64,
}

#[derive(Clone, Copy, Debug)]
struct ReadQueue {
    /// Packets read since `PASSED` and `LONG_PASSED` were `marks`.
    packets: u32,
    marks: [u64; 2],
    /// What `PASSED` was when it was last looked at.
    seen: u64,
    /// What it was so many packets ago.
    settling: u64,
    read: u32,
    /// Packets that were read and not yet processed.
    unprocessed: u64,
    /// Bytes of long packets that were read lately, and the peer that they are for, as far as it is
    /// known.
    bytes: u64,
    peer: Option<u32>,
    /// The least number of packets that were missing when the queue was empty, how often it was, and
    /// since when. Some that are missing may yet come: the program has just let them through.
    missing: u64,
    observations: u32,
    since: Instant,
}

/// The right to note what is read; one thread at a time has it.
pub(crate) struct Reading<'a> {
    numbers: &'a [AtomicU64],
    least: u64,
    reader: MutexGuard<'a, Reader>,
}

impl Egress {
    /// Attaches a program for [`Self::take_over`] to an interface of the calling thread's network
    /// namespace that has one queue, or will have all: `least` bytes may wait, or up to [`RANGE`]
    /// times that as long as packets are short of [`MEAN`]. Needs Linux 6.6, CAP_BPF and
    /// CAP_NET_ADMIN.
    pub(crate) fn attach(ifindex: u32, least: u64, several: bool) -> io::Result<[OwnedFd; 2]> {
        let map = bpf::new_map(count_numbers(several))?;
        let numbers = SharedMap::of(&map, count_numbers(several))?;
        let attached = bpf::attach_to_egress(ifindex, &program(&map, several))?;
        let shared = numbers.get();
        shared[LIMIT].store(2 * least, Relaxed);
        shared[CAPACITY].store(u64::MAX / 2, Relaxed);
        for which in [PASSED, READ] {
            shared[place(0, which)].store(UNCOUNTED, Relaxed);
        }
        Ok([map, attached])
    }

    /// Goes on with a program that [`Self::attach`] attached, or another process, as [`Self::fds`]
    /// had it there. What that process read, it has processed. Its [`LAYOUT`] must be this one.
    pub(crate) fn take_over(
        [map, attached]: [OwnedFd; 2],
        least: u64,
        several: bool,
    ) -> io::Result<Self> {
        let numbers = SharedMap::of(&map, count_numbers(several))?;
        let queue = ReadQueue {
            packets: 0,
            marks: [0; 2],
            seen: 0,
            settling: 0,
            read: 0,
            unprocessed: 0,
            bytes: 0,
            peer: None,
            missing: u64::MAX,
            observations: 0,
            since: Instant::now(),
        };
        let queues = match several {
            true => 1 + QUEUES,
            false => 1,
        };
        let limit = numbers.get()[LIMIT].load(Relaxed) / 2;
        let reader = Reader {
            queues: vec![queue; queues],
            packets: 0,
            long: 0,
            limit: limit.clamp(least, RANGE * least),
        };
        Ok(Self {
            numbers,
            map,
            attached,
            least,
            reader: Mutex::new(reader),
        })
    }

    /// The map and the program's place at the device, for [`Self::take_over`].
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.map.as_fd(), self.attached.as_fd()]
    }

    /// From now on the program chooses among all queues, which are open and have room for so many
    /// packets each.
    ///
    /// It lets no more through: what the kernel drops afterwards counts as not yet processed for a
    /// while, and so makes sparse flows seem not to be.
    pub(crate) fn steer(&self, room: u64) {
        let numbers = self.numbers.get();
        numbers[CAPACITY].store(room - room / 8, Relaxed);
        numbers[STEERED].store(1, Relaxed);
    }

    /// Packets dropped so far that no TCP of this host keeps: those in GSO packets that are
    /// forwarded, or UDP.
    pub(crate) fn lost(&self) -> u64 {
        self.numbers.get()[LOST].load(Relaxed)
    }

    pub(crate) fn reading(&self) -> Reading<'_> {
        let reader = self.reader.lock();
        Reading {
            numbers: self.numbers.get(),
            least: self.least,
            reader: reader.unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// How many numbers there are.
fn count_numbers(several: bool) -> usize {
    match several {
        true => FLOWS + (2 << FLOW_BITS),
        false => 2 * QUEUE,
    }
}

/// Where a number of a queue is.
fn place(queue: usize, which: usize) -> usize {
    QUEUE * (1 + queue) + which
}

impl Reading<'_> {
    fn number(&self, queue: usize, which: usize) -> u64 {
        self.numbers[place(queue, which)].load(Relaxed)
    }

    /// Sets a number that only this process writes.
    fn set(&self, queue: usize, which: usize, number: u64) {
        self.numbers[place(queue, which)].store(number, Relaxed);
    }

    /// So many bytes of long packets were read from a queue so far.
    fn set_long_read(&self, queue: usize, bytes: u64) {
        let more = bytes.wrapping_sub(self.number(queue, LONG_READ));
        self.set(queue, LONG_READ, bytes);
        let all = self.numbers[ALL_READ].load(Relaxed);
        self.numbers[ALL_READ].store(all.wrapping_add(more), Relaxed);
    }

    /// So many packets that were read from a queue have been processed. They were for this peer.
    pub(crate) fn processed(&mut self, queue: usize, packets: u64, peer: Option<u32>) {
        let known = &mut self.reader.queues[queue];
        known.peer = peer;
        known.unprocessed = known.unprocessed.saturating_sub(packets);
        self.set(queue, PROCESSED, self.number(queue, PROCESSED) + packets);
    }

    /// A queue was empty. What was let through to it before that, and is not there, was lost.
    ///
    /// Or it is on its way: then it is read later and counts no second time, because the program takes
    /// a queue of which more was read than let through for one that is full.
    pub(crate) fn was_empty(&mut self, queue: usize) {
        self.set_long_read(queue, self.number(queue, LONG_PASSED));
        if !self.has_several() {
            return;
        }
        let passed = self.number(queue, PASSED);
        let processed = self.number(queue, PROCESSED);
        let known = &mut self.reader.queues[queue];
        // Others may have come since, while this thread did not run.
        let before = std::mem::replace(&mut known.seen, passed);
        self.set(queue, READ, self.number(queue, READ).max(before));
        let known = &mut self.reader.queues[queue];
        let here = processed + known.unprocessed;
        let Some(missing) = passed.checked_sub(here) else {
            // Some came before the program.
            let processed = processed.saturating_sub(here - passed);
            return self.set(queue, PROCESSED, processed);
        };
        known.missing = known.missing.min(missing);
        known.observations += 1;
        if known.observations >= OBSERVATIONS && known.since.elapsed() >= OBSERVED {
            let missing = std::mem::replace(&mut known.missing, u64::MAX);
            (known.observations, known.since) = (0, Instant::now());
            self.set(queue, PROCESSED, processed + missing);
        }
    }

    /// A packet of so many bytes was read from a queue.
    pub(crate) fn took(&mut self, queue: usize, bytes: usize) {
        if bytes >= usize::from(LONG) {
            let bytes = bytes as u64;
            let read = self.number(queue, LONG_READ) + bytes;
            self.set_long_read(queue, read.min(self.number(queue, LONG_PASSED)));
            self.reader.queues[queue].bytes += bytes;
            self.reader.long += 1;
        }
        if self.has_several() {
            self.settle(queue);
        }
        let known = &mut self.reader.queues[queue];
        known.packets += 1;
        if known.packets == AGE {
            known.packets = 0;
            // What was let through may be lost where the queue is full of packets, and must not
            // count for ever.
            let passed = [PASSED, LONG_PASSED].map(|which| self.number(queue, which));
            let known = &mut self.reader.queues[queue];
            let [packets, long] = std::mem::replace(&mut known.marks, passed);
            self.set(queue, READ, self.number(queue, READ).max(packets));
            self.set_long_read(queue, self.number(queue, LONG_READ).max(long));
        }
        self.adapt();
    }

    fn has_several(&self) -> bool {
        self.reader.queues.len() > 1
    }

    /// One more packet was read from a queue, and will be processed.
    fn settle(&mut self, queue: usize) {
        let passed = self.number(queue, PASSED);
        self.set(queue, READ, passed.min(self.number(queue, READ) + 1));
        let known = &mut self.reader.queues[queue];
        known.seen = passed;
        known.unprocessed += 1;
        known.read += 1;
        if known.read == SETTLED {
            known.read = 0;
            let settled = std::mem::replace(&mut known.settling, passed);
            let processed = self.number(queue, PROCESSED).max(settled);
            self.set(queue, PROCESSED, processed);
        }
    }

    /// The limit is higher while packets are short and nearly all are for one peer. Beside others,
    /// many connections would get more than one does: they would have more in flight.
    fn adapt(&mut self) {
        let reader = &mut *self.reader;
        reader.packets += 1;
        if reader.packets < AGE {
            return;
        }
        reader.packets = 0;
        let busiest = reader.queues.iter().max_by_key(|queue| queue.bytes);
        let peer = busiest.and_then(|queue| queue.peer);
        let (mut bytes, mut others) = (0, 0);
        for queue in &mut reader.queues {
            let of_queue = std::mem::take(&mut queue.bytes);
            bytes += of_queue;
            if queue.peer != peer {
                others += of_queue;
            }
        }
        let long = std::mem::take(&mut reader.long);
        if let Some(mean) = bytes.checked_div(long) {
            let step = reader.limit / 8;
            let after = if mean < MEAN && others <= bytes / 8 {
                reader.limit + step
            } else {
                reader.limit - step
            };
            reader.limit = after.clamp(self.least, RANGE * self.least);
            self.numbers[LIMIT].store(2 * reader.limit, Relaxed);
        }
    }
}

/// R6 is the packet, R7 the numbers, R8 the packet's length, R9 the numbers of its queue.
fn program(map: &OwnedFd, several: bool) -> Vec<Instruction> {
    // Places on the stack, for what calls forget.
    let (queue, flow) = (-16, -24);
    let mut program = Program::default();
    let bulk = program.label();
    let full = program.label();
    let fits = program.label();
    let lost = program.label();
    let add = program.label();
    let pass = program.label();
    let drop = program.label();

    // 1. As long as there is one queue, it is the first, and flows are all the same.
    program.add([Instruction::copy(R6, R1)]);
    program.add(Instruction::numbers(R7, map));
    program.add([
        Instruction::load32(R8, R6, LEN),
        Instruction::copy(R9, R7),
        Instruction::add_value(R9, 1 << QUEUE_SHIFT),
    ]);
    if several {
        program.add([
            Instruction::set(R1, 0),
            Instruction::store64(R10, queue, R1),
            Instruction::copy(R1, R7),
            Instruction::add_value(R1, i32::from(offset(FLOWS))),
            Instruction::store64(R10, flow, R1),
            Instruction::load64(R1, R7, offset(STEERED)),
        ]);
        program.jump(Instruction::go_if_equal(R1, 0), bulk);
        choose(&mut program, (queue, flow), bulk);
    }

    // 2. Where there is room, a short packet passes. As long as not too many bytes of long ones
    //    wait, every other one is counted and passes.
    program.place(bulk);
    if several {
        unless_room(&mut program, R9, full);
    }
    program.jump(
        Instruction::go_if_less_than_value(R8, i32::from(LONG)),
        pass,
    );
    program.add([
        Instruction::load64(R1, R9, offset(LONG_PASSED)),
        Instruction::load64(R2, R9, offset(LONG_READ)),
        Instruction::subtract(R1, R2),
        Instruction::copy(R2, R1),
    ]);
    if several {
        program.add([
            Instruction::load64(R2, R7, offset(ALL_PASSED)),
            Instruction::load64(R3, R7, offset(ALL_READ)),
            Instruction::subtract(R2, R3),
        ]);
    }
    program.add([
        Instruction::add(R1, R2),
        Instruction::load64(R2, R7, offset(LIMIT)),
    ]);
    program.jump(Instruction::go_if_at_most(R1, R2), fits);
    // 3. So does, beyond it, what is no GSO packet.
    program.add([Instruction::load32(R1, R6, GSO_SIZE)]);
    program.jump(Instruction::go_if_equal(R1, 0), fits);
    // 4. Nobody is told of what was lost on its way to a queue, and nothing is read from one that is
    //    empty: what finds it full for that reason would find it so for ever.
    program.place(full);
    let counted = program.label();
    let through = program.label();
    program.add([
        Instruction::load64(R1, R9, offset(if several { READ } else { LONG_READ })),
        Instruction::load64(R2, R9, offset(STOOD_AT)),
        Instruction::store64(R9, offset(STOOD_AT), R1),
        Instruction::subtract(R2, R1),
        Instruction::set(R3, 0),
    ]);
    program.jump(Instruction::go_if_not_equal(R2, 0), counted);
    program.add([
        Instruction::load64(R3, R9, offset(REFUSED)),
        Instruction::add_value(R3, 1),
    ]);
    program.jump(Instruction::go_if_less_than_value(R3, STUCK), counted);
    program.add([
        Instruction::set(R3, 0),
        Instruction::store64(R9, offset(REFUSED), R3),
    ]);
    program.jump(Instruction::go(), through);
    program.place(counted);
    program.add([Instruction::store64(R9, offset(REFUSED), R3)]);
    // 5. What a TCP socket sends that has nothing in flight passes, too. What another one sends, TCP
    //    keeps.
    program.add([Instruction::load64(R1, R6, SOCKET)]);
    program.jump(Instruction::go_if_equal(R1, 0), lost);
    program.add([Instruction::call(TCP_SOCK)]);
    program.jump(Instruction::go_if_equal(R0, 0), lost);
    program.add([Instruction::load32(R1, R0, PACKETS_OUT)]);
    program.jump(Instruction::go_if_not_equal(R1, 0), drop);
    program.place(through);
    program.jump(
        Instruction::go_if_less_than_value(R8, i32::from(LONG)),
        pass,
    );

    program.place(fits);
    program.add([Instruction::add64(R9, offset(LONG_PASSED), R8)]);
    if several {
        program.add([Instruction::add64(R7, offset(ALL_PASSED), R8)]);
    }
    program.place(pass);
    if several {
        program.add([
            Instruction::load64(R1, R10, flow),
            Instruction::load64(R3, R10, queue),
        ]);
        send(&mut program, R9, 0);
    }
    program.add([Instruction::set(R0, bpf::PASS), Instruction::exit()]);

    // 6. How many packets it holds: one, if it is no GSO packet. What a virtual machine or another
    //    TUN sent does not say. Then it is what is left without headers, divided by the GSO size and
    //    rounded up: one less than it holds if the last is tiny.
    program.place(lost);
    program.add([
        Instruction::load32(R2, R6, GSO_SIZE),
        Instruction::set(R1, 1),
    ]);
    program.jump(Instruction::go_if_equal(R2, 0), add);
    program.add([Instruction::load32(R1, R6, GSO_SEGS)]);
    program.jump(Instruction::go_if_not_equal(R1, 0), add);
    program.add([
        Instruction::copy(R1, R8),
        Instruction::add(R1, R2),
        Instruction::add_value(R1, -HEADERS - 1),
        Instruction::divide(R1, R2),
    ]);
    program.place(add);
    program.add([Instruction::add64(R7, offset(LOST), R1)]);
    program.place(drop);
    program.add([Instruction::set(R0, bpf::DROP), Instruction::exit()]);
    program.finish()
}

/// To `full` if the queue with these numbers has no room.
fn unless_room(program: &mut Program, numbers: Register, full: Label) {
    program.add([
        Instruction::load64(R2, numbers, offset(PASSED)),
        Instruction::load64(R3, numbers, offset(READ)),
        Instruction::subtract(R2, R3),
        Instruction::load64(R3, R7, offset(CAPACITY)),
    ]);
    program.jump(Instruction::go_if_at_most(R3, R2), full);
}

/// Counts the packet for the queue with these numbers, and notes for the flow, whose numbers are R1,
/// when that was. R3 is the number of the queue.
fn send(program: &mut Program, numbers: Register, which: usize) {
    program.add([
        Instruction::set(R2, 1),
        Instruction::fetch_add64(numbers, offset(PASSED), R2),
        Instruction::add_value(R2, 1),
        Instruction::store64(R1, offset(which), R2),
        Instruction::store32(R6, QUEUE_MAPPING, R3),
    ]);
}

/// Lets the packet of a sparse flow pass, to the first queue. For any other one, sets R9 and stores
/// the number of its queue and the address of its flow's numbers at these places of the stack.
fn choose(program: &mut Program, (queue, flow): (i16, i16), bulk: Label) {
    let address = -8;
    let v6 = program.label();
    // 1. The sum of the last bytes of the destination chooses a queue, so that neighbours have
    //    different ones. Where there are none, they are zero.
    program.add([
        Instruction::set(R1, 0),
        Instruction::store64(R10, address, R1),
        Instruction::load32(R1, R6, PROTOCOL),
        Instruction::set(R2, DESTINATION_V6),
    ]);
    program.jump(Instruction::go_if_not_equal(R1, IPV4), v6);
    program.add([Instruction::set(R2, DESTINATION_V4)]);
    program.place(v6);
    program.add([
        Instruction::copy(R1, R6),
        Instruction::copy(R3, R10),
        Instruction::add_value(R3, i32::from(address)),
        Instruction::set(R4, 4),
        Instruction::call(SKB_LOAD_BYTES),
        Instruction::load32(R1, R10, address),
        Instruction::copy(R9, R1),
    ]);
    for _ in 0..3 {
        program.add([Instruction::shift_right(R1, 8), Instruction::add(R9, R1)]);
    }
    // 2. The hash chooses among that queue's flows.
    program.add([
        Instruction::and_value(R9, (1 << QUEUE_BITS) - 1),
        Instruction::copy(R1, R6),
        Instruction::call(GET_HASH_RECALC),
        Instruction::shift_left(R0, QUEUE_BITS),
        Instruction::or(R0, R9),
        Instruction::and_value(R0, (1 << FLOW_BITS) - 1),
        Instruction::shift_left(R0, 4),
        Instruction::add_value(R0, i32::from(offset(FLOWS))),
        Instruction::copy(R1, R7),
        Instruction::add(R1, R0),
        Instruction::store64(R10, flow, R1),
        Instruction::add_value(R9, 1),
        Instruction::store64(R10, queue, R9),
        Instruction::add_value(R9, 1),
        Instruction::shift_left(R9, QUEUE_SHIFT),
        Instruction::add(R9, R7),
        Instruction::copy(R4, R7),
        Instruction::add_value(R4, 1 << QUEUE_SHIFT),
    ]);
    // 3. A packet of a sparse flow goes to the first queue.
    program.add([Instruction::load32(R2, R6, GSO_SIZE)]);
    program.jump(Instruction::go_if_not_equal(R2, 0), bulk);
    for (numbers, sent) in [(R9, 0), (R4, 1)] {
        program.add([
            Instruction::load64(R2, R1, offset(sent)),
            Instruction::load64(R3, numbers, offset(PROCESSED)),
        ]);
        program.jump(Instruction::go_if_less(R3, R2), bulk);
    }
    unless_room(program, R4, bulk);
    program.add([Instruction::set(R3, 0)]);
    send(program, R4, 1);
    program.add([Instruction::set(R0, bpf::PASS), Instruction::exit()]);
}

/// Has the kernel put packets into the queues that [`Egress`] chose.
pub(crate) fn obey(tun: BorrowedFd<'_>) -> io::Result<()> {
    let program = [
        Instruction::load32(R0, R1, QUEUE_MAPPING),
        Instruction::exit(),
    ];
    bpf::steer(tun, &program)
}
