//! What is measured, and the goals.

use super::Case;
use crate::goals::Limit::{self, AtLeast, AtMost};
use crate::rounds::{Measure, measure};

pub(super) const STREAM: &str = "stream";
pub(super) const STREAM_BESIDE: &str = "stream_beside";
pub(super) const STREAM_RATIO: &str = "stream_ratio";
pub(super) const PING: &str = "ping_p50";
pub(super) const PING_BESIDE: &str = "ping_beside_p50";
pub(super) const PING_BESIDE_P99: &str = "ping_beside_p99";
pub(super) const LOST: &str = "ping_beside_lost";
pub(super) const GAP: &str = "ping_beside_gap";
pub(super) const SLOW_TCP: &str = "slow_tcp";

pub(super) const ONE_RATE: &str = "one_tunnel";
pub(super) const FOUR_RATE: &str = "four_tunnels";
pub(super) const FOUR_RATE_RATIO: &str = "four_tunnels_ratio";
pub(super) const ONE_CPU: &str = "one_cpu";
pub(super) const FOUR_CPU: &str = "four_cpu";
pub(super) const FOUR_CPU_RATIO: &str = "four_cpu_ratio";
pub(super) const ONE_MEMORY: &str = "one_memory";
pub(super) const FOUR_MEMORY: &str = "four_memory";
pub(super) const FOUR_MEMORY_RATIO: &str = "four_memory_ratio";

pub(super) const COUNT: &str = "interfaces";
pub(super) const START: &str = "start";
pub(super) const START_EACH: &str = "start_each";
pub(super) const MEMORY: &str = "memory";
pub(super) const MEMORY_EACH: &str = "memory_each";
pub(super) const THREADS: &str = "threads";
pub(super) const IDLE_CPU: &str = "idle_cpu";

pub(super) const JAIN: &str = "jain";
pub(super) const SHARES: &str = "share_ratio";
pub(super) const TOTAL: &str = "total";
pub(super) const JAIN_BACK: &str = "jain_back";
pub(super) const SHARES_BACK: &str = "share_ratio_back";
pub(super) const TOTAL_BACK: &str = "total_back";

/// Delivered goodput by offered rate, in Gb/s; without a rate, as fast as the sender can.
pub(super) const OFFERED: [(&str, Option<f64>); 7] = [
    ("offered_0.1", Some(0.1)),
    ("offered_0.25", Some(0.25)),
    ("offered_0.5", Some(0.5)),
    ("offered_1", Some(1.0)),
    ("offered_2", Some(2.0)),
    ("offered_4", Some(4.0)),
    ("offered_most", None),
];
pub(super) const MOST: &str = "goodput_most";
pub(super) const TWICE: &str = "goodput_at_twice";
pub(super) const TWICE_RATIO: &str = "goodput_at_twice_ratio";

pub(super) const HANDSHAKES: &str = "handshakes";
pub(super) const ACTIVE_MEMORY: &str = "peak_memory";
const FROM_64: &str = "from_peers_64";
const FROM_64_CPU: &str = "from_peers_64_cpu";
const FROM_1368: &str = "from_peers_1368";
const FROM_1368_CPU: &str = "from_peers_1368_cpu";
const TO_64: &str = "to_peers_64";
const TO_64_CPU: &str = "to_peers_64_cpu";
const TO_1368: &str = "to_peers_1368";
const TO_1368_CPU: &str = "to_peers_1368_cpu";
/// Whether packets go to the peers, octets of payload, and the rate and the CPU time of these.
pub(super) const ACTIVE_LOADS: [(bool, usize, &str, &str); 4] = [
    (false, 64, FROM_64, FROM_64_CPU),
    (false, 1368, FROM_1368, FROM_1368_CPU),
    (true, 64, TO_64, TO_64_CPU),
    (true, 1368, TO_1368, TO_1368_CPU),
];

pub(super) const FROM_TCP: &str = "from_peers_tcp";
pub(super) const FROM_TCP_CPU: &str = "from_peers_tcp_cpu";
pub(super) const TO_TCP: &str = "to_peers_tcp";
pub(super) const TO_TCP_CPU: &str = "to_peers_tcp_cpu";

pub(super) const SILENT: &str = "silent_peers";
pub(super) const STATE_IPS: &str = "allowed_ips";
pub(super) const LOAD: &str = "load";
pub(super) const LOAD_SHARE: &str = "load_stream_ratio";
pub(super) const LOAD_GAP: &str = "load_ping_gap";
pub(super) const SILENT_MEMORY: &str = "silent_peer_memory";
pub(super) const DUMP: &str = "dump";
pub(super) const REKEYED: &str = "rekeyed";
pub(super) const REKEY_RATE: &str = "rekey_rate";
pub(super) const REKEY_CPU_RATE: &str = "rekey_cpu_rate";
pub(super) const REKEY_GAP: &str = "rekey_ping_gap";

pub(super) const MEASURES: [Measure; 66] = [
    measure(STREAM, "TCP to the fast peer, alone", "Gb/s", 2),
    measure(STREAM_BESIDE, "the same beside the flood", "Gb/s", 2),
    measure(STREAM_RATIO, "  of the stream alone", "×", 2),
    measure(PING, "ping the fast peer, p50", "ms", 2),
    measure(PING_BESIDE, "the same beside the flood, p50", "ms", 2),
    measure(PING_BESIDE_P99, "  p99", "ms", 2),
    measure(LOST, "  not answered", "%", 1),
    measure(GAP, "  longest time without an answer", "ms", 0),
    measure(SLOW_TCP, "TCP to the slow peer, alone", "Mb/s", 2),
    measure(ONE_RATE, "TCP, 4 streams, 1 tunnel", "Gb/s", 2),
    measure(FOUR_RATE, "  4 tunnels", "Gb/s", 2),
    measure(FOUR_RATE_RATIO, "  4 of 1", "×", 2),
    measure(ONE_CPU, "CPU of both ends, 1 tunnel", "s/GB", 2),
    measure(FOUR_CPU, "  4 tunnels", "s/GB", 2),
    measure(FOUR_CPU_RATIO, "  4 of 1", "×", 2),
    measure(ONE_MEMORY, "memory of both ends, 1 tunnel", "MiB", 1),
    measure(FOUR_MEMORY, "  4 tunnels", "MiB", 1),
    measure(FOUR_MEMORY_RATIO, "  4 of 1", "×", 2),
    measure(COUNT, "interfaces, each with one peer", "", 0),
    measure(START, "time until all answer", "s", 2),
    measure(START_EACH, "  for each", "ms", 1),
    measure(MEMORY, "memory", "MiB", 1),
    measure(MEMORY_EACH, "  for each", "KiB", 0),
    measure(THREADS, "threads", "", 0),
    measure(IDLE_CPU, "CPU of 5 idle seconds", "ms", 0),
    measure(JAIN, "Jain's index, 1 stream a peer", "", 3),
    measure(SHARES, "64 streams to one peer, 1 to the other", "×", 2),
    measure(TOTAL, "  all streams", "Gb/s", 2),
    measure(JAIN_BACK, "Jain's index, 1 stream from a peer", "", 3),
    measure(
        SHARES_BACK,
        "64 streams from one peer, 1 from the other",
        "×",
        2,
    ),
    measure(TOTAL_BACK, "  all streams", "Gb/s", 2),
    measure(OFFERED[0].0, "goodput of UDP, offered 0.1 Gb/s", "Gb/s", 2),
    measure(OFFERED[1].0, "  0.25 Gb/s", "Gb/s", 2),
    measure(OFFERED[2].0, "  0.5 Gb/s", "Gb/s", 2),
    measure(OFFERED[3].0, "  1 Gb/s", "Gb/s", 2),
    measure(OFFERED[4].0, "  2 Gb/s", "Gb/s", 2),
    measure(OFFERED[5].0, "  4 Gb/s", "Gb/s", 2),
    measure(OFFERED[6].0, "  as much as the sender can", "Gb/s", 2),
    measure(MOST, "  the most", "Gb/s", 2),
    measure(TWICE, "  offered twice that", "Gb/s", 2),
    measure(TWICE_RATIO, "  of the most", "×", 2),
    measure(HANDSHAKES, "handshakes, 64 at a time", "1/s", 0),
    measure(FROM_64, "UDP of 64 B from the peers", "kpps", 1),
    measure(FROM_64_CPU, "CPU time of 64 B from the peers", "µs", 2),
    measure(FROM_1368, "UDP of 1368 B from the peers", "kpps", 1),
    measure(FROM_1368_CPU, "CPU time of 1368 B from the peers", "µs", 2),
    measure(TO_64, "UDP of 64 B to the peers", "kpps", 1),
    measure(TO_64_CPU, "CPU time of 64 B to the peers", "µs", 2),
    measure(TO_1368, "UDP of 1368 B to the peers", "kpps", 1),
    measure(TO_1368_CPU, "CPU time of 1368 B to the peers", "µs", 2),
    measure(FROM_TCP, "TCP from up to 100 of the peers", "Gb/s", 2),
    measure(FROM_TCP_CPU, "  CPU time", "s/GB", 2),
    measure(TO_TCP, "TCP to up to 100 of the peers", "Gb/s", 2),
    measure(TO_TCP_CPU, "  CPU time", "s/GB", 2),
    measure(ACTIVE_MEMORY, "peak memory of the gateway", "MiB", 1),
    measure(SILENT, "peers", "", 0),
    measure(STATE_IPS, "  their allowed IPs", "", 0),
    measure(LOAD, "load them, `wg setconf`", "s", 2),
    measure(LOAD_SHARE, "  a stream meanwhile, of it alone", "×", 2),
    measure(LOAD_GAP, "  longest time without an answer", "ms", 0),
    measure(SILENT_MEMORY, "memory for each", "KiB", 2),
    measure(DUMP, "`wg show dump`", "s", 2),
    measure(REKEYED, "peers that rekey after a restart", "", 0),
    measure(REKEY_RATE, "  handshakes a second", "1/s", 0),
    measure(REKEY_CPU_RATE, "  handshakes a CPU second", "1/s", 0),
    measure(REKEY_GAP, "  longest time without an answer", "ms", 0),
];

/// How a value and its goal compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    Own(Limit),
    /// So many times the best other implementation, at least.
    TimesBest(f64),
    /// So many times Adit's own value in another case, at least.
    TimesCase(Case, f64),
}

/// What Adit is to reach in a case. `cpus` are those of the machine.
pub(super) fn goals(case: Case, cpus: usize) -> Vec<(&'static str, Goal)> {
    use Goal::{Own, TimesBest, TimesCase};
    let at_least = |limit| Own(AtLeast(limit));
    let at_most = |limit| Own(AtMost(limit));
    match case {
        Case::FourTunnels => vec![
            (FOUR_RATE_RATIO, at_least(0.97)),
            (FOUR_CPU_RATIO, at_most(1.05)),
            (FOUR_MEMORY_RATIO, at_most(1.3)),
        ],
        Case::Interfaces => vec![
            (START, at_most(10.0)),
            (MEMORY, at_most(250.0)),
            (THREADS, at_most(adit_testbed::stats::to_f64(cpus + 4))),
        ],
        Case::Peers2 => vec![
            (JAIN, at_least(0.95)),
            (SHARES, at_most(1.3)),
            (JAIN_BACK, at_least(0.95)),
            (SHARES_BACK, at_most(1.3)),
        ],
        Case::Peers8 | Case::Peers64 => {
            vec![(JAIN, at_least(0.95)), (JAIN_BACK, at_least(0.95))]
        }
        Case::Overload | Case::OverloadBoth => {
            vec![(TWICE_RATIO, at_least(0.9)), (TWICE, TimesBest(1.0))]
        }
        Case::Active1000 => vec![(FROM_1368, TimesBest(2.5)), (TO_1368, TimesBest(2.5))],
        Case::Active10000 => vec![
            (FROM_1368, TimesCase(Case::Active1, 0.8)),
            (TO_1368, TimesCase(Case::Active1, 0.8)),
        ],
        Case::Interfaces1
        | Case::Interfaces10
        | Case::Interfaces100
        | Case::Active1
        | Case::Active10
        | Case::Active100 => Vec::new(),
        Case::State => vec![
            (LOAD, at_most(15.0)),
            (LOAD_GAP, at_most(50.0)),
            (SILENT_MEMORY, at_most(2.0)),
            (DUMP, at_most(3.0)),
            (REKEY_CPU_RATE, at_least(4000.0)),
            (REKEY_GAP, at_most(50.0)),
        ],
        _ => vec![(STREAM_RATIO, at_least(0.9)), (GAP, at_most(50.0))],
    }
}
