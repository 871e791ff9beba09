use super::*;
use std::collections::BTreeSet;
use std::sync::Mutex;

#[derive(Default)]
struct Seen(Mutex<(BTreeSet<usize>, bool)>);

impl InUse for Seen {
    fn set(&self, bucket: usize, is_used: bool) {
        let (used, _) = &mut *self.0.lock().unwrap();
        match is_used {
            true => used.insert(bucket),
            false => used.remove(&bucket),
        };
    }

    fn set_complete(&self, is_complete: bool) {
        self.0.lock().unwrap().1 = is_complete;
    }
}

impl Seen {
    fn of(buckets: &[usize], is_complete: bool) -> (BTreeSet<usize>, bool) {
        (buckets.iter().copied().collect(), is_complete)
    }

    fn get(&self) -> (BTreeSet<usize>, bool) {
        self.0.lock().unwrap().clone()
    }
}

#[test]
fn a_bucket_is_in_use_as_long_as_one_of_its_indices_is() {
    let (mut indices, seen) = (Indices::default(), Arc::new(Seen::default()));
    assert!(indices.insert(0xffff_8001, 1));
    indices.tell(Some(seen.clone()));
    assert_eq!(seen.get(), Seen::of(&[1], true));
    assert!(indices.insert(0x0001_8001, 2) && indices.insert(0xffff_7fff, 3));
    assert!(!indices.insert(0xffff_8001, 4), "it is in use");
    assert_eq!(seen.get(), Seen::of(&[1, 0x7fff], true));
    indices.remove(0xffff_8001);
    indices.remove(0xffff_7fff);
    assert_eq!(seen.get(), Seen::of(&[1], true));
    indices.remove(0x0001_8001);
    assert_eq!(seen.get(), Seen::of(&[], true));
}

#[test]
fn whoever_learns_no_more_knows_that() {
    let (mut indices, seen) = (Indices::default(), Arc::new(Seen::default()));
    indices.tell(Some(seen.clone()));
    indices.tell(None);
    assert_eq!(seen.get(), Seen::of(&[], false));
    indices.insert(5, 1);
    assert_eq!(seen.get(), Seen::of(&[], false));
}

#[test]
fn each_index_keeps_its_peer() {
    let mut indices = Indices::default();
    let all = [0, 1, 0x7fff, 0x8000, 0x8001, u32::MAX];
    assert!(
        (0..)
            .zip(all)
            .all(|(peer, index)| indices.insert(index, peer))
    );
    assert!(
        (0..)
            .zip(all)
            .all(|(peer, index)| indices.peer(index) == Some(peer))
    );
    let mut peers = Vec::new();
    let mut from = Some(0);
    while let Some((number, peer)) = from.and_then(|from| indices.peers_from(from).next()) {
        peers.push(peer);
        from = number.checked_add(1);
    }
    peers.sort_unstable();
    assert_eq!(peers, [0, 1, 2, 3, 4, 5]);
    for index in all {
        indices.remove(index);
    }
    assert_eq!(indices.len(), 0);
}
