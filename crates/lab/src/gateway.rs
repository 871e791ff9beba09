//! `adit-lab gateway`: whether a gateway delays its peers when the path to another one fails.
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

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_testbed::framing::TUNNEL_MTU;
use adit_testbed::process::Process;
use adit_testbed::stats::quantile;
use adit_testbed::{Host, interrupt, link};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::daemon::{self, READY};
use crate::implementation::{Entry, Implementation};
use crate::install;
use crate::measure::wait;
use crate::output::Json;
use crate::report::Machine;
use crate::sandbox::Failure;
use crate::stats::{Summary, summary};
use crate::tools::{self, Iperf};

/// Measures whether a peer behind a failing path delays the other peers of a gateway.
///
/// Builds a gateway with two neighbours in network namespaces: `fast`, one peer behind a plain
/// link, and `slow`, one or 50 peers behind a path that fails. Measures a TCP stream and pings from
/// the gateway to `fast`, alone and beside a UDP flood of 200 Mb/s to the peers at `slow`, for each
/// implementation in alternating rounds. Needs root, iperf3, ping, ip, tc and wg. Leaves nothing
/// behind.
#[derive(Args, Clone, Debug)]
pub(crate) struct GatewayArgs {
    /// How many rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measure only these cases.
    #[arg(long, value_delimiter = ',', value_name = "CASE")]
    only: Vec<Case>,
    /// Run only these.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    implementations: Vec<Implementation>,
    /// The Adit to measure (the binary itself, no script), instead of building the one in the
    /// repository.
    #[arg(long, value_name = "PATH")]
    adit: Option<PathBuf>,
    /// Write everything as JSON to FILE, or to standard output (the tables then go to standard
    /// error).
    ///
    /// One object with `schema` (1), `command`, `machine`, `rounds` and `implementations`. Each of
    /// the `cases` has `measures`, and each of these, for each implementation, the value of every
    /// round, `median`, `min`, `max` and `spread`. Each of the `goals` has `name`, `value`, `goal`
    /// and `met`. `notes` say what did not work. Fields are only ever added under the same schema
    /// number.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<String>,
}

/// How the path to the slow peers fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Case {
    /// One peer behind 10 Mb/s.
    Slow,
    /// 50 peers behind 10 Mb/s.
    SlowPeers,
    /// Packets vanish on the path.
    BlackHole,
    /// The address of the peer's host is not resolved.
    NoNeighbour,
    /// The gateway has no route to the peer.
    NoRoute,
    /// The peer's port is closed: ICMP errors come back.
    ClosedPort,
}

impl Case {
    const ALL: [Self; 6] = [
        Self::Slow,
        Self::SlowPeers,
        Self::BlackHole,
        Self::NoNeighbour,
        Self::NoRoute,
        Self::ClosedPort,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::SlowPeers => "slow-peers",
            Self::BlackHole => "black-hole",
            Self::NoNeighbour => "no-neighbour",
            Self::NoRoute => "no-route",
            Self::ClosedPort => "closed-port",
        }
    }

    const fn peers(self) -> u8 {
        match self {
            Self::SlowPeers => 50,
            _ => 1,
        }
    }

    const fn is_slow(self) -> bool {
        matches!(self, Self::Slow | Self::SlowPeers)
    }
}

/// A quantity that is measured in each case.
struct Measure {
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    places: usize,
}

const STREAM: &str = "stream";
const STREAM_BESIDE: &str = "stream_beside";
const STREAM_RATIO: &str = "stream_ratio";
const PING: &str = "ping_p50";
const PING_BESIDE: &str = "ping_beside_p50";
const PING_BESIDE_P99: &str = "ping_beside_p99";
const LOST: &str = "ping_beside_lost";
const GAP: &str = "ping_beside_gap";
const SLOW_TCP: &str = "slow_tcp";

const MEASURES: [Measure; 9] = [
    measure(STREAM, "TCP to the fast peer, alone", "Gb/s", 2),
    measure(STREAM_BESIDE, "the same beside the flood", "Gb/s", 2),
    measure(STREAM_RATIO, "  of the stream alone", "×", 2),
    measure(PING, "ping the fast peer, p50", "ms", 2),
    measure(PING_BESIDE, "the same beside the flood, p50", "ms", 2),
    measure(PING_BESIDE_P99, "  p99", "ms", 2),
    measure(LOST, "  not answered", "%", 1),
    measure(GAP, "  longest time without an answer", "ms", 0),
    measure(SLOW_TCP, "TCP to the slow peer, alone", "Mb/s", 2),
];

const fn measure(
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    places: usize,
) -> Measure {
    Measure {
        id,
        title,
        unit,
        places,
    }
}

/// What Adit is to reach in every case.
const GOALS: [(&str, &str, f64); 2] = [(STREAM_RATIO, "≥", 0.9), (GAP, "≤", 50.0)];

/// Values of one round, by [`Measure::id`].
type Values = Vec<(&'static str, f64)>;

/// Runs all cases.
pub(crate) fn run(args: &GatewayArgs) -> Result<(), Failure> {
    tools::require(&tools::LOAD)?;
    let json = Json::open(args.json.as_deref())?;
    let mut report = GatewayReport::new(args.rounds);
    report.find(args)?;
    let cases = if args.only.is_empty() {
        Case::ALL.to_vec()
    } else {
        args.only.clone()
    };
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for entry in install::order(&report.implementations, round) {
            for &case in &cases {
                interrupt::check()?;
                eprint!("  {:<14}{:<14}", entry.who.name(), case.name());
                match one_case(&entry, case) {
                    Ok(values) => {
                        eprintln!("{}", progress(&values));
                        report.add(case, entry.who, values);
                    }
                    Err(why) => {
                        interrupt::check()?;
                        eprintln!("failed: {why}");
                        report.note(round, entry.who, case, &why);
                    }
                }
            }
        }
    }
    report.machine.finish();
    json.publish(&report.table(), || {
        Ok(serde_json::to_string_pretty(&report.document())?)
    })
}

fn progress(values: &Values) -> String {
    let shown = values.iter().filter_map(|(id, value)| {
        let wanted = [STREAM_RATIO, GAP].contains(id);
        let measure = MEASURES.iter().find(|measure| measure.id == *id)?;
        let places = measure.places;
        wanted.then(|| format!("{id} {value:.places$} {}", measure.unit))
    });
    shown.collect::<Vec<_>>().join(" · ")
}

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

/// The inner address of a slow peer.
fn slow_address(peer: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, 1, peer + 1).into()
}

impl Gateway {
    fn new(entry: &Entry, peers: u8) -> Result<Self, Failure> {
        let host = || -> Result<Host, Failure> {
            let host = Host::new()?;
            host.own_run()?;
            Ok(host)
        };
        let mut this = Self {
            daemons: Vec::new(),
            slow_daemons: Vec::new(),
            gateway: host()?,
            fast: host()?,
            slow: host()?,
            peers,
        };
        for (other, name, net) in [(&this.fast, FAST_LINK, 1), (&this.slow, SLOW_LINK, 2)] {
            link(&this.gateway, other, name)?;
            for (host, last) in [(&this.gateway, 1), (other, 2)] {
                let address = Ipv4Addr::new(10, 76, net, last).into();
                host.bring_up(name, &[(address, 24)], None)?;
            }
        }
        this.tunnels(entry)?;
        Ok(this)
    }

    fn tunnels(&mut self, entry: &Entry) -> Result<(), Failure> {
        let at_gateway = daemon::keys()?;
        self.daemons
            .push(daemon::start(&self.gateway, entry, INTERFACE)?);
        let mut set = format!("set {INTERFACE} private-key /run/key listen-port 51820");
        let fast = daemon::keys()?;
        self.daemons
            .push(daemon::start(&self.fast, entry, INTERFACE)?);
        set += &format!(
            " peer {} endpoint 10.76.1.2:51820 allowed-ips {FAST}/32",
            fast.public
        );
        let to_us = |net: u8| {
            format!(
                "peer {} endpoint 10.76.{net}.1:51820 allowed-ips 10.77.0.1/32",
                at_gateway.public
            )
        };
        configure(
            &self.fast,
            &fast.private,
            INTERFACE,
            &format!("51820 {}", to_us(1)),
            FAST,
        )?;
        for peer in 0..self.peers {
            let keys = daemon::keys()?;
            let name = format!("wg{peer}");
            self.slow_daemons
                .push(daemon::start(&self.slow, entry, &name)?);
            let port = 51_820 + u16::from(peer);
            let address = slow_address(peer);
            configure(
                &self.slow,
                &keys.private,
                &name,
                &format!("{port} {}", to_us(2)),
                address,
            )?;
            self.slow.ip(&format!(
                "route replace 10.77.0.1/32 dev {name} table {}",
                100 + u16::from(peer)
            ))?;
            self.slow.ip(&format!(
                "rule add from {address} table {}",
                100 + u16::from(peer)
            ))?;
            set += &format!(
                " peer {} endpoint 10.76.2.2:{port} allowed-ips {address}/32",
                keys.public
            );
        }
        let private = at_gateway.private;
        self.gateway
            .run(move || std::fs::write("/run/key", private))?;
        let words: Vec<&str> = set.split_whitespace().collect();
        self.gateway.output("wg", &words, READY)?;
        let own = Ipv4Addr::new(10, 77, 0, 1).into();
        let mtu = u32::try_from(TUNNEL_MTU)?;
        self.gateway.bring_up(INTERFACE, &[(own, 16)], Some(mtu))?;
        daemon::wait_for(&self.gateway, FAST)?;
        for peer in 0..self.peers {
            daemon::wait_for(&self.gateway, slow_address(peer))?;
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
            Case::ClosedPort => self.slow_daemons.clear(),
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

/// Gives an interface its key, port and peer, its address and MTU.
fn configure(
    host: &Host,
    private: &str,
    name: &str,
    port_and_peer: &str,
    address: IpAddr,
) -> Result<(), Failure> {
    let private = private.to_owned();
    host.run(move || std::fs::write("/run/key", private))?;
    let set = format!("set {name} private-key /run/key listen-port {port_and_peer}");
    let words: Vec<&str> = set.split_whitespace().collect();
    host.output("wg", &words, READY)?;
    host.bring_up(name, &[(address, 32)], Some(u32::try_from(TUNNEL_MTU)?))?;
    host.ip(&format!("route replace 10.77.0.1/32 dev {name}"))?;
    Ok(())
}

const PING_EVERY: Duration = Duration::from_millis(10);
const PINGS: u32 = 300;
/// Seconds of each stream.
const SECONDS: u32 = 3;

fn one_case(entry: &Entry, case: Case) -> Result<Values, Failure> {
    let mut hosts = Gateway::new(entry, case.peers())?;
    let mut values = Vec::new();
    if case.is_slow() {
        hosts.slow_down()?;
    }
    if case == Case::Slow {
        let gbps = hosts.stream(&hosts.slow, slow_address(0), 5)?;
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
    let flood = Flood::start(&hosts.gateway, hosts.peers)?;
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
    flood.stop();
    values.push((STREAM_BESIDE, beside));
    values.push((STREAM_RATIO, beside / alone));
    Ok(values)
}

/// A flood of datagrams to the slow peers.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// UDP payload of each datagram, in octets: the longest that fits the tunnel.
const FLOOD_BYTES: usize = TUNNEL_MTU - 28;
/// Bits a second of all of them.
const FLOOD_RATE: f64 = 200e6;

impl Flood {
    fn start(from: &Host, peers: u8) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = from.thread(move || flood(peers, &asked))?;
        Ok(Self { stop, thread })
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

/// Sends to each peer in turn, in bursts of a millisecond.
fn flood(peers: u8, stop: &AtomicBool) {
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) else {
        return;
    };
    // A blocked tunnel must not block the flood: what does not fit is dropped.
    let _ = socket.set_nonblocking(true);
    let payload = [0; FLOOD_BYTES];
    let begun = Instant::now();
    let (mut sent, mut peer) = (0.0, 0);
    while !stop.load(Ordering::Relaxed) {
        let due = begun.elapsed().as_secs_f64() * FLOOD_RATE / 8.0;
        while sent < due {
            let _ = socket.send_to(&payload, SocketAddr::new(slow_address(peer), 9));
            sent += payload.len() as f64;
            peer = (peer + 1) % peers;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A run.
struct GatewayReport {
    machine: Machine,
    rounds: u32,
    implementations: Vec<Entry>,
    samples: BTreeMap<(Case, &'static str, Implementation), Vec<f64>>,
    notes: Vec<GatewayNote>,
}

/// Something that went wrong. Round 0 is before the first round.
#[derive(Clone, Serialize)]
struct GatewayNote {
    round: u32,
    implementation: Implementation,
    case: Option<Case>,
    text: String,
}

#[derive(Serialize)]
struct GatewayDocument<'a> {
    schema: u32,
    command: &'static str,
    machine: &'a Machine,
    rounds: u32,
    implementations: &'a [Entry],
    cases: Vec<CaseResults>,
    goals: Vec<GoalResult>,
    notes: &'a [GatewayNote],
}

#[derive(Serialize)]
struct CaseResults {
    case: Case,
    measures: Vec<CaseMeasure>,
}

#[derive(Serialize)]
struct CaseMeasure {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    implementations: BTreeMap<&'static str, Rounds>,
}

#[derive(Serialize)]
struct Rounds {
    rounds: Vec<f64>,
    #[serde(flatten)]
    summary: Summary,
}

/// A goal, and Adit's median.
#[derive(Serialize)]
struct GoalResult {
    name: String,
    value: f64,
    goal: String,
    met: bool,
}

impl GatewayReport {
    fn new(rounds: u32) -> Self {
        Self {
            machine: Machine::here(),
            rounds,
            implementations: Vec::new(),
            samples: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    fn find(&mut self, args: &GatewayArgs) -> Result<(), Failure> {
        let all = Implementation::PEERS
            .into_iter()
            .chain([Implementation::Adit]);
        let asked = &args.implementations;
        for who in all.filter(|who| asked.is_empty() || asked.contains(who)) {
            match install::find(who, args.adit.as_deref()) {
                Ok(entry) => {
                    eprintln!("{:<14}{}", who.name(), entry.version);
                    self.implementations.push(entry);
                }
                Err(why) => {
                    eprintln!("{:<14}left out: {why}", who.name());
                    self.notes.push(GatewayNote {
                        round: 0,
                        implementation: who,
                        case: None,
                        text: format!("left out: {why}"),
                    });
                }
            }
        }
        if self.implementations.is_empty() {
            return Err("nothing to measure: choose among wireguard-go, tailscale, boringtun, gotatun and adit".into());
        }
        Ok(())
    }

    fn add(&mut self, case: Case, who: Implementation, values: Values) {
        for (id, value) in values {
            self.samples.entry((case, id, who)).or_default().push(value);
        }
    }

    fn note(&mut self, round: u32, implementation: Implementation, case: Case, why: &Failure) {
        self.notes.push(GatewayNote {
            round,
            implementation,
            case: Some(case),
            text: why.to_string(),
        });
    }

    fn cases(&self) -> impl Iterator<Item = Case> {
        let has = |case: &Case| self.samples.keys().any(|(of, ..)| of == case);
        Case::ALL.into_iter().filter(has)
    }

    fn summary(&self, case: Case, id: &'static str, who: Implementation) -> Option<Summary> {
        summary(self.samples.get(&(case, id, who))?)
    }

    fn goals(&self) -> Vec<GoalResult> {
        let all = self.cases().flat_map(|case| GOALS.map(|goal| (case, goal)));
        all.filter_map(|(case, (id, relation, goal))| {
            let value = self.summary(case, id, Implementation::Adit)?.median;
            Some(GoalResult {
                name: format!("{}: {id}", case.name()),
                value,
                goal: format!("{relation} {goal}"),
                met: if relation == "≥" {
                    value >= goal
                } else {
                    value <= goal
                },
            })
        })
        .collect()
    }

    fn document(&self) -> GatewayDocument<'_> {
        let measured = |case: Case, measure: &Measure| {
            let implementations = self.implementations.iter().filter_map(|entry| {
                let rounds = self.samples.get(&(case, measure.id, entry.who))?.clone();
                let summary = summary(&rounds)?;
                Some((entry.who.name(), Rounds { rounds, summary }))
            });
            CaseMeasure {
                name: measure.id,
                title: measure.title.trim(),
                unit: measure.unit,
                implementations: implementations.collect(),
            }
        };
        GatewayDocument {
            schema: 1,
            command: "gateway",
            machine: &self.machine,
            rounds: self.rounds,
            implementations: &self.implementations,
            cases: self
                .cases()
                .map(|case| CaseResults {
                    case,
                    measures: MEASURES
                        .iter()
                        .map(|measure| measured(case, measure))
                        .filter(|measured| !measured.implementations.is_empty())
                        .collect(),
                })
                .collect(),
            goals: self.goals(),
            notes: &self.notes,
        }
    }

    /// Medians: a table for each case, then the goals.
    fn table(&self) -> String {
        let mut text = String::new();
        for case in self.cases() {
            text += &format!("\n{:<38}", case.name());
            for entry in &self.implementations {
                text += &format!("{:>14}", entry.who.name());
            }
            for measure in &MEASURES {
                let cells: Vec<String> = self
                    .implementations
                    .iter()
                    .map(|entry| {
                        let median = self.summary(case, measure.id, entry.who)?.median;
                        let places = measure.places;
                        Some(format!("{median:.places$}"))
                    })
                    .map(Option::unwrap_or_default)
                    .collect();
                if cells.iter().any(|cell| !cell.is_empty()) {
                    text += &format!("\n{:<38}", format!("{}, {}", measure.title, measure.unit));
                    text.extend(cells.iter().map(|cell| format!("{cell:>14}")));
                }
            }
            text.push('\n');
        }
        text.push('\n');
        for goal in self.goals() {
            let verdict = if goal.met { "met" } else { "MISSED" };
            text += &format!(
                "{:<38}{:>10.2}  {:<8}{verdict}\n",
                goal.name, goal.value, goal.goal
            );
        }
        for note in &self.notes {
            let case = note.case.map_or("", Case::name);
            let who = note.implementation.name();
            text += &format!("note: {who} {case}, round {}: {}\n", note.round, note.text);
        }
        text
    }
}

#[cfg(test)]
#[path = "gateway_tests.rs"]
mod tests;
