//! A run as text, for people.

use std::fmt::Write;

use adit_testbed::framing::{LINK_MTU, TUNNEL_MTU};

use crate::implementation::Implementation;
use crate::metric::{METRICS, Metric, Step};
use crate::report::ComparisonReport;
use crate::stats::IntervalKind;
use crate::targets::{self, Target, Verdict};

/// Width of the first column and of the others.
const FIRST: usize = 34;
const OTHER: usize = 14;

/// Every table, from the raw medians to the verdicts.
pub(crate) fn render(report: &ComparisonReport) -> String {
    let parts = [
        head(report),
        medians(report),
        shares(report),
        streams(report),
        verdicts(report),
        notes(report),
    ];
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

fn head(report: &ComparisonReport) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "\n{}, {} cores, Linux {}; load average {} before, {} after; {} s\n",
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.load_before,
        machine.load_after,
        report.took.as_secs(),
    );
    let tools = report.tools.iter().map(|(_, version)| version.as_str());
    put(&mut text, &tools.take(2).collect::<Vec<_>>().join("; "));
    for entry in &report.implementations {
        put(
            &mut text,
            &format!("  {:<14}{}", entry.who.name(), entry.version),
        );
    }
    if let Some(why) = &report.stopped {
        put(&mut text, &format!("INCOMPLETE: {why}"));
    }
    text
}

/// The implementations as columns, the metrics as rows; the last column compares Adit with the best
/// peer.
fn medians(report: &ComparisonReport) -> String {
    let columns: Vec<Implementation> = report
        .implementations
        .iter()
        .map(|entry| entry.who)
        .collect();
    let mut text = String::new();
    let mut line = pad("median ± half the range", FIRST);
    for who in &columns {
        line += &right(who.name(), OTHER);
    }
    put(
        &mut text,
        &format!("{line}  Adit / best peer (95 % interval, or range)"),
    );
    for metric in METRICS {
        let cells: Vec<String> = columns
            .iter()
            .map(|&who| cell(report, who, metric))
            .collect();
        if cells.iter().all(String::is_empty) {
            continue;
        }
        let mut line = pad(&format!("{}, {}", metric.title, metric.unit), FIRST);
        for cell in cells {
            line += &right(&cell, OTHER);
        }
        put(&mut text, (line + &against_best(report, metric)).trim_end());
    }
    let marked = METRICS.iter().any(|metric| {
        columns
            .iter()
            .any(|&who| report.is_tool_bound(who, metric.id))
    });
    if marked {
        put(
            &mut text,
            "* less than 2 % was lost: the tool that sent was the limit, not the tunnel.",
        );
    }
    let tools: Vec<&Step> = (report.steps.iter())
        .filter(|step| step.tool() == "adit-lab")
        .collect();
    if !tools.is_empty() {
        put(
            &mut text,
            "Loads are made by iperf3 and ping; \"lab's generator\" and GSO trains by this command, because iperf3 sends\n\
             no trains, spends more on each datagram, and leaves what 128 streams bring waiting in its sockets.",
        );
    }
    text
}

fn cell(report: &ComparisonReport, who: Implementation, metric: &Metric) -> String {
    let Some(summary) = report.summary(who, metric.id) else {
        return String::new();
    };
    let mark = if report.is_tool_bound(who, metric.id) {
        "*"
    } else {
        ""
    };
    let value = format!("{:.*}{mark}", metric.places, summary.median);
    if summary.rounds < 2 || summary.median == 0.0 {
        return value;
    }
    format!("{value} ±{:.0}%", summary.spread * 100.0)
}

fn against_best(report: &ComparisonReport, metric: &Metric) -> String {
    let best = report.best(&Implementation::PEERS, metric.id);
    let ratio = best.and_then(|best| {
        let ratio = report.ratio((Implementation::Adit, metric.id), (best, metric.id))?;
        Some((best, ratio))
    });
    let Some((best, ratio)) = ratio else {
        return String::new();
    };
    let interval = interval(ratio.low, ratio.high, Some(ratio.interval_kind));
    format!("  {:.2} × {}{interval}", ratio.value, best.name())
}

/// In brackets; nothing where one round was all.
fn interval(low: f64, high: f64, kind: Option<IntervalKind>) -> String {
    let range = match kind {
        Some(IntervalKind::Range) => "range ",
        _ => "",
    };
    if low == high {
        String::new()
    } else {
        format!(" ({range}{low:.2}–{high:.2})")
    }
}

/// Percent of what framing leaves of the direct path.
fn shares(report: &ComparisonReport) -> String {
    let columns: Vec<Implementation> = report
        .implementations
        .iter()
        .map(|entry| entry.who)
        .collect();
    let mut rows = String::new();
    for metric in METRICS {
        let Some(maximum) = report.maximum(metric) else {
            continue;
        };
        let mut line = pad(metric.title, FIRST);
        line += &right(&format!("{maximum:.2} {}", metric.unit), OTHER);
        for &who in columns.iter().filter(|&&who| who != Implementation::Direct) {
            let share = report.share_of_maximum(who, metric);
            line += &right(
                &share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)),
                OTHER,
            );
        }
        put(&mut rows, line.trim_end());
    }
    if rows.is_empty() {
        return rows;
    }
    let mut line = pad("percent of the maximum", FIRST) + &right("maximum", OTHER);
    for &who in columns.iter().filter(|&&who| who != Implementation::Direct) {
        line += &right(who.name(), OTHER);
    }
    format!(
        "{line}\n{rows}The maximum is the direct path (MTU {LINK_MTU}) times what framing leaves of it: payload per octet on the wire\n\
         in the tunnel (MTU {TUNNEL_MTU}, 60 octets a packet over IPv4, 80 over IPv6, padding to 16, Ethernet 38) over the same\n\
         without it. The link has no bit rate of its own; the direct path is limited by the same two ends.\n"
    )
}

/// The table of "Userspace isn't slow, some kernel interfaces are!".
fn streams(report: &ComparisonReport) -> String {
    let mut rows = String::new();
    for entry in &report.implementations {
        let Some(rate) = report.median(entry.who, "tcp1") else {
            continue;
        };
        let sent_again = report.median(entry.who, "tcp1.retransmits");
        let sent_again =
            sent_again.map_or_else(|| "–".to_owned(), |segments| format!("{segments:.0}"));
        let name = match entry.who {
            Implementation::Direct => format!("no tunnel, MTU {LINK_MTU}"),
            who => who.name().to_owned(),
        };
        let line =
            pad(&name, FIRST) + &right(&format!("{rate:.2}"), OTHER) + &right(&sent_again, OTHER);
        put(&mut rows, &line);
    }
    if rows.is_empty() {
        return rows;
    }
    let title = format!("iperf3, 1 stream, {}, MTU {TUNNEL_MTU}", report.congestion);
    let line = pad(&title, FIRST) + &right("Gb/s", OTHER) + &right("retransmits", OTHER);
    format!("{line}\n{rows}")
}

fn verdicts(report: &ComparisonReport) -> String {
    let targets = targets::judge(report);
    if targets
        .iter()
        .all(|target| target.verdict == Verdict::NotMeasured)
    {
        return String::new();
    }
    let mut text = String::new();
    let line = pad("target", 52)
        + &pad("against", 32)
        + &right("goal", 10)
        + &right("measured", 26)
        + "  verdict";
    put(&mut text, &line);
    for target in &targets {
        put(&mut text, &verdict(target));
    }
    text
}

fn verdict(target: &Target) -> String {
    let measured = target.measured.map_or_else(String::new, |value| {
        let (low, high) = target.interval.unwrap_or_default();
        let interval = interval(low, high, target.interval_kind);
        format!("{value:.2}{interval}")
    });
    pad(&target.measure, 52)
        + &pad(&target.against, 32)
        + &right(&target.goal, 10)
        + &right(&measured, 26)
        + "  "
        + target.verdict.word()
}

fn notes(report: &ComparisonReport) -> String {
    let mut text = String::new();
    for note in &report.notes {
        let step = note
            .step
            .map_or_else(String::new, |step| format!(" {}", step.name()));
        let line = format!(
            "round {} {}{step}: {}",
            note.round,
            note.implementation.name(),
            note.text
        );
        put(&mut text, &line);
    }
    if text.is_empty() {
        text
    } else {
        format!("What did not work:\n{text}")
    }
}

fn put(text: &mut String, line: &str) {
    let _ = writeln!(text, "{line}");
}

fn pad(text: &str, width: usize) -> String {
    format!("{text:<width$}")
}

fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}
