//! What docs/failover.md says about the programs that move addresses and tell routes, tried with these.

use crate::gateways::adit;
use crate::harness::*;

/// A configuration of the page.
fn block(of: &str) -> String {
    let page = repository().join("docs/failover.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let mut blocks = page.split("```\n").skip(1).step_by(2);
    blocks
        .find(|block| block.contains(of))
        .expect("a configuration")
        .to_owned()
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
    // A route of somebody else's into the tunnel.
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
