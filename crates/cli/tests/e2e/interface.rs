//! The interface is the administrator's: moved, renamed, resized, taken down, deleted under the
//! process.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use crate::harness::*;

const MIB: u64 = 1 << 20;

/// ```text
///   inner                birth                  right
///   wg0 <─── moved from ─ wg0
///                        eth0 ──────────────── eth0
/// ```
#[test]
fn a_moved_interface_keeps_its_sockets_where_it_was_made() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (birth, right) = (&tunnel.left, &tunnel.right);
    let inner = Container::new("inner");
    move_link(&birth.host, "wg0", &inner);
    inner.sh("set -e; ip addr add 192.168.77.1/24 dev wg0; ip addr add fd77::1/64 dev wg0 nodad; ip link set wg0 mtu 1420 up");
    ping(&inner, &right.v4, 3);
    tcp(&inner, &right.host, &right.v4, 16 * MIB);
    tcp(&right.host, &inner, &birth.v6, 16 * MIB);
    // The control socket stays with the daemon.
    assert!(birth.latest_handshake() > 0);
    ping(&right.host, &birth.v4, 1);
    assert!(
        !inner.sh("ip -br addr").contains("eth0"),
        "the inner host has no other way out"
    );
}

#[test]
fn an_interface_has_no_address_that_nobody_gave_it() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let _daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    for _ in 0..2 {
        host.sh("ip link set wg0 up");
        assert_eq!(host.sh("ip -br addr show dev wg0 | cut -c 30-").trim(), "");
        host.sh("ip link set wg0 down");
    }
    assert!(host.sh("ip -d link show wg0").contains("addrgenmode none"));
}

/// As wireguard-go has it: what is inside then fits a packet of 1500 bytes outside.
#[test]
fn an_interface_begins_with_mtu_1420_unless_it_was_there_before() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    host.sh("ip tuntap add dev wg1 mode tun; ip link set wg1 mtu 1333");
    for (name, mtu) in [("wg0", 1420), ("wg1", 1333)] {
        let _daemon = Daemon::start(&host, Program::Adit, name, &Start::default());
        let link = host.sh(&format!("ip link show {name}"));
        assert!(link.contains(&format!("mtu {mtu} ")), "{link}");
    }
}

#[test]
fn an_mtu_of_65535_or_1280_is_the_users_to_choose() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let (left, right) = (&tunnel.left, &tunnel.right);
    // The longest datagram of UDP over IPv4 holds 65,475 bytes; what is shorter than the MTU is
    // padded to 16.
    for (mtu, longest) in [(65_535, 65_472), (65_475, 65_475), (1280, 1280)] {
        for side in [left, right] {
            side.host.sh(&format!("ip link set wg0 mtu {mtu}"));
        }
        for (v, address, headers) in [(4, &right.v4, 28), (6, &right.v6, 48)] {
            left.host.sh(&format!(
                "ping -{v} -n -q -c 2 -i 0.05 -s {} -M do -W 5 {address}",
                longest - headers
            ));
        }
        // The sender of a TCP segment that fills 65,535 bytes does not learn that it is too long.
        if mtu == longest {
            tcp(&left.host, &right.host, &right.v4, 16 * MIB);
            tcp(&right.host, &left.host, &left.v6, 16 * MIB);
        }
        if Program::Adit.is_adit() {
            let limit = &left.status()["peers"][0]["path_mtu"];
            assert!(limit.is_null(), "{mtu}: {limit}");
        }
        let link = left.host.sh("ip link show wg0");
        assert!(link.contains(&format!("mtu {mtu} ")), "{link}");
    }
}

#[test]
fn an_interface_moved_while_traffic_flows_goes_on_there() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    tcp(
        &tunnel.left.host,
        &tunnel.right.host,
        &tunnel.right.v4,
        4 * MIB,
    );
    let inner = Container::new("inner");
    let ticks = UdpTicker::start(
        &tunnel.right.host,
        &tunnel.left.host,
        &tunnel.left.v4,
        std::time::Duration::from_millis(1),
    );
    ticks.advances(100);
    move_link(&tunnel.left.host, "wg0", &inner);
    inner.sh("ip addr add 192.168.77.1/24 dev wg0; ip link set wg0 up");
    let _ = ticks.stop();
    ping(&inner, &tunnel.right.v4, 3);
    tcp(&inner, &tunnel.right.host, &tunnel.right.v4, 4 * MIB);
    tcp(&tunnel.right.host, &inner, &tunnel.left.v4, 4 * MIB);
}

#[test]
fn a_renamed_interface_goes_on() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    left.host.sh("set -e; ip link set wg0 down; ip link set wg0 name tunnel7; ip link set tunnel7 up; ip addr add fd77::1/64 dev tunnel7 nodad");
    wait_for("traffic flows again", seconds(10), || {
        left.host
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4))
            .ok()
    });
    tcp(&left.host, &right.host, &right.v4, 4 * MIB);
    tcp(&right.host, &left.host, &left.v6, 4 * MIB);
    left.host.sh("ip link del tunnel7");
    let mut left = tunnel.left;
    assert!(
        left.daemon.wait().success(),
        "deleted under its new name, the daemon ends"
    );
}

#[test]
fn a_changed_mtu_is_followed_under_traffic() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let flow = Flow::start(&left.host, &right.host, &right.v4);
    for mtu in [1280, 1500, 576, 9000, 1420] {
        left.host.sh(&format!("ip link set wg0 mtu {mtu}"));
        flow.advances(2 * MIB);
        // Padding never makes a packet longer than the MTU.
        let payload = mtu - 28;
        left.host.sh(&format!(
            "ping -n -q -c 2 -i 0.05 -s {payload} -M do -W 5 {}",
            right.v4
        ));
    }
    flow.stop();
    tcp(&right.host, &left.host, &left.v4, 4 * MIB);
}

#[test]
fn an_interface_taken_down_and_up_again_carries_traffic_again() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    left.host.sh("ip link set wg0 down");
    ping_fails(&right.host, &left.v4);
    left.host.sh("ip link set wg0 up");
    wait_for("traffic flows again", seconds(15), || {
        right
            .host
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", left.v4))
            .ok()
    });
    tcp(&left.host, &right.host, &right.v4, 4 * MIB);
}

/// Its shards may still have the port open when it comes up again.
#[test]
fn an_interface_that_flaps_under_traffic_finds_its_port_free() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let flow = Flow::start(&right.host, &left.host, &left.v4);
    for _ in 0..20 {
        left.host
            .sh_with_input("ip -batch -", "link set wg0 down\nlink set wg0 up\n");
        flow.advances(2 * MIB);
    }
    flow.stop();
}

#[test]
fn deleting_an_interface_with_a_full_socket_ends_its_process() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let left = &tunnel.left.host;
    left.sh("tc qdisc replace dev eth0 root tbf rate 100kbit burst 64k limit 200m");
    // Nothing comes back.
    let right = &tunnel.right.host;
    let _sink = right.within(|| std::net::UdpSocket::bind("0.0.0.0:9").expect("a port"));
    let to = tunnel.right.v4.clone();
    left.within(move || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a port");
        let end = std::time::Instant::now() + seconds(2);
        while std::time::Instant::now() < end {
            // A full interface refuses some of it.
            let _ = socket.send_to(&[0; 1300], (to.as_str(), 9));
        }
    });
    left.sh("ip link del wg0");
    let mut left = tunnel.left;
    assert!(left.daemon.wait().success());
}

#[test]
fn a_port_chosen_by_the_kernel_survives_down_and_up() {
    let net = SitePair::new();
    let _daemon = Daemon::start(&net.left, Program::Adit, "wg0", &Start::default());
    let port = || {
        let port = net.left.sh("wg show wg0 listen-port");
        port.trim().parse::<u16>().expect("a port")
    };
    net.left.sh("ip link set wg0 up");
    wait_for("a port is chosen", seconds(30), || port() != 0);
    let chosen = port();
    net.left.sh("ip link set wg0 down");
    assert_eq!(port(), chosen, "down");
    net.left.sh("ip link set wg0 up");
    wait_for("it listens there again", seconds(30), || {
        !net.left
            .sh(&format!("ss -Huln sport = :{chosen}"))
            .is_empty()
    });
    // Asked for another, it takes it, and lets it go.
    net.left.sh("wg set wg0 listen-port 51999");
    assert_eq!(port(), 51_999);
    net.left.sh("wg set wg0 listen-port 0");
    assert_ne!(port(), 51_999);
}

#[test]
fn an_interface_that_is_down_sends_nothing() {
    let net = SitePair::new();
    let wire = Capture::start(&net.right, "eth0", "udp");
    let _daemon = Daemon::start(&net.left, Program::Adit, "wg0", &Start::default());
    let (own, other) = (Keys::new(), Keys::new());
    let config = format!(
        "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.5.0.0/16\nEndpoint = 10.0.0.2:51820\nPersistentKeepalive = 1\n",
        own.private, other.public
    );
    setconf(&net.left, "wg0", &config);
    std::thread::sleep(seconds(2));
    assert_eq!(
        wire.datagrams(),
        [],
        "datagrams while the interface is down"
    );
    net.left.sh("ip link set wg0 up");
    wait_for("it begins when the interface comes up", seconds(10), || {
        !wire.datagrams().is_empty()
    });
}

#[test]
fn deleting_an_interface_ends_its_process_and_socket() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let flow_target = tunnel.right.v4.clone();
    let _ = tunnel
        .left
        .host
        .try_sh(&format!("ping -q -c 1 -W 1 {flow_target}"));
    tunnel.left.host.sh("ip link del wg0");
    let mut left = tunnel.left;
    let status = left.daemon.wait();
    assert!(status.success(), "{status}: {}", left.daemon.log());
    assert!(
        !left.host.path("/run/wireguard/wg0.sock").exists(),
        "the socket is gone"
    );
}

#[test]
fn open_descriptors_of_interface_and_socket_are_taken_over() {
    let net = SitePair::new();
    let host = net.left.clone();
    host.sh("mkdir -p /run/wireguard");
    let listener = UnixListener::bind(host.path("/run/wireguard/wg0.sock")).expect("a socket");
    let tun: OwnedFd = host.within(|| {
        use adit_io::TunQueue as _;
        let tun = adit_io::tun::Tun::open("wg0", 1, adit_io::Offloads::default())
            .expect("a TUN device")
            .remove(0);
        tun.fd().try_clone_to_owned().expect("a descriptor")
    });
    // The two come in as standard input and output.
    let mut command = host.command("sh");
    command
        .args([
            "-c",
            "exec 3<&0 4<&1 0< /dev/null 1>&2; WG_TUN_FD=3 WG_UAPI_FD=4 LOG_LEVEL=verbose exec \"$0\" -f wg0",
        ])
        .arg(Program::Adit.path())
        .stdin(Stdio::from(tun))
        .stdout(Stdio::from(OwnedFd::from(listener)))
        .stderr(Stdio::inherit());
    let child = command.spawn().expect("nsenter starts");
    let daemon = Daemon::adopt(&host, Program::Adit, "wg0", child);
    wait_for("the socket that was passed answers", seconds(30), || {
        host.try_sh("timeout 2 wg show wg0").ok()
    });
    let link = host.sh("ip link show wg0");
    assert!(link.contains("mtu 1500 "), "as whoever made it: {link}");
    drop(command);

    let right = Daemon::start(&net.right, Program::Adit, "wg0", &Start::default());
    let (ours, theirs) = (Keys::new(), Keys::new());
    for (host, own, other, number, peer) in [
        (&net.left, &ours, &theirs, 1, "10.0.0.2"),
        (&net.right, &theirs, &ours, 2, "10.0.0.1"),
    ] {
        setconf(
            host,
            "wg0",
            &format!(
                "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.0/24\nEndpoint = {peer}:51820\n",
                own.private, other.public
            ),
        );
        host.sh(&format!(
            "ip addr add 192.168.77.{number}/24 dev wg0; ip link set wg0 mtu 1420 up"
        ));
    }
    ping(&net.left, "192.168.77.2", 3);
    tcp(&net.left, &net.right, "192.168.77.2", 4 * MIB);
    drop((daemon, right));
}

/// Behind `noqueue` local TCP keeps what the full TUN does not take; behind any other qdisc it is
/// lost.
#[test]
fn an_overflowing_interface_becomes_noqueue_by_default() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let (left, right) = (&tunnel.left, &tunnel.right);
    // As a PostUp hook does it. It works only while the qdisc is the default.
    right
        .host
        .sh("tc qdisc add dev wg0 root handle 1: pfifo limit 1000");
    for end in [left, right] {
        end.host.sh("ip link set wg0 txqueuelen 40");
    }
    wait_for("noqueue", seconds(60), || {
        tcp_many(&left.host, &right.host, &right.v4, 32, 2 * MIB);
        tcp_many(&right.host, &left.host, &left.v4, 32, 2 * MIB);
        left.host.sh("tc qdisc show dev wg0").contains("noqueue")
    });
    let chosen = right.host.sh("tc qdisc show dev wg0");
    assert!(chosen.starts_with("qdisc pfifo 1: root"), "{chosen}");
    tcp(&left.host, &right.host, &right.v4, 4 * MIB);
}

/// A container ends while it holds the interface: nothing else is left in its namespace.
#[test]
fn an_interface_ends_with_the_namespace_it_was_moved_to() {
    for state in ["up", "down"] {
        let net = SitePair::new();
        let tunnel = WgTunnel::new(&net, Setup::default());
        tunnel.connect();
        let (left, right) = (&tunnel.left, &tunnel.right);
        left.host.sh(&format!(
            "set -e; ip netns add box; ip link set wg0 netns box
             ip -n box addr add {}/24 dev wg0; ip -n box link set wg0 up",
            left.v4
        ));
        ping(&right.host, &left.v4, 2);
        left.host.sh(&format!("ip -n box link set wg0 {state}"));
        // Until it is looked at there.
        std::thread::sleep(seconds(2));
        left.host.sh("ip netns del box");
        let mut left = tunnel.left;
        let status = left.daemon.wait();
        assert!(status.success(), "{status}: {}", left.daemon.log());
        assert!(!left.host.path("/run/wireguard/wg0.sock").exists());
        ping_fails(&tunnel.right.host, &left.v4);
    }
}
