//! `adit init`, and what a hub forwards for its peers.

use crate::harness::*;
use crate::quick::{adit, comes_back, kill_adit, only_adit, state};
use crate::why::why;

/// A hub between a peer and the rest, which know no way to what is behind the hub.
///
/// ```text
///   phone              hub                 far
///   eth0 ──────── eth1     eth0 ────────── eth0
///   198.51.100.2  .1       203.0.113.1     203.0.113.9
///                          2001:db8:1::1   2001:db8:1::9
///                          eth2 ────────── eth1
///                          192.168.5.1     192.168.5.9
/// ```
pub struct Hub {
    pub hub: Container,
    pub phone: Container,
    far: Container,
}

impl Hub {
    pub fn new() -> Hub {
        let [hub, phone, far] = ["hub", "phone", "far"].map(Container::new);
        let (outer, peers) = (["203.0.113.1/24", "2001:db8:1::1/64"], ["198.51.100.1/24"]);
        link(
            &hub,
            "eth0",
            &outer,
            &far,
            "eth0",
            &["203.0.113.9/24", "2001:db8:1::9/64"],
        );
        link(&phone, "eth0", &["198.51.100.2/24"], &hub, "eth1", &peers);
        link(
            &hub,
            "eth2",
            &["192.168.5.1/24"],
            &far,
            "eth1",
            &["192.168.5.9/24"],
        );
        hub.sh("ip route add default via 203.0.113.9; ip -6 route add default via 2001:db8:1::9");
        phone.sh("ip route add default via 198.51.100.1");
        hub.sh("echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding");
        Hub { hub, phone, far }
    }

    /// The hub's address inside the tunnel.
    pub fn inner(&self, interface: &str) -> String {
        let file = self.hub.sh(&format!("cat /etc/wireguard/{interface}.conf"));
        let line = file
            .lines()
            .find_map(|line| line.strip_prefix("Address = "));
        let first = line.expect("an address").split('/').next();
        first.expect("an address").to_owned()
    }

    /// The phone gets a file, and uses it.
    pub fn connect_phone(&self, file: &str) {
        self.phone
            .sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", file);
        self.phone.sh(&format!("{} up wg0", adit()));
    }
}

/// The commands of README's first section, as far as they are Adit's.
fn readmes_lines() -> Vec<String> {
    let text = include_str!("../../../../README.md");
    let block = text.split("```\n").nth(1).expect("a block");
    assert!(block.lines().count() <= 8, "{block}");
    let words = |line: &str| line.split('#').next().map(|line| line.trim().to_owned());
    let lines = block.lines().filter(|line| line.starts_with("adit "));
    lines.filter_map(words).collect()
}

#[test]
fn readmes_first_lines_lead_from_nothing_to_a_phone_on_the_internet() {
    if !only_adit() {
        return;
    }
    let net = Hub::new();
    let (hub, phone, far) = (&net.hub, &net.phone, &net.far);
    ping_fails(phone, "203.0.113.9");
    let before = state(hub);
    hub.sh(&format!("mkdir /run/bin; ln -s {} /run/bin/adit", adit()));
    let lines = readmes_lines();
    let names: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert_eq!(names, ["init", "up", "new-peer"], "{lines:?}");
    let mut printed = String::new();
    for line in &lines {
        // What the phone would read of the code.
        let file = match line.contains(" --qr") {
            true => " --output /run/phone.conf",
            false => "",
        };
        printed = hub.sh(&format!("PATH=/run/bin:$PATH {line}{file} 2> /run/said"));
    }
    let file = hub.sh("cat /run/phone.conf; rm -r /run/bin /run/said /run/phone.conf");
    assert_eq!(hub.sh("stat -c %a /etc/wireguard/wg0.conf").trim(), "600");
    assert!(printed.contains('█'), "{printed}");
    net.connect_phone(&file);

    // 1. The hub itself, and 2. what is behind it, which has no way back.
    ping(phone, &net.inner("wg0"), 1);
    ping(phone, "203.0.113.9", 2);
    ping(phone, "2001:db8:1::9", 2);
    ping(phone, "192.168.5.9", 1);
    tcp(phone, far, "203.0.113.9", 1 << 20);
    assert!(hub.sh("nft list ruleset").contains("masquerade"));

    // 3. Nothing comes unasked, neither to a peer nor past the tunnel.
    let inner = file
        .lines()
        .find_map(|line| line.strip_prefix("Address = "));
    let inner = inner
        .and_then(|list| list.split('/').next())
        .expect("an address");
    far.sh(&format!(
        "ip route add {inner} via 203.0.113.1; ip route add 198.51.100.0/24 via 203.0.113.1"
    ));
    ping_fails(far, inner);
    ping_fails(far, "198.51.100.2");
    phone.sh(&format!("{} down wg0", adit()));
    ping_fails(phone, "203.0.113.9");

    // 4. Nobody is told of what is done.
    let second = hub.sh(&format!(
        "{0} new-peer wg0 --name laptop; {0} check wg0",
        adit()
    ));
    assert!(second.contains("Endpoint = 203.0.113.1:51820"), "{second}");
    assert!(second.contains("nothing to remark"), "{second}");
    let (_, report) = why(hub, "wg0");
    let report = report.to_string();
    assert!(
        !report.contains("no_forwarding") && !report.contains("no_masquerade"),
        "{report}"
    );

    hub.sh(&format!("{} down wg0", adit()));
    comes_back(hub, &before, "down");
}

#[test]
fn peers_reach_what_the_file_says_and_no_more() {
    if !only_adit() {
        return;
    }
    for (reach, far, lan) in [
        ("host", false, false),
        ("peers", false, false),
        ("lan", false, true),
        ("internet", true, true),
    ] {
        let net = Hub::new();
        let (hub, phone) = (&net.hub, &net.phone);
        // A host that forwards keeps to it as well.
        let routes = reach == "peers";
        if routes {
            hub.forwards();
        }
        let before = state(hub);
        hub.sh(&format!(
            "{0} init wg0 --reach {reach} --endpoint 198.51.100.1; {0} up wg0",
            adit()
        ));
        let file = hub.sh(&format!("{} new-peer wg0 --name phone", adit()));
        let allowed = file
            .lines()
            .find(|line| line.starts_with("AllowedIPs"))
            .expect("a line");
        assert_eq!(
            allowed.contains("0.0.0.0/0, ::/0"),
            reach == "internet",
            "{allowed}"
        );
        assert_eq!(
            allowed.contains("192.168.5.0/24"),
            reach == "lan",
            "{allowed}"
        );
        // It tries more than it is told.
        let file = file.replace(allowed, "AllowedIPs = 0.0.0.0/0, ::/0");
        net.connect_phone(&file);
        ping(phone, &net.inner("wg0"), 1);
        for (to, reached) in [
            ("203.0.113.9", far),
            ("2001:db8:1::9", far),
            ("192.168.5.9", lan),
        ] {
            match reached {
                true => ping(phone, to, 1),
                false => ping_fails(phone, to),
            }
        }
        hub.sh(&format!("{0} new-peer wg0; {0} check wg0", adit()));
        let (_, report) = why(hub, "wg0");
        let report = report.to_string();
        assert!(
            reach == "host" || !report.contains("no_forwarding"),
            "{report}"
        );
        assert!(
            reach == "host" || !report.contains("no_masquerade"),
            "{report}"
        );
        hub.sh(&format!("{} down wg0", adit()));
        comes_back(hub, &before, reach);
    }
}

#[test]
fn two_tunnels_share_what_they_forward_by_and_the_last_one_ends_it() {
    if !only_adit() {
        return;
    }
    let net = Hub::new();
    let (hub, phone) = (&net.hub, &net.phone);
    let adit = adit();
    let before = state(hub);
    hub.sh(&format!(
        "for wg in wg0 wg1; do {adit} init $wg; {adit} up $wg; done; sort /etc/wireguard/*.conf | uniq -d > /run/same"
    ));
    // Networks and ports are each one's own.
    let same = hub.sh("cat /run/same; rm /run/same");
    assert!(
        !same.contains("Address") && !same.contains("ListenPort"),
        "{same}"
    );
    let file = hub.sh(&format!(
        "{adit} new-peer wg1 --endpoint 198.51.100.1:51821"
    ));
    net.connect_phone(&file);
    ping(phone, "203.0.113.9", 1);
    hub.sh(&format!("{adit} down wg0"));
    ping(phone, "203.0.113.9", 1);
    ping(phone, "2001:db8:1::9", 1);

    // `sync` ends it and begins it.
    hub.sh(&format!(
        "sed -i 's/^# Forward/## Forward/' /etc/wireguard/wg1.conf; {adit} sync wg1"
    ));
    ping_fails(phone, "203.0.113.9");
    assert!(!hub.sh("nft list ruleset").contains("adit-forward"));
    hub.sh(&format!(
        "sed -i 's/^## Forward/# Forward/' /etc/wireguard/wg1.conf; {adit} sync wg1"
    ));
    ping(phone, "203.0.113.9", 1);

    // Another program has the host forward meanwhile: that stays.
    hub.sh("echo 1 > /proc/sys/net/ipv4/ip_forward");
    hub.sh(&format!("{adit} down wg1"));
    let kept = hub.sh("cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/eth0/forwarding");
    assert_eq!(kept, "1\n1\n");
    hub.sh("echo 0 > /proc/sys/net/ipv4/ip_forward");
    comes_back(hub, &before, "down");
}

#[test]
fn a_firewall_of_another_program_that_drops_is_named() {
    if !only_adit() {
        return;
    }
    let net = Hub::new();
    let (hub, phone) = (&net.hub, &net.phone);
    // As Docker and ufw have it.
    hub.sh(
        "nft 'table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }'",
    );
    let up = hub.try_sh(&format!("{0} init wg0; {0} up wg0", adit()));
    assert!(up.ok(), "{}", up.stderr);
    let said = "the chain FORWARD of nftables' table ip filter drops what is forwarded";
    assert_eq!(up.stderr.matches(said).count(), 1, "{}", up.stderr);
    let file = hub.sh(&format!(
        "{} new-peer wg0 --endpoint 198.51.100.1:51820",
        adit()
    ));
    net.connect_phone(&file);
    ping_fails(phone, "203.0.113.9");
    hub.sh("nft add rule ip filter FORWARD iifname wg0 accept; nft add rule ip filter FORWARD oifname wg0 accept");
    ping(phone, "203.0.113.9", 1);
}

#[test]
fn a_killed_hub_forwards_nothing_and_down_ends_it() {
    if !only_adit() {
        return;
    }
    let net = Hub::new();
    let (hub, phone) = (&net.hub, &net.phone);
    let adit = adit();
    let before = state(hub);
    hub.sh(&format!("{adit} init wg0; {adit} up wg0"));
    net.far.sh("ip route add 198.51.100.0/24 via 203.0.113.1");
    kill_adit(hub);
    // Its settings are still there, and what they would let through is blocked.
    assert_eq!(hub.sh("cat /proc/sys/net/ipv4/conf/eth1/forwarding"), "1\n");
    ping_fails(phone, "203.0.113.9");
    let down = hub.try_sh(&format!("{adit} down wg0"));
    assert!(
        !down.ok() && down.stderr.contains("no process serves"),
        "{}",
        down.stderr
    );
    comes_back(hub, &before, "down after a kill");

    // A start that fails leaves nothing either, and one after a kill takes all of it over.
    hub.sh(&format!("{adit} up wg0"));
    kill_adit(hub);
    hub.sh(&format!("{adit} up wg0; {adit} down wg0"));
    comes_back(hub, &before, "up after a kill");
    hub.sh("sed -i 's/^ListenPort/PostUp = false\\nListenPort/' /etc/wireguard/wg0.conf");
    assert!(!hub.try_sh(&format!("{adit} up wg0")).ok());
    comes_back(hub, &before, "an up that fails");

    // A process that stays with its tunnel ends it itself.
    hub.sh("sed -i '/^PostUp/d' /etc/wireguard/wg0.conf");
    hub.sh(&format!("{adit} up --foreground wg0 > /run/log 2>&1 & until grep -q 'is up' /run/log; do sleep 0.1; done"));
    hub.sh("kill -9 $(pgrep -f '[a]dit run .*wg0')");
    wait_for("the other process ends", seconds(20), || {
        processes(hub).is_empty()
    });
    hub.sh("rm /run/log");
    comes_back(hub, &before, "the end of its process");
}

#[test]
fn a_script_gets_one_line_for_what_is_wrong_and_no_file() {
    if !only_adit() {
        return;
    }
    let net = Hub::new();
    let hub = &net.hub;
    let adit = adit();
    let key = Keys::new().public;
    hub.sh(&format!(
        "printf '[Interface]\\nAddress = 10.77.0.1/24\\nListenPort = 51820\\n\
         [Peer]\\nPublicKey = {key}\\nAllowedIPs = 10.55.0.0/16\\n' > /etc/wireguard/old.conf
         chmod 600 /etc/wireguard/old.conf; touch /etc/wireguard/there.conf; ln -s /run/none /etc/wireguard/lost.conf
         mkdir /run/elsewhere; printf '[Interface]\\nAddress = 10.66.0.1/24\\n' > /run/elsewhere/near.conf
         ip route add 172.20.0.0/16 via 203.0.113.9; ip route add blackhole 10.88.0.0/16
         ip link add veth7 type veth peer name veth8; ip addr add 10.99.0.1/24 dev veth7
         mkdir /run/closed; mount -t tmpfs -o ro tmpfs /run/closed"
    ));
    let in_use = hub.within(|| std::net::UdpSocket::bind("0.0.0.0:51821").expect("a port"));
    let before = hub.sh("ls -A /etc/wireguard /run");
    for (args, status, said) in [
        ("there", 1, "there.conf is there already and stays as it is"),
        ("lost", 1, "lost.conf is there already"),
        ("veth7", 1, "an interface `veth7` is there already"),
        (
            "/run/closed/wg0.conf",
            1,
            "cannot make a file in /run/closed",
        ),
        ("/nowhere/wg0.conf", 1, "cannot make a file in /nowhere"),
        ("'my tunnel'", 1, "is no interface name"),
        ("a/b", 1, "expected a file named INTERFACE.conf"),
        ("--subnet 203.0.114.0/24", 1, "is no private network"),
        (
            "--subnet 192.168.5.128/25",
            1,
            "collides with 192.168.5.0/24 of the interface eth2",
        ),
        (
            "--subnet 172.20.7.0/24",
            1,
            "collides with 172.20.0.0/16 of the interface eth0",
        ),
        (
            "--subnet 10.88.7.0/24",
            1,
            "collides with 10.88.0.0/16 of a route",
        ),
        // It is down, and has no route to its network.
        (
            "--subnet 10.99.0.128/25",
            1,
            "collides with 10.99.0.0/24 of the interface veth7",
        ),
        ("--subnet 10.77.0.0/16", 1, "of /etc/wireguard/old.conf"),
        ("--subnet 10.55.7.0/24", 1, "of /etc/wireguard/old.conf"),
        (
            "/run/elsewhere/wg0.conf --subnet 10.66.0.0/16",
            1,
            "of /run/elsewhere/near.conf",
        ),
        ("--subnet 10.9.0.0/32", 1, "has no room for peers"),
        (
            "--subnet 10.9.0.0/24,10.10.0.0/24",
            1,
            "expected one network of IPv4",
        ),
        (
            "--port 51820",
            1,
            "UDP port 51820 is that of /etc/wireguard/old.conf",
        ),
        ("--port 51821", 1, "UDP port 51821 is in use"),
        (
            "--endpoint 'two words'",
            1,
            "--endpoint \"two words\": expected",
        ),
        ("--port 0", 2, "--port"),
        (
            "--reach moon",
            2,
            "possible values: host, peers, lan, internet",
        ),
        (
            "--subnet many",
            2,
            "expected an address and a prefix length",
        ),
        ("--network 10.9.0.0/24", 2, "--network"),
    ] {
        let output = hub.try_sh(&format!("{adit} init {args}"));
        assert_eq!(
            output.status.code(),
            Some(status),
            "{args}: {}",
            output.stderr
        );
        assert!(output.stderr.contains(said), "{args}: {}", output.stderr);
        assert!(
            status == 2 || output.stderr.lines().count() == 1,
            "{args}: {}",
            output.stderr
        );
        assert_eq!(hub.sh("ls -A /etc/wireguard /run"), before, "{args}");
    }
    hub.sh("ip route del default; ip -6 route del default");
    let output = hub.try_sh(&format!("{adit} init wg0"));
    assert!(output.stderr.contains("give --endpoint HOST") && output.stderr.lines().count() == 1);
    assert!(!hub.path("/etc/wireguard/wg0.conf").exists());

    // With it, the next free port is taken, and a name goes to the peers as it is.
    let said = hub.sh(&format!(
        "{adit} init wg0 --endpoint vpn.test --reach peers --subnet 10.9.0.0/24"
    ));
    assert!(
        said.contains("UDP port: 51822; peers find this host at vpn.test:51822"),
        "{said}"
    );
    let file = hub.sh("cat /etc/wireguard/wg0.conf");
    assert!(
        file.contains("\nAddress = 10.9.0.1/24\n") && file.contains("# Forward = peers"),
        "{file}"
    );
    drop(in_use);
    let output = hub.try_sh(&format!("{adit} init wg0"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(hub.sh("cat /etc/wireguard/wg0.conf"), file);
    // The directory of a clean Debian.
    hub.sh(&format!(
        "umount /etc/wireguard; rm -rf /etc/wireguard; {adit} init wg7 --endpoint vpn.test"
    ));
    assert_eq!(
        hub.sh("stat -c %a /etc/wireguard /etc/wireguard/wg7.conf"),
        "700\n600\n"
    );
}

#[test]
fn a_program_gets_what_the_file_says_as_json() {
    if !only_adit() {
        return;
    }
    let net = Hub::new();
    let hub = &net.hub;
    let init = format!(
        "{} init wg0 --json --reach internet --endpoint 203.0.113.1",
        adit()
    );
    let made = hub.try_sh(&init);
    assert!(
        made.status.success() && made.stderr.is_empty(),
        "{}",
        made.stderr
    );
    let json: serde_json::Value = serde_json::from_str(&made.stdout).expect("JSON");
    let file = hub.sh("cat /etc/wireguard/wg0.conf");
    let value = |key: &str| {
        let line = file
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{key} = ")));
        line.unwrap_or_else(|| panic!("no {key} in {file}"))
            .to_owned()
    };
    let addresses: Vec<_> = json["addresses"]
        .as_array()
        .expect("a list")
        .iter()
        .collect();
    let addresses: Vec<_> = addresses.iter().filter_map(|it| it.as_str()).collect();
    assert_eq!(addresses.join(", "), value("Address"));
    assert_eq!(json["listen_port"].to_string(), value("ListenPort"));
    let private = value("PrivateKey");
    let public = hub.sh(&format!("echo {private} | {} pubkey", adit()));
    assert_eq!(json["public_key"], public.trim());
    assert_eq!(
        json["endpoint"],
        format!("203.0.113.1:{}", value("ListenPort"))
    );
    assert_eq!(json["file"], "/etc/wireguard/wg0.conf");
    assert_eq!(
        (&json["done"], &json["forward"]),
        (&"made".into(), &"internet".into())
    );
    assert!(!made.stdout.contains(&private), "{}", made.stdout);

    // A second time nothing is written, and nothing looks like JSON.
    let again = hub.try_sh(&init);
    assert_eq!(again.status.code(), Some(1));
    assert!(again.stdout.is_empty(), "{}", again.stdout);
    assert_eq!(again.stderr.lines().count(), 1, "{}", again.stderr);
    assert_eq!(hub.sh("cat /etc/wireguard/wg0.conf"), file);
}

#[test]
fn the_network_that_is_left_is_chosen() {
    if !only_adit() {
        return;
    }
    let net = Hub::new();
    let hub = &net.hub;
    let adit = adit();
    // All that is private but the last network of the last pool.
    let lengths = (0..8).map(|n| (256 - (256 >> n), 17 + n));
    let mut taken: Vec<String> = lengths
        .map(|(first, len)| format!("192.168.{first}.0/{len}"))
        .collect();
    taken.extend(["10.0.0.0/8", "172.16.0.0/12"].map(str::to_owned));
    for network in &taken {
        hub.sh(&format!("ip route add {network} via 203.0.113.9"));
    }
    hub.sh(&format!("{adit} init wg0 --endpoint vpn.test"));
    let file = hub.sh("cat /etc/wireguard/wg0.conf");
    assert!(file.contains("\nAddress = 192.168.255.1/24"), "{file}");
    // The tunnel need not be up for that.
    let output = hub.try_sh(&format!("{adit} init wg1 --endpoint vpn.test"));
    assert!(
        !output.ok() && output.stderr.contains("routes to all private networks"),
        "{}",
        output.stderr
    );
}

#[test]
fn on_a_terminal_it_asks_until_it_has_an_answer() {
    if !only_adit() {
        return;
    }
    let net = Hub::new();
    let hub = &net.hub;
    // The address that it proposes is one that nobody outside finds.
    hub.sh("ip route replace default via 192.168.5.9 src 192.168.5.1");
    let init = |name: &str, answers: &str| {
        let command = format!(
            "script -qec '{} init {name}' /run/typescript > /dev/null; cat /run/typescript",
            adit()
        );
        hub.sh_with_input(&command, answers)
    };
    let shown = init("wg0", "8.8.8.0/24\n\n70000\n51999\n\nmoon\nlan\n");
    for said in [
        "A private network for the tunnel [10.",
        "8.8.8.0/24 is no private network",
        "The UDP port [51820]",
        "expected a number from 1 to 65535",
        "192.168.5.1 is a private address",
        "the router forwards UDP port 51999",
        "a name or an address [192.168.5.1]",
        "expected host, peers, lan or internet",
        "peers may reach: this host, each other and the private networks",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    let file = hub.sh("cat /etc/wireguard/wg0.conf");
    for line in [
        "ListenPort = 51999",
        "# PublicEndpoint = 192.168.5.1:51999",
        "# Forward = lan",
    ] {
        assert!(file.contains(line), "{file}");
    }
    // Without an answer there is no file, and with --yes no question.
    let shown = init("wg1", "");
    assert!(shown.contains("nothing is written"), "{shown}");
    assert!(!hub.path("/etc/wireguard/wg1.conf").exists());
    let shown = init("wg1 --yes", "");
    assert!(
        !shown.contains("]: ") && shown.contains("next: adit up wg1"),
        "{shown}"
    );
}
