//! Several gateways with one key and one address at the same time, between which a router chooses.

use crate::gateways::adit;
use crate::harness::*;

/// ```text
///   clients ─── router ─┬─ gateway 1
///                       ├─ gateway 2     all have 192.0.2.1 and 2001:db8::1, and
///                       └─ gateway 3     192.168.77.1 inside
/// ```
/// A client is an interface of one host, with a port of its own.
struct Anycast {
    router: Container,
    /// With their numbers from 1 on.
    gateways: Vec<Container>,
    clients: Vec<Daemon>,
    _daemons: Vec<Daemon>,
    family: Family,
}

const CLIENTS: usize = 4;

impl Anycast {
    fn new(family: Family) -> Self {
        let [router, host] = ["router", "clients"].map(Container::new);
        router.sh("ip link add br0 type bridge; ip link set br0 up; ip addr add 10.1.0.254/24 dev br0; ip addr add fd01::fe/64 dev br0 nodad");
        router.sh("for family in ipv4 ipv6; do echo 1 > /proc/sys/net/$family/fib_multipath_hash_policy; done");
        router.forwards();
        let at_router = ["10.2.0.254/24", "fd02::fe/64"];
        link(
            &host,
            "eth0",
            &["10.2.0.1/24", "fd02::1/64"],
            &router,
            "clients",
            &at_router,
        );
        host.sh("ip route add default via 10.2.0.254; ip route add default via fd02::fe");
        let key = Keys::new();
        let keys: Vec<Keys> = (0..=CLIENTS).map(|_| Keys::new()).collect();
        let mut config = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\n",
            key.private
        );
        for (client, n) in keys.iter().zip(11..) {
            config += &format!(
                "[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.{n}/32\n",
                client.public
            );
        }
        let (mut gateways, mut daemons) = (Vec::new(), Vec::new());
        for n in 1..=3 {
            let gateway = Container::new(&format!("gateway{n}"));
            let own = [format!("10.1.0.{n}/24"), format!("fd01::{n}/64")];
            let port = format!("port{n}");
            link(&gateway, "eth0", &[&own[0], &own[1]], &router, &port, &[]);
            router.sh(&format!("ip link set {port} master br0"));
            gateway.sh(
                "ip link set lo up; ip addr add 192.0.2.1/32 dev lo; ip addr add 2001:db8::1/128 dev lo nodad; \
                 ip route add default via 10.1.0.254; ip route add default via fd01::fe",
            );
            let start = Start::default().env("ADIT_GATEWAY_ID", &n.to_string());
            daemons.push(Daemon::start(&gateway, Program::Adit, "wg0", &start));
            setconf(&gateway, "wg0", &config);
            gateway.sh("ip addr add 192.168.77.1/24 dev wg0; ip link set wg0 up");
            gateways.push(gateway);
        }
        let mut clients = Vec::new();
        for ((own, n), at) in keys.iter().zip(11..).zip(0..) {
            let program = match at < CLIENTS {
                true => Program::Adit,
                false => match peer(Program::WireguardGo) {
                    Some(program) => program,
                    None => continue,
                },
            };
            let name = format!("wg{n}");
            let daemon = Daemon::start(&host, program, &name, &Start::default());
            let endpoint = match family {
                Family::V4 => "192.0.2.1:51820",
                Family::V6 => "[2001:db8::1]:51820",
            };
            let config = format!(
                "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.1/32\nEndpoint = {endpoint}\n",
                own.private, key.public
            );
            setconf(&host, &name, &config);
            host.sh(&format!(
                "ip addr add 192.168.77.{n}/32 dev {name}; ip link set {name} up"
            ));
            clients.push(daemon);
        }
        Self {
            router,
            gateways,
            clients,
            _daemons: daemons,
            family,
        }
    }

    /// The router chooses among these gateways from now on.
    fn routes_to(&self, numbers: &[usize]) {
        let (to, net) = match self.family {
            Family::V4 => ("192.0.2.1/32", "10.1.0."),
            Family::V6 => ("2001:db8::1/128", "fd01::"),
        };
        let hops: String = numbers
            .iter()
            .map(|n| format!(" nexthop via {net}{n}"))
            .collect();
        self.router.sh(&format!("ip route replace {to}{hops}"));
    }

    fn gateway(&self, number: usize) -> &Container {
        &self.gateways[number - 1]
    }

    fn host(&self) -> &Container {
        &self.clients[0].host
    }

    /// All gateways have the same command.
    fn steers(&self) {
        for gateway in &self.gateways {
            let done = adit(gateway, &format!("steer wg0 {ALL}"));
            assert!(done.ok(), "{done:?}");
        }
    }

    fn ping_all(&self) {
        for client in &self.clients {
            let name = &client.interface;
            client.host.sh(&format!(
                "ping -n -q -c 10 -i 0.02 -W 10 -I {name} 192.168.77.1"
            ));
        }
    }

    /// Each of these clients asks an address each 20 ms, until all are told to end.
    fn ask(&self, clients: &[Daemon], address: &str) -> Asking {
        let names = clients.iter().map(|client| client.interface.clone());
        let names: Vec<String> = names.collect();
        for name in &names {
            self.host().sh(&format!(
                "ping -n -i 0.02 -I {name} {address} < /dev/null > /run/{name}.said 2>&1 & echo $! > /run/{name}.pid"
            ));
        }
        let host = self.host().clone();
        Asking { host, names }
    }

    /// How many clients have had a handshake with a gateway.
    fn came_to(&self, number: usize) -> usize {
        let shown = self.gateway(number).sh("wg show wg0 latest-handshakes");
        shown.lines().filter(|line| !line.ends_with("\t0")).count()
    }

    /// A gateway calls the peers of another one.
    fn calls(&self, number: usize, list: &str) {
        let from = match self.family {
            Family::V4 => "192.0.2.1",
            Family::V6 => "2001:db8::1",
        };
        let gateway = self.gateway(number);
        gateway.sh_with_input("cat > /run/list", list);
        let called = adit(
            gateway,
            &format!("call wg0 --endpoints /run/list --from {from}"),
        );
        assert!(called.ok(), "{called:?}");
    }
}

const ALL: &str = "--device eth0 --address 192.0.2.1 --address 2001:db8::1 --gateway 1=10.1.0.1 --gateway 2=10.1.0.2 \
                   --gateway 3=10.1.0.3 --gateway 1=fd01::1 --gateway 2=fd01::2 --gateway 3=fd01::3";

/// Clients that ask.
struct Asking {
    host: Container,
    names: Vec<String>,
}

impl Asking {
    /// None was left without an answer.
    fn end_without_loss(self) {
        for name in &self.names {
            let said = || self.host.sh(&format!("cat /run/{name}.said"));
            self.host.sh(&format!("kill -INT $(cat /run/{name}.pid)"));
            wait_for("ping ends", seconds(20), || said().contains("packet loss"));
            // The last request may have got no answer yet.
            let said = said();
            let answers = said.matches("icmp_seq=").count();
            let last = format!("icmp_seq={answers} ");
            assert!(answers > 20 && said.contains(&last), "{name}: {said}");
        }
    }
}

/// Sessions are with gateway 1, and the router knows others.
fn every_datagram_gets_to_its_session(family: Family) {
    let net = Anycast::new(family);
    net.routes_to(&[1]);
    net.ping_all();
    let all = net.clients.len();
    assert_eq!([1, 2, 3].map(|n| net.came_to(n)), [all, 0, 0]);
    // Without rules, what arrives at another gateway is lost.
    net.routes_to(&[2]);
    let name = &net.clients[0].interface;
    let lost = net.host().try_sh(&format!(
        "ping -n -q -c 3 -i 0.02 -W 1 -I {name} 192.168.77.1"
    ));
    assert!(!lost.ok(), "{lost:?}");
    net.routes_to(&[1]);
    net.steers();

    // Gateways come, and the one with all sessions leaves the routes.
    let asking = net.ask(&net.clients, "192.168.77.1");
    for routes in [&[1, 2][..], &[1, 2, 3], &[2, 3], &[3], &[2]] {
        net.routes_to(routes);
        net.ping_all();
    }
    // wireguard-go sometimes begins another handshake 5 seconds after one that it has completed, and so moves.
    let moved = net.came_to(2) + net.came_to(3);
    assert!(moved <= all - CLIENTS, "{moved}");

    // Another one calls its peers, whose answers may arrive anywhere. Then it can end.
    net.routes_to(&[3]);
    let list = adit(net.gateway(1), "call wg0 --list").stdout;
    assert_eq!(list.lines().count(), all, "{list}");
    net.calls(2, &list);
    wait_for("all have come to the second one", seconds(30), || {
        net.came_to(2) == all
    });
    net.ping_all();
    net.gateway(1).sh("ip link set eth0 down");
    net.routes_to(&[2, 3]);
    net.ping_all();
    asking.end_without_loss();
    assert!(net.came_to(3) <= all - CLIENTS);

    // One is killed. Those that it had are called by the last one, unless they were there in the last five seconds.
    wait_for("time has passed", seconds(20), || {
        let last = net.gateway(3);
        let newest =
            last.sh("wg show wg0 latest-handshakes | cut -f 2 | sort -n | tail -n 1; date +%s");
        let times: Vec<u64> = newest
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
        times[1] > times[0] + 6
    });
    let list = adit(net.gateway(2), "call wg0 --list").stdout;
    net.gateway(2).sh("ip link set eth0 down");
    net.routes_to(&[3]);
    net.calls(3, &list);
    wait_for("all have come to the last one", seconds(30), || {
        net.came_to(3) == all
    });
    net.ping_all();
}

#[test]
fn gateways_come_and_go_and_no_datagram_is_lost() {
    every_datagram_gets_to_its_session(Family::V4);
}

#[test]
fn gateways_come_and_go_and_no_datagram_over_ipv6_is_lost() {
    every_datagram_gets_to_its_session(Family::V6);
}

#[test]
fn rules_that_steer_replace_each_other_and_go_at_once() {
    let net = Anycast::new(Family::V4);
    let gateway = net.gateway(1);
    let rules = || gateway.sh("nft list ruleset");
    assert_eq!(rules(), "");
    net.steers();
    let first = rules();
    assert_eq!(first.matches("fwd ip to").count(), 4, "{first}");
    assert_eq!(first.matches("fwd ip6 to").count(), 4, "{first}");
    net.steers();
    assert_eq!(rules(), first);
    let less = "steer wg0 --json --device eth0 --address 192.0.2.1 --gateway 1=10.1.0.1 --gateway 2=10.1.0.2";
    let done = adit(gateway, less);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(
        (&json["gateway_id"], &json["gateways"]),
        (&1.into(), &vec![2].into()),
        "{json}"
    );
    assert_eq!(rules().matches("fwd ip").count(), 2, "{}", rules());

    let off = |expected: &str| {
        let done = adit(gateway, "steer wg0 --off");
        assert!(done.ok() && done.stderr.contains(expected), "{done:?}");
    };
    off("its rules are removed");
    assert_eq!(rules(), "");
    off("wg0 has no rules: nothing to do");
}

/// `adit up` passes the number on, and a process that goes on keeps it.
#[test]
fn the_number_of_a_gateway_outlives_its_process() {
    let [gateway, other] = ["gateway", "other"].map(Container::new);
    link(
        &gateway,
        "eth0",
        &["10.1.0.1/24"],
        &other,
        "eth0",
        &["10.1.0.2/24"],
    );
    let file = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\n",
        Keys::new().private
    );
    gateway.sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", &file);
    let done = adit(&gateway, "up --gateway-id 31 wg0");
    assert!(done.ok(), "{done:?}");
    let id = || {
        let shown = adit(&gateway, "show wg0 --json").stdout;
        let json: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        json["interfaces"][0]["engine"]["gateway_id"].clone()
    };
    assert_eq!(id(), 31);
    let done = adit(&gateway, "upgrade wg0");
    assert!(done.ok(), "{done:?}");
    assert_eq!(id(), 31);
    let rest = "--device eth0 --address 192.0.2.1 --gateway";
    for (words, expected) in [
        (format!("{rest} 31=10.1.0.1 --gateway 2=10.1.0.2"), None),
        (
            format!("{rest} 1=10.1.0.1 --gateway 2=10.1.0.2"),
            Some("wg0 is gateway 31, and no --gateway has this number"),
        ),
        (
            format!("{rest} 31=10.1.0.1 --gateway 2=10.1.0.2 --gateway 2=10.1.0.3"),
            Some("gateway 2 has two addresses"),
        ),
        (
            format!("{rest} 31=10.1.0.2 --gateway 2=10.1.0.1"),
            Some("10.1.0.1 is an address of this host"),
        ),
        (
            format!("{rest} 31=10.1.0.1 --gateway 2=10.1.0.2@eth7"),
            Some("there is no device eth7"),
        ),
        (
            format!("{rest} 31=10.1.0.1 --gateway 32=10.1.0.2"),
            Some("expected a number from 0 to 31"),
        ),
        (
            format!("{rest} 31=10.1.0.1 --gateway 2=10.7.0.2"),
            Some("no neighbour by eth0, but behind 10.1.0.2: make a tunnel"),
        ),
    ] {
        gateway.sh("ip route replace 10.7.0.0/16 via 10.1.0.2");
        let done = adit(&gateway, &format!("steer wg0 {words}"));
        match expected {
            None => assert!(done.ok(), "{words}: {done:?}"),
            Some(expected) => assert!(
                !done.ok() && done.stderr.contains(expected),
                "{words}: {done:?}"
            ),
        }
    }
    let done = adit(
        &gateway,
        "steer wg1 --device eth0 --address 192.0.2.1 --gateway 1=10.1.0.1",
    );
    assert!(done.stderr.contains("no process serves wg1"), "{done:?}");
    // Others have none.
    other.sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", &file);
    let done = adit(&other, "up wg0");
    assert!(done.ok(), "{done:?}");
    let done = adit(&other, &format!("steer wg0 {rest} 1=10.1.0.1"));
    assert!(
        done.stderr.contains("wg0 has no number among the gateways"),
        "{done:?}"
    );
}

/// A block of the page about fleets.
pub fn block(of: &str) -> String {
    let page = repository().join("docs/fleet.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let mut blocks = page.split("```\n").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(of));
    block.expect("a block").to_owned()
}

/// A router behind the gateways, and a service there. What the page has tells the router where peers are.
#[test]
fn answers_from_behind_leave_by_the_gateway_of_the_session() {
    const INSIDE: &str = "10.80.0.1";
    let net = Anycast::new(Family::V4);
    let inside = Container::new("inside");
    inside.sh(&format!(
        "ip link set lo up; ip addr add {INSIDE}/32 dev lo"
    ));
    let program = Program::Adit.path();
    let script = block("table 88").replace("adit events", &format!("{} events", program.display()));
    let config = block("protocol ospf");
    let mut at_inside = String::from("router id 10.70.9.1;\nprotocol device {}\n");
    at_inside +=
        "protocol kernel { ipv4 { import none; export where source = RTS_OSPF_EXT2; }; }\n";
    at_inside += "protocol ospf v3 { ipv4 { import all; export none; }; area 0 {\n";
    for n in [1, 2] {
        let gateway = net.gateway(n);
        gateway.forwards();
        let (own, other) = (format!("10.70.{n}.1/24"), format!("10.70.{n}.2/24"));
        link(
            gateway,
            "eth1",
            &[&own],
            &inside,
            &format!("eth{n}"),
            &[&other],
        );
        gateway.sh(&format!("ip route add {INSIDE} via 10.70.{n}.2"));
        gateway.sh_with_input("cat > /run/script; chmod 755 /run/script", &script);
        let config = config.replace("10.70.1.1", &format!("10.70.{n}.1"));
        gateway.sh_with_input("cat > /run/bird.conf", &config);
        gateway.sh("setsid /run/script < /dev/null > /run/script.log 2>&1 &");
        at_inside += &format!("interface \"eth{n}\" {{ type ptp; hello 1; }};\n");
    }
    inside.sh_with_input("cat > /run/bird.conf", &(at_inside + "}; }\n"));
    for host in [net.gateway(1), net.gateway(2), &inside] {
        host.sh("bird -f -c /run/bird.conf -s /run/bird.ctl -P /run/bird.pid < /dev/null > /run/bird.log 2>&1 &");
    }
    // Of all clients, the first one goes there.
    let client = &net.clients[0].interface;
    let host = net.host();
    host.sh(&format!(
        "peer=$(wg show {client} peers); wg set {client} peer $peer allowed-ips 192.168.77.1/32,{INSIDE}/32"
    ));
    let leads_to = |n: usize| {
        wait_for("the router knows where the client is", seconds(40), || {
            let route = inside.try_sh("ip route get 192.168.77.11").stdout;
            route.contains(&format!("via 10.70.{n}.1"))
        });
    };
    net.steers();
    net.routes_to(&[1]);
    net.ping_all();
    leads_to(1);
    let ping = || {
        host.sh(&format!(
            "ping -n -q -c 10 -i 0.02 -W 10 -I {client} {INSIDE}"
        ));
    };
    ping();
    let asking = net.ask(&net.clients[..1], INSIDE);
    net.routes_to(&[2]);
    ping();
    leads_to(1);
    let list = adit(net.gateway(1), "call wg0 --list").stdout;
    net.calls(2, &list);
    leads_to(2);
    ping();
    net.gateway(1)
        .sh("ip link set eth1 down; ip link set eth0 down");
    ping();
    asking.end_without_loss();
}
