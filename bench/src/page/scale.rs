//! The figures of `adit-lab scale`: the engine in memory, the stages, real tunnels, the model, and how
//! busy cores and threads were.

use serde_json::Value;

use super::figures::{Drawing, Figure, Heat};
use super::read::{add_points, list, single, text, values};

/// The engine in memory: a drawing for each load and quantity, a bar for each policy.
pub(super) fn memory(json: &Value) -> Vec<Figure> {
    let mut all: Vec<Figure> = Vec::new();
    for (key, unit) in [("gbps", "Gb/s"), ("cpu_s_per_gb", "CPU s/GB")] {
        for row in list(json, "memory") {
            let Some(values) = values(&row[key]) else {
                continue;
            };
            let title = format!("packets {}", text(&row["load"]));
            let bar = (text(&row["policy"]), values);
            let same = |figure: &&mut Figure| figure.title == title && figure.unit == unit;
            match all.iter_mut().find(same).map(|figure| &mut figure.drawing) {
                Some(Drawing::Bars(bars)) => bars.push(bar),
                _ => all.push(Figure {
                    id: String::new(),
                    title,
                    unit: unit.to_owned(),
                    drawing: Drawing::Bars(vec![bar]),
                }),
            }
        }
    }
    all
}

/// UDP that two routers forward through tunnels: a bar for each implementation.
pub(super) fn forwarded(json: &Value) -> Vec<Figure> {
    let mut all: Vec<Figure> = Vec::new();
    for row in list(json, "forwarded") {
        let Some(values) = values(&row["gbps"]) else {
            continue;
        };
        let bar = (text(&row["implementation"]), values);
        let id = format!("forwarded-{}", row["tunnels"]);
        match all
            .iter_mut()
            .find(|figure| figure.id == id)
            .map(|figure| &mut figure.drawing)
        {
            Some(Drawing::Bars(bars)) => bars.push(bar),
            _ => all.push(Figure {
                id,
                title: format!("UDP forwarded both ways, tunnels: {}", row["tunnels"]),
                unit: "Gb/s".to_owned(),
                drawing: Drawing::Bars(vec![bar]),
            }),
        }
    }
    all
}

/// What the stages cost one thread: a bar for each stage.
pub(super) fn stages(json: &Value) -> Vec<Figure> {
    let figure = |row: &Value| {
        let bar = |(name, key): (&str, &str)| Some((name.to_owned(), single(row[key].as_f64()?)));
        let stages = [
            ("take", "take_ns"),
            ("work", "work_ns"),
            ("put", "put_ns"),
            ("polls", "poll_ns"),
        ];
        Figure {
            id: String::new(),
            title: format!(
                "packets {}, devices: {}",
                text(&row["load"]),
                text(&row["devices"])
            ),
            unit: "CPU ns a packet".to_owned(),
            drawing: Drawing::Bars(stages.into_iter().filter_map(bar).collect()),
        }
    };
    list(json, "stages").map(figure).collect()
}

/// Real tunnels: curves over flows in one tunnel, and over tunnels that share flows.
pub(super) fn tunnels(json: &Value) -> Vec<Figure> {
    let mut all = Vec::new();
    let shared = list(json, "tunnels").find(|row| row["tunnels"].as_u64() > Some(1));
    let shared = shared.map(|row| row["flows"].clone());
    for (key, what, unit) in [
        ("gbps", "throughput", "Gb/s"),
        ("sender_cpu_s_per_gb", "CPU time of the sender", "s/GB"),
        ("receiver_cpu_s_per_gb", "CPU time of the receiver", "s/GB"),
    ] {
        for row in list(json, "tunnels") {
            let Some(values) = values(&row[key]) else {
                continue;
            };
            let mut add = |title: &str, axis: &str| {
                let at = row[axis].as_f64().unwrap_or(f64::NAN);
                let values = vec![(text(&row["policy"]), values.clone())];
                add_points(
                    &mut all,
                    &format!("{title}: {what}"),
                    axis,
                    unit,
                    at,
                    values,
                );
            };
            if row["tunnels"].as_u64() == Some(1) {
                add("one tunnel", "flows");
            }
            if Some(&row["flows"]) == shared.as_ref() {
                add(&format!("{} flows", row["flows"]), "tunnels");
            }
        }
    }
    let flows = shared
        .as_ref()
        .map_or(0, |flows| flows.as_u64().unwrap_or(0));
    let several = format!("{flows} flows");
    for (title, axis) in [("one tunnel", "flows"), (&several, "tunnels")] {
        let rows = list(json, "tunnels").filter(|row| match axis {
            "flows" => row["tunnels"].as_u64() == Some(1),
            _ => Some(&row["flows"]) == shared.as_ref(),
        });
        all.extend(loads(&rows.collect::<Vec<_>>(), title, axis));
    }
    all
}

/// How busy cores and threads were: a drawing for each policy.
fn loads(rows: &[&Value], title: &str, axis: &str) -> Vec<Figure> {
    let mut policies: Vec<String> = Vec::new();
    for row in rows {
        let policy = text(&row["policy"]);
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let figure = |policy: String| {
        let rows = rows.iter().filter(|row| row["policy"] == *policy);
        let mut heat = Heat::new(axis);
        for row in rows {
            let at = row[axis].as_f64()?;
            for (number, core) in list(row, "core_load").enumerate() {
                let parts = ["user", "system", "interrupts"];
                let load = parts.iter().filter_map(|part| core[part].as_f64()).sum();
                heat.add(&format!("core {number}"), at, load);
            }
            for (thread, load) in row["thread_load"].as_object().into_iter().flatten() {
                heat.add(&thread.replace("adit-", ""), at, load.as_f64()?);
            }
        }
        heat.figure(format!("{title}: load, {policy}"))
    };
    policies.into_iter().filter_map(figure).collect()
}

/// What the model says of other machines: curves, and how busy each core is where the engine chooses
/// how many threads help.
pub(super) fn model(json: &Value) -> Vec<Figure> {
    let mut all = Vec::new();
    for curve in list(&json["model"], "curves") {
        let (title, axis) = (text(&curve["title"]), text(&curve["axis"]));
        let mut heat = Heat::new(&axis);
        for line in list(curve, "lines") {
            for point in list(line, "points") {
                let Some((at, gbps)) = point["at"].as_f64().zip(point["gbps"].as_f64()) else {
                    continue;
                };
                let values = vec![(text(&line["name"]), single(gbps))];
                add_points(&mut all, &title, &axis, "Gb/s", at, values);
                let cores = list(point, "core_load").filter_map(Value::as_f64);
                for (number, load) in cores.enumerate().filter(|_| line["name"] == "auto") {
                    heat.add(&format!("core {number}"), at, load);
                }
            }
        }
        all.extend(heat.figure(format!("{title}: load, auto")));
    }
    all
}
