//! One packet at a time: what `Device::seal` and `Device::open` do for an embedder.

mod common;

use adit_proto::config::PeerChange;
use adit_proto::{Endpoint, NotOpened, NotSealed};
use common::*;

fn ipv4(from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 20];
    packet[0] = 0x45;
    packet[3] = u8::try_from(20 + payload.len()).unwrap();
    packet[12..].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, to]);
    packet.extend(payload);
    packet
}

/// A seals a packet for B, and B opens it as if it came from `from`.
fn pass(net: &mut Net, packet: &[u8], from: Endpoint) -> Result<Vec<u8>, NotOpened> {
    let (now, walls) = (net.now, [net.wall(A), net.wall(B)]);
    let Ok((to, datagram)) = net.hosts[A].device.seal(now, walls[A], packet, 1420) else {
        panic!("a session");
    };
    assert_eq!(to.addr, net.hosts[B].addr);
    assert_eq!(datagram.len() % 16, 0, "it is padded");
    let opened = net.hosts[B].device.open(now, walls[B], from, &datagram);
    let again = net.hosts[B].device.open(now, walls[B], from, &datagram);
    assert_eq!(again, Err(NotOpened::Replayed));
    net.drain(A);
    net.drain(B);
    opened
}

#[test]
fn a_sealed_packet_opens_once_and_moves_the_endpoint() {
    let mut net = Net::pair(30);
    net.connect();
    net.run_for(secs(20));
    let elsewhere = Endpoint::from("198.51.100.7:7".parse::<std::net::SocketAddr>().unwrap());
    let packet = ipv4(1, 2, b"hello");
    assert_eq!(pass(&mut net, &packet, elsewhere), Ok(packet));
    assert_eq!(net.peer(B, A).endpoint(), Some(elsewhere));
    // B has data that it owes an answer to.
    let start = net.now;
    net.run_for(secs(11));
    assert_eq!(net.sent(B, "keepalive", start).len(), 1);
}

#[test]
fn a_source_that_is_not_the_peers_is_refused() {
    let mut net = Net::pair(31);
    net.connect();
    let from = net.hosts[A].addr.into();
    let refused = |packet: &[u8], net: &mut Net| pass(net, packet, from).unwrap_err();
    assert_eq!(refused(&ipv4(9, 2, b""), &mut net), NotOpened::WrongSource);
    let (now, wall) = (net.now, net.wall(B));
    let device = &mut net.hosts[B].device;
    assert_eq!(
        device.open(now, wall, from, &[4; 40]),
        Err(NotOpened::Invalid)
    );
    let unknown = [&[4, 0, 0, 0][..], &[0; 36]].concat();
    assert_eq!(
        device.open(now, wall, from, &unknown),
        Err(NotOpened::NoSession)
    );
}

#[test]
fn a_packet_without_a_session_starts_a_handshake() {
    let mut net = Net::pair(32);
    let packet = ipv4(1, 2, b"x");
    let (now, wall) = (net.now, net.wall(A));
    let device = &mut net.hosts[A].device;
    assert!(matches!(
        device.seal(now, wall, &packet, 1420),
        Err(NotSealed::NoSession(_))
    ));
    let nowhere = ipv4(1, 77, b"x");
    assert!(matches!(
        device.seal(now, wall, &nowhere, 1420),
        Err(NotSealed::NoRoute)
    ));
    let cut = &packet[..19];
    assert!(matches!(
        device.seal(now, wall, cut, 1420),
        Err(NotSealed::NotIp)
    ));
    net.drain(A);
    net.run_for(secs(1));
    let from = net.hosts[A].addr.into();
    assert_eq!(pass(&mut net, &packet, from), Ok(packet));
    // A peer without a known address.
    let mut change = peer(2, |_: &mut PeerChange| {});
    change.peers[0].allowed_ips = vec![add("10.0.0.77/32")];
    net.apply(A, &change);
    let (now, wall) = (net.now, net.wall(A));
    let sealed = net.hosts[A].device.seal(now, wall, &nowhere, 1420);
    assert!(matches!(sealed, Err(NotSealed::NoEndpoint(_))));
}
