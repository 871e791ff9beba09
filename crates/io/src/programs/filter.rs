//! The program of a UDP socket: what it drops, and the numbers that it shares with this process.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use adit_proto::INDEX_BUCKETS;

use crate::sys::bpf;
use crate::sys::bpf::instructions::{
    GET_SMP_PROCESSOR_ID, Instruction, KTIME_GET_BOOT_NS, Program, R0, R1, R2, R3, R4, R5, R6, R7,
    R8, R9, R10, SKB_LOAD_BYTES, SKB_LOAD_BYTES_RELATIVE, offset,
};
use crate::sys::os::local_addr;

// The numbers of a socket, which its program writes.
pub(crate) const CPU: usize = 0;
/// Nanoseconds of CLOCK_BOOTTIME.
pub(crate) const NANOS: usize = 1;
pub(crate) const MALFORMED: usize = 2;
pub(crate) const UNKNOWN: usize = 3;
pub(crate) const REFUSED: usize = 4;
/// Packets that were not dropped.
pub(crate) const PASSED: usize = 5;
pub(crate) const NUMBERS: usize = 6;

// The numbers of an interface, which this process writes. Whether anything is dropped:
pub(crate) const ON: usize = 0;
/// Until when the sources of each group are refused, by the clock of `NANOS`.
pub(crate) const REFUSED_UNTIL: usize = 1;
pub(crate) const GROUP_BITS: i32 = 4;
pub(crate) const GROUPS: usize = 1 << GROUP_BITS;
/// A bit for each bucket of receiver indices.
pub(crate) const INDICES: usize = REFUSED_UNTIL + GROUPS;
const INDEX_BITS: i32 = INDEX_BUCKETS.ilog2().cast_signed();
/// A Bloom filter of refused sources: a part for each hash, and in it one for each group.
pub(crate) const SOURCES: usize = INDICES + (INDEX_BUCKETS >> 6);
pub(crate) const SOURCE_BITS: i32 = 11;
pub(crate) const OF_GROUP: usize = 1 << (SOURCE_BITS - 6);
pub(crate) const PART: usize = GROUPS * OF_GROUP;
pub(crate) const HASHES: usize = 4;
pub(crate) const TABLE: usize = SOURCES + HASHES * PART;

// Where a program finds what it asks for. `struct __sk_buff`:
const LEN: i16 = 0;
const GSO_SEGS: i16 = 164;
/// A packet begins with this header when it comes to a socket.
const UDP_HEADER: i32 = 8;
/// Lengths with that header, and where mac2 of an initiation is.
const LEAST_DATA: i32 = UDP_HEADER + 16 + 16;
const INITIATION: i32 = UDP_HEADER + 148;
const MAC2: i32 = INITIATION - 16;
/// The source in the IP header, and how much of it counts.
const SOURCE_V4: (i32, i32) = (12, 4);
const SOURCE_V6: (i32, i32) = (8, 8);
/// BPF_HDR_START_NET
const FROM_IP_HEADER: i32 = 1;

/// Attaches a program to a socket: its map. The table is that of [`TABLE`] numbers.
pub(crate) fn attach(
    socket: BorrowedFd<'_>,
    table: BorrowedFd<'_>,
    factors: [u64; 2],
) -> io::Result<OwnedFd> {
    let own = bpf::new_map(NUMBERS)?;
    let v6 = local_addr(socket)?.is_ipv6();
    bpf::attach_to_socket(socket, &program(&own, table, factors, v6))?;
    Ok(own)
}

/// R6 is the packet, R7 its time of arrival, R8 the numbers of the interface.
fn program(own: &OwnedFd, table: BorrowedFd<'_>, factors: [u64; 2], v6: bool) -> Vec<Instruction> {
    // Places on the stack: type and receiver index, then mac2, or the source.
    let (kind, receiver, second) = (-16, -12, -8);
    let mut program = Program::default();
    let data = program.label();
    let initiation = program.label();
    let malformed = program.label();
    let unknown = program.label();
    let pass = program.label();
    let load_bytes = |from: i32, len: i32| {
        [
            Instruction::copy(R1, R6),
            Instruction::set(R2, from),
            Instruction::copy(R3, R10),
            Instruction::add_value(R3, kind.into()),
            Instruction::set(R4, len),
        ]
    };
    // 1. Type and receiver index of a datagram that is alone.
    program.add([
        Instruction::copy(R6, R1),
        Instruction::call(KTIME_GET_BOOT_NS),
        Instruction::copy(R7, R0),
    ]);
    program.add(Instruction::numbers(R8, &table));
    program.add([Instruction::load64(R1, R8, offset(ON))]);
    program.jump(Instruction::go_if_equal(R1, 0), pass);
    program.add([
        Instruction::load32(R1, R6, GSO_SEGS),
        Instruction::set(R2, 1),
    ]);
    program.jump(Instruction::go_if_less(R2, R1), pass);
    program.add(load_bytes(UDP_HEADER, 8));
    program.add([Instruction::call(SKB_LOAD_BYTES)]);
    // What is that short is counted by the reader.
    program.jump(Instruction::go_if_not_equal(R0, 0), pass);
    program.add([Instruction::load32(R1, R10, kind)]);
    program.jump(Instruction::go_if_equal(R1, 4), data);
    program.jump(Instruction::go_if_equal(R1, 1), initiation);
    program.jump(Instruction::go_if_equal(R1, 0), malformed);
    program.jump(Instruction::go_if_less_than_value(R1, 4), pass);
    program.jump(Instruction::go(), malformed);

    // 2. A data message for nobody.
    program.place(data);
    program.add([Instruction::load32(R1, R6, LEN)]);
    program.jump(
        Instruction::go_if_less_than_value(R1, LEAST_DATA),
        malformed,
    );
    program.add([
        Instruction::load32(R1, R10, receiver),
        Instruction::and_value(R1, (1 << INDEX_BITS) - 1),
    ]);
    unless_bit(&mut program, INDICES, unknown);
    program.jump(Instruction::go(), pass);

    // 3. An initiation without mac2, from a source that is refused now.
    program.place(initiation);
    program.add([Instruction::load32(R1, R6, LEN)]);
    program.jump(Instruction::go_if_not_equal(R1, INITIATION), pass);
    program.add(load_bytes(MAC2, 16));
    program.add([Instruction::call(SKB_LOAD_BYTES)]);
    program.jump(Instruction::go_if_not_equal(R0, 0), pass);
    program.add([
        Instruction::load64(R1, R10, kind),
        Instruction::load64(R2, R10, second),
        Instruction::or(R1, R2),
    ]);
    program.jump(Instruction::go_if_not_equal(R1, 0), pass);
    let (from, len) = if v6 { SOURCE_V6 } else { SOURCE_V4 };
    // Of an IPv4 address the other half stays zero, as mac2 was.
    program.add(load_bytes(from, len));
    program.add([
        Instruction::set(R5, FROM_IP_HEADER),
        Instruction::call(SKB_LOAD_BYTES_RELATIVE),
    ]);
    program.jump(Instruction::go_if_not_equal(R0, 0), pass);
    program.add([Instruction::load64(R9, R10, kind)]);
    for factor in factors {
        program.add(Instruction::set64(R1, factor));
        program.add([
            Instruction::multiply(R9, R1),
            Instruction::copy(R1, R9),
            Instruction::shift_right(R1, 32),
            Instruction::xor(R9, R1),
        ]);
    }
    program.add([
        Instruction::copy(R6, R9),
        Instruction::shift_right(R6, 64 - GROUP_BITS),
        Instruction::copy(R1, R6),
        Instruction::shift_left(R1, 3),
        Instruction::copy(R2, R8),
        Instruction::add(R2, R1),
        Instruction::load64(R1, R2, offset(REFUSED_UNTIL)),
    ]);
    program.jump(Instruction::go_if_no_more(R1, R7), pass);
    program.add([Instruction::shift_left(R6, SOURCE_BITS)]);
    for part in 0..HASHES {
        program.add([
            Instruction::copy(R1, R9),
            Instruction::and_value(R1, (1 << SOURCE_BITS) - 1),
            // The verifier of Linux 6.1 loses the bounds of an `or`.
            Instruction::add(R1, R6),
            Instruction::shift_right(R9, SOURCE_BITS),
        ]);
        unless_bit(&mut program, SOURCES + part * PART, pass);
    }

    // 4. What is dropped is counted. The places are constants, for the verifier.
    count(&mut program, own, REFUSED);
    program.place(unknown);
    count(&mut program, own, UNKNOWN);
    program.place(malformed);
    count(&mut program, own, MALFORMED);

    program.place(pass);
    program.add([Instruction::call(GET_SMP_PROCESSOR_ID)]);
    program.add(Instruction::numbers(R1, own));
    program.add([
        Instruction::store64(R1, offset(CPU), R0),
        Instruction::store64(R1, offset(NANOS), R7),
        Instruction::set(R2, 1),
        Instruction::add64(R1, offset(PASSED), R2),
        // The length to keep: all of it.
        Instruction::set(R0, -1),
        Instruction::exit(),
    ]);
    program.finish()
}

/// Drops the packet, and counts it there.
fn count(program: &mut Program, own: &OwnedFd, at: usize) {
    program.add(Instruction::numbers(R1, own));
    program.add([
        Instruction::set(R2, 1),
        Instruction::add64(R1, offset(at), R2),
        Instruction::set(R0, 0),
        Instruction::exit(),
    ]);
}

/// Goes elsewhere if bit R1 of those that begin with this number is not set.
fn unless_bit(program: &mut Program, numbers: usize, elsewhere: bpf::instructions::Label) {
    program.add([
        Instruction::copy(R2, R1),
        Instruction::shift_right(R2, 6),
        Instruction::shift_left(R2, 3),
        Instruction::copy(R3, R8),
        Instruction::add(R3, R2),
        Instruction::load64(R2, R3, offset(numbers)),
        Instruction::and_value(R1, 63),
        Instruction::shift_right_by(R2, R1),
        Instruction::and_value(R2, 1),
    ]);
    program.jump(Instruction::go_if_equal(R2, 0), elsewhere);
}
