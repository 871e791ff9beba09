use adit_fleet::{HeldPeer, PeerRecord, RecordChange};
use adit_proto::LastSeen;
use adit_proto::config::{PeerStatus, Secret};

use super::*;

fn key(number: u8) -> PublicKey {
    Secret::new(&[number; 32]).public_key()
}

fn id(number: u8) -> RecordId {
    key(number).to_string().into()
}

fn record(number: u8, more: &str) -> RecordChange {
    let text = format!(
        "{{\"public_key\":\"{}\",\"allowed_ips\":[\"10.0.0.{number}/32\"]{more}}}",
        key(number)
    );
    RecordChange::Put(Box::new(
        PeerRecord::from_json(text.as_bytes()).expect("a record"),
    ))
}

#[test]
fn peers_without_a_session_go_and_those_with_a_quota_stay() {
    let mut list = RecordList::default();
    list.change([
        (id(1), record(1, "")),
        (id(2), record(2, "")),
        (id(3), record(3, "")),
        (id(4), record(4, ",\"quota\":\"1G\"")),
        (id(5), RecordChange::Bad("it is wrong".into())),
        (id(6), record(6, "")),
    ]);
    let mut status = DeviceStatus::default();
    for (number, last) in [
        (1, Some(1000)),
        (2, Some(1200)),
        (3, None),
        (4, Some(1)),
        (6, None),
    ] {
        status.peers.push(PeerStatus {
            last_handshake: last.map(Duration::from_secs),
            ..PeerStatus::new(key(number))
        });
    }
    let followed: Vec<RecordId> = (1..=6).map(id).collect();
    // Another gateway has this one.
    let elsewhere = HeldPeer {
        gateway: "b".into(),
        last: LastSeen::default(),
        session: 1_000_000,
    };
    let mut held = HeldPeers::default();
    held.change(key(6), Some(elsewhere));
    let mut eviction = Eviction::default();
    let start = Instant::now();
    let mut gone = |after: u64, wall: u64, followed: &[RecordId]| {
        let now = start + Duration::from_secs(after);
        let times = (now, Duration::from_secs(wall));
        let mut gone = eviction.gone(times, followed.to_vec(), &list, &status, &held);
        gone.sort_unstable();
        gone
    };
    let sorted = |numbers: &[u8]| {
        let mut ids: Vec<_> = numbers.iter().copied().map(id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(gone(0, 1299, &followed), sorted(&[]));
    assert_eq!(gone(1, 1300, &followed), sorted(&[1, 6]));
    // One that never had a session, and a record that is wrong, have their time.
    assert_eq!(gone(89, 1300, &followed[1..5]), sorted(&[]));
    assert_eq!(gone(90, 1300, &followed[1..5]), sorted(&[3, 5]));
    assert_eq!(gone(91, 1500, &[id(2), id(4)]), sorted(&[2]));
}
