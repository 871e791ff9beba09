use std::collections::HashMap;

use adit_fleet::{PeerRecord, RecordChange};

use super::super::folder::tests::TestFolder;
use super::*;

fn put(number: u16) -> (adit_fleet::RecordId, RecordChange) {
    let [high, low] = number.to_be_bytes();
    let mut key = PublicKey([9; 32]);
    key.0[..2].copy_from_slice(&[high, low]);
    let record = PeerRecord {
        public_key: key,
        name: None,
        allowed_ips: Vec::new(),
        endpoint: None,
        preshared_key_file: None,
        allowed_ports: None,
        preshared_key: None,
        persistent_keepalive: 0,
        allowance: Default::default(),
    };
    (
        number.to_string().into(),
        RecordChange::Put(Box::new(record)),
    )
}

#[test]
fn a_peer_that_is_refused_is_told_and_holds_up_no_other() {
    let folder = TestFolder::new("refused");
    let (brought, _) = BroughtFile::open(&folder.here(), "wg0").expect("a file");
    let mut applier = Applier::new("wg0", brought);
    let status = DeviceStatus::default();
    let mut reconciler = Reconciler::new(HashMap::new(), Some(&status));
    reconciler.change((0..5_000).map(put));
    let mut sizes = Vec::new();
    let is_refused = |batch: &ChangeBatch| batch.keys().any(|key| key.0[..2] == [0, 7]);
    let applied = applier.apply_by(&mut reconciler, |batch| {
        sizes.push(batch.keys().count());
        match is_refused(batch) {
            true => Err(ClientError::Refused(22)),
            false => Ok(()),
        }
    });
    assert!(applied.is_ok());
    assert_eq!(reconciler.applied(), 4_999);
    let why = applier.refusal().expect("a refusal");
    assert!(
        why.starts_with("the interface does not take 1 of the peers, the first AAcJ"),
        "{why}"
    );
    assert!(
        why.ends_with("refused: Invalid argument (os error 22)"),
        "{why}"
    );
    // Only those that came with it go one by one.
    assert_eq!(sizes.iter().filter(|size| **size == 1).count(), 1_000);
    assert_eq!(sizes.iter().filter(|size| **size == 1_000).count(), 5);
    // After the next look it is tried again, and done.
    reconciler.look(&status);
    let applied = applier.apply_by(&mut reconciler, |_| Ok(()));
    assert!(applied.is_ok() && applier.refusal().is_none());
    // One that is refused and whose record goes is no failure.
    reconciler.look(&status);
    let _ = applier.apply_by(&mut reconciler, |batch| match is_refused(batch) {
        true => Err(ClientError::Explained("no".into())),
        false => Ok(()),
    });
    assert!(applier.refusal().is_some());
    reconciler.change([("7".into(), RecordChange::Delete)]);
    let _ = applier.apply_by(&mut reconciler, |_| Ok(()));
    assert_eq!(applier.refusal(), None);
}
