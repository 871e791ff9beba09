use super::*;

#[test]
fn translation_is_a_word_of_a_rule() {
    assert!(translates(
        "table ip nat {\n\tchain p {\n\t\toifname \"eth0\" masquerade\n\t}\n}"
    ));
    assert!(translates(
        "  ip saddr 10.0.0.0/8 counter snat to 192.0.2.1"
    ));
    assert!(!translates("table ip masquerades {\n}"));
}

#[test]
fn a_hub_is_told_of_what_it_does_not_forward() {
    let mut here = Forwarding {
        hosts: 2,
        off: vec!["net.ipv4.ip_forward"],
        ..Forwarding::default()
    };
    let found = of_this_host("wg0", &here);
    assert_eq!((found.len(), found[0].cause), (1, Cause::NoForwarding));
    assert!(!found[0].problem && found[0].commands[0] == "sysctl -w net.ipv4.ip_forward=1");
    here.refused = [5, 8];
    let found = of_this_host("wg0", &here);
    assert!(found[0].problem && found[0].text.contains("3 packets"));
    // One peer alone sends what is for others.
    here.hosts = 1;
    assert!(of_this_host("wg0", &here)[0].problem);
    here.refused = [8, 8];
    assert!(of_this_host("wg0", &here).is_empty());
    here.hosts = 0;
    assert!(of_this_host("wg0", &here).is_empty());
}

#[test]
fn what_the_file_asks_for_and_a_firewall_drops_is_a_problem() {
    let rules = "table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\
                 \t\tiifname \"wg0\" oifname \"wg0\" accept\n\t}\n}\n";
    // Peers reach each other: that may be all that is meant.
    assert_eq!(dropping(rules, "wg0", 2, Some("eth0")), None);
    let found = dropping(rules, "wg0", 1, Some("eth0")).expect("a chain");
    assert_eq!(found.chain, "ip filter FORWARD");
    assert!(dropping(rules, "wg1", 2, Some("eth0")).is_some());
    assert_eq!(dropping(rules, "wg1", 1, None), None);
    let mut here = Forwarding {
        hosts: 2,
        dropping: Some(found),
        ..Forwarding::default()
    };
    let finding = &of_this_host("wg0", &here)[0];
    assert_eq!(
        (finding.cause, finding.problem),
        (Cause::ForwardFirewall, false)
    );
    here.is_asked = true;
    let finding = &of_this_host("wg0", &here)[0];
    assert!(
        finding.problem
            && finding.commands[0] == "nft insert rule ip filter FORWARD iifname wg0 accept"
    );
    here.dropping = None;
    (here.is_late, here.uplink) = (true, Some("eth1".into()));
    let finding = &of_this_host("wg0", &here)[0];
    assert_eq!(
        (finding.cause, finding.problem),
        (Cause::NoForwarding, true)
    );
    assert_eq!(finding.commands, ["adit sync wg0"]);
}

#[test]
fn the_rules_of_up_for_an_interface_are_told_from_those_of_others() {
    let rules = "table ip adit-forward-wg0 {\n\tchain forward {\n\t\tdrop\n\t}\n}\ntable ip nat {\n\tchain post {\n\t\tmasquerade\n\t}\n}\n\
                 table ip adit-forward-wg1 {\n\tchain post {\n\t\toifname \"eth0\" masquerade\n\t}\n}\n";
    assert!(is_confined(rules, "wg0") && is_confined(rules, "wg1"));
    assert!(!is_confined(rules, "wg") && !is_confined(rules, "wg2"));
    assert!(own_table(rules, "wg0").is_some_and(|table| !translates(table)));
    assert!(own_table(rules, "wg1").is_some_and(translates));
}
