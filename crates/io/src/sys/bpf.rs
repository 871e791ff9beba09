//! A BPF program that notes where and when packets pass, and holds back what would make a queue too long.
//!
//! Sockets have SO_INCOMING_CPU for the former, which the kernel keeps for connected ones only, and TUN devices nothing.
//! The queue of a TUN device is measured in frames, which may be a thousand times as long as others.

#![allow(unsafe_code)]

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use adit_proto::Time;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{CapabilitySet, capabilities};
use rustix::time::{ClockId, clock_gettime};

use super::os;
use crate::Origin;

// linux/bpf.h
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;

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

/// A program on a TUN queue, for what the kernel sends through it, or on a socket, for what arrives.
///
/// It lives as long as what it is attached to.
#[derive(Debug)]
pub(crate) struct Gate {
    shared: NonNull<Shared>,
    /// What the limit is at least; 0 if there is none.
    least: AtomicU64,
    /// Packets read since what had been let through was `mark` bytes.
    packets: AtomicU32,
    mark: AtomicU64,
    /// How many of them were long, and their bytes.
    long: AtomicU64,
    bytes: AtomicU64,
}

/// The value of the program's map.
#[repr(C)]
#[derive(Debug)]
struct Shared {
    /// The CPU that the last packet passed on, and when: nanoseconds of CLOCK_BOOTTIME.
    cpu: AtomicU64,
    nanos: AtomicU64,
    /// Bytes of long packets that were let through.
    passed: AtomicU64,
    told: Told,
}

/// What this process writes, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
struct Told {
    /// How many of the bytes that passed were read.
    taken: AtomicU64,
    /// How many there may be between the two before the next packet.
    limit: AtomicU64,
    /// When it last looked, like `nanos`. A limit is none 2^32 ns later: the device may have another reader by then.
    at: AtomicU64,
}

// SAFETY: it owns the mapping, in which there are but atomics.
unsafe impl Send for Gate {}
// SAFETY: as above.
unsafe impl Sync for Gate {}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: `load` made the mapping for this one alone, of this length; `shared` lends it for no longer than this lives.
        let _ = unsafe { munmap(self.shared.as_ptr().cast(), size_of::<Shared>()) };
    }
}

impl Gate {
    /// For a device with one queue; several would share the value.
    ///
    /// Needs Linux 5.8 and CAP_BPF, as does [`Self::of_socket`].
    pub(crate) fn of_tun(tun: BorrowedFd<'_>) -> io::Result<Self> {
        let (gate, program) = load()?;
        os::ioctl_int(tun, libc::TUNSETFILTEREBPF, program.as_raw_fd())?;
        Ok(gate)
    }

    pub(crate) fn of_socket(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let (gate, program) = load()?;
        let program = program.as_raw_fd();
        os::set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program)?;
        Ok(gate)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: `load` made the mapping, which begins with a page, is long enough and ends with this only (`drop`);
        // what the program writes there are whole fields, which are atomics here.
        unsafe { self.shared.as_ref() }
    }

    /// Where the last packet came from: CPU 0 at the beginning of time if none came yet.
    pub(crate) fn last_origin(&self) -> Origin {
        let shared = self.shared();
        Origin {
            cpu: usize::try_from(shared.cpu.load(Relaxed)).unwrap_or(usize::MAX),
            at: Time::default() + Duration::from_nanos(shared.nanos.load(Relaxed)),
        }
    }

    /// From now on the queue takes no long packet while more than `least` bytes of them wait in it, or more than up to
    /// [`RANGE`] times that as long as they are short of [`MEAN`].
    pub(crate) fn limit(&self, least: u64) {
        self.least.store(least, Relaxed);
        self.shared().told.limit.store(least, Relaxed);
        self.took(None);
    }

    /// A packet of so many bytes was read from the queue, or it was empty.
    pub(crate) fn took(&self, bytes: Option<usize>) {
        let Shared { passed, told, .. } = self.shared();
        let least = self.least.load(Relaxed);
        if least == 0 {
            return;
        }
        let now = || {
            let now = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default();
            u64::try_from(now.as_nanos()).unwrap_or_default()
        };
        let Some(bytes) = bytes else {
            told.taken.store(passed.load(Relaxed), Relaxed);
            told.at.store(now(), Relaxed);
            return;
        };
        if bytes >= usize::from(LONG) {
            let bytes = bytes as u64;
            told.taken.fetch_add(bytes, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
            self.long.fetch_add(1, Relaxed);
        }
        // There is one reader.
        let packets = self.packets.load(Relaxed) + 1;
        self.packets.store(packets % AGE, Relaxed);
        if packets < AGE {
            return;
        }
        told.at.store(now(), Relaxed);
        // What was let through may be lost where the queue is full of packets, and must not count for ever.
        let mark = self.mark.swap(passed.load(Relaxed), Relaxed);
        told.taken.fetch_max(mark, Relaxed);
        let (bytes, long) = (self.bytes.swap(0, Relaxed), self.long.swap(0, Relaxed));
        if let Some(mean) = bytes.checked_div(long) {
            let limit = told.limit.load(Relaxed);
            let step = limit / 8;
            let limit = if mean < MEAN {
                limit + step
            } else {
                limit - step
            };
            told.limit.store(limit.clamp(least, RANGE * least), Relaxed);
        }
    }
}

/// The map, and the program that writes to it.
fn load() -> io::Result<(Gate, OwnedFd)> {
    // Asked for first: a sandbox may end a process that makes a system call which it is not meant to need.
    if !capabilities(None)?.effective.contains(CapabilitySet::BPF) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut attributes = MapCreate {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: VALUE_LEN,
        max_entries: 1,
        map_flags: BPF_F_MMAPABLE,
    };
    // SAFETY: the attributes are as long as stated and hold no pointers.
    let map = owned(unsafe { bpf(BPF_MAP_CREATE, &mut attributes) }?);
    let (len, protection) = (size_of::<Shared>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping, where the kernel likes.
    let shared = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            protection,
            MapFlags::SHARED,
            &map,
            0,
        )
    }?;
    let gate = Gate {
        shared: NonNull::new(shared.cast()).ok_or(io::ErrorKind::InvalidData)?,
        least: AtomicU64::new(0),
        packets: AtomicU32::new(0),
        mark: AtomicU64::new(0),
        long: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    };
    let unlimited = i64::MAX.unsigned_abs();
    gate.shared().told.limit.store(unlimited, Relaxed);
    let instructions = program(map.as_raw_fd());
    let mut attributes = ProgLoad {
        prog_type: BPF_PROG_TYPE_SOCKET_FILTER,
        insn_cnt: PROGRAM_LEN,
        insns: instructions.as_ptr(),
        license: c"".as_ptr(),
    };
    // SAFETY: the attributes are as long as stated; `insns` points to that many instructions, `license` to a C string,
    // and the kernel only reads them.
    let program = owned(unsafe { bpf(BPF_PROG_LOAD, &mut attributes) }?);
    Ok((gate, program))
}

/// Bytes of [`Shared`], whose fields are where the program expects them.
const VALUE_LEN: u32 = 128;
const PASSED: i16 = 16;
const TAKEN: i16 = 64;
const LIMIT: i16 = 72;
const AT: i16 = 80;
const _: () = {
    assert!(size_of::<Shared>() == VALUE_LEN as usize);
    assert!(offset_of!(Shared, passed) == PASSED as usize);
    assert!(offset_of!(Shared, told.taken) == TAKEN as usize);
    assert!(offset_of!(Shared, told.limit) == LIMIT as usize);
    assert!(offset_of!(Shared, told.at) == AT as usize);
};

/// Instructions of the program.
const PROGRAM_LEN: u32 = 24;

/// The program: stores the number of the CPU and the time, and lets the packet pass unless it is long and has to wait
/// behind too much.
fn program(map: RawFd) -> [Instruction; PROGRAM_LEN as usize] {
    let instruction = |code, registers, off, imm| Instruction {
        code,
        registers,
        off,
        imm,
    };
    [
        // r6 = the packet
        instruction(0xbf, 0x16, 0, 0),
        // r7 = bpf_ktime_get_boot_ns()
        instruction(0x85, 0, 0, 125),
        instruction(0xbf, 0x07, 0, 0),
        // r0 = bpf_get_smp_processor_id()
        instruction(0x85, 0, 0, 8),
        // r1 = address of the map's value, in two instructions
        instruction(0x18, 0x21, 0, map),
        instruction(0, 0, 0, 0),
        // cpu = r0, nanos = r7
        instruction(0x7b, 0x01, 0, 0),
        instruction(0x7b, 0x71, 8, 0),
        // r2 = its length; if it is short, it passes
        instruction(0x61, 0x62, 0, 0),
        instruction(0xa5, 0x02, 10, i32::from(LONG)),
        // r3 = passed - taken; up to the limit, it passes and is counted
        instruction(0x79, 0x13, PASSED, 0),
        instruction(0x79, 0x14, TAKEN, 0),
        instruction(0x1f, 0x43, 0, 0),
        instruction(0x79, 0x14, LIMIT, 0),
        instruction(0xdd, 0x43, 4, 0),
        // r7 = (r7 - at) >> 32: zero, and it does not pass
        instruction(0x79, 0x14, AT, 0),
        instruction(0x1f, 0x47, 0, 0),
        instruction(0x77, 0x07, 0, 32),
        instruction(0x15, 0x07, 3, 0),
        // passed += r2, atomically
        instruction(0xdb, 0x21, PASSED, 0),
        // return the length to keep: all of it
        instruction(0xb7, 0, 0, -1),
        instruction(0x95, 0, 0, 0),
        // or nothing
        instruction(0xb7, 0, 0, 0),
        instruction(0x95, 0, 0, 0),
    ]
}

/// `struct bpf_insn`
#[repr(C)]
struct Instruction {
    code: u8,
    /// Source and destination, four bits each: these are where little-endian machines have them.
    registers: u8,
    off: i16,
    imm: i32,
}

/// `union bpf_attr` of BPF_MAP_CREATE
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// `union bpf_attr` of BPF_PROG_LOAD, on 64-bit machines like the next
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: *const Instruction,
    license: *const libc::c_char,
}

/// `bpf(2)`.
///
/// # Safety
///
/// `attributes` must be those of the command, and every pointer in them valid for what the kernel does with it.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<RawFd> {
    if cfg!(not(all(
        target_endian = "little",
        target_pointer_width = "64"
    ))) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: the length is that of the attributes; the caller answers for what they say.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    RawFd::try_from(result).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Takes a descriptor that a BPF command made.
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass what BPF_MAP_CREATE or BPF_PROG_LOAD just returned, which nobody else knows.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
