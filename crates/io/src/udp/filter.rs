//! What a socket drops before it is queued: a BPF program at the socket, and what it shares with
//! this process.
//!
//! To queue a datagram costs several times as much as to drop it at once: memory, a wake-up, a copy.
//! The program drops what this process would drop after that, and counts it:
//!
//! 1. what is no message of WireGuard;
//! 2. data messages whose receiver index nobody has;
//! 3. initiations without a cookie from sources that get no answer for the next milliseconds.
//!
//! It looks at datagrams that are alone. A train that the kernel merged passes: the kernel tells
//! senders apart by their addresses, so a forged datagram may stand before honest ones.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_proto::{INDEX_BUCKETS, InUse, Time};

use crate::sys::bpf::{
    self, GET_SMP_PROCESSOR_ID, Instruction, KTIME_GET_BOOT_NS, Program, R0, R1, R2, R3, R4, R5,
    R6, R7, R8, R9, R10, SKB_LOAD_BYTES, SKB_LOAD_BYTES_RELATIVE, SharedMap, offset,
};
use crate::udp::local_addr;
use crate::{Arrival, Filtered, helper};

// The numbers of a socket, which its program writes.
const CPU: usize = 0;
/// Nanoseconds of CLOCK_BOOTTIME.
const NANOS: usize = 1;
const MALFORMED: usize = 2;
const UNKNOWN: usize = 3;
const REFUSED: usize = 4;
/// What was not dropped.
const PASSED: usize = 5;
const NUMBERS: usize = 6;

// The numbers of an interface, which this process writes. Whether anything is dropped:
const ON: usize = 0;
/// Until when the sources of each group are refused, by the clock of `NANOS`.
const REFUSED_UNTIL: usize = 1;
const GROUP_BITS: i32 = 4;
const GROUPS: usize = 1 << GROUP_BITS;
/// A bit for each bucket of receiver indices.
const INDICES: usize = REFUSED_UNTIL + GROUPS;
const INDEX_BITS: i32 = INDEX_BUCKETS.ilog2().cast_signed();
/// A Bloom filter of refused sources: a part for each hash, and in it one for each group.
const SOURCES: usize = INDICES + (INDEX_BUCKETS >> 6);
const SOURCE_BITS: i32 = 11;
const OF_GROUP: usize = 1 << (SOURCE_BITS - 6);
const PART: usize = GROUPS * OF_GROUP;
const HASHES: usize = 4;
pub(crate) const TABLE: usize = SOURCES + HASHES * PART;

/// How many nanoseconds sources are refused at most. A source may be forged, and what comes from it
/// honest: so it is heard again as soon as there are some more cookie replies, and is refused no larger a
/// part of the time than it would get no reply in. The groups have their ends in turns, so that not all
/// sources of a flood come through at once.
const REFUSAL: u64 = 10_000_000;

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

/// What the sockets of an interface drop.
#[derive(Debug)]
pub(crate) struct Table {
    numbers: SharedMap,
    /// Of the hash of sources. Without them nobody can choose sources in whose place others are
    /// refused.
    factors: [u64; 2],
}

impl Table {
    /// One by which nothing is dropped yet, and its descriptor, for programs. Needs Linux 5.8 and
    /// CAP_BPF.
    pub(super) fn new() -> io::Result<(Arc<Self>, Arc<OwnedFd>)> {
        let map = helper::table()?;
        let numbers = SharedMap::of(&map, TABLE)?;
        let random = RandomState::new();
        let factors = [0, 1].map(|n: u8| random.hash_one(n) | 1);
        Ok((Arc::new(Self { numbers, factors }), Arc::new(map)))
    }

    fn refuse(&self, source: IpAddr, now: u64) {
        let numbers = self.numbers.get();
        let mut hash = self.hash(source);
        let place = |bits: u64| usize::try_from(bits).unwrap_or_default();
        let group = place(hash >> (64 - GROUP_BITS));
        let of_group = |part: usize| {
            let first = SOURCES + part * PART + group * OF_GROUP;
            &numbers[first..first + OF_GROUP]
        };
        if numbers[REFUSED_UNTIL + group].load(Relaxed) <= now {
            for word in (0..HASHES).flat_map(of_group) {
                word.store(0, Relaxed);
            }
            numbers[REFUSED_UNTIL + group].store(end_of_refusal(group, now), Relaxed);
        }
        for part in 0..HASHES {
            let bit = hash & ((1 << SOURCE_BITS) - 1);
            of_group(part)[place(bit >> 6)].fetch_or(1 << (bit & 63), Relaxed);
            hash >>= SOURCE_BITS;
        }
    }

    /// As the program does it.
    fn hash(&self, source: IpAddr) -> u64 {
        let key = match source {
            IpAddr::V4(ip) => u32::from_le_bytes(ip.octets()).into(),
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, g, h, ..] = ip.octets();
                u64::from_le_bytes([a, b, c, d, e, f, g, h])
            }
        };
        self.factors.into_iter().fold(key, |hash, factor| {
            let product = hash.wrapping_mul(factor);
            product ^ product >> 32
        })
    }
}

/// The next end of refusals of a group, which come every [`REFUSAL`].
fn end_of_refusal(group: usize, now: u64) -> u64 {
    let turn = REFUSAL / GROUPS as u64 * group as u64;
    now + REFUSAL - (now + REFUSAL - turn) % REFUSAL
}

impl InUse for Table {
    fn set(&self, bucket: usize, is_used: bool) {
        let word = &self.numbers.get()[INDICES + (bucket >> 6)];
        let bit = 1 << (bucket & 63);
        match is_used {
            true => word.fetch_or(bit, Relaxed),
            false => word.fetch_and(!bit, Relaxed),
        };
    }

    fn set_complete(&self, is_complete: bool) {
        self.numbers.get()[ON].store(is_complete.into(), Relaxed);
    }
}

/// The program of a socket. It lives as long as the socket, or until it gets another one.
#[derive(Debug)]
pub(super) struct Filter {
    numbers: SharedMap,
    pub(super) table: Arc<Table>,
    /// Of the table, for programs of further sockets.
    pub(super) map: Arc<OwnedFd>,
    /// What [`Self::take`] has told, by place.
    told: [AtomicU64; NUMBERS],
    /// How many of those that passed do not wait any more, and of how many of these nobody knows yet
    /// that they were lost.
    gone: AtomicU64,
    presumed: AtomicU64,
}

impl Filter {
    /// Gives a socket a program. Needs Linux 5.8 and CAP_BPF.
    ///
    /// A socket with a program has the kernel verify the checksum of a datagram before it queues it,
    /// unless the network card or GRO has verified it. Without one, the copy to this process
    /// verifies it. For single datagrams of 1452 bytes with an unverified checksum, a program of
    /// nine instructions and checksum took 155 ns more in the kernel and 30 ns less in the copy, of
    /// 2.2 µs.
    pub(super) fn of(
        socket: BorrowedFd<'_>,
        table: Arc<Table>,
        map: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let own = helper::filter(socket, map.as_fd(), table.factors)?;
        Ok(Self {
            numbers: SharedMap::of(&own, NUMBERS)?,
            table,
            map: Arc::clone(map),
            told: Default::default(),
            gone: AtomicU64::new(0),
            presumed: AtomicU64::new(0),
        })
    }

    fn number(&self, at: usize) -> u64 {
        self.numbers.get()[at].load(Relaxed)
    }

    /// Where and when the last datagram passed: on CPU 0 at the beginning of time if none did yet.
    pub(super) fn last_arrival(&self) -> Arrival {
        Arrival {
            cpu: usize::try_from(self.number(CPU)).unwrap_or(usize::MAX),
            at: Time(self.number(NANOS)),
        }
    }

    /// Initiations without a cookie from this source, of which one came, are dropped for a while.
    pub(super) fn refuse(&self, source: IpAddr) {
        self.table.refuse(source, self.number(NANOS));
    }

    /// How many messages have passed.
    pub(super) fn passed(&self) -> u64 {
        self.number(PASSED)
    }

    /// How many messages wait, after a call took so many, learnt of so many that were lost and, if
    /// `emptied`, took all that had passed `before` it. One thread at a time receives.
    ///
    /// It is too much while the kernel has not told of all that was lost, and too little when messages
    /// waited before there was the program: both until the socket is empty once.
    pub(super) fn waiting(&self, before: u64, (taken, lost): (u64, u64), emptied: bool) -> u64 {
        // What was gone when the socket was empty, and of which the kernel tells now.
        let presumed = self.presumed.load(Relaxed);
        let told = lost.min(presumed);
        let passed = self.passed();
        let mut gone = self.gone.load(Relaxed).saturating_add(taken + lost - told);
        let missing = if emptied {
            before.saturating_sub(gone)
        } else {
            0
        };
        gone = (gone + missing).min(passed);
        self.gone.store(gone, Relaxed);
        self.presumed.store(presumed - told + missing, Relaxed);
        passed - gone
    }

    /// All that was dropped: the lower 32 bits.
    pub(super) fn dropped_32(&self) -> u32 {
        let counters = [MALFORMED, UNKNOWN, REFUSED];
        let all: u64 = counters.into_iter().map(|at| self.number(at)).sum();
        u32::try_from(all & u64::from(u32::MAX)).unwrap_or_default()
    }

    /// What was dropped since the last call.
    pub(super) fn take(&self) -> Filtered {
        let more = |at: usize| {
            let now = self.number(at);
            // Several threads may ask.
            match self.told[at].load(Relaxed) < now {
                true => now.saturating_sub(self.told[at].fetch_max(now, Relaxed)),
                false => 0,
            }
        };
        Filtered {
            malformed: more(MALFORMED),
            unknown: more(UNKNOWN),
            refused: more(REFUSED),
        }
    }
}

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
    // What is that short is counted by whoever reads it.
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
fn unless_bit(program: &mut Program, numbers: usize, elsewhere: bpf::Label) {
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

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
