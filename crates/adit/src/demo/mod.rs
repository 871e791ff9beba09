//! `adit demo`: two hosts on one cable, a tunnel between them, and what each path carries.
//!
//! 1. `hosts`: two network namespaces joined by a veth pair;
//! 2. `tunnel`: one `adit` process in each, configured over its control socket;
//! 3. `traffic`: pings and one TCP stream, through the cable and through the tunnel;
//! 4. `report`: the table, or one JSON object.
//!
//! Nothing has a name outside of this process, so nothing is left behind however it ends: namespaces and sockets go
//! with their last user, and the kernel signals the tunnel processes when this one dies.

mod hosts;
mod progress;
mod report;
mod traffic;
mod tunnel;

pub(crate) use tunnel::status_directory;

use std::io::{IsTerminal, Write};
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::DemoArgs;
use crate::failure::{Context, Result, bail};
use hosts::{Host, Pair};
use progress::Progress;
use report::{Path, Report};
use traffic::{Pinger, Stream, percentile_us};
use tunnel::Tunnel;

/// Echoes per path, and the pause between them: long enough for both ends to go idle, as between a user's packets.
const PINGS: u32 = 300;
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
    std::io::stdout()
        .write_all(text.as_bytes())
        .context(|| "cannot write to standard output".into())?;
    report.map(|_| ())
}

fn measure(args: &DemoArgs) -> Result<Report> {
    let seconds = Duration::from_secs(args.seconds.into());
    let mut progress = Progress::new();
    progress.say("Two hosts in network namespaces, joined by a cable (veth, MTU 1500) ...");
    let pair = Pair::new()?;
    let direct = measure_path(
        "bare cable",
        &pair.left,
        &pair.right,
        hosts::RIGHT,
        seconds,
        None,
        &mut progress,
    )?;

    progress.say("A tunnel between them: one adit process on each host ...");
    let tunnel = Tunnel::start(&pair)?;
    let through = Some(&tunnel);
    let tunnelled = measure_path(
        "tunnel",
        &pair.left,
        &pair.right,
        tunnel::RIGHT,
        seconds,
        through,
        &mut progress,
    )?;
    progress.clear();

    let (aead, offloads) = tunnel.report()?;
    Ok(Report {
        schema: 1,
        ok: true,
        direct: direct.rounded(),
        tunnel: tunnelled.rounded(),
        aead,
        offloads,
    })
}

/// Pings over the idle path, then one TCP stream for `time` after its warm-up.
fn measure_path(
    name: &str,
    from: &Host,
    to: &Host,
    at: Ipv4Addr,
    time: Duration,
    tunnel: Option<&Tunnel>,
    progress: &mut Progress,
) -> Result<Path> {
    let mut round_trips = ping(name, from, at, progress)?;
    let stream = Stream::start(from, to, at)?;
    thread::sleep(WARM_UP);

    let cpu = || tunnel.map(Tunnel::cpu_time).transpose();
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
        bail!("no TCP payload came through the {name}, though it answers pings");
    }

    Ok(Path {
        tcp_gbps: gbps(bytes, elapsed),
        rtt_us_p50: percentile_us(&mut round_trips, 50),
        rtt_us_p99: percentile_us(&mut round_trips, 99),
        cpu_s_per_gb: cpu_time.map(|time| time.as_secs_f64() / (bytes as f64 / 1e9)),
    })
}

fn ping(name: &str, from: &Host, at: Ipv4Addr, progress: &mut Progress) -> Result<Vec<Duration>> {
    let mut pinger = Pinger::new(from, at)?;
    // The first one waits for ARP, or for the handshake.
    let deadline = Instant::now() + Duration::from_secs(5);
    while pinger.ping(Duration::from_millis(500))?.is_none() {
        if Instant::now() > deadline {
            bail!("the {name} does not answer pings within 5 s");
        }
    }
    let mut round_trips = Vec::new();
    for sent in 1..=PINGS {
        thread::sleep(PING_PAUSE);
        round_trips.extend(pinger.ping(Duration::from_millis(200))?);
        progress.pings(name, sent, PINGS);
        if sent >= 20 && round_trips.is_empty() {
            bail!("the {name} stopped to answer pings");
        }
    }
    Ok(round_trips)
}

/// 10^9 bits a second.
fn gbps(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e9 / time.as_secs_f64().max(1e-9)
}
