use std::net::Ipv4Addr;

use adit_proto::Allowance;
use proptest::prelude::*;

use super::*;

fn record(key: u8, blocks: &[(u8, u8)]) -> PeerRecord {
    let block = |&(host, len): &(u8, u8)| Cidr::new(Ipv4Addr::new(10, 0, 0, host).into(), len);
    let mut allowed_ips: Vec<Cidr> = blocks.iter().filter_map(block).collect();
    allowed_ips.sort_unstable();
    allowed_ips.dedup();
    PeerRecord {
        public_key: PublicKey([key; 32]),
        name: None,
        allowed_ips,
        endpoint: None,
        preshared_key_file: None,
        allowed_ports: None,
        preshared_key: None,
        persistent_keepalive: 0,
        allowance: Allowance::default(),
    }
}

fn put(id: &str, key: u8, blocks: &[(u8, u8)]) -> (RecordId, RecordChange) {
    (id.into(), RecordChange::Put(Box::new(record(key, blocks))))
}

fn bad(id: &str) -> (RecordId, RecordChange) {
    (id.into(), RecordChange::Bad("it is bad".into()))
}

fn delete(id: &str) -> (RecordId, RecordChange) {
    (id.into(), RecordChange::Delete)
}

/// The records that hold: whose they are, and the key of each.
fn holding(list: &RecordList) -> Vec<(String, u8)> {
    let claims = list.claims.iter();
    let of = |(id, claim): (&RecordId, &Claim)| {
        let record = claim.record.as_ref()?;
        Some((id.to_string(), record.public_key.0[0]))
    };
    claims.filter_map(of).collect()
}

#[track_caller]
fn holds(list: &RecordList, expected: &[(&str, u8)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(id, key)| ((*id).to_owned(), *key))
        .collect();
    assert_eq!(holding(list), expected, "{:?}", list.refused);
}

#[test]
fn the_first_to_claim_a_key_or_addresses_has_them() {
    let mut list = RecordList::default();
    list.change([put("b", 1, &[(2, 32)])]);
    list.change([
        put("a", 1, &[(3, 32)]),
        put("c", 2, &[(0, 24)]),
        put("d", 3, &[(2, 32), (9, 32)]),
    ]);
    holds(&list, &[("b", 1)]);
    let why = |id: &str| list.refused[id].clone();
    assert_eq!(why("a"), "another record, b, has the same public key");
    assert_eq!(
        why("c"),
        "10.0.0.0/24 overlaps 10.0.0.2/32 of another record, b"
    );
    assert_eq!(why("d"), "another record, b, has 10.0.0.2/32");
    // What stood in the way goes: in the order of their names they get it.
    list.change([delete("b")]);
    holds(&list, &[("a", 1), ("d", 3)]);
    list.change([delete("a")]);
    holds(&list, &[("d", 3)]);
    list.change([delete("d")]);
    holds(&list, &[("c", 2)]);
    assert!(list.refused.is_empty());
}

#[test]
fn a_bad_record_leaves_what_was_there() {
    let mut list = RecordList::default();
    list.change([put("a", 1, &[(1, 32)]), put("b", 2, &[(2, 32)])]);
    list.change([bad("a"), put("b", 1, &[(2, 32)])]);
    holds(&list, &[("a", 1), ("b", 2)]);
    assert_eq!(list.refused().len(), 2);
    assert_eq!(list.refusal_news().len(), 2);
    assert!(list.refusal_news().is_empty());
    // The same again mends it.
    list.change([put("a", 1, &[(1, 32)]), put("b", 2, &[(2, 32)])]);
    assert!(list.refused().is_empty());
    assert_eq!(list.refusal_news().len(), 2);
    list.change([put("a", 3, &[(1, 32)])]);
    assert!(list.refusal_news().is_empty());
    list.change([put("a", 1, &[(1, 32)]), bad("c")]);
    assert_eq!(list.refusal_news().len(), 1);
    assert_eq!((list.len(), list.known()), (2, 3));
    list.change([delete("c")]);
    assert_eq!((list.known(), list.refused().len()), (2, 0));
}

#[test]
fn two_records_exchange_addresses_at_once_or_one_after_the_other() {
    for at_once in [true, false] {
        let mut list = RecordList::default();
        list.change([put("a", 1, &[(1, 32)]), put("b", 2, &[(2, 32)])]);
        let news = [put("a", 1, &[(2, 32)]), put("b", 2, &[(1, 32)])];
        match at_once {
            true => drop(list.change(news)),
            false => news.into_iter().for_each(|one| drop(list.change([one]))),
        }
        holds(&list, &[("a", 1), ("b", 2)]);
        assert!(list.refused.is_empty(), "{:?}", list.refused);
        assert_eq!(list.of(&PublicKey([1; 32])), Some(&record(1, &[(2, 32)])));
    }
}

#[test]
fn a_new_record_gives_way_to_one_that_falls_back() {
    let mut list = RecordList::default();
    list.change([put("b", 1, &[(1, 32)]), put("c", 2, &[(2, 32)])]);
    // `a` takes what `b` gives up, but `b` cannot have what `c` has.
    list.change([put("a", 3, &[(1, 32)]), put("b", 1, &[(2, 32)])]);
    holds(&list, &[("b", 1), ("c", 2)]);
    assert!(list.refused.contains_key("a") && list.refused.contains_key("b"));
    // As soon as `c` goes, both get what they asked for.
    list.change([delete("c")]);
    holds(&list, &[("a", 3), ("b", 1)]);
    assert!(list.refused.is_empty());
}

#[test]
fn what_the_interface_has_from_others_is_theirs() {
    let mut list = RecordList::default();
    let records = [
        put("a", 1, &[(1, 32)]),
        put("b", 2, &[(2, 32)]),
        put("c", 3, &[(3, 32)]),
    ];
    list.change(records);
    let block = Cidr::new(Ipv4Addr::new(10, 0, 0, 2).into(), 32).expect("a block");
    let foreign = ForeignPeers {
        own_key: Some(PublicKey([3; 32])),
        keys: [PublicKey([1; 32]), PublicKey([7; 32])].into(),
        blocks: [(block, PublicKey([7; 32]))].into(),
    };
    list.set_foreign(foreign);
    holds(&list, &[]);
    assert!(list.refused["a"].contains("not from this source"));
    assert!(list.refused["b"].contains("10.0.0.2/32 for the peer"));
    assert!(list.refused["c"].contains("own public key"));
    // The peer of `b` is still the source's, and stays as it is; the others never were.
    assert_eq!(list.keys().collect::<Vec<_>>(), [&PublicKey([2; 32])]);
    list.set_foreign(ForeignPeers::default());
    holds(&list, &[("a", 1), ("b", 2), ("c", 3)]);
    assert!(list.refused.is_empty());
}

#[test]
fn what_an_earlier_process_brought_is_held_until_its_record_is_known() {
    let block = record(1, &[(1, 32)]).allowed_ips;
    let held = [
        ("z".into(), PublicKey([1; 32]), block),
        ("y".into(), PublicKey([2; 32]), Vec::new()),
    ];
    let mut list = RecordList::holding(held);
    // Another record is first by its name, and claims the same.
    list.change([put("a", 9, &[(1, 32)]), bad("z"), put("y", 2, &[(5, 32)])]);
    holds(&list, &[("y", 2)]);
    assert_eq!(list.keys().count(), 2);
    list.retain(&["a".into(), "z".into(), "y".into()].into());
    assert_eq!(list.keys().count(), 2);
    list.retain(&["a".into()].into());
    holds(&list, &[("a", 9)]);
}

/// Whether two records can both hold.
fn fit(one: &PeerRecord, other: &PeerRecord) -> bool {
    let overlap = |a: &Cidr, b: &Cidr| a.contains(b.addr()) || b.contains(a.addr());
    let mut pairs =
        (one.allowed_ips.iter()).flat_map(|a| other.allowed_ips.iter().map(move |b| (a, b)));
    one.public_key != other.public_key && !pairs.any(|(a, b)| overlap(a, b))
}

#[derive(Clone, Debug)]
enum News {
    Put(u8, u8, Vec<(u8, u8)>),
    Bad(u8),
    Delete(u8),
}

fn news() -> impl Strategy<Value = News> {
    let blocks = prop::collection::vec((0..16_u8, 28..33_u8), 0..3);
    prop_oneof![
        4 => (0..6_u8, 0..6_u8, blocks).prop_map(|(id, key, blocks)| News::Put(id, key, blocks)),
        1 => (0..6_u8).prop_map(News::Bad),
        2 => (0..6_u8).prop_map(News::Delete),
    ]
}

proptest! {
    /// 1. Those that hold fit together. 2. Each that is refused and good has another in its way. 3. A record that
    /// held and was not changed to another good one still holds.
    #[test]
    fn what_holds_fits_and_nothing_is_refused_without_a_reason(
        rounds in prop::collection::vec(prop::collection::vec(news(), 1..5), 1..12),
        taken in prop::collection::vec((0..12_usize, 0..6_u8), 0..3),
    ) {
        let mut list = RecordList::default();
        // The last news of each record.
        let mut latest: BTreeMap<RecordId, RecordChange> = BTreeMap::new();
        for (number, round) in rounds.into_iter().enumerate() {
            let foreign = ForeignPeers {
                keys: taken.iter().filter(|(at, _)| *at == number).map(|(_, key)| PublicKey([*key; 32])).collect(),
                ..ForeignPeers::default()
            };
            list.set_foreign(foreign.clone());
            let before: BTreeMap<RecordId, PeerRecord> = (list.claims.iter())
                .filter_map(|(id, claim)| Some((id.clone(), claim.record.clone()?)))
                .collect();
            let changes: Vec<(RecordId, RecordChange)> = round.iter().map(|news| match news {
                News::Put(id, key, blocks) => put(&id.to_string(), *key, blocks),
                News::Bad(id) => bad(&id.to_string()),
                News::Delete(id) => delete(&id.to_string()),
            }).collect();
            latest.extend(changes.clone());
            list.change(changes.clone());
            let holding: Vec<(&RecordId, &PeerRecord)> = (list.claims.iter())
                .filter_map(|(id, claim)| Some((id, claim.record.as_ref()?)))
                .collect();
            prop_assert_eq!(holding.len(), list.len());
            for (at, (_, one)) in holding.iter().enumerate() {
                prop_assert!(holding[at + 1..].iter().all(|(_, other)| fit(one, other)));
                prop_assert!(!foreign.has(&one.public_key));
                prop_assert_eq!(list.of(&one.public_key), Some(*one));
            }
            for (id, change) in &latest {
                let held = list.claims.get(id).and_then(|claim| claim.record.as_ref());
                match change {
                    RecordChange::Delete => prop_assert!(!list.claims.contains_key(id)),
                    RecordChange::Bad(_) => prop_assert!(list.refused.contains_key(id)),
                    RecordChange::Put(record) if held == Some(record) => {
                        prop_assert!(!list.refused.contains_key(id));
                    }
                    RecordChange::Put(record) => {
                        prop_assert!(list.refused.contains_key(id));
                        let others = holding.iter().filter(|(other, _)| *other != id);
                        let held = list.claims.iter().filter(|(other, claim)| *other != id && claim.key() == Some(record.public_key));
                        let stands = others.clone().any(|(_, other)| !fit(record, other))
                            || foreign.has(&record.public_key) || held.count() > 0;
                        // A peer that is held has blocks, too.
                        let held = list.claims.iter().filter(|(other, claim)| *other != id && claim.held.is_some());
                        let overlaps = held.into_iter().any(|(_, claim)| {
                            claim.blocks().iter().any(|a| record.allowed_ips.iter().any(|b| a.contains(b.addr()) || b.contains(a.addr())))
                        });
                        prop_assert!(stands || overlaps, "{} is refused: {:?}", id, list.refused);
                    }
                }
            }
            for (id, record) in before {
                let was_deleted = changes.iter().any(|(other, change)| *other == id && *change == RecordChange::Delete);
                let claim = list.claims.get(&id);
                let now = claim.and_then(|claim| claim.record.clone());
                let is_new = |now: &PeerRecord| latest.get(&id).is_some_and(|it| matches!(it, RecordChange::Put(put) if **put == *now));
                prop_assert!(
                    was_deleted || foreign.has(&record.public_key)
                        || now.as_ref().is_some_and(|now| *now == record || is_new(now)),
                    "{} held {:?} and has {:?}", id, record, now
                );
            }
        }
    }
}
