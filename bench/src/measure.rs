//! One step on one pair of hosts: load it, and read what it did.

use std::time::{Duration, Instant};

use adit_testbed::framing::Family;
use adit_testbed::stats::quantile;
use adit_testbed::{interrupt, proc};

use crate::generator::{Answers, Flood, Streams};
use crate::metric::Step;
use crate::pair::LinkedHosts;
use crate::sandbox::Failure;
use crate::tools::{Flow, Iperf, Pings, ping};

/// A value of the metric of that name.
pub(crate) type Values = Vec<(&'static str, f64)>;

/// Does the step and returns its values. `Memory` is read around the others, by [`idle_memory`] and
/// [`peak_memory`].
pub(crate) fn step(step: Step, pair: &LinkedHosts) -> Result<Values, Failure> {
    let seconds = step.seconds();
    let time = Duration::from_secs(seconds.into());
    let b = pair.address(Family::V4, 1);
    let tcp = |streams| Iperf {
        warm_up: step.warm_up(),
        ..Iperf::tcp(streams, seconds)
    };
    let own = |count| Streams {
        count,
        time,
        warm_up: Duration::from_secs(step.warm_up().into()),
        ..Streams::default()
    };
    let flood = |len, trains| Flood { len, trains, time };
    match step {
        Step::Memory => Ok(Vec::new()),
        Step::Ping => idle_ping(pair, seconds),
        Step::PingLoad => loaded_ping(pair, seconds),
        Step::Answers => answers(pair, seconds, step.warm_up()),
        Step::Tcp1 => with_cpu(pair, tcp(1), TCP1),
        Step::Tcp1Pinned => with_cpu(pair, tcp(1), TCP1_PINNED),
        Step::Tcp8 => Ok(rated(tcp(8).run(pair, b)?, "tcp8", "tcp8.retransmits")),
        Step::Tcp128 => Ok(rated(
            tcp(128).run(pair, b)?,
            "tcp128",
            "tcp128.retransmits",
        )),
        Step::Bidir => {
            let both = Iperf {
                bidirectional: true,
                ..tcp(1)
            };
            Ok(rated(both.run(pair, b)?, "bidir", "bidir.retransmits"))
        }
        Step::Vxlan => {
            let flow = pair.vxlan().and_then(|far| tcp(1).run(pair, far));
            pair.drop_vxlan()?;
            Ok(rated(flow?, "vxlan", "vxlan.retransmits"))
        }
        Step::Ipv6Inside => {
            let flow = tcp(1).run(pair, pair.address(Family::V6, 1))?;
            Ok(vec![("ipv6-inside", flow.gbps())])
        }
        Step::Ipv6Outside => Ok(vec![("ipv6-outside", tcp(1).run(pair, b)?.gbps())]),
        Step::Tcp1Own => Ok(vec![("tcp1-own", own(1).run(pair, b)?.gbps())]),
        Step::Tcp128Own => Ok(rated(
            own(128).run(pair, b)?,
            "tcp128-own",
            "tcp128-own.retransmits",
        )),
        Step::Udp64 => datagrams(tcp(1), 64, pair, ["udp64", "udp64.lost"]),
        Step::Udp512 => datagrams(tcp(1), 512, pair, ["udp512", "udp512.lost"]),
        Step::Udp1368 => datagrams(tcp(1), 1368, pair, ["udp1368", "udp1368.lost"]),
        Step::Udp64Own => delivered(flood(64, false).run(pair)?, ["udp64-own", "udp64-own.lost"]),
        Step::Udp1368Own => delivered(
            flood(1368, false).run(pair)?,
            ["udp1368-own", "udp1368-own.lost"],
        ),
        Step::UdpGso => {
            let flow = flood(1368, true).run(pair)?;
            let mut values = delivered(flow, ["udp-gso", "udp-gso.lost"])?;
            values[0].1 = flow.gbps();
            Ok(values)
        }
    }
}

/// Resident memory of the larger daemon, before it had to do anything.
pub(crate) fn idle_memory(pair: &LinkedHosts) -> Result<Values, Failure> {
    Ok(larger(pair)?.map_or_else(Vec::new, |memory| vec![("rss.idle", memory.now)]))
}

/// The most resident memory that the larger daemon ever had.
pub(crate) fn peak_memory(pair: &LinkedHosts) -> Result<Values, Failure> {
    Ok(larger(pair)?.map_or_else(Vec::new, |memory| vec![("rss.peak", memory.peak)]))
}

fn larger(pair: &LinkedHosts) -> Result<Option<proc::Memory>, Failure> {
    let Some([a, b]) = pair.daemons() else {
        return Ok(None);
    };
    let (a, b) = (proc::memory(a)?, proc::memory(b)?);
    Ok(Some(proc::Memory {
        now: a.now.max(b.now),
        peak: a.peak.max(b.peak),
    }))
}

/// The metrics of a stream with CPU time: rate, retransmits, sending, receiving, both, machine.
struct CpuNames {
    rate: &'static str,
    retransmits: &'static str,
    ends: Option<[&'static str; 2]>,
    both: &'static str,
    machine: Option<&'static str>,
}

const TCP1: CpuNames = CpuNames {
    rate: "tcp1",
    retransmits: "tcp1.retransmits",
    ends: Some(["tcp1.cpu-tx", "tcp1.cpu-rx"]),
    both: "tcp1.cpu",
    machine: Some("tcp1.cpu-machine"),
};

const TCP1_PINNED: CpuNames = CpuNames {
    rate: "tcp1-pinned",
    retransmits: "tcp1-pinned.retransmits",
    ends: None,
    both: "tcp1-pinned.cpu",
    machine: None,
};

/// A flow and the CPU time that it cost.
pub(crate) struct Accounted {
    pub(crate) flow: Flow,
    /// CPU seconds of the daemons at a and b for each GB of payload.
    pub(crate) daemons: Option<[f64; 2]>,
    /// The same of the whole machine.
    pub(crate) machine: f64,
}

/// Does the load, and counts the CPU time that was used from its start to its end, for all that it
/// carried meanwhile: that of the warm-up as well.
pub(crate) fn account(
    pair: &LinkedHosts,
    load: impl FnOnce() -> Result<Flow, Failure>,
) -> Result<Accounted, Failure> {
    let used = || -> Result<(Option<[f64; 2]>, f64), Failure> {
        let seconds = |pid| proc::cpu_time(pid).map(|time| time.as_secs_f64());
        let daemons = pair
            .daemons()
            .map(|[a, b]| Ok::<_, Failure>([seconds(a)?, seconds(b)?]));
        Ok((
            daemons.transpose()?,
            proc::machine_cpu_time()?.as_secs_f64(),
        ))
    };
    let (before, machine_before) = used()?;
    let flow = load()?;
    let (after, machine_after) = used()?;
    let gigabytes = (flow.bytes + flow.warm_up_bytes) / 1e9;
    let spent = |[a0, b0]: [f64; 2], [a1, b1]: [f64; 2]| [a1 - a0, b1 - b0];
    let daemons = before
        .zip(after)
        .map(|(before, after)| spent(before, after).map(|seconds| seconds / gigabytes));
    Ok(Accounted {
        flow,
        daemons,
        machine: (machine_after - machine_before) / gigabytes,
    })
}

/// One stream, and the CPU time that the daemons used from its start to its end.
fn with_cpu(pair: &LinkedHosts, load: Iperf, names: CpuNames) -> Result<Values, Failure> {
    let accounted = account(pair, || load.run(pair, pair.address(Family::V4, 1)))?;
    let mut values = rated(accounted.flow, names.rate, names.retransmits);
    if let Some([tx, rx]) = accounted.daemons {
        if let Some(ends) = names.ends {
            values.extend([(ends[0], tx), (ends[1], rx)]);
        }
        values.push((names.both, tx + rx));
    }
    if let Some(machine) = names.machine {
        values.push((machine, accounted.machine));
    }
    Ok(values)
}

fn rated(flow: Flow, rate: &'static str, retransmits: &'static str) -> Values {
    let mut values = vec![(rate, flow.gbps())];
    values.extend(flow.retransmits.map(|count| (retransmits, count)));
    values
}

fn datagrams(
    load: Iperf,
    len: usize,
    pair: &LinkedHosts,
    names: [&'static str; 2],
) -> Result<Values, Failure> {
    let load = Iperf {
        datagram: Some(len),
        ..load
    };
    delivered(load.run(pair, pair.address(Family::V4, 1))?, names)
}

/// Thousands of datagrams a second that arrived, and the share of those sent that did not.
fn delivered(flow: Flow, [rate, lost]: [&'static str; 2]) -> Result<Values, Failure> {
    let (sent, received) = flow.datagrams.ok_or("no datagrams were counted")?;
    let missing = (1.0 - received / sent.max(1.0)).max(0.0);
    Ok(vec![
        (rate, received / flow.seconds / 1000.0),
        (lost, missing * 100.0),
    ])
}

fn idle_ping(pair: &LinkedHosts, seconds: u32) -> Result<Values, Failure> {
    let interval = Duration::from_millis(2);
    // With a second to spare: no load ends meanwhile, and the p99.9 needs every answer.
    let pings = ping(pair, interval, seconds * 500, seconds + 1)?;
    let mut values = round_trips(&pings, ["ping.p50", "ping.p99", "ping.lost"])?;
    if pings.times.len() >= ENOUGH_FOR_P99_9 {
        let value = quantile(&pings.times, 0.999);
        values.extend(value.map(|value| ("ping.p99.9", value)));
    }
    Ok(values)
}

/// Of fewer round trips the p99.9 is the longest.
const ENOUGH_FOR_P99_9: usize = 1000;

fn loaded_ping(pair: &LinkedHosts, seconds: u32) -> Result<Values, Failure> {
    let running = beside(1, seconds + 1).start(pair, pair.address(Family::V4, 1))?;
    wait(Duration::from_millis(700))?;
    let begun = Instant::now();
    let interval = Duration::from_millis(5);
    let pings = ping(pair, interval, seconds * 200 - 40, seconds)?;
    let rate = running.rate_within(begun..Instant::now())?;
    let names = ["ping-load.p50", "ping-load.p99", "ping-load.lost"];
    let mut values = round_trips(&pings, names)?;
    values.push(("ping-load.tcp", rate));
    Ok(values)
}

fn answers(pair: &LinkedHosts, seconds: u32, warm_up: u32) -> Result<Values, Failure> {
    let load = beside(8, warm_up + seconds + 1);
    let running = load.start(pair, pair.address(Family::V4, 1))?;
    wait(Duration::from_secs(warm_up.into()))?;
    let begun = Instant::now();
    let times = Answers {
        len: 200_000,
        time: Duration::from_secs(seconds.into()),
    }
    .run(pair)?;
    let rate = running.rate_within(begun..Instant::now())?;
    let at = |q| quantile(&times, q).ok_or("no answer came");
    Ok(vec![
        ("answers.p50", at(0.5)?),
        ("answers.p99", at(0.99)?),
        ("answers.max", at(1.0)?),
        ("answers.tcp", rate),
    ])
}

/// Streams beside which something else is measured. They begin before it and end after it, and only
/// what they did meanwhile counts.
fn beside(streams: u32, seconds: u32) -> Iperf {
    Iperf {
        by_tenths: true,
        ..Iperf::tcp(streams, seconds)
    }
}

/// Median, 99th percentile, and percent lost.
fn round_trips(pings: &Pings, [p50, p99, lost]: [&'static str; 3]) -> Result<Values, Failure> {
    let at = |q| quantile(&pings.times, q).ok_or("no ping was answered");
    Ok(vec![(p50, at(0.5)?), (p99, at(0.99)?), (lost, pings.lost)])
}

/// Sleeps unless the user wants to stop.
pub(crate) fn wait(time: Duration) -> Result<(), Failure> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
