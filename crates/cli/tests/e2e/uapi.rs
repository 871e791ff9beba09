//! The control socket, through wg(8), wgctrl-go and raw.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::harness::*;

/// A device with no traffic, for its control socket.
struct Device {
    host: Container,
    #[allow(dead_code, reason = "ends when dropped")]
    daemon: Daemon,
}

impl Device {
    fn new() -> Device {
        let host = Container::new("left");
        let daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
        Device { host, daemon }
    }

    fn connect(&self) -> UnixStream {
        let socket = UnixStream::connect(self.host.path("/run/wireguard/wg0.sock"))
            .expect("the socket accepts");
        socket
            .set_read_timeout(Some(seconds(20)))
            .expect("a timeout");
        socket
            .set_write_timeout(Some(seconds(20)))
            .expect("a timeout");
        socket
    }

    /// Sends a request and reads to the blank line that ends the answer.
    fn ask(&self, request: &str) -> String {
        let mut socket = self.connect();
        socket
            .write_all(request.as_bytes())
            .expect("the request is read");
        answer(&mut socket)
    }

    /// `set=1` with these lines: the errno, as a magnitude.
    fn set(&self, lines: &str) -> u32 {
        errno(&self.ask(&format!("set=1\n{lines}\n\n")))
    }

    fn get(&self) -> String {
        let answer = self.ask("get=1\n\n");
        assert_eq!(errno(&answer), 0, "{answer}");
        answer
    }

    /// The values of a key in `get`, in order.
    fn values(&self, key: &str) -> Vec<String> {
        let answer = self.get();
        answer
            .lines()
            .filter_map(|line| line.split_once('='))
            .filter(|(name, _)| *name == key)
            .map(|(_, value)| value.to_owned())
            .collect()
    }
}

fn answer(socket: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let mut piece = [0; 65_536];
    while !bytes.ends_with(b"\n\n") {
        match socket.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(error) => panic!(
                "no answer: {error}; so far {}",
                String::from_utf8_lossy(&bytes)
            ),
        }
    }
    String::from_utf8(bytes).expect("text")
}

fn errno(answer: &str) -> u32 {
    let line = answer
        .lines()
        .find(|l| l.starts_with("errno="))
        .unwrap_or_else(|| panic!("an errno in {answer:?}"));
    line["errno=".len()..]
        .parse::<i64>()
        .expect("a number")
        .unsigned_abs()
        .try_into()
        .expect("small")
}

fn hex(n: u8) -> String {
    // Not all bytes equal, no low-order point.
    format!("{:02x}", n).repeat(31) + "01"
}

#[test]
fn wg_prints_what_was_configured_in_every_format() {
    let device = Device::new();
    let host = &device.host;
    let (own, one, two) = (Keys::new(), Keys::new(), Keys::new());
    let psk = Keys::psk();
    let config = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 12345\nFwMark = 0x2a\n\n\
         [Peer]\nPublicKey = {}\nPresharedKey = {psk}\nAllowedIPs = 10.1.0.0/16, fd01::/64\nEndpoint = 192.0.2.1:1000\nPersistentKeepalive = 25\n\n\
         [Peer]\nPublicKey = {}\nEndpoint = [2001:db8::1]:2000\n",
        own.private, one.public, two.public
    );
    setconf(host, "wg0", &config);
    // It is down: whatever the configuration says, nothing is sent.

    let dump = host.sh("wg show wg0 dump");
    let mut lines: Vec<Vec<&str>> = dump.lines().map(|l| l.split('\t').collect()).collect();
    assert_eq!(
        lines.remove(0),
        [own.private.as_str(), &own.public, "12345", "0x2a"]
    );
    lines.sort_by_key(|l| l[0] != one.public);
    assert_eq!(
        lines[0],
        [
            one.public.as_str(),
            &psk,
            "192.0.2.1:1000",
            "10.1.0.0/16,fd01::/64",
            "0",
            "0",
            "0",
            "25"
        ]
    );
    assert_eq!(
        lines[1],
        [
            two.public.as_str(),
            "(none)",
            "[2001:db8::1]:2000",
            "(none)",
            "0",
            "0",
            "0",
            "off"
        ]
    );
    assert!(
        host.sh("wg show all dump")
            .lines()
            .all(|l| l.starts_with("wg0\t"))
    );
    assert_eq!(host.sh("wg show interfaces").trim(), "wg0");
    assert_eq!(host.sh("wg show wg0 listen-port").trim(), "12345");
    assert_eq!(host.sh("wg show wg0 private-key").trim(), own.private);
    let shown = host.sh("wg show");
    for part in [
        "interface: wg0",
        "listening port: 12345",
        "fwmark: 0x2a",
        "endpoint: 192.0.2.1:1000",
        "persistent keepalive: every 25 seconds",
        "preshared key: (hidden)",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!host.try_sh("wg show doesnotexist").ok());

    // `wg setconf` restores the output of `wg showconf`.
    let written = host.sh("wg showconf wg0");
    host.sh("wg set wg0 listen-port 0 fwmark off private-key /dev/null");
    host.sh(&format!(
        "wg set wg0 peer {} remove peer {} remove",
        one.public, two.public
    ));
    assert_eq!(host.sh("wg show wg0 peers"), "");
    setconf(host, "wg0", &written);
    let mut restored: Vec<String> = host
        .sh("wg show wg0 dump")
        .lines()
        .map(str::to_owned)
        .collect();
    let mut before: Vec<String> = dump.lines().map(str::to_owned).collect();
    restored.sort();
    before.sort();
    assert_eq!(restored, before);
}

#[test]
fn wg_set_changes_one_thing_and_leaves_the_rest() {
    let device = Device::new();
    let host = &device.host;
    let (own, one, two) = (Keys::new(), Keys::new(), Keys::new());
    host.sh_with_input(
        "wg set wg0 private-key /dev/stdin listen-port 7777",
        &own.private,
    );
    host.sh(&format!("wg set wg0 peer {} allowed-ips 10.0.0.0/8,fd00::/8 endpoint 192.0.2.1:1 persistent-keepalive 10", one.public));
    host.sh(&format!(
        "wg set wg0 peer {} allowed-ips 10.1.0.0/16",
        two.public
    ));
    host.sh("wg set wg0 fwmark 9");
    assert_eq!(host.sh("wg show wg0 listen-port").trim(), "7777");

    // A block moves to the peer that names it last.
    host.sh(&format!(
        "wg set wg0 peer {} allowed-ips 10.0.0.0/8",
        two.public
    ));
    let ips = host.sh("wg show wg0 allowed-ips");
    assert!(ips.contains(&format!("{}\tfd00::/8", one.public)), "{ips}");
    assert!(
        ips.contains(&format!("{}\t10.0.0.0/8", two.public)),
        "{ips}"
    );
    assert!(
        host.sh("wg show wg0 endpoints")
            .contains(&format!("{}\t192.0.2.1:1", one.public))
    );

    host.sh(&format!(
        "wg set wg0 peer {} persistent-keepalive off",
        one.public
    ));
    assert!(
        host.sh("wg show wg0 persistent-keepalive")
            .contains(&format!("{}\toff", one.public))
    );
    host.sh(&format!("wg set wg0 peer {} remove", one.public));
    assert_eq!(host.sh("wg show wg0 peers").trim(), two.public);
    host.sh("wg set wg0 fwmark 0 private-key /dev/null");
    assert_eq!(host.sh("wg show wg0 fwmark").trim(), "off");
    assert_eq!(host.sh("wg show wg0 public-key").trim(), "(none)");

    // Container bits are cleared, the last block of several equal ones counts once.
    host.sh(&format!(
        "wg set wg0 peer {} allowed-ips 192.168.4.29/24,192.168.4.0/24,0.0.0.0/0,::/0",
        two.public
    ));
    let ips = host.sh("wg show wg0 allowed-ips");
    let mut blocks: Vec<_> = ips
        .trim()
        .split('\t')
        .nth(1)
        .expect("blocks")
        .split(' ')
        .collect();
    blocks.sort_unstable();
    assert_eq!(blocks, ["0.0.0.0/0", "192.168.4.0/24", "::/0"]);
}

#[test]
fn the_listening_port_that_was_not_asked_for_is_reported() {
    let device = Device::new();
    device
        .host
        .sh_with_input("wg set wg0 private-key /dev/stdin", &Keys::new().private);
    device.host.sh("ip link set wg0 up");
    wait_for("a port is chosen", seconds(30), || {
        device.host.sh("wg show wg0 listen-port").trim() != "0"
    });
    // And may be set as if it had been asked for.
    let host = &device.host;
    host.sh("set -e; wg showconf wg0 > /run/shown; wg setconf wg0 /run/shown; wg syncconf wg0 /run/shown");
    let port = host.sh("wg show wg0 listen-port");
    host.sh(&format!("wg set wg0 listen-port {}", port.trim()));
    assert_eq!(host.sh("wg show wg0 listen-port"), port);
}

#[test]
fn a_port_taken_at_start_is_bound_once_it_is_free() {
    if !Program::Adit.is_adit() {
        return;
    }
    let device = Device::new();
    let host = &device.host;
    let take = || host.within(|| std::net::UdpSocket::bind("0.0.0.0:5001"));
    host.sh("wg set wg0 listen-port 5001");
    let other = take().expect("it is free while the interface is down");
    host.sh("ip link set wg0 up");
    let set = || host.try_sh("wg set wg0 listen-port 5001").ok();
    wait_for("it is refused", seconds(30), || !set());
    // Settings that are independent of it can be set.
    host.sh(&format!("wg set wg0 peer {}", Keys::new().public));
    drop(other);
    assert!(set());
    assert!(take().is_err(), "it is the tunnel's now");
}

#[test]
fn every_key_of_the_protocol_has_its_meaning() {
    let device = Device::new();
    let (a, b) = (hex(0x11), hex(0x22));
    assert_eq!(
        device.set(&format!(
            "public_key={a}\nupdate_only=true\nallowed_ip=10.0.0.0/8"
        )),
        0
    );
    assert!(
        device.values("public_key").is_empty(),
        "update_only creates no peer"
    );

    assert_eq!(device.set(&format!("private_key={}\nlisten_port=0\nfwmark=7\nreplace_peers=true\npublic_key={a}\npreshared_key={}\nendpoint=192.0.2.1:1\npersistent_keepalive_interval=0\nprotocol_version=1\nallowed_ip=10.0.0.0/8\nallowed_ip=fd00::/8\npublic_key={b}\nallowed_ip=10.2.0.0/16", hex(0x33), hex(0x44))), 0);
    let answer = device.get();
    for line in [
        "fwmark=7",
        "protocol_version=1",
        "endpoint=192.0.2.1:1",
        "last_handshake_time_sec=0",
        "last_handshake_time_nsec=0",
        "tx_bytes=0",
        "rx_bytes=0",
        "persistent_keepalive_interval=0",
        "allowed_ip=10.0.0.0/8",
        "allowed_ip=fd00::/8",
    ] {
        assert!(answer.lines().any(|l| l == line), "{line} in {answer}");
    }
    assert!(
        answer
            .lines()
            .any(|l| l == format!("preshared_key={}", hex(0x44))),
        "{answer}"
    );
    assert!(answer.ends_with("errno=0\n\n"), "{answer:?}");

    assert_eq!(
        device.set(&format!(
            "public_key={a}\nallowed_ip=-10.0.0.0/8\nallowed_ip=10.3.0.0/16"
        )),
        0
    );
    assert_eq!(
        device
            .values("allowed_ip")
            .iter()
            .filter(|ip| *ip == "10.0.0.0/8")
            .count(),
        0
    );
    assert_eq!(
        device.set(&format!("public_key={a}\nallowed_ip=-10.2.0.0/16")),
        0,
        "another peer's block stays"
    );
    assert!(
        device
            .values("allowed_ip")
            .contains(&"10.2.0.0/16".to_owned())
    );
    assert_eq!(
        device.set(&format!(
            "public_key={b}\nreplace_allowed_ips=true\nallowed_ip=10.3.0.0/16"
        )),
        0
    );
    let mut blocks = device.values("allowed_ip");
    blocks.sort();
    assert_eq!(
        blocks,
        ["10.3.0.0/16", "fd00::/8"],
        "replaced, and moved from the other peer"
    );
    assert_eq!(
        device.set(&format!(
            "public_key={a}\nremove=true\nallowed_ip=10.9.0.0/16"
        )),
        0
    );
    assert_eq!(device.values("public_key"), std::slice::from_ref(&b));
    assert_eq!(
        device.set(&format!(
            "public_key={b}\nupdate_only=true\npersistent_keepalive_interval=65535"
        )),
        0
    );
    assert_eq!(device.values("persistent_keepalive_interval"), ["65535"]);
    assert_eq!(device.set("replace_peers=true"), 0);
    assert!(device.values("public_key").is_empty());
    assert_eq!(device.set(&format!("private_key={}", "0".repeat(64))), 0);
    assert!(
        device
            .values("private_key")
            .iter()
            .all(|key| *key == "0".repeat(64)),
        "zero removes the key"
    );
    // An empty set is a set.
    assert_eq!(errno(&device.ask("set=1\n\n")), 0);
}

#[test]
fn a_failing_set_changes_nothing_at_all() {
    let device = Device::new();
    let (a, b) = (hex(0x11), hex(0x22));
    assert_eq!(device.set(&format!("private_key={}\nlisten_port=4444\nfwmark=3\npublic_key={a}\nendpoint=192.0.2.1:1\nallowed_ip=10.0.0.0/8", hex(0x33))), 0);
    let before = device.get();
    let good = format!(
        "private_key={}\nlisten_port=4445\nfwmark=4\nreplace_peers=true\npublic_key={b}\nallowed_ip=10.0.0.0/8",
        hex(0x55)
    );
    for bad in [
        "allowed_ip=10.0.0.0/33",
        "allowed_ip=10.0.0/8",
        "allowed_ip=garbage",
        "allowed_ip=",
        "endpoint=example.com:1",
        "endpoint=192.0.2.1",
        "endpoint=192.0.2.1:65536",
        "endpoint=[fd00::1",
        "persistent_keepalive_interval=65536",
        "persistent_keepalive_interval=-1",
        "preshared_key=00",
        "protocol_version=2",
        "remove=yes",
        "update_only=1",
        "replace_allowed_ips=false",
        "public_key=zz",
        "public_key=",
        "unknown_key=1",
        "no equals sign",
        "=1",
    ] {
        let errno = device.set(&format!("{good}\n{bad}"));
        assert_ne!(errno, 0, "{bad}");
        assert_eq!(device.get(), before, "after {bad}");
    }
    for bad in [
        "private_key=00",
        "listen_port=65536",
        "listen_port=x",
        "fwmark=4294967296",
        "replace_peers=1",
        "remove=true",
    ] {
        assert_ne!(device.set(&format!("{bad}\n{good}")), 0, "{bad}");
        assert_eq!(device.get(), before, "after {bad}");
    }
}

#[test]
fn a_port_in_use_fails_the_set_and_the_old_port_goes_on() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let hold = || {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (bound, is_bound) = std::sync::mpsc::channel();
        let holder = net.left.spawn(move || {
            // An interface that goes down gives it back soon.
            let mut socket = None;
            wait_for("the port is free", Duration::from_secs(10), || {
                socket = std::net::UdpSocket::bind("0.0.0.0:5555").ok();
                socket.is_some()
            });
            bound.send(()).expect("somebody waits");
            let _ = held.recv();
            drop(socket);
        });
        is_bound.recv().expect("it is bound");
        (release, holder)
    };
    let (release, holder) = hold();
    let output = left.host.try_sh(&format!(
        "wg set wg0 listen-port 5555 peer {} persistent-keepalive 7",
        right.keys.public
    ));
    assert!(!output.ok(), "the port is taken");
    assert_eq!(left.wg("show {} listen-port").trim(), "51820");
    assert_eq!(left.peer_field(7), "off", "the peer is as it was");
    ping(&right.host, &left.v4, 2);
    assert_eq!(right.endpoint(), "10.0.0.1:51820");
    release.send(()).expect("the holder waits");
    holder.join().expect("no panic");
    left.wg("set {} listen-port 5555");
    ping(&left.host, &right.v4, 2);
    assert_eq!(right.endpoint(), "10.0.0.1:5555");

    // If the port is taken while the interface is down, it is bound soon after it is free.
    left.host.sh("ip link set wg0 down");
    let (release, holder) = hold();
    left.host.sh("ip link set wg0 up");
    ping_fails(&right.host, &left.v4);
    release.send(()).expect("the holder waits");
    holder.join().expect("no panic");
    wait_for("the port is bound", Duration::from_secs(10), || {
        right
            .host
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", left.v4))
            .ok()
    });
}

#[test]
fn the_answer_to_a_set_comes_in_one_piece() {
    // wgctrl-go reads it with a single read of 32 bytes.
    let device = Device::new();
    for _ in 0..50 {
        let mut socket = device.connect();
        socket
            .write_all(b"set=1\nfwmark=1\n\n")
            .expect("the request is read");
        let mut piece = [0; 32];
        let n = socket.read(&mut piece).expect("an answer");
        assert_eq!(&piece[..n], b"errno=0\n\n");
    }
}

#[test]
fn several_requests_on_one_connection_are_answered_in_order() {
    let device = Device::new();
    let mut socket = device.connect();
    socket
        .write_all(b"set=1\nfwmark=5\n\nget=1\n\nset=1\nfwmark=6\n\nget=1\n\n")
        .expect("the requests are read");
    for expected in [None, Some("fwmark=5"), None, Some("fwmark=6")] {
        let mut text = String::new();
        // One answer at a time: read byte by byte up to the blank line.
        while !text.ends_with("\n\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("an answer");
            text.push(char::from(byte[0]));
        }
        assert!(text.ends_with("errno=0\n\n"), "{text}");
        assert!(
            expected.is_none_or(|line| text.contains(line)),
            "{expected:?} in {text}"
        );
    }
}

#[test]
fn garbage_on_the_socket_is_refused_and_disturbs_nobody() {
    let device = Device::new();
    let a = hex(0x11);
    assert_eq!(
        device.set(&format!(
            "private_key={}\nlisten_port=4444\npublic_key={a}\nallowed_ip=10.0.0.0/8",
            hex(0x33)
        )),
        0
    );
    let before = device.get();
    let long_line = [
        b"set=1\nprivate_key=".as_slice(),
        &vec![b'a'; 10_000_000],
        b"\n\n",
    ]
    .concat();
    let many_lines = [b"set=1\n".as_slice(), &b"bogus=1\n".repeat(200_000), b"\n"].concat();
    let binary: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let requests: [&[u8]; 16] = [
        b"\n",
        b"\n\n\n\n",
        b"get=2\n\n",
        b"set=2\n\n",
        b"set=1",
        b"get=1",
        b"set=1\nprivate_key=",
        b"set=1\nprivate_key=0000\n",
        b"hello\n\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"get=1\nfwmark=1\n\n",
        b"set=1\r\nfwmark=1\r\n\r\n",
        b"set=1\nfwmark=\xff\xfe\n\n",
        &long_line,
        &many_lines,
        &binary,
    ];
    for request in requests {
        let shown = String::from_utf8_lossy(&request[..request.len().min(40)]).into_owned();
        let mut socket = device.connect();
        // A refused client may find its connection closed before it has said everything.
        let _ = socket.write_all(request);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        let _ = socket.read_to_end(&mut reply);
        assert!(
            !String::from_utf8_lossy(&reply).contains("panicked"),
            "{shown}"
        );
        // And one that vanishes without reading.
        let mut socket = device.connect();
        let _ = socket.set_write_timeout(Some(Duration::from_millis(500)));
        let _ = socket.write_all(&request[..request.len().min(100_000)]);
        drop(socket);
        assert_eq!(device.get(), before, "after {shown:?}");
    }
    // Many idle clients do not lock another one out.
    let idle: Vec<_> = (0..64).map(|_| device.connect()).collect();
    let start = Instant::now();
    assert_eq!(device.get(), before);
    println!(
        "answered beside {} idle clients in {:?}",
        idle.len(),
        start.elapsed()
    );
}

#[test]
fn syncconf_under_load_loses_no_packet_and_resets_no_endpoint() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            right_knows_left: true,
            psk: true,
            ..Setup::default()
        },
    );
    let (left, right) = (&tunnel.left, &tunnel.right);
    tunnel.connect();
    let config = right.wg("showconf {}");
    // The left side roams: the file still has its old endpoint.
    left.wg("set {} listen-port 40000");
    ping(&left.host, &right.v4, 1);
    assert_eq!(right.endpoint(), "10.0.0.1:40000");
    assert!(config.contains("Endpoint = 10.0.0.1:51820"), "{config}");
    let handshake = right.latest_handshake();

    let there = UdpTicker::start(
        &left.host,
        &right.host,
        &right.v4,
        Duration::from_micros(500),
    );
    let back = UdpTicker::start(
        &right.host,
        &left.host,
        &left.v6,
        Duration::from_micros(500),
    );
    there.advances(100);
    back.advances(100);
    let current = right.wg("showconf {}");
    for _ in 0..30 {
        right
            .host
            .sh_with_input("wg syncconf wg0 /dev/stdin", &current);
        right
            .host
            .sh_with_input("wg addconf wg0 /dev/stdin", &current);
    }
    // A change elsewhere in the file touches this peer as little.
    let more = format!(
        "{current}\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.77.0.0/16\n",
        Keys::new().public
    );
    right
        .host
        .sh_with_input("wg syncconf wg0 /dev/stdin", &more);
    right
        .host
        .sh_with_input("wg syncconf wg0 /dev/stdin", &current);
    assert_eq!(right.wg("show {} peers").trim(), left.keys.public);
    for (name, ticks) in [("there", there), ("back", back)] {
        let (sent, received) = ticks.stop();
        assert_eq!(received, sent, "datagrams {name}");
        assert!(sent > 500, "{sent} {name}");
    }
    assert_eq!(right.endpoint(), "10.0.0.1:40000");
    assert_eq!(right.latest_handshake(), handshake, "no session was reset");
}

#[test]
fn a_configuration_of_thousands_of_peers_is_set_and_shown() {
    let device = Device::new();
    let mut config = format!("[Interface]\nPrivateKey = {}\n", Keys::new().private);
    let count = 3000_u32;
    for i in 0..count {
        // Any 32 bytes are a public key.
        let mut key = [0x5a_u8; 32];
        key[..4].copy_from_slice(&i.to_be_bytes());
        let [.., b, c] = i.to_be_bytes();
        config += &format!(
            "[Peer]\nPublicKey = {}\nAllowedIPs = 10.{b}.{c}.0/24, fd00:{i:x}::/48, 172.16.{b}.{c}/32\nEndpoint = 192.0.2.{c}:{}\n",
            base64_key(&key),
            1000 + i
        );
    }
    let start = Instant::now();
    setconf(&device.host, "wg0", &config);
    let set = start.elapsed();
    let dump = device.host.sh("wg show wg0 dump");
    println!(
        "{count} peers: set in {set:?}, set and shown in {:?}",
        start.elapsed()
    );
    assert_eq!(dump.lines().count(), count as usize + 1);
    assert!(dump.lines().skip(1).all(|l| {
        l.split('\t')
            .nth(3)
            .is_some_and(|ips| ips.split(',').count() == 3)
    }));
    device
        .host
        .sh_with_input("wg syncconf wg0 /dev/stdin", &config);
    let again = device.host.sh("wg show wg0 dump");
    assert_eq!(again.lines().count(), dump.lines().count());
    assert_eq!(device.set("replace_peers=true"), 0);
    assert_eq!(device.host.sh("wg show wg0 peers"), "");
}

fn base64_key(key: &[u8; 32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut padded = key.to_vec();
    padded.push(0);
    let mut text: String = padded
        .chunks(3)
        .flat_map(|c| {
            let group = u32::from(c[0]) << 16 | u32::from(c[1]) << 8 | u32::from(c[2]);
            [18, 12, 6, 0].map(|shift| char::from(DIGITS[(group >> shift) as usize & 63]))
        })
        .collect();
    text.pop();
    text + "="
}

#[test]
fn many_clients_at_once_each_get_a_whole_answer() {
    let device = std::sync::Arc::new(Device::new());
    let a = hex(0x11);
    assert_eq!(
        device.set(&format!("private_key={}\npublic_key={a}", hex(0x33))),
        0
    );
    let clients: Vec<_> = (0..16)
        .map(|i| {
            let (device, a) = (device.clone(), a.clone());
            std::thread::spawn(move || {
                for j in 0..20 {
                    if (i + j) % 2 == 0 {
                        // Two keys that are always set together.
                        let n = i * 100 + j;
                        assert_eq!(
                            device.set(&format!(
                                "fwmark={n}\npublic_key={a}\npersistent_keepalive_interval={n}"
                            )),
                            0
                        );
                    } else {
                        let answer = device.get();
                        let value = |key: &str| {
                            answer
                                .lines()
                                .find_map(|l| l.strip_prefix(key))
                                .unwrap_or("0")
                                .to_owned()
                        };
                        assert_eq!(
                            value("fwmark="),
                            value("persistent_keepalive_interval="),
                            "half a set in {answer}"
                        );
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("no panic");
    }
}

/// How many descriptors a process has once it opens no more: queues of the TUN come after the start.
fn descriptors_at_rest(pid: u32) -> usize {
    let count = || {
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("its descriptors")
            .count()
    };
    let (mut most, mut since) = (0, std::time::Instant::now());
    while since.elapsed() < seconds(2) {
        let now = count();
        if now != most {
            (most, since) = (now, std::time::Instant::now());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    most
}

#[test]
fn silent_clients_take_no_descriptors_from_others() {
    if !crate::quick::only_adit() {
        return;
    }
    let host = Container::new("left");
    let daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    // It may have 32 more than the interface itself takes.
    let pid = daemon.pid();
    let used = descriptors_at_rest(pid);
    let prlimit = std::process::Command::new("prlimit")
        .args([
            format!("--pid={pid}"),
            format!("--nofile={0}:{0}", used + 32),
        ])
        .status();
    assert!(prlimit.expect("prlimit starts").success());
    let path = |of: &str| host.path(&format!("/run/{of}/wg0.sock"));
    let connect = |of: &str| {
        let mut stream = None;
        wait_for("a client connects", seconds(30), || {
            stream = UnixStream::connect(path(of)).ok();
            stream.is_some()
        });
        stream.expect("just seen")
    };
    let mut silent = Vec::new();
    for round in 0..10 {
        for _ in 0..20 {
            silent.push(connect("wireguard"));
            silent.push(connect("adit"));
        }
        // One that speaks is heard at once, whatever came before it.
        let began = std::time::Instant::now();
        let mut client = connect("wireguard");
        client
            .set_read_timeout(Some(seconds(10)))
            .expect("a socket");
        client.write_all(b"get=1\n\n").expect("it reads");
        assert_eq!(errno(&answer(&mut client)), 0);
        println!("{} silent clients: {:?}", 40 * (round + 1), began.elapsed());
        host.sh(&format!(
            "{} show wg0 > /dev/null",
            Program::Adit.path().display()
        ));
    }
}

/// The beginning of a `set` of so many peers.
fn peers(count: u32) -> String {
    let peer = |n: u32| {
        let key = format!("{n:08x}").repeat(8);
        let [_, a, b, c] = n.to_be_bytes();
        format!("public_key={key}\nallowed_ip=10.{a}.{b}.{c}/32\n")
    };
    "set=1\nreplace_peers=true\n".to_owned() + &(1..=count).map(peer).collect::<String>()
}

#[test]
fn unfinished_requests_take_no_more_memory_the_more_there_are() {
    if !crate::quick::only_adit() {
        return;
    }
    let device = Device::new();
    let pid = device.daemon.pid();
    let before = memory(pid, "VmRSS:");
    // 20 MB each, with what becomes of it.
    let request = peers(80_000);
    let mut taken = Vec::new();
    for count in [1, 4, 16, 30] {
        let mut clients: Vec<UnixStream> = (0..count).map(|_| device.connect()).collect();
        for client in &mut clients {
            client.set_nonblocking(true).expect("a socket");
        }
        let mut left: Vec<&[u8]> = vec![request.as_bytes(); count];
        // Until none takes any more.
        let (mut most, mut moved, begun) = (0, Instant::now(), Instant::now());
        while moved.elapsed() < seconds(1) && begun.elapsed() < seconds(60) {
            for (client, left) in clients.iter_mut().zip(&mut left) {
                match client.write(left) {
                    Ok(n @ 1..) => (*left, moved) = (&left[n..], Instant::now()),
                    Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => *left = &[],
                    _ => {}
                }
            }
            most = most.max(memory(pid, "VmRSS:").saturating_sub(before));
        }
        drop(clients);
        // Others are served all the same.
        assert_eq!(device.set("fwmark=0"), 0);
        taken.push(most);
    }
    println!("KiB of 1, 4, 16 and 30 requests: {taken:?}");
    // 30 of them would be 600 MB.
    assert!(taken.iter().all(|taken| *taken < 100 << 10), "{taken:?}");
}

#[test]
fn no_limit_of_memory_ends_the_process() {
    if !crate::quick::only_adit() {
        return;
    }
    let device = Device::new();
    let pid = device.daemon.pid();
    let limit = |resource: &str, bytes: Option<u64>| {
        let bytes = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        let prlimit = std::process::Command::new("prlimit")
            .args([
                format!("--pid={pid}"),
                format!("--{resource}={bytes}:unlimited"),
            ])
            .status();
        assert!(prlimit.expect("prlimit starts").success());
    };
    // In pieces, since the other end may close.
    let errno_of = |request: &str| {
        let mut client = device.connect();
        let _ = client.write_all(request.as_bytes());
        errno(&answer(&mut client))
    };
    let many = peers(20_000) + "\n";
    let (mut refused, mut done) = (0, 0);
    // MiB beyond what it has: from nothing to plenty.
    let of_as = &[
        0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 26, 30, 35, 40, 64, 100, 160,
    ];
    let of_data = &[0, 2, 4, 6, 9, 13, 20, 30, 64];
    for (resource, size, limits) in [("as", "VmSize:", &of_as[..]), ("data", "VmData:", of_data)] {
        for &more in limits {
            limit(resource, Some((memory(pid, size) + (more << 10)) << 10));
            for request in [many.as_str(), "get=1\n\n"] {
                match errno_of(request) {
                    0 => done += 1,
                    12 => refused += 1,
                    other => panic!("errno {other} with {more} MiB"),
                }
            }
            let _ = device
                .host
                .try_sh(&format!("{} show wg0", Program::Adit.path().display()));
            limit(resource, None);
            let set = device.values("public_key").len();
            assert!([0, 20_000].contains(&set), "{set} peers of a set");
            assert_eq!(device.set("replace_peers=true"), 0);
            println!("{resource}, {more} MiB: {done} done, {refused} refused");
        }
    }
    println!("{done} requests were done, {refused} refused");
    assert!(done > 10 && refused > 10, "{done}, {refused}");
}

#[test]
fn wgctrl_go_lists_configures_and_verifies_the_device() {
    let device = Device::new();
    let program = Program::WireguardGo.path().with_file_name("wgctrl-check");
    if !program.exists() {
        let message = format!("{} is not built: run scripts/peers", program.display());
        assert!(!under_ci(), "{message}");
        eprintln!("not run: {message}");
        return;
    }
    print!("{}", device.host.sh(&format!("{} wg0", program.display())));
}
