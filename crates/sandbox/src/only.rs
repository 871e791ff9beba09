//! The arguments with which system calls are allowed, and the rules of seccomp that they become.

use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, SeccompCondition, SeccompRule};

/// With which arguments a system call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// Any.
    Any,
    /// For memory that cannot be executed: mmap(2), mprotect(2).
    Data,
    /// For the calling thread: sched_setaffinity(2).
    Itself,
    /// To read a limit of this process: prlimit64(2).
    Reading,
    /// For a thread of this process, in its namespaces: clone(2).
    Threads,
    /// UNIX, IPv4, IPv6 and netlink: socket(2).
    Families,
    /// IPv4 and IPv6: socket(2).
    Internet,
    /// UNIX: socket(2).
    Unix,
    /// The packet filter's netlink: socket(2).
    Netfilter,
    /// How long a call may wait: setsockopt(2).
    Timeouts,
    /// Network namespaces: setns(2).
    Networks,
    /// To end a process: pidfd_send_signal(2).
    Killing,
    /// To see that a descriptor is open: fcntl(2).
    IsOpen,
    /// Names of threads and of memory, and giving up rights: prctl(2).
    Names,
    /// For data, or for a file that is to be executed, as a library is: mmap(2).
    Libraries,
    /// To read: openat(2).
    Read,
    /// To read: open(2).
    ReadOlder,
    /// For what waits in a socket, and whether it blocks: ioctl(2).
    Waiting,
    /// About TUN devices and files of sockets, and what [`Self::Waiting`] has: ioctl(2). Never about
    /// terminals.
    Devices,
    /// About queues of TUN devices that are open, and what [`Self::Waiting`] has: ioctl(2).
    Attached,
    /// For the name of a TUN device: ioctl(2).
    Named,
    /// For the index of an interface: ioctl(2).
    Index,
    /// To leave a file to its owner, or to its owner and group: fchmod(2).
    Mode,
    /// To let a file's group read it: fchmod(2).
    GroupReads,
    /// To leave a file with its owner and give it to a group: fchown(2).
    SameOwner,
    /// To leave a file with its owner and give it to this group: fchownat(2).
    ToGroup(u32),
}

/// Flags of clone(2): what makes a thread, and what it must not be besides.
const THREAD: u64 = flags(
    libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD,
);
const ELSEWHERE: u64 = flags(
    libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWUTS
        | libc::CLONE_PTRACE,
);

/// `FIONREAD`, `FIONBIO`, as of the kernel's asm-generic/ioctls.h; libc's types of them differ.
const WAITING: [u64; 2] = [0x541b, 0x5421];

/// Numbers of the kernel's linux/if_tun.h.
const TUNGETIFF: u64 = 0x8004_54d2;

/// [`TUNGETIFF`], `TUNSETVNETHDRSZ` and `TUNSETOFFLOAD`.
const ATTACHED: [u64; 3] = [TUNGETIFF, 0x4004_54d8, 0x4004_54d0];

/// `TUNSETIFF`, `TUNGETDEVNETNS`, `TUNSETSTEERINGEBPF` and `TUNSETFILTEREBPF`; and the file of a UNIX
/// socket, `SIOCUNIXFILE`, as of linux/un.h.
const OF_HELPER: [u64; 5] = [0x4004_54ca, 0x54e3, 0x8004_54e0, 0x8004_54e1, 0x89e0];

/// `SO_RCVTIMEO` and `SO_SNDTIMEO`, in both forms of asm-generic/socket.h.
const TIMEOUTS: [u64; 4] = [20, 21, 66, 67];

/// As of linux/sockios.h.
const SIOCGIFINDEX: u64 = 0x8933;

/// Modes of sockets.
const MODES: [u64; 2] = [0o600, 0o660];

const fn flags(flags: libc::c_int) -> u64 {
    flags.cast_unsigned() as u64
}

impl Only {
    /// One of these has to hold; none if any arguments will do.
    pub(crate) fn rules(self) -> Result<Vec<SeccompRule>, BackendError> {
        let int = |value: libc::c_int| flags(value);
        // Of a file that is opened.
        let writing = int(libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC);
        let allowed = match self {
            Self::Any => return Ok(Vec::new()),
            Self::Data => vec![(2, Qword, MaskedEq(int(libc::PROT_EXEC)), 0)],
            Self::Itself => vec![(0, Dword, Eq, 0)],
            Self::Reading => vec![(2, Qword, Eq, 0)],
            Self::Threads => vec![(0, Qword, MaskedEq(THREAD | ELSEWHERE), THREAD)],
            Self::Families => {
                let families = [
                    libc::AF_UNIX,
                    libc::AF_INET,
                    libc::AF_INET6,
                    libc::AF_NETLINK,
                ];
                families.map(|family| (0, Dword, Eq, int(family))).to_vec()
            }
            Self::Internet => {
                let families = [libc::AF_INET, libc::AF_INET6];
                families.map(|family| (0, Dword, Eq, int(family))).to_vec()
            }
            Self::Unix => vec![(0, Dword, Eq, int(libc::AF_UNIX))],
            Self::Netfilter => {
                let is = |argument, value| SeccompCondition::new(argument, Dword, Eq, int(value));
                return Ok(vec![SeccompRule::new(vec![
                    is(0, libc::AF_NETLINK)?,
                    is(2, libc::NETLINK_NETFILTER)?,
                ])?]);
            }
            Self::Timeouts => {
                let is = |argument, value| SeccompCondition::new(argument, Dword, Eq, value);
                let rule =
                    |option| SeccompRule::new(vec![is(1, int(libc::SOL_SOCKET))?, is(2, option)?]);
                return TIMEOUTS.into_iter().map(rule).collect();
            }
            Self::IsOpen => vec![(1, Dword, Eq, int(libc::F_GETFD))],
            Self::Killing => vec![(1, Dword, Eq, int(libc::SIGKILL))],
            Self::Networks => vec![(1, Dword, Eq, int(libc::CLONE_NEWNET))],
            Self::Names => {
                // The memory of an allocator has a name, too.
                const PR_SET_VMA: libc::c_int = 0x5356_4d41;
                let options = [libc::PR_SET_NAME, libc::PR_SET_NO_NEW_PRIVS, PR_SET_VMA];
                options.map(|option| (0, Dword, Eq, int(option))).to_vec()
            }
            Self::Libraries => vec![
                (2, Qword, MaskedEq(int(libc::PROT_EXEC)), 0),
                (3, Dword, MaskedEq(int(libc::MAP_ANONYMOUS)), 0),
            ],
            Self::Read => vec![(2, Dword, MaskedEq(writing), int(libc::O_RDONLY))],
            Self::ReadOlder => vec![(1, Dword, MaskedEq(writing), int(libc::O_RDONLY))],
            Self::Waiting => WAITING.map(|of| (1, Dword, Eq, of)).to_vec(),
            Self::Index => vec![(1, Dword, Eq, SIOCGIFINDEX)],
            Self::Named => vec![(1, Dword, Eq, TUNGETIFF)],
            Self::Devices | Self::Attached => {
                let more: &[u64] = match self {
                    Self::Devices => &OF_HELPER,
                    _ => &[],
                };
                let all = ATTACHED.iter().chain(&WAITING).chain(more);
                all.map(|of| (1, Dword, Eq, *of)).collect()
            }
            Self::Mode => MODES.map(|mode| (1, Dword, Eq, mode)).to_vec(),
            Self::GroupReads => vec![(1, Dword, Eq, 0o640)],
            Self::SameOwner => {
                let of =
                    |argument, how| SeccompCondition::new(argument, Dword, how, u32::MAX.into());
                return Ok(vec![SeccompRule::new(vec![of(1, Eq)?, of(2, Ne)?])?]);
            }
            Self::ToGroup(group) => {
                let to = |argument, id: u32| SeccompCondition::new(argument, Dword, Eq, id.into());
                // -1 leaves the owner.
                return Ok(vec![SeccompRule::new(vec![
                    to(2, u32::MAX)?,
                    to(3, group)?,
                ])?]);
            }
        };
        let rule = |(argument, len, operator, value)| {
            SeccompCondition::new(argument, len, operator, value)
                .and_then(|condition| SeccompRule::new(vec![condition]))
        };
        allowed.into_iter().map(rule).collect()
    }
}
