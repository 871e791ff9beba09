//! What fails while a tunnel comes up or goes down, and what comes of it.

use crate::harness::*;
use crate::quick::{World, adit, comes_back, kill_adit, only_adit, state};

/// A `resolvconf` that keeps what it is told in /run/dns.
const RESOLVCONF: &str = r#"mkdir -p /run/fake /run/dns
cat > /run/fake/resolvconf << 'END'
#!/bin/sh
case $1 in
  -a) cat > "/run/dns/$2" ;;
  -d) rm -f "/run/dns/$2" ;;
esac
END
chmod +x /run/fake/resolvconf"#;

/// All that `up` may leave: what [`state`] knows, and what is none of the network's.
fn everything(host: &Container) -> String {
    state(host)
        + &host.sh(
            "cat /proc/sys/net/ipv4/conf/*/src_valid_mark /proc/sys/net/ipv6/conf/*/disable_ipv6
             ls -A /run/dns /run/wireguard /run/adit /run/hooks 2> /dev/null; ss -xlnH | grep -c /run; true",
        )
}

#[track_caller]
fn is_as_before(host: &Container, before: &str, what: &str) {
    let start = std::time::Instant::now();
    while everything(host) != before && start.elapsed() < seconds(20) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(everything(host), before, "{what} leaves something behind");
}

/// The system calls of a process after it has started another one: each with how many of its name
/// came before.
fn later_calls(trace: &str) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    let mut calls = Vec::new();
    let mut started = false;
    for line in trace.lines() {
        let Some((name, _)) = line.split_once('(').filter(|(name, _)| !name.contains(' ')) else {
            continue;
        };
        let count = counts.entry(name).or_default();
        *count += 1;
        // A request to the process of which nothing was sent: its answer is waited for, for long.
        let is_request = name == "sendto" && line.contains(", \"");
        if started && !is_request {
            calls.push((name.to_owned(), *count));
        }
        started |= name.starts_with("clone") || name == "vfork";
    }
    calls
}

#[test]
fn an_up_that_is_refused_a_descriptor_or_a_process_leaves_what_it_found() {
    each_fails(
        &["socket", "connect", "openat", "pipe2", "clone3", "vfork"],
        20,
    );
}

#[test]
fn an_up_that_cannot_tell_something_leaves_what_it_found() {
    each_fails(&["sendto", "sendmsg", "write"], 20);
}

#[test]
fn an_up_that_gets_no_answer_leaves_what_it_found() {
    each_fails(&["recvfrom"], 20);
}

/// strace(1) has one system call of `up` after the other fail, of those with these names, from the start of
/// the interface's process on. At least so many end it.
fn each_fails(failing: &[&str], least: usize) {
    if !only_adit() {
        return;
    }
    let net = SitePair::new();
    let host = &net.left;
    let before = made_ready(host);
    let config = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/24, fd77::1/64\nDNS = 192.168.77.2\n# Forward = internet\n\
         PreUp = touch /run/hooks/pre\nPostUp = touch /run/hooks/post\n\
         PreDown = rm -f /run/hooks/post\nPostDown = rm -f /run/hooks/pre\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = 0.0.0.0/0, ::/0, 10.9.0.0/16\nEndpoint = gateway.test:51820\n",
        Keys::new().private,
        Keys::new().public
    );
    host.sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", &config);
    let names = "socket,connect,sendto,sendmsg,recvfrom,openat,write,pipe2,clone3,vfork";
    let up = |options: &str| {
        host.try_sh(&format!(
            "PATH=/run/fake:$PATH timeout 50 strace -qq {options} {} up wg0",
            adit()
        ))
    };
    // As wg-quick does, `down` leaves the sysctl, which others may need.
    let down = || {
        host.sh(&format!(
            "PATH=/run/fake:$PATH {} down wg0; echo 0 > /proc/sys/net/ipv4/conf/all/src_valid_mark",
            adit()
        ));
    };
    let output = up(&format!("-o /run/trace -e trace={names}"));
    assert!(output.ok(), "{}", output.stderr);
    assert!(host.path("/run/dns/wg0").exists() && host.path("/run/hooks/post").exists());
    let mut calls = later_calls(&host.sh("cat /run/trace; rm /run/trace"));
    down();
    is_as_before(host, &before, "`down`");
    assert!(calls.len() > 50, "{calls:?}");
    calls.retain(|(name, _)| failing.contains(&name.as_str()));
    let mut failed = 0;
    for (name, nth) in &calls {
        let what = format!("{name} number {nth}");
        let output = up(&format!(
            "-o /dev/null -e trace={name} -e inject={name}:error=EIO:when={nth}"
        ));
        assert_ne!(output.status.code(), Some(124), "{what} hangs");
        match output.ok() {
            true => down(),
            false => failed += 1,
        }
        is_as_before(host, &before, &format!("{what} ({})", output.stderr));
    }
    println!("{failed} of {} calls that failed ended `up`", calls.len());
    assert!(failed >= least, "{failed} of {}", calls.len());
}

/// Makes a host ready for the test; its state.
fn made_ready(host: &Container) -> String {
    host.sh(RESOLVCONF);
    host.sh(&format!(
        "set -e; echo 0 > /proc/sys/net/ipv4/conf/all/src_valid_mark; mkdir /run/hooks; echo '10.0.0.2 gateway.test' >> /etc/hosts
         ip route add default via 10.0.0.2; ip -6 route add default via fd00::2
         {} run wg0; ip link del wg0",
        adit()
    ));
    wait_for("the first process ends", seconds(20), || {
        processes(host).is_empty()
    });
    everything(host)
}

#[test]
fn a_failed_up_keeps_what_a_killed_full_tunnel_blocked() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    left.sh(&format!("{} up wg0", adit()));
    kill_adit(left);
    // The kernel chooses the places of rules.
    let state = || {
        left.sh(
            "for v in 4 6; do ip -$v rule | cut -f 2-; ip -$v route show table all | sort; done; nft list ruleset",
        )
    };
    let before = state();
    for allowed in ["0.0.0.0/0, ::/0", "192.168.77.0/24"] {
        world.write(&world.config("PostUp = false", allowed));
        assert!(!left.try_sh(&format!("{} up wg0", adit())).ok());
        wait_for(allowed, seconds(20), || state() == before);
        assert!(!left.try_sh("ip route get 172.31.0.1").ok());
    }
}

#[test]
fn down_goes_down_whatever_fails_and_says_it() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let bind = "mount --bind /etc/wireguard/wg0.conf /etc/wireguard/wg0.conf";
    for (lines, setup, said) in [
        (
            "PreDown = false\nPreDown = touch /run/second",
            "",
            "the hook `false` failed",
        ),
        (
            "PostDown = exit 3\nPostDown = touch /run/second",
            "",
            "the hook `exit 3` failed",
        ),
        (
            "SaveConfig = true\nPreDown = touch /run/second",
            &format!("{bind}; mount -o remount,bind,ro /etc/wireguard/wg0.conf"),
            "cannot write /etc/wireguard/wg0.conf",
        ),
        (
            "SaveConfig = true\nPostDown = touch /run/second",
            "mount -o remount,ro /etc/wireguard",
            "cannot write /etc/wireguard/wg0.conf",
        ),
    ] {
        world.write(&world.config(lines, "0.0.0.0/0, ::/0"));
        left.sh(&format!(
            "{} up wg0; wg set wg0 peer {} allowed-ips 10.6.0.0/16; {setup}",
            adit(),
            Keys::new().public
        ));
        let output = left.try_sh(&format!("{} down wg0", adit()));
        assert!(
            !output.ok() && output.stderr.contains(said),
            "{}",
            output.stderr
        );
        assert!(
            output.stderr.contains("wg0 is down all the same"),
            "{}",
            output.stderr
        );
        assert!(left.path("/run/second").exists(), "the other hooks run");
        left.sh("rm /run/second; umount /etc/wireguard/wg0.conf 2> /dev/null; mount -o remount,rw /etc/wireguard");
        comes_back(left, &before, lines);
    }
}

#[test]
fn a_file_that_is_mounted_is_saved_in_place_or_stays() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh(
        "mkdir -m 700 /run/small; mount -t tmpfs -o size=64k tmpfs /run/small
         touch /run/small/wg0.conf /etc/wireguard/wg0.conf
         mount --bind /run/small/wg0.conf /etc/wireguard/wg0.conf; mount -o remount,ro /etc/wireguard",
    );
    let config = world.config("SaveConfig = true", "192.168.77.0/24");
    let write = || left.sh_with_input("cat > /run/small/wg0.conf", &config);
    let new = Keys::new().public;
    write();
    left.sh(&format!(
        "{0} up wg0; wg set wg0 peer {new} allowed-ips 10.6.0.0/16; {0} down wg0",
        adit()
    ));
    let saved = left.sh("cat /run/small/wg0.conf");
    assert!(
        saved.contains(&new) && saved.contains("# The left side"),
        "{saved}"
    );

    // Where there is no room for it, the old one stays whole.
    write();
    left.sh(&format!(
        "{} up wg0; cat /dev/zero > /run/small/rest 2> /dev/null; true",
        adit()
    ));
    let more: String = (0..60)
        .map(|_| format!(" peer {} allowed-ips 10.6.0.0/16", Keys::new().public))
        .collect();
    left.sh(&format!("wg set wg0 {more}"));
    let output = left.try_sh(&format!("{} down wg0", adit()));
    assert!(output.stderr.contains("No space left"), "{}", output.stderr);
    assert_eq!(left.sh("cat /run/small/wg0.conf"), config);
    assert!(!left.has_interface("wg0"));
}

#[test]
fn a_name_that_leads_nowhere_stops_no_other_peer() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    let late = Keys::new().public;
    let config = world.config("", "192.168.77.0/24")
        + &format!(
            "[Peer]\nPublicKey = {late}\nAllowedIPs = 10.6.0.0/16\nEndpoint = late.test:51820\n"
        );
    world.write(&config);
    // Many would wait for minutes.
    let output = left.try_sh(&format!("timeout 40 {} up wg0", adit()));
    assert!(output.ok(), "{}", output.stderr);
    let said = "Warning: cannot look up endpoint `late.test:51820`";
    assert!(output.stderr.contains(said), "{}", output.stderr);
    ping(left, "192.168.77.2", 1);
    left.sh("echo '10.2.0.77 late.test' >> /etc/hosts");
    wait_for("the process looks it up again", seconds(90), || {
        left.sh("wg show wg0 endpoints").contains("10.2.0.77:51820")
    });
    left.sh(&format!("{} sync wg0", adit()));

    // A file that changes does not wait for a name either, and the peer stays where it is.
    left.sh("sed -i /late.test/d /etc/hosts");
    let output = left.try_sh(&format!("timeout 40 {} sync wg0", adit()));
    assert!(
        output.ok() && output.stderr.contains(said),
        "{}",
        output.stderr
    );
    assert!(left.sh("wg show wg0 endpoints").contains("10.2.0.77:51820"));
    left.sh(&format!("{} down wg0", adit()));
    comes_back(left, &before, "down");

    // Without it nothing could work: it fails.
    world.write(&config.replace("Endpoint = 10.2.0.100", "Endpoint = none.test"));
    let up = format!(
        "WG_ENDPOINT_RESOLUTION_RETRIES=0 timeout 40 {} up wg0",
        adit()
    );
    let output = left.try_sh(&up);
    assert!(!output.ok(), "{}", output.stderr);
    for name in ["late.test", "none.test"] {
        let said = format!("cannot look up endpoint `{name}:51820`");
        assert!(output.stderr.contains(&said), "{}", output.stderr);
    }
    comes_back(left, &before, "a failed `up`");
}

#[test]
fn where_ipv6_is_disabled_the_rest_comes_up() {
    if !only_adit() {
        return;
    }
    let sysctl = |place: &str| format!("net.ipv6.conf.{place}.disable_ipv6");
    for (places, named) in [(vec!["all"], "all"), (vec!["default"], "default")] {
        let world = World::new();
        let left = world.left();
        let set = |value: u8| {
            for place in &places {
                left.sh(&format!("sysctl -qw {}={value}", sysctl(place)));
            }
        };
        set(1);
        let before = state(left);
        for allowed in ["0.0.0.0/0, ::/0", "172.31.0.0/16, fd31::/64"] {
            world.write(&world.config("", allowed));
            let output = left.try_sh(&format!("{} up wg0", adit()));
            assert!(output.ok(), "{}", output.stderr);
            let said = format!(
                "without fd77::1/64 and without routes to {}",
                &allowed[allowed.find(", ").expect("two") + 2..]
            );
            assert!(output.stderr.contains(&said), "{said}: {}", output.stderr);
            assert!(output.stderr.contains(&sysctl(named)), "{}", output.stderr);
            ping(left, "172.31.0.1", 1);
            // Other interfaces may have IPv6: nothing leaves by them in clear.
            if allowed.contains("::/0") {
                let route = left.try_sh("ip -6 route get fd31::1");
                assert!(!route.ok(), "{}", route.stdout);
            }
            left.sh(&format!("{} sync wg0", adit()));
            left.sh(&format!("{} down wg0", adit()));
            comes_back(left, &before, allowed);
        }
        // Where the file has nothing else, it says so.
        let config = world.config("", "::/0").replace("192.168.77.1/24, ", "");
        world.write(&config);
        let output = left.try_sh(&format!("{} up wg0", adit()));
        assert!(
            !output.ok() && output.stderr.contains(&sysctl(named)),
            "{}",
            output.stderr
        );
        comes_back(left, &before, "an `up` that fails");
        set(0);
        left.sh(&format!("{} up wg0", adit()));
    }
}

#[test]
fn what_collides_is_named_with_what_to_do() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    for (there, interface, allowed, parts) in [
        (
            "route add 10.66.0.0/16 via 10.1.0.1 dev eth0",
            "",
            "10.66.0.0/16",
            vec![
                "10.66.0.0/16 into wg0",
                "via 10.1.0.1 dev eth0",
                "ip route del",
                "Table = off",
            ],
        ),
        (
            "-6 route add fd66::/64 dev eth0",
            "Table = 1234",
            "172.31.0.0/16",
            vec![],
        ),
        (
            "route add blackhole 10.66.0.0/16 table 1234",
            "Table = 1234",
            "10.66.0.0/16",
            vec![
                "10.66.0.0/16 table 1234",
                "ip route del 10.66.0.0/16 table 1234",
            ],
        ),
        (
            "route add default dev eth0 table 77",
            "FwMark = 77",
            "0.0.0.0/0",
            vec!["dev eth0 table 77", "another FwMark"],
        ),
    ] {
        world.write(&world.config(interface, allowed));
        left.sh(&format!("ip {there}"));
        let output = left.try_sh(&format!("{} up wg0", adit()));
        assert_eq!(output.ok(), parts.is_empty(), "{there}: {}", output.stderr);
        for part in parts {
            assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
        }
        left.try_sh(&format!("{} down wg0", adit()));
        left.sh(&format!("ip {}", there.replace(" add ", " del ")));
        comes_back(left, &before, there);
    }
    // An address twice does no harm.
    for (twice, other) in [
        ("192.168.77.1/24", "192.168.77.1/24"),
        ("fd77::1/128", "fd77::1/64"),
    ] {
        world.write(&world.config(&format!("Address = {twice}"), "192.168.77.0/24"));
        let said = format!("Address = {twice} and Address = {other} are the same address");
        let output = left.try_sh(&format!("{0} up wg0; {0} check wg0", adit()));
        assert!(output.ok(), "{}", output.stderr);
        assert!(output.stderr.contains(&said), "{said}: {}", output.stderr);
        assert!(output.stdout.contains(&said), "{said}: {}", output.stdout);
        ping(left, "192.168.77.2", 1);
        left.sh(&format!("{} down wg0", adit()));
    }
    // One of a hook, too.
    world.write(&world.config(
        "PreUp = ip addr add 192.168.77.1/24 dev %i\nTable = Off",
        "192.168.77.0/24",
    ));
    left.sh(&format!("{0} up wg0", adit()));
    ping(left, "192.168.77.2", 1);
}

/// As wg-quick(8) has it, `PostUp = wg set %i private-key …`, in some of its forms.
#[test]
fn a_key_that_a_hook_sets_is_used_and_stays_out_of_the_file() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh_with_input(
        "umask 077; cat > /run/wg0.key; printf '#!/bin/sh\\ncat /run/wg0.key\\n' > /run/pass; chmod 700 /run/pass",
        world.private_key_of_left(),
    );
    let before = state(left);
    for hook in [
        "PostUp = wg set %i private-key /run/%i.key",
        "PostUp = wg set %i private-key <(cat /run/%i.key)",
        "PreUp = wg set %i private-key <(/run/pass WireGuard/private-keys/%i)",
        "PostUp = /run/pass | wg set %i private-key /dev/stdin",
    ] {
        let config = world.config(
            &format!("SaveConfig = true\nListenPort = 4444\n{hook}"),
            "192.168.77.0/24",
        );
        let key = format!("PrivateKey = {}\n", world.private_key_of_left());
        world.write(&config.replace(&key, ""));
        let check = left.sh(&format!("{} check wg0", adit()));
        assert!(!check.contains("PrivateKey"), "{check}");
        let early = left.try_sh(&format!(
            "{} new-peer wg0 --endpoint 10.1.0.100:4444",
            adit()
        ));
        assert!(
            !early.ok() && early.stderr.contains("run `adit up wg0` before"),
            "{}",
            early.stderr
        );
        let up = left.try_sh(&format!("{} up wg0", adit()));
        assert!(up.ok() && !up.stderr.contains("Warning"), "{}", up.stderr);
        ping(left, "192.168.77.2", 1);
        left.sh(&format!("{} sync wg0", adit()));
        ping(left, "192.168.77.2", 1);
        let file = left.sh(&format!(
            "{} new-peer wg0 --endpoint 10.1.0.100:4444",
            adit()
        ));
        assert!(file.contains(&left.sh("wg show wg0 public-key")), "{file}");
        left.sh(&format!("{} down wg0", adit()));
        let saved = left.sh("cat /etc/wireguard/wg0.conf");
        assert!(!saved.contains("PrivateKey"), "{saved}");
        comes_back(left, &before, hook);
    }
}

/// A default route in parts, as many providers write it.
#[test]
fn a_full_tunnel_in_parts_is_blocked_after_a_kill() {
    if !only_adit() {
        return;
    }
    let halves = "0.0.0.0/1, 128.0.0.0/1, ::/1, 8000::/1";
    let quarters = "0.0.0.0/2, 64.0.0.0/2, 128.0.0.0/1, 172.31.0.0/16, ::/2, 4000::/2, 8000::/1";
    for allowed in [halves, quarters] {
        let world = World::new();
        let left = world.left();
        let before = state(left);
        world.write(&world.config("", allowed));
        let output = left.try_sh(&format!("{} up wg0", adit()));
        assert!(output.ok(), "{}", output.stderr);
        assert!(!output.stderr.contains("in clear"), "{}", output.stderr);
        // The endpoint is inside, and the tunnel's own datagrams go around it.
        ping(left, "172.31.0.1", 1);
        ping(left, "fd31::1", 1);
        left.sh(&format!("{} sync wg0", adit()));
        ping(left, "172.31.0.1", 1);
        kill_adit(left);
        for to in ["172.31.0.1", "fd31::1"] {
            let route = left.try_sh(&format!("ip route get {to}"));
            assert!(!route.ok(), "{allowed}: {}", route.stdout);
        }
        left.sh(&format!("{0} up wg0", adit()));
        ping(left, "172.31.0.1", 1);
        left.sh(&format!("{0} down wg0", adit()));
        comes_back(left, &before, "down");
    }
}

#[test]
fn a_full_tunnel_that_would_leak_is_told_of() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let all_but_lan = "0.0.0.0/5, 8.0.0.0/7, 11.0.0.0/8, 12.0.0.0/6, 16.0.0.0/4, 32.0.0.0/3, 64.0.0.0/2, 128.0.0.0/2";
    for (interface, allowed, told) in [
        ("Table = 1234", "0.0.0.0/0, ::/0", true),
        ("Table = 1234", "0.0.0.0/1, 128.0.0.0/1", true),
        ("", all_but_lan, true),
        ("", "2000::/3", true),
        ("Table = off", "0.0.0.0/0", false),
        ("", "0.0.0.0/0", false),
        ("Table = 1234", "172.31.0.0/16", false),
    ] {
        // Without the link's IPv6 network, which lies inside some.
        world.write(&world.config(interface, allowed));
        let output = left.try_sh(&format!("{0} check wg0; {0} up wg0; {0} down wg0", adit()));
        assert!(output.ok(), "{}", output.stderr);
        for (who, said) in [("check", &output.stdout), ("up", &output.stderr)] {
            let lines = said
                .lines()
                .filter(|line| line.contains("in clear"))
                .count();
            assert_eq!(
                lines,
                usize::from(told),
                "{who}, {interface} {allowed}: {said}"
            );
        }
    }
}

#[test]
fn a_guessed_word_makes_no_interface_unless_wg_quick_says_it() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    for word in ["status", "list", "start", "setup", "logs", "help-me"] {
        let output = host.try_sh(&format!("{} {word}", adit()));
        assert!(!output.ok(), "{word}");
        let said = format!("there is no command {word}; perhaps `adit ");
        assert!(output.stderr.contains(&said), "{}", output.stderr);
        assert!(!host.has_interface(word), "{word}");
    }
    host.sh_with_input(
        "mkdir -m 700 /run/files; cat > /run/files/status.conf",
        &format!("[Interface]\nPrivateKey = {}\n", Keys::new().private),
    );
    let terminal = |command: &str| {
        host.sh(&format!(
            "script -qec '{command}' /run/typescript > /dev/null; cat /run/typescript"
        ))
    };
    let variable = format!("WG_QUICK_USERSPACE_IMPLEMENTATION={}", adit());
    let shown = terminal(&format!("{variable} wg-quick up /run/files/status.conf"));
    assert!(host.has_interface("status"), "{shown}");
    assert!(!shown.contains("made the interface"), "{shown}");
    host.sh(&format!("{variable} wg-quick down /run/files/status.conf"));

    // A person hears what was made; a program nothing.
    let shown = terminal(&format!("{} home", adit()));
    assert!(shown.contains("made the interface home"), "{shown}");
    assert!(host.has_interface("home"));
    assert_eq!(host.try_sh(&format!("{} office", adit())).stderr, "");
    host.sh("ip link del home; ip link del office");
}

#[test]
fn a_host_of_the_tests_has_programs_and_files_of_its_own() {
    let host = Container::new("host");
    for program in ["resolvconf", "resolvectl", "iptables", "sudo"] {
        let found = host.try_sh(&format!("command -v {program}"));
        assert!(!found.ok(), "{}", found.stdout);
    }
    assert_eq!(host.sh("cat /etc/resolv.conf"), "nameserver 127.0.0.1\n");
    host.sh("echo own > /etc/hosts");
    assert_ne!(
        std::fs::read_to_string("/etc/hosts").unwrap_or_default(),
        "own\n"
    );
}
