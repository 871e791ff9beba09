//! What a process and its threads have given up once the interface is there, as the kernel tells.
//! What that leaves to a thread that is taken over: crates/io/src/sys/sandbox_tests.rs.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::harness::*;
use crate::quick::World;

/// The value of a field of /proc/PID/status, or of one of its tasks.
fn field(dir: &Path, name: &str) -> String {
    let status = std::fs::read_to_string(dir.join("status")).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name}"))
        .trim()
        .to_owned()
}

/// The directory of a process of this host.
fn process(host: &Container, pid: u32) -> PathBuf {
    host.path(&format!("/proc/{pid}"))
}

/// The threads of a process, by name.
fn threads(process: &Path) -> BTreeMap<String, PathBuf> {
    let tasks = std::fs::read_dir(process.join("task")).expect("tasks");
    let named = tasks.map(|task| {
        let dir = task.expect("a task").path();
        let name = std::fs::read_to_string(dir.join("comm")).expect("a name");
        (name.trim().to_owned(), dir)
    });
    named.collect()
}

/// All threads of a process have this in their status.
fn all(process: &Path, name: &str, value: &str) -> bool {
    let tasks = std::fs::read_dir(process.join("task")).expect("tasks");
    let mut dirs = tasks.map(|task| task.expect("a task").path());
    dirs.all(|dir| field(&dir, name) == value)
}

#[test]
fn every_thread_has_given_up_what_it_does_not_need() {
    if !Program::Adit.is_adit() {
        return;
    }
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let subject = Program::Adit.path().display().to_string();
    net.left.sh(&format!("{subject} run --join wg0 wg1"));
    let dir = process(&net.left, processes(&net.left)[0]);
    let mut listener = net.left.command(&subject);
    let mut listener = listener.arg("events").spawn().expect("a listener");
    let has_listener = || threads(&dir).contains_key("adit-events");
    wait_for("the thread for events runs", seconds(30), has_listener);
    let threads = threads(&dir);
    for expected in [
        "adit",
        "adit-control",
        "adit-ctl",
        "adit-inbound",
        "adit-shard-0",
    ] {
        assert!(threads.contains_key(expected), "{expected}: {threads:?}");
    }
    let filters = |dir: &Path| -> u32 {
        let filters = field(dir, "Seccomp_filters:");
        filters.parse().expect("a number")
    };
    let of_process = filters(&threads["adit"]);
    for (name, dir) in &threads {
        assert_eq!(field(dir, "NoNewPrivs:"), "1", "{name}");
        assert_eq!(field(dir, "Seccomp:"), "2", "{name}");
        let more = filters(dir).checked_sub(of_process);
        // The main thread starts others, which have those of the process and their own.
        assert_eq!(more > Some(0), name != "adit", "{name}: {more:?}");
    }
    for set in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
        assert!(all(&dir, set, "0000000000000000"), "{set}");
    }
    let limits = std::fs::read_to_string(dir.join("limits")).expect("limits");
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let core: Vec<&str> = core
        .expect("a limit")
        .split_whitespace()
        .skip(4)
        .take(2)
        .collect();
    assert_eq!(core, ["0", "0"]);
    // Where the limit is less than everything and cannot be raised, no memory is locked.
    let shown = net.left.sh(&format!("{subject} show wg0"));
    let is_locked = field(&dir, "VmLck:") != "0 kB";
    assert_eq!(
        shown.contains("(off: locked memory)"),
        !is_locked,
        "{shown}"
    );
    listener.kill().expect("it runs");
    listener.wait().expect("it has ended");
}

#[test]
fn show_tells_which_parts_of_the_sandbox_are_on() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let subject = Program::Adit.path().display().to_string();
    host.sh(&format!(
        "{subject} wg0 && {subject} run --no-sandbox wg1 && ADIT_NO_SANDBOX=1 {subject} wg2"
    ));
    let line = |name: &str| {
        let shown = host.sh(&format!("{subject} show {name}"));
        let line = shown
            .lines()
            .find_map(|line| line.trim().strip_prefix("sandbox: "));
        line.unwrap_or_else(|| panic!("{shown}")).to_owned()
    };
    let parts = line("wg0")
        .replace(" (off: locked memory)", "")
        .replace(", locked memory", "");
    assert_eq!(parts, "capabilities, files, no dumps, system calls");
    assert_eq!([line("wg1"), line("wg2")], ["off", "off"]);
    for pid in processes(&host) {
        let dir = process(&host, pid);
        let arguments = std::fs::read_to_string(dir.join("cmdline")).expect("arguments");
        let expected = if arguments.contains("wg0") { "2" } else { "0" };
        assert_eq!(field(&dir, "Seccomp:"), expected, "{arguments}");
    }
}

/// The only process of a name.
fn found(host: &Container, name: &str) -> PathBuf {
    let find = || host.try_sh(&format!("pgrep -x {name}"));
    wait_for("it runs", seconds(10), || find().ok());
    process(host, find().stdout.trim().parse().expect("one process"))
}

#[test]
fn the_process_with_the_rights_has_few_and_ends_with_the_other() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let mut daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    let dir = found(&host, "adit-helper");
    assert_eq!(threads(&dir).len(), 1);
    assert_eq!(field(&dir, "NoNewPrivs:"), "1");
    assert_eq!(field(&dir, "Seccomp:"), "2");
    let rights = ["CapPrm:", "CapEff:", "CapInh:"]
        .map(|set| u64::from_str_radix(&field(&dir, set), 16).expect("a number"));
    // CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_SYS_NICE, CAP_SYSLOG, CAP_BPF
    let all: u64 = [10, 12, 21, 23, 34, 39]
        .map(|number| 1 << number)
        .iter()
        .sum();
    assert_eq!(rights[0] & !all, 0, "{rights:x?}");
    assert_ne!(rights[0] & 1 << 12, 0, "{rights:x?}");
    assert_eq!(rights, [rights[0], rights[0], 0]);
    daemon.signal("KILL");
    daemon.wait();
    // The host's first process leaves what has ended as it is.
    let has_ended = || std::fs::read_link(dir.join("exe")).is_err();
    wait_for("it ends, too", seconds(10), has_ended);
    // It is not started where it is not needed.
    let other = Container::new("right");
    let subject = Program::Adit.path().display().to_string();
    other.sh(&format!("{subject} run --no-sandbox wg0"));
    assert!(!other.try_sh("pgrep -x adit-helper").ok());
}

#[test]
fn a_tunnel_goes_on_without_the_process_with_the_rights() {
    if !Program::Adit.is_adit() {
        return;
    }
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let (left, daemon) = (&net.left, &tunnel.left.daemon);
    left.sh("pkill -KILL -x adit-helper");
    wait_for("it is missed", seconds(10), || {
        daemon
            .log()
            .contains("the process that has the rights has ended")
    });
    let refused = left.try_sh("wg set wg0 fwmark 8");
    assert!(!refused.ok(), "{refused:?}");
    assert_eq!(tunnel.left.wg("show {} fwmark").trim(), "off");
    let subject = Program::Adit.path().display().to_string();
    let refused = left.try_sh(&format!("{subject} run --join wg0 wg1"));
    assert!(
        !refused.ok() && refused.stderr.contains("has ended"),
        "{refused:?}"
    );
    // A new port takes a socket, which the process cannot make. Who asks learns why, and what to do.
    ping(left, &tunnel.right.v4, 3);
    let port = tunnel.left.wg("show {} listen-port");
    let refused = left.try_sh("wg set wg0 listen-port 51999");
    assert!(!refused.ok(), "{refused:?}");
    assert_eq!(tunnel.left.wg("show {} listen-port"), port);
    let log = daemon.log();
    let says = log.lines().rfind(|line| line.contains("refused a request"));
    let says = says.unwrap_or_else(|| panic!("{log}"));
    assert!(
        says.contains("has ended") && says.contains("adit upgrade"),
        "{says}"
    );
    // What takes no right goes on, with another MTU, too.
    left.sh("ip link set wg0 mtu 1300");
    ping(left, &tunnel.right.v4, 3);
    let said = left.sh(&format!("{subject} show wg0"));
    assert!(said.contains("adit upgrade"), "{said}");
}

/// Nothing else tells of it, where the process has no log.
#[test]
fn show_tells_that_the_rights_are_gone_and_an_upgrade_mends_it() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let subject = Program::Adit.path().display().to_string();
    host.sh(&format!("{subject} wg0"));
    let says = || host.sh(&format!("{subject} show wg0"));
    assert!(!says().contains("ended"), "{}", says());
    host.sh("pkill -KILL -x adit-helper");
    wait_for("it is told", seconds(10), || {
        says().contains("adit upgrade")
    });
    let join = format!("{subject} run --join wg0 wg1");
    assert!(!host.try_sh(&join).ok());
    host.sh(&format!("{subject} upgrade wg0"));
    assert!(!says().contains("ended"), "{}", says());
    host.sh(&join);
}

#[test]
fn the_process_that_looks_names_up_is_nobody_and_has_no_right() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let subject = Program::Adit.path().display().to_string();
    let resolver_of = |interface: &str, arguments: &str| {
        host.sh(&format!("{subject} {arguments} {interface}"));
        let find = || host.try_sh("pgrep -n -x adit-resolver");
        wait_for("it runs", seconds(10), || find().ok());
        process(&host, find().stdout.trim().parse().expect("a process"))
    };
    let dir = resolver_of("wg0", "run --names");
    let filters = |dir: &Path| field(dir, "Seccomp_filters:").parse::<u32>();
    wait_for("its threads are confined", seconds(10), || {
        let tasks = std::fs::read_dir(dir.join("task")).expect("tasks");
        let tasks = tasks.map(|task| filters(&task.expect("a task").path()).expect("a number"));
        let tasks: Vec<u32> = tasks.collect();
        // One is that of the process.
        tasks.len() == 4 && tasks.iter().all(|filters| *filters > 1)
    });
    for name in ["CapPrm:", "CapEff:", "CapInh:"] {
        assert!(all(&dir, name, "0000000000000000"), "{name}");
    }
    assert!(all(&dir, "NoNewPrivs:", "1"));
    assert!(all(&dir, "Uid:", "65534\t65534\t65534\t65534"));
    assert!(all(&dir, "Gid:", "65534\t65534\t65534\t65534"));
    assert!(all(&dir, "Groups:", ""));
    // The one that would start it again is nobody, too.
    let starts = found(&host, "adit-restarts");
    assert!(all(&starts, "Uid:", "65534\t65534\t65534\t65534"));
    assert!(all(&starts, "CapPrm:", "0000000000000000"));
    host.sh("pkill -x adit-restarts");
    wait_for("both end", seconds(10), || {
        // The host's first process leaves what has ended as it is.
        !host.try_sh("ps -C adit-resolver -o stat= | grep -v Z").ok()
    });
    let dir = resolver_of("wg1", "run --no-sandbox --names");
    assert!(all(&dir, "Seccomp:", "0"));
}

/// As wg-quick starts it: no name can come.
#[test]
fn an_idle_process_is_two_processes() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let subject = Program::Adit.path().display().to_string();
    host.sh(&format!("{subject} wg0"));
    let count = || host.sh("ps -e -o stat=,comm= | grep -v ^Z | grep -c ' adit'");
    wait_for("it has started", seconds(10), || count().trim() == "2");
    // It goes on so in another process.
    host.sh(&format!("{subject} upgrade wg0"));
    wait_for("the old ones end", seconds(10), || count().trim() == "2");
    assert!(!host.try_sh("pgrep -x adit-resolver").ok());
}

/// Whether what a process can write to has these bytes.
fn has_in_memory(process: &Path, bytes: &[u8]) -> bool {
    let maps = std::fs::read_to_string(process.join("maps")).expect("its memory");
    let memory = std::fs::File::open(process.join("mem")).expect("root may");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let mut areas = maps.lines().filter_map(|line| {
        let (area, rest) = line.split_once(' ')?;
        let (start, end) = area.split_once('-')?;
        rest.starts_with("rw").then(|| number(start)..number(end))
    });
    areas.any(|area| {
        let mut found = vec![0; usize::try_from(area.end - area.start).expect("it fits")];
        // Some areas are the kernel's.
        let is_read = memory.read_exact_at(&mut found, area.start).is_ok();
        is_read && found.windows(bytes.len()).any(|window| window == bytes)
    })
}

/// It has read keys, and lives as long as the tunnel.
#[test]
fn what_stays_with_a_tunnel_keeps_no_key_and_makes_no_dump() {
    if !Program::Adit.is_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let subject = Program::Adit.path().display().to_string();
    let preshared = Keys::new().private;
    let config = world.config("", "192.168.77.0/24") + &format!("PresharedKey = {preshared}\n");
    world.write(&config);
    // A process with its rights, and none to trace others.
    let limited = "setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace";
    left.sh(&format!(
        "{limited} {subject} up --foreground wg0 > /run/said 2>&1 & until grep -q 'wg0 is up' /run/said; do sleep 0.05; done"
    ));
    let pid = left.sh("pgrep -f '[a]dit up --foreground'");
    let dir = process(left, pid.trim().parse().expect("one process"));
    // The name of the interface is there, so that this would find a key.
    assert!(has_in_memory(&dir, b"wg0"));
    for key in [world.private_key_of_left(), &preshared] {
        let secret = adit_ctl::keys::from_base64(key).expect("a key");
        assert!(!has_in_memory(&dir, secret.bytes()), "a key");
        assert!(!has_in_memory(&dir, key.as_bytes()), "the text of a key");
    }
    let read = |pid: &str| format!("readlink /proc/{}/exe", pid.trim());
    assert!(left.try_sh(&read(&pid)).ok(), "root may");
    let may = |pid| left.try_sh(&format!("{limited} {}", read(pid))).ok();
    let other = left.sh(&format!("{limited} sleep 99 > /dev/null 2>&1 & echo $!"));
    // Not before it has begun: setpriv has more rights.
    wait_for("what has no keys is read", seconds(20), || may(&other));
    assert!(!may(&pid), "it could be dumped");
}

/// So that an intruder in the process cannot use it against others of the same user.
#[test]
fn a_process_without_rights_cannot_trace_it() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let _daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    let pid = processes(&host)[0];
    let read = format!("head -c 1 /proc/{pid}/environ > /dev/null");
    assert!(host.try_sh(&read).status.success(), "root may");
    let without = format!("setpriv --bounding-set -all --inh-caps -all sh -c '{read}'");
    assert!(
        !host.try_sh(&without).status.success(),
        "root without capabilities may not"
    );
}
