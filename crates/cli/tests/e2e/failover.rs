//! Two gateways between which keepalived moves an address, as docs/failover.md has it, and a router behind them.

use std::time::{Duration, Instant};

use crate::gateways::adit;
use crate::harness::*;
use crate::routers::{MOVED, block, has_moved_to, install_keepalived, start_keepalived};

/// A service behind the gateways.
pub const INSIDE: &str = "10.80.0.1";
/// OSPF holds back what changes twice within 5 seconds, and repeats after 5 seconds what was lost.
const OSPF: Duration = seconds(20);
/// What the gateways have inside the tunnel.
pub const GATEWAY: &str = "192.168.77.1";

/// ```text
///   phone    (Adit) ─────────┐
///   laptop   (wireguard-go) ─ switch ─┬─ first ──┬─ inside
///   stranger (Adit) ─────────┘        └─ second ─┘  10.80.0.1
/// ```
pub struct Failover {
    pub switch: Container,
    pub gateways: [Container; 2],
    pub inside: Container,
    /// Those whose program is built; the stranger is the last one.
    pub clients: Vec<(Keys, Daemon)>,
    file: String,
    /// Whether the stranger has no access any more.
    is_removed: bool,
}

/// Stands for sshd of a gateway: it runs a line, with what follows as its input.
const SERVER: &str = "
import socketserver, subprocess
class Run(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline()
        subprocess.run(['sh', '-c', line], input=self.rfile.read())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
Server(('0.0.0.0', 22), Run).serve_forever()
";

/// Stands for ssh, without its options.
const CLIENT: &str = "#!/bin/bash
shift 3
exec 2> /dev/null
{ echo \"$*\"; cat; } | timeout 2 bash -c 'cat > /dev/tcp/192.0.2.OTHER/22'
";

impl Failover {
    /// The first gateway has the address, and all clients have an answer.
    pub fn new() -> Self {
        let [switch, inside] = ["switch", "inside"].map(Container::new);
        switch.sh("ip link add br0 type bridge; ip link set br0 up");
        let join = |host: &Container, n: u8| {
            let (own, port) = (format!("192.0.2.{n}/24"), format!("port{n}"));
            link(host, "eth0", &[&own], &switch, &port, &[]);
            switch.sh(&format!("ip link set {port} master br0"));
            // What is captured are single datagrams.
            host.sh("ethtool -K eth0 tx-udp-segmentation off");
        };
        let gateway = Keys::new();
        let programs = [
            ("phone", Some(Program::Adit)),
            ("laptop", peer(Program::WireguardGo)),
            ("stranger", Some(Program::Adit)),
        ];
        let keys: Vec<Keys> = programs.iter().map(|_| Keys::new()).collect();
        let mut file = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\nAddress = {GATEWAY}/32\n",
            gateway.private
        );
        for (keys, n) in keys.iter().zip(2..) {
            file += &format!(
                "[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.{n}/32\n",
                keys.public
            );
        }
        let mut at_inside = String::from(
            "router id 10.70.9.1;\nprotocol device {}\nprotocol kernel { ipv4 { import none; export all; }; }\n\
             protocol ospf v3 { ipv4 { import all; export none; }; area 0 {\n",
        );
        let gateways = [("first", 1), ("second", 2)].map(|(name, n)| {
            let host = Container::new(name);
            join(&host, n);
            let (own, other) = (format!("10.70.{n}.1/24"), format!("10.70.{n}.2/24"));
            link(
                &host,
                "eth1",
                &[&own],
                &inside,
                &format!("eth{n}"),
                &[&other],
            );
            host.forwards();
            host.sh(&format!("ip route add {INSIDE} via 10.70.{n}.2"));
            at_inside += &format!("interface \"eth{n}\" {{ type ptp; hello 1; }};\n");
            let config = block("protocol ospf")
                .replace("10.70.0.1", &format!("10.70.{n}.1"))
                .replace("inner4 {", "inner4 { disabled;");
            host.sh_with_input("cat > /run/bird.conf", &config);
            install_keepalived(&host, 200 - 50 * n);
            host.sh(
                "sed -i 's/^MASTER)/&\\nbirdc -s \\/run\\/bird.ctl enable inner4/; \
                 s/^\\*)/&\\nbirdc -s \\/run\\/bird.ctl disable inner4/' /etc/keepalived/wg0",
            );
            host.sh_with_input("nft -f -", &block("only-shared"));
            let other = (3 - n).to_string();
            host.sh_with_input(
                "rm -f /mnt/programs/ssh; cat > /mnt/programs/ssh; chmod 755 /mnt/programs/ssh",
                &CLIENT.replace("OTHER", &other),
            );
            host.sh_with_input("cat > /run/server", SERVER);
            host.sh("python3 /run/server < /dev/null > /dev/null 2>&1 &");
            host
        });
        inside.sh(&format!("ip addr add {INSIDE}/32 dev lo"));
        inside.sh_with_input("cat > /run/bird.conf", &(at_inside + "}; }\n"));
        start_bird(&inside);
        let mut all = Self {
            switch: switch.clone(),
            gateways,
            inside,
            clients: Vec::new(),
            file,
            is_removed: false,
        };
        all.write();
        for gateway in &all.gateways {
            start_bird(gateway);
            start_tunnel(gateway);
        }
        start_keepalived(&all.gateways[0]);
        wait_for("the address is at the first one", seconds(30), || {
            has_moved_to(&all.gateways[0])
        });
        start_keepalived(&all.gateways[1]);
        for (((name, program), keys), n) in programs.into_iter().zip(keys).zip(2..) {
            let Some(program) = program else { continue };
            let host = Container::new(name);
            join(&host, n + 6);
            let daemon = Daemon::start(&host, program, "wg0", &Start::default());
            let config = format!(
                "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {}\nAllowedIPs = {GATEWAY}/32, {INSIDE}/32\n\
                 Endpoint = {MOVED}:51820\n",
                keys.private, gateway.public
            );
            setconf(&host, "wg0", &config);
            host.sh(&format!(
                "ip addr add 192.168.77.{n}/32 dev wg0; ip link set wg0 up; ip route add {GATEWAY} dev wg0; \
                 ip route add {INSIDE} dev wg0"
            ));
            all.clients.push((keys, daemon));
        }
        all.is_whole(seconds(60));
        all
    }

    /// The tunnel's file of both gateways.
    fn write(&self) {
        for gateway in &self.gateways {
            gateway.sh_with_input("umask 077; cat > /etc/wireguard/wg0.conf", &self.file);
        }
    }

    /// The stranger has no access any more.
    pub fn removes_the_stranger(&mut self) {
        self.is_removed = true;
        let end = self.file.rfind("[Peer]").expect("a peer");
        self.file.truncate(end);
        self.write();
        for gateway in &self.gateways {
            let done = adit(gateway, "sync wg0");
            assert!(done.ok(), "{done:?}");
        }
    }

    /// Which gateways have the address.
    pub fn owners(&self) -> [bool; 2] {
        self.gateways.each_ref().map(has_moved_to)
    }

    /// The gateway with the address tells the other one where the peers are, as a timer has it.
    pub fn tells_where_peers_are(&self) {
        let [first, second] = &self.gateways;
        let (from, to) = match self.owners() {
            [true, false] => (first, second),
            [false, true] => (second, first),
            _ => return,
        };
        let list = adit(from, "call wg0 --list");
        if list.ok() {
            to.sh_with_input(
                "cat > /run/wg0.new && mv /run/wg0.new /run/wg0.endpoints",
                &list.stdout,
            );
        }
    }

    /// Within the time one gateway has the address, and while it has it every client that has access gets an answer of
    /// the gateway, and then from behind it, too. Returns how long these took.
    #[track_caller]
    pub fn is_whole(&self, limit: Duration) -> [Duration; 2] {
        let (begun, mut seen, mut answers) = (Instant::now(), None, None);
        loop {
            let owners = self.owners();
            let missing = self.missing();
            let sees = Some((owners, missing.clone()));
            let now = begun.elapsed();
            if sees != seen {
                println!(
                    "{:>6} ms    {owners:?} have the address, no answer: {missing:?}",
                    now.as_millis()
                );
                seen = sees;
            }
            let is_one = owners[0] != owners[1] && self.owners() == owners;
            if !is_one || missing.iter().any(|it| it.ends_with(GATEWAY)) {
                answers = None;
            } else if missing.is_empty() {
                return [answers.unwrap_or(now), now];
            } else {
                answers = answers.or(Some(now));
            }
            let limit = if answers.is_some() {
                limit + OSPF
            } else {
                limit
            };
            assert!(
                now < limit,
                "not within {limit:?}: {owners:?} have the address, no answer: {missing:?}\n{}",
                self.known()
            );
        }
    }

    /// Clients that get no answer at once, and of what address.
    fn missing(&self) -> Vec<String> {
        let ask = |client: &Container, to: &str| {
            let asked = client.try_sh(&format!("ping -n -q -c 1 -W 0.3 {to}"));
            (!asked.ok()).then(|| format!("{} {to}", client.name()))
        };
        std::thread::scope(|scope| {
            let clients = self.with_access().iter();
            let all = clients.flat_map(|(_, client)| [(client, GATEWAY), (client, INSIDE)]);
            let asking: Vec<_> = all
                .map(|(client, to)| scope.spawn(move || ask(&client.host, to)))
                .collect();
            let answers = asking
                .into_iter()
                .filter_map(|it| it.join().expect("it asks"));
            answers.collect()
        })
    }

    /// The clients that have access.
    pub fn with_access(&self) -> &[(Keys, Daemon)] {
        let count = self.clients.len() - usize::from(self.is_removed);
        &self.clients[..count]
    }

    pub fn stranger(&self) -> &(Keys, Daemon) {
        self.clients.last().expect("it is one of Adit")
    }

    /// The latest handshake of a gateway with each of its peers, in seconds since 1970, or 0.
    pub fn handshakes(gateway: &Container) -> Vec<u64> {
        let shown = gateway.sh("wg show wg0 latest-handshakes");
        let times = shown
            .lines()
            .filter_map(|line| line.split('\t').nth(1)?.parse().ok());
        times.collect()
    }

    /// For a test that fails.
    pub fn known(&self) -> String {
        let mut text = String::new();
        let look = "ip -br addr; wg show; tail -n 20 /run/log; tail -n 5 /run/called; birdc -s /run/bird.ctl show protocols; \
                    birdc -s /run/bird.ctl show route; ip route";
        for host in self.gateways.iter().chain([&self.inside]) {
            text += &format!(
                "--- {}\n{}",
                host.name(),
                host.try_sh(&format!("{look} 2>&1")).stdout
            );
        }
        for (_, client) in &self.clients {
            let told = client.host.try_sh("ip neigh; wg show wg0");
            text += &format!("--- {}\n{}", client.host.name(), told.stdout);
        }
        text
    }

    /// The switch lets nothing pass between the gateways, or does again.
    pub fn parts_gateways(&self, parts: bool) {
        let state = if parts { "on" } else { "off" };
        for n in [1, 2] {
            self.switch
                .sh(&format!("bridge link set dev port{n} isolated {state}"));
        }
    }
}

/// BIRD, and what its unit has to run afterwards: the routes are for the gateway that has the address.
pub fn start_bird(host: &Container) {
    host.sh(&format!(
        "rm -f /run/bird.ctl
         bird -f -c /run/bird.conf -s /run/bird.ctl -P /run/bird.pid < /dev/null >> /run/bird.log 2>&1 &
         until birdc -s /run/bird.ctl show status > /dev/null 2>&1; do sleep 0.05; done
         ip -o addr show to {MOVED} | grep -q . && birdc -s /run/bird.ctl enable inner4 > /dev/null || true"
    ));
}

/// The tunnel, and what its unit has to run afterwards: the peers are called from the address that they know.
pub fn start_tunnel(host: &Container) {
    let done = adit(host, "up wg0");
    assert!(done.ok(), "{done:?}");
    if has_moved_to(host) {
        let called = adit(host, &format!("call wg0 --from {MOVED}"));
        assert!(called.ok(), "{called:?}");
    }
}

#[test]
fn a_split_brain_that_ends_leaves_all_clients_connected() {
    if !Program::Adit.is_adit() {
        return;
    }
    let net = Failover::new();
    let [first, second] = &net.gateways;
    net.tells_where_peers_are();
    assert_eq!(net.owners(), [true, false]);
    net.parts_gateways(true);
    let split = Instant::now();
    wait_for("both have the address", seconds(30), || {
        net.owners() == [true, true]
    });
    wait_for("the second one has the clients", seconds(30), || {
        Failover::handshakes(second).iter().all(|at| *at > 0)
    });
    std::thread::sleep(seconds(10).saturating_sub(split.elapsed()));
    let before = Failover::handshakes(first);
    net.parts_gateways(false);
    // Promised is one second. Nobody is called: 15 seconds.
    let took = net.is_whole(seconds(5));
    println!(
        "whole {:?} after a split of 10 s, behind the gateway {:?}",
        took[0], took[1]
    );
    assert_eq!(net.owners(), [true, false]);
    let after = Failover::handshakes(first);
    assert!(
        after
            .iter()
            .zip(before)
            .all(|(after, before)| *after > before),
        "{after:?}"
    );
}

/// Sends back what it gets.
const ECHO: &str = "
import socket
server = socket.create_server(('10.80.0.1', 7000))
stream, _ = server.accept()
while data := stream.recv(65536):
    stream.sendall(data)
";

/// Has 10 KB come back each 20 ms, and says the longest time that took, in milliseconds.
const ASK: &str = "
import os, socket, time
stream = socket.create_connection(('10.80.0.1', 7000), timeout=60)
longest = 0
for n in range(300):
    data, begun = os.urandom(10_000), time.monotonic()
    stream.sendall(data)
    back = b''
    while len(back) < len(data):
        piece = stream.recv(65536)
        assert piece, 'it has ended'
        back += piece
    assert back == data
    longest = max(longest, time.monotonic() - begun)
    open('/run/asked', 'w').write(str(n))
    time.sleep(0.02)
print(round(1000 * longest))
";

#[test]
fn a_stream_through_a_gateway_outlives_it() {
    if !Program::Adit.is_adit() {
        return;
    }
    let net = Failover::new();
    net.tells_where_peers_are();
    assert_eq!(net.owners(), [true, false]);
    net.inside.sh_with_input("cat > /run/echo", ECHO);
    net.inside
        .sh("python3 /run/echo < /dev/null > /run/echo.log 2>&1 &");
    let phone = &net.clients[0].1.host;
    phone.sh_with_input("cat > /run/ask", ASK);
    phone.sh(
        "for n in $(seq 100); do ping -n -q -c 1 -W 0.3 10.80.0.1 > /dev/null && break; done
         rm -f /run/asked; { python3 /run/ask; echo $?; } < /dev/null > /run/ask.log 2>&1 &",
    );
    let asked = |least: u32| {
        wait_for(&format!("{least} answers"), seconds(90), || {
            let count = phone.sh("cat /run/asked 2> /dev/null || echo 0");
            count.trim().parse().is_ok_and(|count: u32| count >= least)
        });
    };
    asked(50);
    net.switch.sh("ip link set port1 down");
    asked(299);
    wait_for("it has ended", seconds(20), || {
        phone.sh("cat /run/ask.log").lines().count() >= 2
    });
    let told = phone.sh("cat /run/ask.log");
    println!("longest answer, ms, and exit status: {told}");
    let longest: Option<u32> = told.lines().next().and_then(|it| it.parse().ok());
    assert!(told.ends_with("\n0\n"), "{told}");
    // Without a call the phone misses its answer for 15 s before it begins a handshake.
    assert!(longest.is_some_and(|longest| longest < 14_000), "{told}");
    assert_eq!(net.owners(), [false, true]);
}
