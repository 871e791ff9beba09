//! iperf3 and ping: how they are called, and what their output says.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use adit_testbed::Host;
use adit_testbed::framing::Family;
use adit_testbed::process::{self, Process};
use adit_testbed::stats::to_f64;
use serde::Deserialize;

use crate::pair::LinkedHosts;
use crate::sandbox::Failure;

/// Where an iperf3 server listens.
pub(crate) const PORT: u16 = 5201;

/// What an iperf3 run sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iperf {
    pub(crate) streams: u32,
    pub(crate) bidirectional: bool,
    /// From b to a.
    pub(crate) reverse: bool,
    /// Datagrams of this payload as fast as they go, instead of TCP.
    pub(crate) datagram: Option<usize>,
    pub(crate) seconds: u32,
    /// Seconds before that which do not count.
    pub(crate) warm_up: u32,
    /// Account for every tenth of a second, for [`Running::rate_within`].
    pub(crate) by_tenths: bool,
}

impl Iperf {
    /// TCP streams from a to b.
    pub(crate) const fn tcp(streams: u32, seconds: u32) -> Self {
        Self {
            streams,
            bidirectional: false,
            reverse: false,
            datagram: None,
            seconds,
            warm_up: 0,
            by_tenths: false,
        }
    }
}

/// What an iperf3 run achieved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flow {
    /// Payload bytes received, both directions together.
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
    /// Payload bytes of the warm-up, which `bytes` and `seconds` leave out. The lab's own generator
    /// does not count them.
    pub(crate) warm_up_bytes: f64,
    pub(crate) retransmits: Option<f64>,
    /// Datagrams sent and received.
    pub(crate) datagrams: Option<(f64, f64)>,
}

impl Flow {
    /// Payload received in Gb/s.
    pub(crate) fn gbps(&self) -> f64 {
        self.bytes * 8.0 / 1e9 / self.seconds
    }

    /// Datagrams received, if it was of datagrams.
    pub(crate) fn datagrams_per_second(&self) -> Option<f64> {
        self.datagrams.map(|(_, received)| received / self.seconds)
    }
}

/// A running iperf3 client.
pub(crate) struct Running {
    /// Stopped last, when it has said all it has to say.
    _server: Process,
    client: Process,
    begun: Instant,
    limit: Duration,
}

impl Iperf {
    /// Starts a server in b for one client, and the client in a.
    pub(crate) fn start(&self, pair: &LinkedHosts, to: IpAddr) -> Result<Running, Failure> {
        self.start_between(&pair.a, &pair.b, to)
    }

    /// Starts a server at one host for one client, and the client at another host.
    pub(crate) fn start_between(
        &self,
        from: &Host,
        at: &Host,
        to: IpAddr,
    ) -> Result<Running, Failure> {
        self.start_through(from, at, to, None)
    }

    /// The same through a proxy near the client, which connects there.
    pub(crate) fn start_through(
        &self,
        from: &Host,
        at: &Host,
        to: IpAddr,
        proxy: Option<SocketAddr>,
    ) -> Result<Running, Failure> {
        // At this address, so that servers for several addresses of a host run side by side.
        let at_address = to.to_string();
        let server = process::command("iperf3", &["-s", "-1", "--forceflush", "-B", &at_address]);
        let mut server = at.spawn(server)?;
        server.wait_for_line("listening", Duration::from_secs(5))?;
        let client = self.client(from, proxy.unwrap_or(SocketAddr::new(to, PORT)))?;
        Ok(Running {
            _server: server,
            client,
            begun: Instant::now(),
            // An overloaded tunnel delays the exchange of results.
            limit: Duration::from_secs(u64::from(self.warm_up + self.seconds) + 15),
        })
    }

    /// Starts a client alone.
    fn client(&self, from: &Host, to: SocketAddr) -> Result<Process, Failure> {
        let mut args = vec![
            "-c".to_owned(),
            to.ip().to_string(),
            "-p".to_owned(),
            to.port().to_string(),
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
        if self.reverse {
            args.push("--reverse".to_owned());
        }
        if let Some(len) = self.datagram {
            args.extend(["-u", "-b", "0", "-l", &len.to_string()].map(str::to_owned));
        }
        if self.by_tenths {
            args.extend(["-i", "0.1"].map(str::to_owned));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Ok(from.spawn(process::command("iperf3", &args))?)
    }

    /// Runs to the end.
    pub(crate) fn run(&self, pair: &LinkedHosts, to: IpAddr) -> Result<Flow, Failure> {
        self.start(pair, to)?.finish()
    }
}

impl Running {
    /// Waits for the end and reads the result.
    pub(crate) fn finish(self) -> Result<Flow, Failure> {
        parse_iperf(&self.output()?)
    }

    /// Waits for the end and returns the Gb/s that were sent within `part` of the run: what the
    /// streams reached while something else was measured beside them. Needs [`Iperf::by_tenths`].
    pub(crate) fn rate_within(self, part: Range<Instant>) -> Result<f64, Failure> {
        let since = |at: Instant| at.saturating_duration_since(self.begun).as_secs_f64();
        let part = since(part.start)..since(part.end);
        parse_rate_within(&self.output()?, part)
    }

    /// Whether it still sends.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.client.is_alive()
    }

    fn output(self) -> Result<String, Failure> {
        Ok(self.client.output(self.limit)?)
    }
}

#[derive(Deserialize)]
struct IperfReport {
    error: Option<String>,
    #[serde(default)]
    intervals: Vec<Interval>,
    end: Option<End>,
}

#[derive(Deserialize)]
struct Interval {
    sum: Tenth,
}

/// Seconds since the beginning, and the bytes sent between them.
#[derive(Deserialize)]
struct Tenth {
    start: f64,
    end: f64,
    bytes: f64,
    /// It belongs to the warm-up.
    #[serde(default)]
    omitted: bool,
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
fn parse_report(json: &str) -> Result<IperfReport, Failure> {
    let report: IperfReport =
        serde_json::from_str(json).map_err(|e| format!("iperf3's report is not readable: {e}"))?;
    match report.error {
        Some(error) => Err(format!("iperf3: {error}").into()),
        None => Ok(report),
    }
}

fn parse_rate_within(json: &str, part: Range<f64>) -> Result<f64, Failure> {
    let intervals = parse_report(json)?.intervals.into_iter();
    let sums = intervals.map(|interval| interval.sum);
    let within = sums.filter(|sum| sum.start >= part.start && sum.end <= part.end);
    let (bytes, seconds) = within.fold((0.0, 0.0), |(bytes, seconds), sum| {
        (bytes + sum.bytes, seconds + sum.end - sum.start)
    });
    if seconds <= 0.0 {
        return Err("iperf3 did not run meanwhile".into());
    }
    Ok(bytes * 8.0 / 1e9 / seconds)
}

/// What iperf3 says in JSON.
pub(crate) fn parse_iperf(json: &str) -> Result<Flow, Failure> {
    let report = parse_report(json)?;
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
    let sums = report.intervals.iter().map(|interval| &interval.sum);
    let warm_up_bytes = sums.filter(|sum| sum.omitted).map(|sum| sum.bytes).sum();
    Ok(Flow {
        bytes: received.bytes + back,
        seconds: received.seconds,
        warm_up_bytes,
        retransmits: sent
            .retransmits
            .map(|forward| forward + back_retransmits.unwrap_or(0.0)),
        datagrams,
    })
}

/// The results of pings.
#[derive(Debug, PartialEq)]
pub(crate) struct Pings {
    /// Round trips in microseconds, one for each answer.
    pub(crate) times: Vec<f64>,
    /// Percent of them that were not answered.
    pub(crate) lost: f64,
    /// The longest time between two answers, in seconds.
    pub(crate) longest_gap: f64,
}

/// Sends `count` pings through the tunnel, or as many as fit `limit` seconds.
pub(crate) fn ping(
    pair: &LinkedHosts,
    interval: Duration,
    count: u32,
    limit: u32,
) -> Result<Pings, Failure> {
    ping_from(&pair.a, pair.address(Family::V4, 1), interval, count, limit)
}

/// Sends `count` pings from a host, or as many as fit `limit` seconds.
pub(crate) fn ping_from(
    from: &Host,
    to: IpAddr,
    interval: Duration,
    count: u32,
    limit: u32,
) -> Result<Pings, Failure> {
    let to = to.to_string();
    let (seconds, count) = (interval.as_secs_f64().to_string(), count.to_string());
    // The deadline keeps a slow path from stretching the run beyond the load beside it; ping fails
    // when it strikes.
    let deadline = limit.to_string();
    let args = ["-n", "-i", &seconds, "-c", &count, "-w", &deadline, &to];
    let child = from.spawn(process::command("ping", &args))?;
    let limit = Duration::from_secs(u64::from(limit) + 5);
    let said = child.finish(limit)?.stdout;
    parse_ping(&said, interval)
}

fn parse_ping(said: &str, interval: Duration) -> Result<Pings, Failure> {
    let answers = said.lines().filter(|line| !line.ends_with("(DUP!)"));
    let (numbers, times): (Vec<u32>, Vec<f64>) = answers.filter_map(parse_answer).unzip();
    let last = numbers
        .iter()
        .copied()
        .max()
        .ok_or("no ping was answered")?;
    let sent = said.lines().find_map(|line| {
        let (sent, _) = line.split_once(" packets transmitted")?;
        sent.parse::<u32>().ok()
    });
    let sent = sent.ok_or("ping does not say how many it sent")?;
    // At the deadline some are still on their way: of those behind the last that was answered, as
    // many as fit the longest round trip.
    let longest = times.iter().copied().fold(0.0, f64::max) / 1e6;
    let on_their_way = (longest / interval.as_secs_f64()).ceil();
    let on_their_way = on_their_way.min(f64::from(sent.saturating_sub(last)));
    let counted = f64::from(sent) - on_their_way;
    let lost = (1.0 - to_f64(times.len()) / counted).max(0.0) * 100.0;
    let longest_gap = longest_gap(&numbers, &times, sent, interval.as_secs_f64());
    Ok(Pings {
        times,
        lost,
        longest_gap,
    })
}

/// The longest time in seconds without an answer, from the first of `sent` pings to the last. The
/// round trips are in microseconds.
fn longest_gap(numbers: &[u32], times: &[f64], sent: u32, interval: f64) -> f64 {
    let answered = numbers.iter().zip(times);
    let mut at: Vec<f64> = answered
        .map(|(number, time)| f64::from(number.saturating_sub(1)) * interval + time / 1e6)
        .collect();
    at.extend([0.0, f64::from(sent.saturating_sub(1)) * interval]);
    at.sort_by(f64::total_cmp);
    let gaps = at.windows(2).map(|two| two[1] - two[0]);
    gaps.fold(0.0, f64::max)
}

/// The number and the round trip in microseconds of one line of ping's.
fn parse_answer(line: &str) -> Option<(u32, f64)> {
    let value = |key: &str| line.split_once(key)?.1.split_whitespace().next();
    let milliseconds: f64 = value(" time=")?.parse().ok()?;
    Some((value("icmp_seq=")?.parse().ok()?, milliseconds * 1000.0))
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

/// The first line with a number of what a program says of its version, on either output.
pub(crate) fn version(program: &str, flag: &str) -> String {
    let started = Process::spawn(process::command(program, &[flag]));
    let said = started.and_then(|process| process.finish(Duration::from_secs(5)));
    let said = said
        .map(|said| said.stdout + &said.stderr)
        .unwrap_or_default();
    with_number(&said).unwrap_or("not found").to_owned()
}

/// stunnel tells first what it is about to do.
fn with_number(said: &str) -> Option<&str> {
    let mut lines = said.lines().map(str::trim);
    lines.find(|line| line.contains(|c: char| c.is_ascii_digit()))
}

/// A program, the flag that makes it tell its version, and the package that Debian has it in.
pub(crate) type Tool = (&'static str, &'static str, &'static str);

/// What a pair of hosts and a load between them need.
pub(crate) const LOAD: [Tool; 4] = [
    ("iperf3", "--version", "iperf3"),
    ("ping", "-V", "iputils-ping"),
    ("ip", "-V", "iproute2"),
    ("wg", "--version", "wireguard-tools"),
];

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
