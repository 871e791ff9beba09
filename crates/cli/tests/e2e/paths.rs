//! What the network between the two ends does: addresses that change, translation, marks, tunnels
//! in tunnels.

use std::net::IpAddr;

use crate::harness::*;

const MIB: u64 = 1 << 20;

/// A tunnel between the two ends of a routed network.
pub fn routed_tunnel(net: &Routed, setup: Setup) -> WgTunnel {
    let (left, right) = (
        net.address_of_left(setup.outer),
        net.address_of_right(setup.outer),
    );
    WgTunnel::between((&net.left, left), (&net.right, right), setup)
}

/// The left side's port, then its address, then its address family change; the right side follows
/// each time.
fn the_right_side_follows(outer: Family) {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            outer,
            ..Setup::default()
        },
    );
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let flow = Flow::start(&left.host, &right.host, &right.v4);
    flow.advances(MIB);

    left.wg("set {} listen-port 40000");
    ping(&left.host, &right.v6, 1);
    assert_eq!(
        right.endpoint(),
        outer.with_port(&net.address_of_left(outer), 40000)
    );
    ping(&right.host, &left.v4, 2);
    flow.advances(MIB);

    let (del, add, new) = match outer {
        Family::V4 => ("10.0.0.1/24", "10.0.0.11/24", "10.0.0.11"),
        Family::V6 => ("fd00::1/64", "fd00::11/64", "fd00::11"),
    };
    left.host.sh(&format!("ip addr del {del} dev eth0; ip addr add {add} dev eth0 $(echo {add} | grep -q : && echo nodad)"));
    wait_for(
        "a ping gets through from the new address",
        seconds(20),
        || {
            left.host
                .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4))
                .ok()
        },
    );
    assert_eq!(right.endpoint(), outer.with_port(new, 40000));
    ping(&right.host, &left.v6, 2);
    flow.advances(MIB);

    let other = if outer == Family::V4 {
        Family::V6
    } else {
        Family::V4
    };
    let endpoint = other.with_port(&net.address_of_right(other), 51820);
    // A packet of the other side that is on its way would set the endpoint back: that is what
    // roaming does.
    flow.pause();
    left.wg(&format!(
        "set {{}} peer {} endpoint {endpoint}",
        right.keys.public
    ));
    ping(&left.host, &right.v4, 1);
    flow.resume();
    assert_eq!(
        right.endpoint(),
        other.with_port(&net.address_of_left(other), 40000)
    );
    ping(&right.host, &left.v4, 2);
    flow.advances(MIB);
    flow.stop();
}

#[test]
fn a_peer_that_roams_over_ipv4_keeps_its_connections() {
    the_right_side_follows(Family::V4);
}

#[test]
fn a_peer_that_roams_over_ipv6_keeps_its_connections() {
    the_right_side_follows(Family::V6);
}

#[test]
fn persistent_keepalive_holds_a_nat_mapping_open() {
    let nat = Natted::new();
    let setup = Setup {
        right_knows_left: false,
        ..Setup::default()
    };
    let tunnel = routed_tunnel(&nat.net, setup);
    let (left, right) = (&tunnel.left, &tunnel.right);
    left.wg(&format!(
        "set {{}} peer {} persistent-keepalive 1",
        right.keys.public
    ));
    wait_for("the keepalive alone makes a handshake", seconds(10), || {
        right.latest_handshake() > 0
    });
    assert!(
        right.endpoint().starts_with("10.2.0.1:"),
        "{} is the router",
        right.endpoint()
    );

    // Twice as long as the router remembers an idle mapping.
    std::thread::sleep(seconds(4));
    ping(&right.host, &left.v4, 1);

    left.wg(&format!(
        "set {{}} peer {} persistent-keepalive 0",
        right.keys.public
    ));
    std::thread::sleep(seconds(5));
    ping_fails(&right.host, &left.v4);

    left.wg(&format!(
        "set {{}} peer {} persistent-keepalive 20",
        right.keys.public
    ));
    wait_for(
        "the keepalive that turning it on sends opens the mapping",
        seconds(5),
        || {
            right
                .host
                .try_sh(&format!("ping -n -q -c 1 -W 1 {}", left.v4))
                .ok()
        },
    );
}

/// The right side has two addresses. It answers from the one that it was addressed at, and from the
/// other when the first one goes away.
fn the_source_sticks(outer: Family) {
    let net = Routed::new();
    let second = match outer {
        Family::V4 => "10.2.0.101",
        Family::V6 => "fd02::101",
    };
    let (first, prefix) = match outer {
        Family::V4 => ("10.2.0.100", 24),
        Family::V6 => ("fd02::100", 64),
    };
    let nodad = if outer == Family::V6 { "nodad" } else { "" };
    net.right
        .sh(&format!("ip addr add {second}/{prefix} dev eth0 {nodad}"));
    let preferred = net
        .right
        .sh(&format!("ip route get {}", net.address_of_left(outer)));
    // The one that routing would not pick.
    let (stuck, other) = if preferred.contains(&format!("src {second} ")) {
        (first, second)
    } else {
        (second, first)
    };
    let setup = Setup {
        outer,
        right_knows_left: false,
        ..Setup::default()
    };
    let tunnel = WgTunnel::between(
        (&net.left, net.address_of_left(outer)),
        (&net.right, stuck),
        setup,
    );
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    ping(&right.host, &left.v4, 5);
    assert_eq!(
        left.endpoint(),
        outer.with_port(stuck, 51820),
        "answers come from the address that was addressed"
    );
    tcp(&right.host, &left.host, &left.v4, 4 * MIB);
    assert_eq!(
        left.endpoint(),
        outer.with_port(stuck, 51820),
        "bulk traffic comes from it too"
    );
    // With another mark or port routing is asked again. Named alone, an endpoint that is configured
    // already is gone back to.
    for (change, port) in [("fwmark 7", 51820), ("listen-port 51821", 51821)] {
        right.wg(&format!("set {{}} {change}"));
        ping(&right.host, &left.v4, 2);
        assert_eq!(left.endpoint(), outer.with_port(other, port), "{change}");
        right.wg("set {} listen-port 51820");
        let stuck = outer.with_port(stuck, 51820);
        left.wg(&format!(
            "set {{}} peer {} endpoint {stuck}",
            right.keys.public
        ));
        ping(&left.host, &right.v4, 2);
        assert_eq!(left.endpoint(), stuck, "after {change}");
    }

    right
        .host
        .sh(&format!("ip addr del {stuck}/{prefix} dev eth0"));
    if outer == Family::V4 && !right.host.sh("ip addr show dev eth0").contains(other) {
        // Deleting a primary address takes its secondaries along.
        right
            .host
            .sh(&format!("ip addr add {other}/{prefix} dev eth0"));
    }
    if !right.host.sh("ip route; ip -6 route").contains("default") {
        right.host.sh("ip route add default via 10.2.0.1");
    }
    wait_for(
        "a ping gets through from the remaining address",
        seconds(10),
        || {
            right
                .host
                .try_sh(&format!("ping -n -q -c 1 -W 1 {}", left.v4))
                .ok()
        },
    );
    assert_eq!(left.endpoint(), outer.with_port(other, 51820));
    ping(&left.host, &right.v6, 2);
}

#[test]
fn the_ipv4_source_address_stays_until_it_goes_away() {
    the_source_sticks(Family::V4);
}

#[test]
fn the_ipv6_source_address_stays_until_it_goes_away() {
    the_source_sticks(Family::V6);
}

#[test]
fn what_cannot_leave_is_not_counted_as_sent() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    left.host.sh("ip route add prohibit 10.0.0.2/32");
    let sent = left.sent();
    ping_fails(&left.host, &right.v4);
    assert_eq!(left.sent(), sent);
    left.host.sh("ip route del prohibit 10.0.0.2/32");
    ping(&left.host, &right.v4, 2);
    assert!(left.sent() > sent);
}

#[test]
fn a_fwmark_lets_everything_else_be_routed_into_the_tunnel() {
    for outer in [Family::V4, Family::V6] {
        let net = Routed::new();
        let tunnel = routed_tunnel(
            &net,
            Setup {
                outer,
                ..Setup::default()
            },
        );
        let (left, right) = (&tunnel.left, &tunnel.right);
        right
            .host
            .sh("ip addr add 172.31.0.1/32 dev lo; ip addr add fd31::1/128 dev lo nodad");
        left.wg(&format!(
            "set {{}} fwmark 51820 peer {} allowed-ips 0.0.0.0/0,::/0",
            right.keys.public
        ));
        assert_eq!(left.wg("show {} fwmark").trim(), "0xca6c");
        left.host.sh("set -e
            for f in -4 -6; do
              ip $f route add default dev wg0 table 51820
              ip $f rule add not fwmark 51820 table 51820
              ip $f rule add table main suppress_prefixlength 0
            done");
        ping(&left.host, "172.31.0.1", 3);
        ping(&left.host, "fd31::1", 3);
        tcp(&left.host, &right.host, "172.31.0.1", 4 * MIB);

        // Without the mark its own datagrams would go into the tunnel.
        left.wg("set {} fwmark 0");
        ping_fails(&left.host, "172.31.0.1");
        left.wg("set {} fwmark 51820");
        wait_for(
            "the mark set again, traffic flows again",
            seconds(15),
            || left.host.try_sh("ping -n -q -c 1 -W 1 172.31.0.1").ok(),
        );
    }
}

#[test]
fn a_tunnel_inside_a_tunnel_carries_traffic() {
    let net = SitePair::new();
    let outer = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&outer.left, &outer.right);
    let mut inner = Vec::new();
    for (side, other, address, peer) in [
        (left, right, "192.168.88.1", &right.v4),
        (right, left, "192.168.88.2", &left.v4),
    ] {
        let daemon = Daemon::start(&side.host, Program::Adit, "wg1", &Start::default());
        setconf(
            &side.host,
            "wg1",
            &format!(
                "[Interface]\nPrivateKey = {}\nListenPort = 51821\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.88.0/24\nEndpoint = {peer}:51821\n",
                side.keys.private, other.keys.public
            ),
        );
        side.host.sh(&format!(
            "ip addr add {address}/24 dev wg1; ip link set wg1 mtu 1340 up"
        ));
        inner.push(daemon);
    }
    ping(&left.host, "192.168.88.2", 3);
    tcp(&left.host, &right.host, "192.168.88.2", 8 * MIB);
    tcp(&right.host, &left.host, "192.168.88.1", 8 * MIB);
}

#[test]
fn a_routing_loop_is_bounded_and_ends_with_the_route() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    left.wg(&format!(
        "set {{}} peer {} allowed-ips 0.0.0.0/0,::/0",
        right.keys.public
    ));
    left.host.sh("ip route add 10.0.0.2/32 dev wg0");
    // The datagram around the larger does not fit the tunnel: it comes back in fragments.
    for size in [1000, 1392] {
        let before = left.sent();
        let ping = format!("ping -n -q -c 3 -i 0.2 -W 1 -s {size} {}", right.v4);
        let _ = left.host.try_sh(&ping);
        std::thread::sleep(seconds(3));
        let looped = left.sent() - before;
        println!("sent in the loop: {looped} bytes");
        assert!(looped < 1_000_000, "a routing loop sent {looped} bytes");
    }
    left.host.sh("ip route del 10.0.0.2/32 dev wg0");
    wait_for("the tunnel works again", seconds(20), || {
        left.host
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4))
            .ok()
    });
}

#[test]
fn ecn_marks_cross_the_tunnel_both_ways_and_dscp_stays_inside() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let outside = Capture::start(&left.host, "eth0", "udp port 51820");
    // ECT(0) and DSCP EF.
    left.host
        .sh(&format!("ping -n -q -c 3 -i 0.05 -Q 0xba {}", right.v4));
    let data: Vec<_> = outside
        .datagrams()
        .into_iter()
        .filter(|d| d.payload.first() == Some(&4))
        .collect();
    assert!(data.len() >= 6, "{} datagrams", data.len());
    assert!(
        data.iter().all(|d| d.traffic_class == 2),
        "outer traffic classes: {:?}",
        data.iter().map(|d| d.traffic_class).collect::<Vec<_>>()
    );

    // A router that is congested marks the outer header; the inner one must show it.
    right.host.sh("nft add table ip mangle; nft 'add chain ip mangle pre { type filter hook prerouting priority -150; }';
        nft add rule ip mangle pre iifname eth0 udp dport 51820 ip ecn set ce");
    let inside = Capture::start(&right.host, "wg0", "icmp[0] == 8");
    left.host
        .sh(&format!("ping -n -q -c 3 -i 0.05 -Q 0x02 {}", right.v4));
    let bytes = inside.bytes();
    let first = &bytes[24 + 16..];
    assert_eq!(
        first[1] & 3,
        3,
        "the inner packet is marked congestion experienced"
    );
}

/// The path takes 1,300 bytes of IPv6 and says so to nobody: 1,216 inside the tunnel.
#[test]
fn a_path_that_loses_long_packets_in_silence_passes_tcp() {
    for program in [Program::Adit, Program::WireguardGo] {
        let Some(program) = peer(program).filter(|_| Program::Adit.is_adit()) else {
            continue;
        };
        let net = Routed::new();
        net.router.sh(
            "set -e; ip link set eth1 mtu 1300
             nft 'add table ip6 quiet; add chain ip6 quiet out { type filter hook output priority 0; };
                  add rule ip6 quiet out icmpv6 type packet-too-big drop'",
        );
        let setup = Setup {
            right: program,
            outer: Family::V6,
            ..Setup::default()
        };
        let left = (&net.left, net.address_of_left(Family::V6));
        let right = (&net.right, net.address_of_right(Family::V6));
        let tunnel = WgTunnel::between(left, right, setup);
        let (left, right) = (&tunnel.left, &tunnel.right);
        tunnel.connect();
        ping_fails(&left.host, &format!("-M dont -s 1300 {}", right.v4));
        tcp(&left.host, &right.host, &right.v4, 64 * MIB);
        let drops = left.status()["engine"]["drops"]["path_mtu"].as_u64();
        assert!(drops.is_some_and(|drops| drops > 0), "{drops:?}");
        assert_eq!(left.status()["peers"][0]["path_mtu"], 1216);
        // Its sender was told, and the host remembers.
        let route = left.host.sh(&format!("ip route get {}", right.v4));
        assert!(route.contains("mtu 1216"), "{route}");
    }
}

/// Packets that a host or a router has made fragments of, as it counts them.
fn fragments(host: &Container) -> u64 {
    let counters = host.sh("nstat -asz IpFragCreates Ip6FragCreates");
    let counts = counters.lines().filter(|line| line.contains("FragCreates"));
    counts
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}

/// The path takes 1,300 bytes and says so. Over IPv6 the router tells, over IPv4 it fragments, and
/// the right side knows by its route.
#[test]
fn a_path_that_tells_its_mtu_gets_whole_datagrams() {
    if !Program::Adit.is_adit() {
        return;
    }
    for (outer, limit) in [(Family::V6, 1216), (Family::V4, 1232)] {
        let net = Routed::new();
        let mtu = |mtu: u32| {
            net.router.sh(&format!("ip link set eth1 mtu {mtu}"));
            net.right.sh(&format!(
                "ip route replace default via 10.2.0.1 mtu {mtu}
                 ip -6 route replace default via fd02::1 mtu {mtu}"
            ));
        };
        mtu(1300);
        let setup = Setup {
            outer,
            ..Setup::default()
        };
        let tunnel = routed_tunnel(&net, setup);
        let (left, right) = (&tunnel.left, &tunnel.right);
        tunnel.connect();
        for (from, to) in [(left, right), (right, left)] {
            tcp(&from.host, &to.host, &to.v4, 8 * MIB);
            wait_for("the limit is found", seconds(10), || {
                let status = from.status();
                status["peers"][0]["path_mtu"] == limit
            });
            // The longest of these was on its way when its sender was told.
            let before = fragments(&from.host) + fragments(&net.router);
            tcp(&from.host, &to.host, &to.v4, 64 * MIB);
            let made = fragments(&from.host) + fragments(&net.router) - before;
            assert!(made < 1000, "{outer:?}: {made} fragments of 100,000");
            // What does not know of it passes all the same.
            for host in [&from.host, &to.host] {
                host.sh("ip route flush cache");
            }
            ping(&from.host, &format!("-M dont -s 1390 {}", to.v4), 2);
            let drops = &from.status()["engine"]["drops"]["path_mtu"];
            assert!(drops.as_u64().is_none_or(|drops| drops == 0), "{drops}");
        }
        // It grows again, and a new session looks, though the host remembers what ICMP said.
        mtu(1500);
        wait_for("the limit is gone", seconds(30), || {
            // It makes a handshake.
            let _ = (left.host).try_sh(&format!("{} why wg0", Program::Adit.path().display()));
            tcp(&left.host, &right.host, &right.v4, MIB);
            left.status()["peers"][0]["path_mtu"].is_null()
        });
    }
}

/// The sum of 16-bit words that ICMP over IPv4 carries; the kernel makes that of ICMPv6.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes
        .chunks(2)
        .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    let [.., high, low] = (!(sum + (sum >> 16))).to_be_bytes();
    [high, low]
}

/// Has a host of the network tell another that what it sends from one address to the other is longer
/// than a link takes. `port` is that of both ends, for a datagram of the tunnel; without, it is about an
/// answer to a ping, which takes no guess.
fn forge_too_big(at: &Container, from: IpAddr, to: IpAddr, port: Option<u16>, mtu: u16) {
    use rustix::net::*;
    let quoted = match port {
        Some(port) => [port, port, 1408, 0].map(u16::to_be_bytes).concat(),
        None => vec![if from.is_ipv4() { 0 } else { 129 }, 0, 0, 0, 0, 0, 0, 0],
    };
    let (family, kind, message) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let protocol = if port.is_some() { 17 } else { 1 };
            let mut header = vec![0x45, 0, 5, 0x94, 0, 0, 0, 0, 64, protocol, 0, 0];
            header.extend([from.octets(), to.octets()].concat());
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum);
            let mut message = vec![3, 4, 0, 0, 0, 0];
            message.extend(mtu.to_be_bytes());
            message.extend([header, quoted].concat());
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum);
            (AddressFamily::INET, ipproto::ICMP, message)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let protocol = if port.is_some() { 17 } else { 58 };
            let mut message = vec![2, 0, 0, 0, 0, 0];
            message.extend(mtu.to_be_bytes());
            message.extend([0x60, 0, 0, 0, 5, 0x80, protocol, 64]);
            message.extend([from.octets(), to.octets()].concat());
            message.extend(quoted);
            (AddressFamily::INET6, ipproto::ICMPV6, message)
        }
        _ => unreachable!("of one family"),
    };
    at.within(move || {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::RAW, flags, Some(kind)).expect("a raw socket");
        let to = std::net::SocketAddr::new(from, 0);
        sendto(&socket, &message, SendFlags::empty(), &to).expect("a route");
    });
}

/// A host that is on no path of theirs tells the left side that the right one is behind a narrow link.
/// With the ports of the tunnel, and without knowing them.
#[test]
fn a_forged_packet_too_big_is_found_out() {
    if !Program::Adit.is_adit() {
        return;
    }
    for (outer, mtu) in [(Family::V4, 552), (Family::V6, 1280)] {
        for port in [Some(51820), None] {
            let net = Routed::new();
            let setup = Setup {
                outer,
                ..Setup::default()
            };
            let tunnel = routed_tunnel(&net, setup);
            let (left, right) = (&tunnel.left, &tunnel.right);
            tunnel.connect();
            tcp(&left.host, &right.host, &right.v4, MIB);
            let [from, to] = [net.address_of_left(outer), net.address_of_right(outer)];
            let remembers = format!("ip route get {to} | grep 'mtu.*{mtu}'");
            let parsed = |address: &str| address.parse().expect("an address");
            forge_too_big(&net.router, parsed(from), parsed(to), port, mtu);
            wait_for("the kernel believes it", seconds(5), || {
                left.host.try_sh(&remembers).ok()
            });
            wait_for("it is found out", seconds(5), || {
                tcp(&left.host, &right.host, &right.v4, MIB);
                left.daemon
                    .log()
                    .contains("what ICMP says of paths is ignored")
            });
            // Long datagrams leave whole again, and this and more of the same changes nothing.
            let before = fragments(&left.host);
            for _ in 0..2 {
                tcp(&left.host, &right.host, &right.v4, 32 * MIB);
                forge_too_big(&net.router, parsed(from), parsed(to), port, mtu);
            }
            left.host.sh(&remembers);
            assert_eq!(fragments(&left.host), before, "{outer:?} {port:?}");
            let status = left.status();
            assert!(status["peers"][0]["path_mtu"].is_null(), "{status}");
            let told = status["engine"]["icmp_errors"]["too_big"].as_u64();
            assert!(told.is_some_and(|told| told > 0), "{status}");
            // Nor do sockets that are opened from now on believe it.
            left.wg("set {} listen-port 40000");
            ping(&left.host, &right.v4, 1);
            tcp(&left.host, &right.host, &right.v4, 32 * MIB);
            left.host.sh(&remembers);
            assert_eq!(fragments(&left.host), before, "{outer:?} {port:?}");
        }
    }
}

/// ```text
///   left                      router                    right
///   eth0 10.71.1.1 ──── 10.71.1.254  10.61.9.254 ──── 10.61.9.2
///   eth1 10.71.2.1 ──── 10.71.2.254
/// ```
///
/// Both uplinks drop what has a foreign source. The left side prefers eth0.
struct TwoUplinks {
    left: Container,
    router: Container,
    right: Container,
    family: Family,
}

impl TwoUplinks {
    fn new(family: Family) -> Self {
        let [left, router, right] = ["left", "router", "right"].map(Container::new);
        for (number, port) in [(1, "eth0"), (2, "eth1")] {
            let own = [
                format!("10.71.{number}.1/24"),
                format!("fd71:{number}::1/64"),
            ];
            let other = [
                format!("10.71.{number}.254/24"),
                format!("fd71:{number}::254/64"),
            ];
            let [own, other] = [&own, &other].map(|it| it.each_ref().map(String::as_str));
            link(&left, port, &own, &router, port, &other);
        }
        let (own, other) = (
            ["10.61.9.2/24", "fd61:9::2/64"],
            ["10.61.9.254/24", "fd61:9::254/64"],
        );
        link(&right, "eth0", &own, &router, "eth2", &other);
        router.forwards();
        right.sh(
            "set -e; ip route add default via 10.61.9.254; ip -6 route add default via fd61:9::254",
        );
        router.sh(
            "set -e; nft add table inet f; nft 'add chain inet f c { type filter hook forward priority 0; }'
             for n in 1 2; do
               nft add rule inet f c iifname eth$((n - 1)) ip saddr != 10.71.$n.0/24 drop
               nft add rule inet f c iifname eth$((n - 1)) ip6 saddr != fd71:$n::/64 drop
             done",
        );
        let uplinks = Self {
            left,
            router,
            right,
            family,
        };
        uplinks.at(
            &uplinks.left,
            "set -e; for port in all eth0 eth1; do
               echo 1 > /proc/sys/net/ipv4/conf/$port/ignore_routes_with_linkdown
               echo 1 > /proc/sys/net/ipv6/conf/$port/ignore_routes_with_linkdown
             done
             echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode
             ip FAMILY route add default via GATEWAY1 dev eth0 metric 100
             ip FAMILY route add default via GATEWAY2 dev eth1 metric 200",
        );
        uplinks
    }

    /// Runs a script with the addresses of the family.
    fn at(&self, host: &Container, script: &str) {
        let all = match self.family {
            Family::V4 => [
                "-4",
                "10.71.1.254",
                "10.71.2.254",
                "10.71.1.1/24",
                "10.61.9.0/24",
            ],
            Family::V6 => [
                "-6",
                "fd71:1::254",
                "fd71:2::254",
                "fd71:1::1/64",
                "fd61:9::/64",
            ],
        };
        let names = ["FAMILY", "GATEWAY1", "GATEWAY2", "ADDRESS1", "RIGHT"];
        let pairs = names.iter().zip(all);
        host.sh(&pairs.fold(script.to_owned(), |script, (name, it)| {
            script.replace(name, it)
        }));
    }
}

/// What the kernel is told to prefer the other uplink, and the first one again: on the left, and on
/// the router.
const CHOICES: &[(&str, [&str; 2], [&str; 2])] = &[
    ("carrier", ["", ""], ["ip link set eth0 down", "ip link set eth0 up; ip addr replace fd71:1::254/64 dev eth0 nodad"]),
    (
        "metric",
        [
            "ip FAMILY route add default via GATEWAY2 dev eth1 metric 50",
            "ip FAMILY route del default via GATEWAY2 dev eth1 metric 50",
        ],
        ["", ""],
    ),
    (
        "rule",
        [
            "ip FAMILY route add default via GATEWAY2 table 7; ip FAMILY rule add to RIGHT table 7",
            "ip FAMILY rule del to RIGHT table 7",
        ],
        ["", ""],
    ),
    (
        "table",
        [
            "ip FAMILY rule add to RIGHT table 8; ip FAMILY route add default via GATEWAY2 table 8",
            "ip FAMILY route flush table 8",
        ],
        ["", ""],
    ),
    (
        "mark",
        [
            "ip FAMILY route replace default via GATEWAY2 table 7
             ip FAMILY rule add fwmark 7 table 7; wg set wg0 fwmark 7",
            "wg set wg0 fwmark 0",
        ],
        ["", ""],
    ),
    (
        "nexthop object",
        [
            "ip nexthop add id 1 via GATEWAY1 dev eth0; ip FAMILY route add RIGHT nhid 1
             sleep 2; ip nexthop replace id 1 via GATEWAY2 dev eth1",
            "ip nexthop replace id 1 via GATEWAY1 dev eth0; sleep 1; ip nexthop del id 1",
        ],
        ["", ""],
    ),
    (
        "interface",
        [
            "ip link set eth0 down",
            "ip link set eth0 up; ip FAMILY addr replace ADDRESS1 dev eth0 $NODAD
             ip FAMILY route replace default via GATEWAY1 dev eth0 metric 100",
        ],
        ["", ""],
    ),
    (
        "address",
        [
            "ip FAMILY addr del ADDRESS1 dev eth0; ip FAMILY route del default dev eth0 2> /dev/null || true",
            "ip FAMILY addr add ADDRESS1 dev eth0 $NODAD
             ip FAMILY route add default via GATEWAY1 dev eth0 metric 100",
        ],
        ["", ""],
    ),
    (
        "setting",
        [
            "for f in 4 6; do echo 0 > /proc/sys/net/ipv$f/conf/all/ignore_routes_with_linkdown
               echo 0 > /proc/sys/net/ipv$f/conf/eth0/ignore_routes_with_linkdown; done
             sleep 2; for f in 4 6; do echo 1 > /proc/sys/net/ipv$f/conf/eth0/ignore_routes_with_linkdown; done",
            "",
        ],
        ["ip link set eth0 down", "ip link set eth0 up; ip addr replace fd71:1::254/64 dev eth0 nodad"],
    ),
];

/// Whatever makes the kernel prefer another uplink, and back again.
fn the_source_follows_the_routes(family: Family) {
    if !Program::Adit.is_adit() {
        return;
    }
    let net = TwoUplinks::new(family);
    let (own, other) = match family {
        Family::V4 => ("10.71.1.1", "10.61.9.2"),
        Family::V6 => ("fd71:1::1", "fd61:9::2"),
    };
    let setup = Setup {
        outer: family,
        right_knows_left: false,
        keepalive: Some(1),
        ..Setup::default()
    };
    let tunnel = WgTunnel::between((&net.left, own), (&net.right, other), setup);
    tunnel.connect();
    let (left, right) = (&tunnel.left, &tunnel.right);
    // The other side sends all the time, to where it heard of the left one last.
    let flow = UdpTicker::start(
        &right.host,
        &left.host,
        &left.v4,
        std::time::Duration::from_millis(20),
    );
    for (what, at_left, at_router) in CHOICES {
        for (step, number) in [(0, 2), (1, 1)] {
            let nodad = if family == Family::V6 { "nodad" } else { "" };
            // The router first: what the left one is told shows on what is there.
            net.at(&net.router, at_router[step]);
            net.at(&net.left, &format!("NODAD={nodad}\n{}", at_left[step]));
            let start = std::time::Instant::now();
            let expected = match family {
                Family::V4 => format!("10.71.{number}.1:51820"),
                Family::V6 => format!("[fd71:{number}::1]:51820"),
            };
            // A handshake that is not answered is tried again after 5 s.
            wait_for(&format!("{family:?} {what} {step}"), seconds(4), || {
                let ping = format!("ping -n -q -c 1 -W 0.2 {}", right.v4);
                left.host.try_sh(&ping).ok() && right.endpoint() == expected
            });
            println!("{family:?} {what} {step}: {:?}", start.elapsed());
        }
    }
    let _ = flow.stop();
}

#[test]
fn the_ipv4_source_follows_whatever_changes_the_routes() {
    the_source_follows_the_routes(Family::V4);
}

#[test]
fn the_ipv6_source_follows_whatever_changes_the_routes() {
    the_source_follows_the_routes(Family::V6);
}
