//! The last byte of a receiver index says in which receive queue, at which of several sockets, data arrives.
//! Peers have the receive queues that their work asks for.

mod common;

use std::collections::BTreeSet;

use adit_proto::config::PeerChange;
use adit_proto::wire::DataHeader;
use adit_proto::{Device, Import, MAX_RX_QUEUES};
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
    assert!(shared.rx_queues().begin_change(net.now), "no peer moves");
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

/// How often peers are in another receive queue than ten seconds before.
fn moves(net: &mut Net, seconds: u64, of: impl Fn(usize) -> u64) -> usize {
    let (mut moves, mut before) = (0, places(net));
    for _ in 0..seconds / 10 {
        work(net, 10, &of);
        let now = places(net);
        moves += before.iter().zip(&now).filter(|(a, b)| a != b).count();
        before = now;
    }
    moves
}

#[test]
fn two_peers_with_much_to_do_are_parted_at_the_next_rekey() {
    let mut net = net();
    exchange(&mut net, 5);
    set_count(&net, 4);
    let first = place(&net, 1);
    let other = PEERS.skip(1).find(|number| place(&net, *number) == first);
    let other = other.expect("eight peers have four receive queues");
    let of = |number| match number == 1 || number == other {
        true => MUCH,
        false => LITTLE,
    };
    work(&mut net, 100, of);
    assert_eq!(place(&net, other), place(&net, 1), "no session is new yet");
    work(&mut net, 30, of);
    assert_ne!(place(&net, other), place(&net, 1));
    // Those that do little make way for them, and then all stay.
    moves(&mut net, 400, of);
    assert_eq!(moves(&mut net, 400, of), 0);
    let heavy = [1, other].map(|number| place(&net, number));
    assert_ne!(heavy[0], heavy[1]);
    let beside = places(&net).into_iter().filter(|it| heavy.contains(it));
    assert!(beside.count() <= 4, "{:?}", places(&net));
}

#[test]
fn peers_with_little_to_do_make_way_for_one_with_much() {
    let mut net = net();
    exchange(&mut net, 5);
    set_count(&net, 2);
    let of = |number| if number == 3 { 5 * LITTLE } else { LITTLE };
    moves(&mut net, 800, of);
    let load = |rx_queue| -> u64 {
        let there = PEERS.filter(|number| place(&net, *number) == rx_queue);
        there.map(of).sum()
    };
    let loads = [load(0), load(1)];
    assert!(loads.iter().all(|load| *load <= 7 * LITTLE), "{loads:?}");
    assert_eq!(moves(&mut net, 600, of), 0, "they stay");
}

#[test]
fn equal_peers_stay() {
    let mut net = net();
    exchange(&mut net, 5);
    set_count(&net, 4);
    assert_eq!(moves(&mut net, 600, |_| MUCH), 0);
}

#[test]
fn a_new_peer_gets_the_rx_queue_with_least_to_do() {
    let mut net = net();
    let gateway = public_key(GATEWAY);
    let shared = net.hosts[GATEWAY].device.shared();
    shared.rx_queues().set_count(4, net.now);
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

/// A handshake that leads nowhere is no move, and does not keep the number of receive queues as it is.
#[test]
fn a_handshake_without_an_answer_moves_nobody() {
    let mut net = net();
    exchange(&mut net, 5);
    set_count(&net, 2);
    let heavy: Vec<usize> = PEERS.filter(|number| place(&net, *number) == 0).collect();
    let of = |number| if heavy.contains(&number) { MUCH } else { 0 };
    work(&mut net, 100, of);
    let before = places(&net);
    net.faults.mute = Some(GATEWAY);
    work(&mut net, 100, of);
    assert_eq!(places(&net), before);
    net.faults.mute = None;
    work(&mut net, 100, of);
    assert_ne!(places(&net), before, "now they move");
    set_count(&net, 4);
}

/// Data of the new session still waits in the process that goes on.
#[test]
fn a_move_is_handed_over() {
    let mut net = net();
    exchange(&mut net, 5);
    set_count(&net, 2);
    let heavy: Vec<usize> = PEERS.filter(|number| place(&net, *number) == 0).collect();
    work(&mut net, 100, |number| {
        if heavy.contains(&number) { MUCH } else { 0 }
    });
    let peer = heavy[0];
    net.hosts[GATEWAY].device.probe(net.now, &public_key(peer));
    net.drain(GATEWAY);
    net.run_for(millis(100));
    let session = net.session(GATEWAY, peer);
    let index = session.local_index();
    let moving = |device: &Device| device.shared().rx_queues().moving(index, net.now);
    let device = &mut net.hosts[GATEWAY].device;
    assert!(session.moves());
    let before = moving(device);
    assert_eq!(before.map(|it| (it.from, it.to)), Some((0, 1)));
    let mut import = Import::new(Box::new(|bytes| bytes.fill(7)));
    let exported = device.export(net.now, |record| import.take(&record));
    exported.expect("all records");
    let other = import.finish(net.now).expect("a device");
    other.shared().rx_queues().set_count(2, net.now);
    assert_eq!(moving(&other), before);
    let session = other.shared().session(index).expect("it goes on");
    assert!(session.session.moves());
    other.shared().rx_queues().moved(index);
    assert_eq!(moving(&other), None);
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
