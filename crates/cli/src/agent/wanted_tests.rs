use super::*;

fn stranger(key: u32, host: u32) -> Stranger {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&key.to_le_bytes());
    Stranger {
        key: PublicKey(bytes),
        from: (std::net::Ipv4Addr::from_bits(host), 9).into(),
        is_proven: false,
        is_elsewhere: false,
    }
}

fn id(key: u32) -> RecordId {
    stranger(key, 0).key.to_string().into()
}

#[test]
fn a_flood_of_unknown_keys_asks_little_and_peers_are_found() {
    let wanted = WantedRecords::default();
    let start = Instant::now();
    let (mut asked, mut found) = (0, 0);
    for second in 0..10 {
        for turn in 0..100 {
            let now = start + Duration::from_millis(1000 * second + 10 * turn);
            let turn = u32::try_from(1000 * second + turn).expect("small");
            // 6,000 keys a second from four addresses, and one peer each second from its own.
            let mut strangers: Vec<_> = (0..60)
                .map(|key| stranger(100_000 + 100 * turn + key, key % 4))
                .collect();
            let peer = u32::try_from(second).expect("small");
            strangers.push(Stranger {
                is_proven: true,
                ..stranger(peer, 1000 + peer)
            });
            let selected = wanted.select(now, &strangers);
            let known: HashSet<_> = (0..10).map(id).collect();
            asked += selected.keys().filter(|id| !known.contains(*id)).count();
            found += selected.keys().filter(|id| known.contains(*id)).count();
            wanted.answered(now, &selected, &known);
        }
    }
    assert_eq!((asked, found), (10 * 50, 10));
    let counts = wanted.counts();
    assert_eq!((counts.found, counts.missing), (10, 500));
    assert_eq!(counts.limited, 60_000 - 500);
    assert!(wanted.state().missing.len() <= 1000);
}

#[test]
fn many_sources_together_have_a_limit_and_hits_are_free() {
    let wanted = WantedRecords::default();
    let now = Instant::now();
    let strangers: Vec<_> = (0..500).map(|key| stranger(key, key)).collect();
    let selected = wanted.select(now, &strangers);
    assert_eq!(selected.len(), 50);
    let found = selected.keys().cloned().collect();
    wanted.answered(now, &selected, &found);
    let more = wanted.select(now, &strangers);
    assert_eq!(more.len(), 50);
    assert!(more.keys().all(|id| !found.contains(id)), "asked twice");
    // Those that have shown where they are have room of their own.
    let proven = (600..1000).map(|key| Stranger {
        is_proven: true,
        ..stranger(key, key)
    });
    assert_eq!(wanted.select(now, &proven.collect::<Vec<_>>()).len(), 50);
}

#[test]
fn a_key_that_is_missing_is_asked_for_again_when_it_may_be_there() {
    let wanted = WantedRecords::default();
    let now = Instant::now();
    let one = [stranger(1, 1), stranger(1, 2)];
    let selected = wanted.select(now, &one);
    assert_eq!(selected.len(), 1);
    wanted.answered(now, &selected, &HashSet::new());
    let soon = now + Duration::from_secs(5);
    assert_eq!(wanted.select(soon, &one).len(), 0);
    assert_eq!(wanted.select(now + MISSING, &one).len(), 1);
    wanted.answered(now + MISSING, &selected, &HashSet::new());
    // The store tells that it is there now.
    assert!(!wanted.heard(&id(1), false));
    assert_eq!(wanted.select(now + MISSING, &one).len(), 1);
}

#[test]
fn what_is_evicted_is_not_followed_and_may_come_again() {
    let wanted = WantedRecords::new([id(1), id(2), "".into()].into_iter());
    assert_eq!(wanted.ids().len(), 2);
    let one = [stranger(1, 1)];
    assert_eq!(wanted.select(Instant::now(), &one).len(), 0);
    wanted.evict(&[id(1), id(3)]);
    assert_eq!(wanted.counts().evicted, 1);
    assert!(!wanted.has(&id(1)) && wanted.has(&id(2)));
    assert_eq!(wanted.select(Instant::now(), &one).len(), 1);
    assert!(wanted.heard(&id(2), true) && !wanted.has(&id(2)));
}

#[test]
fn peers_of_other_gateways_are_followed_without_a_limit() {
    let wanted = WantedRecords::default();
    let now = Instant::now();
    let all: Vec<_> = (0..500)
        .map(|key| Stranger {
            is_elsewhere: true,
            ..stranger(key, 1)
        })
        .collect();
    let selected = wanted.select(now, &all);
    assert_eq!(selected.len(), 500);
    let found = (0..400).map(id).collect();
    wanted.answered(now, &selected, &found);
    assert_eq!(
        (wanted.ids().len(), wanted.counts()),
        (400, JustInTime::default())
    );
    // The others are asked for when they begin a handshake here.
    assert_eq!(
        wanted
            .select(now, &[stranger(450, 1), stranger(7, 1)])
            .len(),
        1
    );
}
