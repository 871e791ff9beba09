//! Traffic through a tunnel between two hosts:
//!
//! ```text
//!   left                                  right
//!   wg0  192.168.77.1 fd77::1      wg0  192.168.77.2 fd77::2
//!   eth0 10.0.0.1 fd00::1 ──────── eth0 10.0.0.2 fd00::2
//! ```

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::*;

const MIB: u64 = 1 << 20;

/// Payload sizes around every boundary of padding and MTU.
fn udp_sizes(mtu: u32, header: u32) -> Vec<usize> {
    let most = (mtu - header) as usize;
    vec![
        4,
        5,
        15,
        16,
        17,
        63,
        64,
        100,
        511,
        512,
        1000,
        most - 17,
        most - 16,
        most - 1,
        most,
    ]
}

/// Pings, TCP both ways and datagrams of many sizes, over IPv4 and IPv6 inside.
fn exercise(tunnel: &WgTunnel, tcp_bytes: u64) {
    let (left, right) = (&tunnel.left, &tunnel.right);
    ping(&left.host, &right.v4, 3);
    ping(&right.host, &left.v6, 3);
    for (to_right, to_left, header) in [(&right.v4, &left.v4, 28), (&right.v6, &left.v6, 48)] {
        tcp(&left.host, &right.host, to_right, tcp_bytes);
        tcp(&right.host, &left.host, to_left, tcp_bytes);
        let sizes = udp_sizes(tunnel.setup.mtu, header);
        udp(&left.host, &right.host, to_right, &sizes, 4);
        udp(&right.host, &left.host, to_left, &sizes, 4);
    }
}

#[test]
fn a_tunnel_over_ipv4_carries_ipv4_and_ipv6_unchanged() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    exercise(&tunnel, 32 * MIB);
}

#[test]
fn a_tunnel_over_ipv6_carries_ipv4_and_ipv6_unchanged() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            outer: Family::V6,
            ..Setup::default()
        },
    );
    exercise(&tunnel, 32 * MIB);
}

#[test]
fn a_tunnel_with_a_preshared_key_carries_traffic() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            psk: true,
            ..Setup::default()
        },
    );
    exercise(&tunnel, 4 * MIB);
}

#[test]
fn an_mtu_of_1280_carries_everything_that_fits_it() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            mtu: 1280,
            outer: Family::V6,
            ..Setup::default()
        },
    );
    exercise(&tunnel, 8 * MIB);
}

#[test]
fn jumbo_frames_carry_an_mtu_of_8920() {
    let net = SitePair::new();
    net.left.sh("ip link set eth0 mtu 9000");
    net.right.sh("ip link set eth0 mtu 9000");
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            mtu: 8920,
            outer: Family::V6,
            ..Setup::default()
        },
    );
    exercise(&tunnel, 32 * MIB);
}

#[test]
fn an_mtu_larger_than_the_path_works_in_fragments() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            mtu: 9000,
            ..Setup::default()
        },
    );
    let (left, right) = (&tunnel.left, &tunnel.right);
    ping(&left.host, &right.v4, 3);
    left.host.sh(&format!(
        "ping -n -q -c 3 -i 0.05 -s 8000 -W 10 {}",
        right.v4
    ));
    tcp(&left.host, &right.host, &right.v4, 4 * MIB);
    tcp(&right.host, &left.host, &left.v6, 4 * MIB);
}

#[test]
fn datagrams_larger_than_the_mtu_arrive_in_fragments() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    ping(&left.host, &right.v4, 1);
    udp(
        &left.host,
        &right.host,
        &right.v4,
        &[1393, 3000, 20_000, 60_000],
        3,
    );
    udp(
        &right.host,
        &left.host,
        &left.v6,
        &[1373, 3000, 20_000, 60_000],
        3,
    );
}

#[test]
fn fifty_flows_at_once_arrive_whole() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    ping(&left.host, &right.v4, 1);
    tcp_many(&left.host, &right.host, &right.v4, 50, MIB);
    tcp_many(&right.host, &left.host, &left.v6, 50, MIB);
}

/// A third host, beside the left one at 10.0.1.2, and at 192.168.77.3 in the tunnel.
fn third_peer(hub: &Side) -> (Container, Keys, Daemon) {
    let host = Container::new("third");
    link(
        &host,
        "eth0",
        &["10.0.1.2/24"],
        &hub.host,
        "eth1",
        &["10.0.1.1/24"],
    );
    let keys = Keys::new();
    let daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    setconf(
        &host,
        "wg0",
        &format!(
            "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {}\nAllowedIPs = {}/32\nEndpoint = 10.0.1.1:{}\n",
            keys.private, hub.keys.public, hub.v4, hub.port
        ),
    );
    host.sh("ip addr add 192.168.77.3/24 dev wg0; ip link set wg0 up");
    hub.wg(&format!(
        "set {{}} peer {} allowed-ips 192.168.77.3/32",
        keys.public
    ));
    ping(&host, &hub.v4, 1);
    (host, keys, daemon)
}

#[test]
fn a_flooding_peer_leaves_another_its_share() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let (hub, quiet) = (&tunnel.left, &tunnel.right);
    let (third, keys, _daemon) = third_peer(hub);
    let flooded = || -> u64 {
        let transfers = hub.wg("show {} transfer");
        let line = transfers
            .lines()
            .find(|line| line.starts_with(&keys.public))
            .expect("the third peer");
        let received = line.split('\t').nth(1).expect("bytes received");
        received.parse().expect("a number")
    };

    let (stop, to) = (Arc::new(AtomicBool::new(false)), hub.v4.clone());
    let stopped = Arc::clone(&stop);
    let flood = third.spawn(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        let limit = Some(seconds(20));
        socket.set_write_timeout(limit).expect("a timeout");
        let start = Instant::now();
        while !stopped.load(Ordering::Relaxed) && start.elapsed() < seconds(120) {
            // Refusals by the far port and full queues are part of it.
            let _ = socket.send_to(&[7; 1300], (to.as_str(), 9));
        }
    });
    let before = flooded();
    wait_for("the flood arrives", seconds(20), || {
        flooded() > before + 10 * MIB
    });
    let ticks = UdpTicker::start(&quiet.host, &hub.host, &hub.v4, Duration::from_millis(10));
    let start = flooded();
    tcp(&quiet.host, &hub.host, &hub.v4, 64 * MIB);
    tcp(&hub.host, &quiet.host, &quiet.v4, 64 * MIB);
    ticks.advances(50);
    assert!(flooded() > start + MIB, "the flood went on meanwhile");
    stop.store(true, Ordering::Relaxed);
    flood.join().expect("the flood ends");
    let (sent, received) = ticks.stop();
    println!("{received} of {sent} datagrams of the quiet peer arrived");
    assert!(
        received * 10 >= sent * 9,
        "{received} of {sent} datagrams of the quiet peer arrived"
    );
}

/// The path to one peer of a hub takes 64 kbit/s, so that what is sent to it stays in the hub's
/// sockets for longer than this test.
#[test]
fn a_peer_behind_a_slow_path_delays_no_other() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let (hub, quick) = (&tunnel.left, &tunnel.right);
    let (_slow, keys, _daemon) = third_peer(hub);
    hub.host
        .sh("tc qdisc add dev eth1 root tbf rate 64kbit burst 5kb limit 30mb");

    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let flood = hub.host.spawn(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket option");
        let start = Instant::now();
        while !stopped.load(Ordering::Relaxed) && start.elapsed() < seconds(120) {
            // 200 Mb/s.
            for _ in 0..19 {
                let _ = socket.send_to(&[7; 1300], ("192.168.77.3", 9));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let drops = || -> Vec<(String, u64)> {
        let status = hub.status();
        let peers = status["peers"].as_array().expect("peers");
        let slow_path = |peer: &serde_json::Value| {
            let key = peer["public_key"].as_str().expect("a key").to_owned();
            (key, peer["drops"]["slow_path"].as_u64().unwrap_or(0))
        };
        peers.iter().map(slow_path).collect()
    };
    let dropped = |key: &str| {
        drops()
            .into_iter()
            .find(|(of, _)| of == key)
            .expect("a peer")
            .1
    };
    wait_for("the slow path is known", seconds(30), || {
        dropped(&keys.public) > 0
    });
    tcp(&hub.host, &quick.host, &quick.v4, 64 * MIB);
    tcp(&quick.host, &hub.host, &hub.v4, 64 * MIB);
    let before = dropped(&keys.public);
    wait_for("the flood goes on", seconds(30), || {
        dropped(&keys.public) > before
    });
    assert_eq!(dropped(&quick.keys.public), 0);
    stop.store(true, Ordering::Relaxed);
    flood.join().expect("the flood ends");
}

#[test]
fn threads_that_carry_a_flood_of_datagrams_run_as_readily_as_everyone() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let sides = [&tunnel.left, &tunnel.right];
    let shards = || sides.map(|side| nice_value(&side.daemon, "adit-shard-0"));
    let everyone = sides.map(|side| nice_value(&side.daemon, "adit").max(0));
    let precedence = shards();
    assert_eq!(precedence, [-10, -10]);

    let [left, right] = sides;
    let flood = UdpTicker::start(&left.host, &right.host, &right.v4, Duration::ZERO);
    wait_for("both ends are like everyone else", seconds(20), || {
        shards() == everyone
    });
    flood.stop();
    wait_for("both come before others again", seconds(20), || {
        ping(&left.host, &right.v4, 1);
        shards() == precedence
    });
}

/// A thread's nice value.
fn nice_value(daemon: &Daemon, thread: &str) -> i32 {
    let stat = file_of(daemon, thread, "stat");
    // What stands before the name is one field, and it is in parentheses.
    let behind_name = stat.rsplit(") ").next().expect("fields");
    let nice = behind_name.split(' ').nth(16).expect("a nice value");
    nice.parse().expect("a number")
}

/// What the kernel tells of a thread of the process.
fn status_of(daemon: &Daemon, thread: &str) -> String {
    file_of(daemon, thread, "status")
}

/// One of the kernel's files about a thread of the process.
fn file_of(daemon: &Daemon, thread: &str, file: &str) -> String {
    let tasks = format!("/proc/{}/task", daemon.pid());
    let named = std::fs::read_dir(tasks)
        .expect("its threads")
        .filter_map(|task| Some(task.ok()?.path()))
        .find(|task| {
            let name = std::fs::read_to_string(task.join("comm"));
            name.is_ok_and(|name| name.trim_end() == thread)
        });
    let named = named.unwrap_or_else(|| panic!("no thread {thread}"));
    std::fs::read_to_string(named.join(file)).expect("what the kernel tells of it")
}

/// The CPUs that a thread may run on, as a list.
fn allowed_cpus(status: &str) -> &str {
    field_of(status, "Cpus_allowed_list")
}

fn field_of<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.strip_prefix(":\t"))
        .unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn sparse_packets_are_processed_where_they_come_from() {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("our own status");
    let everywhere = allowed_cpus(&status);
    let cpus = listed(everywhere);
    let [first, second, ..] = &cpus[..] else {
        println!("there is one CPU only: nowhere to go");
        return;
    };
    for cpu in [second, first] {
        let mut there = None;
        wait_for(&format!("both ends go to CPU {cpu}"), seconds(30), || {
            // One that found the CPU too busy, with other tests perhaps, would be slow to come
            // again.
            let net = SitePair::new();
            let tunnel = WgTunnel::new(&net, Setup::default());
            tunnel.connect();
            let (left, right) = (&tunnel.left, &tunnel.right);
            let lone = format!("taskset -c {cpu} ping -n -q -c 20 -i 0.01 -W 1");
            left.host.sh(&format!("{lone} {}", right.v4));
            let found = allowed_cpus(&status_of(&left.daemon, "adit-shard-0")) == *cpu
                && allowed_cpus(&status_of(&right.daemon, "adit-inbound")) == *cpu;
            there = found.then_some((net, tunnel));
            found
        });
        let (_net, tunnel) = there.expect("just seen");
        let (left, right) = (&tunnel.left, &tunnel.right);
        let free = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _freed = SetWhenDropped(&free);
            scope.spawn(|| {
                while !free.load(Ordering::Relaxed) {
                    tcp(&left.host, &right.host, &right.v4, 16 * MIB);
                }
            });
            let mut before = (0, String::new());
            wait_for("the load is followed by nobody", seconds(20), || {
                std::thread::sleep(Duration::from_millis(100));
                let shard = status_of(&left.daemon, "adit-shard-0");
                let inbound = status_of(&right.daemon, "adit-inbound");
                let slept = field_of(&inbound, "voluntary_ctxt_switches");
                let after = (right.received(), slept.to_owned());
                // The shard may stay anywhere for a while. Its inbound path has nothing to do then,
                // wherever it was left.
                let is_idle = after.1 == before.1 && after.0 > before.0 + MIB;
                before = after;
                is_idle && allowed_cpus(&shard) != *cpu
            });
        });
    }
}

/// Sets a flag however its scope ends.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The CPUs of a list like `0-3,8`.
fn listed(list: &str) -> Vec<String> {
    let cpus = list.split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| -> usize { text.parse().expect("a CPU") };
        number(first)..=number(last)
    });
    cpus.map(|cpu| cpu.to_string()).collect()
}
