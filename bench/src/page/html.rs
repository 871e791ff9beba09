//! The page: its text, its style sheet, the tables behind the drawings.

use std::error::Error;
use std::fmt::Write as _;

use super::figures::{Drawing, Figure, Goal, Published, Run, Section, Values};
use super::plot::{self, number, place};
use super::text::{date, escape};

/// Everything in one file: nothing is loaded, and no script runs.
pub(super) fn page(runs: &[Run]) -> Result<String, Box<dyn Error>> {
    let mut body = String::new();
    for run in runs {
        body += &one_run(run)?;
    }
    let style = style();
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>Adit: results</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n<h1>Adit: results</h1>\n\
         <p>Bars and points are medians; thin lines reach from the least to the greatest round. The \
         values of every round stand below each figure.</p>\n{body}</body>\n</html>\n"
    ))
}

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #222222; --paper: #ffffff; --soft: #666666; \
--line: #cccccc; --met: #0a6b2d; --missed: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --paper: #16181b; --soft: #a8a8a8; \
--line: #44484d; --met: #5fd08a; --missed: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 1rem; background: var(--paper); \
color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
.figures { display: grid; gap: 1.5rem; margin-top: 1rem; \
grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; max-width: 36rem; }
.flame { grid-column: 1 / -1; }
.flame svg { width: 1200px; max-width: none; }
.flame text { font: 12px sans-serif; fill: #000000; }
pre { font-size: 0.75rem; max-height: 30rem; }
figcaption { font-weight: 600; }
.wide { overflow: auto; }
table { border-collapse: collapse; font-size: 0.875rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.2rem 0.6rem 0.2rem 0; text-align: left; \
vertical-align: top; overflow-wrap: normal; }
td:last-child { min-width: 6rem; }
summary { cursor: pointer; color: var(--soft); }
.met { color: var(--met); } .missed { color: var(--missed); font-weight: 600; }
.soft { color: var(--soft); }
";

/// The rules, and the dark counterpart of each colour of the drawings.
fn style() -> String {
    let dark = plot::dark();
    format!("{STYLE}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}

fn one_run(run: &Run) -> Result<String, Box<dyn Error>> {
    let (file, command) = (escape(&run.file), escape(&run.command));
    let mut text = format!("<section>\n<h2>adit-lab {command}: {file}</h2>\n");
    if let Some(started) = run.started {
        let _ = writeln!(text, "<p class=\"soft\">{}</p>", date(started));
    }
    if let Some(why) = &run.stopped {
        let _ = writeln!(
            text,
            "<p class=\"missed\">This run is incomplete: {}</p>",
            escape(why)
        );
    }
    text += &pairs("The machine", &run.machine);
    text += &pairs("What is compared", &run.subjects);
    text += &goals(&run.goals);
    for section in &run.sections {
        text += &one_section(section)?;
    }
    text += &notes(&run.notes);
    Ok(text + "</section>\n")
}

fn pairs(title: &str, pairs: &[(String, String)]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let rows = pairs
        .iter()
        .map(|(name, value)| vec![escape(name), escape(value)]);
    format!(
        "<details>\n<summary>{title}</summary>\n{}</details>\n",
        table(&["", ""], rows)
    )
}

/// Cells are HTML already.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = "<div class=\"wide\"><table>\n".to_owned();
    if head.iter().any(|cell| !cell.is_empty()) {
        let cells: String = head.iter().map(|cell| format!("<th>{cell}</th>")).collect();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</table></div>\n"
}

fn goals(goals: &[Goal]) -> String {
    if goals.is_empty() {
        return String::new();
    }
    let met = goals.iter().filter(|goal| goal.met).count();
    let rows = goals.iter().map(|goal| {
        let value = goal.value.map_or_else(|| "not measured".to_owned(), number);
        let verdict = match goal.met {
            true => "<span class=\"met\">met</span>",
            false => "<span class=\"missed\">missed</span>",
        };
        vec![
            escape(&goal.name),
            value,
            escape(&goal.goal),
            verdict.to_owned(),
        ]
    });
    let head = ["goal", "value", "wanted", ""];
    let (table, all) = (table(&head, rows), goals.len());
    format!("<details open>\n<summary>Goals: {met} of {all} met</summary>\n{table}</details>\n")
}

fn notes(notes: &[String]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let items: String = notes
        .iter()
        .map(|note| format!("<li>{}</li>\n", escape(note)))
        .collect();
    format!("<h3>What went wrong or was left out</h3>\n<ul>\n{items}</ul>\n")
}

fn one_section(section: &Section) -> Result<String, Box<dyn Error>> {
    let mut text = format!("<h3>{}</h3>\n", escape(&section.title));
    text += &published(&section.published);
    text += "<div class=\"figures\">\n";
    for figure in &section.figures {
        text += &one_figure(figure)?;
    }
    Ok(text + "</div>\n")
}

fn published(rows: &[Published]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let rows = rows.iter().map(|row| {
        let here = row.here.map_or_else(|| "not measured".to_owned(), number);
        vec![
            escape(&row.what),
            escape(&row.value),
            here,
            escape(&row.differs),
        ]
    });
    table(&["", "published", "here", "what differs"], rows)
}

fn one_figure(figure: &Figure) -> Result<String, Box<dyn Error>> {
    let unit = match figure.unit.as_str() {
        "" => String::new(),
        unit => format!(", {unit}"),
    };
    let caption = escape(&format!("{}{unit}", figure.title));
    let (svg, _) = plot::svg(figure, plot::WIDTH)?;
    // Its size in pixels becomes the shape of an element that is as wide as there is room.
    let svg = svg.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{caption}\" "),
        1,
    );
    let raw = raw(&figure.drawing);
    let class = match &figure.drawing {
        Drawing::Flame(_) => " class=\"flame\"",
        _ => "",
    };
    Ok(format!(
        "<figure{class}>\n<figcaption>{caption}</figcaption>\n<div class=\"wide\">{svg}</div>\n<details>\n\
         <summary>values</summary>\n{raw}</details>\n</figure>\n"
    ))
}

/// Lines that stay lines.
fn lines(text: &str) -> String {
    text.lines().map(|line| escape(line) + "\n").collect()
}

/// The values behind a drawing. A summary has no rounds.
fn raw(drawing: &Drawing) -> String {
    let has_rounds = match drawing {
        Drawing::Bars(bars) => bars.iter().any(|(_, values)| !values.rounds.is_empty()),
        Drawing::Curves { lines, .. } => {
            let mut points = lines.iter().flat_map(|line| &line.points);
            points.any(|(_, values)| !values.rounds.is_empty())
        }
        Drawing::Heat(_) | Drawing::Flame(_) => false,
    };
    let last: &[&str] = if has_rounds { &["rounds"] } else { &[] };
    let head = [&["median", "least", "greatest"][..], last].concat();
    let row = |first: Vec<String>, values: &Values| {
        let rounds: Vec<String> = values.rounds.iter().map(f64::to_string).collect();
        let numbers = [values.median, values.min, values.max].map(number);
        let last = has_rounds.then(|| rounds.join(" "));
        first
            .into_iter()
            .chain(numbers)
            .chain(last)
            .collect::<Vec<_>>()
    };
    match drawing {
        Drawing::Bars(bars) => {
            let rows = bars
                .iter()
                .map(|(name, values)| row(vec![escape(name)], values));
            table(&[&[""][..], &head].concat(), rows)
        }
        Drawing::Curves { axis, lines } => {
            let rows = lines.iter().flat_map(|line| {
                let points = line.points.iter();
                points.map(|(at, values)| row(vec![escape(&line.name), place(*at)], values))
            });
            let axis = escape(axis);
            table(&[&["", axis.as_str()][..], &head].concat(), rows)
        }
        Drawing::Heat(heat) => {
            let places: Vec<String> = heat.places.iter().map(|at| place(*at)).collect();
            let mut head = vec![escape(&heat.axis)];
            head.extend(places);
            let head: Vec<&str> = head.iter().map(String::as_str).collect();
            let rows = heat.rows.iter().map(|(name, shares)| {
                let shares = shares.iter();
                let shares = shares.map(|share| share.map_or_else(String::new, number));
                [escape(name)].into_iter().chain(shares).collect()
            });
            table(&head, rows)
        }
        Drawing::Flame(folded) => {
            format!("<pre class=\"wide\">{}</pre>\n", lines(folded))
        }
    }
}
