//! The goals that Adit set itself, judged on the medians of a run.

use serde::Serialize;

use crate::contender::Contender::{self, Adit, Ceiling, Tailscale, WireguardGo};
use crate::metric::metric;
use crate::report::Report;

/// How a run stands to one goal.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Target {
    pub(crate) measure: String,
    pub(crate) against: String,
    pub(crate) goal: String,
    pub(crate) measured: Option<f64>,
    /// The 95 % interval of a ratio.
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Pass,
    Miss,
    NotMeasured,
}

impl Verdict {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Miss => "MISS",
            Self::NotMeasured => "not measured",
        }
    }
}

/// Whom a ratio is taken to.
#[derive(Clone, Copy)]
enum Against {
    One(Contender),
    /// The better of the two Go implementations.
    BetterGo,
    BestPeer,
    /// Adit's own value of another metric.
    Own(&'static str),
}

#[derive(Clone, Copy)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(goal) => value >= goal,
            Self::AtMost(goal) => value <= goal,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::AtLeast(goal) => format!("≥ {goal}{unit}"),
            Self::AtMost(goal) => format!("≤ {goal}{unit}"),
        }
    }
}

use Against::{BestPeer, BetterGo, One, Own};
use Goal::{AtLeast, AtMost};

/// The ratios of the table "Ahead of every peer".
const RATIOS: &[(&str, Against, Goal)] = &[
    ("tcp1", One(WireguardGo), AtLeast(3.0)),
    ("tcp1", One(Tailscale), AtLeast(2.3)),
    ("tcp1-pinned", BetterGo, AtLeast(1.8)),
    ("tcp1.cpu", One(Tailscale), AtMost(0.40)),
    ("tcp1", One(Ceiling), AtLeast(0.75)),
    ("tcp8", Own("tcp1"), AtLeast(0.95)),
    ("tcp128", Own("tcp1"), AtLeast(0.95)),
    ("tcp128-own", Own("tcp1"), AtLeast(0.95)),
    ("bidir", Own("tcp1"), AtLeast(0.95)),
    ("udp64", BestPeer, AtLeast(2.5)),
    ("udp64-own", BestPeer, AtLeast(2.5)),
    ("udp1368", BestPeer, AtLeast(2.5)),
    ("udp1368-own", BestPeer, AtLeast(2.5)),
    ("vxlan", BestPeer, AtLeast(3.0)),
    ("ping.p50", BestPeer, AtMost(0.8)),
    ("ping-load.p50", One(Tailscale), AtMost(0.35)),
    // "At full throughput": the pings and the higher wake-up rate may cost the stream a tenth.
    ("ping-load.tcp", Own("tcp1"), AtLeast(0.9)),
];

/// Judges every goal.
pub(crate) fn judge(report: &Report) -> Vec<Target> {
    let ratios = RATIOS
        .iter()
        .map(|&(id, against, goal)| judge_ratio(report, id, against, goal));
    let retransmits = report.median(Adit, "tcp1.retransmits");
    let memory = report.summary(Adit, "rss.peak").map(|peak| peak.max);
    ratios
        .chain([
            absolute("retransmits, TCP, 1 stream", retransmits, AtMost(0.0), ""),
            absolute("peak memory", memory, AtMost(32.0), " MiB"),
        ])
        .collect()
}

fn judge_ratio(report: &Report, id: &str, against: Against, goal: Goal) -> Target {
    let (theirs, name) = match against {
        One(who) => (Some((who, id)), who.name().to_owned()),
        BetterGo => {
            let best = report.best(&[WireguardGo, Tailscale], id);
            (best.map(|who| (who, id)), named("better of the two", best))
        }
        BestPeer => {
            let best = report.best(&Contender::PEERS, id);
            (best.map(|who| (who, id)), named("best peer", best))
        }
        Own(other) => (Some((Adit, other)), format!("Adit's {}", title(other))),
    };
    let ratio = theirs.and_then(|theirs| report.ratio((Adit, id), theirs));
    let measured = ratio.map(|ratio| ratio.value);
    Target {
        measure: title(id),
        against: name,
        goal: goal.text(" ×"),
        measured,
        interval: ratio.map(|ratio| (ratio.low, ratio.high)),
        verdict: verdict(goal, measured),
    }
}

fn absolute(measure: &str, measured: Option<f64>, goal: Goal, unit: &str) -> Target {
    Target {
        measure: measure.to_owned(),
        against: "–".to_owned(),
        goal: goal.text(unit),
        measured,
        interval: None,
        verdict: verdict(goal, measured),
    }
}

fn verdict(goal: Goal, measured: Option<f64>) -> Verdict {
    match measured {
        None => Verdict::NotMeasured,
        Some(value) if goal.is_met(value) => Verdict::Pass,
        Some(_) => Verdict::Miss,
    }
}

fn named(what: &str, who: Option<Contender>) -> String {
    who.map_or_else(|| what.to_owned(), |who| format!("{what}: {}", who.name()))
}

/// The title of a metric; one that stands indented under another says both.
fn title(id: &str) -> String {
    let own = metric(id).map_or(id, |metric| metric.title);
    if !own.starts_with(' ') {
        return own.to_owned();
    }
    let above = id.split_once('.').map_or(id, |(above, _)| above);
    let above = metric(above).or_else(|| metric(&format!("{above}.p50")));
    let above = above.map_or("", |metric| metric.title);
    format!("{above}: {}", own.trim_start())
}
