//! Answers of the sockets of an interface.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use adit_ctl::status;
use adit_ctl::uapi::{CalledPeers, ChangePlan, Changed, UapiError, UapiResponse};
use adit_engine::{BatchCounters, CommandError, GivenAllowance, Interface, Policy, TrainCounters};
use adit_io::Offloads;
use adit_io::helper;
use adit_io::tun::Tun;
use adit_proto::config::{DeviceChange, DeviceStatus, PublicKey};
use adit_proto::{Allowance, LastSeen, PeerCall};
use rustix::io::Errno;

use super::names::Names;

/// To `get` on the control socket.
pub(crate) fn get(interface: &Interface) -> UapiResponse {
    let status = interface.get().map(UapiResponse::Status);
    status.unwrap_or_else(refused)
}

/// To `set` on the control socket.
pub(crate) fn set(interface: &Interface, change: DeviceChange, names: &Names) -> UapiResponse {
    // Without it, as where memory is short, the change is made all the same.
    let before = before(interface, &change);
    let sections = change.peers.len();
    if let Err(error) = interface.set(change) {
        return refused(error);
    }
    let compare = |(plan, before): (ChangePlan, DeviceStatus)| {
        let (after, _) = match plan.keys() {
            Some(keys) => interface.look(keys).ok()?,
            None => (interface.get().ok()?, 0),
        };
        Some(plan.compare(&before, &after, sections, &|key| names.of(key)))
    };
    told((before.and_then(compare)).unwrap_or_else(|| Changed::unknown(sections)))
}

/// What a transaction is about, and how that is now.
fn before(interface: &Interface, change: &DeviceChange) -> Option<(ChangePlan, DeviceStatus)> {
    let (_, peers) = interface.look(&[]).ok()?;
    let plan = ChangePlan::of(change, peers);
    let status = match plan.keys() {
        Some(keys) => interface.look(keys).ok()?.0,
        None => interface.get().ok()?,
    };
    Some((plan, status))
}

/// To names of peers on the control socket. What is told is about peers that there are.
pub(crate) fn names(
    interface: &Interface,
    names: &Names,
    named: Vec<(PublicKey, String)>,
    replace: bool,
) -> UapiResponse {
    let mut renamed = names.change(named, replace);
    // The order of a hash map is no order.
    renamed.sort_by_key(|(key, ..)| key.0);
    renamed.truncate(MAX_RENAMED);
    let keys: Vec<PublicKey> = renamed.iter().map(|(key, ..)| *key).collect();
    let peers = interface.look(&keys).map(|(status, _)| status.peers);
    let there: HashSet<_> = (peers.unwrap_or_default().iter())
        .map(|peer| peer.public_key)
        .collect();
    renamed.retain(|(key, ..)| there.contains(key));
    told(Changed::of_names(renamed))
}

/// To what peers may do on the control socket.
pub(crate) fn allow(
    interface: &Interface,
    names: &Names,
    given: Vec<(PublicKey, Allowance, bool)>,
    replace: bool,
) -> UapiResponse {
    let given = given.into_iter();
    let given = given.map(|(peer, allowance, anew)| GivenAllowance {
        peer,
        allowance,
        anew,
    });
    match interface.allow(given.collect(), replace) {
        Ok(changed) => told(Changed::of_allowances(changed, &|key| names.of(key))),
        Err(error) => refused(error),
    }
}

/// To peers that are to be called, on the control socket.
pub(crate) fn call(
    interface: &Interface,
    peers: Vec<(PublicKey, LastSeen)>,
    from: Option<IpAddr>,
) -> UapiResponse {
    let called = match interface.call(peers, from) {
        Ok(called) => called,
        Err(error) => return refused(error),
    };
    let count = |of| called.iter().filter(|it| **it == of).count();
    UapiResponse::Called(CalledPeers {
        called: count(PeerCall::Due),
        here: count(PeerCall::IsHere),
        nowhere: count(PeerCall::HasNoEndpoint),
        unknown: count(PeerCall::IsNoPeer),
    })
}

/// Names that are compared with the peers.
const MAX_RENAMED: usize = 4096;

/// Nothing, or what changed.
pub(crate) fn told(changed: Changed) -> UapiResponse {
    match changed.is_nothing() {
        true => UapiResponse::Done,
        false => UapiResponse::Changed(changed),
    }
}

/// To `alive` on the control socket.
pub(crate) fn alive(interface: &Interface) -> UapiResponse {
    match interface.responds() {
        true => UapiResponse::Done,
        false => UapiResponse::Refused(UapiError::new(
            Errno::TIMEDOUT.raw_os_error(),
            "a thread that processes packets does not answer",
        )),
    }
}

fn refused(error: CommandError) -> UapiResponse {
    let errno = error.errno().raw_os_error();
    UapiResponse::Refused(UapiError::new(errno, error.to_string()))
}

/// On the status socket; `None` if there is no memory for it, or the interface ends. With the TUN
/// goes what is in force of its offloads.
pub(crate) fn status(
    interface: &Interface,
    name: &str,
    (of, tun): (&Weak<Tun>, Offloads),
    started: u64,
    names: &Arc<Names>,
    (threads, gateway_id): ((usize, Policy), Option<u8>),
) -> Option<status::Report> {
    let place = device(of);
    report(interface, name, names, |device| HostFacts {
        device: place,
        stack: None,
        offloads: tun,
        egress: egress_segments(device),
        started,
        threads,
        gateway_id,
    })
}

/// What the engine does not tell of an interface.
pub(crate) struct HostFacts {
    /// Where its device is, if it has one.
    pub(crate) device: Option<status::DeviceJson>,
    /// What a proxy has instead.
    pub(crate) stack: Option<&'static str>,
    /// What is in force of the offloads of its device.
    pub(crate) offloads: Offloads,
    /// Whether the network cards segment what is sent to peers.
    pub(crate) egress: Option<bool>,
    /// When it began: seconds since the Unix epoch.
    pub(crate) started: u64,
    /// How many threads process packets at most, and by which policy.
    pub(crate) threads: (usize, Policy),
    /// Its number among gateways that have one key.
    pub(crate) gateway_id: Option<u8>,
}

/// A report for the status socket, with what `host` tells.
pub(crate) fn report(
    interface: &Interface,
    name: &str,
    names: &Arc<Names>,
    host: impl FnOnce(&DeviceStatus) -> HostFacts,
) -> Option<status::Report> {
    let mut device = interface.get().ok()?;
    let host = host(&device);
    let peers = std::mem::take(&mut device.peers);
    let mut status = status::InterfaceJson::new(name, &device, false);
    status.engine = Some(engine(interface, host));
    let names = Arc::clone(names);
    Some(status::Report::new(status, peers, move |peer| {
        names.of(peer)
    }))
}

/// The data path of an interface.
pub(crate) fn engine(interface: &Interface, host: HostFacts) -> status::EngineJson {
    let report = interface.report();
    let offloads = report.offloads.and(Offloads {
        udp_gso: true,
        udp_gro: true,
        ..host.offloads
    });
    let count = |threads| u32::try_from(threads).unwrap_or(u32::MAX);
    let (max_shards, policy) = host.threads;
    status::EngineJson {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        aead: report.aead.to_owned(),
        shards: count(report.shards),
        max_shards: Some(count(max_shards)),
        pid: std::process::id(),
        device: host.device,
        stack: host.stack.map(str::to_owned),
        gateway_id: host.gateway_id,
        started: host.started,
        cpu_milliseconds: cpu_of_threads(),
        offloads: offloads
            .iter()
            .map(|(name, on)| (name.to_owned(), on))
            .collect(),
        sandbox: adit_sandbox::parts()
            .iter()
            .map(|(name, on)| (name.to_owned(), on))
            .collect(),
        ended: (helper::has_ended().then(|| "helper".to_owned()))
            .into_iter()
            .collect(),
        tx_udp_segmentation: host.egress,
        refused: report.refused.into_iter().map(str::to_owned).collect(),
        drops: named(report.drops),
        ignored: named(report.ignored),
        passed: named(report.passed),
        icmp_errors: named(report.icmp_errors),
        handshakes: named(
            report
                .handshakes
                .counters()
                .map(|(name, count, _)| (name, count)),
        ),
        policy: Some(policy.name().to_owned()),
        outbound: Some(batches(report.outbound)),
        inbound: Some(batches(report.inbound)),
        lanes: report.rx_queues,
        lane_loads: report.rx_queue_loads,
        sent_trains: Some(trains(report.sent_trains)),
        received_trains: Some(trains(report.received_trains)),
        waiting: Some(status::WaitingJson {
            handshake_messages: report.waiting.handshake_messages,
            sealed_trains: report.waiting.sealed_trains,
            staged_frames: report.waiting.staged_frames,
            staged_packets: report.waiting.staged_packets,
        }),
    }
}

/// Where the device of an interface is.
fn device(tun: &Weak<Tun>) -> Option<status::DeviceJson> {
    let place = tun.upgrade()?.place().ok()?;
    Some(status::DeviceJson {
        namespace: place.netns.1,
        index: place.link?.index,
    })
}

fn batches(counters: BatchCounters) -> status::BatchesJson {
    status::BatchesJson {
        batches: counters.batches,
        contents: counters.contents,
        helped: counters.helped,
    }
}

fn trains(counters: TrainCounters) -> status::TrainsJson {
    status::TrainsJson {
        counts: counters.counts.to_vec(),
        datagrams: counters.datagrams,
    }
}

/// The time of day in seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The CPU time of each thread of this process, by name, in milliseconds.
fn cpu_of_threads() -> BTreeMap<String, u64> {
    let mut times = BTreeMap::new();
    adit_sandbox::retain_threads(|name, thread| {
        let time = adit_io::thread_time(thread);
        if let Ok(time) = time {
            let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            *times.entry(name.to_owned()).or_default() += milliseconds;
        }
        time.is_ok()
    });
    times
}

fn named(counters: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    let counters = counters.into_iter();
    counters
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

/// Whether the devices that lead to the peers segment UDP in hardware: false if one of them does
/// not.
fn egress_segments(device: &DeviceStatus) -> Option<bool> {
    // A gateway's peers are behind few devices; a handful of them tells.
    let endpoints = device.peers.iter().filter_map(|peer| peer.endpoint);
    let netlink = helper::netlink().ok()?;
    let mut egress: Vec<u32> = (endpoints.take(16))
        .filter_map(|to| netlink.route_get(to.ip(), None, device.fwmark, None).ok())
        .map(|path| path.oif)
        .collect();
    egress.sort_unstable();
    egress.dedup();
    egress
        .into_iter()
        .map(helper::segments)
        .reduce(|all, one| Some(all? && one?))
        .flatten()
}
