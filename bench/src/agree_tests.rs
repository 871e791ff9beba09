use super::*;

fn value(median: f64, min: f64, max: f64) -> Value {
    json!({"median": median, "min": min, "max": max, "count": 5})
}

fn run_of(tcp: Value, ping: Value) -> Value {
    let measures = json!([
        {"id": "tcp", "subjects": {"adit": tcp}},
        {"id": "ping", "subjects": {"adit": ping}},
    ]);
    json!({"command": "reproduce", "sources": [{"source": "pfsense", "measures": measures}]})
}

#[test]
fn a_value_agrees_if_each_median_is_within_the_others_range() {
    let first = run_of(value(10.0, 9.0, 12.0), value(1.0, 0.5, 1.5));
    // The first's median is outside the second's range, and not the other way round.
    let second = run_of(value(11.0, 10.5, 11.5), value(1.2, 1.0, 1.3));
    let pairs = pairs(&first, &second).unwrap();
    let agree: Vec<bool> = pairs.iter().map(Pair::agrees).collect();
    assert_eq!(agree, [false, true]);
    let text = text(&pairs, &[]);
    assert!(
        text.starts_with("2 values in both runs\n1 agree, 50 %"),
        "{text}"
    );
    assert!(text.contains("71 % would, with 5 rounds each"), "{text}");
    let outside =
        "\nsources pfsense measures tcp subjects adit\n  first          10.00 (9.000 to 12.00)\n";
    assert!(text.contains(outside), "{text}");
    assert!(!text.contains("ping"), "{text}");
}

#[test]
fn what_one_run_alone_has_and_what_was_measured_once_is_left_out() {
    let first = run_of(value(10.0, 9.0, 12.0), value(1.0, 0.5, 1.5));
    let once = json!({"median": 1.0, "min": 1.0, "max": 1.0, "count": 1});
    let second = run_of(value(10.0, 9.0, 12.0), once);
    assert_eq!(pairs(&first, &second).unwrap().len(), 1);
    let other = json!({"command": "compare"});
    assert!(pairs(&first, &other).unwrap_err().contains("two commands"));
    let empty = json!({"command": "reproduce"});
    assert!(pairs(&first, &empty).unwrap_err().contains("no value"));
}

#[test]
fn ratios_are_of_the_same_round_and_agree_where_all_programs_get_slower() {
    let run_of = |adit: [f64; 3], other: [f64; 3]| {
        let value = |values: [f64; 3]| {
            let rounds = (1..).zip(values);
            let rounds: Vec<Value> = rounds
                .map(|(round, value)| json!({"round": round, "value": value}))
                .collect();
            let [min, median, max] = values;
            json!({"rounds": rounds, "median": median, "min": min, "max": max, "count": 3})
        };
        let subjects = json!({"adit": value(adit), "direct": value(adit), "other": value(other)});
        let measures = json!([{"id": "tcp", "subjects": subjects}]);
        json!({"command": "reproduce", "sources": [{"source": "pfsense", "measures": measures}]})
    };
    let first = run_of([8.0, 9.0, 12.0], [4.0, 3.0, 4.0]);
    let second = run_of([4.0, 5.0, 6.0], [2.0, 2.0, 2.0]);
    let of_runs = pairs(&first, &second).unwrap();
    assert!(of_runs.iter().all(|pair| !pair.agrees()));
    let ratios = pairs(&ratios(&first), &ratios(&second)).unwrap();
    assert_eq!(ratios.len(), 1, "neither of Adit to itself nor to the link");
    assert_eq!(ratios[0].path.last().unwrap(), "other");
    let range = |median, min, max| Range {
        median,
        min,
        max,
        rounds: 3,
    };
    assert_eq!(ratios[0].first, range(3.0, 2.0, 3.0));
    assert_eq!(ratios[0].second, range(2.5, 2.0, 3.0));
    let document = document(&first, &second, &of_runs, &ratios);
    let rows = document["agreement"].as_array().unwrap();
    let row = |row: &Value| {
        (
            row["name"].clone(),
            row["values"].clone(),
            row["agree"].clone(),
        )
    };
    let all = [
        ("pfsense", 3, 0),
        ("all", 3, 0),
        ("ratios of Adit to others", 1, 1),
    ];
    let all = all.map(|(name, values, agree)| (json!(name), json!(values), json!(agree)));
    assert_eq!(rows.iter().map(row).collect::<Vec<_>>(), all);
    assert_eq!(document["runs_of"], "reproduce");
    assert_eq!(document["goals"][0]["met"], false);
    let text = text(&of_runs, &ratios);
    let both = "\n1 ratios of Adit to others in the same round\n1 agree, 100 %";
    assert!(text.contains(both), "{text}");
}

#[test]
fn chance_counts_the_orders_in_which_two_runs_can_lie() {
    // Every order of two runs, by counting.
    for rounds in [1_u32, 3, 5, 7] {
        let (mut agree, mut all) = (0_u32, 0_u32);
        for order in 0_u32..1 << (2 * rounds) {
            if order.count_ones() != rounds {
                continue;
            }
            let places = |of: u32| (0..2 * rounds).filter(move |at| order >> at & 1 == of);
            let median = |of| places(of).nth(rounds as usize / 2).unwrap();
            let holds = |of, value| {
                places(of).next().unwrap() < value && places(of).next_back().unwrap() > value
            };
            all += 1;
            agree += u32::from(holds(0, median(1)) && holds(1, median(0)));
        }
        let counted = f64::from(agree) / f64::from(all);
        let chance = by_chance(u64::from(rounds)).unwrap();
        assert!(
            (chance - counted).abs() < 1e-9,
            "{rounds}: {chance}, {counted}"
        );
    }
    assert_eq!(by_chance(4), None);
}
