//! The last byte of a receiver index says in which receive queue, at which of several sockets, data arrives.
//! A new peer gets the receive queue with the least work, and keeps it.

mod common;

use std::collections::BTreeSet;

use adit_proto::config::PeerChange;
use adit_proto::wire::DataHeader;
use adit_proto::{GATEWAY_SHIFT, Import, MAX_GATEWAYS, MAX_RX_QUEUES};
use common::*;

const GATEWAY: usize = 0;
const PEERS: std::ops::RangeInclusive<usize> = 1..=8;

fn net() -> Net {
    let mut net = Net::of(1 + PEERS.count(), 5);
    let gateway = net.hosts[GATEWAY].addr;
    for number in PEERS {
        let block = format!("10.0.0.{number}/32");
        let of_peer = |peer: &mut PeerChange| {
            peer.allowed_ips = vec![add(&block)];
        };
        net.apply(GATEWAY, &peer(number, of_peer));
        let of_gateway = |peer: &mut PeerChange| {
            peer.endpoint = Some(gateway);
            peer.allowed_ips = vec![add("10.0.1.0/24")];
        };
        net.apply(number, &peer(GATEWAY, of_gateway));
    }
    net
}

fn rx_queue(net: &Net, number: usize) -> u8 {
    last_byte(net, number) % u8::try_from(MAX_RX_QUEUES).unwrap()
}

fn last_byte(net: &Net, number: usize) -> u8 {
    net.session(GATEWAY, number).local_index().to_le_bytes()[3]
}

/// Both ways, so that either end starts the next handshake.
fn exchange(net: &mut Net, seconds: u64) {
    work(net, seconds, |_| 0);
}

/// The same while each peer has the gateway do so much a second.
fn work(net: &mut Net, seconds: u64, of: impl Fn(usize) -> u64) {
    for _ in 0..seconds {
        for number in PEERS {
            net.send(number, GATEWAY, b"there");
            net.send(GATEWAY, number, b"and back");
        }
        net.run_for(secs(1));
        let shared = net.hosts[GATEWAY].device.shared();
        let rx_queues = shared.rx_queues();
        for number in PEERS {
            net.peer(GATEWAY, number).worked(of(number));
            rx_queues.worked(place(net, number), of(number));
        }
    }
}

/// The receive queue of a peer.
fn place(net: &Net, number: usize) -> usize {
    let count = net.hosts[GATEWAY].device.shared().rx_queues().count();
    usize::from(rx_queue(net, number)) % count
}

fn places(net: &Net) -> Vec<usize> {
    PEERS.map(|number| place(net, number)).collect()
}

fn set_count(net: &Net, rx_queues: usize) {
    let shared = net.hosts[GATEWAY].device.shared();
    shared.rx_queues().set_count(rx_queues, net.now);
}

#[test]
fn peers_are_spread_over_rx_queues_and_keep_theirs_while_they_do_little() {
    let mut net = net();
    exchange(&mut net, 5);
    let rx_queues: Vec<u8> = PEERS.map(|number| rx_queue(&net, number)).collect();
    let different: BTreeSet<_> = rx_queues.iter().collect();
    assert_eq!(different.len(), rx_queues.len(), "{rx_queues:?}");
    set_count(&net, 4);
    let mut indices = BTreeSet::new();
    for _ in 0..40 {
        exchange(&mut net, 10);
        for (number, rx_queue_before) in PEERS.zip(&rx_queues) {
            assert_eq!(rx_queue(&net, number), *rx_queue_before);
            indices.insert(net.session(GATEWAY, number).local_index());
        }
    }
    assert!(indices.len() >= 3 * rx_queues.len(), "sessions changed");
}

const LITTLE: u64 = 1_000_000;
const MUCH: u64 = 100 * LITTLE;

/// One that left would have data of its new session overtake that of the one before.
#[test]
fn peers_keep_their_rx_queue_however_much_they_have_to_do() {
    let mut net = net();
    exchange(&mut net, 5);
    set_count(&net, 2);
    let before = places(&net);
    let heavy = |number: usize| before[number - 1] == 0;
    let mut indices = BTreeSet::new();
    for _ in 0..40 {
        work(&mut net, 10, |number| if heavy(number) { MUCH } else { 0 });
        assert_eq!(places(&net), before);
        indices.extend(PEERS.map(|number| net.session(GATEWAY, number).local_index()));
    }
    assert!(indices.len() >= 3 * before.len(), "sessions changed");
}

#[test]
fn a_new_peer_gets_the_rx_queue_with_least_to_do() {
    let mut net = net();
    let gateway = public_key(GATEWAY);
    set_count(&net, 4);
    let shared = net.hosts[GATEWAY].device.shared();
    // What measures begins with a handshake.
    net.send(1, GATEWAY, b"there");
    net.run_for(secs(1));
    for (rx_queue, work) in [MUCH, 3 * LITTLE, MUCH, MUCH].into_iter().enumerate() {
        shared.rx_queues().worked(rx_queue, work);
    }
    net.run_for(secs(1));
    net.send(2, GATEWAY, b"there");
    net.run_for(secs(1));
    assert_eq!(place(&net, 2), 1);
    assert!(net.hosts[2].device.peer(&gateway).is_some());
}

/// In another process, whose records are these, after they were changed.
fn go_on(net: &mut Net, host: usize, change: impl Fn(&mut [u8])) {
    net.drain(host);
    let mut random = Random(host as u64);
    let mut import = Import::new(Box::new(move |bytes| {
        bytes.fill_with(|| random.below(256).to_le_bytes()[0]);
    }));
    let exported = net.hosts[host].device.export(net.now, |mut record| {
        change(&mut record);
        import.take(&record)
    });
    exported.expect("all records");
    net.hosts[host].device = import.finish(net.now).expect("a device");
}

/// Where this index begins in a record.
fn find(record: &[u8], index: u32) -> Option<usize> {
    let bytes = index.to_le_bytes();
    record.windows(bytes.len()).position(|it| it == bytes)
}

/// Earlier versions moved peers between receive queues by load, and said so in a byte of each session.
#[test]
fn a_peer_that_an_earlier_version_was_moving_loses_nothing() {
    /// Of a session's record: its index, that of the peer, a bool, a time, two keys, a counter, two bools.
    const MOVES_AT: usize = 4 + 4 + 1 + 8 + 2 * 32 + 8 + 2;
    const PEER: usize = 1;
    let mut net = net();
    exchange(&mut net, 5);
    set_count(&net, 2);
    let before = net.session(GATEWAY, PEER).local_index();
    net.hosts[GATEWAY].device.probe(net.now, &public_key(PEER));
    net.drain(GATEWAY);
    exchange(&mut net, 5);
    let index = net.session(GATEWAY, PEER).local_index();
    assert_ne!(index, before, "a new session");

    // The other receive queue, of two and of eight.
    let moved = index ^ 1 << 24;
    for host in [PEER, GATEWAY] {
        go_on(&mut net, host, |record| {
            let Some(at) = find(record, index) else {
                return;
            };
            record[at..][..4].copy_from_slice(&moved.to_le_bytes());
            if host == GATEWAY {
                assert_eq!(record[at + MOVES_AT], 0);
                record[at + MOVES_AT] = 1;
            }
        });
    }
    set_count(&net, 2);
    let device = &net.hosts[GATEWAY].device;
    assert_eq!(net.session(GATEWAY, PEER).local_index(), moved);
    assert!(device.shared().session(before).is_some(), "it is kept");
    let delivered = net.hosts[GATEWAY].delivered.len();
    exchange(&mut net, 20);
    let all = 20 * PEERS.count();
    assert_eq!(net.hosts[GATEWAY].delivered.len() - delivered, all);

    // The receive queue of the newest session is that of all that follow.
    let place = place(&net, PEER);
    exchange(&mut net, 400);
    assert_ne!(net.session(GATEWAY, PEER).local_index(), moved);
    assert_eq!(self::place(&net, PEER), place);
    assert_ne!(place, usize::from(before.to_le_bytes()[3]) % 2);

    // An earlier version that goes on after this one finds nobody on the move.
    let index = net.session(GATEWAY, PEER).local_index();
    go_on(&mut net, GATEWAY, |record| {
        if let Some(at) = find(record, index) {
            assert_eq!(record[at + MOVES_AT], 0);
        }
    });
}

#[test]
fn indices_of_a_peer_have_no_more_in_common_than_their_rx_queue() {
    let mut net = net();
    exchange(&mut net, 1);
    let ways = 256 / MAX_RX_QUEUES;
    let mut bytes = BTreeSet::new();
    for _ in 0..60 {
        exchange(&mut net, 10);
        // Each handshake by hand is a new session.
        for number in PEERS {
            let (now, key) = (net.now, public_key(GATEWAY));
            net.hosts[number].device.probe(now, &key);
            net.drain(number);
            bytes.insert((number, last_byte(&net, number)));
        }
    }
    let seen = bytes.len() / PEERS.count();
    assert!(seen > ways / 2, "{seen} of {ways}");
}

/// The place of the receive queue in a data message is that of the index's last byte.
#[test]
fn the_rx_queue_stands_where_sockets_look_for_it() {
    let mut message = [0; DataHeader::LEN];
    let header = DataHeader {
        receiver: 0x7f00_0001,
        counter: 0,
    };
    header.write(&mut message);
    assert_eq!(message[DataHeader::RX_QUEUE_AT], 0x7f);
}

/// The last bytes of all sessions that the gateway has with its peers, as it makes new ones.
fn last_bytes(net: &mut Net, sessions: usize) -> BTreeSet<u8> {
    let mut bytes = BTreeSet::new();
    for round in 0..sessions {
        for number in PEERS {
            // Either end begins.
            let (from, to) = match round % 2 {
                0 => (number, GATEWAY),
                _ => (GATEWAY, number),
            };
            let key = public_key(to);
            net.hosts[from].device.force_handshake(net.now, &key);
            net.drain(from);
        }
        exchange(net, 1);
        bytes.extend(PEERS.map(|number| last_byte(net, number)));
    }
    bytes
}

#[test]
fn a_gateways_indices_have_its_id_and_all_rx_queues() {
    for id in [0, 1, 17, MAX_GATEWAYS - 1] {
        let mut net = net();
        net.hosts[GATEWAY].device.set_gateway_id(Some(id));
        set_count(&net, MAX_RX_QUEUES);
        let bytes = last_bytes(&mut net, 6);
        let own = id << GATEWAY_SHIFT..=id << GATEWAY_SHIFT | 7;
        assert!(bytes.iter().all(|byte| own.contains(byte)), "{bytes:?}");
        assert_eq!(bytes.len(), MAX_RX_QUEUES, "{bytes:?}");
        // The other end does not know of it.
        let theirs: BTreeSet<_> = PEERS
            .map(|number| net.session(number, GATEWAY).local_index() >> (24 + GATEWAY_SHIFT))
            .collect();
        assert!(theirs.len() > 1, "{theirs:?}");
    }
}

#[test]
fn a_gateway_without_an_id_has_indices_of_all_kinds() {
    let bytes = last_bytes(&mut net(), 12);
    let ids: BTreeSet<_> = bytes.iter().map(|byte| byte >> GATEWAY_SHIFT).collect();
    assert!(ids.len() > usize::from(MAX_GATEWAYS) / 2, "{ids:?}");
}

/// A device that goes on in another process keeps its sessions, whatever their indices.
#[test]
fn sessions_from_before_a_gateway_had_its_id_go_on() {
    let mut net = net();
    exchange(&mut net, 5);
    let before: Vec<_> = PEERS
        .map(|n| net.session(GATEWAY, n).local_index())
        .collect();
    go_on(&mut net, GATEWAY, |_| ());
    net.hosts[GATEWAY].device.set_gateway_id(Some(9));
    let delivered = net.hosts[GATEWAY].delivered.len();
    exchange(&mut net, 5);
    assert_eq!(
        net.hosts[GATEWAY].delivered.len() - delivered,
        5 * PEERS.count()
    );
    let after: Vec<_> = PEERS
        .map(|n| net.session(GATEWAY, n).local_index())
        .collect();
    assert_eq!(before, after);
    // The next ones have it, in the same receive queues.
    let queues: Vec<_> = PEERS.map(|number| rx_queue(&net, number)).collect();
    let bytes = last_bytes(&mut net, 1);
    assert!(
        bytes.iter().all(|byte| byte >> GATEWAY_SHIFT == 9),
        "{bytes:?}"
    );
    assert_eq!(queues, PEERS.map(|n| rx_queue(&net, n)).collect::<Vec<_>>());
}
