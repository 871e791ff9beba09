use clap::Parser as _;

use super::results::{Curve, Measure, Published, Results, Subject};
use super::*;
use crate::goals::Limit;
use crate::metric::Better;

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: ReproduceArgs,
}

fn args(words: &[&str]) -> ReproduceArgs {
    Cli::parse_from([&["x"], words].concat()).args
}

#[test]
fn one_congestion_control_that_is_there_is_enough() {
    let check = |controls| args(&["pfsense", "--congestion", controls]).check_congestion();
    check("nosuch,reno").unwrap();
    check("reno,nosuch").unwrap();
    let why = check("nosuch,neither").unwrap_err().to_string();
    assert!(why.contains("no congestion control"), "{why}");
}

/// Two subjects, one measure, two rounds.
fn measured() -> Results {
    let mut results = Results::new("tailscale-2022", 2);
    for name in ["plain", "direct"] {
        results.subjects.push(Subject {
            name: name.to_owned(),
            what: String::new(),
        });
    }
    results.measures.push(Measure {
        id: "tcp-1420".to_owned(),
        title: "one stream".to_owned(),
        unit: "Gb/s",
        better: Better::Higher,
        places: 2,
        curve: None,
        distribution: None,
    });
    for (subject, published) in [("plain", 2.42), ("kernel", 2.66)] {
        results.published.push(Published {
            what: "of then",
            value: published,
            unit: "Gb/s",
            measure: "tcp-1420",
            subject,
            over: None,
            differs: "a veth link",
        });
    }
    let mut round = 0;
    results
        .measure_rounds(std::time::Duration::from_secs(1), |name, values| {
            round += 1;
            let value = if name == "plain" { 1.0 } else { 8.0 };
            values.push(("tcp-1420".to_owned(), value * f64::from(round)));
            match round {
                4 => Err("the daemon ended".into()),
                _ => Ok(()),
            }
        })
        .unwrap();
    results
}

#[test]
fn all_means_each_source_once() {
    assert_eq!(args(&["all", "inline"]).each(), Source::EACH);
    let two = args(&["userspace-vs-kernel", "tailscale-2022"]).each();
    assert_eq!(two, [Source::Tailscale2022, Source::UserspaceVsKernel]);
}

#[test]
fn a_subject_that_no_table_has_is_refused_before_a_round() {
    for source in Source::EACH {
        let check = |names: &str| args(&[source.name(), "--subjects", names]).check_subjects();
        let mut subjects = source.subjects();
        // One of two names has a comma, which ends a name here.
        subjects.retain(|name| !name.contains(','));
        check(&subjects.join(",")).unwrap();
        let first = subjects[0];
        let error = check(&format!("{first},nobody")).unwrap_err().to_string();
        assert!(error.contains("subject nobody; they have"), "{error}");
        assert!(error.contains(first), "{error}");
    }
    // Each source has its own.
    let of_another = args(&["inline", "--subjects", "plain"]).check_subjects();
    of_another.unwrap_err();
}

#[test]
fn rounds_alternate_and_a_failure_is_noted() {
    let results = measured().finish();
    assert_eq!(results.failures(), 1);
    let json = serde_json::to_value(&results).unwrap();
    let plain = &json["measures"][0]["subjects"]["plain"];
    // First in the first round, last in the second.
    assert_eq!(
        plain["rounds"],
        serde_json::json!([
            {"round": 1, "value": 1.0},
            {"round": 2, "value": 4.0},
        ])
    );
    assert_eq!(plain["median"], 2.5);
    assert_eq!(json["notes"][0]["text"], "the daemon ended");
}

#[test]
fn published_figures_stand_beside_those_of_here() {
    let mut results = measured();
    results.published.push(Published {
        what: "a ratio",
        over: Some("plain"),
        subject: "direct",
        ..results.published[0].clone()
    });
    let table = results.finish().table();
    let ratio = table.lines().find(|line| line.contains("a ratio")).unwrap();
    assert!(ratio.contains("8.00 ×"), "{ratio}");
    let here = table
        .lines()
        .find(|line| line.contains("2.42 Gb/s"))
        .unwrap();
    assert!(
        here.contains("2.50 ±60%") && here.contains("a veth link"),
        "{here}"
    );
    let missing = table
        .lines()
        .find(|line| line.contains("2.66 Gb/s"))
        .unwrap();
    assert!(
        missing.contains('–'),
        "what is not measured has no value: {missing}"
    );
}

#[test]
fn percent_are_of_what_framing_leaves_of_the_same_round() {
    let mut results = measured();
    results.measures.push(Measure {
        id: "tcp-1420.percent".to_owned(),
        ..results.measures[0].clone()
    });
    results.add_percent("tcp-1420", "direct", |_| 0.5);
    let json = serde_json::to_value(results.finish()).unwrap();
    let subjects = &json["measures"][1]["subjects"];
    // 1 of half of 16, and 4 of half of 24.
    assert_eq!(
        subjects["plain"]["rounds"],
        serde_json::json!([
            {"round": 1, "value": 12.5},
            {"round": 2, "value": 4.0 / 12.0 * 100.0},
        ])
    );
    assert!(subjects.get("direct").is_none());
}

#[test]
fn a_curve_is_one_table_with_a_line_for_each_point() {
    let mut results = measured();
    for (id, at) in [("udp-64", 64.0), ("udp-128", 128.0)] {
        results.measures.push(Measure {
            id: id.to_owned(),
            curve: Some(Curve {
                title: "UDP by size".to_owned(),
                axis: "octets",
                at,
            }),
            ..results.measures[0].clone()
        });
        results.add(1, "direct", vec![(id.to_owned(), at / 10.0)]);
    }
    results.add(1, "plain", vec![("udp-128".to_owned(), 3.0)]);
    let table = results.finish().table();
    let at = table.lines().position(|line| line == "UDP by size, Gb/s");
    let lines: Vec<Vec<&str>> = table
        .lines()
        .skip(at.expect("a title") + 1)
        .take(3)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["octets", "plain", "direct"]);
    assert_eq!(lines[1], ["64", "–", "6.40", "±0%"]);
    assert_eq!(lines[2], ["128", "3.00", "±0%", "12.80", "±0%"]);
}

#[test]
fn what_stands_in_a_distribution_only_is_not_tabled() {
    let mut results = measured();
    let percentile = |id: &str, curve| Measure {
        id: id.to_owned(),
        title: id.to_owned(),
        curve,
        distribution: Some(Curve {
            title: "of answers".to_owned(),
            axis: "1 in so many is slower",
            at: 2.0,
        }),
        ..measured().measures[0].clone()
    };
    let curve = Curve {
        title: "by rate".to_owned(),
        axis: "requests a second",
        at: 100.0,
    };
    for measure in [percentile("p50", Some(curve)), percentile("p75", None)] {
        results.add(1, "plain", vec![(measure.id.clone(), 1.0)]);
        results.measures.push(measure);
    }
    let results = results.finish();
    let table = results.table();
    assert!(table.contains("by rate, Gb/s"), "{table}");
    for absent in ["p75", "of answers"] {
        assert!(!table.contains(absent), "{table}");
    }
    let json = serde_json::to_value(&results).unwrap();
    for measure in json["measures"].as_array().unwrap().iter().skip(1) {
        assert_eq!(measure["distribution"]["at"], 2.0);
        assert_eq!(measure["subjects"]["plain"]["median"], 1.0);
    }
}

#[test]
fn a_goal_without_values_is_missed_and_one_not_asked_for_is_left_out() {
    let mut results = measured();
    results.judge("tcp-1420", "direct", "plain", Limit::AtLeast(2.0));
    results.judge("tcp-8920", "direct", "plain", Limit::AtLeast(2.0));
    results.judge("tcp-1420", "adit", "plain", Limit::AtLeast(2.0));
    let met: Vec<(Option<f64>, bool)> = results.goals.iter().map(|of| (of.value, of.met)).collect();
    assert_eq!(met, [(Some(8.0), true), (None, false)]);
}

#[test]
fn flame_graphs_stand_in_the_results_where_there_are_some() {
    let json = |results: Results| serde_json::to_value(results.finish()).unwrap();
    assert!(json(measured()).get("flame_graphs").is_none());
    let mut results = measured();
    results.flame_graphs.push(super::results::FlameGraph {
        subject: "plain".to_owned(),
        end: "sender",
        folded: "a;b 3\n".to_owned(),
    });
    let graph = &json(results)["flame_graphs"][0];
    let wanted = serde_json::json!({"subject": "plain", "end": "sender", "folded": "a;b 3\n"});
    assert_eq!(*graph, wanted);
}

#[test]
fn the_second_article_has_the_checksum_by_size() {
    let mut results = Results::new("tailscale-2023", 1);
    tailscale::checksum(
        &args(&["tailscale-2023", "--subjects", "SIMD"]),
        &mut results,
    )
    .unwrap();
    let json = serde_json::to_value(results.finish()).unwrap();
    let measures = json["measures"].as_array().unwrap();
    let sizes: Vec<f64> = measures
        .iter()
        .map(|of| of["curve"]["at"].as_f64().unwrap())
        .collect();
    assert!(sizes.len() >= 10 && sizes.is_sorted(), "{sizes:?}");
    let ways = measures[0]["subjects"].as_object().unwrap();
    assert_eq!(ways.keys().collect::<Vec<_>>(), ["SIMD"]);
    assert!(measures[0]["subjects"]["SIMD"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(json["goals"].as_array().map(Vec::len), Some(1));
}
