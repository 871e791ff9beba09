use super::*;

#[test]
fn the_firewall_guards_the_addresses_of_its_family_only() {
    let addresses: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let v4 = nft_rules("wg0", false, 51820, &addresses);
    assert!(
        v4.contains("preraw iifname != \"wg0\" ip daddr 10.0.0.1 fib saddr type != local drop\n")
    );
    assert!(v4.contains("postmangle meta l4proto udp mark 51820 ct mark set mark\n"));
    assert!(!v4.contains("fd00"));
    let v6 = nft_rules("wg0", true, 51820, &addresses);
    assert!(v6.contains("add table ip6 wg-quick-wg0\n") && v6.contains("ip6 daddr fd00::1 "));
    assert!(!v6.contains("10.0.0.1"));
}

#[test]
fn only_this_interfaces_iptables_rules_are_deleted() {
    let saved = "# generated\n*raw\n:PREROUTING ACCEPT [0:0]\n\
        -A PREROUTING -d 10.0.0.1/32 -m comment --comment \"wg-quick(8) rule for wg0\" -j DROP\n\
        -A PREROUTING -d 10.0.0.9/32 -m comment --comment \"wg-quick(8) rule for wg01\" -j DROP\n\
        -A PREROUTING -s 10.9.0.1/32 -j DROP\nCOMMIT\n";
    let script = iptables_deletions(saved, "wg0").unwrap();
    let expected = "*raw\n-D PREROUTING -d 10.0.0.1/32 -m comment --comment \"wg-quick(8) rule for wg0\" -j DROP\nCOMMIT\n";
    assert_eq!(script, expected);
    assert_eq!(iptables_deletions(saved, "wg7"), None);
}

#[test]
fn resolvconfs_order_gives_the_first_plain_pattern_as_prefix() {
    assert_eq!(resolvconf_prefix("lo.inet6\nlo.*\ntun*\neth*\n"), "tun.");
    assert_eq!(resolvconf_prefix("lo.inet6\n"), "");
    assert_eq!(resolvconf_prefix(""), "");
}

#[test]
fn hooks_see_the_interface_and_stop_at_the_first_failure() {
    let hooks = [
        "test %i = wg7".to_owned(),
        "exit 3".to_owned(),
        "exit 4".to_owned(),
    ];
    let failure = run_hooks(&hooks, "wg7").unwrap_err();
    assert!(failure.to_string().contains("exit 3"), "{failure}");
    assert!(run_hooks(&hooks[..1], "wg7").is_ok());
}
