use super::*;

#[test]
fn rules_that_may_drop_are_found_in_a_rule_set() {
    let ruleset = "table inet filter {\n\
                   \tchain input {\n\
                   \t\ttype filter hook input priority filter; policy drop;\n\
                   \t\tudp dport 51821 drop\n\
                   \t\ttcp dport 22 accept\n\
                   \t}\n\
                   \tchain output {\n\
                   \t\tudp dport { 9, 51820 } counter drop\n\
                   \t\tudp dport 51820 accept\n\
                   \t}\n\
                   }\n";
    let found = dropping(ruleset, &[51820]);
    assert_eq!(
        found,
        [
            "inet filter input: type filter hook input priority filter; policy drop;",
            "inet filter output: udp dport { 9, 51820 } counter drop",
        ]
    );
}

#[test]
fn the_rule_that_closes_our_port_is_found() {
    let chain = |hook: &str, policy: &str, rules: &[&str]| {
        let rules: String = rules.iter().map(|rule| format!("\t\t{rule}\n")).collect();
        format!(
            "table inet f {{\n\tchain in {{\n\t\ttype filter hook {hook} priority filter; policy {policy};\n{rules}\t}}\n}}\n"
        )
    };
    let answers = "ct state established,related accept";
    for (hook, policy, rules, is_answer, closes) in [
        ("input", "accept", &["udp dport 51820 drop"][..], true, true),
        (
            "input",
            "accept",
            &["udp dport 51820 counter packets 3 bytes 9 reject with icmpx admin-prohibited"],
            true,
            true,
        ),
        (
            "input",
            "accept",
            &["udp dport { 53, 51000-52000 } drop"],
            true,
            true,
        ),
        (
            "prerouting",
            "accept",
            &["meta l4proto udp drop"],
            true,
            true,
        ),
        ("input", "accept", &["drop"], true, true),
        ("input", "drop", &[], true, true),
        ("input", "drop", &["tcp dport 22 accept"], true, true),
        // Answers are let in, and who calls first is not.
        ("input", "drop", &[answers], true, false),
        ("input", "drop", &[answers], false, true),
        ("input", "drop", &["udp dport 51820 accept"], false, false),
        (
            "input",
            "accept",
            &["udp dport 51820 accept", "drop"],
            true,
            false,
        ),
        ("input", "accept", &["tcp dport 51820 drop"], true, false),
        ("input", "accept", &["udp dport 51821 drop"], true, false),
        ("input", "accept", &["udp sport 51820 drop"], true, false),
        (
            "input",
            "accept",
            &["ip saddr 10.0.0.0/8 drop"],
            true,
            false,
        ),
        ("input", "accept", &["ct state invalid drop"], true, false),
        ("output", "drop", &[], true, false),
        ("forward", "drop", &[], true, false),
    ] {
        let ruleset = chain(hook, policy, rules);
        let found = closing(&ruleset, 51820, is_answer);
        assert_eq!(found.is_some(), closes, "{ruleset}{found:?}");
        assert!(found.is_none_or(|rule| rule.starts_with("inet f in: ")));
    }
}
