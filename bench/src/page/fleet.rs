//! The curves of `adit-lab fleet`: how long clients are silent after their gateway died, and what the model says of
//! other fleets.

use serde_json::Value;

use super::figures::{Drawing, Figure, Scales};
use super::names::real;
use super::read::{add_points, list, single, text, values};

const SILENCE: &str = "time without an answer after a gateway died";
const BACK: &str = "half of the peers are back";
const MEMORY: &str = "memory of an agent";

/// Percentiles of the clients: a line for each implementation and what the other gateway does.
pub(super) fn silence(json: &Value) -> Vec<Figure> {
    let mut all = Vec::new();
    for row in list(json, "silence") {
        let Some(at) = row["percentile"].as_f64() else {
            continue;
        };
        for (part, words) in [("called", "called"), ("waiting", "passive")] {
            let of_all = row[part].as_object().into_iter().flatten();
            let of_all = of_all
                .filter_map(|(name, of)| Some((format!("{}, {words}", real(name)), values(of)?)));
            let axis = "percentile of clients";
            add_points(&mut all, SILENCE, axis, "ms", at, of_all.collect());
        }
    }
    with(all, Scales::LogY)
}

/// Of fleets by their peers: how soon they are back, and what an agent takes; then which limit comes first.
pub(super) fn model(json: &Value) -> Vec<Figure> {
    let mut all = Vec::new();
    for fleet in list(&json["model"], "fleets") {
        let Some(peers) = fleet["peers"].as_f64() else {
            continue;
        };
        let gateways = match fleet["gateways"].as_u64() {
            Some(1) => "1 gateway".to_owned(),
            Some(many @ (4 | 32)) => format!("{many} gateways"),
            _ => continue,
        };
        for (title, unit, key, name) in [
            (BACK, "s", "half_back_seconds", gateways.as_str()),
            (MEMORY, "MiB", "agent_mib", "agent with all records"),
        ] {
            let is_first = title == BACK || gateways == "1 gateway";
            if let Some(value) = fleet[key].as_f64().filter(|_| is_first) {
                let points = vec![(name.to_owned(), single(value))];
                add_points(
                    &mut all,
                    title,
                    "thousand peers",
                    unit,
                    peers / 1000.0,
                    points,
                );
            }
        }
    }
    let mut all = with(all, Scales::LogBoth);
    let limits = list(&json["model"], "limits");
    let limits = limits.filter_map(|of| Some((text(&of["what"]), single(of["peers"].as_f64()?))));
    let limits: Vec<_> = limits.collect();
    if !limits.is_empty() {
        all.push(Figure {
            id: "limits".to_owned(),
            title: "a limit is reached".to_owned(),
            unit: "peers".to_owned(),
            drawing: Drawing::Bars(limits),
        });
    }
    all
}

fn with(mut figures: Vec<Figure>, wanted: Scales) -> Vec<Figure> {
    for figure in &mut figures {
        if let Drawing::Curves { scales, .. } = &mut figure.drawing {
            *scales = wanted;
        }
    }
    figures
}
