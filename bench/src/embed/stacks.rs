//! TCP between two programs, each of which is its end: a library with a stack of its own, without a
//! TUN device.
//!
//! ```text
//! PROGRAM serve OURS THEIRS PORT PEER_KEY ENDPOINT
//! PROGRAM load  OURS THEIRS PORT PEER_KEY ENDPOINT STREAMS SECONDS there|back
//! ```
//!
//! OURS and THEIRS are addresses inside the tunnel. `serve` listens on TCP ports 5201 to 5203 and says
//! `ready`. A stream to 5201 is read to its end and answered by its length, eight bytes in network
//! order; one to 5202 is sent back, and to 5203 bytes come without an end ([`load`](super::load) has all
//! three). `load` connects, sends to 5201 or receives from 5203 for SECONDS, times single bytes to 5202
//! meanwhile, 5 ms apart, says one line of JSON (`bytes` that arrived, `seconds` until they had,
//! `round_trips` in microseconds), and waits to be ended. A program that does this is compared by
//! adding it to [`Way`](super::ways::Way).

use std::net::SocketAddr;
use std::time::Duration;

use adit_testbed::framing::Family;
use adit_testbed::stats::quantile;
use adit_testbed::{Host, proc};
use serde::{Deserialize, Serialize};

use super::ways::Program;
use crate::daemon::{self, READY};
use crate::hosts::Keys;
use crate::implementation::Implementation;
use crate::install;
use crate::pair::{LinkedHosts, Placement};
use crate::rounds::{self, Measure, Values};
use crate::sandbox::Failure;

pub(super) const MEASURES: [Measure; 11] = [
    rounds::measure("tcp1", "one stream", "Gb/s", 2),
    rounds::measure("tcp1.cpu", "  CPU of both", "s/GB", 2),
    rounds::measure("back1", "one stream back", "Gb/s", 2),
    rounds::measure("back1.cpu", "  CPU of both", "s/GB", 2),
    rounds::measure("tcp64", "64 streams", "Gb/s", 2),
    rounds::measure("tcp64.cpu", "  CPU of both", "s/GB", 2),
    rounds::measure("tcp1000", "1,000 streams", "Gb/s", 2),
    rounds::measure("tcp1000.cpu", "  CPU of both", "s/GB", 2),
    rounds::measure("byte.p50", "byte beside", "µs", 0),
    rounds::measure("byte.p99", "  p99", "µs", 0),
    rounds::measure("rss.peak", "memory, peak", "MiB", 1),
];

/// Where a stream is read to its end.
pub(super) const SINK_PORT: u16 = 5201;
/// Where bytes are sent back.
pub(super) const ECHO_PORT: u16 = 5202;
/// Where bytes come from.
pub(super) const SOURCE_PORT: u16 = 5203;
pub(super) const PORTS: [u16; 3] = [SINK_PORT, ECHO_PORT, SOURCE_PORT];
const PORT: &str = "51820";
const INSIDE: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// What `load` says.
#[derive(Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    pub(super) round_trips: Vec<f64>,
    /// Microseconds from the begin of a connection to its first byte from the other end, where these were timed.
    #[serde(default)]
    pub(super) set_ups: Vec<f64>,
}

/// One stream, with bytes that are timed beside it, one back, 64 and 1,000; the CPU time of both programs,
/// and the most memory that one of them ever had.
pub(super) fn measure(program: &Program, seconds: u32) -> Result<Values, Failure> {
    let direct = install::find(Implementation::Direct, None)?;
    let pair = LinkedHosts::new(&direct, Placement::Free, Family::V4, "cubic")?;
    let (mut values, mut memory) = (Values::new(), 0.0_f64);
    for (streams, direction, rate, cpu) in [
        (1, "there", "tcp1", "tcp1.cpu"),
        (1, "back", "back1", "back1.cpu"),
        (64, "there", "tcp64", "tcp64.cpu"),
        (1000, "there", "tcp1000", "tcp1000.cpu"),
    ] {
        let load = load(&pair, program, streams, seconds, direction)?;
        values.extend([(rate, load.gbps()), (cpu, load.cpu_per_gb())]);
        if rate == "tcp1" {
            let at = |q| quantile(&load.said.round_trips, q).ok_or("no byte came back");
            values.extend([("byte.p50", at(0.5)?), ("byte.p99", at(0.99)?)]);
        }
        memory = memory.max(load.memory);
    }
    values.push(("rss.peak", memory));
    Ok(values)
}

/// What a load did.
pub(super) struct Load {
    pub(super) said: Said,
    /// CPU seconds of what is measured.
    pub(super) cpu: f64,
    /// The most of the larger one, in MiB.
    pub(super) memory: f64,
}

impl Load {
    pub(super) fn gbps(&self) -> f64 {
        self.said.bytes * 8.0 / 1e9 / self.said.seconds
    }

    pub(super) fn cpu_per_gb(&self) -> f64 {
        self.cpu / (self.said.bytes / 1e9)
    }
}

fn load(
    pair: &LinkedHosts,
    program: &Program,
    streams: u32,
    seconds: u32,
    direction: &str,
) -> Result<Load, Failure> {
    let keys = [Keys::new()?, Keys::new()?];
    let words = |role: &str, us: usize, more: &[String]| -> Result<Vec<String>, Failure> {
        let them = 1 - us;
        let endpoint = pair.address(Family::V4, u8::try_from(them)?);
        let endpoint = SocketAddr::new(endpoint, PORT.parse()?).to_string();
        let (ours, theirs) = (INSIDE[us], INSIDE[them]);
        let public = keys[them].public.to_string();
        let tunnel = [role, ours, theirs, PORT, &public, &endpoint];
        let tunnel = tunnel.map(str::to_owned);
        Ok([&program.words[..], &tunnel, more].concat())
    };
    let cpu = |pid| -> Result<f64, Failure> { Ok(proc::cpu_time(pid)?.as_secs_f64()) };
    let serve = words("serve", 1, &[])?;
    let is_ready = |log: &str| log.lines().any(|line| line == "ready");
    let key = &keys[1].private();
    let server = daemon::start_and_hear(&pair.b, "serve", &serve, key, READY, is_ready)?;
    let before = cpu(server.id())?;
    let more = [
        streams.to_string(),
        seconds.to_string(),
        direction.to_owned(),
    ];
    let work = words("load", 0, &more)?;
    // It connects first, and the last bytes of 1,000 streams take their time.
    let limit = READY * 4 + Duration::from_secs(seconds.into());
    let has_said = |log: &str| parse(log).is_some();
    let key = &keys[0].private();
    let client = daemon::start_and_hear(&pair.a, "load", &work, key, limit, has_said)?;
    let spent = cpu(server.id())? - before + cpu(client.id())?;
    let peak = |pid| -> Result<f64, Failure> { Ok(proc::memory(pid)?.peak) };
    let memory = peak(server.id())?.max(peak(client.id())?);
    let said = read(&pair.a, "load")?;
    Ok(Load {
        said,
        cpu: spent,
        memory,
    })
}

/// What a load in a host has said.
pub(super) fn read(host: &Host, name: &str) -> Result<Said, Failure> {
    let said = parse(&daemon::read_log(host, name)?).ok_or("its result is gone")?;
    if said.bytes <= 0.0 || said.seconds <= 0.0 {
        return Err("no byte arrived".into());
    }
    Ok(said)
}

/// The result in a program's log, once the line is whole.
pub(super) fn parse(log: &str) -> Option<Said> {
    let mut lines = log.split_inclusive('\n');
    let line = lines.find(|line| line.starts_with('{') && line.ends_with('\n'))?;
    serde_json::from_str(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_once_its_line_is_whole() {
        let line = r#"{"bytes":2000000000,"round_trips":[900.5,1000],"seconds":4}"#;
        assert!(parse(line).is_none());
        let said = parse(&format!("ERROR: something\n{line}\n")).unwrap();
        assert_eq!(said.round_trips, [900.5, 1000.0]);
        let load = Load {
            said,
            cpu: 3.0,
            memory: 1.0,
        };
        assert!((load.gbps() - 4.0).abs() < 1e-9);
        assert!((load.cpu_per_gb() - 1.5).abs() < 1e-9);
        assert!(parse("ready\n").is_none());
    }
}
