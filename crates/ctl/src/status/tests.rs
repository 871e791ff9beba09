use std::io::{BufRead, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use adit_proto::DropReason;
use adit_proto::config::{Cidr, DeviceStatus, PeerAllowance, PeerStatus, PublicKey, Secret};

use super::*;
use crate::keys;
use crate::socket::tests::{Dir, answers_without_end};

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
                allowance: Some(PeerAllowance {
                    allowance: adit_proto::Allowance {
                        to_peer: Some(1_000_000),
                        from_peer: None,
                        quota: Some(5_000_000_000),
                        expires: Some(Duration::from_secs(2_000)),
                    },
                    used: 4_000_000_000,
                    access: adit_proto::Access::Open,
                }),
                allowed_ips: vec![block([10, 0, 0, 0], 8), block([0, 0, 0, 0], 0)],
                ..peer(6)
            },
        ],
    }
}

fn interface() -> InterfaceJson {
    let mut interface = InterfaceJson::new("wg0", &device(), false);
    let named = |pairs: &[(&str, u64)]| {
        pairs
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    };
    interface.engine = Some(EngineJson {
        version: "0.1.0".into(),
        aead: "avx512".into(),
        shards: 1,
        max_shards: Some(4),
        pid: 7,
        device: None,
        stack: None,
        gateway_id: Some(3),
        ended: vec!["helper".into()],
        started: 1000,
        cpu_milliseconds: named(&[("shard", 12)]),
        offloads: BTreeMap::from([("tun-tso".into(), true), ("udp-gso".into(), false)]),
        sandbox: BTreeMap::from([
            ("files".into(), false),
            ("no-dumps".into(), true),
            ("system-calls".into(), true),
        ]),
        tx_udp_segmentation: None,
        refused: vec!["priority".into(), "receive_buffer".into()],
        drops: named(&[("no_route", 3), ("replayed", 0)]),
        ignored: named(&[("multicast", 9)]),
        passed: BTreeMap::new(),
        icmp_errors: named(&[("port_unreachable", 4), ("too_big", 0)]),
        handshakes: named(&[("bad_mac1", 2)]),
        policy: Some("auto".into()),
        outbound: Some(BatchesJson {
            batches: 4,
            contents: 10,
            helped: 1,
        }),
        inbound: Some(BatchesJson::default()),
        lanes: vec![3, 4],
        lane_loads: vec![600, 201],
        sent_trains: Some(TrainsJson {
            counts: vec![1, 0, 2],
            datagrams: 9,
        }),
        received_trains: None,
        waiting: Some(WaitingJson {
            sealed_trains: 5,
            ..WaitingJson::default()
        }),
    });
    interface
}

/// As a status socket tells it.
fn report() -> Report {
    Report::new(interface(), device().peers, |_| None)
}

const TEXT: &str = "interface: wg0
  public key: AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=
  private key: (hidden)
  listening port: 51820
  fwmark: 0xca6c

peer: BgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgY=
  preshared key: (hidden)
  endpoint: [2001:db8::1]:7
  allowed ips: 10.0.0.0/8, 0.0.0.0/0
  latest handshake: 1 minute, 3 seconds ago
  limit: 8Mbit/s to the peer, no limit from it
  quota: 3.73 GiB of 4.66 GiB used
  expires: 1970-01-01T00:33:20Z, in 15 minutes, 37 seconds
  transfer: 1023 B received, 1.50 GiB sent
  drops: 7 slow path
  persistent keepalive: every 25 seconds

peer: BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ=
  allowed ips: (none)

engine of: wg0
  aead: avx512
  offloads: tun-tso (off: udp-gso)
  outgoing segmentation: unknown
  shards: 1 of at most 4
  policy: auto
  gateway id: 3
  refused by the kernel: priority, receive buffer
  sandbox: no dumps, system calls (off: files)
  ended: the process that has the rights; `adit upgrade` starts it again
  drops: 3 no route
  icmp errors: 4 port unreachable
  handshakes: 2 bad mac1
  outbound: 4 batches of 2.5 frames (1 by workers), 3 trains of 3.0 datagrams
  inbound by receive queue: 3, 4
  load by receive queue: 75 %, 25 %
  waiting: 5 sealed trains
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
    let revealed = serde_json::to_value(InterfaceJson::new("wg0", &device(), true)).unwrap();
    assert_eq!(
        revealed["private_key"],
        "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
    );
    assert!(revealed["peers"][1]["preshared_key"].is_string());
    assert!(revealed.get("engine").is_none());
}

/// What a terminal obeys, and what changes the order of what is read. JSON may have the latter as it is.
const HOSTILE: [&str; 2] = ["\u{1b}[31m\r\n", "\u{9b}2J\u{202e}\u{200f}"];
/// Fields with entries whose names are texts.
const NAMED: [&str; 8] = [
    "cpu_milliseconds",
    "offloads",
    "sandbox",
    "drops",
    "ignored",
    "passed",
    "icmp_errors",
    "handshakes",
];

/// The same document with that behind each of its texts.
fn poisoned(value: &serde_json::Value, with: &str, is_named: bool) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => format!("{text}{with}").into(),
        Value::Array(all) => all.iter().map(|one| poisoned(one, with, false)).collect(),
        Value::Object(fields) => {
            let poison = |(name, value): (&String, &Value)| {
                let end = if is_named { with } else { "" };
                let is_named = NAMED.contains(&name.as_str());
                (format!("{name}{end}"), poisoned(value, with, is_named))
            };
            Value::Object(fields.iter().map(poison).collect())
        }
        other => other.clone(),
    }
}

/// All texts of a document, names of entries included.
fn texts(value: &serde_json::Value) -> Vec<&str> {
    use serde_json::Value;
    match value {
        Value::String(text) => vec![text],
        Value::Array(all) => all.iter().flat_map(texts).collect(),
        Value::Object(fields) => {
            let of = |(name, value)| std::iter::once(String::as_str(name)).chain(texts(value));
            fields.iter().flat_map(of).collect()
        }
        _ => Vec::new(),
    }
}

/// A process in the hands of an intruder, or one that is told them by others, may say anything.
#[test]
fn all_that_a_status_says_can_be_printed() {
    let mut interface = interface();
    interface.peers[1].name = Some("alice".into());
    interface.peers[1].state = Some("up".into());
    interface.peers[1].last_failure = Some(FailureJson {
        at: 7,
        reason: "no_answer".into(),
    });
    let told = serde_json::to_value(StatusReport::new(vec![interface])).unwrap();
    for with in HOSTILE {
        let hostile = poisoned(&told, with, false);
        let read = document(hostile.to_string().as_bytes()).unwrap();
        let read = serde_json::to_value(read).unwrap();
        assert_eq!(texts(&read).len(), texts(&told["interfaces"][0]).len());
        for text in texts(&read) {
            assert!(text.chars().all(crate::text::is_printable), "{text:?}");
        }
        // The same of one that is watched.
        let dir = Dir::new();
        std::fs::create_dir_all(&dir.0).unwrap();
        let listener = UnixListener::bind(dir.path()).unwrap();
        let head = serde_json::json!({ "watch": 1, "status": hostile });
        std::thread::spawn(move || {
            let mut stream = std::io::BufReader::new(listener.accept().unwrap().0);
            stream.read_line(&mut String::new()).unwrap();
            let answer = format!("{head}\n{{\"end\":0}}\n");
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        });
        let watched = WatchedPeers::<()>::new_in(&dir.0, "wg0").look(&mut |_, _| ());
        assert_eq!(serde_json::to_value(watched.unwrap()).unwrap(), read);
        // And as metrics read a peer.
        let hostile = hostile["interfaces"][0]["peers"][1].to_string();
        let peer: PeerRef<'_> = serde_json::from_str(&hostile).unwrap();
        let failure = peer.last_failure.as_ref().unwrap();
        let texts = [Some(&peer.public_key), Some(&failure.reason)].into_iter();
        let texts = texts.chain([&peer.name, &peer.endpoint, &peer.state].map(Option::as_ref));
        let texts = texts.map(Option::unwrap).chain(&peer.allowed_ips);
        for text in texts.chain(peer.drops.keys()) {
            assert!(text.chars().all(crate::text::is_printable), "{text:?}");
            assert!(text.contains('\u{fffd}'), "{text:?}");
        }
    }
}

/// An older daemon does not tell what was added since.
#[test]
fn a_document_without_fields_that_were_added_is_understood() {
    let mut json = serde_json::to_value(StatusReport::new(vec![interface()])).unwrap();
    let engine = json["interfaces"][0]["engine"].as_object_mut().unwrap();
    for added in ["ignored", "icmp_errors", "refused", "sandbox"] {
        assert!(engine.remove(added).is_some());
    }
    let report: StatusReport = serde_json::from_value(json).unwrap();
    let engine = report.interfaces[0].engine.as_ref().unwrap();
    assert!(engine.ignored.is_empty() && engine.icmp_errors.is_empty());
    assert!(engine.refused.is_empty());
}

#[test]
fn the_status_socket_tells_everything_but_keys() {
    let dir = Dir::new();
    let server = StatusServer::bind_in(&dir.0, "wg0", None).unwrap();
    let report = || {
        let mut revealed = InterfaceJson::new("wg0", &device(), true);
        revealed.engine = interface().engine.clone();
        Some(Report::new(revealed, device().peers, |_| None))
    };
    let service = crate::Service::start().unwrap();
    let events = Events::new("wg0");
    let serving = server
        .serve(&service, &events, report, |_| None, |_| ())
        .unwrap();
    for _ in 0..3 {
        assert_eq!(fetch_in(&dir.0, "wg0").unwrap(), interface());
    }
    serving.stop();
    assert!(fetch_in(&dir.0, "wg0").is_err());
    std::fs::remove_dir(&dir.0).unwrap();
}

#[test]
fn thousands_of_peers_are_told_in_pieces() {
    let dir = Dir::new();
    let server = StatusServer::bind_in(&dir.0, "wg0", None).unwrap();
    let many = || {
        (0..5000_u32).map(|number| {
            let mut status = device().peers.swap_remove(1);
            status.public_key.0[..4].copy_from_slice(&number.to_be_bytes());
            status
        })
    };
    let name = |key: &PublicKey| Some(format!("\"peers\":[]{key}"));
    let report = move || Some(Report::new(interface(), many().collect(), name));
    let service = crate::Service::start().unwrap();
    let events = Events::new("wg0");
    let _serving = server
        .serve(&service, &events, report, |_| None, |_| ())
        .unwrap();
    let mut all = interface();
    let whole = many().map(|peer| {
        let mut of_status = PeerJson::new(&peer, false);
        of_status.name = name(&peer.public_key);
        of_status
    });
    all.peers = whole.collect();
    assert_eq!(fetch_in(&dir.0, "wg0").unwrap(), all);
}

/// What is told is the JSON of a [`PeerJson`], byte for byte.
#[test]
fn a_peer_is_told_as_its_structure_says() {
    let mut status = device().peers.swap_remove(1);
    let json = |status: &PeerStatus, name: Option<&str>| {
        let mut peer = PeerJson::new(status, false);
        peer.name = name.map(str::to_owned);
        let expected = serde_json::to_string(&peer).unwrap();
        let (name, status) = (peer.name.clone(), status.clone());
        let told = serde_json::to_string(&NamedPeer { status, name }).unwrap();
        assert_eq!(told, expected);
    };
    json(&status, None);
    let at = Duration::from_secs(77);
    status.handshakes = Some(adit_proto::config::PeerHandshakes {
        state: adit_proto::Liveness::Silent,
        last_attempt: Some(at),
        unanswered: 3,
        last_failure: Some(adit_proto::HandshakeFailure {
            reason: adit_proto::FailureReason::NoAnswer,
            at,
        }),
        latency: Some(Duration::from_micros(1234)),
    });
    status.path_mtu = Some(1280);
    status.drops = vec![(DropReason::SlowPath, 7), (DropReason::NoEndpoint, 1)];
    json(&status, Some("a \"name\""));
    json(&PeerStatus::new(PublicKey([255; 32])), Some(""));
}

/// There is one peer.
fn probe(peer: PublicKey) -> Option<Duration> {
    (peer.0 == [7; 32]).then_some(Duration::from_millis(1234))
}

#[test]
fn a_handshake_is_begun_for_a_peer_that_there_is() {
    let (dir, _service, _serving, _) = serve();
    let answer = |key: &str| probe_in(&dir.0, "wg0", key).unwrap();
    let known = keys::to_base64(&[7; 32]).to_string();
    let begun = answer(&known);
    assert_eq!((begun.schema, &begun.peer), (1, &known));
    assert_eq!((begun.milliseconds, begun.error), (Some(1234), None));
    for other in [&*keys::to_base64(&[8; 32]), "key", ""] {
        let refused = answer(other);
        assert!(refused.error.is_some() && refused.milliseconds.is_none());
    }
}

/// A directory of its own, a status socket in it, and the events of the interface.
fn serve() -> (Dir, crate::Service, crate::Serving, Arc<Events>) {
    let dir = Dir::new();
    let server = StatusServer::bind_in(&dir.0, "wg0", None).unwrap();
    let service = crate::Service::start().unwrap();
    let events = Events::new("wg0");
    let serving = server
        .serve(&service, &events, || Some(report()), probe, |_| ())
        .unwrap();
    (dir, service, serving, events)
}

#[test]
fn a_client_that_says_nothing_gets_the_status_as_before() {
    let (dir, _service, _serving, _) = serve();
    let mut text = String::new();
    let mut stream = UnixStream::connect(dir.path()).unwrap();
    stream.read_to_string(&mut text).unwrap();
    let report: StatusReport = serde_json::from_str(&text).unwrap();
    assert_eq!(report.interfaces, [interface()]);
    // Half a word and the end, or another word, are no request.
    for (word, expected) in [
        ("sta", ""),
        ("keys\n", "{\"error\""),
        (&*"x".repeat(99), ""),
    ] {
        let mut stream = UnixStream::connect(dir.path()).unwrap();
        stream.write_all(word.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        _ = stream.read_to_string(&mut text);
        assert!(
            text.starts_with(expected) && text.len() < 100,
            "{word}: {text}"
        );
    }
}

/// An older server says what it has to say and closes, whatever is asked.
#[test]
fn the_status_of_an_older_server_is_understood() {
    let dir = Dir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(dir.path()).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let json = serde_json::to_string(&StatusReport::new(vec![interface()])).unwrap();
        stream.write_all((json + "\n").as_bytes()).unwrap();
        // The question is there, and stays unread.
        std::thread::sleep(Duration::from_millis(50));
    });
    assert_eq!(fetch_in(&dir.0, "wg0").unwrap(), interface());
    server.join().unwrap();
}

#[test]
fn a_status_without_end_is_not_waited_for() {
    let dir = Dir::new();
    answers_without_end(&dir, b" ");
    let error = server::fetch_within(&dir.0, "wg0", Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn events_reach_each_listener_and_a_slow_one_holds_up_nobody() {
    let (dir, _service, serving, events) = serve();
    let connect = || {
        let mut stream = UnixStream::connect(dir.path()).unwrap();
        stream.write_all(b"events\n").unwrap();
        let mut lines = std::io::BufReader::new(stream).lines();
        let greeting: EventJson = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((greeting.event.as_str(), greeting.schema), ("listening", 1));
        lines.map(|line| serde_json::from_str::<EventJson>(&line.unwrap()).unwrap())
    };
    let (mut quick, mut slow) = (connect(), connect());
    let padding = "x".repeat(1000);
    // Far more than fits the socket of the one that reads nothing, and the queue.
    for number in 0..4000 {
        let text = format!("{number} {padding}");
        events.publish(EventKind::Configured, text, |event| {
            event.pid = Some(number)
        });
        assert_eq!(quick.next().unwrap().pid, Some(number));
    }
    let mut heard = 0;
    let mut missed = 0;
    while heard + missed < 4000 {
        let event = slow.next().unwrap();
        match event.event.as_str() {
            "missed" => missed += event.count.unwrap(),
            _ => {
                assert_eq!(u64::try_from(event.pid.unwrap()).unwrap(), heard + missed);
                heard += 1;
            }
        }
    }
    assert!(
        missed > 0 && heard >= 1024,
        "{heard} heard, {missed} missed"
    );
    // Others are still answered, and listeners learn of the end.
    assert_eq!(fetch_in(&dir.0, "wg0").unwrap(), interface());
    drop(serving);
    assert!(quick.next().is_none());
}

/// Where numbers stand in a document.
fn places(value: &serde_json::Value, at: &str, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Number(_) => found.push(at.to_owned()),
        serde_json::Value::Array(items) => (0..)
            .zip(items)
            .for_each(|(n, item): (usize, _)| places(item, &format!("{at}/{n}"), found)),
        serde_json::Value::Object(fields) => fields
            .iter()
            .for_each(|(name, field)| places(field, &format!("{at}/{name}"), found)),
        _ => {}
    }
}

/// The process of an interface may be in the hands of an intruder, who is not to be without a trace.
#[test]
fn a_report_with_the_largest_numbers_is_shown() {
    let mut report = serde_json::to_value(StatusReport::new(vec![interface()])).unwrap();
    let mut found = Vec::new();
    places(&report, "", &mut found);
    assert!(found.len() > 20, "{found:?}");
    let read = |report: &serde_json::Value| document(report.to_string().as_bytes());
    for place in found {
        let largest = [u64::MAX, u32::MAX.into(), u16::MAX.into(), u8::MAX.into()];
        let fitting = largest.into_iter().find_map(|number| {
            let mut changed = report.clone();
            *changed.pointer_mut(&place)? = number.into();
            read(&changed).is_ok().then_some(changed)
        });
        report = fitting.unwrap();
    }
    let interface = read(&report).unwrap();
    for now in [0, u64::MAX] {
        assert!(render(&interface, now, Colour::Never).contains("load by receive queue"));
    }
}
