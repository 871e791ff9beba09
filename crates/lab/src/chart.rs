//! `adit-lab chart`: a picture of the JSON that `adit-lab compare`, `gateway` or `scale` wrote. The
//! curves of `gateway` are in `curves.rs`, those of `scale` in `scale_curves.rs`; this file has the bars
//! of `compare`, and what all are made of.
//!
//! Stages: read the file → panels (one a metric, a bar for each implementation) → small print →
//! SVG. The same file always gives the same bytes.

#[path = "curves.rs"]
mod curves;
#[path = "scale_curves.rs"]
mod scale_curves;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use crate::implementation::Implementation::{Adit, Ceiling, Direct};
use crate::metric::Step;
use crate::output;

/// Draws the results of `adit-lab compare`, `gateway` or `scale` with `--json=FILE` as SVG.
///
/// Of a comparison: horizontal bars of one TCP stream (Gb/s), of the daemons' CPU seconds for each GB
/// of it, and of the ping beside a stream, in DIR/comparison.svg. Bars are medians; a thin line
/// reaches from the least to the greatest round.
///
/// Of a gateway: curves of goodput by offered rate, of packets and CPU time by active peers, and of
/// start and memory by interfaces, with a line for each implementation, in DIR/gateway.svg.
///
/// Of `scale`: throughput by flows and tunnels as measured, and by cores and tunnels as modelled, each
/// beside the load of every core under the policy `auto`, in DIR/scale.svg.
///
/// Adit stands out. What the file does not have is left out. The small print has the machine, the
/// date, the versions and the command. The picture is one file without scripts or fonts of its own.
/// It has its own background, so that it can be read on any page, and follows the reader's light or
/// dark colour scheme.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChartArgs {
    /// A file that `adit-lab compare --json=FILE` (schema 2), or `gateway` or `scale` (schema 1),
    /// wrote.
    #[arg(value_name = "RESULTS.json")]
    results: PathBuf,
    /// Where the chart goes; the directory is made if it is missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// The name of the chart in the directory that was asked for.
const FILE: &str = "comparison.svg";

/// Draws the chart and prints where it is.
pub(crate) fn run(args: &ChartArgs) -> Result<(), Box<dyn Error>> {
    let at = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let text = fs::read_to_string(&args.results).map_err(|e| at(&args.results, &e))?;
    let (name, svg) = picture(&text).map_err(|why| at(&args.results, &why))?;
    let file = args.out.join(name);
    fs::create_dir_all(&args.out).map_err(|e| at(&args.out, &e))?;
    fs::write(&file, svg).map_err(|e| at(&file, &e))?;
    Ok(output::print(&format!("{}\n", file.display()))?)
}

/// The name and the text of the picture that a results file is made for.
fn picture(text: &str) -> Result<(&'static str, String), String> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(json) if json["command"] == "gateway" => Ok((curves::FILE, curves::draw(json)?)),
        Ok(json) if json["command"] == "scale" => {
            Ok((scale_curves::FILE, scale_curves::draw(json)?))
        }
        _ => Ok((FILE, draw(text)?)),
    }
}

/// The part of the document of `document.rs` that the chart shows.
#[derive(Deserialize)]
struct Results {
    started: u64,
    stopped: Option<String>,
    machine: Machine,
    settings: Settings,
    implementations: Vec<Entry>,
    metrics: Vec<Metric>,
}

#[derive(Deserialize)]
struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

#[derive(Deserialize)]
struct Settings {
    congestion_control: String,
    steps: Vec<String>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    version: String,
}

#[derive(Deserialize)]
struct Metric {
    id: String,
    implementations: BTreeMap<String, Values>,
}

#[derive(Clone, Copy, Deserialize)]
struct Values {
    median: f64,
    min: f64,
    max: f64,
    /// How many rounds.
    count: usize,
}

const SCHEMA: u64 = 2;

/// The results in `text`, or why it has none.
fn parse(text: &str) -> Result<Results, String> {
    const WANTED: &str = "a file that `adit-lab compare --json=FILE` or `adit-lab gateway --json=FILE` wrote is wanted";
    if text.trim().is_empty() {
        return Err(format!("the file is empty; {WANTED}"));
    }
    let json: serde_json::Value =
        serde_json::from_str(text).map_err(|e| format!("this is not JSON ({e}); {WANTED}"))?;
    match json["command"].as_str() {
        Some("compare") => {}
        Some(other) => {
            return Err(format!("these are results of `adit-lab {other}`; {WANTED}"));
        }
        None => {
            return Err(format!(
                "this is no results file: it has no `command`; {WANTED}"
            ));
        }
    }
    match json["schema"].as_u64() {
        Some(SCHEMA) => {}
        Some(other) => {
            return Err(format!(
                "its schema is {other}, and this adit-lab reads schema {SCHEMA}: compare again with this version"
            ));
        }
        None => {
            return Err(format!(
                "this is no results file: it has no `schema`; {WANTED}"
            ));
        }
    }
    serde_json::from_value(json)
        .map_err(|e| format!("this is no whole results file: {e}; {WANTED}"))
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
    fn values(&self, id: &str, name: &str) -> Option<Values> {
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

/// The chart of the results file with this text, or why there is none.
fn draw(text: &str) -> Result<String, String> {
    let results = parse(text)?;
    let panels: Vec<Panel<'_>> = MEASURES
        .iter()
        .map(|measure| Panel::new(measure, &results))
        .filter(|panel| !panel.bars.is_empty())
        .collect();
    if panels.is_empty() {
        return Err(
            "nothing in it can be drawn; `adit-lab compare --only tcp1,ping-load` measures what the chart shows"
                .to_owned(),
        );
    }
    let print = small_print(&results);
    Ok(svg(&panels, &print))
}

/// The bars of one metric, the best first.
struct Panel<'a> {
    measure: &'static Measure,
    bars: Vec<(&'a str, Values)>,
}

impl<'a> Panel<'a> {
    fn new(measure: &'static Measure, results: &'a Results) -> Self {
        let mut bars: Vec<(&str, Values)> = results
            .shown()
            .filter_map(|entry| {
                Some((
                    entry.name.as_str(),
                    results.values(measure.id, &entry.name)?,
                ))
            })
            .collect();
        bars.sort_by(|(_, a), (_, b)| match measure.better {
            "more is better" => b.median.total_cmp(&a.median),
            _ => a.median.total_cmp(&b.median),
        });
        Self { measure, bars }
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

/// Name and version of an implementation.
fn version(entry: &Entry) -> String {
    // Of a binary that was given, the version ends in its path, which says nothing elsewhere.
    let version = entry.version.split(" (/").next().unwrap_or_default();
    // Adit's begins with its name, as `adit --version` prints it.
    match version.starts_with(&entry.name) {
        true => version.to_owned(),
        false => format!("{} {version}", entry.name),
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

/// The day in UTC of this many seconds since 1970 (Howard Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms").
pub(crate) fn date(seconds: u64) -> String {
    // Days since 1 March 0000; years begin in March, so that a leap day ends one.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Pixels, of a chart that is as wide as a README.
const WIDTH: usize = 800;
const MARGIN: usize = 24;
/// Names end here, and bars begin a little further.
const NAMES: usize = 150;
const BARS: usize = 160;
/// The longest bar, or the end of its thin line. Its value stands behind it.
const LONGEST: f64 = 520.0;
const ROW: usize = 26;
const BAR: usize = 16;
/// Height of a panel's title, and of the free space under its last bar.
const TITLE: usize = 34;
const GAP: usize = 18;
const PRINT_ROW: usize = 16;
/// Characters of small print in a line, and of a name beside its bar.
const PRINT_CHARS: usize = 120;
const NAME_CHARS: usize = 18;

const STYLE: &str = "\
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328; }
.page { fill: #ffffff; stroke: #d1d9e0; }
.title { font-weight: 600; font-size: 14px; }
.better, .print { fill: #59636e; }
.print { font-size: 11px; }
.bar { fill: #afb8c1; }
.range { stroke: #59636e; }
.adit .bar { fill: #1f6feb; }
.adit text { font-weight: 700; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.page { fill: #0d1117; stroke: #3d444d; }
.better, .print { fill: #9198a1; }
.bar { fill: #57606a; }
.range { stroke: #9198a1; }
.adit .bar { fill: #388bfd; }
}";

fn svg(panels: &[Panel<'_>], print: &[String]) -> String {
    let lines: Vec<String> = print.iter().flat_map(|text| wrap(text)).collect();
    let mut body = String::new();
    let mut y = MARGIN / 2;
    for panel in panels {
        y = draw_panel(&mut body, panel, y);
    }
    y += PRINT_ROW;
    for line in &lines {
        let line = escape(line);
        put(
            &mut body,
            &format!("<text class=\"print\" x=\"{MARGIN}\" y=\"{y}\">{line}</text>"),
        );
        y += PRINT_ROW;
    }
    let title = "Adit beside other implementations of WireGuard";
    page(title, &describe(panels), "", &body, y + MARGIN / 2)
}

/// The file with this body: `style` is added to that of all pictures.
fn page(title: &str, described: &str, style: &str, body: &str, height: usize) -> String {
    let described = escape(described);
    let style = match style {
        "" => STYLE.to_owned(),
        more => format!("{STYLE}\n{more}"),
    };
    let (right, bottom) = (WIDTH - 1, height - 1);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">{title}</title>\n\
         <desc id=\"desc\">{described}</desc>\n\
         <style>\n{style}\n</style>\n\
         <rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{right}\" height=\"{bottom}\" rx=\"6\"/>\n\
         {body}</svg>\n"
    )
}

/// Draws a panel whose top is at `y`; returns where the next one begins.
fn draw_panel(body: &mut String, panel: &Panel<'_>, y: usize) -> usize {
    let Measure {
        title,
        better,
        places,
        ..
    } = *panel.measure;
    let baseline = y + 22;
    put(
        body,
        &format!(
            "<text x=\"{MARGIN}\" y=\"{baseline}\"><tspan class=\"title\">{title}</tspan> \
             <tspan class=\"better\">({better})</tspan></text>"
        ),
    );
    let most = panel.bars.iter().map(|(_, values)| values.max);
    let most = most.fold(0.0, f64::max);
    let length = |value: f64| match most > 0.0 {
        true => (value / most).clamp(0.0, 1.0) * LONGEST,
        false => 0.0,
    };
    let mut top = y + TITLE;
    for &(name, values) in &panel.bars {
        let class = match name == Adit.name() {
            true => " class=\"adit\"",
            false => "",
        };
        let (middle, baseline) = (top + BAR / 2, top + BAR - 3);
        let bar = length(values.median);
        let end = as_pixels(BARS) + length(values.max).max(bar) + 8.0;
        let label = escape(&cut(name, NAME_CHARS));
        let value = values.median;
        put(body, &format!("<g{class}>"));
        put(
            body,
            &format!("<text x=\"{NAMES}\" y=\"{baseline}\" text-anchor=\"end\">{label}</text>"),
        );
        put(
            body,
            &format!(
                "<rect class=\"bar\" x=\"{BARS}\" y=\"{top}\" width=\"{bar:.1}\" height=\"{BAR}\" rx=\"2\"/>"
            ),
        );
        if values.count > 1 {
            let left = as_pixels(BARS) + length(values.min);
            let right = as_pixels(BARS) + length(values.max);
            put(
                body,
                &format!(
                    "<line class=\"range\" x1=\"{left:.1}\" y1=\"{middle}\" x2=\"{right:.1}\" y2=\"{middle}\"/>"
                ),
            );
        }
        put(
            body,
            &format!("<text x=\"{end:.1}\" y=\"{baseline}\">{value:.places$}</text>"),
        );
        put(body, "</g>");
        top += ROW;
    }
    top + GAP
}

/// The bars in words, for readers who do not see them.
fn describe(panels: &[Panel<'_>]) -> String {
    let panels = panels.iter().map(|panel| {
        let places = panel.measure.places;
        let bars = panel.bars.iter();
        let bars = bars.map(|(name, values)| format!("{name} {:.places$}", values.median));
        let bars: Vec<String> = bars.collect();
        format!("{}: {}.", panel.measure.title, bars.join(", "))
    });
    panels.collect::<Vec<_>>().join(" ")
}

fn put(body: &mut String, line: &str) {
    body.push_str(line);
    body.push('\n');
}

fn as_pixels(n: usize) -> f64 {
    adit_testbed::stats::to_f64(n)
}

/// Lines of at most [`PRINT_CHARS`] characters, which break at spaces. SVG breaks none itself.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let word = cut(word, PRINT_CHARS);
        let last = lines.last_mut().filter(|line| {
            line.is_empty() || line.chars().count() + 1 + word.chars().count() <= PRINT_CHARS
        });
        match last {
            Some(line) if line.is_empty() => *line = word,
            Some(line) => {
                line.push(' ');
                line.push_str(&word);
            }
            None => lines.push(word),
        }
    }
    lines
}

/// At most `most` characters; the last is an ellipsis if there are more.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(most - 1).collect();
    kept.push('…');
    kept
}

/// `text` as XML has it. A character that XML forbids even when it is escaped becomes U+FFFD.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
#[path = "chart_tests.rs"]
mod tests;
