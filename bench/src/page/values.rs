//! The values behind the drawings, as tables: of measures, curves and shares, of goals and of what was
//! published.

use std::error::Error;
use std::fmt::Write as _;

use super::figures::{Drawing, Figure, Goal, Line, Published, Values};
use super::html::svg;
use super::names::{self, real};
use super::plot::{self, number, place};
use super::text::escape;

/// A drawing, with its values folded below.
pub(super) fn figure(figure: &Figure) -> Result<String, Box<dyn Error>> {
    let values = raw(&figure.drawing);
    let (class, body) = match &figure.drawing {
        Drawing::Heat(_) => ("", values),
        drawing => {
            let is_flame = matches!(drawing, Drawing::Flame(_));
            let class = if is_flame { " class=\"flame\"" } else { "" };
            let svg = svg(figure)?;
            let values = format!("{svg}<details>\n<summary>values</summary>\n{values}</details>\n");
            (class, values)
        }
    };
    let caption = escape(&figure.caption());
    Ok(format!(
        "<figure{class}>\n<figcaption>{caption}</figcaption>\n{body}</figure>\n"
    ))
}

pub(super) fn pairs(pairs: &[(String, String)]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let rows = pairs
        .iter()
        .map(|(name, value)| vec![escape(real(name)), escape(value)]);
    table(&[], rows)
}

/// Cells are HTML already.
fn table(head: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = "<div class=\"wide\"><table>\n".to_owned();
    if !head.is_empty() {
        let cells: String = head.iter().map(|cell| format!("<th>{cell}</th>")).collect();
        let _ = writeln!(text, "<thead><tr>{cells}</tr></thead>");
    }
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</table></div>\n"
}

pub(super) fn goals_of(goals: &[&Goal]) -> String {
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
    table(&["goal", "value", "wanted", ""].map(str::to_owned), rows)
}

/// A row for each measure, a column for each subject.
pub(super) fn measures(figures: &[&Figure]) -> String {
    if figures.is_empty() {
        return String::new();
    }
    let rows = figures.iter().filter_map(|figure| match &figure.drawing {
        Drawing::Bars(bars) => {
            let class = if figure.is_part() { "sub" } else { "" };
            let title = escape(&figure.caption());
            let values = bars.iter().map(|(name, values)| (name.as_str(), values));
            Some((
                format!("<div class=\"{class}\">{title}</div>"),
                values.collect(),
            ))
        }
        _ => None,
    });
    by_subject("", rows.collect())
}

/// A table of which each row has values of subjects.
fn by_subject(first: &str, rows: Vec<(String, Vec<(&str, &Values)>)>) -> String {
    let mut subjects: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flat_map(|(_, values)| values) {
        if !subjects.contains(name) {
            subjects.push(name);
        }
    }
    let in_file = subjects.clone();
    subjects.sort_by_key(|name| {
        let in_file = in_file.iter().position(|of| of == name);
        names::place(name, in_file.unwrap_or(0))
    });
    let head = [first]
        .into_iter()
        .chain(subjects.iter().map(|name| real(name)));
    let head: Vec<String> = head.map(escape).collect();
    let rows = rows.into_iter().map(|(title, values)| {
        let of = |name: &&str| {
            let value = values.iter().find(|(of, _)| of == name);
            value.map_or_else(String::new, |(_, values)| cell(values))
        };
        [title].into_iter().chain(subjects.iter().map(of)).collect()
    });
    table(&head, rows)
}

/// The median, and below it the least and the greatest round.
fn cell(values: &Values) -> String {
    let [median, min, max] = [values.median, values.min, values.max].map(number);
    match min == max {
        true => median,
        false => format!("{median}<small>{min}–{max}</small>"),
    }
}

pub(super) fn published(rows: &[Published]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let rows = rows.iter().map(|row| {
        let with_unit = |value: f64, unit: &str| format!("{} {}", number(value), escape(unit));
        let here = row.here.as_ref().map_or_else(
            || "not measured".to_owned(),
            |(here, unit)| with_unit(*here, unit),
        );
        vec![
            escape(&row.what),
            with_unit(row.value, &row.unit),
            here,
            escape(&row.differs),
        ]
    });
    let head = ["", "published", "here", "what differs"];
    table(&head.map(str::to_owned), rows)
}

/// The values behind a drawing.
fn raw(drawing: &Drawing) -> String {
    match drawing {
        Drawing::Bars(_) => String::new(),
        Drawing::Curves { axis, lines, .. } => {
            let at = plot::places(lines).into_iter().map(|at| {
                let point = |line: &'_ Line| line.points.iter().position(|(of, _)| *of == at);
                let values = lines.iter().filter_map(|line| {
                    let point = point(line)?;
                    Some((line.name.as_str(), &line.points[point].1))
                });
                (place(at), values.collect())
            });
            by_subject(axis, at.collect())
        }
        Drawing::Heat(heat) => {
            let places = heat.places.iter().map(|at| place(*at));
            let head: String = [escape(&heat.axis)]
                .into_iter()
                .chain(places)
                .map(|cell| format!("<th>{cell}</th>"))
                .collect();
            let rows: String = heat
                .rows
                .iter()
                .map(|(name, shares)| {
                    let cells: String = shares
                        .iter()
                        .map(|share| match share {
                            Some(share) => {
                                let busy = (share * 100.0).round();
                                format!("<td style=\"--busy:{busy}\">{busy}</td>")
                            }
                            None => "<td></td>".to_owned(),
                        })
                        .collect();
                    format!("<tr><th>{}</th>{cells}</tr>\n", escape(name))
                })
                .collect();
            format!(
                "<div class=\"wide\"><table class=\"heat\">\n<thead><tr>{head}</tr></thead>\n{rows}</table></div>\n"
            )
        }
        Drawing::Flame(folded) => {
            let lines: String = folded.lines().map(|line| escape(line) + "\n").collect();
            format!("<pre class=\"wide\">{lines}</pre>\n")
        }
    }
}
