use proptest::prelude::*;

use super::*;

fn cidr(text: &str) -> Cidr {
    let (ip, len) = text.split_once('/').unwrap();
    Cidr::new(ip.parse().unwrap(), len.parse().unwrap()).unwrap()
}

fn cidrs(list: &[&str]) -> Vec<Cidr> {
    list.iter().map(|text| cidr(text)).collect()
}

#[test]
fn a_network_is_chosen_where_none_is_taken() {
    let v4 = |taken: &[&str], random| free_network(Family::V4, &cidrs(taken), random);
    for (taken, random, chosen) in [
        (&[][..], 0, Some("10.0.0.0/24")),
        (&[], 0x1_2345, Some("10.35.69.0/24")),
        (&["10.0.0.0/24", "10.0.1.7/32"], 0, Some("10.0.2.0/24")),
        // Wider, and one inside another.
        (&["10.0.0.0/9", "10.1.0.0/16"], 5, Some("10.128.0.0/24")),
        // From the last one on to the first.
        (&["10.255.255.0/24"], 0xffff, Some("10.0.0.0/24")),
        (&["10.0.0.0/8"], 0x1fff, Some("172.31.255.0/24")),
        (&["10.0.0.0/8", "172.16.0.0/12"], 3, Some("192.168.3.0/24")),
        (&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"], 3, None),
        // Default routes, and parts of them, are no networks.
        (
            &["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "::/0"],
            0,
            Some("10.0.0.0/24"),
        ),
        (&["8.0.0.0/7"], 0, Some("10.0.0.0/24")),
    ] {
        assert_eq!(v4(taken, random), chosen.map(cidr), "{taken:?} {random}");
    }
    let v6 = |taken: &[&str], random| free_network(Family::V6, &cidrs(taken), random);
    for (taken, random, chosen) in [
        (
            &[][..],
            0x00ab_cdef_0123_4567_u128,
            Some("fdab:cdef:123:4567::/64"),
        ),
        (&["fd00::/64", "10.0.0.0/8"], 0, Some("fd00:0:0:1::/64")),
        (&["fd00::/9"], 0, Some("fd80::/64")),
        (&["fd00::/8"], 0, None),
        (&["fc00::/7", "2000::/3"], 0, Some("fd00::/64")),
    ] {
        assert_eq!(v6(taken, random), chosen.map(cidr), "{taken:?} {random:x}");
    }
}

proptest! {
    #[test]
    fn a_chosen_network_is_private_and_overlaps_no_route(
        v4 in prop::collection::vec((any::<u32>(), 8_u8..=32), 0..40),
        near in prop::collection::vec((0_u32..1 << 16, 9_u8..=32), 0..40),
        v6 in prop::collection::vec((any::<u128>(), 8_u8..=128), 0..40),
        random in any::<u128>(),
    ) {
        let mut taken: Vec<Cidr> = Vec::new();
        taken.extend(v4.iter().filter_map(|(ip, len)| Cidr::new(Ipv4Addr::from_bits(*ip).into(), *len)));
        // Of the pool.
        taken.extend(near.iter().filter_map(|(block, len)| {
            Cidr::new(Ipv4Addr::from_bits(0x0a00_0000 | block << 8).into(), *len)
        }));
        taken.extend(v6.iter().filter_map(|(ip, len)| {
            Cidr::new(Ipv6Addr::from_bits(0xfd_u128 << 120 | ip >> 8).into(), *len)
        }));
        for family in Family::BOTH {
            let Some(chosen) = free_network(family, &taken, random) else {
                // Then one is as wide as a whole pool.
                prop_assert!(taken.iter().any(|block| block.prefix_len() <= 16));
                continue;
            };
            prop_assert!(is_private(chosen));
            prop_assert!(own_address(chosen).is_some());
            for block in &taken {
                prop_assert!(!overlap(chosen, *block), "{} overlaps {}", chosen, block);
            }
        }
    }
}

#[test]
fn the_first_address_is_this_hosts_and_small_networks_have_no_room() {
    for (network, address) in [
        ("10.9.0.0/24", Some("10.9.0.1/24")),
        ("10.9.0.0/30", Some("10.9.0.1/30")),
        ("10.9.0.0/31", None),
        ("10.9.0.7/32", None),
        ("fd00:1::/64", Some("fd00:1::1/64")),
        ("fd00:1::/127", None),
        ("fd00:1::/128", None),
    ] {
        let own = own_address(cidr(network)).map(|address| address.to_string());
        assert_eq!(own.as_deref(), address, "{network}");
    }
}

#[test]
fn an_endpoint_gets_the_port_that_it_lacks() {
    for (text, port, meant) in [
        ("vpn.example.org", 51820, Some("vpn.example.org:51820")),
        (" vpn.example.org:443 ", 51820, Some("vpn.example.org:443")),
        ("192.0.2.7", 7, Some("192.0.2.7:7")),
        ("2001:db8::7", 7, Some("[2001:db8::7]:7")),
        ("[2001:db8::7]", 7, Some("[2001:db8::7]:7")),
        ("[2001:db8::7]:443", 7, Some("[2001:db8::7]:443")),
        ("", 7, None),
        ("vpn.example.org:port", 7, None),
        ("two words", 7, None),
    ] {
        let read = endpoint(text, port).ok().map(|it| it.to_string());
        assert_eq!(read.as_deref(), meant, "{text}");
    }
}

#[test]
fn an_address_that_nobody_outside_finds_is_told() {
    for (ip, said) in [
        ("10.1.0.100", Some("private")),
        ("192.168.1.7", Some("the router forwards UDP port 7")),
        ("172.31.0.1", Some("private")),
        ("100.64.0.1", Some("CGNAT")),
        ("100.127.255.255", Some("CGNAT")),
        ("fd00::1", Some("private")),
        ("100.128.0.1", None),
        ("198.51.100.7", None),
        ("2001:db8::1", None),
    ] {
        let told = is_hidden(ip.parse().unwrap(), 7);
        match said {
            Some(said) => assert!(
                told.as_ref().is_some_and(|it| it.contains(said)),
                "{ip} {told:?}"
            ),
            None => assert_eq!(told, None, "{ip}"),
        }
    }
}

#[test]
fn the_port_is_the_usual_one_or_the_next() {
    assert_eq!(free_port(|_| true), Some(PORT));
    assert_eq!(free_port(|port| port > PORT + 2), Some(PORT + 3));
    assert_eq!(free_port(|_| false), None);
}
