//! BPF programs: one that notes where and when packets leave a TUN device, and the parts that every
//! program needs to get into the kernel.
//!
//! Sockets have SO_INCOMING_CPU for that, which the kernel updates for connected ones only, and TUN
//! devices have nothing.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use adit_proto::Time;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{CapabilitySet, capabilities};

use super::os;
use crate::Arrival;

// linux/bpf.h
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_EGRESS: u32 = 47;
/// `TCX_NEXT`: other programs and the qdisc decide.
pub(crate) const PASS: i32 = -1;
/// `TCX_DROP`
pub(crate) const DROP: i32 = 2;

/// Where the last packet came to a TUN queue from the kernel.
///
/// The program that notes it lives as long as what it is attached to.
#[derive(Debug)]
pub(crate) struct LastArrival(SharedMap);

const CPU: usize = 0;
/// Nanoseconds of CLOCK_BOOTTIME.
const NANOS: usize = 1;
const NUMBERS: usize = 2;

impl LastArrival {
    /// What [`note_arrivals`] notes.
    pub(crate) fn of(map: &OwnedFd) -> io::Result<Self> {
        SharedMap::of(map, NUMBERS).map(Self)
    }

    /// CPU 0 at the beginning of time if no packet came yet.
    pub(crate) fn get(&self) -> Arrival {
        let number = |at: usize| self.0.get()[at].load(Relaxed);
        Arrival {
            cpu: usize::try_from(number(CPU)).unwrap_or(usize::MAX),
            at: Time::default() + Duration::from_nanos(number(NANOS)),
        }
    }
}

/// Has a program store the number of the CPU and the time of what leaves through a device with one
/// queue; several would share the numbers. Returns its map. Needs Linux 5.8 and CAP_BPF.
pub(crate) fn note_arrivals(tun: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let map = new_map(NUMBERS)?;
    let [map_low, map_high] = Instruction::numbers(R1, &map);
    let program = [
        Instruction::call(KTIME_GET_BOOT_NS),
        Instruction::copy(R6, R0),
        Instruction::call(GET_SMP_PROCESSOR_ID),
        map_low,
        map_high,
        Instruction::store64(R1, offset(CPU), R0),
        Instruction::store64(R1, offset(NANOS), R6),
        // The length to keep: all of it.
        Instruction::set(R0, -1),
        Instruction::exit(),
    ];
    let program = load(BPF_PROG_TYPE_SOCKET_FILTER, &program)?;
    os::ioctl_int(tun, libc::TUNSETFILTEREBPF, program.as_raw_fd())?;
    Ok(map)
}

/// Gives a socket a program that sees each packet before it is queued: it returns how much of it to
/// keep, 0 to drop it. Needs CAP_BPF.
pub(crate) fn attach_to_socket(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let program = load(BPF_PROG_TYPE_SOCKET_FILTER, program)?;
    let program = program.as_raw_fd();
    os::set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program)
}

/// Attaches a program to what leaves through an interface of the calling thread's network
/// namespace, until the descriptor that it returns is closed. Needs Linux 6.6, CAP_BPF and
/// CAP_NET_ADMIN.
///
/// The program returns [`PASS`] or [`DROP`].
pub(crate) fn attach_to_egress(ifindex: u32, program: &[Instruction]) -> io::Result<OwnedFd> {
    let program = load(BPF_PROG_TYPE_SCHED_CLS, program)?;
    let mut attributes = LinkCreate {
        prog_fd: u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX),
        target_ifindex: ifindex,
        attach_type: BPF_TCX_EGRESS,
        flags: 0,
        relative: 0,
        expected_revision: 0,
    };
    // SAFETY: the attributes are as long as stated and hold no pointers.
    Ok(owned(unsafe { bpf(BPF_LINK_CREATE, &mut attributes) }?))
}

/// Has a program choose the queue of every packet that leaves through a TUN device. Needs Linux 4.16
/// and CAP_BPF.
///
/// The program returns the number of the queue.
pub(crate) fn steer(tun: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let program = load(BPF_PROG_TYPE_SOCKET_FILTER, program)?;
    os::ioctl_int(tun, libc::TUNSETSTEERINGEBPF, program.as_raw_fd())
}

/// Numbers that a program and this process share: the value of an array map that has one.
#[derive(Debug)]
pub(crate) struct SharedMap(NonNull<[AtomicU64]>);

// SAFETY: it owns the mapping, in which there is nothing but atomics, on whatever thread it is.
unsafe impl Send for SharedMap {}
// SAFETY: threads share nothing but the atomics of the mapping, which lives as long as this value.
unsafe impl Sync for SharedMap {}

impl Drop for SharedMap {
    fn drop(&mut self) {
        let len = self.0.len() * size_of::<AtomicU64>();
        // SAFETY: `of` made the mapping for this one alone, of this length; `get` lends it for no
        // longer than this lives.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), len) };
    }
}

/// A map of so many numbers, all zero. Needs Linux 5.8 and CAP_BPF.
pub(crate) fn new_map(count: usize) -> io::Result<OwnedFd> {
    // Asked for first: a sandbox may end a process that makes a system call which it is not meant
    // to need.
    if !capabilities(None)?.effective.contains(CapabilitySet::BPF) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let len = count * size_of::<AtomicU64>();
    let mut attributes = MapCreate {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: u32::try_from(len).unwrap_or(u32::MAX),
        max_entries: 1,
        map_flags: BPF_F_MMAPABLE,
    };
    // SAFETY: the attributes are as long as stated and hold no pointers.
    Ok(owned(unsafe { bpf(BPF_MAP_CREATE, &mut attributes) }?))
}

impl SharedMap {
    /// Those of a map that some process handed over.
    pub(crate) fn of_other(map: &OwnedFd, count: usize) -> io::Result<Self> {
        // A file in its place could become shorter, which ends a process that reads what is gone.
        let mode = rustix::fs::fstat(map)?.st_mode;
        if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::Unknown {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::of(map, count)
    }

    /// Those of a map that this process, or its helper, made for so many. The kernel refuses to map
    /// more than the map's value has.
    pub(crate) fn of(map: &OwnedFd, count: usize) -> io::Result<Self> {
        let len = count * size_of::<AtomicU64>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel likes.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                map,
                0,
            )
        }?;
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self(NonNull::slice_from_raw_parts(first, count)))
    }

    pub(crate) fn get(&self) -> &[AtomicU64] {
        // SAFETY: `of` made the mapping, which begins with a page, is as long as the map's value,
        // so many numbers, and ends with this only (`drop`); what programs write there are whole
        // numbers, which are atomics here.
        unsafe { self.0.as_ref() }
    }
}

/// Where a program finds the number that is `at` this place.
pub(crate) fn offset(at: usize) -> i16 {
    i16::try_from(8 * at).unwrap_or(i16::MAX)
}

/// A register. R0 holds what a call returns and what the program does; calls take R1 to R5 and
/// leave R6 to R9 alone.
#[derive(Clone, Copy)]
pub(crate) struct Register(u8);

pub(crate) const R0: Register = Register(0);
pub(crate) const R1: Register = Register(1);
pub(crate) const R2: Register = Register(2);
pub(crate) const R3: Register = Register(3);
pub(crate) const R4: Register = Register(4);
pub(crate) const R5: Register = Register(5);
pub(crate) const R6: Register = Register(6);
pub(crate) const R7: Register = Register(7);
pub(crate) const R8: Register = Register(8);
pub(crate) const R9: Register = Register(9);
/// The end of the 512 bytes that a program has for itself.
pub(crate) const R10: Register = Register(10);

/// The number of a helper function of the kernel, without its `BPF_FUNC_`.
#[derive(Clone, Copy)]
pub(crate) struct Function(i32);

pub(crate) const GET_SMP_PROCESSOR_ID: Function = Function(8);
pub(crate) const SKB_LOAD_BYTES: Function = Function(26);
pub(crate) const TCP_SOCK: Function = Function(96);
pub(crate) const SKB_LOAD_BYTES_RELATIVE: Function = Function(68);
pub(crate) const KTIME_GET_BOOT_NS: Function = Function(125);

/// `struct bpf_insn`. The kernel documents the codes in
/// Documentation/bpf/standardization/instruction-set.rst.
#[repr(C)]
pub(crate) struct Instruction {
    code: u8,
    /// Source and destination, four bits each: these are where little-endian machines have them.
    registers: u8,
    off: i16,
    imm: i32,
}

impl Instruction {
    const fn new(code: u8, to: Register, from: Register, off: i16, imm: i32) -> Self {
        Self {
            code,
            registers: from.0 << 4 | to.0,
            off,
            imm,
        }
    }

    /// `to = from`
    pub(crate) const fn copy(to: Register, from: Register) -> Self {
        Self::new(0xbf, to, from, 0, 0)
    }

    /// `to = value`
    pub(crate) const fn set(to: Register, value: i32) -> Self {
        Self::new(0xb7, to, R0, 0, value)
    }

    /// `to = value`. It takes two instructions.
    pub(crate) const fn set64(to: Register, value: u64) -> [Self; 2] {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        [
            Self::new(0x18, to, R0, 0, i32::from_le_bytes([a, b, c, d])),
            Self::new(0, R0, R0, 0, i32::from_le_bytes([e, f, g, h])),
        ]
    }

    /// `to` = the address of the numbers. It takes two instructions.
    pub(crate) fn numbers(to: Register, map: &impl AsRawFd) -> [Self; 2] {
        // BPF_PSEUDO_MAP_VALUE stands where others have a register.
        let value_of_map = Register(2);
        [
            Self::new(0x18, to, value_of_map, 0, map.as_raw_fd()),
            Self::new(0, R0, R0, 0, 0),
        ]
    }

    /// `to` = the 8 bits at `base + off`
    pub(crate) const fn load8(to: Register, base: Register, off: i16) -> Self {
        Self::new(0x71, to, base, off, 0)
    }

    /// `to` = the 32 bits at `base + off`
    pub(crate) const fn load32(to: Register, base: Register, off: i16) -> Self {
        Self::new(0x61, to, base, off, 0)
    }

    /// `to` = the 64 bits at `base + off`
    pub(crate) const fn load64(to: Register, base: Register, off: i16) -> Self {
        Self::new(0x79, to, base, off, 0)
    }

    /// The 64 bits at `base + off` = `from`
    pub(crate) const fn store64(base: Register, off: i16, from: Register) -> Self {
        Self::new(0x7b, base, from, off, 0)
    }

    /// The 64 bits at `base + off` += `from`, atomically
    pub(crate) const fn add64(base: Register, off: i16, from: Register) -> Self {
        Self::new(0xdb, base, from, off, 0)
    }

    /// `to += from`
    pub(crate) const fn add(to: Register, from: Register) -> Self {
        Self::new(0x0f, to, from, 0, 0)
    }

    /// `to += value`
    pub(crate) const fn add_value(to: Register, value: i32) -> Self {
        Self::new(0x07, to, R0, 0, value)
    }

    /// `to /= from`, without sign
    pub(crate) const fn divide(to: Register, from: Register) -> Self {
        Self::new(0x3f, to, from, 0, 0)
    }

    /// `to -= from`
    pub(crate) const fn subtract(to: Register, from: Register) -> Self {
        Self::new(0x1f, to, from, 0, 0)
    }

    /// The 32 bits at `base + off` = `from`
    pub(crate) const fn store32(base: Register, off: i16, from: Register) -> Self {
        Self::new(0x63, base, from, off, 0)
    }

    /// `from` = the 64 bits at `base + off`, which grow by what `from` was, atomically
    pub(crate) const fn fetch_add64(base: Register, off: i16, from: Register) -> Self {
        Self::new(0xdb, base, from, off, 1)
    }

    /// `to &= value`
    pub(crate) const fn and_value(to: Register, value: i32) -> Self {
        Self::new(0x57, to, R0, 0, value)
    }

    /// `to |= from`
    pub(crate) const fn or(to: Register, from: Register) -> Self {
        Self::new(0x4f, to, from, 0, 0)
    }

    /// `to <<= bits`
    pub(crate) const fn shift_left(to: Register, bits: i32) -> Self {
        Self::new(0x67, to, R0, 0, bits)
    }

    /// `to >>= bits`, without sign
    pub(crate) const fn shift_right(to: Register, bits: i32) -> Self {
        Self::new(0x77, to, R0, 0, bits)
    }

    /// `to >>= from`, without sign
    pub(crate) const fn shift_right_by(to: Register, from: Register) -> Self {
        Self::new(0x7f, to, from, 0, 0)
    }

    /// `to *= from`
    pub(crate) const fn multiply(to: Register, from: Register) -> Self {
        Self::new(0x2f, to, from, 0, 0)
    }

    /// `to *= value`
    pub(crate) const fn multiply_value(to: Register, value: i32) -> Self {
        Self::new(0x27, to, R0, 0, value)
    }

    /// `to ^= from`
    pub(crate) const fn xor(to: Register, from: Register) -> Self {
        Self::new(0xaf, to, from, 0, 0)
    }

    /// Goes elsewhere.
    pub(crate) const fn go() -> Self {
        Self::new(0x05, R0, R0, 0, 0)
    }

    /// Goes elsewhere if `register == value`.
    pub(crate) const fn go_if_equal(register: Register, value: i32) -> Self {
        Self::new(0x15, register, R0, 0, value)
    }

    /// Goes elsewhere if `register != value`.
    pub(crate) const fn go_if_not_equal(register: Register, value: i32) -> Self {
        Self::new(0x55, register, R0, 0, value)
    }

    /// Goes elsewhere if `register < value`, without sign.
    pub(crate) const fn go_if_less_than_value(register: Register, value: i32) -> Self {
        Self::new(0xa5, register, R0, 0, value)
    }

    /// Goes elsewhere if `left < right`, without sign.
    pub(crate) const fn go_if_less(left: Register, right: Register) -> Self {
        Self::new(0xad, left, right, 0, 0)
    }

    /// Goes elsewhere if `left <= right`, without sign.
    pub(crate) const fn go_if_no_more(left: Register, right: Register) -> Self {
        Self::new(0xbd, left, right, 0, 0)
    }

    /// Goes elsewhere if `left <= right`, with sign.
    pub(crate) const fn go_if_at_most(left: Register, right: Register) -> Self {
        Self::new(0xdd, left, right, 0, 0)
    }

    /// `R0 = function(R1, R2, ...)`
    pub(crate) const fn call(function: Function) -> Self {
        Self::new(0x85, R0, R0, 0, function.0)
    }

    /// Ends the program; R0 says what becomes of the packet.
    pub(crate) const fn exit() -> Self {
        Self::new(0x95, R0, R0, 0, 0)
    }
}

/// Instructions, and where those that go elsewhere go.
#[derive(Default)]
pub(crate) struct Program {
    instructions: Vec<Instruction>,
    /// Where labels are.
    labels: Vec<usize>,
    /// Instructions that go to labels.
    jumps: Vec<(usize, Label)>,
}

/// A place in a program. It comes after every instruction that goes there.
#[derive(Clone, Copy)]
pub(crate) struct Label(usize);

impl Program {
    /// A place that [`Self::place`] decides on later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() - 1)
    }

    /// The next instruction is where this label is.
    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0] = self.instructions.len();
    }

    pub(crate) fn add<const N: usize>(&mut self, instructions: [Instruction; N]) {
        self.instructions.extend(instructions);
    }

    /// An instruction that goes to the label.
    pub(crate) fn jump(&mut self, instruction: Instruction, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.instructions.push(instruction);
    }

    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (from, Label(to)) in self.jumps {
            // The kernel refuses a program with a jump that this cannot express.
            let skipped = self.labels[to].saturating_sub(from + 1);
            self.instructions[from].off = i16::try_from(skipped).unwrap_or(i16::MAX);
        }
        self.instructions
    }
}

fn load(kind: u32, program: &[Instruction]) -> io::Result<OwnedFd> {
    let mut attributes = ProgLoad {
        prog_type: kind,
        insn_cnt: u32::try_from(program.len()).unwrap_or(u32::MAX),
        insns: program.as_ptr(),
        license: c"".as_ptr(),
    };
    // SAFETY: the attributes are as long as stated; `insns` points to that many instructions,
    // `license` to a C string, and the kernel only reads them.
    Ok(owned(unsafe { bpf(BPF_PROG_LOAD, &mut attributes) }?))
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

/// `union bpf_attr` of BPF_LINK_CREATE, for tcx
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative: u64,
    expected_revision: u64,
}

/// `bpf(2)`.
///
/// # Safety
///
/// `attributes` must be those of the command, and every pointer in them valid for what the kernel
/// does with it.
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
    // SAFETY: callers pass what a command just returned, which nobody else knows.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
