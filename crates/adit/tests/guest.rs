//! A tunnel is a guest in its process: what it must not do there unasked, and what it must not leave.

#![cfg(feature = "engine")]

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adit::{ChannelEnd, Config, Packet, Peer, PrivateKey, Threads, Tunnel, channel};

const PATIENCE: Duration = Duration::from_secs(20);

fn key(n: u8) -> PrivateKey {
    PrivateKey::from_bytes(&[n; 32]).expect("a key")
}

fn block(text: &str) -> adit::IpBlock {
    text.parse().expect("a block")
}

/// An IPv4 packet without payload.
fn packet(from: u8, to: u8) -> Vec<u8> {
    vec![
        0x45, 0, 0, 20, 0, 0, 0x40, 0, 64, 59, 0, 0, 10, 0, 0, from, 10, 0, 0, to,
    ]
}

/// Two tunnels begin, carry a packet, and end: one is stopped, one is dropped. The other ends of their sources are what
/// stays.
fn live(threads: &Threads) -> [ChannelEnd; 2] {
    let (io, end) = channel(1 << 16);
    let peer = Peer::new(key(1).public_key()).allowed_ip(block("10.0.0.1"));
    let second = Tunnel::builder(Config::new(key(2)).peer(peer)).threads(threads.clone());
    let second = second.packets(io).start().expect("a tunnel");
    let port = second.status().expect("a status").listen_port;
    let peer = Peer::new(key(2).public_key())
        .allowed_ip(block("10.0.0.2"))
        .endpoint(SocketAddr::from(([127, 0, 0, 1], port)));
    let (io, first_end) = channel(1 << 16);
    let first = Tunnel::builder(Config::new(key(1)).peer(peer)).threads(threads.clone());
    let first = first.packets(io).start().expect("a tunnel");
    first_end.send(Packet::new(packet(1, 2))).expect("room");
    assert!(end.recv(PATIENCE).is_some());
    first.stop();
    drop(second);
    [first_end, end]
}

/// Two networks begin, carry a byte each way, and are dropped while a stream and a listener are open, which are what
/// stays.
#[cfg(feature = "net")]
fn live_networks(threads: &Threads) -> (adit::net::TcpListener, [adit::net::TcpStream; 2]) {
    use std::io::{Read, Write};

    use adit::net::Net;

    let start = |n: u8, other: u8, endpoint: Option<SocketAddr>| {
        let mut peer =
            Peer::new(key(other).public_key()).allowed_ip(block(&format!("10.0.0.{other}")));
        if let Some(endpoint) = endpoint {
            peer = peer.endpoint(endpoint);
        }
        Net::builder(Config::new(key(n)).peer(peer))
            .address([10, 0, 0, n].into())
            .threads(threads.clone())
            .start()
            .expect("a network")
    };
    let second = start(2, 1, None);
    let port = second.tunnel().status().expect("a status").listen_port;
    let first = start(1, 2, Some(SocketAddr::from(([127, 0, 0, 1], port))));
    let listener = second.listen_tcp(80).expect("a port");
    let address = SocketAddr::from(([10, 0, 0, 2], 80));
    let mut streams = [
        first.connect_tcp(address, PATIENCE).expect("a stream"),
        listener.accept().expect("a stream"),
    ];
    for (from, to) in [(0, 1), (1, 0)] {
        streams[from].write_all(b"a").expect("room");
        streams[to].read_exact(&mut [0]).expect("a byte");
    }
    (listener, streams)
}

const BEGIN: &str = "-- a tunnel begins";
const END: &str = "-- a tunnel has ended";
const CHILD: &str = "ADIT_TEST_GUEST";

/// Run by [`nothing_is_changed_in_the_process_or_on_its_host`], in a process of its own.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    eprintln!("{BEGIN}");
    live(&Threads::default());
    eprintln!("{END}");
}

#[test]
fn nothing_is_changed_in_the_process_or_on_its_host() {
    let own = std::env::current_exe().expect("a path");
    let trace = std::env::temp_dir().join(format!("adit-guest-{}.trace", std::process::id()));
    let run = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(&trace)
        .arg(own)
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        // A tunnel does not read it.
        .env("ADIT_AEAD", "none of those that there are")
        .stdout(Stdio::null())
        .output()
        .expect("strace, which scripts/setup installs");
    let text = std::fs::read_to_string(&trace).expect("a trace");
    let _ = std::fs::remove_file(&trace);
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains(END), "{said}");
    let lines = text.lines().skip_while(|line| !line.contains(BEGIN));
    let lines: Vec<&str> = lines.take_while(|line| !line.contains(END)).collect();
    assert!(
        lines.iter().any(|line| line.contains("sendmmsg(")),
        "a whole trace"
    );
    let wrong: Vec<&&str> = lines.iter().filter(|line| is_impolite(line)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `PR_GET_AUXV`, which reads what the processor has.
const GET_AUXV: &str = "0x41555856";

/// Whether a guest does not make this call.
fn is_impolite(line: &str) -> bool {
    let call = line
        .split_once(' ')
        .map_or(line, |(_, call)| call.trim_start());
    let name = call.split('(').next().unwrap_or_default();
    match name {
        "setpriority" | "sched_setaffinity" | "sched_setscheduler" | "sched_setattr" | "bpf"
        | "rt_sigaction" | "signalfd4" | "kill" | "tgkill" | "seccomp" | "setrlimit"
        | "prlimit64" | "mlockall" | "open" | "openat" | "openat2" | "unlink" | "unlinkat"
        | "rename" | "chmod" | "execve" | "fork" | "vfork" | "ptrace" | "setns" | "unshare"
        | "capset" => true,
        "socket" => !call.contains("SOCK_DGRAM") || call.contains("AF_NETLINK"),
        "setsockopt" => call.contains("SO_ATTACH") || call.contains("SO_REUSE"),
        // Threads have names, and so has their memory.
        "prctl" => !["PR_SET_NAME", "PR_SET_VMA", GET_AUXV]
            .iter()
            .any(|it| call.contains(it)),
        _ => false,
    }
}

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}"))
        .expect("/proc")
        .count()
}

fn resident_kilobytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

/// `ADIT_STARTS=10000` has it begin and end as many.
#[test]
fn nothing_is_left_of_tunnels_that_end() {
    let starts = std::env::var("ADIT_STARTS")
        .ok()
        .and_then(|text| text.parse().ok());
    let starts: usize = starts.unwrap_or(200);
    // Other tests of this process have descriptors and threads meanwhile.
    if std::env::var_os(CHILD).is_none() {
        let own = std::env::current_exe().expect("a path");
        let run = Command::new(own)
            .args([
                "--exact",
                "nothing_is_left_of_tunnels_that_end",
                "--nocapture",
            ])
            .args(["--test-threads=1"])
            .env(CHILD, "1")
            .output()
            .expect("this program");
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{said}");
        return;
    }
    let threads = Threads::new(2);
    let live_and_end = |times: usize| {
        #[cfg(feature = "net")]
        (0..times / 10).for_each(|_| drop(live_networks(&threads)));
        let ends: Vec<_> = (0..times).map(|_| live(&threads)).collect();
        ends
    };
    drop(live_and_end(20));
    let before = (count("fd"), count("task"));
    let memory = resident_kilobytes();
    let ends = live_and_end(starts / 2);
    // A thread that was waited for leaves /proc a moment later.
    let until = Instant::now() + PATIENCE;
    while (count("fd"), count("task")) != before {
        assert!(
            Instant::now() < until,
            "{:?}",
            (count("fd"), count("task"), before)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(ends);
    let after = resident_kilobytes();
    // The allocator keeps some for each thread that was, whatever their number; a tunnel has more than that.
    assert!(
        after < memory + (32 << 10),
        "{memory} KiB before, {after} KiB after"
    );
}
