//! Keys, sessions, counters, filters, and what the outside may and may not do to them.

use std::net::{SocketAddr, UdpSocket};

use crate::harness::*;

const MIB: u64 = 1 << 20;

#[test]
fn a_changed_private_key_takes_over_under_traffic() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let flow = Flow::start(&left.host, &right.host, &right.v4);
    flow.advances(MIB);
    let new = Keys::new();
    right.host.sh(&format!(
        "wg set wg0 peer {} remove peer {} allowed-ips {}/32,{}/128 endpoint 10.0.0.1:51820",
        left.keys.public, new.public, left.v4, left.v6
    ));
    left.host
        .sh_with_input("wg set wg0 private-key /dev/stdin", &new.private);
    assert_eq!(left.wg("show {} public-key").trim(), new.public);
    flow.advances(2 * MIB);
    ping(&right.host, &left.v6, 2);
    flow.stop();
}

#[test]
fn a_changed_preshared_key_loses_no_packet() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            psk: true,
            ..Setup::default()
        },
    );
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let ticks = UdpTicker::start(
        &left.host,
        &right.host,
        &right.v4,
        std::time::Duration::from_millis(2),
    );
    ticks.advances(100);
    let handshake = left.latest_handshake();
    let psk = Keys::psk();
    for (side, other) in [(left, right), (right, left)] {
        side.host.sh_with_input(
            &format!(
                "wg set wg0 peer {} preshared-key /dev/stdin",
                other.keys.public
            ),
            &psk,
        );
        assert_eq!(side.peer_field(1), psk);
    }
    ticks.advances(200);
    assert_eq!(left.latest_handshake(), handshake, "the session goes on");
    let (sent, received) = ticks.stop();
    assert_eq!(
        received, sent,
        "datagrams that arrived while the key changed"
    );
}

#[test]
fn only_the_right_preshared_key_lets_packets_through() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            psk: true,
            right_knows_left: false,
            ..Setup::default()
        },
    );
    let (left, right) = (&tunnel.left, &tunnel.right);
    let set = |psk: &str| {
        left.host.sh_with_input(
            &format!(
                "wg set wg0 peer {} preshared-key /dev/stdin",
                right.keys.public
            ),
            psk,
        );
    };
    set(&Keys::psk());
    ping_fails(&left.host, &right.v4);
    assert_eq!(left.latest_handshake(), 0);
    set(tunnel.psk.as_deref().expect("one was made"));
    wait_for("the next attempt succeeds", seconds(20), || {
        left.host
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4))
            .ok()
    });
}

#[test]
fn sessions_are_renewed_under_traffic_without_losing_a_datagram() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    renews(&tunnel, 0);
}

/// Traffic both ways across a renewal (120 s after the first handshake), of which `tolerated`
/// datagrams each way may be lost; also used with the other implementations.
pub fn renews(tunnel: &WgTunnel, tolerated: u64) {
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    // What Adit says: BoringTun tells how long ago the handshake was, not when. A minute later, so
    // that no repetition of the first handshake counts: wireguard-go repeats one whose response
    // comes very fast.
    let adit = || {
        let sides = [left, right].into_iter();
        sides.filter(|side| side.daemon.program == Program::Adit)
    };
    let first = adit()
        .map(Side::latest_handshake)
        .max()
        .expect("one is Adit");
    let interval = std::time::Duration::from_millis(10);
    let there = UdpTicker::start(&left.host, &right.host, &right.v4, interval);
    let back = UdpTicker::start(&right.host, &left.host, &left.v6, interval);
    let flow = Flow::start(&left.host, &right.host, &right.v6);
    wait_for("the session is renewed", seconds(150), || {
        adit().all(|side| side.latest_handshake() >= first + 60)
    });
    there.advances(100);
    back.advances(100);
    flow.advances(MIB);
    flow.stop();
    for (name, ticks) in [("there", there), ("back", back)] {
        let (sent, received) = ticks.stop();
        assert!(sent > 5000, "{sent} datagrams {name}");
        assert!(
            received + tolerated >= sent,
            "{received} of {sent} datagrams arrived {name}; dropped on the left {:?}, on the right {:?}",
            dropped(left),
            dropped(right)
        );
    }
}

#[test]
fn a_restarted_initiator_is_answered_in_the_session_it_knows() {
    // The responder still has a session with the process before. The first packet of the new one
    // confirms it, and the answer to that very packet must already be sent in it.
    let net = SitePair::new();
    let setup = Setup {
        right_knows_left: false,
        ..Setup::default()
    };
    let mut tunnel = WgTunnel::new(&net, setup);
    tunnel.connect();
    for _ in 0..8 {
        let left = &mut tunnel.left;
        left.daemon.signal("KILL");
        left.daemon.wait();
        wait_for("the interface goes with it", seconds(30), || {
            !net.left.has_interface("wg0")
        });
        left.daemon = Daemon::start(&net.left, Program::Adit, "wg0", &Start::default());
        setconf(&net.left, "wg0", &left.config);
        net.left
            .sh("ip addr add 192.168.77.1/24 dev wg0; ip link set wg0 mtu 1420 up");
        ping(&net.left, &tunnel.right.v4, 1);
    }
}

#[test]
fn transfer_counters_count_exactly_the_datagrams_payload() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            right_knows_left: false,
            ..Setup::default()
        },
    );
    let (left, right) = (&tunnel.left, &tunnel.right);
    ping(&left.host, &right.v4, 10);
    // 10 pings of 84 bytes are 96 padded, 128 as data messages; an initiation has 148 bytes, a
    // response 92. A first keepalive of 32 may confirm the session.
    let (sent, received) = (left.sent(), left.received());
    assert_eq!(received, 10 * 128 + 92);
    assert!(
        sent == 10 * 128 + 148 || sent == 10 * 128 + 148 + 32,
        "sent {sent}"
    );
    assert_eq!(
        (right.received(), right.sent()),
        (sent, received),
        "the two sides agree"
    );

    // Exact under bulk traffic too: both ends agree at rest.
    tcp(&left.host, &right.host, &right.v4, 16 * MIB);
    wait_for("the counters of both sides agree", seconds(30), || {
        left.sent() == right.received() && left.received() == right.sent()
    });
}

#[test]
fn packets_from_outside_a_peers_allowed_ips_are_dropped() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    left.host
        .sh("ip addr add 192.168.99.1/32 dev wg0; ip addr add fd99::1/128 dev wg0 nodad");
    let seen = Capture::start(&right.host, "wg0", "");
    let before = right.received();
    for (source, to) in [("192.168.99.1", &right.v4), ("fd99::1", &right.v6)] {
        let _ = left
            .host
            .try_sh(&format!("ping -n -q -c 3 -i 0.1 -W 1 -I {source} {to}"));
    }
    ping(&left.host, &right.v4, 1);
    wait_for("the datagrams arrived", seconds(30), || {
        right.received() >= before + 7 * 128
    });
    let bytes = seen.bytes();
    assert!(
        !within_bytes(&[192, 168, 99, 1], &bytes),
        "an IPv4 packet got through the filter"
    );
    assert!(
        !within_bytes(
            &[0xfd, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            &bytes
        ),
        "an IPv6 packet got through the filter"
    );
    assert!(
        within_bytes(&[192, 168, 77, 1], &bytes),
        "the allowed one was seen"
    );

    // A more specific block of another peer takes the address away, though this peer's block still
    // contains it.
    right.wg(&format!(
        "set {{}} peer {} allowed-ips 192.168.0.0/16,{}/128",
        left.keys.public, left.v6
    ));
    ping(&left.host, &right.v4, 1);
    let other = Keys::new();
    right.wg(&format!(
        "set {{}} peer {} allowed-ips {}/32",
        other.public, left.v4
    ));
    ping_fails(&left.host, &right.v4);
    // Authentic all the same: it still shows where the peer is.
    left.wg("set {} listen-port 40001");
    let _ = left
        .host
        .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4));
    assert!(
        right.wg("show {} endpoints").contains("10.0.0.1:40001"),
        "the filter does not stop roaming"
    );
    right.wg(&format!("set {{}} peer {} remove", other.public));
    ping(&left.host, &right.v4, 1);
}

#[test]
fn no_plaintext_ever_reaches_the_wire() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    let wire = Capture::start(&right.host, "eth0", "");
    let inside = Capture::start(&right.host, "wg0", "");

    // Before there is a session, while there is none to be had, and with one.
    right.daemon.signal("STOP");
    left.host.sh(&format!(
        "for i in 1 2 3 4 5 6; do echo -PLAINTEXT--PLAINTEXT- > /dev/null; ping -n -q -c 1 -W 1 -s 200 -p 2d504c41494e544558542d {} || true; done",
        right.v4
    ));
    let early = wire.datagrams();
    assert!(!early.is_empty(), "initiations are sent");
    for datagram in &early {
        assert_eq!(
            (datagram.payload.len(), datagram.payload[0]),
            (148, 1),
            "only initiations"
        );
    }
    right.daemon.signal("CONT");
    tcp(&left.host, &right.host, &right.v4, 2 * MIB);
    udp(&right.host, &left.host, &left.v6, &[100, 1000], 20);
    // No peer has this one: dropped, not sent in the clear.
    left.host.sh(&format!("ip route add 198.51.100.0/24 dev wg0; ping -n -q -c 1 -W 1 -p 2d504c41494e544558542d 198.51.100.1 || true; ping -c1 {} > /dev/null", right.v4));

    assert!(
        within_bytes(marker(), &inside.bytes()),
        "the search works: inside the tunnel the marker is seen"
    );
    let bytes = wire.bytes();
    assert!(bytes.len() > 2 * 1024 * 1024);
    assert!(!within_bytes(marker(), &bytes), "plaintext on the wire");
}

#[test]
fn a_peer_with_our_own_key_is_ignored() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let left = &tunnel.left;
    left.wg(&format!(
        "set {{}} peer {} allowed-ips 10.99.0.0/16",
        left.keys.public
    ));
    assert!(!left.wg("show {} peers").contains(&left.keys.public));
    ping(&left.host, &tunnel.right.v4, 1);
}

#[test]
fn low_order_public_keys_emit_nothing() {
    let net = SitePair::new();
    let daemon = Daemon::start(&net.left, Program::Adit, "wg0", &Start::default());
    net.left
        .sh_with_input("wg set wg0 private-key /dev/stdin", &Keys::new().private);
    net.left
        .sh("ip addr add 192.168.77.1/24 dev wg0; ip link set wg0 up");
    let wire = Capture::start(&net.right, "eth0", "udp");
    // 0, 1, two points of order 8, and p-1, p, p+1.
    let points = [
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "4Ot6fDtBuK4WVuP68Z/EatoJjeucMrH9hmIFFl9JuAA=",
        "X5yVvKNQjCSx0LFVnIPvWwREXMRYHI6G2CJO3dCfEVc=",
        "7P///////////////////////////////////////38=",
        "7f///////////////////////////////////////38=",
        "7v///////////////////////////////////////38=",
    ];
    for (i, point) in points.iter().enumerate() {
        let last = i + 10;
        net.left.sh(&format!(
            "wg set wg0 peer {point} persistent-keepalive 1 endpoint 10.0.0.2:51820 allowed-ips 192.168.77.{last}/32; \
             ping -n -q -c 1 -W 1 192.168.77.{last} > /dev/null || true"
        ));
    }
    assert_eq!(wire.datagrams(), [], "datagrams for low-order keys");
    let good = Keys::new();
    net.left.sh(&format!(
        "wg set wg0 peer {} persistent-keepalive 1 endpoint 10.0.0.2:51820",
        good.public
    ));
    wait_for("a good key does send", seconds(30), || {
        !wire.datagrams().is_empty()
    });
    drop(daemon);
}

#[test]
fn malformed_and_replayed_datagrams_change_nothing() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    let wire = Capture::start(&right.host, "eth0", "udp port 51820");
    tunnel.connect();
    tcp(&right.host, &left.host, &left.v4, MIB);
    // Most of the stream crosses the link in super-packets; these are single datagrams.
    ping(&right.host, &left.v4, 50);
    let single = || -> Vec<_> {
        wire.datagrams()
            .into_iter()
            .filter(|d| d.destination_port == 51820)
            .map(|d| d.payload)
            .filter(|p| p.len() < 1500)
            .take(300)
            .collect()
    };
    wait_for("enough datagrams are captured", seconds(30), || {
        single().len() >= 50
    });
    let genuine = single();
    let (endpoint, handshake) = (left.endpoint(), left.latest_handshake());

    let flow = Flow::start(&left.host, &right.host, &right.v4);
    flow.advances(MIB);
    let sent = right
        .host
        .within(move || flood("10.0.0.1:51820".parse().expect("an address"), &genuine));
    println!("{sent} hostile datagrams");
    flow.advances(MIB);
    flow.stop();

    assert_eq!(
        left.endpoint(),
        endpoint,
        "no hostile datagram moved the endpoint"
    );
    assert_eq!(left.latest_handshake(), handshake, "the session goes on");
    ping(&left.host, &right.v6, 5);
    ping(&right.host, &left.v4, 5);
    if left.daemon.program == Program::Adit {
        let drops = dropped(left);
        println!("dropped by reason: {drops:?}");
        let all: u64 = drops.iter().map(|(_, n)| n).sum();
        assert!(all > 1000, "drops are counted: {drops:?}");
    }
}

/// Adit's drops by reason; none for another implementation.
fn dropped(side: &Side) -> Vec<(String, u64)> {
    if side.daemon.program != Program::Adit {
        return Vec::new();
    }
    let report = side.host.sh(&format!(
        "{} show {} --json",
        Program::Adit.path().display(),
        side.interface
    ));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    report["interfaces"][0]["engine"]["drops"]
        .as_object()
        .unwrap_or_else(|| panic!("no drops in {report}"))
        .iter()
        .map(|(reason, n)| (reason.clone(), n.as_u64().expect("a number")))
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// Sends every kind of bad datagram, derived from genuine ones where that is worse, and the genuine
/// ones again.
fn flood(to: SocketAddr, genuine: &[Vec<u8>]) -> u64 {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let mut state = 1_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut sent = 0;
    let mut send = |bytes: &[u8]| {
        if socket.send_to(bytes, to).is_ok() {
            sent += 1;
        }
        if sent % 64 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    for length in 0..200_usize {
        send(&vec![0; length]);
        for kind in 0..6 {
            let mut bytes: Vec<u8> = (0..length).map(|_| random().to_le_bytes()[5]).collect();
            if let Some(head) = bytes.get_mut(..4) {
                head.copy_from_slice(&[kind, 0, 0, 0]);
            }
            send(&bytes);
        }
    }
    for length in [1472, 1473, 2048, 9000, 40_000, 65_507] {
        for kind in 0..6 {
            let mut bytes = vec![0xff; length];
            bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
            send(&bytes);
        }
    }
    for datagram in genuine {
        // Replayed, cut, extended, with the reserved bytes set, each with one bit flipped.
        send(datagram);
        send(&datagram[..datagram.len() / 2]);
        send(&datagram[..datagram.len() - 1]);
        send(&[datagram.as_slice(), b"more"].concat());
        let mut reserved = datagram.clone();
        reserved[2] = 1;
        send(&reserved);
        for _ in 0..8 {
            let mut flipped = datagram.clone();
            let at = usize::try_from(random() % flipped.len() as u64).expect("small");
            flipped[at] ^= 1 << (random() % 8);
            send(&flipped);
        }
    }
    for _ in 0..20 {
        for datagram in genuine {
            send(datagram);
        }
    }
    sent
}

#[test]
fn an_idle_tunnel_wakes_up_for_its_timers_only_and_stays_small() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let left = &tunnel.left;
    tunnel.connect();
    tcp(&left.host, &tunnel.right.host, &tunnel.right.v4, MIB);
    // The passive keepalives and the last timers of the traffic above.
    std::thread::sleep(seconds(12));
    let before = wake_ups(left.daemon.pid());
    std::thread::sleep(seconds(5));
    let wakes = wake_ups(left.daemon.pid()) - before;
    let kib = |field| memory(left.daemon.pid(), field);
    println!(
        "idle: {wakes} wake-ups in 5 s, RSS {} KiB of which anonymous {} KiB",
        kib("VmRSS:"),
        kib("RssAnon:")
    );
    if left.daemon.program == Program::Adit {
        // What the file of the (unstripped) program maps is not the process's doing.
        assert!(
            kib("RssAnon:") < 16 * 1024,
            "{} KiB of memory when idle",
            kib("RssAnon:")
        );
    }
}

fn wake_ups(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .expect("its threads")
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter_map(|status| {
            let line = status
                .lines()
                .find(|l| l.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().last()?.parse::<u64>().ok()
        })
        .sum()
}

/// Only the kernel's word of it, made by hand: kernel.rs has a machine that is reset.
#[test]
fn word_of_a_new_vm_generation_ends_every_session() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let left = &tunnel.left;
    if !left.daemon.program.is_adit() {
        return;
    }
    tunnel.connect();
    let sessions = || left.daemon.log().matches("session established").count();
    let before = sessions();
    left.host.within(|| {
        use rustix::net::*;
        let text = b"change@/devices/x\0ACTION=change\0NEW_VMGENID=1\0";
        let len = u32::try_from(16 + text.len()).expect("short");
        // The header of a netlink message: type 16, and a request (1).
        let header = [len, 16 | 1 << 16, 0, 0].map(u32::to_le_bytes).concat();
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(netlink::KOBJECT_UEVENT),
        )
        .expect("a socket");
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        let bytes = [&header[..], text].concat();
        sendto(&socket, &bytes, SendFlags::empty(), &kernel).expect("the right to");
    });
    wait_for("it is heard", seconds(20), || {
        left.daemon.log().contains("reset to a snapshot")
    });
    ping(&left.host, &tunnel.right.v4, 2);
    assert!(sessions() > before);
}
