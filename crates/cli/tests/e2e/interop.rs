//! Adit against the other userspace implementations, with either side as initiator.

use crate::harness::*;
use crate::sessions::renews;

const MIB: u64 = 1 << 20;

/// The two ways round: Adit begins, or the other one does.
fn both_ways(other: Program) -> [(Program, Program); 2] {
    [(Program::Adit, other), (other, Program::Adit)]
}

/// Tailscale's fork has no roaming: the layer above sets its endpoints.
fn learns_endpoints(program: Program) -> bool {
    program != Program::Tailscale
}

fn exchanges(other: Program) {
    for (left, right) in both_ways(other) {
        for (outer, psk) in [(Family::V4, false), (Family::V6, true)] {
            println!("{left:?} begins, {right:?} answers, over {outer:?}, PSK {psk}");
            let net = SitePair::new();
            let setup = Setup {
                left,
                right,
                outer,
                psk,
                right_knows_left: !learns_endpoints(right),
                ..Setup::default()
            };
            let tunnel = WgTunnel::new(&net, setup);
            ping(&net.left, &tunnel.right.v4, 5);
            ping(&net.right, &tunnel.left.v6, 5);
            udp(
                &net.left,
                &net.right,
                &tunnel.right.v4,
                &[4, 15, 16, 100, 1000, 1392],
                5,
            );
            udp(
                &net.right,
                &net.left,
                &tunnel.left.v6,
                &[4, 15, 16, 100, 1000, 1372],
                5,
            );
            if psk && left == Program::Adit {
                // The session continues at the next handshake.
                net.left.sh_with_input(
                    &format!(
                        "wg set wg0 peer {} preshared-key /dev/stdin",
                        tunnel.right.keys.public
                    ),
                    &Keys::psk(),
                );
                ping(&net.left, &tunnel.right.v4, 1);
            }
        }
    }
}

fn carries_bulk(other: Program) {
    for (left, right) in both_ways(other) {
        println!("{left:?} begins, {right:?} answers");
        let net = SitePair::new();
        let tunnel = WgTunnel::new(
            &net,
            Setup {
                left,
                right,
                right_knows_left: !learns_endpoints(right),
                ..Setup::default()
            },
        );
        tunnel.connect();
        tcp(&net.left, &net.right, &tunnel.right.v4, 16 * MIB);
        tcp(&net.right, &net.left, &tunnel.left.v4, 16 * MIB);
        tcp_many(&net.left, &net.right, &tunnel.right.v6, 8, 2 * MIB);
        tcp_many(&net.right, &net.left, &tunnel.left.v6, 8, 2 * MIB);
    }
}

/// Both roam in turn: by port, and from one address family to the other.
fn roams(other: Program) {
    for (left, right) in both_ways(other) {
        if !learns_endpoints(right) {
            continue;
        }
        println!("{left:?} roams, {right:?} follows");
        let net = SitePair::new();
        let tunnel = WgTunnel::new(
            &net,
            Setup {
                left,
                right,
                ..Setup::default()
            },
        );
        tunnel.connect();
        ping(&net.right, &tunnel.left.v4, 2);
        // GotaTun sends nothing more once in a while after its port was changed, to wireguard-go
        // either.
        let mut port = 51820;
        if left != Program::Gotatun {
            port = 40000;
            tunnel.left.wg(&format!("set {{}} listen-port {port}"));
        }
        let follows = |expected: &str| {
            wait_for(
                &format!("the right side sees {expected}"),
                seconds(30),
                || {
                    let _ = net
                        .left
                        .try_sh(&format!("ping -n -q -c 1 -W 1 {}", tunnel.right.v4));
                    tunnel.right.endpoint() == expected
                },
            );
        };
        let reached = || {
            wait_for("the right side reaches the left one", seconds(20), || {
                net.right
                    .try_sh(&format!("ping -n -q -c 1 -W 1 {}", tunnel.left.v6))
                    .ok()
            });
        };
        follows(&format!("10.0.0.1:{port}"));
        reached();
        if left == Program::Boringtun {
            // It cannot change a peer that it has.
            continue;
        }
        tunnel.left.wg(&format!(
            "set {{}} peer {} endpoint [fd00::2]:51820",
            tunnel.right.keys.public
        ));
        follows(&format!("[fd00::1]:{port}"));
        reached();
        tcp(&net.left, &net.right, &tunnel.right.v4, MIB);
    }
}

/// The other side is killed and comes back with the same keys. A new handshake follows, whichever
/// side needs it first.
fn survives_a_restart(other: Program) {
    let net = SitePair::new();
    let mut tunnel = WgTunnel::new(
        &net,
        Setup {
            right: other,
            keepalive: Some(1),
            ..Setup::default()
        },
    );
    tunnel.connect();
    tunnel.right.daemon.signal("KILL");
    tunnel.right.daemon.wait();
    wait_for("the interface goes with it", seconds(30), || {
        !net.right.has_interface("wg0")
    });
    tunnel.right.daemon = Daemon::start(&net.right, other, "wg0", &Start::default());
    setconf(&net.right, "wg0", &tunnel.right.config);
    net.right.sh("ip addr add 192.168.77.2/24 dev wg0; ip addr add fd77::2/64 dev wg0 nodad; ip link set wg0 mtu 1420 up");
    wait_for("the tunnel works again", seconds(30), || {
        net.right
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", tunnel.left.v4))
            .ok()
    });
    tcp(&net.left, &net.right, &tunnel.right.v4, 4 * MIB);
}

/// Both directions at the same time, as each waits two minutes.
fn is_renewed(other: Program) {
    let runs = both_ways(other).map(|(left, right)| {
        std::thread::spawn(move || {
            let net = SitePair::new();
            let tunnel = WgTunnel::new(
                &net,
                Setup {
                    left,
                    right,
                    right_knows_left: !learns_endpoints(right),
                    ..Setup::default()
                },
            );
            // These implementations also lose packets between themselves while sessions change:
            // BoringTun dozens, and hundreds where CPUs are busy; the others now and then a few.
            let tolerated = match other {
                Program::Boringtun => 1000,
                _ => 20,
            };
            renews(&tunnel, tolerated);
        })
    });
    for run in runs {
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn run(other: Program, test: fn(Program)) {
    if let Some(other) = peer(other) {
        test(other);
    }
}

macro_rules! with {
    ($name:ident, $program:expr) => {
        mod $name {
            use crate::harness::Program;

            #[test]
            fn it_exchanges_packets_with_and_without_a_preshared_key() {
                super::run($program, super::exchanges);
            }

            #[test]
            fn bulk_traffic_flows_both_ways() {
                super::run($program, super::carries_bulk);
            }

            #[test]
            fn either_side_may_roam() {
                super::run($program, super::roams);
            }

            #[test]
            fn a_restarted_peer_is_met_again() {
                super::run($program, super::survives_a_restart);
            }

            #[test]
            fn sessions_are_renewed_under_traffic() {
                super::run($program, super::is_renewed);
            }
        }
    };
}

with!(wireguard_go, Program::WireguardGo);
with!(tailscales_fork, Program::Tailscale);
with!(boringtun, Program::Boringtun);
with!(gotatun, Program::Gotatun);
