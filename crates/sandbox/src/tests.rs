//! The sandbox where the kernel, or the program that started the process, does not allow all of it.
//!
//! A process begins a sandbox once: each test starts this program anew, with [`CHILD`] set.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// What the child lacks.
const CHILD: &str = "ADIT_TEST_LACKS";
/// The folder of its own.
const FOLDER: &str = "ADIT_TEST_FOLDER";

/// A directory of one test, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // What a process left that had the same number, and was killed, stays.
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("adit-sandbox-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
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

const LANDLOCK: [libc::c_long; 3] = [
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];

/// Has these calls fail from now on, as a kernel without them does.
fn without(calls: &[libc::c_long], error: libc::c_int) {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("known");
    let fails = SeccompAction::Errno(errno(error));
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, fails, arch).expect("a filter");
    install(&[BpfProgram::try_from(filter).expect("a program")]).expect("installed");
}

/// In a file that was open before.
fn locked_kilobytes(status: &File) -> u64 {
    let mut text = [0; 4096];
    let len = status.read_at(&mut text, 0).expect("a status");
    let status = String::from_utf8_lossy(&text[..len]);
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let words = line.expect("a line").split_whitespace().next();
    words.expect("a number").parse().expect("a number")
}

/// In the child: what is on, and what a confined thread, and one that it has started, can do then.
#[test]
fn lacks() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    match what.as_str() {
        "nothing" => {}
        "landlock" => without(&LANDLOCK, libc::ENOSYS),
        // It is built in, but not switched on.
        "lsm" => without(&LANDLOCK, libc::EOPNOTSUPP),
        "seccomp" => without(&[libc::SYS_seccomp], libc::EINVAL),
        "memlock" => {
            let little = Rlimit {
                current: Some(64 << 10),
                maximum: Some(64 << 10),
            };
            setrlimit(Resource::Memlock, little).expect("less");
            keep(CapabilitySet::NET_ADMIN).expect("without CAP_SYS_RESOURCE");
        }
        what => panic!("{what}"),
    }
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let status = File::open("/proc/self/status").expect("a status");
    begin_with(Otherwise::Refuse).expect("the rest holds");
    let parts = parts();
    let on = parts.iter().filter(|(_, on)| *on).map(|(name, _)| name);
    println!("on={}", on.collect::<Vec<_>>().join(","));
    let starter = Starter::here(|| ());
    let thread = std::thread::spawn(move || {
        confine(Role::Control).expect("confined");
        // With all memory locked, it grows as before.
        let mut memory = vec![1_u8; 32 << 20];
        memory.resize(64 << 20, 2);
        let open = || {
            File::open("/etc/passwd")
                .map(drop)
                .map_err(|error| error.kind())
        };
        let own = move || {
            File::create(folder.join("file"))
                .map(drop)
                .map_err(|error| error.kind())
        };
        (open(), elsewhere(open), elsewhere(own), memory.len())
    });
    let thread = starter.beside(|| thread.join());
    let (confined, started, own, len) = thread.expect("no panic");
    println!("confined={confined:?} started={started:?} own={own:?} len={len}");
    println!("locked={}", locked_kilobytes(&status));
}

fn child(lacks: &str) -> String {
    let folder = Folder::new();
    let test = match lacks {
        "starter" => "tests::starts_threads",
        "store" | "no store" => "tests::asks_a_store",
        _ if lacks.starts_with("names") => "tests::looks_names_up",
        _ => "tests::lacks",
    };
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, lacks)
        .env(FOLDER, &folder.0)
        // Where no server answers.
        .env("RES_OPTIONS", "timeout:1 attempts:1")
        .output()
        .expect("it starts");
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{lacks}: {told}");
    told
}

/// In the child: what is on where names are looked up, and what can be read there.
#[test]
fn looks_names_up() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    match what.as_str() {
        "names" => {}
        "names landlock" => without(&LANDLOCK, libc::ENOSYS),
        "names lsm" => without(&LANDLOCK, libc::EOPNOTSUPP),
        "names seccomp" => without(&[libc::SYS_seccomp], libc::EINVAL),
        // As in the unit, and in a user namespace with one user.
        "names user" => keep(CapabilitySet::NET_ADMIN).expect("without CAP_SETUID"),
        what => panic!("{what}"),
    }
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let secret = folder.join("secret");
    std::fs::write(&secret, "x").expect("a file");
    let entries = std::fs::read_dir("/etc").expect("a folder").flatten();
    // Some are links to what belongs to a library.
    let stays = |path: &PathBuf| path.canonicalize().is_ok_and(|to| to.starts_with("/etc"));
    let entries: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(stays).collect();
    begin_names_with(Otherwise::Kill).expect("the rest holds");
    let parts = parts();
    let on = parts.iter().filter(|(_, on)| *on).map(|(name, _)| name);
    println!("on={}", on.collect::<Vec<_>>().join(","));
    let thread = std::thread::spawn(move || {
        confine(Role::Resolver).expect("confined");
        let addr = |name: &str| {
            let addrs = std::net::ToSocketAddrs::to_socket_addrs(&(name, 0));
            addrs.is_ok_and(|mut addrs| addrs.any(|addr| addr.ip().is_loopback()))
        };
        // The second goes to DNS, and the answer is none.
        println!("local={} none={}", addr("localhost"), addr("x.invalid"));
        let read = |path: &Path| File::open(path).map(drop).map_err(|error| error.kind());
        // No other file of /etc than those that a look-up takes.
        let taken = "default gai.conf host.conf hosts ld.so.cache ld.so.preload mdns.allow nsswitch.conf resolv.conf";
        let others = entries.iter().filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            path.is_file() && !taken.split(' ').any(|one| one == name) && read(path).is_ok()
        });
        let others: Vec<_> = others.collect();
        match others.is_empty() {
            true => println!("of-etc=hosts"),
            false => println!("of-etc={others:?}"),
        }
        println!("hosts={:?}", read(Path::new("/etc/hosts")));
        println!("shadow={:?}", read(Path::new("/etc/shadow")));
        println!("elsewhere={:?}", read(&secret));
    });
    thread.join().expect("no panic");
    let user = rustix::process::geteuid().as_raw();
    let own = capabilities(None).expect("capabilities").permitted;
    println!("user={user} rights={}", own.bits());
}

/// In the child: what an agent reaches that asks a store, or none.
#[test]
fn asks_a_store() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let listen = || std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let ports = [listen(), listen()].map(|it| (it.local_addr().expect("its port").port(), it));
    let [(port, _listener), (other, _other)] = ports;
    let asked: &[u16] = if what == "store" { &[port] } else { &[] };
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    begin_agent_with(&[], &folder, asked, Otherwise::Refuse).expect("begun");
    // On a thread, which has the same limits.
    let work = move || {
        let connect = |port| {
            let connected = std::net::TcpStream::connect(("127.0.0.1", port));
            connected.map(drop).map_err(|error| error.kind())
        };
        let addrs = std::net::ToSocketAddrs::to_socket_addrs(&("localhost", 0));
        println!("asked={:?} other={:?}", connect(port), connect(other));
        println!("local={}", addrs.is_ok());
        let read = |path: &str| File::open(path).map(drop).map_err(|error| error.kind());
        println!(
            "shadow={:?} hosts={:?}",
            read("/etc/shadow"),
            read("/etc/hosts")
        );
        let own = File::create(folder.join("file")).map(drop);
        println!("own={:?}", own.map_err(|error| error.kind()));
    };
    std::thread::spawn(work).join().expect("no panic");
}

#[test]
fn an_agent_reaches_the_port_of_its_store_and_no_other() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map(|it| it.parse().unwrap_or(0_u32));
    let told = child("store");
    assert_eq!(field(&told, "asked"), "Ok(())");
    if (numbers.next(), numbers.next()) >= (Some(6), Some(7)) {
        assert_eq!(field(&told, "other"), REFUSED, "by Landlock");
    }
    assert_eq!(field(&told, "local"), "true");
    assert_eq!(field(&told, "hosts"), "Ok(())");
    assert_eq!(field(&told, "own"), "Ok(())");
    assert_eq!(field(&told, "shadow"), REFUSED);
    let told = child("no store");
    for what in ["asked", "other", "shadow", "hosts"] {
        assert_eq!(field(&told, what), REFUSED, "{told}");
    }
    assert_eq!(field(&told, "own"), "Ok(())");
}

/// What it makes on a thread that is started for the calling one.
fn elsewhere<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, made) = std::sync::mpsc::channel();
    let work = move || drop(tell.send(make()));
    start("made", work)
        .expect("started")
        .join()
        .expect("no panic");
    made.recv().expect("it was made")
}

/// In the child: threads that a confined thread starts while the main thread works, waits, and does so
/// no more.
#[test]
fn starts_threads() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    begin_with(Otherwise::Refuse).expect("begun");
    let (woken, wakes) = std::sync::mpsc::channel();
    let starter = Starter::here(move || {
        let _ = woken.send(());
    });
    let starts = || {
        std::thread::spawn(|| {
            confine(Role::Packets).expect("confined");
            let own = std::thread::Builder::new().spawn(|| ()).is_err();
            let name = || std::thread::current().name().map(str::to_owned);
            let (tell, named) = std::sync::mpsc::channel();
            let work = move || drop(tell.send(name()));
            let started = start("started", work);
            (own, started.is_ok(), named.recv().ok().flatten())
        })
    };
    let beside = starter.beside(|| starts().join().expect("no panic"));
    // Until then it is woken for nothing else.
    while wakes.try_recv().is_ok() {}
    let waits = starts();
    let patience = std::time::Duration::from_secs(30);
    wakes.recv_timeout(patience).expect("woken");
    starter.work();
    let waits = waits.join().expect("no panic");
    let panics = || starter.beside::<()>(|| panic!("on purpose"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err();
    // One that has asked, and one that asks later.
    let asks = starts();
    while wakes.recv_timeout(patience).is_err() {}
    drop(starter);
    let after = [asks, starts()].map(|thread| thread.join().expect("no panic").1);
    println!("beside={beside:?}");
    println!("waits={waits:?}");
    println!("panicked={panicked} after={after:?}");
}

fn field<'a>(told: &'a str, name: &str) -> &'a str {
    let (_, rest) = told.split_once(&format!("{name}=")).expect(name);
    rest.split_whitespace().next().unwrap_or_default()
}

const REFUSED: &str = "Err(PermissionDenied)";

#[test]
fn no_thread_opens_or_makes_a_file() {
    let told = child("nothing");
    assert!(field(&told, "on").contains("system-calls"), "{told}");
    assert!(field(&told, "on").contains("files"), "{told}");
    assert_eq!(field(&told, "confined"), REFUSED);
    assert_eq!(field(&told, "started"), REFUSED);
    assert_eq!(field(&told, "own"), REFUSED);
}

#[test]
fn the_main_thread_starts_threads_for_those_that_cannot() {
    let told = child("starter");
    let started = "(true, true, Some(\"started\"))";
    assert!(told.contains(&format!("beside={started}\n")), "{told}");
    assert!(told.contains(&format!("waits={started}\n")), "{told}");
    assert!(
        told.contains("panicked=true after=[false, false]\n"),
        "{told}"
    );
}

#[test]
fn without_landlock_the_rest_holds() {
    for lacks in ["landlock", "lsm"] {
        let told = child(lacks);
        let on: Vec<&str> = field(&told, "on").split(',').collect();
        assert!(!on.contains(&"files"), "{told}");
        for rest in ["system-calls", "capabilities", "no-dumps"] {
            assert!(on.contains(&rest), "{told}");
        }
        assert_eq!(field(&told, "confined"), REFUSED);
        assert_eq!(field(&told, "started"), REFUSED, "by its list");
    }
}

#[test]
fn without_filters_the_rest_holds() {
    let told = child("seccomp");
    let on: Vec<&str> = field(&told, "on").split(',').collect();
    assert!(!on.contains(&"system-calls"), "{told}");
    for rest in ["files", "capabilities", "no-dumps"] {
        assert!(on.contains(&rest), "{told}");
    }
    assert_eq!(field(&told, "confined"), REFUSED, "by Landlock");
}

#[test]
fn memory_is_locked_where_the_limit_can_be_raised() {
    let told = child("nothing");
    let locked: u64 = field(&told, "locked").parse().expect("a number");
    let own = capabilities(None).expect("capabilities").effective;
    let may =
        getrlimit(Resource::Memlock).maximum.is_none() || own.contains(CapabilitySet::SYS_RESOURCE);
    assert_eq!(locked > 0, may, "{told}");
    assert_eq!(field(&told, "on").contains("locked-memory"), may, "{told}");
    assert_eq!(field(&told, "len"), (64_u64 << 20).to_string());
    let told = child("memlock");
    assert_eq!(field(&told, "locked"), "0");
    assert!(!field(&told, "on").contains("locked-memory"), "{told}");
    assert_eq!(field(&told, "len"), (64_u64 << 20).to_string());
}

#[test]
fn names_are_looked_up_by_nobody_who_reads_little() {
    let is_root = rustix::process::geteuid().is_root();
    for lacks in ["names", "names user"] {
        let told = child(lacks);
        assert_eq!(
            field(&told, "on"),
            "system-calls,files,capabilities,no-dumps",
            "{told}"
        );
        assert_eq!(
            [field(&told, "local"), field(&told, "none")],
            ["true", "false"]
        );
        assert_eq!(field(&told, "hosts"), "Ok(())");
        assert_eq!(field(&told, "elsewhere"), REFUSED);
        assert_eq!(field(&told, "rights"), "0");
        // Root without the right to become nobody, too.
        assert_eq!(field(&told, "shadow"), REFUSED);
        assert_eq!(field(&told, "of-etc"), "hosts", "{told}");
        if is_root && lacks == "names" {
            assert_eq!(field(&told, "user"), "65534");
        }
    }
}

#[test]
fn names_are_looked_up_where_the_kernel_has_no_sandbox() {
    for lacks in ["names landlock", "names lsm", "names seccomp"] {
        let told = child(lacks);
        let missing = match lacks {
            "names seccomp" => "system-calls",
            _ => "files",
        };
        let on: Vec<&str> = field(&told, "on").split(',').collect();
        for part in ["system-calls", "files", "capabilities", "no-dumps"] {
            assert_eq!(on.contains(&part), part != missing, "{told}");
        }
        assert_eq!(
            [field(&told, "local"), field(&told, "none")],
            ["true", "false"]
        );
        assert_eq!(field(&told, "rights"), "0");
    }
}
