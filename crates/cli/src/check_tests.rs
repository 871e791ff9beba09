use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const ONE: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const TWO: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

/// A file with nothing to remark.
fn good() -> String {
    format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.1/24, fd00::1/64\nListenPort = 51820\n\
         [Peer]\nPublicKey = {ONE}\nAllowedIPs = 10.0.0.2/32, fd00::2/128\nEndpoint = 192.0.2.1:51820\n\
         [Peer]\nPublicKey = {TWO}\nAllowedIPs = 10.0.0.3/32\n"
    )
}

fn findings(text: &str) -> Vec<CheckFinding> {
    examine(
        &Config::parse(text, "file").expect("a configuration"),
        false,
    )
}

#[test]
fn a_good_file_has_nothing_to_remark() {
    assert_eq!(findings(&good()), []);
}

#[test]
fn each_mistake_is_found_alone() {
    let cases = [
        (
            "10.0.0.3/32",
            "10.0.0.1/32",
            Severity::Warning,
            "own Address",
        ),
        (
            TWO,
            "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=",
            Severity::Warning,
            "a key of its own",
        ),
        (
            "192.0.2.1:51820",
            "10.0.0.1:51820",
            Severity::Warning,
            "own Address",
        ),
        (
            "10.0.0.3/32",
            "192.0.2.0/24",
            Severity::Warning,
            "lies inside the allowed IPs",
        ),
        ("10.0.0.3/32", "", Severity::Warning, "has no AllowedIPs"),
        (
            "192.0.2.1:51820",
            "10.0.0.2:51820",
            Severity::Warning,
            "the network inside the tunnel",
        ),
        (
            "10.0.0.3/32",
            "10.0.0.0/8",
            Severity::Hint,
            "the narrower one counts",
        ),
        (
            "10.0.0.3/32",
            "0.0.0.0/0",
            Severity::Hint,
            "IPv6 leaves outside",
        ),
        (", fd00::1/64", "", Severity::Warning, "no IPv6 Address"),
        (
            "ListenPort = 51820",
            "MTU = 1441\nListenPort = 1",
            Severity::Warning,
            "1501 bytes over IPv4",
        ),
        (
            "ListenPort = 51820",
            "MTU = 1279\nListenPort = 1",
            Severity::Error,
            "IPv6 needs 1280",
        ),
        (
            "ListenPort = 51820",
            "DNS = 9.9.9.9\nListenPort = 1",
            Severity::Hint,
            "asked outside",
        ),
    ];
    for (old, new, kind, text) in cases {
        let found = findings(&good().replace(old, new));
        assert_eq!(found.len(), 1, "{old} → {new}: {found:?}");
        assert!(found[0].0 == kind && found[0].1.contains(text), "{found:?}");
    }
    let no_key = good().replace(&format!("PrivateKey = {KEY}\n"), "");
    assert!(findings(&no_key)[0].1.contains("no PrivateKey"));
}

#[test]
fn a_wrong_private_key_is_not_also_a_missing_one() {
    let dir = std::env::temp_dir().join(format!("adit-check-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("wg0.conf");
    let mut found = Vec::new();
    for key in [&KEY[1..], "", KEY] {
        std::fs::write(&file, good().replace(KEY, key)).expect("a file");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("our file");
        let findings = all_findings(&file, |_, _| Here::default()).expect("a file");
        found.push(findings.into_iter().map(|it| it.1).collect::<Vec<_>>());
    }
    std::fs::remove_dir_all(&dir).expect("our directory");
    assert!(found[0].len() == 1 && found[0][0].contains("PrivateKey: this is no key"));
    assert!(found[1].len() == 1 && found[1][0].contains("PrivateKey has no value"));
    assert!(found[2].is_empty(), "{found:?}");
}

#[test]
fn a_peer_behind_nat_and_one_that_cannot_begin_are_found() {
    let no_port = good().replace("ListenPort = 51820\n", "");
    let texts: Vec<String> = findings(&no_port).into_iter().map(|it| it.1).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("peers without an Endpoint cannot begin"));
    assert!(texts[1].contains("PersistentKeepalive = 25"));
    let nowhere = no_port.replace("Endpoint = 192.0.2.1:51820\n", "");
    assert!(findings(&nowhere)[0].1.contains("no handshake can begin"));
}

#[test]
fn peers_that_are_not_translated_are_found() {
    let hub = good().replace("ListenPort", "# Forward = internet\nListenPort");
    assert_eq!(findings(&hub), []);
    let narrow = hub.replace("10.0.0.1/24", "10.0.0.1/32");
    for (text, count) in [
        (hub.replace("10.0.0.3/32", "10.0.1.3/32"), 1),
        // What is behind a peer may be known on the way back.
        (hub.replace("10.0.0.3/32", "10.0.0.3/32, 10.0.1.3/32"), 0),
        (narrow.clone(), 2),
        (narrow.replace("internet", "peers"), 0),
    ] {
        let found = findings(&text);
        assert_eq!(found.len(), count, "{found:?}");
        assert!(
            found
                .iter()
                .all(|it| it.1.contains("is in no network of the interface's own"))
        );
    }
}

/// The firewall mark keeps the datagrams of a default route out of the tunnel.
#[test]
fn an_endpoint_may_lie_inside_a_default_route() {
    let full = good().replace("10.0.0.3/32", "0.0.0.0/0, ::/0");
    assert_eq!(findings(&full), []);
    let table = full.replace("ListenPort", "Table = 7\nListenPort");
    assert!(
        findings(&table)[0]
            .1
            .contains("lies inside the allowed IPs 0.0.0.0/0")
    );
    let off = full.replace("ListenPort", "Table = off\nListenPort");
    assert_eq!(findings(&off), []);
}

#[test]
fn mtu_fits_the_family_of_the_endpoint() {
    let v6 = good().replace("192.0.2.1:51820", "[2001:db8::1]:51820");
    for (mtu, over) in [(1420, false), (1421, true)] {
        let text = v6.replace("ListenPort", &format!("MTU = {mtu}\nListenPort"));
        assert_eq!(!findings(&text).is_empty(), over, "{mtu}");
    }
}

/// Every secret in every place for a public key: it is told, and not printed.
#[test]
fn secrets_in_the_place_of_public_keys_are_told_and_not_printed() {
    let private = |n: u8| adit_ctl::keys::generate_private(|key| key.fill(n));
    let mut told = 0;
    for n in 1..=64_u8 {
        let secret = private(n);
        let text = adit_ctl::keys::to_base64(secret.bytes());
        let found = findings(&good().replace(TWO, &text));
        let all: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        let all = all.join("\n");
        if adit_ctl::keys::is_public(&PublicKey(*secret.bytes())) {
            continue;
        }
        told += 1;
        assert!(
            all.contains("[Peer] number 2: its PublicKey is a private key"),
            "{all}"
        );
        assert!(!all.contains(&text[..16]), "{all}");
        let worse = findings(
            &good()
                .replace(TWO, &text)
                .replace("10.0.0.3/32", "10.0.0.1/32"),
        );
        assert!(worse.len() > found.len() && worse.iter().all(|it| !it.1.contains(&text[..16])));
        let public = adit_ctl::keys::to_base64(&secret.public_key().0);
        assert_eq!(findings(&good().replace(TWO, &public)), []);
    }
    assert!(told >= 50, "{told} of 64");
    // Some private keys look like public ones.
    let looks_public = |n: &u8| adit_ctl::keys::is_public(&PublicKey(*private(*n).bytes()));
    let text = (1..=255)
        .find(looks_public)
        .map(|n| adit_ctl::keys::to_base64(private(n).bytes()));
    let text = text.expect("one of 255");
    let text = text.as_str();
    let hub = good().replace("ListenPort = 51820\n", "");
    let hub = hub.replace(
        "AllowedIPs = 10.0.0.3/32",
        "Endpoint = your.host:1\nAllowedIPs = 10.0.0.1/32, 10.0.0.0/25",
    );
    let wrong = hub.replace(TWO, text);
    let preshared = format!("PresharedKey = {text}\nAllowedIPs = 10.0.0.2/32");
    let name = format!("adit-check-secrets-{}.conf", std::process::id());
    let path = std::env::temp_dir().join(name);
    for wrong in [
        wrong.replace(KEY, text),
        wrong.replace("AllowedIPs = 10.0.0.2/32", &preshared),
    ] {
        std::fs::write(&path, wrong).expect("a file");
        let found = all_findings(&path, |_, _| Here::default()).expect("findings");
        assert!(
            found.len() > 3 && found.iter().all(|it| !it.1.contains(&text[..16])),
            "{found:?}"
        );
    }
    std::fs::remove_file(&path).expect("it was there");
    let preshared = format!("PresharedKey = {TWO}\nAllowedIPs = 10.0.0.2/32");
    let found = findings(&good().replace("AllowedIPs = 10.0.0.2/32", &preshared));
    assert!(
        found[0].1.contains("its PublicKey is a PresharedKey"),
        "{found:?}"
    );
    let own = format!("PresharedKey = {KEY}\nAllowedIPs = 10.0.0.2/32");
    let found = findings(&good().replace("AllowedIPs = 10.0.0.2/32", &own));
    assert!(
        found[0].1.contains("its PresharedKey is the PrivateKey"),
        "{found:?}"
    );
    let unclamped = adit_ctl::keys::to_base64(&[9; 32]);
    let found = findings(&good().replace(KEY, &unclamped));
    assert!(
        found
            .iter()
            .any(|it| it.1.contains("PrivateKey has not the form")),
        "{found:?}"
    );
}

#[test]
fn endpoints_of_examples_are_found() {
    for host in [
        "YOUR_SERVER_IP",
        "your.server.example",
        "server-ip",
        "x.x.x.x",
    ] {
        let found = findings(&good().replace("192.0.2.1", host));
        assert!(
            found[0].1.contains("looks like an example's"),
            "{host}: {found:?}"
        );
    }
}

#[test]
fn a_file_of_a_proxy_is_checked_as_one() {
    let name = format!("adit-check-proxy-{}.conf", std::process::id());
    let path = std::env::temp_dir().join(name);
    let check = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("our file");
        let mut findings = all_findings(&path, |_, _| Here::default()).expect("findings");
        findings
            .iter_mut()
            .for_each(|it| it.1 = it.1.replace(&*path.to_string_lossy(), "FILE"));
        findings
    };
    let right = good() + "[Socks5]\nBindAddress = 127.0.0.1:1080\n";
    let found = [
        check(&right),
        check(&right.replace("127.0.0.1", "")),
        check(&right.replace("ListenPort", "Table = 7\nListenPort")),
    ];
    std::fs::remove_file(&path).expect("it was there");
    let [right, open, table] = found;
    assert_eq!(right, []);
    assert_eq!(open.len(), 1, "{open:?}");
    let begin = "FILE:13: [Socks5] BindAddress: without a password";
    assert!(
        open[0].0 == Severity::Error && open[0].1.starts_with(begin),
        "{open:?}"
    );
    let passed = "FILE:4: Table is passed over: a proxy changes nothing of the host's network";
    assert_eq!(table, [(Severity::Hint, passed.to_owned())]);
}
