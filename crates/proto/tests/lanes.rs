//! The last byte of a receiver index, its lane, says at which of several sockets data arrives.

mod common;

use std::collections::BTreeSet;

use adit_proto::config::PeerChange;
use adit_proto::wire::DataHeader;
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

fn lane(net: &Net, number: usize) -> u8 {
    net.session(GATEWAY, number).local_index().to_le_bytes()[3]
}

/// Both ways, so that either end starts the next handshake.
fn exchange(net: &mut Net, seconds: u64) {
    for _ in 0..seconds {
        for number in PEERS {
            net.send(number, GATEWAY, b"there");
            net.send(GATEWAY, number, b"and back");
        }
        net.run_for(secs(1));
    }
}

#[test]
fn peers_are_spread_over_lanes_and_keep_theirs_while_sessions_change() {
    let mut net = net();
    exchange(&mut net, 5);
    let lanes: Vec<u8> = PEERS.map(|number| lane(&net, number)).collect();
    let different: BTreeSet<_> = lanes.iter().collect();
    assert_eq!(different.len(), lanes.len(), "{lanes:?}");
    let mut indices = BTreeSet::new();
    for _ in 0..40 {
        exchange(&mut net, 10);
        for (number, lane_before) in PEERS.zip(&lanes) {
            assert_eq!(lane(&net, number), *lane_before);
            indices.insert(net.session(GATEWAY, number).local_index());
        }
    }
    assert!(indices.len() >= 3 * lanes.len(), "sessions changed");
}

/// The place of the lane in a data message is that of the index's last byte.
#[test]
fn the_lane_stands_where_sockets_look_for_it() {
    let mut message = [0; DataHeader::LEN];
    let header = DataHeader {
        receiver: 0x7f00_0001,
        counter: 0,
    };
    header.write(&mut message);
    assert_eq!(message[DataHeader::LANE_AT], 0x7f);
}
