//! `adit why` on addresses, networks and settings that cannot work. Each cause is built with real
//! processes, must come first, and goes when what it says is typed.

use serde_json::Value;

use crate::forwards::{findings, is_first};
use crate::harness::*;
use crate::quick::adit;
use crate::why::why;

/// The names of all causes that are found, remarks too.
#[track_caller]
pub fn causes(host: &Container, args: &str) -> Vec<String> {
    let (_, found) = findings(host, args);
    found.into_iter().map(|(cause, ..)| cause).collect()
}

/// Types the first command of a finding, with words in capitals filled in.
#[track_caller]
pub fn obey(finding: &Value, host: &Container, words: &[(&str, &str)]) {
    let command = finding["commands"][0].as_str().expect("a command");
    let command = command.strip_prefix("at the peer: ").unwrap_or(command);
    let command = match command.strip_prefix("adit ") {
        Some(rest) => format!("{} {rest}", adit()),
        None => command.to_owned(),
    };
    let fill = |text: String, (word, value): &(&str, &str)| text.replace(word, value);
    host.sh(&words.iter().fold(command, fill));
}

/// Nothing is wrong any more. The protocol may keep the next handshake waiting.
#[track_caller]
pub fn works(host: &Container, args: &str) {
    let mut last = Value::Null;
    wait_for("it works", seconds(40), || {
        let (status, report) = why(host, args);
        last = report;
        status == Some(0)
    });
    assert_eq!(last["peers"][0]["handshake"], "succeeded");
}

#[track_caller]
pub fn text(finding: &Value) -> &str {
    finding["text"].as_str().expect("a text")
}

#[test]
fn why_names_an_endpoint_inside_the_tunnel() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let key = &tunnel.right.keys.public;
    let set = |endpoint: &str| {
        let port = 51820;
        tunnel
            .left
            .wg(&format!("set {{}} peer {key} endpoint {endpoint}:{port}"));
    };
    let left = &tunnel.left.host;
    set("192.168.77.2");
    assert_eq!(causes(left, "wg0"), ["endpoint_inside"]);
    // An address of one host alone, as clients have it: the peer's block holds both.
    left.sh("ip addr del 192.168.77.1/24 dev wg0; ip addr add 192.168.77.1/32 dev wg0; ip route add 192.168.77.0/24 dev wg0");
    tunnel
        .left
        .wg(&format!("set {{}} peer {key} allowed-ips 192.168.77.0/24"));
    let finding = is_first(left, "wg0", "endpoint_inside");
    assert!(text(&finding).contains("192.168.77.2"), "{finding}");
    obey(&finding, left, &[("OUTER-ADDRESS", "10.0.0.2")]);
    works(left, "wg0");
}

#[test]
fn why_names_ipv6_that_is_disabled() {
    let net = SitePair::new();
    let setup = Setup {
        outer: Family::V6,
        ..Setup::default()
    };
    let tunnel = WgTunnel::new(&net, setup);
    let left = &tunnel.left.host;
    left.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    assert_eq!(causes(left, "wg0"), ["ipv6_disabled"]);
    let finding = is_first(left, "wg0", "ipv6_disabled");
    assert!(text(&finding).contains("net.ipv6.conf.all.disable_ipv6"));
    obey(&finding, left, &[]);
    left.sh("ip addr add fd00::1/64 dev eth0 nodad; ip addr add fd77::1/64 dev wg0 nodad");
    works(left, "wg0");
    // Inside alone: IPv4 works all the same.
    left.sh("sysctl -qw net.ipv6.conf.wg0.disable_ipv6=1");
    let (status, found) = findings(left, "wg0");
    assert_eq!(status, Some(0), "{found:?}");
    assert_eq!(found[0].0, "ipv6_disabled");
    assert_eq!(found.len(), 1, "{found:?}");
    let finding = is_first(left, "wg0 --inside fd77::2", "ipv6_disabled");
    assert!(text(&finding).contains("net.ipv6.conf.wg0.disable_ipv6"));
    obey(&finding, left, &[]);
    left.sh("ip addr add fd77::1/64 dev wg0 nodad");
    works(left, "wg0 --inside fd77::2");
}

#[test]
fn why_names_an_endpoint_behind_a_providers_nat() {
    let net = Routed::new();
    let (left, right) = (
        net.address_of_left(Family::V4),
        net.address_of_right(Family::V4),
    );
    let setup = Setup {
        right_knows_left: false,
        ..Setup::default()
    };
    let tunnel = WgTunnel::between((&net.left, left), (&net.right, right), setup);
    let key = &tunnel.right.keys.public;
    tunnel
        .left
        .wg(&format!("set {{}} peer {key} endpoint 100.64.9.9:51820"));
    // A router that says nothing, and one that does.
    net.router.sh("ip route add blackhole 100.64.0.0/10");
    assert_eq!(causes(&net.left, "wg0"), ["cgnat"]);
    net.router.sh("ip route replace unreachable 100.64.0.0/10");
    let finding = is_first(&net.left, "wg0 --wait 4", "cgnat");
    assert!(text(&finding).contains("100.64.9.9"), "{finding}");
    obey(
        &finding,
        &net.right,
        &[("INTERFACE", "wg0"), ("OUR-ADDRESS", left)],
    );
    works(&net.left, "wg0");
    // A host that has such addresses itself may reach it.
    tunnel
        .left
        .wg(&format!("set {{}} peer {key} endpoint 100.64.9.9:51820"));
    net.left.sh("ip tuntap add shared mode tun; ip addr add 100.100.0.1/24 dev shared; ip link set shared up");
    net.right.sh("ip link set wg0 down");
    let found = causes(&net.left, "wg0");
    assert!(!found.iter().any(|it| it == "cgnat"), "{found:?}");
}

/// ```text
///   left ────── first ────── second ────── right
///   192.168.1.2 192.168.1.1  192.168.0.1   203.0.113.2
/// ```
#[test]
fn why_tells_of_nat_where_a_peer_is_to_call() {
    let [left, first, second, right] = ["left", "first", "second", "right"].map(Container::new);
    link(
        &left,
        "eth0",
        &["192.168.1.2/24"],
        &first,
        "lan",
        &["192.168.1.1/24"],
    );
    link(
        &first,
        "wan",
        &["192.168.0.2/24"],
        &second,
        "lan",
        &["192.168.0.1/24"],
    );
    link(
        &second,
        "wan",
        &["203.0.113.1/24"],
        &right,
        "eth0",
        &["203.0.113.2/24"],
    );
    for (router, next) in [(&first, "192.168.0.1"), (&second, "203.0.113.2")] {
        router.forwards();
        router.sh(&format!(
            "ip route add default via {next}; nft 'table ip nat {{ chain post {{ type nat hook postrouting priority srcnat; \
             oifname wan masquerade; }}; }}'"
        ));
    }
    left.sh("ip route add default via 192.168.1.1");
    let setup = Setup {
        right_knows_left: false,
        ..Setup::default()
    };
    let tunnel = WgTunnel::between((&left, "192.168.1.2"), (&right, "203.0.113.2"), setup);
    let key = &tunnel.right.keys.public;
    tunnel.left.wg(&format!("set {{}} peer {key} remove"));
    tunnel.left.wg(&format!(
        "set {{}} peer {key} allowed-ips 192.168.77.2/32,fd77::2/128"
    ));
    let (status, found) = findings(&left, "wg0");
    assert_eq!(status, Some(1));
    let names: Vec<&str> = found.iter().map(|(cause, ..)| cause.as_str()).collect();
    assert_eq!(names, ["no_endpoint", "double_nat"]);
    let said = text(&found[1].2);
    for part in ["192.168.1.1", "192.168.0.1", "cannot be seen from here"] {
        assert!(said.contains(part), "{said}");
    }
    // A provider's own addresses are between.
    first.sh("ip addr flush dev wan; ip addr add 100.64.0.2/24 dev wan");
    second.sh("ip addr flush dev lan; ip addr add 100.64.0.1/24 dev lan");
    first.sh("ip route replace default via 100.64.0.1");
    let finding = is_first(&left, "wg0", "cgnat");
    assert_eq!(causes(&left, "wg0"), ["cgnat", "no_endpoint"]);
    obey(&finding, &left, &[("ADDRESS:PORT", "203.0.113.2:51820")]);
    works(&left, "wg0");
}

/// ```text
///   lan ────────── left ──── right ────────── (10.3.0.1)
///   10.3.0.2   10.3.0.9
/// ```
#[test]
fn why_names_a_network_that_is_at_both_ends() {
    let net = SitePair::new();
    let lan = Container::new("lan");
    link(
        &net.left,
        "eth1",
        &["10.3.0.9/24"],
        &lan,
        "eth0",
        &["10.3.0.2/24"],
    );
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left.host, &tunnel.right.host);
    right.sh("ip addr add 10.3.0.1/32 dev lo");
    let key = &tunnel.right.keys.public;
    tunnel.left.wg(&format!(
        "set {{}} peer {key} allowed-ips 192.168.77.2/32,fd77::2/128,10.3.0.0/24"
    ));
    assert_eq!(causes(left, "wg0"), ["subnet_collision"]);
    let finding = is_first(left, "wg0", "subnet_collision");
    assert!(text(&finding).contains("10.3.0.0/24 of eth1"), "{finding}");
    ping_fails(left, "10.3.0.1");
    obey(&finding, left, &[("ADDRESS", "10.3.0.1")]);
    ping(left, "10.3.0.1", 1);
    ping(left, "10.3.0.2", 1);
    // A wider block leaves the LAN where it is, which may be meant.
    left.sh("ip route del 10.3.0.1/32 dev wg0; ip route add 10.3.0.0/16 dev wg0");
    tunnel.left.wg(&format!(
        "set {{}} peer {key} allowed-ips 192.168.77.2/32,fd77::2/128,10.3.0.0/16"
    ));
    let (_, found) = findings(left, "wg0 --inside 192.168.77.2");
    let names: Vec<&str> = found.iter().map(|(cause, ..)| cause.as_str()).collect();
    assert!(
        names.contains(&"subnet_collision") && !names.contains(&"nothing_inside"),
        "{names:?}"
    );
}

#[test]
fn why_names_a_source_of_this_host_that_the_peer_refuses() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let left = &tunnel.left.host;
    left.sh("ip route replace 192.168.77.2/32 dev wg0 src 10.0.0.1");
    assert_eq!(causes(left, "wg0"), ["our_source"]);
    let finding = is_first(left, "wg0", "our_source");
    assert!(text(&finding).contains("10.0.0.1"), "{finding}");
    obey(&finding, left, &[]);
    works(left, "wg0");
    // A peer that takes it is right, as one of a whole network is.
    left.sh("ip route replace 192.168.77.2/32 dev wg0 src 10.0.0.1");
    let ours = &tunnel.left.keys.public;
    tunnel.right.wg(&format!(
        "set {{}} peer {ours} allowed-ips 192.168.77.1/32,fd77::1/128,10.0.0.1/32"
    ));
    tunnel
        .right
        .host
        .sh("ip route add 10.0.0.1/32 dev wg0 table 7; ip rule add from 192.168.77.2 table 7");
    works(left, "wg0");
}

#[test]
fn why_names_an_input_chain_that_drops_what_the_tunnel_brings() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let left = &tunnel.left.host;
    for rules in [
        "iifname wg0 drop",
        "policy drop; iifname lo accept; udp dport 51820 accept; iifname eth0 accept",
    ] {
        left.sh(&format!(
            "nft flush ruleset; nft 'table inet f {{ chain in {{ type filter hook input priority 0; {rules}; }}; }}'"
        ));
        assert_eq!(causes(left, "wg0"), ["local_firewall"]);
        let finding = is_first(left, "wg0", "local_firewall");
        assert!(text(&finding).contains("inet f in"), "{finding}");
        obey(&finding, left, &[]);
        works(left, "wg0");
    }
}

/// The peer's answers come by another device than the one that this host sends by.
///
/// ```text
///   left eth0 ──── router ──── right
///        eth1 ────
/// ```
#[test]
fn why_names_a_strict_reverse_path_filter_with_two_uplinks() {
    let net = Routed::new();
    link(
        &net.left,
        "eth1",
        &["10.5.0.100/24"],
        &net.router,
        "eth2",
        &["10.5.0.1/24"],
    );
    net.router
        .sh("ip route add 10.1.0.100/32 via 10.5.0.100 dev eth2");
    let (left, right) = (
        net.address_of_left(Family::V4),
        net.address_of_right(Family::V4),
    );
    let tunnel = WgTunnel::between((&net.left, left), (&net.right, right), Setup::default());
    net.left.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1");
    let (status, found) = findings(&tunnel.left.host, "wg0");
    assert_eq!(status, Some(1));
    let names: Vec<&str> = found.iter().map(|(cause, ..)| cause.as_str()).collect();
    assert_eq!(names, ["rp_filter", "no_answer"]);
    assert!(
        text(&found[0].2).contains("strict at eth1"),
        "{:?}",
        found[0]
    );
    obey(&found[0].2, &net.left, &[]);
    works(&net.left, "wg0");
}

#[test]
fn why_names_a_file_whose_peer_has_its_own_key() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("host");
    let keys = Keys::new();
    host.sh_with_input(
        "umask 077; cat > /etc/wireguard/wg0.conf",
        &format!(
            "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/24\n\
             [Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.2/32\nEndpoint = 10.0.0.2:51820\n",
            keys.private, keys.public
        ),
    );
    host.sh(&format!("{} up wg0", adit()));
    let (status, report) = why(&host, "wg0");
    let found = report["findings"].as_array().expect("findings");
    assert_eq!((status, found.len()), (Some(1), 1), "{report:#}");
    assert_eq!(found[0]["cause"], "own_key");
    let checked = host.sh(&format!("{} check wg0", adit()));
    assert!(checked.contains("a key of its own"), "{checked}");
    host.sh(&format!("{} down wg0", adit()));
}

/// Two network namespaces of one host: both ends can be asked.
#[test]
fn why_asks_both_ends_where_both_are_here() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("host");
    host.sh(
        "mkdir -p /run/netns; ip netns add other; ip link add va type veth peer name vb netns other; \
         ip addr add 10.0.0.1/24 dev va; ip link set va up; \
         ip -n other addr add 10.0.0.2/24 dev vb; ip -n other link set vb up; ip -n other link set lo up",
    );
    host.sh(&format!("{0} wg0; ip netns exec other {0} wg1", adit()));
    let (ours, theirs) = (Keys::new(), Keys::new());
    let config = |private: &str, peer: &str| {
        format!(
            "[Interface]\nPrivateKey = {private}\nListenPort = 51820\n[Peer]\nPublicKey = {peer}\n"
        )
    };
    let left = config(&ours.private, &theirs.public);
    setconf(
        &host,
        "wg0",
        &(left + "AllowedIPs = 192.168.77.2/32\nEndpoint = 10.0.0.2:51820\n"),
    );
    setconf(&host, "wg1", &config(&theirs.private, &Keys::new().public));
    host.sh("ip addr add 192.168.77.1/24 dev wg0; ip link set wg0 up; \
         ip -n other addr add 192.168.77.2/24 dev wg1; ip -n other link set wg1 up");
    let finding = is_first(&host, "wg0", "peer_lacks_our_key");
    assert_eq!(finding["certainty"], "certain");
    assert_eq!(causes(&host, "wg0"), ["peer_lacks_our_key"]);
    obey(&finding, &host, &[]);
    works(&host, "wg0");
    // It lacks our address.
    host.sh(&format!(
        "wg set wg1 peer {} allowed-ips 192.168.99.1/32",
        ours.public
    ));
    assert_eq!(causes(&host, "wg0"), ["nothing_inside"]);
    let finding = is_first(&host, "wg0", "nothing_inside");
    assert_eq!(finding["certainty"], "certain");
    obey(&finding, &host, &[]);
    works(&host, "wg0");
    // Only one side has a preshared key.
    let set = format!("wg set wg1 peer {} preshared-key /dev/stdin", ours.public);
    host.sh_with_input(&set, &Keys::psk());
    let finding = is_first(&host, "wg0", "preshared_key");
    assert!(
        text(&finding).contains("wg1, served on this host"),
        "{finding}"
    );
}
