//! BPF programs: one that notes where and when packets leave a TUN device, and the parts that every
//! program needs to get into the kernel.
//!
//! Sockets have SO_INCOMING_CPU for that, which the kernel updates for connected ones only, and TUN
//! devices have nothing.

#![allow(unsafe_code)]

pub(crate) mod instructions;

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
use instructions::{GET_SMP_PROCESSOR_ID, Instruction, KTIME_GET_BOOT_NS, R0, R1, R6, offset};

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
    /// The numbers of a map that some process handed over.
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
