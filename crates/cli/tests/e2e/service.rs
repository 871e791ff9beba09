//! A supervised tunnel: `adit up --foreground`, as PID 1, and the unit for systemd.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Stdio;

use crate::agent::Hub;
use crate::harness::*;
use crate::quick::{World, adit, comes_back, only_adit, state};

const HOOKS: &str = "PostUp = echo post-up >> /run/hooks\nPreDown = echo pre-down >> /run/hooks\n\
                     PostDown = echo post-down >> /run/hooks";

/// Starts `adit up --foreground wg0` with a log in /run/log, and waits for the word that it gives a
/// service manager.
#[track_caller]
fn stay(host: &Container) -> Daemon {
    let listener = host.within(|| {
        let address = SocketAddr::from_abstract_name("manager").expect("an address");
        UnixDatagram::bind_addr(&address).expect("a socket")
    });
    listener
        .set_read_timeout(Some(seconds(30)))
        .expect("a timeout");
    let daemon = launch(
        host,
        "PATH=/run/fake:$PATH NOTIFY_SOCKET=@manager exec \"$0\" up --foreground wg0",
    );
    let mut said = String::new();
    while !said.contains("READY=1") {
        let mut buffer = [0; 1024];
        let length = listener.recv(&mut buffer).expect("readiness");
        said = String::from_utf8_lossy(&buffer[..length]).into_owned();
    }
    assert!(said.contains("STATUS=wg0 is up"), "{said}");
    daemon
}

/// Runs a script of the shell, which has the program as $0.
fn launch(host: &Container, script: &str) -> Daemon {
    let mut command = host.command("sh");
    command
        .args(["-c", &format!("exec 2> /run/log; {script}"), &adit()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn().expect("nsenter starts");
    Daemon::adopt(host, Program::Adit, "wg0", child)
}

/// The process of the interface, in the host's numbers.
#[track_caller]
fn process(host: &Container) -> String {
    host.sh("pgrep -f 'adit run .* wg0$'").trim().to_owned()
}

fn log(host: &Container) -> String {
    host.sh("cat /run/log")
}

#[test]
fn up_in_the_foreground_is_ready_when_the_tunnel_works() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    for signal in ["TERM", "INT"] {
        world.write(&world.config(HOOKS, "0.0.0.0/0, ::/0"));
        let mut up = stay(left);
        assert_eq!(left.sh("cat /run/hooks"), "post-up\n");
        ping(left, "172.31.0.1", 1);
        // The signals of `up` interrupt nothing any more.
        up.signal(signal);
        let status = up.wait();
        assert!(status.success(), "{status}: {}", log(left));
        assert_eq!(left.sh("cat /run/hooks"), "post-up\npre-down\npost-down\n");
        left.sh("rm /run/hooks /run/log");
        comes_back(left, &before, signal);
    }
}

#[test]
fn up_in_the_foreground_ends_with_the_process_and_says_why() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    left.sh(
        "mkdir /run/fake; printf '#!/bin/sh\\necho $1 >> /run/dns\\n' > /run/fake/resolvconf; chmod +x /run/fake/*
         echo 10.2.0.100 right.test > /run/hosts; mount --bind /run/hosts /etc/hosts",
    );
    let before = state(left);
    for (allowed, full) in [("192.168.77.0/24", false), ("0.0.0.0/0, ::/0", true)] {
        let config = world.config(&format!("{HOOKS}\nDNS = 192.168.77.2"), allowed);
        world.write(&config.replace("10.2.0.100:", "right.test:"));
        let mut up = stay(left);
        left.sh(&format!("kill -KILL {}", process(left)));
        assert_eq!(up.wait().code(), Some(1));
        let said = log(left);
        let why = "wg0 is down: its process was killed by signal 9";
        assert!(said.contains(why), "{said}");
        assert_eq!(said.contains("leaving in clear"), full, "{said}");
        assert_eq!(left.sh("cat /run/hooks"), "post-up\npre-down\npost-down\n");
        assert_eq!(
            left.sh("ls /run/wireguard /run/adit")
                .matches("wg0.sock")
                .count(),
            0
        );
        let surroundings = left.sh("ip rule; ip -6 rule; nft list ruleset");
        for part in ["lookup 51820", "wg-quick-wg0"] {
            assert_eq!(
                surroundings.contains(part),
                full,
                "{part} in {surroundings}"
            );
        }
        // The resolver of a full tunnel is not to ask anybody else meanwhile.
        let dns = left.sh("cat /run/dns; rm /run/hooks /run/log /run/dns");
        assert_eq!(dns, if full { "-a\n" } else { "-a\n-d\n" });
        if full {
            // The next one takes over.
            let mut up = stay(left);
            ping(left, "172.31.0.1", 1);
            up.signal("TERM");
            assert!(up.wait().success());
            left.sh("rm /run/hooks /run/log /run/dns");
        }
        comes_back(left, &before, allowed);
    }
}

#[test]
fn up_in_the_foreground_ends_well_when_somebody_takes_it_down() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    for how in ["\"$0\" down wg0", "ip link delete wg0"] {
        world.write(&world.config(HOOKS, "0.0.0.0/0, ::/0"));
        let mut up = stay(left);
        left.sh(&how.replace("\"$0\"", &adit()));
        let status = up.wait();
        assert!(status.success(), "{how}: {status}: {}", log(left));
        // They do not run twice.
        let hooks = left.sh("cat /run/hooks");
        assert!(hooks.matches("post-down").count() <= 1, "{how}: {hooks}");
        left.sh("rm /run/hooks /run/log");
        comes_back(left, &before, how);
    }
}

#[test]
fn up_in_the_foreground_leaves_no_process_that_hangs() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    let mut up = stay(left);
    left.sh(&format!("kill -STOP {}", process(left)));
    up.signal("TERM");
    assert!(up.wait().success(), "{}", log(left));
    left.sh("rm /run/log");
    comes_back(left, &before, "the end");
}

/// What the tunnel can do without it is little, and who started it starts it again.
#[test]
fn up_in_the_foreground_ends_with_the_process_that_has_the_rights() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    world.write(&world.config("", "192.168.77.0/24"));
    let mut up = stay(left);
    left.sh("pkill -KILL -x adit-helper");
    assert_eq!(up.wait().code(), Some(1));
    let said = log(left);
    assert!(
        said.contains("the process that has the rights has ended"),
        "{said}"
    );
    left.sh("rm /run/log");
    comes_back(left, &before, "the end");
}

/// It lives as long as the tunnel, and reads the configuration again and again.
#[test]
fn what_watches_over_a_tunnel_has_no_keys_in_its_memory() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let config = world.config("", "192.168.77.0/24");
    let config = config.replace(
        "[Peer]\n",
        &format!("[Peer]\nPresharedKey = {}\n", Keys::new().private),
    );
    world.write(&config);
    let secrets: Vec<String> = (config.lines())
        .filter(|line| line.starts_with("PrivateKey") || line.starts_with("PresharedKey"))
        .map(|line| line.split_once(" = ").expect("a key").1.to_owned())
        .collect();
    assert_eq!(secrets.len(), 2, "{config}");
    let up = stay(left);
    up.signal("HUP");
    wait_for("it was read again", seconds(20), || {
        log(left).contains("applied")
    });
    let pid = left.sh("pgrep -f 'adit up --foreground wg0$'");
    let search = r#"
        use MIME::Base64; my ($pid, @keys) = @ARGV;
        open my $maps, "<", "/proc/$pid/maps" or die; open my $mem, "<:raw", "/proc/$pid/mem" or die;
        while (<$maps>) {
            my ($from, $to) = /^(\w+)-(\w+) rw/ or next;
            sysseek $mem, hex $from, 0; sysread($mem, my $bytes, hex($to) - hex $from) or next;
            for (@keys) { print "$_ " if index($bytes, $_) >= 0 || index($bytes, decode_base64($_)) >= 0 }
        }"#;
    let mut perl = left.command("perl");
    let found = perl
        .args(["-e", search, pid.trim()])
        .args(&secrets)
        .output();
    let found = found.expect("perl");
    assert!(found.status.success(), "{found:?}");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn a_tunnel_ends_with_who_stays_with_it() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "192.168.77.0/24"));
    let mut up = stay(left);
    up.signal("KILL");
    up.wait();
    wait_for("the interface goes", seconds(20), || {
        !left.has_interface("wg0")
    });
}

#[test]
fn a_hang_up_applies_the_changed_file() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "192.168.77.0/24"));
    let mut up = stay(left);
    for (config, said) in [
        (world.config("Colour = blue", "192.168.77.0/24"), "Colour"),
        (world.config("", "192.168.77.0/24, 10.66.0.0/16"), "applied"),
    ] {
        world.write(&config);
        up.signal("HUP");
        wait_for(said, seconds(20), || log(left).contains(said));
    }
    assert!(left.sh("wg show wg0 allowed-ips").contains("10.66.0.0/16"));
    ping(left, "192.168.77.2", 1);
    up.signal("TERM");
    assert!(up.wait().success());
}

#[test]
fn an_up_that_is_asked_to_end_before_it_is_done_ends_well() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    world.write(&world.config("PreUp = kill -TERM $PPID", "0.0.0.0/0"));
    let mut up = launch(left, "exec \"$0\" up -f wg0");
    let status = up.wait();
    assert!(status.success(), "{status}: {}", log(left));
    left.sh("rm /run/log");
    comes_back(left, &before, "the end");
}

/// As in a container whose only process it is.
#[test]
fn up_as_pid_1_stays_and_buries_what_hooks_leave() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let before = state(left);
    // The shell in between ends: its child is now PID 1's.
    world.write(&world.config(
        "PostUp = sh -c 'sleep 0.1 & sleep 0.2 & echo up > /run/up'",
        "0.0.0.0/0, ::/0",
    ));
    let mut up = launch(
        left,
        "exec unshare -p -f --kill-child --mount-proc \"$0\" up wg0",
    );
    wait_for("it is up", seconds(20), || left.path("/run/up").exists());
    ping(left, "172.31.0.1", 1);
    let children =
        |state: &str| left.sh(&format!("ps -e -o stat=,args= | grep '^{state}' || true"));
    wait_for("what hooks left is buried", seconds(20), || {
        !children("[SZ]").contains("sleep") && !children("Z").contains("<defunct>")
    });
    let first = left.sh("pgrep -f 'adit up wg0$' | tail -n 1");
    left.sh(&format!("kill -TERM {}", first.trim()));
    let status = up.wait();
    assert!(status.success(), "{status}: {}", log(left));
    left.sh("rm /run/log /run/up");
    comes_back(left, &before, "the end");
}

#[test]
fn up_needs_the_capability_and_not_root() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    // Where that user may go.
    left.sh(&format!(
        "set -e; mkdir -m 755 /run/bin; cp {} /run/bin; chmod 755 /run/bin/*; mknod /run/tun c 10 200
         chmod 666 /run/tun; mount --bind /run/tun /dev/net/tun; mkdir /run/wireguard /run/adit
         chown -R 65534 /run/wireguard /run/adit /etc/wireguard",
        adit()
    ));
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps -all,+net_admin \
                --ambient-caps -all,+net_admin /run/bin/adit";
    let output = left.try_sh(&format!("{user} up wg0"));
    assert!(output.ok(), "{}", output.stderr);
    ping(left, "172.31.0.1", 1);
    left.sh(&format!("{user} down wg0"));
    assert!(!left.has_interface("wg0"));

    let without = format!("setpriv --bounding-set -net_admin {} up wg0", adit());
    let output = left.try_sh(&without);
    assert!(
        !output.ok() && output.stderr.contains("--cap-add NET_ADMIN"),
        "{}",
        output.stderr
    );
}

#[test]
fn a_container_without_a_right_is_told_the_option_for_it() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "0.0.0.0/0"));
    left.sh("echo 0 > /proc/sys/net/ipv4/conf/all/src_valid_mark
         mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys");
    let output = left.try_sh(&format!("{} up wg0", adit()));
    let option = "`--sysctl net.ipv4.conf.all.src_valid_mark=1`";
    assert!(
        !output.ok() && output.stderr.contains(option),
        "{}",
        output.stderr
    );
    assert!(!left.has_interface("wg0"));
}

#[test]
fn an_interface_in_another_namespace_is_told_of_as_such() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    world.write(&world.config("", "192.168.77.0/24"));
    left.sh(&format!("unshare -n {} wg0", adit()));
    let output = left.try_sh(&format!("{} up wg0", adit()));
    assert!(
        !output.ok() && output.stderr.contains("in another network namespace"),
        "{}",
        output.stderr
    );
    // The advice in the message works.
    left.sh(&format!(
        "nsenter -t {} -n {adit} down wg0; {adit} up wg0",
        process(left),
        adit = adit()
    ));
    ping(left, "192.168.77.2", 1);
}

#[test]
fn the_unit_is_ready_when_it_works_comes_back_and_says_why() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let Some(systemd) = Systemd::boot(left) else {
        return;
    };
    let unit = "adit@wg0.service";
    let packaged = include_str!("../../../../packaging/adit@.service");
    systemd.install("adit@.service", packaged);
    systemd.install("adit-blocked@.service", BLOCKED);
    // It takes what it finds for its own: its file must be for everybody to read.
    systemd.sh(
        "printf '#!/bin/sh\\ncat > /run/resolv.$1\\n' > /usr/local/bin/resolvconf; chmod 755 /usr/local/bin/resolvconf",
    );
    let before = state(left);
    let config = |allowed: &str| {
        let hook = "PostUp = while [ ! -e /run/go ]; do sleep 0.05; done\nDNS = 192.168.77.2";
        world.config(&format!("{hook}\n{HOOKS}"), allowed)
    };
    let is = |state: &str| systemd.property(unit, "ActiveState") == state;

    world.write(&config("0.0.0.0/0, ::/0"));
    systemd.sh(&format!("systemctl start --no-block {unit}"));
    wait_for("the hook waits", seconds(30), || left.has_interface("wg0"));
    assert!(is("activating"));
    systemd.sh("touch /run/go");
    wait_for("it is ready", seconds(30), || is("active"));
    ping(left, "172.31.0.1", 1);
    assert_eq!(systemd.property(unit, "StatusText"), "wg0 is up");
    assert_eq!(systemd.sh("stat -c %a /run/resolv.-a").trim(), "644");

    // The process dies: the tunnel is back.
    systemd.sh("kill -KILL $(pgrep -f 'adit run .* wg0$')");
    wait_for("it is started again", seconds(30), || {
        systemd.property(unit, "NRestarts") == "1" && is("active")
    });
    ping(left, "172.31.0.1", 1);
    let journal = systemd.journal(unit);
    let why = "wg0 is down: its process was killed by signal 9";
    assert!(journal.contains(why), "{journal}");

    // The process that stays with the tunnel dies: the same.
    systemd.sh(&format!(
        "kill -KILL $(systemctl show --value -p MainPID {unit})"
    ));
    wait_for("it is started again", seconds(30), || {
        systemd.property(unit, "NRestarts") == "2" && is("active")
    });
    ping(left, "172.31.0.1", 1);

    world.write(&config("192.168.77.0/24, 0.0.0.0/0, ::/0"));
    systemd.sh(&format!("systemctl reload {unit}"));
    assert!(
        systemd
            .sh("wg show wg0 allowed-ips")
            .contains("192.168.77.0/24")
    );

    systemd.sh(&format!("systemctl stop {unit}"));
    assert!(is("inactive"));
    let hooks = systemd.sh("cat /run/hooks");
    assert!(hooks.ends_with("pre-down\npost-down\n"), "{hooks}");
    comes_back(left, &before, "systemctl stop");
    assert_eq!(
        systemd
            .sh("ls -A /run/wireguard /run/adit")
            .matches("wg0")
            .count(),
        0
    );

    // `adit down` by hand is meant to last: systemd does not start the tunnel again.
    systemd.sh(&format!("systemctl start {unit}; adit down wg0"));
    wait_for("the unit ends", seconds(30), || is("inactive"));
    assert_eq!(systemd.property(unit, "Result"), "success");
    comes_back(left, &before, "adit down");
}

/// The unit that goes with it.
const BLOCKED: &str = include_str!("../../../../packaging/adit-blocked@.service");

/// The unit as it is packaged, with shorter times.
fn packaged(world: &World) -> Option<Systemd> {
    let systemd = Systemd::boot(world.left())?;
    systemd.install(
        "adit@wg0.service.d/test.conf",
        "[Service]\nWatchdogSec=2\nTimeoutAbortSec=2\n",
    );
    let unit = include_str!("../../../../packaging/adit@.service");
    systemd.install("adit@.service", unit);
    systemd.install("adit-blocked@.service", BLOCKED);
    Some(systemd)
}

#[test]
fn the_watchdog_starts_a_tunnel_again_that_hangs() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let Some(systemd) = packaged(&world) else {
        return;
    };
    let unit = "adit@wg0.service";
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    systemd.sh(&format!("systemctl start {unit}"));
    ping(world.left(), "172.31.0.1", 1);
    // It outlives the watchdog's time while it works.
    std::thread::sleep(seconds(5));
    assert_eq!(systemd.property(unit, "NRestarts"), "0");
    systemd.sh("kill -STOP $(pgrep -f 'adit run .* wg0$')");
    wait_for("it is started again", seconds(60), || {
        systemd.property(unit, "NRestarts") == "1"
            && systemd.property(unit, "ActiveState") == "active"
    });
    ping(world.left(), "172.31.0.1", 1);
    let journal = systemd.journal(unit);
    assert!(journal.contains("Watchdog timeout"), "{journal}");
}

#[test]
fn a_stop_unblocks_a_tunnel_that_waits_or_could_not_come_back() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let Some(systemd) = packaged(&world) else {
        return;
    };
    let unit = "adit@wg0.service";
    let before = state(left);
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    for (setting, waits) in [("RestartSec=600", "activating"), ("Restart=no", "failed")] {
        systemd.install(
            "adit@wg0.service.d/wait.conf",
            &format!("[Service]\n{setting}\n"),
        );
        systemd.sh(&format!("systemctl start {unit}"));
        ping(left, "172.31.0.1", 1);
        systemd.sh("kill -KILL $(pgrep -f 'adit run .* wg0$')");
        wait_for("it waits", seconds(30), || {
            systemd.property(unit, "ActiveState") == waits
        });
        let blocked = left.sh("ip rule; nft list ruleset");
        assert!(blocked.contains("wg-quick-wg0"), "{setting}: {blocked}");
        systemd.sh(&format!("systemctl stop {unit}; systemctl reset-failed"));
        comes_back(left, &before, setting);
    }
}

#[test]
fn the_unit_has_the_resolver_become_nobody() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let Some(systemd) = packaged(&world) else {
        return;
    };
    world.write(&world.config("", "192.168.77.0/24"));
    systemd.sh("systemctl start adit@wg0");
    let status = "cat /proc/$(pgrep -n -x adit-resolver)/status";
    wait_for("it runs", seconds(20), || systemd.try_sh(status).ok());
    let status = systemd.sh(status);
    for line in [
        "Uid:\t65534\t65534\t65534\t65534",
        "Gid:\t65534\t65534\t65534\t65534",
        "CapPrm:\t0000000000000000",
    ] {
        assert!(status.contains(line), "{status}");
    }
}

#[test]
fn the_unit_has_the_rights_for_the_bpf_programs() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let Some(systemd) = packaged(&world) else {
        return;
    };
    // The descriptors of maps and links.
    let objects = |name: &str| {
        let objects = systemd.sh(&format!(
            "cat /proc/$(pgrep -f 'adit run .* {name}$')/fdinfo/* | grep -cE '^(map_type|link_type)' || true"
        ));
        objects.trim().parse::<u32>().expect("a number")
    };
    world.write(&world.config("", "0.0.0.0/0, ::/0"));
    systemd.sh("cp /etc/wireguard/wg0.conf /run/other.conf; adit up /run/other.conf");
    let without_sandbox = objects("other");
    systemd.sh("adit down /run/other.conf; systemctl start adit@wg0");
    assert!(without_sandbox > 0);
    assert_eq!(objects("wg0"), without_sandbox);
}

#[test]
fn the_unit_has_the_rights_for_the_sandbox_of_adit() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let Some(systemd) = packaged(&world) else {
        return;
    };
    world.write(&world.config("", "192.168.77.0/24"));
    systemd.sh("systemctl start adit@wg0");
    let shown = systemd.sh("adit show wg0");
    // Where systemd itself may not raise the limit, no memory is locked.
    let parts = shown
        .replace(" (off: locked memory)", "")
        .replace(", locked memory", "");
    let others = "sandbox: capabilities, files, no dumps, system calls\n";
    assert!(parts.contains(others), "{shown}");
}

#[test]
fn the_unit_has_the_rights_for_low_ports_and_files_of_others() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let Some(systemd) = packaged(&world) else {
        return;
    };
    world.write(&world.config("ListenPort = 500", "192.168.77.0/24"));
    systemd.sh("chown 65534 /etc/wireguard/wg0.conf; systemctl start adit@wg0");
    let port = systemd.sh("adit show wg0 listen-port");
    assert_eq!(port.trim(), "500");
}

#[test]
fn the_unit_takes_keys_from_a_credential() {
    if !only_adit() {
        return;
    }
    let world = World::new();
    let left = world.left();
    let Some(systemd) = packaged(&world) else {
        return;
    };
    let config = world.config("SaveConfig = true", "192.168.77.0/24");
    let (keys, rest): (Vec<&str>, Vec<&str>) = config
        .lines()
        .partition(|line| line.starts_with("PrivateKey"));
    let without = rest.join("\n") + "\n";
    world.write(&without);
    std::fs::create_dir(systemd.path("/run/credstore")).expect("a directory");
    let keys = format!("[Interface]\n{}\n", keys.join("\n"));
    std::fs::write(systemd.path("/run/credstore/wg0.keys"), keys).expect("written");
    systemd.sh("systemctl start adit@wg0");
    ping(left, "192.168.77.2", 1);
    // Commands that are typed find it, too, and write it nowhere.
    systemd.sh("adit sync wg0; adit save wg0");
    ping(left, "192.168.77.2", 1);
    systemd.sh("systemctl stop adit@wg0");
    let saved = left.sh("cat /etc/wireguard/wg0.conf");
    assert!(saved.contains("PublicKey") && !saved.contains("PrivateKey"));
}

#[test]
fn the_unit_of_an_agent_gives_a_program_its_arguments() {
    if !only_adit() {
        return;
    }
    let unit = include_str!("../../../../packaging/adit-agent@.service");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=adit "));
    // As systemd puts them in.
    let start = (start.expect("it starts"))
        .replace("%i", "wg0")
        .replace("${ADIT_AGENT_SOURCE}", "exec:/run/program")
        .replace("$ADIT_AGENT_OPTIONS", "--psk-dir /run -- --db vpn");
    let hub = Hub::new("");
    hub.left().sh_with_input(
        "cat > /run/program && chmod 755 /run/program",
        "#!/bin/sh\necho \"told $*\" >&2\nsleep 1000\n",
    );
    hub.left().sh(&format!(
        "{} {start} < /dev/null > /run/agent.log 2>&1 &",
        adit()
    ));
    wait_for("it has its arguments", seconds(20), || {
        hub.log().contains("wg0: /run/program: told --db vpn\n")
    });
    // However often it fails.
    assert!(unit.contains("\nStartLimitIntervalSec=0\n"), "{unit}");
}
