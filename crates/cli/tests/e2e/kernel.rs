//! Adit against the Linux kernel's own WireGuard, and Adit on that kernel: 6.1 knows no USO, 6.12
//! no tunnels in a TUN.
//!
//! ```text
//!   host-of-guest                    guest (QEMU, software emulation)
//!   wg0  192.168.77.1 fd77::1        wg0  192.168.77.2 fd77::2
//!   tap0 10.9.0.1 fd09::1 ────────── eth0 10.9.0.2 fd09::2
//! ```

use std::net::SocketAddr;

use crate::harness::*;

const MIB: u64 = 1 << 20;

/// The peer in the guest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Kernel,
    Adit,
    /// On Linux 6.12 or later.
    NewerAdit,
}

struct World {
    guest: Guest,
    daemon: Daemon,
    ours: Keys,
    theirs: Keys,
}

impl World {
    fn new(inside: Inside) -> Option<World> {
        let program = Program::Adit.path();
        let guest = match inside {
            Inside::Kernel => Guest::boot(&[])?,
            Inside::Adit => Guest::boot(&[&program])?,
            Inside::NewerAdit => Guest::boot_newer(&[&program])?,
        };
        let name = program
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        match inside {
            Inside::Kernel => guest.sh("ip link add wg0 type wireguard"),
            Inside::Adit | Inside::NewerAdit => guest.sh(&format!(
                "export LOG_LEVEL=verbose; /bin/{name} -f wg0 > /tmp/log 2>&1 & \
                 for i in $(seq 100); do wg show wg0 > /dev/null 2>&1 && break; usleep 100000; done; wg show wg0 || {{ cat /tmp/log; false; }}"
            )),
        };
        guest.sh("set -e; ip addr add 192.168.77.2/24 dev wg0; ip addr add fd77::2/64 dev wg0 nodad; ip link set wg0 mtu 1420 up");
        let daemon = Daemon::start(&guest.host, Program::Adit, "wg0", &Start::default());
        guest.host.sh("set -e; ip addr add 192.168.77.1/24 dev wg0; ip addr add fd77::1/64 dev wg0 nodad; ip link set wg0 mtu 1420 up");
        guest.host.answers_at("fd77::1");
        // An echo server: what is sent to it comes back.
        guest.sh("nc -ll -p 7000 -e cat > /dev/null 2>&1 &");
        Some(World {
            guest,
            daemon,
            ours: Keys::new(),
            theirs: Keys::new(),
        })
    }

    /// Fresh configuration on both sides; `begins` knows the other's address, the other one does
    /// not.
    fn configure(&self, begins: Begins, outer: Family, psk: Option<&str>) {
        let config = |own: &Keys, other: &Keys, number: u8, endpoint: Option<&str>| {
            let mut config = format!(
                "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.{number}/32, fd77::{number}/128\n",
                own.private, other.public
            );
            if let Some(address) = endpoint {
                config += &format!("Endpoint = {}\n", outer.with_port(address, 51820));
            }
            if let Some(psk) = psk {
                config += &format!("PresharedKey = {psk}\n");
            }
            config
        };
        let (v4, v6) = (("10.9.0.1", "fd09::1"), ("10.9.0.2", "fd09::2"));
        let (host, guest) = match outer {
            Family::V4 => (v4.0, v6.0),
            Family::V6 => (v4.1, v6.1),
        };
        let ours = config(
            &self.ours,
            &self.theirs,
            2,
            (begins == Begins::Container).then_some(guest),
        );
        let theirs = config(
            &self.theirs,
            &self.ours,
            1,
            (begins == Begins::Guest).then_some(host),
        );
        // Adit keeps the session of a peer that `setconf` names again; the kernel does not.
        self.guest
            .host
            .sh(&format!("wg set wg0 peer {} remove", self.theirs.public));
        self.guest
            .sh(&format!("wg set wg0 peer {} remove", self.ours.public));
        setconf(&self.guest.host, "wg0", &ours);
        self.guest.sh(&format!(
            "umask 077; cat > /tmp/conf <<'END'\n{theirs}END\nwg setconf wg0 /tmp/conf"
        ));
    }

    fn ping_both_ways(&self) {
        for (to_guest, to_host) in [("192.168.77.2", "192.168.77.1"), ("fd77::2", "fd77::1")] {
            ping(&self.guest.host, to_guest, 5);
            self.guest.sh(&format!("ping -q -c 3 -W 10 {to_host}"));
        }
    }

    fn bulk(&self, bytes: u64) {
        for address in ["192.168.77.2:7000", "[fd77::2]:7000"] {
            let to: SocketAddr = address.parse().expect("an address");
            Stream::echo(&self.guest.host, to, bytes);
        }
    }

    fn guest_peer_field(&self, index: usize) -> String {
        let dump = self.guest.sh("wg show wg0 dump");
        let line = dump.lines().nth(1).expect("a peer").to_owned();
        line.split('\t').nth(index).expect("a field").to_owned()
    }
}

/// Which side begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begins {
    Container,
    Guest,
}

fn exchanges(world: &World, bytes: u64) {
    let psk = Keys::psk();
    for (begins, outer, psk) in [
        (Begins::Container, Family::V4, None),
        (Begins::Guest, Family::V6, Some(psk.as_str())),
        (Begins::Guest, Family::V4, None),
        (Begins::Container, Family::V6, Some(psk.as_str())),
    ] {
        println!(
            "the {begins:?} begins, over {outer:?}, PSK {}",
            psk.is_some()
        );
        // Fresh keys would do too; the same ones prove that timestamps move on.
        world.configure(begins, outer, psk);
        if begins == Begins::Guest {
            world.guest.sh("ping -q -c 2 -W 10 192.168.77.1");
        }
        world.ping_both_ways();
        world.bulk(bytes);
    }
}

fn roams(world: &World) {
    world.configure(Begins::Container, Family::V4, None);
    world.ping_both_ways();
    // The host moves, the guest follows.
    world.guest.host.sh("wg set wg0 listen-port 40000");
    ping(&world.guest.host, "192.168.77.2", 2);
    assert_eq!(world.guest_peer_field(2), "10.9.0.1:40000");
    world.guest.sh("ping -q -c 2 -W 10 192.168.77.1");
    // The guest moves, the host follows.
    world
        .guest
        .sh("wg set wg0 listen-port 40001; ping -q -c 2 -W 10 192.168.77.1");
    let endpoint = || {
        world
            .guest
            .host
            .sh("wg show wg0 endpoints")
            .trim()
            .split('\t')
            .nth(1)
            .map(str::to_owned)
    };
    assert_eq!(endpoint().as_deref(), Some("10.9.0.2:40001"));
    world.guest.sh("ip addr add 10.9.0.22/24 dev eth0; ip addr del 10.9.0.2/24 dev eth0; ip addr add 10.9.0.22/24 dev eth0 2> /dev/null; ping -q -c 3 -W 10 192.168.77.1");
    assert_eq!(endpoint().as_deref(), Some("10.9.0.22:40001"));
    world.guest.sh("ip addr add 10.9.0.2/24 dev eth0");
    // To the other family.
    world.guest.host.sh(&format!(
        "wg set wg0 peer {} endpoint [fd09::2]:40001",
        world.theirs.public
    ));
    ping(&world.guest.host, "192.168.77.2", 2);
    assert_eq!(world.guest_peer_field(2), "[fd09::1]:40000");
    world.ping_both_ways();
    world.bulk(MIB);
}

#[test]
fn it_exchanges_packets_with_the_kernel_whoever_begins() {
    let Some(world) = World::new(Inside::Kernel) else {
        return;
    };
    exchanges(&world, 4 * MIB);
    roams(&world);
    // The kernel counts what we count.
    wait_for("the counters of both sides agree", seconds(30), || {
        let dump = world.guest.host.sh("wg show wg0 transfer");
        let ours: Vec<_> = dump.trim().split('\t').skip(1).map(str::to_owned).collect();
        ours == [world.guest_peer_field(6), world.guest_peer_field(5)]
    });
    drop(world.daemon);
}

#[test]
fn sessions_with_the_kernel_are_renewed_under_traffic() {
    let runs = [Begins::Container, Begins::Guest].map(|begins| {
        std::thread::spawn(move || {
            let Some(world) = World::new(Inside::Kernel) else {
                return;
            };
            world.configure(begins, Family::V4, Some(&Keys::psk()));
            world.guest.sh("ping -q -c 1 -W 10 192.168.77.1 || true");
            ping(&world.guest.host, "192.168.77.2", 1);
            let handshake = || world.guest_peer_field(4).parse::<u64>().expect("a number");
            let first = handshake();
            let started = std::time::Instant::now();
            let mut pings = 0;
            while handshake() == first {
                assert!(started.elapsed() < seconds(160), "no renewal within 160 s");
                // Any lost one fails.
                ping(&world.guest.host, "fd77::2", 50);
                world.guest.sh("ping -q -c 1 -W 5 192.168.77.1");
                pings += 50;
            }
            println!(
                "{begins:?} began: renewed after {:?}, {pings} pings",
                started.elapsed()
            );
            world.ping_both_ways();
        })
    });
    for run in runs {
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn it_runs_on_debians_kernel_with_what_that_offers() {
    let Some(world) = World::new(Inside::Adit) else {
        return;
    };
    let release = world.guest.sh("uname -r");
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
        panic!("no release: {release}");
    };
    let since = |first| (major, minor) >= first;
    exchanges(&world, MIB);
    roams(&world);
    if Program::Adit.is_adit() {
        let report = world.guest.sh("/bin/adit show wg0 --json");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let offloads = &report["interfaces"][0]["engine"]["offloads"];
        println!("{release}{offloads}");
        for (name, offered) in [
            ("tun-tso", true),
            ("tun-uso", since((6, 2))),
            ("tun-tunnel", since((6, 17))),
            ("udp-gso", since((4, 18))),
            ("udp-gro", since((5, 0))),
        ] {
            assert_eq!(offloads[name], serde_json::Value::Bool(offered), "{report}");
        }
        // The process that looks names up is another one, and younger.
        let oldest = world
            .guest
            .sh("pidof adit | tr ' ' '\\n' | sort -n | head -n 1");
        let of_process = format!("/proc/{}", oldest.trim());
        // One for what comes from the TUN, one for each socket and one that they share, one for the
        // limit of the queue.
        let maps = world
            .guest
            .sh(&format!("grep -c bpf-map {of_process}/maps || true"));
        let maps_of_programs = match () {
            () if since((6, 6)) => 5,
            () if since((5, 8)) => 4,
            () => 0,
        };
        assert_eq!(
            maps.trim(),
            maps_of_programs.to_string(),
            "what BPF programs share"
        );
        memory_is_locked(&world.guest, &of_process, &report);
    }
}

/// Root has CAP_SYS_RESOURCE there, which few containers have. Keys may be in any memory that the
/// process has written.
fn memory_is_locked(guest: &Guest, of_process: &str, report: &serde_json::Value) {
    let sandbox = &report["interfaces"][0]["engine"]["sandbox"];
    assert_eq!(
        sandbox["locked-memory"],
        serde_json::Value::Bool(true),
        "{report}"
    );
    let locked = guest.sh(&format!(
        "awk '$1 == \"VmLck:\" {{ print $2 }}' {of_process}/status"
    ));
    println!("locked: {} kB", locked.trim());
    assert_ne!(locked.trim(), "0");
    let written = guest.sh(&format!(
        "awk '/^[0-9a-f]+-[0-9a-f]+ / {{ rights = $2 }} \
              /^VmFlags:/ && rights == \"rw-p\" {{ print / lo( |$)/ ? \"locked\" : \"not locked\" }}' \
             {of_process}/smaps | sort -u"
    ));
    assert_eq!(written.trim(), "locked");
}

/// In a namespace of its own, where no device that is resumed wakes the process.
#[test]
fn timers_that_pass_while_suspended_run_after_the_wake_up() {
    let program = Program::Adit.path();
    let Some(guest) = Guest::boot(&[&program]) else {
        return;
    };
    let name = program.file_name().expect("a name").to_string_lossy();
    guest.sh("set -e; ip netns add sleeper; ip -n sleeper link set lo up");
    let keys = [Keys::new(), Keys::new()];
    for (own, other) in [(0, 1), (1, 0)] {
        guest.sh(&format!(
            "set -e; ip netns exec sleeper /bin/{name} wg{own}; umask 077; cat > /tmp/conf <<'END'
[Interface]
PrivateKey = {}
ListenPort = 5182{own}
[Peer]
PublicKey = {}
AllowedIPs = 0.0.0.0/0
Endpoint = 127.0.0.1:5182{other}
END
wg setconf wg{own} /tmp/conf; ip -n sleeper link set wg{own} up",
            keys[own].private, keys[other].public
        ));
    }
    guest.sh(&format!(
        "wg set wg0 peer {} persistent-keepalive 25",
        keys[1].public
    ));
    wait_for("a session", seconds(30), || {
        guest
            .sh("wg show wg0 latest-handshakes; wg show wg1 latest-handshakes")
            .matches("\t0\n")
            .count()
            == 0
    });
    // Not by `wg show`, which wakes the process.
    let packets = || guest.sh("ip netns exec sleeper grep lo: /proc/net/dev");
    let before = packets();
    guest.sh("set -e; echo +30 > /sys/class/rtc/rtc0/wakealarm; echo mem > /sys/power/state");
    // Of the 25 seconds most are left to a clock that stood still.
    wait_for("the keepalive leaves", seconds(10), || packets() != before);
}

/// The time of day goes back, forth and back again; then the machine sleeps. A session goes on, and
/// another begins.
#[test]
fn packets_pass_whatever_the_clock_does_and_after_a_suspend() {
    let Some(world) = World::new(Inside::Adit) else {
        return;
    };
    let guest_pings = || world.guest.sh("ping -q -c 3 -W 10 192.168.77.1");
    world.configure(Begins::Guest, Family::V4, None);
    guest_pings();
    let begin_again = format!(
        "set -e; wg set wg0 peer {} remove; wg setconf wg0 /tmp/conf",
        world.ours.public
    );
    for jump in ["- 86400", "+ 864000", "- 3600"] {
        world
            .guest
            .sh(&format!("date -s @$(($(date +%s) {jump})) > /dev/null"));
        world.ping_both_ways();
        // The host knows the greatest time that the guest's initiations had, and takes none before.
        world.guest.sh(&begin_again);
        guest_pings();
        world.ping_both_ways();
    }
    world.configure(Begins::Container, Family::V6, None);
    world.ping_both_ways();
    world
        .guest
        .sh("set -e; echo +10 > /sys/class/rtc/rtc0/wakealarm; echo mem > /sys/power/state");
    world.ping_both_ways();
}

/// Different packets under the same counters would reveal their difference to a listener.
#[test]
fn a_machine_reset_to_a_snapshot_uses_no_counter_twice() {
    if !Program::Adit.is_adit() {
        return;
    }
    let Some(mut world) = World::new(Inside::NewerAdit) else {
        return;
    };
    world.guest.sh("ls -d /sys/bus/*/drivers/vmgenid");
    let capture = Capture::start(&world.guest.host, "tap0", "udp and src host 10.9.0.2");
    // The host begins, so that the guest's first initiation is after the reset: its clock is behind
    // then.
    world.configure(Begins::Container, Family::V4, None);
    ping(&world.guest.host, "192.168.77.2", 3);
    world.guest.take_snapshot();
    world.guest.sh("ping -q -c 5 -s 300 -W 10 192.168.77.1");
    let before = capture.datagrams().len();

    world.guest.reset_to_snapshot();
    world.guest.sh(
        "for i in $(seq 300); do grep -q 'reset to a snapshot' /tmp/log && exit; usleep 100000; done; cat /tmp/log; false",
    );
    let (answered, printed) = world.guest.try_sh("ping -q -c 5 -s 400 -W 10 192.168.77.1");

    let datagrams = capture.datagrams();
    assert!(datagrams.len() >= before + 5);
    let mut sealed = std::collections::HashMap::new();
    for bytes in datagrams.iter().map(|datagram| &datagram.payload) {
        // Type, receiver and counter.
        if bytes[0] == 4
            && let Some(other) = sealed.insert(&bytes[4..16], bytes)
        {
            assert_eq!(other, bytes, "one counter, two packets");
        }
    }
    let receivers: std::collections::HashSet<_> = sealed.keys().map(|key| &key[..4]).collect();
    assert!(receivers.len() >= 2, "a session before, another one after");
    assert!(answered, "{printed}");
    ping(&world.guest.host, "192.168.77.2", 3);
    drop(world.daemon);
}

/// Whoever sends packets that a firewall logs can make the log lose records.
#[test]
fn a_log_that_loses_records_renews_no_session() {
    if !Program::Adit.is_adit() {
        return;
    }
    let Some(world) = World::new(Inside::NewerAdit) else {
        return;
    };
    world.configure(Begins::Container, Family::V4, None);
    ping(&world.guest.host, "192.168.77.2", 3);
    let sessions = || world.guest.sh("wg show wg0 latest-handshakes");
    let before = sessions();
    std::thread::sleep(seconds(2));
    for _ in 0..3 {
        // While the process stands still, more is written than the log holds.
        world.guest.sh(
            "set -e; echo on > /proc/sys/kernel/printk_devkmsg; pids=$(pidof adit); kill -STOP $pids
             line='<6>IN=eth0 OUT= SRC=203.0.113.9 DST=198.51.100.1 LEN=40 PROTO=TCP SPT=4711 DPT=22'
             i=0; while [ $i -lt 20000 ]; do echo \"$line$line$line\"; i=$((i + 1)); done > /dev/kmsg
             kill -CONT $pids",
        );
        ping(&world.guest.host, "192.168.77.2", 3);
    }
    let log = world.guest.sh("cat /tmp/log");
    assert!(!log.contains("reset to a snapshot"), "{log}");
    assert_eq!(sessions(), before);
    drop(world.daemon);
}
