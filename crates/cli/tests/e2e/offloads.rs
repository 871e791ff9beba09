//! Turning any offload off changes speed, never bytes (invariant 8).

use std::net::UdpSocket;
use std::sync::mpsc;

use crate::harness::*;

const MIB: u64 = 1 << 20;
const NAMES: [&str; 8] = [
    "tun-tso",
    "tun-uso",
    "tun-tunnel",
    "tun-gro-tcp",
    "tun-gro-udp",
    "tun-gro-tunnel",
    "udp-gso",
    "udp-gro",
];

/// Whether an offload is in force at a side, which is Adit.
fn in_force(side: &Side, name: &str) -> bool {
    let status = side.status();
    let state = &status["engine"]["offloads"][name];
    state
        .as_bool()
        .unwrap_or_else(|| panic!("{name} in {status}"))
}

/// The left side without these offloads, the right one with all of them, traffic of every kind both
/// ways.
fn the_bytes_are_the_same_without(names: &[&str]) {
    let net = SitePair::new();
    let start = Start::default().env("ADIT_DISABLE_OFFLOADS", &names.join(","));
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            start_left: start,
            ..Setup::default()
        },
    );
    let (left, right) = (&tunnel.left, &tunnel.right);
    if left.daemon.program == Program::Adit {
        for name in names {
            assert!(!in_force(left, name), "{name}");
        }
    }
    tunnel.connect();
    for (to_right, to_left, most) in [(&right.v4, &left.v4, 1392), (&right.v6, &left.v6, 1372)] {
        tcp(&left.host, &right.host, to_right, 8 * MIB);
        tcp(&right.host, &left.host, to_left, 8 * MIB);
        // Runs of equal sizes are what is merged and cut.
        let sizes = [
            most, most, most, most, 700, 700, 1, 700, most, 64, 64, 64, 64, 63, 64,
        ]
        .map(|n| n.max(4));
        udp(&left.host, &right.host, to_right, &sizes, 20);
        udp(&right.host, &left.host, to_left, &sizes, 20);
    }
    tcp_many(&left.host, &right.host, &right.v4, 8, MIB);
    tcp_many(&right.host, &left.host, &left.v4, 8, MIB);
}

#[test]
fn the_bytes_are_the_same_with_any_one_offload_off() {
    for name in NAMES {
        println!("without {name}");
        the_bytes_are_the_same_without(&[name]);
    }
}

#[test]
fn the_bytes_are_the_same_with_all_offloads_off() {
    the_bytes_are_the_same_without(&NAMES);
}

#[test]
fn the_bytes_are_the_same_with_one_side_of_the_daemon_offloaded() {
    the_bytes_are_the_same_without(&[
        "tun-tso",
        "tun-uso",
        "tun-tunnel",
        "tun-gro-tcp",
        "tun-gro-udp",
    ]);
    the_bytes_are_the_same_without(&["udp-gso", "udp-gro"]);
}

#[test]
fn an_unknown_offload_is_refused_by_name() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let output = host.try_sh(&format!(
        "timeout 10 {} -f --disable-offload warp-drive wg0",
        Program::Adit.path().display()
    ));
    assert!(
        !output.ok() && output.status.code() != Some(124),
        "{}",
        output.status
    );
    assert!(
        output.stderr.contains("warp-drive") && output.stderr.contains("udp-gso"),
        "{}",
        output.stderr
    );
}

#[test]
fn an_egress_device_without_offloads_changes_no_byte() {
    let net = SitePair::new();
    for host in [&net.left, &net.right] {
        host.sh("ethtool -K eth0 tx off rx off tso off gso off gro off > /dev/null");
    }
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    tcp(&net.left, &net.right, &tunnel.right.v4, 8 * MIB);
    tcp(&net.right, &net.left, &tunnel.left.v6, 8 * MIB);
    udp(
        &net.left,
        &net.right,
        &tunnel.right.v4,
        &[1392, 1392, 1392, 100],
        20,
    );
    // And changed while it runs.
    net.left
        .sh("ethtool -K eth0 tx on tso on gso on gro on > /dev/null");
    tcp(&net.left, &net.right, &tunnel.right.v4, 8 * MIB);
    net.left
        .sh("ethtool -K eth0 tx off tso off gso off gro off > /dev/null");
    tcp(&net.left, &net.right, &tunnel.right.v4, 8 * MIB);
}

#[test]
fn a_path_that_shrinks_below_a_segment_stops_no_traffic() {
    // A GSO send whose segments exceed the route's MTU fails (EMSGSIZE, EINVAL); plain datagrams
    // are fragmented.
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    tcp(&net.left, &net.right, &tunnel.right.v4, 4 * MIB);
    for host in [&net.left, &net.right] {
        host.sh("ip link set eth0 mtu 1400");
    }
    tcp(&net.left, &net.right, &tunnel.right.v4, 4 * MIB);
    tcp(&net.right, &net.left, &tunnel.left.v6, 4 * MIB);
    for host in [&net.left, &net.right] {
        host.sh("ip link set eth0 mtu 1500");
    }
    tcp(&net.left, &net.right, &tunnel.right.v4, 4 * MIB);
}

#[test]
fn vxlan_inside_the_tunnel_arrives_whole() {
    // The kernel verifies the checksums of packets that are not merged again.
    for (sums, without) in [
        ("noudpcsum", None),
        ("udpcsum", None),
        ("udpcsum", Some("tun-gro-udp,tun-gro-tunnel")),
        ("noudpcsum", Some("tun-gro-udp,tun-gro-tunnel")),
        ("udpcsum", Some("tun-gro-udp")),
        ("udpcsum", Some("tun-tunnel")),
    ] {
        println!("{sums}, without {without:?}");
        let start = without.map_or_else(Start::default, |name| {
            Start::default().env("ADIT_DISABLE_OFFLOADS", name)
        });
        let net = SitePair::new();
        let tunnel = WgTunnel::new(&net, Setup::starting(start));
        tunnel.connect();
        for (host, number, local, remote) in [
            (&net.left, 1, &tunnel.left.v4, &tunnel.right.v4),
            (&net.right, 2, &tunnel.right.v4, &tunnel.left.v4),
        ] {
            host.sh(&format!(
                "set -e; ip link add vx0 type vxlan id 7 local {local} remote {remote} dstport 4789 dev wg0 {sums}
                ip addr add 192.168.66.{number}/24 dev vx0; ip link set vx0 mtu 1370 up"
            ));
        }
        ping(&net.left, "192.168.66.2", 3);
        tcp(&net.left, &net.right, "192.168.66.2", 8 * MIB);
        if Program::Adit.is_adit() && in_force(&tunnel.right, "tun-gro-tunnel") {
            let received = net.right.sh("cat /sys/class/net/vx0/statistics/rx_packets");
            let received: u64 = received.trim().parse().expect("a number");
            assert!(received < 8 * MIB / 1318 / 2, "{received} packets");
        }
        tcp(&net.right, &net.left, "192.168.66.1", 8 * MIB);
        udp(
            &net.left,
            &net.right,
            "192.168.66.2",
            &[1342, 1342, 64, 64],
            20,
        );
    }
}

/// Linux hands a tunnel's GSO packet to an application as one datagram: none must be made where no
/// tunnel's device is.
#[test]
fn an_application_on_the_vxlan_port_gets_every_datagram() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let (tell, told) = mpsc::channel();
    let address = format!("{}:4789", tunnel.right.v4);
    let (datagrams, port) = (64_u16, address.clone());
    let application = net.right.spawn(move || {
        let socket = UdpSocket::bind(port).expect("VXLAN's port");
        socket
            .set_read_timeout(Some(seconds(10)))
            .expect("a timeout");
        tell.send(()).expect("the test waits");
        let mut buffer = vec![0; 65_536];
        let received = (0..5 * datagrams).map(|_| {
            let len = socket.recv(&mut buffer).expect("a datagram");
            buffer[..len].to_vec()
        });
        received.collect::<Vec<_>>()
    });
    told.recv().expect("the application has bound the port");
    let sent = net.left.within(move || {
        let socket = UdpSocket::bind("0.0.0.0:40000").expect("a UDP socket");
        let mut sent = Vec::new();
        for round in 0..5 {
            for n in 0..datagrams {
                sent.push(segment_in_vxlan(round * datagrams + n));
                socket
                    .send_to(&sent[sent.len() - 1], &address)
                    .expect("a route");
            }
            std::thread::sleep(seconds(1) / 50);
        }
        sent
    });
    let received = application.join().expect("every datagram came");
    assert!(received == sent);
}

/// The n-th segment of a TCP stream, in VXLAN.
fn segment_in_vxlan(n: u16) -> Vec<u8> {
    const LEN: u16 = 1000;
    let mut ip = vec![0x45, 0];
    ip.extend((40 + LEN).to_be_bytes());
    ip.extend(n.to_be_bytes());
    ip.extend([0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let words = ip
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes()[2..]);
    let mut datagram = vec![
        8, 0, 0, 0, 0, 0, 7, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0,
    ];
    datagram.extend(ip);
    datagram.extend([0x13, 0x88, 0x17, 0x70]);
    datagram.extend((1 + u32::from(n) * u32::from(LEN)).to_be_bytes());
    datagram.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    datagram.extend(vec![n.to_be_bytes()[1]; LEN.into()]);
    datagram
}
