use super::*;

fn cidr(text: &str) -> Cidr {
    let (ip, len) = text.split_once('/').unwrap();
    Cidr::new(ip.parse().unwrap(), len.parse().unwrap()).unwrap()
}

fn address(text: &str) -> Address {
    let (ip, len) = text.split_once('/').unwrap();
    Address {
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
