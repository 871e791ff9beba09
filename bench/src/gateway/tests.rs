use super::measures::{GAP, STREAM_RATIO, goals};
use super::*;
use crate::goals::GoalResult;

fn report(rounds: &[(Case, f64, f64)]) -> Experiment<Case> {
    let mut report = Experiment::new(&MEASURES);
    report
        .implementations
        .push(Entry::plain(Implementation::Adit, "test"));
    for &(case, ratio, gap) in rounds {
        let values = vec![(STREAM_RATIO, ratio), (GAP, gap)];
        report.add(case, Implementation::Adit, values);
    }
    report
}

fn judged(report: &Experiment<Case>) -> Vec<GoalResult> {
    report::goals(report)
}

fn table(report: &Experiment<Case>) -> String {
    report::table(report, &judged(report))
}

fn document(report: &Experiment<Case>) -> serde_json::Value {
    report.document("gateway", "case", &judged(report))
}

#[test]
fn a_goal_is_judged_on_the_median_of_its_case() {
    let report = report(&[
        (Case::Slow, 0.95, 20.0),
        (Case::Slow, 0.5, 20.0),
        (Case::Slow, 0.97, 5000.0),
        (Case::NoRoute, 0.8, 51.0),
    ]);
    let goals = judged(&report);
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
    let table = table(&report);
    assert!(
        table.contains("slow") && table.contains("0.95") && table.contains("met"),
        "{table}"
    );
    assert!(!table.contains("no-route"), "{table}");
    let json = document(&report);
    assert_eq!(json["schema"], 1);
    assert_eq!(json["cases"][0]["case"], "slow");
    let gap = &json["cases"][0]["measures"][1];
    assert_eq!(gap["name"], GAP);
    assert_eq!(gap["implementations"]["adit"]["median"], 20.0);
    assert_eq!(json["goals"][0]["met"], true);
}

const TO: &str = "to_peers_1368";

/// Adit and another, with packets to active peers.
fn active(values: &[(Case, Implementation, f64)]) -> Experiment<Case> {
    let mut report = report(&[]);
    report
        .implementations
        .push(Entry::plain(Implementation::WireguardGo, "test"));
    for &(case, who, value) in values {
        report.add(case, who, vec![(TO, value)]);
    }
    report
}

#[test]
fn goals_compare_with_the_best_other_and_with_fewer_peers() {
    use Implementation::{Adit, WireguardGo};
    let report = active(&[
        (Case::Active1, Adit, 300.0),
        (Case::Active1000, Adit, 250.0),
        (Case::Active1000, WireguardGo, 101.0),
        (Case::Active10000, Adit, 240.0),
    ]);
    let goals = judged(&report);
    let judged: Vec<_> = goals
        .iter()
        .map(|goal| (goal.name.as_str(), goal.goal.as_str(), goal.met))
        .collect();
    let expected = [
        ("peers-active-1000: to_peers_1368", "≥ 2.5 × best", false),
        (
            "peers-active-10000: to_peers_1368",
            "≥ 0.8 × peers-active-1",
            true,
        ),
    ];
    assert_eq!(judged, expected);
    let values: Vec<_> = goals.iter().filter_map(|goal| goal.value).collect();
    assert_eq!(values, [250.0 / 101.0, 240.0 / 300.0]);
}

#[test]
fn more_and_more_peers_stand_in_one_table_and_who_cannot_is_named() {
    use Implementation::{Adit, WireguardGo};
    let mut report = active(&[
        (Case::Active1, Adit, 301.0),
        (Case::Active1, WireguardGo, 101.0),
        (Case::Active1000, Adit, 252.0),
    ]);
    report.note(
        1,
        WireguardGo,
        Some(Case::Active1000),
        "too many".to_owned(),
    );
    report.note(
        1,
        WireguardGo,
        Some(Case::State),
        "much too many".to_owned(),
    );
    let table = table(&report);
    let row = |start: &str| {
        let mut lines = table.lines();
        lines.find(|line| line.trim_start().starts_with(start))
    };
    let words = |line: Option<&str>| -> Vec<String> {
        let words = line.unwrap_or_default().split_whitespace();
        words.map(str::to_owned).collect()
    };
    assert_eq!(words(row("1 active"))[3..], ["301.0", "101.0"], "{table}");
    assert_eq!(
        words(row("1000 active"))[3..],
        ["252.0", "cannot"],
        "{table}"
    );
    assert!(table.contains("cannot: see the notes"), "{table}");
    let json = document(&report);
    let case = &json["cases"][1];
    assert_eq!(case["case"], "peers-active-1000");
    assert_eq!(case["cannot"]["wireguard-go"], "too many");
    assert_eq!(json["cases"][0]["cannot"], serde_json::json!({}));
}

#[test]
fn a_failure_counts_where_it_is_adits_or_everybodys() {
    use Implementation::{Adit, WireguardGo};
    let mut report = report(&[(Case::Slow, 0.95, 20.0)]);
    assert_eq!(report.failures(), 0);
    report.note(1, WireguardGo, Some(Case::Slow), "it cannot".to_owned());
    assert_eq!(report.failures(), 0);
    report.note(1, WireguardGo, Some(Case::State), "nobody could".to_owned());
    assert_eq!(report.failures(), 1);
    report.note(2, Adit, Some(Case::Slow), "once".to_owned());
    assert_eq!(report.failures(), 2);
}

#[test]
fn a_run_that_ended_early_says_so_beside_what_it_has() {
    let mut report = report(&[(Case::Slow, 0.95, 20.0)]);
    assert!(document(&report)["stopped"].is_null());
    report.stopped = Some("interrupted".to_owned());
    let table = table(&report);
    assert!(table.ends_with("INCOMPLETE: interrupted\n"), "{table}");
    assert_eq!(document(&report)["stopped"], "interrupted");
    assert_eq!(document(&report)["cases"][0]["case"], "slow");
}

#[test]
fn every_goal_is_about_a_measure_that_there_is() {
    for &case in Case::value_variants() {
        for (id, _) in goals(case, 2) {
            assert!(MEASURES.iter().any(|measure| measure.id == id), "{id}");
        }
    }
}
