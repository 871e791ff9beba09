//! The program of [`Egress`](crate::tun::egress::Egress): what it does with each packet, and the numbers that it
//! shares with this process.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use crate::sys::bpf::instructions::{
    Instruction, Label, Program, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Register, SKB_LOAD_BYTES,
    TCP_SOCK, offset,
};
use crate::sys::bpf::{self, SharedMap};

/// The version of the program and of the numbers that it shares: raised with every change of them. A
/// process goes on only with a program of its own version, and otherwise attaches one.
pub(crate) const LAYOUT: u32 = 3;
/// The queues besides the first.
pub(crate) const QUEUES: usize = 1 << QUEUE_BITS;
pub(crate) const QUEUE_BITS: i32 = 6;
/// Bytes of a packet that counts: shorter ones are limited by their number.
pub(crate) const LONG: u16 = 4096;
/// More packets than were in the first queue before the program came.
pub(crate) const UNCOUNTED: u64 = 1 << 16;

// The numbers that the program and this process share. First come some for the device. What the
// program writes: packets that were in the GSO packets which it dropped and nobody keeps.
pub(crate) const LOST: usize = 0;
/// Bytes of long packets that were let through to any queue.
pub(crate) const ALL_PASSED: usize = 1;
/// What this process writes, in a cache line of its own: bytes of them that were read.
pub(crate) const ALL_READ: usize = 8;
/// How many bytes of long packets there may be before the next one: those of its queue and those of
/// all queues, added up.
pub(crate) const LIMIT: usize = 9;
/// Not zero if there are several queues.
pub(crate) const STEERED: usize = 10;
/// How many packets there may be between `PASSED` and `READ` before the next one.
pub(crate) const CAPACITY: usize = 11;
/// Then come so many for each queue.
pub(crate) const QUEUE: usize = 16;
/// Packets that were let through: what the program writes.
pub(crate) const PASSED: usize = 0;
/// Bytes of the long ones among them.
pub(crate) const LONG_PASSED: usize = 1;
/// How much had been read when a packet found the queue full, and how many have found it so since.
pub(crate) const STOOD_AT: usize = 2;
pub(crate) const REFUSED: usize = 3;
/// What `PASSED` was when the queue last got a packet that may be of any flow.
pub(crate) const ANY_FLOW: usize = 4;
/// What `PASSED` was when the last packet that was processed was let through, or less: what was lost
/// counts as processed only later. It begins a cache line, of what this process writes.
pub(crate) const PROCESSED: usize = 8;
/// Bytes of long packets that were read.
pub(crate) const LONG_READ: usize = 9;
/// Packets that were read, or more: what `PASSED` is when the queue is empty.
pub(crate) const READ: usize = 10;
/// Not zero while packets of sparse flows whose queue this would be wait in it like all others.
pub(crate) const IN_DEBT: usize = 11;
/// Where there are several queues, then come two for each flow, as far as a hash of 6 bits tells
/// those of one queue apart: what `PASSED` was when the flow last sent a packet to its queue and to
/// the first one.
pub(crate) const FLOWS: usize = QUEUE * (2 + QUEUES);
pub(crate) const FLOW_BITS: u32 = 12;

/// When so many find a queue full and none is read meanwhile, one passes: perhaps what makes it seem
/// full never arrived. What is sent while the qdisc changes does not, and an empty queue is not read.
const STUCK: i32 = 512;
/// The numbers of a queue in bytes, as a power of two.
const QUEUE_SHIFT: i32 = 7;

// Where a program finds what it asks for.
/// `struct __sk_buff`
const LEN: i16 = 0;
const QUEUE_MAPPING: i16 = 12;
const GSO_SEGS: i16 = 164;
const SOCKET: i16 = 168;
const GSO_SIZE: i16 = 176;
/// `struct bpf_tcp_sock`
const PACKETS_OUT: i16 = 44;

// Where an IP packet has what tells its flow.
const V4_HEADER: i16 = 20;
const V4_FRAGMENT: i16 = 4;
const V4_PROTOCOL: i16 = 9;
const V4_SOURCE: i16 = 12;
const V4_DESTINATION: i16 = 16;
const V6_HEADER: i16 = 40;
const V6_PROTOCOL: i16 = 6;
const V6_ADDRESSES: [i16; 4] = [8, 16, 24, 32];
/// The last four bytes of the destination.
const V6_DESTINATION: i16 = 36;
/// The flag "more fragments" and the offset, in the four bytes at [`V4_FRAGMENT`] as little-endian
/// machines read them.
const IS_FRAGMENT: i32 = i32::from_le_bytes([0, 0, 0x3f, 0xff]);
/// Headers that may stand between an IPv6 header and the transport header: hop-by-hop, routing, fragment,
/// authentication, destination options, mobility, HIP, Shim6, and two for experiments.
const EXTENSIONS: [i32; 10] = [0, 43, 44, 51, 60, 135, 139, 140, 253, 254];
const TCP: i32 = 6;
const UDP: i32 = 17;
/// Odd, and its bits look like chance: it spreads the bits of a hash upwards.
const MULTIPLIER: i32 = 0x5bd1_e995;

/// Headers of IPv6 and TCP with timestamps.
const HEADERS: i32 = 40 + 32;

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
    let (ports, header) = (-8, -64);
    let is_told = program.label();

    // 1. The addresses and the protocol begin the hash.
    read_header(program, header);
    mix(program, R4);
    program.add([Instruction::store64(R10, flow, R0)]);
    // 2. The sum of the last bytes of the destination chooses a queue, so that neighbours have
    //    different ones.
    program.add([Instruction::copy(R1, R9)]);
    for _ in 0..3 {
        program.add([Instruction::shift_right(R1, 8), Instruction::add(R9, R1)]);
    }
    program.add([
        Instruction::and_value(R9, (1 << QUEUE_BITS) - 1),
        Instruction::add_value(R9, 1),
        Instruction::store64(R10, queue, R9),
        Instruction::add_value(R9, 1),
        Instruction::shift_left(R9, QUEUE_SHIFT),
        Instruction::add(R9, R7),
    ]);
    // 3. What may be of any flow has numbers of its queue.
    program.jump(Instruction::go_if_not_equal(R2, 0), is_told);
    program.add([
        Instruction::copy(R1, R9),
        Instruction::add_value(R1, i32::from(offset(ANY_FLOW))),
        Instruction::store64(R10, flow, R1),
    ]);
    program.jump(Instruction::go(), bulk);
    program.place(is_told);
    // 4. The ports end the hash, which chooses among the queue's flows.
    read_ports(program, ports);
    program.add([
        Instruction::load64(R0, R10, flow),
        Instruction::load64(R1, R10, ports),
    ]);
    mix(program, R1);
    program.add([Instruction::copy(R1, R0), Instruction::shift_right(R1, 32)]);
    mix(program, R1);
    program.add([
        Instruction::shift_right(R0, 64 - (FLOW_BITS.cast_signed() - QUEUE_BITS)),
        Instruction::shift_left(R0, QUEUE_BITS),
        Instruction::load64(R1, R10, queue),
        Instruction::add(R0, R1),
        Instruction::and_value(R0, (1 << FLOW_BITS) - 1),
        Instruction::shift_left(R0, 4),
        Instruction::add_value(R0, i32::from(offset(FLOWS))),
        Instruction::copy(R1, R7),
        Instruction::add(R1, R0),
        Instruction::store64(R10, flow, R1),
        Instruction::copy(R4, R7),
        Instruction::add_value(R4, 1 << QUEUE_SHIFT),
    ]);
    // 5. A packet of a sparse flow goes to the first queue.
    program.add([Instruction::load32(R2, R6, GSO_SIZE)]);
    program.jump(Instruction::go_if_not_equal(R2, 0), bulk);
    for (sent_to, at, numbers) in [
        (R1, offset(0), R9),
        (R1, offset(1), R4),
        (R9, offset(ANY_FLOW), R9),
    ] {
        program.add([
            Instruction::load64(R2, sent_to, at),
            Instruction::load64(R3, numbers, offset(PROCESSED)),
        ]);
        program.jump(Instruction::go_if_less(R3, R2), bulk);
    }
    program.add([Instruction::load64(R2, R9, offset(IN_DEBT))]);
    program.jump(Instruction::go_if_not_equal(R2, 0), bulk);
    unless_room(program, R4, bulk);
    program.add([Instruction::set(R3, 0)]);
    send(program, R4, 1);
    program.add([Instruction::set(R0, bpf::PASS), Instruction::exit()]);
}

/// Reads an IP header to this place of the stack. R0 is then a mix of the addresses, R9 the last four
/// bytes of the destination, R4 the protocol, and R2 where the transport header begins: 0 if the
/// packet may be of any flow. Bytes that there are not are zero.
fn read_header(program: &mut Program, header: i16) {
    let v6 = program.label();
    let done = program.label();
    let read = |program: &mut Program, len: i16| {
        program.add([
            Instruction::copy(R1, R6),
            Instruction::set(R2, 0),
            Instruction::copy(R3, R10),
            Instruction::add_value(R3, i32::from(header)),
            Instruction::set(R4, i32::from(len)),
            Instruction::call(SKB_LOAD_BYTES),
        ]);
    };
    read(program, V4_HEADER);
    program.add([
        Instruction::load8(R2, R10, header),
        Instruction::copy(R1, R2),
        Instruction::shift_right(R1, 4),
    ]);
    program.jump(Instruction::go_if_not_equal(R1, 4), v6);
    program.add([
        Instruction::set(R0, 0),
        Instruction::load32(R1, R10, header + V4_SOURCE),
        Instruction::load32(R9, R10, header + V4_DESTINATION),
        Instruction::load8(R4, R10, header + V4_PROTOCOL),
    ]);
    mix(program, R1);
    mix(program, R9);
    program.add([
        Instruction::and_value(R2, 0x0f),
        Instruction::shift_left(R2, 2),
        Instruction::load32(R1, R10, header + V4_FRAGMENT),
        Instruction::and_value(R1, IS_FRAGMENT),
    ]);
    program.jump(Instruction::go_if_equal(R1, 0), done);
    program.add([Instruction::set(R2, 0)]);
    program.jump(Instruction::go(), done);

    program.place(v6);
    read(program, V6_HEADER);
    program.add([
        Instruction::set(R0, 0),
        Instruction::load32(R9, R10, header + V6_DESTINATION),
        Instruction::load8(R4, R10, header + V6_PROTOCOL),
    ]);
    for part in V6_ADDRESSES {
        program.add([Instruction::load64(R1, R10, header + part)]);
        mix(program, R1);
    }
    program.add([Instruction::set(R2, 0)]);
    for extension in EXTENSIONS {
        program.jump(Instruction::go_if_equal(R4, extension), done);
    }
    program.add([Instruction::set(R2, i32::from(V6_HEADER))]);
    program.place(done);
}

/// Stores the ports that tell flows of this protocol (R4) apart, from the transport header that
/// begins there (R2), at this place of the stack: zero if there are none.
fn read_ports(program: &mut Program, ports: i16) {
    let tcp = program.label();
    let read = program.label();
    let done = program.label();
    program.add([
        Instruction::set(R1, 0),
        Instruction::store64(R10, ports, R1),
        Instruction::copy(R1, R6),
        Instruction::copy(R3, R10),
        Instruction::add_value(R3, i32::from(ports)),
    ]);
    program.jump(Instruction::go_if_equal(R4, TCP), tcp);
    program.jump(Instruction::go_if_not_equal(R4, UDP), done);
    // That of the destination.
    program.add([Instruction::add_value(R2, 2), Instruction::set(R4, 2)]);
    program.jump(Instruction::go(), read);
    program.place(tcp);
    program.add([Instruction::set(R4, 4)]);
    program.place(read);
    program.add([Instruction::call(SKB_LOAD_BYTES)]);
    program.place(done);
}

/// Takes a word into the hash in R0.
fn mix(program: &mut Program, word: Register) {
    program.add([
        Instruction::xor(R0, word),
        Instruction::multiply_value(R0, MULTIPLIER),
    ]);
}

/// The further queue, from 0 on, that the program chooses for an IP packet, unless the packet is of a
/// sparse flow.
pub(crate) fn queue_of(packet: &[u8]) -> usize {
    let at = match packet.first() {
        Some(first) if first >> 4 == 4 => V4_DESTINATION,
        _ => V6_DESTINATION,
    };
    let destination = packet.iter().skip(at.unsigned_abs().into()).take(4);
    let sum: usize = destination.map(|byte| usize::from(*byte)).sum();
    sum % QUEUES
}

/// Has the kernel put packets into the queues that [`Egress`](crate::tun::egress::Egress) chose.
pub(crate) fn obey(tun: BorrowedFd<'_>) -> io::Result<()> {
    let program = [
        Instruction::load32(R0, R1, QUEUE_MAPPING),
        Instruction::exit(),
    ];
    bpf::steer(tun, &program)
}

/// Attaches a program to an interface of the calling thread's network namespace that has one queue,
/// or will have all: `least` bytes may wait, or as much more as [`Egress`] says while packets are
/// short. Needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN.
///
/// [`Egress`]: crate::tun::egress::Egress
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

/// How many numbers there are.
pub(crate) fn count_numbers(several: bool) -> usize {
    match several {
        true => FLOWS + (2 << FLOW_BITS),
        false => 2 * QUEUE,
    }
}

/// Where a number of a queue is.
pub(crate) fn place(queue: usize, which: usize) -> usize {
    QUEUE * (1 + queue) + which
}
