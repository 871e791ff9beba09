//! Several interfaces in one process.

use crate::harness::*;

fn subject() -> String {
    format!("LOG_LEVEL=silent {}", Program::Adit.path().display())
}

fn names(count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("wg{i}")).collect();
    names.join(" ")
}

/// Joins interface `wg{i}` of both hosts by a tunnel of its own: 10.10.i.1 and 10.10.i.2.
pub(crate) fn join(net: &SitePair, i: usize) {
    let (left, right) = (Keys::new(), Keys::new());
    let ends = [
        (
            &net.left,
            &left,
            &right,
            1,
            net.address_of_right(Family::V4),
        ),
        (
            &net.right,
            &right,
            &left,
            2,
            net.address_of_left(Family::V4),
        ),
    ];
    let port = 51820 + i;
    for (host, own, other, last, endpoint) in ends {
        let script = format!(
            "set -e; wg set wg{i} listen-port {port} private-key /dev/stdin peer {} endpoint {endpoint}:{port} \
             allowed-ips 10.10.{i}.0/24; ip addr add 10.10.{i}.{last}/24 dev wg{i}; ip link set wg{i} up",
            other.public
        );
        host.sh_with_input(&script, &own.private);
    }
}

fn ping_through(net: &SitePair, i: usize) {
    ping(&net.left, &format!("10.10.{i}.2"), 3);
}

/// Waits until the only process of the host has its threads and no more: one main thread, one for
/// clients, one for control, one for sparse flows; shards are as many as interfaces, and no more than
/// CPUs. After the start, one more limits the queues.
fn wait_for_threads(host: &Container, interfaces: usize) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let expected = 4 + interfaces.min(cpus);
    let [pid] = processes(host).try_into().expect("one process");
    let tasks = host.path(&format!("/proc/{pid}/task"));
    wait_for(&format!("{expected} threads"), seconds(30), || {
        std::fs::read_dir(&tasks).expect("its threads").count() == expected
    });
}

#[test]
fn one_process_serves_several_interfaces() {
    let net = SitePair::new();
    for host in [&net.left, &net.right] {
        host.sh(&format!("{} run {}", subject(), names(4)));
        wait_for_threads(host, 4);
    }
    for i in 0..4 {
        join(&net, i);
    }
    for i in 0..4 {
        ping_through(&net, i);
    }
    let shown = net
        .left
        .sh(&format!("{} show", Program::Adit.path().display()));
    for i in 0..4 {
        assert!(shown.contains(&format!("interface: wg{i}")), "{shown}");
    }
    tcp(&net.left, &net.right, "10.10.2.2", 10 << 20);
    // The end of some is not that of others.
    net.left
        .sh("ip link delete wg1; rm /run/wireguard/wg3.sock");
    for name in ["wg1", "wg3"] {
        wait_for("it ends", seconds(30), || !net.left.has_interface(name));
        let socket = net.left.path(&format!("/run/wireguard/{name}.sock"));
        wait_for("its socket goes", seconds(30), || !socket.exists());
    }
    ping_through(&net, 0);
    ping_through(&net, 2);
    // With the last one the process ends.
    net.left.sh("ip link delete wg0; ip link delete wg2");
    wait_for("the process ends", seconds(30), || {
        processes(&net.left).is_empty()
    });
    // A signal ends all.
    net.right.sh("pkill -TERM -x adit");
    wait_for("the process ends", seconds(30), || {
        processes(&net.right).is_empty()
    });
    for i in 0..4 {
        assert!(!net.right.has_interface(&format!("wg{i}")));
        let socket = net.right.path(&format!("/run/wireguard/wg{i}.sock"));
        assert!(!socket.exists());
    }
}

#[test]
fn only_the_interface_of_a_namespace_ends_with_it() {
    let net = SitePair::new();
    for host in [&net.left, &net.right] {
        host.sh(&format!("{} run {}", subject(), names(3)));
    }
    for i in 0..3 {
        join(&net, i);
        ping_through(&net, i);
    }
    net.left
        .sh("set -e; ip netns add box; ip link set wg1 netns box
         ip -n box addr add 10.10.1.1/24 dev wg1; ip -n box link set wg1 up");
    ping(&net.right, "10.10.1.1", 3);
    net.left.sh("ip netns del box");
    let socket = net.left.path("/run/wireguard/wg1.sock");
    wait_for("its socket goes", seconds(30), || !socket.exists());
    ping_fails(&net.right, "10.10.1.1");
    for i in [0, 2] {
        ping_through(&net, i);
    }
}

#[test]
fn an_interface_can_join_a_running_process() {
    let net = SitePair::new();
    for host in [&net.left, &net.right] {
        host.sh(&format!("{} run wg0", subject()));
        host.sh(&format!("{} run --join wg0 wg1 wg2", subject()));
        assert_eq!(processes(host).len(), 1);
    }
    for i in 0..3 {
        join(&net, i);
        ping_through(&net, i);
    }
    // The first may go, come back, and join the others.
    for host in [&net.left, &net.right] {
        host.sh("ip link delete wg0");
        let socket = host.path("/run/wireguard/wg0.sock");
        wait_for("its socket goes", seconds(30), || !socket.exists());
        host.sh(&format!("{} run --join wg2 wg0", subject()));
        assert_eq!(processes(host).len(), 1);
    }
    join(&net, 0);
    for i in 0..3 {
        ping_through(&net, i);
    }
}

#[test]
fn a_tunnel_of_a_file_can_join_a_running_process() {
    let host = Container::new("left");
    host.sh(&format!("{} run wg0", subject()));
    let keys = Keys::new();
    let conf = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\n",
        keys.private
    );
    host.sh_with_input("cat > /etc/wireguard/site.conf", &conf);
    host.sh(&format!("{} up --join wg0 site", subject()));
    assert_eq!(processes(&host).len(), 1);
    assert!(host.sh("ip addr show dev site").contains("10.9.0.1/24"));
    assert_eq!(host.sh("wg show site public-key").trim(), keys.public);
    host.sh(&format!("{} down site", subject()));
    assert!(!host.has_interface("site"));
    assert!(host.has_interface("wg0"));
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let host = Container::new("left");
    let refused = |arguments: &str, reason: &str| {
        let adit = Program::Adit.path();
        let output = host.try_sh(&format!("{} {arguments}", adit.display()));
        assert!(!output.ok(), "{arguments}");
        assert!(
            output.stderr.contains(reason),
            "{arguments}: {}",
            output.stderr
        );
    };
    refused("run --join wg0 wg1", "no process serves wg0");
    host.sh(&format!("{} run wg0", subject()));
    refused(
        "run --join wg0 wg0",
        "another process already serves this interface",
    );
    refused("run --join wg0 a/b", "a/b");
    host.sh("ip link add taken type veth");
    refused("run --join wg0 taken", "cannot create taken");
    refused("run --join wg0 -f wg1", "cannot be used with");
    refused(
        "wg1 wg2",
        "`adit run wg1 wg2` has one process serve several",
    );
    // None is left where one fails.
    refused("run wg1 taken wg2", "cannot create taken");
    for name in ["wg1", "wg2"] {
        assert!(!host.has_interface(name));
        assert!(!host.path(&format!("/run/wireguard/{name}.sock")).exists());
    }
    refused(
        "run wg1 wg1",
        "another process already serves this interface",
    );
    assert!(host.has_interface("wg0"));
    assert_eq!(processes(&host).len(), 1);
    if let Some(program) = peer(Program::WireguardGo) {
        let _daemon = Daemon::start(&host, program, "other", &Start::default());
        refused("run --join other wg1", "the process of other");
    }
}

#[test]
fn a_hundred_interfaces_take_no_more_threads_than_a_few() {
    let host = Container::new("left");
    host.sh(&format!("{} run {}", subject(), names(100)));
    assert_eq!(
        host.sh("wg show interfaces").split_whitespace().count(),
        100
    );
    wait_for_threads(&host, 100);
    host.sh("for i in $(seq 0 98); do ip link delete wg$i; done");
    wait_for("they end", seconds(20), || {
        host.sh("wg show interfaces").trim() == "wg99"
    });
}

#[test]
fn the_example_of_two_sites_carries_packets_in_every_tunnel() {
    let example = repository().join("packaging/site-to-site");
    for how in ["routes", "ecmp"] {
        let output = std::process::Command::new(&example)
            .arg(Program::Adit.path())
            .arg(how)
            .output()
            .expect("sh starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{how}: {text}{errors}");
        let received = text.lines().skip(1).map(|line| {
            let column = line.split_whitespace().nth(1);
            column.and_then(|it| it.parse::<u64>().ok()).expect(line)
        });
        let received: Vec<u64> = received.collect();
        assert_eq!(received.len(), 4, "{how}: {text}");
        // More than a handshake.
        assert!(received.iter().all(|bytes| *bytes > 200), "{how}: {text}");
    }
}
