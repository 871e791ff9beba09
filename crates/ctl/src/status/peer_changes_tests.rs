use std::io::BufRead;
use std::os::unix::net::UnixListener;
use std::sync::Mutex;
use std::time::Duration;

use adit_proto::config::{Cidr, PeerHandshakes, PeerStatus, PublicKey, Secret};
use adit_proto::{DropReason, FailureReason, HandshakeFailure, Liveness};
use proptest::prelude::*;

use super::super::{Events, PeerJson, Report, StatusServer};
use super::*;

fn named(number: u16) -> NamedPeer {
    let mut key = [7; 32];
    // Few of them differ in what a server remembers of a key.
    key[3..5].copy_from_slice(&number.to_ne_bytes());
    NamedPeer {
        status: PeerStatus::new(PublicKey(key)),
        name: None,
    }
}

fn copies(peers: &[NamedPeer]) -> Vec<NamedPeer> {
    let copy = |peer: &NamedPeer| NamedPeer {
        status: peer.status.clone(),
        name: peer.name.clone(),
    };
    peers.iter().map(copy).collect()
}

/// What a watcher keeps, here.
fn kept(peer: &PeerRef<'_>) -> String {
    format!("{peer:?}")
}

/// What a fresh status says of all peers.
fn picture(peers: &[NamedPeer]) -> Vec<String> {
    let fresh = |peer: &NamedPeer| {
        let mut fresh = PeerJson::new(&peer.status, false);
        fresh.name.clone_from(&peer.name);
        fresh.clean();
        kept(&PeerRef::from(&fresh))
    };
    peers.iter().map(fresh).collect()
}

fn texts(peers: &[Arc<String>]) -> Vec<String> {
    peers.iter().map(|peer| peer.to_string()).collect()
}

/// Both ends, and the lines between them.
#[derive(Default)]
struct Pair {
    sent: SentPeers,
    peers: Vec<Arc<String>>,
    lines: Vec<String>,
}

impl Pair {
    fn look(&mut self, peers: &[NamedPeer]) -> Vec<String> {
        let mut peers = copies(peers).into_iter();
        let (mut answer, mut piece) = (Vec::new(), Vec::new());
        while self.sent.write_changes(&mut peers, &mut piece) {
            assert!(!piece.is_empty());
            answer.append(&mut piece);
        }
        answer.append(&mut piece);
        self.lines = answer.lines().map(|line| line.expect("text")).collect();
        let make = &mut |peer: &PeerRef<'_>, _: Option<&String>| kept(peer);
        let mut lines = Lines::new(&*answer);
        lines.change(&mut self.peers, make).expect("an answer");
        texts(&self.peers)
    }
}

#[test]
fn only_what_changed_is_told() {
    let mut pair = Pair::default();
    let mut peers: Vec<NamedPeer> = (0..1000).map(named).collect();
    assert_eq!(pair.look(&peers), picture(&peers));
    assert_eq!(pair.lines.len(), 1001);
    assert_eq!(pair.look(&peers), picture(&peers));
    assert_eq!(pair.lines, ["{\"same\":1000}", "{\"end\":1000}"]);
    peers[500].status.rx_bytes = 1;
    assert_eq!(pair.look(&peers), picture(&peers));
    assert_eq!(pair.lines.len(), 4);
    assert!(pair.lines[1].starts_with("{\"changed\":{"));
    peers.drain(3..7);
    assert_eq!(pair.look(&peers), picture(&peers));
    let expected = [
        "{\"same\":3}",
        "{\"gone\":4}",
        "{\"same\":993}",
        "{\"end\":996}",
    ];
    assert_eq!(pair.lines, expected);
    peers.pop();
    peers.push(named(2000));
    peers.push(named(2001));
    assert_eq!(pair.look(&peers), picture(&peers));
    assert_eq!(pair.lines[..2], ["{\"same\":995}", "{\"gone\":1}"]);
    assert_eq!(pair.lines.len(), 5);
    assert!(pair.lines[2].starts_with("{\"added\":{"));
    assert_eq!(pair.look(&[]), [""; 0]);
    assert_eq!(pair.lines, ["{\"gone\":997}", "{\"end\":0}"]);
    assert!(pair.look(&[]).is_empty());
    assert_eq!(pair.lines, ["{\"end\":0}"]);
}

/// Any change, in any order: also those that a device does not make.
#[derive(Clone, Debug)]
enum Step {
    Receive(usize, u64),
    Name(usize, Option<String>),
    Remove(usize, usize),
    Add(u16),
    Move(usize),
    Look,
}

#[test]
fn what_was_told_last_is_told_as_the_same() {
    for count in [0, 1, 70] {
        let (mut sent, mut out) = (SentPeers::default(), Vec::new());
        let peers: Vec<NamedPeer> = (0..count).map(named).collect();
        while sent.write_changes(&mut copies(&peers).into_iter(), &mut out) {}
        out.clear();
        while sent.write_changes(&mut copies(&peers).into_iter(), &mut out) {}
        let mut same = Vec::new();
        sent.write_unchanged(&mut same);
        assert_eq!(out, same);
    }
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0_usize..1000;
    prop_oneof![
        3 => (at.clone(), any::<u64>()).prop_map(|(at, bytes)| Step::Receive(at, bytes)),
        1 => (at.clone(), any::<Option<String>>()).prop_map(|(at, name)| Step::Name(at, name)),
        2 => (at.clone(), 1_usize..4).prop_map(|(at, count)| Step::Remove(at, count)),
        3 => (0_u16..2000).prop_map(Step::Add),
        1 => at.prop_map(Step::Move),
        2 => Just(Step::Look),
    ]
}

proptest! {
    #[test]
    fn a_watcher_has_the_picture_of_a_fresh_status(
        steps in prop::collection::vec(step(), 0..200),
        first in 0_u16..40,
    ) {
        let mut pair = Pair::default();
        let mut peers: Vec<NamedPeer> = (0..first).map(named).collect();
        for step in steps.into_iter().chain([Step::Look]) {
            let count = peers.len();
            match step {
                Step::Look => {
                    prop_assert_eq!(pair.look(&peers), picture(&peers));
                    // At once again: nothing changed.
                    pair.look(&peers);
                    prop_assert!(pair.lines.len() <= 2);
                }
                Step::Add(number) => {
                    let new = named(number);
                    peers.retain(|peer| peer.status.public_key != new.status.public_key);
                    peers.push(new);
                }
                _ if count == 0 => {}
                Step::Receive(at, bytes) => peers[at % count].status.rx_bytes = bytes,
                Step::Name(at, name) => peers[at % count].name = name,
                Step::Remove(at, many) => {
                    let at = at % count;
                    peers.drain(at..(at + many).min(count));
                }
                Step::Move(at) => peers.rotate_left(at % count),
            }
        }
    }

    /// Whatever comes instead of an answer, the list does not panic.
    #[test]
    fn no_line_confuses_a_watcher(lines in prop::collection::vec((0..6, 0_usize..9), 0..20)) {
        let json = serde_json::to_string(&named(1)).expect("JSON");
        let line = |(kind, count): (i32, usize)| match kind {
            0 => format!("{{\"same\":{count}}}\n"),
            1 => format!("{{\"gone\":{count}}}\n"),
            2 => format!("{{\"changed\":{json}}}\n"),
            3 => format!("{{\"added\":{json}}}\n"),
            4 => format!("{{\"end\":{count}}}\n"),
            _ => format!("{{\"same\":{}}}\n", usize::MAX - count),
        };
        let text: String = lines.into_iter().map(line).collect();
        let mut peers: Vec<Arc<String>> = (0..5).map(|_| Arc::default()).collect();
        let make = &mut |peer: &PeerRef<'_>, _: Option<&String>| kept(peer);
        _ = Lines::new(text.as_bytes()).change(&mut peers, make);
    }
}

/// What a status tells of a peer is what counts as a change of it: no less, and no more.
#[test]
fn each_field_of_a_peer_counts() {
    let at = Duration::from_secs(7);
    let handshakes = PeerHandshakes {
        state: Liveness::Up,
        last_attempt: None,
        unanswered: 0,
        last_failure: None,
        latency: None,
    };
    type Change = fn(&mut NamedPeer);
    let changes: [Change; 16] = [
        |peer| peer.name = Some("alice".into()),
        |peer| peer.status.public_key.0[31] = 1,
        |peer| peer.status.preshared_key = Some(Secret::new(&[5; 32])),
        |peer| peer.status.endpoint = "192.0.2.1:7".parse().ok(),
        |peer| peer.status.last_handshake = Some(Duration::from_secs(9)),
        |peer| peer.status.rx_bytes = 1,
        |peer| peer.status.tx_bytes = 1,
        |peer| peer.status.drops.push((DropReason::SlowPath, 1)),
        |peer| peer.status.path_mtu = Some(1300),
        |peer| peer.status.persistent_keepalive = 1,
        |peer| {
            peer.status
                .allowed_ips
                .extend(Cidr::new([10, 0, 0, 0].into(), 8))
        },
        |peer| peer.status.handshakes.as_mut().unwrap().state = Liveness::Silent,
        |peer| peer.status.handshakes.as_mut().unwrap().unanswered = 1,
        |peer| peer.status.handshakes.as_mut().unwrap().last_attempt = Some(Duration::from_secs(1)),
        |peer| {
            peer.status.handshakes.as_mut().unwrap().last_failure = Some(HandshakeFailure {
                reason: FailureReason::NoAnswer,
                at: Duration::from_secs(1),
            });
        },
        |peer| peer.status.handshakes.as_mut().unwrap().latency = Some(Duration::from_micros(1)),
    ];
    let before = || {
        let mut peer = named(1);
        peer.status.last_handshake = Some(at);
        peer.status.handshakes = Some(handshakes);
        peer
    };
    let json = |peer: &NamedPeer| serde_json::to_string(peer).unwrap();
    for (number, change) in changes.iter().enumerate() {
        let mut pair = Pair::default();
        pair.look(&[before()]);
        let mut after = before();
        change(&mut after);
        assert_ne!(json(&before()), json(&after), "{number}");
        pair.look(&[after]);
        let line = &pair.lines[0];
        assert!(line.starts_with("{\"changed\""), "{number}: {line}");
    }
    // Seconds are told.
    let mut pair = Pair::default();
    pair.look(&[before()]);
    let mut after = before();
    after.status.last_handshake = Some(at + Duration::from_millis(1));
    pair.look(&[after]);
    assert_eq!(pair.lines, ["{\"same\":1}", "{\"end\":1}"]);
}

/// A directory of its own.
fn dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("adit-watch-{name}-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn a_watcher_stays_connected_and_survives_a_new_process() {
    let dir = dir("served");
    let service = crate::Service::start().unwrap();
    let peers = Arc::new(Mutex::new((0..3000).map(named).collect::<Vec<_>>()));
    let serve = || {
        let now = Arc::clone(&peers);
        let report = move || {
            let mut interface = InterfaceJson::default();
            interface.listen_port = 7;
            let peers = copies(&now.lock().unwrap()).into_iter();
            Some(Report::new(
                interface,
                peers.map(|peer| peer.status).collect(),
                |_| None,
            ))
        };
        let server = StatusServer::bind_in(&dir, "wg0", None).unwrap();
        let events = Events::new("wg0");
        server
            .serve(&service, &events, report, |_| None, |_| ())
            .unwrap()
    };
    let serving = serve();
    let mut watch = WatchedPeers::new_in(&dir, "wg0");
    let look = |watch: &mut WatchedPeers<String>| {
        let mut made = Vec::new();
        let make = &mut |peer: &PeerRef<'_>, before: Option<&String>| {
            made.push(before.cloned());
            kept(peer)
        };
        assert_eq!(watch.look(make).unwrap().listen_port, 7);
        assert_eq!(texts(watch.peers()), picture(&peers.lock().unwrap()));
        made
    };
    assert_eq!(look(&mut watch), vec![None; 3000]);
    // Longer than a client may take to say its first word.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(look(&mut watch).is_empty());
    let before = watch.peers()[17].to_string();
    peers.lock().unwrap()[17].status.tx_bytes = 1;
    assert_eq!(look(&mut watch), [Some(before)]);
    peers.lock().unwrap().remove(0);
    assert!(look(&mut watch).is_empty());
    peers.lock().unwrap().push(named(5000));
    assert_eq!(look(&mut watch), [None]);
    // A new process knows nothing of what an older one has told.
    drop(serving);
    let serving = serve();
    assert_eq!(look(&mut watch), vec![None; 3000]);
    drop(serving);
    let make = &mut |peer: &PeerRef<'_>, _: Option<&String>| kept(peer);
    assert!(watch.look(make).is_err() && watch.peers().is_empty());
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Those that do not know the word refuse it, or tell all and end the connection.
#[test]
fn an_older_server_gives_no_such_answer() {
    let dir = dir("older");
    let listener = UnixListener::bind(dir.join("wg0.sock")).unwrap();
    let whole = serde_json::to_string(&StatusReport::new(vec![InterfaceJson::default()])).unwrap();
    for answer in [
        "{\"error\":\"write status, events or handshake KEY\"}",
        &whole,
        "",
    ] {
        let mut watch = WatchedPeers::<String>::new_in(&dir, "wg0");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
                // The question is there, and stays unread.
                std::thread::sleep(Duration::from_millis(50));
            });
            let error = watch.look(&mut |peer, _| kept(peer)).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "{answer}");
        });
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
