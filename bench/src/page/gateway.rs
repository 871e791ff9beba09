//! The curves of `adit-lab gateway`: what several cases and measures say together; and bars of it and of
//! `compare`.

use serde_json::Value;

use super::figures::{Drawing, Figure, Values};
use super::read::{add_points, list, text, values};
use crate::implementation::Implementation::{Ceiling, Direct};

/// Cases whose measures of this name are points over this.
struct Curve {
    /// Empty for the measure's own title.
    title: &'static str,
    axis: &'static str,
    measure: &'static str,
    cases: &'static [(f64, &'static str)],
}

const PEERS: &[(f64, &str)] = &[
    (1.0, "peers-active-1"),
    (10.0, "peers-active-10"),
    (100.0, "peers-active-100"),
    (1_000.0, "peers-active-1000"),
    (10_000.0, "peers-active-10000"),
];
const INTERFACES: &[(f64, &str)] = &[
    (1.0, "interfaces-1"),
    (10.0, "interfaces-10"),
    (100.0, "interfaces-100"),
    (1_000.0, "interfaces"),
];

const CURVES: [Curve; 8] = [
    peers("64 B from peers", "from_peers_64"),
    peers("64 B to peers", "to_peers_64"),
    peers("1368 B from peers", "from_peers_1368"),
    peers("1368 B to peers", "to_peers_1368"),
    peers("CPU time, 1368 B from peers", "from_peers_1368_cpu"),
    peers("CPU time, 1368 B to peers", "to_peers_1368_cpu"),
    interfaces("time until all answer", "start"),
    interfaces("memory of all daemons", "memory"),
];

const fn peers(title: &'static str, measure: &'static str) -> Curve {
    Curve {
        title,
        axis: "active peers",
        measure,
        cases: PEERS,
    }
}

const fn interfaces(title: &'static str, measure: &'static str) -> Curve {
    Curve {
        title,
        axis: "interfaces",
        measure,
        cases: INTERFACES,
    }
}

/// Goodput by what is offered, packets and CPU time by active peers, start and memory by interfaces.
pub(super) fn curves(json: &Value) -> Vec<Figure> {
    let mut all = Vec::new();
    for (case, title) in [
        ("overload", "goodput of UDP one way"),
        ("overload-both", "goodput of UDP both ways"),
    ] {
        for measure in list(json, "cases")
            .filter(|of| of["case"] == case)
            .flat_map(|of| list(of, "measures"))
        {
            let name = text(&measure["name"]);
            let offered = name.strip_prefix("offered_");
            // The most that the sender can has no place on the axis.
            if let Some(at) = offered.and_then(|rate| rate.parse::<f64>().ok()) {
                add_points(
                    &mut all,
                    title,
                    "offered, Gb/s",
                    "Gb/s",
                    at,
                    of_all(measure),
                );
            }
        }
    }
    for curve in CURVES {
        for &(at, case) in curve.cases {
            let Some(measure) = find(json, case, curve.measure) else {
                continue;
            };
            // With fewer interfaces than asked it is no point of the curve.
            let count = find(json, case, "interfaces");
            let is_whole = |name: &str| {
                let count = count.and_then(|count| values(&count["implementations"][name]));
                count.is_none_or(|count| count.median == at)
            };
            let points = of_all(measure).into_iter();
            let points: Vec<(String, Values)> = points.filter(|(name, _)| is_whole(name)).collect();
            if !points.is_empty() {
                let unit = text(&measure["unit"]);
                add_points(&mut all, curve.title, curve.axis, &unit, at, points);
            }
        }
    }
    all
}

/// Bars that say at a glance how implementations compare: case, of a gateway, measure, title, and whether
/// more is better.
const BARS: [(&str, &str, &str, bool); 7] = [
    ("", "tcp1", "One TCP stream", true),
    ("", "tcp1.cpu", "CPU time of it, both daemons", false),
    ("", "ping-load.p50", "Ping beside one TCP stream", false),
    ("slow", "stream", "One TCP stream", true),
    (
        "four-tunnels",
        "one_cpu",
        "CPU time of both ends, 4 TCP streams",
        false,
    ),
    (
        "slow",
        "stream_beside",
        "One TCP stream beside a flood to another, slow peer",
        true,
    ),
    ("peers-64", "total", "TCP to 64 peers, sum", true),
];

/// Whether a bar is drawn for it: neither for the link without a tunnel nor for the build that encrypts
/// nothing.
pub(super) fn is_shown(name: &str) -> bool {
    ![Direct.name(), Ceiling.name()].contains(&name)
}

/// The best first.
pub(super) fn bars(json: &Value) -> Vec<Figure> {
    let figure = |&(case, name, title, more): &(&str, &str, &str, bool)| {
        let measure = find(json, case, name)?;
        let mut bars = of_all(measure);
        bars.retain(|(name, _)| is_shown(name));
        bars.sort_by(|(_, a), (_, b)| match more {
            true => b.median.total_cmp(&a.median),
            false => a.median.total_cmp(&b.median),
        });
        let better = if more { "more" } else { "less" };
        (!bars.is_empty()).then(|| Figure {
            id: name.to_owned(),
            title: title.to_owned(),
            unit: format!("{} ({better} is better)", text(&measure["unit"])),
            drawing: Drawing::Bars(bars),
        })
    };
    BARS.iter().filter_map(figure).collect()
}

fn find<'a>(json: &'a Value, case: &str, measure: &str) -> Option<&'a Value> {
    if case.is_empty() {
        return list(json, "metrics").find(|of| of["id"] == measure);
    }
    let case = list(json, "cases").find(|of| of["case"] == case)?;
    list(case, "measures").find(|of| of["name"] == measure)
}

fn of_all(measure: &Value) -> Vec<(String, Values)> {
    let all = measure["implementations"].as_object().into_iter().flatten();
    all.filter_map(|(name, of)| Some((name.clone(), values(of)?)))
        .collect()
}
