//! The system calls that each thread may make.
//!
//! A call that is in no list of the thread fails with EPERM: a C library that is newer than the
//! list may try one and do without. What only an intruder asks for ends the process ([`INTRUDER`]).

use libc::c_long;

use crate::Role;
pub use crate::only::Only;

/// A system call, and with which arguments.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name in libc, with `SYS_` in front.
    symbol: &'static str,
    /// On this machine.
    pub number: c_long,
    /// With which arguments it is allowed.
    pub only: Only,
}

impl Call {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.symbol.trim_start_matches("SYS_")
    }
}

macro_rules! calls {
    ($($name:ident $(: $only:ident)?),* $(,)?) => {
        &[$(Call { symbol: stringify!($name), number: libc::$name, only: calls!(@only $($only)?) }),*]
    };
    (@only) => { Only::Any };
    (@only $only:ident) => { Only::$only };
}

/// Memory, waiting, descriptors that are open, and the end of a thread: what every thread does.
const EVERY_THREAD: &[Call] = calls![
    SYS_brk,
    SYS_clock_gettime,
    SYS_close,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_exit,
    SYS_futex,
    SYS_madvise,
    SYS_mmap: Data,
    SYS_mprotect: Data,
    SYS_mremap,
    SYS_munmap,
    SYS_read,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    // The C library's allocator, for the number of CPUs.
    SYS_sched_getaffinity,
    SYS_sched_yield,
    SYS_sigaltstack,
    SYS_write,
    SYS_writev,
];

/// Shards, and the thread for sparse flows. The file that is read at an offset tells how busy the
/// CPUs are, or how long the thread has waited for one. The vDSO has no getcpu(2) on every machine.
const PACKETS: &[Call] = calls![
    SYS_getcpu,
    SYS_pread64,
    SYS_recvmmsg,
    SYS_sched_setaffinity: Itself,
    SYS_sendmmsg,
];

/// Handshakes, timers, configuration; word of changes to links and routes. The files that are read at
/// an offset are the hardware's clock, and what tells how much memory there is.
const CONTROL: &[Call] = calls![
    SYS_clock_nanosleep,
    SYS_epoll_create1,
    SYS_getpriority,
    SYS_getrandom,
    SYS_getsockopt,
    SYS_gettid,
    SYS_ioctl: Named,
    SYS_ppoll,
    SYS_pread64,
    SYS_prlimit64: Reading,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_restart_syscall,
    SYS_sendmmsg,
    SYS_sendto,
    SYS_timerfd_create,
    SYS_timerfd_settime,
];

/// Clients of the control sockets and of the status sockets, the thread that tells them of events,
/// and the one that talks to the process which looks names up. The files whose status it reads are those of the sockets: it notices when they go.
const SOCKETS: &[Call] = calls![
    SYS_accept4,
    SYS_clock_nanosleep,
    SYS_geteuid,
    SYS_getpid,
    SYS_getrandom,
    SYS_getsockopt,
    SYS_inotify_rm_watch,
    SYS_newfstatat,
    SYS_ppoll,
    SYS_prlimit64: Reading,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_restart_syscall,
    SYS_sendmmsg,
    // Towards the resolver.
    SYS_sendmsg,
    SYS_sendto,
    SYS_statx,
];

/// What the whole process keeps, beyond what its threads need all the time: to add and to end interfaces,
/// to hand them over, for signals, and for its end.
const MAIN: &[Call] = calls![
    SYS_clone: Threads,
    // Refused with ENOSYS, so that libraries use clone(2), whose flags a filter can see.
    SYS_clone3,
    SYS_dup3,
    SYS_eventfd2,
    SYS_exit_group,
    SYS_fcntl,
    SYS_fstat,
    SYS_inotify_init1,
    SYS_ioctl: Attached,
    SYS_listen,
    SYS_membarrier,
    // Of a hand-over: a process that was told to go on, and does not say that it does, is killed.
    SYS_pidfd_send_signal: Killing,
    SYS_prctl: Names,
    SYS_recvmsg,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_seccomp,
    SYS_set_robust_list,
    SYS_setsockopt: Timeouts,
    // Which offloads the kernel has without a fault.
    SYS_uname,
    SYS_wait4,
    SYS_waitid,
];

/// Does what takes a capability: sockets, TUN devices, BPF programs and netlink, in other network
/// namespaces on threads that end with it. Has the files: it binds UNIX sockets, and connects to
/// those that stand in its way.
const HELPER: &[Call] = calls![
    SYS_bind,
    SYS_bpf,
    SYS_capget,
    SYS_clone: Threads,
    SYS_clone3,
    SYS_connect,
    SYS_exit_group,
    SYS_fchmod: Mode,
    SYS_fcntl,
    SYS_flock,
    SYS_fstat,
    SYS_getcwd,
    SYS_getdents64,
    SYS_geteuid,
    SYS_getrandom,
    SYS_getppid,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_gettid,
    SYS_inotify_add_watch,
    SYS_ioctl: Devices,
    SYS_lseek,
    SYS_mkdirat,
    SYS_newfstatat,
    SYS_openat,
    SYS_pidfd_open,
    SYS_prctl: Names,
    SYS_readlinkat,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_restart_syscall,
    SYS_rseq,
    // Of the C library, with the first thread.
    SYS_rt_sigaction,
    SYS_sendmmsg,
    SYS_sendto,
    SYS_set_robust_list,
    SYS_setns: Networks,
    SYS_setpriority,
    SYS_setsockopt,
    SYS_socket: Families,
    SYS_statx,
    // Which offloads the kernel has without a fault.
    SYS_uname,
    SYS_unlinkat,
];

/// Makes sockets for another process, whose requests and replies are messages of a UNIX socket.
const NAMESPACE: &[Call] = calls![
    SYS_exit_group,
    SYS_recvfrom,
    SYS_restart_syscall,
    SYS_sendmsg,
    SYS_socket: Internet,
];

/// To give a file to this group; the helper has it where there is one.
pub(crate) fn to_group(group: u32) -> Call {
    Call {
        symbol: "SYS_fchownat",
        number: libc::SYS_fchownat,
        only: Only::ToGroup(group),
    }
}

/// Their older forms.
#[cfg(target_arch = "x86_64")]
const HELPER_OLDER: &[Call] = calls![SYS_open, SYS_readlink];
#[cfg(not(target_arch = "x86_64"))]
const HELPER_OLDER: &[Call] = &[];

/// Looks names up, with all that a C library and the modules of nsswitch.conf(5) do for it: files
/// that are read, libraries that are loaded, sockets towards DNS and local services.
const RESOLVER: &[Call] = calls![
    SYS_bind,
    SYS_clock_nanosleep,
    SYS_connect,
    SYS_exit_group,
    SYS_fcntl,
    SYS_fstat,
    SYS_fstatfs,
    SYS_getdents64,
    SYS_getegid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getpeername,
    SYS_getpid,
    SYS_getrandom,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_gettid,
    SYS_gettimeofday,
    SYS_getuid,
    SYS_ioctl: Waiting,
    SYS_lseek,
    SYS_mmap: Libraries,
    SYS_newfstatat,
    SYS_openat: Read,
    SYS_ppoll,
    SYS_prctl: Names,
    SYS_pread64,
    SYS_prlimit64: Reading,
    SYS_readlinkat,
    SYS_readv,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_restart_syscall,
    SYS_sendmmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_socket: Families,
    SYS_statx,
    SYS_sysinfo,
    SYS_uname,
];

/// Their older forms.
#[cfg(target_arch = "x86_64")]
const RESOLVER_OLDER: &[Call] = calls![
    SYS_access,
    SYS_lstat,
    SYS_open: ReadOlder,
    SYS_poll,
    SYS_readlink,
    SYS_stat,
];
#[cfg(not(target_arch = "x86_64"))]
const RESOLVER_OLDER: &[Call] = &[];

/// The clients of a proxy, and its tunnel: TCP and UDP sockets of any kind and to anywhere, as they ask
/// for; threads, which have the same limits; the ends of pairs and pipes; and a TUN device that is open, for the
/// kernel's stack.
const PROXY: &[Call] = calls![
    SYS_accept4,
    SYS_bind,
    SYS_clock_nanosleep,
    SYS_clone: Threads,
    SYS_clone3,
    SYS_connect,
    SYS_epoll_create1,
    SYS_eventfd2,
    SYS_fcntl,
    SYS_getcpu,
    SYS_getpeername,
    SYS_getpid,
    SYS_getpriority,
    SYS_getrandom,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_gettid,
    SYS_ioctl: Attached,
    SYS_listen,
    SYS_pipe2,
    SYS_ppoll,
    SYS_prctl: Names,
    SYS_prlimit64: Reading,
    SYS_readv,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_recvmsg,
    SYS_restart_syscall,
    SYS_rseq,
    SYS_sched_setaffinity: Itself,
    SYS_sendmmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_set_robust_list,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_socket: Internet,
    SYS_socketpair,
    SYS_splice,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    // Which offloads the kernel has without a fault.
    SYS_uname,
    // The end of the process that makes sockets for the kernel's stack.
    SYS_wait4,
    SYS_waitid,
];

/// What the main thread of a proxy has besides: the files of its sockets, to watch and to remove.
const PROXY_FILES: &[Call] = calls![
    SYS_flock,
    SYS_inotify_add_watch,
    SYS_openat: Read,
    SYS_unlinkat,
];

/// Their older forms.
#[cfg(target_arch = "x86_64")]
const PROXY_FILES_OLDER: &[Call] = calls![SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const PROXY_FILES_OLDER: &[Call] = &[];

/// Reads the files of a source as they change, writes its own, and asks the control socket of an interface.
const AGENT: &[Call] = calls![
    SYS_clock_nanosleep,
    SYS_clone: Threads,
    SYS_clone3,
    SYS_connect,
    SYS_exit_group,
    SYS_fchmod: GroupReads,
    SYS_fchown: SameOwner,
    SYS_fcntl,
    SYS_fstat,
    SYS_getdents64,
    SYS_geteuid,
    SYS_getpid,
    SYS_getrandom,
    SYS_getsockopt,
    SYS_gettid,
    SYS_ioctl: Waiting,
    SYS_lseek,
    SYS_newfstatat,
    SYS_openat,
    SYS_ppoll,
    SYS_prctl: Names,
    SYS_prlimit64: Reading,
    SYS_recvfrom,
    SYS_restart_syscall,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_sendto,
    SYS_set_robust_list,
    SYS_setsockopt,
    SYS_socket: Unix,
    SYS_statx,
    SYS_unlinkat,
];

/// Their older forms.
#[cfg(target_arch = "x86_64")]
const AGENT_OLDER: &[Call] = calls![SYS_open, SYS_poll, SYS_rename, SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const AGENT_OLDER: &[Call] = &[];

/// Sends requests to the packet filter, as another process asks over pipes.
const RULES: &[Call] = calls![
    SYS_bind,
    SYS_connect,
    SYS_exit_group,
    SYS_ioctl: Index,
    SYS_ppoll,
    SYS_recvfrom,
    SYS_restart_syscall,
    SYS_sendto,
    SYS_setsockopt,
    SYS_socket: Netfilter,
];

/// Their older forms.
#[cfg(target_arch = "x86_64")]
const RULES_OLDER: &[Call] = calls![SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const RULES_OLDER: &[Call] = &[];

/// libc has no name for it on some machines that have the call.
const RENAMEAT: &[Call] = &[Call {
    symbol: "SYS_renameat",
    #[cfg(target_arch = "x86_64")]
    number: libc::SYS_renameat,
    // As of the kernel's asm-generic/unistd.h.
    #[cfg(not(target_arch = "x86_64"))]
    number: 38,
    only: Only::Any,
}];

/// The older forms, which some libraries use where the machine has them.
#[cfg(target_arch = "x86_64")]
const OLDER_FORMS: &[Call] = calls![SYS_dup2, SYS_epoll_wait, SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_FORMS: &[Call] = &[];

/// Calls that no thread ever makes, and no library on its own: a try ends the process. The kernel logs
/// it, and its supervisor starts the process again.
pub const INTRUDER: &[Call] = calls![
    SYS_add_key,
    SYS_chroot,
    SYS_delete_module,
    SYS_execve,
    SYS_execveat,
    SYS_finit_module,
    SYS_init_module,
    SYS_io_uring_setup,
    SYS_kexec_load,
    SYS_keyctl,
    SYS_mount,
    SYS_perf_event_open,
    SYS_pidfd_getfd,
    SYS_pivot_root,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_ptrace,
    SYS_reboot,
    SYS_umount2,
    SYS_unshare,
    SYS_userfaultfd,
];

/// Calls that a debug build makes besides, at the end of each descriptor.
pub(crate) const ASSERTIONS: &[Call] = calls![SYS_fcntl: IsOpen];

/// Calls that libraries try and do without: the allocator looks at a sysctl, a panic tells the number of its
/// thread, and a backtrace looks at the program.
pub(crate) const TRIED: &[Call] = calls![SYS_getcwd, SYS_gettid, SYS_openat, SYS_readlinkat];
#[cfg(target_arch = "x86_64")]
pub(crate) const TRIED_OLDER: &[Call] = calls![SYS_open, SYS_readlink];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const TRIED_OLDER: &[Call] = &[];

/// Calls of a thread that has failed, in abort(3) or in the handler of a fault, which sets the
/// default action and lets the fault come again: it would fault for ever. Without exit_group(2), the
/// C library would end the thread alone. So they end the process.
pub(crate) const FAILING: &[Call] = calls![SYS_exit_group, SYS_rt_sigaction, SYS_tgkill, SYS_tkill];

/// All that a thread of this role may call.
pub fn of(role: Role) -> Vec<Call> {
    let lists: &[&[Call]] = match role {
        Role::Packets => &[EVERY_THREAD, PACKETS],
        Role::Control => &[EVERY_THREAD, CONTROL],
        Role::Sockets => &[EVERY_THREAD, SOCKETS],
        // The first to name a call says with which arguments.
        Role::Main => &[MAIN, OLDER_FORMS, EVERY_THREAD, PACKETS, CONTROL, SOCKETS],
        Role::Resolver => &[RESOLVER, RESOLVER_OLDER, EVERY_THREAD],
        Role::Helper => &[HELPER, HELPER_OLDER, RENAMEAT, EVERY_THREAD],
        Role::Proxy => &[PROXY, OLDER_FORMS, EVERY_THREAD],
        Role::ProxyMain => &[
            PROXY,
            PROXY_FILES,
            PROXY_FILES_OLDER,
            MAIN,
            OLDER_FORMS,
            EVERY_THREAD,
            PACKETS,
            CONTROL,
            SOCKETS,
        ],
        Role::Namespace => &[NAMESPACE, EVERY_THREAD],
        Role::Agent => &[AGENT, AGENT_OLDER, RENAMEAT, EVERY_THREAD],
        Role::Rules => &[RULES, RULES_OLDER, EVERY_THREAD],
    };
    let mut calls = lists.concat();
    calls.sort_by_key(|call| call.number);
    calls.dedup_by_key(|call| call.number);
    calls
}
