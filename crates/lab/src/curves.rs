//! Curves of what `adit-lab gateway` measured: a panel for each quantity, a line for each
//! implementation.
//!
//! Stages: read the file → panels (points by offered rate, peers or interfaces) → SVG. The same file
//! always gives the same bytes.

use std::collections::BTreeMap;

use adit_testbed::stats::to_f64;
use serde::Deserialize;

use super::{Entry, MARGIN, Machine, PRINT_ROW, WIDTH, cut, date, escape, page, put, wrap};

/// The name of the picture in the directory that was asked for.
pub(super) const FILE: &str = "gateway.svg";
const SCHEMA: u64 = 1;

/// The part of the document of `gateway/report.rs` that the picture shows.
#[derive(Deserialize)]
struct Results {
    started: Option<u64>,
    machine: Machine,
    rounds: u32,
    implementations: Vec<Entry>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    case: String,
    measures: Vec<Measure>,
}

#[derive(Deserialize)]
struct Measure {
    name: String,
    implementations: BTreeMap<String, Values>,
}

#[derive(Clone, Copy, Deserialize)]
struct Values {
    median: f64,
}

/// One quantity, and what it depends on.
struct Curve {
    title: &'static str,
    better: &'static str,
    /// What stands below the points.
    axis: &'static str,
    points: Points,
}

/// Where the points of a curve come from: for each a label, and the case and the measure.
enum Points {
    /// One case, with a measure for each rate.
    Offered(&'static str),
    /// One measure of several cases.
    Cases(&'static str, &'static [(&'static str, &'static str)]),
}

const OFFERED: [(&str, &str); 7] = [
    ("0.1", "offered_0.1"),
    ("0.25", "offered_0.25"),
    ("0.5", "offered_0.5"),
    ("1", "offered_1"),
    ("2", "offered_2"),
    ("4", "offered_4"),
    ("all it can", "offered_most"),
];
const PEERS: &[(&str, &str)] = &[
    ("1", "peers-active-1"),
    ("10", "peers-active-10"),
    ("100", "peers-active-100"),
    ("1,000", "peers-active-1000"),
    ("10,000", "peers-active-10000"),
];
const INTERFACES: &[(&str, &str)] = &[
    ("1", "interfaces-1"),
    ("10", "interfaces-10"),
    ("100", "interfaces-100"),
    ("1,000", "interfaces"),
];

const MORE: &str = "more is better";
const LESS: &str = "less is better";

const CURVES: [Curve; 10] = [
    curve(
        "Goodput of UDP one way, Gb/s",
        MORE,
        "offered, Gb/s",
        Points::Offered("overload"),
    ),
    curve(
        "The same both ways, Gb/s",
        MORE,
        "offered each way, Gb/s",
        Points::Offered("overload-both"),
    ),
    peers("64 B from peers, kpps", MORE, "from_peers_64"),
    peers("64 B to peers, kpps", MORE, "to_peers_64"),
    peers("1368 B from peers, kpps", MORE, "from_peers_1368"),
    peers("1368 B to peers, kpps", MORE, "to_peers_1368"),
    peers(
        "CPU time, 1368 B from peers, µs",
        LESS,
        "from_peers_1368_cpu",
    ),
    peers("CPU time, 1368 B to peers, µs", LESS, "to_peers_1368_cpu"),
    interfaces("Time until all answer, s", "start"),
    interfaces("Memory of all daemons, MiB", "memory"),
];

const fn curve(
    title: &'static str,
    better: &'static str,
    axis: &'static str,
    points: Points,
) -> Curve {
    Curve {
        title,
        better,
        axis,
        points,
    }
}

const fn peers(title: &'static str, better: &'static str, measure: &'static str) -> Curve {
    curve(title, better, "active peers", Points::Cases(measure, PEERS))
}

const fn interfaces(title: &'static str, measure: &'static str) -> Curve {
    curve(
        title,
        LESS,
        "interfaces",
        Points::Cases(measure, INTERFACES),
    )
}

impl Results {
    fn value(&self, case: &str, measure: &str, name: &str) -> Option<f64> {
        let case = self.cases.iter().find(|of| of.case == case)?;
        let measure = case.measures.iter().find(|of| of.name == measure)?;
        measure
            .implementations
            .get(name)
            .map(|values| values.median)
    }

    /// What an implementation that was measured with fewer interfaces than asked has there is no
    /// point of the curve.
    fn is_as_labelled(&self, label: &str, case: &str, name: &str) -> bool {
        let count = self.value(case, "interfaces", name);
        let wanted = label.replace(',', "");
        count.is_none_or(|count| format!("{count}") == wanted)
    }
}

/// A curve with the values of those that have some.
struct Panel<'a> {
    curve: &'a Curve,
    labels: Vec<&'static str>,
    /// For each implementation its place among all, and a value for each label.
    lines: Vec<(usize, &'a str, Vec<Option<f64>>)>,
}

impl<'a> Panel<'a> {
    fn new(curve: &'a Curve, results: &'a Results) -> Self {
        let points: Vec<(&str, &str, &str)> = match curve.points {
            Points::Offered(case) => OFFERED
                .iter()
                .map(|&(label, measure)| (label, case, measure))
                .collect(),
            Points::Cases(measure, cases) => cases
                .iter()
                .map(|&(label, case)| (label, case, measure))
                .collect(),
        };
        let lines = results
            .implementations
            .iter()
            .enumerate()
            .map(|(place, entry)| {
                let name = entry.name.as_str();
                let values = points.iter().map(|&(label, case, measure)| {
                    let value = results.value(case, measure, name)?;
                    results.is_as_labelled(label, case, name).then_some(value)
                });
                (place, name, values.collect::<Vec<_>>())
            });
        let lines = lines.filter(|(_, _, values)| values.iter().any(Option::is_some));
        Self {
            curve,
            labels: points.iter().map(|&(label, ..)| label).collect(),
            lines: lines.collect(),
        }
    }
}

/// The picture of the results file with this text, or why there is none.
pub(super) fn draw(json: serde_json::Value) -> Result<String, String> {
    match json["schema"].as_u64() {
        Some(SCHEMA) => {}
        other => {
            let other = other.map_or_else(|| "missing".to_owned(), |schema| schema.to_string());
            return Err(format!(
                "its schema is {other}, and this adit-lab reads schema {SCHEMA}: measure again with this version"
            ));
        }
    }
    let results: Results = serde_json::from_value(json)
        .map_err(|e| format!("this is no whole results file of `adit-lab gateway`: {e}"))?;
    let panels: Vec<Panel<'_>> = CURVES
        .iter()
        .map(|curve| Panel::new(curve, &results))
        .filter(|panel| !panel.lines.is_empty())
        .collect();
    if panels.is_empty() {
        return Err(
            "nothing in it can be drawn; the cases overload, peers-active-… and interfaces have curves"
                .to_owned(),
        );
    }
    Ok(svg(&results, &panels))
}

/// Of one panel with its title and the labels below. Two stand side by side.
pub(super) const PANEL: usize = (WIDTH - 3 * MARGIN) / 2;
pub(super) const PANEL_HEIGHT: usize = 230;
/// From the left of a panel to its vertical axis, and from its top and its bottom to the plot.
const AXIS: usize = 46;
pub(super) const TOP: usize = 40;
pub(super) const BOTTOM: usize = 44;
pub(super) const LEGEND: usize = 44;

/// Beyond the bars' own. Colours that are told apart by most people (Okabe and Ito); Adit's is that
/// of the bars.
pub(super) const STYLE: &str = "\
.grid { stroke: #d1d9e0; }
.tick { font-size: 11px; fill: #59636e; }
.curve { fill: none; stroke-width: 1.5; }
.curve.adit { stroke-width: 3; }
.c-adit { stroke: #1f6feb; fill: #1f6feb; }
.c-0 { stroke: #d55e00; fill: #d55e00; }
.c-1 { stroke: #009e73; fill: #009e73; }
.c-2 { stroke: #cc79a7; fill: #cc79a7; }
.c-3 { stroke: #e69f00; fill: #e69f00; }
.c-4 { stroke: #8c8c8c; fill: #8c8c8c; }
.curve { fill: none; }
@media (prefers-color-scheme: dark) {
.grid { stroke: #3d444d; }
.tick { fill: #9198a1; }
.c-adit { stroke: #388bfd; fill: #388bfd; }
.curve { fill: none; }
}";

fn svg(results: &Results, panels: &[Panel<'_>]) -> String {
    let mut body = String::new();
    let entries = results.implementations.iter().enumerate();
    let entries = entries.map(|(place, entry)| (entry.name.as_str(), class(&entry.name, place)));
    legend(&mut body, entries);
    let top = MARGIN + LEGEND;
    for (at, panel) in panels.iter().enumerate() {
        let (column, row) = (at % 2, at / 2);
        let x = MARGIN + column * (PANEL + MARGIN);
        draw_panel(&mut body, panel, x, top + row * PANEL_HEIGHT);
    }
    let mut y = top + panels.len().div_ceil(2) * PANEL_HEIGHT + PRINT_ROW;
    for line in small_print(results).iter().flat_map(|text| wrap(text)) {
        let line = escape(&line);
        put(
            &mut body,
            &format!("<text class=\"print\" x=\"{MARGIN}\" y=\"{y}\">{line}</text>"),
        );
        y += PRINT_ROW;
    }
    let title = "A gateway on Adit beside other implementations of WireGuard";
    page(title, &describe(panels), STYLE, &body, y + MARGIN / 2)
}

/// Adit's own class; another's by its place.
fn class(name: &str, place: usize) -> String {
    match name {
        "adit" => "c-adit".to_owned(),
        _ => format!("c-{}", place % 5),
    }
}

/// Names and their classes.
pub(super) fn legend<'a>(body: &mut String, entries: impl Iterator<Item = (&'a str, String)>) {
    let (y, mut x) = (MARGIN + 8, MARGIN);
    for (name, class) in entries {
        let name = cut(name, 18);
        let text = escape(&name);
        put(
            body,
            &format!(
                "<circle class=\"{class}\" cx=\"{}\" cy=\"{y}\" r=\"5\"/>",
                x + 5
            ),
        );
        put(
            body,
            &format!("<text x=\"{}\" y=\"{}\">{text}</text>", x + 16, y + 4),
        );
        x += 44 + name.chars().count() * 8;
    }
}

/// A round number that is no less: 1, 2, 2.5 or 5 times a power of ten.
fn ceiling(most: f64) -> f64 {
    if most <= 0.0 || !most.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= most * 0.999);
    step.unwrap_or(10.0) * power
}

fn draw_panel(body: &mut String, panel: &Panel<'_>, x: usize, y: usize) {
    let lines = panel.lines.iter().map(|(place, name, values)| {
        let is_adit = *name == "adit";
        (class(name, *place), is_adit, values.clone())
    });
    let plot = Plot {
        title: panel.curve.title.to_owned(),
        better: panel.curve.better,
        axis: panel.curve.axis.to_owned(),
        labels: panel.labels.iter().map(|&label| label.to_owned()).collect(),
        lines: lines.collect(),
    };
    draw_plot(body, &plot, x, y);
}

/// What a panel shows. Texts are markup already.
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) better: &'static str,
    pub(super) axis: String,
    pub(super) labels: Vec<String>,
    /// A class, whether it stands out, and a value for each label.
    pub(super) lines: Vec<(String, bool, Vec<Option<f64>>)>,
}

/// Draws lines over labels, with the upper left corner here.
pub(super) fn draw_plot(body: &mut String, plot: &Plot, x: usize, y: usize) {
    let Plot {
        title,
        better,
        axis,
        labels,
        lines,
    } = plot;
    put(
        body,
        &format!(
            "<text x=\"{x}\" y=\"{}\"><tspan class=\"title\">{title}</tspan> \
             <tspan class=\"better\">({better})</tspan></text>",
            y + 16
        ),
    );
    let (left, right) = (to_f64(x + AXIS), to_f64(x + PANEL - 8));
    let (high, low) = (to_f64(y + TOP), to_f64(y + PANEL_HEIGHT - BOTTOM));
    let values = lines.iter().flat_map(|(_, _, values)| values);
    let most = ceiling(values.flatten().copied().fold(0.0, f64::max));
    let height = |value: f64| low - (value / most).clamp(0.0, 1.0) * (low - high);
    for quarter in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (at, value) = (height(most * quarter), most * quarter);
        put(
            body,
            &format!(
                "<line class=\"grid\" x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\"/>"
            ),
        );
        // As many places as tell the quarters apart.
        let places = usize::from(most < 100.0) + usize::from(most < 10.0) + usize::from(most < 1.0);
        put(
            body,
            &format!(
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.places$}</text>",
                left - 6.0,
                at + 4.0
            ),
        );
    }
    // As far apart as powers of ten are on a logarithmic axis.
    let step = (right - left) / to_f64(labels.len());
    let across = |index: usize| left + step * (to_f64(index) + 0.5);
    for (index, label) in labels.iter().enumerate() {
        put(
            body,
            &format!(
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                across(index),
                low + 16.0
            ),
        );
    }
    put(
        body,
        &format!(
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{axis}</text>",
            f64::midpoint(left, right),
            low + 31.0
        ),
    );
    // What stands out comes last, so that nothing hides it.
    let (shown, others): (Vec<_>, Vec<_>) =
        lines.iter().partition(|(_, stands_out, _)| *stands_out);
    for (class, stands_out, values) in others.into_iter().chain(shown) {
        let own = if *stands_out { " adit" } else { "" };
        let points: Vec<(f64, f64)> = (0..)
            .zip(values)
            .filter_map(|(index, value)| Some((across(index), height((*value)?))))
            .collect();
        let line: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let line = line.join(" ");
        put(
            body,
            &format!("<polyline class=\"{class} curve{own}\" points=\"{line}\"/>"),
        );
        for (x, y) in points {
            put(
                body,
                &format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"),
            );
        }
    }
}

fn small_print(results: &Results) -> Vec<String> {
    let Machine { cpu, cores, kernel } = &results.machine;
    let day = results
        .started
        .map_or_else(String::new, |at| format!("; {}", date(at)));
    let versions = results.implementations.iter().map(super::version);
    let rounds = match results.rounds {
        1 => "Values of one round".to_owned(),
        rounds => format!("Medians of {rounds} rounds"),
    };
    vec![
        format!("{cpu}, {cores} cores, Linux {kernel}{day}"),
        versions.collect::<Vec<_>>().join(", "),
        format!(
            "{rounds}. Made by: adit-lab gateway. A point that is not there was not measured, or cannot be."
        ),
    ]
}

/// The curves in words, for readers who do not see them.
fn describe(panels: &[Panel<'_>]) -> String {
    let panels = panels.iter().map(|panel| {
        let lines = panel.lines.iter().map(|(_, name, values)| {
            let values = panel
                .labels
                .iter()
                .zip(values)
                .filter_map(|(label, value)| Some(format!("{:.2} at {label}", (*value)?)));
            format!("{name} {}", values.collect::<Vec<_>>().join(", "))
        });
        let lines = lines.collect::<Vec<_>>().join("; ");
        format!("{} by {}: {lines}.", panel.curve.title, panel.curve.axis)
    });
    panels.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "curves_tests.rs"]
mod tests;
