//! `adit metrics`: the status of all interfaces in Prometheus's text format, once or over HTTP.
//!
//! Counters of peers have the names and labels of MindFlavor's prometheus_wireguard_exporter; what
//! only Adit tells begins with `adit_`.

mod agents;
mod http;
mod page;
pub(crate) mod proxy;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use adit_ctl::status::{BatchesJson, EngineJson, InterfaceJson, PeerRef, TrainsJson, WaitingJson};
use adit_fleet::AgentStatus;

use crate::agent;
use crate::cli::{self, AGENT_DIR, MetricsArgs};
use crate::failure::{Context, Result, say};
use crate::metrics::http::Put;
use crate::metrics::page::{Metric, Page, push_escaped, push_label};
use crate::watched::{Look, Watched};

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;

pub(crate) fn metrics(args: &MetricsArgs) -> Result<()> {
    match &args.listen {
        Some(address) => {
            let watched = Mutex::new(Watched::new());
            let collect = move || {
                let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
                let collected = collect(&mut watched);
                Box::new(move |put: &mut Put<'_>| collected.render(put)) as http::DocumentWriter
            };
            http::serve(address, &args.host, collect)
        }
        None => {
            let collected = collect(&mut Watched::new());
            let mut result = Ok(());
            let ended = collected.render(&mut |piece| {
                result = cli::print(piece);
                match result {
                    Ok(()) => Ok(()),
                    Err(_) => Err(io::ErrorKind::Other.into()),
                }
            });
            result.and(ended.context(|| "cannot print".into()))
        }
    }
}

/// The contents of the document.
#[derive(Default)]
struct Collected {
    interfaces: Vec<InterfaceJson>,
    /// Interfaces without an answer.
    silent: Vec<String>,
    peers: Vec<Arc<PeerNumbers>>,
    agents: Vec<AgentStatus>,
}

/// The numbers of a peer.
struct PeerNumbers {
    labels: Box<str>,
    /// Where the allowed IPs in them begin and end.
    blocks: [usize; 2],
    numbers: [Option<u64>; OF_PEERS.len()],
    microseconds: Option<u64>,
    drops: Vec<(Box<str>, u64)>,
    failure: Option<Box<str>>,
}

/// Asks every interface that this process can ask.
fn collect(watched: &mut Watched<PeerNumbers>) -> Collected {
    let mut collected = Collected::default();
    let (looks, silent) = watched.look(None, &mut |interface, peer, _| {
        PeerNumbers::new(interface, peer)
    });
    for look in looks {
        collected.add(look);
    }
    for unanswered in silent {
        say!("adit: {}", unanswered.error);
        collected.silent.push(unanswered.interface);
    }
    // Who may not read them has none.
    collected.agents = agent::all(Path::new(AGENT_DIR));
    collected
}

impl Collected {
    fn add(&mut self, look: Look<PeerNumbers>) {
        let Look {
            mut interface,
            peers,
        } = look;
        let whole = std::mem::take(&mut interface.peers);
        let read = |peer| Arc::new(PeerNumbers::new(&interface.name, &PeerRef::from(peer)));
        self.peers
            .extend(peers.unwrap_or_else(|| whole.iter().map(read).collect()));
        self.interfaces.push(interface);
    }
}

impl PeerNumbers {
    /// The labels are as the exporter has them: with a name only where there is one.
    fn new(interface: &str, peer: &PeerRef<'_>) -> Self {
        let mut labels = String::with_capacity(160);
        push_label(&mut labels, "", "interface", interface);
        push_label(&mut labels, ",", "public_key", &peer.public_key);
        let before = labels.len();
        labels.push_str(",allowed_ips=\"");
        for (i, block) in peer.allowed_ips.iter().enumerate() {
            labels.push_str(if i == 0 { "" } else { "," });
            push_escaped(&mut labels, block);
        }
        labels.push('"');
        let behind = labels.len();
        if let Some(name) = &peer.name {
            push_label(&mut labels, ",", "friendly_name", name);
        }
        let drops = peer.drops.iter();
        let failure = peer.last_failure.as_ref();
        Self {
            labels: labels.into(),
            blocks: [before, behind],
            numbers: OF_PEERS.map(|(_, _, _, of)| of(peer)),
            microseconds: peer.handshake_microseconds,
            drops: drops
                .map(|(reason, packets)| ((**reason).into(), *packets))
                .collect(),
            failure: failure.map(|failure| (*failure.reason).into()),
        }
    }

    /// Its labels without the allowed IPs: such series are joined with the others by the key.
    fn short(&self) -> [&str; 2] {
        let [before, behind] = self.blocks;
        [&self.labels[..before], &self.labels[behind..]]
    }
}

impl Collected {
    /// The document.
    fn render(&self, put: &mut Put<'_>) -> io::Result<()> {
        let put = &mut |piece: &[u8]| put(piece);
        let mut page = Page::new(put);
        self.render_peers(&mut page);
        engines(&mut page, &self.interfaces);
        let mut up = Metric::new(
            &mut page,
            "adit_interface_answers",
            "gauge",
            "Whether the process of the interface answered (1) or not (0)",
        );
        for interface in &self.interfaces {
            up.line(&[("interface", &interface.name)], 1);
        }
        for name in &self.silent {
            up.line(&[("interface", name)], 0);
        }
        agents::render(&mut page, &self.agents);
        page.finish()
    }
}

type OfPeer = fn(&PeerRef<'_>) -> Option<u64>;

/// Metrics of one number for each peer: name, type, help.
const OF_PEERS: [(&str, &str, &str, OfPeer); 11] = [
    (
        "wireguard_sent_bytes_total",
        "counter",
        "Bytes sent to the peer",
        |peer| Some(peer.transfer_tx),
    ),
    (
        "wireguard_received_bytes_total",
        "counter",
        "Bytes received from the peer",
        |peer| Some(peer.transfer_rx),
    ),
    (
        "wireguard_latest_handshake_seconds",
        "gauge",
        "UNIX timestamp seconds of the last handshake",
        |peer| Some(peer.latest_handshake.unwrap_or(0)),
    ),
    (
        "adit_peer_up",
        "gauge",
        "Whether the peer has a session and has not failed to answer since",
        |peer| peer.state.as_ref().map(|state| u64::from(&**state == "up")),
    ),
    (
        "adit_peer_unanswered_initiations",
        "gauge",
        "Initiations that the peer has not answered since its last session or since they were given up",
        |peer| peer.unanswered.map(u64::from),
    ),
    (
        "adit_peer_last_attempt_timestamp_seconds",
        "gauge",
        "UNIX timestamp of the last initiation to the peer",
        |peer| peer.last_attempt,
    ),
    (
        "adit_peer_last_failure_timestamp_seconds",
        "gauge",
        "UNIX timestamp of the last handshake with the peer that failed",
        |peer| peer.last_failure.as_ref().map(|failure| failure.at),
    ),
    (
        "adit_peer_path_mtu_bytes",
        "gauge",
        "The longest packet that the path to the peer takes whole, where that is known to be shorter than the MTU",
        |peer| peer.path_mtu.map(u64::from),
    ),
    (
        "adit_peer_quota_bytes",
        "gauge",
        "Bytes that the peer may send and get in all",
        |peer| peer.allowance.as_ref()?.quota_bytes,
    ),
    (
        "adit_peer_quota_used_bytes",
        "gauge",
        "How many of them it has had",
        |peer| {
            peer.allowance
                .as_ref()
                .filter(|it| it.quota_bytes.is_some())
                .map(|it| it.used_bytes)
        },
    ),
    (
        "adit_peer_expires_timestamp_seconds",
        "gauge",
        "UNIX timestamp of the end of the peer's access",
        |peer| peer.allowance.as_ref()?.expires,
    ),
];

impl Collected {
    fn render_peers(&self, page: &mut Page<'_>) {
        for (at, (name, kind, help, _)) in OF_PEERS.into_iter().enumerate() {
            let mut metric = Metric::new(page, name, kind, help);
            for peer in &self.peers {
                if let Some(value) = peer.numbers[at] {
                    metric.line_with(&[&peer.labels], value);
                }
            }
        }
        let mut metric = Metric::new(
            page,
            "adit_peer_handshake_latency_seconds",
            "gauge",
            "From the last initiation that the peer answered to the answer",
        );
        for peer in &self.peers {
            if let Some(microseconds) = peer.microseconds {
                let seconds = microseconds / 1_000_000;
                let fraction = microseconds % 1_000_000;
                metric.line_of_any(&peer.short(), format_args!("{seconds}.{fraction:06}"));
            }
        }
        let mut metric = Metric::new(
            page,
            "adit_peer_dropped_packets_total",
            "counter",
            "Packets to and from the peer that were dropped, by reason",
        );
        for peer in &self.peers {
            for (reason, packets) in &peer.drops {
                metric.line_with(&with_reason(&peer.short(), reason), *packets);
            }
        }
        let mut metric = Metric::new(
            page,
            "adit_peer_last_failure_info",
            "gauge",
            "Why the last handshake with the peer failed: 1 for the reason",
        );
        for peer in &self.peers {
            if let Some(reason) = &peer.failure {
                metric.line_with(&with_reason(&peer.short(), reason), 1);
            }
        }
    }
}

/// Reasons are words of letters and underscores.
fn with_reason<'a>([before, after]: &[&'a str; 2], reason: &'a str) -> [&'a str; 5] {
    [before, after, ",reason=\"", reason, "\""]
}

type OfEngine = for<'a> fn(&'a EngineJson) -> &'a BTreeMap<String, u64>;

type OfTrains = for<'a> fn(&'a EngineJson) -> Option<&'a TrainsJson>;

/// Metrics of one number for each reason or result.
const OF_ENGINES: [(&str, &str, &str, OfEngine); 5] = [
    (
        "adit_dropped_packets_total",
        "reason",
        "Packets dropped, by reason",
        |engine| &engine.drops,
    ),
    (
        "adit_ignored_packets_total",
        "kind",
        "Packets of the kernel's own accord that no peer got",
        |engine| &engine.ignored,
    ),
    (
        "adit_passed_packets_total",
        "kind",
        "Packets and datagrams that passed, by where",
        |engine| &engine.passed,
    ),
    (
        "adit_icmp_errors_total",
        "kind",
        "ICMP errors that came back for what was sent",
        |engine| &engine.icmp_errors,
    ),
    (
        "adit_handshake_messages_total",
        "result",
        "Handshake messages, by what came of them",
        |engine| &engine.handshakes,
    ),
];

type OfBatches = fn(&BatchesJson) -> u64;

/// Metrics of one number for each direction.
const OF_BATCHES: [(&str, &str, OfBatches); 3] = [
    (
        "adit_batches_total",
        "Batches that threads took from the TUN (outbound) and the sockets (inbound)",
        |batches| batches.batches,
    ),
    (
        "adit_batched_total",
        "Frames (outbound) and data messages (inbound) in these batches",
        |batches| batches.contents,
    ),
    (
        "adit_helped_batches_total",
        "Batches that a thread took which does not own the interface",
        |batches| batches.helped,
    ),
];

fn engines(page: &mut Page<'_>, interfaces: &[InterfaceJson]) {
    let engines = || {
        let interfaces = interfaces.iter();
        interfaces.filter_map(|interface| Some((interface, interface.engine.as_ref()?)))
    };
    for (name, label, help, of) in OF_ENGINES {
        let mut metric = Metric::new(page, name, "counter", help);
        for (interface, engine) in engines() {
            for (reason, count) in of(engine) {
                metric.line(&[("interface", &interface.name), (label, reason)], count);
            }
        }
    }
    for (name, help, of) in OF_BATCHES {
        let mut metric = Metric::new(page, name, "counter", help);
        for (interface, engine) in engines() {
            let directions = [("outbound", &engine.outbound), ("inbound", &engine.inbound)];
            for (direction, batches) in directions {
                if let Some(batches) = batches {
                    let labels = [("interface", &*interface.name), ("direction", direction)];
                    metric.line(&labels, of(batches));
                }
            }
        }
    }
    let trains: [(&str, &str, OfTrains); 2] = [
        (
            "adit_sent_train_datagrams",
            "Datagrams of each train that was given to the kernel",
            |engine| engine.sent_trains.as_ref(),
        ),
        (
            "adit_received_train_datagrams",
            "Datagrams of each train that the kernel gave",
            |engine| engine.received_trains.as_ref(),
        ),
    ];
    for (name, help, of) in trains {
        let mut metric = Metric::new(page, name, "histogram", help);
        for (interface, engine) in engines() {
            if let Some(trains) = of(engine) {
                metric.histogram(&interface.name, trains);
            }
        }
    }
    let mut metric = Metric::new(
        page,
        "adit_waiting",
        "gauge",
        "What waits for a handshake, a session or a socket, by what it is",
    );
    for (interface, engine) in engines() {
        for (what, count) in engine.waiting.iter().flat_map(WaitingJson::named) {
            metric.line(&[("interface", &interface.name), ("what", what)], count);
        }
    }
    let mut metric = Metric::new(
        page,
        "adit_offload_enabled",
        "gauge",
        "Whether the offload is in force",
    );
    for (interface, engine) in engines() {
        for (offload, is_on) in &engine.offloads {
            let labels = [("interface", &*interface.name), ("offload", offload)];
            metric.line(&labels, u64::from(*is_on));
        }
    }
    let mut metric = Metric::new(
        page,
        "adit_interface_info",
        "gauge",
        "1 for each interface that Adit serves: version, AEAD and process",
    );
    for (interface, engine) in engines() {
        let pid = engine.pid.to_string();
        let labels = [
            ("interface", &*interface.name),
            ("version", &engine.version),
            ("aead", &engine.aead),
            ("pid", &pid),
        ];
        metric.line(&labels, 1);
    }
    let mut metric = Metric::new(
        page,
        "adit_start_timestamp_seconds",
        "gauge",
        "UNIX timestamp of when the process began to serve the interface",
    );
    for (interface, engine) in engines() {
        metric.line(&[("interface", &interface.name)], engine.started);
    }
    let mut metric = Metric::new(
        page,
        "adit_thread_cpu_seconds_total",
        "counter",
        "CPU time of each thread of a process, which may serve several interfaces",
    );
    let processes: BTreeMap<u32, &EngineJson> =
        engines().map(|(_, engine)| (engine.pid, engine)).collect();
    for (pid, engine) in processes {
        let pid = pid.to_string();
        for (thread, milliseconds) in &engine.cpu_milliseconds {
            let seconds = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
            metric.line(&[("pid", &pid), ("thread", thread)], seconds);
        }
    }
}
