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

fn peer(gateway: &str, last: LastSeen, session: u64) -> HeldPeer {
    HeldPeer {
        gateway: gateway.into(),
        last,
        session,
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
        HeldNews::of(&event)
    };
    let stamped = |event: &mut EventJson| event.sent = Some(stamp(7).to_string());
    let Some(HeldNews::Here(_, last, 1_790_000_000_125)) = event(EventKind::Session, &stamped)
    else {
        panic!("no news");
    };
    assert_eq!(last, seen("192.0.2.1:7", 7, 0));
    let moved = event(EventKind::PeerRoamed, &|_| ());
    assert!(matches!(moved, Some(HeldNews::Here(..))));
    assert!(matches!(
        event(EventKind::Missed, &|_| ()),
        Some(HeldNews::Look)
    ));
    assert!(event(EventKind::PeerUp, &|_| ()).is_none());
    let nowhere = |event: &mut EventJson| event.endpoint = None;
    assert!(event(EventKind::Session, &nowhere).is_none());
    assert!(event(EventKind::Session, &|event| event.time = f64::NAN).is_none());
}

#[test]
fn the_latest_session_has_the_peer_with_the_greatest_timestamps() {
    let before = peer("b", seen("192.0.2.1:7", 7, 9), 100);
    let is_here = |last, session| here("a", Some(&before), last, session);
    // It was here before it was there.
    assert_eq!(is_here(seen("192.0.2.9:9", 6, 0), 99), None);
    let expected = peer("a", seen("192.0.2.9:9", 8, 9), 100);
    assert_eq!(
        is_here(seen("192.0.2.9:9", 8, 0), 100),
        Some(expected.clone())
    );
    // What is written is no news.
    let again = here("a", Some(&expected), seen("192.0.2.9:9", 8, 9), 100);
    assert_eq!(again, None);
    let moved = here("a", Some(&expected), seen("192.0.2.7:7", 0, 0), 101);
    assert_eq!(moved, Some(peer("a", seen("192.0.2.7:7", 8, 9), 101)));
    let first = here("a", None, seen("192.0.2.7:7", 1, 0), 1);
    assert_eq!(first, Some(peer("a", seen("192.0.2.7:7", 1, 0), 1)));
}

#[test]
fn the_file_is_written_once_a_second_at_most() {
    let dir = std::env::temp_dir().join(format!("adit-held-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let path = path(&dir, "wg0");
    let held = Arc::<Mutex<HeldPeers>>::default();
    let mut file = HeldFile::new(&held, path.clone(), None);
    assert_eq!(file.deadline(), None);
    let now = Instant::now();
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    let change = |n: u8| {
        let peer = peer("a", seen("192.0.2.1:7", n, 0), n.into());
        lock(&held).change(PublicKey([n; 32]), Some(peer));
    };
    change(1);
    file.changed();
    file.write(now).expect("written");
    assert_eq!((text().lines().count(), file.deadline()), (1, None));
    change(2);
    file.changed();
    file.write(now).expect("too early");
    assert_eq!(
        (text().lines().count(), file.deadline()),
        (1, Some(now + FILE_EACH))
    );
    file.write(now + FILE_EACH).expect("written");
    assert_eq!((text().lines().count(), file.held().len()), (2, 2));
    // Without its folder it is tried again.
    std::fs::remove_dir_all(&dir).expect("removed");
    file.changed();
    assert!(file.write(now + 2 * FILE_EACH).is_err());
    assert!(file.deadline().is_some());
}
