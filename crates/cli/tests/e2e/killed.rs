//! What a process that is killed leaves to the next one, and what it does not.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::harness::*;
use crate::quick::{adit, comes_back, only_adit, state};

/// The last of the processes that were started on the host, killed without a word.
fn kill(daemon: &mut Daemon) {
    daemon.signal("KILL");
    daemon.wait();
}

/// (receiver, counter) of each data message, as the right side sent it.
fn sealed(capture: &Capture) -> Vec<[u8; 12]> {
    let messages = capture.datagrams().into_iter();
    let of_data = messages.filter_map(|datagram| {
        let header = datagram.payload.get(..16)?;
        (header[..4] == [4, 0, 0, 0]).then(|| header[4..].try_into().expect("twelve bytes"))
    });
    of_data.collect()
}

#[test]
fn a_killed_process_is_in_nobodys_way_and_its_peers_are_called() {
    if !only_adit() {
        return;
    }
    let net = SitePair::new();
    let left_only = Setup {
        right_knows_left: false,
        ..Setup::default()
    };
    let mut tunnel = WgTunnel::new(&net, left_only);
    tunnel.connect();
    let host = tunnel.right.host.clone();
    let peers = "/run/adit/wg0.peers";
    let capture = Capture::start(&host, "eth0", "udp src port 51820 and ip src 10.0.0.2");
    // Random enough: each is somewhere else in what the stream of packets does. ADIT_KILLS=100 kills
    // more often.
    let kills =
        std::env::var("ADIT_KILLS").map_or(12_u64, |kills| kills.parse().expect("a number"));
    for kill_number in 0..kills {
        let pause = kill_number * 7919 % 397;
        // What only roaming has told is in the file.
        let to_left = tunnel.right.endpoint();
        wait_for("the endpoint is kept", seconds(30), || {
            host.try_sh(&format!("grep -q ' {to_left}$' {peers}")).ok()
        });
        assert_eq!(host.sh(&format!("stat -c %a {peers}")).trim(), "600");
        let load = UdpTicker::start(
            &tunnel.left.host,
            &host,
            &tunnel.right.v4,
            std::time::Duration::from_micros(500),
        );
        load.advances(20);
        std::thread::sleep(std::time::Duration::from_millis(pause));
        kill(&mut tunnel.right.daemon);
        load.stop();
        // No key is in what it leaves.
        let left_behind = host.sh("cat /run/adit/*.peers /run/wireguard/*.name");
        for key in [&tunnel.right.keys.private, &tunnel.left.keys.private] {
            assert!(!left_behind.contains(key.as_str()));
        }
        let (start, began) = (Start::default(), std::time::Instant::now());
        tunnel.right.daemon = Daemon::start(&host, Program::Adit, "wg0", &start);
        setconf(&host, "wg0", &tunnel.right.config);
        let (v4, v6) = (&tunnel.right.v4, &tunnel.right.v6);
        host.sh(&format!(
            "set -e; ip addr add {v4}/24 dev wg0; ip addr add {v6}/64 dev wg0 nodad; ip link set wg0 up"
        ));
        // Nobody on the left says a word, and the right one's configuration has no endpoint.
        wait_for("the right side calls", seconds(10), || {
            tunnel.right.latest_handshake() > 0
        });
        println!("kill {kill_number}: peers back after {:?}", began.elapsed());
        assert_eq!(tunnel.right.endpoint(), to_left);
        ping(&host, &tunnel.left.v4, 1);
    }
    // Invariant 1: each process had sessions of its own.
    let sealed = sealed(&capture);
    let unique: std::collections::HashSet<_> = sealed.iter().collect();
    assert!(
        sealed.len() as u64 >= kills,
        "{} were captured",
        sealed.len()
    );
    assert_eq!(unique.len(), sealed.len(), "a counter was used twice");
    // One that ends otherwise leaves nothing.
    tunnel.right.daemon.signal("TERM");
    tunnel.right.daemon.wait();
    assert_eq!(host.sh("ls -A /run/adit"), "");
}

#[test]
fn after_kills_at_any_moment_up_and_down_leave_nothing() {
    if !only_adit() {
        return;
    }
    let net = SitePair::new();
    let left = &net.left;
    let keys = Keys::new();
    let config = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/24, fd77::1/64\nFwMark = 77\n# Forward = internet\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = 10.0.0.2:51820\n",
        keys.private,
        Keys::new().public
    );
    let before = state(left);
    left.sh_with_input(
        "mkdir -p /etc/wireguard; umask 077; cat > /etc/wireguard/wg0.conf",
        &config,
    );
    // While it comes up, and afterwards.
    for millis in [5, 20, 40, 80, 160, 320, 640] {
        let pause = f64::from(millis) / 1000.0;
        let up = format!("{} up wg0 > /dev/null 2>&1 & sleep {pause:.3}", adit());
        left.sh(&up);
        // One that is just being started is not seen by the first look.
        wait_for("all of it is killed", seconds(20), || {
            let alive = processes(left);
            for pid in &alive {
                left.try_sh(&format!("kill -9 {pid}"));
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            alive.is_empty() && !left.has_interface("wg0")
        });
        // Nothing that it left is in the way of the next start.
        left.sh(&format!("{} up wg0 && wg show wg0 > /dev/null", adit()));
        left.sh(&format!("{} down wg0", adit()));
        comes_back(left, &before, &format!("a kill after {millis} ms"));
    }
}

#[test]
fn a_change_that_does_not_fit_into_memory_is_refused() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    let daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    // It may have 20 MiB more than it has now.
    let pid = daemon.pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|size| size.trim().strip_suffix(" kB")?.parse().ok());
    let size: u64 = size.expect("its size");
    let limit = (size << 10) + (20 << 20);
    let prlimit = std::process::Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--as={limit}:{limit}")])
        .status();
    assert!(prlimit.expect("prlimit starts").success());
    let set = |count: u32| {
        let peer = |n: u32| {
            let key = format!("{n:08x}").repeat(8);
            let [_, a, b, c] = n.to_be_bytes();
            format!("public_key={key}\nallowed_ip=10.{a}.{b}.{c}/32\n")
        };
        let peers: String = (1..=count).map(peer).collect();
        let mut client =
            UnixStream::connect(host.path("/run/wireguard/wg0.sock")).expect("it takes clients");
        let request = format!("set=1\nreplace_peers=true\n{peers}\n");
        client.write_all(request.as_bytes()).expect("it reads");
        let mut answer = [0; 64];
        let read = client.read(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer[..read]).trim().to_owned()
    };
    assert_eq!(set(20_000), "errno=12");
    assert_eq!(host.sh("wg show wg0 peers"), "", "nothing was changed");
    assert!(daemon.log().contains("MiB of memory"), "{}", daemon.log());
    assert_eq!(set(1000), "errno=0");
    assert_eq!(host.sh("wg show wg0 peers").lines().count(), 1000);
}
