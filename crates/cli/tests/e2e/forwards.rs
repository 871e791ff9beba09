//! `adit why` on what lies behind a peer, on two devices with one file, and on what only seems to
//! work.

use serde_json::Value;

use crate::harness::*;
use crate::why::why;

/// The findings for the first peer: cause, certainty, whether it is a problem.
#[track_caller]
pub fn findings(host: &Container, args: &str) -> (Option<i32>, Vec<(String, bool, Value)>) {
    let (status, report) = why(host, args);
    let list = report["peers"][0]["findings"].as_array().expect("findings");
    let finding = |one: &Value| {
        let cause = one["cause"].as_str().expect("a cause").to_owned();
        (cause, one["problem"] == true, one.clone())
    };
    (status, list.iter().map(finding).collect())
}

#[track_caller]
pub fn is_first(host: &Container, args: &str, cause: &str) -> Value {
    let (status, found) = findings(host, args);
    assert_eq!(status, Some(1), "{found:?}");
    let (first, _, finding) = found.into_iter().next().expect("a finding");
    assert_eq!(first, cause, "{finding:#}");
    assert!(!finding["commands"].as_array().expect("commands").is_empty());
    finding
}

/// Runs the commands of a finding that are for the peer, there.
fn obey(finding: &Value, host: &Container, device: &str) {
    for command in finding["commands"].as_array().expect("commands") {
        let command = command.as_str().expect("a string");
        let command = command.strip_prefix("at the peer: ").unwrap_or_default();
        if !command.contains("grep") {
            host.sh(&command.replace("DEVICE", device));
        }
    }
}

/// [`WgTunnel`] with a host behind the right side, which the left one sends through the tunnel.
///
/// ```text
///   left ──── right ──── behind
///             10.3.0.1   10.3.0.2, fd03::2
/// ```
#[test]
fn why_tells_forwarding_and_nat_from_allowed_ips() {
    let net = SitePair::new();
    let behind = Container::new("behind");
    link(
        &net.right,
        "eth1",
        &["10.3.0.1/24", "fd03::1/64"],
        &behind,
        "eth0",
        &["10.3.0.2/24", "fd03::2/64"],
    );
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left.host, &tunnel.right.host);
    let key = &tunnel.right.keys.public;
    tunnel.left.wg(&format!(
        "set {{}} peer {key} allowed-ips 192.168.77.2/32,fd77::2/128,10.3.0.0/24,fd03::/64"
    ));
    left.sh("ip route add 10.3.0.0/24 dev wg0; ip route add fd03::/64 dev wg0");
    for (to, family) in [("10.3.0.2", 4), ("fd03::2", 6)] {
        let args = format!("wg0 --inside {to}");
        let finding = is_first(left, &args, "no_forwarding");
        obey(&finding, right, "eth1");
        let finding = is_first(left, &args, "no_masquerade");
        let (_, found) = findings(left, &args);
        assert!(
            found.iter().all(|(cause, ..)| cause != "nothing_inside"),
            "{found:?}"
        );
        obey(&finding, right, "eth1");
        let (status, found) = findings(left, &args);
        assert_eq!(status, Some(0), "IPv{family}: {found:?}");
    }
    // By itself, too, where the peer answers.
    right.sh("sysctl -qw net.ipv4.ip_forward=0");
    is_first(left, "wg0", "no_forwarding");
}

/// A hub sees what its peers send to each other.
#[test]
fn why_and_check_name_forwarding_at_a_hub() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let (hub, other) = (&tunnel.right, Keys::new().public);
    hub.wg(&format!(
        "set {{}} peer {other} allowed-ips 192.168.77.3/32"
    ));
    let key = &tunnel.left.keys.public;
    let args = format!("wg0 {key}");
    // A remark as long as nobody is hurt.
    let (status, found) = findings(&hub.host, &args);
    assert_eq!(status, Some(0), "{found:?}");
    assert!(
        found
            .iter()
            .any(|(cause, problem, _)| cause == "no_forwarding" && !problem)
    );
    let key = &tunnel.right.keys.public;
    tunnel
        .left
        .wg(&format!("set {{}} peer {key} allowed-ips 192.168.77.0/24"));
    tunnel
        .left
        .host
        .sh("ping -q -i 0.1 -w 60 192.168.77.3 > /dev/null 2>&1 &");
    let finding = is_first(&hub.host, &args, "no_forwarding");
    assert_eq!(finding["certainty"], "certain");
    hub.host
        .sh(finding["commands"][0].as_str().expect("a command"));
    let (status, found) = findings(&hub.host, &args);
    assert_eq!(status, Some(0), "{found:?}");

    // The file of a hub says nothing of it, until a hook does.
    let file = |hook: &str| {
        format!(
            "[Interface]\nPrivateKey = {}\nAddress = 192.168.78.1/24\nListenPort = 51820\n{hook}\
             [Peer]\nPublicKey = {}\nAllowedIPs = 192.168.78.2/32\n\
             [Peer]\nPublicKey = {}\nAllowedIPs = 192.168.78.3/32\n",
            Keys::new().private,
            Keys::new().public,
            Keys::new().public
        )
    };
    let check = |text: &str| {
        hub.host
            .sh_with_input("umask 077; cat > /run/hub.conf", text);
        hub.host.sh(&format!(
            "{} check /run/hub.conf",
            Program::Adit.path().display()
        ))
    };
    let said = check(&file(""));
    assert!(said.contains("sysctl -w net.ipv4.ip_forward=1"), "{said}");
    assert!(said.contains("masquerade"), "{said}");
    let hooks =
        "PostUp = sysctl -w net.ipv4.ip_forward=1\nPostUp = nft add rule ip nat post masquerade\n";
    assert!(check(&file(hooks)).contains("nothing to remark"));
}

#[test]
fn why_names_one_file_on_two_devices() {
    let net = SitePair::new();
    let second = Container::new("second");
    link(
        &second,
        "eth0",
        &["10.4.0.1/24"],
        &net.right,
        "eth1",
        &["10.4.0.2/24"],
    );
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let _daemon = Daemon::start(&second, Program::Adit, "wg0", &Start::default());
    setconf(
        &second,
        "wg0",
        &tunnel.left.config.replace("10.0.0.2:", "10.4.0.2:"),
    );
    second.sh("ip addr add 192.168.77.1/24 dev wg0; ip link set wg0 up");
    for host in [&tunnel.left.host, &second] {
        host.sh("ping -q -i 0.1 -w 90 192.168.77.2 > /dev/null 2>&1 &");
    }
    wait_for("the peer moves to and fro", seconds(60), || {
        let (status, found) = findings(&tunnel.right.host, "wg0");
        status == Some(1) && found.first().is_some_and(|it| it.0 == "shared_key")
    });
}

#[test]
fn why_does_not_take_an_answer_of_the_lan_for_the_tunnels() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let left = &tunnel.left.host;
    let key = &tunnel.right.keys.public;
    // Of no peer, and one whose route is narrower.
    let finding = is_first(left, "wg0 --inside 10.0.0.2", "not_routed");
    assert!(
        finding["text"]
            .as_str()
            .expect("a text")
            .contains("no peer")
    );
    tunnel.left.wg(&format!(
        "set {{}} peer {key} allowed-ips 192.168.77.2/32,10.0.0.0/16"
    ));
    left.sh("ip route add 10.0.0.0/16 dev wg0");
    let finding = is_first(left, "wg0 --inside 10.0.0.2", "not_routed");
    assert!(finding["text"].as_str().expect("a text").contains("eth0"));
    let (status, found) = findings(left, "wg0 --inside 192.168.77.2");
    assert_eq!(status, Some(0), "{found:?}");
}

#[test]
fn why_names_an_input_chain_that_drops_our_port() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let left = &tunnel.left.host;
    for rules in [
        "chain in { type filter hook input priority 0; udp dport 51820 drop; }",
        "chain in { type filter hook input priority 0; policy drop; tcp dport 22 accept; }",
    ] {
        left.sh(&format!(
            "nft flush ruleset; nft 'table inet f {{ {rules}; }}'"
        ));
        let finding = is_first(left, "wg0", "local_firewall");
        assert!(
            finding["text"]
                .as_str()
                .expect("a text")
                .contains("inet f in")
        );
    }
    let finding = is_first(left, "wg0", "local_firewall");
    left.sh(finding["commands"][0].as_str().expect("a command"));
    wait_for(
        "the protocol allows the next handshake",
        seconds(30),
        || why(left, "wg0").1["peers"][0]["handshake"] == "succeeded",
    );
}

/// The peer's allowed IPs lack our address, and no block of ours is one host.
#[test]
fn why_tries_the_first_address_of_the_network_by_itself() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    right
        .host
        .sh("ip route add 0.0.0.0/1 dev wg0; ip route add 128.0.0.0/1 dev wg0");
    for blocks in ["192.168.77.0/24", "0.0.0.0/0"] {
        right.wg(&format!(
            "set {{}} peer {} allowed-ips {blocks}",
            left.keys.public
        ));
        left.wg(&format!(
            "set {{}} peer {} allowed-ips 192.168.77.2/32",
            right.keys.public
        ));
        let (status, found) = findings(&right.host, "wg0");
        let inside = found.iter().find(|it| it.0 == "nothing_inside");
        assert!(inside.is_none(), "{status:?} {found:?}");
        left.wg(&format!(
            "set {{}} peer {} allowed-ips 192.168.99.2/32",
            right.keys.public
        ));
        let finding = is_first(&right.host, "wg0", "nothing_inside");
        let text = finding["text"].as_str().expect("a text");
        assert!(
            text.contains("192.168.77.1") && text.contains("192.168.77.2"),
            "{text}"
        );
    }
    // The other side sees it, while it comes.
    right
        .host
        .sh("ping -q -i 0.1 -w 30 192.168.77.1 > /dev/null 2>&1 &");
    is_first(&left.host, "wg0", "wrong_source");
}
