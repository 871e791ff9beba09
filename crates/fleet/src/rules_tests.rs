use std::collections::HashSet;
use std::net::IpAddr;

use adit_proto::Allowance;
use adit_proto::config::{AllowedIpChange, DeviceStatus, PeerStatus};
use proptest::prelude::*;

use super::*;
use crate::list::RecordChange;
use crate::ports::AllowedPorts;
use crate::reconcile::ChangeBatch;
use crate::record::{PeerRecord, RecordId};

fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

fn block(host: u8, len: u8) -> Cidr {
    Cidr::new(IpAddr::from([10, 0, 0, host]), len).expect("a block")
}

fn put(number: u8, blocks: &[Cidr], ports: Option<&str>) -> (RecordId, RecordChange) {
    let mut allowed_ips = blocks.to_vec();
    allowed_ips.sort_unstable();
    let record = PeerRecord {
        public_key: key(number),
        name: None,
        allowed_ips,
        endpoint: None,
        preshared_key_file: None,
        allowed_ports: ports.map(|text| {
            let mut ports = AllowedPorts::default();
            ports.extend(text).expect("rules");
            ports
        }),
        preshared_key: None,
        persistent_keepalive: 0,
        allowance: Allowance::default(),
    };
    (
        number.to_string().into(),
        RecordChange::Put(Box::new(record)),
    )
}

fn delete(number: u8) -> (RecordId, RecordChange) {
    (number.to_string().into(), RecordChange::Delete)
}

/// An interface, and the sets of its packet filter.
#[derive(Default)]
struct FakeHub {
    reconciler: Reconciler,
    book: RuleBook,
    elements: BTreeSet<RuleElement>,
    status: DeviceStatus,
    /// The transactions of the packet filter.
    transactions: usize,
}

impl FakeHub {
    /// With nothing but these elements, which an earlier process left.
    fn new(elements: &[&str]) -> Self {
        let elements: BTreeSet<RuleElement> =
            elements.iter().map(|it| it.parse().expect(it)).collect();
        let mut hub = Self {
            book: RuleBook::new(elements.iter().copied()),
            elements,
            ..Self::default()
        };
        hub.reconciler.look(&hub.status);
        hub
    }

    fn filter(&mut self, change: RuleChange) {
        for element in &change.delete {
            assert!(self.elements.remove(element), "{element} is not there");
        }
        for element in &change.add {
            for other in &self.elements {
                assert!(!overlaps(element, other), "{element} beside {other}");
            }
            self.elements.insert(*element);
        }
        self.transactions += usize::from(!change.is_empty());
        assert_eq!(self.elements, self.book.elements().collect());
    }

    fn prepare(&mut self) {
        let change = self.book.prepare(&self.reconciler);
        self.filter(change);
    }

    fn finish(&mut self) {
        let change = self.book.finish(&self.reconciler);
        self.filter(change);
    }

    /// `refused`: the interface does not take this one.
    fn apply(&mut self, refused: Option<PublicKey>) {
        while let Some(batch) = self.reconciler.next_batch(1) {
            if batch.keys().any(|key| Some(key) == refused) {
                self.reconciler.leave_out(batch);
                continue;
            }
            self.make(&batch);
            self.reconciler.done(batch, true);
        }
    }

    fn make(&mut self, batch: &ChangeBatch) {
        for section in &batch.sections {
            let peers = &mut self.status.peers;
            let blocks = section
                .allowed_ips
                .iter()
                .filter_map(AllowedIpChange::added);
            let blocks: Vec<Cidr> = blocks.collect();
            for peer in peers.iter_mut() {
                peer.allowed_ips.retain(|block| !blocks.contains(block));
            }
            peers.retain(|peer| peer.public_key != section.public_key);
            if !section.remove {
                let mut peer = PeerStatus::new(section.public_key);
                peer.allowed_ips = blocks;
                peers.push(peer);
            }
        }
    }

    /// The list of the source is whole with these changes.
    fn changes(&mut self, changes: impl IntoIterator<Item = (RecordId, RecordChange)>) {
        self.reconciler.change(changes);
        if !self.reconciler.is_listed() {
            let ids: HashSet<RecordId> = (0..10_u8).map(|it| it.to_string().into()).collect();
            self.reconciler.listed(&ids);
        }
        self.prepare();
        self.apply(None);
        self.finish();
    }

    fn has(&self, expected: &[&str]) {
        let found: Vec<String> = self.elements.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    /// Whose packets pass the source check.
    fn owner(&self, host: u8) -> Option<PublicKey> {
        let ip = IpAddr::from([10, 0, 0, host]);
        let blocks =
            self.status.peers.iter().flat_map(|peer| {
                (peer.allowed_ips.iter()).map(move |block| (block, peer.public_key))
            });
        let holding = blocks.filter(|(block, _)| block.contains(ip));
        let widest = holding.max_by_key(|(block, _)| block.prefix_len());
        widest.map(|(_, key)| key)
    }

    /// The TCP ports that may be opened from there; `None` for all.
    fn opens(&self, host: u8) -> Option<BTreeSet<u16>> {
        let ip = IpAddr::from([10, 0, 0, host]);
        let mut is_limited = false;
        let mut ports = BTreeSet::new();
        for element in &self.elements {
            match element {
                RuleElement::Limited(from) => is_limited |= from.contains(ip),
                RuleElement::Allowed(from, flows) if from.contains(ip) => {
                    ports.extend(flows.ports.0..=flows.ports.1);
                }
                RuleElement::Allowed(..) => {}
            }
        }
        is_limited.then_some(ports)
    }
}

fn overlaps(one: &RuleElement, other: &RuleElement) -> bool {
    fn meets<T: PartialOrd>(one: (T, T), other: (T, T)) -> bool {
        one.0 <= other.1 && other.0 <= one.1
    }
    match (one, other) {
        (RuleElement::Limited(one), RuleElement::Limited(other)) => overlap(*one, *other),
        (RuleElement::Allowed(one, flows), RuleElement::Allowed(other, others)) => {
            overlap(*one, *other)
                && overlap(flows.to, others.to)
                && meets(flows.protocols, others.protocols)
                && meets(flows.ports, others.ports)
        }
        _ => false,
    }
}

#[test]
fn rules_come_with_a_peer_and_go_with_it() {
    let mut hub = FakeHub::new(&[]);
    hub.changes([put(1, &[block(2, 32)], None)]);
    assert!(hub.book.is_empty());
    hub.changes([put(
        2,
        &[block(3, 32), block(3, 32)],
        Some("tcp/443, 10.1.0.0/16 icmp"),
    )]);
    assert_eq!(hub.transactions, 1);
    hub.has(&[
        "limited 10.0.0.3/32",
        "allowed 10.0.0.3/32 0.0.0.0/0 6-6 443-443",
        "allowed 10.0.0.3/32 10.1.0.0/16 1-1 0-65535",
    ]);
    // A change takes one transaction, and leaves what stays.
    hub.changes([put(2, &[block(3, 32)], Some("tcp/443, udp/53"))]);
    assert_eq!(hub.transactions, 2);
    hub.has(&[
        "limited 10.0.0.3/32",
        "allowed 10.0.0.3/32 0.0.0.0/0 6-6 443-443",
        "allowed 10.0.0.3/32 0.0.0.0/0 17-17 53-53",
    ]);
    hub.changes([put(2, &[block(3, 32)], Some(""))]);
    hub.has(&["limited 10.0.0.3/32"]);
    hub.changes([put(2, &[block(3, 32)], None)]);
    hub.has(&[]);
    hub.changes([put(2, &[block(3, 32)], Some("tcp/1"))]);
    hub.changes([delete(2)]);
    hub.has(&[]);
    assert!(hub.book.is_empty() && hub.book.peers.is_empty() && hub.book.unfinished.is_empty());
}

#[test]
fn an_address_that_moves_is_never_open_for_the_wrong_peer() {
    let mut hub = FakeHub::new(&[]);
    hub.changes([
        put(1, &[block(2, 32)], Some("tcp/1")),
        put(2, &[block(3, 32)], Some("tcp/2")),
    ]);
    hub.reconciler.change([
        put(1, &[block(3, 32)], Some("tcp/1")),
        put(2, &[block(2, 32)], Some("tcp/2")),
    ]);
    hub.prepare();
    hub.has(&["limited 10.0.0.2/32", "limited 10.0.0.3/32"]);
    hub.apply(None);
    hub.finish();
    hub.has(&[
        "limited 10.0.0.2/32",
        "limited 10.0.0.3/32",
        "allowed 10.0.0.2/32 0.0.0.0/0 6-6 2-2",
        "allowed 10.0.0.3/32 0.0.0.0/0 6-6 1-1",
    ]);
}

#[test]
fn what_the_interface_refuses_stays_closed() {
    let mut hub = FakeHub::new(&[]);
    hub.changes([put(1, &[block(0, 30)], Some("tcp/1"))]);
    hub.reconciler
        .change([put(1, &[block(2, 32)], Some("tcp/1"))]);
    hub.prepare();
    hub.apply(Some(key(1)));
    hub.finish();
    hub.has(&["limited 10.0.0.0/30"]);
    hub.reconciler.look(&hub.status.clone());
    hub.prepare();
    hub.apply(None);
    hub.finish();
    hub.has(&[
        "limited 10.0.0.2/32",
        "allowed 10.0.0.2/32 0.0.0.0/0 6-6 1-1",
    ]);
}

#[test]
fn the_next_process_keeps_the_rules_of_a_peer_whose_record_is_bad() {
    let left = [
        "limited 10.0.0.2/32",
        "limited 10.0.0.3/32",
        "limited 10.0.0.4/32",
        "allowed 10.0.0.2/32 0.0.0.0/0 6-6 1-1",
        "allowed 10.0.0.3/32 0.0.0.0/0 6-6 1-1",
    ];
    let mut hub = FakeHub::new(&left);
    for number in [2, 3] {
        let mut peer = PeerStatus::new(key(number));
        peer.allowed_ips = vec![block(number, 32)];
        hub.status.peers.push(peer);
    }
    let brought = [2, 3].map(|number| (key(number), number.to_string().into()));
    hub.reconciler = Reconciler::new(brought.into(), Some(&hub.status));
    hub.prepare();
    hub.apply(None);
    hub.finish();
    // Nothing is known yet.
    hub.has(&left);
    let bad = ("2".into(), RecordChange::Bad("why".into()));
    hub.changes([bad, put(3, &[block(3, 32)], Some("tcp/1, udp/1"))]);
    hub.has(&[
        "limited 10.0.0.2/32",
        "limited 10.0.0.3/32",
        "allowed 10.0.0.2/32 0.0.0.0/0 6-6 1-1",
        "allowed 10.0.0.3/32 0.0.0.0/0 6-6 1-1",
        "allowed 10.0.0.3/32 0.0.0.0/0 17-17 1-1",
    ]);
    hub.changes([delete(2)]);
    assert_eq!(hub.opens(2), None);
}

/// Peers with what they may open by TCP.
fn a_change() -> impl Strategy<Value = (u8, Option<(Cidr, Option<&'static str>)>)> {
    let ports = prop_oneof![
        Just(None),
        Just(Some("")),
        Just(Some("tcp/1")),
        Just(Some("tcp/2-3")),
        Just(Some("tcp/1, tcp/3")),
    ];
    let blocks = (0..8_u8, 29..=32_u8).prop_map(|(host, len)| block(host, len));
    (1..4_u8, proptest::option::weighted(0.8, (blocks, ports)))
}

proptest! {
    #[test]
    fn no_peer_ever_opens_what_neither_record_allows(
        rounds in proptest::collection::vec(
            (proptest::collection::vec(a_change(), 1..4), proptest::option::of(1..4_u8)),
            1..8,
        ),
    ) {
        let mut hub = FakeHub::new(&[]);
        hub.changes([]);
        for (changes, refused) in rounds {
            let limits = |hub: &FakeHub| -> HashMap<PublicKey, Option<BTreeSet<u16>>> {
                let of = |record: &PeerRecord| record.allowed_ports.as_ref().map(|ports| {
                    ports.flows(false).iter().flat_map(|it| it.ports.0..=it.ports.1).collect()
                });
                let keys = hub.reconciler.list().keys();
                keys.filter_map(|key| Some((*key, of(hub.reconciler.list().of(key)?)))).collect()
            };
            let before = limits(&hub);
            hub.reconciler.change(changes.into_iter().map(|(number, record)| match record {
                Some((block, ports)) => put(number, &[block], ports),
                None => delete(number),
            }));
            let after = limits(&hub);
            let check = |hub: &FakeHub| {
                for host in 0..8 {
                    let Some(owner) = hub.owner(host) else { continue };
                    let mut either = BTreeSet::new();
                    let mut is_limited = true;
                    for limit in [before.get(&owner), after.get(&owner)].into_iter().flatten() {
                        is_limited &= limit.is_some();
                        either.extend(limit.iter().flatten());
                    }
                    if is_limited {
                        let opens = hub.opens(host);
                        assert!(opens.as_ref().is_some_and(|it| it.is_subset(&either)), "{host}: {opens:?}");
                    }
                }
            };
            hub.prepare();
            check(&hub);
            hub.apply(refused.map(key));
            check(&hub);
            hub.finish();
            check(&hub);
            // Whatever was refused is taken in the end.
            hub.reconciler.look(&hub.status.clone());
            hub.prepare();
            hub.apply(None);
            hub.finish();
            for host in 0..8 {
                if let Some(owner) = hub.owner(host) {
                    assert_eq!(Some(&hub.opens(host)), after.get(&owner), "{host}");
                }
            }
        }
    }
}
