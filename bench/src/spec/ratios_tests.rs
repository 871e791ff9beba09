use super::*;

fn measured(value: f64, goal: &str, is_met: bool) -> Measured {
    let goal = goal.to_owned();
    Measured {
        value,
        goal,
        is_met,
    }
}

#[test]
fn a_star_stands_for_any_text() {
    assert!(matches("peers-*: jain", "peers-64: jain"));
    assert!(!matches("peers-*: jain", "peers-64: jain_back"));
    assert!(matches("hand-overs", "hand-overs"));
    assert!(!matches("tcp-1, *", "tcp-1.cpu, a / b"));
}

#[test]
fn a_claim_has_the_value_that_is_furthest_from_its_limit() {
    let all = [
        ("a: low", measured(0.5, "≤ 1 ×", true)),
        ("b: low", measured(0.7, "≤ 1 ×", true)),
        ("c: high", measured(3.0, "≥ 2 × best", true)),
    ];
    let goals: Goals = all.map(|(name, it)| (name.to_owned(), it)).into();
    let found = worst(&goals, &["*: low"]).ok().flatten();
    assert_eq!(found.map(|it| it.value), Some(0.7));
    assert!(worst(&goals, &["*: low", "*: high"]).is_err());
    assert!(matches!(worst(&goals, &["none"]), Ok(None)));
}

#[test]
fn digits_show_on_which_side_of_its_limit_a_value_is() {
    assert_eq!(shown(&measured(0.897_4, "≥ 0.9 ×", false)), "**0.897**");
    assert_eq!(shown(&measured(0.952_6, "≥ 0.95 ×", true)), "0.95");
    assert_eq!(shown(&measured(100.0, "≥ 100", true)), "100");
    assert_eq!(shown(&measured(23.175_2, "≤ 50 ms", true)), "23.2");
    assert_eq!(wanted("≥ 2.5 × best"), "≥ 2.5 ×");
}

#[test]
fn what_no_file_has_is_in_italics_and_bold_if_it_is_missed() {
    let by_hand = |cell, goal| by_hand(cell, goal).unwrap();
    assert_eq!(by_hand("5,263", "≥ 4,000"), "*5,263*");
    assert_eq!(by_hand("*3.67, 3.4*", "≥ 3.5 ×"), "***3.67, 3.4***");
    assert_eq!(by_hand("***1.09***", "as before"), "***1.09***");
    assert_eq!(by_hand("", "≥ 3.5 ×"), "");
}
