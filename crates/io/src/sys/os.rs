//! ioctls, socket options and namespaces.

#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use adit_proto::wire::{self, DataHeader};

use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use rustix::process::Pid;

/// `struct ifreq`: a name of 16 bytes and a union that is 24 bytes long on 64-bit machines.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct IfReq {
    name: [u8; 16],
    data: [u8; 24],
}

impl IfReq {
    /// A request about `name`, which is at most 15 bytes long.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let bytes = name.as_bytes();
        if bytes.len() > 15 || bytes.contains(&0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} is no interface name: at most 15 bytes"),
            ));
        }
        let mut request = Self {
            name: [0; 16],
            data: [0; 24],
        };
        request.name[..bytes.len()].copy_from_slice(bytes);
        Ok(request)
    }

    pub(crate) fn name(&self) -> String {
        let len = self.name.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&self.name[..len.unwrap_or(16)]).into_owned()
    }

    pub(crate) fn flags(&self) -> i16 {
        i16::from_ne_bytes([self.data[0], self.data[1]])
    }

    pub(crate) fn set_flags(&mut self, flags: u16) {
        self.data[..2].copy_from_slice(&flags.to_ne_bytes());
    }
}

/// An ioctl that reads or writes a `struct ifreq` without following pointers in it.
pub(crate) fn ioctl_ifreq(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    ifreq: &mut IfReq,
) -> io::Result<()> {
    // SAFETY: callers pass TUNSETIFF or TUNGETIFF, which
    // access one ifreq, exclusively borrowed here and as large as the kernel's.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut *ifreq) }).map(drop)
}

/// An ioctl whose argument is an integer.
pub(crate) fn ioctl_value(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    value: libc::c_ulong,
) -> io::Result<()> {
    // SAFETY: callers pass TUNSETOFFLOAD, which takes its argument by value and touches no memory
    // of ours.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, value) }).map(drop)
}

/// Has a TUN device stay when its last descriptor is closed.
#[cfg(test)]
pub(crate) fn persist(tun: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST takes its argument by value and touches no memory of ours.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETPERSIST, 1_u64) }).map(drop)
}

/// An ioctl that reads one `int`.
pub(crate) fn ioctl_int(fd: BorrowedFd<'_>, request: libc::Ioctl, value: i32) -> io::Result<()> {
    // SAFETY: callers pass TUNSETVNETHDRSZ, TUNSETFILTEREBPF or TUNSETSTEERINGEBPF, which read one
    // int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw const value) }).map(drop)
}

/// The network namespace that a TUN device is in.
pub(crate) fn tun_netns(tun: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: TUNGETDEVNETNS has no argument and returns a new descriptor.
    let fd = check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNGETDEVNETNS) })?;
    // SAFETY: the kernel just made `fd` for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The file that a UNIX socket is bound to, wherever it was moved since; it takes CAP_NET_ADMIN.
pub(crate) fn file_of_socket(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// The number in the kernel's linux/un.h.
    const SIOCUNIXFILE: libc::Ioctl = 0x89e0;
    // Others have another request of this number.
    if sockopt::socket_domain(socket)? != AddressFamily::UNIX {
        return Err(Errno::INVAL.into());
    }
    // SAFETY: SIOCUNIXFILE of a UNIX socket reads no argument, and returns a new descriptor.
    let fd = check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE) })?;
    // SAFETY: the kernel just made `fd` for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is an `int`.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    // SAFETY: the kernel reads an int, whose length is stated.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            INT_LEN,
        )
    })
    .map(drop)
}

/// Reads a socket option whose value is an `int`.
pub(crate) fn option(socket: BorrowedFd<'_>, level: i32, option: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut len = INT_LEN;
    // SAFETY: the kernel writes at most the stated length, that of an int, to `value`, and the
    // length to `len`.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

const INT_LEN: libc::socklen_t = 4;
/// The number in the kernel's asm-generic/socket.h.
const SO_NETNS_COOKIE: libc::c_int = 71;
const SO_PEERPIDFD: libc::c_int = 77;

/// The process at the other end of a UNIX socket, as the kernel knows it: its number, which is 0
/// where this process does not see it, and its user.
///
/// # Errors
///
/// The socket is not a connected one.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    socket_option(socket, libc::SO_PEERCRED, &mut peer)?;
    Ok((peer.pid, peer.uid))
}

/// A handle of the process at the other end of a UNIX socket. It is of that process whatever has
/// become of its number (Linux 6.5).
///
/// # Errors
///
/// The kernel is older, or the process has ended and was waited for.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    socket_option(socket, SO_PEERPIDFD, &mut fd)?;
    // SAFETY: the kernel just made `fd` for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A number of the network namespace that a socket was made in (Linux 5.14).
///
/// # Errors
///
/// The kernel is older.
pub fn namespace_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    socket_option(socket, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(cookie)
}

/// Reads an option of SOL_SOCKET.
fn socket_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let mut len = size;
    // SAFETY: the kernel writes at most the stated length, that of `T`, to `value`, and the length to
    // `len`. `T` is an integer or a `ucred`, which any bytes make one of.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut *value).cast(),
            &raw mut len,
        )
    })?;
    match len == size {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Of a `sock_fprog`: a number and a pointer.
const FPROG_LEN: libc::socklen_t = 2 * (usize::BITS / 8);
// linux/bpf_common.h: `BPF_LD | BPF_B | BPF_ABS`, `BPF_JMP | BPF_JA`, `BPF_JMP | BPF_JEQ | BPF_K`,
// `BPF_ALU | BPF_MOD | BPF_K`, `BPF_RET | BPF_A` and `BPF_RET | BPF_K`
const BPF_LOAD_BYTE: u16 = 0x30;
const BPF_JUMP: u16 = 0x05;
const BPF_JUMP_EQUAL: u16 = 0x15;
const BPF_MODULO: u16 = 0x94;
const BPF_RETURN: u16 = 0x16;
const BPF_RETURN_NUMBER: u16 = 0x06;

/// Datagrams that the program looks at. The kernel merges up to 64, but no sender has more than a few
/// handshake messages before data, and before Linux 6.7 a program may take 20 KB
/// (net.core.optmem_max) once the kernel has translated it: about 33 steps of 8 bytes a datagram.
const MOST_MERGED: usize = 16;

/// Spreads what arrives for a group of sockets that share a port (SO_REUSEPORT) over the `count`
/// that were bound first. `socket` is any of the group.
///
/// Data goes where the last byte of its receiver index says, anything else to the first. So do
/// datagrams that the kernel merged, all of them where the first data among them goes: data behind a
/// handshake message must not be overtaken by data that is alone. A socket that was bound later may
/// be closed at any time: the kernel then moves the last one to its place.
pub(crate) fn steer(socket: BorrowedFd<'_>, count: u32) -> io::Result<()> {
    let mut program = steering(count);
    let filter = libc::sock_fprog {
        len: libc::c_ushort::try_from(program.len()).unwrap_or(0),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel reads a sock_fprog, whose length is stated, and the instructions that it
    // points to, whose number is stated, too; all live until the call returns.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            FPROG_LEN,
        )
    })
    .map(drop)
}

/// The program of [`steer`]. It sees the payload, and returns 0 where that is too short for it.
fn steering(count: u32) -> Vec<libc::sock_filter> {
    let statement = |code, k: usize| libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k: u32::try_from(k).unwrap_or(u32::MAX),
    };
    // A datagram that begins there, if it is data, decides.
    let datagram = |at: usize| {
        [
            statement(BPF_LOAD_BYTE, at),
            libc::sock_filter {
                jf: 3,
                ..statement(BPF_JUMP_EQUAL, DataHeader::TYPE.into())
            },
            statement(BPF_LOAD_BYTE, at + DataHeader::RX_QUEUE_AT),
            statement(BPF_MODULO, count.max(1) as usize),
            statement(BPF_RETURN, 0),
        ]
    };
    let mut program = datagram(0).to_vec();
    // All that are merged, but the last, are as long as the first.
    for (kind, len) in wire::HANDSHAKE_LENGTHS {
        let further: Vec<_> = (1..MOST_MERGED).flat_map(|n| datagram(n * len)).collect();
        program.extend([
            statement(BPF_LOAD_BYTE, 0),
            // A jump by more than 255 has no condition.
            libc::sock_filter {
                jt: 1,
                ..statement(BPF_JUMP_EQUAL, kind.into())
            },
            statement(BPF_JUMP, further.len()),
        ]);
        program.extend(further);
    }
    program.push(statement(BPF_RETURN_NUMBER, 0));
    program
}

/// Sets the mark of what a socket sends. Needs CAP_NET_ADMIN.
pub(crate) fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    let value = i32::from_ne_bytes(mark.to_ne_bytes());
    set_option(socket, libc::SOL_SOCKET, libc::SO_MARK, value)
        .map_err(|error| io::Error::new(error.kind(), format!("setting fwmark {mark:#x}: {error}")))
}

/// Closes the descriptors that this process inherited, except the standard streams and `except`:
/// another process may wait for the end of a pipe or a lock. Descriptors that this process opened
/// itself have FD_CLOEXEC, which tells the two apart.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn close_inherited(except: &[i32]) -> io::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for fd in open.collect::<Vec<i32>>() {
        // SAFETY: a number and a flag: no memory is read or written.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if fd > 2 && flags >= 0 && flags & libc::FD_CLOEXEC == 0 && !except.contains(&fd) {
            // SAFETY: without FD_CLOEXEC it came through execve(2), so that nothing in this process
            // owns it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Ok(())
}

/// Has large buffers mapped, each apart: their pages cost nothing before they are used, and go back
/// to the kernel when the buffer is freed. glibc alone does this only until one has been freed.
pub fn map_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: two numbers: no memory is read or written.
    unsafe {
        // Trains, of half this size, would all begin at the same place of a page.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Gives the memory that this process has freed back to the kernel. glibc alone keeps it, for each
/// thread that freed some.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a number. What it gives back is memory that nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Duplicates the open descriptor `number`. The number alone does not say which other code uses it,
/// so taking it over would not be safe. It does not use pidfd_getfd(2), which needs Linux 5.6 and
/// which containers refuse.
///
/// # Errors
///
/// No descriptor with this number is open, or there may be no further ones.
pub fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only: no memory is read or written, and the descriptor stays as it is.
    let fd = check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the kernel just made `fd` for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The CPU time of a thread of this process.
///
/// # Errors
///
/// It has ended.
pub fn thread_time(thread: Pid) -> io::Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Its clock, as of the kernel's linux/posix-timers.h: CPUCLOCK_PERTHREAD, CPUCLOCK_SCHED.
    let clock = (!thread.as_raw_pid() << 3) | 6;
    // SAFETY: the kernel writes a timespec, and refuses a clock of a thread that has ended.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Ok(Duration::new(seconds, nanoseconds))
}

pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// The running kernel's version.
pub(crate) fn kernel_release() -> (u32, u32, u32) {
    parse_release(&rustix::system::uname().release().to_string_lossy())
}

/// The first three numbers of a release string; what is missing is 0.
pub(crate) fn parse_release(release: &str) -> (u32, u32, u32) {
    let mut parts = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    (part(), part(), part())
}

/// Where a socket is bound; one that only sends has an IPv4 address where others do.
pub(crate) fn local_addr(fd: impl AsFd) -> io::Result<SocketAddr> {
    let addr = SocketAddr::try_from(rustix::net::getsockname(fd)?)?;
    Ok(match addr.ip().to_canonical() {
        v4 @ IpAddr::V4(_) => SocketAddr::new(v4, addr.port()),
        IpAddr::V6(_) => addr,
    })
}

/// Lets `bytes` wait to be received. Best effort: beyond the system's limit with CAP_NET_ADMIN,
/// else up to it.
pub(crate) fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    let _ = sockopt::set_socket_recv_buffer_size_force(fd, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, bytes));
}

/// Lets `bytes` wait to be sent, as [`set_receive_buffer`] does for what arrives.
pub(crate) fn set_send_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    let _ = sockopt::set_socket_send_buffer_size_force(fd, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(fd, bytes));
}
