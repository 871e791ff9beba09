//! `adit demo`: two hosts on one cable, a tunnel between them, and the speed of both paths.
//!
//! 1. `hosts`: two network namespaces joined by a veth pair;
//! 2. `tunnel`: one `adit` process in each, configured over its control socket;
//! 3. `traffic`: pings and one TCP stream, through the cable and through the tunnel;
//! 4. `report`: the table, or one JSON object.
//!
//! Nothing has a name outside of this process, so nothing is left behind however it ends:
//! namespaces and sockets go with their last user, and the kernel signals the tunnel processes when
//! this one dies.

mod hosts;
mod progress;
mod report;
mod traffic;
mod tunnel;

pub(crate) use tunnel::status_directory;

use std::io::IsTerminal;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use adit_testbed::Host;
use adit_testbed::stats::quantile;

use crate::cli::{self, DemoArgs};
use crate::demo::report::PINGS;
use crate::failure::{Result, bail};
use hosts::HostPair;
use progress::Progress;
use report::{DemoReport, PathReport};
use traffic::{Pinger, TestStream};
use tunnel::DemoTunnel;

const MAX_LOST_PINGS: usize = 10;
/// The pause between echoes: long enough for both ends to go idle, as between a user's packets.
const PING_PAUSE: Duration = Duration::from_millis(3);
/// TCP's slow start is no property of the path.
const WARM_UP: Duration = Duration::from_millis(500);

pub(crate) fn demo(args: &DemoArgs) -> Result<()> {
    let report = measure(args);
    let text = match &report {
        Ok(report) if args.json => report.json() + "\n",
        Ok(report) if std::io::stdout().is_terminal() => report.table(("\x1b[1m", "\x1b[0m")),
        Ok(report) => report.table(("", "")),
        Err(failure) if args.json => {
            serde_json::json!({"schema": 1, "ok": false, "error": failure.to_string()}).to_string()
                + "\n"
        }
        Err(_) => String::new(),
    };
    cli::print(text.as_bytes())?;
    report.map(|_| ())
}

fn measure(args: &DemoArgs) -> Result<DemoReport> {
    let time = Duration::from_secs(args.seconds.into());
    let mut progress = Progress::new();
    progress.say(
        "Two hosts in network namespaces, a cable between them (veth, MTU 1500) and a tunnel ...",
    );
    let pair = HostPair::new()?;
    // Started before the cable is measured, so that what is missing is missed at once. It costs
    // nothing idle.
    let tunnel = DemoTunnel::start(&pair)?;
    let cable = Way {
        name: "bare cable",
        at: hosts::RIGHT,
        tunnel: None,
    };
    let through = Way {
        name: "tunnel",
        at: tunnel::RIGHT,
        tunnel: Some(&tunnel),
    };
    progress.say("Pings and one TCP stream, through the bare cable and through the tunnel ...");
    let direct = measure_way(&cable, &pair, time, &mut progress)?;
    let tunnelled = measure_way(&through, &pair, time, &mut progress)?;
    progress.clear();

    let (aead, offloads) = tunnel.report()?;
    Ok(DemoReport {
        schema: 1,
        ok: true,
        direct: direct.rounded(),
        tunnel: tunnelled.rounded(),
        aead,
        offloads,
        placement: tunnel.placement,
    })
}

/// A way from the left host to the right one.
struct Way<'a> {
    name: &'static str,
    /// The right host's address on it.
    at: Ipv4Addr,
    tunnel: Option<&'a DemoTunnel>,
}

/// Pings over the idle way, then one TCP stream for `time` after its warm-up.
fn measure_way(
    way: &Way<'_>,
    pair: &HostPair,
    time: Duration,
    progress: &mut Progress,
) -> Result<PathReport> {
    let name = way.name;
    let round_trips = ping(way, &pair.left, progress)?;
    let stream = TestStream::start(&pair.left, &pair.right, way.at)?;
    thread::sleep(WARM_UP);

    let cpu = || way.tunnel.map(DemoTunnel::cpu_time).transpose();
    let (start, cpu_start, first) = (Instant::now(), cpu()?, stream.received());
    let (mut seen_at, mut seen) = (start, first);
    while start.elapsed() < time {
        thread::sleep(Duration::from_millis(100).min(time.saturating_sub(start.elapsed())));
        let (now, received) = (Instant::now(), stream.received());
        let rate = gbps(received - seen, now - seen_at);
        (seen_at, seen) = (now, received);
        progress.rate(
            name,
            start.elapsed().as_secs_f64() / time.as_secs_f64(),
            rate,
        );
    }
    let (bytes, elapsed) = (seen - first, seen_at - start);
    let cpu_time = cpu()?
        .zip(cpu_start)
        .map(|(end, start)| end.saturating_sub(start));
    if bytes == 0 {
        bail!(
            State,
            "no TCP payload came through the {name}, though it answers pings"
        );
    }

    Ok(PathReport {
        tcp_gbps: gbps(bytes, elapsed),
        pings_lost: PINGS as usize - round_trips.len(),
        rtt_us_p50: quantile(&round_trips, 0.5).unwrap_or(0.0),
        rtt_us_p99: quantile(&round_trips, 0.99).unwrap_or(0.0),
        cpu_s_per_gb: cpu_time.map(|time| time.as_secs_f64() / (bytes as f64 / 1e9)),
    })
}

/// Round trips in microseconds.
fn ping(way: &Way<'_>, from: &Host, progress: &mut Progress) -> Result<Vec<f64>> {
    let name = way.name;
    let mut pinger = Pinger::new(from, way.at)?;
    // The first one waits for ARP, or for the handshake, which is repeated after 5 s if it gets
    // lost.
    let deadline = Instant::now() + Duration::from_secs(7);
    while pinger.ping(Duration::from_millis(500))?.is_none() {
        if Instant::now() > deadline {
            bail!(State, "the {name} does not answer pings");
        }
    }
    let mut round_trips = Vec::new();
    for sent in 1..=PINGS {
        thread::sleep(PING_PAUSE);
        let answered = pinger.ping(Duration::from_millis(200))?;
        round_trips.extend(answered.map(|time| time.as_secs_f64() * 1e6));
        progress.pings(name, sent, PINGS);
        let lost = sent as usize - round_trips.len();
        if lost > MAX_LOST_PINGS {
            bail!(State, "the {name} lost {lost} of {sent} pings");
        }
    }
    Ok(round_trips)
}

/// 10^9 bits a second.
fn gbps(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e9 / time.as_secs_f64().max(1e-9)
}
