//! `adit-lab soak`: whether something grows, stalls or is lost while a tunnel is never left alone.
//!
//! ```text
//!   client (wg0 10.77.0.2) ── veth ── server (wg0 10.77.0.1)
//!   10.76.1.2, .3: it moves           10.76.1.1
//! ```
//!
//! - `traffic`: numbered datagrams in both directions, and a TCP stream;
//! - this file: what disturbs it, what is watched, and what is found.
//!
//! A handshake begins every few seconds, in place of every two minutes.

mod traffic;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use adit_ctl::status;
use adit_testbed::process::Process;
use adit_testbed::stats::to_f64;
use adit_testbed::{Host, interrupt, link, proc};
use clap::Args;
use serde_json::json;

use crate::daemon;
use crate::goals::{self, GoalResult, Limit};
use crate::hosts::{self, Keys};
use crate::implementation::Implementation;
use crate::install::{self, AditArg};
use crate::measure::wait;
use crate::output::JsonArg;
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::tools;
use traffic::{Datagrams, Stream};

/// Disturbs a tunnel for as long as asked, and tells what that does to it.
///
/// Two hosts in network namespaces send numbered datagrams to each other, and a TCP stream. Each
/// second the server's configuration is applied anew by `wg syncconf`, and other peers come and go;
/// handshakes begin every few seconds; the client moves to another address or port. Fails when a
/// flow stalls or is reordered, when a daemon grows, or when the packets that came in are not those
/// that went out or were counted as dropped.
///
/// JSON is one object with `schema` (1), `command`, `machine`, `version`, `seconds`, `disturbances`,
/// `datagrams` and `goals`, each of which has `name`, `value`, `goal` and `met`.
///
/// Needs root, ip and wg. Leaves nothing behind.
#[derive(Args, Clone, Debug)]
pub(crate) struct SoakArgs {
    /// How long: 90s, 10m or 2h.
    #[arg(long, default_value = "60s")]
    time: Span,
    #[command(flatten)]
    adit: AditArg,
    #[command(flatten)]
    json: JsonArg,
}

/// A time as people write it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span(pub(crate) Duration);

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a time is a number and s, m or h: 90s, 10m, 2h".to_owned();
        let unit = match text.chars().last() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            _ => return Err(wrong()),
        };
        let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
        match number.checked_mul(unit) {
            Some(seconds) if seconds >= 20 => Ok(Self(Duration::from_secs(seconds))),
            Some(_) => Err("less than 20 seconds show nothing".to_owned()),
            None => Err(wrong()),
        }
    }
}

const INTERFACE: &str = "wg0";
const SERVER_LINK: &str = "ve0";
const CLIENT_LINK: &str = "ve1";
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Peers that come and go.
const OTHERS: u32 = 20;
/// Seconds between two lines that tell how far it is.
const PROGRESS: usize = 10;
/// How long after the end packets may be under way.
const SETTLES: Duration = Duration::from_secs(20);

/// What a daemon holds.
#[derive(Clone, Copy, Default)]
struct Holdings {
    mib: f64,
    descriptors: f64,
    threads: f64,
}

impl Holdings {
    fn of(pid: u32) -> io::Result<Self> {
        Ok(Self {
            mib: proc::memory(pid)?.now,
            descriptors: to_f64(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count()),
            threads: to_f64(proc::threads(pid)?),
        })
    }

    fn most(self, other: Self) -> Self {
        Self {
            mib: self.mib.max(other.mib),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }
}

struct End {
    host: Host,
    daemon: Process,
    keys: Keys,
    /// The most in the first half of the run, and in the second.
    holdings: [Holdings; 2],
}

impl End {
    /// Its control socket answers with the counters of the data path.
    fn engine(&self) -> Result<status::EngineJson, Failure> {
        let mut interface = self.host.run(|| status::fetch(INTERFACE))?;
        Ok(interface.engine.take().ok_or("the status has no engine")?)
    }

    /// Packets that came in and are nowhere.
    fn missing(&self) -> Result<u64, Failure> {
        let accounting = self.engine()?.packet_accounting();
        let missing = accounting
            .iter()
            .map(|account| account.came.abs_diff(account.known));
        Ok(missing.sum())
    }
}

/// A tunnel, and what is done to it.
struct Soak {
    server: End,
    client: End,
    others: Vec<Keys>,
    disturbances: u64,
}

impl Soak {
    fn new(args: &SoakArgs) -> Result<(Self, String), Failure> {
        let entry = install::find(Implementation::Adit, args.adit.path())?;
        let end = || -> Result<End, Failure> {
            let host = hosts::host()?;
            Ok(End {
                daemon: daemon::start(&host, &entry, INTERFACE)?,
                host,
                keys: Keys::new()?,
                holdings: [Holdings::default(); 2],
            })
        };
        let (server, client) = (end()?, end()?);
        link((&server.host, SERVER_LINK), (&client.host, CLIENT_LINK))?;
        let at = |last| IpAddr::from([10, 76, 1, last]);
        server.host.bring_up(SERVER_LINK, &[(at(1), 24)], None)?;
        client
            .host
            .bring_up(CLIENT_LINK, &[(at(2), 24), (at(3), 24)], None)?;
        let soak = Self {
            others: Keys::several(OTHERS)?,
            server,
            client,
            disturbances: 0,
        };
        soak.configure_server(0)?;
        let both = [(&soak.server, SERVER), (&soak.client, CLIENT)];
        let peer = format!("peer {} endpoint 10.76.1.1:51820", soak.server.keys.public);
        let set = format!("{peer} allowed-ips {SERVER}/32");
        hosts::set(&soak.client.host, INTERFACE, &soak.client.keys, &set)?;
        for (end, address) in both {
            end.host
                .bring_up(INTERFACE, &[(address.into(), 24)], Some(1420))?;
        }
        daemon::wait_for(&soak.client.host, SERVER.into())?;
        Ok((soak, entry.version))
    }

    /// The whole configuration of the server, with other peers in each turn.
    fn configure_server(&self, turn: usize) -> Result<(), Failure> {
        let (private, client) = (self.server.keys.private(), self.client.keys.public);
        let mut text = format!(
            "[Interface]\nPrivateKey = {private}\nListenPort = 51820\n\
             [Peer]\nPublicKey = {client}\nAllowedIPs = {CLIENT}/32\n"
        );
        for (number, other) in self.others.iter().enumerate() {
            if !(number + turn).is_multiple_of(3) {
                let block = format!("10.78.{number}.{}/32", turn % 200);
                text += &format!(
                    "[Peer]\nPublicKey = {}\nAllowedIPs = {block}\n",
                    other.public
                );
            }
        }
        self.server
            .host
            .run(move || std::fs::write("/run/conf", text))?;
        hosts::wg(
            &self.server.host,
            &format!("syncconf {INTERFACE} /run/conf"),
        )
    }

    /// One of the things that happen each second.
    fn disturb(&mut self, second: usize) -> Result<(), Failure> {
        self.configure_server(second)?;
        self.disturbances += 1;
        match second % 6 {
            // A handshake, begun by either side. It fails while one is under way.
            0 | 3 => {
                let (end, peer) = match second % 12 {
                    0 | 3 => (&self.client, self.server.keys.public),
                    _ => (&self.server, self.client.keys.public),
                };
                end.host
                    .run(move || status::probe(INTERFACE, &peer.to_string()))?;
            }
            // Another port, and another address: the old one is not there any more.
            1 => hosts::wg(
                &self.client.host,
                &format!("set {INTERFACE} listen-port {}", 20_000 + second % 20_000),
            )?,
            4 => {
                let (gone, new) = [(2, 3), (3, 2)][second / 6 % 2];
                self.client
                    .host
                    .ip(&format!("addr replace 10.76.1.{new}/24 dev {CLIENT_LINK}"))?;
                self.client
                    .host
                    .ip(&format!("addr del 10.76.1.{gone}/24 dev {CLIENT_LINK}"))?;
                self.client
                    .host
                    .ip(&format!("addr replace 10.76.1.{new}/24 dev {CLIENT_LINK}"))?;
            }
            _ => return Ok(()),
        }
        self.disturbances += 1;
        Ok(())
    }

    fn look(&mut self, half: usize) -> Result<(), Failure> {
        for end in [&mut self.server, &mut self.client] {
            daemon::check(&end.host, &mut end.daemon, INTERFACE)?;
            let now = Holdings::of(end.daemon.id())?;
            end.holdings[half] = end.holdings[half].most(now);
        }
        Ok(())
    }

    /// Packets that are nowhere once all has settled.
    fn missing(&self) -> Result<u64, Failure> {
        let began = Instant::now();
        loop {
            let missing = self.server.missing()? + self.client.missing()?;
            if missing == 0 || began.elapsed() > SETTLES {
                return Ok(missing);
            }
            wait(Duration::from_millis(100))?;
        }
    }

    /// By how much a daemon holds more in the second half than in the first.
    fn growth(&self, of: impl Fn(&Holdings) -> f64) -> f64 {
        let ends = [&self.server, &self.client].into_iter();
        let growth = ends.map(|end| of(&end.holdings[1]) - of(&end.holdings[0]));
        growth.fold(0.0, f64::max)
    }
}

/// Runs the soak. Fails if a goal is missed.
pub(crate) fn run(args: &SoakArgs) -> Result<(), Failure> {
    // All but iperf3.
    tools::require(&tools::LOAD[1..])?;
    let json = args.json.open()?;
    let mut machine = Machine::here();
    let (mut soak, version) = Soak::new(args)?;
    let (server, client) = ((&soak.server.host, SERVER), (&soak.client.host, CLIENT));
    let there = Datagrams::start(client, server)?;
    let back = Datagrams::start(server, client)?;
    let stream = Stream::start(client, server)?;
    let (began, mut second) = (Instant::now(), 0);
    while began.elapsed() < args.time.0 {
        let half = usize::from(began.elapsed() > args.time.0 / 2);
        soak.disturb(second)?;
        soak.look(half)?;
        second += 1;
        if second.is_multiple_of(PROGRESS) {
            let (of, done) = (args.time.0.as_secs(), soak.disturbances);
            eprintln!("{second} of {of} s: {done} disturbances");
        }
        let next = Duration::from_secs(second as u64);
        wait(next.saturating_sub(began.elapsed()))?;
        if interrupt::interrupted() {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let flows = [there.finish()?, back.finish()?];
    let longest = flows
        .iter()
        .map(|flow| flow.longest)
        .max()
        .unwrap_or_default();
    let longest = longest.max(stream.finish()?);
    let reordered: u64 = flows.iter().map(|flow| flow.reordered).sum();
    let missing = soak.missing()?;
    machine.finish();
    let at_most = |name: &str, value: f64, most, unit| {
        GoalResult::new(name.to_owned(), value, Limit::AtMost(most), unit)
    };
    #[allow(clippy::cast_precision_loss, reason = "counts of a run are small")]
    let count = |count: u64| count as f64;
    let goals = vec![
        at_most("longest pause of a flow", longest.as_secs_f64(), 8.0, " s"),
        at_most("datagrams that were overtaken", count(reordered), 0.0, ""),
        at_most("packets that are nowhere", count(missing), 0.0, ""),
        at_most("memory, growth", soak.growth(|it| it.mib), 8.0, " MiB"),
        at_most(
            "descriptors, growth",
            soak.growth(|it| it.descriptors),
            8.0,
            "",
        ),
        at_most("threads, growth", soak.growth(|it| it.threads), 4.0, ""),
    ];
    let missed = goals.iter().filter(|goal| !goal.met).count();
    let table = goals::table(&goals);
    let document = json!({
        "schema": 1,
        "command": "soak",
        "machine": machine,
        "version": version,
        "seconds": seconds,
        "disturbances": soak.disturbances,
        "datagrams": flows.iter().map(|flow| flow.received).sum::<u64>(),
        "goals": goals,
    });
    json.publish(&table, &document)?;
    match missed {
        0 => Ok(()),
        missed => Err(format!("{missed} goals are missed").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        let seconds = |text: &str| text.parse::<Span>().map(|span| span.0.as_secs());
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("10m"), Ok(600));
        assert_eq!(seconds("2h"), Ok(7200));
        for wrong in [
            "",
            "90",
            "s",
            "-1s",
            "1d",
            "19s",
            "99999999999999999999h",
            "9999999999999999h",
        ] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
