//! Curves of what `adit-lab scale` measured and of what its model says: left, throughput with a line
//! for each policy or system; right, how busy each core is under `auto`.
//!
//! Stages: read the file → drawings (measured ones first) → SVG. The same file always gives the same
//! bytes.

use std::collections::BTreeMap;

use adit_testbed::stats::to_f64;
use serde::Deserialize;

use super::curves::{self, BOTTOM, LEGEND, PANEL, PANEL_HEIGHT, Plot, TOP};
use super::{MARGIN, Machine, PRINT_ROW, date, escape, page, put, wrap};

/// The name of the picture in the directory that was asked for.
pub(super) const FILE: &str = "scale.svg";
const SCHEMA: u64 = 1;
/// The policy whose cores are shown.
const SHOWN: &str = "auto";

/// The part of the document of `scale/mod.rs` that the picture shows.
#[derive(Deserialize)]
struct Results {
    started: Option<u64>,
    machine: Option<Machine>,
    rounds: u32,
    #[serde(default)]
    tunnels: Vec<Row>,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Row {
    tunnels: u32,
    flows: u32,
    policy: String,
    gbps: Median,
    core_load: Vec<CoreLoad>,
}

#[derive(Deserialize)]
struct Median {
    median: f64,
}

#[derive(Deserialize)]
struct CoreLoad {
    user: f64,
    system: f64,
    interrupts: f64,
}

#[derive(Deserialize)]
struct Model {
    curves: Vec<Curve>,
}

/// What is drawn, measured or not.
#[derive(Deserialize)]
struct Curve {
    title: String,
    axis: String,
    lines: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    name: String,
    points: Vec<Point>,
}

#[derive(Clone, Deserialize)]
struct Point {
    at: u32,
    gbps: f64,
    core_load: Vec<f64>,
}

impl Results {
    /// Rows of real tunnels as a curve over what `at` says of them.
    fn measured(&self, title: &str, axis: &str, at: impl Fn(&Row) -> Option<u32>) -> Curve {
        let mut lines: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
        for row in &self.tunnels {
            let Some(at) = at(row) else { continue };
            let cores = row.core_load.iter();
            lines.entry(&row.policy).or_default().push(Point {
                at,
                gbps: row.gbps.median,
                core_load: cores
                    .map(|core| core.user + core.system + core.interrupts)
                    .collect(),
            });
        }
        let lines = lines.into_iter().map(|(name, mut points)| {
            points.sort_by_key(|point| point.at);
            Line {
                name: name.to_owned(),
                points,
            }
        });
        Curve {
            title: title.to_owned(),
            axis: axis.to_owned(),
            lines: lines.collect(),
        }
    }
}

/// The picture of the results file with this text, or why there is none.
pub(super) fn draw(json: serde_json::Value) -> Result<String, String> {
    match json["schema"].as_u64() {
        Some(SCHEMA) => {}
        _ => {
            return Err("its schema is not one that this adit-lab reads: measure again".to_owned());
        }
    }
    let mut results: Results = serde_json::from_value(json)
        .map_err(|e| format!("this is no whole results file of `adit-lab scale`: {e}"))?;
    // The flows that several tunnels share are those of the rows with several.
    let shared = results.tunnels.iter().find(|row| row.tunnels > 1);
    let shared = shared.map(|row| row.flows);
    let one = |row: &Row| (row.tunnels == 1).then_some(row.flows);
    let several = |row: &Row| (Some(row.flows) == shared).then_some(row.tunnels);
    let title = format!("Measured: {} flows", shared.unwrap_or(0));
    let mut curves = vec![
        results.measured("Measured: one tunnel", "flows", one),
        results.measured(&title, "tunnels", several),
    ];
    let modelled = results
        .model
        .take()
        .map_or_else(Vec::new, |model| model.curves);
    curves.extend(modelled.into_iter().map(|curve| Curve {
        title: format!("Model: {}", curve.title),
        ..curve
    }));
    curves.retain(|curve| curve.lines.iter().any(|line| !line.points.is_empty()));
    if curves.is_empty() {
        return Err("nothing in it can be drawn: it has neither tunnels nor a model".to_owned());
    }
    Ok(svg(&results, &curves))
}

/// A colour for each policy and system; `auto` stands out.
fn class(name: &str) -> &'static str {
    match name {
        SHOWN => "c-adit",
        "inline" => "c-0",
        "pipeline" => "c-1",
        "kernel, inline" => "c-2",
        "kernel, threads" => "c-3",
        _ => "c-4",
    }
}

const STYLE: &str = "\
.core { fill: #1f6feb; }
@media (prefers-color-scheme: dark) { .core { fill: #388bfd; } }";

fn svg(results: &Results, curves: &[Curve]) -> String {
    let mut body = String::new();
    let mut names: Vec<&str> = Vec::new();
    for line in curves.iter().flat_map(|curve| &curve.lines) {
        if !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    curves::legend(
        &mut body,
        names.iter().map(|name| (*name, class(name).to_owned())),
    );
    let top = MARGIN + LEGEND;
    for (row, curve) in curves.iter().enumerate() {
        let y = top + row * PANEL_HEIGHT;
        draw_curve(&mut body, curve, y);
        draw_cores(&mut body, curve, 2 * MARGIN + PANEL, y);
    }
    let mut y = top + curves.len() * PANEL_HEIGHT + PRINT_ROW;
    for line in small_print(results).iter().flat_map(|text| wrap(text)) {
        let line = escape(&line);
        put(
            &mut body,
            &format!("<text class=\"print\" x=\"{MARGIN}\" y=\"{y}\">{line}</text>"),
        );
        y += PRINT_ROW;
    }
    let style = format!("{}\n{STYLE}", curves::STYLE);
    let title = "Adit's throughput by cores, flows and tunnels, and what each core does";
    page(title, &describe(curves), &style, &body, y + MARGIN / 2)
}

/// The points that any line has.
fn places(curve: &Curve) -> Vec<u32> {
    let points = curve.lines.iter().flat_map(|line| &line.points);
    let mut all: Vec<u32> = points.map(|point| point.at).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn draw_curve(body: &mut String, curve: &Curve, y: usize) {
    let places = places(curve);
    let lines = curve.lines.iter().map(|line| {
        let value = |at: &u32| {
            let mut points = line.points.iter();
            points.find(|point| point.at == *at).map(|point| point.gbps)
        };
        let values = places.iter().map(value).collect();
        (class(&line.name).to_owned(), line.name == SHOWN, values)
    });
    let plot = Plot {
        title: format!("{}, Gb/s", escape(&curve.title)),
        better: "more is better",
        axis: escape(&curve.axis),
        labels: places.iter().map(u32::to_string).collect(),
        lines: lines.collect(),
    };
    curves::draw_plot(body, &plot, MARGIN, y);
}

/// A column for each point of the shown policy, a row for each core, the darker the busier.
fn draw_cores(body: &mut String, curve: &Curve, x: usize, y: usize) {
    let Some(line) = curve.lines.iter().find(|line| line.name == SHOWN) else {
        return;
    };
    let cores = line.points.iter().map(|point| point.core_load.len());
    let cores = cores.max().unwrap_or(0);
    if cores == 0 {
        return;
    }
    put(
        body,
        &format!(
            "<text x=\"{x}\" y=\"{}\"><tspan class=\"title\">Each core, {SHOWN}</tspan> \
             <tspan class=\"better\">(dark is busy)</tspan></text>",
            y + 16
        ),
    );
    let (left, high) = (to_f64(x), to_f64(y + TOP));
    let (width, height) = (to_f64(PANEL - 8), to_f64(PANEL_HEIGHT - BOTTOM - TOP));
    let column = width / to_f64(line.points.len().max(1));
    let row = height / to_f64(cores);
    for (at, point) in line.points.iter().enumerate() {
        let from = left + column * to_f64(at);
        for (core, load) in point.core_load.iter().enumerate() {
            put(
                body,
                &format!(
                    "<rect class=\"core\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                     fill-opacity=\"{:.2}\"/>",
                    high + height - row * to_f64(core + 1),
                    column - 2.0,
                    (row - 0.5).max(0.5),
                    load.clamp(0.03, 1.0)
                ),
            );
        }
        put(
            body,
            &format!(
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                from + column / 2.0,
                high + height + 16.0,
                point.at
            ),
        );
    }
    put(
        body,
        &format!(
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left + width / 2.0,
            high + height + 31.0,
            escape(&curve.axis)
        ),
    );
}

fn small_print(results: &Results) -> Vec<String> {
    let mut print = Vec::new();
    if let Some(Machine { cpu, cores, kernel }) = &results.machine {
        let day = results.started.map(date).unwrap_or_default();
        print.push(format!("{cpu}, {cores} cores, Linux {kernel}; {day}"));
    }
    let rounds = results.rounds;
    print.push(format!(
        "Measured: medians of {rounds} rounds, both ends of the tunnels on this machine. Model: a simulation with \
         the costs of the engine's stages, measured here with the kernel's devices; those of the kernel's own \
         WireGuard and of wireguard-go come from published figures of other machines. Made by: adit-lab scale."
    ));
    print
}

/// The curves in words, for readers who do not see them.
fn describe(curves: &[Curve]) -> String {
    let curves = curves.iter().map(|curve| {
        let lines = curve.lines.iter().map(|line| {
            let points = line.points.iter();
            let values = points.map(|point| format!("{:.2} at {}", point.gbps, point.at));
            format!("{} {}", line.name, values.collect::<Vec<_>>().join(", "))
        });
        let lines = lines.collect::<Vec<_>>().join("; ");
        format!("{}, Gb/s by {}: {lines}.", curve.title, curve.axis)
    });
    curves.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::check_well_formed;
    use super::*;

    fn results() -> serde_json::Value {
        let row = |tunnels, flows, policy: &str, median: f64| {
            let core = json!({"user": 0.5, "system": 0.25, "interrupts": 0.0});
            json!({"tunnels": tunnels, "flows": flows, "policy": policy,
                "gbps": {"median": median}, "core_load": [core, core]})
        };
        let point = |at: u32, gbps: f64| json!({"at": at, "gbps": gbps, "core_load": [1.0, 0.5]});
        json!({
            "schema": 1, "command": "scale", "started": 1_709_164_800_u64, "rounds": 3,
            "machine": {"cpu": "Some <CPU>", "cores": 2, "kernel": "6.12"},
            "tunnels": [
                row(1, 1, "auto", 4.0), row(1, 32, "auto", 6.0), row(1, 12, "auto", 5.0),
                row(1, 1, "inline", 3.0), row(2, 12, "auto", 7.0),
            ],
            "model": {"curves": [
                {"title": "One tunnel outbound", "axis": "cores", "lines": [
                    {"name": "auto", "points": [point(1, 5.0), point(32, 15.0)]},
                    {"name": "kernel", "points": [point(1, 2.0), point(32, 5.0)]},
                ]},
            ]},
        })
    }

    #[test]
    fn measured_curves_stand_before_those_of_the_model_each_with_its_cores() {
        let svg = draw(results()).unwrap();
        check_well_formed(&svg).unwrap();
        let at = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text} in {svg}"));
        let measured = at(">Measured: one tunnel, Gb/s");
        assert!(measured < at(">Measured: 12 flows, Gb/s"));
        assert!(at(">Measured: 12 flows, Gb/s") < at(">Model: One tunnel outbound, Gb/s"));
        // Three points, two points and two points of `auto`, two cores each.
        assert_eq!(svg.matches("class=\"core\"").count(), 14);
        assert_eq!(svg.matches("fill-opacity=\"0.75\"").count(), 10);
        assert_eq!(svg.matches("<polyline").count(), 5);
        assert!(svg.contains("Some &lt;CPU&gt;, 2 cores, Linux 6.12; 2024-02-29"));
    }

    #[test]
    fn what_has_neither_tunnels_nor_a_model_is_refused() {
        let memory = json!({"schema": 1, "command": "scale", "rounds": 1, "memory": []});
        assert!(draw(memory).unwrap_err().contains("nothing in it"));
        assert!(draw(json!({"schema": 2})).unwrap_err().contains("schema"));
        assert!(draw(json!({"schema": 1})).unwrap_err().contains("no whole"));
    }

    #[test]
    fn the_command_draws_results_of_scale() {
        let (name, svg) = super::super::picture(&results().to_string()).unwrap();
        assert_eq!((name, svg), (FILE, draw(results()).unwrap()));
    }
}
