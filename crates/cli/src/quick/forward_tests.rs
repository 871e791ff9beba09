use adit_ctl::config::InterfaceAddress;
use adit_netlink::nft::{Listed, NftChain};

use super::*;

const TUNNEL: &[&str] = &["10.9.0.1/24", "fd09::1/64"];

fn addresses() -> Vec<InterfaceAddress> {
    let address = |text: &&str| {
        let (ip, len) = text.split_once('/').unwrap();
        InterfaceAddress {
            ip: ip.parse().unwrap(),
            prefix_len: len.parse().unwrap(),
        }
    };
    TUNNEL.iter().map(address).collect()
}

/// A host with these settings; its interfaces are those that they name.
struct Host(BTreeMap<String, String>);

impl Host {
    fn new(settings: &[(&str, &str)]) -> Self {
        let of = |(setting, value): &(&str, &str)| ((*setting).to_owned(), (*value).to_owned());
        Self(settings.iter().map(of).collect())
    }

    fn plan(&self, family: Family, interface: &str, reach: Forward, found: &Found) -> Plan {
        let names: BTreeSet<String> = (self.0.keys())
            .filter_map(|setting| {
                Some(
                    setting
                        .split("/conf/")
                        .nth(1)?
                        .split('/')
                        .next()?
                        .to_owned(),
                )
            })
            .collect();
        let names: Vec<String> = names.into_iter().collect();
        let wanted = Wanted {
            interface,
            reach,
            addresses: &addresses(),
        };
        plan(family, &wanted, found, &names, &|setting| {
            self.0.get(setting).cloned()
        })
    }
}

/// What the next command finds.
fn found(plan: &Plan) -> Found {
    let chains = plan.tables.iter().flat_map(|table| {
        let name = |chain: &NftChain| Listed {
            table: table.name.clone(),
            name: chain.name.clone(),
            drops_forwarded: false,
        };
        table.chains.iter().map(name)
    });
    Found::of(&chains.collect::<Vec<_>>())
}

fn rules(plan: &Plan, table: &str) -> Vec<String> {
    let table = plan.tables.iter().find(|it| it.name == table);
    let chains = table.map_or(&[][..], |table| &table.chains);
    let rules = chains.iter().flat_map(|chain| &chain.rules);
    rules.map(ToString::to_string).collect()
}

fn settings(plan: &Plan) -> Vec<String> {
    let one = |(setting, value): &(String, &str)| format!("{setting}={value}");
    plan.settings.iter().map(one).collect()
}

fn host() -> Host {
    Host::new(&[
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv4/conf/all/forwarding", "0"),
        ("net/ipv4/conf/default/forwarding", "0"),
        ("net/ipv4/conf/lo/forwarding", "0"),
        ("net/ipv4/conf/eth0/forwarding", "0"),
        ("net/ipv4/conf/br0.7/forwarding", "1"),
        ("net/ipv4/conf/wg0/forwarding", "0"),
        ("net/ipv6/conf/all/forwarding", "0"),
        ("net/ipv6/conf/default/accept_ra", "1"),
        ("net/ipv6/conf/eth0/accept_ra", "1"),
        ("net/ipv6/conf/br0.7/accept_ra", "0"),
        ("net/ipv6/conf/wg0/accept_ra", "1"),
    ])
}

#[test]
fn only_what_is_off_is_switched_on_and_the_rest_is_blocked() {
    let none = Found::default();
    let plan = host().plan(Family::V4, "wg0", Forward::Internet, &none);
    assert_eq!(
        settings(&plan),
        [
            "net/ipv4/conf/eth0/forwarding=1",
            "net/ipv4/conf/wg0/forwarding=1"
        ]
    );
    assert_eq!(
        rules(&plan, COMMON),
        [
            "ct state established,related accept",
            "ct status dnat accept",
            "iifname \"wg0\" accept",
            "oifname \"wg0\" accept",
            "iifname \"eth0\" drop",
        ]
    );
    let kept = found(&plan).before;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept["net/ipv4/conf/eth0/forwarding"], "0");

    let plan = host().plan(Family::V6, "wg0", Forward::Peers, &none);
    assert_eq!(
        settings(&plan),
        [
            "net/ipv6/conf/default/accept_ra=2",
            "net/ipv6/conf/eth0/accept_ra=2",
            "net/ipv6/conf/all/forwarding=1",
        ]
    );
    assert_eq!(
        rules(&plan, COMMON).last().map(String::as_str),
        Some("drop")
    );
    assert_eq!(found(&plan).before["net/ipv6/conf/eth0/accept_ra"], "1");

    // Peers that reach each other need no other interface.
    let plan = host().plan(Family::V4, "wg0", Forward::Peers, &none);
    assert_eq!(settings(&plan), ["net/ipv4/conf/wg0/forwarding=1"]);
    assert_eq!(plan.tables.len(), 1);
}

#[test]
fn a_host_that_is_a_router_stays_one() {
    let router = Host::new(&[
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/conf/eth0/forwarding", "1"),
        ("net/ipv4/conf/eth1/forwarding", "0"),
        ("net/ipv4/conf/wg0/forwarding", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv6/conf/eth0/accept_ra", "1"),
    ]);
    for family in Family::BOTH {
        let plan = router.plan(family, "wg0", Forward::Internet, &Found::default());
        assert_eq!(settings(&plan), [""; 0]);
        assert_eq!((plan.tables.len(), plan.gone), (1, None));
    }
    // Since the first tunnel came up: nothing stays blocked.
    let before = host().plan(Family::V4, "wg1", Forward::Internet, &Found::default());
    let plan = router.plan(Family::V4, "wg0", Forward::Internet, &found(&before));
    assert_eq!((plan.tables.len(), plan.gone), (1, Some(COMMON)));
}

#[test]
fn a_second_tunnel_keeps_what_the_first_one_found() {
    let first = host().plan(Family::V4, "wg0", Forward::Internet, &Found::default());
    let mut host = host();
    for (setting, value) in &first.settings {
        host.0.insert(setting.clone(), (*value).to_owned());
    }
    host.0
        .insert("net/ipv4/conf/wg1/forwarding".into(), "0".into());
    host.0
        .insert("net/ipv4/conf/eth1/forwarding".into(), "0".into());
    let second = host.plan(Family::V4, "wg1", Forward::Lan, &found(&first));
    let kept = found(&second);
    assert_eq!(kept.before.len(), 2);
    assert!(kept.before.values().all(|value| value == "0"));
    // An interface that came later, and the new tunnel.
    assert_eq!(
        settings(&second),
        [
            "net/ipv4/conf/eth1/forwarding=1",
            "net/ipv4/conf/wg1/forwarding=1"
        ]
    );
    let common = rules(&second, COMMON);
    for accepted in ["wg0", "wg1"] {
        assert!(
            common.contains(&format!("iifname \"{accepted}\" accept")),
            "{common:?}"
        );
        assert!(
            !common.contains(&format!("iifname \"{accepted}\" drop")),
            "{common:?}"
        );
    }
}

#[test]
fn each_reach_accepts_what_it_says_and_nothing_comes_unasked() {
    let none = Found::default();
    let of = |family, reach| {
        rules(
            &host().plan(family, "wg0", reach, &none),
            "adit-forward-wg0",
        )
    };
    let peers = [
        "iifname \"wg0\" oifname \"wg0\" accept",
        "iifname \"wg0\" drop",
        "oifname \"wg0\" ct state established,related accept",
        "oifname \"wg0\" drop",
    ];
    assert_eq!(of(Family::V4, Forward::Peers), peers);
    assert_eq!(of(Family::V6, Forward::Peers), peers);
    let lan = of(Family::V4, Forward::Lan);
    assert_eq!(lan[1], "iifname \"wg0\" ip daddr 10.0.0.0/8 accept");
    assert_eq!(lan[4], "iifname \"wg0\" drop");
    assert_eq!(lan[7], "ip saddr 10.9.0.0/24 oifname != \"wg0\" masquerade");
    let internet = of(Family::V4, Forward::Internet);
    assert_eq!(internet[1], "iifname \"wg0\" ip daddr 169.254.0.0/16 drop");
    assert_eq!(internet[2..4], peers[2..4]);
    let internet = of(Family::V6, Forward::Internet);
    assert_eq!(internet[1..3], peers[2..4]);
    assert_eq!(
        internet[3],
        "ip6 saddr fd09::/64 oifname != \"wg0\" masquerade"
    );
}
