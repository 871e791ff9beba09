//! Several threads process one interface: numbered datagrams in many flows over real TUNs, each with
//! an answer, while threads are moved, throttled and stopped, threads change, and an end roams.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::harness::*;
use crate::many;
use crate::quick::adit;

const FLOWS: usize = 16;
/// Datagrams without an answer, at most: they fit the queues of both interfaces.
const WINDOW: usize = 256;
/// Datagrams from one change of the endpoint to the next.
const LEG: usize = 4_000;
/// An answer that takes longer is lost.
const LOST: Duration = Duration::from_secs(20);

/// Where numbered datagrams are answered.
struct Answerer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answerer {
    fn start(host: &Container, ip: &str) -> Self {
        let ip: IpAddr = ip.parse().expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let stopped = Arc::clone(&stop);
        let thread = host.spawn(move || {
            let socket = socket(ip);
            tell.send(socket.local_addr().expect("an address"))
                .expect("the test waits");
            let mut next: HashMap<SocketAddr, u32> = HashMap::new();
            let mut buffer = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((n, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                check(&buffer[..n], next.entry(from).or_default(), "on the way");
                socket.send_to(&buffer[..n], from).expect("an answer");
            }
        });
        Self {
            address: told.recv().expect("it listens"),
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "see above");
        }
    }
}

fn socket(ip: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::new(ip, 0)).expect("a socket");
    set_socket_recv_buffer_size_force(&socket, 8 << 20).expect("root may");
    let timeout = Some(Duration::from_millis(100));
    socket.set_read_timeout(timeout).expect("a timeout");
    socket
}

/// The datagram is the next of its flow, and no other.
fn check(datagram: &[u8], next: &mut u32, where_it_is: &str) {
    let number = u32::from_le_bytes(datagram[..4].try_into().expect("four bytes"));
    assert_eq!(number, *next, "{where_it_is}");
    *next += 1;
}

/// The flows, and how many datagrams of each were sent and answered.
struct Flows(Vec<(UdpSocket, u32, u32)>);

impl Flows {
    fn new(from: &Container, ip: &str) -> Self {
        let ip: IpAddr = ip.parse().expect("an address");
        from.within(move || {
            let flow = |_| {
                let socket = socket(ip);
                socket.set_nonblocking(true).expect("O_NONBLOCK");
                (socket, 0, 0)
            };
            Self((0..FLOWS).map(flow).collect())
        })
    }

    /// Sends so many datagrams more, as fast as answers come. Sockets keep the namespace that they
    /// were made in.
    fn leg(&mut self, to: SocketAddr, datagrams: usize) {
        let (mut sent, mut answered) = (0, 0);
        let mut buffer = [0; 2048];
        let mut last = Instant::now();
        while answered < datagrams {
            while sent < datagrams && sent - answered < WINDOW {
                // Runs of one flow, and changes.
                let (socket, number, _) = &mut self.0[(sent / 3 + sent % 2) % FLOWS];
                buffer[..4].copy_from_slice(&number.to_le_bytes());
                let len = 4 + (sent * 37) % 1300;
                // Its queue may be full for a moment.
                if socket.send_to(&buffer[..len], to).is_err() {
                    break;
                }
                *number += 1;
                sent += 1;
            }
            let before = answered;
            for (socket, _, next) in &mut self.0 {
                while let Ok((n, _)) = socket.recv_from(&mut buffer) {
                    check(&buffer[..n], next, "on the way back");
                    answered += 1;
                }
            }
            if answered > before {
                last = Instant::now();
            } else {
                assert!(
                    last.elapsed() < LOST,
                    "{} of {sent} are lost",
                    sent - answered
                );
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

/// Moves, throttles and stops the threads of processes until it is dropped.
struct Scheduler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    fn start(pids: Vec<u32>, mut also: impl FnMut(usize) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for round in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                for pid in &pids {
                    disturb(*pid, round);
                }
                also(round);
                std::thread::sleep(Duration::from_millis(20));
            }
            for pid in pids {
                shards(pid).for_each(|thread| throttle(thread, false));
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("once").join().expect("it ends");
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The threads of a process that process packets, as the test sees them.
fn shards(pid: u32) -> impl Iterator<Item = i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let tasks: Vec<PathBuf> = tasks.flatten().flatten().map(|task| task.path()).collect();
    tasks.into_iter().filter_map(|task| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let is_shard = name.starts_with("adit-shard") || name.starts_with("adit-inbound");
        let number = task.file_name()?.to_str()?.parse().ok()?;
        is_shard.then_some(number)
    })
}

fn disturb(pid: u32, round: usize) {
    let all = sched_getaffinity(None).expect("our CPUs");
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| all.is_set(*cpu))
        .collect();
    for (number, thread) in shards(pid).enumerate() {
        let turn = round + number;
        // A thread may have ended since it was found.
        let id = Pid::from_raw(thread);
        let mut set = CpuSet::new();
        set.set(cpus[turn % cpus.len()]);
        let _ = sched_setaffinity(id, if turn.is_multiple_of(5) { &all } else { &set });
        throttle(thread, turn.is_multiple_of(4));
    }
    if round.is_multiple_of(8) {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let id = id.expect("a process");
        kill_process(id, Signal::STOP).expect("it runs");
        std::thread::sleep(Duration::from_millis(20));
        kill_process(id, Signal::CONT).expect("it is there");
    }
}

/// SCHED_IDLE gets what nobody else wants.
fn throttle(thread: i32, idle: bool) {
    let class = if idle { "-i" } else { "-o" };
    let _ = std::process::Command::new("chrt")
        .args([class, "-p", "0", &thread.to_string()])
        .output();
}

/// The number that the status has for a drop reason.
fn drops(host: &Container, interface: &str, reason: &str) -> u64 {
    let status = status(host, interface);
    let count = status["engine"]["drops"][reason].as_u64();
    count.unwrap_or_else(|| panic!("no {reason} in {status}"))
}

fn status(host: &Container, interface: &str) -> serde_json::Value {
    let show = host.sh(&format!("{} show {interface} --json", adit()));
    let mut report: serde_json::Value = serde_json::from_str(&show).expect("JSON");
    report["interfaces"][0].take()
}

/// Four threads at most at each end, by this policy.
fn by(policy: &str) -> WgTunnel {
    let net = SitePair::new();
    let start = Start::default()
        .env("ADIT_SHARDS", "4")
        .env("ADIT_POLICY", policy);
    let tunnel = WgTunnel::new(&net, Setup::starting(start));
    tunnel.connect();
    let (left, right) = (&tunnel.left, &tunnel.right);
    let answerer = Answerer::start(&right.host, &right.v4);
    let mut flows = Flows::new(&left.host, &left.v4);
    let scheduler = Scheduler::start(vec![left.daemon.pid(), right.daemon.pid()], |_| ());
    // The kernel gives these ports to no flow.
    for (side, other, port) in [(left, right, 21821), (right, left, 21822)] {
        flows.leg(answerer.address, LEG);
        side.wg(&format!("set {{}} listen-port {port}"));
        // The other one learns of it by what arrives from there.
        ping(&side.host, &other.v4, 1);
    }
    flows.leg(answerer.address, LEG);
    scheduler.end();
    for side in [left, right] {
        assert_eq!(drops(&side.host, "wg0", "replayed"), 0);
        assert_eq!(side.status()["engine"]["policy"], policy);
        assert_eq!(side.status()["engine"]["max_shards"], 4);
    }
    tunnel
}

#[test]
fn flows_keep_their_order_inline_whatever_the_scheduler_does() {
    by("inline");
}

#[test]
fn flows_keep_their_order_in_a_pipeline_whatever_the_scheduler_does() {
    let tunnel = by("pipeline");
    let threads = &tunnel.left.status()["engine"]["cpu_milliseconds"];
    assert!(threads["adit-shard-1"].is_u64(), "nobody helped: {threads}");
}

#[test]
fn flows_keep_their_order_by_auto_whatever_the_scheduler_does() {
    by("auto");
}

/// What each thread may keep, in KiB.
const KEPT: u64 = 512;

#[test]
fn threads_that_rest_give_back_the_memory_that_a_load_took() {
    let net = SitePair::new();
    let start = Start::default()
        .env("ADIT_SHARDS", "8")
        .env("ADIT_POLICY", "pipeline");
    let tunnel = WgTunnel::new(&net, Setup::starting(start));
    tunnel.connect();
    let (left, right) = (&tunnel.left, &tunnel.right);
    let before = [left, right].map(|side| memory(side.daemon.pid(), "RssAnon:"));
    tcp_many(&left.host, &right.host, &right.v4, 8, 32 << 20);
    for (side, before) in [left, right].into_iter().zip(before) {
        let pid = side.daemon.pid();
        assert!(shards(pid).count() > 1, "nobody helped");
        let loaded = memory(pid, "RssAnon:");
        assert!(loaded > before, "the load took no memory");
        wait_for("its memory to be given back", seconds(40), || {
            memory(pid, "RssAnon:") <= before + 8 * KEPT
        });
        let after = memory(pid, "RssAnon:");
        println!(
            "memory of eight threads: {before} KiB, {loaded} KiB under load, {after} KiB after it"
        );
    }
}

#[test]
fn threads_change_under_load_without_a_loss() {
    let net = SitePair::new();
    for host in [&net.left, &net.right] {
        host.sh(&format!("LOG_LEVEL=silent {} run wg0 wg1 wg2", adit()));
    }
    for i in 0..3 {
        many::join(&net, i);
    }
    ping(&net.left, "10.10.2.2", 1);
    let tune = |host: &Container, arguments: &str| {
        host.try_sh(&format!("{} tune wg0 {arguments}", adit()))
    };
    for (wrong, why) in [
        ("", "required"),
        ("--shards 0", "1..=1024"),
        ("--policy fast", "inline"),
    ] {
        let refused = tune(&net.left, wrong);
        assert!(!refused.ok(), "{wrong}");
        assert!(refused.stderr.contains(why), "{wrong}: {}", refused.stderr);
    }
    let answerer = Answerer::start(&net.right, "10.10.2.2");
    let mut flows = Flows::new(&net.left, "10.10.2.1");
    let hosts = [net.left.clone(), net.right.clone()];
    let scheduler = Scheduler::start(Vec::new(), move |round| {
        let shards = [4, 1, 3, 1, 2][round % 5];
        let policy = ["pipeline", "inline", "auto", "pipeline"][round % 4];
        let host = &hosts[round % 2];
        let change = format!("--shards {shards} --policy {policy}");
        let tuned = tune(host, &change);
        assert!(tuned.ok(), "{change}: {}", tuned.stderr);
        let engine = &status(host, "wg2")["engine"];
        assert_eq!(engine["max_shards"], shards);
        assert_eq!(engine["policy"], policy);
    });
    for _ in 0..4 {
        flows.leg(answerer.address, LEG);
    }
    scheduler.end();
    for host in [&net.left, &net.right] {
        assert_eq!(drops(host, "wg2", "replayed"), 0);
    }
    // One of them is left as it is.
    assert!(tune(&net.left, "--shards 3 --policy inline").ok());
    let json = tune(&net.left, "--json --policy auto");
    assert!(
        json.ok() && json.stdout.contains("\"policy\": \"auto\""),
        "{}",
        json.stdout
    );
    assert_eq!(status(&net.left, "wg1")["engine"]["max_shards"], 3);
    let gone = net.left.try_sh(&format!("{} tune wg7 --shards 2", adit()));
    assert!(
        gone.stderr.contains("no process serves wg7"),
        "{}",
        gone.stderr
    );
}
