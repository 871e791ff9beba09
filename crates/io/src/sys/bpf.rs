//! A BPF program that notes where and when packets pass.
//!
//! Sockets have SO_INCOMING_CPU for that, which the kernel keeps for connected ones only, and TUN devices nothing.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use adit_proto::Time;
use rustix::thread::{CapabilitySet, capabilities};

use super::os;
use crate::Origin;

// linux/bpf.h
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;

/// Where the last packet came to a TUN queue from the kernel, or to a socket from the network.
///
/// An array map with one value; the program that writes it lives as long as what it is attached to.
#[derive(Debug)]
pub(crate) struct LastOrigin(OwnedFd);

impl LastOrigin {
    /// Of a device with one queue; with several, they would share the value.
    ///
    /// Needs Linux 5.8 and CAP_BPF, as does [`Self::of_socket`].
    pub(crate) fn of_tun(tun: BorrowedFd<'_>) -> io::Result<Self> {
        let (map, program) = load()?;
        os::ioctl_int(tun, libc::TUNSETFILTEREBPF, program.as_raw_fd())?;
        Ok(Self(map))
    }

    pub(crate) fn of_socket(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let (map, program) = load()?;
        let program = program.as_raw_fd();
        os::set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program)?;
        Ok(Self(map))
    }

    /// CPU 0 at the beginning of time if no packet came yet.
    pub(crate) fn get(&self) -> io::Result<Origin> {
        let (key, mut value) = (0_u32, [0_u64; 2]);
        let mut attributes = MapLookup {
            map_fd: u32::try_from(self.0.as_raw_fd()).unwrap_or(u32::MAX),
            unused: 0,
            key: &raw const key,
            value: &raw mut value,
            flags: 0,
        };
        // SAFETY: the attributes are as long as stated; the kernel reads a key of 4 bytes and writes a value of 16, as
        // `load` made the map.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes) }?;
        let [cpu, nanos] = value;
        Ok(Origin {
            cpu: usize::try_from(cpu).unwrap_or(usize::MAX),
            at: Time::default() + Duration::from_nanos(nanos),
        })
    }
}

/// The map, and the program that writes to it.
fn load() -> io::Result<(OwnedFd, OwnedFd)> {
    // Asked for first: a sandbox may end a process that makes a system call which it is not meant to need.
    if !capabilities(None)?.effective.contains(CapabilitySet::BPF) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut attributes = MapCreate {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: 16,
        max_entries: 1,
    };
    // SAFETY: the attributes are as long as stated and hold no pointers.
    let map = owned(unsafe { bpf(BPF_MAP_CREATE, &mut attributes) }?);
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
    Ok((map, program))
}

/// Instructions of the program.
const PROGRAM_LEN: u32 = 9;

/// The program: stores the number of the CPU and the time as the map's value, and lets the packet pass.
fn program(map: RawFd) -> [Instruction; PROGRAM_LEN as usize] {
    let instruction = |code, registers, off, imm| Instruction {
        code,
        registers,
        off,
        imm,
    };
    [
        // r6 = bpf_ktime_get_boot_ns()
        instruction(0x85, 0, 0, 125),
        instruction(0xbf, 0x06, 0, 0),
        // r0 = bpf_get_smp_processor_id()
        instruction(0x85, 0, 0, 8),
        // r1 = address of the map's value, in two instructions
        instruction(0x18, 0x21, 0, map),
        instruction(0, 0, 0, 0),
        // r1[0] = r0, r1[1] = r6
        instruction(0x7b, 0x01, 0, 0),
        instruction(0x7b, 0x61, 8, 0),
        // return the length to keep: all of it
        instruction(0xb7, 0, 0, -1),
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
}

/// `union bpf_attr` of BPF_PROG_LOAD, on 64-bit machines like the next
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: *const Instruction,
    license: *const libc::c_char,
}

/// `union bpf_attr` of BPF_MAP_LOOKUP_ELEM
#[repr(C)]
struct MapLookup {
    map_fd: u32,
    unused: u32,
    key: *const u32,
    value: *mut [u64; 2],
    flags: u64,
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
