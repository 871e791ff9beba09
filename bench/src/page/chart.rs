//! `adit-lab chart`: one picture of what `adit-lab compare`, `gateway` or `scale` wrote, for a document.
//! Its drawings are those of the page.
//!
//! Stages: read the file → choose its figures → small print → SVG.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::figures::{Drawing, Figure, Run};
use super::gateway::is_shown;
use super::picture::Picture;
use super::text::date;
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
    let (run, json) = read(text)?;
    let (name, picture) = match json["command"].as_str() {
        Some("gateway") => ("gateway.svg", of_gateway(run)?),
        Some("scale") => ("scale.svg", of_scale(run, &json)?),
        _ => return bars(text),
    };
    Ok((name, drawn(&picture)?))
}

fn drawn(picture: &Picture) -> Result<String, String> {
    let svg = picture.svg();
    svg.map_err(|why| format!("it cannot be drawn: {why}"))
}

/// The bars of a comparison or a gateway.
fn bars(text: &str) -> Result<(&'static str, String), String> {
    let (run, json) = read(text)?;
    let (title, otherwise) = match run.command.as_str() {
        "compare" => (
            "Adit beside other implementations of WireGuard",
            "`adit-lab compare --only tcp1,ping-load` measures what the chart shows",
        ),
        "gateway" => (
            GATEWAY,
            "the cases slow, four-tunnels and peers-64 have bars",
        ),
        other => return Err(format!("results of `adit-lab {other}` have no such bars")),
    };
    let print = format!(
        "{}; thin lines reach from the least to the greatest. Made by: adit-lab {}{}",
        rounds_of(&run),
        run.command,
        settings_of(&json["settings"])
    );
    let bars = super::gateway::bars(&json).into_iter();
    let print = vec![versions_of(&run), print];
    let picture = chosen(title, &run, print, bars, |_| true, otherwise)?;
    let columns = 1;
    Ok(("comparison.svg", drawn(&Picture { columns, ..picture })?))
}

const GATEWAY: &str = "A gateway on Adit beside other implementations of WireGuard";

/// Names and versions of the implementations.
fn versions_of(run: &Run) -> String {
    let subjects = run.subjects.iter().filter(|(name, _)| is_shown(name));
    let versions = subjects.map(|(name, version)| {
        // Of a binary that was given, the version ends in its path, which says nothing elsewhere.
        let version = version.split(" (/").next().unwrap_or_default();
        // Adit's begins with its name, as `adit --version` prints it.
        match version.starts_with(name) {
            true => version.to_owned(),
            false => format!("{name} {version}"),
        }
    });
    versions.collect::<Vec<_>>().join(", ")
}

/// Of a comparison: what was asked for, and how TCP was controlled.
fn settings_of(settings: &Value) -> String {
    let steps = settings["steps"].as_array().into_iter().flatten();
    let steps: Vec<_> = steps.filter_map(Value::as_str).collect();
    match settings["congestion_control"].as_str() {
        Some(control) => format!(" --only {}, TCP with {control}", steps.join(",")),
        None => String::new(),
    }
}

fn rounds_of(run: &Run) -> String {
    let figures = run.sections.iter().flat_map(|section| &section.figures);
    match figures.map(Figure::rounds).max() {
        Some(1) => "Values of one round".to_owned(),
        rounds => format!("Medians of {} rounds", rounds.unwrap_or(0)),
    }
}

/// The curves of a gateway.
fn of_gateway(mut run: Run) -> Result<Picture, String> {
    let print = format!(
        "{}. Made by: adit-lab gateway. A point that is not there was not measured, or cannot be.",
        rounds_of(&run)
    );
    let print = vec![versions_of(&run), print];
    let sections = std::mem::take(&mut run.sections).into_iter();
    chosen(
        GATEWAY,
        &run,
        print,
        sections.flat_map(|section| section.figures),
        |figure| matches!(figure.drawing, Drawing::Curves { .. }),
        "the cases overload, peers-active-… and interfaces have curves",
    )
}

/// Throughput, and the load of cores where the engine chooses how many threads help.
fn of_scale(mut run: Run, json: &Value) -> Result<Picture, String> {
    let print = vec![format!(
        "Load: share of the time in which a core or thread is busy, full colour is all of it. Measured: medians of {} rounds, both ends of the tunnels on this machine. Model: a simulation with the \
         costs of the engine's stages, measured here with the kernel's devices; those of the kernel's own WireGuard \
         and of wireguard-go come from published figures of other machines. Made by: adit-lab scale.",
        json["rounds"]
    )];
    let sections = std::mem::take(&mut run.sections).into_iter();
    let figures = sections.flat_map(|section| {
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
        &run,
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
fn read(text: &str) -> Result<(Run, Value), String> {
    let json = summary::parse(text).unwrap_or_default();
    let run = Run::read("", text)?;
    let known = if run.command == "compare" { 2 } else { 1 };
    match json["schema"].as_u64() {
        Some(schema) if schema == known => Ok((run, json)),
        Some(other) => Err(format!(
            "its schema is {other}, and this adit-lab reads schema {known}: measure again with this version"
        )),
        None => Err("this is no whole results file: it has no schema".to_owned()),
    }
}

/// Some of the figures of a file, two side by side.
fn chosen(
    title: &'static str,
    run: &Run,
    mut print: Vec<String>,
    figures: impl Iterator<Item = Figure>,
    wanted: impl Fn(&Figure) -> bool,
    otherwise: &str,
) -> Result<Picture, String> {
    let known = |name: &str| run.machine.iter().find(|(of, _)| of == name);
    let known = |name: &str| known(name).map_or("", |(_, value)| value.as_str());
    if let (cpu, kernel) = (known("cpu"), known("kernel"))
        && !cpu.is_empty()
    {
        let day = run
            .started
            .map_or_else(String::new, |at| format!("; {}", date(at)));
        let line = format!("{cpu}, {} cores, Linux {kernel}{day}", known("cores"));
        print.insert(0, line);
    }
    print.extend((run.stopped.iter()).map(|why| format!("The run is incomplete: {why}")));
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

#[cfg(test)]
#[path = "chart_tests.rs"]
mod tests;
