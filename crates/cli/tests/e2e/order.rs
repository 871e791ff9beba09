//! Datagrams of one flow arrive in the order in which they were sent, whatever makes the kernel take
//! their packets for those of several flows: fragments, flow labels, tunnels, forwarding.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use crate::harness::*;

/// Of datagrams in turn. With an MTU of 1,420 or less, those of 2,000 and more are fragments.
const LENS: [usize; 8] = [3000, 96, 96, 1200, 2000, 96, 4000, 700];
const DATAGRAMS: u32 = 800;
const PORT: u16 = 5005;

/// Sends numbered datagrams. Most arrive, and none behind a later one.
fn keeps_order(what: &str, (from, from_ip): (&Container, &str), (to, to_ip): (&Container, &str)) {
    let [source, destination] = [(from_ip, 0), (to_ip, PORT)]
        .map(|(ip, port)| SocketAddr::new(ip.parse::<IpAddr>().expect("an address"), port));
    let (tell, told) = mpsc::channel();
    let receiver = to.spawn(move || {
        let socket = UdpSocket::bind(destination).expect("a socket");
        set_socket_recv_buffer_size_force(&socket, 8 << 20).expect("root may");
        socket
            .set_read_timeout(Some(seconds(10)))
            .expect("a timeout");
        tell.send(()).expect("the test waits");
        let (mut numbers, mut buffer) = (Vec::new(), [0; 8192]);
        while numbers.last() != Some(&(DATAGRAMS - 1)) {
            let Ok(len) = socket.recv(&mut buffer) else {
                break;
            };
            let number = buffer[..len].first_chunk().expect("a number");
            numbers.push(u32::from_be_bytes(*number));
        }
        numbers
    });
    told.recv().expect("the receiver has a socket");
    from.within(move || {
        // What is forwarded waits for the CPU that sent it, and CPUs have no order.
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).expect("one of our CPUs");
        let socket = UdpSocket::bind(source).expect("a socket");
        for (number, len) in (0..DATAGRAMS).zip(LENS.iter().cycle()) {
            let mut datagram = vec![7; *len];
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            // A queue may be full for a moment.
            let _ = socket.send_to(&datagram, destination);
            if number % 4 == 3 {
                std::thread::sleep(seconds(1) / 1000);
            }
        }
    });
    let numbers = receiver.join().expect("it ends");
    assert!(
        numbers.len() > DATAGRAMS as usize / 2,
        "{what}: {}",
        numbers.len()
    );
    let behind = numbers.windows(2).filter(|pair| pair[0] >= pair[1]);
    assert_eq!(behind.count(), 0, "{what}: {numbers:?}");
}

/// With so many threads at each end, by this policy.
fn by(shards: &str, policy: &str) {
    let net = SitePair::new();
    let start = Start::default()
        .env("ADIT_SHARDS", shards)
        .env("ADIT_POLICY", policy);
    let tunnel = WgTunnel::new(&net, Setup::starting(start));
    tunnel.connect();
    let (left, right) = (&tunnel.left, &tunnel.right);
    let behind = Container::new("behind");
    link(
        &behind,
        "eth0",
        &["10.7.0.2/24", "fd07::2/64"],
        &left.host,
        "lan",
        &["10.7.0.1/24", "fd07::1/64"],
    );
    left.host.forwards();
    behind.sh("set -e; ip link set eth0 mtu 1400
        ip route add default via 10.7.0.1; ip -6 route add default via fd07::1");
    right.wg(&format!(
        "set {{}} peer {} allowed-ips {}/32,{}/128,10.7.0.0/24,fd07::/64",
        left.keys.public, left.v4, left.v6
    ));
    for (side, number, other) in [(left, 1, right), (right, 2, left)] {
        side.host.sh(&format!(
            "set -e; ip link add vx0 type vxlan id 7 local {} remote {} dstport 4789 dev wg0
            ip addr add 192.168.66.{number}/24 dev vx0; ip addr add fd66::{number}/64 dev vx0 nodad
            ip link set vx0 mtu 1370 up",
            side.v4, other.v4
        ));
    }
    right
        .host
        .sh("ip route add 10.7.0.0/24 dev wg0; ip -6 route add fd07::/64 dev wg0");
    for address in ["192.168.66.2", "fd66::2"] {
        ping(&left.host, address, 1);
    }
    for labels in [1, 0] {
        for host in [&left.host, &behind] {
            host.sh(&format!(
                "echo {labels} > /proc/sys/net/ipv6/auto_flowlabels"
            ));
        }
        for (what, from, to) in [
            ("IPv4", (&left.host, left.v4.as_str()), right.v4.as_str()),
            ("IPv6", (&left.host, &left.v6), &right.v6),
            (
                "IPv4 in VXLAN",
                (&left.host, "192.168.66.1"),
                "192.168.66.2",
            ),
            ("IPv6 in VXLAN", (&left.host, "fd66::1"), "fd66::2"),
            ("IPv4, forwarded", (&behind, "10.7.0.2"), &right.v4),
            ("IPv6, forwarded", (&behind, "fd07::2"), &right.v6),
        ] {
            let what = format!("{what}, {shards} {policy}, labels {labels}");
            keeps_order(&what, from, (&right.host, to));
        }
    }
}

#[test]
fn a_flow_of_whole_and_cut_datagrams_keeps_its_order() {
    for (shards, policy) in [("1", "inline"), ("2", "auto"), ("4", "pipeline")] {
        by(shards, policy);
    }
}
