use super::*;

fn chain(name: &str, hook: &str, rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|rule| format!("\t\t{rule}\n")).collect();
    format!("\tchain {name} {{\n{hook}{rules}\t}}\n")
}

fn hooked(policy: &str, rules: &[&str]) -> String {
    let hook = format!("\t\ttype filter hook forward priority filter; policy {policy};\n");
    chain("FORWARD", &hook, rules)
}

fn found(chains: &str) -> Option<Dropping> {
    found_in("ip filter", chains, false)
}

fn found_in(table: &str, chains: &str, are_answers: bool) -> Option<Dropping> {
    let packets = Packets {
        hook: "forward",
        from: "wg0",
        to: Some("eth0"),
        are_answers,
        v6: false,
    };
    dropping(&format!("table {table} {{\n{chains}}}\n"), packets)
}

#[test]
fn what_surely_drops_is_told_from_what_may_let_through() {
    for (policy, rules, drops) in [
        ("drop", &[][..], true),
        ("accept", &[], false),
        ("drop", &["iifname \"docker0\" accept"], true),
        ("drop", &["iifname \"wg0\" accept"], false),
        ("drop", &["iifname \"wg*\" counter accept"], false),
        ("drop", &["iifname { \"eth1\", \"wg0\" } accept"], false),
        ("drop", &["iifname { \"eth1\", \"eth2\" } accept"], true),
        ("drop", &["iifname != \"eth1\" accept"], false),
        ("drop", &["iifname @trusted accept"], false),
        ("drop", &["oifname \"eth1\" accept"], true),
        ("drop", &["oifname \"eth0\" accept"], false),
        ("drop", &["ct state established,related accept"], true),
        ("drop", &["ct state { established, new } accept"], false),
        (
            "drop",
            &["ct state vmap { established : accept, invalid : drop }"],
            true,
        ),
        ("drop", &["ct state vmap { new : accept }"], false),
        ("drop", &["iifname vmap { \"wg0\" : accept }"], false),
        ("drop", &["ip saddr 10.0.0.0/8 accept"], false),
        ("drop", &["ip saddr 10.0.0.0/8 drop"], true),
        ("accept", &["ip saddr 10.0.0.0/8 drop"], false),
        (
            "accept",
            &["iifname \"wg0\" counter packets 3 bytes 9 drop"],
            true,
        ),
        (
            "accept",
            &["iifname \"wg0\" reject with icmpx admin-prohibited"],
            true,
        ),
        (
            "accept",
            &["iifname \"wg0\" drop comment \"accept nothing\""],
            true,
        ),
        ("accept", &["iifname \"eth0\" drop"], false),
        ("accept", &["accept", "drop"], false),
        ("drop", &["counter", "log prefix \"forward: \""], true),
        ("drop", &["meta mark set 0x1"], true),
        ("drop", &["queue to 1"], false),
        ("drop", &["jump nowhere"], false),
    ] {
        let found = found(&hooked(policy, rules));
        assert_eq!(found.is_some(), drops, "{policy} {rules:?}: {found:?}");
        assert!(found.is_none_or(|it| it.chain == "ip filter FORWARD"));
    }
}

#[test]
fn chains_that_are_jumped_to_count() {
    let docker = |user: &[&str]| {
        hooked(
            "drop",
            &[
                "counter jump DOCKER-USER",
                "oifname \"docker0\" counter jump DOCKER",
            ],
        ) + &chain("DOCKER-USER", "", user)
            + &chain("DOCKER", "", &["ip daddr 172.17.0.2 tcp dport 80 accept"])
    };
    for (user, drops) in [
        (&[][..], true),
        (&["return"], true),
        (&["iifname \"wg0\" accept"], false),
        (&["ip saddr 10.0.0.0/8 return", "drop"], false),
        (&["iifname \"wg0\" drop"], true),
    ] {
        let found = found(&docker(user));
        assert_eq!(found.is_some(), drops, "{user:?}: {found:?}");
    }
    // A circle, which the kernel refuses, ends.
    assert_eq!(found(&hooked("drop", &["jump FORWARD"])), None);
}

#[test]
fn chains_of_other_tables_and_of_answers_are_left_out() {
    let drops = hooked("drop", &["ct state established,related accept"]);
    for (table, are_answers, is_found) in [
        ("ip filter", false, true),
        ("inet filter", false, true),
        ("ip6 filter", false, false),
        ("bridge filter", false, false),
        ("ip adit-forward-wg0", false, false),
        ("ip filter", true, false),
    ] {
        let found = found_in(table, &drops, are_answers);
        assert_eq!(found.is_some(), is_found, "{table} {are_answers}");
    }
    // ICMP has no ports.
    for (rule, is_found) in [
        ("udp dport 51820 accept", true),
        ("meta l4proto { tcp, udp } th dport 53 accept", true),
        ("meta l4proto != udp accept", false),
        ("icmp type destination-unreachable accept", false),
    ] {
        let found = found_in("inet f", &hooked("drop", &[rule]), true);
        assert_eq!(found.is_some(), is_found, "{rule}");
        assert_eq!(
            found_in("inet f", &hooked("drop", &[rule]), false),
            None,
            "{rule}"
        );
    }
}
