//! `adit why` names what is wrong. Each cause is built between two hosts, and must come first.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::harness::*;

/// `adit why wg0 ARGS` on a side: its exit status, and the JSON.
#[track_caller]
pub fn why(host: &Container, args: &str) -> (Option<i32>, Value) {
    let command = format!("{} why {args} --json", Program::Adit.path().display());
    let output = host.try_sh(&command);
    let report = serde_json::from_str(&output.stdout);
    let report: Value =
        report.unwrap_or_else(|_| panic!("{command}: {}{}", output.stdout, output.stderr));
    println!("{report:#}");
    assert_eq!(report["schema"], 1);
    (output.status.code(), report)
}

/// A string of the document.
#[track_caller]
fn word(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("no string: {value}"))
}

/// The finding that comes first for a side's peer. Its commands are not for another interface.
#[track_caller]
fn cause(side: &Side) -> Value {
    let (status, report) = why(&side.host, "wg0");
    assert_eq!((status, &report["works"]), (Some(1), &Value::Bool(false)));
    let first = report["peers"][0]["findings"][0].clone();
    assert!(!first["text"].as_str().expect("a text").is_empty());
    assert!(!first["commands"].as_array().expect("commands").is_empty());
    first
}

/// The cause, for certain.
#[track_caller]
fn is_certain(side: &Side, name: &str) -> String {
    let first = cause(side);
    assert_eq!(
        (word(&first["cause"]), word(&first["certainty"])),
        (name, "certain")
    );
    first["text"].as_str().expect("a text").to_owned()
}

/// The cause that comes first, though it may be another.
#[track_caller]
fn is_likely(side: &Side, name: &str) -> String {
    let first = cause(side);
    assert_eq!(
        (word(&first["cause"]), word(&first["certainty"])),
        (name, "likely")
    );
    first["text"].as_str().expect("a text").to_owned()
}

fn pair() -> (SitePair, WgTunnel) {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    (net, tunnel)
}

#[test]
fn why_says_that_a_tunnel_works() {
    let (_net, tunnel) = pair();
    for _ in 0..2 {
        let (status, report) = why(&tunnel.left.host, "wg0");
        let peer = &report["peers"][0];
        assert_eq!((status, word(&peer["handshake"])), (Some(0), "succeeded"));
        assert_eq!(peer["findings"].as_array().expect("findings").len(), 0);
    }
    let adit = Program::Adit.path();
    let command = format!("{} why wg0", adit.display());
    let text = tunnel.left.host.sh(&command);
    assert!(text.contains("it works"), "{text}");
    // What people read of one that does not.
    tunnel.left.host.sh("ip link set wg0 down");
    let text = tunnel.left.host.try_sh(&command).stdout;
    assert!(text.contains("the cause: wg0 is down"), "{text}");
    assert!(text.contains("\n    ip link set wg0 up\n"), "{text}");
    assert!(!text.contains("it works"), "{text}");
}

#[test]
fn why_names_a_peer_whose_process_is_gone() {
    let (_net, mut tunnel) = pair();
    tunnel.right.daemon.signal("KILL");
    tunnel.right.daemon.wait();
    is_certain(&tunnel.left, "port_closed");
}

#[test]
fn why_names_a_wrong_port() {
    let (_net, tunnel) = pair();
    let key = &tunnel.right.keys.public;
    tunnel
        .left
        .wg(&format!("set {{}} peer {key} endpoint 10.0.0.2:51999"));
    let text = is_certain(&tunnel.left, "port_closed");
    assert!(text.contains("51999"), "{text}");
}

#[test]
fn why_names_a_firewall_on_the_way() {
    let net = Routed::new();
    let (left, right) = (
        net.address_of_left(Family::V4),
        net.address_of_right(Family::V4),
    );
    let tunnel = WgTunnel::between((&net.left, left), (&net.right, right), Setup::default());
    net.router.sh(
        "nft add table inet f; nft 'add chain inet f forward { type filter hook forward priority 0; policy drop; }'",
    );
    is_likely(&tunnel.left, "no_answer");
}

#[test]
fn why_names_a_firewall_that_rejects() {
    let (_net, tunnel) = pair();
    tunnel.right.host.sh(
        "nft add table inet f; nft 'add chain inet f in { type filter hook input priority 0; }'; \
         nft add rule inet f in udp dport 51820 reject with icmpx admin-prohibited",
    );
    is_certain(&tunnel.left, "rejected");
}

#[test]
fn why_names_a_firewall_on_this_host_and_its_rule() {
    let (_net, tunnel) = pair();
    tunnel.left.host.sh(
        "nft add table inet f; nft 'add chain inet f out { type filter hook output priority 0; }'; \
         nft add rule inet f out udp dport 51820 drop",
    );
    let text = is_certain(&tunnel.left, "local_firewall");
    assert!(text.contains("inet f out: udp dport 51820 drop"), "{text}");
}

#[test]
fn why_names_a_missing_route() {
    let (_net, tunnel) = pair();
    let key = &tunnel.right.keys.public;
    tunnel
        .left
        .wg(&format!("set {{}} peer {key} endpoint 198.51.100.1:51820"));
    is_certain(&tunnel.left, "no_route");
    tunnel
        .left
        .host
        .sh("ip route add unreachable 198.51.100.0/24");
    is_certain(&tunnel.left, "no_route");
}

#[test]
fn why_names_a_host_that_is_not_there() {
    let (_net, tunnel) = pair();
    let key = &tunnel.right.keys.public;
    tunnel
        .left
        .wg(&format!("set {{}} peer {key} endpoint 10.0.0.77:51820"));
    let (_, report) = why(&tunnel.left.host, "wg0 --wait 5");
    assert_eq!(
        report["peers"][0]["findings"][0]["cause"],
        "host_unreachable"
    );
}

#[test]
fn why_names_a_route_into_the_tunnel_itself() {
    let (_net, tunnel) = pair();
    let key = &tunnel.right.keys.public;
    tunnel.left.wg(&format!(
        "set {{}} peer {key} allowed-ips 192.168.77.2/32,10.0.0.2/32"
    ));
    tunnel.left.host.sh("ip route add 10.0.0.2 dev wg0");
    let text = is_certain(&tunnel.left, "routing_loop");
    assert!(
        text.contains("10.0.0.2/32 is among the allowed IPs"),
        "{text}"
    );
}

#[test]
fn why_names_the_reverse_path_filter() {
    let (_net, tunnel) = pair();
    tunnel.left.host.sh(
        "wg set wg0 fwmark 7; ip route add 10.0.0.2 dev wg0 table 9; ip rule add not fwmark 7 table 9; \
         sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.all.src_valid_mark=0",
    );
    is_certain(&tunnel.left, "rp_filter");
    tunnel
        .left
        .host
        .sh("sysctl -qw net.ipv4.conf.eth0.rp_filter=2");
    wait_for(
        "the protocol allows the next handshake",
        seconds(20),
        || why(&tunnel.left.host, "wg0").1["peers"][0]["handshake"] == "succeeded",
    );
}

#[test]
fn why_names_an_interface_that_the_peer_does_not_know() {
    let (_net, tunnel) = pair();
    let key = &tunnel.left.keys.public;
    tunnel.right.wg(&format!("set {{}} peer {key} remove"));
    // The peer refuses in silence, and its host answers to UDP.
    let text = is_likely(&tunnel.left, "peer_lacks_our_key");
    assert!(text.contains(key), "{text}");
}

#[test]
fn why_names_a_peer_that_has_another_key_for_this_interface() {
    let (_net, tunnel) = pair();
    let (key, wrong) = (&tunnel.left.keys.public, Keys::new().public);
    tunnel.right.wg(&format!("set {{}} peer {key} remove"));
    tunnel.right.wg(&format!(
        "set {{}} peer {wrong} endpoint 10.0.0.1:51820 persistent-keepalive 1 allowed-ips 192.168.77.1/32"
    ));
    // It calls every five seconds.
    let (_, report) = why(&tunnel.left.host, "wg0 --wait 7");
    let first = &report["peers"][0]["findings"][0];
    assert_eq!(
        (word(&first["cause"]), word(&first["certainty"])),
        ("peer_lacks_our_key", "certain")
    );
}

#[test]
fn why_names_a_wrong_key_of_the_peer() {
    let (_net, tunnel) = pair();
    let (key, wrong) = (&tunnel.right.keys.public, Keys::new().public);
    tunnel.left.wg(&format!("set {{}} peer {key} remove"));
    tunnel.left.wg(&format!(
        "set {{}} peer {wrong} endpoint 10.0.0.2:51820 allowed-ips 192.168.77.2/32"
    ));
    let ours = &tunnel.left.keys.public;
    tunnel
        .right
        .wg(&format!("set {{}} peer {ours} persistent-keepalive 1"));
    let (_, report) = why(&tunnel.left.host, "wg0 --wait 7");
    let first = &report["peers"][0]["findings"][0];
    assert_eq!(
        (word(&first["cause"]), word(&first["certainty"])),
        ("wrong_peer_key", "certain")
    );
    assert!(first["text"].as_str().expect("a text").contains(key));
}

#[test]
fn why_names_preshared_keys_that_differ() {
    let (_net, tunnel) = pair();
    let set = format!(
        "wg set wg0 peer {} preshared-key /dev/stdin",
        tunnel.left.keys.public
    );
    tunnel.right.host.sh_with_input(&set, &Keys::psk());
    let text = is_certain(&tunnel.left, "preshared_key");
    assert!(text.contains("this side has none"), "{text}");
}

#[test]
fn why_names_an_endpoint_that_is_not_known() {
    let (_net, tunnel) = pair();
    let (ours, theirs) = (&tunnel.left.keys.public, &tunnel.right.keys.public);
    for (side, key) in [(&tunnel.left, theirs), (&tunnel.right, ours)] {
        side.wg(&format!("set {{}} peer {key} remove"));
        side.wg(&format!("set {{}} peer {key} allowed-ips 192.168.77.0/24"));
    }
    is_likely(&tunnel.left, "no_endpoint");
}

#[test]
fn why_remarks_answers_from_another_port() {
    let (_net, tunnel) = pair();
    tunnel.right.host.sh(
        "nft add table inet f; nft 'add chain inet f out { type filter hook output priority -300; }'; \
         nft add rule inet f out udp sport 51820 notrack udp sport set 4444; \
         nft 'add chain inet f in { type filter hook prerouting priority -300; }'; \
         nft add rule inet f in udp dport 4444 notrack udp dport set 51820",
    );
    let (_, report) = why(&tunnel.left.host, "wg0");
    let peer = &report["peers"][0];
    let first = &peer["findings"][0];
    assert_eq!(
        (word(&peer["handshake"]), word(&first["cause"])),
        ("succeeded", "answers_from_elsewhere")
    );
    let text = first["text"].as_str().expect("a text");
    assert!(
        text.contains("10.0.0.2:51820") && text.contains("10.0.0.2:4444"),
        "{text}"
    );
}

/// The peer has seen an initiation of a day that is to come: this host's clock was set back since.
#[test]
fn why_names_clocks_that_went_back_at_both_ends() {
    let (net, tunnel) = pair();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let tomorrow = adit_proto::Tai64N::from_unix(now + Duration::from_secs(86_400));
    let message = crate::handshakes::initiation_of(
        &tunnel.left.keys.private,
        crate::handshakes::decode(&tunnel.right.keys.public),
        tomorrow,
    );
    // It stays: the peer tries to answer there.
    let _socket = net.left.within(move || {
        let socket = std::net::UdpSocket::bind("10.0.0.1:0").expect("a socket");
        let patience = Some(seconds(10));
        socket.set_read_timeout(patience).expect("a timeout");
        socket.send_to(&message, "10.0.0.2:51820").expect("sent");
        assert_eq!(socket.recv(&mut [0; 200]).expect("an answer"), 92);
        socket
    });
    tunnel
        .left
        .host
        .sh("mkdir -p /etc/wireguard; touch -d 'now + 1 day' /etc/wireguard/wg0.conf");
    is_likely(&tunnel.left, "clock");
    // The peer knows whose clock it is, while it tries to call, too.
    let text = is_certain(&tunnel.right, "peer_clock");
    assert!(text.contains("set back"), "{text}");
}

#[test]
fn why_names_an_mtu_that_the_path_does_not_take() {
    let net = Routed::new();
    let (left, right) = (
        net.address_of_left(Family::V4),
        net.address_of_right(Family::V4),
    );
    let tunnel = WgTunnel::between((&net.left, left), (&net.right, right), Setup::default());
    // A link of 1300 bytes whose router says nothing.
    net.router.sh(
        "nft add table ip f; nft 'add chain ip f forward { type filter hook forward priority 0; }'; \
         nft add rule ip f forward meta length gt 1300 drop",
    );
    let text = is_certain(&tunnel.left, "mtu");
    assert!(text.contains("192.168.77.2"), "{text}");
}

#[test]
fn why_remarks_an_mtu_that_this_host_knows_to_be_too_large() {
    let (net, tunnel) = pair();
    net.left.sh("ip link set eth0 mtu 1400");
    let (_, report) = why(&net.left, "wg0");
    let findings = report["peers"][0]["findings"]
        .as_array()
        .expect("findings")
        .clone();
    let mtu = findings
        .iter()
        .find(|one| one["cause"] == "mtu")
        .expect("a remark");
    let command = mtu["commands"][0].as_str().expect("a command");
    // 60 bytes less than the path takes.
    assert_eq!(command, "ip link set wg0 mtu 1340");
    tunnel.left.host.sh(command);
    let (status, report) = why(&net.left, "wg0");
    assert_eq!(status, Some(0), "{report:#}");
}

#[test]
fn why_names_a_peer_that_refuses_our_inner_address() {
    let (_net, tunnel) = pair();
    let ours = &tunnel.left.keys.public;
    tunnel
        .right
        .wg(&format!("set {{}} peer {ours} allowed-ips 192.168.99.1/32"));
    let text = is_likely(&tunnel.left, "nothing_inside");
    assert!(text.contains("192.168.77.1"), "{text}");
}

#[test]
fn why_names_an_inner_source_that_we_refuse() {
    let (_net, tunnel) = pair();
    tunnel.connect();
    let key = &tunnel.right.keys.public;
    // The peer's answers come from an address that is not among its allowed IPs.
    tunnel.right.host.sh(
        "nft add table ip f; nft 'add chain ip f out { type filter hook output priority -300; }'; \
         nft add rule ip f out oifname wg0 notrack ip saddr set 192.168.99.9",
    );
    let text = is_certain(&tunnel.left, "wrong_source");
    assert!(text.contains("192.168.99.9"), "{text}");
    assert!(
        text.contains("192.168.77.2/32") && !text.contains(key),
        "{text}"
    );
}

#[test]
fn why_names_allowed_ips_that_another_device_has() {
    let (_net, tunnel) = pair();
    let host = &tunnel.left.host;
    host.sh("ip tuntap add other mode tun; ip addr add 192.168.77.200/24 dev other; ip link set other up; \
             ip route replace 192.168.77.2/32 dev other");
    let text = is_certain(&tunnel.left, "not_routed");
    assert!(
        text.contains("192.168.77.2/32") && text.contains("other"),
        "{text}"
    );
}

#[test]
fn why_names_a_peer_that_lost_its_allowed_ips_to_another() {
    let (_net, tunnel) = pair();
    let other = Keys::new().public;
    tunnel.left.wg(&format!(
        "set {{}} peer {other} allowed-ips 192.168.77.2/32,fd77::2/128"
    ));
    let key = &tunnel.right.keys.public;
    let (status, report) = why(&tunnel.left.host, &format!("wg0 {key}"));
    assert_eq!(
        (status, report["peers"].as_array().map(Vec::len)),
        (Some(1), Some(1))
    );
    assert_eq!(report["peers"][0]["findings"][0]["cause"], "no_allowed_ips");
}

#[test]
fn why_names_an_interface_that_is_down_or_lacks_something() {
    let (_net, mut tunnel) = pair();
    let (key, ours) = (
        tunnel.right.keys.public.clone(),
        tunnel.left.keys.public.clone(),
    );
    tunnel.left.host.sh("ip link set wg0 down");
    is_certain(&tunnel.left, "interface_down");
    tunnel
        .left
        .host
        .sh("ip link set wg0 up; wg set wg0 private-key /dev/null");
    is_certain(&tunnel.left, "no_private_key");
    tunnel.left.host.sh_with_input(
        "wg set wg0 private-key /dev/stdin",
        &tunnel.left.keys.private,
    );
    tunnel
        .left
        .wg(&format!("set {{}} peer {key} endpoint 10.0.0.1:51820"));
    is_certain(&tunnel.left, "endpoint_is_here");

    let of_interface = |args: &str| {
        let (status, report) = why(&tunnel.left.host, args);
        assert_eq!(status, Some(1));
        report["findings"][0]["cause"]
            .as_str()
            .expect("a cause")
            .to_owned()
    };
    assert_eq!(of_interface(&format!("wg0 {ours}")), "own_key");
    assert_eq!(
        of_interface(&format!("wg0 {}", Keys::new().public)),
        "no_peer"
    );
    tunnel.left.wg(&format!("set {{}} peer {key} remove"));
    assert_eq!(of_interface("wg0"), "no_peer");
    assert_eq!(of_interface("wg7"), "no_interface");
    // One that stays when its process is gone.
    tunnel.left.host.sh("ip tuntap add wg8 mode tun");
    assert_eq!(of_interface("wg8"), "no_process");
    tunnel.left.daemon.signal("KILL");
    tunnel.left.daemon.wait();
}

#[test]
fn why_ends_with_2_for_wrong_usage_and_without_rights() {
    let (_net, tunnel) = pair();
    let host = &tunnel.left.host;
    let adit = Program::Adit.path();
    host.sh(&format!("install -m 755 {} /run/bin-adit", adit.display()));
    for command in [
        format!("{} why", adit.display()),
        format!("{} why wg0 --wait 0", adit.display()),
        "setpriv --reuid 65534 --clear-groups /run/bin-adit why wg0".to_owned(),
    ] {
        let output = host.try_sh(&command);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{command}: {}",
            output.stderr
        );
        assert!(!output.stderr.is_empty());
    }
}

/// Members of the group read the status, and begin no handshake.
#[test]
fn why_looks_without_root_and_tries_nothing() {
    let net = SitePair::new();
    let setup = Setup {
        start_left: Start::default().env("ADIT_STATUS_GROUP", "4242"),
        ..Setup::default()
    };
    let tunnel = WgTunnel::new(&net, setup);
    let host = &tunnel.left.host;
    host.sh(&format!(
        "install -m 755 {} /run/bin-adit",
        Program::Adit.path().display()
    ));
    let look = || {
        let output = host.try_sh(
            "setpriv --reuid 65534 --regid 4242 --clear-groups /run/bin-adit why wg0 --json",
        );
        let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
        println!("{report:#}");
        (output.status.code(), report)
    };
    let (status, report) = look();
    assert_eq!(
        (status, word(&report["peers"][0]["handshake"])),
        (Some(1), "not_tried")
    );
    assert!(
        report["note"]
            .as_str()
            .expect("a note")
            .contains("only root")
    );
    assert_eq!(tunnel.left.sent(), 0, "nothing was sent");
    tunnel.connect();
    assert_eq!(look().0, Some(0));
}

#[test]
fn why_looks_at_other_implementations_as_far_as_it_can() {
    let Some(left) = peer(Program::WireguardGo) else {
        return;
    };
    let net = SitePair::new();
    let setup = Setup {
        left,
        ..Setup::default()
    };
    let tunnel = WgTunnel::new(&net, setup);
    let (status, report) = why(&tunnel.left.host, "wg0");
    assert_eq!(
        (status, word(&report["peers"][0]["handshake"])),
        (Some(0), "succeeded")
    );
    assert!(
        report["note"]
            .as_str()
            .expect("a note")
            .contains("not served by Adit")
    );
    let key = &tunnel.right.keys.public;
    tunnel.left.wg(&format!("set {{}} peer {key} remove"));
    tunnel.left.wg(&format!(
        "set {{}} peer {key} endpoint 198.51.100.1:51820 allowed-ips 192.168.77.2/32"
    ));
    is_certain(&tunnel.left, "no_route");
}
