//! What docs/failover.md says about the programs that move addresses and tell routes, tried with these.

use crate::gateways::{adit, latest_handshake};
use crate::harness::*;

/// A configuration of the page.
pub fn block(of: &str) -> String {
    let page = repository().join("docs/failover.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let mut blocks = page.split("```\n").skip(1).step_by(2);
    blocks
        .find(|block| block.contains(of))
        .expect("a configuration")
        .to_owned()
}

pub const MOVED: &str = "192.0.2.100";

/// ```text
///   client ─┐
///            switch ─┬─ first        both have 192.0.2.100, in turn
///                    └─ second
/// ```
struct Cluster {
    _switch: Container,
    gateways: [Container; 2],
    client: Daemon,
    _daemons: Vec<Daemon>,
}

impl Cluster {
    fn new() -> Self {
        let switch = Container::new("switch");
        switch.sh("ip link add br0 type bridge; ip link set br0 up");
        let [first, second, client] = ["first", "second", "client"].map(Container::new);
        for (host, n) in [(&first, 1), (&second, 2), (&client, 9)] {
            let port = format!("port{n}");
            link(
                host,
                "eth0",
                &[&format!("192.0.2.{n}/24")],
                &switch,
                &port,
                &[],
            );
            switch.sh(&format!("ip link set {port} master br0"));
        }
        let (gateway, peer) = (Keys::new(), Keys::new());
        let serve = |host: &Container, config: &str, address: &str| {
            let daemon = Daemon::start(host, Program::Adit, "wg0", &Start::default());
            setconf(host, "wg0", config);
            host.sh(&format!(
                "ip addr add {address}/24 dev wg0; ip link set wg0 up"
            ));
            daemon
        };
        let config = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.2/32\n",
            gateway.private, peer.public
        );
        let daemons = [&first, &second].map(|host| serve(host, &config, "192.168.77.1"));
        let config = format!(
            "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.0/24\nEndpoint = {MOVED}:51820\n",
            peer.private, gateway.public
        );
        let client = serve(&client, &config, "192.168.77.2");
        Self {
            _switch: switch,
            gateways: [first, second],
            client,
            _daemons: daemons.into(),
        }
    }
}

/// What keepalived has, as the page says it. What its script does goes to /run/called: the address when `adit` starts,
/// and then what it says.
pub fn install_keepalived(host: &Container, priority: u8) {
    let config = block("vrrp_instance").replace("priority 100", &format!("priority {priority}"));
    host.sh_with_input(
        "mkdir -p /etc/keepalived; chmod 755 /etc/keepalived; cat > /etc/keepalived/own.conf",
        &config,
    );
    host.sh_with_input(
        "cat > /etc/keepalived/wg0; chmod 755 /etc/keepalived/wg0",
        &block("case $3"),
    );
    host.sh_with_input(
        "rm -f /mnt/programs/adit; cat > /mnt/programs/adit; chmod 755 /mnt/programs/adit",
        &format!(
            "#!/bin/sh\nip -o addr show to {MOVED} >> /run/called\nexec {} \"$@\" 2>> /run/called\n",
            Program::Adit.path().display()
        ),
    );
}

/// It logs to /run/log.
pub fn start_keepalived(host: &Container) {
    host.sh(
        "rm -f /run/keepalived.pid /run/vrrp.pid
         keepalived -n -l -D -f /etc/keepalived/own.conf -p /run/keepalived.pid -r /run/vrrp.pid < /dev/null >> /run/log 2>&1 &",
    );
}

fn keepalived(host: &Container, priority: u8) {
    install_keepalived(host, priority);
    start_keepalived(host);
}

pub fn has_moved_to(host: &Container) -> bool {
    !host.sh(&format!("ip -o addr show to {MOVED}")).is_empty()
}

#[test]
fn keepalived_moves_the_address_and_has_the_other_gateway_call() {
    let cluster = Cluster::new();
    let ([first, second], client) = (&cluster.gateways, &cluster.client.host);
    keepalived(first, 150);
    wait_for("the address is at the first one", seconds(20), || {
        has_moved_to(first)
    });
    keepalived(second, 100);
    wait_for("the second one stands by", seconds(20), || {
        second.sh("cat /run/log").contains("Entering BACKUP STATE")
    });
    wait_for("the client is connected", seconds(30), || {
        client.try_sh("ping -n -c 1 -W 1 192.168.77.1").ok()
    });
    assert!(latest_handshake(first) > 0 && latest_handshake(second) == 0);
    let list = adit(first, "call wg0 --list");
    assert_eq!(list.stdout.lines().count(), 1, "{list:?}");

    // The first one dies, and the client does not come by itself.
    client.sh(
        "nft add table ip own; nft 'add chain ip own output { type filter hook output priority 0; }'; \
         nft add rule ip own output udp length 156 drop",
    );
    second.sh_with_input("rm -f /run/called; cat > /run/wg0.endpoints", &list.stdout);
    first.sh("ip link set eth0 down");
    wait_for("the address is at the second one", seconds(20), || {
        has_moved_to(second)
    });
    wait_for("the client was called", seconds(20), || {
        let called = second.try_sh("cat /run/called").stdout;
        let mut lines = called.lines();
        // The address was there before.
        lines.next().is_some_and(|line| line.contains(MOVED))
            && lines.any(|line| line.contains("wg0 calls one peer"))
    });
    wait_for("the client has come", seconds(20), || {
        latest_handshake(second) > 0
    });
    ping(client, "192.168.77.1", 1);
    ping(second, "192.168.77.2", 1);
}

#[test]
fn bird_tells_routers_of_the_peers_that_are_routed_and_of_nothing_else() {
    let (hub, router) = (Container::new("hub"), Container::new("router"));
    let addresses = [
        ["10.70.0.1/24", "fd70::1/64"],
        ["10.70.0.2/24", "fd70::2/64"],
    ];
    link(&hub, "eth1", &addresses[0], &router, "eth1", &addresses[1]);
    let peers = [Keys::new().public, Keys::new().public];
    let file = |peers: &[String]| {
        let peers = peers.iter().zip(2..).map(|(key, n)| {
            format!("[Peer]\nPublicKey = {key}\nAllowedIPs = 10.66.0.{n}/32, fd66::{n}/128\n")
        });
        let head = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.66.0.1/32, fd66::1/128\n",
            Keys::new().private
        );
        head + &peers.collect::<String>()
    };
    let write = |text: &str| hub.sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", text);
    let text = file(&peers);
    write(&text);
    let done = adit(&hub, "up wg0");
    assert!(done.ok(), "{done:?}");
    // Another program's route into the tunnel.
    hub.sh("ip route add 10.67.0.0/16 dev wg0");
    let config = block("protocol ospf");
    let bird = |host: &Container, config: &str| {
        host.sh_with_input("cat > /etc/bird.conf", config);
        host.sh("bird -f -c /etc/bird.conf -s /run/bird.ctl -P /run/bird.pid < /dev/null > /run/bird.log 2>&1 &");
    };
    bird(&hub, &config);
    let own = config
        .replace("10.70.0.1", "10.70.0.2")
        .replace(
            "import where krt_source = 87; export none",
            "import none; export all",
        )
        .replace(
            "import none; export where krt_source = 87",
            "import all; export none",
        );
    bird(&router, &own);

    let told = || {
        let routes = router.sh("ip -4 route show proto bird; ip -6 route show proto bird");
        let mut told: Vec<String> = (routes.lines())
            .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
            // The network between the two, which OSPF tells, too.
            .filter(|to| !to.starts_with("10.70.") && !to.starts_with("fd70:"))
            .collect();
        told.sort();
        told
    };
    let waits = |expected: &[&str]| {
        let start = std::time::Instant::now();
        while told() != expected {
            let log = || {
                hub.sh(
                    "cat /run/bird.log; birdc -s /run/bird.ctl show route; ip route; ip -6 route",
                )
            };
            assert!(
                start.elapsed() < seconds(30),
                "{:?} instead of {expected:?}: {}",
                told(),
                log()
            );
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    waits(&["10.66.0.2", "10.66.0.3", "fd66::2", "fd66::3"]);
    // As keepalived has a gateway do that loses the address, and one that gets it.
    let birdc = |what: &str| hub.sh(&format!("birdc -s /run/bird.ctl {what} inner4"));
    birdc("disable");
    waits(&["fd66::2", "fd66::3"]);
    birdc("enable");
    waits(&["10.66.0.2", "10.66.0.3", "fd66::2", "fd66::3"]);
    let via = router.sh("ip route get 10.66.0.2");
    assert!(via.contains("via 10.70.0.1"), "{via}");
    write(
        text.split("[Peer]")
            .take(2)
            .collect::<Vec<_>>()
            .join("[Peer]")
            .as_str(),
    );
    let done = adit(&hub, "sync wg0");
    assert!(done.ok(), "{done:?}");
    waits(&["10.66.0.2", "fd66::2"]);
    let done = adit(&hub, "down wg0");
    assert!(done.ok(), "{done:?}");
    waits(&[]);
}
