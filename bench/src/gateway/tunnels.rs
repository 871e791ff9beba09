//! Two hosts with several tunnels between them.
//!
//! ```text
//!    left 10.76.1.1 ───────── veth ───────── 10.76.1.2 right
//!    wg0, wg1 ...  10.78.0.1, 10.78.1.1 ...  10.78.0.2 ...
//! ```
//!
//! Each host runs one process where the implementation can serve several interfaces, or else one
//! for each. IPsec has one interface for all tunnels. Without tunnels the link has their addresses.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use adit_testbed::process::Process;
use adit_testbed::stats::to_f64;
use adit_testbed::{Host, proc};

use super::Values;
use super::measures::{
    COUNT, FOUR_CPU, FOUR_CPU_RATIO, FOUR_MEMORY, FOUR_MEMORY_RATIO, FOUR_RATE, FOUR_RATE_RATIO,
    IDLE_CPU, MEMORY, MEMORY_EACH, ONE_CPU, ONE_MEMORY, ONE_RATE, START, START_EACH, THREADS,
};
use crate::daemon;
use crate::generator::Streams;
use crate::hosts::{self, Keys, host, link};
use crate::implementation::{Entry, Implementation};
use crate::ipsec;
use crate::measure::wait;
use crate::pair::choose_congestion;
use crate::sandbox::Failure;
use crate::tools::{Iperf, Running};

const LINK: &str = "ve1";
/// Seconds of each stream.
const SECONDS: u32 = 4;

/// The hosts, and what runs there.
pub(crate) struct Tunnels {
    // The daemons are stopped before their hosts go.
    daemons: Vec<Process>,
    pub(crate) left: Host,
    pub(crate) right: Host,
    who: Implementation,
    count: u8,
}

/// The inner address of one end of a tunnel: 1 for the left one, 2 for the right one.
pub(crate) fn inner(tunnel: u8, end: u8) -> IpAddr {
    Ipv4Addr::new(10, 78, tunnel, end).into()
}

fn name(tunnel: usize) -> String {
    format!("wg{tunnel}")
}

impl Tunnels {
    /// Builds the hosts and so many tunnels, and waits until packets pass in each.
    pub(crate) fn new(entry: &Entry, count: u8) -> Result<Self, Failure> {
        let mut this = Self {
            daemons: Vec::new(),
            left: host()?,
            right: host()?,
            who: entry.who,
            count,
        };
        link([&this.left, &this.right], LINK, [10, 76, 1])?;
        match entry.who {
            Implementation::Direct => this.address(LINK)?,
            Implementation::Ipsec => this.ipsec()?,
            _ => this.connect(entry)?,
        }
        for tunnel in 0..count {
            daemon::wait_for(&this.left, inner(tunnel, 2))?;
        }
        Ok(this)
    }

    fn hosts(&self) -> [(&Host, u8); 2] {
        [(&self.left, 1), (&self.right, 2)]
    }

    /// Gives an interface the inner addresses of all tunnels.
    fn address(&self, interface: &str) -> Result<(), Failure> {
        for (host, end) in self.hosts() {
            let addresses: Vec<(IpAddr, u8)> = (0..self.count)
                .map(|tunnel| (inner(tunnel, end), 24))
                .collect();
            host.bring_up(interface, &addresses, None)?;
        }
        Ok(())
    }

    fn ipsec(&mut self) -> Result<(), Failure> {
        let tunnels = (0..self.count).map(|of| [1, 2].map(|end| format!("{}/32", inner(of, end))));
        let tunnels: Vec<[String; 2]> = tunnels.collect();
        let outer = [1, 2].map(|last| Ipv4Addr::new(10, 76, 1, last).into());
        let hosts = [&self.left, &self.right];
        self.daemons.extend(ipsec::start_both(hosts)?);
        self.address(ipsec::INTERFACE)?;
        ipsec::connect(hosts, outer, &tunnels)
    }

    fn connect(&mut self, entry: &Entry) -> Result<(), Failure> {
        let names: Vec<String> = (0..self.count.into()).map(name).collect();
        for host in [&self.left, &self.right] {
            self.daemons
                .extend(daemon::start_several(host, entry, &names)?);
        }
        for tunnel in 0..self.count {
            let keys = [Keys::new()?, Keys::new()?];
            for ((host, own), (ours, theirs)) in self.hosts().into_iter().zip([(0, 1), (1, 0)]) {
                let (name, port) = (name(tunnel.into()), 51_820 + u16::from(tunnel));
                let set = format!(
                    "listen-port {port} peer {} endpoint 10.76.1.{}:{port} allowed-ips 10.78.{tunnel}.0/24",
                    keys[theirs].public,
                    3 - own
                );
                hosts::set(host, &name, &keys[ours], &set)?;
                host.bring_up(&name, &[(inner(tunnel, own), 24)], Some(hosts::MTU))?;
            }
        }
        Ok(())
    }

    /// Every TCP connection through a tunnel begins with this congestion control from now on, instead
    /// of the machine's.
    pub(crate) fn choose_congestion(&self, control: &str) -> Result<(), Failure> {
        for (host, end) in self.hosts() {
            for tunnel in 0..self.count {
                let ends = [inner(tunnel, end), inner(tunnel, 3 - end)];
                choose_congestion(host, ends, &self.interface(tunnel), control)?;
            }
        }
        Ok(())
    }

    /// The interface that leads into a tunnel.
    fn interface(&self, tunnel: u8) -> String {
        match self.who {
            Implementation::Direct => LINK.to_owned(),
            Implementation::Ipsec => ipsec::INTERFACE.to_owned(),
            _ => name(tunnel.into()),
        }
    }

    /// Runs TCP streams from left to right, of which the tunnels take turns: Gb/s.
    pub(crate) fn streams(&self, streams: Streams) -> Result<f64, Failure> {
        let to: Vec<IpAddr> = (0..self.count).map(|tunnel| inner(tunnel, 2)).collect();
        let (left, right) = (&self.left, &self.right);
        let running = streams.start(left, right, &to)?;
        Ok(running.finish(left, right)?.gbps())
    }

    /// The process numbers of both ends' daemons, of an implementation with one for each.
    pub(crate) fn pair(&self) -> Result<[u32; 2], Failure> {
        match &self.daemons[..] {
            [left, right] => Ok([left.id(), right.id()]),
            all => Err(format!("the hosts have {} daemons instead of two", all.len()).into()),
        }
    }

    fn cpu_time(&self) -> Result<Duration, Failure> {
        let times = self
            .daemons
            .iter()
            .map(|daemon| proc::cpu_time(daemon.id()));
        Ok(times.sum::<std::io::Result<Duration>>()?)
    }

    /// In MiB.
    fn memory(&self) -> Result<f64, Failure> {
        memory(&self.daemons)
    }

    /// Four TCP streams from left to right, shared by the tunnels: Gb/s, and CPU seconds of all
    /// daemons for each GB.
    fn load(&self, tunnels: u8) -> Result<(f64, f64), Failure> {
        let before = self.cpu_time()?;
        let streams = (0..tunnels).map(|tunnel| {
            let iperf = Iperf::tcp(4 / u32::from(tunnels), SECONDS);
            iperf.start_between(&self.left, &self.right, inner(tunnel, 2))
        });
        let streams = streams.collect::<Result<Vec<Running>, _>>()?;
        let (mut gbps, mut bytes) = (0.0, 0.0);
        for stream in streams {
            let flow = stream.finish()?;
            gbps += flow.gbps();
            bytes += flow.bytes;
        }
        let spent = self.cpu_time()?.saturating_sub(before);
        Ok((gbps, spent.as_secs_f64() / (bytes / 1e9)))
    }
}

fn memory(daemons: &[Process]) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for daemon in daemons {
        sum += proc::memory(daemon.id())?.now;
    }
    Ok(sum)
}

/// Four tunnels against one.
pub(super) fn four(entry: &Entry, congestion: &str) -> Result<Values, Failure> {
    let measured = |tunnels: u8| -> Result<[f64; 3], Failure> {
        let hosts = Tunnels::new(entry, tunnels)?;
        hosts.choose_congestion(congestion)?;
        let (gbps, cpu) = hosts.load(tunnels)?;
        Ok([gbps, cpu, hosts.memory()?])
    };
    let (one, four) = (measured(1)?, measured(4)?);
    Ok(vec![
        (ONE_RATE, one[0]),
        (FOUR_RATE, four[0]),
        (FOUR_RATE_RATIO, four[0] / one[0]),
        (ONE_CPU, one[1]),
        (FOUR_CPU, four[1]),
        (FOUR_CPU_RATIO, four[1] / one[1]),
        (ONE_MEMORY, one[2]),
        (FOUR_MEMORY, four[2]),
        (FOUR_MEMORY_RATIO, four[2] / one[2]),
    ])
}

/// Idle interfaces, in one process where the implementation can.
pub(super) fn interfaces(entry: &Entry, count: usize) -> Result<Values, Failure> {
    let host = host()?;
    let names: Vec<String> = (0..count).map(name).collect();
    let begun = Instant::now();
    let daemons = daemon::start_several(&host, entry, &names)?;
    let start = begun.elapsed().as_secs_f64();
    let (own, peer) = (Keys::new()?.private(), Keys::new()?.public);
    host.run(move || std::fs::write("/run/key", own))?;
    let script = format!(
        "set -e; for i in $(seq 0 {}); do wg set wg$i private-key /run/key peer {peer} allowed-ips \
         10.$((i / 250)).$((i % 250)).0/24; ip link set wg$i up; done",
        count - 1
    );
    host.output("sh", &["-c", &script], Duration::from_secs(120))?;
    let cpu = || -> Result<Duration, Failure> {
        let times = daemons.iter().map(|daemon| proc::cpu_time(daemon.id()));
        Ok(times.sum::<std::io::Result<Duration>>()?)
    };
    // Until what the links' events caused is done.
    wait(Duration::from_secs(2))?;
    let before = cpu()?;
    wait(Duration::from_secs(5))?;
    let idle = cpu()?.saturating_sub(before);
    let mut threads = 0;
    for daemon in &daemons {
        threads += proc::threads(daemon.id())?;
    }
    let memory = memory(&daemons)?;
    let each = to_f64(count);
    Ok(vec![
        (COUNT, each),
        (START, start),
        (START_EACH, start * 1000.0 / each),
        (MEMORY, memory),
        (MEMORY_EACH, memory * 1024.0 / each),
        (THREADS, to_f64(threads)),
        (IDLE_CPU, idle.as_secs_f64() * 1000.0),
    ])
}
