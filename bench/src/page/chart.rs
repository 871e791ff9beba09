//! `adit-lab chart`: one picture of what `adit-lab compare`, `gateway` or `scale` wrote, for a document.
//! Its drawings are those of the page.
//!
//! Stages: read the file → choose its figures → small print → SVG.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::comparison::{Entry, Median, Results, parse};
use super::figures::{Drawing, Figure, Run};
use super::picture::Picture;
use super::text::date;
use crate::implementation::Implementation::{Ceiling, Direct};
use crate::metric::Step;
use crate::{output, summary};

/// Draws the results of `adit-lab compare`, `gateway` or `scale` with `--json=FILE` as SVG.
///
/// Of a comparison: horizontal bars of one TCP stream (Gb/s), of the daemons' CPU seconds for each GB
/// of it, and of the ping beside a stream, in DIR/comparison.svg. Bars are medians; a thin line
/// reaches from the least to the greatest round.
///
/// Of a gateway: curves of goodput by offered rate, of packets and CPU time by active peers, and of
/// start and memory by interfaces, with a line for each implementation, in DIR/gateway.svg. With
/// --bars: one stream, its CPU time, the stream beside a flood to a slow peer, and 64 peers, in
/// DIR/comparison.svg.
///
/// Of `scale`: throughput by flows and tunnels as measured, and by cores and tunnels as modelled, and
/// the load of every core under the policy `auto`, in DIR/scale.svg.
///
/// What the file does not have is left out. The small print has the machine, the date, the versions
/// and the command. The picture is one file without scripts or fonts of its own. It has its own
/// background, so that it can be read on any page, and follows the reader's light or dark colour
/// scheme.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChartArgs {
    /// A file that `adit-lab compare --json=FILE` (schema 2), or `gateway` or `scale` (schema 1),
    /// wrote.
    #[arg(value_name = "RESULTS.json")]
    results: PathBuf,
    /// Where the chart goes; the directory is made if it is missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Bars of a gateway instead of curves.
    #[arg(long)]
    bars: bool,
}

/// Draws the chart and prints where it is.
pub(crate) fn run(args: &ChartArgs) -> Result<(), Box<dyn Error>> {
    let at = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let text = fs::read_to_string(&args.results).map_err(|e| at(&args.results, &e))?;
    let drawn = match args.bars {
        true => bars(&text),
        false => picture(&text),
    };
    let (name, svg) = drawn.map_err(|why| at(&args.results, &why))?;
    let file = args.out.join(name);
    fs::create_dir_all(&args.out).map_err(|e| at(&args.out, &e))?;
    fs::write(&file, svg).map_err(|e| at(&file, &e))?;
    Ok(output::print(&format!("{}\n", file.display()))?)
}

/// The name and the text of the picture that a results file is made for, or why there is none.
fn picture(text: &str) -> Result<(&'static str, String), String> {
    let json = summary::parse(text).unwrap_or_default();
    let (name, picture) = match json["command"].as_str() {
        Some("gateway") => ("gateway.svg", of_gateway(text, &json)?),
        Some("scale") => ("scale.svg", of_scale(text, &json)?),
        _ => ("comparison.svg", of_comparison(text)?),
    };
    Ok((name, drawn(&picture)?))
}

fn drawn(picture: &Picture) -> Result<String, String> {
    let svg = picture.svg();
    svg.map_err(|why| format!("it cannot be drawn: {why}"))
}

/// The bars of a gateway.
fn bars(text: &str) -> Result<(&'static str, String), String> {
    let json = summary::parse(text).unwrap_or_default();
    if json["command"] != "gateway" {
        return Err("only results of `adit-lab gateway` have these bars".to_owned());
    }
    let run = read(text, &json)?;
    let mut print = versions_of(&run);
    print.push(format!(
        "{}; thin lines reach from the least to the greatest. Made by: adit-lab gateway",
        rounds_of(&json)
    ));
    let picture = chosen(
        GATEWAY,
        &run.machine,
        run.started,
        print,
        super::gateway::bars(&json).into_iter(),
        |_| true,
        "the cases slow, four-tunnels and peers-64 have bars",
    )?;
    let columns = 1;
    Ok(("comparison.svg", drawn(&Picture { columns, ..picture })?))
}

const GATEWAY: &str = "A gateway on Adit beside other implementations of WireGuard";

fn versions_of(run: &Run) -> Vec<String> {
    let versions = run.subjects.iter();
    let versions = versions.map(|(name, version)| version_of(name, version));
    vec![versions.collect::<Vec<_>>().join(", ")]
}

fn rounds_of(json: &Value) -> String {
    match json["rounds"].as_u64() {
        Some(1) => "Values of one round".to_owned(),
        rounds => format!("Medians of {} rounds", rounds.unwrap_or(0)),
    }
}

/// The bars of one panel.
struct Measure {
    id: &'static str,
    title: &'static str,
    better: &'static str,
    /// Its name in the list of missing values.
    short: &'static str,
    unit: &'static str,
    places: usize,
}

const MEASURES: [Measure; 3] = [
    Measure {
        id: "tcp1",
        title: "One TCP stream, Gb/s",
        better: "more is better",
        short: "the stream",
        unit: " Gb/s",
        places: 2,
    },
    Measure {
        id: "tcp1.cpu",
        title: "CPU seconds per GB of it, both daemons",
        better: "less is better",
        short: "its CPU time",
        unit: "",
        places: 2,
    },
    Measure {
        id: "ping-load.p50",
        title: "Ping beside one TCP stream, µs",
        better: "less is better",
        short: "the ping beside a stream",
        unit: " µs",
        places: 0,
    },
];

impl Results {
    fn values(&self, id: &str, name: &str) -> Option<Median> {
        let metric = self.metrics.iter().find(|metric| metric.id == id)?;
        metric.implementations.get(name).copied()
    }

    /// Those that a bar is drawn for: neither the link without a tunnel nor the build that encrypts
    /// nothing.
    fn shown(&self) -> impl Iterator<Item = &Entry> {
        let references = [Direct.name(), Ceiling.name()];
        let entries = self.implementations.iter();
        entries.filter(move |entry| !references.contains(&entry.name.as_str()))
    }
}

/// Bars, the best first.
fn of_comparison(text: &str) -> Result<Picture, String> {
    let results = parse(text)?;
    let mut run = Run::read("", text).ok();
    let shown: Vec<&str> = results.shown().map(|entry| entry.name.as_str()).collect();
    let mut panels = Vec::new();
    for measure in &MEASURES {
        let sections = run.iter_mut().flat_map(|run| &mut run.sections);
        let figures = sections.flat_map(|section| &mut section.figures);
        let Some(figure) = figures.into_iter().find(|figure| figure.id == measure.id) else {
            continue;
        };
        let Drawing::Bars(bars) = &mut figure.drawing else {
            continue;
        };
        let mut bars = std::mem::take(bars);
        bars.retain(|(name, _)| shown.contains(&name.as_str()));
        bars.sort_by(|(_, a), (_, b)| match measure.better {
            "more is better" => b.median.total_cmp(&a.median),
            _ => a.median.total_cmp(&b.median),
        });
        if bars.is_empty() {
            continue;
        }
        let figure = Figure {
            id: measure.id.to_owned(),
            title: measure.title.to_owned(),
            unit: String::new(),
            drawing: Drawing::Bars(bars),
        };
        panels.push((format!("{} ({})", measure.title, measure.better), figure));
    }
    if panels.is_empty() {
        return Err(
            "nothing in it can be drawn; `adit-lab compare --only tcp1,ping-load` measures what the chart shows"
                .to_owned(),
        );
    }
    Ok(Picture {
        title: "Adit beside other implementations of WireGuard",
        columns: 1,
        panels,
        print: small_print(&results),
    })
}

/// Its curves.
fn of_gateway(text: &str, json: &Value) -> Result<Picture, String> {
    let run = read(text, json)?;
    let mut print = versions_of(&run);
    print.push(format!(
        "{}. Made by: adit-lab gateway. A point that is not there was not measured, or cannot be.",
        rounds_of(json)
    ));
    chosen(
        GATEWAY,
        &run.machine,
        run.started,
        print,
        run.sections.into_iter().flat_map(|section| section.figures),
        |figure| matches!(figure.drawing, Drawing::Curves { .. }),
        "the cases overload, peers-active-… and interfaces have curves",
    )
}

/// Throughput, and the load of cores where the engine chooses how many threads help.
fn of_scale(text: &str, json: &Value) -> Result<Picture, String> {
    let run = read(text, json)?;
    let print = vec![format!(
        "Load: share of the time in which a core or thread is busy, full colour is all of it. Measured: medians of {} rounds, both ends of the tunnels on this machine. Model: a simulation with the \
         costs of the engine's stages, measured here with the kernel's devices; those of the kernel's own WireGuard \
         and of wireguard-go come from published figures of other machines. Made by: adit-lab scale.",
        json["rounds"]
    )];
    let figures = run.sections.into_iter().flat_map(|section| {
        let what = match section.title.starts_with("Model") {
            true => "Model: ",
            false => "Measured: ",
        };
        section.figures.into_iter().map(move |figure| Figure {
            title: format!("{what}{}", figure.title),
            ..figure
        })
    });
    chosen(
        "Adit's throughput by cores, flows and tunnels, and what each core does",
        &run.machine,
        run.started,
        print,
        figures,
        |figure| match figure.drawing {
            Drawing::Curves { .. } => figure.unit == "Gb/s",
            Drawing::Heat(_) => figure.title.ends_with("auto"),
            Drawing::Bars(_) | Drawing::Flame(_) => false,
        },
        "it has neither tunnels nor a model",
    )
}

/// A file of which the schema is known.
fn read(text: &str, json: &Value) -> Result<Run, String> {
    match json["schema"].as_u64() {
        Some(1) => Run::read("", text),
        Some(other) => Err(format!(
            "its schema is {other}, and this adit-lab reads schema 1: measure again with this version"
        )),
        None => Err("this is no whole results file: it has no schema".to_owned()),
    }
}

/// Some of the figures of a file, two side by side.
fn chosen(
    title: &'static str,
    machine: &[(String, String)],
    started: Option<u64>,
    mut print: Vec<String>,
    figures: impl Iterator<Item = Figure>,
    wanted: impl Fn(&Figure) -> bool,
    otherwise: &str,
) -> Result<Picture, String> {
    let known = |name: &str| machine.iter().find(|(of, _)| of == name);
    let known = |name: &str| known(name).map_or("", |(_, value)| value.as_str());
    if let (cpu, kernel) = (known("cpu"), known("kernel"))
        && !cpu.is_empty()
    {
        let day = started.map_or_else(String::new, |at| format!("; {}", date(at)));
        let line = format!("{cpu}, {} cores, Linux {kernel}{day}", known("cores"));
        print.insert(0, line);
    }
    let panels = figures.filter(wanted).map(|figure| {
        let above = match &figure.drawing {
            Drawing::Heat(_) => figure.title.clone(),
            _ => format!("{}, {}", figure.title, figure.unit),
        };
        (above, figure)
    });
    let panels: Vec<_> = panels.collect();
    match panels.is_empty() {
        true => Err(format!("nothing in it can be drawn: {otherwise}")),
        false => Ok(Picture {
            title,
            columns: 2,
            panels,
            print,
        }),
    }
}

/// What a reader needs to judge the bars, a paragraph each.
fn small_print(results: &Results) -> Vec<String> {
    let machine = &results.machine;
    let rounds = results.metrics.iter().flat_map(|metric| {
        let counts = metric.implementations.values();
        counts.map(|values| values.count)
    });
    let rounds = rounds.max().unwrap_or(0);
    let mut print = vec![
        format!(
            "{}, {} cores, Linux {}; {}; {}",
            machine.cpu,
            machine.cores,
            machine.kernel,
            results.settings.congestion_control,
            date(results.started),
        ),
        versions(results),
    ];
    let of_rounds = match rounds {
        1 => "Values of one round".to_owned(),
        _ => format!("Medians of {rounds} rounds; thin lines reach from the least to the greatest"),
    };
    print.push(format!(
        "{of_rounds}. Made by: {}",
        command(results, rounds)
    ));
    print.extend(no_tunnel(results));
    print.extend(missing(results));
    if let Some(why) = &results.stopped {
        print.push(format!("The run is incomplete: {why}"));
    }
    print
}

fn versions(results: &Results) -> String {
    results.shown().map(version).collect::<Vec<_>>().join(", ")
}

fn version(entry: &Entry) -> String {
    version_of(&entry.name, &entry.version)
}

/// Name and version of an implementation.
fn version_of(name: &str, version: &str) -> String {
    // Of a binary that was given, the version ends in its path, which says nothing elsewhere.
    let version = version.split(" (/").next().unwrap_or_default();
    // Adit's begins with its name, as `adit --version` prints it.
    match version.starts_with(name) {
        true => version.to_owned(),
        false => format!("{name} {version}"),
    }
}

/// The command that measures the same again, as far as the file tells.
fn command(results: &Results, rounds: usize) -> String {
    let names = |steps: &[Step]| -> Vec<String> { steps.iter().map(|step| step.name()).collect() };
    let steps = &results.settings.steps;
    let quick = *steps == names(&Step::QUICK) && rounds == 1;
    let mut command = "adit-lab compare".to_owned();
    if quick {
        command += " --quick";
    } else if *steps != names(&Step::DEFAULT) {
        _ = write!(command, " --only {}", steps.join(","));
    }
    if !quick && rounds != 5 {
        _ = write!(command, " --rounds {rounds}");
    }
    command
}

fn no_tunnel(results: &Results) -> Option<String> {
    let direct = MEASURES.iter().filter_map(|measure| {
        let median = results.values(measure.id, Direct.name())?.median;
        let (short, places, unit) = (measure.short, measure.places, measure.unit);
        Some(format!("{short} {median:.places$}{unit}"))
    });
    let direct: Vec<String> = direct.collect();
    (!direct.is_empty()).then(|| format!("Without a tunnel: {}", direct.join(", ")))
}

fn missing(results: &Results) -> Option<String> {
    let missing = MEASURES.iter().filter_map(|measure| {
        let without = |entry: &&Entry| results.values(measure.id, &entry.name).is_none();
        let without: Vec<&str> = (results.shown().filter(without))
            .map(|entry| entry.name.as_str())
            .collect();
        match without.len() {
            0 => None,
            n if n == results.shown().count() => Some(measure.short.to_owned()),
            _ => Some(format!("{} of {}", measure.short, without.join(", "))),
        }
    });
    let missing: Vec<String> = missing.collect();
    (!missing.is_empty()).then(|| format!("Not measured: {}", missing.join("; ")))
}

#[cfg(test)]
#[path = "chart_tests.rs"]
mod tests;
