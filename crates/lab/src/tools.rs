//! iperf3 and ping: how they are called, and what their output says.

use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::framing::Family;
use crate::pair::Pair;
use crate::process::{self, Process};
use crate::sandbox::Failure;

/// What an iperf3 run sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iperf {
    pub(crate) streams: u32,
    pub(crate) bidirectional: bool,
    /// Datagrams of this payload as fast as they go, instead of TCP.
    pub(crate) datagram: Option<usize>,
    pub(crate) seconds: u32,
    /// Seconds before that which do not count.
    pub(crate) warm_up: u32,
}

impl Iperf {
    /// TCP streams from a to b.
    pub(crate) const fn tcp(streams: u32, seconds: u32) -> Self {
        Self {
            streams,
            bidirectional: false,
            datagram: None,
            seconds,
            warm_up: 0,
        }
    }
}

/// What an iperf3 run achieved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flow {
    /// Payload bytes received, both directions together.
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
    pub(crate) retransmits: Option<f64>,
    /// Datagrams sent and received.
    pub(crate) datagrams: Option<(f64, f64)>,
}

impl Flow {
    /// Payload received in Gb/s.
    pub(crate) fn gbps(&self) -> f64 {
        self.bytes * 8.0 / 1e9 / self.seconds
    }
}

/// A running iperf3 client.
pub(crate) struct Running {
    server: Process,
    client: std::process::Child,
    limit: Duration,
}

impl Iperf {
    /// Starts a server in b for one client, and the client in a.
    pub(crate) fn start(&self, pair: &Pair, to: IpAddr) -> Result<Running, Failure> {
        let server = process::command("iperf3", &["-s", "-1", "--forceflush"]);
        let mut server = Process::new("iperf3 -s", pair.b.spawn(server)?);
        server.wait_for_line("listening", Duration::from_secs(5))?;
        let mut args = vec![
            "-c".to_owned(),
            to.to_string(),
            "-J".to_owned(),
            "-t".to_owned(),
            self.seconds.to_string(),
            "-P".to_owned(),
            self.streams.to_string(),
            "-O".to_owned(),
            self.warm_up.to_string(),
            "--connect-timeout".to_owned(),
            "3000".to_owned(),
        ];
        if self.bidirectional {
            args.push("--bidir".to_owned());
        }
        if let Some(len) = self.datagram {
            args.extend(["-u", "-b", "0", "-l", &len.to_string()].map(str::to_owned));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Ok(Running {
            server,
            client: pair.a.spawn(process::command("iperf3", &args))?,
            // An overloaded tunnel delays the exchange of results.
            limit: Duration::from_secs(u64::from(self.warm_up + self.seconds) + 15),
        })
    }

    /// Runs to the end.
    pub(crate) fn run(&self, pair: &Pair, to: IpAddr) -> Result<Flow, Failure> {
        self.start(pair, to)?.finish()
    }
}

impl Running {
    /// Waits for the end and reads the result.
    pub(crate) fn finish(mut self) -> Result<Flow, Failure> {
        let said = process::output("iperf3", self.client, self.limit)?;
        // The server has said all it has to say.
        self.server.stop(nix::sys::signal::Signal::SIGTERM);
        parse_iperf(&said)
    }
}

#[derive(Deserialize)]
struct Report {
    error: Option<String>,
    end: Option<End>,
}

#[derive(Deserialize)]
struct End {
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
    sum_sent_bidir_reverse: Option<Sum>,
    sum_received_bidir_reverse: Option<Sum>,
}

#[derive(Deserialize)]
struct Sum {
    seconds: f64,
    bytes: f64,
    retransmits: Option<f64>,
    packets: Option<f64>,
    lost_packets: Option<f64>,
}

/// Reads iperf3's JSON (3.9 and later).
fn parse_iperf(json: &str) -> Result<Flow, Failure> {
    let report: Report =
        serde_json::from_str(json).map_err(|e| format!("iperf3's report is not readable: {e}"))?;
    if let Some(error) = report.error {
        return Err(format!("iperf3: {error}").into());
    }
    let end = report.end.ok_or("iperf3's report has no end")?;
    let sent = end.sum_sent.ok_or("iperf3's report has no sum")?;
    let received = end.sum_received.ok_or("iperf3's report has no sum")?;
    if received.seconds <= 0.0 {
        return Err("iperf3 received nothing".into());
    }
    let back = end.sum_received_bidir_reverse.map_or(0.0, |sum| sum.bytes);
    let back_retransmits = end.sum_sent_bidir_reverse.and_then(|sum| sum.retransmits);
    let datagrams = received.packets.map(|seen| {
        let lost = received.lost_packets.unwrap_or(0.0);
        (sent.packets.unwrap_or(seen), seen - lost)
    });
    Ok(Flow {
        bytes: received.bytes + back,
        seconds: received.seconds,
        retransmits: sent
            .retransmits
            .map(|forward| forward + back_retransmits.unwrap_or(0.0)),
        datagrams,
    })
}

/// Round trips in microseconds, one for each answer.
pub(crate) fn ping(
    pair: &Pair,
    interval: Duration,
    seconds: f64,
    family: Family,
) -> Result<Vec<f64>, Failure> {
    let count = (seconds / interval.as_secs_f64()).ceil();
    let interval = format!("{}", interval.as_secs_f64());
    let count = format!("{count}");
    let to = pair.address(family, 1).to_string();
    // The deadline keeps a slow path from stretching the run beyond the load beside it; ping fails when it strikes.
    let deadline = format!("{}", seconds.ceil());
    let args = ["-n", "-i", &interval, "-c", &count, "-w", &deadline, &to];
    let limit = Duration::from_secs_f64(seconds + 5.0);
    let child = pair.a.spawn(process::command("ping", &args))?;
    let (_, said, _) = process::ended("ping", child, limit)?;
    let times = parse_ping(&said);
    if times.is_empty() {
        return Err("no ping was answered".into());
    }
    Ok(times)
}

/// The `time=` of every answer, in microseconds.
fn parse_ping(said: &str) -> Vec<f64> {
    said.lines()
        .filter_map(|line| line.split_once(" time="))
        .filter_map(|(_, time)| time.split_whitespace().next()?.parse::<f64>().ok())
        .map(|milliseconds| milliseconds * 1000.0)
        .collect()
}

/// Name and version of the tools that make the load.
pub(crate) fn versions() -> Vec<(String, String)> {
    let first = |program: &str, args: &[&str]| {
        let said = process::run(program, args, Duration::from_secs(5)).unwrap_or_default();
        said.lines().next().unwrap_or("not found").trim().to_owned()
    };
    vec![
        ("iperf3".to_owned(), first("iperf3", &["--version"])),
        ("ping".to_owned(), first("ping", &["-V"])),
        ("ip".to_owned(), first("ip", &["-V"])),
        ("wg".to_owned(), first("wg", &["--version"])),
        ("go".to_owned(), first("go", &["version"])),
        ("rustc".to_owned(), first("rustc", &["--version"])),
    ]
}

/// An error that names the tools that are missing and where Debian has them.
pub(crate) fn require(tools: &[(&str, &str, &str)]) -> Result<(), Failure> {
    let missing: Vec<String> = tools
        .iter()
        .filter(|(tool, flag, _)| process::run(tool, &[flag], Duration::from_secs(5)).is_err())
        .map(|(tool, _, package)| format!("{tool} (package {package})"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("missing: {}", missing.join(", ")).into())
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
