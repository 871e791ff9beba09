//! `adit-lab upgrade`: a gateway's process is replaced again and again, under load.
//!
//! ```text
//!    app ── veth ── gateway ── veth ── players: the peers that the lab plays
//!                   wg0    └── veth ── established peer (wg0)
//! ```
//!
//! One series: all peers shake hands → a stream and datagrams begin → hand-overs, until the sessions
//! are so old that WireGuard would replace them → all datagrams have come → nobody shook hands.
//!
//! - this file: the hosts, and what is done;
//! - `flows`: datagrams that have numbers;
//! - `report`: the table and the document.

mod flows;
mod report;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_ctl::status;
use adit_testbed::interrupt::{self, interrupted};
use adit_testbed::{Host, proc};
use clap::Args;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::daemon::READY;
use crate::gateway::clients::{self, Clients, Pace, Sockets};
use crate::gateway::load::PORT;
use crate::gateway::many::{INTERFACE, Many};
use crate::gateway::state::{self, Established, FAST};
use crate::hosts::Keys;
use crate::implementation::{Entry, Implementation};
use crate::install::{self, AditArg};
use crate::measure::wait;
use crate::output::JsonArg;
use crate::sandbox::Failure;
use crate::soak::Span;
use crate::tools::{self, Iperf};
use flows::{Everybody, Numbered, Tally};
use report::{HandOver, UpgradeReport};

/// Replaces the process of a busy gateway again and again, and tells what its peers notice.
///
/// Builds a gateway in a network namespace. One peer receives an iperf3 stream and exchanges a
/// datagram with the gateway each 500 µs; the others, which the lab plays, exchange 2,000 a second
/// with an application behind the gateway. Then `adit upgrade` runs, so often as asked. All share
/// the machine.
///
/// Prints the gap of the hand-overs: how long the slowest datagram took that was under way, beside
/// the slowest of the 300 ms before. Counts handshakes, and datagrams that are lost or delivered
/// twice. Fails when a goal is missed.
///
/// JSON is one object with `schema` (1), `command`, `started`, `seconds`, `stopped`, `machine`,
/// `settings`, `implementations`, `metrics`, `goals` and `notes`. Each of the `metrics` has, for
/// `adit`, the value of every hand-over, `median`, `min`, `max` and `spread`; each of the `goals`
/// `name`, `value`, `goal` and `met`.
///
/// Needs root, iperf3, ping, ip and wg. Leaves nothing behind. Ctrl-C ends it with what it has.
#[derive(Args, Clone, Debug)]
pub(crate) struct UpgradeArgs {
    /// How many hand-overs.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// How many peers with a session.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    peers: u32,
    /// How many peers more, without a session.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    silent: u32,
    /// At most so long: 90s, 10m or 2h. Then it ends with what it has.
    #[arg(long, default_value = "15m")]
    time: Span,
    #[command(flatten)]
    adit: AditArg,
    #[command(flatten)]
    json: JsonArg,
}

/// How long the configuration, and a hand-over, may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Handshakes under way at a time: the gateway is not under load with so few.
const AT_A_TIME: usize = 64;
/// WireGuard replaces a session after 120 s (REKEY_AFTER_TIME); the first of a series are older than
/// the series by what all handshakes take.
const SERIES: Duration = Duration::from_secs(75);
/// Before a hand-over, and after it.
const BEFORE: Duration = Duration::from_millis(300);
const AFTER: Duration = Duration::from_millis(200);
/// The gateway's address inside.
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));

/// The hosts, and what runs there.
struct Bed {
    // The established peer is stopped before the gateway's host goes.
    established: Established,
    hosts: Many,
    binary: String,
    /// Of the gateway's process.
    pid: i32,
    keys: Vec<Keys>,
    players: Arc<Sockets>,
    app: Arc<Sockets>,
}

impl Bed {
    fn new(args: &UpgradeArgs, entry: &Entry) -> Result<Self, Failure> {
        let all = args.peers + args.silent;
        eprintln!("a gateway with {all} peers");
        let mut hosts = Many::new(entry)?;
        let binary = entry.binary.as_deref().ok_or("it has no binary")?;
        let binary = binary.to_string_lossy().into_owned();
        // One that somebody waits for in the foreground cannot be replaced.
        drop(hosts.daemon.take());
        let start = "LOG_LEVEL=error exec \"$0\" \"$1\" > /run/log 2>&1";
        let start = ["-c", start, &binary, INTERFACE];
        hosts.gateway.output("sh", &start, READY)?;
        let pid = processes(&hosts.gateway)?;
        let pid = *pid.first().ok_or("it cannot hand over")?;
        let established = Established::new(entry, &hosts)?;
        let keys = Keys::several(args.peers)?;
        hosts.setconf(state::config(&hosts, &established, &keys, all)?, LIMIT)?;
        hosts.bring_up()?;
        hosts.wait_for_port()?;
        Ok(Self {
            binary,
            pid,
            keys,
            players: Arc::new(clients::sockets(&hosts.players)?),
            app: Arc::new(Sockets::bind(&hosts.app, PORT)?),
            established,
            hosts,
        })
    }

    /// Every peer has a new session.
    fn connect(&self) -> Result<Everybody, Failure> {
        let count = self.keys.len();
        eprintln!("{count} handshakes");
        let limit = LIMIT + Duration::from_secs(count as u64 / 500);
        let clients = Clients::new(&self.keys, self.hosts.keys.public)?;
        let done = clients.connect(&self.players, Pace::AtATime(AT_A_TIME), limit);
        interrupt::check()?;
        let connected = done.connected.len();
        if connected < count {
            return Err(format!("only {connected} of {count} peers got a session").into());
        }
        let gateway = self.hosts.keys.public.to_string();
        let (peer, deadline) = (&self.established.host, Instant::now() + READY);
        let before = handshakes(peer, &["responses_accepted"])?;
        peer.run(move || status::probe(INTERFACE, &gateway))?;
        while handshakes(peer, &["responses_accepted"])? == before {
            if Instant::now() > deadline {
                return Err("the established peer got no new session".into());
            }
            wait(Duration::from_millis(20))?;
        }
        Everybody::start(done.connected, &self.players, &self.app)
    }

    /// Handshake messages that the gateway and the established peer sent and received, ever.
    fn handshakes(&self) -> Result<u64, Failure> {
        let messages = [
            "initiations_sent",
            "initiations_received",
            "responses_sent",
            "responses_received",
        ];
        let ends = [&self.hosts.gateway, &self.established.host];
        let counts = ends.map(|host| handshakes(host, &messages)).into_iter();
        counts.sum()
    }

    /// One hand-over, and what became of the datagrams beside it.
    fn hand_over(&mut self) -> Result<(HandOver, Tally), Failure> {
        let (gateway, peer) = (&self.hosts.gateway, &self.established.host);
        let flows = [
            Numbered::start(gateway, peer, FAST)?,
            Numbered::start(peer, gateway, OWN)?,
        ];
        wait(BEFORE)?;
        let (begun, sent) = (Instant::now(), self.sent()?);
        gateway.output(&self.binary, &["upgrade", INTERFACE], LIMIT)?;
        let took = begun.elapsed();
        wait(AFTER)?;
        let bytes = self.sent()? - sent;
        let stream = bytes * 8.0 / 1e9 / begun.elapsed().as_secs_f64();
        let (mut tally, mut gap, mut before) = (Tally::default(), Duration::ZERO, Duration::ZERO);
        for flow in flows {
            let (some, arrivals) = flow.finish()?;
            tally.add(some);
            for (came, took) in arrivals {
                let slowest = if came < begun { &mut before } else { &mut gap };
                *slowest = took.max(*slowest);
            }
        }
        self.follow()?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let found = HandOver {
            gap: ms(gap),
            before: ms(before),
            took: ms(took),
            stream,
            memory: proc::memory(u32::try_from(self.pid)?)?.peak,
        };
        Ok((found, tally))
    }

    /// Octets that the gateway's interface was given.
    fn sent(&self) -> Result<f64, Failure> {
        let path = format!("/sys/class/net/{INTERFACE}/statistics/tx_bytes");
        let text = self.hosts.gateway.run(|| fs::read_to_string(path))?;
        Ok(text.trim().parse()?)
    }

    /// Waits for the end of the old process, and learns which is the new one.
    fn follow(&mut self) -> Result<(), Failure> {
        reap(self.pid)?;
        let now = processes(&self.hosts.gateway)?;
        let new = now.into_iter().find(|&pid| pid != self.pid);
        self.pid = new.ok_or("there is no new process")?;
        Ok(())
    }
}

/// The sum of these counters of a host's interface.
fn handshakes(host: &Host, names: &[&str]) -> Result<u64, Failure> {
    let mut interface = host.run(|| status::fetch(INTERFACE))?;
    let engine = interface.engine.take().ok_or("the status has no engine")?;
    let counts = names.iter().map(|&name| engine.handshakes.get(name));
    Ok(counts.flatten().sum())
}

/// The processes of a host that can hand over.
fn processes(host: &Host) -> Result<Vec<i32>, Failure> {
    let names = host.run(|| -> std::io::Result<Vec<_>> {
        let entries = fs::read_dir("/run/adit/upgrade")?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    })?;
    let pids = names.iter().filter_map(|name| {
        let pid = name.to_str()?.strip_suffix(".sock")?;
        pid.parse().ok()
    });
    Ok(pids.collect())
}

/// Waits for the end of a process whose parent has ended: the first process of a namespace, which
/// the lab is, inherits it.
fn reap(pid: i32) -> Result<(), Failure> {
    let deadline = Instant::now() + READY;
    while waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG))? == WaitStatus::StillAlive {
        interrupt::check()?;
        if Instant::now() > deadline {
            return Err(format!("process {pid} was replaced and does not end").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Does all hand-overs, series by series.
fn measure(args: &UpgradeArgs, entry: &Entry, report: &mut UpgradeReport) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut bed = Bed::new(args, entry)?;
    while report.count() < args.count {
        let everybody = bed.connect()?;
        let seconds = u32::try_from(2 * (SERIES + LIMIT).as_secs())?;
        let iperf = Iperf::tcp(1, seconds);
        let mut stream = iperf.start_between(&bed.hosts.gateway, &bed.established.host, FAST)?;
        // The last of the handshakes are confirmed, and the stream has grown.
        wait(Duration::from_secs(1))?;
        let (handshakes, since) = (bed.handshakes()?, Instant::now());
        let mut time_is_up = false;
        while report.count() < args.count && since.elapsed() < SERIES && !time_is_up {
            let (found, tally) = bed.hand_over()?;
            report.add(found, tally);
            eprintln!("{}", report.progress(args.count));
            if !stream.is_alive() {
                return Err("iperf3's stream ended".into());
            }
            time_is_up = begun.elapsed() > args.time.0;
        }
        drop(stream);
        report.end_series(bed.handshakes()? - handshakes, everybody.finish()?);
        if time_is_up && report.count() < args.count {
            return Err("the time is up".into());
        }
    }
    Ok(())
}

/// Runs the hand-overs. Fails if a goal is missed.
pub(crate) fn run(args: &UpgradeArgs) -> Result<(), Failure> {
    tools::require(&tools::LOAD)?;
    let json = args.json.open()?;
    let entry = install::find(Implementation::Adit, args.adit.path())?;
    let mut report = UpgradeReport::new([args.count, args.peers, args.silent], entry.clone());
    let done = measure(args, &entry, &mut report);
    let stopped = done.err().map(|why| match interrupted() {
        true => "interrupted".to_owned(),
        false => why.to_string(),
    });
    if report.count() == 0
        && let Some(why) = stopped
    {
        return Err(why.into());
    }
    report.finish(stopped);
    json.publish(&report.table(), &report.document())?;
    report.verdict()
}
