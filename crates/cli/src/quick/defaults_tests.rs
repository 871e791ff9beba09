use super::*;

fn cidrs(list: &[&str]) -> Vec<Cidr> {
    let cidr = |text: &&str| {
        let (ip, len) = text.split_once('/').unwrap();
        Cidr::new(ip.parse().unwrap(), len.parse().unwrap()).unwrap()
    };
    list.iter().map(cidr).collect()
}

#[test]
fn the_lan_is_the_private_networks_that_are_not_the_tunnels() {
    let tunnel = cidrs(&["10.9.0.0/24", "fd09::/64"]);
    for (networks, found) in [
        (
            &["192.168.1.0/24", "127.0.0.0/8", "198.51.100.0/24"][..],
            &["192.168.1.0/24"][..],
        ),
        (
            &["10.9.0.0/24", "10.9.0.7/32", "10.0.0.0/8"],
            &["10.0.0.0/8"],
        ),
        (
            &["fe80::/64", "fd01::/64", "2001:db8::/64", "fd09::1/128"],
            &["fd01::/64"],
        ),
        (&["172.17.0.0/16", "172.17.0.0/16"], &["172.17.0.0/16"]),
    ] {
        assert_eq!(lan(&tunnel, cidrs(networks).into_iter()), cidrs(found));
    }
    let v4 = cidrs(&["10.9.0.0/24"]);
    assert_eq!(lan(&v4, cidrs(&["fd01::/64"]).into_iter()), []);
}

#[test]
fn name_servers_are_those_that_others_may_ask() {
    let text = "# by hand\nnameserver 127.0.0.53\nnameserver 192.168.1.1 # router\noptions edns0\n\
                nameserver\nnameserver fe80::1%eth0\nnameserver 169.254.169.253\nnameserver 2001:db8::53\n";
    let found: Vec<String> = servers_of(text).iter().map(IpAddr::to_string).collect();
    assert_eq!(found, ["192.168.1.1", "2001:db8::53"]);
}
