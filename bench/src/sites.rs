//! Two sites with several tunnels between their gateways, which forward what hosts behind them send.
//!
//! ```text
//!  west            left gateway                   right gateway            east
//!  10.80.0.0/16 ── lan ── wg0 wg1 ... ─ tunnels ─ wg0 wg1 ... ── lan ── 10.81.0.0/16
//!                  wan 10.76.2.1 ──────── veth ──────── 10.76.2.2 wan
//! ```
//!
//! Each tunnel carries one part of both networks: with four of them, a /18. Packets are counted where they
//! arrive behind the other gateway. There they have an address that nobody has, and the kernel drops
//! them: no application takes a part of the cores.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use adit_testbed::framing::TUNNEL_MTU;
use adit_testbed::process::Process;
use adit_testbed::stats::to_f64;
use adit_testbed::{Host, proc};
use nix::sys::socket::{setsockopt, sockopt};

use crate::daemon;
use crate::hosts::{self, Keys};
use crate::implementation::{Entry, Implementation};
use crate::ipsec;
use crate::measure::wait;
use crate::sandbox::Failure;
use crate::threads::{Stop, Threads};

const WAN: &str = "wan";
const LAN: &str = "lan";
/// Octets of an IP packet before it enters a tunnel, if the tunnel takes it.
pub(crate) const PACKET: usize = TUNNEL_MTU;
/// Of which this is IP and UDP.
const HEADERS: usize = 28;
/// Flows in each tunnel and direction.
const FLOWS: u16 = 4;
const PORT: u16 = 5304;
/// Datagrams of one send, which leave as packets of their own.
const TRAIN: usize = 8;
/// What a sender that could not run makes up for, at most.
const LATE: Duration = Duration::from_millis(5);
const WARM_UP: Duration = Duration::from_millis(300);
const TIME: Duration = Duration::from_millis(800);
/// Until queues are empty.
const PAUSE: Duration = Duration::from_millis(200);
/// Packets a second in each direction that are offered first, and the factor from one rate to the next.
const FIRST: f64 = 20_000.0;
const STEP: f64 = 1.4;
const MAX_STEPS: usize = 16;
/// More than a rate before, or it is as good as the same.
const BETTER: f64 = 1.02;

/// The hosts, and what runs there.
pub(crate) struct Sites {
    // The daemons are stopped before their hosts go.
    daemons: Vec<Process>,
    gateways: [Host; 2],
    /// West and east.
    hosts: [Host; 2],
    tunnels: u8,
    /// Octets of an IP packet.
    packet: usize,
}

/// What was forwarded in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forwarded {
    /// Octets of an IP packet.
    pub(crate) packet: usize,
    /// Packets a second that were sent.
    pub(crate) offered: f64,
    /// Those that arrived behind the other gateway.
    pub(crate) arrived: f64,
    /// CPU microseconds of both gateways' daemons for each of these, if there are daemons.
    pub(crate) cpu_us: Option<f64>,
}

impl Forwarded {
    /// IP packets in both directions.
    pub(crate) fn gbps(&self) -> f64 {
        self.gbps_of(self.arrived)
    }

    pub(crate) fn offered_gbps(&self) -> f64 {
        self.gbps_of(self.offered)
    }

    fn gbps_of(&self, packets: f64) -> f64 {
        packets * to_f64(self.packet) * 8.0 / 1e9
    }
}

/// Octets of the IP packets that sites send through a tunnel of this implementation.
pub(crate) fn packet(who: Implementation) -> usize {
    PACKET.min(who.longest())
}

/// Part `index` of `parts` of a site's network, with this last octet.
fn address(site: u8, index: u8, parts: u8, last: u8) -> Ipv4Addr {
    let third = usize::from(index) * 256 / usize::from(parts);
    Ipv4Addr::new(10, 80 + site, third.to_le_bytes()[0], last)
}

/// The same as a network, for `ip` and `wg`. There are 1, 2 or 4 parts.
fn network(site: u8, index: u8, parts: u8) -> String {
    format!("{}/{}", address(site, index, parts, 0), 16 + parts.ilog2())
}

fn host() -> Result<Host, Failure> {
    let host = hosts::host()?;
    host.bring_up("lo", &[], None)?;
    Ok(host)
}

impl Sites {
    /// Builds the sites with so many tunnels, 1, 2 or 4, and waits until packets pass in each. Without
    /// tunnels the gateways route to each other.
    pub(crate) fn new(entry: &Entry, tunnels: u8) -> Result<Self, Failure> {
        let mut this = Self {
            daemons: Vec::new(),
            gateways: [host()?, host()?],
            hosts: [host()?, host()?],
            tunnels,
            packet: packet(entry.who),
        };
        this.link()?;
        match entry.who {
            Implementation::Direct => {
                for (site, gateway) in (0..).zip(&this.gateways) {
                    let other = 1 - site;
                    let to = network(other, 0, 1);
                    gateway.ip(&format!("route add {to} via 10.76.2.{}", other + 1))?;
                }
            }
            Implementation::Ipsec => this.ipsec()?,
            _ => this.connect(entry)?,
        }
        for tunnel in 0..tunnels {
            this.wait_for(tunnel)?;
        }
        Ok(this)
    }

    fn link(&self) -> Result<(), Failure> {
        let [left, right] = &self.gateways;
        hosts::link([left, right], WAN, [10, 76, 2])?;
        for ((site, gateway), host) in (0..).zip(&self.gateways).zip(&self.hosts) {
            hosts::link([gateway, host], LAN, [10, 82, site])?;
            gateway.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
            gateway.ip(&format!(
                "route add {} via 10.82.{site}.2",
                network(site, 0, 1)
            ))?;
            // What it sends in one call arrives at the gateway in single packets, as from elsewhere.
            host.ip(&format!("link set {LAN} gso_max_segs 1"))?;
            for index in 0..self.tunnels {
                let own = address(site, index, self.tunnels, 1);
                let to = network(1 - site, index, self.tunnels);
                host.ip(&format!("address add {own}/32 dev lo"))?;
                host.ip(&format!("route add {to} via 10.82.{site}.1 src {own}"))?;
            }
        }
        Ok(())
    }

    fn connect(&mut self, entry: &Entry) -> Result<(), Failure> {
        let name = |tunnel: u8| format!("wg{tunnel}");
        let names: Vec<String> = (0..self.tunnels).map(name).collect();
        for gateway in &self.gateways {
            self.daemons
                .extend(daemon::start_several(gateway, entry, &names)?);
        }
        for (tunnel, name) in (0..).zip(&names) {
            let keys = [Keys::new()?, Keys::new()?];
            for (site, gateway) in (0..).zip(&self.gateways) {
                let other = 1 - site;
                let [own, peer] = [site, other].map(|of| &keys[usize::from(of)]);
                let port = 51_820 + u16::from(tunnel);
                let (last, to) = (other + 1, network(other, tunnel, self.tunnels));
                let set = format!(
                    "listen-port {port} peer {} endpoint 10.76.2.{last}:{port} allowed-ips {to}",
                    peer.public
                );
                hosts::set(gateway, name, own, &set)?;
                gateway.bring_up(name, &[], Some(hosts::MTU))?;
                gateway.ip(&format!("route add {to} dev {name}"))?;
            }
        }
        Ok(())
    }

    /// One charon at each end, with a child for each tunnel.
    fn ipsec(&mut self) -> Result<(), Failure> {
        let network = |site, tunnel| network(site, tunnel, self.tunnels);
        let tunnels = (0..self.tunnels).map(|tunnel| [network(0, tunnel), network(1, tunnel)]);
        let tunnels: Vec<[String; 2]> = tunnels.collect();
        let wan = [1, 2].map(|last| Ipv4Addr::new(10, 76, 2, last).into());
        let [left, right] = &self.gateways;
        self.daemons.extend(ipsec::start_both([left, right])?);
        for (gateway, own, other) in [(left, 0, 1), (right, 1, 0_u8)] {
            for (index, tunnel) in (0..).zip(&tunnels) {
                let (name, to) = (ipsec::INTERFACE, &tunnel[usize::from(other)]);
                let own = address(own, index, self.tunnels, 3);
                gateway.ip(&format!("address add {own}/32 dev {name}"))?;
                gateway.ip(&format!("route add {to} dev {name}"))?;
            }
        }
        ipsec::connect([left, right], wan, &tunnels)
    }

    /// Until the addresses of both ends of a tunnel reach each other.
    fn wait_for(&self, tunnel: u8) -> Result<(), Failure> {
        let from = address(0, tunnel, self.tunnels, 1).to_string();
        let to = address(1, tunnel, self.tunnels, 1).to_string();
        daemon::wait_for_ping(&self.hosts[0], &["-c1", "-W1", "-I", &from, &to])
            .map_err(|why| format!("tunnel {tunnel}: {why}").into())
    }

    /// The most that is forwarded in both directions at once: more and more is offered, until no more
    /// arrives.
    pub(crate) fn most(&self) -> Result<Forwarded, Failure> {
        let mut best = Forwarded {
            packet: self.packet,
            ..Forwarded::default()
        };
        let (mut rate, mut worse) = (FIRST, 0);
        for _ in 0..MAX_STEPS {
            let now = self.offer(rate)?;
            if now.arrived > best.arrived * BETTER {
                best = now;
                worse = 0;
            } else {
                worse += 1;
                if worse == 2 {
                    break;
                }
            }
            rate *= STEP;
        }
        if best.arrived == 0.0 {
            return Err("no packet arrived".into());
        }
        Ok(best)
    }

    /// Sends `rate` packets a second in each direction.
    fn offer(&self, rate: f64) -> Result<Forwarded, Failure> {
        let sent: Arc<AtomicU64> = Arc::default();
        let mut senders = Threads::new();
        for (site, host) in (0..).zip(&self.hosts) {
            let (sent, tunnels, len) = (Arc::clone(&sent), self.tunnels, self.packet - HEADERS);
            senders.start(host, move |stop| {
                send(site, tunnels, len, rate, stop, &sent)
            })?;
        }
        let measured = self.measure(&sent);
        senders.finish()?.into_iter().collect::<Result<(), _>>()?;
        wait(PAUSE)?;
        measured
    }

    fn measure(&self, sent: &AtomicU64) -> Result<Forwarded, Failure> {
        let now = || -> Result<_, Failure> {
            let mut arrived = 0;
            for host in &self.hosts {
                arrived += host.run(received)?;
            }
            let mut cpu = Duration::ZERO;
            for daemon in &self.daemons {
                cpu += proc::cpu_time(daemon.id())?;
            }
            Ok((Instant::now(), sent.load(Relaxed), arrived, cpu))
        };
        wait(WARM_UP)?;
        let before = now()?;
        wait(TIME)?;
        let after = now()?;
        let seconds = (after.0 - before.0).as_secs_f64();
        let count = |now: u64, then: u64| -> Result<f64, Failure> {
            Ok(to_f64(usize::try_from(now.saturating_sub(then))?))
        };
        let arrived = count(after.2, before.2)?;
        let cpu = after.3.saturating_sub(before.3).as_secs_f64();
        let has_cpu = !self.daemons.is_empty() && arrived > 0.0;
        Ok(Forwarded {
            packet: self.packet,
            offered: count(after.1, before.1)? / seconds,
            arrived: arrived / seconds,
            cpu_us: has_cpu.then(|| cpu * 1e6 / arrived),
        })
    }
}

/// Sends datagrams of `len` octets from one site to addresses that nobody has at the other one, until
/// it is to stop.
fn send(
    site: u8,
    tunnels: u8,
    len: usize,
    rate: f64,
    stop: &Stop,
    sent: &AtomicU64,
) -> Result<(), Failure> {
    let mut sockets = Vec::new();
    for (index, flow) in (0..tunnels).flat_map(|index| (0..FLOWS).map(move |flow| (index, flow))) {
        let from = IpAddr::from(address(site, index, tunnels, 1));
        let to = IpAddr::from(address(1 - site, index, tunnels, 2));
        let socket = UdpSocket::bind(SocketAddr::new(from, PORT + flow))?;
        socket.connect(SocketAddr::new(to, PORT))?;
        setsockopt(&socket, sockopt::UdpGsoSegment, &i32::try_from(len)?)?;
        sockets.push(socket);
    }
    let train = vec![0; len * TRAIN];
    let mut begun = Instant::now();
    let mut due = 0.0;
    for socket in sockets.iter().cycle() {
        loop {
            if !stop.goes_on() {
                return Ok(());
            }
            let elapsed = begun.elapsed().as_secs_f64() * rate;
            if elapsed >= due {
                if elapsed - due > LATE.as_secs_f64() * rate {
                    begun = Instant::now();
                    due = 0.0;
                }
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        due += to_f64(TRAIN);
        sent.fetch_add(TRAIN as u64, Relaxed);
        // What a full queue refuses was offered all the same.
        let _ = socket.send(&train);
    }
    Ok(())
}

/// IP packets that arrived in the network namespace of the calling thread, merged ones by their number.
fn received() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat")?;
    counter(&text, "IpExt:", "InNoECTPkts").ok_or_else(|| "the kernel counts no packets".into())
}

/// A counter in the format of /proc/net/netstat: a line of names, and one of values.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|of| of == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_tunnels_have_a_quarter_of_each_network() {
        let parts: Vec<String> = (0..4).map(|index| network(1, index, 4)).collect();
        let four = [
            "10.81.0.0/18",
            "10.81.64.0/18",
            "10.81.128.0/18",
            "10.81.192.0/18",
        ];
        assert_eq!(parts, four);
        assert_eq!(network(0, 0, 1), "10.80.0.0/16");
        assert_eq!(address(0, 3, 4, 2), Ipv4Addr::new(10, 80, 192, 2));
    }

    #[test]
    fn a_counter_is_found_by_group_and_name() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: B InNoECTPkts\nIpExt: 3 4\n";
        assert_eq!(counter(text, "IpExt:", "InNoECTPkts"), Some(4));
        assert_eq!(counter(text, "TcpExt:", "B"), Some(2));
        assert_eq!(counter(text, "IpExt:", "A"), None);
    }
}
