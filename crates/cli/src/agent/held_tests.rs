use adit_ctl::status::EventKind;

use super::*;

const KEY: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCA=";

fn stamp(n: u8) -> Tai64N {
    Tai64N([n; 12])
}

fn seen(at: &str, sent: u8, received: u8) -> LastSeen {
    LastSeen {
        at: at.parse().ok(),
        sent: stamp(sent),
        received: stamp(received),
    }
}

#[test]
fn sessions_and_moves_are_news_and_other_events_are_none() {
    let event = |kind: EventKind, fill: &dyn Fn(&mut EventJson)| {
        let mut event = EventJson::new("wg0", kind, String::new());
        event.peer = Some(KEY.into());
        event.endpoint = Some("192.0.2.1:7".into());
        event.time = 1_790_000_000.125;
        fill(&mut event);
        match HeldNews::of(&event)? {
            HeldNews::Peer(_, news) => Some(Some(news)),
            HeldNews::Look => Some(None),
        }
    };
    let stamped = |event: &mut EventJson| event.sent = Some(stamp(7).to_string());
    let session = PeerNews::Session(seen("192.0.2.1:7", 7, 0), 1_790_000_000_125);
    assert_eq!(event(EventKind::Session, &stamped), Some(Some(session)));
    let moved = PeerNews::Moved("192.0.2.1:7".parse().expect("an address"));
    assert_eq!(event(EventKind::PeerRoamed, &|_| ()), Some(Some(moved)));
    assert_eq!(event(EventKind::Missed, &|_| ()), Some(None));
    assert_eq!(event(EventKind::PeerUp, &|_| ()), None);
    let nowhere = |event: &mut EventJson| event.endpoint = None;
    assert_eq!(event(EventKind::Session, &nowhere), None);
    let never = |event: &mut EventJson| event.time = f64::NAN;
    assert_eq!(event(EventKind::Session, &never), None);
}

#[test]
fn moves_wait_and_sessions_take_the_place_of_other_news() {
    let key = PublicKey([1; 32]);
    let [near, far] = ["192.0.2.1:7", "192.0.2.9:9"].map(|at| at.parse().expect("an address"));
    let mut pending = UnwrittenPeers::default();
    pending.take(key, PeerNews::Moved(far));
    assert!(pending.news.is_empty());
    pending.take(key, PeerNews::Since(near, 7));
    pending.take(key, PeerNews::Session(seen("192.0.2.1:7", 1, 0), 8));
    pending.take(key, PeerNews::Since(far, 7));
    let session = |at| PeerNews::Session(seen(at, 1, 0), 8);
    assert_eq!(pending.news[&key], session("192.0.2.1:7"));
    pending.take(key, PeerNews::Moved(far));
    assert_eq!(pending.news[&key], session("192.0.2.9:9"));
    pending.add_moves();
    assert_eq!(pending.news[&key], session("192.0.2.9:9"));
    let other = PublicKey([2; 32]);
    pending.take(other, PeerNews::Moved(far));
    pending.add_moves();
    assert_eq!(
        (pending.news[&other], pending.moves.len()),
        (PeerNews::Moved(far), 0)
    );
}

#[test]
fn the_file_is_written_once_a_second_at_most() {
    let dir = std::env::temp_dir().join(format!("adit-held-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let path = path(&dir, "wg0");
    let state = Arc::<Mutex<FollowedPeers>>::default();
    let mut file = HeldFile::new(&state, path.clone(), None);
    assert_eq!(file.deadline(), None);
    let now = Instant::now();
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    let change = |n: u8| {
        let peer = HeldPeer {
            gateway: "a".into(),
            last: seen("192.0.2.1:7", n, 0),
            session: n.into(),
        };
        lock(&state).peers.change(PublicKey([n; 32]), Some(peer));
    };
    change(1);
    file.changed();
    file.write(now).expect("due").expect("written");
    assert_eq!((text().lines().count(), file.deadline()), (1, None));
    change(2);
    file.changed();
    assert!(file.write(now).is_none());
    assert_eq!(
        (text().lines().count(), file.deadline()),
        (1, Some(now + FILE_EACH))
    );
    file.write(now + FILE_EACH).expect("due").expect("written");
    assert_eq!((text().lines().count(), file.state().peers.len()), (2, 2));
    // Without its folder it is tried again.
    std::fs::remove_dir_all(&dir).expect("removed");
    file.changed();
    let failed = file.write(now + 2 * FILE_EACH).expect("due");
    assert!(failed.is_err());
    assert!(file.deadline().is_some());
}
