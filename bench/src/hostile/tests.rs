use super::*;
use crate::implementation::Implementation;

fn report(rounds: &[(Attack, f64, f64)]) -> Experiment<Attack> {
    let mut report = Experiment::new(&MEASURES);
    report
        .implementations
        .push(Entry::plain(Implementation::Adit, "test"));
    for &(attack, kept, connected) in rounds {
        let values = vec![(KEPT, kept), (CONNECTED, connected)];
        report.add(attack, Implementation::Adit, values);
    }
    report
}

#[test]
fn goals_depend_on_the_attack_and_are_judged_on_medians() {
    let report = report(&[
        (Attack::Sources, 0.9, 20.0),
        (Attack::Sources, 0.1, 20.0),
        (Attack::Sources, 0.85, 19.0),
        (Attack::BadTags, 0.7, 19.0),
        (Attack::Peer, 0.1, 20.0),
    ]);
    let goals = report::goals(&report);
    let judged: Vec<_> = goals
        .iter()
        .map(|goal| (goal.name.as_str(), goal.met))
        .collect();
    let expected = [
        ("sources: stream_kept", true),
        ("sources: connected", true),
        ("bad-tags: stream_kept", true),
        ("bad-tags: connected", false),
        ("peer: connected", true),
    ];
    assert_eq!(judged, expected);
}

#[test]
fn the_table_and_the_document_hold_what_was_measured() {
    let report = report(&[(Attack::WrongMac1, 0.75, 17.0)]);
    let goals = report::goals(&report);
    let table = report.tables(report.parts()) + &report.end(&goals);
    assert!(
        table.contains("wrong-mac1") && table.contains("0.75") && table.contains("MISSED"),
        "{table}"
    );
    let json = report.document("hostile", "attack", &goals);
    assert_eq!(json["schema"], 1);
    assert_eq!(json["attacks"][0]["attack"], "wrong-mac1");
    let connected = &json["attacks"][0]["measures"][1];
    assert_eq!(connected["name"], CONNECTED);
    assert_eq!(connected["implementations"]["adit"]["median"], 17.0);
    assert_eq!(json["goals"][1]["met"], false);
}

#[test]
fn a_rate_is_a_positive_number() {
    assert_eq!("250000".parse(), Ok(Rate(250_000.0)));
    for wrong in ["0", "-1", "inf", "NaN", "", "1e9"] {
        assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
    }
}
