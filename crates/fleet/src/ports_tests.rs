use proptest::prelude::*;

use super::*;

fn ports(text: &str) -> Result<AllowedPorts, String> {
    let mut all = AllowedPorts::default();
    all.extend(text).map(|()| all)
}

/// As of the file: `TO P-P A-B`.
fn flows(text: &str, is_v6: bool) -> Vec<String> {
    let from = Cidr::new(unspecified(is_v6), 0).expect("a block");
    let flows = ports(text).expect(text).flows(is_v6);
    let told = flows.into_iter().map(|it| {
        let told = RuleElement::Allowed(from, it).to_string();
        told.splitn(3, ' ').nth(2).expect("words").to_owned()
    });
    told.collect()
}

#[test]
fn each_rule_becomes_what_it_says() {
    for (text, v4, v6) in [
        ("", &[][..], &[][..]),
        (" ", &[], &[]),
        ("tcp/443", &["0.0.0.0/0 6-6 443-443"], &["::/0 6-6 443-443"]),
        (
            "UDP/5000-5100 ,icmp",
            &["0.0.0.0/0 17-17 5000-5100", "0.0.0.0/0 1-1 0-65535"],
            &["::/0 17-17 5000-5100", "::/0 58-58 0-65535"],
        ),
        ("10.1.2.3/16 tcp", &["10.1.0.0/16 6-6 0-65535"], &[]),
        ("10.1.2.3 tcp/22", &["10.1.2.3/32 6-6 22-22"], &[]),
        ("fd00::/64 any", &[], &["fd00::/64 0-255 0-65535"]),
    ] {
        assert_eq!(flows(text, false), v4, "{text}");
        assert_eq!(flows(text, true), v6, "{text}");
    }
}

#[test]
fn overlapping_rules_become_elements_that_do_not_overlap() {
    for (text, expected) in [
        (
            "tcp/443, tcp/400-500, tcp/501",
            &["0.0.0.0/0 6-6 400-501"][..],
        ),
        ("10.1.0.0/16 tcp/22, tcp/22", &["0.0.0.0/0 6-6 22-22"]),
        (
            "10.1.0.0/16 tcp/1-10, tcp/5-6, 10.1.2.0/24 tcp/7",
            &[
                "10.1.0.0/16 6-6 1-4",
                "0.0.0.0/0 6-6 5-6",
                "10.1.0.0/16 6-6 7-10",
            ],
        ),
        (
            "10.1.0.0/16 any, icmp",
            &[
                "10.1.0.0/16 6-6 0-65535",
                "10.1.0.0/16 17-17 0-65535",
                "0.0.0.0/0 1-1 0-65535",
                "10.1.0.0/16 0-0 0-65535",
                "10.1.0.0/16 2-5 0-65535",
                "10.1.0.0/16 7-16 0-65535",
                "10.1.0.0/16 18-255 0-65535",
            ],
        ),
    ] {
        assert_eq!(flows(text, false), expected, "{text}");
    }
}

#[test]
fn what_is_no_rule_is_refused() {
    for text in [
        "tcp/",
        "tcp/65536",
        "tcp/+1",
        "tcp/9-8",
        "tcp/1-",
        "443",
        "sctp/1",
        "tcp/443,",
        ",",
        "10.1.0.0/33 tcp/1",
        "10.1.0.0/16",
        "tcp/1 10.1.0.0/16",
        "a 10.1.0.0/16 tcp/1",
        "tcp/443 udp/53",
    ] {
        assert!(ports(text).is_err(), "{text}");
    }
    assert!(ports("icmp/8").expect_err("refused").contains("only tcp"));
    assert!(ports("any/8").expect_err("refused").contains("only tcp"));
}

#[test]
fn rules_and_their_elements_are_bounded() {
    let many = |count: usize| vec!["tcp/1"; count].join(",");
    assert!(ports(&many(256)).is_ok());
    assert!(ports(&many(257)).is_err());
    let spread: Vec<String> = (0..200).map(|at| format!("tcp/{}", 2 * at)).collect();
    let spread = ports(&spread.join(",")).expect("rules");
    let block = |at| Cidr::new(IpAddr::from([10, 0, at, 0]), 24).expect("a block");
    let blocks = |count| (0..count).map(block).collect::<Vec<_>>();
    assert_eq!(spread.check(&blocks(20)), Ok(()));
    let why = spread.check(&blocks(21)).expect_err("too many");
    assert!(why.contains("4200 entries"), "{why}");
}

fn a_rule() -> impl Strategy<Value = PortRule> {
    let to = (0..4_u8, 28..=32_u8)
        .prop_map(|(last, len)| Cidr::new(IpAddr::from([10, 0, 0, last]), len));
    let protocol = prop_oneof![
        Just(RuleProtocol::Tcp),
        Just(RuleProtocol::Udp),
        Just(RuleProtocol::Icmp),
        Just(RuleProtocol::Any),
    ];
    (to, any::<bool>(), protocol, 0..6_u16, 0..6_u16).prop_map(|(to, has, protocol, one, other)| {
        let has_ports = matches!(protocol, RuleProtocol::Tcp | RuleProtocol::Udp);
        PortRule {
            to: to.filter(|_| has),
            protocol,
            ports: match has_ports {
                true => (one.min(other), one.max(other)),
                false => (0, u16::MAX),
            },
        }
    })
}

proptest! {
    /// Each packet is allowed by one element if a rule allows it, and by none otherwise.
    #[test]
    fn elements_allow_what_rules_allow(
        rules in proptest::collection::vec(a_rule(), 0..8),
        last in 0..6_u8,
        protocol in prop_oneof![Just(0), Just(1_u8), Just(6), Just(17), Just(58), Just(255)],
        port in 0..8_u16,
    ) {
        let to = IpAddr::from([10, 0, 0, last]);
        let is_allowed = rules.iter().any(|rule| {
            let is_of = match rule.protocol {
                RuleProtocol::Tcp => protocol == 6,
                RuleProtocol::Udp => protocol == 17,
                RuleProtocol::Icmp => protocol == 1,
                RuleProtocol::Any => true,
            };
            is_of && rule.to.is_none_or(|it| it.contains(to)) && (rule.ports.0..=rule.ports.1).contains(&port)
        });
        let flows = AllowedPorts(rules).flows(false);
        let found = flows.iter().filter(|it| {
            it.to.contains(to)
                && (it.protocols.0..=it.protocols.1).contains(&protocol)
                && (it.ports.0..=it.ports.1).contains(&port)
        });
        prop_assert_eq!(found.count(), usize::from(is_allowed));
    }

    #[test]
    fn an_element_is_read_as_it_was_written(rules in proptest::collection::vec(a_rule(), 0..8)) {
        let from = Cidr::new(IpAddr::from([10, 9, 0, 0]), 24).expect("a block");
        for flow in AllowedPorts(rules).flows(false) {
            let element = RuleElement::Allowed(from, flow);
            prop_assert_eq!(element.to_string().parse(), Ok(element));
        }
        let element = RuleElement::Limited(from);
        prop_assert_eq!(element.to_string().parse(), Ok(element));
    }
}
