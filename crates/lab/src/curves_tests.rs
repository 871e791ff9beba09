use serde_json::json;

use super::super::tests::check_well_formed;
use super::*;

fn measure(name: &str, values: &[(&str, f64)]) -> serde_json::Value {
    let values = values
        .iter()
        .map(|&(who, median)| (who.to_owned(), json!({"median": median})));
    let values: serde_json::Map<_, _> = values.collect();
    json!({"name": name, "implementations": values})
}

fn results() -> serde_json::Value {
    json!({
        "schema": 1,
        "command": "gateway",
        "started": 1_709_164_800_u64,
        "machine": {"cpu": "Some CPU", "cores": 2, "kernel": "6.12"},
        "rounds": 3,
        "implementations": [
            {"name": "wireguard-go", "version": "0.0.2"},
            {"name": "adit", "version": "adit 0.1.0"},
        ],
        "cases": [
            {"case": "overload", "measures": [
                measure("offered_0.1", &[("adit", 0.1), ("wireguard-go", 0.1)]),
                measure("offered_4", &[("adit", 4.0), ("wireguard-go", 1.0)]),
            ]},
            {"case": "peers-active-1", "measures": [measure("to_peers_64", &[("adit", 200.0)])]},
            {"case": "peers-active-10000", "measures": [measure("to_peers_64", &[("adit", 160.0)])]},
            {"case": "interfaces", "measures": [
                measure("interfaces", &[("adit", 1000.0), ("wireguard-go", 100.0)]),
                measure("start", &[("adit", 1.1), ("wireguard-go", 2.0)]),
            ]},
        ],
    })
}

#[test]
fn each_quantity_that_was_measured_has_a_panel() {
    let svg = draw(results()).unwrap();
    check_well_formed(&svg).unwrap();
    let titles = svg.matches("class=\"title\"").count();
    assert_eq!(titles, 3, "{svg}");
    assert!(svg.contains("64 B to peers, kpps"), "{svg}");
    assert!(!svg.contains("both ways"), "{svg}");
    assert!(
        svg.contains("Some CPU, 2 cores, Linux 6.12; 2024-02-29"),
        "{svg}"
    );
    assert!(svg.contains("Medians of 3 rounds"), "{svg}");
}

#[test]
fn a_greater_value_stands_higher_and_a_missing_one_nowhere() {
    let svg = draw(results()).unwrap();
    let lines: Vec<Vec<(f64, f64)>> = svg
        .split("points=\"")
        .skip(1)
        .map(|rest| {
            let points = rest.split('"').next().unwrap().split(' ');
            let number = |text: &str| text.parse::<f64>().unwrap();
            points
                .map(|point| point.split_once(',').unwrap())
                .map(|(x, y)| (number(x), number(y)))
                .collect()
        })
        .collect();
    // Two of the overload, Adit's last; one of the peers; one of the interfaces: 100 are no 1,000.
    let points: Vec<usize> = lines.iter().map(Vec::len).collect();
    assert_eq!(points, [2, 2, 2, 1]);
    let (go, adit) = (&lines[0], &lines[1]);
    assert_eq!(go[0], adit[0]);
    assert!(adit[1].1 < go[1].1 && adit[1].0 == go[1].0, "{svg}");
    assert!(lines[2][1].1 > lines[2][0].1, "{svg}");
    let inside = |&(x, y): &(f64, f64)| (0.0..800.0).contains(&x) && y > 0.0;
    assert!(lines.iter().flatten().all(inside));
}

#[test]
fn what_has_no_curves_is_refused_with_the_reason() {
    let mut empty = results();
    empty["cases"] = json!([]);
    assert!(
        draw(empty)
            .unwrap_err()
            .contains("nothing in it can be drawn")
    );
    let mut newer = results();
    newer["schema"] = json!(2);
    assert!(draw(newer).unwrap_err().contains("its schema is 2"));
    let mut broken = results();
    broken["machine"] = json!(null);
    assert!(draw(broken).unwrap_err().contains("no whole results file"));
}

#[test]
fn axes_end_at_round_numbers() {
    let ends = [0.0, 0.07, 1.0, 3.1, 240.0, 251.0, 999.0].map(ceiling);
    assert_eq!(ends, [1.0, 0.1, 1.0, 5.0, 250.0, 500.0, 1000.0]);
}

#[test]
fn the_command_chooses_the_picture_by_the_file() {
    let (name, svg) = super::super::picture(&results().to_string()).unwrap();
    assert_eq!((name, svg), (FILE, draw(results()).unwrap()));
}
