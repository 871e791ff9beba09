//! The parts of the experiment.

use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_testbed::process::{self, Process};
use adit_testbed::stats::{quantile, to_f64};
use adit_testbed::{Host, interrupt, link, proc};
use serde_json::{Value, json};

use super::clients::{FleetClients, peer};
use super::store::{SOURCE, Store};
use super::strangers::Strangers;
use super::{
    ADDED, AGENT_MEMORY, CALL_CPU, CONNECTED, LIST, LOOKUPS, MEDIAN, P95, P99, PERCENTILES, PUTS,
    REMOVED, SENT, SLOWEST,
};
use crate::daemon;
use crate::gateway::clients::Sockets;
use crate::gateway::many::{self, INTERFACE, Many, PORT};
use crate::hosts::{self, Keys};
use crate::implementation::Entry;
use crate::measure::wait;
use crate::rounds::Values;
use crate::sandbox::Failure;

/// How long a command of Adit may take.
const COMMAND: Duration = Duration::from_secs(30);
/// How long an agent may take to bring all its peers.
const BRINGS: Duration = Duration::from_secs(600);
/// Changes of single records that are timed.
const CHANGES: u32 = 100;
/// Peers that come just in time: these, one each 5 ms.
const NEW: u32 = 600;
const APART: Duration = Duration::from_millis(5);
/// Honest peers beside a flood, and how long they may take: one answer by a cookie, and two more attempts.
const HONEST: u32 = 20;
const FLOOD: f64 = 60_000.0;
const FLOOD_TIME: Duration = Duration::from_secs(16);
/// A client of a gateway that dies pings so often, and all of them together at most once each `PING`.
const EVERY: Duration = Duration::from_millis(100);
const PING: Duration = Duration::from_micros(100);
/// How long the other gateway has to get them back.
const BACK: Duration = Duration::from_secs(25);

/// A gateway without peers, its etcd, and its agent.
struct Gateway {
    // Stopped before its host goes.
    agent: Option<Process>,
    store: Store,
    many: Many,
    program: String,
}

impl Gateway {
    fn new(entry: &Entry) -> Result<Self, Failure> {
        let many = gateway(entry)?;
        let program = entry.binary.as_deref().ok_or("it has no binary")?;
        Ok(Self {
            agent: None,
            store: Store::new(&many.gateway)?,
            program: program.to_string_lossy().into_owned(),
            many,
        })
    }

    /// Starts its agent, and waits until it has read what it follows.
    fn start_agent(&mut self, options: &[&str], limit: Duration) -> Result<(), Failure> {
        let arguments = [&["agent", INTERFACE, "--source", SOURCE], options].concat();
        let mut command = process::command(&self.program, &arguments);
        // It has a line for each peer.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.agent = Some(self.many.gateway.spawn(command)?);
        let deadline = Instant::now() + limit;
        loop {
            if let Ok(status) = self.status()
                && status["state"] == "listed"
            {
                return Ok(());
            }
            interrupt::check()?;
            if Instant::now() > deadline {
                return Err("the agent did not list all records".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn status(&self) -> Result<Value, Failure> {
        let arguments = ["agent", "status", INTERFACE, "--json"];
        let text = (self.many.gateway).output(&self.program, &arguments, COMMAND)?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// A gateway that is up, without peers.
fn gateway(entry: &Entry) -> Result<Many, Failure> {
    let many = Many::new(entry)?;
    many.setconf(many.head(), COMMAND)?;
    many.bring_up()?;
    many.wait_for_port()?;
    Ok(many)
}

fn record(key: &str, client: u32) -> Value {
    let bits = match many::inner(peer(client)) {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    };
    json!({ "public_key": key, "allowed_ips": [format!("{}/{bits}", many::inner(peer(client)))] })
}

/// A record for each client from number `first` on, by its key.
fn records_of(keys: &[Keys], first: u32) -> impl Iterator<Item = (String, Value)> + '_ {
    (first..).zip(keys).map(|(client, keys)| {
        let key = keys.public.to_string();
        let value = record(&key, client);
        (key, value)
    })
}

/// Records of peers that never come, from number `first` on. Digits are base64, and the last one stands for four
/// bits: a store takes any of these.
fn records_of_others(first: u32, count: u32) -> impl Iterator<Item = (String, Value)> {
    (first..first + count).map(|client| {
        let key = format!("{client:08}{:034}0=", 7);
        let value = record(&key, client);
        (key, value)
    })
}

/// An agent that brings all records, and single ones that come and go.
pub(super) fn records(entry: &Entry, count: u32) -> Result<Values, Failure> {
    let mut gateway = Gateway::new(entry)?;
    let keys = Keys::several(count)?;
    let puts = (gateway.store).load(&gateway.many.gateway, records_of(&keys, 0))?;
    let begun = Instant::now();
    gateway.start_agent(&[], BRINGS)?;
    while gateway.status()?["applied"] != json!(count) {
        interrupt::check()?;
        if begun.elapsed() > BRINGS {
            return Err("the agent did not bring all peers".into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let list = begun.elapsed().as_secs_f64();
    let host = &gateway.many.gateway;
    let agent = host.output("pgrep", &["-n", "-x", "adit-agent"], COMMAND);
    let memory = match agent.ok().and_then(|pid| pid.trim().parse().ok()) {
        Some(pid) => Some(proc::memory(pid)?.now),
        None => None,
    };
    let mut changes = Changes::new(host)?;
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    for keys in Keys::several(CHANGES)?.chunks(1) {
        interrupt::check()?;
        let begun = Instant::now();
        gateway.store.load(host, records_of(keys, count))?;
        added.push(changes.wait_for("added", &keys[0], begun)?);
        let begun = Instant::now();
        gateway.store.delete(host, &keys[0].public.to_string())?;
        removed.push(changes.wait_for("removed", &keys[0], begun)?);
    }
    let mut values = vec![
        (PUTS, puts),
        (LIST, list),
        (ADDED, quantile(&added, 0.5).unwrap_or(0.0)),
        (REMOVED, quantile(&removed, 0.5).unwrap_or(0.0)),
    ];
    values.extend(memory.map(|memory| (AGENT_MEMORY, memory)));
    Ok(values)
}

/// What an interface tells of its peers.
struct Changes(BufReader<UnixStream>);

impl Changes {
    fn new(host: &Host) -> Result<Self, Failure> {
        let stream = host.run(|| adit_ctl::status::listen(INTERFACE))?;
        stream.set_read_timeout(Some(COMMAND))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Waits until a peer is added or removed: milliseconds since `begun`.
    fn wait_for(&mut self, what: &str, keys: &Keys, begun: Instant) -> Result<f64, Failure> {
        let key = keys.public.to_string();
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line)? == 0 {
                return Err("the interface has ended".into());
            }
            let event: Value = serde_json::from_str(&line)?;
            let changes = event["changes"].as_array();
            let is_it = |change: &Value| change["what"] == what && change["peer"] == key.as_str();
            if changes.is_some_and(|changes| changes.iter().any(is_it)) {
                return Ok(begun.elapsed().as_secs_f64() * 1000.0);
            }
        }
    }
}

/// Unknown peers that have a record, one after the other.
pub(super) fn just_in_time(entry: &Entry, count: u32) -> Result<Values, Failure> {
    let mut gateway = Gateway::new(entry)?;
    let keys = Keys::several(NEW)?;
    let host = &gateway.many.gateway;
    gateway.store.load(host, records_of_others(NEW, count))?;
    gateway.store.load(host, records_of(&keys, 0))?;
    gateway.start_agent(&["--just-in-time"], COMMAND)?;
    let sockets = Sockets::bind(&gateway.many.players, PORT)?;
    let mut clients = FleetClients::new(&sockets, gateway.many.keys.public, 0, &keys)?;
    clients.begin(APART, None, APART * NEW + FLOOD_TIME);
    connected(&clients.first_answers(), NEW)
}

/// The times of those that have an answer, and how many of all.
fn connected(times: &[f64], all: u32) -> Result<Values, Failure> {
    let share = to_f64(times.len()) / f64::from(all) * 100.0;
    let at = |q| quantile(times, q).ok_or("no ping was answered");
    Ok(vec![
        (MEDIAN, at(0.5)?),
        (P95, at(0.95)?),
        (P99, at(0.99)?),
        (SLOWEST, at(1.0)?),
        (CONNECTED, share),
    ])
}

/// Peers that have a record, beside a flood of keys that have none.
pub(super) fn flood(entry: &Entry, sources: u32) -> Result<Values, Failure> {
    let mut gateway = Gateway::new(entry)?;
    let keys = Keys::several(HONEST)?;
    gateway
        .store
        .load(&gateway.many.gateway, records_of(&keys, 0))?;
    gateway.start_agent(&["--just-in-time"], COMMAND)?;
    let public = gateway.many.keys.public;
    let strangers = Strangers::new(public)?;
    let sockets = Sockets::bind(&gateway.many.players, PORT)?;
    let forged = Sockets::bind(&gateway.many.players, PORT + 1)?;
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let lookups = || -> Result<f64, Failure> {
        let counts = gateway.status()?["just_in_time"].clone();
        let count = |name: &str| counts[name].as_f64().unwrap_or(0.0);
        Ok(count("found") + count("missing"))
    };
    std::thread::scope(|scope| -> Result<Values, Failure> {
        scope.spawn(|| strangers.flood(&forged, (FLOOD, sources), &stop, &sent));
        let measure = || -> Result<Values, Failure> {
            wait(Duration::from_secs(2))?;
            let before = (Instant::now(), lookups()?, sent.load(Ordering::Relaxed));
            let mut clients = FleetClients::new(&sockets, public, 0, &keys)?;
            clients.begin(APART, None, FLOOD_TIME);
            let rest = FLOOD_TIME.saturating_sub(before.0.elapsed());
            wait(rest)?;
            let seconds = before.0.elapsed().as_secs_f64();
            let sent = sent.load(Ordering::Relaxed).saturating_sub(before.2);
            let sent = to_f64(usize::try_from(sent)?);
            let mut values = connected(&clients.first_answers(), HONEST)?;
            values.push((LOOKUPS, (lookups()? - before.1) / seconds));
            values.push((SENT, sent / seconds / 1000.0));
            Ok(values)
        };
        let values = measure();
        stop.store(true, Ordering::Relaxed);
        values
    })
}

/// A gateway dies with its link, and another one with its key gets its address.
pub(super) fn fail_over(entry: &Entry, count: u32, calls: bool) -> Result<Values, Failure> {
    let every = EVERY.max(PING * count);
    let one = gateway(entry)?;
    let other = OtherGateway::new(entry, &one)?;
    let keys = Keys::several(count)?;
    let mut peers = String::new();
    for (client, keys) in (0..).zip(&keys) {
        let block = format!("{}/32", many::inner(peer(client)));
        let at = std::net::SocketAddr::new(many::outer(peer(client)), PORT);
        many::section(&mut peers, &keys.public, &block, Some(at));
    }
    let config = one.head() + &peers;
    one.setconf(config.clone(), COMMAND)?;
    other.host.run({
        let config = config.clone();
        move || std::fs::write("/run/wg.conf", config)
    })?;
    hosts::wg(&other.host, "setconf wg0 /run/wg.conf")?;
    let sockets = Sockets::bind(&one.players, PORT)?;
    let mut clients = FleetClients::new(&sockets, one.keys.public, 0, &keys)?;
    clients.begin(Duration::from_millis(2), Some(every), BACK + APART * count);
    let had = clients.first_answers().len();
    if had < keys.len() {
        return Err(format!("{had} of {count} clients had an answer before").into());
    }
    let program = entry.binary.as_deref().ok_or("it has no binary")?;
    let program = program.to_string_lossy().into_owned();
    if calls {
        let list = one
            .gateway
            .output(&program, &["call", INTERFACE, "--list"], COMMAND)?;
        other
            .host
            .run(move || std::fs::write("/run/wg0.endpoints", list))?;
    }
    clients.go_on(every, Duration::from_secs(3), None);
    clients.forget_gaps();
    let cpu = proc::cpu_time(other.daemon.id())?;
    // It is dead, and the address moves at once: nothing here takes the time to notice.
    one.gateway.ip("link set ve1 down")?;
    let died = clients.now();
    (one.players).ip("route replace 10.76.1.1/32 via 10.76.4.1")?;
    other.host.ip("addr add 10.76.1.1/32 dev lo")?;
    let call = match calls {
        true => {
            let arguments = [
                "call",
                INTERFACE,
                "--endpoints",
                "/run/wg0.endpoints",
                "--from",
                "10.76.1.1",
            ];
            let command = process::command(&program, &arguments);
            Some(other.host.spawn(command)?)
        }
        false => None,
    };
    clients.go_on(every, BACK, Some(died + Duration::from_millis(1)));
    let gaps = clients.gaps();
    if let Some(mut call) = call {
        call.wait(COMMAND)?;
    }
    let cpu = proc::cpu_time(other.daemon.id())?.saturating_sub(cpu);
    let back = gaps.iter().copied();
    let back: Vec<f64> = back
        .filter(|gap| *gap < BACK.as_secs_f64() * 1000.0)
        .collect();
    let mut values = connected(&back, count)?;
    values.push((CALL_CPU, cpu.as_secs_f64() * 1000.0 / f64::from(count)));
    values.extend(PERCENTILES.iter().filter_map(|(percentile, id)| {
        Some((*id, quantile(&gaps, f64::from(*percentile) / 100.0)?))
    }));
    Ok(values)
}

/// The gateway that takes the place of the first one, on a link of its own to the clients.
struct OtherGateway {
    // Stopped before its host goes.
    daemon: Process,
    host: Host,
}

impl OtherGateway {
    fn new(entry: &Entry, first: &Many) -> Result<Self, Failure> {
        let host = hosts::host()?;
        link((&host, "ve4"), (&first.players, "ve4"))?;
        host.bring_up("ve4", &[([10, 76, 4, 1].into(), 24)], None)?;
        (first.players).bring_up("ve4", &[([10, 76, 4, 2].into(), 24)], None)?;
        host.ip("link set lo up")?;
        host.ip("route add 172.16.0.0/12 via 10.76.4.2")?;
        daemon::wait_for(&host, [10, 76, 4, 2].into())?;
        let daemon = daemon::start(&host, entry, INTERFACE)?;
        host.bring_up(INTERFACE, &[([10, 77, 0, 1].into(), 16)], Some(hosts::MTU))?;
        host.ip(&format!("route add 10.128.0.0/9 dev {INTERFACE}"))?;
        Ok(Self { daemon, host })
    }
}
