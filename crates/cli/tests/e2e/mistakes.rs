//! Mistakes that people make, and whether the log and the counters tell which one it is.
//!
//! ```text
//!   left ─────────────── right      each with an Adit at LOG_LEVEL=verbose; the mistake is on one side
//! ```

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_io::udp::Udp;
use adit_io::{Offloads, RecvBatch, SendReport, Transmit, UdpSocket as _};
use adit_proto::Tai64N;
use serde_json::Value;

use crate::handshakes::{decode, encode, initiation};
use crate::harness::*;

/// The status of a side's data path.
#[track_caller]
fn engine(side: &Side) -> Value {
    side.status()["engine"].take()
}

#[track_caller]
fn counter(side: &Side, map: &str, name: &str) -> u64 {
    let engine = engine(side);
    let count = engine[map][name].as_u64();
    count.unwrap_or_else(|| panic!("no {map}.{name} in {engine}"))
}

/// Waits for a line of a side's log that holds all `words`, and returns it.
#[track_caller]
fn says(side: &Side, words: &[&str]) -> String {
    let find = || {
        let log = side.daemon.log();
        let mut lines = log.lines();
        let line = lines.find(|line| words.iter().all(|word| line.contains(word)));
        line.map(str::to_owned)
    };
    let what = format!("{} says {words:?}", side.host.name());
    wait_for(&what, seconds(20), || find().is_some());
    find().expect("just found")
}

/// No key that is secret stands in a side's log.
#[track_caller]
fn keeps_secrets(tunnel: &WgTunnel) {
    for side in [&tunnel.left, &tunnel.right] {
        let log = side.daemon.log();
        assert!(log.contains("wg0"), "there is a log: {log}");
        for secret in [
            Some(&tunnel.left.keys.private),
            Some(&tunnel.right.keys.private),
            tunnel.psk.as_ref(),
        ] {
            assert!(secret.is_none_or(|secret| !log.contains(secret)), "{log}");
        }
    }
}

/// A packet of the left side asks for a session that does not come.
fn knock(tunnel: &WgTunnel) {
    ping_fails(&tunnel.left.host, &tunnel.right.v4);
}

#[test]
fn a_wrong_public_key_of_ours_is_told_by_log_and_counter() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    // The left side has another key for the right one.
    let wrong = Keys::new().public;
    left.wg(&format!("set {{}} peer {} remove", right.keys.public));
    left.wg(&format!(
        "set {{}} peer {wrong} endpoint 10.0.0.2:51820 allowed-ips {}/32",
        right.v4
    ));
    knock(&tunnel);
    says(
        right,
        &[
            "handshake initiation from 10.0.0.1:51820 refused",
            "the sender has another public key for this interface",
        ],
    );
    assert!(counter(right, "handshakes", "bad_mac1") >= 1);
    // Its own side gets no answer, and the log says what that may mean.
    let line = says(
        left,
        &[&format!("peer {wrong}"), "1 before it had no answer"],
    );
    assert!(
        line.contains("the peer refuses and its log says why"),
        "{line}"
    );
    keeps_secrets(&tunnel);
}

#[test]
fn an_unknown_peer_is_told_by_log_and_counter() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    right.wg(&format!("set {{}} peer {} remove", left.keys.public));
    knock(&tunnel);
    says(
        right,
        &[
            "handshake initiation from 10.0.0.1:51820 refused",
            &format!(
                "its static key {} is no peer of this interface",
                left.keys.public
            ),
        ],
    );
    assert!(counter(right, "handshakes", "unknown_peer") >= 1);
    keeps_secrets(&tunnel);
}

#[test]
fn a_preshared_key_that_differs_is_told_by_log_and_counter() {
    let net = SitePair::new();
    let setup = Setup {
        psk: true,
        ..Setup::default()
    };
    let tunnel = WgTunnel::new(&net, setup);
    let (left, right) = (&tunnel.left, &tunnel.right);
    let other = Keys::psk();
    let set = format!(
        "wg set wg0 peer {} preshared-key /dev/stdin",
        left.keys.public
    );
    right.host.sh_with_input(&set, &other);
    knock(&tunnel);
    says(
        left,
        &[
            &format!("peer {}", right.keys.public),
            "handshake response from 10.0.0.2:51820 refused",
            "the peer's preshared key differs from ours",
        ],
    );
    assert!(counter(left, "handshakes", "not_authentic") >= 1);
    // The responder answers in vain and says what that may mean.
    let peer = format!("peer {}", left.keys.public);
    says(
        right,
        &[
            &peer,
            "1 before it led to no session",
            "the preshared keys differ",
        ],
    );
    keeps_secrets(&tunnel);
    assert!(!right.daemon.log().contains(&other) && !left.daemon.log().contains(&other));
}

#[test]
fn an_older_timestamp_and_a_replay_are_told_by_log_and_counter() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let right = &tunnel.right;
    let responder = decode(&right.keys.public);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let at = |time: Duration| initiation(7, responder, Tai64N::from_unix(time));
    let (public, today) = at(now);
    let (_, yesterday) = at(now - Duration::from_secs(86_400));
    let key = encode(&public);
    right.wg(&format!("set {{}} peer {key}"));
    let port = net.left.within(move || {
        let socket = UdpSocket::bind("10.0.0.1:0").expect("a socket");
        let patience = Some(Duration::from_secs(10));
        socket.set_read_timeout(patience).expect("a timeout");
        socket.send_to(&today, "10.0.0.2:51820").expect("sent");
        let mut answer = [0; 200];
        assert_eq!(socket.recv(&mut answer).expect("an answer"), 92);
        for message in [yesterday, today] {
            socket.send_to(&message, "10.0.0.2:51820").expect("sent");
        }
        socket.local_addr().expect("an address").port()
    });
    says(
        right,
        &[
            &format!("peer {key}: handshake initiation from 10.0.0.1:{port} refused"),
            "its timestamp is not newer",
            "clock was set back",
            "a replay",
        ],
    );
    wait_for("both are counted", seconds(30), || {
        counter(right, "handshakes", "replayed_timestamp") == 2
    });
}

#[test]
fn a_wrong_inner_source_is_told_by_log_and_counter() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    left.host.sh("ip addr add 192.168.99.1/32 dev wg0");
    let ping = format!("ping -n -q -c 3 -i 0.2 -W 1 -I 192.168.99.1 {}", right.v4);
    assert!(!left.host.try_sh(&ping).ok());
    says(
        right,
        &[
            &format!("peer {}", left.keys.public),
            "packet from 10.0.0.1:51820 dropped",
            "its inner source 192.168.99.1 is not among this peer's allowed IPs",
        ],
    );
    assert_eq!(counter(right, "drops", "wrong_source"), 3);
    // The second and third came within a second of the first, and share a line.
    says(right, &["inner source 192.168.99.1", "(2 times)"]);
}

#[test]
fn a_wrong_port_is_told_by_log_and_counter() {
    for outer in [Family::V4, Family::V6] {
        let net = SitePair::new();
        let setup = Setup {
            outer,
            ..Setup::default()
        };
        let tunnel = WgTunnel::new(&net, setup);
        let (left, right) = (&tunnel.left, &tunnel.right);
        let host = net.address_of_right(outer);
        let wrong = outer.with_port(&host, 51999);
        let key = &right.keys.public;
        left.wg(&format!("set {{}} peer {key} endpoint {wrong}"));
        knock(&tunnel);
        says(
            left,
            &[
                &format!("peer {key}: ICMP error from {host} about what was sent to {wrong}"),
                "port unreachable",
                "is the port right",
            ],
        );
        assert!(counter(left, "icmp_errors", "port_unreachable") >= 1);
        assert!(
            counter(left, "handshakes", "initiations_sent") >= 1,
            "they left"
        );
        let text = left
            .host
            .sh(&format!("{} show", Program::Adit.path().display()));
        assert!(text.contains("icmp errors: "), "{text}");
    }
}

#[test]
fn a_firewall_on_this_host_is_told_by_log_and_counter() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    left.host.sh(
        "nft add table inet f; nft 'add chain inet f out { type filter hook output priority 0; }'; \
         nft add rule inet f out udp dport 51820 drop",
    );
    knock(&tunnel);
    says(
        left,
        &[
            &format!("peer {}", right.keys.public),
            "handshake initiation could not be sent to 10.0.0.2:51820",
            "Operation not permitted (a local firewall?)",
        ],
    );
    let handshakes = engine(left)["handshakes"].clone();
    assert_eq!(handshakes["initiations_sent"], 0, "{handshakes}");
    assert!(
        handshakes["send_failed"].as_u64() >= Some(1),
        "{handshakes}"
    );

    // The log also names data that cannot leave.
    left.host.sh("nft flush chain inet f out");
    wait_for("the tunnel works without the rule", seconds(20), || {
        left.host
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4))
            .ok()
    });
    left.host.sh("nft add rule inet f out udp dport 51820 drop");
    knock(&tunnel);
    says(
        left,
        &[
            "data could not be sent to 10.0.0.2:51820",
            "a local firewall?",
        ],
    );
    assert!(counter(left, "drops", "send_failed") >= 2);
}

#[test]
fn a_firewall_at_the_peer_is_told_by_log_and_counter() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    let peer = format!("peer {}", right.keys.public);
    right.host.sh(
        "nft add table inet f; nft 'add chain inet f in { type filter hook input priority 0; }'; \
         nft add rule inet f in udp dport 51820 drop",
    );
    knock(&tunnel);
    let line = says(
        left,
        &[
            &peer,
            "handshake initiation sent to 10.0.0.2:51820",
            "2 before it had no answer",
        ],
    );
    assert!(line.contains("a firewall is between"), "{line}");
    assert!(counter(left, "handshakes", "initiations_sent") >= 3);
    assert_eq!(counter(left, "handshakes", "initiations_accepted"), 0);

    right.host.sh("nft flush chain inet f in; nft add rule inet f in udp dport 51820 reject with icmpx admin-prohibited");
    knock(&tunnel);
    says(
        left,
        &[
            &peer,
            "ICMP error from 10.0.0.2",
            "administratively prohibited: a firewall rejects it",
        ],
    );
    assert!(counter(left, "icmp_errors", "prohibited") >= 1);
}

#[test]
fn a_peer_that_nobody_answers_for_is_told_as_unreachable() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    let key = &right.keys.public;
    // No host has this address, which the kernel finds out after a while.
    left.wg(&format!("set {{}} peer {key} endpoint 10.0.0.77:51820"));
    knock(&tunnel);
    says(
        left,
        &[
            &format!("peer {key}: ICMP error"),
            "10.0.0.77:51820: host unreachable",
        ],
    );
    // And to this one there is no route.
    left.wg(&format!("set {{}} peer {key} endpoint 198.51.100.1:51820"));
    knock(&tunnel);
    says(
        left,
        &[
            key,
            "initiation could not be sent to 198.51.100.1:51820: Network is unreachable (no route?)",
        ],
    );
}

#[test]
fn without_verbose_mistakes_are_counted_and_not_logged() {
    let net = SitePair::new();
    let quiet = Start::default().env("LOG_LEVEL", "error");
    let setup = Setup {
        start_right: quiet.clone(),
        start_left: quiet,
        ..Setup::default()
    };
    let tunnel = WgTunnel::new(&net, setup);
    let (left, right) = (&tunnel.left, &tunnel.right);
    right.wg(&format!("set {{}} peer {} remove", left.keys.public));
    knock(&tunnel);
    assert!(counter(right, "handshakes", "unknown_peer") >= 1);
    for side in [left, right] {
        // What the clients of the sockets changed is told, and nothing of mistakes.
        let log = side.daemon.log();
        let is_change = |line: &str| line.contains(": configuration changed: ");
        assert!(log.lines().all(is_change), "{log}");
    }
}

#[test]
fn a_flood_of_wrong_initiations_writes_few_lines() {
    const FLOOD: u64 = 20_000;
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let right = &tunnel.right;
    let (_, mut message) = initiation(1, decode(&right.keys.public), Tai64N::default());
    // Of mac1.
    message[120] ^= 1;
    net.left.within(move || {
        let socket = UdpSocket::bind("10.0.0.1:0").expect("a socket");
        for number in 0..FLOOD {
            socket.send_to(&message, "10.0.0.2:51820").expect("sent");
            if number % 100 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    let counted = || {
        let engine = engine(right);
        let full = engine["drops"]["handshake_queue_full"].as_u64();
        (
            engine["handshakes"]["bad_mac1"].as_u64().expect("a count"),
            full.expect("a count"),
        )
    };
    wait_for("the flood is over", seconds(30), || {
        let (bad, full) = counted();
        bad + full >= FLOOD * 9 / 10 && counted() == (bad, full)
    });
    let bad = counted().0;
    let told = || {
        let log = right.daemon.log();
        let lines: Vec<_> = log
            .lines()
            .filter(|line| line.contains("mac1 is wrong"))
            .map(str::to_owned)
            .collect();
        let times = lines.iter().map(|line| match line.rsplit_once('(') {
            Some((_, times)) => times
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .expect("a number"),
            None => 1,
        });
        (times.sum::<u64>(), lines.len())
    };
    wait_for("every one of them is told", seconds(30), || told().0 == bad);
    let (_, lines) = told();
    println!("{bad} refused, {lines} lines");
    assert!(lines <= 20, "{lines} lines");
}

/// Shards make cookies, and the sandbox leaves them no random numbers of the kernel's.
#[test]
fn a_flood_of_right_initiations_is_answered_with_cookies() {
    const FLOOD: u64 = 20_000;
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    let (_, message) = initiation(1, decode(&right.keys.public), Tai64N::default());
    net.left.within(move || {
        let socket = UdpSocket::bind("10.0.0.1:0").expect("a socket");
        for number in 0..FLOOD {
            socket.send_to(&message, "10.0.0.2:51820").expect("sent");
            if number % 1000 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    wait_for("cookies are sent", seconds(30), || {
        counter(right, "handshakes", "cookies_sent") >= 1
    });
    tunnel.connect();
    ping(&left.host, &right.v4, 5);
}

/// What the kernel sends through any interface of its own accord (MLD, router solicitations) is no
/// drop.
#[test]
fn an_idle_healthy_tunnel_shows_no_drops() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    // As `ping -6 ff02::1%wg0` or an mDNS responder would.
    for side in [&tunnel.left, &tunnel.right] {
        side.host.try_sh(
            "ping -n -q -c 1 -W 1 -I wg0 224.0.0.251; ping -6 -n -q -c 1 -W 1 -I wg0 ff02::1",
        );
    }
    for side in [&tunnel.left, &tunnel.right] {
        wait_for("the kernel has sent multicast", seconds(20), || {
            counter(side, "ignored", "multicast") >= 2
        });
        let engine = engine(side);
        let drops = engine["drops"].as_object().expect("a map");
        assert!(drops.values().all(|count| *count == 0), "{engine}");
        let text = side
            .host
            .sh(&format!("{} show", Program::Adit.path().display()));
        assert!(
            !text.contains("drops") && !text.contains("multicast"),
            "{text}"
        );
    }
}

/// Packets that a side dropped, for whatever reason.
fn dropped(side: &Side) -> u64 {
    let engine = engine(side);
    let drops = engine["drops"].as_object().expect("a map");
    drops.values().filter_map(Value::as_u64).sum()
}

/// Invariant 10, where a queue behind the tunnel is full.
#[test]
fn what_the_outer_queue_drops_is_counted() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    // A burst holds a whole train: a shorter one cuts trains into packets, and tells nothing of
    // those that it drops.
    left.host
        .sh("tc qdisc add dev eth0 root tbf rate 10mbit burst 100kb limit 150kb");
    let flood = UdpTicker::start(&left.host, &right.host, &right.v4, Duration::ZERO);
    wait_for("the outer queue is full", seconds(20), || {
        counter(left, "drops", "send_failed") >= 1000
    });
    let (sent, arrived) = flood.stop();
    let drops = [left, right].map(dropped);
    // Trains arrive all at once, and the receiver's own socket holds 212 KB.
    let overflowed = right
        .host
        .sh("awk '/^Udp: [0-9]/ { print $6 }' /proc/net/snmp");
    let after: u64 = overflowed.trim().parse().expect("a number");
    println!("{sent} sent, {arrived} arrived; dropped: {drops:?} by Adit, {after} after");
    assert_eq!(sent, arrived + drops[0] + drops[1] + after);
    // A full queue is not taken for a path that refuses trains.
    assert_eq!(engine(left)["offloads"]["udp-gso"], true);
    let full = "No buffer space available (the queue of the outgoing interface is full)";
    says(left, &["data could not be sent", full]);
}

/// Sends so many trains of so many datagrams each; returns how many datagrams that are.
fn send_trains(from: &Container, to: SocketAddr, trains: u64, datagrams: usize) -> u64 {
    let send = move || {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let socket = Udp::bind(any, 0, Offloads::ALL, false).expect("a socket");
        let train = Transmit {
            to: to.into(),
            ecn: 0,
            stride: 1000,
            bytes: &vec![7; 1000 * datagrams],
        };
        let mut report = SendReport::default();
        for _ in 0..trains {
            while socket.send(&[train], &mut report) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!((report.datagrams_lost(), report.refused), (0, 0));
    };
    from.within(send);
    trains * datagrams as u64
}

/// Invariant 10, where a process does not run while packets come.
///
/// ```text
///   client ───── left ══════ right      trains from the client stay trains until left's TUN
/// ```
#[test]
fn packets_that_a_stopped_process_misses_are_counted() {
    let net = SitePair::new();
    let setup = Setup {
        // Each datagram has a place of its own in the receive buffer.
        start_right: Start::default().env("ADIT_DISABLE_OFFLOADS", "udp-gro"),
        ..Setup::default()
    };
    let tunnel = WgTunnel::new(&net, setup);
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let client = Container::new("client");
    let (at_left, at_client) = (&["10.2.0.1/24"], &["10.2.0.2/24"]);
    link(&net.left, "eth2", at_left, &client, "eth0", at_client);
    net.left.forwards();
    client.sh("ip route add default via 10.2.0.1");
    right.host.sh("ip route add 10.2.0.0/24 dev wg0");
    right.wg(&format!(
        "set {{}} peer {} allowed-ips 192.168.77.1/32,10.2.0.0/24",
        left.keys.public
    ));
    let to = SocketAddr::from(([192, 168, 77, 2], 5000));
    let (arrived, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let reader = right.host.spawn({
        let (arrived, stop) = (Arc::clone(&arrived), Arc::clone(&stop));
        let socket = right
            .host
            .within(move || Udp::bind(to, 0, Offloads::NONE, false).expect("a socket"));
        move || {
            let mut batch = RecvBatch::default();
            while !stop.load(Ordering::Relaxed) {
                if socket.recv(&mut batch).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                // Datagrams that do not fit this socket's buffer have arrived all the same.
                arrived.fetch_add(batch.len() as u64 + batch.lost(), Ordering::Relaxed);
            }
        }
    });
    let mut sent = 0;
    for stopped in [left, right] {
        stopped.daemon.signal("STOP");
        if std::ptr::eq(stopped, left) {
            // Three times what may wait for it.
            sent += send_trains(&client, to, 300, 40);
        } else {
            // Three times what the right socket holds, and never more at once than may wait for the
            // left side.
            for _ in 0..10 {
                let before = left.sent();
                let burst = send_trains(&client, to, 50, 40);
                wait_for("the left side sends a burst", seconds(20), || {
                    left.sent() >= before + 1000 * burst
                });
                sent += burst;
            }
        }
        stopped.daemon.signal("CONT");
        wait_for("every datagram is accounted for", seconds(20), || {
            let arrived = arrived.load(Ordering::Relaxed);
            let drops = [left, right].map(dropped);
            println!("{sent} sent, {arrived} arrived, {drops:?} dropped");
            let balanced = arrived + drops[0] + drops[1] == sent;
            if !balanced {
                // The next datagram tells what was lost before it.
                sent += send_trains(&client, to, 1, 1);
            }
            balanced
        });
    }
    stop.store(true, Ordering::Relaxed);
    reader.join().expect("no panic");
    let before_left = ["tun_full", "tun_limit"].map(|reason| counter(left, "drops", reason));
    assert!(before_left.iter().sum::<u64>() > 0);
    assert!(counter(right, "drops", "receive_buffer_full") > 0);
}

/// ```text
///   left ── eth0 ─────── right     its Adit is killed: its host answers each datagram with ICMP
///        └─ eth1 ─────── other
/// ```
#[test]
fn a_peer_that_answers_with_icmp_costs_another_no_packet() {
    for outer in [Family::V4, Family::V6] {
        let net = SitePair::new();
        let setup = Setup {
            outer,
            ..Setup::default()
        };
        let mut tunnel = WgTunnel::new(&net, setup);
        let other = Container::new("other");
        link(
            &net.left,
            "eth1",
            &["10.1.0.1/24", "fd01::1/64"],
            &other,
            "eth0",
            &["10.1.0.2/24", "fd01::2/64"],
        );
        let keys = Keys::new();
        let _daemon = Daemon::start(&other, Program::Adit, "wg0", &Start::default());
        setconf(
            &other,
            "wg0",
            &format!(
                "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.1/32\n",
                keys.private, tunnel.left.keys.public
            ),
        );
        other.sh("ip addr add 192.168.77.3/24 dev wg0; ip link set wg0 mtu 1420 up");
        let endpoint = match outer {
            Family::V4 => "10.1.0.2:51820",
            Family::V6 => "[fd01::2]:51820",
        };
        tunnel.left.wg(&format!(
            "set {{}} peer {} endpoint {endpoint} allowed-ips 192.168.77.3/32",
            keys.public
        ));
        tunnel.connect();
        ping(&tunnel.left.host, "192.168.77.3", 1);

        // ICMP is limited to a few messages a second otherwise; before Linux 6.13 by the machine,
        // too.
        net.right.sh("echo 0 > /proc/sys/net/ipv4/icmp_ratelimit; echo 0 > /proc/sys/net/ipv6/icmp/ratelimit; \
             for name in icmp_msgs_per_sec icmp_msgs_burst; do \
               [ ! -e /proc/sys/net/ipv4/$name ] || echo 1000000 > /proc/sys/net/ipv4/$name; done");
        // They come at any time, not only while what they are about is being sent.
        net.right
            .sh("tc qdisc add dev eth0 root tbf rate 10mbit burst 2kb limit 1mb");
        tunnel.right.daemon.signal("KILL");
        tunnel.right.daemon.wait();
        let left = &tunnel.left;
        let ticks = UdpTicker::start(&left.host, &other, "192.168.77.3", Duration::from_millis(1));
        let flood = left.host.spawn(|| {
            let socket = UdpSocket::bind("192.168.77.1:0").expect("a socket");
            let start = std::time::Instant::now();
            let mut sent = 0_u64;
            // Not as many as fill the queue of the interface, which is the other peer's, too.
            while start.elapsed() < Duration::from_secs(3) {
                for _ in 0..20 {
                    sent += u64::from(socket.send_to(&[7; 100], "192.168.77.2:9").is_ok());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        let flooded = flood.join().expect("sent");
        let (sent, arrived) = ticks.stop();
        let errors = counter(left, "icmp_errors", "port_unreachable");
        println!(
            "{outer:?}: {flooded} datagrams gave {errors} ICMP errors; {arrived} of {sent} ticks arrived"
        );
        // On a machine that stands still the interface's own queue overflows, which is counted for
        // both peers.
        assert!(sent - arrived <= counter(left, "drops", "tun_full"));
        assert!(errors > 100, "{errors}");
        // Nothing follows from them.
        assert_eq!(counter(left, "drops", "send_failed"), 0);
        assert_eq!(engine(left)["offloads"]["udp-gso"], true);
        let lines = left
            .daemon
            .log()
            .lines()
            .filter(|line| line.contains("ICMP error"))
            .count();
        assert!((1..30).contains(&lines), "{lines} lines");
    }
}
