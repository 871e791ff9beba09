use super::*;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const ONE: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

fn host(networks: &[(&str, &str)]) -> Here {
    Here {
        networks: Networks::of(networks),
        addresses: vec![("192.168.1.20".parse().unwrap(), "eth0".into())],
        sees_keys: true,
        ..Here::default()
    }
}

fn file(address: &str, allowed: &str, endpoint: &str) -> Config {
    let text = format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = {address}\nListenPort = 1\n\
         [Peer]\nPublicKey = {ONE}\nAllowedIPs = {allowed}\nEndpoint = {endpoint}\n"
    );
    Config::parse(&text, "file").expect("a configuration")
}

fn findings(here: &Here, config: &Config) -> Vec<(Severity, String)> {
    let mut found = Vec::new();
    here.examine(config, &mut found);
    found
}

#[test]
fn networks_that_are_here_too_are_told() {
    let here = host(&[
        ("192.168.1.0/24", "eth0"),
        ("172.17.0.0/16", "docker0"),
        ("10.9.0.0/24", "wg1"),
    ]);
    for (address, allowed, kinds) in [
        ("10.8.0.2/24", "10.8.0.0/24", &[][..]),
        ("10.8.0.2/24", "0.0.0.0/0, ::/0", &[]),
        ("10.8.0.2/32", "0.0.0.0/1, 128.0.0.0/1", &[]),
        ("10.8.0.2/24", "192.168.1.0/24", &[Severity::Warning]),
        (
            "10.8.0.2/24",
            "192.168.1.0/24, 10.9.0.0/24",
            &[Severity::Warning, Severity::Warning],
        ),
        ("10.8.0.2/24", "192.168.0.0/16", &[Severity::Hint]),
        ("10.8.0.2/24", "192.168.1.7/32", &[Severity::Hint]),
        (
            "10.8.0.2/24",
            "172.16.0.0/12, 10.0.0.0/8",
            &[Severity::Hint, Severity::Hint],
        ),
        ("192.168.1.9/24", "10.8.0.0/24", &[Severity::Warning]),
        (
            "10.9.0.2/24",
            "10.9.0.0/24",
            &[Severity::Warning, Severity::Warning],
        ),
    ] {
        let found = findings(&here, &file(address, allowed, "192.0.2.1:1"));
        let is: Vec<Severity> = found.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(is, kinds, "{address} {allowed}: {found:?}");
    }
    let off = file("10.8.0.2/24\nTable = off", "192.168.1.0/24", "192.0.2.1:1");
    assert_eq!(findings(&here, &off), []);
}

#[test]
fn of_many_networks_a_few_are_told() {
    let here = host(&[("10.0.0.0/8", "eth0")]);
    let blocks: Vec<String> = (0..2000)
        .map(|n| format!("10.1.{}.{}/32", n / 250, n % 250))
        .collect();
    let found = findings(
        &here,
        &file("192.168.7.1/24", &blocks.join(", "), "192.0.2.1:1"),
    );
    assert_eq!(found.len(), MANY + 1);
    assert!(found[MANY].1.starts_with("1995 more networks"), "{found:?}");
}

#[test]
fn a_file_for_another_host_is_not_compared_with_this_one() {
    let mut here = host(&[("10.8.0.0/24", "wg0"), ("192.168.1.0/24", "eth0")]);
    let phone = file("10.8.0.2/24", "192.168.1.0/24", "192.168.1.20:51820");
    // Its endpoint is here, and nobody has that key.
    let found = findings(&here, &phone);
    assert!(
        found.len() == 1 && found[0].1.contains("is this host itself"),
        "{found:?}"
    );
    // Without rights, nobody knows.
    here.sees_keys = false;
    assert_eq!(findings(&here, &phone), []);
    here.keys.insert(ONE.into());
    let phone = file("10.8.0.2/24", "192.168.1.0/24", "home.example.org:51820");
    assert_eq!(findings(&here, &phone), []);
}

#[test]
fn ipv6_that_is_disabled_and_cgnat_are_told() {
    let mut here = host(&[]);
    here.without_v6 = Some("net.ipv6.conf.all.disable_ipv6".into());
    for (address, allowed, endpoint, told) in [
        ("10.8.0.2/24", "10.8.0.0/24", "192.0.2.1:1", ""),
        (
            "10.8.0.2/24, fd08::2/64",
            "10.8.0.0/24",
            "192.0.2.1:1",
            "Address = fd08::2/64 need IPv6",
        ),
        (
            "10.8.0.2/24",
            "10.8.0.0/24, ::/0",
            "192.0.2.1:1",
            "AllowedIPs = ::/0 need IPv6",
        ),
        (
            "10.8.0.2/24",
            "10.8.0.0/24",
            "[2001:db8::1]:1",
            "Endpoint = [2001:db8::1]:1 need IPv6",
        ),
        ("10.8.0.2/24", "10.8.0.0/24", "100.64.0.1:1", "CGNAT"),
        ("10.8.0.2/24", "10.8.0.0/24", "100.128.0.1:1", ""),
    ] {
        let found = findings(&here, &file(address, allowed, endpoint));
        assert_eq!(found.len(), usize::from(!told.is_empty()), "{found:?}");
        assert!(
            found
                .iter()
                .all(|it| it.0 == Severity::Warning && it.1.contains(told)),
            "{found:?}"
        );
    }
    // Inside tunnels there are such networks, too.
    assert_eq!(
        findings(
            &here,
            &file("100.64.0.2/24", "100.64.0.0/24", "100.64.0.1:1")
        ),
        []
    );
    // In that network it may be right.
    here.networks = Networks::of(&[("100.64.0.0/10", "tailscale0")]);
    assert_eq!(
        findings(&here, &file("10.8.0.2/24", "10.8.0.0/24", "100.64.0.1:1")),
        []
    );
}

#[test]
fn forwarding_that_cannot_be_switched_on_is_told() {
    let mut here = host(&[]);
    here.fixed = vec!["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
    let config = file("10.8.0.1/24", "10.8.0.2/32", "192.0.2.1:1");
    assert_eq!(findings(&here, &config), []);
    let config = file(
        "10.8.0.1/24\n# Forward = internet",
        "10.8.0.2/32",
        "192.0.2.1:1",
    );
    let found = findings(&here, &config);
    assert!(
        found.len() == 1 && found[0].1.contains("--sysctl net.ipv4.ip_forward=1"),
        "{found:?}"
    );
}
