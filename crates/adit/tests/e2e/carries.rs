//! Traffic through a tunnel between two hosts:
//!
//! ```text
//!   left                                  right
//!   wg0  192.168.77.1 fd77::1      wg0  192.168.77.2 fd77::2
//!   eth0 10.0.0.1 fd00::1 ──────── eth0 10.0.0.2 fd00::2
//! ```

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
fn exercise(tunnel: &Tunnel, tcp_bytes: u64) {
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
    let net = Pair::new();
    let tunnel = Tunnel::new(&net, Setup::default());
    exercise(&tunnel, 32 * MIB);
}

#[test]
fn a_tunnel_over_ipv6_carries_ipv4_and_ipv6_unchanged() {
    let net = Pair::new();
    let tunnel = Tunnel::new(
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
    let net = Pair::new();
    let tunnel = Tunnel::new(
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
    let net = Pair::new();
    let tunnel = Tunnel::new(
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
    let net = Pair::new();
    net.left.sh("ip link set eth0 mtu 9000");
    net.right.sh("ip link set eth0 mtu 9000");
    let tunnel = Tunnel::new(
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
fn an_mtu_larger_than_the_path_still_carries_everything_in_fragments() {
    let net = Pair::new();
    let tunnel = Tunnel::new(
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
    let net = Pair::new();
    let tunnel = Tunnel::new(&net, Setup::default());
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
    let net = Pair::new();
    let tunnel = Tunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    ping(&left.host, &right.v4, 1);
    tcp_many(&left.host, &right.host, &right.v4, 50, MIB);
    tcp_many(&right.host, &left.host, &left.v6, 50, MIB);
}
