use super::*;

#[test]
fn only_what_expired_of_ours_names_a_router() {
    let to = Ipv4Addr::new(10, 3, 0, 2);
    let mut answer = vec![0_u8; 20 + 8 + 20 + 8];
    answer[0] = 0x45;
    answer[12..16].copy_from_slice(&[192, 168, 77, 2]);
    answer[20] = 11;
    answer[28] = 0x45;
    answer[44..48].copy_from_slice(&to.octets());
    answer[50..52].copy_from_slice(&UNUSED_PORT.to_be_bytes());
    let router = Ipv4Addr::new(192, 168, 77, 2);
    assert_eq!(expired_v4(&answer, to), Some(router));
    assert_eq!(expired_v4(&answer, router), None);
    for (at, value) in [(20, 3), (28, 0x4f), (50, 1)] {
        let mut other = answer.clone();
        other[at] = value;
        assert_eq!(expired_v4(&other, to), None, "{at}");
    }
    for len in 0..answer.len() - 4 {
        assert_eq!(expired_v4(&answer[..len], to), None);
    }

    let to: Ipv6Addr = "fd03::2".parse().unwrap();
    let mut answer = vec![0_u8; 8 + 40 + 8];
    answer[0] = 3;
    answer[32..48].copy_from_slice(&to.octets());
    answer[50..52].copy_from_slice(&UNUSED_PORT.to_be_bytes());
    assert!(expired_v6(&answer, to));
    assert!(!expired_v6(&answer, Ipv6Addr::LOCALHOST));
    for len in 0..52 {
        assert!(!expired_v6(&answer[..len], to));
    }
}

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
        is_hub: true,
        off: vec!["net.ipv4.ip_forward"],
        ..Forwarding::default()
    };
    let found = of_this_host("wg0", &here);
    assert_eq!((found.len(), found[0].cause), (1, Cause::NoForwarding));
    assert!(!found[0].problem && found[0].commands[0] == "sysctl -w net.ipv4.ip_forward=1");
    here.refused = [5, 8];
    let found = of_this_host("wg0", &here);
    assert!(found[0].problem && found[0].text.contains("3 packets"));
    here.is_hub = false;
    assert!(of_this_host("wg0", &here).is_empty());
}
