use adit_ctl::status::PeerJson;
use adit_proto::config::{PublicKey, Secret};

use super::*;

fn public(n: u8) -> PublicKey {
    Secret::new(&[n; 32]).public_key()
}

fn key(n: u8) -> String {
    public(n).to_string()
}

/// bob has sent most, alice has the last address, and carol has connected last.
fn roster() -> Roster {
    let peer = |n: u8, name: &str, last: u8| {
        let key = key(n);
        format!("[Peer]\n# Name = {name}\nPublicKey = {key}\nAllowedIPs = 10.0.0.{last}/32\n\n")
    };
    let text =
        peer(1, "alice", 100) + &peer(2, "Bob", 20) + &peer(3, "carol", 3) + &peer(4, "dave", 4);
    let off = config::disable(&text, public(4)).expect("it is enabled");
    let config = Config::parse(&off, "wg0.conf").expect("a configuration");
    let running = |n: u8, last: u8, handshake, rx| {
        let mut peer = PeerJson::default();
        peer.public_key = key(n);
        peer.allowed_ips = vec![format!("10.0.0.{last}/32")];
        peer.latest_handshake = handshake;
        peer.transfer_rx = rx;
        peer
    };
    let mut interface = InterfaceJson::default();
    interface.peers = vec![
        running(1, 100, Some(500), 10),
        running(2, 20, None, 99),
        running(3, 3, Some(990), 5),
    ];
    Roster::new(("wg0", "wg0".into()), Some(&config), Some(&interface))
}

fn names(pattern: Option<&str>, sort: PeerSort) -> Vec<String> {
    let roster = roster();
    let chosen = roster.chosen(pattern, sort);
    chosen.iter().map(|it| it.label()).collect()
}

#[test]
fn peers_are_sorted_as_is_asked_for() {
    assert_eq!(
        names(None, PeerSort::Name),
        ["alice", "Bob", "carol", "dave"]
    );
    let by = |sort| names(None, sort);
    assert_eq!(by(PeerSort::Handshake), ["carol", "alice", "Bob", "dave"]);
    assert_eq!(by(PeerSort::Traffic), ["Bob", "alice", "carol", "dave"]);
    assert_eq!(by(PeerSort::Address), ["carol", "dave", "Bob", "alice"]);
}

#[test]
fn a_pattern_is_a_part_of_a_name_a_key_or_an_address() {
    let of = |pattern: &str| names(Some(pattern), PeerSort::Name);
    assert_eq!(of("A"), ["alice", "carol", "dave"]);
    assert_eq!(of(&key(2)[..9]), ["Bob"]);
    assert_eq!(of("10.0.0.4"), ["dave"]);
    assert!(of("nobody").is_empty());
}

#[test]
fn the_table_has_a_line_for_each_peer() {
    let roster = roster();
    let table = roster.table(&roster.chosen(None, PeerSort::Name), 1000);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "wg0: 4 peers, 1 connected, 1 disabled");
    assert!(lines[1].starts_with("NAME   KEY        ADDRESSES   STATE      HANDSHAKE"));
    let alice = format!(
        "alice  {}…  10.0.0.100  idle           8m20s       10        0",
        &key(1)[..8]
    );
    assert_eq!(lines[2], alice);
    assert!(lines[4].contains("connected        10s"), "{table}");
    assert!(
        lines[5].contains("disabled           -        -        -"),
        "{table}"
    );
    assert_eq!(lines.len(), 6);
    let none = roster.table(&[], 1000);
    assert!(none.contains("`adit peers wg0` lists all"), "{none}");
}

/// What programs read: a field may come, none may go.
#[test]
fn the_json_has_these_fields() {
    let roster = roster();
    let chosen = roster.chosen(Some("alice"), PeerSort::Name);
    let json = serde_json::to_value(roster.document(&chosen, 1000)).expect("JSON");
    let expected = serde_json::json!({
        "schema": 1, "interface": "wg0", "is_up": true, "has_file": true,
        "peers": [{
            "public_key": key(1), "name": "alice", "allowed_ips": ["10.0.0.100/32"], "state": "idle",
            "in_file": true, "in_interface": true, "latest_handshake": 500, "transfer_rx": 10, "transfer_tx": 0,
        }],
    });
    assert_eq!(json, expected);
    for object in [&json, &json["peers"][0]] {
        for field in object.as_object().expect("an object").keys() {
            let is_told = |path: &str| path.trim_start_matches("peers[].") == field;
            let told = FIELDS.iter().any(|(path, _)| is_told(path));
            assert!(told || field == "peers", "{field} is not in the manual");
        }
    }
}

#[test]
fn one_peer_has_a_block_of_lines() {
    let roster = roster();
    let shown = |name: &str| roster.block(roster.find(name).expect("a peer"), 1000);
    let carol = shown("carol");
    assert!(
        carol.starts_with(&format!("peer: carol\n  public key: {}\n", key(3))),
        "{carol}"
    );
    for line in [
        "  addresses: 10.0.0.3\n",
        "  state: connected\n",
        "  latest handshake: 10s ago\n",
        "  transfer: 5 received, 0 sent\n",
    ] {
        assert!(carol.contains(line), "{carol}");
    }
    assert!(shown("dave").contains("  state: disabled\n"));
}
