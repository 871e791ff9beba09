use super::*;

fn block(text: &str) -> Cidr {
    let (ip, len) = text.split_once('/').expect("a prefix");
    Cidr::new(
        ip.parse().expect("an address"),
        len.parse().expect("a length"),
    )
    .expect("a block")
}

#[test]
fn the_same_addresses_collide_and_lists_of_the_internet_do_not() {
    let network = |text: &str, device: &str| Network {
        block: block(text),
        device: device.to_owned(),
    };
    let lan = network("192.168.1.0/24", "eth0");
    let public = network("203.0.113.0/24", "eth1");
    let networks = Networks {
        near: vec![lan.clone(), public.clone(), network("fd00:1::/64", "eth0")],
        routes: vec![lan, public, network("192.168.1.7/32", "wg1")],
    };
    for (ours, theirs) in [
        ("192.168.1.0/24", Some("eth0")),
        ("192.168.1.7/32", Some("eth0")),
        ("192.168.0.0/16", Some("eth0")),
        ("192.168.2.0/24", None),
        ("203.0.113.9/32", Some("eth1")),
        // All but some addresses.
        ("203.0.112.0/20", None),
        ("192.0.0.0/2", None),
        ("0.0.0.0/0", None),
        ("fd00:1::/48", Some("eth0")),
        ("2000::/3", None),
    ] {
        let found = networks.collisions(block(ours));
        let found = found.first().map(|it| it.theirs.device.as_str());
        assert_eq!(found, theirs, "{ours}");
    }
    let to = "192.168.1.7".parse().unwrap();
    assert_eq!(networks.route(to, "eth0"), Some(block("192.168.1.0/24")));
    assert_eq!(networks.route(to, "wg1"), Some(block("192.168.1.7/32")));
    assert_eq!(networks.route(to, "eth1"), None);
}

#[test]
fn addresses_that_only_their_network_finds_are_known() {
    for (ip, private, cgnat) in [
        ("10.0.0.1", true, false),
        ("172.31.0.1", true, false),
        ("172.32.0.1", false, false),
        ("100.63.255.255", false, false),
        ("100.64.0.0", true, true),
        ("100.127.255.255", true, true),
        ("100.128.0.0", false, false),
        ("fd00::1", true, false),
        ("2001:db8::1", false, false),
    ] {
        let ip = ip.parse().unwrap();
        assert_eq!((is_private(ip), is_cgnat(ip)), (private, cgnat), "{ip}");
    }
}
