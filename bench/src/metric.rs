//! Everything that is measured: name, unit, which way is better, and how packets are framed.

use clap::ValueEnum;
use serde::Serialize;

use adit_testbed::framing::{Family, Load};
use adit_testbed::stats::to_f64;

use crate::output::name;

/// A measurement that can be asked for by name. One step gives one or more metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Step {
    /// Resident memory of a daemon, idle and at its peak.
    #[value(alias = "rss")]
    Memory,
    /// Round trips while nothing else moves.
    Ping,
    /// One TCP stream from iperf3, with the daemons' CPU time and the retransmissions.
    #[value(alias = "cpu", alias = "retransmits")]
    Tcp1,
    /// Round trips beside one TCP stream.
    PingLoad,
    /// Answers of 200 KB, each over a connection of its own, beside eight TCP streams that go the
    /// same way.
    Answers,
    /// Eight TCP streams.
    Tcp8,
    /// 128 TCP streams.
    Tcp128,
    /// One TCP stream in each direction at once.
    Bidir,
    /// 64-byte datagrams from iperf3, as fast as it can.
    Udp64,
    /// 512-byte datagrams.
    Udp512,
    /// 1368-byte datagrams, the largest that fit the tunnel in whole segments.
    Udp1368,
    /// 64-byte datagrams from the lab's own generator, which floods harder than iperf3.
    #[value(name = "udp64-own")]
    Udp64Own,
    /// 1368-byte datagrams from the lab's own generator.
    #[value(name = "udp1368-own")]
    Udp1368Own,
    /// Trains of 1368-byte datagrams from an application that uses UDP_SEGMENT.
    UdpGso,
    /// One TCP stream through a VXLAN device on top of the tunnel.
    Vxlan,
    /// One TCP stream over IPv6 in the tunnel.
    Ipv6Inside,
    /// One TCP stream in a tunnel over IPv6.
    Ipv6Outside,
    /// One TCP stream, all of one host on one core and all of the other on the other.
    Tcp1Pinned,
    /// One TCP stream from the lab's own generator, to check on iperf3.
    #[value(name = "tcp1-own")]
    Tcp1Own,
    /// 128 TCP streams from the lab's own generator: iperf3 leaves what they bring waiting in its
    /// sockets.
    #[value(name = "tcp128-own")]
    Tcp128Own,
}

impl Step {
    /// In the order in which they run.
    pub(crate) const DEFAULT: [Self; 19] = [
        Self::Memory,
        Self::Ping,
        Self::PingLoad,
        Self::Answers,
        Self::Tcp1,
        Self::Tcp8,
        Self::Tcp128,
        Self::Tcp128Own,
        Self::Bidir,
        Self::Vxlan,
        Self::Ipv6Inside,
        Self::UdpGso,
        Self::Udp64,
        Self::Udp512,
        Self::Udp1368,
        Self::Udp64Own,
        Self::Udp1368Own,
        Self::Ipv6Outside,
        Self::Tcp1Pinned,
    ];

    /// The metrics of `--quick`.
    pub(crate) const QUICK: [Self; 7] = [
        Self::Memory,
        Self::Ping,
        Self::PingLoad,
        Self::Tcp1,
        Self::Udp64,
        Self::Udp1368,
        Self::Tcp1Pinned,
    ];

    pub(crate) fn name(self) -> String {
        name(self)
    }

    /// Seconds for which it loads the tunnel and measures, each time.
    pub(crate) const fn seconds(self) -> u32 {
        match self {
            Self::Memory => 0,
            Self::Tcp1Pinned | Self::Answers => 4,
            Self::PingLoad => 3,
            _ => 2,
        }
    }

    /// How long it loads the tunnel before that: the socket buffers of many streams grow for
    /// seconds, and a virtual machine has to get the memory (128 streams: 170 MB, and 8, 11, then
    /// 12 Gb/s).
    pub(crate) const fn warm_up(self) -> u32 {
        match self {
            Self::Tcp8 | Self::Tcp128 | Self::Tcp128Own | Self::Answers => 2,
            _ => 0,
        }
    }

    /// Whether Adit's results of these steps are compared with each other. They take turns, twice.
    pub(crate) const fn takes_turns(self) -> bool {
        matches!(
            self,
            Self::Tcp1 | Self::Tcp8 | Self::Tcp128 | Self::Tcp128Own | Self::Bidir
        )
    }

    /// The order in which these steps run. Those that take turns run once forth and once back: what
    /// a machine's speed does meanwhile, it does to all of them alike.
    pub(crate) fn in_turns(steps: &[Self]) -> Vec<Self> {
        let mut order = Vec::new();
        for some in steps.chunk_by(|a, b| a.takes_turns() && b.takes_turns()) {
            order.extend(some);
            order.extend(some.iter().rev().filter(|step| step.takes_turns()));
        }
        order
    }

    /// Which tool makes the load.
    pub(crate) const fn tool(self) -> &'static str {
        match self {
            Self::Memory => "none",
            Self::Ping => "ping",
            Self::PingLoad => "iperf3 and ping",
            Self::Answers => "iperf3 and adit-lab",
            Self::Udp64Own | Self::Udp1368Own | Self::UdpGso | Self::Tcp1Own | Self::Tcp128Own => {
                "adit-lab"
            }
            _ => "iperf3",
        }
    }
}

impl Serialize for Step {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.name())
    }
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
}

impl Better {
    /// The one with the best value.
    pub(crate) fn best<T>(self, all: impl Iterator<Item = (T, f64)>) -> Option<T> {
        let best = match self {
            Self::Higher => all.max_by(|a, b| a.1.total_cmp(&b.1)),
            Self::Lower => all.min_by(|a, b| a.1.total_cmp(&b.1)),
        };
        best.map(|(which, _)| which)
    }
}

/// One row of the tables.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Metric {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) step: Step,
    pub(crate) better: Better,
    /// Decimal places in the table.
    #[serde(skip)]
    pub(crate) places: usize,
    /// Framing, where a theoretical maximum follows from the direct path.
    #[serde(skip)]
    pub(crate) framing: Option<(Load, Family)>,
}

const fn higher(id: &'static str, title: &'static str, unit: &'static str, step: Step) -> Metric {
    Metric {
        id,
        title,
        unit,
        step,
        better: Better::Higher,
        places: 2,
        framing: None,
    }
}

const fn lower(id: &'static str, title: &'static str, unit: &'static str, step: Step) -> Metric {
    Metric {
        better: Better::Lower,
        ..higher(id, title, unit, step)
    }
}

const fn framed(metric: Metric, load: Load, outer: Family) -> Metric {
    Metric {
        framing: Some((load, outer)),
        ..metric
    }
}

const fn whole(metric: Metric) -> Metric {
    Metric {
        places: 0,
        ..metric
    }
}

const TCP: Load = Load::Tcp(Family::V4);
const V4: Family = Family::V4;
const GBPS: &str = "Gb/s";
const KPPS: &str = "kpps";
const SEGMENTS: &str = "segments";
const PER_GB: &str = "CPU-s/GB";

/// Every metric, in the order of the tables.
#[rustfmt::skip]
pub(crate) const METRICS: &[Metric] = &[
    framed(higher("tcp1", "TCP, 1 stream", GBPS, Step::Tcp1), TCP, V4),
    whole(lower("tcp1.retransmits", "  retransmits", SEGMENTS, Step::Tcp1)),
    lower("tcp1.cpu-tx", "  CPU of the sending daemon", PER_GB, Step::Tcp1),
    lower("tcp1.cpu-rx", "  CPU of the receiving daemon", PER_GB, Step::Tcp1),
    lower("tcp1.cpu", "  CPU of both daemons", PER_GB, Step::Tcp1),
    lower("tcp1.cpu-machine", "  CPU of the whole machine", PER_GB, Step::Tcp1),
    framed(higher("tcp1-pinned", "TCP, 1 stream, one end per core", GBPS, Step::Tcp1Pinned), TCP, V4),
    whole(lower("tcp1-pinned.retransmits", "  retransmits", SEGMENTS, Step::Tcp1Pinned)),
    lower("tcp1-pinned.cpu", "  CPU of both daemons", PER_GB, Step::Tcp1Pinned),
    framed(higher("tcp1-own", "TCP, 1 stream, lab's generator", GBPS, Step::Tcp1Own), TCP, V4),
    framed(higher("tcp8", "TCP, 8 streams", GBPS, Step::Tcp8), TCP, V4),
    whole(lower("tcp8.retransmits", "  retransmits", SEGMENTS, Step::Tcp8)),
    framed(higher("tcp128", "TCP, 128 streams", GBPS, Step::Tcp128), TCP, V4),
    whole(lower("tcp128.retransmits", "  retransmits", SEGMENTS, Step::Tcp128)),
    framed(higher("tcp128-own", "TCP, 128 streams, lab's generator", GBPS, Step::Tcp128Own), TCP, V4),
    whole(lower("tcp128-own.retransmits", "  retransmits", SEGMENTS, Step::Tcp128Own)),
    framed(higher("bidir", "TCP, both directions, sum", GBPS, Step::Bidir), TCP, V4),
    whole(lower("bidir.retransmits", "  retransmits", SEGMENTS, Step::Bidir)),
    framed(higher("vxlan", "TCP in VXLAN", GBPS, Step::Vxlan), Load::TcpInVxlan, V4),
    whole(lower("vxlan.retransmits", "  retransmits", SEGMENTS, Step::Vxlan)),
    framed(higher("ipv6-inside", "TCP over IPv6 inside", GBPS, Step::Ipv6Inside), Load::Tcp(Family::V6), V4),
    framed(higher("ipv6-outside", "TCP, tunnel over IPv6", GBPS, Step::Ipv6Outside), TCP, Family::V6),
    framed(higher("udp64", "UDP 64 B delivered", KPPS, Step::Udp64), Load::Udp(64), V4),
    lower("udp64.lost", "  lost of what was sent", "%", Step::Udp64),
    framed(higher("udp512", "UDP 512 B delivered", KPPS, Step::Udp512), Load::Udp(512), V4),
    lower("udp512.lost", "  lost of what was sent", "%", Step::Udp512),
    framed(higher("udp1368", "UDP 1368 B delivered", KPPS, Step::Udp1368), Load::Udp(1368), V4),
    lower("udp1368.lost", "  lost of what was sent", "%", Step::Udp1368),
    framed(higher("udp64-own", "UDP 64 B, lab's generator", KPPS, Step::Udp64Own), Load::Udp(64), V4),
    lower("udp64-own.lost", "  lost of what was sent", "%", Step::Udp64Own),
    framed(higher("udp1368-own", "UDP 1368 B, lab's generator", KPPS, Step::Udp1368Own), Load::Udp(1368), V4),
    lower("udp1368-own.lost", "  lost of what was sent", "%", Step::Udp1368Own),
    framed(higher("udp-gso", "UDP 1368 B in trains (GSO)", GBPS, Step::UdpGso), Load::Udp(1368), V4),
    lower("udp-gso.lost", "  lost of what was sent", "%", Step::UdpGso),
    whole(lower("ping.p50", "ping idle p50", "µs", Step::Ping)),
    whole(lower("ping.p99", "  p99", "µs", Step::Ping)),
    whole(lower("ping.p99.9", "  p99.9", "µs", Step::Ping)),
    lower("ping.lost", "  lost", "%", Step::Ping),
    whole(lower("ping-load.p50", "ping beside a TCP stream p50", "µs", Step::PingLoad)),
    whole(lower("ping-load.p99", "  p99", "µs", Step::PingLoad)),
    lower("ping-load.lost", "  lost", "%", Step::PingLoad),
    higher("ping-load.tcp", "  the stream meanwhile", GBPS, Step::PingLoad),
    lower("answers.p50", "200 KB beside 8 TCP streams p50", "ms", Step::Answers),
    lower("answers.p99", "  p99", "ms", Step::Answers),
    lower("answers.max", "  the longest", "ms", Step::Answers),
    higher("answers.tcp", "  the streams meanwhile", GBPS, Step::Answers),
    Metric { places: 1, ..lower("rss.idle", "memory of a daemon, idle", "MiB", Step::Memory) },
    Metric { places: 1, ..lower("rss.peak", "  peak", "MiB", Step::Memory) },
];

impl Metric {
    /// A round's value of what its turns gave: counts add up, anything else is their mean.
    pub(crate) fn of_turns(&self, turns: &[f64]) -> f64 {
        let sum: f64 = turns.iter().sum();
        if self.unit == SEGMENTS {
            sum
        } else {
            sum / to_f64(turns.len().max(1))
        }
    }
}

/// The metric of this name.
pub(crate) fn metric(id: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.id == id)
}
