use adit_ctl::config::expires;

use super::*;

/// Public keys that a private one has, as `adit genkey | adit pubkey` prints them.
pub(crate) fn key(number: u8) -> PublicKey {
    Secret::new(&[number; 32]).public_key()
}

fn section(more: &str) -> String {
    format!("[Peer]\nPublicKey = {}\n{more}", key(1))
}

fn json(more: &str) -> String {
    format!("{{\"public_key\":\"{}\"{more}}}", key(1))
}

#[test]
fn a_section_and_json_say_the_same() {
    let of_section = PeerRecord::from_section(
        section(
            "# friendly_name = alice #1\n# Limit = 50M/10M\n# Quota = 1G\n# Expires = 2099-12-31\nAllowedIPs = \
             10.0.0.2/32, fd00::2/128\nAllowedIPs = 10.0.0.2\nEndpoint = vpn.example.org:51820\nPersistentKeepalive = 25\n\
             PresharedKeyFile = alice.psk\n",
        )
        .as_bytes(),
    )
    .expect("a record");
    let of_json = PeerRecord::from_json(
        json(
            ",\"name\":\"alice #1\",\"limit\":\"50M/10M\",\"quota\":\"1G\",\"expires\":\"2099-12-31\",\"allowed_ips\":\
             [\"fd00::2/128\",\"10.0.0.2\"],\"endpoint\":\"vpn.example.org:51820\",\"persistent_keepalive\":25,\
             \"preshared_key_file\":\"alice.psk\"",
        )
        .as_bytes(),
    );
    assert_eq!(of_json.as_ref(), Ok(&of_section));
    assert_eq!(of_section.name.as_deref(), Some("alice #1"));
    assert_eq!(of_section.allowed_ips.len(), 2);
    assert_eq!(of_section.preshared_key_file.as_deref(), Some("alice.psk"));
    assert_eq!(of_section.allowance.to_peer, Some(50_000_000 / 8));
    assert_eq!(Ok(of_section.allowance.expires), expires("2099-12-31"));
    let in_comment =
        PeerRecord::from_section(section("# PresharedKeyFile = alice.psk\n").as_bytes());
    let in_comment = in_comment.expect("a record").preshared_key_file;
    assert_eq!(in_comment.as_deref(), Some("alice.psk"));
    let short = PeerRecord::from_json(json("").as_bytes()).expect("a record");
    let bare = PeerRecord::from_section(section("").as_bytes());
    assert_eq!(bare, Ok(short));
}

/// What is wrong, which has no key in it.
#[track_caller]
fn refused(record: Result<PeerRecord, String>, words: &str) {
    let why = record.expect_err("no record");
    assert!(why.contains(words), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let longest = why.split(|c| !is_base64(c)).map(str::len).max();
    assert!(longest < Some(32), "{why}");
}

#[test]
fn a_section_that_is_no_record_is_refused_with_its_reason() {
    let secret = key(9);
    for (text, words) in [
        (String::new(), "one [Peer] section"),
        ("hello".into(), "line 1: expected Key = value"),
        (section("Nonsense = 1\n"), "line 3: [Peer] has no key"),
        (
            section(&format!("PrivateKey = {secret}\n")),
            "belongs in [Interface]",
        ),
        (
            format!("[Interface]\nPrivateKey = {secret}\n{}", section("")),
            "a private key",
        ),
        (
            format!("[Interface]\nListenPort = 1\n{}", section("")),
            "no [Interface] section",
        ),
        (section(&section("")), "line 3: the same peer"),
        (
            section("AllowedIPs = 10.0.0.1/33\n"),
            "line 3: AllowedIPs: expected a block",
        ),
        (section("AllowedIPs = 10.0.0.1/24\n"), "has host bits"),
        (section("AllowedIPs = +10.0.0.1/32\n"), "without + and -"),
        (
            section(&format!("PresharedKey = {secret}\n")),
            "PresharedKeyFile = NAME",
        ),
        (
            section("PresharedKeyFile = ../wg0.conf\n"),
            "the name of a file",
        ),
        (
            section("PresharedKeyFile = .hidden\n"),
            "the name of a file",
        ),
        (
            section(&format!("PresharedKeyFile = {secret}\n")),
            "the name of a file",
        ),
        (
            section("PresharedKeyFile = a\n# presharedkeyfile = b\n"),
            "line 4: a second",
        ),
        (section("# Limit = fast\n"), "Limit: expected bits a second"),
        (section("# Expires = tomorrow\n"), "Expires: expected a day"),
        (
            "[Peer]\nPublicKey = AAAA\n".into(),
            "line 2: PublicKey: this is no key",
        ),
        (
            // A point that no private key leads to.
            "[Peer]\nPublicKey = AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n".into(),
            "no public key",
        ),
        (section(&"#".repeat(MAX_RECORD)), "more than 65536 bytes"),
    ] {
        refused(PeerRecord::from_section(text.as_bytes()), words);
    }
    refused(PeerRecord::from_section(b"[Peer]\n\xff"), "not UTF-8");
}

#[test]
fn json_that_is_no_record_is_refused_with_its_reason() {
    let secret = key(9);
    let secret_field = json(&format!(",\"private_key\":\"{secret}\""));
    for (text, words) in [
        (String::new(), "no JSON of a record"),
        ("[]".into(), "no JSON of a record"),
        ("{}".into(), "missing field `public_key`"),
        (json("").replace('}', ""), "no JSON of a record"),
        (format!("{{\"public_key\":[\"{secret}\"]}}"), "no JSON"),
        (secret_field, "a private key"),
        (json(",\"ports\":[80]"), "a field that no record has"),
        (json(",\"allowed_ips\":\"10.0.0.2/32\""), "no JSON"),
        (
            json(",\"name\":\"a\",\"name\":\"b\""),
            "duplicate field `name`",
        ),
        (
            json(",\"allowed_ips\":[\"10.0.0.2/32\\nPresharedKey = a\"]"),
            "allowed_ips: it has a character",
        ),
        (
            json(",\"endpoint\":\"a:1 # Limit\""),
            "endpoint: it has a character",
        ),
        (
            json(",\"allowed_ips\":[\"ten\"]"),
            "AllowedIPs: expected a block",
        ),
        (json(",\"persistent_keepalive\":70000"), "no JSON"),
        (json(",\"quota\":\"much\""), "Quota: expected bytes"),
        ("[".repeat(MAX_RECORD), "no JSON"),
        (
            format!("{}{}", json(""), " ".repeat(MAX_RECORD)),
            "more than 65536 bytes",
        ),
    ] {
        refused(PeerRecord::from_json(text.as_bytes()), words);
    }
}

#[test]
fn a_file_with_a_preshared_key_has_nothing_else() {
    let text = key(3).to_string();
    let found = preshared_key(format!("{text}\n").as_bytes()).expect("a key");
    assert_eq!(found.bytes(), &key(3).0);
    for wrong in ["", "AAAA", &format!("{text}{text}"), "PresharedKey = x"] {
        assert!(preshared_key(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300), at in 0..100_usize) {
        let _ = PeerRecord::from_section(&bytes);
        let _ = PeerRecord::from_json(&bytes);
        // What is nearly a record.
        for text in [section("AllowedIPs = 10.0.0.2/32\n# Limit = 5M\n"), json(",\"allowed_ips\":[\"10.0.0.2\"]")] {
            let mut text = text.into_bytes();
            let at = at.min(text.len());
            text.splice(at..at, bytes.iter().copied().take(3));
            let _ = PeerRecord::from_section(&text);
            let _ = PeerRecord::from_json(&text);
        }
    }
}

#[test]
fn allowed_ports_are_read_from_lines_comments_and_lists() {
    let of_section = |more: &str| PeerRecord::from_section(section(more).as_bytes());
    let of_json = |more: &str| PeerRecord::from_json(json(more).as_bytes());
    let ports = |record: Result<PeerRecord, String>| record.expect("a record").allowed_ports;
    let of_line = ports(of_section("AllowedPorts = tcp/443, udp/53\n"));
    assert!(of_line.is_some());
    for more in [
        "# AllowedPorts = tcp/443, udp/53\n",
        "allowedports = tcp/443 # the web\nAllowedPorts = udp/53\n",
    ] {
        assert_eq!(ports(of_section(more)), of_line, "{more}");
    }
    let list = ",\"allowed_ports\":[\"tcp/443\",\"udp/53\"]";
    assert_eq!(ports(of_json(list)), of_line);
    let nothing = Some(AllowedPorts::default());
    assert_eq!(ports(of_section("AllowedPorts =\n")), nothing);
    assert_eq!(ports(of_json(",\"allowed_ports\":[]")), nothing);
    assert_eq!(ports(of_section("")), None);
    assert_eq!(ports(of_json("")), None);
    let wrong = of_section("AllowedIPs = 10.0.0.2\nAllowedPorts = tcp/443, telnet\n");
    refused(
        wrong,
        "line 4: AllowedPorts: expected rules such as tcp/443",
    );
    refused(
        of_json(",\"allowed_ports\":[\"tcp/0x1\"]"),
        "AllowedPorts: expected",
    );
    refused(
        of_json(",\"allowed_ports\":[\"tcp/1\\n\"]"),
        "allowed_ports: it has a character",
    );
}
