//! The goals that Adit set itself, judged on the medians of a run.

use serde::Serialize;

use crate::goals::GoalResult;
use crate::goals::Limit::{self, AtLeast, AtMost};
use crate::implementation::Implementation::{self, Adit, Ceiling, Tailscale, WireguardGo};
use crate::metric::metric;
use crate::report::ComparisonReport;
use crate::stats::IntervalKind;

/// How a run stands to one goal.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Target {
    pub(crate) measure: String,
    pub(crate) against: String,
    pub(crate) goal: String,
    pub(crate) measured: Option<f64>,
    pub(crate) interval: Option<(f64, f64)>,
    /// What the interval is.
    pub(crate) interval_kind: Option<IntervalKind>,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Pass,
    Miss,
    /// It was asked for, and a measurement that it is judged by went wrong.
    Failed,
    NotMeasured,
}

impl Verdict {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Miss => "MISS",
            Self::Failed => "FAILED",
            Self::NotMeasured => "not measured",
        }
    }
}

/// The other side of a ratio.
#[derive(Clone, Copy)]
enum Against {
    One(Implementation),
    /// The better of the two Go implementations.
    BetterGo,
    BestPeer,
    /// Adit's own value of another metric.
    Own(&'static str),
}

use Against::{BestPeer, BetterGo, One, Own};

/// The ratios of the table "Ahead of every peer".
const RATIOS: &[(&str, Against, Limit)] = &[
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
pub(crate) fn judge(report: &ComparisonReport) -> Vec<Target> {
    let ratios = RATIOS
        .iter()
        .map(|&(id, against, goal)| judge_ratio(report, id, against, goal));
    ratios
        .chain([retransmits(report), memory(report)])
        .collect()
}

/// The goals that were measured or went wrong, in the form that all commands share.
pub(crate) fn goals(targets: &[Target]) -> Vec<GoalResult> {
    let judged = targets
        .iter()
        .filter(|target| target.verdict != Verdict::NotMeasured);
    let goal = |target: &Target| GoalResult {
        name: match target.against.as_str() {
            "–" => target.measure.clone(),
            against => format!("{}, of {against}", target.measure),
        },
        value: target.measured,
        goal: target.goal.clone(),
        met: target.verdict == Verdict::Pass,
    };
    judged.map(goal).collect()
}

fn judge_ratio(report: &ComparisonReport, id: &str, against: Against, goal: Limit) -> Target {
    // The best of several other implementations, or all of them while none is measured.
    let best_of = |what: &str, all: &[Implementation]| {
        let best = report.best(all, id);
        let opponents = best.map_or_else(|| all.to_vec(), |who| vec![who]);
        (opponents, id, named(what, best))
    };
    let (opponents, of, name) = match against {
        One(who) => (vec![who], id, who.name().to_owned()),
        BetterGo => best_of("better of the two", &[WireguardGo, Tailscale]),
        BestPeer => best_of("best peer", &Implementation::PEERS),
        Own(other) => (vec![Adit], other, format!("Adit's {}", title(other))),
    };
    let ratio = match opponents[..] {
        [opponent] => report.ratio((Adit, id), (opponent, of)),
        _ => None,
    };
    let measured = ratio.map(|ratio| ratio.value);
    let asked = report.asked(Adit, id) && opponents.iter().any(|&who| report.asked(who, of));
    let failed = report.failed(Adit, id) || opponents.iter().any(|&who| report.failed(who, of));
    Target {
        measure: title(id),
        against: name,
        goal: goal.text(" ×"),
        measured,
        interval: ratio.map(|ratio| (ratio.low, ratio.high)),
        interval_kind: ratio.map(|ratio| ratio.interval_kind),
        verdict: verdict(goal, measured, asked && failed),
    }
}

/// Judged by the median, as every goal, and shown with the range, because one round with
/// retransmits is worth knowing.
fn retransmits(report: &ComparisonReport) -> Target {
    let id = "tcp1.retransmits";
    let summary = report.summary(Adit, id);
    let median = summary.map(|summary| summary.median);
    let goal = AtMost(0.0);
    Target {
        measure: "retransmits, TCP, 1 stream".to_owned(),
        against: "–".to_owned(),
        goal: goal.text(""),
        measured: median,
        interval: summary.map(|summary| (summary.min, summary.max)),
        interval_kind: summary.map(|_| IntervalKind::Range),
        verdict: verdict(goal, median, report.failed(Adit, id)),
    }
}

/// Judged by the greatest of the rounds in which the single stream ran: without a load, no peak is
/// high.
fn memory(report: &ComparisonReport) -> Target {
    let loaded = report.values(Adit, "tcp1");
    let ran = |round| loaded.iter().any(|&(other, _)| other == round);
    let peaks = report.values(Adit, "rss.peak").into_iter();
    let peaks = peaks.filter(|&(round, _)| ran(round));
    let peak = peaks.map(|(_, peak)| peak).reduce(f64::max);
    let goal = AtMost(32.0);
    let asked = report.asked(Adit, "rss.peak") && report.asked(Adit, "tcp1");
    let failed = report.failed(Adit, "rss.peak") || report.failed(Adit, "tcp1");
    Target {
        measure: "peak memory".to_owned(),
        against: "–".to_owned(),
        goal: goal.text(" MiB"),
        measured: peak,
        interval: None,
        interval_kind: None,
        verdict: verdict(goal, peak, asked && failed),
    }
}

fn verdict(goal: Limit, measured: Option<f64>, failed: bool) -> Verdict {
    match measured {
        _ if failed => Verdict::Failed,
        None => Verdict::NotMeasured,
        Some(value) if goal.is_met(value) => Verdict::Pass,
        Some(_) => Verdict::Miss,
    }
}

fn named(what: &str, who: Option<Implementation>) -> String {
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
