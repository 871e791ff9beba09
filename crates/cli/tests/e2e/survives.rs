//! Disturbances two at a time, in an order that nobody chose, while connections go on.
//!
//! `ADIT_SOAK=3600 cargo test -p adit-cli --test e2e -- --nocapture survives` goes on for an hour, in
//! an order of its own that it prints; `ADIT_SOAK_ORDER` repeats one.

use std::time::{Duration, Instant};

use crate::harness::*;
use crate::paths::routed_tunnel;

/// Rounds of a usual test.
const ROUNDS: usize = 8;
/// The order of a usual test.
const ORDER: u64 = 20_261_122;

/// A disturbance of a host: the scripts that cause it and undo it. They find PEER, V6, PID and NET
/// (1 on the left, 2 on the right) in their environment, and the tunnel's configuration on their
/// standard input.
struct Disturbance {
    name: &'static str,
    on: On,
    begin: &'static str,
    end: &'static str,
}

#[derive(Clone, Copy)]
enum On {
    Side,
    /// With the interface on the side's way as CARD.
    Router,
}

const fn side(name: &'static str, begin: &'static str, end: &'static str) -> Disturbance {
    Disturbance {
        name,
        on: On::Side,
        begin,
        end,
    }
}

const fn router(name: &'static str, begin: &'static str, end: &'static str) -> Disturbance {
    Disturbance {
        name,
        on: On::Router,
        begin,
        end,
    }
}

const RESTORE: &str = "wg syncconf wg0 /dev/stdin";

const DISTURBANCES: [Disturbance; 23] = [
    side(
        "the interface is down",
        "ip link set wg0 down",
        "ip link set wg0 up; ip addr replace $V6/64 dev wg0 nodad",
    ),
    side(
        "a small MTU",
        "ip link set wg0 mtu 1280",
        "ip link set wg0 mtu 1420",
    ),
    side(
        "a large MTU",
        "ip link set wg0 mtu 9000",
        "ip link set wg0 mtu 1420",
    ),
    side("another port", "wg set wg0 listen-port 0", RESTORE),
    side("a mark", "wg set wg0 fwmark 7", "wg set wg0 fwmark 0"),
    side("no peer", "wg set wg0 peer $PEER remove", RESTORE),
    side(
        "other allowed IPs",
        "wg set wg0 peer $PEER allowed-ips 203.0.113.0/24",
        RESTORE,
    ),
    side(
        "another preshared key",
        "wg genpsk | wg set wg0 peer $PEER preshared-key /dev/stdin",
        RESTORE,
    ),
    side(
        "another private key",
        "wg genkey | wg set wg0 private-key /dev/stdin",
        RESTORE,
    ),
    side(
        "another endpoint",
        "wg set wg0 peer $PEER endpoint 203.0.113.1:9",
        RESTORE,
    ),
    side("the same configuration", RESTORE, RESTORE),
    side(
        "no cable",
        "ip link set eth0 down",
        "ip link set eth0 up; ip addr replace fd0$NET::100/64 dev eth0 nodad
         ip route replace default via 10.$NET.0.1; ip -6 route replace default via fd0$NET::1",
    ),
    side(
        "a card without segmentation",
        "ethtool -K eth0 tx off",
        "ethtool -K eth0 tx on tso on gso on tx-udp-segmentation on",
    ),
    side(
        "a slow card",
        "tc qdisc replace dev eth0 root tbf rate 10mbit burst 64k limit 500k",
        "tc qdisc del dev eth0 root",
    ),
    // EMSGSIZE and EINVAL: trains do not fit any more.
    side(
        "a card with a small MTU",
        "ip link set eth0 mtu 1300",
        "ip link set eth0 mtu 1500",
    ),
    side("a process that stands still", "kill -STOP $PID", "kill -CONT $PID"),
    // EPERM, as of any firewall on the host.
    side(
        "a kernel that refuses to send",
        "nft \"add table inet refuse; add chain inet refuse out { type filter hook output priority 0; };
          add rule inet refuse out oifname eth0 meta l4proto udp numgen random mod 100 < 50 drop\"",
        "nft delete table inet refuse",
    ),
    // Without a cable there is no route yet.
    side(
        "another address",
        "ip addr del 10.$NET.0.100/24 dev eth0; ip addr add 10.$NET.0.200/24 dev eth0
         ip route replace default via 10.$NET.0.1 || true",
        "ip addr del 10.$NET.0.200/24 dev eth0; ip addr add 10.$NET.0.100/24 dev eth0
         ip route replace default via 10.$NET.0.1 || true",
    ),
    router(
        "corruption",
        "nft \"add table inet c$CARD; add chain inet c$CARD x { type filter hook forward priority 0; };
          add rule inet c$CARD x oifname $CARD meta l4proto udp numgen random mod 100 < 20 @th,400,8 set 90\"",
        "nft delete table inet c$CARD",
    ),
    router(
        "duplication",
        "nft \"add table netdev d$CARD
          add chain netdev d$CARD x { type filter hook egress device $CARD priority 0; }
          add rule netdev d$CARD x numgen random mod 100 < 20 dup to $CARD\"",
        "nft delete table netdev d$CARD",
    ),
    router(
        "a router that refuses with ICMP",
        "nft \"add table inet r$CARD; add chain inet r$CARD x { type filter hook forward priority 0; };
          add rule inet r$CARD x oifname $CARD numgen random mod 100 < 30 reject\"",
        "nft delete table inet r$CARD",
    ),
    router(
        "a narrow path",
        "ip link set $CARD mtu 1300",
        "ip link set $CARD mtu 1500",
    ),
    router(
        "loss",
        "nft \"add table inet $CARD; add chain inet $CARD lose { type filter hook forward priority 0; }
          add rule inet $CARD lose oifname $CARD numgen random mod 100 < 20 drop\"",
        "nft delete table inet $CARD",
    ),
];

/// Numbers in an order that depends on the first alone.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }
}

/// A disturbance at one of the two sides.
struct Event<'a> {
    what: &'static Disturbance,
    left: bool,
    net: &'a Routed,
    tunnel: &'a WgTunnel,
}

impl Event<'_> {
    fn is_same(&self, other: &Self) -> bool {
        self.what.name == other.what.name && self.left == other.left
    }

    #[track_caller]
    fn run(&self, script: &str) {
        let WgTunnel { left, right, .. } = self.tunnel;
        let (own, other, number) = if self.left {
            (left, right, 1)
        } else {
            (right, left, 2)
        };
        let host = match self.what.on {
            On::Side => &own.host,
            On::Router => &self.net.router,
        };
        let environment = format!(
            "PEER={} V6={} PID={} NET={number} CARD=eth{}",
            other.keys.public,
            own.v6,
            own.daemon.pid_in_host(),
            number - 1
        );
        host.sh_with_input(&format!("set -e; {environment}; {script}"), &own.config);
    }
}

/// What a daemon holds at most: descriptors, 65 of them for the further queues of the TUN, two for
/// the helper, one for upgrades and one that tells of memory, and some for peers' own sockets and for
/// clients that come and go; threads; and KiB of memory.
const MOST: [usize; 3] = [110, 7, 32 << 10];

/// The same of one daemon, now.
fn holdings(side: &Side) -> [usize; 3] {
    let of_process = format!("/proc/{}", side.daemon.pid());
    let count = |what| {
        std::fs::read_dir(format!("{of_process}/{what}"))
            .expect("the daemon runs")
            .count()
    };
    let status = std::fs::read_to_string(format!("{of_process}/status")).expect("the daemon runs");
    let peak = status.lines().find(|line| line.starts_with("VmHWM:"));
    let peak = peak.and_then(|line| line.split_whitespace().nth(1));
    [
        count("fd"),
        count("task"),
        peak.expect("VmHWM").parse().expect("a number"),
    ]
}

#[test]
fn connections_survive_whatever_happens_around_them() {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(
            text.parse()
                .unwrap_or_else(|_| panic!("{name} is a number")),
        )
    };
    let soak = number("ADIT_SOAK").map(Duration::from_secs);
    let order = number("ADIT_SOAK_ORDER").unwrap_or_else(|| match soak {
        Some(_) => std::process::id().into(),
        None => ORDER,
    });
    println!("order {order}");
    let mut numbers = Numbers(order.max(1));

    let net = Routed::new();
    let setup = Setup {
        psk: true,
        keepalive: Some(1),
        ..Setup::default()
    };
    let tunnel = routed_tunnel(&net, setup);
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let there = Flow::start(&left.host, &right.host, &right.v4);
    let back = Flow::start(&right.host, &left.host, &left.v6);
    let ticks = UdpTicker::start(&left.host, &right.host, &right.v6, Duration::from_millis(5));
    let carry_on = || {
        there.advances(1 << 18);
        back.advances(1 << 18);
        ticks.advances(20);
    };
    carry_on();

    let (start, mut round) = (Instant::now(), 0);
    while soak.map_or(round < ROUNDS, |time| start.elapsed() < time) {
        watch_this_test();
        round += 1;
        let mut event = || Event {
            what: &DISTURBANCES[numbers.below(DISTURBANCES.len())],
            left: numbers.below(2) == 0,
            net: &net,
            tunnel: &tunnel,
        };
        let mut events = vec![event(), event()];
        if events[0].is_same(&events[1]) {
            events.pop();
        }
        // A stopped process answers nothing.
        events.sort_by_key(|event| event.what.begin.starts_with("kill"));
        // Shown if the test fails, and while it soaks.
        for Event { what, left, .. } in &events {
            let name = if *left { "left" } else { "right" };
            println!("round {round}, {name}: {}", what.name);
        }
        let mut pause = || std::thread::sleep(Duration::from_millis(numbers.below(1500) as u64));
        for event in &events {
            event.run(event.what.begin);
            pause();
        }
        for event in events.iter().rev() {
            event.run(event.what.end);
            pause();
        }
        carry_on();
    }

    there.stop();
    back.stop();
    let (sent, received) = ticks.stop();
    assert!(received > 0, "none of {sent} datagrams arrived");
    for side in [left, right] {
        let holds = holdings(side);
        let bounded = holds.iter().zip(MOST).all(|(holds, most)| *holds <= most);
        assert!(bounded, "{}: {holds:?} of {MOST:?}", side.host.name());
    }
}

/// A side that is stopped sends nothing, answers nothing, and its socket and its TUN overflow.
#[test]
fn flows_go_on_after_a_side_stood_still_for_five_seconds() {
    let net = Routed::new();
    let tunnel = routed_tunnel(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let there = Flow::start(&left.host, &right.host, &right.v4);
    let back = Flow::start(&right.host, &left.host, &left.v6);
    let ticks = UdpTicker::start(&left.host, &right.host, &right.v6, Duration::from_millis(5));
    let carry_on = || {
        there.advances(1 << 18);
        back.advances(1 << 18);
        ticks.advances(20);
    };
    carry_on();
    for sides in [&[left][..], &[right], &[left, right]] {
        watch_this_test();
        let signal = |signal: &str| {
            for Side { host, daemon, .. } in sides {
                host.sh(&format!("kill -{signal} {}", daemon.pid_in_host()));
            }
        };
        signal("STOP");
        std::thread::sleep(Duration::from_secs(5));
        signal("CONT");
        let began = Instant::now();
        carry_on();
        println!("{} stopped: on after {:?}", sides.len(), began.elapsed());
    }
    there.stop();
    back.stop();
    ticks.stop();
}
