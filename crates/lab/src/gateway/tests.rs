use super::measures::{GAP, STREAM_RATIO};
use super::*;

fn report(rounds: &[(Case, f64, f64)]) -> GatewayReport {
    let mut report = GatewayReport::new(1);
    report.implementations.push(Entry {
        who: Implementation::Adit,
        version: "test".to_owned(),
        binary: None,
    });
    for &(case, ratio, gap) in rounds {
        report.add(
            case,
            Implementation::Adit,
            vec![(STREAM_RATIO, ratio), (GAP, gap)],
        );
    }
    report
}

#[test]
fn a_goal_is_judged_on_the_median_of_its_case() {
    let report = report(&[
        (Case::Slow, 0.95, 20.0),
        (Case::Slow, 0.5, 20.0),
        (Case::Slow, 0.97, 5000.0),
        (Case::NoRoute, 0.8, 51.0),
    ]);
    let goals = report.goals();
    let judged: Vec<_> = goals
        .iter()
        .map(|goal| (goal.name.as_str(), goal.met))
        .collect();
    let expected = [
        ("slow: stream_ratio", true),
        ("slow: ping_beside_gap", true),
        ("no-route: stream_ratio", false),
        ("no-route: ping_beside_gap", false),
    ];
    assert_eq!(judged, expected);
}

#[test]
fn the_table_and_the_document_hold_what_was_measured() {
    let report = report(&[(Case::Slow, 0.95, 20.0)]);
    let table = report.table();
    assert!(
        table.contains("slow") && table.contains("0.95") && table.contains("met"),
        "{table}"
    );
    assert!(!table.contains("no-route"), "{table}");
    let json = serde_json::to_value(report.document()).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["cases"][0]["case"], "slow");
    let gap = &json["cases"][0]["measures"][1];
    assert_eq!(gap["name"], GAP);
    assert_eq!(gap["implementations"]["adit"]["median"], 20.0);
    assert_eq!(json["goals"][0]["met"], true);
}
