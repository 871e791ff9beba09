//! The process: when it returns, when it ends, what it refuses, what it leaves behind.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::harness::*;

fn subject() -> String {
    Program::Adit.path().display().to_string()
}

fn gone(host: &Container) -> bool {
    processes(host).is_empty()
}

#[test]
fn it_returns_when_the_interface_exists_and_the_socket_answers() {
    let host = Container::new("left");
    // Once may be luck.
    for i in 0..10 {
        host.sh(&format!(
            "LOG_LEVEL=silent {} wg{i} && wg show wg{i} > /dev/null && ip link show dev wg{i} > /dev/null",
            subject()
        ));
    }
    assert_eq!(processes(&host).len(), 10, "one process for each interface");
    assert_eq!(host.sh("wg show interfaces").split_whitespace().count(), 10);
}

#[test]
fn a_service_manager_out_of_reach_is_no_reason_to_fail() {
    let host = Container::new("left");
    // The second is systemd's for a virtual machine.
    for (i, socket) in ["/nowhere/notify", "vsock:2:1234"].iter().enumerate() {
        let script = format!(
            "NOTIFY_SOCKET={socket} LOG_LEVEL=silent {} wg{i}",
            subject()
        );
        host.sh(&script);
        assert!(host.has_interface(&format!("wg{i}")));
    }
}

#[test]
fn it_ends_cleanly_on_sigterm_and_sigint() {
    for signal in ["TERM", "INT"] {
        let host = Container::new("left");
        let mut daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
        daemon.signal(signal);
        let status = daemon.wait();
        assert!(status.success(), "after SIG{signal}: {status}");
        assert!(!host.has_interface("wg0"), "the interface is gone");
        assert!(
            !host.path("/run/wireguard/wg0.sock").exists(),
            "the socket is gone"
        );
    }
}

#[test]
fn once_the_control_socket_is_gone_the_name_is_free() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let (socket, interface) = ("/run/wireguard/wg0.sock", "/sys/class/net/wg0");
    // It may go first by luck.
    for round in 0..40 {
        let mut daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
        assert!(host.path(interface).exists());
        let pid = daemon.pid().to_string();
        let killed = std::process::Command::new("kill").arg(&pid).status();
        assert!(killed.expect("kill starts").success());
        // Without a pause, which may be longer than what this looks for.
        let deadline = Instant::now() + seconds(20);
        while host.path(socket).exists() {
            assert!(Instant::now() < deadline, "round {round}: it stays");
        }
        assert!(!host.path(interface).exists(), "round {round}");
        assert!(daemon.wait().success());
    }
}

#[test]
fn in_the_background_it_is_found_by_its_name() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    host.sh(&format!("LOG_LEVEL=silent {} wg0", subject()));
    let found = host.sh("pgrep -x adit");
    assert_eq!(found.trim(), processes(&host)[0].to_string());
    let arguments = host.sh(&format!("ps -o args= -p {found}"));
    assert!(arguments.starts_with("adit run "), "{arguments}");
    assert!(arguments.trim().ends_with(" wg0"), "{arguments}");
}

#[test]
fn in_the_background_too_it_ends_on_sigterm() {
    let host = Container::new("left");
    host.sh(&format!("LOG_LEVEL=silent {} wg0", subject()));
    let pids = processes(&host);
    assert_eq!(pids.len(), 1);
    host.sh(&format!("kill -TERM {}", pids[0]));
    wait_for("the process ends", seconds(30), || gone(&host));
    assert!(!host.has_interface("wg0"));
    assert!(!host.path("/run/wireguard/wg0.sock").exists());
}

#[test]
fn a_verbose_log_tells_how_handshakes_go_and_another_does_not() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let (keys, peer) = (Keys::new(), Keys::new());
    for level in ["verbose", "error"] {
        host.sh(&format!(
            "set -e; LOG_LEVEL={level} {adit} wg0 2> /run/log-{level}; echo {own} > /run/own; \
             wg set wg0 private-key /run/own peer {public} endpoint 127.0.0.1:9 allowed-ips 10.0.0.2/32; \
             ip addr add 10.0.0.1/24 dev wg0; ip link set wg0 up; ping -c 1 -W 1 10.0.0.2 || true",
            adit = subject(),
            own = keys.private,
            public = peer.public,
        ));
        let said = format!(
            "peer {}: handshake initiation sent to 127.0.0.1:9",
            peer.public
        );
        let log = || host.sh(&format!("cat /run/log-{level}"));
        if level == "verbose" {
            wait_for("the log tells", seconds(30), || log().contains(&said));
        }
        host.sh("ip link delete wg0");
        wait_for("the process ends", seconds(30), || gone(&host));
        assert_eq!(log().contains(&said), level == "verbose", "{}", log());
        assert!(!log().contains(&*keys.private));
    }
}

/// As after the end of the session that started it: `ssh host LOG_LEVEL=verbose adit wg0`.
#[test]
fn a_log_that_nobody_can_take_any_more_ends_nothing() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let peer = Keys::new();
    for to in ["2>&1 > /dev/null | true", "2> /dev/full"] {
        // The pipe's reader has ended for sure when the interface is configured.
        host.sh(&format!(
            "set -e; LOG_LEVEL=verbose {adit} wg0 {to}; wg genkey > /run/own; \
             wg set wg0 private-key /run/own peer {public} endpoint 127.0.0.1:9 allowed-ips 10.0.0.2/32; \
             ip addr add 10.0.0.1/24 dev wg0; ip link set wg0 up; ping -c 1 -W 1 10.0.0.2 || true",
            adit = subject(),
            public = peer.public,
        ));
        let sent = host.sh("wg show wg0 transfer");
        assert!(
            sent.trim().ends_with("\t148"),
            "{to}: an initiation, {sent}"
        );
        let mut client = UnixStream::connect(host.path("/run/wireguard/wg0.sock")).expect(to);
        client.write_all(b"set=1\nnonsense=1\n\n").expect(to);
        let mut answer = String::new();
        client.shutdown(std::net::Shutdown::Write).expect(to);
        client.read_to_string(&mut answer).expect(to);
        assert_eq!(answer, "errno=22\n\n", "{to}: a refusal is logged");
        host.sh("wg show wg0");
        host.sh("ip link delete wg0");
        wait_for("the process ends", seconds(30), || gone(&host));
    }
}

#[test]
fn in_the_background_it_keeps_nothing_open_that_its_caller_had() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let adit = subject();
    host.sh(&format!(
        "set -e; exec 9> /run/lock-of-caller; flock 9; {adit} wg0; exec 9>&-; flock -n /run/lock-of-caller true"
    ));
    assert!(host.has_interface("wg0"));
}

#[test]
fn it_ends_when_its_socket_is_removed() {
    let host = Container::new("left");
    let mut daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    host.sh("rm /var/run/wireguard/wg0.sock");
    assert!(daemon.wait().success());
    assert!(!host.has_interface("wg0"));
}

#[test]
fn a_second_process_for_an_interface_is_refused() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let host = &tunnel.left.host;
    for arguments in ["-f wg0", "wg0"] {
        let output = host.try_sh(&format!("timeout 10 {} {arguments}", subject()));
        assert!(
            !output.ok() && output.status.code() != Some(124),
            "{}",
            output.status
        );
        assert!(
            output.stderr.contains("wg0") || output.stdout.contains("wg0"),
            "says what is in use: {}",
            output.stderr
        );
    }
    ping(host, &tunnel.right.v4, 2);
    assert!(
        tunnel.left.latest_handshake() > 0,
        "its socket still answers"
    );
}

#[test]
fn a_stale_socket_is_taken_over() {
    let host = Container::new("left");
    let mut daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    daemon.signal("KILL");
    daemon.wait();
    assert!(
        host.path("/run/wireguard/wg0.sock").exists(),
        "a killed process leaves its socket"
    );
    let _again = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    assert!(host.sh("wg show interfaces").contains("wg0"));
}

#[test]
fn the_control_socket_is_for_its_owner_only() {
    let host = Container::new("left");
    let _daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    assert_eq!(
        host.sh("stat -c '%a %F' /run/wireguard/wg0.sock | cut -c2-")
            .trim(),
        "00 socket"
    );
    assert_eq!(host.sh("stat -c %a /run/wireguard").trim(), "755");
    assert_eq!(
        host.sh("find /run/wireguard -type s -printf %f").trim(),
        "wg0.sock",
        "wgctrl takes every socket here for an interface"
    );
}

#[test]
fn names_that_no_interface_can_have_are_refused_with_the_reason() {
    let host = Container::new("left");
    for name in ["sixteen-letters-", "a/b", "..", "''", "'a b'"] {
        let output = host.try_sh(&format!("timeout 10 {} -f {name}", subject()));
        assert!(
            !output.ok() && output.status.code() != Some(124),
            "{name}: {}",
            output.status
        );
        assert!(!output.stderr.is_empty(), "{name}: a reason");
        assert!(
            !output.stderr.contains("panicked"),
            "{name}: {}",
            output.stderr
        );
    }
    assert!(gone(&host));
    assert_eq!(
        host.sh("find /run -name '*.sock' -o -name '*.pid'"),
        "",
        "nothing is left in /run"
    );
}

#[test]
fn a_slip_in_a_command_makes_no_interface_unless_one_is_meant() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let adit = subject();
    for (slip, meant) in [("upp", "adit up"), ("shwo", "adit show")] {
        let output = host.try_sh(&format!("{adit} {slip}"));
        assert!(!output.ok() && !host.has_interface(slip));
        for part in [meant, &format!("adit run {slip}")] {
            assert!(output.stderr.contains(part), "{}", output.stderr);
        }
    }
    host.sh("touch /etc/wireguard/shop.conf; ip tuntap add dev dowm mode tun");
    for (arguments, name) in [
        ("tun", "tun"),
        ("shop", "shop"),
        ("dowm", "dowm"),
        ("run upp", "upp"),
        ("-f shwo > /dev/null 2>&1 &", "shwo"),
    ] {
        host.sh(&format!("{adit} {arguments}"));
        wait_for("the interface exists", seconds(20), || {
            host.path(&format!("/run/wireguard/{name}.sock")).exists()
        });
    }
}

#[test]
fn arguments_that_are_no_text_are_wrong_usage() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    // For the interface itself as of wireguard-go.
    for (arguments, code) in [("", 1), ("-f", 1), ("show", 2), ("up", 2)] {
        let output = host.try_sh(&format!(
            "timeout 10 {} {arguments} \"$(printf '\\377')\"",
            subject()
        ));
        assert_eq!(output.status.code(), Some(code), "{arguments}");
        assert!(
            output.stderr.starts_with("error: ") && output.stderr.contains("Usage: "),
            "{arguments}: {}",
            output.stderr
        );
    }
}

#[test]
fn without_the_rights_it_says_so_and_leaves_nothing() {
    let host = Container::new("left");
    // The program's own directory need not be open to everybody.
    host.sh(&format!(
        "mkdir /run/bin; cp {} /run/bin/subject; chmod 755 /run/bin/subject",
        subject()
    ));
    let output = host.try_sh(
        "setpriv --reuid 65534 --regid 65534 --clear-groups timeout 10 /run/bin/subject -f wg0",
    );
    assert!(
        !output.ok() && output.status.code() != Some(124),
        "{}",
        output.status
    );
    let said = output.stderr.to_lowercase();
    assert!(
        ["permission", "permitted", "root", "cap_net_admin"]
            .iter()
            .any(|word| said.contains(word)),
        "{}",
        output.stderr
    );
    assert!(!host.has_interface("wg0"));
}

#[test]
fn without_inotify_it_names_the_limit_and_leaves_nothing() {
    if !Program::Adit.is_adit() {
        return;
    }
    let host = Container::new("left");
    let output = host.try_sh(&format!(
        "unshare -U -r sh -c 'echo 0 > /proc/sys/user/max_inotify_instances; exec timeout 10 {} -f wg0'",
        subject()
    ));
    assert!(
        !output.ok() && output.stderr.contains("fs.inotify.max_user_instances"),
        "{}",
        output.stderr
    );
    assert_eq!(
        host.sh("test ! -e /run/wireguard || ls -A /run/wireguard"),
        ""
    );
}

#[test]
fn a_name_that_another_kind_of_interface_has_is_refused() {
    let host = Container::new("left");
    host.sh("ip link add wg0 type veth peer name other");
    let output = host.try_sh(&format!("timeout 10 {} -f wg0", subject()));
    assert!(
        !output.ok() && output.status.code() != Some(124),
        "{}",
        output.status
    );
    assert!(output.stderr.contains("wg0"), "{}", output.stderr);
    assert!(
        host.sh("ip -d link show wg0").contains("veth"),
        "the other one is untouched"
    );
    assert!(!host.path("/run/wireguard/wg0.sock").exists());
}

#[test]
fn a_killed_daemon_leaves_no_plaintext_path_and_recovers() {
    let net = SitePair::new();
    let mut tunnel = WgTunnel::new(
        &net,
        Setup {
            keepalive: Some(1),
            ..Setup::default()
        },
    );
    tunnel.connect();
    let config = tunnel.left.wg("showconf {}");
    tunnel.left.daemon.signal("KILL");
    tunnel.left.daemon.wait();
    wait_for("the interface goes with it", seconds(30), || {
        !tunnel.left.host.has_interface("wg0")
    });
    tunnel.left.daemon = Daemon::start(&net.left, Program::Adit, "wg0", &Start::default());
    setconf(&net.left, "wg0", &config);
    net.left
        .sh("ip addr add 192.168.77.1/24 dev wg0; ip link set wg0 mtu 1420 up");
    wait_for("the tunnel works again", seconds(20), || {
        net.left.try_sh("ping -n -q -c 1 -W 1 192.168.77.2").ok()
    });
    tcp(&net.right, &net.left, "192.168.77.1", 1 << 20);
    std::thread::sleep(Duration::from_millis(10));
}
