//! One measurement: a hub, its peers, their traffic, and the handshakes with which they may move.
//!
//! ```text
//!   sources → engines of peers, one shard each → network → hub with N shards → sink
//! ```

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_engine::{Engine, Interface, Policy, ThreadSettings};
use adit_io::Offloads;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};

use crate::hosts::Net;
use crate::traffic::{Flow, Progress, SEGMENT, Sink, TrafficSource, inner, tick};

/// Peers of each engine that sends in bulk: one for each receive queue that there may be.
const BULK_PEERS: u8 = 8;
/// Those of them that send at a time, if all begin in one receive queue.
const AT_A_TIME: usize = 2;
/// Peers that send little, which have an engine of their own.
const SPARSE_PEERS: u8 = 16;
/// The load is measured for so long before the handshakes.
const BEFORE: Duration = Duration::from_secs(1);
/// After the handshakes the load settles for so long.
const SETTLE: Duration = Duration::from_millis(600);
/// Handshakes with a peer are at least so far apart: REKEY_TIMEOUT, and a little.
const APART: Duration = Duration::from_millis(5200);
/// A window of each peer with which the hub has more to do than one thread can.
const OVERLOAD: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// Which peers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// A few, all of which begin in one receive queue.
    One,
    /// All, the n-th with a window of 1 / n.
    Zipf,
    /// All, with equal windows.
    Even,
}

impl Load {
    pub(crate) const ALL: [(&str, Self); 3] = [
        ("one", Self::One),
        ("zipf", Self::Zipf),
        ("even", Self::Even),
    ];
}

pub(crate) struct Settings {
    pub(crate) load: Load,
    pub(crate) shards: usize,
    /// Engines that send in bulk.
    pub(crate) senders: u8,
    /// Bytes on their way of one of the few peers.
    pub(crate) window: u64,
    /// CPU time of the hub's TUN for a frame of 64 KB.
    pub(crate) tun: Duration,
    pub(crate) handshakes: u32,
    pub(crate) measures: Duration,
}

/// The numbers that came out, in the order of [`NAMES`].
pub(crate) type Measured = [f64; NAMES.len()];

pub(crate) const NAMES: [&str; 11] = [
    "before, Mp/s",
    "Mp/s",
    "CPU ns/p",
    "p50 us",
    "p99 us",
    "moved",
    "of bulk",
    "fullest %",
    "threads",
    "sender %",
    "lost %",
];

/// A peer, by the number of its host.
struct Peer {
    // First: it uses the others.
    interface: Interface,
    flow: Arc<Flow>,
    engine: u8,
    is_bulk: bool,
}

struct Field {
    hub: Interface,
    sink: Arc<Sink>,
    peers: Vec<Peer>,
    /// Threads of the peers, and of the benchmark.
    others: Vec<u32>,
    shards: usize,
    /// When the last peer had a session.
    made: Instant,
}

/// The counters at a moment.
struct Snapshot {
    at: Instant,
    progress: Progress,
    /// By thread, in nanoseconds.
    cpu: HashMap<u32, u64>,
    rx_queues: Vec<u64>,
}

fn secret(number: u8) -> Secret {
    Secret::new(&[1 + number; 32])
}

fn public(number: u8) -> PublicKey {
    secret(number).public_key()
}

fn failed(message: impl std::fmt::Display) -> io::Error {
    io::Error::other(message.to_string())
}

/// The configuration of a host: its peers, with their endpoints if they are known.
fn configuration(
    number: u8,
    peers: impl Iterator<Item = u8>,
    endpoint: Option<std::net::SocketAddr>,
) -> DeviceChange {
    let peer = |peer| PeerChange {
        endpoint,
        allowed_ips: vec![AllowedIpChange::Add(
            Cidr::new(IpAddr::from(inner(peer)), 32).expect("a prefix"),
        )],
        ..PeerChange::new(public(peer))
    };
    DeviceChange {
        private_key: Some(secret(number)),
        peers: peers.map(peer).collect(),
        ..DeviceChange::default()
    }
}

/// CPU time of each thread of this process.
fn threads() -> io::Result<HashMap<u32, u64>> {
    let nanos = |stat: &str| {
        // The name, which ends with the last parenthesis, and then the state is field 3.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        // Ticks of 10 ms for any process.
        Some((ticks()? + ticks()?) * 10_000_000)
    };
    let tasks = fs::read_dir("/proc/self/task")?.filter_map(Result::ok);
    let of_task = |task: fs::DirEntry| {
        let id = task.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        Some((id, nanos(&stat)?))
    };
    Ok(tasks.filter_map(of_task).collect())
}

/// Measures in this process, which ends afterwards.
pub(crate) fn measure<N: Net>(net: &N, settings: &Settings) -> io::Result<Measured> {
    #[cfg(debug_assertions)]
    adit_engine::progress::assume_idle_cpus();
    let numbers = 1..=settings.senders * BULK_PEERS + SPARSE_PEERS;
    let flows: io::Result<Vec<_>> = numbers.map(Flow::new).collect();
    let flows = flows?;
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| tick(&flows, &ends));
        let result = Field::new(net, settings, &flows).and_then(|field| field.run(settings));
        ends.store(true, Ordering::Relaxed);
        result
    })
}

impl Field {
    fn new<N: Net>(net: &N, settings: &Settings, flows: &[Arc<Flow>]) -> io::Result<Self> {
        let epoch = Instant::now();
        let mut peers = Vec::new();
        for engine in 0..=settings.senders {
            let of_peers = Engine::with(&ThreadSettings {
                policy: Policy::Inline,
                ..ThreadSettings::from(1)
            })?;
            let is_bulk = engine < settings.senders;
            let count = if is_bulk { BULK_PEERS } else { SPARSE_PEERS };
            for number in (1 + engine * BULK_PEERS..).take(count.into()) {
                let flow = Arc::clone(&flows[usize::from(number) - 1]);
                let tun = TrafficSource(Arc::clone(&flow), epoch);
                let interface = of_peers.add(tun, net.host(number)?, Offloads::ALL)?;
                peers.push(Peer {
                    interface,
                    flow,
                    engine,
                    is_bulk,
                });
            }
        }
        let others = threads()?.into_keys().collect();
        let engine = Engine::with(&ThreadSettings {
            policy: Policy::Auto,
            ..ThreadSettings::from(settings.shards)
        })?;
        let sink = Sink::new(flows.to_vec(), epoch, settings.tun)?;
        let hub = engine.add(Arc::clone(&sink), net.host(0)?, Offloads::ALL)?;
        let last = u8::try_from(peers.len()).map_err(failed)?;
        hub.set(configuration(0, 1..=last, None)).map_err(failed)?;
        let port = hub.get().map_err(failed)?.listen_port;
        let endpoint = Some(net.address(0, port));
        let mut field = Self {
            hub,
            sink,
            peers,
            others,
            shards: settings.shards,
            made: Instant::now(),
        };
        for (number, peer) in (1..).zip(&field.peers) {
            let change = configuration(number, std::iter::once(0), endpoint);
            peer.interface.set(change).map_err(failed)?;
            // One after the other: so receive queues are the same in each process.
            let before = field.sessions();
            peer.interface.probe(public(0));
            field.wait("handshakes", |field| field.sessions() > before)?;
        }
        field.made = Instant::now();
        Ok(field)
    }

    fn sessions(&self) -> u64 {
        let handshakes = self.hub.report().handshakes;
        handshakes.confirmed + handshakes.responses_accepted
    }

    fn wait(&self, what: &str, is_over: impl Fn(&Self) -> bool) -> io::Result<()> {
        let begun = Instant::now();
        while !is_over(self) {
            if begun.elapsed() > PATIENCE {
                let report = self.hub.report();
                let (rx_queues, threads) = (report.rx_queues.len().max(1), report.shards);
                let arrived: u64 = self.peers.iter().map(|it| it.flow.progress().arrived).sum();
                let packets = arrived / SEGMENT;
                let drops = report.drops.iter().filter(|(_, count)| *count > 0);
                let drops: Vec<_> = drops.collect();
                return Err(failed(format_args!(
                    "no {what} in {} s: {rx_queues} receive queues and {threads} threads of {}, \
                     {packets} packets arrived, drops {drops:?}; threads help only where CPUs are \
                     idle: try fewer --senders, or --assume-idle",
                    PATIENCE.as_secs(),
                    self.shards
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn rx_queues(&self) -> usize {
        self.hub.report().rx_queues.len().max(1)
    }

    /// The receive queue of each peer.
    fn of_peers(&self) -> io::Result<Vec<usize>> {
        let status = self.hub.get().map_err(failed)?;
        let of_keys: HashMap<_, _> = status
            .peers
            .iter()
            .map(|peer| (peer.public_key, usize::from(peer.rx_queue.unwrap_or(0))))
            .collect();
        let numbers = (1..).take(self.peers.len());
        let count = self.rx_queues();
        Ok(numbers
            .map(|number| of_keys[&public(number)] % count)
            .collect())
    }

    fn bulk(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.peers.iter().enumerate().filter(|(_, it)| it.is_bulk)
    }

    /// Gives each peer its window. Which of them send in bulk now.
    fn begin_load(&self, settings: &Settings) -> io::Result<Vec<bool>> {
        let rx_queues = self.of_peers()?;
        let count = self.bulk().count();
        let total = u64::from(settings.senders) * AT_A_TIME as u64 * settings.window;
        let part = |rank: usize| 1_000_000 / rank as u64;
        let parts: u64 = (1..=count).map(part).sum();
        let mut of_engines = vec![0; usize::from(settings.senders)];
        let mut sends = vec![false; self.peers.len()];
        for (index, peer) in self.bulk() {
            let window = match settings.load {
                Load::One => {
                    let of_engine = &mut of_engines[usize::from(peer.engine)];
                    let is_one = rx_queues[index] == 0 && *of_engine < AT_A_TIME;
                    *of_engine += usize::from(is_one);
                    if is_one { settings.window } else { 0 }
                }
                Load::Zipf => {
                    // A prime number: ranks are spread over engines and receive queues.
                    let rank = 1 + (index * 37 + 11) % count;
                    // Two frames of two segments fit.
                    (total * part(rank) / parts).max(4 * SEGMENT)
                }
                Load::Even => total / count as u64,
            };
            peer.flow.set_window(window);
            sends[index] = window > 0;
        }
        Ok(sends)
    }

    fn snapshot(&self) -> io::Result<Snapshot> {
        let mut progress = Progress::default();
        for peer in &self.peers {
            let of_peer = peer.flow.progress();
            progress.sent += of_peer.sent;
            progress.arrived += of_peer.arrived;
        }
        Ok(Snapshot {
            at: Instant::now(),
            progress,
            cpu: threads()?,
            rx_queues: self.hub.report().rx_queues,
        })
    }

    fn run(&self, settings: &Settings) -> io::Result<Measured> {
        // 1. Load of all, until there are as many receive queues as there may be.
        self.bulk()
            .for_each(|(_, peer)| peer.flow.set_window(OVERLOAD));
        self.wait("further receive queues", |field| {
            field.rx_queues() == field.shards
        })?;
        // 2. The load that is measured.
        let sends = self.begin_load(settings)?;
        let sparse = self.peers.iter().filter(|peer| !peer.is_bulk);
        sparse.for_each(|peer| peer.flow.set_sparse());
        let until = self.made + APART;
        std::thread::sleep(until.saturating_duration_since(Instant::now() + BEFORE));
        let first = self.snapshot()?;
        std::thread::sleep(BEFORE);
        let second = self.snapshot()?;
        // 3. Handshakes, which the hub begins. Under load some messages are lost.
        let before = self.of_peers()?;
        for round in 0..settings.handshakes {
            if round > 0 {
                std::thread::sleep(APART);
            }
            for number in (1..).take(self.peers.len()) {
                self.hub.probe(public(number));
            }
            std::thread::sleep(SETTLE);
        }
        let after = self.of_peers()?;
        // 4. The same load.
        self.sink.take_delays();
        let third = self.snapshot()?;
        std::thread::sleep(settings.measures);
        let fourth = self.snapshot()?;
        let mut delays = self.sink.take_delays();
        delays.sort_unstable();
        let delay = |part: usize| {
            let index = delays.len() * part / 100;
            delays.get(index).map_or(f64::NAN, |it| *it as f64 / 1000.0)
        };
        let moved = before.iter().zip(&after).map(|(a, b)| a != b);
        let moved_bulk = moved.clone().zip(&sends).filter(|(a, b)| *a && **b);
        let of_after = Change::between(&third, &fourth, &self.others);
        Ok([
            Change::between(&first, &second, &self.others).packets / 1e6,
            of_after.packets / 1e6,
            of_after.cpu_a_packet,
            delay(50),
            delay(99),
            moved.clone().filter(|it| *it).count() as f64,
            moved_bulk.count() as f64,
            of_after.fullest,
            self.hub.report().shards as f64,
            of_after.busiest_sender,
            of_after.lost,
        ])
    }
}

/// What happened between two snapshots.
struct Change {
    /// A second.
    packets: f64,
    cpu_a_packet: f64,
    /// Percent of the data messages that came through one receive queue.
    fullest: f64,
    /// Percent of its CPU.
    busiest_sender: f64,
    /// Percent of what was sent.
    lost: f64,
}

impl Change {
    fn between(before: &Snapshot, after: &Snapshot, others: &[u32]) -> Self {
        let time = after.at.duration_since(before.at).as_secs_f64();
        let [sent, arrived] = [
            after.progress.sent - before.progress.sent,
            after.progress.arrived - before.progress.arrived,
        ]
        .map(|bytes| bytes as f64 / SEGMENT as f64);
        let spent = |(id, now): (&u32, &u64)| {
            (
                *id,
                now - before.cpu.get(id).copied().unwrap_or(0).min(*now),
            )
        };
        let (mut of_hub, mut busiest) = (0, 0);
        for (id, nanos) in after.cpu.iter().map(spent) {
            match others.contains(&id) {
                true => busiest = busiest.max(nanos),
                false => of_hub += nanos,
            }
        }
        let rx_queues = before.rx_queues.iter().zip(&after.rx_queues);
        let rx_queues: Vec<u64> = rx_queues.map(|(a, b)| b - a).collect();
        let fullest = rx_queues.iter().copied().max().unwrap_or(0) as f64;
        Self {
            packets: arrived / time,
            cpu_a_packet: of_hub as f64 / arrived.max(1.0),
            fullest: 100.0 * fullest / rx_queues.iter().sum::<u64>().max(1) as f64,
            busiest_sender: 100.0 * busiest as f64 / 1e9 / time,
            lost: 100.0 * (sent - arrived).max(0.0) / sent.max(1.0),
        }
    }
}
