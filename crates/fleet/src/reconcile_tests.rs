use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use adit_proto::config::PeerStatus;
use proptest::prelude::*;

use super::*;

fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

fn block(host: u8) -> Cidr {
    Cidr::new(Ipv4Addr::new(10, 0, 0, host).into(), 32).expect("a block")
}

fn record(number: u8, host: u8) -> PeerRecord {
    PeerRecord {
        public_key: key(number),
        name: Some(format!("name-{number}")),
        allowed_ips: vec![block(host)],
        endpoint: Some("192.0.2.1:51820".parse().expect("an endpoint")),
        preshared_key_file: None,
        allowed_ports: None,
        preshared_key: None,
        persistent_keepalive: 0,
        allowance: Allowance::default(),
    }
}

fn put(id: &str, record: PeerRecord) -> (RecordId, RecordChange) {
    (id.into(), RecordChange::Put(Box::new(record)))
}

/// An interface that does what it is told.
#[derive(Clone, Default)]
struct Fake {
    status: DeviceStatus,
    names: BTreeMap<PublicKey, String>,
    allowances: BTreeMap<PublicKey, Allowance>,
    sections: usize,
}

impl Fake {
    fn make(&mut self, batch: &ChangeBatch) {
        for (key, name) in &batch.names {
            self.names.insert(*key, name.clone());
        }
        self.sections += batch.sections.len();
        for section in &batch.sections {
            let peers = &mut self.status.peers;
            if section.remove {
                peers.retain(|peer| peer.public_key != section.public_key);
                continue;
            }
            let blocks: Vec<Cidr> = section
                .allowed_ips
                .iter()
                .filter_map(AllowedIpChange::added)
                .collect();
            for peer in peers.iter_mut() {
                peer.allowed_ips.retain(|block| !blocks.contains(block));
            }
            if !peers
                .iter()
                .any(|peer| peer.public_key == section.public_key)
            {
                peers.push(PeerStatus::new(section.public_key));
            }
            let peer = peers
                .iter_mut()
                .find(|peer| peer.public_key == section.public_key);
            let peer = peer.expect("a peer");
            assert!(section.replace_allowed_ips);
            peer.allowed_ips = blocks;
            peer.endpoint = section.endpoint.or(peer.endpoint);
            peer.persistent_keepalive = section
                .persistent_keepalive
                .unwrap_or(peer.persistent_keepalive);
            if let Some(key) = &section.preshared_key {
                peer.preshared_key = Some(key.clone()).filter(|key| !key.is_zero());
            }
        }
        for (key, allowance, anew) in &batch.allowances {
            assert!(!anew);
            self.allowances.insert(*key, *allowance);
        }
        for key in &batch.forgets {
            self.names.remove(key);
            self.allowances.remove(key);
        }
    }

    fn foreign(&mut self, number: u8, host: u8) {
        let mut peer = PeerStatus::new(key(number));
        peer.allowed_ips = vec![block(host)];
        self.status.peers.push(peer);
    }

    fn has(&self, key: &PublicKey) -> bool {
        self.status.peers.iter().any(|it| it.public_key == *key)
    }

    fn keys(&self) -> Vec<u8> {
        let mut keys: Vec<u8> = self
            .status
            .peers
            .iter()
            .map(|peer| peer.public_key.0[0])
            .collect();
        keys.sort_unstable();
        keys
    }
}

fn apply(reconciler: &mut Reconciler, fake: &mut Fake) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some(batch) = reconciler.next_batch(3) {
        assert!(batch.keys().count() <= 3);
        fake.make(&batch);
        lines.extend(batch.lines.clone());
        reconciler.done(batch, true);
    }
    lines
}

fn ids(names: &[&str]) -> HashSet<RecordId> {
    names.iter().map(|name| RecordId::from(*name)).collect()
}

#[test]
fn nothing_is_removed_before_the_first_whole_list_and_only_what_was_brought() {
    let mut fake = Fake::default();
    fake.foreign(9, 9);
    let mut first = Reconciler::new(HashMap::new(), Some(&fake.status));
    first.change([
        put("a", record(1, 1)),
        put("b", record(2, 2)),
        put("c", record(3, 3)),
    ]);
    apply(&mut first, &mut fake);
    assert_eq!(fake.keys(), [1, 2, 3, 9]);
    assert_eq!(fake.names[&key(1)], "name-1");
    // It was killed. The next one knows `a` and `b` first.
    let brought = first.brought().clone();
    let mut next = Reconciler::new(brought, Some(&fake.status));
    next.change([put("a", record(1, 1))]);
    let before = fake.sections;
    assert_eq!(apply(&mut next, &mut fake), Vec::<String>::new());
    assert_eq!((fake.keys(), fake.sections), (vec![1, 2, 3, 9], before));
    // Of `c` there is a record, a bad one: its peer stays.
    next.change([("c".into(), RecordChange::Bad("bad".into()))]);
    next.listed(&ids(&["a", "c"]));
    assert_eq!(apply(&mut next, &mut fake).len(), 1);
    assert_eq!(fake.keys(), [1, 3, 9]);
    next.change([("c".into(), RecordChange::Delete)]);
    let lines = apply(&mut next, &mut fake);
    assert_eq!(lines, [format!("removed the peer {}", key(3))]);
    assert_eq!(fake.keys(), [1, 9]);
}

#[test]
fn only_what_differs_is_sent_and_a_roamed_endpoint_stays() {
    let mut fake = Fake::default();
    let mut reconciler = Reconciler::new(HashMap::new(), Some(&fake.status));
    reconciler.change([put("a", record(1, 1)), put("b", record(2, 2))]);
    reconciler.listed(&ids(&["a", "b"]));
    apply(&mut reconciler, &mut fake);
    assert_eq!(fake.sections, 2);
    // The same list again, and the peer elsewhere.
    let roamed = "192.0.2.99:1".parse().ok();
    fake.status.peers[0].endpoint = roamed;
    reconciler.look(&fake.status);
    reconciler.change([put("a", record(1, 1)), put("b", record(2, 2))]);
    reconciler.listed(&ids(&["a", "b"]));
    apply(&mut reconciler, &mut fake);
    assert_eq!(fake.sections, 2);
    // Others changed the interface, and another agent begins.
    reconciler.forget_told();
    reconciler.look(&fake.status);
    apply(&mut reconciler, &mut fake);
    let mut next = Reconciler::new(reconciler.brought().clone(), Some(&fake.status));
    next.change([put("a", record(1, 1)), put("b", record(2, 2))]);
    next.listed(&ids(&["a", "b"]));
    assert_eq!(apply(&mut next, &mut fake), Vec::<String>::new());
    assert_eq!((fake.sections, fake.status.peers[0].endpoint), (2, roamed));
    let mut reconciler = next;
    // A name and a limit take no section.
    let limited = PeerRecord {
        name: None,
        allowance: Allowance {
            quota: Some(5),
            ..Allowance::default()
        },
        ..record(1, 1)
    };
    reconciler.change([put("a", limited)]);
    let lines = apply(&mut reconciler, &mut fake);
    assert_eq!(lines, [format!("changed the peer {}", key(1))]);
    assert_eq!((fake.sections, fake.names[&key(1)].as_str()), (2, ""));
    assert_eq!(fake.allowances[&key(1)].quota, Some(5));
    // Another endpoint is meant, also if others change the interface at the same time.
    let mut moved = record(1, 1);
    moved.endpoint = "192.0.2.2:51820".parse().ok();
    reconciler.change([put("a", moved)]);
    reconciler.forget_told();
    reconciler.look(&fake.status);
    apply(&mut reconciler, &mut fake);
    assert_eq!(
        fake.status.peers[0].endpoint,
        "192.0.2.2:51820".parse().ok()
    );
    assert_eq!(fake.sections, 3);
}

#[test]
fn what_the_interface_lost_is_brought_again() {
    let mut fake = Fake::default();
    let mut reconciler = Reconciler::new(HashMap::new(), Some(&fake.status));
    reconciler.change((1..=7).map(|n| put(&n.to_string(), record(n, n))));
    apply(&mut reconciler, &mut fake);
    reconciler.gone();
    reconciler.change([put("8", record(8, 8))]);
    assert!(reconciler.next_batch(3).is_none());
    let mut fake = Fake::default();
    reconciler.look(&fake.status);
    apply(&mut reconciler, &mut fake);
    assert_eq!(fake.keys(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(fake.names.len(), 8);
    // Others told its process something else.
    fake.names.clear();
    reconciler.forget_told();
    reconciler.look(&fake.status);
    assert_eq!(apply(&mut reconciler, &mut fake), Vec::<String>::new());
    assert_eq!(fake.names.len(), 8);
}

#[test]
fn a_change_that_was_not_made_is_due_again_and_a_refused_one_after_the_next_look() {
    let mut fake = Fake::default();
    let mut reconciler = Reconciler::new(HashMap::new(), Some(&fake.status));
    reconciler.change([put("a", record(1, 1)), put("b", record(2, 2))]);
    let batch = reconciler.next_batch(2).expect("a change");
    assert_eq!(batch.brings.len(), 2);
    reconciler.done(batch, false);
    let batch = reconciler.next_batch(1).expect("a change");
    reconciler.leave_out(batch);
    apply(&mut reconciler, &mut fake);
    assert_eq!(fake.keys(), [2]);
    reconciler.look(&fake.status);
    apply(&mut reconciler, &mut fake);
    assert_eq!(fake.keys(), [1, 2]);
}

#[test]
fn a_peer_goes_by_the_name_that_its_record_has_now() {
    let mut fake = Fake::default();
    let mut first = Reconciler::new(HashMap::new(), Some(&fake.status));
    first.change([put("a", record(1, 1))]);
    first.listed(&ids(&["a"]));
    apply(&mut first, &mut fake);
    // It is renamed, and another one gets its old name.
    first.change([("a".into(), RecordChange::Delete), put("b", record(1, 1))]);
    assert_eq!(apply(&mut first, &mut fake), Vec::<String>::new());
    first.change([put("a", record(2, 2))]);
    apply(&mut first, &mut fake);
    let expected = [(key(1), "b".into()), (key(2), "a".into())];
    assert_eq!(*first.brought(), HashMap::from(expected));
    // The next process finds both bad, whether the interface is there by then or not.
    for status in [Some(&fake.status.clone()), None] {
        let mut next = Reconciler::new(first.brought().clone(), status);
        let bad = |id: &str| (id.into(), RecordChange::Bad("bad".into()));
        next.change([bad("a"), bad("b")]);
        next.listed(&ids(&["a", "b"]));
        next.look(&fake.status);
        assert_eq!(apply(&mut next, &mut fake), Vec::<String>::new());
        assert_eq!(fake.keys(), [1, 2]);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, u8),
    Delete(u8),
    Bad(u8),
    List,
    Restart,
    Lose,
    Sync,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6_u8, 0..6_u8, 0..8_u8).prop_map(|(id, key, host)| Step::Put(id, key, host)),
        2 => (0..6_u8).prop_map(Step::Delete),
        2 => (0..6_u8).prop_map(Step::Bad),
        1 => Just(Step::List),
        1 => Just(Step::Restart),
        1 => Just(Step::Lose),
        1 => Just(Step::Sync),
    ]
}

proptest! {
    /// Whatever happens, after a whole list the interface has the peers of the records that hold, those that are held,
    /// and those of others.
    #[test]
    fn the_interface_has_what_the_records_say(steps in prop::collection::vec(steps(), 1..40)) {
        let mut fake = Fake::default();
        fake.foreign(5, 7);
        let mut source: BTreeMap<RecordId, RecordChange> = BTreeMap::new();
        // The peer of the last record of each name that held.
        let mut held: BTreeMap<RecordId, PublicKey> = BTreeMap::new();
        let mut reconciler = Reconciler::new(HashMap::new(), Some(&fake.status));
        for step in steps {
            let takes_peers = matches!(step, Step::Lose | Step::Sync);
            match step {
                Step::Put(id, key, host) => {
                    let one = put(&id.to_string(), record(key, host));
                    source.extend([one.clone()]);
                    reconciler.change([one]);
                }
                Step::Bad(id) => {
                    let one = (RecordId::from(id.to_string()), RecordChange::Bad("bad".into()));
                    source.extend([one.clone()]);
                    reconciler.change([one]);
                }
                Step::Delete(id) => {
                    let id = RecordId::from(id.to_string());
                    source.remove(&id);
                    held.remove(&id);
                    reconciler.change([(id, RecordChange::Delete)]);
                }
                Step::List => {}
                Step::Restart => {
                    let brought = reconciler.brought().clone();
                    reconciler = Reconciler::new(brought, Some(&fake.status));
                }
                Step::Lose => {
                    fake = Fake::default();
                    fake.foreign(5, 7);
                    reconciler.gone();
                    reconciler.forget_told();
                    reconciler.look(&fake.status);
                }
                // Others apply their file.
                Step::Sync => {
                    fake.status.peers.retain(|peer| peer.public_key == key(5));
                    reconciler.look(&fake.status);
                }
            }
            apply(&mut reconciler, &mut fake);
            // Peers of others are never touched.
            let others = fake.status.peers.iter().find(|peer| peer.public_key == key(5));
            prop_assert_eq!(others.map(|peer| peer.allowed_ips.clone()), Some(vec![block(7)]));
            if takes_peers {
                held.retain(|_, key| fake.has(key));
            }
            let list = reconciler.list();
            let holding = list.keys().filter(|key| list.of(key).is_some());
            held.extend(holding.filter_map(|key| Some((list.id_of(key)?.clone(), *key))));
        }
        reconciler.change(source.clone());
        reconciler.listed(&source.keys().cloned().collect());
        apply(&mut reconciler, &mut fake);
        // A bad record leaves the peer that it had, also after a restart.
        for (id, change) in &source {
            if let (RecordChange::Bad(_), Some(key)) = (change, held.get(id)) {
                prop_assert!(fake.has(key), "{} had {:?}", id, key);
            }
        }
        for peer in fake.status.peers.iter().filter(|peer| peer.public_key != key(5)) {
            let id = reconciler.list().id_of(&peer.public_key);
            prop_assert!(id.is_some_and(|id| source.contains_key(id)), "{:?}", peer);
            if let Some(record) = reconciler.list().of(&peer.public_key) {
                prop_assert_eq!(&record.allowed_ips, &peer.allowed_ips);
            }
        }
        for key in reconciler.list().keys() {
            let is_there = fake.status.peers.iter().any(|peer| peer.public_key == *key);
            prop_assert!(is_there || reconciler.list().of(key).is_none());
        }
        prop_assert_eq!(reconciler.applied() + 1, fake.status.peers.len());
    }
}
