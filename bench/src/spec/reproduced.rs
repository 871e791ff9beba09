//! Tables of `reproduce`.

use serde_json::Value;

use super::Table;
use super::tables::{array, entry, files, fixed, number, title, verdict};

fn source<'a>(json: &'a Value, name: &str) -> Result<&'a Value, String> {
    entry(array(json, "sources")?, "source", name)
}

fn measure<'a>(source: &'a Value, id: &str) -> Result<&'a Value, String> {
    entry(array(source, "measures")?, "id", id)
}

/// The median of one subject; nothing where it was not measured.
fn cell(measure: &Value, subject: &str, places: usize) -> String {
    let median = measure["subjects"][subject]["median"].as_f64();
    median.map_or_else(String::new, |median| fixed(median, places))
}

fn text<'a>(json: &'a Value, name: &str) -> Result<&'a str, String> {
    let text = json[name].as_str();
    text.ok_or_else(|| format!("the file has no text {name}"))
}

/// The names of the subjects. What is emulated stands elsewhere.
fn subjects(source: &Value) -> Result<Vec<&str>, String> {
    let all = array(source, "subjects")?.iter();
    let names = all.map(|subject| text(subject, "name"));
    let mut names: Vec<&str> = names.collect::<Result<_, _>>()?;
    names.retain(|name| *name != "emulated");
    Ok(names)
}

/// Each published figure, what stands for it in the file, and how that differs.
pub(super) fn published(results: &[Value], table: &mut Table) -> Result<(), String> {
    table.begin([
        "source",
        "what",
        "published",
        "Zen 5",
        "what differs on Zen 5",
    ]);
    for json in results {
        for of in array(json, "sources")? {
            let mut name = text(of, "source")?;
            let mut above = "";
            for figure in array(of, "published")? {
                let (value, unit) = (number(figure, "value")?, text(figure, "unit")?);
                let differs = match text(figure, "differs")? {
                    same if same == above => "the same",
                    other => other,
                };
                above = text(figure, "differs")?;
                table.rows.push(vec![
                    std::mem::take(&mut name).to_owned(),
                    text(figure, "what")?.to_owned(),
                    with_unit(&value.to_string(), unit),
                    here(of, figure)?,
                    differs.to_owned(),
                ]);
            }
        }
    }
    Ok(())
}

fn with_unit(value: &str, unit: &str) -> String {
    format!("{value} {unit}").trim_end().to_owned()
}

/// The value of the same subject, or its ratio to another one; nothing where it was not measured.
fn here(source: &Value, figure: &Value) -> Result<String, String> {
    let measure = measure(source, text(figure, "measure")?)?;
    let of = |subject: &str| measure["subjects"][subject]["median"].as_f64();
    let Some(value) = of(text(figure, "subject")?) else {
        return Ok("not measured".to_owned());
    };
    let (value, unit) = match figure["over"].as_str() {
        None => (value, text(measure, "unit")?),
        Some(other) => (value / of(other).ok_or("a ratio has no other side")?, "×"),
    };
    let places = if value < 100.0 { 2 } else { 0 };
    Ok(with_unit(&fixed(value, places), unit))
}

/// A figure that was published of the kernel's WireGuard, and of another program beside it.
pub(super) struct KernelFigure {
    pub(super) gbps: f64,
    pub(super) over_fork: f64,
}

/// The kernel's WireGuard on a machine of Tailscale's second article, and over the fork there.
pub(super) fn kernel(json: &Value, machine: &str) -> Result<KernelFigure, String> {
    let figures = array(source(json, "tailscale-2023")?, "published")?;
    let of = |what: &str| {
        let figure = entry(figures, "what", &format!("{what}, {machine}"))?;
        number(figure, "value")
    };
    let gbps = of("kernel WireGuard")?;
    Ok(KernelFigure {
        gbps,
        over_fork: gbps / of("wireguard-go after")?,
    })
}

pub(super) fn ideas_of_2022(results: &[Value], table: &mut Table) -> Result<(), String> {
    ideas(results, "tailscale-2022", table)
}

pub(super) fn ideas_of_2023(results: &[Value], table: &mut Table) -> Result<(), String> {
    ideas(results, "tailscale-2023", table)
}

/// One stream by what Adit has of an article's ideas, and beside it other programs.
fn ideas(results: &[Value], article: &str, table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let source = source(json, article)?;
    table.begin([
        "one TCP stream, Gb/s",
        "MTU 1420",
        "with BBR",
        "MTU 8920",
        "with BBR",
        "CPU s/GB of both daemons, MTU 1420",
        "retransmits",
    ]);
    for subject in array(source, "subjects")? {
        let name = text(subject, "name")?;
        let label = match name {
            "direct" => "no tunnel".to_owned(),
            "kernel" | "wireguard-go" | "tailscale" => title(name),
            step => format!("`{step}`: {}", text(subject, "what")?),
        };
        let mut row = vec![label];
        for (id, places) in [
            ("tcp-1420", 2),
            ("tcp-1420-bbr", 2),
            ("tcp-8920", 2),
            ("tcp-8920-bbr", 2),
            ("tcp-1420.cpu", 2),
            ("tcp-1420.retransmits", 0),
        ] {
            row.push(cell(measure(source, id)?, name, places));
        }
        // Ways to sum a checksum are in the list of subjects, too, and have no stream.
        if row[1..].iter().any(|cell| !cell.is_empty()) {
            table.rows.push(row);
        }
    }
    Ok(())
}

/// What the Internet checksum costs, by size and way.
pub(super) fn checksum(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let source = source(json, "tailscale-2023")?;
    let points = array(source, "measures")?.iter();
    let points = points.filter(|of| of["curve"]["title"] == "Internet checksum");
    let points: Vec<&Value> = points.collect();
    let [first, ..] = points.as_slice() else {
        return Err("the file has no checksum".to_owned());
    };
    let ways = array(source, "subjects")?
        .iter()
        .map(|subject| text(subject, "name"))
        .filter(|name| {
            name.as_ref()
                .is_ok_and(|name| !first["subjects"][name].is_null())
        })
        .collect::<Result<Vec<_>, _>>()?;
    table.begin(["octets"].iter().chain(&ways).copied());
    for point in points {
        let octets = point["curve"]["at"].as_f64();
        let octets = octets.ok_or("a point of the checksum has no size")?;
        let mut row = vec![fixed(octets, 0)];
        row.extend(ways.iter().map(|way| cell(point, way, 1)));
        table.rows.push(row);
    }
    Ok(())
}

/// WireGuard beside TLS.
pub(super) fn tls(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let source = source(json, "userspace-vs-kernel")?;
    let subjects = subjects(source)?;
    table.begin(head("", &subjects));
    for (id, places) in [
        ("tcp-1", 2),
        ("tcp-1.cpu-machine", 2),
        ("tcp-8", 2),
        ("tcp-8.cpu-machine", 2),
        ("tcp-64", 2),
        ("tcp-64.cpu-machine", 2),
        ("http-1k-1000.p50", 2),
        ("http-1k-1000.p99", 1),
        ("http-1k.highest", 0),
        ("http-64k-1000.p50", 2),
        ("http-64k-1000.p99", 1),
        ("http-64k.highest", 0),
    ] {
        let measure = measure(source, id)?;
        let (title, unit) = (text(measure, "title")?, text(measure, "unit")?);
        let mut row = vec![format!("{title}, {unit}")];
        row.extend(subjects.iter().map(|name| cell(measure, name, places)));
        table.rows.push(row);
    }
    Ok(())
}

/// UDP by size, TCP and forwarding, IPsec beside WireGuard.
pub(super) fn ipsec(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let source = source(json, "pfsense")?;
    let subjects = subjects(source)?;
    table.begin(head("", &subjects));
    table.head.push("Adit, % of theory".to_owned());
    for one_way in array(source, "measures")? {
        let id = text(one_way, "id")?;
        let (row, of, places) = match id.split_once('-') {
            Some(("udp", size)) if size.parse::<u32>().is_ok() => {
                let both = format!("udp-both-{size}");
                (
                    format!("UDP, {size} octets, kpps one way, both"),
                    vec![id.to_owned(), both],
                    0,
                )
            }
            Some(("tcp" | "forwarded", _)) if !id.contains('.') => {
                let (title, unit) = (text(one_way, "title")?, text(one_way, "unit")?);
                (format!("{title}, {unit}"), vec![id.to_owned()], 2)
            }
            _ => continue,
        };
        let join = |name: &str, end: &str, places| -> Result<String, String> {
            let cells = of.iter().map(|id| {
                let of = measure(source, &format!("{id}{end}"));
                of.map(|of| cell(of, name, places))
            });
            let mut cells = cells.collect::<Result<Vec<_>, _>>()?;
            cells.retain(|cell| !cell.is_empty());
            Ok(cells.join(", "))
        };
        let mut row = vec![row];
        for name in &subjects {
            row.push(join(name, "", places)?);
        }
        row.push(match id {
            id if id.starts_with("tcp") => String::new(),
            _ => join("adit", ".percent", 0)?,
        });
        table.rows.push(row);
    }
    Ok(())
}

pub(super) fn tls_congestion(results: &[Value], table: &mut Table) -> Result<(), String> {
    congestion(results, "userspace-vs-kernel", table)
}

pub(super) fn ipsec_congestion(results: &[Value], table: &mut Table) -> Result<(), String> {
    congestion(results, "pfsense", table)
}

/// What was measured with cubic and under BBR, both in a cell. Of HTTP only the middle rate, and the
/// highest.
fn congestion(results: &[Value], name: &str, table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    let source = source(json, name)?;
    let subjects = subjects(source)?;
    table.begin(head("with cubic, under BBR", &subjects));
    for bbr in array(source, "measures")? {
        let id = text(bbr, "id")?;
        let cubic = id.replacen("-bbr", "", 1);
        let is_left_out = id.starts_with("emulated")
            || id.ends_with(".per-cpu")
            || id.contains(".p")
                && !["-1000-bbr.p50", "-1000-bbr.p99"]
                    .iter()
                    .any(|of| id.ends_with(of));
        if cubic == id || is_left_out {
            continue;
        }
        let both = [measure(source, &cubic)?, bbr];
        let title = text(bbr, "title")?.replacen(", bbr", "", 1);
        let mut row = vec![format!("{title}, {}", text(bbr, "unit")?)];
        let places = if id.ends_with(".highest") { 0 } else { 2 };
        for name in &subjects {
            let mut cells = both.map(|of| cell(of, name, places)).to_vec();
            cells.retain(|cell| !cell.is_empty());
            row.push(cells.join(", "));
        }
        table.rows.push(row);
    }
    Ok(())
}

/// A column for each subject.
fn head(first: &str, subjects: &[&str]) -> Vec<String> {
    let columns = subjects.iter().map(|name| column(name));
    [first.to_owned()].into_iter().chain(columns).collect()
}

/// What a column of a subject is called.
fn column(name: &str) -> String {
    match name {
        "direct" => "no tunnel".to_owned(),
        "ipsec" => "strongSwan's ESP".to_owned(),
        name => title(name),
    }
}

/// The goals of all files.
pub(super) fn goals(results: &[Value], table: &mut Table) -> Result<(), String> {
    table.begin(["ratio", "value", "goal"]);
    for json in results {
        for of in array(json, "sources")? {
            for goal in array(of, "goals")? {
                let value = goal["value"].as_f64();
                let value = value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
                table.rows.push(vec![
                    label(of, text(goal, "name")?)?,
                    value + verdict(goal),
                    text(goal, "goal")?.to_owned(),
                ]);
            }
        }
    }
    Ok(())
}

/// How far two runs agree, by source, and how far Adit's ratios do.
pub(super) fn two_runs(results: &[Value], table: &mut Table) -> Result<(), String> {
    let [json] = files(results)?;
    table.begin([
        "",
        "values",
        "agree",
        "would by chance",
        "half of the medians differ by at most",
        "nine in ten",
    ]);
    for row in array(json, "agreement")? {
        let percent = |part: Option<f64>, places: usize| {
            part.filter(|part| part.is_finite()).map_or_else(
                || "–".to_owned(),
                |part| format!("{:.places$} %", part * 100.0),
            )
        };
        let (values, agree) = (number(row, "values")?, number(row, "agree")?);
        table.rows.push(vec![
            text(row, "name")?.to_owned(),
            fixed(values, 0),
            percent(Some(agree / values), 0),
            percent(row["by_chance"].as_f64(), 0),
            percent(row["half"].as_f64(), 1),
            percent(row["most"].as_f64(), 1),
        ]);
    }
    Ok(())
}

/// Most goals are named "source: measure, ours / theirs", and the measure has a title.
fn label(source: &Value, name: &str) -> Result<String, String> {
    let parts = name.split_once(": ").and_then(|(_, rest)| {
        let (id, pair) = rest.split_once(", ")?;
        Some((id, pair.split_once(" / ")?))
    });
    let from = text(source, "source")?;
    let Some((id, (ours, theirs))) = parts else {
        return Ok(format!("{from}: {name}"));
    };
    let title = text(measure(source, id)?, "title")?;
    Ok(format!("{from}: {title}, {ours} over {theirs}"))
}

#[cfg(test)]
#[path = "reproduced_tests.rs"]
mod tests;
