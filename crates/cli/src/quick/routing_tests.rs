use super::*;

fn cidr(text: &str) -> Cidr {
    let (ip, len) = text.split_once('/').unwrap();
    Cidr::new(ip.parse().unwrap(), len.parse().unwrap()).unwrap()
}

fn address(text: &str) -> InterfaceAddress {
    let (ip, len) = text.split_once('/').unwrap();
    InterfaceAddress {
        ip: ip.parse().unwrap(),
        prefix_len: len.parse().unwrap(),
    }
}

#[test]
fn routes_are_added_from_the_longest_prefix_on_and_once() {
    let allowed = [
        "10.0.0.0/8",
        "0.0.0.0/0",
        "10.1.0.0/16",
        "10.0.0.0/8",
        "::/0",
    ]
    .map(cidr);
    let expected = [
        Planned::Plain(cidr("10.1.0.0/16"), Route::MAIN),
        Planned::Plain(cidr("10.0.0.0/8"), Route::MAIN),
        Planned::Default(cidr("0.0.0.0/0")),
        Planned::Default(cidr("::/0")),
    ];
    assert_eq!(plan(&[], &allowed, &Table::Auto).unwrap(), expected);
}

#[test]
fn what_an_address_makes_reachable_needs_no_route() {
    let addresses = ["10.9.0.1/24", "10.8.0.1/32", "fd00::1/64"].map(address);
    let allowed = [
        "10.9.0.2/32",
        "10.8.0.1/32",
        "10.0.0.0/8",
        "fd00::2/128",
        "fd01::/64",
    ]
    .map(cidr);
    let expected = [
        Planned::Plain(cidr("fd01::/64"), Route::MAIN),
        Planned::Plain(cidr("10.8.0.1/32"), Route::MAIN),
        Planned::Plain(cidr("10.0.0.0/8"), Route::MAIN),
    ];
    assert_eq!(plan(&addresses, &allowed, &Table::Auto).unwrap(), expected);
}

#[test]
fn a_stated_table_gets_every_route_and_off_gets_none() {
    let addresses = [address("10.9.0.1/24")];
    let allowed = ["10.9.0.2/32", "0.0.0.0/0"].map(cidr);
    let expected = [Planned::Plain(allowed[0], 7), Planned::Plain(allowed[1], 7)];
    assert_eq!(
        plan(&addresses, &allowed, &Table::Number(7)).unwrap(),
        expected
    );
    assert_eq!(
        plan(&addresses, &allowed, &Table::Name("main".into())).unwrap()[0],
        Planned::Plain(allowed[0], 254)
    );
    assert!(plan(&addresses, &allowed, &Table::Off).unwrap().is_empty());
    assert!(plan(&addresses, &allowed, &Table::Name("no such".into())).is_err());
}

#[test]
fn table_names_are_iproute2s() {
    let list = "# reserved\n255\tlocal\n\n100 vpn # mine\n0x7 hex\n";
    assert_eq!(table_in(list, "vpn"), Some(100));
    assert_eq!(table_in(list, "local"), Some(255));
    assert_eq!(table_in(list, "#"), None);
}

/// Splits a block at random.
fn split(block: Cidr, depth: u8, random: &mut u64, out: &mut Vec<Cidr>) {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    if depth == 0 || (*random >> 33).is_multiple_of(3) {
        return out.push(block);
    }
    let len = block.prefix_len() + 1;
    let upper = match block.addr() {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | 1 << (32 - len)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | 1 << (128 - len)).into(),
    };
    for half in [block.addr(), upper] {
        split(Cidr::new(half, len).unwrap(), depth - 1, random, out);
    }
}

#[test]
fn blocks_that_are_everything_together_are_a_default_route() {
    let inner = ["10.0.0.0/32", "fd00::/128"].map(cidr);
    for seed in 1..300 {
        let mut random = seed;
        for all in ["0.0.0.0/0", "::/0"].map(cidr) {
            let family = Family::of(all.addr());
            let mut blocks = Vec::new();
            split(all, 10, &mut random, &mut blocks);
            // What lies inside others changes nothing, nor does the other family.
            let more = [&inner[..], &blocks].concat();
            assert_eq!(parts(&more, family), blocks);
            let planned = plan(&[], &more, &Table::Auto).unwrap();
            assert!(planned.contains(&Planned::Default(all)));
            assert_eq!(planned.len(), 3, "{planned:?}");
            let missing = usize::try_from(random >> 33).unwrap() % blocks.len();
            blocks.remove(missing);
            assert!(!covers(&[&inner[..], &blocks].concat(), family));
        }
    }
}

#[test]
fn what_leaves_in_clear_after_a_kill_is_told_of() {
    let number = Table::Number(1234);
    for (blocks, table, told) in [
        (&["0.0.0.0/0", "::/0"][..], &Table::Auto, None),
        (&["0.0.0.0/1", "128.0.0.0/1"], &Table::Auto, None),
        (&["0.0.0.0/1"], &Table::Auto, Some("IPv4")),
        (&["2000::/3"], &Table::Auto, Some("IPv6")),
        (&["0.0.0.0/0", "::/0"], &number, Some("IPv4 and IPv6")),
        (&["0.0.0.0/0", "::/0"], &Table::Off, None),
        (&["10.0.0.0/8", "fd00::/8"], &number, None),
    ] {
        let blocks: Vec<Cidr> = blocks.iter().copied().map(cidr).collect();
        let text = leaves_in_clear(&blocks, table);
        assert_eq!(text.is_some(), told.is_some(), "{blocks:?}");
        assert!(text.unwrap_or_default().contains(told.unwrap_or_default()));
    }
}
