//! BPF programs: one that notes where and when packets pass, and what every program needs to get into the kernel.
//!
//! Sockets have SO_INCOMING_CPU for that, which the kernel keeps for connected ones only, and TUN devices nothing.

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
use crate::Origin;

// linux/bpf.h
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_EGRESS: u32 = 47;

/// Where the last packet came to a TUN queue from the kernel, or to a socket from the network.
///
/// The program that notes it lives as long as what it is attached to.
#[derive(Debug)]
pub(crate) struct LastOrigin(Numbers);

const CPU: usize = 0;
/// Nanoseconds of CLOCK_BOOTTIME.
const NANOS: usize = 1;

impl LastOrigin {
    /// Of a device with one queue; several would share the numbers.
    ///
    /// Needs Linux 5.8 and CAP_BPF, as does [`Self::of_socket`].
    pub(crate) fn of_tun(tun: BorrowedFd<'_>) -> io::Result<Self> {
        let (numbers, program) = note_origin()?;
        os::ioctl_int(tun, libc::TUNSETFILTEREBPF, program.as_raw_fd())?;
        Ok(Self(numbers))
    }

    pub(crate) fn of_socket(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let (numbers, program) = note_origin()?;
        let program = program.as_raw_fd();
        os::set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program)?;
        Ok(Self(numbers))
    }

    /// CPU 0 at the beginning of time if no packet came yet.
    pub(crate) fn get(&self) -> Origin {
        let number = |at: usize| self.0.get()[at].load(Relaxed);
        Origin {
            cpu: usize::try_from(number(CPU)).unwrap_or(usize::MAX),
            at: Time::default() + Duration::from_nanos(number(NANOS)),
        }
    }
}

/// A program that stores the number of the CPU and the time, and lets the packet pass.
fn note_origin() -> io::Result<(Numbers, OwnedFd)> {
    let (numbers, map) = Numbers::new()?;
    let program = [
        // r6 = bpf_ktime_get_boot_ns()
        op(0x85, 0, 0, 125),
        op(0xbf, 0x06, 0, 0),
        // r0 = bpf_get_smp_processor_id()
        op(0x85, 0, 0, 8),
        // r1 = address of the numbers, in two instructions
        op(0x18, 0x21, 0, map.as_raw_fd()),
        op(0, 0, 0, 0),
        op(0x7b, 0x01, offset(CPU), 0),
        op(0x7b, 0x61, offset(NANOS), 0),
        // return the length to keep: all of it
        op(0xb7, 0, 0, -1),
        op(0x95, 0, 0, 0),
    ];
    Ok((numbers, load(BPF_PROG_TYPE_SOCKET_FILTER, &program)?))
}

/// Attaches a program to what leaves through an interface of the calling thread's network namespace, until the
/// descriptor that it returns is closed. Needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN.
///
/// The program returns -1 to let a packet go on, 2 to drop it.
pub(super) fn attach_to_egress(ifindex: u32, program: &[Instruction]) -> io::Result<OwnedFd> {
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

const NUMBERS: usize = 16;

/// Numbers that a program and this process share: the value of an array map that has one.
#[derive(Debug)]
pub(super) struct Numbers(NonNull<[AtomicU64; NUMBERS]>);

// SAFETY: it owns the mapping, in which there are but atomics.
unsafe impl Send for Numbers {}
// SAFETY: as above.
unsafe impl Sync for Numbers {}

impl Drop for Numbers {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping for this one alone, of this length; `get` lends it for no longer than this lives.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<[AtomicU64; NUMBERS]>()) };
    }
}

impl Numbers {
    /// They are zero. The descriptor is the map's, for a program to name.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        // Asked for first: a sandbox may end a process that makes a system call which it is not meant to need.
        if !capabilities(None)?.effective.contains(CapabilitySet::BPF) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let len = size_of::<[AtomicU64; NUMBERS]>();
        let mut attributes = MapCreate {
            map_type: BPF_MAP_TYPE_ARRAY,
            key_size: 4,
            value_size: u32::try_from(len).unwrap_or(u32::MAX),
            max_entries: 1,
            map_flags: BPF_F_MMAPABLE,
        };
        // SAFETY: the attributes are as long as stated and hold no pointers.
        let map = owned(unsafe { bpf(BPF_MAP_CREATE, &mut attributes) }?);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel likes.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                &map,
                0,
            )
        }?;
        let numbers = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok((Self(numbers), map))
    }

    pub(super) fn get(&self) -> &[AtomicU64; NUMBERS] {
        // SAFETY: `new` made the mapping, which begins with a page, is long enough and ends with this only (`drop`);
        // what programs write there are whole numbers, which are atomics here.
        unsafe { self.0.as_ref() }
    }
}

/// Where a program finds the number that is `at` this place.
pub(super) fn offset(at: usize) -> i16 {
    i16::try_from(8 * at).unwrap_or(i16::MAX)
}

/// `struct bpf_insn`
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// Source and destination, four bits each: these are where little-endian machines have them.
    registers: u8,
    off: i16,
    imm: i32,
}

pub(super) const fn op(code: u8, registers: u8, off: i16, imm: i32) -> Instruction {
    Instruction {
        code,
        registers,
        off,
        imm,
    }
}

fn load(kind: u32, program: &[Instruction]) -> io::Result<OwnedFd> {
    let mut attributes = ProgLoad {
        prog_type: kind,
        insn_cnt: u32::try_from(program.len()).unwrap_or(u32::MAX),
        insns: program.as_ptr(),
        license: c"".as_ptr(),
    };
    // SAFETY: the attributes are as long as stated; `insns` points to that many instructions, `license` to a C string,
    // and the kernel only reads them.
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
    // SAFETY: callers pass what a command just returned, which nobody else knows.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
