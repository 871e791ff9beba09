//! Two gateways with one key and one address, which moves from one to the other.

use adit_testbed::process::Finished;

use crate::harness::*;

/// ```text
///   client ─── router ─── core ─┬─ first
///            (masquerade)       └─ second     both have 192.0.2.1
/// ```
pub struct Gateways {
    pub net: Natted,
    pub first: Container,
    pub second: Container,
    pub client: Daemon,
    _daemons: [Daemon; 2],
}

pub const MOVED: &str = "192.0.2.1";

impl Gateways {
    /// The first one has the address.
    pub fn new(program: Program) -> Self {
        let net = Natted::new();
        let (client, router, core) = (&net.net.left, &net.net.router, &net.net.right);
        router.sh(
            "ip route add default via 10.2.0.100; \
             for which in timeout timeout_stream; do echo 120 > /proc/sys/net/netfilter/nf_conntrack_udp_$which; done",
        );
        core.forwards();
        let (first, second) = (Container::new("first"), Container::new("second"));
        for (gateway, n) in [(&first, 1), (&second, 2)] {
            let (own, other) = (format!("10.1{n}.0.2/24"), format!("10.1{n}.0.1/24"));
            link(
                gateway,
                "eth0",
                &[&own],
                core,
                &format!("eth{n}"),
                &[&other],
            );
            gateway.sh(&format!(
                "ip link set lo up; ip addr add {MOVED}/32 dev lo; ip route add default via 10.1{n}.0.1"
            ));
        }
        core.sh(&format!("ip route add {MOVED} via 10.11.0.2"));
        let (gateway, peer) = (Keys::new(), Keys::new());
        let config = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.2/32\n",
            gateway.private, peer.public
        );
        let serve = |host: &Container| {
            let daemon = Daemon::start(host, Program::Adit, "wg0", &Start::default());
            setconf(host, "wg0", &config);
            host.sh("ip addr add 192.168.77.1/24 dev wg0; ip link set wg0 up");
            daemon
        };
        let daemons = [serve(&first), serve(&second)];
        let daemon = Daemon::start(client, program, "wg0", &Start::default());
        let config = format!(
            "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.0/24\nEndpoint = {MOVED}:51820\n",
            peer.private, gateway.public
        );
        setconf(client, "wg0", &config);
        client.sh("ip addr add 192.168.77.2/24 dev wg0; ip link set wg0 up");
        Self {
            net,
            first,
            second,
            client: daemon,
            _daemons: daemons,
        }
    }

    /// The address moves to the second one, without a word to the client, none of whose initiations get through from
    /// now on.
    pub fn fail_over(&self) {
        self.first.sh("ip link set eth0 down");
        let core = &self.net.net.right;
        core.sh(&format!(
            "nft add table ip own; nft 'add chain ip own forward {{ type filter hook forward priority 0; }}'; \
             nft add rule ip own forward iifname eth0 udp length 156 drop; \
             ip route replace {MOVED} via 10.12.0.2"
        ));
    }
}

pub fn adit(host: &Container, args: &str) -> Finished {
    host.try_sh(&format!("{} {args}", Program::Adit.path().display()))
}

pub fn latest_handshake(host: &Container) -> u64 {
    let shown = host.sh("wg show wg0 latest-handshakes");
    let time = shown.split_whitespace().nth(1).expect("a peer");
    time.parse().expect("a number")
}

/// A client that sends nothing meanwhile, and whose router lets nothing in but answers of the address that moved.
fn the_second_gateway_calls_a_client(program: Program) {
    let gateways = Gateways::new(program);
    let (client, second) = (&gateways.client.host, &gateways.second);
    ping(client, "192.168.77.1", 1);
    let list = adit(&gateways.first, "call wg0 --list");
    assert!(list.ok() && list.stdout.lines().count() == 1, "{list:?}");
    let shown = gateways.first.sh("wg show wg0 endpoints");
    assert_eq!(list.stdout, shown);

    gateways.fail_over();
    assert_eq!(latest_handshake(second), 0);
    second.sh_with_input("cat > /run/list", &list.stdout);
    let called = adit(
        second,
        &format!("call wg0 --endpoints /run/list --from {MOVED} --json"),
    );
    assert!(called.ok(), "{called:?}");
    let json: serde_json::Value = serde_json::from_str(&called.stdout).expect("JSON");
    assert_eq!(
        (&json["schema"], &json["called"]),
        (&1.into(), &1.into()),
        "{json}"
    );
    wait_for("the client has come", seconds(20), || {
        latest_handshake(second) > 0
    });
    ping(second, "192.168.77.2", 1);
    ping(client, "192.168.77.1", 1);
    let endpoint = client.sh("wg show wg0 endpoints");
    assert!(
        endpoint.trim().ends_with(&format!("{MOVED}:51820")),
        "{endpoint}"
    );
    // It is here now.
    let again = adit(
        second,
        &format!("call wg0 --endpoints - --from {MOVED} < /run/list"),
    );
    let expected = "wg0 calls no peer, 1 are here already";
    assert!(again.ok() && again.stderr.contains(expected), "{again:?}");
}

#[test]
fn a_gateway_calls_the_clients_of_the_one_whose_place_it_takes() {
    the_second_gateway_calls_a_client(Program::Adit);
}

#[test]
fn a_gateway_calls_clients_of_wireguard_go() {
    if let Some(program) = peer(Program::WireguardGo) {
        the_second_gateway_calls_a_client(program);
    }
}

#[test]
fn peers_are_called_each_time_the_address_comes() {
    let gateways = Gateways::new(Program::Adit);
    let (client, second) = (&gateways.client.host, &gateways.second);
    ping(client, "192.168.77.1", 1);
    let list = adit(&gateways.first, "call wg0 --list").stdout;
    let moves = |what: &str| second.sh(&format!("ip addr {what} {MOVED}/32 dev lo"));
    moves("del");
    let program = Program::Adit.path();
    second.sh(&format!(
        "{} call wg0 --endpoints /run/list --from {MOVED} --when-present < /dev/null > /run/said 2>&1 &",
        program.display()
    ));
    let says = |what: &str| {
        wait_for(what, seconds(20), || {
            second.sh("cat /run/said").contains(what)
        });
        second.sh("> /run/said");
    };
    says("the peers of wg0 are called each time 192.0.2.1 comes to this host");
    gateways.fail_over();

    // There is no list yet: that is tried again when something changes.
    moves("add");
    says("cannot read /run/list");
    second.sh_with_input("cat > /run/list", &list);
    second.sh("ip addr add 192.0.2.7/32 dev lo");
    says("wg0 calls one peer");
    wait_for("the client has come", seconds(20), || {
        latest_handshake(second) > 0
    });
    ping(second, "192.168.77.2", 1);
    ping(client, "192.168.77.1", 1);

    // A peer that came in the last five seconds is left alone.
    let first = latest_handshake(second);
    wait_for("time has passed", seconds(20), || {
        let now: u64 = second.sh("date +%s").trim().parse().expect("a number");
        now > first + 6
    });
    moves("del");
    moves("add");
    says("wg0 calls one peer");
    wait_for("the client has come again", seconds(20), || {
        latest_handshake(second) > first
    });
    // The list is read each time. What else changes calls nobody.
    second.sh(&format!(
        "ip addr del 192.0.2.7/32 dev lo; echo {} > /run/list",
        Keys::new().public
    ));
    moves("del");
    moves("add");
    says("wg0 calls no peer, 1 are no peers of it");
}

#[test]
fn an_address_that_is_here_already_has_no_peer_called_that_came() {
    let gateways = Gateways::new(Program::Adit);
    let (client, first) = (&gateways.client.host, &gateways.first);
    ping(client, "192.168.77.1", 1);
    let before = latest_handshake(first);
    // What the list says of it is old.
    let (key, gone) = (first.sh("wg show wg0 peers"), Keys::new().public);
    first.sh_with_input(
        "cat > /run/list",
        &format!("{} 203.0.113.9:9\n{gone}\n", key.trim()),
    );
    let program = Program::Adit.path();
    first.sh(&format!(
        "{} call wg0 --endpoints /run/list --from {MOVED} --when-present < /dev/null > /run/said 2>&1 &",
        program.display()
    ));
    let expected = "wg0 calls no peer, 1 are no peers of it";
    wait_for(expected, seconds(20), || {
        first.sh("cat /run/said").contains(expected)
    });
    assert_eq!(latest_handshake(first), before);
    assert!(!first.sh("wg show wg0 endpoints").contains("203.0.113.9"));
}

#[test]
fn calls_that_cannot_be_made_say_why() {
    let host = Container::new("gateway");
    let _daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    let key = Keys::new().public;
    host.sh_with_input(
        "cat > /run/list",
        &format!("{key}\t192.0.2.9:7\n{key}\texample.com:7\n"),
    );
    for (args, expected) in [
        (
            "call wg1",
            "no process serves wg1: `adit up wg1` starts one",
        ),
        (
            "call wg0 --from 192.0.2.77",
            "192.0.2.77 is no address of this host",
        ),
        ("call wg0 --from example.com", "invalid IP address"),
        ("call wg0 --endpoints /run/none", "cannot read /run/none"),
        (
            "call wg0 --endpoints /run/list",
            "/run/list:2: expected ADDRESS:PORT behind the key",
        ),
        ("call wg0 --list --from 192.0.2.1", "cannot be used with"),
        ("call wg0 --when-present", "--from <ADDRESS>"),
        (
            "call wg0 --endpoints - --from 127.0.0.1 --when-present",
            "--when-present reads the list each time the address comes",
        ),
    ] {
        let called = adit(&host, args);
        assert!(
            !called.ok() && called.stderr.contains(expected),
            "{args}: {called:?}"
        );
    }
    let called = adit(&host, "call wg0");
    assert!(
        called.ok() && called.stderr.contains("wg0 calls no peer:"),
        "{called:?}"
    );
    let called = adit(&host, "call wg0 --endpoints - < /run/list");
    assert!(
        !called.ok() && called.stderr.contains("standard input:2:"),
        "{called:?}"
    );
    let called = host.sh_with_input(
        &format!(
            "{} call wg0 --endpoints - 2>&1",
            Program::Adit.path().display()
        ),
        &format!("{key} 192.0.2.9:7\n"),
    );
    assert!(
        called.contains("wg0 calls no peer, 1 are no peers of it"),
        "{called}"
    );
}
