//! What the two processes of a hand-over tell each other. Everything but `Record`, which has keys,
//! is JSON: fields may be added under the same format.
//!
//! A new process is started by a user who may do everything, and the old one may be in the hands of
//! an intruder. So the new one takes nothing that would give more than the old one has: no sandbox
//! that is off, no folder, no group, no variable that is not in a list. What is left is an
//! interface's own, which the old process could do the same with; numbers have limits, so that none
//! can end the new process.

use std::collections::{BTreeMap, BTreeSet};

use adit_engine::{BatchCounters, InterfaceState, Policy, ThreadSettings, TrainCounters};
use adit_io::Offloads;
use adit_io::tun::TunState;
use adit_io::udp::UdpState;
use serde::{Deserialize, Serialize};

use super::super::LogLevel;
use super::super::resolve::HandedNames;
use super::terms::{FORMATS, out_of_turn};
use crate::failure::Result;

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// From a process that connects.
    Hello,
    /// The answer to one that only asks.
    Description,
    /// Nothing is handed over, and why.
    Refused,
    Offer,
    /// One interface, with its descriptors.
    Interface,
    Ready,
    /// A piece of the protocol's state of an interface.
    Record,
    /// The rest of it, with the descriptors of its sockets.
    State,
    Complete,
    Go,
    Running,
}

impl MessageKind {
    pub(super) const ALL: [Self; 11] = [
        Self::Hello,
        Self::Description,
        Self::Refused,
        Self::Offer,
        Self::Interface,
        Self::Ready,
        Self::Record,
        Self::State,
        Self::Complete,
        Self::Go,
        Self::Running,
    ];
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(super) version: String,
    /// Formats that it takes.
    pub(super) formats: Vec<u32>,
    /// It is to go on with the interfaces; else it only asks.
    pub(super) takes: bool,
}

impl Hello {
    pub(super) fn new(takes: bool) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            formats: FORMATS.into(),
            takes,
        }
    }
}

/// A process's description of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) version: String,
    pub(crate) pid: i32,
    /// Device and inode of its program.
    pub(crate) program: (u64, u64),
    /// The `adit up --foreground` that started it, and that starts the next one. It has to be its
    /// parent.
    pub(crate) supervisor: Option<i32>,
    pub(crate) interfaces: Vec<String>,
    /// Variables of its environment that the next one needs.
    pub(super) environment: Vec<(String, String)>,
    /// Why it cannot be replaced, if so.
    pub(crate) refuses: Option<String>,
    /// A number of its network namespace, where the kernel tells.
    #[serde(default)]
    pub(crate) namespace: Option<u64>,
}

/// Interfaces of one process, at most.
pub(super) const MAX_INTERFACES: usize = 4096;

/// The variables that a new process gets of an old one. Those of the loader, the C library and this
/// program change what it does, and are the user's alone.
const VARIABLES: [&str; 2] = ["ADIT_AEAD", "NOTIFY_SOCKET"];

impl Description {
    /// These variables of this process.
    pub(super) fn own_environment() -> Vec<(String, String)> {
        let own = |name: &&str| Some(((*name).to_owned(), std::env::var(*name).ok()?));
        VARIABLES.iter().filter_map(own).collect()
    }

    /// The description of the process `pid`, without what is to be printed nowhere.
    pub(super) fn checked(mut self, pid: i32) -> Result<Self> {
        check_names(&self.interfaces)?;
        if self.pid != pid {
            return Err(out_of_turn());
        }
        self.version = printable(&self.version);
        self.refuses = self.refuses.as_deref().map(printable);
        Ok(self)
    }

    /// What the next process gets of the environment: a choice of code in this program, and the
    /// socket that the service manager is told something at.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let is_known = |name: &str, value: &str| match name {
            "NOTIFY_SOCKET" => value.len() < 108 && value.starts_with(['/', '@']),
            _ => value.len() < 32,
        } && VARIABLES.contains(&name)
            && value.bytes().all(|byte| byte.is_ascii_graphic());
        let variables = self.environment.iter();
        let known = variables.filter(|(name, value)| is_known(name, value));
        known.cloned().collect()
    }
}

/// Makes sure that these are names of interfaces, each once.
pub(super) fn check_names(names: &[String]) -> Result<()> {
    let all: BTreeSet<&String> = names.iter().collect();
    let are_good = names
        .iter()
        .all(|name| adit_ctl::config::check_name(name).is_ok());
    if !are_good || all.len() != names.len() || names.len() > MAX_INTERFACES {
        return Err(out_of_turn());
    }
    Ok(())
}

/// What another process says, for a terminal: a line of ASCII of a bounded length.
pub(super) fn printable(text: &str) -> String {
    let is_plain = |char: char| char.is_ascii_graphic() || char == ' ';
    let chars = text.chars().take(500);
    chars
        .map(|char| if is_plain(char) { char } else { '?' })
        .collect()
}

/// Why nothing is handed over.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refused {
    pub(super) why: String,
}

/// The settings of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(in crate::run) level: LogLevel,
    pub(in crate::run) allowed: Switches,
    pub(in crate::run) shards: usize,
    pub(in crate::run) policy: String,
    pub(in crate::run) cpus: Option<Vec<usize>>,
    /// The new process joins it only if the old one is a member.
    pub(in crate::run) status_group: Option<u32>,
    /// Names of endpoints are not looked up again.
    #[serde(default)]
    pub(in crate::run) without_names: bool,
    /// The number of this gateway among several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::run) gateway_id: Option<u8>,
    /// How many `Interface` messages follow.
    pub(in crate::run) interfaces: usize,
}

impl Offer {
    pub(in crate::run) fn threads(&self) -> ThreadSettings {
        let known = Policy::ALL.iter().find(|(name, _)| *name == self.policy);
        // As on the command line.
        let possible = |list: &Vec<usize>| list.iter().all(|cpu| *cpu < 1 << 16);
        ThreadSettings {
            shards: self.shards.clamp(1, 1024),
            policy: known.map_or_else(Policy::default, |(_, policy)| *policy),
            cpus: self.cpus.clone().filter(possible),
            ..ThreadSettings::default()
        }
    }
}

/// Offloads by their names.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Switches(BTreeMap<String, bool>);

impl Switches {
    pub(in crate::run) fn new(offloads: Offloads) -> Self {
        let named = offloads.iter().map(|(name, on)| (name.to_owned(), on));
        Self(named.collect())
    }

    /// One that the other process does not know is off.
    pub(in crate::run) fn offloads(&self) -> Offloads {
        let mut offloads = Offloads::ALL;
        for name in Offloads::NAMES {
            if self.0.get(name) != Some(&true) {
                // A name of the list is one.
                let _ = offloads.disable(name);
            }
        }
        offloads
    }
}

/// An interface. The descriptors of its TUN come with it, then its control socket, then its status
/// socket, if there is one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Offered {
    pub(super) name: String,
    pub(super) offloads: Switches,
    pub(super) fair: bool,
    pub(super) queues: u32,
    pub(super) limit: Option<u32>,
    pub(super) has_other_queues: bool,
    pub(super) has_status: bool,
    /// The names of peers, by their keys in base64.
    pub(super) names: Vec<(String, String)>,
    /// When the first process began to serve it: seconds since the Unix epoch.
    pub(super) started: u64,
}

impl Offered {
    pub(super) fn tun(&self) -> TunState {
        TunState {
            offloads: self.offloads.offloads(),
            fair: self.fair,
            queues: self.queues,
            limit: self.limit,
            has_other_queues: self.has_other_queues,
        }
    }
}

/// The state of an interface that is not the protocol's. The descriptors of its sockets come with
/// it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StateMessage {
    listen_port: u16,
    bound_port: u16,
    fwmark: u32,
    up: bool,
    mtu: usize,
    drops: Vec<(String, u64)>,
    ignored: Vec<(String, u64)>,
    #[serde(default)]
    passed: Vec<(String, u64)>,
    icmp_errors: Vec<(String, u64)>,
    refused_trains: u64,
    tun_refuses: Vec<bool>,
    #[serde(default)]
    load: LoadRecord,
    /// Endpoints that are names.
    #[serde(default)]
    pub(super) endpoints: HandedNames,
    /// The port of the sockets; 0 if there is none.
    pub(super) port: u16,
    pub(super) sockets: Vec<SocketRecord>,
    /// Sockets of further receive queues, whose descriptors follow. A program that knows of none closes these,
    /// and the kernel gives to the first what would arrive there.
    #[serde(default)]
    pub(super) further: Vec<SocketRecord>,
}

/// No counter of another process is taken for more: sums of several must not overflow.
const MOST: u64 = 1 << 56;

/// Batches and trains so far.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LoadRecord {
    /// Batches, their contents, and those that workers took.
    outbound: [u64; 3],
    inbound: [u64; 3],
    sent: TrainsRecord,
    received: TrainsRecord,
}

/// Trains of each length, and the datagrams in all of them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct TrainsRecord(Vec<u64>, u64);

impl TrainsRecord {
    fn new(counters: TrainCounters) -> Self {
        Self(counters.counts.into(), counters.datagrams)
    }

    /// Lengths that the other process tells apart differently are lost.
    fn counters(self) -> TrainCounters {
        let counts: Vec<u64> = self.0.iter().map(|count| (*count).min(MOST)).collect();
        TrainCounters {
            counts: counts.try_into().unwrap_or_default(),
            datagrams: self.1.min(MOST),
        }
    }
}

impl LoadRecord {
    fn new(state: &InterfaceState) -> Self {
        let of = |it: BatchCounters| [it.batches, it.contents, it.helped];
        Self {
            outbound: of(state.outbound),
            inbound: of(state.inbound),
            sent: TrainsRecord::new(state.sent_trains),
            received: TrainsRecord::new(state.received_trains),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct SocketRecord {
    pub(super) v6: bool,
    gso: bool,
    gro: bool,
    dropped: u32,
    #[serde(default)]
    group: u32,
}

impl SocketRecord {
    pub(super) fn new(v6: bool, state: UdpState) -> Self {
        let UdpState {
            gso,
            gro,
            dropped,
            group,
        } = state;
        Self {
            v6,
            gso,
            gro,
            dropped,
            group,
        }
    }

    pub(super) fn state(self) -> UdpState {
        let Self {
            gso,
            gro,
            dropped,
            group,
            ..
        } = self;
        UdpState {
            gso,
            gro,
            dropped,
            group,
        }
    }
}

impl StateMessage {
    /// The sockets of the first receive queue come first.
    pub(super) fn new(
        state: InterfaceState,
        endpoints: HandedNames,
        mut sockets: Vec<SocketRecord>,
    ) -> Self {
        let families: BTreeSet<bool> = sockets.iter().map(|socket| socket.v6).collect();
        let first_rx_queue = families.len();
        Self {
            load: LoadRecord::new(&state),
            endpoints,
            listen_port: state.listen_port,
            bound_port: state.bound_port,
            fwmark: state.fwmark,
            up: state.up,
            mtu: state.mtu,
            drops: state.drops,
            ignored: state.ignored,
            passed: state.passed,
            icmp_errors: state.icmp_errors,
            refused_trains: state.refused_trains,
            tun_refuses: state.tun_refuses,
            port: match sockets.is_empty() {
                true => 0,
                false => state.bound_port,
            },
            further: sockets.split_off(first_rx_queue),
            sockets,
        }
    }

    pub(super) fn interface(self) -> InterfaceState {
        let batches = |counts: [u64; 3]| {
            let [batches, contents, helped] = counts.map(|count| count.min(MOST));
            BatchCounters {
                batches,
                contents,
                helped,
            }
        };
        let counts = |mut named: Vec<(String, u64)>| {
            for (_, count) in &mut named {
                *count = (*count).min(MOST);
            }
            named
        };
        InterfaceState {
            outbound: batches(self.load.outbound),
            inbound: batches(self.load.inbound),
            sent_trains: self.load.sent.counters(),
            received_trains: self.load.received.counters(),
            listen_port: self.listen_port,
            bound_port: self.bound_port,
            fwmark: self.fwmark,
            up: self.up,
            mtu: self.mtu.min(65_535),
            drops: counts(self.drops),
            ignored: counts(self.ignored),
            passed: counts(self.passed),
            icmp_errors: counts(self.icmp_errors),
            refused_trains: self.refused_trains.min(MOST),
            tun_refuses: self.tun_refuses,
        }
    }
}
