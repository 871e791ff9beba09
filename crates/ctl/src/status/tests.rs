use std::time::Duration;

use adit_proto::DropReason;
use adit_proto::config::{Cidr, PublicKey, Secret};

use super::*;

fn device() -> DeviceStatus {
    let block = |ip: [u8; 4], len| Cidr::new(ip.into(), len).unwrap();
    let peer = |n: u8| PeerStatus::new(PublicKey([n; 32]));
    DeviceStatus {
        private_key: Some(Secret::new(&[2; 32])),
        public_key: Some(PublicKey([3; 32])),
        listen_port: 51820,
        fwmark: 0xca6c,
        peers: vec![
            peer(4),
            PeerStatus {
                preshared_key: Some(Secret::new(&[5; 32])),
                endpoint: Some("[2001:db8::1]:7".parse().unwrap()),
                last_handshake: Some(Duration::new(1000, 5)),
                rx_bytes: 1023,
                tx_bytes: 1536 * 1024 * 1024,
                drops: vec![(DropReason::SlowPath, 7)],
                persistent_keepalive: 25,
                allowed_ips: vec![block([10, 0, 0, 0], 8), block([0, 0, 0, 0], 0)],
                ..peer(6)
            },
        ],
    }
}

fn interface() -> Interface {
    let mut interface = Interface::new("wg0", &device(), false);
    let named = |pairs: &[(&str, u64)]| {
        pairs
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    };
    interface.engine = Some(Engine {
        version: "0.1.0".into(),
        aead: "avx512".into(),
        shards: 1,
        offloads: BTreeMap::from([("tun-tso".into(), true), ("udp-gso".into(), false)]),
        tx_udp_segmentation: None,
        refused: vec!["priority".into(), "receive_buffer".into()],
        drops: named(&[("no_route", 3), ("replayed", 0)]),
        ignored: named(&[("multicast", 9)]),
        icmp_errors: named(&[("port_unreachable", 4), ("too_big", 0)]),
        handshakes: named(&[("bad_mac1", 2)]),
    });
    interface
}

const TEXT: &str = "interface: wg0
  public key: AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=
  private key: (hidden)
  listening port: 51820
  fwmark: 0xca6c
  aead: avx512
  offloads: tun-tso (off: udp-gso)
  outgoing segmentation: unknown
  refused by the kernel: priority, receive buffer
  drops: 3 no route
  icmp errors: 4 port unreachable
  handshakes: 2 bad mac1

peer: BgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgY=
  preshared key: (hidden)
  endpoint: [2001:db8::1]:7
  allowed ips: 10.0.0.0/8, 0.0.0.0/0
  latest handshake: 1 minute, 3 seconds ago
  transfer: 1023 B received, 1.50 GiB sent
  drops: 7 slow path
  persistent keepalive: every 25 seconds

peer: BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ=
  allowed ips: (none)
";

#[test]
fn people_see_what_wg_show_shows_and_more() {
    assert_eq!(render(&interface(), 1063, Colour::Never), TEXT);
    let now = render(&interface(), 1000, Colour::Never);
    assert!(now.contains("latest handshake: Now\n"));
    let backward = render(&interface(), 999, Colour::Never);
    assert!(backward.contains("(System clock wound backward; connection problems may ensue.)"));
}

#[test]
fn colours_change_nothing_but_colours() {
    let coloured = render(&interface(), 1063, Colour::Always);
    assert!(coloured.contains("\x1b[33m"));
    let mut pieces = coloured.split("\x1b[");
    let first = pieces.next().unwrap().to_owned();
    let plain = pieces.fold(first, |text, piece| text + piece.split_once('m').unwrap().1);
    assert_eq!(plain, TEXT);
}

#[test]
fn colours_are_for_terminals_unless_somebody_says_otherwise() {
    use Colour::{Always, Never};
    for (mode, no_color, terminal, expected) in [
        (None, None, true, Always),
        (None, None, false, Never),
        (None, Some("1"), true, Never),
        (None, Some(""), true, Always),
        (Some("always"), Some("1"), false, Always),
        (Some("never"), None, true, Never),
        (Some("auto"), None, false, Never),
    ] {
        assert_eq!(Colour::choose(mode, no_color, terminal), expected);
    }
}

#[test]
fn json_is_versioned_and_holds_keys_only_when_asked() {
    let json = serde_json::to_value(StatusReport::new(vec![interface()])).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["errors"], serde_json::json!([]));
    let wg0 = &json["interfaces"][0];
    assert_eq!(wg0["name"], "wg0");
    assert!(wg0.get("private_key").is_none());
    assert_eq!(wg0["peers"][1]["has_preshared_key"], true);
    assert!(wg0["peers"][1].get("preshared_key").is_none());
    assert_eq!(wg0["peers"][1]["latest_handshake"], 1000);
    assert_eq!(wg0["peers"][0]["latest_handshake"], serde_json::Value::Null);
    assert_eq!(wg0["engine"]["offloads"]["udp-gso"], false);
    assert_eq!(
        wg0["engine"]["tx_udp_segmentation"],
        serde_json::Value::Null
    );
    let revealed = serde_json::to_value(Interface::new("wg0", &device(), true)).unwrap();
    assert_eq!(
        revealed["private_key"],
        "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
    );
    assert!(revealed["peers"][1]["preshared_key"].is_string());
    assert!(revealed.get("engine").is_none());
}

/// An older daemon does not tell what was added since.
#[test]
fn a_document_without_fields_that_were_added_is_understood() {
    let mut json = serde_json::to_value(StatusReport::new(vec![interface()])).unwrap();
    let engine = json["interfaces"][0]["engine"].as_object_mut().unwrap();
    for added in ["ignored", "icmp_errors", "refused"] {
        assert!(engine.remove(added).is_some());
    }
    let report: StatusReport = serde_json::from_value(json).unwrap();
    let engine = report.interfaces[0].engine.as_ref().unwrap();
    assert!(engine.ignored.is_empty() && engine.icmp_errors.is_empty());
    assert!(engine.refused.is_empty());
}

#[test]
fn the_status_socket_tells_everything_but_keys() {
    let dir = std::env::temp_dir().join(format!("adit-status-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&dir);
    let server = Server::bind_in(&dir, "wg0").unwrap();
    let report = || {
        let mut revealed = Interface::new("wg0", &device(), true);
        revealed.engine = interface().engine.clone();
        revealed
    };
    let service = crate::Service::start().unwrap();
    let serving = server.serve(&service, report, |_| ()).unwrap();
    for _ in 0..3 {
        assert_eq!(fetch_in(&dir, "wg0").unwrap(), interface());
    }
    serving.stop();
    assert!(fetch_in(&dir, "wg0").is_err());
    std::fs::remove_dir(&dir).unwrap();
}
