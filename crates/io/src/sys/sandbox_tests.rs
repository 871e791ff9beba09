//! What is left to a thread that has been taken over: code that makes any system call it likes, in
//! a thread of each role, in a process with the sandbox that `adit` begins.
//!
//! Such a process is this test program, started anew with [`CHILD`] set.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::Permissions;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use adit_sandbox::calls::{self, INTRUDER, Only};
use adit_sandbox::{
    Otherwise, Role, SandboxFolders, begin_agent_with, begin_helper_with, begin_names_with,
    begin_namespace_with, begin_proxy_with, begin_rules_with, begin_with, confine,
};
use libc::c_long;

/// What the child does: a role, and an attempt or a call that ends the process.
const CHILD: &str = "ADIT_TEST_TAKEN_OVER";
/// The folder of its own.
const FOLDER: &str = "ADIT_TEST_FOLDER";

/// Any system call; the number of the error, if there was one.
fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: that is up to the callers: what they pass is no address, or that of memory which the
    // call only reads.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match usize::try_from(result) {
        Ok(result) => Ok(result),
        Err(_) => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

fn is_refused(result: Result<usize, i32>) -> bool {
    result == Err(libc::EPERM)
}

/// Runs `work` on a thread of its own with these filters alone.
fn filtered<T: Send>(role: Role, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let filters = adit_sandbox::filters_of(role, Otherwise::Refuse).expect("filters");
            // A filter stays with its thread; it takes the last of the list, of what is allowed.
            let _ = std::hash::RandomState::new();
            adit_sandbox::install(&filters[filters.len() - 1..]).expect("installed");
            work()
        });
        thread.join().expect("no panic")
    })
}

/// Those that would end the thread, or harm it, with any arguments; the last two are uprobe and
/// uretprobe, which only the kernel's own probes may call.
const UNTRIED: [c_long; 5] = [
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    335,
    336,
];

/// Every call that the kernel has, one by one, with arguments that no call likes.
#[test]
fn each_role_has_the_system_calls_of_its_list_and_no_other() {
    for role in Role::ALL {
        let allowed = filtered(role, || {
            let tried = (0..=600).filter(|number| !UNTRIED.contains(number));
            let allowed = tried.filter(|number| !is_refused(call(*number, [usize::MAX; 6])));
            allowed.collect::<BTreeSet<c_long>>()
        });
        let expected = calls::of(role).into_iter();
        let expected = expected.filter(|call| call.only == Only::Any);
        let mut expected: BTreeSet<c_long> = expected.map(|call| call.number).collect();
        for untried in UNTRIED {
            expected.remove(&untried);
        }
        assert_eq!(allowed, expected, "{role:?}");
    }
    let packets = calls::of(Role::Packets);
    assert!(packets.len() <= 25, "{} system calls", packets.len());
}

/// A path as a system call wants it.
fn path(text: &'static std::ffi::CStr) -> usize {
    text.as_ptr().addr()
}

/// An attempt: its name, and the call that it makes.
type Attempt = (&'static str, fn() -> Result<usize, i32>);

const AT_HERE: usize = libc::AT_FDCWD.cast_unsigned() as usize;
/// As of the kernel's asm-generic/ioctls.h.
const TIOCSTI: usize = 0x5412;
const TIOCLINUX: usize = 0x541c;
const TIOCSCTTY: usize = 0x540e;
/// As of linux/if_tun.h.
const TUNSETIFF: usize = 0x4004_54ca;
const TUNSETQUEUE: usize = 0x4004_54d9;
const TUNSETPERSIST: usize = 0x4004_54cb;
const TUNSETOWNER: usize = 0x4004_54cc;
/// The group of the status sockets: that of this process.
static GROUP: OnceLock<u32> = OnceLock::new();
/// No descriptor.
const NONE: usize = usize::MAX;
const O_RDONLY: usize = libc::O_RDONLY as usize;

/// What nobody who has taken over a thread may do.
const ATTEMPTS: [Attempt; 61] = [
    ("open a file", || {
        call(
            libc::SYS_openat,
            [AT_HERE, path(c"/etc/passwd"), O_RDONLY, 0, 0, 0],
        )
    }),
    ("open a file of this process", || {
        call(
            libc::SYS_openat,
            [AT_HERE, path(c"/proc/self/status"), O_RDONLY, 0, 0, 0],
        )
    }),
    ("open a file that only root may read", || {
        call(
            libc::SYS_openat,
            [AT_HERE, path(c"/etc/shadow"), O_RDONLY, 0, 0, 0],
        )
    }),
    ("open a file to write", || {
        call(
            libc::SYS_openat,
            [
                AT_HERE,
                path(c"/dev/null"),
                libc::O_WRONLY as usize,
                0,
                0,
                0,
            ],
        )
    }),
    ("read the memory of another process", || {
        call(
            libc::SYS_openat,
            [AT_HERE, path(c"/proc/1/mem"), O_RDONLY, 0, 0, 0],
        )
    }),
    ("openat2", || {
        call(
            libc::SYS_openat2,
            [AT_HERE, path(c"/etc/passwd"), 0, 24, 0, 0],
        )
    }),
    ("open_by_handle_at", || {
        call(libc::SYS_open_by_handle_at, [AT_HERE, 0, 0, 0, 0, 0])
    }),
    ("make a directory", || {
        call(
            libc::SYS_mkdirat,
            [AT_HERE, path(c"/tmp/adit-taken-over-too"), 0o700, 0, 0, 0],
        )
    }),
    ("remove a file", || {
        call(
            libc::SYS_unlinkat,
            [AT_HERE, path(c"/tmp/adit-none"), 0, 0, 0, 0],
        )
    }),
    ("memfd_create", || {
        call(libc::SYS_memfd_create, [path(c"x"), 0, 0, 0, 0, 0])
    }),
    ("netlink", || {
        call(
            libc::SYS_socket,
            [
                libc::AF_NETLINK as usize,
                libc::SOCK_RAW as usize,
                0,
                0,
                0,
                0,
            ],
        )
    }),
    ("an IPv4 socket", || {
        call(
            libc::SYS_socket,
            [
                libc::AF_INET as usize,
                libc::SOCK_DGRAM as usize,
                0,
                0,
                0,
                0,
            ],
        )
    }),
    ("a UNIX socket", || {
        call(
            libc::SYS_socket,
            [
                libc::AF_UNIX as usize,
                libc::SOCK_STREAM as usize,
                0,
                0,
                0,
                0,
            ],
        )
    }),
    ("a packet socket", || {
        call(
            libc::SYS_socket,
            [
                libc::AF_PACKET as usize,
                libc::SOCK_RAW as usize,
                0,
                0,
                0,
                0,
            ],
        )
    }),
    ("connect", || call(libc::SYS_connect, [0, 0, 0, 0, 0, 0])),
    ("setsockopt", || {
        call(libc::SYS_setsockopt, [0, 0, 0, 0, 0, 0])
    }),
    ("ioctl", || call(libc::SYS_ioctl, [0, 0, 0, 0, 0, 0])),
    ("signal another process", || {
        call(libc::SYS_kill, [1, 0, 0, 0, 0, 0])
    }),
    ("stop another process", || {
        let stop = libc::SIGSTOP as usize;
        call(libc::SYS_pidfd_send_signal, [0, stop, 0, 0, 0, 0])
    }),
    ("pidfd_open", || {
        call(libc::SYS_pidfd_open, [1, 0, 0, 0, 0, 0])
    }),
    ("fork", || {
        call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0])
    }),
    ("start a thread", || {
        call(libc::SYS_clone, [usize::MAX, 0, 0, 0, 0, 0])
    }),
    ("enter a namespace", || {
        call(libc::SYS_setns, [0, libc::CLONE_NEWNS as usize, 0, 0, 0, 0])
    }),
    ("load a BPF program", || {
        call(libc::SYS_bpf, [5, 0, 0, 0, 0, 0])
    }),
    ("memory that can be executed", || {
        call(
            libc::SYS_mmap,
            [
                0,
                4096,
                (libc::PROT_READ | libc::PROT_EXEC) as usize,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize,
                usize::MAX,
                0,
            ],
        )
    }),
    ("make memory executable", || {
        call(
            libc::SYS_mprotect,
            [0, 4096, libc::PROT_EXEC as usize, 0, 0, 0],
        )
    }),
    ("allow dumps again", || {
        call(
            libc::SYS_prctl,
            [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0, 0],
        )
    }),
    ("raise a limit", || {
        let limit: [u64; 2] = [u64::MAX; 2];
        call(
            libc::SYS_prlimit64,
            [
                0,
                libc::RLIMIT_CORE as usize,
                limit.as_ptr().addr(),
                0,
                0,
                0,
            ],
        )
    }),
    ("bind another thread to a CPU", || {
        call(libc::SYS_sched_setaffinity, [1, 0, 0, 0, 0, 0])
    }),
    ("another user", || {
        call(libc::SYS_setuid, [1, 0, 0, 0, 0, 0])
    }),
    ("set the clock", || {
        call(libc::SYS_clock_settime, [0, 0, 0, 0, 0, 0])
    }),
    ("swap files", || call(libc::SYS_swapon, [0, 0, 0, 0, 0, 0])),
    ("the kernel's log", || {
        call(libc::SYS_syslog, [3, 0, 0, 0, 0, 0])
    }),
    ("let everybody write a file", || change_mode(own(), 0o666)),
    ("have a program run as its owner", || {
        change_mode(own(), 0o4755)
    }),
    ("take a file of another program's from its readers", || {
        change_mode(outside(), 0o600)
    }),
    ("let a group write a file of another program's", || {
        change_mode(outside(), 0o660)
    }),
    ("have another program run as its owner", || {
        change_mode(outside(), 0o4755)
    }),
    ("the mode of a descriptor", || {
        call(libc::SYS_fchmod, [NONE, 0o600, 0, 0, 0, 0])
    }),
    ("give a file to a group", || give(&outside(), 65533)),
    ("give a file to the group of the status sockets", || {
        give(&own(), *GROUP.get().expect("set"))
    }),
    ("rename onto a file", || {
        let (from, to) = (own(), outside());
        let [from, to] = [&from, &to].map(|path| path.as_ptr().addr());
        call(libc::SYS_renameat2, [AT_HERE, from, AT_HERE, to, 0, 0])
    }),
    ("remove a file of another program's", || {
        let path = outside();
        call(
            libc::SYS_unlinkat,
            [AT_HERE, path.as_ptr().addr(), 0, 0, 0, 0],
        )
    }),
    ("make a program that runs as its owner", || {
        let path = in_folder("../adit-set-user-id");
        let flags = (libc::O_CREAT | libc::O_WRONLY) as usize;
        call(
            libc::SYS_openat,
            [AT_HERE, path.as_ptr().addr(), flags, 0o4755, 0, 0],
        )
    }),
    ("make a device", || {
        let (path, mode) = (in_folder("device"), (libc::S_IFCHR | 0o666) as usize);
        call(
            libc::SYS_mknodat,
            [AT_HERE, path.as_ptr().addr(), mode, 0x0101, 0, 0],
        )
    }),
    ("watch a file", || {
        call(
            libc::SYS_inotify_add_watch,
            [NONE, path(c"/etc"), 4, 0, 0, 0],
        )
    }),
    ("connect to another process by a file", || {
        connect_to(&in_folder("../other.sock"))
    }),
    ("connect to a socket of its folder", || {
        connect_to(&in_folder("own.sock"))
    }),
    ("attach to a TUN device", || {
        call(libc::SYS_ioctl, [NONE, TUNSETIFF, 0, 0, 0, 0])
    }),
    ("take a queue of a TUN device", || {
        call(libc::SYS_ioctl, [NONE, TUNSETQUEUE, 0, 0, 0, 0])
    }),
    ("have a TUN device stay", || {
        call(libc::SYS_ioctl, [NONE, TUNSETPERSIST, 1, 0, 0, 0])
    }),
    ("give a TUN device to a user", || {
        call(libc::SYS_ioctl, [NONE, TUNSETOWNER, 0, 0, 0, 0])
    }),
    ("read the environment of another process", || {
        open_to_read(c"/proc/1/environ")
    }),
    ("read the memory map of another process", || {
        open_to_read(c"/proc/1/maps")
    }),
    ("read files of another process", || {
        open_to_read(c"/proc/1/root/etc/passwd")
    }),
    ("write its own memory as a file", || {
        let flags = libc::O_RDWR as usize;
        call(
            libc::SYS_openat,
            [AT_HERE, path(c"/proc/self/mem"), flags, 0, 0, 0],
        )
    }),
    ("type into a terminal", || {
        call(libc::SYS_ioctl, [0, TIOCSTI, 0, 0, 0, 0])
    }),
    ("paste into a console", || {
        call(libc::SYS_ioctl, [0, TIOCLINUX, 0, 0, 0, 0])
    }),
    ("take a terminal", || {
        call(libc::SYS_ioctl, [0, TIOCSCTTY, 0, 0, 0, 0])
    }),
    ("connect to another process by a name", connect_abstract),
    ("open the TUN device", || {
        let flags = libc::O_RDWR as usize;
        call(
            libc::SYS_openat,
            [AT_HERE, path(c"/dev/net/tun"), flags, 0, 0, 0],
        )
    }),
];

/// What is at a path from the folder. The folder lies in one of the test's own.
fn in_folder(path: &str) -> CString {
    let folder = std::env::var(FOLDER).expect("a folder");
    CString::new(format!("{folder}/{path}")).expect("no zero")
}

/// A file of the folder.
fn own() -> CString {
    in_folder("file")
}

/// A file of root's that another program has.
fn outside() -> CString {
    in_folder("../file")
}

fn open_to_read(path: &std::ffi::CStr) -> Result<usize, i32> {
    let path = path.as_ptr().addr();
    call(libc::SYS_openat, [AT_HERE, path, O_RDONLY, 0, 0, 0])
}

fn change_mode(file: CString, mode: usize) -> Result<usize, i32> {
    let path = file.as_ptr().addr();
    let result = call(libc::SYS_fchmodat, [AT_HERE, path, mode, 0, 0, 0]);
    // It is read until here.
    drop(file);
    result
}

/// The same by a descriptor, as the helper does.
fn change_mode_of_open(file: &std::fs::File, mode: usize) -> Result<usize, i32> {
    let fd = usize::try_from(file.as_raw_fd()).expect("a number");
    call(libc::SYS_fchmod, [fd, mode, 0, 0, 0, 0])
}

fn give(file: &CString, group: u32) -> Result<usize, i32> {
    let (path, group) = (file.as_ptr().addr(), group as usize);
    let owner = u32::MAX as usize;
    call(libc::SYS_fchownat, [AT_HERE, path, owner, group, 0, 0])
}

fn connect_to(path: &CString) -> Result<usize, i32> {
    let family = u16::try_from(libc::AF_UNIX).expect("small").to_ne_bytes();
    connect_unix(&[&family[..], path.to_bytes_with_nul()].concat())
}

/// The abstract address at which the test itself listens.
fn abstract_address(folder: &str) -> Vec<u8> {
    let family = u16::try_from(libc::AF_UNIX).expect("small").to_ne_bytes();
    [&family[..], b"\0", folder.as_bytes()].concat()
}

fn connect_abstract() -> Result<usize, i32> {
    connect_unix(&abstract_address(&std::env::var(FOLDER).expect("a folder")))
}

fn connect_unix(address: &[u8]) -> Result<usize, i32> {
    let stream = [
        libc::AF_UNIX as usize,
        libc::SOCK_STREAM as usize,
        0,
        0,
        0,
        0,
    ];
    let socket = call(libc::SYS_socket, stream)?;
    call(
        libc::SYS_connect,
        [socket, address.as_ptr().addr(), address.len(), 0, 0, 0],
    )
}

fn role(name: &str) -> Role {
    let named = Role::ALL
        .into_iter()
        .find(|role| format!("{role:?}") == name);
    named.expect("a role")
}

/// A folder of this test's own, as a process has for its sockets; it goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // What a process left that had the same number, and was killed, stays.
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("adit-taken-over-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// In the child: the sandbox, a thread of the role, and what it tries.
#[test]
fn taken_over() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (name, attempt) = what.split_once(' ').expect("a role and an attempt");
    let role = role(name);
    let folders = SandboxFolders {
        own: vec![std::env::var_os(FOLDER).expect("a folder").into()],
        removable_in: None,
        group: Some(*GROUP.get_or_init(|| rustix::process::getegid().as_raw())),
    };
    let otherwise = match attempt {
        // Debug builds have this.
        "live on, or be killed" => Otherwise::Kill,
        _ => Otherwise::Refuse,
    };
    let status = std::fs::File::open("/proc/thread-self/status").expect("a status");
    match role {
        Role::Resolver => begin_names_with(otherwise).expect("a sandbox"),
        Role::Helper => begin_helper_with(&folders, otherwise).expect("a sandbox"),
        Role::Proxy | Role::ProxyMain => {
            begin_proxy_with(&folders, false, otherwise).expect("a sandbox");
        }
        Role::Namespace => begin_namespace_with(otherwise).expect("a sandbox"),
        Role::Rules => begin_rules_with(otherwise).expect("a sandbox"),
        // It reads no folder but its own.
        Role::Agent => begin_agent_with(&[], &folders.own[0], &[], otherwise).expect("a sandbox"),
        Role::Packets | Role::Control | Role::Sockets | Role::Main => {
            begin_with(otherwise).expect("a sandbox");
        }
    }
    assert!(adit_sandbox::parts().system_calls);
    println!("files={}", adit_sandbox::parts().files);
    let mut text = [0; 4096];
    let len = (&status).read(&mut text).expect("a status");
    let status = String::from_utf8_lossy(&text[..len]);
    let rights = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        u64::from_str_radix(line.expect("it is there").trim(), 16).expect("a number")
    };
    println!("rights={}", rights("CapPrm:") | rights("CapEff:"));
    let work = || {
        // A process of a namespace has one thread, which is confined already.
        if !matches!(role, Role::Namespace | Role::Rules) {
            confine(role).expect("confined");
        }
        match (attempt, attempt.parse()) {
            ("fault", _) => fault(),
            ("abort", _) => std::process::abort(),
            ("exit", _) => std::process::exit(7),
            ("overflow", _) => println!("{}", overflow(&[0; 1024])),
            ("live on" | "live on, or be killed", _) => live_on(),
            ("change modes", _) => {
                let file = std::fs::File::open(OsStr::from_bytes(own().to_bytes()));
                let file = file.expect("a file of the folder");
                let all = (0..0o10000).filter(|mode| change_mode_of_open(&file, *mode).is_ok());
                let all: Vec<String> = all.map(|mode| format!("{mode:o}")).collect();
                println!("modes={}.", all.join(","));
            }
            (_, Ok(number)) => {
                let result = call(number, [0; 6]);
                println!("the process lives: {result:?}");
            }
            _ => {
                for (name, attempt) in ATTEMPTS {
                    println!("{name}={:?}", attempt());
                }
            }
        }
    };
    match role {
        // It starts no thread.
        Role::Namespace | Role::Rules => work(),
        _ => std::thread::scope(|scope| scope.spawn(work).join().expect("no panic")),
    }
}

fn fault() {
    let nothing = std::ptr::without_provenance::<u8>(8);
    // SAFETY: none: nothing is there, which is what the test is about.
    println!("{}", unsafe { nothing.read_volatile() });
}

/// Uses up the stack.
#[expect(unconditional_recursion, reason = "that is what the test is about")]
fn overflow(before: &[u8; 1024]) -> u64 {
    let mut more = *before;
    more[0] = more[0].wrapping_add(1);
    overflow(std::hint::black_box(&more)) + u64::from(more[1])
}

/// What happens seldom in a thread, and must not end the process.
fn live_on() {
    let panicked = std::panic::catch_unwind(|| panic!("it tells where"));
    assert!(panicked.is_err());
    // By brk(2) and mmap(2), mremap(2), munmap(2), and madvise(2) or mprotect(2).
    let small: Vec<Box<[u8]>> = (1..2000).map(|len| vec![1; len].into()).collect();
    let mut large = vec![1_u8; 64 << 20];
    large.resize(128 << 20, 2);
    large.truncate(1 << 10);
    large.shrink_to_fit();
    let len: usize = small.iter().map(|one| one.len()).sum();
    drop(small);
    let no_memory = Vec::<u8>::new().try_reserve_exact(1 << 46);
    assert!(no_memory.is_err());
    eprintln!(
        "{:?} {:?}",
        std::time::Instant::now(),
        std::time::SystemTime::now()
    );
    assert_eq!(
        call(libc::SYS_clock_gettime, [0, 0, 0, 0, 0, 0]),
        Err(libc::EFAULT)
    );
    std::thread::yield_now();
    println!("lives on with {}", large.len() + len);
}

fn child(role: Role, attempt: &str) -> Output {
    let around = Folder::new();
    let folder = around.0.join("own");
    std::fs::create_dir(&folder).expect("a folder");
    let (other, outside) = (around.0.join("other.sock"), around.0.join("file"));
    for file in [&folder.join("file"), &outside] {
        std::fs::write(file, "").expect("a file");
    }
    std::fs::set_permissions(&outside, Permissions::from_mode(0o644)).expect("its mode");
    let _others =
        [&other, &folder.join("own.sock")].map(|path| UnixListener::bind(path).expect("a socket"));
    let name = SocketAddr::from_abstract_name(folder.as_os_str().as_bytes());
    let _listener = UnixListener::bind_addr(&name.expect("a name")).expect("a socket");
    let output = Command::new("timeout")
        .args(["-s", "KILL", "60"])
        .arg(std::env::current_exe().expect("this program"))
        .env("RUST_BACKTRACE", "full")
        .args(["--exact", "sys::sandbox_tests::taken_over", "--nocapture"])
        .env(CHILD, format!("{role:?} {attempt}"))
        .env(FOLDER, &folder)
        .output();
    // Whatever was tried, in any role.
    let found = outside.metadata().expect("it is there");
    let left = (found.mode() & 0o7777, found.gid(), found.len());
    assert_eq!(
        left,
        (0o644, rustix::process::getegid().as_raw(), 0),
        "{role:?}"
    );
    assert!(!around.0.join("adit-set-user-id").exists(), "{role:?}");
    output.expect("it starts")
}

#[test]
fn a_thread_that_is_taken_over_opens_starts_and_reads_nothing() {
    for role in [Role::Packets, Role::Control, Role::Sockets, Role::Main] {
        let output = child(role, "all");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{role:?}: {told}");
        for (name, _) in ATTEMPTS {
            let refused = format!("{name}=Err({})", libc::EPERM);
            assert!(
                told.lines().any(|line| line == refused),
                "{role:?}: {name}: {told}"
            );
        }
    }
}

const BY_NAME: &str = "connect to another process by a name";

/// Landlock knows abstract sockets from Linux 6.12 on.
fn has_scopes() -> bool {
    super::os::kernel_release() >= (6, 12, 0)
}

#[test]
fn the_helper_leaves_files_to_their_owner_and_group() {
    let output = child(Role::Helper, "change modes");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}");
    assert!(told.contains("modes=600,660.\n"), "{told}");
}

/// Of the attempts, those that the filter of a resolver lets through, as far as it can see, and what
/// becomes of them: `None` where that is none of the sandbox's business.
const OF_RESOLVER: [(&str, Option<bool>); 14] = [
    ("read the environment of another process", Some(false)),
    ("read the memory map of another process", Some(false)),
    ("read files of another process", Some(false)),
    ("connect to another process by a file", None),
    ("connect to a socket of its folder", None),
    ("open a file", Some(false)),
    ("open a file of this process", Some(false)),
    ("open a file that only root may read", Some(false)),
    ("read the memory of another process", Some(false)),
    ("netlink", Some(true)),
    ("an IPv4 socket", Some(true)),
    ("a UNIX socket", Some(true)),
    ("connect", None),
    ("setsockopt", None),
];

/// Of the attempts, those that the filter of a helper lets through, as far as it can see, and what
/// becomes of them, as for the resolver.
const OF_HELPER: [(&str, Option<bool>); 27] = [
    ("pidfd_open", Some(true)),
    ("open the TUN device", Some(true)),
    ("open a file", Some(false)),
    ("open a file of this process", Some(true)),
    ("open a file that only root may read", Some(false)),
    ("open a file to write", Some(false)),
    ("read the memory of another process", Some(false)),
    ("read the environment of another process", Some(false)),
    ("read the memory map of another process", Some(false)),
    ("read files of another process", Some(false)),
    ("write its own memory as a file", Some(false)),
    ("make a program that runs as its owner", Some(false)),
    ("make a directory", Some(false)),
    ("remove a file", None),
    ("remove a file of another program's", Some(false)),
    ("the mode of a descriptor", None),
    ("give a file to the group of the status sockets", None),
    ("watch a file", None),
    ("netlink", Some(true)),
    ("an IPv4 socket", Some(true)),
    ("a UNIX socket", Some(true)),
    // Whether a living process has a socket shows only so.
    ("connect to another process by a file", Some(true)),
    ("connect to a socket of its folder", Some(true)),
    ("attach to a TUN device", None),
    ("connect", None),
    ("setsockopt", None),
    ("load a BPF program", None),
];

/// Of the attempts, those that the filter of a proxy's threads lets through.
const OF_PROXY: [(&str, Option<bool>); 3] = [
    ("an IPv4 socket", Some(true)),
    ("connect", None),
    ("setsockopt", None),
];

/// Of the attempts, those that the filter of an agent lets through.
const OF_AGENT: [(&str, Option<bool>); 18] = [
    ("open a file", Some(false)),
    ("open a file of this process", Some(false)),
    ("open a file that only root may read", Some(false)),
    ("open a file to write", Some(false)),
    ("open the TUN device", Some(false)),
    ("read the memory of another process", Some(false)),
    ("read the environment of another process", Some(false)),
    ("read the memory map of another process", Some(false)),
    ("read files of another process", Some(false)),
    ("write its own memory as a file", Some(false)),
    ("make a program that runs as its owner", Some(false)),
    ("remove a file", None),
    ("remove a file of another program's", Some(false)),
    ("a UNIX socket", Some(true)),
    ("connect to another process by a file", Some(true)),
    ("connect to a socket of its folder", Some(true)),
    ("connect", None),
    ("setsockopt", None),
];

/// Of the attempts, those that the filter of a process that makes sockets lets through.
const OF_NAMESPACE: [(&str, Option<bool>); 1] = [("an IPv4 socket", Some(true))];

#[test]
fn an_agent_that_is_taken_over_has_its_folder_and_unix_sockets() {
    tries(Role::Agent, &OF_AGENT);
}

/// Of the attempts, those that the filter of a process for the packet filter lets through.
const OF_RULES: [(&str, Option<bool>); 2] = [("connect", None), ("setsockopt", None)];

#[test]
fn a_process_for_rules_that_is_taken_over_has_the_packet_filter_alone() {
    tries(Role::Rules, &OF_RULES);
}

#[test]
fn a_process_of_a_namespace_that_is_taken_over_makes_sockets_and_nothing_else() {
    tries(Role::Namespace, &OF_NAMESPACE);
}

#[test]
fn a_thread_of_a_proxy_that_is_taken_over_has_sockets_and_nothing_else() {
    tries(Role::Proxy, &OF_PROXY);
}

#[test]
fn a_resolver_that_is_taken_over_reads_little_and_starts_nothing() {
    tries(Role::Resolver, &OF_RESOLVER);
}

#[test]
fn a_helper_that_is_taken_over_reads_little_and_starts_nothing() {
    tries(Role::Helper, &OF_HELPER);
}

/// A taken-over process of its own is refused all but these.
fn tries(role: Role, but: &[(&str, Option<bool>)]) {
    let output = child(role, "all");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}");
    let has_files = told.contains("files=true");
    for (name, _) in ATTEMPTS {
        if name == BY_NAME && !has_scopes() {
            continue;
        }
        let line = (told.lines()).find_map(|line| line.strip_prefix(&format!("{name}=")));
        let result = line.unwrap_or_else(|| panic!("{name}: {told}"));
        let is_refused = result == format!("Err({})", libc::EPERM);
        match but.iter().find(|(of, _)| *of == name) {
            None => assert!(is_refused, "{name}: {result}"),
            Some((_, None)) => assert!(!is_refused, "{name}: {result}"),
            Some((_, Some(true))) => assert!(result.starts_with("Ok"), "{name}: {result}"),
            Some((_, Some(false))) if has_files => {
                assert_eq!(result, format!("Err({})", libc::EACCES), "{name}");
            }
            Some(_) => {}
        }
    }
}

/// Whichever thread is taken over, and whatever it writes to the memory of others.
#[test]
fn no_thread_of_a_process_with_a_sandbox_has_a_capability() {
    for role in [
        Role::Packets,
        Role::Control,
        Role::Sockets,
        Role::Main,
        Role::Resolver,
        Role::Proxy,
        Role::ProxyMain,
        Role::Namespace,
        Role::Agent,
    ] {
        let output = child(role, "all");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(told.contains("rights=0\n"), "{role:?}: {told}");
    }
}

#[test]
fn what_only_an_intruder_calls_ends_the_process() {
    for role in [
        Role::Packets,
        Role::Control,
        Role::Sockets,
        Role::Resolver,
        Role::Helper,
        Role::Proxy,
        Role::Namespace,
        Role::Agent,
        Role::Rules,
    ] {
        for call in INTRUDER {
            let output = child(role, &call.number.to_string());
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            let signal = output.status.signal();
            assert_eq!(
                signal,
                Some(libc::SIGSYS),
                "{role:?}: {}: {told}",
                call.name()
            );
        }
    }
}

/// It does not fault for ever, since the handler of the fault may not be set to another.
#[test]
fn a_confined_thread_that_fails_ends_the_process() {
    for role in [
        Role::Packets,
        Role::Control,
        Role::Sockets,
        Role::Resolver,
        Role::Proxy,
    ] {
        for failure in ["fault", "abort", "overflow", "exit"] {
            let output = child(role, failure);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            match (role, failure) {
                // It may end the process.
                (Role::Resolver, "exit") => {
                    assert_eq!(output.status.code(), Some(7), "{told}")
                }
                _ => {
                    let signal = output.status.signal();
                    assert_eq!(signal, Some(libc::SIGSYS), "{role:?}: {failure}: {told}");
                }
            }
            let overflows = told.contains("has overflowed its stack");
            assert_eq!(overflows, failure == "overflow", "{told}");
        }
    }
    for role in [
        Role::Main,
        Role::Helper,
        Role::ProxyMain,
        Role::Namespace,
        Role::Agent,
        Role::Rules,
    ] {
        for failure in ["fault", "abort", "overflow"] {
            let output = child(role, failure);
            let signal = output.status.signal();
            assert!(
                signal.is_some_and(|signal| signal != libc::SIGKILL),
                "{role:?}: {failure}: {signal:?}"
            );
        }
    }
}

#[test]
fn a_confined_thread_panics_and_allocates_as_any_other() {
    for role in Role::ALL {
        for attempt in ["live on", "live on, or be killed"] {
            let output = child(role, attempt);
            let told = [output.stdout, output.stderr].concat();
            let told = String::from_utf8_lossy(&told).into_owned();
            assert!(output.status.success(), "{role:?}: {told}");
            assert!(told.contains("lives on with"), "{role:?}: {told}");
            assert!(told.contains("it tells where"), "{role:?}: {told}");
        }
    }
}
