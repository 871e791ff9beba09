//! Endpoints that are names: their addresses change, and some of them lead nowhere.

use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use simple_dns::rdata::{A, AAAA, RData};
use simple_dns::{CLASS, Packet, QTYPE, ResourceRecord, TYPE};

use crate::harness::*;

/// ```text
///   left                 router                 right
///   10.1.0.100 ──── 10.1.0.1 10.2.0.1 ──── 10.2.0.100
///   fd01::100       fd01::1   fd02::1      fd02::100
///                   DNS
/// ```
struct World {
    net: Routed,
    right: Daemon,
    left_keys: Keys,
    right_keys: Keys,
    dns: Dns,
}

/// A server that knows the addresses of `right.test`.
#[derive(Clone, Default)]
pub struct Dns(Arc<Mutex<Vec<IpAddr>>>);

impl Dns {
    pub fn start(host: &Container, addr: &'static str) -> Self {
        let dns = Self::default();
        let answers = dns.clone();
        let socket = host.within(move || UdpSocket::bind((addr, 53)).expect("a socket for DNS"));
        // It ends with the test.
        std::thread::spawn(move || {
            let mut bytes = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                if let Some(answer) = answers.answer(&bytes[..length]) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        dns
    }

    pub fn set(&self, addrs: &[&str]) {
        let addrs = addrs.iter().map(|addr| addr.parse().expect("an address"));
        *self.0.lock().expect("no panic") = addrs.collect();
    }

    pub fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let mut packet = Packet::parse(question).ok()?.into_reply();
        let question = packet.questions.first()?.clone();
        let known = self.0.lock().expect("no panic");
        let is_known = question.qname.to_string() == "right.test";
        for addr in known.iter().filter(|_| is_known) {
            let (of, data) = match addr {
                IpAddr::V4(ip) => (TYPE::A, RData::A(A::from(*ip))),
                IpAddr::V6(ip) => (TYPE::AAAA, RData::AAAA(AAAA::from(*ip))),
            };
            if question.qtype == QTYPE::TYPE(of) {
                let name = question.qname.clone();
                let record = ResourceRecord::new(name, CLASS::IN, 1, data);
                packet.answers.push(record);
            }
        }
        packet.build_bytes_vec().ok()
    }
}

impl World {
    fn new(right: Program) -> Self {
        Self::with_dns_at(right, "10.1.0.1")
    }

    fn with_dns_at(right: Program, addr: &'static str) -> Self {
        let net = Routed::new();
        let (left_keys, right_keys) = (Keys::new(), Keys::new());
        let dns = Dns::start(&net.router, addr);
        net.left.sh(&format!(
            "set -e; echo nameserver {addr} > /run/resolv; mount --bind /run/resolv /etc/resolv.conf
             echo '127.0.0.1 localhost' > /run/hosts; mount --bind /run/hosts /etc/hosts"
        ));
        let right = Daemon::start(&net.right, right, "wg0", &Start::default());
        setconf(
            &net.right,
            "wg0",
            &format!(
                "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.1/32\n",
                right_keys.private, left_keys.public
            ),
        );
        net.right
            .sh("set -e; ip addr add 192.168.77.2/24 dev wg0; ip link set wg0 up");
        Self {
            net,
            right,
            left_keys,
            right_keys,
            dns,
        }
    }

    /// `adit up` with a peer at `right.test`, or without one.
    fn up(&self, with_peer: bool) {
        self.up_for(with_peer.then_some("192.168.77.2/32"));
    }

    /// `adit up` with a peer at `right.test` for these addresses, or without one.
    fn up_for(&self, addresses: Option<&str>) {
        let mut config = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/24\n",
            self.left_keys.private
        );
        if let Some(addresses) = addresses {
            config += &format!(
                "[Peer]\nPublicKey = {}\nAllowedIPs = {addresses}\nEndpoint = right.test:51820\n",
                self.right_keys.public
            );
        }
        self.net
            .left
            .sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", &config);
        self.adit("up wg0");
    }

    fn adit(&self, args: &str) {
        let adit = Program::Adit.path();
        self.net.left.sh(&format!("{} {args}", adit.display()));
    }

    fn endpoint(&self) -> String {
        let endpoints = self.net.left.sh("wg show wg0 endpoints");
        endpoints
            .split_whitespace()
            .nth(1)
            .unwrap_or_default()
            .to_owned()
    }

    fn is_answered(&self) -> bool {
        let ping = "ping -n -q -c 1 -W 1 192.168.77.2";
        self.net.left.try_sh(ping).ok()
    }
}

#[test]
fn a_name_that_moves_is_followed_without_a_cron_job() {
    if !Program::Adit.is_adit() {
        return;
    }
    let world = World::new(Program::Adit);
    world.dns.set(&["10.2.0.100"]);
    world.up(true);
    ping(&world.net.left, "192.168.77.2", 3);
    assert_eq!(world.endpoint(), "10.2.0.100:51820");
    // While the tunnel works, it stays.
    world.net.right.sh("ip addr add 10.2.0.101/24 dev eth0");
    world.dns.set(&["10.2.0.101"]);
    world.adit("sync wg0");
    ping(&world.net.left, "192.168.77.2", 3);
    assert_eq!(world.endpoint(), "10.2.0.100:51820");
    // Its old address is gone, and the right side has nothing to say by itself.
    world.dns.set(&["10.2.0.102"]);
    world.net.right.sh(
        "set -e; ip -4 addr flush dev eth0; ip addr add 10.2.0.102/24 dev eth0; ip route add default via 10.2.0.1",
    );
    wait_for("the tunnel works again", seconds(60), || {
        world.is_answered()
    });
    assert_eq!(world.endpoint(), "10.2.0.102:51820");
    // What `wg` prints are addresses.
    let config = world.net.left.sh("wg showconf wg0");
    assert!(!config.contains("right.test"), "{config}");
}

/// The process that looks names up may read single files, which are others once they were replaced.
#[test]
fn a_name_is_found_after_its_files_are_replaced_or_a_crash() {
    if !Program::Adit.is_adit() {
        return;
    }
    let world = World::new(Program::Adit);
    world.dns.set(&["10.2.0.100"]);
    world.up(true);
    let (left, right) = (&world.net.left, &world.net.right);
    ping(left, "192.168.77.2", 3);
    let disturbances = [
        "cp /run/resolv /run/resolv-2; mount --bind /run/resolv-2 /etc/resolv.conf",
        "echo '127.0.0.1 localhost' > /run/hosts-2; mount --bind /run/hosts-2 /etc/hosts",
        "pkill -SEGV -x adit-resolver",
        "pkill -KILL -x adit-resolver",
    ];
    for (address, disturb) in (102..).zip(disturbances) {
        left.sh(disturb);
        world.dns.set(&[&format!("10.2.0.{address}")]);
        right.sh(&format!(
            "set -e; ip -4 addr flush dev eth0; ip addr add 10.2.0.{address}/24 dev eth0; ip route add default via 10.2.0.1"
        ));
        wait_for("the tunnel works again", seconds(60), || {
            world.is_answered()
        });
        assert_eq!(
            world.endpoint(),
            format!("10.2.0.{address}:51820"),
            "{disturb}"
        );
    }
}

/// Its own traffic is all that gets around the tunnel: the system's look-ups wait for it in vain.
#[test]
fn a_name_is_looked_up_around_a_tunnel_that_takes_everything() {
    if !Program::Adit.is_adit() {
        return;
    }
    let world = World::with_dns_at(Program::Adit, "10.2.0.1");
    world.dns.set(&["10.2.0.100"]);
    world.up_for(Some("0.0.0.0/0"));
    ping(&world.net.left, "192.168.77.2", 3);
    world.dns.set(&["10.2.0.102"]);
    world.net.right.sh(
        "set -e; ip -4 addr flush dev eth0; ip addr add 10.2.0.102/24 dev eth0; ip route add default via 10.2.0.1",
    );
    wait_for("the tunnel works again", seconds(60), || {
        world.is_answered()
    });
    assert_eq!(world.endpoint(), "10.2.0.102:51820");
}

#[test]
fn a_lost_family_costs_no_tunnel() {
    for right in [Program::Adit, Program::WireguardGo] {
        let Some(right) = peer(right).filter(|_| Program::Adit.is_adit()) else {
            continue;
        };
        let world = World::new(right);
        world.dns.set(&["fd02::100", "10.2.0.100"]);
        world.net.router.sh(
            "nft 'add table ip6 hole; add chain ip6 hole forward { type filter hook forward priority 0; };
             add rule ip6 hole forward udp dport 51820 drop'",
        );
        world.up(true);
        assert_eq!(world.endpoint(), "[fd02::100]:51820");
        wait_for("the other family is tried", seconds(15), || {
            world.is_answered()
        });
        assert_eq!(world.endpoint(), "10.2.0.100:51820");
        drop(world.right);
    }
}

#[test]
fn a_name_of_an_added_peer_is_looked_up() {
    if !Program::Adit.is_adit() {
        return;
    }
    let world = World::new(Program::Adit);
    world.up(false);
    let key = &world.right_keys.public;
    // It has no address yet.
    world.adit(&format!(
        "add wg0 {key} --endpoint right.test:51820 --allowed-ips 192.168.77.2/32"
    ));
    assert_eq!(world.endpoint(), "(none)");
    // The process that goes on in place of this one knows the name, too.
    world.adit("upgrade wg0");
    world.dns.set(&["10.2.0.100"]);
    wait_for("the name is looked up again", seconds(60), || {
        world.endpoint() == "10.2.0.100:51820"
    });
    ping(&world.net.left, "192.168.77.2", 1);
    // An address that is set by hand stays.
    world
        .net
        .left
        .sh(&format!("wg set wg0 peer {key} endpoint 10.2.0.9:51820"));
    assert_eq!(world.endpoint(), "10.2.0.9:51820");
    std::thread::sleep(seconds(1));
    assert!(!world.is_answered());
    assert_eq!(world.endpoint(), "10.2.0.9:51820");
}
