//! More CPUs than the test machine may have, in an emulated guest: a gateway there forwards numbered
//! datagrams from each leaf to the next one while its threads and its receive queues change, and while peers
//! rekey.
//!
//! ```text
//!   leaf 1  wg1 10.77.0.1 ┐                              guest (QEMU, software emulation)
//!   …                     ├ host-of-guest                wg0  10.77.0.254, the gateway
//!   leaf n  wgn 10.77.0.n ┘ tap0 10.9.0.1 ────────────── eth0 10.9.0.2
//! ```

use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use adit_ctl::status::{self, EngineJson, InterfaceJson, StatusReport};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::harness::*;

const FLOWS: u8 = 4;
/// Datagrams under way, at most: they fit every queue on the way.
const WINDOW: u64 = 400;
/// What is under way arrives within this time, or is lost.
const LATE: Duration = Duration::from_secs(3);
const PORT: u16 = 7000;

/// One flow from a leaf to the next.
struct Flow {
    socket: UdpSocket,
    sent: u32,
    /// The number after the last one that arrived.
    next: u32,
}

/// The leaves, and what passes between them.
struct Traffic {
    /// By leaf, then by number.
    flows: Vec<Flow>,
    sinks: Vec<UdpSocket>,
    arrived: u64,
}

fn inner(leaf: u8) -> SocketAddr {
    SocketAddr::from(([10, 77, 0, 1 + leaf], PORT))
}

impl Traffic {
    fn new(leaves: &[Container]) -> Self {
        let mut traffic = Self {
            flows: Vec::new(),
            sinks: Vec::new(),
            arrived: 0,
        };
        for (leaf, host) in (0..).zip(leaves) {
            let next = inner(if usize::from(leaf) + 1 == leaves.len() {
                0
            } else {
                leaf + 1
            });
            let (flows, sink) = host.within(move || {
                let socket = |port| {
                    let address = SocketAddr::new(inner(leaf).ip(), port);
                    let socket = UdpSocket::bind(address).expect("a socket");
                    socket.set_nonblocking(true).expect("O_NONBLOCK");
                    set_socket_recv_buffer_size_force(&socket, 8 << 20).expect("root may");
                    socket
                };
                let flow = |_| {
                    let socket = socket(0);
                    socket.connect(next).expect("a route");
                    Flow {
                        socket,
                        sent: 0,
                        next: 0,
                    }
                };
                let flows: Vec<Flow> = (0..FLOWS).map(flow).collect();
                (flows, socket(PORT))
            });
            traffic.flows.extend(flows);
            traffic.sinks.push(sink);
        }
        traffic
    }

    fn sent(&self) -> u64 {
        self.flows.iter().map(|flow| u64::from(flow.sent)).sum()
    }

    /// Datagrams that arrived, or that others of their flow came after.
    fn known(&self) -> u64 {
        self.flows.iter().map(|flow| u64::from(flow.next)).sum()
    }

    /// Sends and receives until this says that it is enough.
    fn go_on(&mut self, mut is_enough: impl FnMut(&Self) -> bool) {
        let (mut turn, mut sent) = (0, self.sent());
        let mut last = Instant::now();
        while !is_enough(self) {
            // Those at the end of a flow that were lost are known by what comes after them.
            let is_late = last.elapsed() > LATE;
            let mut more = match is_late {
                true => self.flows.len() as u64,
                false => (WINDOW + self.known()).saturating_sub(sent),
            };
            while more > 0 {
                // Runs of one flow, and changes.
                turn += 1;
                self.send((turn / 3 + turn % 2) % self.flows.len(), turn);
                (more, sent) = (more - 1, sent + 1);
            }
            if self.receive() || is_late {
                last = Instant::now();
            } else {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    }

    fn send(&mut self, at: usize, turn: usize) {
        let flow = &mut self.flows[at];
        let mut datagram = [0; 900];
        datagram[..4].copy_from_slice(&flow.sent.to_le_bytes());
        datagram[4] = u8::try_from(at).expect("few flows");
        let sent = flow.socket.send(&datagram[..5 + (turn * 37) % 800]);
        sent.expect("the queue has room for all that is under way");
        flow.sent += 1;
    }

    /// Whether anything arrived.
    fn receive(&mut self) -> bool {
        let before = self.arrived;
        let mut buffer = [0; 2048];
        for sink in &self.sinks {
            while let Ok(len) = sink.recv(&mut buffer) {
                assert!(len > 4);
                let at = usize::from(buffer[4]);
                let number = u32::from_le_bytes(*buffer.first_chunk().expect("four bytes"));
                let next = &mut self.flows[at].next;
                // A smaller one was overtaken, or came twice.
                assert!(number >= *next, "{number} of flow {at} after {next}");
                *next = number + 1;
                self.arrived += 1;
            }
        }
        self.arrived > before
    }

    /// Until so many more have arrived.
    fn exchange(&mut self, datagrams: u64) {
        let until = self.arrived + datagrams;
        let began = Instant::now();
        self.go_on(|traffic| {
            assert!(
                began.elapsed() < seconds(120),
                "{} are missing",
                until - traffic.arrived
            );
            traffic.arrived >= until
        });
    }

    /// Receives what is still under way.
    fn receive_rest(&mut self) {
        let mut last = Instant::now();
        while self.known() < self.sent() && last.elapsed() < LATE {
            match self.receive() {
                true => last = Instant::now(),
                false => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// The gateway in its guest, and the leaves.
struct Field {
    guest: Guest,
    leaves: Vec<Container>,
}

impl Field {
    fn new(cpus: usize) -> Option<Self> {
        let program = Program::Adit.path();
        let guest = Guest::boot_with_cpus(&[&program], cpus)?;
        guest.sh(&format!(
            "set -e; test $(nproc) = {cpus}; \
             export LOG_LEVEL=verbose ADIT_SHARDS={cpus} ADIT_POLICY=auto; \
             /bin/adit -f wg0 > /tmp/log 2>&1 & \
             for i in $(seq 100); do wg show wg0 > /dev/null 2>&1 && break; usleep 100000; done; \
             ip addr add 10.77.0.254/24 dev wg0; ip link set wg0 mtu 1420 up; \
             cd /proc/sys/net/ipv4; echo 1 > ip_forward; \
             echo 0 > conf/all/send_redirects; echo 0 > conf/wg0/send_redirects; \
             echo {:x} > /sys/class/net/eth0/queues/rx-0/rps_cpus",
            (1 << cpus) - 1
        ));
        // More than receive queues.
        let names: Vec<String> = (1..=cpus + cpus / 2)
            .map(|leaf| format!("wg{leaf}"))
            .collect();
        let host = guest.host.clone();
        host.sh(&format!(
            "LOG_LEVEL=silent ADIT_SHARDS=1 {} run {}",
            program.display(),
            names.join(" ")
        ));
        let (gateway, mut peers) = (Keys::new(), String::new());
        let mut leaves = Vec::new();
        for (leaf, name) in (0..).zip(&names) {
            let keys = Keys::new();
            let ip = inner(leaf).ip();
            let script = format!(
                "set -e; wg set {name} private-key /dev/stdin peer {} endpoint 10.9.0.2:51820 \
                 allowed-ips 10.77.0.0/24",
                gateway.public
            );
            host.sh_with_input(&script, &keys.private);
            peers += &format!(
                "[Peer]\nPublicKey = {}\nAllowedIPs = {ip}/32\n",
                keys.public
            );
            let container = Container::new(&format!("leaf-{name}"));
            move_link(&host, name, &container);
            container.sh(&format!(
                "set -e; ip addr add {ip}/24 dev {name}; ip link set {name} mtu 1420 up"
            ));
            leaves.push(container);
        }
        guest.sh(&format!(
            "umask 077; cat > /tmp/conf <<'END'\n[Interface]\nPrivateKey = {}\nListenPort = 51820\n\
             {peers}END\nwg setconf wg0 /tmp/conf",
            gateway.private
        ));
        for leaf in &leaves {
            ping(leaf, "10.77.0.254", 1);
        }
        Some(Self { guest, leaves })
    }

    fn tune(&self, policy: &str, shards: usize) {
        self.guest.sh(&format!(
            "/bin/adit tune wg0 --policy {policy} --shards {shards}"
        ));
    }

    fn interface(&self) -> InterfaceJson {
        let shown = self.guest.sh("/bin/adit show wg0 --json");
        let report: StatusReport = serde_json::from_str(&shown).expect("JSON");
        let interface = report.interfaces.into_iter().next();
        interface.unwrap_or_else(|| panic!("no interface: {shown}"))
    }

    fn status(&self) -> EngineJson {
        self.interface().engine.clone().expect("it is Adit's")
    }

    /// The receive queue of each leaf.
    fn lanes(&self) -> Vec<Option<u8>> {
        let interface = self.interface();
        let peers = interface.peers.iter();
        peers.map(|peer| peer.lane).collect()
    }

    /// Has each leaf begin a handshake, as soon as it may.
    fn rekey(&self) {
        let dir = format!("/proc/{}/root/run/adit", self.guest.host.pid());
        for leaf in 1..=self.leaves.len() {
            let name = format!("wg{leaf}");
            let shown = status::fetch_in(dir.as_ref(), &name).expect("its status");
            let gateway = &shown.peers[0].public_key;
            let probe = status::probe_in(dir.as_ref(), &name, gateway).expect("an answer");
            assert_eq!(
                probe.error, None,
                "it is root who asks, of another PID namespace"
            );
        }
    }
}

/// What the shards have done: milliseconds of a CPU, by name.
fn shards(status: &EngineJson) -> Vec<(&str, u64)> {
    let threads = status.cpu_milliseconds.iter();
    let shards = threads.filter(|(name, _)| name.starts_with("adit-shard"));
    shards
        .map(|(name, spent)| (name.as_str(), *spent))
        .collect()
}

/// Every shard has worked since then, or as many as a pipeline has use for: one for each batch of a
/// direction.
fn all_worked(cpus: usize, before: &EngineJson, now: &EngineJson) -> bool {
    let busy = shards(now).into_iter().filter(|(name, spent)| {
        let before = before.cpu_milliseconds.get(*name);
        *spent > before.copied().unwrap_or_default()
    });
    busy.count() >= cpus.min(4)
}

/// There are as many receive queues as shards, and data has arrived in all since then.
fn all_received(cpus: usize, before: &EngineJson, now: &EngineJson) -> bool {
    let of_lane = |lane: usize| before.lanes.get(lane).copied().unwrap_or_default();
    let mut lanes = now.lanes.iter().enumerate();
    lanes.len() == cpus && lanes.all(|(lane, count)| *count > of_lane(lane))
}

type IsSpread = fn(usize, &EngineJson, &EngineJson) -> bool;

fn forwards(cpus: usize) {
    if !Program::Adit.is_adit() {
        return;
    }
    let Some(field) = Field::new(cpus) else {
        return;
    };
    let mut traffic = Traffic::new(&field.leaves);
    let changes = [
        ("pipeline", cpus),
        ("inline", 1),
        ("auto", 2),
        ("pipeline", cpus - 1),
        ("inline", cpus),
        ("auto", cpus),
        ("auto", 1),
    ];
    // Packets flow while the guest is asked for something.
    let asks = |traffic: &mut Traffic, ask: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let asking = scope.spawn(ask);
            traffic.go_on(|_| asking.is_finished());
        });
    };
    // By this policy with all shards, until that is so.
    let spreads = |traffic: &mut Traffic, policy, is_spread: IsSpread| {
        asks(traffic, &|| {
            field.tune(policy, cpus);
            let (before, began) = (field.status(), Instant::now());
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let now = field.status();
                if is_spread(cpus, &before, &now) {
                    break;
                }
                let (lanes, shards) = (&now.lanes, shards(&now));
                assert!(
                    began.elapsed() < seconds(90),
                    "{policy}: {lanes:?}, {shards:?}"
                );
            }
        });
    };
    spreads(&mut traffic, "auto", all_received);
    // New sessions arrive where those before them do.
    let lanes = Mutex::default();
    asks(&mut traffic, &|| {
        let before = field.lanes();
        for _ in 0..2 {
            std::thread::sleep(seconds(6));
            field.rekey();
        }
        std::thread::sleep(seconds(1));
        *lanes.lock().unwrap() = [before, field.lanes()].into();
    });
    let lanes: Vec<_> = lanes.into_inner().unwrap();
    assert_eq!(lanes[0], lanes[1]);
    for (policy, shards) in changes {
        asks(&mut traffic, &|| field.tune(policy, shards));
        traffic.exchange(1000);
    }
    spreads(&mut traffic, "pipeline", all_worked);
    spreads(&mut traffic, "auto", all_received);
    traffic.receive_rest();

    let lost = traffic.sent() - traffic.arrived;
    wait_for("the packet accounting balances", seconds(20), || {
        wrong_accounting(&field.status()).is_none()
    });
    let status = field.status();
    println!(
        "{cpus} CPUs: {} datagrams, {lost} dropped; lanes {:?}; {:?}; inbound {:?}, outbound {:?}",
        traffic.arrived,
        status.lanes,
        shards(&status),
        status.inbound,
        status.outbound
    );
    for (reason, count) in &status.drops {
        // A queue stood, and what a peer sent beyond its share was dropped: a few keepalives, too, of
        // which none has a number.
        let expected = match reason.as_str() {
            "over_share" => lost..=lost + 100,
            _ => 0..=0,
        };
        let drops = &status.drops;
        assert!(
            expected.contains(count),
            "{reason}: {count} of {lost}; {drops:?}"
        );
    }
}

#[test]
fn four_cpus_forward_in_order_while_their_threads_and_rx_queues_change() {
    forwards(4);
}

/// As many as there may be receive queues and flow shards.
#[test]
fn eight_cpus_forward_in_order_while_their_threads_and_rx_queues_change() {
    forwards(8);
}
