//! Whether a gateway delays its peers when the path to another one fails.
//!
//! ```text
//!    fast 10.76.1.2 ──── veth ────┐
//!    wg0  10.77.0.2               gateway (wg0 10.77.0.1)
//!    slow 10.76.2.2 ── the path ──┘
//!    wg0, wg1 ... 10.77.1.1, 2 ...
//! ```
//!
//! One round of one case: the stream and the pings to `fast`, alone → the path to `slow` is broken
//! and flooded with 200 Mb/s → the pings again → the stream again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use adit_testbed::Host;
use adit_testbed::framing::TUNNEL_MTU;
use adit_testbed::process::Process;
use adit_testbed::stats::quantile;

use super::measures::{
    GAP, LOST, PING, PING_BESIDE, PING_BESIDE_P99, SLOW_TCP, STREAM, STREAM_BESIDE, STREAM_RATIO,
};
use super::peers::{address, interface};
use super::{Case, Values};
use crate::daemon::{self, READY};
use crate::hosts::{self, Keys, host, link};
use crate::implementation::Entry;
use crate::measure::wait;
use crate::pair::choose_congestion;
use crate::sandbox::Failure;
use crate::threads::{Stop, Threads};
use crate::tools::{self, Iperf};

/// The hosts, and the tunnels between them.
struct Gateway {
    // The daemons are stopped before their hosts go.
    daemons: Vec<Process>,
    slow_daemons: Vec<Process>,
    gateway: Host,
    fast: Host,
    slow: Host,
    peers: u8,
}

const INTERFACE: &str = "wg0";
const FAST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
const FAST_LINK: &str = "ve1";
const SLOW_LINK: &str = "ve2";

impl Gateway {
    fn new(entry: &Entry, peers: u8, congestion: &str) -> Result<Self, Failure> {
        let mut this = Self {
            daemons: Vec::new(),
            slow_daemons: Vec::new(),
            gateway: host()?,
            fast: host()?,
            slow: host()?,
            peers,
        };
        for (other, name, net) in [(&this.fast, FAST_LINK, 1), (&this.slow, SLOW_LINK, 2)] {
            link([&this.gateway, other], name, [10, 76, net])?;
        }
        this.tunnels(entry, congestion)?;
        let own = Ipv4Addr::new(10, 77, 0, 1).into();
        for to in (0..peers).map(address).chain([FAST]) {
            choose_congestion(&this.gateway, [own, to], INTERFACE, congestion)?;
        }
        Ok(this)
    }

    fn tunnels(&mut self, entry: &Entry, congestion: &str) -> Result<(), Failure> {
        let (at_gateway, fast) = (Keys::new()?, Keys::new()?);
        for host in [&self.gateway, &self.fast] {
            self.daemons.push(daemon::start(host, entry, INTERFACE)?);
        }
        let to_gateway = format!(
            "51820 peer {} endpoint 10.76.1.1:51820 allowed-ips 10.77.0.1/32",
            at_gateway.public
        );
        daemon::configure(&self.fast, &fast, INTERFACE, &to_gateway, FAST)?;
        let mut set = format!(
            "listen-port 51820 peer {} endpoint 10.76.1.2:51820 allowed-ips {FAST}/32",
            fast.public
        );
        for peer in 0..self.peers {
            let daemon = daemon::start(&self.slow, entry, &format!("wg{peer}"))?;
            self.slow_daemons.push(daemon);
            set += &interface(&self.slow, peer, 2, &at_gateway, congestion)?;
        }
        hosts::set(&self.gateway, INTERFACE, &at_gateway, &set)?;
        let own = Ipv4Addr::new(10, 77, 0, 1).into();
        self.gateway
            .bring_up(INTERFACE, &[(own, 16)], Some(hosts::MTU))?;
        daemon::wait_for(&self.gateway, FAST)?;
        for peer in 0..self.peers {
            daemon::wait_for(&self.gateway, address(peer))?;
        }
        Ok(())
    }

    /// Makes the path to the slow peers fail.
    fn fail(&mut self, case: Case) -> Result<(), Failure> {
        let nowhere = "02:00:00:00:00:99";
        match case {
            Case::Slow | Case::SlowPeers => {}
            Case::BlackHole => self.gateway.ip(&format!(
                "neigh replace 10.76.2.2 lladdr {nowhere} nud permanent dev {SLOW_LINK}"
            ))?,
            Case::NoNeighbour => {
                self.slow.ip(&format!("link set {SLOW_LINK} arp off"))?;
                self.gateway.ip(&format!("neigh flush dev {SLOW_LINK}"))?;
            }
            Case::NoRoute => self
                .gateway
                .ip(&format!("route del 10.76.2.0/24 dev {SLOW_LINK}"))?,
            _ => self.slow_daemons.clear(),
        }
        Ok(())
    }

    /// The slow path: 10 Mb/s, and a queue that is longer than any socket's buffer, as that of a
    /// modem.
    fn slow_down(&self) -> Result<(), Failure> {
        let shaper =
            format!("qdisc add dev {SLOW_LINK} root tbf rate 10mbit burst 20kb limit 20mb");
        let words: Vec<&str> = shaper.split_whitespace().collect();
        self.gateway.output("tc", &words, READY)?;
        Ok(())
    }

    fn stream(&self, to: &Host, address: IpAddr, seconds: u32) -> Result<f64, Failure> {
        let flow = Iperf::tcp(1, seconds).start_between(&self.gateway, to, address)?;
        Ok(flow.finish()?.gbps())
    }
}

const PING_EVERY: Duration = Duration::from_millis(10);
const PINGS: u32 = 300;
/// Seconds of each stream.
const SECONDS: u32 = 3;

/// How many peers are behind the path.
fn peers(case: Case) -> u8 {
    match case {
        Case::SlowPeers => 50,
        _ => 1,
    }
}

/// One round of one case.
pub(super) fn slow(entry: &Entry, case: Case, congestion: &str) -> Result<Values, Failure> {
    let mut hosts = Gateway::new(entry, peers(case), congestion)?;
    let mut values = Vec::new();
    if matches!(case, Case::Slow | Case::SlowPeers) {
        hosts.slow_down()?;
    }
    if case == Case::Slow {
        let gbps = hosts.stream(&hosts.slow, address(0), 5)?;
        values.push((SLOW_TCP, gbps * 1000.0));
        // Until the queues on the way are empty.
        wait(Duration::from_secs(7))?;
        daemon::wait_for(&hosts.gateway, FAST)?;
    }
    let alone = hosts.stream(&hosts.fast, FAST, SECONDS)?;
    let pings = tools::ping_from(&hosts.gateway, FAST, PING_EVERY, PINGS / 3, 3)?;
    values.push((STREAM, alone));
    values.extend(quantile(&pings.times, 0.5).map(|p50| (PING, p50 / 1000.0)));

    hosts.fail(case)?;
    let (mut flooding, peers) = (Threads::new(), hosts.peers);
    flooding.start(&hosts.gateway, move |stop| flood(peers, stop))?;
    wait(Duration::from_secs(1))?;
    // At the deadline those that are still not answered count as lost.
    let beside = tools::ping_from(&hosts.gateway, FAST, PING_EVERY, PINGS, 5);
    match beside {
        Ok(pings) => {
            let at = |q| quantile(&pings.times, q).map(|time| time / 1000.0);
            values.extend(at(0.5).map(|p50| (PING_BESIDE, p50)));
            values.extend(at(0.99).map(|p99| (PING_BESIDE_P99, p99)));
            values.push((LOST, pings.lost));
            values.push((GAP, pings.longest_gap * 1000.0));
        }
        Err(_) => {
            values.push((LOST, 100.0));
            values.push((GAP, PING_EVERY.as_secs_f64() * f64::from(PINGS) * 1000.0));
        }
    }
    // A stream that cannot even connect reached nothing.
    let beside = hosts.stream(&hosts.fast, FAST, SECONDS).unwrap_or(0.0);
    flooding.finish()?;
    values.push((STREAM_BESIDE, beside));
    values.push((STREAM_RATIO, beside / alone));
    Ok(values)
}

/// UDP payload of each datagram, in octets: the longest that fits the tunnel.
const FLOOD_BYTES: usize = TUNNEL_MTU - 28;
/// Bits a second of all of them.
const FLOOD_RATE: f64 = 200e6;

/// Sends to each peer in turn, in bursts of a millisecond.
fn flood(peers: u8, stop: &Stop) {
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) else {
        return;
    };
    // A blocked tunnel must not block the flood: what does not fit is dropped.
    let _ = socket.set_nonblocking(true);
    let payload = [0; FLOOD_BYTES];
    let begun = Instant::now();
    let (mut sent, mut peer) = (0.0, 0);
    while stop.goes_on() {
        let due = begun.elapsed().as_secs_f64() * FLOOD_RATE / 8.0;
        while sent < due {
            let _ = socket.send_to(&payload, SocketAddr::new(address(peer), 9));
            sent += payload.len() as f64;
            peer = (peer + 1) % peers;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
