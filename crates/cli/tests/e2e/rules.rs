//! `adit agent --rules`: what peers may open through their gateway.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::agent::{Hub, PEERS, record};
use crate::harness::*;
use crate::quick::{adit, only_adit};
use crate::why::why;

/// [`Hub`] with a host behind it:
///
/// ```text
///   phone (right) ──── hub (left) ──── behind
///   10.77.0.2,         10.77.0.1       10.3.0.2, fd03::2
///   fd78::2            fd78::1
/// ```
pub struct RuledHub {
    pub hub: Hub,
    behind: Container,
    listeners: Vec<TcpListener>,
}

impl RuledHub {
    /// With a phone whose record has this line, which is connected.
    pub fn new(line: &str) -> Self {
        let mut hub = Hub::new(&format!("dir:{PEERS}"));
        let behind = Container::new("behind");
        let addresses = (
            &["10.3.0.1/24", "fd03::1/64"],
            &["10.3.0.2/24", "fd03::2/64"],
        );
        link(
            hub.left(),
            "eth1",
            addresses.0,
            &behind,
            "eth0",
            addresses.1,
        );
        behind.sh("ip route add default via 10.3.0.1; ip -6 route add default via fd03::1");
        hub.left().forwards();
        hub.put("phone", &phone(&hub, line));
        hub.start(&["--rules"]);
        hub.has(&[&hub.phone.public]);
        hub.connect("AllowedIPs = 10.3.0.0/24, fd78::1/128, fd03::/64");
        let right = hub.world.net.right.clone();
        right.sh("ip addr add fd78::2/64 dev wg1 nodad");
        let mut listeners = Vec::new();
        for (host, ports) in [
            (&behind, &[80, 443][..]),
            (hub.left(), &[443]),
            (&right, &[7000]),
        ] {
            for &port in ports {
                listeners
                    .push(host.within(move || TcpListener::bind(("::", port)).expect("a port")));
            }
        }
        Self {
            hub,
            behind,
            listeners,
        }
    }

    pub fn right(&self) -> Container {
        self.hub.world.net.right.clone()
    }

    fn put(&self, line: &str) {
        self.hub.put("phone", &phone(&self.hub, line));
    }

    /// The phone opens these and not those; what was changed takes effect within some seconds.
    #[track_caller]
    fn opens(&self, open: &[&str], closed: &[&str]) {
        let right = self.right();
        for address in open {
            wait_for(address, seconds(20), || connect(&right, address).is_some());
        }
        for address in closed {
            wait_for(address, seconds(20), || connect(&right, address).is_none());
        }
        for address in open {
            assert!(connect(&right, address).is_some(), "{address}");
        }
    }

    fn table(&self) -> Option<String> {
        let listed = self.hub.left().try_sh("nft list table inet adit-rules-wg0");
        listed.ok().then_some(listed.stdout)
    }
}

fn phone(hub: &Hub, line: &str) -> String {
    record(&hub.phone.public, "10.77.0.2/32, fd78::2/128", line)
}

/// A connection, if there is one at once.
fn connect(from: &Container, to: &str) -> Option<TcpStream> {
    let to: SocketAddr = to.parse().expect("an address");
    from.within(move || TcpStream::connect_timeout(&to, Duration::from_millis(400)).ok())
}

const WEB: &str = "10.3.0.2:80";
const TLS: &str = "10.3.0.2:443";
const OF_HUB: &str = "10.77.0.1:443";

#[test]
fn a_peer_opens_what_its_record_allows_and_nothing_else() {
    if !only_adit() {
        return;
    }
    let world = RuledHub::new("AllowedPorts = 10.3.0.0/24 tcp/443, fd03::/64 tcp/80, icmp");
    let right = world.right();
    world.opens(
        &[TLS, "[fd03::2]:80"],
        &[WEB, "[fd03::2]:443", OF_HUB, "[fd78::1]:443"],
    );
    ping(&right, "10.3.0.2", 1);
    ping(&right, "fd03::2", 1);
    // Answers pass.
    assert!(connect(&world.behind, "10.77.0.2:7000").is_some());
    assert!(connect(world.hub.left(), "10.77.0.2:7000").is_some());
    let table = world.table().expect("a table");
    let dropped = table.lines().filter(|it| it.contains("counter packets"));
    assert!(
        dropped.clone().count() == 2 && dropped.clone().all(|it| !it.contains("packets 0 ")),
        "{table}"
    );
    let limits = |hub: &Hub| {
        let (_, report) = why(hub.left(), "wg0 10.77.0.2");
        let findings = report["peers"][0]["findings"].as_array().cloned();
        let mut findings = findings.expect("findings").into_iter();
        findings.find(|it| it["cause"] == "limited_by_rules")
    };
    let finding = limits(&world.hub).expect("a finding");
    assert_eq!(finding["problem"], false);
    assert!(finding["text"].to_string().contains("it has dropped "));
    // A change takes effect, also on what is open.
    let mut stream = connect(&right, TLS).expect("a connection");
    let own = stream.local_addr().expect("an address").port();
    let mut server = loop {
        let (server, from) = world.listeners[1].accept().expect("a connection");
        if from.port() == own {
            break server;
        }
    };
    world.put("AllowedPorts = tcp/80, tcp/7000");
    world.opens(&[WEB, "[fd03::2]:80"], &[TLS, OF_HUB]);
    ping_fails(&right, "10.3.0.2");
    stream.write_all(b"x").expect("a buffer");
    let patience = Some(Duration::from_secs(1));
    server.set_read_timeout(patience).expect("a timeout");
    let read = server.read(&mut [0; 8]).map_err(|error| error.kind());
    assert_eq!(read, Err(ErrorKind::WouldBlock));
    // Nothing at all, and without limits, beside a peer that has some.
    world.put("AllowedPorts =");
    world.opens(&[], &[WEB, TLS, "[fd03::2]:80", OF_HUB]);
    assert!(connect(&world.behind, "10.77.0.2:7000").is_some());
    let other = record(&Keys::new().public, "10.77.0.3/32", "# AllowedPorts = any");
    world.hub.put("other", &other);
    world.put("# friendly_name = phone");
    world.opens(&[WEB, TLS, "[fd03::2]:80", OF_HUB], &[]);
    assert_eq!(limits(&world.hub), None);
    // The table goes with the last one.
    assert!(world.table().expect("a table").contains("10.77.0.3 . "));
    world.hub.left().sh(&format!("rm {PEERS}/other.conf"));
    world.hub.has(&[&world.hub.phone.public]);
    wait_for("the table goes", seconds(20), || world.table().is_none());
}

#[test]
fn a_killed_agent_leaves_closed_what_was_closed() {
    if !only_adit() {
        return;
    }
    let mut world = RuledHub::new("AllowedPorts = tcp/443");
    world.opens(&[TLS], &[WEB]);
    // Another program empties the packet filter.
    world.hub.left().sh("nft flush ruleset");
    wait_for("the table is there", seconds(20), || {
        world.table().is_some()
    });
    world.opens(&[TLS], &[WEB, OF_HUB]);
    world.hub.kill();
    world.opens(&[TLS], &[WEB, OF_HUB]);
    // The next one does not know what a bad record allows.
    world.put("AllowedPorts = tcp/http");
    world.hub.start(&["--rules"]);
    world
        .hub
        .becomes(&[("refused", 1.into()), ("is_running", true.into())]);
    world.opens(&[TLS], &[WEB, OF_HUB]);
    world.put("AllowedPorts = tcp/80");
    world.opens(&[WEB], &[TLS, OF_HUB]);
    // Asked to end, it leaves the peer and its rules.
    world.hub.left().sh("pkill -TERM -x adit-supervisor");
    world.hub.becomes(&[("is_running", false.into())]);
    world.opens(&[WEB], &[TLS, OF_HUB]);
    // The process alone that sets the rules.
    world.hub.kill();
    world.hub.start(&["--rules"]);
    world.hub.becomes(&[("is_running", true.into())]);
    world.put("AllowedPorts = tcp/443");
    world.opens(&[TLS], &[WEB]);
    world.hub.left().sh("pkill -9 -x adit-rules");
    // Without a change of a record.
    wait_for("the agent has failed", seconds(20), || {
        world.hub.exit_status().is_some_and(|it| it != 0)
    });
    world.hub.becomes(&[("is_running", false.into())]);
    world.opens(&[TLS], &[WEB]);
    world.hub.start(&["--rules"]);
    world.put("AllowedPorts = tcp/80");
    world.opens(&[WEB], &[TLS]);
}

#[test]
fn without_rules_a_peer_that_has_some_is_not_there() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    let left = hub.left().clone();
    let laptop = Keys::new();
    hub.put("phone", &phone(&hub, ""));
    hub.put("laptop", &record(&laptop.public, "10.77.0.3/32", ""));
    hub.start(&[]);
    hub.has(&[&hub.phone.public, &laptop.public]);
    let is_refused = |hub: &Hub, words: &str| {
        hub.has(&[&laptop.public]);
        hub.becomes(&[("refused", 1.into()), ("applied", 1.into())]);
        let reason = hub.status()["refusals"][0]["reason"].to_string();
        assert!(reason.contains(words), "{reason}");
    };
    hub.put("phone", &phone(&hub, "AllowedPorts = tcp/443"));
    is_refused(&hub, "started without --rules");
    hub.put("phone", &phone(&hub, ""));
    hub.has(&[&hub.phone.public, &laptop.public]);
    hub.kill();
    // Without the right to set them.
    let mut command = left.command("setpriv");
    command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
    command.arg(adit());
    hub.start_by(command, &["--rules"]);
    hub.becomes(&[("is_running", true.into()), ("applied", 2.into())]);
    hub.put("phone", &phone(&hub, "AllowedPorts = tcp/443"));
    is_refused(&hub, "--rules needs CAP_NET_ADMIN");
    let failure = hub.status()["failure"].to_string();
    assert!(failure.contains("needs CAP_NET_ADMIN"), "{failure}");
    let told = left.sh(&format!("{} agent status wg0", adit()));
    assert!(
        told.contains("cannot limit peers to their AllowedPorts"),
        "{told}"
    );
    hub.kill();
    hub.start(&["--rules"]);
    hub.has(&[&hub.phone.public, &laptop.public]);
    hub.becomes(&[("refused", 0.into())]);
    assert!(
        left.sh("nft list ruleset")
            .contains("10.77.0.2 . 0.0.0.0/0 . tcp . 443")
    );
}
