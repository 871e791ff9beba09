//! wg-quick with Adit in the place of wireguard-go, and `adit up` and `adit down` in the place of
//! wg-quick.

use crate::harness::*;

const MIB: u64 = 1 << 20;

/// The right side is up; the left one is what a configuration file makes of it.
///
/// ```text
///   left                 router                 right
///   10.1.0.100 ──── 10.1.0.1 10.2.0.1 ──── 10.2.0.100
///   fd01::100       fd01::1   fd02::1      fd02::100
///                                          172.31.0.1, fd31::1 behind it
/// ```
pub struct World {
    pub net: Routed,
    _right: Daemon,
    left_keys: Keys,
    right_keys: Keys,
}

impl World {
    pub fn new() -> World {
        let net = Routed::new();
        let (left_keys, right_keys) = (Keys::new(), Keys::new());
        let right = Daemon::start(&net.right, Program::Adit, "wg0", &Start::default());
        setconf(
            &net.right,
            "wg0",
            &format!(
                "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.1/32, fd77::1/128\n",
                right_keys.private, left_keys.public
            ),
        );
        net.right.sh(
            "set -e; ip addr add 192.168.77.2/24 dev wg0; ip addr add fd77::2/64 dev wg0 nodad; ip link set wg0 up
            ip addr add 172.31.0.1/32 dev lo; ip addr add fd31::1/128 dev lo nodad",
        );
        World {
            net,
            _right: right,
            left_keys,
            right_keys,
        }
    }

    /// The left side's file; `interface` and `peer` are lines to add to the sections.
    pub fn config(&self, interface: &str, allowed: &str) -> String {
        format!(
            "# The left side\n[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/24, fd77::1/64\n{interface}\n\n\
             # friendly_name = right\n[Peer]\nPublicKey = {}\nAllowedIPs = {allowed}\nEndpoint = 10.2.0.100:51820\n",
            self.left_keys.private, self.right_keys.public
        )
    }

    pub fn private_key_of_left(&self) -> &str {
        &self.left_keys.private
    }

    pub fn write(&self, config: &str) {
        self.net
            .left
            .sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", config);
    }

    pub fn left(&self) -> &Container {
        &self.net.left
    }
}

/// All that bringing a tunnel up may touch.
pub fn state(host: &Container) -> String {
    // Counters and the order of what is equal are not state.
    host.sh(
        "ip -o addr | sed 's/valid_lft.*//' ; ip -4 route show table all; ip -6 route show table all | sort; ip -4 rule; ip -6 rule; \
         nft list ruleset; grep . /proc/sys/net/ipv[46]/conf/*/forwarding /proc/sys/net/ipv6/conf/*/accept_ra; ls -A /run /run/wireguard /run/adit 2> /dev/null; \
         for p in $(ls /proc | grep -E '^[0-9]+$'); do readlink /proc/$p/exe; done | sort",
    )
    .lines()
    .filter(|line| {
        let transient = ["sh", "sort", "ls", "grep", "sed", "readlink"].iter().any(|p| line.ends_with(&format!("/{p}")));
        !transient && !line.contains("/dash") && !line.contains("/busybox") && !line.starts_with("/run")
            && !matches!(line.trim(), "" | "adit" | "wireguard")
    })
    .map(|line| line.to_owned() + "\n")
    .collect()
}

/// Waits until the host is as it was `before`; panics with what differs.
#[track_caller]
pub fn comes_back(host: &Container, before: &str, what: &str) {
    let start = std::time::Instant::now();
    while start.elapsed() < seconds(20) {
        if state(host) == before {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(state(host), before, "{what} leaves something behind");
}

pub fn adit() -> String {
    Program::Adit.path().display().to_string()
}

fn wg_quick() -> String {
    format!(
        "LOG_LEVEL=silent WG_QUICK_USERSPACE_IMPLEMENTATION={} wg-quick",
        adit()
    )
}

/// Adit's own commands are tested with Adit only.
pub fn only_adit() -> bool {
    let it_is = Program::Adit.is_adit();
    if !it_is {
        eprintln!("not run: the implementation under test is another one");
    }
    it_is
}

/// Up with every kind of line, traffic, down: by `wg-quick` or by `adit`.
fn goes_up_and_down(command: &str) {
    let world = World::new();
    let left = world.left();
    let before = state(left);
    world.write(&world.config(
        "MTU = 1400\nListenPort = 40000\nPreUp = echo pre-up %i >> /run/hooks\nPostUp = echo post-up %i >> /run/hooks\n\
         PreDown = echo pre-down %i >> /run/hooks\nPostDown = echo post-down %i >> /run/hooks",
        "192.168.77.0/24, fd77::/64, 172.31.0.0/16, fd31::/64",
    ));
    left.sh(&format!("{command} up wg0"));
    assert_eq!(left.sh("cat /run/hooks"), "pre-up wg0\npost-up wg0\n");
    assert!(left.sh("ip link show wg0").contains("mtu 1400"));
    let addresses = left.sh("ip -br addr show wg0");
    assert!(
        addresses.contains("192.168.77.1/24") && addresses.contains("fd77::1/64"),
        "{addresses}"
    );
    assert!(left.sh("ip route get 172.31.0.1").contains("dev wg0"));
    assert!(left.sh("ip route get fd31::1").contains("dev wg0"));
    assert_eq!(left.sh("wg show wg0 listen-port").trim(), "40000");
    ping(left, "192.168.77.2", 2);
    ping(left, "fd77::2", 2);
    tcp(left, &world.net.right, "172.31.0.1", MIB);

    let again = left.try_sh(&format!("{command} up wg0"));
    assert!(
        !again.ok() && again.stderr.contains("wg0"),
        "a second `up` says that it is there: {}",
        again.stderr
    );
    ping(left, "192.168.77.2", 1);

    left.sh(&format!("{command} down wg0"));
    assert!(
        left.sh("cat /run/hooks")
            .ends_with("pre-down wg0\npost-down wg0\n")
    );
    left.sh("rm /run/hooks");
    wait_for("nothing is left behind", seconds(30), || {
        state(left) == before
    });
    let output = left.try_sh(&format!("{command} down wg0"));
    assert!(
        !output.ok() && output.stderr.contains("wg0"),
        "{}",
        output.stderr
    );
}

#[test]
fn wg_quick_brings_it_up_and_down_like_wireguard_go() {
    goes_up_and_down(&wg_quick());
}

#[test]
fn adit_up_and_down_do_what_wg_quick_does() {
    if only_adit() {
        goes_up_and_down(&adit());
    }
}

/// Default routes of both families through the tunnel, the endpoint's address too.
fn takes_the_default_route(command: &str) {
    let world = World::new();
    let left = world.left();
    let before = state(left);
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    left.sh(&format!("{command} up wg0"));
    ping(left, "172.31.0.1", 2);
    ping(left, "fd31::1", 2);
    assert!(left.sh("ip route get 172.31.0.1").contains("dev wg0"));
    // To other ports of the endpoint too: only the tunnel's own datagrams go around it.
    assert!(left.sh("ip route get 10.2.0.100").contains("dev wg0"));
    tcp(left, &world.net.right, "172.31.0.1", MIB);
    // Addresses of the link stay there.
    ping(left, "10.1.0.1", 1);
    let rules = left.sh("ip rule; ip -6 rule");
    assert_eq!(
        rules.matches("suppress_prefixlength 0").count(),
        2,
        "{rules}"
    );
    left.sh(&format!("{command} down wg0"));
    wait_for("nothing is left behind", seconds(30), || {
        state(left) == before
    });
    ping(left, "10.2.0.100", 1);
}

#[test]
fn pre_up_finds_the_interface_and_what_it_sets_stays() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let config = world.config(
        "PreUp = cat > /run/key #!\nPreUp = wg set %i private-key /run/key # from a vault",
        "192.168.77.0/24",
    );
    let key = format!("PrivateKey = {}\n", world.left_keys.private);
    world.write(&config.replace(&key, ""));
    left.sh_with_input(
        &format!("{} up wg0", adit()),
        &format!("{}\n", world.left_keys.private),
    );
    ping(left, "192.168.77.2", 1);
    // When `down` returns, there is nothing to wait for.
    assert_eq!(
        left.sh(&format!("{} down wg0; ls /run/adit", adit())),
        "",
        "the status socket"
    );
    left.sh("rm /run/key");
    comes_back(left, &before, "down");

    // A hook that fails takes the interface along.
    world.write(&config.replace("cat >", "exit 3; cat >"));
    let output = left.try_sh(&format!("{} up wg0", adit()));
    assert!(!output.ok() && output.stderr.contains("exit 3"));
    comes_back(left, &before, "a PreUp that fails");
}

/// wg-quick routes what `wg show` shows and marks with what it shows, wherever they come from.
#[test]
fn what_pre_up_adds_is_routed_like_the_files() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let new = Keys::new().public;
    let hook = format!(
        "PreUp = wg set %i fwmark 4242 peer {new} allowed-ips 10.66.0.0/16,192.168.77.77/32,0.0.0.0/0"
    );
    world.write(&world.config(&hook, "192.168.77.0/24"));
    left.sh(&format!("{} up wg0", adit()));
    assert_eq!(left.sh("wg show wg0 fwmark").trim(), "0x1092");
    for to in ["10.66.0.1", "172.31.0.1"] {
        let route = left.sh(&format!("ip route get {to}"));
        assert!(route.contains("dev wg0"), "{route}");
    }
    let routes = left.sh("ip route show dev wg0");
    assert!(!routes.contains("192.168.77.77"), "{routes}");
    let rules = left.sh("ip rule");
    assert!(rules.contains("lookup 4242"), "{rules}");
    ping(left, "192.168.77.2", 1);
    left.sh(&format!("{} down wg0", adit()));
    comes_back(left, &before, "down");

    // Mistakes are still found before a hook runs.
    let table = "Table = no-such-table\nPreUp = touch /run/ran";
    world.write(&world.config(table, "192.168.77.0/24"));
    let output = left.try_sh(&format!("{} up wg0", adit()));
    assert!(!output.ok() && output.stderr.contains("no-such-table"));
    assert!(!left.path("/run/ran").exists());
}

#[test]
fn what_a_file_says_twice_means_what_wg_makes_of_it() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let other = Keys::new().public;
    let config = world.config(
        "ListenPort = 40000\nListenPort = 40001",
        "10.5.0.0/16, 192.168.77.0/24",
    );
    let config = format!(
        "{config}PersistentKeepalive = 9\n[Peer]\nPublicKey = {other}\nAllowedIPs = 10.6.0.0/16\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.2/32\nAllowedIPs = 10.7.0.0/16\n",
        world.right_keys.public
    );
    world.write(&config);
    let output = left.try_sh(&format!("{} up wg0", adit()));
    assert!(output.ok(), "{}", output.stderr);
    let lines: Vec<&str> = config.lines().collect();
    let at = |line| 1 + lines.iter().rposition(|other| *other == line).expect(line);
    for line in ["ListenPort = 40001", "[Peer]"] {
        let place = format!("/etc/wireguard/wg0.conf:{}: ", at(line));
        assert!(
            output.stderr.contains(&place),
            "{place} in {}",
            output.stderr
        );
    }
    ping(left, "192.168.77.2", 1);
    let routes = left.sh("ip route show dev wg0");
    assert!(
        routes.contains("10.7.0.0/16") && !routes.contains("10.5.0.0/16"),
        "{routes}"
    );
    // Without what the traffic changes.
    let shown = || left.sh("wg show wg0 dump | cut -f 1-4,8 | sort; wg show wg0 listen-port");
    let ours = shown();
    left.sh_with_input(
        "wg setconf wg0 /dev/stdin",
        &left.sh(&format!("{} strip wg0", adit())),
    );
    assert_eq!(ours, shown());
    left.sh(&format!("{} save wg0", adit()));
    left.sh(&format!("{} sync wg0", adit()));
    assert_eq!(ours, shown());
}

#[test]
fn an_interrupted_up_leaves_nothing() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    for signal in ["INT", "TERM", "HUP"] {
        for hook in ["PreUp", "PostUp"] {
            let hook = format!("{hook} = kill -{signal} $PPID");
            world.write(&world.config(&hook, "192.168.77.0/24"));
            let output = left.try_sh(&format!("{} up wg0", adit()));
            assert!(
                !output.ok() && output.stderr.contains("interrupted"),
                "{hook}: {}",
                output.stderr
            );
            comes_back(left, &before, &hook);
        }
    }
    // SIGHUP says that the terminal is gone: no message can be printed any more.
    world.write(&world.config("PostUp = kill -HUP $PPID", "0.0.0.0/0, ::/0"));
    let output = left.try_sh(&format!("{} up wg0 2> /dev/full", adit()));
    assert!(!output.ok());
    comes_back(left, &before, "a hang-up");
}

#[test]
fn wg_quick_routes_everything_into_it() {
    takes_the_default_route(&wg_quick());
}

#[test]
fn adit_up_routes_everything_into_the_tunnel() {
    if only_adit() {
        takes_the_default_route(&adit());
    }
}

/// The firewall rules of a default route, with programs in the way that would set them.
#[test]
fn a_default_routes_firewall_is_wg_quicks_and_needs_no_program() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("FwMark = 51999", "0.0.0.0/0, ::/0"));
    let rules = || {
        // wg-quick guards the link-local address too, which a TUN device gets from the kernel and
        // no peer can route to.
        let rules = left.sh("nft list ruleset ip; nft list ruleset ip6");
        let stated = rules.lines().filter(|line| !line.contains("fe80:"));
        stated.map(str::to_owned).collect::<Vec<_>>()
    };
    left.sh(&format!("{} up wg0", wg_quick()));
    let theirs = rules();
    left.sh(&format!("{} down wg0", wg_quick()));
    assert_eq!(rules(), Vec::<String>::new());

    left.sh(
        "mkdir /run/fake; for p in nft iptables ip6tables iptables-restore ip6tables-restore iptables-save ip6tables-save; do
            printf '#!/bin/sh\\necho $0 >> /run/fake/ran\\nexit 1\\n' > /run/fake/$p; chmod +x /run/fake/$p; done",
    );
    left.sh(&format!("PATH=/run/fake:$PATH {} up wg0", adit()));
    assert_eq!(rules(), theirs);
    left.sh(&format!("PATH=/run/fake:$PATH {} down wg0", adit()));
    assert_eq!(rules(), Vec::<String>::new());
    assert!(!left.path("/run/fake/ran").exists(), "a program was run");

    // Either tool takes down what the other brought up.
    left.sh(&format!("{} up wg0", adit()));
    left.sh(&format!("{} down wg0", wg_quick()));
    assert_eq!(rules(), Vec::<String>::new());
}

#[test]
fn strangers_cannot_reach_the_tunnels_addresses_from_outside() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let (left, router) = (world.left(), &world.net.router);
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    left.sh(&format!("{} up wg0", adit()));
    router.sh("ip route add 192.168.77.1 via 10.1.0.100; ip -6 route add fd77::1 via fd01::100");
    ping(left, "172.31.0.1", 1);
    ping(left, "fd31::1", 1);
    for (family, own) in [("ip", "192.168.77.1"), ("ip6", "fd77::1")] {
        ping_fails(router, own);
        // That it was the firewall: without it they can.
        left.sh(&format!("nft flush chain {family} wg-quick-wg0 preraw"));
        ping(router, own, 1);
    }
}

#[test]
fn strict_reverse_path_filters_let_the_tunnels_answers_in() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh("echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter; echo 0 > /proc/sys/net/ipv4/conf/all/src_valid_mark");
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    left.sh(&format!("{} up wg0", adit()));
    ping(left, "172.31.0.1", 2);
    assert_eq!(
        left.sh("cat /proc/sys/net/ipv4/conf/all/src_valid_mark")
            .trim(),
        "1"
    );
    // That it was the mark: without it they do not.
    left.sh("nft flush chain ip wg-quick-wg0 premangle");
    ping_fails(left, "172.31.0.1");
}

/// Kills every process of Adit.
pub fn kill_adit(host: &Container) {
    host.sh(&format!(
        "for p in /proc/[0-9]*; do if [ \"$(readlink $p/exe)\" = {} ]; then kill -9 ${{p#/proc/}}; fi; done",
        adit()
    ));
    wait_for("interface and socket go with it", seconds(20), || {
        let socket = host.path("/run/wireguard/wg0.sock");
        !host.has_interface("wg0") && std::os::unix::net::UnixStream::connect(socket).is_err()
    });
}

/// What the left side sends in clear to hosts behind the tunnel.
fn leaks(world: &World) -> Capture {
    let clear = "not udp port 51820 and (host 172.31.0.1 or host fd31::1)";
    Capture::start(&world.net.router, "eth0", clear)
}

#[track_caller]
fn leaked_nothing(uplink: &Capture, when: &str) {
    // A file without packets is its header.
    assert_eq!(uplink.bytes().len(), 24, "packets in clear {when}");
}

#[test]
fn a_full_tunnel_whose_process_was_killed_leaks_nothing() {
    if !only_adit() {
        return;
    }
    for interface in ["", "FwMark = 77"] {
        let world = World::new();
        let left = world.left();
        let before = state(left);
        let up = format!("{} up wg0", adit());
        let good = world.config(interface, "0.0.0.0/0, ::/0");
        world.write(&good);
        left.sh(&up);
        ping(left, "172.31.0.1", 1);
        let uplink = leaks(&world);
        for host in ["172.31.0.1", "fd31::1"] {
            left.sh(&format!(
                "while [ ! -e /run/done ]; do ping -n -q -c 1 -W 1 {host}; sleep 0.01; done > /dev/null 2>&1 &"
            ));
        }
        let blocked = |when: &str| {
            for host in ["172.31.0.1", "fd31::1"] {
                let route = left.try_sh(&format!("ip route get {host}"));
                assert!(!route.ok(), "{when}: {}", route.stdout);
            }
            leaked_nothing(&uplink, when);
        };
        kill_adit(left);
        blocked("once it is killed");

        let failing = format!("PostUp = false\n{interface}");
        world.write(&world.config(&failing, "0.0.0.0/0, ::/0"));
        let output = left.try_sh(&up);
        assert!(!output.ok());
        for part in ["stays blocked", "adit down wg0"] {
            assert!(output.stderr.contains(part), "{}", output.stderr);
        }
        blocked("after an `up` that fails");

        world.write(&good);
        left.sh(&up);
        ping(left, "172.31.0.1", 1);
        ping(left, "fd31::1", 1);
        leaked_nothing(&uplink, "during the next `up`");

        kill_adit(left);
        blocked("once it is killed again");
        let output = left.try_sh(&format!("{} down wg0", adit()));
        assert!(output.stderr.contains("not up"), "{}", output.stderr);
        wait_for("after `down` they leave in clear", seconds(20), || {
            uplink.bytes().len() > 24
        });
        left.sh("touch /run/done; sleep 1.2; rm /run/done");
        comes_back(left, &before, "down");
    }
}

#[test]
fn a_killed_full_tunnel_comes_back_without_name_lookup() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh("cp /etc/hosts /run/hosts-of-test; mount --bind /run/hosts-of-test /etc/hosts");
    let before = state(left);
    left.sh("echo '10.2.0.100 gateway.test' >> /run/hosts-of-test");
    let config = world.config("", "0.0.0.0/0, ::/0");
    world.write(&config.replace("10.2.0.100", "gateway.test"));
    let up = format!(
        "WG_ENDPOINT_RESOLUTION_RETRIES=0 timeout 50 {} up wg0",
        adit()
    );
    left.sh(&up);
    ping(left, "172.31.0.1", 1);
    kill_adit(left);
    left.sh("cat /dev/null > /run/hosts-of-test");
    let output = left.try_sh(&up);
    assert!(output.ok(), "{}", output.stderr);
    assert!(
        output.stderr.contains("going on with 10.2.0.100:51820"),
        "{}",
        output.stderr
    );
    ping(left, "172.31.0.1", 1);
    left.sh(&format!("{} down wg0", adit()));
    comes_back(left, &before, "down");
    // There was no killed run: it must be looked up.
    assert!(!left.try_sh(&up).ok());
}

#[test]
fn an_up_that_was_killed_half_way_leaks_nothing() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let up = format!("PATH=/run/fake:$PATH {} up wg0", adit());
    let down = format!("{} down wg0", adit());
    left.sh("mkdir /run/fake; printf '#!/bin/sh\\nkill -9 $PPID\\n' > /run/fake/resolvconf; chmod +x /run/fake/resolvconf");
    let before = state(left);
    for line in ["DNS = 192.168.77.2", "PostUp = kill -9 $PPID"] {
        for process_too in [true, false] {
            world.write(&world.config(line, "0.0.0.0/0, ::/0"));
            assert!(!left.try_sh(&up).ok());
            let uplink = leaks(&world);
            let rules = left.sh("ip rule; ip -6 rule").contains("lookup 51820");
            assert_eq!(rules, line.starts_with("PostUp"), "{line}");
            for family in [4, 6] {
                let routes = left.sh(&format!("ip -{family} route show table 51820"));
                assert!(routes.contains("unreachable default"), "{line}: {routes}");
            }
            if process_too {
                kill_adit(left);
            }
            if rules {
                left.try_sh("ping -n -q -c 1 -W 1 172.31.0.1; ping -n -q -c 1 -W 1 fd31::1");
                leaked_nothing(&uplink, line);
            }
            let output = left.try_sh(&down);
            assert_eq!(output.ok(), !process_too, "{}", output.stderr);
            comes_back(left, &before, line);
        }
        // The next `up` cleans it, too.
        assert!(!left.try_sh(&up).ok());
        kill_adit(left);
        world.write(&world.config("", "0.0.0.0/0"));
        left.sh(&up);
        ping(left, "172.31.0.1", 1);
        let rest = left.sh("ip -6 rule; ip -6 route show table all");
        assert!(!rest.contains("51820"), "{rest}");
        left.sh(&down);
        comes_back(left, &before, "`up` and `down`");
    }
}

#[test]
fn no_rule_leads_to_a_table_in_which_look_ups_do_not_end() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    for family in [4, 6] {
        let events = format!("/run/events{family}");
        left.sh(&format!(
            "ip -{family} -o monitor route rule > {events} 2>&1 & echo $! >> /run/monitors"
        ));
        wait_for("the kernel's events arrive", seconds(20), || {
            left.sh(&format!(
                "ip -{family} rule add pref 9 table 9; ip -{family} rule del pref 9; cat {events}"
            ))
            .contains("lookup 9")
        });
    }
    left.sh(&format!("{0} up wg0; {0} down wg0", adit()));
    for family in [4, 6] {
        let find = |events: &str, parts: [&str; 2]| {
            let line = |line: &str| parts.iter().all(|part| line.contains(part));
            events.lines().position(line)
        };
        let mut order = Vec::new();
        wait_for("what `down` removes", seconds(20), || {
            let events = left.sh(&format!("cat /run/events{family}"));
            let parts = [
                ["unreachable default", "table 51820"],
                ["not from all fwmark", "lookup 51820"],
                ["Deleted", "lookup 51820"],
                ["Deleted unreachable default", "table 51820"],
            ];
            order = parts.map(|parts| find(&events, parts)).to_vec();
            !order.contains(&None)
        });
        assert!(order.is_sorted(), "IPv{family}: {order:?}");
    }
    left.sh("kill $(cat /run/monitors)");
}

#[test]
fn down_or_the_next_run_removes_what_a_killed_one_left() {
    if !only_adit() {
        return;
    }
    for interface in ["", "FwMark = 77"] {
        let world = World::new();
        let left = world.left();
        let before = state(left);
        world.write(&world.config(interface, "0.0.0.0/0, ::/0"));
        let up = format!("{} up wg0", adit());
        let down = format!("{} down wg0", adit());
        left.sh(&up);
        kill_adit(left);
        let output = left.try_sh(&down);
        assert!(!output.ok() && output.stderr.contains("not up"));
        comes_back(left, &before, "`down`");

        left.sh(&up);
        kill_adit(left);
        left.sh(&up);
        ping(left, "172.31.0.1", 1);
        left.sh(&down);
        comes_back(left, &before, "`up` and `down`");
    }
}

#[test]
fn up_leaves_the_rules_of_another_tunnel_alone() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    left.sh(&format!("{} up wg0", adit()));
    left.sh("sysctl -q -w net.ipv6.conf.wg0.disable_ipv6=1");
    left.sh_with_input(
        "umask 077; cat > /etc/wireguard/other.conf",
        &format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.2.0.1/24\n",
            Keys::new().private
        ),
    );
    let goes_through = || left.sh("ip route get 8.8.8.8").contains("dev wg0");
    assert!(goes_through());
    for command in ["up", "down"] {
        left.sh(&format!("{} {command} other", adit()));
        assert!(goes_through(), "after {command}");
    }
    left.sh(&format!("{} down wg0", adit()));
}

#[test]
fn the_rules_of_another_tunnel_with_the_same_mark_stay() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let untouched = state(left);
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    let other = |mark: u32, allowed: &str| {
        let (own, peer) = (Keys::new().private, Keys::new().public);
        let config = format!(
            "[Interface]\nPrivateKey = {own}\nFwMark = {mark}\n[Peer]\nPublicKey = {peer}\nAllowedIPs = {allowed}\n"
        );
        left.sh_with_input("umask 077; cat > /etc/wireguard/wg1.conf", &config);
    };
    let up = |name: &str| left.try_sh(&format!("{} up {name}", adit())).ok();
    let down = |name: &str| left.sh(&format!("{} down {name}", adit()));
    assert!(up("wg0"));
    let before = state(left);
    other(51820, "10.20.0.0/16");
    assert!(up("wg1"));
    down("wg1");
    comes_back(left, &before, "a split tunnel");
    other(51820, "0.0.0.0/0");
    assert!(!up("wg1"), "the table has a default route");
    comes_back(left, &before, "one that fails");
    ping(left, "172.31.0.1", 1);
    down("wg0");
    comes_back(left, &untouched, "the tunnel itself");

    // Settings that a user made for a tunnel without a default route stay the user's.
    left.sh("ip rule add not fwmark 77 table 77; ip route add 0.0.0.0/1 dev lo table 77");
    let before = state(left);
    other(77, "10.20.0.0/16");
    assert!(up("wg1"));
    down("wg1");
    comes_back(left, &before, "one whose mark has rules");
}

#[test]
fn only_what_a_killed_full_tunnel_left_is_taken_for_it() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    // A rule of another program, whose table has no route at the moment, and a pair of rules as a
    // tunnel leaves them whose process was killed.
    left.sh("ip rule add pref 90 not fwmark 51822 table 51822");
    left.sh(
        "ip rule add not fwmark 51821 table 51821; ip rule add table main suppress_prefixlength 0",
    );
    let up_and_down = |allowed: &str| {
        world.write(&world.config("", allowed));
        left.sh(&format!("{adit} up wg0; {adit} down wg0", adit = adit()));
        let rules = left.sh("ip rule");
        let theirs = rules.contains("90:") && rules.contains("lookup 51822");
        assert!(theirs, "AllowedIPs = {allowed}: {rules}");
        rules.contains("lookup 51821") && rules.contains("suppress_prefixlength 0")
    };
    assert!(up_and_down("192.168.77.0/24"), "it is in nobody's way");
    assert!(!up_and_down("0.0.0.0/0"));
}

#[test]
fn down_leaves_an_interface_that_no_process_serves_alone() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0"));
    // As if wg-quick had brought up one of the kernel's.
    left.sh("ip link add wg0 type veth peer name other; nft add table ip wg-quick-wg0");
    let before = state(left);
    let output = left.try_sh(&format!("{} down wg0", adit()));
    assert!(
        !output.ok() && output.stderr.contains("not one that"),
        "{}",
        output.stderr
    );
    assert_eq!(state(left), before);

    // One whose process does not answer as it should.
    left.sh("mkdir -p /run/wireguard");
    let listener = std::os::unix::net::UnixListener::bind(left.path("/run/wireguard/wg0.sock"))
        .expect("a socket");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let output = left.try_sh(&format!("{} down wg0", adit()));
    assert!(
        !output.ok() && output.stderr.contains("cannot ask wg0"),
        "{}",
        output.stderr
    );
    left.sh("rm /run/wireguard/wg0.sock");
    assert_eq!(state(left), before);
}

#[test]
fn a_process_that_hangs_is_told_of_and_taken_down() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    world.write(&world.config(
        "SaveConfig = true\nPostDown = touch /run/post-down",
        "0.0.0.0/0, ::/0",
    ));
    left.sh(&format!("{} up wg0", adit()));
    let old = left.sh(&format!(
        "for p in /proc/[0-9]*; do if [ \"$(readlink $p/exe)\" = {} ]; then echo ${{p#/proc/}}; fi; done",
        adit()
    ));
    let old = old.split_whitespace().collect::<Vec<_>>().join(" ");
    left.sh(&format!("kill -STOP {old}"));
    let mut other = Daemon::start(left, Program::Adit, "wg1", &Start::default());

    let output = left.try_sh(&format!("{} show wg0", adit()));
    let hangs = "no answer: its process is stopped or hangs";
    assert!(
        !output.ok() && output.stderr.contains(hangs),
        "{}",
        output.stderr
    );
    // It disturbs no other tunnel.
    let output = left.try_sh(&format!("{} show", adit()));
    assert!(
        !output.ok() && output.stderr.contains(hangs) && output.stdout.contains("wg1"),
        "{}{}",
        output.stdout,
        output.stderr
    );
    other.signal("TERM");
    other.wait();

    let output = left.try_sh(&format!("{} down wg0", adit()));
    assert!(output.ok(), "{}", output.stderr);
    for part in [hangs, "not saved", "is down, but its process"] {
        assert!(output.stderr.contains(part), "{part} in {}", output.stderr);
    }
    assert!(!left.has_interface("wg0"));
    left.sh("rm /run/post-down");
    let surroundings = left.sh("ip rule; ip -6 rule; nft list ruleset");
    assert!(
        !surroundings.contains("suppress") && !surroundings.contains("wg-quick"),
        "{surroundings}"
    );

    // The next one need not wait for the end of this one, which leaves it alone.
    left.sh(&format!("{} up wg0", adit()));
    left.sh(&format!("kill -CONT {old}"));
    wait_for("the old process ends", seconds(30), || {
        !left
            .try_sh(&format!(
                "for p in {old}; do readlink /proc/$p/exe && exit; done; false"
            ))
            .ok()
    });
    ping(left, "172.31.0.1", 1);
    left.sh(&format!("{} down wg0; rm /run/post-down", adit()));
    comes_back(left, &before, "down");
}

#[test]
fn a_file_that_got_a_mistake_meanwhile_still_takes_down() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let config = world.config("PostDown = touch /run/post-down", "0.0.0.0/0");
    world.write(&config);
    left.sh(&format!("{} up wg0", adit()));
    world.write(&format!("{config}Colour = blue\n"));
    let output = left.try_sh(&format!("{} down wg0", adit()));
    let line = config.lines().count() + 1;
    let warning = format!("Warning: /etc/wireguard/wg0.conf:{line}: ");
    assert!(
        output.ok() && output.stderr.contains(&warning),
        "{}",
        output.stderr
    );
    left.sh("rm /run/post-down");
    comes_back(left, &before, "down");
}

#[test]
fn a_renamed_interface_leaves_nothing_when_it_is_taken_down() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    for allowed in ["0.0.0.0/0, ::/0", "192.168.77.0/24"] {
        world.write(&world.config("", allowed));
        left.sh(&format!("{} up wg0", adit()));
        // Before Linux 6.2 it must be down.
        left.sh(
            "ip link set wg0 name home || { ip link set wg0 down; ip link set wg0 name home; }",
        );
        left.sh(&format!("{} down wg0", adit()));
        comes_back(left, &before, allowed);
    }
}

#[test]
fn down_and_save_do_not_repeat_what_up_warned_of() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let twice = "ListenPort = 40000\nListenPort = 40001";
    world.write(&world.config(twice, "192.168.77.0/24"));
    for (command, warns) in [
        ("up", true),
        ("sync", true),
        ("save", false),
        ("down", false),
    ] {
        if command == "save" {
            left.sh("cp /etc/wireguard/wg0.conf /run/wg0.conf");
        }
        let output = left.try_sh(&format!("{} {command} wg0", adit()));
        assert!(output.ok(), "{command}: {}", output.stderr);
        assert_eq!(
            output.stderr.contains("Warning"),
            warns,
            "{command}: {}",
            output.stderr
        );
        if command == "save" {
            left.sh("cp /run/wg0.conf /etc/wireguard/wg0.conf");
        }
    }
}

#[test]
fn who_is_not_root_is_asked_for_a_password() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    // Where everybody may go.
    host.sh(&format!(
        "mkdir -m 755 /run/bin; cp {} /run/bin; printf '#!/bin/sh\\nshift 3; echo as root: $@\\n' > /run/bin/sudo; \
         chmod 755 /run/bin/*",
        adit()
    ));
    let nobody =
        "PATH=/run/bin:$PATH setpriv --reuid 65534 --regid 65534 --clear-groups /run/bin/adit";
    assert_eq!(
        host.sh(&format!("{nobody} up --disable-offload udp-gso wg0")),
        "as root: /run/bin/adit up --disable-offload udp-gso wg0\n"
    );
    let output = host.try_sh(&format!("rm /run/bin/sudo; {nobody} down wg0"));
    assert!(
        !output.ok() && output.stderr.contains("must be root"),
        "{}",
        output.stderr
    );
}

#[test]
fn a_default_route_needs_no_right_to_write_what_is_set() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0"));
    let set = "echo 1 > /proc/sys/net/ipv4/conf/all/src_valid_mark";
    // As in a container.
    left.sh(&format!(
        "{set}; mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"
    ));
    assert!(!left.try_sh(set).ok());
    left.sh(&format!("{} up wg0", adit()));
    ping(left, "172.31.0.1", 1);
}

#[test]
fn a_file_that_everyone_can_read_is_warned_of() {
    let world = World::new();
    let left = world.left();
    let config = world.config("", "192.168.77.0/24");
    left.sh_with_input("mkdir -m 755 /run/open; cat > /run/open/wg0.conf", &config);
    let mut commands = vec![wg_quick()];
    if only_adit() {
        commands.push(adit());
    }
    for command in commands {
        for (mode, warned) in [("600", false), ("644", true)] {
            left.sh(&format!("chmod {mode} /run/open/wg0.conf"));
            let output = left.try_sh(&format!("{command} up /run/open/wg0.conf"));
            assert!(output.ok(), "{}", output.stderr);
            assert_eq!(
                output.stderr.contains("world accessible")
                    || output.stderr.contains("everybody may use this file"),
                warned,
                "{command}, mode {mode}: {}",
                output.stderr
            );
            left.sh(&format!("{command} down /run/open/wg0.conf"));
        }
    }
}

#[test]
fn up_warns_of_what_an_interface_lacks_of_its_file() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let good = world.config("", "192.168.77.0/24");
    let key = format!("PrivateKey = {}\n", world.left_keys.private);
    let no_key = "wg0 has no PrivateKey";
    let no_v6 = "wg0 has no IPv6, not even fd77::1/64: its MTU is 1279, and IPv6 needs 1280";
    for (config, warned) in [
        (good.clone(), vec![]),
        (world.config("MTU = 1280", "192.168.77.0/24"), vec![]),
        (world.config("MTU = 1279", "192.168.77.0/24"), vec![no_v6]),
        (good.replace(&key, ""), vec![no_key]),
        // As wg-quick's manual does it.
        (good.replace(&key, "PostUp = true\n"), vec![]),
    ] {
        world.write(&config);
        let output = left.try_sh(&format!("{} up wg0", adit()));
        assert!(output.ok(), "{}", output.stderr);
        for warning in [no_key, no_v6] {
            assert_eq!(
                output.stderr.contains(warning),
                warned.contains(&warning),
                "{warning}: {}",
                output.stderr
            );
        }
        left.sh(&format!("{} down wg0", adit()));
    }
}

#[test]
fn ipv6_routes_below_its_least_mtu_are_refused() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let why = "through wg0: its MTU is 1000, and IPv6 needs 1280";
    for blocks in ["0.0.0.0/0, ::/0", "192.168.77.0/24, fd31::/64"] {
        world.write(&world.config("MTU = 1000\nPreUp = touch /run/ran", blocks));
        let output = left.try_sh(&format!("{} up wg0", adit()));
        assert!(!output.ok());
        assert!(output.stderr.contains(why), "{}", output.stderr);
        assert!(!left.path("/run/ran").exists(), "nothing was done");
        assert_eq!(state(left), before);
    }
    // Where the path decides, or a hook adds the block, it is known later.
    let new = Keys::new().public;
    let hook = format!("MTU = 1000\nPreUp = wg set %i peer {new} allowed-ips fd31::/64");
    world.write(&world.config(&hook, "192.168.77.0/24"));
    let output = left.try_sh(&format!("{} up wg0", adit()));
    assert!(!output.ok());
    assert!(output.stderr.contains(why), "{}", output.stderr);
    comes_back(left, &before, "`up` that fails");
    // Users who make their routes themselves need no warning.
    world.write(&world.config("MTU = 1000\nTable = off", "0.0.0.0/0, ::/0"));
    left.sh(&format!("{} up wg0", adit()));
}

#[test]
fn what_the_kernel_or_the_process_refuses_is_named() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    // Digits are base64, too.
    let too_many: String = (0..=1 << 20)
        .map(|n| format!("[Peer]\nPublicKey = {n:0>42}A=\n"))
        .collect();
    let good = world.config("", "192.168.77.0/24");
    let _socket = left.within(|| std::net::UdpSocket::bind("0.0.0.0:5353").expect("a port"));
    for (config, what) in [
        (
            world.config("Table = nowhere", "192.168.77.0/24"),
            "/etc/wireguard/wg0.conf: there is no routing table `nowhere`",
        ),
        (
            world.config("ListenPort = 5353", "10.0.0.0/8"),
            "cannot configure wg0: UDP port 5353 is in use",
        ),
        (
            format!("{good}{too_many}"),
            "cannot configure wg0: a device has at most 1048576 peers",
        ),
    ] {
        world.write(&config);
        let output = left.try_sh(&format!("timeout 50 {} up wg0", adit()));
        assert!(!output.ok(), "{what}");
        assert!(output.stderr.contains(what), "{what}: {}", output.stderr);
    }
}

#[test]
fn table_off_and_a_table_number_are_respected() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    for (table, main, other) in [
        ("off", false, false),
        ("1234", false, true),
        ("auto", true, false),
    ] {
        world.write(&world.config(&format!("Table = {table}"), "172.31.0.0/16, fd31::/64"));
        left.sh(&format!("{} up wg0", adit()));
        assert_eq!(
            left.sh("ip route show dev wg0").contains("172.31.0.0/16"),
            main,
            "Table = {table}"
        );
        let found = left
            .try_sh("ip route show table 1234 dev wg0")
            .stdout
            .contains("172.31.0.0/16");
        assert_eq!(found, other, "Table = {table}");
        left.sh(&format!("{} down wg0", adit()));
        wait_for("nothing is left behind", seconds(30), || {
            state(left) == before
        });
    }
}

#[test]
fn adit_up_that_fails_half_way_leaves_nothing_behind() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let good = world.config("", "192.168.77.0/24");
    let (head, _) = good.split_once("\nEndpoint").expect("an endpoint");
    let cases = [
        (
            "PreUp fails",
            world.config("PreUp = false", "192.168.77.0/24"),
        ),
        (
            "PostUp fails",
            world.config("PostUp = true\nPostUp = exit 3", "0.0.0.0/0, ::/0"),
        ),
        (
            "no such name",
            format!("{head}\nEndpoint = no-such-host.invalid:51820\n"),
        ),
        (
            "a route that cannot be",
            world.config("Table = 4294967295", "192.168.77.0/24"),
        ),
        (
            "port in use",
            world.config("ListenPort = 5353", "192.168.77.0/24"),
        ),
    ];
    let socket = left.within(|| std::net::UdpSocket::bind("0.0.0.0:5353").expect("a port"));
    for (what, config) in cases {
        world.write(&config);
        let output = left.try_sh(&format!(
            "WG_ENDPOINT_RESOLUTION_RETRIES=0 timeout 50 {} up wg0",
            adit()
        ));
        if what.starts_with("a route") && output.ok() {
            // Some number may be a table: then it is up, and goes down.
            left.sh(&format!("{} down wg0", adit()));
            continue;
        }
        assert!(
            !output.ok() && output.status.code() != Some(124),
            "{what}: {}",
            output.status
        );
        assert!(
            !output.stderr.trim().is_empty() && !output.stderr.contains("panicked"),
            "{what}: {}",
            output.stderr
        );
        let mut after = String::new();
        for _ in 0..100 {
            after = state(left);
            if after == before {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert_eq!(after, before, "{what}\n{}", output.stderr);
    }
    drop(socket);
    // And what failed can be tried again.
    world.write(&good);
    left.sh(&format!("{} up wg0", adit()));
    ping(left, "192.168.77.2", 1);
}

#[test]
fn a_forbidden_port_is_named_with_the_missing_right() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("ListenPort = 443", "192.168.77.0/24"));
    let with = |capabilities: &str| {
        let bounded = format!("setpriv --bounding-set -all,{capabilities}");
        left.try_sh(&format!("timeout 50 {bounded} {} up wg0", adit()))
    };
    let refused = with("+net_admin,+net_raw,+dac_override");
    assert!(!refused.ok());
    let why = "UDP port 443 is refused to this process: below 1024 it needs CAP_NET_BIND_SERVICE";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    // What the unit for systemd allows.
    let unit = include_str!("../../../../packaging/adit@.service");
    let allowed = (unit.lines())
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .expect("capabilities")
        .to_lowercase()
        .replace("cap_", "+")
        .replace(' ', ",");
    let output = with(&allowed);
    assert!(output.ok(), "{}", output.stderr);
    ping(left, "192.168.77.2", 1);
    left.sh(&format!("{} down wg0", adit()));
}

#[test]
fn who_names_a_file_that_does_not_exist_hears_what_to_do() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    for command in ["up", "down", "sync"] {
        let output = host.try_sh(&format!("{} {command} nosuch", adit()));
        assert!(!output.ok());
        let missing = "there is no file /etc/wireguard/nosuch.conf";
        assert!(output.stderr.contains(missing), "{}", output.stderr);
        assert!(output.stderr.contains("./nosuch.conf"), "{}", output.stderr);
    }
}

#[test]
fn mistakes_in_a_file_are_named_with_file_and_line() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let key = &world.left_keys.private;
    let cases = [
        ("[Interface]\nPrivateKey = zzz\n", 2, "PrivateKey"),
        (
            &format!("[Interface]\nPrivateKey = {key}\nAddress = 10.0.0.300/24\n"),
            3,
            "10.0.0.300",
        ),
        (
            &format!("[Interface]\nPrivateKey = {key}\nMTU = many\n"),
            3,
            "many",
        ),
        (
            &format!("[Interface]\nPrivateKey = {key}\nListenPort = 70000\n"),
            3,
            "70000",
        ),
        (
            &format!("[Interface]\nPrivateKey = {key}\nColour = blue\n"),
            3,
            "Colour",
        ),
        (
            &format!("[Interface]\nPrivateKey = {key}\n[Peers]\n"),
            3,
            "Peers",
        ),
        (
            &format!(
                "[Interface]\nPrivateKey = {key}\n[Peer]\nPublicKey = {key}\nAllowedIPs = 10.0.0.0/40\n"
            ),
            5,
            "10.0.0.0/40",
        ),
        (
            &format!(
                "[Interface]\nPrivateKey = {key}\n[Peer]\nPublicKey = {key}\nEndpoint = host\n"
            ),
            5,
            "host",
        ),
        (
            &format!("[Interface]\nPrivateKey = {key}\n[Peer]\nAllowedIPs = 10.0.0.0/8\n"),
            3,
            "PublicKey",
        ),
        (
            &format!("[Interface]\nPrivateKey = {key}\nnonsense\n"),
            3,
            "nonsense",
        ),
    ];
    for (config, line, what) in cases {
        world.write(config);
        let output = left.try_sh(&format!("timeout 20 {} up wg0", adit()));
        assert!(!output.ok(), "{config}");
        let place = format!("/etc/wireguard/wg0.conf:{line}:");
        assert!(
            output.stderr.contains(&place),
            "{place} in {}",
            output.stderr
        );
        assert!(output.stderr.contains(what), "{what} in {}", output.stderr);
        assert_eq!(state(left), before);
    }
    let output = left.try_sh(&format!("{} up does-not-exist", adit()));
    assert!(
        !output.ok() && output.stderr.contains("does-not-exist"),
        "{}",
        output.stderr
    );
}

#[test]
fn save_config_writes_what_is_in_force_and_keeps_the_comments() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("SaveConfig = true", "192.168.77.0/24"));
    left.sh(&format!("{} up wg0", adit()));
    let new = Keys::new();
    left.sh(&format!(
        "wg set wg0 peer {} allowed-ips 10.5.0.0/16 persistent-keepalive 21",
        new.public
    ));
    left.sh(&format!("{} down wg0", adit()));
    let saved = left.sh("cat /etc/wireguard/wg0.conf");
    for part in [
        &new.public,
        "10.5.0.0/16",
        "PersistentKeepalive = 21",
        "SaveConfig = true",
        "Address = ",
        "# friendly_name = right",
        &world.left_keys.private,
    ] {
        assert!(saved.contains(part), "{part} in {saved}");
    }
    assert_eq!(left.sh("stat -c %a /etc/wireguard/wg0.conf").trim(), "600");
    left.sh(&format!("{} up wg0", adit()));
    ping(left, "192.168.77.2", 1);
    assert!(left.sh("wg show wg0 peers").contains(&new.public));
}

#[test]
fn dns_goes_through_resolvconf() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh("mkdir /run/fake; printf '#!/bin/sh\\n{ echo \"$@\"; [ \"$1\" = -a ] && cat; } >> /run/fake/said\\nexit 0\\n' > /run/fake/resolvconf; chmod +x /run/fake/resolvconf");
    world.write(&world.config(
        "DNS = 192.168.77.2, fd77::2, corp.example",
        "192.168.77.0/24",
    ));
    left.sh(&format!("PATH=/run/fake:$PATH {} up wg0", adit()));
    let said = left.sh("cat /run/fake/said");
    for part in [
        "-a ",
        "wg0",
        "nameserver 192.168.77.2",
        "nameserver fd77::2",
        "search corp.example",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    left.sh(&format!("PATH=/run/fake:$PATH {} down wg0", adit()));
    assert!(
        left.sh("cat /run/fake/said")
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("-d"))
    );
}

#[test]
fn sync_applies_a_changed_file_and_disturbs_no_other_peer() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let config = world.config("", "192.168.77.0/24, fd77::/64");
    world.write(&config);
    left.sh(&format!("{} up wg0", adit()));
    ping(left, "192.168.77.2", 1);
    let ticks = UdpTicker::start(
        left,
        &world.net.right,
        "192.168.77.2",
        std::time::Duration::from_millis(1),
    );
    ticks.advances(100);
    let new = Keys::new();
    world.write(&format!(
        "{config}\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.6.0.0/16\n",
        new.public
    ));
    left.sh(&format!("{} sync wg0", adit()));
    assert!(left.sh("wg show wg0 allowed-ips").contains("10.6.0.0/16"));
    world.write(&config);
    left.sh(&format!("{} sync wg0", adit()));
    let (sent, received) = ticks.stop();
    assert_eq!(received, sent, "datagrams across two reloads");
    // The file wg(8) accepts.
    let stripped = left.sh(&format!("{} strip wg0", adit()));
    assert!(
        !stripped.contains("Address") && stripped.contains("PrivateKey"),
        "{stripped}"
    );
    left.sh_with_input("wg syncconf wg0 /dev/stdin", &stripped);
}

#[test]
fn sync_applies_addresses_mtu_and_routes() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let small = world.config("MTU = 1400", "192.168.77.0/24, fd77::/64");
    world.write(&small);
    left.sh(&format!(
        "{} up wg0; ip route add 10.66.0.0/16 dev wg0",
        adit()
    ));
    ping(left, "192.168.77.2", 1);
    let at_first = state(left);
    let sync = || {
        let output = left.try_sh(&format!("{} sync wg0", adit()));
        assert!(output.ok(), "{}", output.stderr);
        output.stderr
    };
    let leads = |to: &str| {
        let route = left.sh(&format!("ip route get {to}"));
        route.contains("dev wg0")
    };
    let done = "adit: wg0 runs with what its file says: `adit show wg0` shows it\n";
    assert_eq!(sync(), done, "nothing to apply and nothing left");

    let more = "192.168.77.0/24, fd77::/64, 172.31.0.0/16, fd31::/64";
    world.write(&world.config("MTU = 1380\nAddress = 10.9.0.1/32, fd09::1/64", more));
    sync();
    assert!(left.sh("ip link show wg0").contains("mtu 1380 "));
    let addresses = left.sh("ip -br addr show wg0");
    for address in ["192.168.77.1/24", "10.9.0.1/32", "fd77::1/64", "fd09::1/64"] {
        assert!(addresses.contains(address), "{addresses}");
    }
    assert!(leads("172.31.0.1") && leads("fd31::1"));
    ping(left, "172.31.0.1", 1);
    left.sh("ip route del 172.31.0.0/16 dev wg0");
    sync();
    assert!(leads("172.31.0.1"), "a route that is missing");

    world.write(&small);
    sync();
    assert!(!leads("172.31.0.1") && !leads("fd31::1"));
    // The route that was added by hand is there, too.
    assert_eq!(state(left), at_first);

    // The same for another address of the same network.
    world.write(&small.replace("192.168.77.1/24", "192.168.77.9/24"));
    sync();
    let addresses = left.sh("ip -br addr show wg0");
    assert!(
        addresses.contains("192.168.77.9/24") && !addresses.contains("192.168.77.1/24"),
        "{addresses}"
    );
    assert!(leads("10.66.0.1") && leads("192.168.77.2"));
    left.sh(&format!("{} down wg0", adit()));
    comes_back(left, &before, "down");
}

#[test]
fn sync_makes_a_tunnel_full_and_back() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let split = world.config("", "192.168.77.0/24, fd77::/64");
    world.write(&split);
    left.sh(&format!("{} up wg0", adit()));
    ping(left, "192.168.77.2", 1);
    let at_first = state(left);
    for (interface, allowed, table, v6) in [
        ("", "0.0.0.0/0, ::/0", "51820", true),
        ("FwMark = off", "0.0.0.0/0, ::/0", "51820", true),
        ("FwMark = 77", "0.0.0.0/0, ::/0", "77", true),
        ("FwMark = 77", "0.0.0.0/0, fd77::/64", "77", false),
    ] {
        world.write(&world.config(interface, allowed));
        left.sh(&format!("{} sync wg0", adit()));
        ping(left, "172.31.0.1", 1);
        for (family, expected) in [(4, true), (6, v6)] {
            let rules = left.sh(&format!("ip -{family} rule"));
            let count = |part: &str| rules.matches(part).count();
            assert_eq!(
                count("suppress_prefixlength"),
                usize::from(expected),
                "{rules}"
            );
            assert_eq!(
                count("not from all fwmark"),
                usize::from(expected),
                "{rules}"
            );
            let lookup = format!("lookup {table}\n");
            assert_eq!(count(&lookup), usize::from(expected), "{rules}");
            let routes = left.try_sh(&format!("ip -{family} route show table {table}"));
            assert_eq!(routes.stdout.contains("unreachable"), expected);
        }
        let firewall = left.sh("nft list ruleset ip6");
        assert_eq!(firewall.contains("wg-quick-wg0"), v6, "{firewall}");
    }
    world.write(&split);
    left.sh(&format!("{} sync wg0", adit()));
    comes_back(left, &at_first, "sync");
    ping(left, "192.168.77.2", 1);
    left.sh(&format!("{} down wg0", adit()));
    comes_back(left, &before, "down");
}

#[test]
fn sync_says_what_it_leaves() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh("mkdir /run/fake; printf '#!/bin/sh\\ncat > /dev/null\\n' > /run/fake/resolvconf; chmod +x /run/fake/resolvconf");
    let run = |command: &str| {
        let output = left.try_sh(&format!("PATH=/run/fake:$PATH {} {command} wg0", adit()));
        assert!(output.ok(), "{}", output.stderr);
        output.stderr
    };
    let hooked = "PostUp = ip addr add 10.7.0.1/32 dev wg0";
    world.write(&world.config(hooked, "172.31.0.0/16"));
    run("up");
    for (interface, said) in [
        (hooked, "not applied again: hooks"),
        (hooked, "keeps the address 10.7.0.1/32"),
        ("DNS = 192.168.77.2", "not applied again: DNS"),
        ("Table = 1234", "its routes are in table 254"),
        ("Table = off", "its routes are in table 254"),
    ] {
        world.write(&world.config(interface, "172.31.0.0/16"));
        let lines = run("sync");
        assert!(lines.contains(said), "{said}: {lines}");
        assert!(left.sh("ip route get 172.31.0.1").contains("dev wg0"));
    }
    left.sh("wg set wg0 peer $(wg show wg0 peers) allowed-ips 172.31.0.0/16,0.0.0.0/0");
    world.write(&world.config("", "172.31.0.0/16, 0.0.0.0/0"));
    assert!(run("sync").contains("0.0.0.0/0 was among the allowed IPs without a route"));
    assert!(!left.sh("ip rule").contains("lookup 51820"));
    left.sh("ip link set wg0 mtu 1300");
    world.write(&world.config("", "172.31.0.0/16"));
    assert!(run("sync").contains("keeps its MTU of 1300"));
    left.sh("ip link set wg0 down; ip link set wg0 name other");
    assert!(run("sync").contains("another name"));
    run("down");
}

#[test]
fn endpoints_by_name_are_looked_up() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh("echo 'adit-test 51820/udp tunnel-test' > /run/services; mount --bind /run/services /etc/services");
    left.sh("cp /etc/hosts /run/hosts-of-test; echo '10.2.0.100 gateway.test' >> /run/hosts-of-test; mount --bind /run/hosts-of-test /etc/hosts");
    world.write(
        &world
            .config("", "192.168.77.0/24")
            .replace("10.2.0.100:51820", "gateway.test:tunnel-test"),
    );
    left.sh(&format!("{} up wg0", adit()));
    ping(left, "192.168.77.2", 1);
    assert!(
        left.sh("wg show wg0 endpoints")
            .contains("10.2.0.100:51820")
    );
}

#[test]
fn adit_show_tells_what_wg_show_tells_and_more() {
    if !only_adit() {
        return;
    }
    let net = SitePair::new();
    let tunnel = WgTunnel::new(
        &net,
        Setup {
            psk: true,
            keepalive: Some(25),
            ..Setup::default()
        },
    );
    tunnel.connect();
    let shown = net.left.sh(&format!("{} show wg0", adit()));
    for part in [
        "wg0",
        &tunnel.left.keys.public,
        &tunnel.right.keys.public,
        "10.0.0.2:51820",
        "192.168.77.2/32",
        "51820",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(
        !shown.contains(&tunnel.left.keys.private),
        "the private key is hidden"
    );
    assert!(
        !shown.contains(tunnel.psk.as_deref().expect("one was made")),
        "the preshared key is hidden"
    );
    let json = net.left.sh(&format!("{} show --json", adit()));
    assert!(!json.contains(&tunnel.left.keys.private));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["schema"], 1);
    let interface = &json["interfaces"][0];
    assert_eq!(interface["name"], "wg0");
    assert_eq!(interface["listen_port"], 51820);
    for key in [
        "aead",
        "offloads",
        "drops",
        "handshakes",
        "tx_udp_segmentation",
    ] {
        assert!(
            !interface["engine"][key].is_null() || key == "tx_udp_segmentation",
            "{key} in {interface}"
        );
    }
    assert_eq!(json["errors"], serde_json::json!([]));
}

#[test]
fn adit_show_tells_people_and_machines_what_it_could_not_ask() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    let _daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    host.sh(&format!("cp {} /run/adit-for-all", adit()));
    // Not root, and no capabilities: neither of wg0's sockets is for such.
    let anybody = "setpriv --reuid 65534 --regid 65534 --clear-groups /run/adit-for-all show";
    for (show, name) in [
        (format!("{} show nope", adit()), "nope"),
        (anybody.to_owned(), "wg0"),
    ] {
        let text = host.try_sh(&show);
        assert!(text.stderr.contains(name), "{}", text.stderr);
        assert_eq!((text.status.code(), text.stdout.as_str()), (Some(1), ""));
        let json = host.try_sh(&format!("{show} --json"));
        assert_eq!(json.status.code(), Some(1));
        assert!(json.stderr.contains(name), "{}", json.stderr);
        let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
        assert_eq!(json["interfaces"], serde_json::json!([]));
        assert_eq!(json["errors"][0]["interface"], name);
        let error = json["errors"][0]["error"].as_str().expect("a message");
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn a_file_may_be_a_pipe_as_for_wg_quick() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    host.sh("mkfifo -m 600 /run/wg0.conf");
    for program in ["wg-quick".to_owned(), adit()] {
        let stripped = host.sh(&format!(
            "printf '[Interface]\nListenPort = 9\nMTU = 1400\n' > /run/wg0.conf & \
             timeout 10 {program} strip /run/wg0.conf"
        ));
        assert_eq!(stripped.trim(), "[Interface]\nListenPort = 9", "{program}");
    }
}

#[test]
fn whoever_closes_the_pipe_has_seen_enough() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    host.sh("printf '[Interface]\n' > /etc/wireguard/wg0.conf");
    for command in ["man", "completions bash", "strip wg0", "show --json"] {
        // Nobody reads what is written once `true` has ended.
        let script = format!(
            "({{ sleep 0.3; {} {command}; echo $? >&2; }} | true)",
            adit()
        );
        let output = host.try_sh(&script);
        assert_eq!(output.stderr, "0\n", "{command}");
        let full = host.try_sh(&format!("{} {command} > /dev/full", adit()));
        assert!(!full.ok(), "{command}");
    }
}

#[test]
fn keys_are_those_that_wg_makes() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    let private = host.sh(&format!("{} genkey", adit()));
    assert_eq!(
        host.sh_with_input(&format!("{} pubkey", adit()), &private),
        host.sh_with_input("wg pubkey", &private)
    );
    assert_eq!(host.sh(&format!("{} genpsk", adit())).trim().len(), 44);
    let output = host.try_sh_with_input(&format!("{} pubkey", adit()), "not a key\n");
    assert!(!output.ok() && !output.stderr.is_empty());
}

#[test]
fn the_demo_prints_its_numbers_and_leaves_nothing_behind() {
    if !only_adit() {
        return;
    }
    let host = Container::new("anywhere");
    let before = state(&host);
    let json = host.sh(&format!("{} demo --json --seconds 1 2> /run/said", adit()));
    // What its own processes were told is no news.
    let said = host.sh("cat /run/said; rm /run/said");
    assert!(
        !said.contains("configuration changed") && !said.contains("adit: "),
        "{said}"
    );
    let json: serde_json::Value = serde_json::from_str(&json).expect("one JSON object");
    println!("{json}");
    assert_eq!((&json["schema"], &json["ok"]), (&1.into(), &true.into()));
    for (path, field) in [
        ("direct", "tcp_gbps"),
        ("direct", "rtt_us_p50"),
        ("direct", "rtt_us_p99"),
        ("tunnel", "tcp_gbps"),
        ("tunnel", "rtt_us_p50"),
        ("tunnel", "rtt_us_p99"),
        ("tunnel", "cpu_s_per_gb"),
    ] {
        assert!(
            json[path][field].as_f64().is_some_and(|n| n > 0.0),
            "{path}.{field}"
        );
    }
    assert!(json["aead"].is_string() && json["offloads"].is_object());
    wait_for("nothing is left behind", seconds(30), || {
        state(&host) == before
    });

    // Interrupted half way: it ends by itself and leaves nothing either.
    host.sh(&format!(
        "timeout -s INT 2 {} demo > /dev/null 2>&1 || true",
        adit()
    ));
    wait_for("nothing is left behind", seconds(30), || {
        state(&host) == before
    });

    // On a terminal of its own, whose end hangs up on everybody there.
    let terminal = format!(
        "mkdir -p /run/demo; (sleep 2; printf '\\003'; sleep 1) | \
         TMPDIR=/run/demo script -qec 'exec env --default-signal {} demo' /run/typescript > /dev/null 2>&1 || true",
        adit()
    );
    host.sh(&terminal);
    let shown = host.sh("cat /run/typescript; rm /run/typescript");
    assert!(
        shown.contains("TCP") && !shown.contains("AEAD"),
        "it was under way: {shown}"
    );
    wait_for("no socket is left behind", seconds(30), || {
        host.sh("ls -A /run/demo").is_empty()
    });
    host.sh("rmdir /run/demo");
    comes_back(&host, &before, "Ctrl-C");
}
