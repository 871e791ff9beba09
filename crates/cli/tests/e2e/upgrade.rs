//! One process goes on in place of another: `adit upgrade`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_proto::HAND_OVER_FORMAT;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::harness::*;
use crate::quick::{adit, only_adit, state};

/// Two hosts whose tunnels are served by processes in the background.
struct Hosts {
    net: SitePair,
    keys: [Keys; 2],
}

/// Datagrams that the kernel merges at most.
const MAX_MERGED: u64 = 64;

const INNER: [&str; 2] = ["192.168.77.1", "192.168.77.2"];

impl Hosts {
    fn new() -> Self {
        let net = SitePair::new();
        let keys = [Keys::new(), Keys::new()];
        let hosts = Self { net, keys };
        for side in [0, 1] {
            hosts.start(side, "");
        }
        ping(hosts.host(0), INNER[1], 1);
        hosts
    }

    fn host(&self, side: usize) -> &Container {
        [&self.net.left, &self.net.right][side]
    }

    /// With these variables.
    fn start(&self, side: usize, environment: &str) {
        let to = [
            self.net.address_of_right(Family::V4),
            self.net.address_of_left(Family::V4),
        ];
        let host = self.host(side);
        let (own, other) = (&self.keys[side], &self.keys[1 - side]);
        host.sh(&format!(
            "LOG_LEVEL=error {environment} {} wg0 2>> /run/log",
            adit()
        ));
        let config = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = {}/32\n\
             Endpoint = {}:51820\n",
            own.private,
            other.public,
            INNER[1 - side],
            to[side]
        );
        setconf(host, "wg0", &config);
        // On a busy machine what waits while a process is replaced is more than 500 packets.
        host.sh(&format!(
            "set -e; ip addr add {}/24 dev wg0; ip link set wg0 txqueuelen 10000 up",
            INNER[side]
        ));
    }

    fn upgrade(&self, side: usize) {
        let before = processes(self.host(side));
        self.host(side).sh(&format!("{} upgrade wg0", adit()));
        wait_for("the old process ends", seconds(30), || {
            processes(self.host(side)).len() == 1
        });
        assert_ne!(processes(self.host(side)), before);
    }

    /// Latest handshakes and the peers' sessions, as far as anybody can see them.
    fn handshakes(&self) -> Vec<String> {
        let shown = [0, 1].map(|side| {
            let host = self.host(side);
            let latest = host.sh("wg show wg0 latest-handshakes");
            let counted = host.sh(&format!("{} show wg0 --json", adit()));
            let report: serde_json::Value = serde_json::from_str(&counted).expect("JSON");
            let counted = &report["interfaces"][0]["engine"]["handshakes"];
            format!("{latest} {counted}")
        });
        shown.into()
    }

    /// Packets that were dropped and counted on both hosts, by reason.
    fn drops(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for side in [0, 1] {
            let shown = self.host(side).sh(&format!("{} show wg0 --json", adit()));
            let report: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            let drops = &report["interfaces"][0]["engine"]["drops"];
            for (reason, count) in drops.as_object().expect("drops") {
                *sums.entry(reason.clone()).or_default() += count.as_u64().expect("a count");
            }
        }
        sums
    }

    /// The process of a side begins anew, without a sandbox, which would end it where it is refused a
    /// call.
    fn without_sandbox(&self, side: usize) -> u32 {
        let host = self.host(side);
        host.sh("pkill -TERM -x adit");
        wait_for("it ends", seconds(30), || processes(host).is_empty());
        self.start(side, "ADIT_NO_SANDBOX=1");
        let [new] = processes(host).try_into().expect("one process");
        new
    }

    /// Connects to a process as one that wants to go on in its place.
    fn ask(&self, side: usize) -> Asking {
        self.ask_as(side, RELAY)
    }

    /// The same by another script.
    fn ask_as(&self, side: usize, script: &str) -> Asking {
        let host = self.host(side);
        let sockets = host.sh("echo /run/adit/upgrade/*.sock");
        let mut command = host.command("perl");
        command.args(["-MIO::Socket::UNIX", "-e", script, sockets.trim()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Asking(command.spawn().expect("perl"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for side in [0, 1] {
                eprintln!("{}", self.host(side).try_sh("cat /run/log").stdout);
            }
        }
    }
}

/// The other end of a hand-over, of which a test says what it does: a process of the host, because a
/// process that the host does not see gets nothing.
struct Asking(Child);

/// Passes on what comes from its standard input and from the socket; the end of the former ends it.
const RELAY: &str = "$s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die; \
    if (fork) { syswrite($s, $b) while sysread(STDIN, $b, 65536); shutdown($s, 2); wait } \
    else { syswrite(STDOUT, $b) while sysread($s, $b, 65536) }";

impl Drop for Asking {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("perl ends");
    }
}

/// strace(1), which decides what becomes of some calls of a process.
struct Tracer<'a>(&'a Container);

impl<'a> Tracer<'a> {
    /// Returns when all threads of the process are traced.
    fn start(host: &'a Container, pid: u32, options: &str) -> Self {
        host.sh(&format!(
            "strace -f -qq -o /dev/null {options} -p {pid} > /dev/null 2>&1 &"
        ));
        let tracer = Self(host);
        wait_for("all threads are traced", seconds(30), || {
            let free = format!("grep -l '^TracerPid:.0$' /proc/{pid}/task/*/status");
            host.try_sh(&free).stdout.is_empty()
        });
        tracer
    }
}

/// What it stopped goes on, and what it keeps from ending ends.
impl Drop for Tracer<'_> {
    fn drop(&mut self) {
        self.0.try_sh("pkill -KILL -x strace");
    }
}

const HELLO: u8 = 0;
const REFUSED: u8 = 2;
const OFFER: u8 = 3;
const INTERFACE: u8 = 4;
const READY: u8 = 5;
const RECORD: u8 = 6;
const STATE: u8 = 7;
const COMPLETE: u8 = 8;
const GO: u8 = 9;

impl Asking {
    fn tell(&mut self, kind: u8, text: &str) {
        let mut message = vec![kind];
        message.extend(u32::try_from(text.len()).expect("short").to_le_bytes());
        message.extend(text.as_bytes());
        let to = self.0.stdin.as_mut().expect("a pipe");
        to.write_all(&message).expect("it listens");
    }

    fn hear(&mut self) -> (u8, Vec<u8>) {
        let from = self.0.stdout.as_mut().expect("a pipe");
        let mut header = [0; 5];
        from.read_exact(&mut header).expect("a message");
        let [kind, len @ ..] = header;
        let mut body = vec![0; u32::from_le_bytes(len) as usize];
        from.read_exact(&mut body).expect("all of it");
        (kind, body)
    }

    /// Goes on until a message of this kind comes.
    fn until(&mut self, wanted: u8) -> Vec<u8> {
        loop {
            let (kind, body) = self.hear();
            if kind == wanted {
                return body;
            }
            let text = String::from_utf8_lossy(&body);
            assert!([OFFER, INTERFACE, RECORD, STATE].contains(&kind), "{text}");
        }
    }

    /// Asks for all that there is.
    fn begin(&mut self) {
        self.hello(&format!("[{HAND_OVER_FORMAT}]"));
        self.until(INTERFACE);
    }

    /// Takes it, until it is told to go on.
    fn until_go(&mut self) {
        self.tell(READY, "null");
        self.until(STATE);
        self.tell(COMPLETE, "null");
        self.until(GO);
    }

    fn hello(&mut self, formats: &str) {
        let hello = format!(r#"{{"version":"9.9","formats":{formats},"takes":true}}"#);
        self.tell(HELLO, &hello);
    }
}

/// Numbered datagrams from one host to the other, at a steady pace. They come in their order, and
/// none twice.
struct Numbered {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<(u64, Duration)>,
}

impl Numbered {
    fn start(from: &Container, to: &Container, address: &str, pause: Duration) -> Self {
        let ip: IpAddr = address.parse().expect("an address");
        let to_port = SocketAddr::new(ip, 7777);
        let stop = Arc::new(AtomicBool::new(false));
        let socket = to.within(move || UdpSocket::bind(to_port).expect("a socket"));
        // What the receiver, which may wait for a CPU, has not read yet is not lost.
        set_socket_recv_buffer_size_force(&socket, 8 << 20).expect("root may");
        let start = Instant::now();
        let stopped = Arc::clone(&stop);
        let receiver = to.spawn(move || {
            let quiet = Some(Duration::from_millis(500));
            socket.set_read_timeout(quiet).expect("a timeout");
            let (mut next, mut count, mut longest) = (0, 0, Duration::ZERO);
            let mut datagram = [0; 1000];
            loop {
                match socket.recv(&mut datagram) {
                    Ok(_) => {
                        let [number, sent] = [0, 8].map(|at| {
                            u64::from_le_bytes(datagram[at..at + 8].try_into().expect("eight"))
                        });
                        assert!(number >= next, "{number} came twice, or behind {next}");
                        next = number + 1;
                        count += 1;
                        let took = start.elapsed() - Duration::from_nanos(sent);
                        longest = longest.max(took);
                    }
                    Err(_) if stopped.load(Ordering::Relaxed) => return (count, longest),
                    Err(_) => {}
                }
            }
        });
        let stopped = Arc::clone(&stop);
        let sender = from.spawn(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            let mut datagram = [7; 1000];
            let mut number = 0_u64;
            while !stopped.load(Ordering::Relaxed) {
                let sent = u64::try_from(start.elapsed().as_nanos()).expect("soon");
                datagram[..8].copy_from_slice(&number.to_le_bytes());
                datagram[8..16].copy_from_slice(&sent.to_le_bytes());
                socket.send_to(&datagram, to_port).expect("a tunnel");
                number += 1;
                std::thread::sleep(pause);
            }
            number
        });
        Self {
            stop,
            sender,
            receiver,
        }
    }

    /// Sent, received, and how long the slowest one took.
    fn stop(self) -> (u64, u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("a sender");
        let (received, longest) = self.receiver.join().expect("a receiver");
        (sent, received, longest)
    }
}

/// `ADIT_UPGRADES=100` does it so often. Prints how long the slowest datagram took meanwhile.
#[test]
fn traffic_goes_on_while_processes_are_replaced() {
    if !only_adit() {
        return;
    }
    let count = number("ADIT_UPGRADES", 10);
    let hosts = Hosts::new();
    let (left, right) = (hosts.host(0), hosts.host(1));
    let flow = Flow::start(left, right, INNER[1]);
    flow.advances(1 << 20);
    let before = hosts.handshakes();
    let mut all: Vec<Duration> = Vec::new();
    for round in 0..count {
        let drops = hosts.drops();
        let pause = Duration::from_micros(300);
        let there = Numbered::start(left, right, INNER[1], pause);
        let back = Numbered::start(right, left, INNER[0], pause);
        std::thread::sleep(Duration::from_millis(50));
        hosts.upgrade(round % 2);
        std::thread::sleep(Duration::from_millis(100));
        let mut lost = 0;
        for numbered in [there, back] {
            let (sent, received, longest) = numbered.stop();
            lost += sent - received;
            all.push(longest);
        }
        flow.advances(1 << 16);
        // A machine that does something else for long fills queues. The kernel counts what it merged
        // as one.
        let mut counted = hosts.drops();
        counted.retain(|reason, count| {
            *count -= drops.get(reason).unwrap_or(&0);
            *count > 0
        });
        let by_kernel = ["tun_full", "receive_buffer_full", "send_failed"];
        let most = counted.iter().map(|(reason, count)| {
            let is_train = by_kernel.contains(&reason.as_str());
            count * if is_train { MAX_MERGED } else { 1 }
        });
        assert!(
            lost <= most.sum(),
            "{lost} lost, {counted:?} counted, in round {round}"
        );
    }
    flow.stop();
    assert_eq!(
        hosts.handshakes(),
        before,
        "a handshake, or a counter that is lost"
    );
    all.sort();
    println!(
        "{count} hand-overs: the slowest datagram of each took {:?} (median), {:?} (most)",
        all[all.len() / 2],
        all[all.len() - 1]
    );
    for side in [0, 1] {
        assert_eq!(errors(hosts.host(side)), "");
        hosts.host(side).sh("pkill -TERM -x adit");
        wait_for("it ends", seconds(30), || {
            processes(hosts.host(side)).is_empty()
        });
        let left = hosts.host(side).sh("ls -A /run/adit /run/wireguard");
        assert!(!left.contains("wg0") && !left.contains("upgrade"), "{left}");
    }
}

/// A number from the environment.
fn number(variable: &str, otherwise: usize) -> usize {
    let given = std::env::var(variable).ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// Peers with sessions, and a bulk stream. `ADIT_UPGRADES=100 ADIT_UPGRADE_PEERS=1000` prints what
/// bench/REPORT.md has.
#[test]
fn a_gateway_under_load_is_replaced_without_a_handshake() {
    if !only_adit() {
        return;
    }
    let (count, peers) = (number("ADIT_UPGRADES", 3), number("ADIT_UPGRADE_PEERS", 20));
    let hosts = Hosts::new();
    let (left, right) = (hosts.host(0), hosts.host(1));
    // The further peers are interfaces of one more process on the right.
    let keys: Vec<Keys> = (0..peers).map(|_| Keys::new()).collect();
    let sections: String = (0..peers)
        .map(|i| {
            let (key, high, low) = (&keys[i].public, i / 250, 1 + i % 250);
            format!("[Peer]\nPublicKey = {key}\nAllowedIPs = 10.99.{high}.{low}/32\n")
        })
        .collect();
    left.sh_with_input("wg addconf wg0 /dev/stdin", &sections);
    let names: Vec<String> = (0..peers).map(|i| format!("p{i}")).collect();
    right.sh(&format!("{} run {}", adit(), names.join(" ")));
    let to = hosts.net.address_of_left(Family::V4);
    for (name, key) in names.iter().zip(&keys) {
        let script = format!(
            "set -e; wg set {name} private-key /dev/stdin peer {} endpoint {to}:51820 allowed-ips 10.98.0.1/32 \
             persistent-keepalive 600; ip link set {name} up",
            hosts.keys[0].public
        );
        right.sh_with_input(&script, &key.private);
    }
    let sessions = || {
        let shown = left.sh("wg show wg0 latest-handshakes");
        shown.lines().filter(|line| !line.ends_with("\t0")).count()
    };
    wait_for("all have sessions", seconds(60), || sessions() == peers + 1);
    right.sh("iperf3 -s -D > /dev/null");
    left.sh(&format!(
        "sleep 0.3; iperf3 -c {} -t 600 > /run/iperf 2>&1 &",
        INNER[1]
    ));
    std::thread::sleep(Duration::from_secs(1));
    let before = left.sh("wg show wg0 latest-handshakes");
    let mut all: Vec<Duration> = Vec::new();
    let (mut sent, mut received) = (0, 0);
    for _ in 0..count {
        let numbered = Numbered::start(right, left, INNER[0], Duration::from_micros(500));
        std::thread::sleep(Duration::from_millis(100));
        left.sh(&format!("{} upgrade wg0", adit()));
        std::thread::sleep(Duration::from_millis(200));
        let (some, came, longest) = numbered.stop();
        (sent, received) = (sent + some, received + came);
        all.push(longest);
        // A session is replaced after two minutes, by the peer that began it.
        if count <= 10 {
            assert_eq!(left.sh("wg show wg0 latest-handshakes"), before);
        }
    }
    all.sort();
    println!(
        "{count} hand-overs of {peers} peers under a stream: the slowest datagram of each took {:?} (least), {:?} \
         (median), {:?} (most); {received} of {sent} datagrams came",
        all[0],
        all[all.len() / 2],
        all[all.len() - 1]
    );
    println!("{}", left.sh(&format!("{} show wg0 | head -12", adit())));
    assert_eq!(errors(hosts.host(0)), "");
    left.sh("pkill iperf3; true");
}

/// What the log has besides who changed what.
fn errors(host: &Container) -> String {
    let log = host.sh("cat /run/log");
    let is_change = |line: &str| {
        line.contains(": configuration changed: ") || line.contains(": upgraded: adit (pid ")
    };
    log.lines().filter(|line| !is_change(line)).collect()
}

/// One that ends at each step, and one that does not know the format.
#[test]
fn a_process_that_fails_leaves_the_old_one_running() {
    if !only_adit() {
        return;
    }
    let hosts = Hosts::new();
    let (left, right) = (hosts.host(0), hosts.host(1));
    let before = (hosts.handshakes(), processes(left));
    let load = Numbered::start(left, right, INNER[1], Duration::from_millis(1));
    hosts.ask(0);
    let mut asking = hosts.ask(0);
    asking.hello("[4000000000]");
    let (kind, why) = asking.hear();
    assert_eq!(kind, REFUSED);
    let why = String::from_utf8(why).expect("text");
    assert!(why.contains("format") && why.contains("9.9"), "{why}");
    for steps in 0..4 {
        let mut asking = hosts.ask(0);
        asking.hello(&format!("[{HAND_OVER_FORMAT}]"));
        asking.until(OFFER);
        if steps > 0 {
            asking.until(INTERFACE);
            asking.tell(READY, "null");
        }
        if steps > 1 {
            asking.until(RECORD);
        }
        if steps > 2 {
            asking.until(STATE);
            asking.tell(READY, "null");
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let (sent, received, _) = load.stop();
    assert_eq!(received, sent);
    ping(right, INNER[0], 3);
    assert_eq!((hosts.handshakes(), processes(left)), before);

    // One that was told to go on, and does not: the sessions are not used again.
    let load = Numbered::start(left, right, INNER[1], Duration::from_millis(1));
    let mut asking = hosts.ask(0);
    asking.begin();
    asking.until_go();
    drop(asking);
    ping(left, INNER[1], 3);
    ping(right, INNER[0], 3);
    load.stop();
    assert_ne!(hosts.handshakes(), before.0, "the old sessions are used");
    assert_eq!(processes(left), before.1);
    hosts.upgrade(0);
    ping(left, INNER[1], 3);
}

/// It has the queues, the sockets and the keys, and says something else than that it goes on.
#[test]
fn a_process_that_was_told_to_go_on_and_does_not_say_so_is_ended() {
    if !only_adit() {
        return;
    }
    let hosts = Hosts::new();
    let left = hosts.host(0);
    let before = processes(left);
    let mut asking = hosts.ask(0);
    asking.begin();
    asking.until_go();
    asking.tell(READY, "null");
    let mut ended = None;
    wait_for("it ends", seconds(30), || {
        ended = asking.0.try_wait().expect("a child");
        ended.is_some()
    });
    let signal = ended.and_then(|status| status.signal());
    assert_eq!(signal, Some(9), "it did not end by itself: {ended:?}");
    ping(left, INNER[1], 3);
    assert_eq!(processes(left), before);
}

/// As before Linux 5.3. It could not be ended if it did not say that it goes on.
#[test]
fn nothing_is_handed_over_to_a_process_without_a_handle() {
    if !only_adit() {
        return;
    }
    let hosts = Hosts::new();
    let left = hosts.host(0);
    let old = hosts.without_sandbox(0);
    // The kernel is asked for the user, and then for the handle.
    let _tracer = Tracer::start(
        left,
        old,
        "-e trace=getsockopt,pidfd_open -e inject=getsockopt:error=ENOPROTOOPT:when=2 -e inject=pidfd_open:error=ENOSYS",
    );
    let mut asking = hosts.ask(0);
    asking.hello(&format!("[{HAND_OVER_FORMAT}]"));
    let (kind, why) = asking.hear();
    let why = String::from_utf8_lossy(&why).into_owned();
    assert!(
        kind == REFUSED && why.contains("no handle of the new process"),
        "{kind}: {why}"
    );
    assert_eq!(processes(left), [old]);
    ping(left, INNER[1], 3);
}

/// A process cannot end before the tracer of its threads lets them go: strace(1), which is stopped.
#[test]
fn where_the_new_process_cannot_be_ended_the_old_one_ends() {
    if !only_adit() {
        return;
    }
    let hosts = Hosts::new();
    let left = hosts.host(0);
    let script = format!("use threads; async {{ sleep 9999 while 1 }}; {RELAY}");
    let mut asking = hosts.ask_as(0, &script);
    asking.begin();
    // The other one named so passes on what comes back.
    let relay = left.sh("pgrep -o -x perl");
    let relay = relay.trim().parse().expect("a process");
    let threads = format!("ls /proc/{relay}/task");
    assert_eq!(left.sh(&threads).lines().count(), 2);
    let _tracer = Tracer::start(left, relay, "-e trace=none");
    asking.until_go();
    left.sh("pkill -STOP -x strace");
    wait_for("the old process ends", seconds(60), || {
        processes(left).is_empty()
    });
    wait_for("so does its interface", seconds(30), || {
        !left.has_interface("wg0")
    });
    let said = left.sh("cat /run/log");
    assert!(said.contains("and does not end"), "{said}");
}

#[test]
fn another_user_gets_nothing() {
    if !only_adit() {
        return;
    }
    let hosts = Hosts::new();
    let left = hosts.host(0);
    let before = processes(left);
    assert_eq!(left.sh("stat -c %a /run/adit/upgrade").trim(), "700");
    left.sh(&format!("cp {} /run/adit-for-all", adit()));
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups /run/adit-for-all";
    let refused = left.try_sh(&format!("{nobody} upgrade wg0"));
    assert!(!refused.ok());
    assert!(refused.stderr.contains("wg0"), "{}", refused.stderr);
    // Even one that gets at the socket.
    left.sh("chmod 777 /run/adit/upgrade /run/adit/upgrade/*.sock");
    let refused = left.try_sh(&format!("{nobody} upgrade wg0"));
    assert!(!refused.ok());
    assert_eq!(processes(left), before);
    ping(left, INNER[1], 1);
}

/// `kill -9` of the old process at any moment.
#[test]
fn a_kill_in_between_leaves_one_process_or_none() {
    if !only_adit() {
        return;
    }
    let hosts = Hosts::new();
    let left = hosts.host(0);
    for millis in [0, 5, 10, 15, 20, 30, 50, 100] {
        let [old] = processes(left).try_into().expect("one process");
        left.sh(&format!(
            "{} upgrade wg0 > /dev/null 2>&1 & sleep {:.3}; kill -9 {old} 2> /dev/null; wait",
            adit(),
            f64::from(millis) / 1000.0
        ));
        wait_for("one process at most", seconds(30), || {
            processes(left).len() == usize::from(left.has_interface("wg0"))
        });
        if !left.has_interface("wg0") {
            hosts.start(0, "");
        }
        ping(left, INNER[1], 2);
        left.sh("wg show wg0 dump");
    }
}

/// An intruder in it would have it stay, with the queues and sockets. Here strace(1) refuses it its end
/// and stops it. A delay would not do: strace then keeps it from being killed as well. Nor would a
/// sandbox, which ends a process of which a call is refused that way.
#[test]
fn an_old_process_that_does_not_end_is_ended() {
    if !only_adit() {
        return;
    }
    let hosts = Hosts::new();
    let left = hosts.host(0);
    let old = hosts.without_sandbox(0);
    let _tracer = Tracer::start(
        left,
        old,
        "-e trace=exit_group -e inject=exit_group:error=EAGAIN:signal=STOP",
    );
    let start = Instant::now();
    hosts.upgrade(0);
    assert!(start.elapsed() > seconds(4), "it ended by itself");
    ping(left, INNER[1], 3);
}

#[test]
fn a_tunnel_of_adit_up_can_be_upgraded_and_taken_down() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    let keys = Keys::new();
    let config = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/24\n# alice\n[Peer]\nPublicKey = {}\n\
         AllowedIPs = 0.0.0.0/0\nEndpoint = 10.0.0.2:51820\n",
        keys.private,
        Keys::new().public
    );
    host.sh(
        "set -e; ip link set lo up; ip link add eth0 type veth peer name eth1; ip addr add 10.0.0.1/24 dev eth0; \
         ip link set eth1 up; ip link set eth0 up",
    );
    let before = state(&host);
    host.sh_with_input(
        "mkdir -p /etc/wireguard; umask 077; cat > /etc/wireguard/wg0.conf",
        &config,
    );
    host.sh(&format!("{} up wg0", adit()));
    let up = state(&host);
    for _ in 0..3 {
        host.sh(&format!("{} upgrade", adit()));
    }
    wait_for("the old processes end", seconds(30), || {
        processes(&host).len() == 1
    });
    assert_eq!(state(&host), up);
    let shown = host.sh(&format!("{} show", adit()));
    assert!(shown.contains("alice"), "peers keep their names: {shown}");
    host.sh(&format!("{} down wg0", adit()));
    assert_eq!(state(&host), before);
}

/// `adit up --foreground` has its process replaced by the program that stands where it was started
/// from, and becomes that program.
#[test]
fn what_watches_over_a_tunnel_is_upgraded_with_it() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    host.sh("ip link set lo up");
    let links =
        || host.sh("ip -o link; ip -4 rule; ip -4 route; ls -A /run/wireguard /run/adit; true");
    let config = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/24\n[Peer]\nPublicKey = {}\n\
         AllowedIPs = 192.168.78.0/24\n",
        Keys::new().private,
        Keys::new().public
    );
    host.sh_with_input(
        "mkdir -p /etc/wireguard; umask 077; cat > /etc/wireguard/wg0.conf",
        &config,
    );
    let program = "/run/adit-program";
    host.sh(&format!(
        "mkdir -p /run/wireguard /run/adit; cp {} {program}",
        adit()
    ));
    let before = links();
    host.sh(&format!(
        "{program} up --foreground wg0 > /run/log 2>&1 & echo $! > /run/supervisor"
    ));
    wait_for("it is up", seconds(20), || {
        host.try_sh("ip route get 192.168.78.1 | grep wg0").ok()
    });
    let supervisor = host.sh("cat /run/supervisor").trim().to_owned();
    let daemon = || host.sh(&format!("pgrep -P {supervisor}")).trim().to_owned();
    let file = |pid: &str| host.sh(&format!("stat -L -c %i /proc/{pid}/exe"));
    let first = (daemon(), file(&supervisor));

    // A program that kills itself leaves the old one running.
    host.sh(&format!(
        "printf '#!/bin/sh\\nkill -9 $$\\n' > /run/bad; chmod 755 /run/bad; mv /run/bad {program}"
    ));
    let failed = host.try_sh(&format!("{} upgrade wg0", adit()));
    assert!(!failed.ok());
    assert!(failed.stderr.contains("goes on"), "{}", failed.stderr);
    assert_eq!((daemon(), file(&supervisor)), first);
    host.sh("wg show wg0 dump");

    host.sh(&format!("cp {} /run/new; mv /run/new {program}", adit()));
    host.sh(&format!("{program} upgrade wg0"));
    wait_for("both are replaced", seconds(30), || {
        let pids = daemon();
        !pids.contains('\n') && pids != first.0 && file(&supervisor) != first.1
    });
    assert_eq!(file(&supervisor), file(&daemon()));
    let second = daemon();
    host.sh(&format!("{program} upgrade --if-replaced wg0"));
    assert_eq!(daemon(), second, "nothing was replaced since");
    host.sh("wg show wg0 dump");
    // It has all duties of the one before.
    host.sh(&format!("kill -TERM {supervisor}"));
    wait_for("all is as before", seconds(30), || links() == before);
}

#[test]
fn all_interfaces_of_a_process_go_at_once() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    host.sh(&format!("{} run wg0 wg1 wg2", adit()));
    for i in 0..3 {
        let script = format!(
            "wg set wg{i} listen-port {} private-key /dev/stdin",
            5000 + i
        );
        host.sh_with_input(&script, &Keys::new().private);
        host.sh(&format!("ip link set wg{i} up"));
    }
    let before = host.sh("wg show all dump");
    host.sh("ip link delete wg1");
    wait_for("it ends", seconds(30), || {
        !host.path("/run/wireguard/wg1.sock").exists()
    });
    for _ in 0..3 {
        host.sh(&format!("{} upgrade", adit()));
    }
    let kept = |dump: &str| -> Vec<String> {
        let lines = dump.lines().filter(|line| !line.starts_with("wg1"));
        let mut lines: Vec<_> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(kept(&host.sh("wg show all dump")), kept(&before));
    host.sh(&format!("{} run --join wg0 wg1", adit()));
    host.sh("ip link delete wg0; ip link delete wg1; ip link delete wg2");
    wait_for("it ends", seconds(30), || processes(&host).is_empty());
}
