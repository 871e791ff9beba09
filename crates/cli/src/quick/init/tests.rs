use adit_ctl::config::Config;

use super::*;

fn answers(reach: Reach) -> Answers {
    let address = |ip: &str, prefix_len| InterfaceAddress {
        ip: ip.parse().unwrap(),
        prefix_len,
    };
    Answers {
        addresses: vec![address("10.115.23.1", 24), address("fd00:7::1", 64)],
        port: 51821,
        endpoint: "vpn.example.org:443".parse().unwrap(),
        reach,
    }
}

#[test]
fn the_file_says_what_was_answered_and_has_nothing_to_remark() {
    let private = new_keys::private_key().unwrap();
    for reach in Reach::value_variants() {
        let answers = answers(*reach);
        let text = text("wg0", &answers, &private);
        assert!(
            text.capacity() == 4096 && text.len() < 2048,
            "{}",
            text.len()
        );
        assert!(text.lines().all(|line| line.len() <= 100), "{}", *text);
        let config = Config::parse(&text, "wg0.conf").unwrap();
        assert_eq!(config.warnings, []);
        let interface = &config.interface;
        assert_eq!(interface.private_key.as_ref(), Some(&private));
        assert_eq!(interface.addresses, answers.addresses);
        assert_eq!(interface.listen_port, Some(answers.port));
        assert_eq!(interface.public_endpoint.as_ref(), Some(&answers.endpoint));
        assert_eq!(interface.forward, reach.forward());
        // A comment that names a peer would stand below a [Peer] that comes.
        let peer = format!("[Peer]\nPublicKey = {}\n", private.public_key());
        let longer = Config::parse(&config::with_section(&text, &peer), "wg0.conf").unwrap();
        assert_eq!(longer.peers[0].name, None);
        assert_eq!(longer.interface.forward, reach.forward());

        let said = summary(
            Path::new("/etc/wireguard/wg0.conf"),
            &answers,
            private.public_key(),
        );
        assert!(said.contains("next: adit up wg0\n"), "{said}");
        assert!(
            said.contains("10.115.23.0/24, this host is 10.115.23.1"),
            "{said}"
        );
        assert!(!said.contains(&**keys::to_base64(private.bytes())));
    }
}

#[test]
fn json_says_what_the_file_says_and_not_its_key() {
    let private = new_keys::private_key().unwrap();
    let public = private.public_key();
    let path = Path::new("/etc/wireguard/wg0.conf");
    for (reach, forward) in [(Reach::Internet, r#""internet""#), (Reach::Host, "null")] {
        let json = InitDone::of("wg0", path, &answers(reach), public);
        let json = serde_json::to_string(&json).unwrap();
        let expected = format!(
            r#"{{"schema":1,"interface":"wg0","done":"made","file":"/etc/wireguard/wg0.conf","public_key":"{public}","addresses":["10.115.23.1/24","fd00:7::1/64"],"listen_port":51821,"endpoint":"vpn.example.org:443","forward":{forward}}}"#
        );
        assert_eq!(json, expected);
    }
}
