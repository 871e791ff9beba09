use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use adit_proto::config::{AllowedIpChange, Cidr, DeviceStatus, PeerStatus, PublicKey, Secret};
use proptest::prelude::*;

use super::*;
use crate::keys;

const PRIVATE: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const ONE: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const TWO: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "wg0.conf").map_err(|errors| errors.to_string())
}

fn cidr(text: &str) -> Cidr {
    let (ip, len) = text.split_once('/').unwrap();
    Cidr::new(ip.parse().unwrap(), len.parse().unwrap()).unwrap()
}

#[test]
fn every_key_of_wg_quick_is_understood() {
    let text = format!(
        "\u{feff}# Office\r
[INTERFACE]\r
  privatekey={PRIVATE} # mine\r
ListenPort = 51820
FwMark = 0xca6c
Address = 10.0.0.1/24 , fd00::1/64
ADDRESS = 10.0.1.1,
DNS = 9.9.9.9, example.com  corp.example
DNS = 2620:fe::fe
MTU = 1420
Table = 0x7b
PreUp = echo a=b, c # the shell's
PostUp = wg set %i peer x
# PostUp = not this
PostUp = second
PreDown = down
PostDown = gone
SaveConfig = True

[Peer]
PublicKey = {ONE}
PresharedKey = {TWO}
Endpoint = vpn.example.com:51820
AllowedIPs = 10.0.0.0/8, fd00::/8
AllowedIPs = 192.0.2.1
PersistentKeepalive = 25
[peer]
PublicKey = {TWO}
AllowedIPs =
Endpoint = [fe80::1%lo]:7
PersistentKeepalive = off"
    );
    let config = parse(&text).unwrap();
    let interface = &config.interface;
    assert_eq!(interface.private_key, keys::from_base64(PRIVATE));
    assert_eq!(
        (interface.listen_port, interface.fwmark),
        (Some(51820), Some(51820))
    );
    let addresses: Vec<String> = interface
        .addresses
        .iter()
        .map(InterfaceAddress::to_string)
        .collect();
    assert_eq!(addresses, ["10.0.0.1/24", "fd00::1/64", "10.0.1.1/32"]);
    assert_eq!(interface.dns.len(), 2);
    assert_eq!(interface.dns_search, ["example.com", "corp.example"]);
    assert_eq!(
        (interface.mtu, &interface.table),
        (Some(1420), &Table::Number(123))
    );
    assert_eq!(interface.pre_up, ["echo a=b, c # the shell's"]);
    assert_eq!(interface.post_up, ["wg set %i peer x", "second"]);
    assert_eq!(hook(&interface.post_up[0], "wg0"), "wg set wg0 peer x");
    assert_eq!(
        (&interface.pre_down[0], &interface.post_down[0]),
        (&"down".into(), &"gone".into())
    );
    assert!(interface.save_config && config.warnings.is_empty());

    let [one, two] = config.peers.as_slice() else {
        panic!("{:?}", config.peers)
    };
    assert_eq!(
        one.endpoint.as_ref().unwrap().to_string(),
        "vpn.example.com:51820"
    );
    assert_eq!(one.endpoint.as_ref().unwrap().numeric(), None);
    let blocks =
        ["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"].map(|ip| AllowedIpChange::Add(cidr(ip)));
    assert_eq!(one.allowed_ips, blocks);
    assert_eq!(
        (one.persistent_keepalive, two.persistent_keepalive),
        (Some(25), Some(0))
    );
    let local = two.endpoint.as_ref().unwrap().numeric().unwrap();
    assert_eq!(local, "[fe80::1%1]:7".parse().unwrap());
    assert!(two.allowed_ips.is_empty());

    let change = config.to_change(&[None, Some(local)]);
    assert!(change.replace_peers && change.peers[0].replace_allowed_ips);
    assert_eq!(
        (change.peers[0].endpoint, change.peers[1].endpoint),
        (None, Some(local))
    );
    assert_eq!(change.fwmark, Some(51820));
}

#[test]
fn allowed_ips_may_add_and_remove() {
    let text = format!("[Interface]\n[Peer]\nPublicKey={ONE}\nAllowedIPs = +10.0.0.0/8, -::/0\n");
    let config = parse(&text).unwrap();
    let expected = [
        AllowedIpChange::Add(cidr("10.0.0.0/8")),
        AllowedIpChange::Remove(cidr("::/0")),
    ];
    assert_eq!(config.peers[0].allowed_ips, expected);
    assert!(!config.to_change(&[]).peers[0].replace_allowed_ips);
}

/// (a line within `[InterfaceSection]`, the message about it)
const INTERFACE_MISTAKES: &[(&str, &str)] = &[
    (
        "PrivateKey = abc",
        "PrivateKey: this is no key: expected 44 characters of base64, the last a '=', got 3 characters",
    ),
    (
        "PrivateKey = a",
        "PrivateKey: this is no key: expected 44 characters of base64, the last a '=', got 1 character",
    ),
    (
        "PrivateKey",
        "expected Key = value, got \"PrivateKey\" and no '='",
    ),
    ("PrivateKey =", "PrivateKey has no value"),
    (
        "PrivatKey = x",
        "[Interface] has no key \"PrivatKey\": did you mean PrivateKey?",
    ),
    (
        "Adress = 10.0.0.1/24",
        "[Interface] has no key \"Adress\": did you mean Address?",
    ),
    (
        "Listen = 1",
        "[Interface] has no key \"Listen\": expected one of PrivateKey, ListenPort, FwMark, Address, DNS, MTU, Table, PreUp, PostUp, PreDown, PostDown, SaveConfig",
    ),
    (
        "PublicKey = x",
        "PublicKey belongs in [Peer], not in [Interface]",
    ),
    (
        "ListenPort = 65536",
        "ListenPort: expected a port from 0 to 65535 or a UDP service of /etc/services, got \"65536\"",
    ),
    (
        "ListenPort = +1",
        "ListenPort: expected a port from 0 to 65535 or a UDP service of /etc/services, got \"+1\"",
    ),
    (
        "FwMark = 0x1ffffffff",
        "FwMark: expected off or a number of 32 bits like 51820 or 0xca6c, got \"0x1ffffffff\"",
    ),
    (
        "Address = 10.0.0.300/24",
        "Address: expected an address like 10.0.0.1/24 or fd00::1/64, got \"10.0.0.300/24\"",
    ),
    (
        "Address = 10.0.0.1/33",
        "Address: expected an address like 10.0.0.1/24 or fd00::1/64, got \"10.0.0.1/33\"",
    ),
    (
        "DNS = 9.9.9",
        "DNS: expected an address or a search domain, got \"9.9.9\"",
    ),
    (
        "DNS = a:b",
        "DNS: expected an address or a search domain, got \"a:b\"",
    ),
    (
        "MTU = 65476",
        "MTU: expected bytes from 68 to 65475, got \"65476\"",
    ),
    (
        "MTU = 67",
        "MTU: expected bytes from 68 to 65475, got \"67\"",
    ),
    (
        "Table = -x",
        "Table: expected auto, off, a number or the name of a routing table, got \"-x\"",
    ),
    (
        "SaveConfig = yes",
        "SaveConfig: expected true or false, got \"yes\"",
    ),
    (
        "[Interfaces]",
        "there is no section \"[Interfaces]\": expected [Interface] or [Peer]",
    ),
    (
        "[Peer]",
        "this [Peer] has no PublicKey, which every peer needs",
    ),
];

const PEER_MISTAKES: &[(&str, &str)] = &[
    (
        "AllowedIPs = 10.0.0.1/24,",
        "AllowedIPs: there is nothing between two commas, or after the last",
    ),
    (
        "Endpoint = example.com",
        "Endpoint: expected host:port, address:port or [IPv6 address]:port (the port is missing), got \"example.com\"",
    ),
    (
        "Endpoint = example.com:0",
        "Endpoint: expected host:port, address:port or [IPv6 address]:port, the port from 1 to 65535 or a UDP service of /etc/services, got \"example.com:0\"",
    ),
    (
        "Endpoint = fd00::1",
        "Endpoint: expected [IPv6 address]:port, with the brackets, got \"fd00::1\"",
    ),
    (
        "Endpoint = fd00::1:51820:1",
        "Endpoint: expected [IPv6 address]:port, with the brackets, got \"fd00::1:51820:1\"",
    ),
    (
        "Endpoint = [1:2]:5",
        "Endpoint: expected an IPv6 address between the brackets, got \"[1:2]:5\"",
    ),
    (
        "Endpoint = :5",
        "Endpoint: expected host:port, address:port or [IPv6 address]:port, got \":5\"",
    ),
    (
        "AllowedIPs = 10.0.0.0\\8",
        "AllowedIPs: expected a block of addresses like 10.0.0.0/24 or fd00::/64, got \"10.0.0.0\\\\8\"",
    ),
    (
        "PersistentKeepalive = 25s",
        "PersistentKeepalive: expected off or seconds from 1 to 65535, got \"25s\"",
    ),
    (
        "AllowedIP = ::/0",
        "[Peer] has no key \"AllowedIP\": did you mean AllowedIPs?",
    ),
    ("DNS = 1.1.1.1", "DNS belongs in [Interface], not in [Peer]"),
];

#[test]
fn every_mistake_is_named_with_its_line_and_what_was_expected() {
    for (line, expected) in INTERFACE_MISTAKES {
        let error = parse(&format!("[Interface]\n# a comment\n{line}\n")).unwrap_err();
        assert_eq!(error, format!("wg0.conf:3: {expected}"));
    }
    for (line, expected) in PEER_MISTAKES {
        let text = format!("[Interface]\n[Peer]\nPublicKey = {ONE}\n{line}\n");
        assert_eq!(parse(&text).unwrap_err(), format!("wg0.conf:4: {expected}"));
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = format!(
        "ListenPort = 1\n[Interface]\nMTU = 1\n[Peer]\nPublicKey = {ONE}\n[Pear]\nwhatever = 1\nwhatever\n"
    );
    let expected = "\
wg0.conf:1: \"ListenPort\" stands before the first section: expected [Interface] or [Peer]
wg0.conf:3: MTU: expected bytes from 68 to 65475, got \"1\"
wg0.conf:6: there is no section \"[Pear]\": expected [Interface] or [Peer]";
    assert_eq!(parse(&text).unwrap_err(), expected);
    for empty in ["", "# nothing\n\n"] {
        let config = parse(empty).unwrap();
        let warning = config.warnings[0].to_string();
        assert_eq!(warning, "wg0.conf: there is no [Interface] section");
        assert_eq!(config.interface, InterfaceSection::default());
    }
}

/// The configuration that `wg setconf` and wg-quick read from the same file.
#[test]
fn of_what_is_said_twice_the_last_counts_and_is_warned_of() {
    let text = format!(
        "[Interface]\nListenPort = 1\nListenPort = 2\nMTU = 1400\nMTU =\n[Peer]\nPublicKey = {ONE}\nPublicKey = {TWO}\n\
         PersistentKeepalive = 5\nAllowedIPs = 10.1.0.0/16\nAllowedIPs = 10.2.0.0/16\nEndpoint = 192.0.2.1:1\n\
         [Peer]\nPublicKey = {TWO}\nAllowedIPs = 10.3.0.0/16\nEndpoint = 192.0.2.2:2\n[Interface]\nAddress = 10.0.0.1/8\n"
    );
    let config = parse(&text).unwrap();
    let interface = &config.interface;
    assert_eq!((interface.listen_port, interface.mtu), (Some(2), None));
    assert_eq!(interface.addresses.len(), 1);
    let warnings: Vec<String> = config.warnings.iter().map(Remark::to_string).collect();
    assert_eq!(
        warnings,
        [
            "wg0.conf:3: a second ListenPort: this one counts, not the one on line 2",
            "wg0.conf:5: a second MTU: this one counts, not the one on line 4",
            "wg0.conf:8: a second PublicKey: this one counts, not the one on line 7",
            "wg0.conf:13: the same peer stands on line 6: this section changes what that one says and replaces its \
             AllowedIPs",
            "wg0.conf:17: a second [Interface]: it continues the one on line 1",
        ]
    );
    // Both sections, in their order: the second updates the peer, whose keepalive it says nothing
    // about.
    let change = config.to_change(&[]);
    let key = keys::public_from_base64(TWO).unwrap();
    let [first, second] = change.peers.as_slice() else {
        panic!("{:?}", change.peers)
    };
    assert_eq!((first.public_key, second.public_key), (key, key));
    assert_eq!(first.allowed_ips.len(), 2);
    assert!(second.replace_allowed_ips);
    assert_eq!(
        second.allowed_ips,
        [AllowedIpChange::Add(cidr("10.3.0.0/16"))]
    );
    assert_eq!(second.persistent_keepalive, None);

    // Saved, it is said once and warned of no more.
    let device = DeviceStatus {
        listen_port: 2,
        peers: vec![PeerStatus {
            endpoint: Some("192.0.2.2:2".parse().unwrap()),
            persistent_keepalive: 5,
            ..peer(TWO, &["10.3.0.0/16"])
        }],
        ..DeviceStatus::default()
    };
    let saved = save(&text, &device, &interface.addresses, None);
    let again = parse(&saved).unwrap();
    assert_eq!(again.interface, config.interface);
    let [only] = again.peers.as_slice() else {
        panic!("{}", *saved)
    };
    assert_eq!(only.allowed_ips, second.allowed_ips);
    assert_eq!(only.persistent_keepalive, Some(5));
    assert_eq!(
        only.endpoint.as_ref().and_then(HostPort::numeric),
        device.peers[0].endpoint
    );
}

#[test]
fn files_are_read_as_wg_and_wg_quick_read_them() {
    let (head, tail) = ONE.split_at(20);
    let text = format!(
        "[ inter face ]\nDNS =\nAddress = # none yet\nAddress = 10.0.0.1/255.255.255.0\nMTU =\nTable = 0\nPreUp =\n\
         PostUp = # none\nListen Port = 51 820\nDNS = fe80::1%eth0\n\
         [ peer ]\nPublicKey = {head} {tail}\nAllowedIPs = 10.0. 0.0 / 8 , fd00::/ 8\nAllowedIPs = +10.1.0.0/16\n\
         AllowedIPs = 10.2.0.1/16\nEndpoint = [192.0.2.1] : 5\n[Peer]\nPublicKey = {TWO}\nEndpoint = fd00::1:51820\n"
    );
    let config = parse(&text).unwrap();
    let interface = &config.interface;
    assert_eq!(
        interface.addresses,
        [values::address("10.0.0.1/24").unwrap()]
    );
    assert_eq!(
        (interface.mtu, &interface.table),
        (None, &Table::Number(254))
    );
    let empty = parse("[Interface]\nTable = 7\nTable =\n").unwrap();
    assert_eq!(empty.interface.table, Table::Auto);
    assert_eq!(interface.listen_port, Some(51820));
    assert_eq!(interface.dns, ["fe80::1%eth0"]);
    assert!(interface.pre_up.is_empty() && interface.post_up.is_empty());
    let endpoints: Vec<_> = (config.peers.iter())
        .map(|peer| {
            peer.endpoint
                .as_ref()
                .unwrap()
                .numeric()
                .unwrap()
                .to_string()
        })
        .collect();
    assert_eq!(endpoints, ["192.0.2.1:5", "[fd00::1]:51820"]);
    assert_eq!(config.peers[0].allowed_ips.len(), 4);
    assert!(!config.peers[0].incremental, "the last line replaces");
    let warnings: Vec<String> = config.warnings.iter().map(Remark::to_string).collect();
    assert_eq!(
        warnings,
        [
            "wg0.conf:15: AllowedIPs: 10.2.0.1/16 has host bits: 10.2.0.0/16 is meant",
            "wg0.conf:19: Endpoint: without brackets, this is read as [fd00::1]:51820",
        ]
    );
    for mask in ["255.0.255.0", "0.0.0.1", "255.255.255"] {
        assert!(
            values::address(&format!("10.0.0.1/{mask}")).is_err(),
            "{mask}"
        );
    }
}

#[test]
fn ports_may_be_services() {
    let list = "# services\nhttps\t443/tcp\nhttps 443/udp # HTTP/3\nopenvpn\t1194/udp\tvpn tunnel\nssh 22/tcp\nbad\n";
    let port = |name| values::service_in(list, name);
    assert_eq!((port("https"), port("openvpn")), (Some(443), Some(1194)));
    assert_eq!((port("tunnel"), port("ssh")), (Some(1194), None));
    assert_eq!((port(""), port("HTTP/3")), (None, None));
}

#[test]
fn a_file_with_mistakes_still_says_how_to_take_it_down() {
    let text = "[Interface]\nPrivateKey = a\nDNS = 9.9.9.9\nAdress = 10.0.0.1\nPostDown = echo gone\n[Peer]\n";
    let path = std::env::temp_dir().join(format!("adit-ctl-{}-bad.conf", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let (config, errors) = Config::salvage(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(config.interface.dns, ["9.9.9.9"]);
    assert_eq!(config.interface.post_down, ["echo gone"]);
    assert_eq!(
        errors.0.iter().map(|error| error.line).collect::<Vec<_>>(),
        [2, 4, 6]
    );
}

#[test]
fn keys_do_not_show_in_errors_wherever_they_stand() {
    let misplaced = [
        format!("PrivateKey {PRIVATE}"),
        format!("PrivateKey: {PRIVATE}"),
        PRIVATE.to_owned(),
        format!("PrivateKey = {PRIVATE}="),
        format!("ListenPort = {PRIVATE}"),
        format!("MTU = {PRIVATE}"),
        format!("[{PRIVATE}]"),
        format!("PrivateKey{PRIVATE} = 1"),
    ];
    for line in misplaced {
        let error = parse(&format!("[Interface]\n{line}\n")).unwrap_err();
        assert!(!error.contains(&PRIVATE[..16]), "{error}");
    }
}

#[test]
fn what_is_probably_not_meant_is_warned_of() {
    let own = keys::to_base64(&keys::from_base64(PRIVATE).unwrap().public_key().0);
    let text = format!(
        "[Interface]\nPrivateKey={PRIVATE}\n[Peer]\nPublicKey={ONE}\nAllowedIPs=10.0.0.0/8\n\
         [Peer]\nPublicKey={TWO}\nAllowedIPs=10.0.0.0/8\n[Peer]\nPublicKey={}\nAllowedIPs=10.0.0.0/8\n",
        *own
    );
    let warnings: Vec<String> = parse(&text)
        .unwrap()
        .warnings
        .iter()
        .map(Remark::to_string)
        .collect();
    assert_eq!(
        warnings,
        [
            "wg0.conf:6: 10.0.0.0/8 moves to this peer from the one on line 3",
            "wg0.conf:9: this peer has the interface's own key and will be ignored",
        ]
    );
}

#[test]
fn unreadable_files_are_named_and_world_readable_ones_warned_of() {
    let path = std::env::temp_dir().join(format!("adit-ctl-{}.conf", std::process::id()));
    _ = std::fs::remove_file(&path);
    let file = path.display();
    let missing = Config::salvage(&path).unwrap_err().to_string();
    assert_eq!(
        missing,
        format!("{file}: No such file or directory (os error 2)")
    );
    // From before UTF-8.
    std::fs::write(&path, b"[Interface] # B\xfcro\n").unwrap();
    assert!(Config::salvage(&path).is_ok());
    assert_eq!(*read(&path).unwrap().0, "[Interface] # B\u{fc}ro\n");
    std::fs::write(&path, "[Interface]\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    let warnings = Config::salvage(&path).unwrap().0.warnings;
    assert!(
        warnings[0].to_string().ends_with("chmod 600 it"),
        "{warnings:?}"
    );
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(Config::salvage(&path).unwrap().0.warnings.is_empty());
    std::fs::remove_file(&path).unwrap();
    assert!(Config::salvage(Path::new("/dev/zero")).is_err());
}

#[test]
fn an_interface_is_a_name_or_a_file() {
    let found = |argument| locate(argument).map(|(path, name)| (path.display().to_string(), name));
    assert_eq!(
        found("wg0"),
        Ok(("/etc/wireguard/wg0.conf".into(), "wg0".into()))
    );
    assert_eq!(found("./a.b.conf"), Ok(("./a.b.conf".into(), "a.b".into())));
    assert_eq!(found("x.conf"), Ok(("x.conf".into(), "x".into())));
    for wrong in [
        "",
        "/",
        "a/b",
        "/etc/wireguard/sixteen-letters-.conf",
        "wg 0",
        "/x/.conf",
        "...conf/",
    ] {
        assert!(found(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn strip_leaves_what_wg_understands() {
    let text = format!(
        "# top\n[Interface]\nAddress = 10.0.0.1/24\nPrivateKey = {PRIVATE} # mine\nPostUp = x\n\
         ListenPort = 1\n\n# Bob\n[Peer]\nPublicKey = {ONE}\n"
    );
    let stripped = format!(
        "# top\n[Interface]\nPrivateKey = {PRIVATE} # mine\nListenPort = 1\n\n# Bob\n[Peer]\n\
         PublicKey = {ONE}\n"
    );
    assert_eq!(*strip(&text), stripped);
    assert_eq!(*strip(&stripped), stripped);
}

#[test]
fn a_comment_above_what_strip_leaves_out_names_no_peer() {
    for between in ["", "#\n"] {
        let text = format!(
            "[Interface]\nPrivateKey = {PRIVATE}\n# the office's resolver\nDNS = 10.0.0.1\n\
             {between}[Peer]\nPublicKey = {ONE}\n"
        );
        let stripped = format!(
            "[Interface]\nPrivateKey = {PRIVATE}\n# the office's resolver\n\n{between}[Peer]\n\
             PublicKey = {ONE}\n"
        );
        assert_eq!(*strip(&text), stripped);
        assert_eq!(*strip(&stripped), stripped);
        let peers = [&text, &stripped].map(|text| parse(text).unwrap().peers);
        assert_eq!(peers[0], peers[1]);
        assert_eq!(peers[0][0].name, None);
    }
}

fn peer(key: &str, allowed_ips: &[&str]) -> PeerStatus {
    PeerStatus {
        last_handshake: Some(Duration::from_secs(1)),
        rx_bytes: 1,
        tx_bytes: 1,
        allowed_ips: allowed_ips.iter().map(|ip| cidr(ip)).collect(),
        ..PeerStatus::new(keys::public_from_base64(key).unwrap())
    }
}

#[test]
fn saving_changes_only_what_changed_and_keeps_comments() {
    let original = format!(
        "# Office tunnel

[interface]
PrivateKey={PRIVATE} # do not share
Address = 10.0.0.1/24
address = fd00::1/64
MTU = 1400
PostUp = echo up
SaveConfig = true

# Bob's laptop
[Peer]
PublicKey = {ONE}
# moved in May
Endpoint = bob.example.com:51820
AllowedIPs = fd00::2/128
AllowedIPs = 10.0.0.2

# Eve, gone
[Peer]
PublicKey = {PRIVATE}

# Ann
[Peer]
PublicKey = {TWO}
PersistentKeepalive = 25
Endpoint = 192.0.2.1:1
"
    );
    let three = keys::to_base64(&[9; 32]);
    let device = DeviceStatus {
        private_key: keys::from_base64(PRIVATE).map(|mut key| {
            keys::clamp(&mut key);
            key
        }),
        public_key: None,
        listen_port: 51820,
        fwmark: 0,
        peers: vec![
            PeerStatus {
                preshared_key: Some(Secret::new(&[1; 32])),
                endpoint: Some("192.0.2.2:2".parse().unwrap()),
                persistent_keepalive: 5,
                ..peer(TWO, &[])
            },
            PeerStatus {
                endpoint: Some("192.0.2.9:51820".parse().unwrap()),
                ..peer(ONE, &["10.0.0.2/32", "fd00::2/128"])
            },
            peer(&three, &["10.0.0.9/32"]),
        ],
    };
    let addresses = ["10.0.0.1/24", "fd00::1/64"].map(|text| values::address(text).unwrap());
    let saved = save(&original, &device, &addresses, Some(1380));
    let expected = original
        .replace("MTU = 1400", "MTU = 1380")
        .replace(
            "SaveConfig = true\n",
            "SaveConfig = true\nListenPort = 51820\n",
        )
        .replace(
            &format!("# Eve, gone\n[Peer]\nPublicKey = {PRIVATE}\n\n"),
            "",
        )
        .replace("PersistentKeepalive = 25", "PersistentKeepalive = 5")
        .replace("Endpoint = 192.0.2.1:1\n", "Endpoint = 192.0.2.2:2\n")
        + &format!(
            "PresharedKey = {}\n\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.0.0.9/32\n",
            *keys::to_base64(&[1; 32]),
            *three
        );
    assert_eq!(*saved, expected);
    assert_eq!(*save(&saved, &device, &addresses, Some(1380)), *saved);
    let config = parse(&saved).unwrap();
    assert_eq!(config.peers.len(), 3);
    assert_eq!(config.interface.addresses, addresses);
}

#[test]
fn saving_into_an_empty_file_writes_it_all() {
    let device = DeviceStatus {
        private_key: keys::from_base64(PRIVATE),
        fwmark: 0xca6c,
        peers: vec![peer(ONE, &["::/0", "10.0.0.0/8"])],
        ..DeviceStatus::default()
    };
    let saved = save("", &device, &[], None);
    let config = parse(&saved).unwrap();
    assert_eq!(config.interface.fwmark, Some(0xca6c));
    assert_eq!(config.peers[0].allowed_ips.len(), 2);
}

#[test]
fn no_error_repeats_a_key_wherever_it_stands() {
    let mut seed = 1_u64;
    for cut in (14..30).cycle().take(320) {
        // About one key in two has a '/', which addresses and names may have as well.
        let bytes = std::array::from_fn(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed.to_be_bytes()[0]
        });
        let key = keys::to_base64(&bytes);
        let (begin, end) = key.split_at(cut);
        let mut texts = vec![
            format!("[Interface]\nPrivateKey {}\n", *key),
            format!("[Interface]\nPrivateKey: {}\n", *key),
            format!("[Interface]\nPrivateKey = {begin}\n{end}\n"),
            format!(
                "[Interface]\nPrivateKey = {begin}\n{}\n",
                end.trim_end_matches('=')
            ),
            format!("{}\n[Interface]\n", *key),
            format!("[{}]\n", *key),
        ];
        for value in [
            key.to_string(),
            key[..43].to_owned(),
            format!("{}:51820", *key),
            format!("{}/32", *key),
            keys::to_hex(&bytes).to_string(),
        ] {
            for name in [
                "ListenPort",
                "Address",
                "Table",
                "MTU",
                "FwMark",
                "SaveConfig",
            ] {
                texts.push(format!("[Interface]\n{name} = {value}\n"));
            }
            for name in ["Endpoint", "AllowedIPs", "PersistentKeepalive"] {
                texts.push(format!("[Peer]\nPublicKey = {ONE}\n{name} = {value}\n"));
            }
        }
        for text in texts {
            // A text that looks like a host and a port is no mistake.
            let Err(error) = parse(&text) else {
                assert!(
                    text.contains("Endpoint") && text.contains(":51820"),
                    "{text}"
                );
                continue;
            };
            let says = |from| error.contains(&key[from..from + 16]);
            assert!(!(0..=28).any(says), "{error}\nsays too much of\n{text}");
        }
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "(\\[(Interface|Peer)\\]|PublicKey|Endpoint|AllowedIPs|DNS|Table|[ =,#\n/:.%\\[\\]+-]|[a-f0-9x]|\\PC){0,80}") {
        _ = parse(&text);
        let device = DeviceStatus { peers: vec![peer(ONE, &["::/0"])], ..DeviceStatus::default() };
        _ = save(&text, &device, &[], Some(1280));
        _ = strip(&text);
        _ = locate(&text);
    }

    #[test]
    fn what_is_saved_is_what_runs(
        private in any::<[u8; 32]>(),
        port in any::<u16>(),
        mark in any::<u32>(),
        peers in proptest::collection::btree_map(
            any::<[u8; 32]>(),
            (any::<[u8; 32]>(), any::<std::net::SocketAddrV4>(), any::<u16>(), any::<Vec<([u8; 16], u8)>>()),
            0..4,
        ),
    ) {
        let device = DeviceStatus {
            private_key: Some(keys::generate_private(|key| key.copy_from_slice(&private))),
            public_key: None,
            listen_port: port,
            fwmark: mark,
            peers: peers.into_iter().map(|(key, (psk, endpoint, keepalive, ips))| PeerStatus {
                public_key: PublicKey(key),
                preshared_key: Some(Secret::new(&psk)).filter(|psk| !psk.is_zero()),
                endpoint: Some(endpoint.into()).filter(|e: &SocketAddr| e.port() != 0),
                persistent_keepalive: keepalive,
                allowed_ips: ips.iter().map(|(ip, len)| Cidr::new((*ip).into(), len % 129).unwrap()).collect(),
                ..peer(ONE, &[])
            }).collect(),
        };
        let saved = save("[Interface]\nListenPort = 7\n", &device, &[], None);
        let config = parse(&saved).unwrap();
        prop_assert_eq!(&config.interface.private_key, &device.private_key);
        prop_assert_eq!(config.interface.listen_port.unwrap_or(0), port);
        prop_assert_eq!(config.interface.fwmark.unwrap_or(0), mark);
        prop_assert_eq!(config.peers.len(), device.peers.len());
        for (read, peer) in config.peers.iter().zip(&device.peers) {
            prop_assert_eq!(read.public_key, peer.public_key);
            prop_assert_eq!(&read.preshared_key, &peer.preshared_key);
            prop_assert_eq!(read.endpoint.as_ref().and_then(HostPort::numeric), peer.endpoint);
            prop_assert_eq!(read.persistent_keepalive.unwrap_or(0), peer.persistent_keepalive);
            let mut ips: Vec<AllowedIpChange> = peer.allowed_ips.iter().copied().map(AllowedIpChange::Add).collect();
            ips.sort_by_key(|ip| format!("{ip:?}"));
            ips.dedup();
            let mut read = read.allowed_ips.clone();
            read.sort_by_key(|ip| format!("{ip:?}"));
            prop_assert_eq!(read, ips);
        }
    }
}

#[test]
fn a_peer_goes_with_the_comment_above_it_and_nothing_else() {
    let one = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
    let two = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";
    let head = "# head\n[Interface]\nListenPort = 1\n";
    let first = format!("\n# friendly_name = first\n[Peer]\nPublicKey = {one}\n");
    let second = format!("\n# second\n[Peer]\nAllowedIPs = 10.0.0.0/8 # why\nPublicKey = {two}\n");
    let text = format!("{head}{first}{second}");
    let key = |text: &str| crate::keys::public_from_base64(text).expect("a key");
    let rest = |peer| {
        super::without_peer(&text, key(peer))
            .expect("it is there")
            .to_string()
    };
    assert_eq!(rest(one), format!("{head}{second}"));
    assert_eq!(rest(two), format!("{head}{first}"));
    let alone = super::without_peer(&rest(one), key(two)).expect("it is there");
    assert!(!alone.contains("[Peer]"));
    assert_eq!(super::without_peer(&alone, key(two)), None);
}

/// A file with this instead of `HostPort = …`; what is said of it.
fn complaint(endpoint: &str) -> String {
    let text = format!("[Interface]\n[Peer]\nPublicKey = {ONE}\nEndpoint = {endpoint}\n");
    parse(&text).expect_err(endpoint)
}

#[test]
fn endpoints_that_are_none_are_told_apart() {
    for (endpoint, said) in [
        ("https://vpn.example.com:51820", "without https://"),
        ("udp://192.0.2.1:51820/", "without udp://"),
        ("vpn.example.com:51820:51820", "two ports, 51820 and 51820"),
        ("192.0.2.1:51820:7", "two ports, 51820 and 7"),
        ("gateway:1:2", "two ports, 1 and 2"),
        ("[2001:db8::1]:1:2", "two ports, 1 and 2"),
        ("192.0.2.1:1, 192.0.2.2:1", "a peer has one endpoint"),
        ("192.0.2.1:1;192.0.2.2:1", "a peer has one endpoint"),
        ("<server-ip>:51820", "a placeholder"),
        ("${SERVER}:51820", "a placeholder"),
        ("{{ endpoint }}:51820", "a placeholder"),
        ("192.0.2.300:51820", "300 is more than 255"),
        ("192.0.2:51820", "3 numbers instead of 4"),
        ("192.0.2.1.5:51820", "5 numbers instead of 4"),
        ("192.0.02.1:51820", "without zeros"),
        ("vpn.example.com:51820/udp", "more than that"),
        ("user@vpn.example.com:51820", "more than that"),
        ("\"192.0.2.1:51820\"", "remove the quotes"),
    ] {
        let error = complaint(endpoint);
        assert!(error.contains(said), "{endpoint}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    for good in [
        "vpn.example.com.:51820",
        "a_b:1",
        "xn--bcher-kva.example:1",
        "[::1]:1",
    ] {
        let text = format!("[Interface]\n[Peer]\nPublicKey = {ONE}\nEndpoint = {good}\n");
        assert!(parse(&text).is_ok(), "{good}");
    }
}

#[test]
fn files_of_other_programs_are_named_in_one_line() {
    let ours = format!(
        "[Interface]\nPrivateKey = {PRIVATE}\nAddress = 10.0.0.1/24\n[Peer]\nPublicKey = {ONE}\n"
    );
    let interface = |lines: &str| ours.replace("Address", &format!("{lines}Address"));
    let utf16: String = format!("\u{feff}{ours}").replace("", "\0");
    for (text, said) in [
        (
            interface(
                "Jc = 4\nJmin = 40\nJmax = 70\nS1 = 0\nS2 = 0\nH1 = 1\nH2 = 2\nH3 = 3\nH4 = 4\nI1 = <b 0x>\n",
            ),
            "AmneziaWG, which speaks another protocol (lines 3-12)",
        ),
        (
            interface("ExcludedApplications = a.b, c.d\n"),
            "Android app, which chooses applications (line 3)",
        ),
        (
            ours.replace(" = ", ": "),
            "got Key: value (lines 2-3, 5): write '='",
        ),
        (
            format!(
                "[Interface]\nPrivateKey = \"{PRIVATE}\"\n[Peer]\nPublicKey = '{ONE}'\nEndpoint = “a:1”\n"
            ),
            "without quotes here (lines 2, 4-5): remove the quotes",
        ),
        (ours.replace('\n', "\r"), "carriage returns"),
        (utf16, "iconv -f UTF-16"),
        (
            format!(
                "[NetDev]\nName=wg0\nKind=wireguard\n[WireGuard]\nPrivateKey={PRIVATE}\n[WireGuardPeer]\nPublicKey={ONE}\n"
            ),
            "systemd-networkd (lines 1, 4, 6)",
        ),
        (
            format!(
                "[connection]\nid=wg0\ntype=wireguard\n[wireguard]\nprivate-key={PRIVATE}\n[wireguard-peer.{ONE}]\n"
            ),
            "NetworkManager",
        ),
        (
            ours.clone() + "[Socks5]\nBindAddress = 127.0.0.1:25344\n",
            "a proxy (line 6), which `adit proxy -c FILE` runs",
        ),
        (format!("{{\"PrivateKey\": \"{PRIVATE}\"}}"), "JSON"),
        (
            "config interface 'wg0'\n\toption proto 'wireguard'\n".into(),
            "OpenWrt",
        ),
        ("<!DOCTYPE html>\n<p>log in".into(), "web page"),
        ("client\ndev tun\nremote a 1194\n".into(), "OpenVPN"),
    ] {
        let error = parse(&text).expect_err(said);
        assert!(error.contains(said), "{said}: {error}");
        assert!(!error.contains(&PRIVATE[..16]), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// Keys of all forms in all places where another text belongs.
#[test]
fn the_private_key_is_no_public_key() {
    let text = format!(
        "[Interface]\nPrivateKey = {PRIVATE}\n[Peer]\nPublicKey = {PRIVATE}\nAllowedIPs = 10.0.0.1/32\n"
    );
    let error = parse(&text).unwrap_err();
    assert!(
        error.contains("wg0.conf:3: PublicKey: this is the PrivateKey"),
        "{error}"
    );
    assert!(!error.contains(&PRIVATE[..16]), "{error}");
    let bare = PRIVATE.trim_end_matches('=').replace(['+', '/'], "x");
    for line in [
        format!("Endpoint = {bare}:51820"),
        format!("Endpoint = a.{bare}.b:51820"),
    ] {
        let error =
            parse(&format!("[Interface]\n[Peer]\nPublicKey = {ONE}\n{line}\n")).unwrap_err();
        assert!(!error.contains(&bare[..16]), "{error}");
    }
    let error = parse(&format!("[Interface]\nDNS = {bare}\n")).unwrap_err();
    assert!(!error.contains(&bare[..16]), "{error}");
}

#[test]
fn a_link_that_others_could_replace_is_warned_of() {
    let dir = std::env::temp_dir().join(format!("adit-ctl-{}-link", std::process::id()));
    let [closed, open] = ["closed", "open"].map(|name| dir.join(name));
    for (dir, mode) in [(&dir, 0o755), (&closed, 0o755), (&open, 0o777)] {
        std::fs::create_dir(dir).unwrap();
        std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
    }
    let file = closed.join("wg0.conf");
    std::fs::write(&file, "[Interface]\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    for (dir, is_told) in [(&closed, false), (&open, true)] {
        let link = dir.join("link.conf");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let warnings = Config::salvage(&link).unwrap().0.warnings;
        let told = warnings.iter().map(Remark::to_string);
        let told: Vec<String> = told
            .filter(|it| it.contains("others may replace"))
            .collect();
        assert_eq!(told.len(), usize::from(is_told), "{told:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn who_could_change_a_file_is_warned_of() {
    let dir = std::env::temp_dir().join(format!("adit-ctl-{}-risks", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("wg0.conf");
    std::fs::write(&path, "[Interface]\n").unwrap();
    let said = |mode: u32, dir_mode: u32| {
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
        };
        set(&dir, dir_mode);
        set(&path, mode);
        let warnings = Config::salvage(&path).unwrap().0.warnings;
        warnings
            .iter()
            .map(Remark::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(&path, None, Some(7)).unwrap();
        std::os::unix::fs::chown(&dir, None, Some(7)).unwrap();
        assert!(said(0o660, 0o755).contains("the group 7 may change this file"));
        assert!(said(0o660, 0o700).is_empty(), "in a closed directory");
        assert!(said(0o600, 0o775).contains("others may replace this file"));
    }
    assert!(said(0o606, 0o755).contains("chmod 600 it"));
    assert!(said(0o600, 0o777).contains("others may replace this file"));
    assert!(said(0o600, 0o1777).is_empty() && said(0o600, 0o755).is_empty());
    if is_root {
        std::os::unix::fs::chown(&path, Some(7), None).unwrap();
        assert!(said(0o600, 0o755).contains("the user 7 owns this file"));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn notes_are_settings_in_comments_of_the_interface() {
    let with =
        |lines: &str| parse(&format!("[Interface]\nPrivateKey = {PRIVATE}\n{lines}")).unwrap();
    let endpoint = |text: &str| Some(text.parse::<HostPort>().unwrap());
    for (lines, forward, found_at) in [
        ("# Forward = internet", Some(Forward::Internet), None),
        ("#forward=LAN # and more", Some(Forward::Lan), None),
        (
            "\n\n # PublicEndpoint = a.test:7\n# Forward = peers",
            Some(Forward::Peers),
            endpoint("a.test:7"),
        ),
        (
            "# PublicEndpoint = [fd00::1]:7",
            None,
            endpoint("[fd00::1]:7"),
        ),
        // Switched off, of another section, and none.
        ("## Forward = lan", None, None),
        ("# Peers are what Forward = lan names", None, None),
        ("# [Peer]\n# Forward = lan", None, None),
        (
            "[Peer]\n# Forward = lan\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=",
            None,
            None,
        ),
    ] {
        let config = with(lines);
        assert_eq!(config.interface.forward, forward, "{lines}");
        assert_eq!(config.interface.public_endpoint, found_at, "{lines}");
        assert_eq!(config.warnings, [], "{lines}");
        // What wg gets has comments, and what is saved keeps them.
        let text = format!("[Interface]\nPrivateKey = {PRIVATE}\n{lines}");
        let saved = save(&text, &DeviceStatus::default(), &[], None);
        assert_eq!(parse(&saved).unwrap().interface.forward, forward, "{lines}");
    }
    for (lines, forward, said) in [
        (
            "# Forward = yes",
            None,
            "wg0.conf:3: # Forward: expected peers, lan or internet",
        ),
        (
            "# PublicEndpoint = a.test",
            None,
            "wg0.conf:3: # PublicEndpoint: ",
        ),
        (
            "# Forward = lan\n# Forward = peers",
            Some(Forward::Peers),
            "wg0.conf:4: a second # Forward",
        ),
    ] {
        let config = with(lines);
        assert_eq!(config.interface.forward, forward, "{lines}");
        let warning = config.warnings[0].to_string();
        assert!(
            config.warnings.len() == 1 && warning.starts_with(said),
            "{warning}"
        );
    }
    let error = parse("[Interface]\nForward = lan").unwrap_err();
    assert!(error.contains("Forward stands in a comment"), "{error}");
}
