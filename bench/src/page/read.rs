//! Reads a results file, whichever command wrote it.

use serde_json::{Map, Value};

use super::figures::{ALL, Drawing, Figure, Goal, Line, Published, Run, Scales, Section, Values};
use super::{fleet, gateway, scale};
use crate::summary;

/// The commands whose results are understood.
const COMMANDS: [&str; 10] = [
    "agree",
    "compare",
    "fleet",
    "gateway",
    "hostile",
    "idle",
    "scale",
    "reproduce",
    "soak",
    "upgrade",
];

impl Run {
    /// Reads a results file, or says why that is none.
    pub(super) fn read(file: &str, text: &str) -> Result<Self, String> {
        let json = summary::parse(text).map_err(|e| format!("this is not JSON: {e}"))?;
        let wanted = COMMANDS.join(", ");
        let command = json["command"].as_str().unwrap_or_default().to_owned();
        if !COMMANDS.contains(&command.as_str()) {
            return Err(format!(
                "this is no results file of {wanted} (its command is {command:?})"
            ));
        }
        let subjects = subjects(&json);
        let mut sections = sections(&json);
        for figure in sections.iter_mut().flat_map(|section| &mut section.figures) {
            figure.sort_by(&subjects);
        }
        let goals: Vec<Goal> = list(&json, "goals").filter_map(goal).collect();
        // A soak has nothing but goals, and so has what two runs agree in.
        if sections.is_empty() && goals.is_empty() {
            return Err("it has no values".to_owned());
        }
        Ok(Self {
            file: file.to_owned(),
            started: json["started"].as_u64(),
            stopped: json["stopped"].as_str().map(str::to_owned),
            machine: machine(&json),
            subjects,
            goals,
            notes: notes(&json),
            sections,
            command,
        })
    }
}

pub(super) fn list<'a>(json: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    json[name].as_array().into_iter().flatten()
}

pub(super) fn text(json: &Value) -> String {
    match json {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What is known of the machine, and how long the run was.
fn machine(json: &Value) -> Vec<(String, String)> {
    let known = json["machine"].as_object().into_iter().flatten();
    let named = known.map(|(name, value)| (name.replace('_', " "), text(value)));
    let counted = ["cpus", "seconds", "disturbances", "datagrams"].map(|name| {
        let number = json[name].as_f64()?;
        Some((name.to_owned(), format!("{number:.0}")))
    });
    named
        .chain(counted.into_iter().flatten())
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

fn subjects(json: &Value) -> Vec<(String, String)> {
    let there = list(json, "implementations");
    let mut all: Vec<(String, String)> = there
        .map(|of| (text(&of["name"]), text(&of["version"])))
        .collect();
    // A soak has one.
    if let Some(version) = json["version"].as_str() {
        all.push(("adit".to_owned(), version.to_owned()));
    }
    for subject in list(json, "sources").flat_map(|source| list(source, "subjects")) {
        let both = (text(&subject["name"]), text(&subject["what"]));
        if !all.contains(&both) {
            all.push(both);
        }
    }
    all
}

fn goal(json: &Value) -> Option<Goal> {
    Some(Goal {
        name: json["name"].as_str()?.to_owned(),
        value: json["value"].as_f64(),
        goal: text(&json["goal"]),
        met: json["met"].as_bool()?,
    })
}

fn notes(json: &Value) -> Vec<String> {
    let note = |of: &Value| {
        let who = ["implementation", "subject", "case", "attack"].map(|key| text(&of[key]));
        let who: Vec<String> = who.into_iter().filter(|who| !who.is_empty()).collect();
        format!(
            "{}, round {}: {}",
            who.join(" "),
            of["round"],
            text(&of["text"])
        )
    };
    let mut all: Vec<String> = list(json, "notes").map(note).collect();
    for source in list(json, "sources") {
        let left_out = list(source, "left_out");
        all.extend(
            left_out.map(|of| format!("left out: {}: {}", text(&of["name"]), text(&of["why"]))),
        );
        all.extend(list(source, "notes").map(note));
    }
    all
}

fn sections(json: &Value) -> Vec<Section> {
    let section = |title: String, measures: &Value, subjects| Section {
        figures: figures(measures, subjects),
        published: Vec::new(),
        title,
    };
    let mut all = Vec::new();
    for key in ["metrics", "measures"] {
        all.push(section(ALL.to_owned(), &json[key], "implementations"));
    }
    for (key, name) in [("cases", "case"), ("attacks", "attack"), ("parts", "part")] {
        for case in list(json, key) {
            all.push(section(
                text(&case[name]),
                &case["measures"],
                "implementations",
            ));
        }
    }
    for source in list(json, "sources") {
        let mut of = section(text(&source["source"]), &source["measures"], "subjects");
        of.published = list(source, "published")
            .map(|row| published(row, source))
            .collect();
        of.figures.extend(list(source, "flame_graphs").map(flame));
        all.push(of);
    }
    if json["memory"].is_array() {
        all.push(Section {
            title: "The engine over devices in memory".to_owned(),
            figures: scale::memory(json),
            published: Vec::new(),
        });
    }
    for (title, figures) in [
        ("By load, peers and interfaces", gateway::curves(json)),
        ("What the stages cost one thread", scale::stages(json)),
        ("Real tunnels, measured", scale::tunnels(json)),
        ("Routers, measured", scale::forwarded(json)),
        ("A gateway dies", fleet::silence(json)),
        ("Model of fleets, not measured", fleet::model(json)),
        ("Model, not measured", scale::model(json)),
    ] {
        all.push(Section {
            title: title.to_owned(),
            figures,
            published: Vec::new(),
        });
    }
    if let Some(section) = all.last_mut().filter(|section| !section.figures.is_empty()) {
        let points = list(&json["model"], "published");
        section.published = points.map(published_model).collect();
    }
    all.retain(|section| !section.figures.is_empty());
    all
}

/// A figure of a source beside what the model makes of it.
fn published_model(point: &Value) -> Published {
    Published {
        what: text(&point["what"]),
        value: point["published_gbps"].as_f64().unwrap_or(f64::NAN),
        unit: "Gb/s".to_owned(),
        measure: String::new(),
        is_kernel: false,
        here: (point["model_gbps"].as_f64()).map(|gbps| (gbps, "Gb/s".to_owned())),
        differs: "the model's, with costs that come from such figures".to_owned(),
    }
}

fn published(row: &Value, source: &Value) -> Published {
    let measure = list(source, "measures").find(|of| of["id"] == row["measure"]);
    let median = |name: &str| measure?["subjects"][text(&row[name])]["median"].as_f64();
    let subject = median("subject");
    let here = match &row["over"] {
        Value::Null => subject.map(|here| {
            (
                here,
                measure.map_or("", |of| of["unit"].as_str().unwrap_or_default()),
            )
        }),
        _ => subject
            .zip(median("over"))
            .map(|(subject, over)| (subject / over, "×")),
    };
    Published {
        what: text(&row["what"]),
        value: row["value"].as_f64().unwrap_or(f64::NAN),
        unit: text(&row["unit"]),
        measure: text(&row["measure"]),
        is_kernel: row["subject"] == "kernel" && row["over"].is_null(),
        here: here.map(|(here, unit)| (here, unit.to_owned())),
        differs: text(&row["differs"]),
    }
}

/// Where one end of a subject's tunnel spent its time.
fn flame(graph: &Value) -> Figure {
    let (subject, end) = (text(&graph["subject"]), text(&graph["end"]));
    Figure {
        id: String::new(),
        title: format!("where the time goes: {subject}, {end}"),
        unit: "ns of CPU time".to_owned(),
        drawing: Drawing::Flame(text(&graph["folded"])),
    }
}

/// Each measure as bars, but those of one curve, or of one distribution, together.
fn figures(measures: &Value, subjects: &str) -> Vec<Figure> {
    let mut all: Vec<Figure> = Vec::new();
    for measure in measures.as_array().into_iter().flatten() {
        let values = measure[subjects]
            .as_object()
            .map(values_of)
            .unwrap_or_default();
        if values.is_empty() {
            continue;
        }
        let named = ["title", "id", "name"].map(|key| text(&measure[key]));
        let title = named
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or_default();
        let unit = text(&measure["unit"]);
        let mut drawn = false;
        for curve in ["curve", "distribution"].map(|key| &measure[key]) {
            if let (Some(title), Some(at)) = (curve["title"].as_str(), curve["at"].as_f64()) {
                let (axis, values) = (text(&curve["axis"]), values.clone());
                add_points(&mut all, title, &axis, &unit, at, values);
                drawn = true;
            }
        }
        if !drawn {
            all.push(Figure {
                id: ["id", "name"].map(|key| text(&measure[key])).concat(),
                title,
                unit,
                drawing: Drawing::Bars(values),
            });
        }
    }
    all
}

pub(super) fn add_points(
    all: &mut Vec<Figure>,
    title: &str,
    axis: &str,
    unit: &str,
    at: f64,
    values: Vec<(String, Values)>,
) {
    let index = all
        .iter()
        .position(|figure| figure.title == title && figure.unit == unit);
    let index = index.unwrap_or_else(|| {
        all.push(Figure {
            id: String::new(),
            title: title.to_owned(),
            unit: unit.to_owned(),
            drawing: Drawing::Curves {
                axis: axis.to_owned(),
                lines: Vec::new(),
                scales: Scales::LogX,
            },
        });
        all.len() - 1
    });
    let Drawing::Curves { lines, .. } = &mut all[index].drawing else {
        return;
    };
    for (name, values) in values {
        let line = lines.iter().position(|line| line.name == name);
        let line = line.unwrap_or_else(|| {
            lines.push(Line {
                name,
                points: Vec::new(),
            });
            lines.len() - 1
        });
        lines[line].points.push((at, values));
        lines[line].points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
}

fn values_of(subjects: &Map<String, Value>) -> Vec<(String, Values)> {
    let named = subjects
        .iter()
        .map(|(name, of)| Some((name.clone(), values(of)?)));
    named.flatten().collect()
}

pub(super) fn values(of: &Value) -> Option<Values> {
    let values = Values {
        median: of["median"].as_f64()?,
        min: of["min"].as_f64()?,
        max: of["max"].as_f64()?,
        count: (of["count"]
            .as_u64()
            .and_then(|count| usize::try_from(count).ok()))
        .unwrap_or_else(|| list(of, "rounds").count()),
    };
    let all = [values.median, values.min, values.max];
    all.iter().all(|value| value.is_finite()).then_some(values)
}

/// One value that no round varied.
pub(super) fn single(value: f64) -> Values {
    Values {
        median: value,
        min: value,
        max: value,
        count: 1,
    }
}
